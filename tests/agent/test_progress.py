"""V5: how often progress is stored, how much of it a crash may lose, and that what is stored grows with what is new."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from pidurable_nb import Answered, Call, Harness, Settings, tool
from pidurable_nb.agent.extending.settings import Compaction
from pidurable_nb.agent.generating.progress import CHARS_PER_S, Throttle
from pidurable_nb.agent.stored import live
from pidurable_nb.clock import LoopClock
from pidurable_nb.errors import SessionFailed, StorageError
from pidurable_nb.ids import Seq
from pidurable_nb.lab.dying import loop
from pidurable_nb.models import CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.records.message import role_of, text_of
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.storage import Commit
from tests.agent.conftest import live_of, sound

if TYPE_CHECKING:
    from tests.agent.conftest import Home

MS = timedelta(milliseconds=1)


class Weighing(MemoryStorage):
    """A memory that knows how many characters each commit wrote, all rows and revisions together."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[int] = []

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        self.weights += [sum(len(repr(write)) for write in commit.writes) for commit in group]
        return await super().commit(group)


def streaming(total: int, deltas: int, every: timedelta) -> Scripted:
    piece = "0123456789" * (total // deltas // 10)
    return Scripted.by(lambda _: Say(piece * deltas, chunks=(piece,) * deltas, delay=every))


async def partials(h: Harness, seen: list[tuple[float, int]]) -> None:
    """Note the time and the length of every partial answer that is stored from now on."""

    def follow(changes: Changes) -> None:
        for change in changes.documents:
            generation = (change.value or {}).get("generation") if change.record.kind == live.LIVE.kind else None
            message = generation.get("message") if isinstance(generation, dict) else None
            if isinstance(message, dict):
                seen.append((asyncio.get_running_loop().time(), len(text_of(message))))

    h.engine.session.subscribe(follow)


# --- How often --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every_ms", [100, 250])
def test_v5_a_partial_answer_is_stored_at_most_so_often_and_never_lags_by_more(home: Home, every_ms: int) -> None:
    seen: list[tuple[float, int]] = []

    async def main() -> None:
        settings = Settings(progress_every=timedelta(milliseconds=every_ms))
        async with home.agent(streaming(10_000, 500, 10 * MS), settings=settings) as h:
            await partials(h, seen)
            assert isinstance(await (await (await h.root()).submit("go")).wait(), Answered)

    home.run(main())
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(seen)]
    assert len(seen) == pytest.approx(5000 / every_ms, abs=2)
    assert min(gaps) >= every_ms / 1000 - 1e-6
    assert max(gaps) <= every_ms / 1000 + 0.011
    for at, length in seen:
        assert length >= (at - 0.02) / 0.01 * 20  # everything that had arrived by then


def test_v5_nothing_is_stored_while_nothing_new_arrives(memory: Home) -> None:
    seen: list[tuple[float, int]] = []

    async def main() -> None:
        model = Scripted(Say("abc", chunks=("a", "b", "c"), delay=timedelta(seconds=10)))
        async with memory.agent(model) as h:
            await partials(h, seen)
            assert isinstance(await (await (await h.root()).submit("go")).wait(), Answered)

    memory.run(main())
    assert [(round(at, 3), length) for at, length in seen] == [(10.0, 1), (20.0, 2)]


def test_v5_an_answer_that_is_over_at_once_is_stored_once(memory: Home) -> None:
    seen: list[tuple[float, int]] = []

    async def main() -> None:
        async with memory.agent(Scripted(Say("x" * 1000, chunks=100))) as h:
            await partials(h, seen)
            assert isinstance(await (await (await h.root()).submit("go")).wait(), Answered)

    memory.run(main())
    assert seen == []


def test_v5_large_progress_is_stored_less_often(memory: Home) -> None:
    seen: list[tuple[float, int]] = []

    async def main() -> None:
        async with memory.agent(streaming(500_000, 5000, 10 * MS)) as h:
            await partials(h, seen)
            assert isinstance(await (await (await h.root()).submit("go")).wait(), Answered)

    memory.run(main())
    assert len(seen) < 60  # fifty seconds at the fixed pace would be five hundred
    for (earlier, length), (later, _) in pairwise(seen):
        assert later - earlier >= max(0.1, length / CHARS_PER_S) - 1e-6
        assert later - earlier <= max(0.1, (length + 1000) / CHARS_PER_S) + 0.011


# --- B21: how much ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every_ms", [0, 1, 20])
def test_v5_b21_a_long_streamed_answer_costs_what_is_new_in_it(every_ms: int) -> None:
    store = Weighing()

    async def main() -> None:
        async with Harness.open(
            store, models=[streaming(500_000, 5000, every_ms * MS)], settings=Settings(clock=LoopClock())
        ) as h:
            root = await h.root()
            store.weights.clear()
            found = await (await root.submit("go")).wait()
            assert isinstance(found, Answered)
            assert len(found.text) == 500_000
            await sound(h)

    loop.run(main(), limit=1_000_000)
    assert sum(store.weights) < 2.2 * 500_000  # once while it streams, once as its entry
    per_partial = 520 * len(store.weights)
    assert sum(store.weights[:-1]) < 500_000 + per_partial


@tool(replay="safe")
async def pour(n: int, call: Call) -> str:
    """A megabyte of running output."""
    for _ in range(100):
        call.progress("0123456789abcdef" * 6 + "\n" + "x" * 9_900 + "\n")
        await asyncio.sleep(0.01)
    return f"poured {n}: " + "y" * 1_000_000


def test_v5_b21_turns_with_a_megabyte_of_tool_output_each_stay_bounded() -> None:
    store = Weighing()
    turns = 12

    def answer(request: ModelRequest) -> CallTools | Say:
        done = sum(role_of(message) == "toolResult" for message in request.messages)
        return CallTools(call("pour", n=done)) if done < turns else Say("done")

    async def main() -> None:
        settings = Settings(clock=LoopClock(), compaction=Compaction(enabled=False))
        async with Harness.open(store, models=[Scripted.by(answer)], tools=[pour], settings=settings) as h:
            root = await h.root()
            assert isinstance(await (await root.submit("go")).wait(), Answered)
            state = await live_of(root)
            assert state == {}
            await sound(h)
            page = await root.entries(limit=1000)
            results = [entry for entry in page.items if entry.kind == "pi.tool-result"]
            assert len(results) == turns
            for entry in results:
                assert len(str(entry.model)) < 53_000
                assert "truncated" in str(entry.data)

    loop.run(main(), limit=1_000_000)
    assert max(store.weights) < 60_000
    assert sum(store.weights) < turns * 3 * 60_000


# --- The throttle alone -----------------------------------------------------------------------------------------------


def throttled(write_s: float = 0.0, error: BaseException | None = None) -> list[float]:
    """When a throttle wrote, that was touched every 10 ms for a second."""
    writes: list[float] = []

    async def write() -> int:
        writes.append(asyncio.get_running_loop().time())
        await asyncio.sleep(write_s)
        if error is not None:
            raise error
        return 10

    async def main() -> None:
        async with Throttle(100 * MS, write) as throttle:
            for _ in range(100):
                throttle.touch()
                await asyncio.sleep(0.01)

    loop.run(main())
    return writes


def test_v5_a_slow_storage_is_not_written_to_twice_at_once() -> None:
    assert len(throttled()) == pytest.approx(9, abs=1)
    slow = throttled(write_s=0.3)
    assert len(slow) == 3
    assert slow[1] - slow[0] == pytest.approx(0.4)


def test_v5_a_write_that_is_under_way_ends_before_the_work_does() -> None:
    ended: list[str] = []

    async def write() -> int:
        await asyncio.sleep(1)
        ended.append("write")
        return 1

    async def main() -> None:
        async with Throttle(100 * MS, write) as throttle:
            throttle.touch()
            await asyncio.sleep(0.2)
        ended.append("work")

    loop.run(main())
    assert ended == ["write", "work"]


def test_f1_a_storage_that_fails_under_progress_is_met_by_the_work_and_not_by_the_throttle() -> None:
    failure = SessionFailed("gone", cause=StorageError("gone", stored="unknown"))
    assert len(throttled(error=failure)) == 1


def test_v5_what_the_writer_itself_breaks_is_raised_where_the_work_ends() -> None:
    with pytest.raises(ZeroDivisionError):
        throttled(error=ZeroDivisionError())
