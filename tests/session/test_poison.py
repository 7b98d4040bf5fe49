"""F1, F2, F4: a storage error ends the session, once, for everybody, and nothing hangs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pidurable_nb.errors import AnotherWriter, SessionFailed, StorageError
from pidurable_nb.ids import ROOT, TaskId
from pidurable_nb.probe import Mark
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.storage import TaskQuery

if TYPE_CHECKING:
    from tests.session.conftest import Kit


def test_f1_a_failed_commit_ends_the_session_for_everybody_with_the_cause(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        follower = kit.Follower()
        session.attend(follower)
        storage.control.fail_commit = 1
        cause = AnotherWriter("somebody else wrote", stored="no")
        storage.control.error = lambda: cause
        with pytest.raises(AnotherWriter) as met:
            async with session.block(kit.subject) as tx:
                tx.put_task(kit.task(50))
        assert met.value is cause
        for _ in range(2):
            with pytest.raises(SessionFailed) as failed:
                async with session.block(kit.subject):
                    pass
            assert failed.value.cause is cause
            assert failed.value.stored == "no"
        for read in (session.task(TaskId(50)), session.scan_tasks(TaskQuery(), limit=1), session.settled()):
            with pytest.raises(SessionFailed):
                await read
        with pytest.raises(SessionFailed):
            await session.snapshot(kit.notes, kit.notes_at)
        assert session.failed is not None
        assert session.failed.cause is cause
        assert kit.reports == [session.failed]
        assert follower.failures == [session.failed]
        assert follower.stored_changes == []
        assert session.poison(StorageError("again", stored="no")) is session.failed
        assert len(kit.reports) == 1
        await session.close()

    asyncio.run(main())


def test_f1_who_waits_for_the_line_is_sent_away(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        storage.control.slow_read = asyncio.Event()

        async def hold() -> None:
            async with session.block(memory_kit.subject) as tx:
                await tx.task(TaskId(5))
                tx.put_task(memory_kit.task(5))

        async def wait() -> None:
            async with session.block(memory_kit.subject) as tx:
                tx.put_task(memory_kit.task(6))

        holder = asyncio.create_task(hold())
        waiters = [asyncio.create_task(wait()) for _ in range(5)]
        await memory_kit.turns()
        session.poison(StorageError("gone", stored="unknown"))
        for waiter in waiters:
            with pytest.raises(SessionFailed):
                await waiter
        assert not holder.done()
        storage.control.slow_read.set()
        with pytest.raises(SessionFailed):
            await holder
        assert storage.control.commits == []
        await session.close()

    asyncio.run(main())


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("foreign", [False, True])
def test_f1_a_read_that_fails_raises_its_error_and_ends_the_session(kit: Kit, inside: bool, foreign: bool) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        storage.control.fail_read = True
        if foreign:
            storage.control.error = lambda: OSError("cable")
        with pytest.raises(StorageError) as met:
            if inside:
                async with session.block(kit.subject) as tx:
                    await tx.task(TaskId(5))
            else:
                await session.task(TaskId(5))
        assert session.failed is not None
        assert session.failed.cause is met.value
        assert met.value.stored == "unknown"
        assert (type(met.value.__cause__) is OSError) == foreign
        await session.close()

    asyncio.run(main())


def test_f1_a_commit_under_way_when_a_read_fails_is_told_the_truth(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        follower = kit.Follower()
        session.attend(follower)
        gate = storage.control.gate = asyncio.Event()

        async def write(n: int) -> None:
            async with session.block(kit.subject) as tx:
                tx.put_task(kit.task(n))

        first = asyncio.create_task(write(50))
        await kit.turns()
        second = asyncio.create_task(write(51))  # staged, and never given to the storage
        await kit.turns()
        storage.control.fail_read = True
        with pytest.raises(StorageError):
            await session.task(TaskId(9))
        with pytest.raises(SessionFailed):
            await second
        assert not first.done()
        gate.set()
        await first  # it is stored
        assert follower.stored_changes == []  # and nobody follows any more
        await session.close()
        storage.control.fail_read = False
        again = kit.again(storage)
        session = await kit.open(again)
        assert await session.task(TaskId(50)) is not None
        assert await session.task(TaskId(51)) is None
        await session.close()

    asyncio.run(main())


def test_f4_a_foreign_exception_of_a_commit_proves_nothing(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        storage.control.fail_commit = 1
        storage.control.error = lambda: MemoryError("x")
        with pytest.raises(StorageError) as met:
            await memory_kit.write_notes(session, n=1)
        assert met.value.stored == "unknown"
        assert isinstance(met.value.__cause__, MemoryError)
        await session.close()

    asyncio.run(main())


@pytest.mark.parametrize("edge", ["before", "after"])
def test_a_crash_at_a_publication_stores_and_tells_nothing_more(memory_kit: Kit, edge: str) -> None:
    async def main() -> None:
        storage = memory_kit.storage()

        def crash(mark: Mark) -> bool:
            return mark.what == "publish" and mark.edge == edge and mark.seq == 2

        probe = memory_kit.Recorder(one_by_one=True, crash=crash)
        session = await memory_kit.open(storage, probe)
        heard: list[Changes] = []
        session.subscribe(heard.append)

        async def write(n: int) -> int:
            async with session.block(memory_kit.subject) as tx:
                tx.put_task(memory_kit.task(n))
            return n

        results = await asyncio.gather(*(write(n) for n in range(50, 60)), return_exceptions=True)
        told = [result for result in results if isinstance(result, int)]
        assert told == ([50] if edge == "before" else [50, 51])
        assert [next(iter(changes.tasks)) for changes in heard] == told
        assert all(isinstance(e, SessionFailed) and e.stored == "unknown" for e in results if e not in told)
        assert len(storage.control.commits) == 2
        assert session.failed is not None
        assert isinstance(session.failed.cause.__cause__, memory_kit.Crash)
        assert memory_kit.reports == []  # a simulated crash tells nobody
        with pytest.raises(SessionFailed):
            await write(70)
        await session.close()

    asyncio.run(main())


@pytest.mark.parametrize("edge", ["before", "after"])
def test_a_crash_at_a_commit_passes_through_its_block(memory_kit: Kit, edge: str) -> None:
    async def main() -> None:
        probe = memory_kit.Recorder(crash=lambda mark: mark.what == "commit" and mark.edge == edge)
        session = await memory_kit.open(probe=probe)
        met: BaseException | None = None
        try:
            await memory_kit.write_notes(session, n=1)
        except BaseException as error:
            met = error
        assert isinstance(met, memory_kit.Crash)
        assert (await session.snapshot(memory_kit.notes, memory_kit.notes_at) is not None) == (edge == "after")
        assert not session.line.busy
        await session.close()

    asyncio.run(main())


def test_an_attendant_that_raises_after_the_commit_ends_the_session(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()
        follower = memory_kit.Follower()
        session.attend(follower)

        def broken(changes: Changes) -> None:
            raise ZeroDivisionError

        follower.on_stored = broken
        with pytest.raises(SessionFailed):
            await memory_kit.write_notes(session, n=1)
        assert [type(error) for error in memory_kit.reports] == [ZeroDivisionError]
        await session.close()

    asyncio.run(main())


def test_a_cancelled_writer_does_not_leave_anybody_hanging(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        storage.control.gate = asyncio.Event()
        callers = [asyncio.create_task(memory_kit.write_notes(session, n=n)) for n in range(3)]
        await memory_kit.turns()
        session._writer._task.cancel()  # as asyncio.run does at its end
        for caller in callers:
            with pytest.raises(SessionFailed) as failed:
                await caller
            assert failed.value.stored == "unknown"
        await session.close()

    asyncio.run(main())


def test_f1_sweep_a_read_fails_at_every_place_and_nobody_hangs(memory_kit: Kit) -> None:
    async def run(n: int) -> bool:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        count = 0

        def due() -> BaseException:
            return StorageError("read", stored="no")

        storage.control.error = due
        published: set[int] = set()
        session.subscribe(lambda changes: published.update(changes.tasks))

        async def one(k: int) -> int:
            nonlocal count
            async with session.block(memory_kit.subject, conversation=ROOT) as tx:
                count += 1
                storage.control.fail_read = count == n
                await tx.task(TaskId(1000 + k))
                tx.put_task(memory_kit.task(1000 + k))
            return 1000 + k

        results = await asyncio.gather(*(one(k) for k in range(30)), return_exceptions=True)
        assert all(isinstance(result, (int, StorageError, SessionFailed)) for result in results)
        storage.control.fail_read = False
        failed = session.failed is not None
        await session.close()
        again = await memory_kit.open(storage)
        stored = {task.id for task in (await again.scan_tasks(TaskQuery(), limit=99)).items}
        assert {result for result in results if isinstance(result, int)} <= stored
        assert published <= stored
        await again.close()
        return failed

    async def main() -> None:
        assert all([await run(n) for n in range(1, 31)])
        assert not await run(99)

    asyncio.run(main())
