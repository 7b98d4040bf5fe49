"""Memory storage: what is particular to it beside the promises of every storage (see test_conformance)."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest

from pidurable_nb.errors import StorageError
from pidurable_nb.ids import ROOT, ConversationId, DocumentId, EntryId, Seq
from pidurable_nb.records.document import ConversationScope, DocumentRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, Parent
from pidurable_nb.store.ancestry import Segment, segments, visible
from pidurable_nb.store.delta import Append, Delete, Put
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.storage import (
    CURRENT,
    Base,
    ChangeDocument,
    Commit,
    CopyDocument,
    CreateDocument,
    Delta,
    PutConversation,
    PutEntry,
    RetireDocument,
    Write,
)


def document(id: int, *, rewindable: bool = False, key: str | None = None) -> DocumentRecord:
    return DocumentRecord(
        id=DocumentId(id),
        kind="app.doc",
        scope=ConversationScope(ROOT),
        created_at=Seq(1),
        key=key,
        history="rewindable" if rewindable else "latest",
        fork="initial",
    )


def note(id: int) -> PutEntry:
    return PutEntry(EntryRecord(id=EntryId(id), conversation=ROOT, kind="note"))


async def opened() -> MemoryStorage:
    storage = MemoryStorage()
    await storage.open()
    return storage


async def refuse(storage: MemoryStorage, *writes: Write) -> str:
    with pytest.raises(StorageError) as caught:
        await storage.commit([Commit(writes)])
    assert caught.value.stored == "no"
    return str(caught.value)


def test_e5_memory_syncs_nothing_and_says_so() -> None:
    assert MemoryStorage().barrier == "ordinary"


def test_e6_memory_takes_the_origin_it_is_given() -> None:
    async def main() -> None:
        assert (await MemoryStorage(origin="o").open()).origin == "o"
        ours, other = await MemoryStorage().open(), await MemoryStorage().open()
        assert ours.origin
        assert ours.origin != other.origin
        assert ours.store_id != other.store_id

    asyncio.run(main())


def test_f1_memory_that_is_not_open_refuses_everything() -> None:
    async def main() -> None:
        storage = MemoryStorage()
        with pytest.raises(StorageError, match="open it first"):
            storage.mint()
        for call in (
            storage.commit([Commit(())]),
            storage.maintain(),
            storage.entry(EntryId(1)),
            storage.document(DocumentId(1)),
            storage.scan_documents(ConversationScope(ROOT), limit=1),
            storage.latest_head(ROOT),
        ):
            with pytest.raises(StorageError, match="open it first"):
                await call
        await storage.open()
        with pytest.raises(StorageError, match="open already"):
            await storage.open()

    asyncio.run(main())


def test_c6_ids_minted_before_a_crash_and_never_committed_are_minted_again() -> None:
    async def main() -> None:
        storage = await opened()
        assert [storage.mint(), storage.mint()] == [2, 3]
        await storage.close()
        await storage.open()
        assert storage.mint() == 2

    asyncio.run(main())


def test_c1_a_refused_group_changes_no_number_and_no_row() -> None:
    async def main() -> None:
        storage = await opened()
        await storage.commit([Commit((note(2), CreateDocument(document(3), Base(1, {"n": 0}))))])
        minted = storage.mint()
        doomed = [
            Commit((note(90), ChangeDocument(DocumentId(3), Base(1, {"n": 1})), RetireDocument(DocumentId(3)))),
            Commit((CreateDocument(document(91, key="k"), Base(1, {})), note(2))),
        ]
        with pytest.raises(StorageError):
            await storage.commit(doomed)
        assert storage.mint() == minted + 1
        assert await storage.commit([Commit(())]) == (2,)
        assert await storage.entry(EntryId(90)) is None
        found = await storage.document(DocumentId(3))
        assert found is not None
        assert found.value == {"n": 0}
        assert [r.id for r in (await storage.scan_documents(ConversationScope(ROOT), limit=9)).items] == [3]
        await storage.commit([Commit((note(90), CreateDocument(document(91, key="k"), Base(1, {}))))])

    asyncio.run(main())


def test_c7_a_value_without_json_text_is_refused_before_anything_is_stored() -> None:
    async def main() -> None:
        storage = await opened()
        bad = dataclasses.replace(note(2).record, data=b"bytes")
        assert "cannot be stored" in await refuse(storage, note(3), PutEntry(bad))
        assert await storage.entry(EntryId(3)) is None

    asyncio.run(main())


def test_an_id_outside_the_range_is_refused() -> None:
    async def main() -> None:
        storage = await opened()
        for id in (0, -1, 2**53):
            assert "an id is from 1" in await refuse(storage, note(id))

    asyncio.run(main())


def test_document_writes_that_do_not_fit_are_refused() -> None:
    async def main() -> None:
        storage = await opened()
        await storage.commit([Commit((CreateDocument(document(2), Base(1, {})),))])
        two, lost = DocumentId(2), DocumentId(99)
        step = Delta(1, (Put(("a",), 1),))
        assert "version" in await refuse(storage, ChangeDocument(two, Delta(2, (Put(("a",), 1),))))
        assert "two revisions" in await refuse(storage, ChangeDocument(two, step), ChangeDocument(two, Base(1, {})))
        new = CreateDocument(document(3, key="n"), Base(1, {}))
        assert "two revisions" in await refuse(storage, new, ChangeDocument(DocumentId(3), step))
        assert "unknown" in await refuse(storage, ChangeDocument(lost, step))
        assert "unknown" in await refuse(storage, RetireDocument(lost))
        assert "not alive" in await refuse(storage, CopyDocument(document(4, key="c"), lost, CURRENT))
        assert "not alive" in await refuse(storage, new, CopyDocument(document(4, key="c"), DocumentId(3), CURRENT))
        assert "no history" in await refuse(storage, CopyDocument(document(4, key="c"), two, Seq(1)))
        await storage.commit([Commit((RetireDocument(two),))])
        assert "retired" in await refuse(storage, RetireDocument(two))
        assert "retired" in await refuse(storage, ChangeDocument(two, step))

    asyncio.run(main())


def test_a_current_only_document_keeps_no_revision_that_nobody_can_read() -> None:
    async def main() -> None:
        storage = await opened()
        revisions = storage._documents.revisions
        for id, kept in ((2, [1, 2, 1, 0]), (3, [1, 2, 3, 3])):
            record = document(id, key=str(id), rewindable=id == 3)
            counts: list[int] = []
            writes: Sequence[Write] = (
                CreateDocument(record, Base(1, {})),
                ChangeDocument(record.id, Delta(1, (Put(("a",), 1),))),
                ChangeDocument(record.id, Base(1, {})),
                RetireDocument(record.id),
            )
            for write in writes:
                await storage.commit([Commit((write,))])
                counts.append(len(revisions[id]))
            assert counts == kept

    asyncio.run(main())


def test_f4_a_delta_that_does_not_fit_is_an_error_of_the_storage_when_read() -> None:
    async def main() -> None:
        storage = await opened()
        await storage.commit([Commit((CreateDocument(document(2), Base(1, {"a": 1})),))])
        await storage.commit([Commit((ChangeDocument(DocumentId(2), Delta(1, (Append(("a",), "x"),))),))])
        with pytest.raises(StorageError, match="document 2 cannot be read") as caught:
            await storage.document(DocumentId(2))
        assert caught.value.stored == "unknown"

    asyncio.run(main())


def test_c1_a_delta_shares_nothing_with_its_writer() -> None:
    async def main() -> None:
        storage = await opened()
        payload: list[object] = [1]
        await storage.commit([Commit((CreateDocument(document(2), Base(1, {"b": 0})),))])
        ops = (Put(("a",), payload), Delete(("b",)))  # type: ignore[arg-type]
        await storage.commit([Commit((ChangeDocument(DocumentId(2), Delta(1, ops)),))])
        payload.append(2)
        found = await storage.document(DocumentId(2))
        assert found is not None
        assert found.value == {"a": [1]}

    asyncio.run(main())


# --- Ancestry ---------------------------------------------------------------------------------------------------


def fork(id: int, parent: int, at: int) -> ConversationRecord:
    return ConversationRecord(id=ConversationId(id), parent=Parent(conversation=ConversationId(parent), at=EntryId(at)))


def seen(records: Sequence[ConversationRecord], of: int) -> tuple[Segment, ...]:
    by_id = {record.id: record for record in records}
    return segments(by_id[ConversationId(of)], by_id.get)


def test_v3_the_lowest_fork_point_on_the_way_bounds_what_is_seen() -> None:
    root = ConversationRecord(id=ROOT)
    tree = [root, fork(10, 1, 5), fork(20, 10, 12), fork(30, 20, 3)]
    assert seen(tree, 1) == (Segment(ROOT),)
    assert [(part.conversation, part.cap) for part in seen(tree, 20)] == [(20, None), (10, 12), (1, 5)]
    assert [(part.conversation, part.cap) for part in seen(tree, 30)] == [(30, None), (20, 3), (10, 3), (1, 3)]
    old, new = note(5).record, note(6).record
    assert (visible(old, seen(tree, 20)), visible(new, seen(tree, 20))) == (True, False)


def test_v3_a_chain_that_is_broken_or_closed_ends_there() -> None:
    assert [part.conversation for part in seen([fork(10, 9, 5)], 10)] == [10, 9]
    assert [part.conversation for part in seen([fork(10, 11, 5), fork(11, 10, 5)], 10)] == [10, 11]
    assert [part.conversation for part in seen([fork(10, 10, 5)], 10)] == [10]

    async def main() -> None:
        storage = await opened()
        await storage.commit([Commit((PutConversation(fork(10, 11, 5)), PutConversation(fork(11, 10, 5))))])
        assert (await storage.scan_entries(ConversationId(10), limit=5)).items == ()

    asyncio.run(main())
