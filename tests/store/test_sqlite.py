"""The SQLite storage at work: commits, hops, strings and scans on real files."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from pidurable_nb.errors import (
    StorageError,
)
from pidurable_nb.ids import ROOT, ConversationId, DocumentId, EntryId, Seq, TaskId
from pidurable_nb.records import codec
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import Address, ConversationScope
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import EntryRecord
from pidurable_nb.store import delta
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import (
    Base,
    ChangeDocument,
    Commit,
    CreateDocument,
    Delta,
    Order,
    Page,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    SubmissionQuery,
    TaskQuery,
)
from pidurable_nb.testing.storage_checks import (
    all_pages,
    change,
    commit,
    conversation,
    create,
    document,
    entry,
    note,
    start,
    submission,
    task,
    value_of,
)
from tests.store.files import close_new, dump, opened, scripted, sound

T = TypeVar("T")


# --- Commits ----------------------------------------------------------------------------------------------------------


def commits_in_log(path: Path) -> int:
    """How many transactions the log holds: frames that carry the size of the database."""
    log = path.with_name(path.name + "-wal").read_bytes()
    frames = range(32, len(log), 24 + 4096)
    return sum(int.from_bytes(log[at + 4 : at + 8], "big") != 0 for at in frames)


def test_c8_a_group_is_one_transaction_and_each_commit_has_its_number(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path / "s.sqlite")
        await start(storage)
        before = commits_in_log(tmp_path / "s.sqlite")
        ids = [storage.mint() for _ in range(200)]
        seqs = await storage.commit([Commit((PutTask(task(id)), PutEntry(entry(id + 1000)))) for id in ids])
        assert list(seqs) == list(range(2, 202))
        assert commits_in_log(tmp_path / "s.sqlite") == before + 1
        stored_entries = [await storage.entry(EntryId(id + 1000)) for id in ids]
        assert [found.commit_seq for found in stored_entries if found is not None] == list(seqs)
        await storage.close()

    asyncio.run(main())
    assert dump(tmp_path / "s.sqlite")["durable_metadata"] == [(1, str(1000 + 201 + 1), 202)]


def test_f4_a_refused_write_takes_the_whole_group_back_proven_not_stored(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path / "s.sqlite")
        await start(storage)
        kept = await note(storage)
        good = [Commit((PutEntry(entry(storage.mint())),)) for _ in range(3)]
        for bad in (PutEntry(entry(kept)), PutTask(task(kept)), ChangeDocument(DocumentId(77), Base(1, {}))):
            with pytest.raises(StorageError) as refused:
                await storage.commit([*good, Commit((bad,))])
            assert refused.value.stored == "no"
            assert "nothing of it is stored" in str(refused.value)
        await storage.commit(good)
        await storage.close()

    asyncio.run(main())
    assert dump(tmp_path / "s.sqlite")["durable_metadata"] == [(1, "6", 6)]
    assert sound(tmp_path / "s.sqlite")


def test_f4_cancelling_a_caller_leaves_its_commit_stored_and_the_storage_alive(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path / "s.sqlite")
        await start(storage)
        id = EntryId(storage.mint())
        caller = asyncio.ensure_future(storage.commit([Commit((PutEntry(entry(id)),))]))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert await storage.entry(id) is not None
        await note(storage)
        await storage.close()

    asyncio.run(main())


def test_inline_nothing_ever_suspends(tmp_path: Path) -> None:
    def run(coroutine: Coroutine[object, None, T]) -> T:
        try:
            coroutine.send(None)
        except StopIteration as done:
            value: T = done.value
            return value
        raise AssertionError("it suspended")

    storage = SqliteStorage(tmp_path / "s.sqlite", inline=True)
    run(storage.open())
    run(start(storage))
    assert run(storage.entry(run(note(storage)))) is not None
    run(storage.maintain())
    run(storage.close())


def test_a_forgotten_storage_never_keeps_the_interpreter_alive(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.testing.storage_checks import start

async def main():
    global storage
    storage = SqliteStorage(Path(sys.argv[1]))
    await storage.open()
    await start(storage)

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s.sqlite")], check=True, timeout=60)
    asyncio.run(close_new(tmp_path / "s.sqlite"))
    assert len(dump(tmp_path / "s.sqlite")["conversations"]) == 1


def test_t3_a_task_row_is_in_step_with_its_record_whatever_changed(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    async def main() -> None:
        storage = await opened(path)
        await start(storage)
        id = storage.mint()
        running = stored.Running(checkpoint={"phase": "start"})
        for record in (
            task(id),
            task(id, state=running),
            task(id, state=stored.Running(checkpoint={"phase": "next"})),
            task(id, state=running, abort_requested=True),
            task(id, state=running, abort_requested=True, background=True),
            task(id, state=running, kind="app.other", conversation=ConversationId(5)),
            task(id, state=stored.Terminal(outcome=stored.Aborted())),
        ):
            await commit(storage, PutTask(record))
            assert await storage.task(TaskId(id)) == record
            fitting = TaskQuery(
                conversation=record.conversation,
                kind=record.kind,
                status=record.status,
                live=record.live,
                abort_requested=record.abort_requested,
                background=record.background,
            )
            assert (await storage.scan_tasks(fitting, limit=9)).items == (record,)
        await storage.close()

    asyncio.run(main())
    assert sound(path)


# --- Strings ----------------------------------------------------------------------------------------------------------


def test_format_both_spellings_of_an_indexed_string_are_found(tmp_path: Path) -> None:
    path, name = tmp_path / "s.sqlite", "été 💸"
    asyncio.run(close_new(path))
    theirs = json.dumps(name)
    assert not name.isascii()
    scripted(
        path,
        "UPDATE durable_metadata SET next_id='20', next_seq=2",
        "INSERT INTO record_ids VALUES (1,'conversation'),(2,'task'),(3,'submission'),(4,'document')",
        "INSERT INTO conversations VALUES (1, NULL, NULL, '{\"id\":1}')",
    )
    theirs_task = json.dumps(codec.task_json(task(2, kind=name)))
    theirs_submission = json.dumps(codec.submission_json(submission(3, request_id=name)))
    theirs_document = json.dumps(codec.document_json(document(4, kind=name, key=name)))
    db = sqlite3.connect(path)
    db.execute("INSERT INTO tasks VALUES (2, 1, ?, 'pending', 0, 0, ?)", (theirs, theirs_task))
    db.execute("INSERT INTO submissions VALUES (3, 1, ?, 'queued', ?)", (theirs, theirs_submission))
    db.execute(
        "INSERT INTO documents VALUES (4, ?, 1, ?, 'conversation', 1, 1, NULL, ?)", (theirs, theirs, theirs_document)
    )
    db.execute("INSERT INTO document_revisions VALUES (4, 1, 'base', 1, '{}')")
    db.commit()
    db.close()

    async def main() -> None:
        storage = await opened(path)
        own_task = task(storage.mint(), kind=name)
        own_submission = submission(storage.mint(), request_id="ï")
        await commit(storage, PutTask(own_task), PutSubmission(own_submission))

        async def scan(limit: int, after: int | None) -> Page[TaskRecord]:
            return await storage.scan_tasks(TaskQuery(kind=name), limit=limit, after=after)

        for limit in (1, 2, 9):
            tasks = await all_pages(partial(scan, limit), limit)
            assert [found.id for found in tasks] == [2, own_task.id]
        found = await storage.submission_by_request(ROOT, name)
        assert found is not None
        assert found.id == 3
        assert await storage.submission_by_request(ROOT, "ï") == own_submission
        address = Address(name, ConversationScope(ROOT), name)
        record = await storage.find_document(address)
        assert record is not None
        assert record.id == 4
        listed = await storage.scan_documents(ConversationScope(ROOT), limit=9, kind=name)
        assert [found.id for found in listed.items] == [4]
        await storage.close()

    asyncio.run(main())
    rows = dump(path)
    assert rows["tasks"][-1][2] == '"été 💸"'
    assert rows["submissions"][-1][2] == '"ï"'


def test_c7_half_characters_and_nul_are_kept_in_every_column(tmp_path: Path) -> None:
    path, odd = tmp_path / "s.sqlite", "a\ud800b\x00c\udfff\ufeff"

    async def main() -> None:
        storage = await opened(path)
        await commit(storage, PutConversation(conversation(1)))
        ids = [storage.mint() for _ in range(4)]
        records = (
            task(ids[0], kind=odd, input={odd: odd}),
            submission(ids[1], request_id=odd),
            entry(ids[2], kind=odd, data=[odd]),
            document(ids[3], kind=odd, key=odd),
        )
        await commit(
            storage,
            PutTask(records[0]),
            PutSubmission(records[1]),
            PutEntry(records[2]),
            CreateDocument(records[3], Base(1, {odd: odd})),
        )
        await change(storage, DocumentId(ids[3]), delta.Append((odd,), odd))
        assert (await storage.scan_tasks(TaskQuery(kind=odd), limit=9)).items == (records[0],)
        assert await storage.submission_by_request(ROOT, odd) == records[1]
        found = await storage.entry(EntryId(ids[2]))
        assert found is not None
        assert found.entry == records[2]
        named = await storage.find_document(Address(odd, ConversationScope(ROOT), odd))
        assert named is not None
        assert await value_of(storage, named.id) == {odd: odd + odd}
        await storage.close()

    asyncio.run(main())
    assert dump(path)["tasks"][0][2] == '"a\\ud800b\\u0000c\\udfff\ufeff"'


# --- Scans ------------------------------------------------------------------------------------------------------------


def test_scans_read_what_they_return_however_much_the_store_holds(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    async def steps(storage: SqliteStorage, many: int) -> list[int]:
        """How much SQLite computes for each question, in its own steps."""
        held = storage._held
        assert held is not None
        counted = [0]

        def count() -> int:
            counted[0] += 1
            return 0

        await held.line.run(lambda line: line.set_progress_handler(count, 10))
        found = []
        for ask in (
            lambda: storage.scan_tasks(TaskQuery(live=True), limit=10),
            lambda: storage.scan_tasks(TaskQuery(live=True, conversation=ROOT), limit=10),
            lambda: storage.scan_tasks(TaskQuery(status="running"), limit=10),
            lambda: storage.scan_tasks(TaskQuery(conversation=ROOT), limit=10, order="descending"),
            lambda: storage.scan_tasks(TaskQuery(abort_requested=True), limit=10),
            lambda: storage.scan_tasks(TaskQuery(), limit=10, after=many),
            lambda: storage.scan_submissions(SubmissionQuery(open=True), limit=10),
            lambda: storage.scan_entries(ROOT, limit=10),
            lambda: storage.latest_head(ROOT),
        ):
            counted[0] = 0
            await ask()
            found.append(counted[0])
        await held.line.run(lambda line: line.set_progress_handler(None, 10))
        return found

    async def main() -> None:
        storage = await opened(path, inline=True)
        await start(storage)
        ended = stored.Terminal(outcome=stored.Completed(result=None))

        def batch() -> Commit:
            ids = [storage.mint() for _ in range(300)]
            done = [PutTask(task(id, state=ended)) for id in ids[:100]]
            asleep = [
                PutTask(task(id, state=stored.Sleeping(checkpoint={"phase": "nap"}, until_ms=1.0)))
                for id in ids[100:200]
            ]
            return Commit((*done, *asleep, *(PutEntry(entry(id)) for id in ids[200:])))

        await storage.commit([batch()])
        few = await steps(storage, 200)
        await storage.commit([batch() for _ in range(30)])
        many = await steps(storage, 200)
        for small, large in zip(few, many, strict=True):
            assert large <= 2 * small + 20, (few, many)
        await storage.close()

    asyncio.run(main())


def test_v3_a_chain_of_forks_is_read_in_order_from_both_ends(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path / "s.sqlite", inline=True)
        await start(storage)
        here, wanted = ROOT, list[EntryId]()
        for _ in range(30):
            seen = [await note(storage, here) for _ in range(3)]
            wanted += seen[:2]
            fork_at, parent, here = seen[1], here, ConversationId(storage.mint())
            record = codec.conversation_of({"id": here, "parent": {"conversationId": parent, "at": fork_at}})
            await commit(storage, PutConversation(record))

        async def scan(limit: int, order: Order, after: int | None) -> Page[EntryRecord]:
            return await storage.scan_entries(here, limit=limit, after=after, order=order)

        for limit in (1, 7, 100):
            up = await all_pages(partial(scan, limit, "ascending"), limit)
            assert [found.id for found in up] == wanted
            down = await all_pages(partial(scan, limit, "descending"), limit)
            assert [found.id for found in down] == wanted[::-1]
        await storage.close()

    asyncio.run(main())


def test_documents_read_at_every_commit_as_they_were(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path / "s.sqlite")
        await start(storage)
        id = DocumentId(storage.mint())
        seqs = [await create(storage, document(id, history="rewindable"), {"n": 0})]
        for n in range(1, 40):
            whole = n % 7 == 0
            content = Base(1, {"n": n}) if whole else Delta(1, (delta.Put(("n",), n),))
            seqs.append(await commit(storage, ChangeDocument(id, content)))
        assert [await value_of(storage, id, seq) for seq in seqs] == [{"n": n} for n in range(40)]
        assert await value_of(storage, id, Seq(seqs[0] - 1)) is None
        found = await storage.document(id)
        assert found is not None
        assert found.deltas_since_base == 39 % 7
        await storage.close()

    asyncio.run(main())
