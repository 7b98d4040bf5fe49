"""Random programs in random weather: aborts, retries, new code, closes and crashes at any time, in any order.

Nothing may get stuck without a reason, no work may outlive its owner, and in the end everything can be ended and
nothing is left in memory.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from pidurable_nb import Aborted, Done, Failed, Harness, Input, Json, Phase, Runtime, Sleeping, TaskRef, Waiting
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.clock import LoopClock
from pidurable_nb.engine.decide import implied_marks
from pidurable_nb.errors import PidurableError, SessionClosed, StorageRequestError, UnknownPhase
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.dying.loop import DeterministicLoop
from pidurable_nb.store.memory import MemoryStorage

STEPS = 5
DEPTH = 3


class Crash(BaseException):
    """The process is gone."""


class Weather:
    """What chance decides outside of the tasks, and what has been raised already."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.raised: set[str] = set()
        self.running: dict[int, int] = {}

    def raises_once(self, where: str) -> None:
        if where not in self.raised:
            self.raised.add(where)
            raise ValueError(where)


weather = Weather(0)


def make() -> type[Phase[Json]]:
    """A class of the one place that this is, as a cell that runs again makes it."""

    class Node(Phase[Json], task="node"):
        seed: Input[int]
        depth: Input[int]
        at: int = 0

        async def run(self, rt: Runtime) -> "Node | Waiting[Node] | Sleeping[Node] | Done[Json] | Failed":
            weather.running[rt.id] = weather.running.get(rt.id, 0) + 1
            assert weather.running[rt.id] == 1, "one invocation at a time"
            try:
                return await self.step(rt, random.Random(f"{self.seed}/{self.at}"))
            finally:
                weather.running[rt.id] -= 1

        async def step(
            self, rt: Runtime, dice: random.Random
        ) -> "Node | Waiting[Node] | Sleeping[Node] | Done[Json] | Failed":
            to = Node(self.seed, self.depth, self.at + 1)
            if self.at >= STEPS:
                return Done(self.at)
            actions = ["step", "nap", "sleep", "memo", "raise", "fail", "done", "spawn", "wait", "wait", "foreign"]
            match dice.choice(actions if self.depth else actions[:7]):
                case "nap":
                    await asyncio.sleep(dice.random())
                case "sleep":
                    return Sleeping(until=rt.now() + timedelta(seconds=dice.random() * 3), then=to)
                case "memo":
                    assert await rt.memo(f"m{self.at}", self.seed) == self.seed
                    await rt.effect("nothing", lambda: None)
                case "raise":
                    await asyncio.sleep(dice.random())
                    weather.raises_once(f"{rt.id}/{self.at}")
                case "fail":
                    return Failed("by chance")
                case "done":
                    async with rt.commit() as tx:
                        if self.depth:
                            tx.spawn(Node(dice.randrange(1 << 30), self.depth - 1))
                        return tx.become(Done(self.at))
                case "spawn":
                    async with rt.commit() as tx:
                        where = await tx.create_conversation(owned=dice.random() < 0.8)
                        tx.spawn(Node(dice.randrange(1 << 30), self.depth - 1), conversation=where)
                        tx.spawn(Node(dice.randrange(1 << 30), self.depth - 1))
                        tx.spawn(Node(dice.randrange(1 << 30), self.depth - 1), background=True)
                        return tx.become(to)
                case "wait":
                    async with rt.commit() as tx:
                        mine = [tx.spawn(Node(dice.randrange(1 << 30), self.depth - 1)) for _ in range(2)]
                        return tx.become(Waiting(on=mine, then=to, fail_fast=dice.random() < 0.6))
                case "foreign":
                    other = TaskRef[object](TaskId(rt.id - dice.randrange(1, 8)))
                    try:
                        async with rt.commit() as tx:
                            return tx.become(Waiting(on=[other], then=to))
                    except PidurableError:
                        await asyncio.sleep(0)
                case _:
                    pass
            return to

        async def abort(self, rt: Runtime) -> "Aborted | Done[Json]":
            dice = random.Random(f"{self.seed}/abort")
            for ref in await rt.children():
                record = await rt.engine.session.task(ref.id)
                assert record is not None
                assert not record.live or record.background, "abort handlers run bottom up"
            if dice.random() < 0.5:
                await asyncio.sleep(dice.random())
            if dice.random() < 0.2:
                weather.raises_once(f"{rt.id}/abort")
            return Done("after all") if dice.random() < 0.1 else Aborted("by chance")

    return Node


async def blow(h: Harness, gusts: int) -> None:
    """Things that somebody outside may do at any time."""
    dice = weather.dice
    root = await h.root()
    installed = make()
    h.install(installed)
    for _ in range(gusts):
        await asyncio.sleep(dice.choice([0, 0, dice.random() * 2]))
        live = [record.id for record in await h.tasks(live=True)]
        match dice.choice(["start", "start", "abort", "retry", "install", "uninstall", "wait"]):
            case "start":
                seed = dice.randrange(1 << 30)
                await root.start(installed(seed, DEPTH))  # type: ignore[call-arg]
            case "abort" if live:
                await h.abort(dice.choice(live), background=dice.random() < 0.3)
            case "retry" if live:
                with suppress(StorageRequestError):  # it has ended meanwhile
                    await h.retry(dice.choice(live))
            case "uninstall":
                h.uninstall("node")
                await asyncio.sleep(dice.random())
                h.install(installed)
            case "install":
                installed = make()
                h.install(installed)
            case "wait" if live:
                with suppress(TimeoutError):
                    await asyncio.wait_for(h.outcome(TaskRef[Json](dice.choice(live))), dice.random())
            case _:
                pass


async def settle(h: Harness) -> None:
    await asyncio.sleep(100)


def has_a_reason(verdicts: Mapping[int, Any]) -> None:
    resting = {"blocked", "parked", "faulted"}
    for id, verdict in verdicts.items():
        why = {*verdict.held_by, *(verdict.facts.alive if verdict.name == "wait" else ())}
        assert verdict.name in resting or why & set(verdicts), (id, verdict.name)


async def clear_up(h: Harness) -> None:
    """Everything comes to rest for a reason, and can be ended."""
    h.install(make())
    await settle(h)
    has_a_reason({v.id: v for v in await h.verdicts()})
    for _ in range(3):
        for record in await h.tasks(live=True):
            with suppress(StorageRequestError):
                await h.retry(record.id)
        await settle(h)
    has_a_reason({v.id: v for v in await h.verdicts()})
    for record in await h.tasks(live=True):
        await h.abort(record.id)
    await asyncio.wait_for(h.wait_idle(), 1000)
    await settle(h)
    assert await h.tasks(live=True) == ()
    engine = h.engine
    left = {
        "table": len(engine.table), "stored": engine._stored, "invocations": engine.runs._invocations,
        "reserved": engine.runs._reserved, "waits": engine.waits._tasks, "touched": engine.scheduler._touched,
        "ended": engine.table._ended, "edges": engine.table._edges, "children": engine.table._children,
        "withdrawn": engine.scheduler._withdrawn, "queue": engine.scheduler._suspects._queue,
    }  # fmt: skip
    assert not any(left.values()), left
    records = {record.id: record for record in await h.tasks(limit=100_000)}
    for record in records.values():
        assert record.outcome is not None
        above = (await (await h.conversation(record.conversation)).record()).owner
        owner = record.owner if record.owner is not None else above.task if above is not None else None
        if owner is not None and not record.background:
            assert (record.ended_at_ms or 0) <= (records[owner].ended_at_ms or 0), "work outlived its owner (O2)"


async def in_order(h: Harness) -> None:
    assert implied_marks(h.engine.table) == {}
    assert not any(record.status == "running" for record in await h.tasks(live=True))


def live(
    storage: MemoryStorage, main: Callable[[Harness], Awaitable[None]], clock: LoopClock, seed: int, end: str
) -> LoopClock:
    """One life: it ends by itself, is closed at a random moment, or crashes there."""
    loop = DeterministicLoop(seed, limit=400_000)
    reports: list[BaseException] = []
    weather.running.clear()

    async def life() -> None:
        await storage.close()
        settings = Settings(clock=clock, suspect_ms=500, restart_limit=3)
        h = await Harness.open(storage, tasks=[make()], settings=settings, run=False, on_report=reports.append)
        await in_order(h)
        h.resume()
        if end != "by itself":
            loop.call_later(weather.dice.random() * 8, stop, h)
        try:
            await main(h)
        except SessionClosed:
            assert end == "closed"
        await h.aclose()

    def stop(h: Harness) -> None:
        if end == "crash":
            loop.halt(Crash())
        else:
            closing.append(loop.create_task(h.aclose()))

    closing: list[asyncio.Task[None]] = []
    try:
        loop.run_until_complete(life())
    except Crash:
        assert end == "crash"
    ended = round(loop.time() * 1000)
    loop.abandon()
    strange = [error for error in reports if not isinstance(error, ValueError | UnknownPhase)]
    assert not strange, strange
    return LoopClock(clock.start_ms + ended + 1)


def storm(seed: int) -> None:
    global weather  # noqa: PLW0603  # phases are classes: what chance decides has to be found from there
    weather = Weather(seed)
    storage, clock = MemoryStorage(), LoopClock()
    for n in range(weather.dice.randint(1, 4)):
        end = weather.dice.choice(["closed", "crash"])
        clock = live(storage, lambda h: blow(h, 12), clock, seed + n, end)
    live(storage, clear_up, clock, seed, "by itself")


@pytest.mark.parametrize("seed", range(10))
def test_no_weather_leaves_a_task_stuck_or_work_without_its_owner(seed: int) -> None:
    storm(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_no_weather_leaves_a_task_stuck_or_work_without_its_owner_in_the_long_run(seed: int) -> None:
    storm(seed)
