"""V3: what a fork sees, what it takes along, and that neither branch shows in the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pidurable_nb.errors import DocumentRefused, SessionFailed, StorageError, StorageRequestError
from pidurable_nb.ids import ROOT, ConversationId, EntryId, TaskId
from pidurable_nb.records.document import ConversationScope
from pidurable_nb.records.transcript import ConversationRecord, Owner, Parent
from pidurable_nb.session.changes import DocumentChange
from pidurable_nb.session.session import Session
from pidurable_nb.store.storage import CURRENT, CopyDocument, CreateDocument

if TYPE_CHECKING:
    from tests.session.conftest import Kit


async def story(kit: Kit, session: Session, n: int) -> list[EntryId]:
    """The root with `n` commits: an entry each, and its number in one document of every policy."""
    await kit.root(session)
    entries: list[EntryId] = []
    for number in range(n):
        async with session.block(kit.subject, conversation=ROOT) as tx:
            entries.append(tx.append("app.note", data=number))
            for definition in (kit.plan, kit.mood, kit.scratch):
                (await tx.edit(definition, kit.in_conversation(definition)))["n"] = number
    return entries


async def values(kit: Kit, session: Session, conversation: ConversationId) -> list[object]:
    found: list[object] = []
    for definition in (kit.plan, kit.mood, kit.scratch):
        value = await session.snapshot(definition, kit.in_conversation(definition, conversation))
        found.append(value["n"] if value is not None else None)
    return found


@pytest.mark.parametrize("reopened", [False, True])
def test_v3_each_document_follows_its_policy(kit: Kit, reopened: bool) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        entries = await story(kit, session, 4)
        if reopened:
            await session.close()
            storage = kit.again(storage)
            session = await kit.open(storage)
        changes: list[DocumentChange] = []
        session.subscribe(lambda c: changes.extend(c.documents))
        owner = Owner(conversation=ROOT, task=TaskId(77))
        async with session.block(kit.subject) as tx:
            child = await tx.fork(ROOT, entries[1], owner=owner)
        assert await values(kit, session, child) == [1, 3, None]
        assert await session.conversation(child) == ConversationRecord(
            id=child, parent=Parent(conversation=ROOT, at=entries[1]), owner=owner
        )
        copies = [write for write in storage.control.commits[-1].writes if isinstance(write, CopyDocument)]
        assert [copy.at == CURRENT for copy in copies] == [False, True]
        assert [(change.created, change.value) for change in changes] == [(True, {"n": 1}), (True, {"n": 3})]
        assert [entry.data for entry in (await session.scan_entries(child, limit=9)).items] == [1, 0]
        await session.close()
        session = await kit.open(kit.again(storage))
        assert await values(kit, session, child) == [1, 3, None]
        await session.close()

    asyncio.run(main())


def test_v3_a_change_in_one_branch_never_shows_in_another(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        entries = await story(kit, session, 3)
        async with session.block(kit.subject) as tx:
            one = await tx.fork(ROOT, entries[2])
        async with session.block(kit.subject) as tx:
            two = await tx.fork(one, entries[1])
        for number, conversation in ((10, ROOT), (20, one), (30, two)):
            async with session.block(kit.subject, conversation=conversation) as tx:
                tx.append("app.note", data=number)
                for definition in (kit.plan, kit.mood, kit.scratch):
                    at = kit.in_conversation(definition, conversation)
                    (await tx.edit(definition, at))["n"] = number
        for reopened in (False, True):
            if reopened:
                await session.close()
                session = await kit.open(kit.again(storage))
            for number, conversation, seen in ((10, ROOT, [2, 1, 0]), (20, one, [2, 1, 0]), (30, two, [1, 0])):
                assert await values(kit, session, conversation) == [number] * 3
                page = await session.scan_entries(conversation, limit=9)
                assert [entry.data for entry in page.items] == [number, *seen]
        await session.close()

    asyncio.run(main())


def test_v3_as_of_an_inherited_entry_comes_from_the_conversation_that_owns_it(kit: Kit) -> None:
    async def main() -> None:
        session = await kit.open()
        entries = await story(kit, session, 3)
        async with session.block(kit.subject) as tx:
            child = await tx.fork(ROOT, entries[2])
        async with session.block(kit.subject) as tx:
            (await tx.edit(kit.plan, kit.in_conversation(kit.plan, child)))["n"] = "child"
            (await tx.edit(kit.mood, kit.in_conversation(kit.mood, child)))["n"] = "child"
        async with session.block(kit.subject) as tx:
            grandchild = await tx.fork(child, entries[1])
        assert await values(kit, session, grandchild) == [1, "child", None]  # current: from the one named as parent
        at = kit.in_conversation(kit.plan, child)
        assert await session.snapshot_as_of(kit.plan, at, entries[0]) == {"n": 0}
        scratch = kit.in_conversation(kit.scratch, child)
        assert await session.snapshot_as_of(kit.scratch, scratch, entries[0]) is None  # not alive in the child then
        await session.close()

    asyncio.run(main())


def test_v3_a_fork_at_an_entry_that_is_not_visible_is_refused_alone(kit: Kit) -> None:
    async def main() -> None:
        session = await kit.open()
        entries = await story(kit, session, 2)
        async with session.block(kit.subject) as tx:
            child = await tx.fork(ROOT, entries[0])
        async with session.block(kit.subject) as tx:
            with pytest.raises(StorageRequestError):
                await tx.fork(child, entries[1])
            with pytest.raises(StorageRequestError):
                await tx.fork(ROOT, EntryId(999))
            with pytest.raises(StorageRequestError):
                await tx.fork(ConversationId(999), entries[0])
            mine = tx.append("app.note", conversation=ROOT)
            with pytest.raises(StorageRequestError):
                await tx.fork(ROOT, mine)  # an entry of this very block has no commit yet
        assert session.failed is None
        await session.close()

    asyncio.run(main())


def test_v3_a_fork_of_what_is_only_staged_waits_for_it_and_takes_the_staged_values(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        entries = await story(kit, session, 2)
        gate = storage.control.gate = asyncio.Event()

        async def write() -> EntryId:
            async with session.block(kit.subject, conversation=ROOT) as tx:
                (await tx.edit(kit.plan, kit.in_conversation(kit.plan)))["n"] = "staged"
                (await tx.edit(kit.mood, kit.in_conversation(kit.mood)))["n"] = "staged"
                made.append(tx.append("app.note"))
                return made[0]

        async def fork_stored() -> ConversationId:
            async with session.block(kit.subject) as tx:
                return await tx.fork(ROOT, entries[0])

        async def fork_staged() -> ConversationId:
            async with session.block(kit.subject) as tx:
                child = await tx.fork(ROOT, made[0])
                return await tx.fork(ROOT, made[0]) if child else child

        made: list[EntryId] = []
        work = [asyncio.create_task(w) for w in (write(), fork_stored(), fork_staged())]
        await asyncio.sleep(0.05)
        assert not any(w.done() for w in work)
        gate.set()
        _, stored, staged = await asyncio.gather(*work)
        assert await values(kit, session, ConversationId(stored)) == [0, "staged", None]
        assert await values(kit, session, ConversationId(staged)) == ["staged", "staged", None]
        handed = [w for c in storage.control.commits for w in c.writes if isinstance(w, CreateDocument)]
        assert len(handed) == 4  # three of the root, and the one value that the storage did not have yet
        await session.close()
        session = await kit.open(kit.again(storage))
        assert await values(kit, session, ConversationId(stored)) == [0, "staged", None]
        assert await values(kit, session, ConversationId(staged)) == ["staged", "staged", None]
        await session.close()

    asyncio.run(main())


def test_v3_a_fork_of_a_commit_that_is_lost_fails_the_block(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        await story(memory_kit, session, 1)
        gate = storage.control.gate = asyncio.Event()
        storage.control.fail_commit = storage.control.seen + 1
        made: list[EntryId] = []

        async def write() -> None:
            async with session.block(memory_kit.subject, conversation=ROOT) as tx:
                made.append(tx.append("app.note"))

        async def fork() -> None:
            async with session.block(memory_kit.subject) as tx:
                await tx.fork(ROOT, made[0])

        writer, forker = asyncio.create_task(write()), asyncio.create_task(fork())
        await memory_kit.turns()
        gate.set()
        with pytest.raises(StorageError):
            await writer
        with pytest.raises(SessionFailed):
            await forker
        await session.close()

    asyncio.run(main())


def test_v3_the_copies_can_be_edited_in_the_same_block(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        entries = await story(kit, session, 3)
        async with session.block(kit.subject) as tx:
            child = await tx.fork(ROOT, entries[1])
            plan, mood = kit.in_conversation(kit.plan, child), kit.in_conversation(kit.mood, child)
            assert await tx.read(kit.plan, plan) == {"n": 1}
            draft = await tx.edit(kit.plan, plan)
            assert draft == {"n": 1}
            draft["mine"] = True
            assert await tx.edit(kit.mood, mood) == {"n": 2}  # and not changed: still a copy
            scope = ConversationScope(child)
            listed = [record.kind for record in await tx.documents(scope)]
            assert listed == ["app.plan", "app.mood"]
            await tx.retire(kit.mood, mood)
            assert [record.kind for record in await tx.documents(scope)] == ["app.plan"]
        assert await session.snapshot(kit.plan, plan) == {"n": 1, "mine": True}
        assert await session.snapshot(kit.mood, mood) is None
        async with session.block(kit.subject) as tx:
            (await tx.edit(kit.plan, plan))["n"] = 9
        await session.close()
        session = await kit.open(kit.again(storage))
        assert await session.snapshot(kit.plan, plan) == {"n": 9, "mine": True}
        assert await session.snapshot(kit.plan, kit.in_conversation(kit.plan)) == {"n": 2}
        await session.close()

    asyncio.run(main())


@pytest.mark.parametrize("first", ["write", "fork"])
@pytest.mark.parametrize("how", ["edit", "retire"])
def test_v3_a_commit_that_forks_and_writes_a_current_document_of_the_parent_is_refused(
    kit: Kit, first: str, how: str
) -> None:
    async def main() -> None:
        session = await kit.open()
        entries = await story(kit, session, 1)
        at = kit.in_conversation(kit.mood)
        with pytest.raises(DocumentRefused, match="V3"):
            async with session.block(kit.subject) as tx:
                if first == "fork":
                    await tx.fork(ROOT, entries[0])
                if how == "retire":
                    await tx.retire(kit.mood, at)
                else:
                    (await tx.edit(kit.mood, at))["n"] = 5
                if first == "write":
                    await tx.fork(ROOT, entries[0])
        assert await session.snapshot(kit.mood, at) == {"n": 0}
        async with session.block(kit.subject) as tx:  # what it does not change, and what is not current, it may edit
            child = await tx.fork(ROOT, entries[0])
            await tx.edit(kit.mood, at)
            (await tx.edit(kit.plan, kit.in_conversation(kit.plan)))["n"] = 6
        assert await values(kit, session, child) == [0, 0, None]
        assert await values(kit, session, ROOT) == [6, 0, 0]
        await session.close()

    asyncio.run(main())


def test_v3_a_copy_is_not_lost_to_a_reader_that_looked_for_it_too_early(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        await memory_kit.root(session)
        plan = memory_kit.plan
        async with session.block(memory_kit.subject, conversation=ROOT) as tx:
            entry = tx.append("app.note")
            (await tx.edit(plan, memory_kit.in_conversation(plan)))["n"] = 1
            child = ConversationId(tx.mint() + 1)
        early = storage.control.slow_read = asyncio.Event()
        gate = storage.control.gate = asyncio.Event()
        reader = asyncio.create_task(session.snapshot(plan, memory_kit.in_conversation(plan, child)))
        await memory_kit.turns()

        async def fork() -> ConversationId:
            async with session.block(memory_kit.subject) as tx:
                return await tx.fork(ROOT, entry)

        async def edit() -> None:
            async with session.block(memory_kit.subject) as tx:
                draft = await tx.edit(plan, memory_kit.in_conversation(plan, child))
                draft["more"] = True

        forker = asyncio.create_task(fork())
        await memory_kit.turns()
        early.set()
        assert await reader is None
        editor = asyncio.create_task(edit())
        await memory_kit.turns()
        gate.set()
        assert await forker == child
        await editor
        assert await session.snapshot(plan, memory_kit.in_conversation(plan, child)) == {"n": 1, "more": True}
        await session.close()
        session = await memory_kit.open(storage)
        assert await session.snapshot(plan, memory_kit.in_conversation(plan, child)) == {"n": 1, "more": True}
        await session.close()

    asyncio.run(main())
