"""C2, V4: a watch shows stored values only, from the current one on, and says why it ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pidurable_nb.errors import DocumentRefused, SessionClosed, SessionFailed, StorageError
from pidurable_nb.ids import Json
from pidurable_nb.session.definition import Definition
from pidurable_nb.session.session import Session
from pidurable_nb.session.watch import Frame, Watch
from pidurable_nb.store.delta import Replace, apply

if TYPE_CHECKING:
    from tests.session.conftest import Kit


async def watched(kit: Kit, session: Session) -> Watch:
    watch = await session.watch(kit.notes, kit.notes_at)
    assert watch is not None
    return watch


async def rest(watch: Watch) -> list[Frame]:
    return [frame async for frame in watch]


def test_v4_a_watch_begins_at_the_current_value_and_gives_every_later_one(kit: Kit) -> None:
    async def main() -> None:
        session = await kit.open()
        assert await session.watch(kit.notes, kit.notes_at) is None
        await kit.write_notes(session, n=0)
        watch = await watched(kit, session)
        assert watch.value == {"n": 0}
        follower = asyncio.create_task(rest(watch))
        for n in range(1, 6):
            await kit.write_notes(session, n=n)
            await kit.turns()
            assert watch.value == {"n": n}
        watch.stop()
        watch.stop()
        frames = await follower
        assert [frame.value for frame in frames] == [{"n": n} for n in range(1, 6)]
        assert [frame.seq for frame in frames] == sorted({frame.seq for frame in frames})
        value: Json = {"n": 0}
        for frame in frames:
            value = apply(value, frame.ops)
            assert value == frame.value
        assert watch.ended == "stopped"
        await kit.write_notes(session, n=9)
        assert await rest(watch) == []
        await session.close()
        assert watch.ended == "stopped"

    asyncio.run(main())


def test_c2_a_watch_never_shows_what_is_only_staged(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        await kit.write_notes(session, n=0)
        watch = await watched(kit, session)
        gate = storage.control.gate = asyncio.Event()
        writer = asyncio.create_task(kit.write_notes(session, n=1))
        await asyncio.sleep(0.02)
        late = await watched(kit, session)
        assert watch.value == late.value == await session.snapshot(kit.notes, kit.notes_at) == {"n": 0}
        gate.set()
        await writer
        assert watch.value == late.value == {"n": 1}
        late.stop()
        assert [frame.value for frame in await rest(late)] == [{"n": 1}]
        await session.close()

    asyncio.run(main())


def test_v4_a_slow_observer_gets_the_newest_value_in_place_of_more_than_a_hundred_frames(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()
        await memory_kit.write_notes(session, n=0)
        watch = await watched(memory_kit, session)
        for n in range(1, 101):
            await memory_kit.write_notes(session, n=n)
        assert len(watch._frames) == 100
        await memory_kit.write_notes(session, n=101)
        await memory_kit.write_notes(session, n=102)
        watch.stop()
        frames = await rest(watch)
        assert [frame.value for frame in frames] == [{"n": 101}, {"n": 102}]
        assert frames[0].ops == (Replace({"n": 101}),)
        await session.close()

    asyncio.run(main())


def test_v4_a_retired_document_ends_its_watches_with_a_last_frame(kit: Kit) -> None:
    async def main() -> None:
        session = await kit.open()
        await kit.write_notes(session, n=0)
        watch = await watched(kit, session)
        async with session.block(kit.subject) as tx:
            await tx.retire(kit.notes, kit.notes_at)
            (await tx.edit(kit.notes, kit.notes_at))["n"] = "next"  # another incarnation, for another watch
        assert watch.ended == "retired"
        assert [frame.value for frame in await rest(watch)] == [None]
        assert watch.value is None
        assert (await watched(kit, session)).value == {"n": "next"}
        await session.close()

    asyncio.run(main())


def test_v4_watches_end_with_the_session(kit: Kit) -> None:
    async def main() -> None:
        session = await kit.open()
        await kit.write_notes(session, n=0)
        watch = await watched(kit, session)
        follower = asyncio.create_task(rest(watch))
        await kit.turns()
        await session.close()
        assert await follower == []
        assert watch.ended == "session_closed"
        with pytest.raises(SessionClosed):
            await session.watch(kit.notes, kit.notes_at)

    asyncio.run(main())


def test_f1_watches_end_when_the_session_fails(kit: Kit) -> None:
    async def main() -> None:
        storage = kit.storage()
        session = await kit.open(storage)
        await kit.write_notes(session, n=0)
        watch = await watched(kit, session)
        follower = asyncio.create_task(rest(watch))
        await kit.turns()
        storage.control.fail_commit = 2
        with pytest.raises(StorageError):
            await kit.write_notes(session, n=1)
        assert await follower == []
        assert watch.ended == "session_failed"
        assert watch.value == {"n": 0}
        with pytest.raises(SessionFailed):
            await session.watch(kit.notes, kit.notes_at)
        await session.close()
        assert watch.ended == "session_failed"

    asyncio.run(main())


def test_v4_a_listener_hears_at_publication_and_one_that_raises_ends_only_its_watch(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()
        await memory_kit.write_notes(session, n=0)
        heard: list[Frame] = []

        def broken(frame: Frame) -> None:
            heard.append(frame)
            raise ZeroDivisionError

        first = await session.watch(memory_kit.notes, memory_kit.notes_at, listener=broken)
        second = await session.watch(memory_kit.notes, memory_kit.notes_at, listener=heard.append)
        assert first is not None
        assert second is not None
        await memory_kit.write_notes(session, n=1)
        await memory_kit.write_notes(session, n=2)
        assert first.ended == "listener_error"
        assert second.ended is None
        assert [dict(frame.value or {}) for frame in heard] == [{"n": 1}, {"n": 1}, {"n": 2}]
        assert [type(error) for error in memory_kit.reports] == [ZeroDivisionError]
        await session.close()

    asyncio.run(main())


def test_v4_several_readers_of_one_watch_share_its_frames(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()
        await memory_kit.write_notes(session, n=0)
        watch = await watched(memory_kit, session)
        readers = [asyncio.create_task(rest(watch)) for _ in range(3)]
        await memory_kit.turns()
        readers[0].cancel()
        for n in range(1, 11):
            await memory_kit.write_notes(session, n=n)
            await memory_kit.turns()
        watch.stop()
        shared = [frame for frames in await asyncio.gather(*readers[1:]) for frame in frames]
        assert sorted(frame.seq for frame in shared) == sorted({frame.seq for frame in shared})
        assert len(shared) == 10
        await session.close()

    asyncio.run(main())


def test_a_watch_of_a_newer_value_is_refused_or_ends(memory_kit: Kit) -> None:
    async def main() -> None:
        session = await memory_kit.open()
        await memory_kit.write_notes(session, n=0)
        watch = await watched(memory_kit, session)
        newer = Definition(kind="app.notes", version=2, scope="session", migrate=lambda value, version: value)
        async with session.block(memory_kit.subject) as tx:
            await tx.edit(newer, memory_kit.notes_at)
        assert watch.ended == "listener_error"
        with pytest.raises(DocumentRefused):
            await session.watch(memory_kit.notes, memory_kit.notes_at)
        await session.close()

    asyncio.run(main())
