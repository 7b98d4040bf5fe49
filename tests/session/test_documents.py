"""Documents: bases and deltas, versions, incarnations, families, retirement, and their typed classes."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from pidurable_nb.errors import BlockEnded, DocumentRefused, NotJson, StorageRequestError
from pidurable_nb.ids import ROOT, EntryId, Json, JsonObject, Seq, TaskId
from pidurable_nb.records.document import SessionScope, TaskScope
from pidurable_nb.records.jsontext import dumps
from pidurable_nb.session.changes import Changes, DocumentChange
from pidurable_nb.session.definition import Definition, base_never
from pidurable_nb.session.documents import Document, decoded, definition_of, encoded
from pidurable_nb.session.shelf import Shelf
from pidurable_nb.store.delta import apply, encode
from pidurable_nb.store.storage import Base, ChangeDocument, Commit, CreateDocument, Delta, RetireDocument, Write

if TYPE_CHECKING:
    from tests.session.conftest import Kit


def documents_of(writes: tuple[Write, ...]) -> list[Write]:
    return [w for w in writes if isinstance(w, (CreateDocument, ChangeDocument, RetireDocument))]


def test_a_document_begins_with_a_base_and_goes_on_in_deltas_until_its_definition_says_base(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        seen: list[tuple[JsonObject, int]] = []

        def base_when(value: JsonObject, ops: object, deltas: int) -> bool:
            seen.append((value, deltas))
            return deltas == 2

        log = Definition(kind="app.log", scope="session", base_when=base_when)
        at = log.at(SessionScope())
        for n in range(6):
            async with session.block(kit.subject) as tx:
                (await tx.edit(log, at))["n"] = n
        kinds: list[str] = []
        for commit in storage.control.commits:
            (write,) = documents_of(commit.writes)
            content = write.base if isinstance(write, CreateDocument) else None
            if isinstance(write, ChangeDocument):
                content = write.content if isinstance(write.content, Base) else None
            kinds.append("base" if content is not None else "delta")
        assert kinds == ["base", "delta", "delta", "base", "delta", "delta"]
        assert seen == [({"n": 1}, 0), ({"n": 2}, 1), ({"n": 3}, 2), ({"n": 4}, 0), ({"n": 5}, 1)]
        await session.close()
        session = await kit.open(kit.again(storage))
        assert await session.snapshot(log, at) == {"n": 5}
        async with session.block(kit.subject) as tx:
            (await tx.edit(log, at))["n"] = 6
        assert seen[-1] == ({"n": 6}, 2)  # counted through the reopening
        await session.close()

    asyncio.run(main())


def test_an_edit_that_changes_nothing_writes_nothing(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        await kit.write_notes(session, list=[1, {"a": None}])
        block = session.block(kit.subject)
        async with block as tx:
            draft = await tx.edit(kit.notes, kit.notes_at)
            draft["list"] = [1, {"a": None}]
        assert block.seq is None
        assert len(storage.control.commits) == 1
        await session.close()

    asyncio.run(main())


def test_a_new_document_is_stored_even_when_nobody_changed_it(kit: Kit) -> None:
    async def main() -> None:
        session = await kit.open()
        seeded = Definition(kind="app.seed", scope="session", initial=lambda seed: {"from": seed})
        async with session.block(kit.subject) as tx:
            await tx.edit(seeded, seeded.at(SessionScope()), seed=7)
        assert await session.snapshot(seeded, seeded.at(SessionScope())) == {"from": 7}
        await session.close()

    asyncio.run(main())


def test_a_version_step_is_a_base_even_when_the_value_is_equal(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        at = kit.notes_at
        await kit.write_notes(session, n=1)
        second = Definition(kind="app.notes", version=2, scope="session", migrate=lambda value, version: value)
        async with session.block(kit.subject) as tx:
            await tx.edit(second, at)
        (write,) = documents_of(storage.control.commits[-1].writes)
        assert isinstance(write, ChangeDocument)
        assert write.content == Base(2, {"n": 1})
        with pytest.raises(DocumentRefused, match="newer"):
            await session.snapshot(kit.notes, at)
        with pytest.raises(DocumentRefused, match="newer"):
            async with session.block(kit.subject) as tx:
                await tx.edit(kit.notes, at)
        await session.close()

    asyncio.run(main())


def test_an_older_value_is_migrated_in_memory_and_refused_without_a_migrate(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        await kit.write_notes(session, n=1)
        bare = Definition(kind="app.notes", version=3, scope="session")
        with pytest.raises(DocumentRefused, match="migrate"):
            await session.snapshot(bare, kit.notes_at)

        def migrate(value: JsonObject, version: int) -> JsonObject:
            return {"count": value["n"], "was": version}

        third = Definition(kind="app.notes", version=3, scope="session", migrate=migrate)
        assert await session.snapshot(third, kit.notes_at) == {"count": 1, "was": 1}
        async with session.block(kit.subject) as tx:
            assert await tx.read(third, kit.notes_at) == {"count": 1, "was": 1}
            (await tx.edit(third, kit.notes_at))["more"] = True
        assert await session.snapshot(third, kit.notes_at) == {"count": 1, "was": 1, "more": True}
        await session.close()
        session = await kit.open(kit.again(storage))
        assert await session.snapshot(third, kit.notes_at) == {"count": 1, "was": 1, "more": True}
        await session.close()

    asyncio.run(main())


def test_a_draft_is_nobodys_before_its_block_ends_and_disconnected_after(kit: Kit) -> None:
    async def main() -> None:
        session = await kit.open()
        async with session.block(kit.subject) as tx:
            draft = await tx.edit(kit.notes, kit.notes_at)
            draft["n"] = [1]
            assert await tx.read(kit.notes, kit.notes_at) is None
            assert await tx.edit(kit.notes, kit.notes_at) is draft
        draft["n"] = "late"
        assert await session.snapshot(kit.notes, kit.notes_at) == {"n": [1]}
        async with session.block(kit.subject) as tx:
            assert await tx.read(kit.notes, kit.notes_at) == {"n": [1]}
        await session.close()

    asyncio.run(main())


def test_members_of_a_family_and_a_singleton_have_their_own_addresses(kit: Kit) -> None:
    async def main() -> None:
        session = await kit.open()
        family = Definition(kind="app.part", scope="session", family=True)
        for key in ("", "a", "b"):
            async with session.block(kit.subject) as tx:
                (await tx.edit(family, family.at(SessionScope(), key)))["key"] = key
        for key in ("", "a", "b"):
            assert await session.snapshot(family, family.at(SessionScope(), key)) == {"key": key}
        with pytest.raises(DocumentRefused, match="key"):
            family.at(SessionScope())
        with pytest.raises(DocumentRefused, match="key"):
            kit.notes.at(SessionScope(), "x")
        with pytest.raises(DocumentRefused, match="session"):
            kit.notes.at(TaskScope(TaskId(5)))
        async with session.block(kit.subject) as tx:
            records = await tx.documents(SessionScope())
        assert [record.key for record in records] == ["", "a", "b"]
        await session.close()

    asyncio.run(main())


def test_retiring_and_making_again_in_one_block_is_a_new_incarnation(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        changes: list[DocumentChange] = []
        session.subscribe(lambda c: changes.extend(c.documents))
        await kit.write_notes(session, n=1)
        async with session.block(kit.subject) as tx:
            old = await tx.documents(SessionScope())
            await tx.retire(kit.notes, kit.notes_at)
            assert await tx.read(kit.notes, kit.notes_at) is None
            assert await tx.documents(SessionScope()) == ()
            draft = await tx.edit(kit.notes, kit.notes_at)
            assert draft == {}
            draft["n"] = 2
            made = await tx.documents(SessionScope())
        assert await session.snapshot(kit.notes, kit.notes_at) == {"n": 2}
        created, retired, again = changes
        assert [c.created for c in changes] == [True, False, True]
        assert retired.value is None
        assert (retired.record.id, again.record.id) == (old[0].id, made[0].id)
        assert retired.record.retired_at == again.record.created_at
        assert created.record.created_at == retired.record.created_at == old[0].created_at
        await session.close()
        session = await kit.open(kit.again(storage))
        assert await session.snapshot(kit.notes, kit.notes_at) == {"n": 2}
        async with session.block(kit.subject) as tx:
            assert await tx.documents(SessionScope()) == (again.record,)
        await session.close()

    asyncio.run(main())


def test_a_document_made_and_retired_in_one_block_was_never_there(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        block = session.block(kit.subject)
        async with block as tx:
            (await tx.edit(kit.notes, kit.notes_at))["n"] = 1
            await tx.retire(kit.notes, kit.notes_at)
            await tx.retire(kit.notes, kit.notes_at)
        assert block.seq is None
        assert storage.control.commits == []
        await session.close()

    asyncio.run(main())


@pytest.mark.parametrize("reopened", [False, True])
def test_a_tasks_documents_are_retired_known_or_not(kit: Kit, reopened: bool) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        tasks: list[TaskId] = []
        for _ in range(5):
            async with session.block(kit.subject) as tx:
                tasks.append(TaskId(tx.mint()))
                for key in ("1", "2"):
                    await tx.edit(kit.call, kit.call.at(TaskScope(tasks[-1]), key))
        if reopened:
            await session.close()
            session = await kit.open(storage := kit.again(storage))
        scans = storage.control.scans
        gate = storage.control.gate = asyncio.Event()

        async def end(task: TaskId) -> None:
            scope = TaskScope(task)
            async with session.block(kit.subject) as tx:
                await tx.edit(kit.call, kit.call.at(scope, "3"))
            async with session.block(kit.subject) as tx:  # while key 3 is only staged
                await tx.edit(kit.call, kit.call.at(scope, "4"))
                await tx.retire_task_documents(task)

        ends = [asyncio.create_task(end(task)) for task in tasks]
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.gather(*ends)
        assert storage.control.scans - scans == (5 if reopened else 0)
        for task in tasks:
            async with session.block(kit.subject) as tx:
                assert await tx.documents(TaskScope(task)) == ()
            assert await session.snapshot(kit.call, kit.call.at(TaskScope(task), "1")) is None
            block = session.block(kit.subject)
            async with block as tx:
                await tx.retire_task_documents(task)
            assert block.seq is None
        await session.close()

    asyncio.run(main())


def test_a_task_that_was_bare_when_the_session_opened_is_ended_without_a_read(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        async with session.block(kit.subject) as tx:
            bare, full = TaskId(tx.mint()), TaskId(tx.mint())
            await tx.edit(kit.call, kit.call.at(TaskScope(full), "1"))
        await session.close()
        session = await kit.open(storage := kit.again(storage))
        await session.know_bare((bare, full))
        async with session.block(kit.subject) as tx:
            await tx.edit(kit.call, kit.call.at(TaskScope(bare), "2"))  # bare no longer
        scans = storage.control.scans
        for task, read in ((bare, 0), (full, 1)):
            async with session.block(kit.subject) as tx:
                await tx.retire_task_documents(task)
            assert storage.control.scans - scans == read
        for task in (bare, full):
            async with session.block(kit.subject) as tx:
                assert await tx.documents(TaskScope(task)) == ()
        await session.close()

    asyncio.run(main())


def test_staged_documents_are_listed_with_stored_ones(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        family = Definition(kind="app.part", scope="session", family=True)
        for key in ("a", "b"):
            async with session.block(kit.subject) as tx:
                await tx.edit(family, family.at(SessionScope(), key))
        gate = storage.control.gate = asyncio.Event()

        async def stage() -> None:
            async with session.block(kit.subject) as tx:
                await tx.retire(family, family.at(SessionScope(), "a"))
                await tx.edit(family, family.at(SessionScope(), "c"))

        async def look() -> list[str | None]:
            async with session.block(kit.subject) as tx:
                return [record.key for record in await tx.documents(SessionScope())]

        work = [asyncio.create_task(stage()), asyncio.create_task(look())]
        await asyncio.sleep(0.02)
        assert await session.snapshot(family, family.at(SessionScope(), "a")) == {}  # stored state only
        gate.set()
        assert (await asyncio.gather(*work))[1] == ["b", "c"]
        await session.close()

    asyncio.run(main())


def test_the_cache_forgets_old_documents_and_keeps_staged_ones(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        shelf = session._shelf
        shelf._kept = 8
        family = Definition(kind="app.part", scope="session", family=True)
        gate = storage.control.gate = asyncio.Event()

        async def write(n: int) -> None:
            async with session.block(memory_kit.subject) as tx:
                draft = await tx.edit(family, family.at(SessionScope(), str(n % 40)))
                draft["n"] = [*as_list(draft.get("n")), n]

        writers = [asyncio.create_task(write(n)) for n in range(80)]
        await asyncio.sleep(0.02)
        assert len(shelf._places) == 40
        gate.set()
        await asyncio.gather(*writers)
        assert len(shelf._places) <= 8
        for n in range(40):
            assert await session.snapshot(family, family.at(SessionScope(), str(n))) == {"n": [n, n + 40]}
        assert len(shelf._places) <= 8
        gate.clear()
        writer = asyncio.create_task(write(0))
        await memory_kit.turns()
        for n in range(1, 40):
            await session.snapshot(family, family.at(SessionScope(), str(n)))
        async with session.block(memory_kit.subject) as tx:
            staged = await tx.read(family, family.at(SessionScope(), "0"))
            gate.set()
        assert staged == {"n": [0, 40, 0]}
        await writer
        await session.close()

    asyncio.run(main())


def as_list(value: Json) -> list[Json]:
    return list(value) if isinstance(value, (list, tuple)) else []


def test_one_load_serves_all_who_ask_and_survives_their_cancellation(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        await memory_kit.write_notes(session, n=1)
        shelf = Shelf(session._stored)
        storage.control.reads = 0
        go = storage.control.slow_read = asyncio.Event()
        askers = [asyncio.create_task(shelf.load(memory_kit.notes_at)) for _ in range(5)]
        await memory_kit.turns()
        assert storage.control.reads == 1
        askers[0].cancel()  # the one that reads
        askers[1].cancel()  # one that waits for it
        await memory_kit.turns()
        go.set()
        places = await asyncio.gather(*askers[2:])
        assert len({id(place) for place in places}) == 1
        assert storage.control.reads == 2
        await session.close()

    asyncio.run(main())


def test_deltas_of_random_edits_lead_every_follower_to_the_stored_value(kit: Kit) -> None:
    seed = random.Random(5)

    def random_value(depth: int) -> Json:
        choice = seed.randrange(6 if depth else 4)
        if choice == 4:
            return [random_value(depth - 1) for _ in range(seed.randrange(4))]
        if choice == 5:
            return {seed.choice("abcd"): random_value(depth - 1) for _ in range(seed.randrange(4))}
        return [None, seed.random() < 0.5, seed.randrange(100), "x" * seed.randrange(20)][choice]

    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        never = Definition(kind="app.random", scope="session", base_when=base_never)
        at = never.at(SessionScope())
        follower: list[Json] = []

        def follow(changes: Changes) -> None:
            for change in changes.documents:
                follower.append(change.value if change.created else apply(follower[-1], change.ops))
                assert follower[-1] == change.value

        session.subscribe(follow)
        for _ in range(60):
            async with session.block(kit.subject) as tx:
                draft = await tx.edit(never, at)
                draft[seed.choice("abcdef")] = random_value(3)
                if seed.random() < 0.3:
                    draft.pop(seed.choice("abcdef"), None)
        value = await session.snapshot(never, at)
        deltas = [w for c in storage.control.commits for w in c.writes if isinstance(w, ChangeDocument)]
        assert all(isinstance(write.content, Delta) for write in deltas)
        await session.close()
        session = await kit.open(kit.again(storage))
        assert await session.snapshot(never, at) == value == follower[-1]
        await session.close()

    asyncio.run(main())


def test_a_thousand_appends_of_a_kilobyte_write_little_more_than_they_add(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        for n in range(1000):
            async with session.block(memory_kit.subject) as tx:
                draft = await tx.edit(memory_kit.notes, memory_kit.notes_at)
                lines = draft.setdefault("lines", [])
                assert isinstance(lines, list)
                lines.append(f"{n:1024}")
        assert sum(map(size_of, contents_of(storage.control.commits))) < 1_300_000
        await session.close()

    asyncio.run(main())


def test_a_small_document_is_written_whole_now_and_then(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        for n in range(200):
            await memory_kit.write_notes(session, n=n)
        whole = [n for n, content in enumerate(contents_of(storage.control.commits)) if isinstance(content, Base)]
        assert whole == [0, 51, 102, 153]
        await session.close()

    asyncio.run(main())


def contents_of(commits: list[Commit]) -> list[Base | Delta]:
    found: list[Base | Delta] = []
    for write in (write for commit in commits for write in commit.writes):
        if isinstance(write, CreateDocument):
            found.append(write.base)
        elif isinstance(write, ChangeDocument):
            found.append(write.content)
    return found


def size_of(content: Base | Delta) -> int:
    return len(dumps(content.value if isinstance(content, Base) else encode(content.ops)))


# -- history -------------------------------------------------------------------------------------------------------


def test_v3_a_snapshot_as_of_an_entry_is_the_value_at_the_end_of_its_commit(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        await kit.root(session)
        plan, at = kit.plan, kit.in_conversation(kit.plan)
        entries: list[EntryId] = []
        for n in range(4):
            async with session.block(kit.subject, conversation=ROOT) as tx:
                entries.append(tx.append("app.note"))
                if n:
                    (await tx.edit(plan, at))["n"] = n
        await session.close()
        session = await kit.open(kit.again(storage))
        values = [await session.snapshot_as_of(plan, at, entry) for entry in entries]
        assert values == [None, {"n": 1}, {"n": 2}, {"n": 3}]
        with pytest.raises(StorageRequestError):
            await session.snapshot_as_of(plan, at, EntryId(999))
        with pytest.raises(StorageRequestError):
            await session.snapshot_as_of(kit.mood, kit.in_conversation(kit.mood), entries[0])
        assert session.failed is None
        await session.close()

    asyncio.run(main())


# -- typed classes -------------------------------------------------------------------------------------------------


@dataclass
class Item:
    text: str
    done: bool = False


class Todo(Document, kind="test.todo", scope="session", version=2):
    items: list[Item] = field(default_factory=list)
    title: str = ""
    due_in: int | None = None

    @classmethod
    def migrate(cls, value: JsonObject, version: int) -> JsonObject:
        return {"title": value["name"]}

    @classmethod
    def base_when(cls, value: Document, deltas: int) -> bool:
        assert isinstance(value, Todo)
        return value.title == "base"


TODO_AT = definition_of(Todo).at(SessionScope())


def test_a_typed_draft_is_stored_as_what_changed_and_revoked(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        async with session.block(kit.subject) as tx:
            todo = await tx.edit_as(Todo, TODO_AT)
            todo.title = "today"
            todo.items.append(Item("write"))
            items = todo.items
            assert await tx.edit_as(Todo, TODO_AT) is todo
            assert await tx.read_as(Todo, TODO_AT) is None
            with pytest.raises(DocumentRefused, match="class"):
                await tx.edit(definition_of(Todo), TODO_AT)
        for use in ("title", "items", "migrate", "nothing"):
            with pytest.raises(BlockEnded, match=use):
                getattr(todo, use)
        with pytest.raises(BlockEnded):
            todo.title = "late"
        with pytest.raises(BlockEnded):
            del todo.title
        assert isinstance(todo, Todo)
        assert "revoked" in repr(todo)
        items.append(Item("late"))
        value = await session.snapshot(definition_of(Todo), TODO_AT)
        assert value == {"items": [{"text": "write", "done": False}], "title": "today"}
        async with session.block(kit.subject) as tx:
            todo = await tx.edit_as(Todo, TODO_AT)
            assert todo == Todo([Item("write")], "today")
            todo.items[0].done = True
            todo.due_in = 3
        (write,) = documents_of(storage.control.commits[-1].writes)
        assert isinstance(write, ChangeDocument)
        assert isinstance(write.content, Delta)
        value = await session.snapshot(definition_of(Todo), TODO_AT)
        assert value is not None
        assert decoded(Todo, value) == Todo([Item("write", True)], "today", 3)
        async with session.block(kit.subject) as tx:
            (await tx.edit_as(Todo, TODO_AT)).title = "base"
        (write,) = documents_of(storage.control.commits[-1].writes)
        assert isinstance(write, ChangeDocument)
        assert isinstance(write.content, Base)
        await session.close()

    asyncio.run(main())


def test_a_typed_draft_is_revoked_by_a_rollback_and_by_a_retirement(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()
        todo = Todo()
        with pytest.raises(ZeroDivisionError):
            async with session.block(memory_kit.subject) as tx:
                todo = await tx.edit_as(Todo, TODO_AT)
                raise ZeroDivisionError
        with pytest.raises(BlockEnded):
            _ = todo.title
        async with session.block(memory_kit.subject) as tx:
            todo = await tx.edit_as(Todo, TODO_AT)
            await tx.retire(definition_of(Todo), TODO_AT)
            with pytest.raises(BlockEnded):
                _ = todo.title
        assert await session.snapshot(definition_of(Todo), TODO_AT) is None
        await session.close()

    asyncio.run(main())


def test_c7_a_typed_draft_that_is_not_json_is_refused_with_its_path(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()
        todo = Todo()
        with pytest.raises(NotJson, match="title"):
            async with session.block(memory_kit.subject) as tx:
                todo = await tx.edit_as(Todo, TODO_AT)
                todo.title = 3  # type: ignore[assignment]
        with pytest.raises(BlockEnded):
            _ = todo.title
        assert session.failed is None
        await session.close()

    asyncio.run(main())


def test_a_stored_value_of_an_older_class_is_migrated_or_refused(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()
        old = Definition(kind="test.todo", scope="session")
        async with session.block(memory_kit.subject) as tx:
            (await tx.edit(old, TODO_AT))["name"] = "old"
        async with session.block(memory_kit.subject) as tx:
            assert await tx.read_as(Todo, TODO_AT) == Todo(title="old")
            (await tx.edit_as(Todo, TODO_AT)).title = "new"
        broken = Definition(kind="test.todo", scope="session", version=2)
        async with session.block(memory_kit.subject) as tx:
            (await tx.edit(broken, TODO_AT))["title"] = 7
        with pytest.raises(DocumentRefused, match="title"):
            async with session.block(memory_kit.subject) as tx:
                await tx.edit_as(Todo, TODO_AT)
        await session.close()

    asyncio.run(main())


def test_illegal_documents_are_refused_where_they_are_defined() -> None:
    made: list[type[Document]] = []
    with pytest.raises(DocumentRefused, match="rewindable"):

        class NoHistory(Document, kind="test.a", fork="as_of"):
            pass

        made.append(NoHistory)
    with pytest.raises(DocumentRefused, match="text"):

        class NoDefault(Document, kind="test.b"):
            text: str

        made.append(NoDefault)
    with pytest.raises(DocumentRefused, match="session"):

        class TooMuchHistory(Document, kind="test.c", scope="session", history="rewindable"):
            pass

        made.append(TooMuchHistory)
    with pytest.raises(DocumentRefused, match="default_factory"):

        class SharedDefault(Document, kind="test.d"):
            items: list[int] = []  # noqa: RUF012 - the mistake under test

        made.append(SharedDefault)
    with pytest.raises(DocumentRefused, match="what"):

        class NotStorable(Document, kind="test.e"):
            what: object = None

        made.append(NotStorable)
    with pytest.raises(DocumentRefused, match="kind"):

        class Nameless(Document):
            pass

        made.append(Nameless)
    with pytest.raises(DocumentRefused, match="version"):
        Definition(kind="test.f", scope="session", version=0)
    assert made == []


class Early(Document, kind="test.early", scope="session"):
    later: Later | None = None


def test_a_name_that_is_defined_later_is_looked_up_when_the_document_is_used() -> None:
    assert encoded(Early(Later(3))) == {"later": {"n": 3}}
    assert decoded(Early, {"later": {"n": 3}}) == Early(Later(3))


@dataclass
class Later:
    n: int = 0


def test_records_of_staged_documents_get_their_number_when_stored(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        changes: list[DocumentChange] = []
        session.subscribe(lambda c: changes.extend(c.documents))
        gate = storage.control.gate = asyncio.Event()
        work = [asyncio.create_task(memory_kit.write_notes(session, n=n)) for n in range(3)]
        await memory_kit.turns()
        gate.set()
        await asyncio.gather(*work)
        assert [change.record.created_at for change in changes] == [Seq(1)] * 3
        assert [dict(change.value or {}) for change in changes] == [{"n": 0}, {"n": 1}, {"n": 2}]
        await session.close()

    asyncio.run(main())
