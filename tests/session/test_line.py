"""C3, C5: one line, first come first served, held while a block runs; a block that waits for others is thrown out."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from pidurable_nb.errors import BlockEnded, ReadAfterWrite, SessionClosed, SuspendedBlock
from pidurable_nb.ids import ROOT, TaskId
from pidurable_nb.session.line import Line
from pidurable_nb.store.storage import TaskQuery

if TYPE_CHECKING:
    from tests.session.conftest import Kit


def test_c3_blocks_run_one_at_a_time_in_order_of_arrival(memory_kit: Kit) -> None:
    async def main() -> None:
        storage = memory_kit.storage()
        session = await memory_kit.open(storage)
        order: list[str] = []

        async def one(n: int) -> None:
            async with session.block(memory_kit.subject) as tx:
                order.append(f"in {n}")
                await tx.task(TaskId(999))  # a read that suspends
                order.append(f"out {n}")

        storage.control.slow_read = asyncio.Event()
        callers = [asyncio.create_task(one(n)) for n in range(20)]
        await memory_kit.turns()
        assert order == ["in 0"]
        storage.control.slow_read.set()
        await asyncio.gather(*callers)
        assert order == [f"{way} {n}" for n in range(20) for way in ("in", "out")]
        await session.close()

    asyncio.run(main())


def test_c3_an_uncontended_block_does_not_suspend_before_its_commit(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()
        others: list[str] = []
        asyncio.get_running_loop().call_soon(others.append, "another")
        block = session.block(memory_kit.subject)
        tx = await block.__aenter__()
        tx.append("app.note", conversation=ROOT)
        assert others == []
        await block.__aexit__(None, None, None)
        assert others == ["another"]
        await session.close()

    asyncio.run(main())


def test_c3_a_finished_block_is_staged_and_the_next_one_does_not_wait_for_the_storage(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        storage.control.gate = asyncio.Event()

        async def write(note: int) -> None:
            async with session.block(kit.subject) as tx:
                seen.append(kit.note_of(found) if (found := await tx.task(TaskId(50))) is not None else None)
                tx.put_task(kit.task(50, note=note))

        seen: list[object] = []
        callers = [asyncio.create_task(write(n)) for n in range(3)]
        await asyncio.sleep(0.05)
        assert seen == [None, 0, 1]  # each saw the staged state of the one before it
        assert not any(caller.done() for caller in callers)
        assert await session.task(TaskId(50)) is None  # and nobody else did
        storage.control.gate.set()
        await asyncio.gather(*callers)
        assert kit.note_of(await session.task(TaskId(50))) == 2
        await session.close()

    asyncio.run(main())


def test_c3_a_cancelled_waiter_leaves_the_line_to_the_next(memory_kit: Kit) -> None:
    async def main() -> None:
        line = Line()
        assert line.take()
        first, second, third = (asyncio.create_task(line.turn()) for _ in range(3))
        await memory_kit.turns()
        first.cancel()
        line.release()  # before the cancellation has been delivered
        await memory_kit.turns()
        assert first.cancelled()
        assert second.done()
        line.release()
        third.cancel()  # it holds the line already, and does not know yet
        await memory_kit.turns()
        assert third.cancelled()
        assert not line.busy

    asyncio.run(main())


def test_c3_awaiting_something_else_in_a_block_raises_and_rolls_back(kit: Kit) -> None:
    async def main() -> None:
        session = await kit.open()
        with pytest.raises(SuspendedBlock):
            async with session.block(kit.subject) as tx:
                tx.put_task(kit.task(50))
                await asyncio.sleep(3600)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        assert await session.task(TaskId(50)) is None
        async with session.block(kit.subject) as tx:  # the line is free
            tx.put_task(kit.task(51))
        await session.close()

    asyncio.run(main())


def test_c3_a_block_that_awaits_its_own_session_does_not_hang(kit: Kit) -> None:
    async def main() -> None:
        session = await kit.open()
        with pytest.raises(SuspendedBlock):
            async with session.block(kit.subject) as tx:
                tx.put_task(kit.task(50))
                async with session.block(kit.subject):
                    pass
        with pytest.raises(SuspendedBlock):
            async with session.block(kit.subject):
                await session.close()
        assert session.closing
        await session.close()

    asyncio.run(main())


def test_c3_the_watch_goes_on_after_an_operation_that_suspended(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        go = storage.control.slow_read = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, go.set)
        with pytest.raises(SuspendedBlock):
            async with session.block(kit.subject) as tx:
                await tx.task(TaskId(50))
                assert go.is_set()
                await asyncio.sleep(3600)
        assert not session.line.busy
        await session.close()

    asyncio.run(main())


def test_c3_a_swallowed_suspension_is_still_refused(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()
        with pytest.raises(SuspendedBlock):
            async with session.block(memory_kit.subject) as tx:
                tx.put_task(memory_kit.task(50))
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
        assert await session.task(TaskId(50)) is None
        await session.close()

    asyncio.run(main())


def test_c3_a_cancellation_from_outside_wins_over_the_suspension(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()

        async def suspended() -> None:
            async with session.block(memory_kit.subject) as tx:
                tx.put_task(memory_kit.task(50))
                asyncio.get_running_loop().call_soon(me.cancel)
                await asyncio.sleep(3600)

        me = asyncio.create_task(suspended())
        with pytest.raises(asyncio.CancelledError):
            await me
        assert me.cancelled()
        assert not session.line.busy
        await session.close()

    asyncio.run(main())


def test_c3_every_operation_of_the_transaction_may_suspend(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        await kit.root(session)
        await kit.write_notes(session, n=1)
        await session.close()
        session = await kit.open(kit.again(storage))
        async with session.block(kit.subject, conversation=ROOT) as tx:
            for _ in range(3):
                await tx.task(TaskId(7))
                await tx.scan_tasks(TaskQuery(), limit=3)
                await tx.read(kit.notes, kit.notes_at)
            await tx.edit(kit.notes, kit.notes_at)
            tx.append("app.note")
        await session.close()

    asyncio.run(main())


def test_c5_a_table_read_after_the_first_write_raises_and_documents_stay_readable(kit: Kit) -> None:
    async def main() -> None:
        session = await kit.open()
        async with session.block(kit.subject, conversation=ROOT) as tx:
            assert await tx.task(TaskId(50)) is None
            tx.append("app.note")
            with pytest.raises(ReadAfterWrite):
                await tx.task(TaskId(50))
            with pytest.raises(ReadAfterWrite):
                await tx.scan_tasks(TaskQuery(), limit=1)
            assert await tx.read(kit.notes, kit.notes_at) is None
            (await tx.edit(kit.notes, kit.notes_at))["n"] = 1
            tx.put_task(kit.task(60))
            assert tx.peek_task(TaskId(60)) is not None
        assert await session.snapshot(kit.notes, kit.notes_at) == {"n": 1}
        await session.close()

    asyncio.run(main())


def test_a_transaction_works_only_in_its_block(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()
        block = session.block(memory_kit.subject, conversation=ROOT)
        async with block as tx:
            tx.append("app.note")
        for use in (lambda: tx.append("app.note"), tx.mint, lambda: tx.put_task(memory_kit.task(5))):
            with pytest.raises(BlockEnded):
                use()
        with pytest.raises(BlockEnded):
            await tx.task(TaskId(5))
        with pytest.raises(BlockEnded):
            await tx.edit(memory_kit.notes, memory_kit.notes_at)
        with pytest.raises(BlockEnded):
            async with block:
                pass
        assert not session.line.busy
        await session.close()
        with pytest.raises(SessionClosed):
            async with session.block(memory_kit.subject):
                pass

    asyncio.run(main())
