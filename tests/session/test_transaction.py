"""C1, C4, C6, C7, C8: what a block writes, rolls back, mints, refuses, and sees of the staged state."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pidurable_nb.errors import NotJson, StorageRequestError
from pidurable_nb.ids import ABSENT, ROOT, ConversationId, EntryId, SubmissionId, TaskId
from pidurable_nb.records.transcript import ConversationRecord, Edit, Owner, Queued, SubmissionRecord, Written
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.store.storage import ConversationQuery, SubmissionQuery, TaskQuery

if TYPE_CHECKING:
    from tests.session.conftest import Kit


def test_c1_everything_of_a_block_is_stored_at_once(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        await kit.root(session)
        async with session.block(kit.subject, conversation=ROOT, by_task=TaskId(7)) as tx:
            entry = tx.append("app.note", text="hello", data=None, edits=(Edit(target=EntryId(4)),))
            head = tx.append("app.head", head="self", model=[{"role": "user", "content": "x", "timestamp": 1}])
            submission = SubmissionId(tx.mint())
            tx.put_submission(
                SubmissionRecord(id=submission, conversation=ROOT, type="write", state=Queued(), request_id="r")
            )
            task = TaskId(tx.mint())
            tx.put_task(kit.task(task))
            (await tx.edit(kit.notes, kit.notes_at))["n"] = 1
        await session.close()
        session = await kit.open(kit.again(storage))
        found = await session.visible_entry(ROOT, entry)
        assert found is not None
        assert found.entry.data is None
        assert found.entry.by_task == 7
        assert found.entry.model is not None
        assert dict(found.entry.model[0])["content"] == "hello"
        newest = await session.latest_head(ROOT)
        assert newest is not None
        assert (newest.id, newest.head, newest.data) == (head, head, ABSENT)
        assert await session.task(task) == kit.task(task)
        asked = await session.submission_by_request(ROOT, "r")
        assert asked is not None
        assert asked.id == submission
        assert await session.snapshot(kit.notes, kit.notes_at) == {"n": 1}
        assert [entry.id for entry in (await session.scan_entries(ROOT, limit=9)).items] == [head, entry]
        await session.close()

    asyncio.run(main())


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt, asyncio.CancelledError, "crash"])
def test_c4_whatever_a_block_raises_rolls_it_back_and_passes(kit: Kit, raised: type[BaseException] | str) -> None:
    error = kit.Crash if isinstance(raised, str) else raised

    async def main() -> None:
        session = await kit.open()
        follower = kit.Follower()
        session.attend(follower)
        met: BaseException | None = None
        try:
            async with session.block(kit.subject, conversation=ROOT) as tx:
                tx.put_task(kit.task(50))
                (await tx.edit(kit.notes, kit.notes_at))["n"] = 1
                raise error
        except BaseException as caught:
            met = caught
        assert type(met) is error
        assert not follower.staged_changes
        assert await session.task(TaskId(50)) is None
        async with session.block(kit.subject) as tx:
            assert await tx.task(TaskId(50)) is None
            assert await tx.read(kit.notes, kit.notes_at) is None
            tx.put_task(kit.task(51))
        assert session.failed is None
        await session.close()

    asyncio.run(main())


def test_c4_a_candidate_that_raises_rolls_the_block_back(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()
        follower = memory_kit.Follower()
        session.attend(follower)

        def refuse(tx: Transaction) -> None:
            raise ZeroDivisionError

        follower.add = refuse
        with pytest.raises(ZeroDivisionError):
            async with session.block(memory_kit.subject) as tx:
                tx.put_task(memory_kit.task(50))
        assert await session.task(TaskId(50)) is None
        await session.close()

    asyncio.run(main())


def test_c1_what_the_engine_adds_is_in_the_same_commit(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        follower = kit.Follower()
        session.attend(follower)

        async def add(tx: Transaction) -> None:
            assert tx.peek_task(TaskId(50)) is not None
            assert tx.peek_task(TaskId(51)) is None
            draft = await tx.edit(kit.notes, kit.notes_at)  # the user's draft, taken back
            assert draft == {"n": 1}
            draft["engine"] = True
            tx.put_task(kit.task(50, note="completing"))

        follower.add = add
        async with session.block(kit.subject) as tx:
            mine = await tx.edit(kit.notes, kit.notes_at)
            mine["n"] = 1
            tx.put_task(kit.task(50, note="terminal"))
        mine["n"] = 2
        assert await session.snapshot(kit.notes, kit.notes_at) == {"n": 1, "engine": True}
        assert kit.note_of(await session.task(TaskId(50))) == "completing"
        assert len(storage.control.commits) == 1
        change = follower.stored_changes[0].tasks[TaskId(50)]
        assert change.before is None
        async with session.block(kit.subject):
            pass  # nothing to add to
        assert len(follower.staged_changes) == 1
        await session.close()

    asyncio.run(main())


def test_c6_ids_are_minted_in_order_and_survive_a_reopening(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        async with session.block(kit.subject) as tx:
            first, second = tx.mint(), tx.mint()
            tx.put_task(kit.task(second))
        assert second == first + 1
        await session.close()
        session = await kit.open(kit.again(storage))
        async with session.block(kit.subject) as tx:
            assert tx.mint() == second + 1
        await session.close()

    asyncio.run(main())


def test_c7_values_are_refused_where_they_enter_and_name_their_path(kit: Kit) -> None:
    async def main() -> None:
        session = await kit.open()
        async with session.block(kit.subject, conversation=ROOT) as tx:
            with pytest.raises(NotJson) as refused:
                tx.append("app.note", data={"rate": [1.0, float("nan")]})
            assert refused.value.at == "$.data.rate[1]"
            with pytest.raises(NotJson) as refused:
                tx.append("app.note", model=[{"role": "user", "content": 2**60}])
            assert refused.value.at == "$.model[0].content"
            with pytest.raises(ValueError, match="kind"):
                tx.append("")
            with pytest.raises(ValueError, match="either"):
                tx.append("app.note", text="x", model=[])
        async with session.block(kit.subject) as tx:
            with pytest.raises(ValueError, match="conversation"):
                tx.append("app.note")
        with pytest.raises(NotJson) as refused:
            async with session.block(kit.subject) as tx:
                draft = await tx.edit(kit.notes, kit.notes_at)
                draft["deep"] = {"er": [float("inf")]}
                tx.put_task(kit.task(50))
        assert refused.value.at == "$.deep.er[0]"
        assert await session.task(TaskId(50)) is None
        assert session.failed is None
        await session.close()

    asyncio.run(main())


def test_c7_what_was_given_can_be_changed_afterwards_without_harm(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        gate = storage.control.gate = asyncio.Event()
        data: list[int] = [1]

        async def write() -> EntryId:
            async with session.block(memory_kit.subject, conversation=ROOT) as tx:
                draft = await tx.edit(memory_kit.notes, memory_kit.notes_at)
                draft["list"] = data
                return tx.append("app.note", data={"list": data})

        writer = asyncio.create_task(write())
        await memory_kit.turns()
        data.append(2)
        gate.set()
        found = await session.entry(await writer)
        assert found is not None
        assert found.entry.data == {"list": [1]}
        assert await session.snapshot(memory_kit.notes, memory_kit.notes_at) == {"list": [1]}
        await session.close()

    asyncio.run(main())


def test_c8_a_later_block_reads_staged_transcripts_through_staged_forks(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        await kit.root(session)
        async with session.block(kit.subject, conversation=ROOT) as tx:
            first = tx.append("app.note", data=1)
            second = tx.append("app.note", data=2)
        gate = storage.control.gate = asyncio.Event()

        async def stage_fork() -> ConversationId:
            async with session.block(kit.subject) as tx:
                child = await tx.fork(ROOT, first, owner=Owner(conversation=ROOT, task=TaskId(9)))
                tx.append("app.note", data="child", head="self", conversation=child)
                made.append(child)
            return child

        async def stage_more() -> None:
            async with session.block(kit.subject, conversation=ROOT) as tx:
                tx.append("app.note", data="root")

        async def look() -> list[object]:
            async with session.block(kit.subject) as tx:
                child = made[0]
                seen: list[object] = [entry.data for entry in (await tx.scan_entries(child, limit=9)).items]
                pages: list[object] = []
                after: int | None = None
                while True:
                    page = await tx.scan_entries(child, limit=1, after=after, order="ascending")
                    pages += [entry.data for entry in page.items]
                    if page.next is None:
                        break
                    after = page.next
                head = await tx.latest_head(child)
                assert head is not None
                assert head.data == "child"
                assert await tx.latest_head(child, until=second) is None
                assert await tx.visible_entry(child, second) is None
                assert await tx.visible_entry(child, first) is not None
                assert await tx.visible_entry(child, head.id) == head
                assert await tx.visible_entry(ROOT, head.id) is None
                assert await tx.entry(head.id) == head
                owned = await tx.scan_conversations(ConversationQuery(owner_task=TaskId(9)), limit=9)
                assert [record.id for record in owned.items] == [child]
                assert await tx.conversation(child) == owned.items[0]
                root = [entry.data for entry in (await tx.scan_entries(ROOT, limit=9)).items]
                assert root == ["root", 2, 1]
                first_only = await tx.scan_entries(child, limit=9, last=first)
                assert [entry.data for entry in first_only.items] == [1]
                assert seen == pages[::-1]
                return seen

        made: list[ConversationId] = []
        work = [asyncio.create_task(task) for task in (stage_fork(), stage_more())]
        looking = asyncio.create_task(look())
        await asyncio.sleep(0.05)
        with pytest.raises(StorageRequestError):
            await session.scan_entries(made[0], limit=9)  # nobody else sees it
        gate.set()
        assert await looking == ["child", 1]
        await asyncio.gather(*work)
        assert await look() == ["child", 1]  # and the same when it is stored
        await session.close()

    asyncio.run(main())


def test_c8_staged_submissions_are_found_by_request_and_by_query(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        await kit.root(session)
        gate = storage.control.gate = asyncio.Event()
        asked = SubmissionRecord(id=SubmissionId(50), conversation=ROOT, type="write", state=Queued(), request_id="r")

        async def stage() -> None:
            async with session.block(kit.subject) as tx:
                tx.put_submission(asked)

        async def look() -> None:
            async with session.block(kit.subject) as tx:
                assert await tx.submission_by_request(ROOT, "r") == asked
                assert await tx.submission_by_request(ConversationId(2), "r") is None
                assert await tx.submission(SubmissionId(50)) == asked
                open_ = await tx.scan_submissions(SubmissionQuery(open=True), limit=9)
                assert open_.items == (asked,)
                done = SubmissionRecord(id=asked.id, conversation=ROOT, type="write", state=Written(entry=EntryId(4)))
                tx.put_submission(done)

        work = [asyncio.create_task(task) for task in (stage(), look())]
        await asyncio.sleep(0.02)
        gate.set()
        await asyncio.gather(*work)
        async with session.block(kit.subject) as tx:
            assert not (await tx.scan_submissions(SubmissionQuery(open=True), limit=9)).items
        await session.close()

    asyncio.run(main())


def test_a_change_knows_what_it_replaced(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        follower = memory_kit.Follower()
        session.attend(follower)
        a, b, c = (memory_kit.task(50, note=note) for note in "abc")
        gate = storage.control.gate = asyncio.Event()

        async def put(record: object) -> None:
            async with session.block(memory_kit.subject) as tx:
                tx.put_task(a if record is a else b)

        work = [asyncio.create_task(put(a)), asyncio.create_task(put(b))]
        await memory_kit.turns()
        gate.set()
        await asyncio.gather(*work)
        async with session.block(memory_kit.subject) as tx:
            tx.put_task(a, before=b)
            tx.put_task(c)
        changes = [changes.tasks[TaskId(50)] for changes in follower.stored_changes]
        assert [(change.before, change.after) for change in changes] == [(None, a), (a, b), (b, c)]
        assert (await session.scan_tasks(TaskQuery(), limit=9)).items == (c,)
        await session.close()

    asyncio.run(main())


def test_f2_an_illegal_read_fails_alone(kit: Kit) -> None:
    async def main() -> None:
        session = await kit.open()
        with pytest.raises(StorageRequestError):
            await session.scan_entries(ConversationId(99), limit=5)
        async with session.block(kit.subject) as tx:
            with pytest.raises(StorageRequestError):
                await tx.scan_entries(ConversationId(99), limit=5)
            tx.put_conversation(ConversationRecord(id=ROOT))
        assert session.failed is None
        assert await session.conversation(ROOT) == ConversationRecord(id=ROOT)
        await session.close()

    asyncio.run(main())
