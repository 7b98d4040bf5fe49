"""Recovery from every boundary: after each commit and each effect of a life, the store is copied, and the copy opened.

What holds for every image is in `recovered`; what holds for one program is beside it. Images are bytes, so a life that
is abandoned cannot touch them.
"""

import asyncio
import inspect
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pidurable_nb import Aborted, Done, Failed, Faulted, Harness, Input, Json, Orphaned, Phase, Runtime, Sleeping, TaskRef, Waiting
from pidurable_nb.agent.settings import Settings
from pidurable_nb.clock import LoopClock
from pidurable_nb.engine.decide import implied_marks
from pidurable_nb.errors import TaskFaulted, TaskOrphaned
from pidurable_nb.ids import JsonObject, TaskId
from pidurable_nb.lab.loop import DeterministicLoop
from pidurable_nb.probe import Mark
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.store.sqlite import SqliteStorage

V = TypeVar("V")
Image = Mapping[str, bytes]
"""The files of a store."""
START_MS = 1_750_000_000_000


class Crash(BaseException):
    """The process is gone."""


@dataclass
class World:
    """What the outside saw, and what a caller was told, over all lives."""

    effects: list[str] = field(default_factory=list)
    told: list[tuple[str, object]] = field(default_factory=list)

    def copy(self) -> "World":
        return World(list(self.effects), list(self.told))


world = World()


@dataclass(frozen=True)
class Boundary:
    """A place where a life may end."""

    where: str
    image: Image
    world: World
    at_ms: int


class Copier:
    """A probe that copies the store after every commit and around every effect."""

    one_by_one = True

    def __init__(self, path: Path, clock: LoopClock) -> None:
        self.path = path
        self.clock = clock
        self.boundaries: list[Boundary] = []

    def copy(self, where: str) -> None:
        self.boundaries.append(Boundary(where, image_of(self.path), world.copy(), self.clock.now_ms()))

    async def reach(self, mark: Mark) -> None:
        if mark.edge == "after" and mark.seq is not None:
            self.copy(f"{mark.what} {mark.name or ''} of {mark.subject}")

    def note(self, mark: Mark) -> None:
        pass

    async def perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        self.copy(f"before effect {mark.name}")
        got = do()
        value = await got if inspect.isawaitable(got) else got
        self.copy(f"after effect {mark.name}")
        return value  # pyright: ignore[reportReturnType]


def image_of(path: Path) -> Image:
    return {file.name: file.read_bytes() for file in path.parent.iterdir() if file.name[-4:] not in ("lock", "-shm")}


@dataclass
class Lives:
    """Runs lives of one store, each on a loop of its own."""

    folder: Path
    number: int = 0

    def place(self, image: Image) -> Path:
        self.number += 1
        here = self.folder / f"life-{self.number}"
        here.mkdir()
        for name, content in image.items():
            (here / name).write_bytes(content)
        return here / "store.sqlite"

    def live(
        self,
        main: Callable[[Harness], Awaitable[Any]],
        *tasks: type[Phase[Any]],
        image: Image | None = None,
        start_ms: int = START_MS,
        seed: int | None = None,
        probed: bool = False,
        run: bool = True,
        **settings: Any,
    ) -> tuple[Copier, bool, int]:
        """One life, to the end of `main` or its crash: its boundaries, whether it crashed, and when it ended."""
        path = self.place(image or {})
        clock = LoopClock(start_ms)
        copier = Copier(path, clock)
        chosen = Settings(clock=clock, probe=copier if probed else None, **settings)
        loop = DeterministicLoop(seed, limit=200_000)

        async def life() -> None:
            storage = SqliteStorage(path, durability="kill", inline=True)
            async with Harness.open(storage, tasks=tasks, settings=chosen, run=run, on_report=reports.append) as h:
                if probed:
                    copier.copy("open")
                await main(h)
                copier.copy("end")

        crashed = False
        try:
            loop.run_until_complete(life())
        except Crash:
            crashed = True
            copier.boundaries.append(Boundary("crash", image_of(path), world.copy(), START_MS))
        ended = start_ms + round(loop.time() * 1000)
        loop.abandon()
        return copier, crashed, ended


reports: list[BaseException] = []


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    """Lives of a store in this test's folder, in a world where nothing has happened."""
    global world
    world = World()
    reports.clear()
    yield Lives(tmp_path)


def die() -> None:
    """Code crashes its own process."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, DeterministicLoop)
    loop.halt(Crash())


async def quiet(h: Harness) -> None:
    """Everything that happens by itself has happened."""
    await asyncio.sleep(5000)


async def everything(h: Harness) -> dict[TaskId, TaskRecord]:
    return {record.id: record for record in await h.tasks()}


async def notes(h: Harness) -> list[Json]:
    if not h.engine.table.conversation_known(1) and await h.engine.session.conversation(1) is None:  # type: ignore[arg-type]
        return []
    page = await (await h.root()).entries(limit=1000, order="ascending")
    return [entry.data for entry in page.items]  # type: ignore[misc]


async def opened_in_order(h: Harness, before: Mapping[TaskId, TaskRecord]) -> None:
    """T7, O5: what has to hold before anything starts."""
    now = await everything(h)
    for id, was in before.items():
        is_ = now[id]
        match was.state:
            case stored.Running():
                if not is_.abort_requested or was.abort_requested:
                    assert is_.restarts == was.restarts + 1
                assert is_.checkpoint == was.checkpoint or is_.outcome is not None
            case stored.Terminal():
                assert is_ == was
            case _:
                pass
        assert was.abort_requested <= is_.abort_requested
        assert is_.started_at_ms == was.started_at_ms
    assert not any(record.status == "running" for record in now.values())
    assert implied_marks(h.engine.table) == {}
    assert h.engine.active() == frozenset()


RESTS = {"blocked", "parked", "faulted"}


async def recovered(h: Harness, before: Mapping[TaskId, TaskRecord], before_notes: Sequence[Json]) -> None:
    """What has to hold when nothing happens any more."""
    now = await everything(h)
    assert set(before) <= set(now)
    assert (await notes(h))[: len(before_notes)] == list(before_notes)
    for id, was in before.items():
        if not was.live:
            assert now[id] == was, "a receipt has changed (T6)"
        if was.outcome is not None:
            assert now[id].outcome == was.outcome, "a decided outcome has changed (T5)"
        for name, value in was.memos.items():
            if now[id].live and not name.startswith("pidurable."):
                assert now[id].memos[name] == value, "a memo has changed (M1)"
        assert not (was.abort_requested and not now[id].abort_requested)
    verdicts = {verdict.id: verdict for verdict in await h.verdicts()}
    resting = {id for id, verdict in verdicts.items() if verdict.name in RESTS}
    for id, verdict in verdicts.items():
        why = {*verdict.held_by, *(verdict.facts.alive if verdict.name == "wait" else ())}
        assert id in resting or verdict.name == "sleep" or why & set(verdicts), (id, verdict.name)
    for record in now.values():
        owner = now.get(record.owner) if record.owner is not None else None
        assert not record.live or owner is None or owner.live, "work has outlived its owner (O2)"
    waits = h.engine._waits
    assert not waits._tasks
    assert not waits._idlers


@dataclass(frozen=True)
class Program:
    """What a first life does, and what every recovery from it has to come to."""

    tasks: Sequence[type[Phase[Any]]]
    main: Callable[[Harness], Awaitable[None]]
    check: Callable[[Mapping[TaskId, TaskRecord], Counter[str], int], None]
    """The tasks when all is over, how often each effect was performed in all lives, and how many lives crashed."""


def sweep(lives: Lives, program: Program, *, deaths: int = 1, seed: int | None = None, sample: int | None = None) -> int:
    """Recover from every boundary, and with more deaths from boundaries of those recoveries; how many there were."""
    global world
    first, _, _ = lives.live(program.main, *program.tasks, probed=True, seed=seed)
    todo = [(boundary, 1) for boundary in first.boundaries]
    dice, done = random.Random(seed), 0
    while todo:
        boundary, died = todo.pop()
        done += 1
        world = boundary.world.copy()

        async def again(h: Harness, boundary: Boundary = boundary, died: int = died) -> None:
            before = records_in(lives, boundary.image)
            told = {id: record for id, record in before.items()}
            await opened_in_order(h, told)
            before_notes = await notes(h)
            h.resume()
            await quiet(h)
            await recovered(h, before, before_notes)
            now = await everything(h)
            for what, value in boundary.world.told:
                assert value in (facts(now, await notes(h))[what])
            if now:
                program.check(now, Counter(world.effects), died)

        copier, crashed, _ = lives.live(
            again, *program.tasks, image=boundary.image, start_ms=boundary.at_ms, run=False, probed=died < deaths,
            seed=None if seed is None else seed + done,
        )  # fmt: skip
        assert not crashed
        if died < deaths:
            more = copier.boundaries if sample is None else dice.sample(copier.boundaries, min(sample, len(copier.boundaries)))
            todo += [(each, died + 1) for each in more]
    return done


def facts(now: Mapping[TaskId, TaskRecord], written: Sequence[Json]) -> dict[str, list[object]]:
    return {
        "task": [record.id for record in now.values()],
        "outcome": [(record.id, record.outcome) for record in now.values()],
        "marked": [record.id for record in now.values() if record.abort_requested],
        "note": list(written),
    }


def records_in(lives: Lives, image: Image) -> dict[TaskId, TaskRecord]:
    """The tasks of an image, read from the file."""
    from pidurable_nb.store.stranger import StoreFile

    path = lives.place(image)
    with StoreFile.open(path) as file:
        return {record.id: record for record in file.tasks()}


def performs(name: str) -> Callable[[], None]:
    return lambda: world.effects.append(name)


# --- Programs -------------------------------------------------------------------------------------------------------------


class Tick(Phase[str], task="ticker"):
    n: int
    to: Input[int]

    async def run(self, rt: Runtime) -> "Tick | Done[str]":
        if await rt.recall(f"printed-{self.n}", bool) is None:
            await rt.memo(f"printed-{self.n}", True)
            await rt.effect(f"print {self.n}", performs(f"print {self.n}"))
        await rt.effect(f"log {self.n}", performs(f"log {self.n}"))
        async with rt.commit() as tx:
            tx.append("app.note", data=self.n)
            return tx.become(Tick(self.n + 1, self.to) if self.n < self.to else Done(f"counted to {self.to}"))


async def ticks(h: Harness) -> None:
    ref = await (await h.root()).start(Tick(1, 3))
    world.told.append(("task", ref.id))
    assert await h.wait(ref) == "counted to 3"
    world.told.append(("outcome", (ref.id, stored.Completed(result="counted to 3"))))


def ticked(now: Mapping[TaskId, TaskRecord], effects: Counter[str], deaths: int) -> None:
    [record] = now.values()
    assert record.outcome == stored.Completed(result="counted to 3")
    for n in (1, 2, 3):
        assert effects[f"print {n}"] <= 1, "before it stands a memo: at most once (M3)"
        assert 1 <= effects[f"log {n}"] <= 1 + deaths, "no memo: at least once (M3)"
    assert effects.total() >= 3


class Pay(Phase[int], task="payment"):
    n: Input[int]

    async def run(self, rt: Runtime) -> "Capture":
        await rt.effect(f"authorize {self.n}", performs(f"authorize {self.n}"))
        return Capture(self.n, f"auth-{self.n}")

    async def abort(self, rt: Runtime) -> "Aborted":
        return Aborted("nothing to give back")


class Capture(Phase[int]):
    n: Input[int]
    auth: str

    async def run(self, rt: Runtime) -> "Done[int] | Failed":
        if self.n == 3:
            return Failed("declined")
        if self.n == 4:
            await asyncio.sleep(100)
        await rt.effect(f"capture {self.n}", performs(f"capture {self.n}"))
        return Done(self.n)

    async def abort(self, rt: Runtime) -> "Aborted":
        await rt.effect(f"refund {self.n}", performs(f"refund {self.n}"))
        return Aborted("sibling")


class Checkout(Phase[str], task="checkout"):
    async def run(self, rt: Runtime) -> "Waiting[Collect]":
        async with rt.commit() as tx:
            payments = tuple(tx.spawn(Pay(n)) for n in (1, 2, 3, 4))
            return tx.become(Waiting(on=payments, then=Collect(payments), fail_fast=True))


class Collect(Phase[str]):
    payments: tuple[TaskRef[int], ...]

    async def run(self, rt: Runtime) -> "Done[str] | Failed":
        outcomes = await rt.outcomes(self.payments)
        return Failed(" ".join(type(outcome).__name__ for outcome in outcomes))


async def checks_out(h: Harness) -> None:
    ref = await (await h.root()).start(Checkout())
    world.told.append(("task", ref.id))
    outcome = await h.outcome(ref)
    world.told.append(("outcome", (ref.id, stored.Failed(error=stored.TaskError(message=outcome.message)))))  # type: ignore[union-attr]


def checked_out(now: Mapping[TaskId, TaskRecord], effects: Counter[str], deaths: int) -> None:
    assert all(not record.live for record in now.values())
    payments = [record for record in now.values() if record.kind == "payment"]
    if not payments:
        return
    top = next(record for record in now.values() if record.kind == "checkout")
    assert len(payments) == 4, "spawned once with the wait, or not at all"
    for n, payment in enumerate(payments, 1):
        assert payment.owner == top.id
        match payment.outcome:
            case stored.Completed():
                assert 1 <= effects[f"capture {n}"] <= 1 + deaths
                assert effects[f"refund {n}"] == 0
            case stored.Aborted(reason="sibling"):
                assert 1 <= effects[f"refund {n}"] <= 1 + deaths
            case stored.Aborted():
                assert effects[f"capture {n}"] == 0
            case stored.Failed():
                assert n == 3
            case _:
                raise AssertionError(payment)
    assert isinstance(payments[3].outcome, stored.Aborted)
    assert isinstance(top.outcome, stored.Failed)


class Tree(Phase[str], task="tree"):
    depth: Input[int]

    async def run(self, rt: Runtime) -> "Done[str]":
        async with rt.commit() as tx:
            if self.depth:
                where = await tx.create_conversation() if self.depth % 2 else None
                tx.spawn(Tree(self.depth - 1), conversation=where)
                tx.spawn(Nap(3 - self.depth), conversation=where)
            return tx.become(Done(f"depth {self.depth}"))

    async def abort(self, rt: Runtime) -> "Aborted":
        await rt.effect(f"undo {self.depth}", performs(f"undo {self.depth}"))
        return Aborted(f"depth {self.depth}")


class Nap(Phase[str], task="nap"):
    seconds: Input[int]

    async def run(self, rt: Runtime) -> "Sleeping[Wake]":
        return Sleeping(until=rt.now() + timedelta(seconds=self.seconds), then=Wake(self.seconds))


class Wake(Phase[str]):
    seconds: Input[int]

    async def run(self, rt: Runtime) -> "Done[str]":
        await rt.effect(f"wake {self.seconds}", performs(f"wake {self.seconds}"))
        return Done("up")


async def grows(h: Harness) -> None:
    ref = await (await h.root()).start(Tree(2))
    assert await h.wait(ref) == "depth 2"
    world.told.append(("outcome", (ref.id, stored.Completed(result="depth 2"))))
    await h.wait_idle()


def grown(now: Mapping[TaskId, TaskRecord], effects: Counter[str], deaths: int) -> None:
    assert len(now) == 5
    for record in now.values():
        assert isinstance(record.outcome, stored.Completed), record
    by_owner = {record.id: record for record in now.values()}
    for record in now.values():
        if record.owner is not None:
            assert (by_owner[record.owner].ended_at_ms or 0) >= (record.ended_at_ms or 0)
    for seconds in (1, 2):
        assert 1 <= effects[f"wake {seconds}"] <= 1 + deaths


class Deep(Phase[str], task="deep"):
    depth: Input[int]

    async def run(self, rt: Runtime) -> "Waiting[Rest]":
        if not self.depth:
            await asyncio.sleep(1000)
            return Waiting(on=(), then=Rest(0))
        async with rt.commit() as tx:
            where = await tx.create_conversation() if self.depth == 2 else None
            child = tx.spawn(Deep(self.depth - 1), conversation=where)
            return tx.become(Waiting(on=(child,), then=Rest(self.depth)))

    async def abort(self, rt: Runtime) -> "Aborted":
        await rt.effect(f"undo {self.depth}", performs(f"undo {self.depth}"))
        return Aborted(f"depth {self.depth}")


class Rest(Phase[str]):
    depth: Input[int]

    async def run(self, rt: Runtime) -> "Done[str]":
        return Done("rested")

    async def abort(self, rt: Runtime) -> "Aborted":
        await rt.effect(f"undo {self.depth}", performs(f"undo {self.depth}"))
        return Aborted(f"depth {self.depth}")


async def aborts(h: Harness) -> None:
    ref = await (await h.root()).start(Deep(3))
    await asyncio.sleep(1)
    assert await h.abort(ref)
    world.told.append(("marked", ref.id))
    assert isinstance(await h.outcome(ref), Aborted)


def aborted(now: Mapping[TaskId, TaskRecord], effects: Counter[str], deaths: int) -> None:
    if not any(record.abort_requested for record in now.values()):
        return
    order = [int(name[-1]) for name in world.effects if name.startswith("undo")]
    assert len(now) == 4
    for record in now.values():
        assert isinstance(record.outcome, stored.Aborted)
    assert list(dict.fromkeys(order)) == [0, 1, 2, 3], "bottom up (O2)"
    assert all(1 <= effects[f"undo {depth}"] <= 1 + deaths for depth in range(4))


PROGRAMS = {
    "ticker": Program((Tick,), ticks, ticked),
    "checkout": Program((Checkout, Pay), checks_out, checked_out),
    "tree": Program((Tree, Nap), grows, grown),
    "abort": Program((Deep,), aborts, aborted),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_t7_m3_o5_a_store_recovers_from_every_boundary(lives: Lives, name: str) -> None:
    assert sweep(lives, PROGRAMS[name]) > 10
    assert reports == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PROGRAMS)
def test_t7_m3_o5_a_store_recovers_from_a_crash_of_its_recovery(lives: Lives, name: str, seed: int) -> None:
    assert sweep(lives, PROGRAMS[name], deaths=2, seed=seed, sample=1) > 20
    assert reports == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", PROGRAMS)
def test_t7_m3_o5_a_store_recovers_from_three_crashes_anywhere(lives: Lives, name: str, seed: int) -> None:
    assert sweep(lives, PROGRAMS[name], deaths=3, seed=seed, sample=3) > 100
    assert reports == []
