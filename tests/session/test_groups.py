"""C2, C8: one writer, everything that is staged as one transaction, told in order and only after COMMIT."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from pidurable_nb.errors import SessionFailed, StorageError
from pidurable_nb.ids import ROOT, TaskId
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.storage import TaskQuery

if TYPE_CHECKING:
    from tests.session.conftest import Kit


def test_c8_what_is_staged_during_a_group_goes_as_one_group(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)

        async def one(n: int) -> None:
            async with session.block(kit.subject) as tx:
                tx.put_task(kit.task(100 + n))

        await asyncio.gather(*(one(n) for n in range(200)))
        assert sum(storage.control.groups) == 200
        assert len(storage.control.groups) <= 3
        await session.close()

    asyncio.run(main())


def test_c8_a_group_has_a_cap(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        storage.control.gate = asyncio.Event()

        async def one(n: int) -> None:
            async with session.block(memory_kit.subject) as tx:
                tx.put_task(memory_kit.task(100 + n))

        callers = [asyncio.create_task(one(n)) for n in range(600)]
        await memory_kit.turns(10)
        storage.control.gate.set()
        await asyncio.gather(*callers)
        assert storage.control.groups == [256, 256, 88]
        await session.close()

    asyncio.run(main())


def test_c8_a_probe_may_ask_for_groups_of_one(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage, memory_kit.Recorder(one_by_one=True))

        async def one(n: int) -> None:
            async with session.block(memory_kit.subject) as tx:
                tx.put_task(memory_kit.task(100 + n))

        await asyncio.gather(*(one(n) for n in range(50)))
        assert storage.control.groups == [1] * 50
        await session.close()

    asyncio.run(main())


def test_c2_everybody_hears_of_commits_in_order_and_after_they_are_stored(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        follower = kit.Follower()
        session.attend(follower)
        heard: list[Changes] = []
        dispose = session.subscribe(heard.append)
        storage.control.gate = asyncio.Event()

        async def one(n: int) -> int | None:
            block = session.block(kit.subject)
            async with block as tx:
                tx.put_task(kit.task(100 + n))
            assert len(heard) > n  # the caller is the last to know
            return block.seq

        callers = [asyncio.create_task(one(n)) for n in range(30)]
        await kit.turns(10)
        assert len(follower.staged_changes) == 30
        assert all(changes.seq is None for changes in follower.staged_changes)
        assert not follower.stored_changes
        assert not heard
        storage.control.gate.set()
        seqs = await asyncio.gather(*callers)
        assert [changes.seq for changes in heard] == seqs == sorted(filter(None, seqs))
        assert follower.stored_changes == heard
        assert [list(changes.tasks) for changes in heard] == [[100 + n] for n in range(30)]
        assert [c.tasks for c in follower.staged_changes] == [c.tasks for c in heard]
        dispose()
        async with session.block(kit.subject) as tx:
            tx.put_task(kit.task(200))
        assert len(heard) == 30
        await session.close()

    asyncio.run(main())


def test_c8_a_block_that_writes_nothing_waits_for_the_commit_it_could_read(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        storage.control.gate = asyncio.Event()

        async def write() -> None:
            async with session.block(kit.subject) as tx:
                tx.put_task(kit.task(50, note="staged"))

        async def read() -> object:
            async with session.block(kit.subject) as tx:
                return kit.note_of(await tx.task(TaskId(50)))

        async def refuse() -> None:
            async with session.block(kit.subject) as tx:
                raise ValueError(kit.note_of(await tx.task(TaskId(50))))

        writer, reader, refuser = (asyncio.create_task(f()) for f in (write, read, refuse))
        await asyncio.sleep(0.05)
        assert not reader.done()
        assert not refuser.done()
        storage.control.gate.set()
        await writer
        assert await reader == "staged"
        with pytest.raises(ValueError, match="staged"):
            await refuser
        assert storage.control.groups == [1]  # a block without writes is no commit
        await session.close()

    asyncio.run(main())


@pytest.mark.parametrize("stored", [False, True])
def test_c8_blocks_that_could_read_a_lost_commit_get_session_failed_whatever_they_did(kit: Kit, stored: bool) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        storage.control.gate = asyncio.Event()
        storage.control.fail_commit = 1
        storage.control.stored = stored

        async def write(n: int) -> None:
            async with session.block(kit.subject) as tx:
                tx.put_task(kit.task(50 + n))

        async def read() -> object:
            async with session.block(kit.subject) as tx:
                return await tx.task(TaskId(50))

        async def refuse() -> None:
            async with session.block(kit.subject) as tx:
                await tx.task(TaskId(50))
                raise ValueError

        first = asyncio.create_task(write(0))
        await kit.turns()  # its group is under way
        others = [asyncio.create_task(work) for work in (write(1), read(), refuse())]
        await asyncio.sleep(0.02)
        storage.control.gate.set()
        with pytest.raises(StorageError) as met:
            await first
        for other in others:
            with pytest.raises(SessionFailed) as failed:
                await other
            assert failed.value.cause is met.value
            assert failed.value.stored == "unknown"
        with pytest.raises(SessionFailed):
            await session.task(TaskId(50))
        await session.close()

    asyncio.run(main())


def test_c8_a_block_that_was_open_when_its_reads_were_lost_fails_too(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        gate = storage.control.gate = asyncio.Event()
        storage.control.fail_commit = 1

        async def write() -> None:
            async with session.block(memory_kit.subject) as tx:
                tx.put_task(memory_kit.task(50))

        async def read() -> object:
            async with session.block(memory_kit.subject) as tx:
                seen = await tx.task(TaskId(50))
                gate.set()
                storage.control.slow_read = asyncio.Event()
                asyncio.get_running_loop().call_later(0.02, storage.control.slow_read.set)
                await tx.task(TaskId(51))  # the group fails meanwhile
                assert session.failed is not None
                return seen

        writer, reader = asyncio.create_task(write()), asyncio.create_task(read())
        with pytest.raises(StorageError):
            await writer
        with pytest.raises(SessionFailed):
            await reader
        await session.close()

    asyncio.run(main())


def test_c8_staged_and_stored_records_are_read_as_one(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        for n in range(0, 40, 2):
            async with session.block(kit.subject) as tx:
                tx.put_task(kit.task(100 + n, note="old", kind="app.a"))
        gate = storage.control.gate = asyncio.Event()

        async def stage() -> None:
            async with session.block(kit.subject) as tx:
                for n in range(1, 40, 4):
                    tx.put_task(kit.task(100 + n, note="new", kind="app.a"))
                for n in range(0, 40, 8):  # out of the query
                    tx.put_task(kit.task(100 + n, note="new", kind="app.b"))

        async def scan(limit: int, order: str) -> list[tuple[int, object]]:
            found: list[tuple[int, object]] = []
            async with session.block(kit.subject) as tx:
                after: int | None = None
                while True:
                    page = await tx.scan_tasks(
                        TaskQuery(kind="app.a"),
                        limit=limit,
                        after=after,
                        order="ascending" if order == "ascending" else "descending",
                    )
                    assert len(page.items) <= limit
                    found += [(record.id, kit.note_of(record)) for record in page.items]
                    if page.next is None:
                        return found
                    assert page.items
                    after = page.next

        stager = asyncio.create_task(stage())
        await kit.turns()
        scans = [asyncio.create_task(scan(limit, order)) for limit in (1, 3, 100) for order in ("ascending", "down")]
        await asyncio.sleep(0.05)
        gate.set()
        await stager
        want = sorted(
            [(100 + n, "old") for n in range(0, 40, 2) if n % 8] + [(100 + n, "new") for n in range(1, 40, 4)]
        )
        for index, found in enumerate(await asyncio.gather(*scans)):
            assert found == (want if index % 2 == 0 else want[::-1])
        await session.close()

    asyncio.run(main())


def test_c8_marks_come_around_each_commit_and_publication(memory_kit: Kit) -> None:
    async def main() -> None:
        probe = memory_kit.Recorder(one_by_one=True)
        session = await memory_kit.open(probe=probe)
        async with session.block(memory_kit.subject, what="memo", name="n", laws=("M1",), text="keeps n") as tx:
            tx.put_task(memory_kit.task(50))
        async with session.block(memory_kit.subject):
            pass  # nothing to store: no marks
        marks = [(mark.what, mark.edge, mark.seq) for mark in probe.marks]
        seq = probe.marks[-1].seq
        assert marks == [
            ("memo", "before", None),
            ("publish", "before", seq),
            ("publish", "after", seq),
            ("memo", "after", seq),
        ]
        assert seq is not None
        assert (probe.marks[0].name, probe.marks[0].laws, probe.marks[0].text) == ("n", ("M1",), "keeps n")
        await session.close()

    asyncio.run(main())


def test_c8_sweep_two_hundred_committers_over_a_storage_that_fails_at_the_nth_commit(memory_kit: Kit) -> None:
    async def run(n: int, stored: bool) -> None:
        seed = random.Random(n)
        storage = memory_kit.storage()
        storage.control.fail_commit, storage.control.stored = n, stored
        session = await memory_kit.open(storage)
        published: list[int] = []
        session.subscribe(lambda changes: published.extend(changes.tasks))

        async def one(k: int) -> int:
            for _ in range(seed.randrange(4)):
                await asyncio.sleep(0)
            async with session.block(memory_kit.subject) as tx:
                if seed.random() < 0.3:
                    await tx.task(TaskId(1000))
                if seed.random() < 0.1:
                    raise ZeroDivisionError
                tx.put_task(memory_kit.task(1000 + k))
            return 1000 + k

        results = await asyncio.gather(*(one(k) for k in range(200)), return_exceptions=True)
        acknowledged = [result for result in results if isinstance(result, int)]
        refused = [result for result in results if not isinstance(result, int)]
        assert all(isinstance(e, (StorageError, SessionFailed, ZeroDivisionError)) for e in refused), refused
        assert published == sorted(published, key=published.index)
        assert set(acknowledged) <= set(published)
        failed = session.failed is not None
        assert failed == any(isinstance(error, StorageError) for error in refused)
        assert len(memory_kit.reports) == failed
        memory_kit.reports.clear()
        await session.close()
        again = await memory_kit.open(storage)
        tasks = {task.id for task in (await again.scan_tasks(TaskQuery(), limit=500)).items}
        assert set(published) <= tasks
        if not stored:
            assert set(published) == tasks
        await again.close()

    async def main() -> None:
        for n in range(1, 202):
            await run(n, stored=n % 2 == 0)

    asyncio.run(main())


def test_c8_sweep_a_caller_is_cancelled_at_every_await(memory_kit: Kit) -> None:
    """Whatever is cancelled when: it was stored and published, or it was rolled back, and the session lives on."""

    async def run(at: int) -> bool:
        storage = memory_kit.storage()
        probe = memory_kit.Recorder()
        session = await memory_kit.open(storage, probe)
        follower = memory_kit.Follower()
        session.attend(follower)
        await memory_kit.write_notes(session, n=0)

        async def slow(tx: object) -> None:
            await asyncio.sleep(0)

        follower.add = slow
        steps = 0

        async def victim() -> None:
            async with session.block(memory_kit.subject, conversation=ROOT) as tx:
                await tx.task(TaskId(70))
                draft = await tx.edit(memory_kit.notes, memory_kit.notes_at)
                draft["n"] = 1
                tx.put_task(memory_kit.task(70))

        async def bystander(n: int) -> None:
            async with session.block(memory_kit.subject) as tx:
                await tx.task(TaskId(n))
                tx.put_task(memory_kit.task(n))

        before = asyncio.create_task(bystander(60))
        caller = asyncio.create_task(victim())
        after = asyncio.create_task(bystander(80))
        while not caller.done() and steps < at:
            await asyncio.sleep(0)
            steps += 1
        finished = caller.done()
        caller.cancel()
        outcome = (await asyncio.gather(caller, return_exceptions=True))[0]
        await asyncio.gather(before, after)
        stored = await session.task(TaskId(70)) is not None
        assert (await session.snapshot(memory_kit.notes, memory_kit.notes_at)) == {"n": int(stored)}
        published = [task for changes in follower.stored_changes for task in changes.tasks]
        assert sorted(published) == ([60, 70, 80] if stored else [60, 80])
        assert isinstance(outcome, asyncio.CancelledError) == (not finished)
        assert stored or not finished
        assert session.failed is None
        assert not session.line.busy
        await memory_kit.write_notes(session, n=2)
        await session.close()
        return finished

    async def main() -> None:
        at = 0
        while not await run(at):
            at += 1
        assert at > 5

    asyncio.run(main())


def test_f4_a_caller_cancelled_after_admission_hears_it_when_its_commit_is_settled(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        gate = storage.control.gate = asyncio.Event()

        async def write() -> None:
            async with session.block(kit.subject) as tx:
                tx.put_task(kit.task(50))

        async def read() -> None:
            async with session.block(kit.subject) as tx:
                await tx.task(TaskId(50))

        callers = [asyncio.create_task(write()), asyncio.create_task(read())]
        await kit.turns()
        for _ in range(3):
            for caller in callers:
                caller.cancel()
            await kit.turns()
        assert not any(caller.done() for caller in callers)
        gate.set()
        for caller in callers:
            with pytest.raises(asyncio.CancelledError):
                await caller
        assert await session.task(TaskId(50)) is not None
        await session.close()

    asyncio.run(main())


def test_c8_a_stored_group_uncovers_nothing_that_a_later_commit_staged_over_it(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage, memory_kit.Recorder(one_by_one=True))
        gate = asyncio.Event()

        def hold_the_next(changes: Changes) -> None:
            storage.control.gate = gate

        session.subscribe(hold_the_next)

        async def write(n: int) -> None:
            async with session.block(memory_kit.subject) as tx:
                tx.put_task(memory_kit.task(50, note=n))

        async def read() -> object:
            async with session.block(memory_kit.subject) as tx:
                return memory_kit.note_of(await tx.task(TaskId(50)))

        writers = [asyncio.create_task(write(n)) for n in range(3)]
        await writers[0]
        assert memory_kit.note_of(await session.task(TaskId(50))) == 0
        reader = asyncio.create_task(read())
        await memory_kit.turns()
        gate.set()
        assert await reader == 2
        await asyncio.gather(*writers)
        await session.close()

    asyncio.run(main())
