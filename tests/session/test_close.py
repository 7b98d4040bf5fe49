"""An orderly close: nothing new, everything that was begun, once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pidurable_nb.errors import SessionClosed, StorageError
from pidurable_nb.ids import TaskId
from pidurable_nb.store.storage import TaskQuery

if TYPE_CHECKING:
    from tests.session.conftest import Kit


def test_closing_lets_what_is_on_the_line_end_and_stores_it(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        gate = storage.control.gate = asyncio.Event()
        storage.control.slow_read = asyncio.Event()

        async def write(n: int) -> None:
            async with session.block(kit.subject) as tx:
                await tx.task(TaskId(n))
                tx.put_task(kit.task(n))

        queued = [asyncio.create_task(write(n)) for n in range(50, 60)]
        await kit.turns()
        closers = [asyncio.create_task(session.close()) for _ in range(3)]
        await kit.turns()
        assert session.closing
        with pytest.raises(SessionClosed):
            await write(70)
        with pytest.raises(SessionClosed):
            await session.task(TaskId(5))
        storage.control.slow_read.set()
        await asyncio.sleep(0.02)
        assert not any(closer.done() for closer in closers)
        gate.set()
        await asyncio.gather(*closers)
        await asyncio.gather(*queued)
        await session.close()
        assert session.failed is None
        assert kit.reports == []
        session = await kit.open(kit.again(storage))
        assert len((await session.scan_tasks(TaskQuery(), limit=99)).items) == 10
        await session.close()

    asyncio.run(main())


def test_a_cancelled_close_goes_on(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        gate = storage.control.gate = asyncio.Event()
        writer = asyncio.create_task(kit.write_notes(session, n=1))
        await kit.turns()
        closer = asyncio.create_task(session.close())
        await kit.turns()
        closer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closer
        gate.set()
        await writer
        await session.close()
        session = await kit.open(kit.again(storage))
        assert await session.snapshot(kit.notes, kit.notes_at) == {"n": 1}
        await session.close()

    asyncio.run(main())


def test_a_failure_while_closing_is_reported_and_the_storage_is_closed(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        gate = storage.control.gate = asyncio.Event()
        storage.control.fail_commit = 1
        writer = asyncio.create_task(kit.write_notes(session, n=1))
        await kit.turns()
        closer = asyncio.create_task(session.close())
        await kit.turns()
        gate.set()
        with pytest.raises(StorageError):
            await writer
        await closer
        assert session.failed is not None
        assert kit.reports == [session.failed]
        session = await kit.open(kit.again(storage))  # closed, so it can be opened
        await session.close()

    asyncio.run(main())


def test_settled_returns_when_everything_staged_is_stored(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        await session.settled()
        gate = storage.control.gate = asyncio.Event()
        writers = [asyncio.create_task(kit.write_notes(session, n=n)) for n in range(5)]
        await asyncio.sleep(0.02)
        waiting = asyncio.create_task(session.settled())
        await kit.turns()
        assert not waiting.done()
        gate.set()
        await waiting
        assert len(storage.control.commits) == 5
        await asyncio.gather(*writers)
        await session.close()

    asyncio.run(main())


def test_a_forgotten_session_does_not_keep_the_loop_from_ending(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()
        await memory_kit.write_notes(session, n=1)

    asyncio.run(main())
