"""Recovery from every boundary: after each commit and each effect of a life, the store is copied, and the copy opened.

What holds for every image is in `recovered`; what holds for one program is beside it. Images are bytes, so a life that
is abandoned cannot touch them.
"""

import asyncio
import copy
import inspect
import random
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest

from pidurable_nb import (
    Aborted,
    Done,
    Failed,
    Faulted,
    Harness,
    Input,
    Json,
    Orphaned,
    Phase,
    Runtime,
    Sleeping,
    TaskRef,
    Waiting,
)
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.clock import LoopClock
from pidurable_nb.engine.decide import implied_marks
from pidurable_nb.errors import TaskFaulted, TaskOrphaned
from pidurable_nb.ids import JsonObject, TaskId
from pidurable_nb.lab.dying.loop import DeterministicLoop
from pidurable_nb.probe import Mark
from pidurable_nb.records import task as stored
from pidurable_nb.records.codec import decode_task, encode_task
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import Storage, TaskQuery

V = TypeVar("V")
Image: TypeAlias = Mapping[str, bytes] | MemoryStorage | None
"""A store as it was at one moment: its files, or its memory; None for one that is not there yet."""
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

    def become(self, other: "World") -> None:
        """Go back to what had happened then."""
        self.effects[:], self.told[:] = other.effects, other.told


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

    def __init__(self, store: Storage, clock: LoopClock) -> None:
        self.store = store
        self.clock = clock
        self.boundaries: list[Boundary] = []

    def copy(self, where: str) -> None:
        self.boundaries.append(Boundary(where, image_of(self.store), world.copy(), self.clock.now_ms()))

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


def image_of(store: Storage) -> Image:
    if isinstance(store, MemoryStorage):
        return copy.deepcopy(store)
    assert isinstance(store, SqliteStorage)
    files = (store.path, store.path.with_name(f"{store.path.name}-wal"))
    return {file.name: file.read_bytes() for file in files if file.exists()}


def at_once(work: Coroutine[Any, Any, V]) -> V:
    """What a coroutine that never suspends returns."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("it did suspend")


async def read_all(store: MemoryStorage) -> tuple[TaskRecord, ...]:
    await store.close()
    await store.open()
    return (await store.scan_tasks(TaskQuery(), limit=1000)).items


@dataclass
class Lives:
    """Runs lives of one store, each on a loop of its own. In `memory`, where there are too many for files."""

    folder: Path
    memory: bool = False
    number: int = 0

    def place(self, image: Image) -> Storage:
        if self.memory:
            return copy.deepcopy(image) if isinstance(image, MemoryStorage) else MemoryStorage()
        self.number += 1
        here = self.folder / f"life-{self.number}"
        here.mkdir()
        if isinstance(image, Mapping):
            for name, content in image.items():
                (here / name).write_bytes(content)
        return SqliteStorage(here / "store.sqlite", durability="kill", inline=True)

    def tasks(self, image: Image) -> dict[TaskId, TaskRecord]:
        """The tasks of an image, read without opening it for writing."""
        if image is None:
            return {}
        if isinstance(image, MemoryStorage):
            records = list(at_once(read_all(copy.deepcopy(image))))
        else:
            store = self.place(image)
            assert isinstance(store, SqliteStorage)
            with closing(sqlite3.connect(store.path)) as file:
                records = [decode_task(text) for (text,) in file.execute("SELECT record FROM tasks")]
        return {record.id: record for record in records}

    def live(
        self,
        main: Callable[[Harness], Awaitable[Any]],
        *tasks: type[Phase[Any]],
        image: Image | None = None,
        start_ms: int = START_MS,
        seed: int | None = None,
        probed: bool = False,
        run: bool = True,
        restart_limit: int = 5,
        suspect_ms: int = 1000,
    ) -> tuple[Copier, bool, int]:
        """One life, to the end of `main` or its crash: its boundaries, whether it crashed, and when it ended."""
        store = self.place(image)
        clock = LoopClock(start_ms)
        copier = Copier(store, clock)
        chosen = Settings(
            clock=clock, probe=copier if probed else None, restart_limit=restart_limit, suspect_ms=suspect_ms
        )
        loop = DeterministicLoop(seed, limit=200_000)

        async def life() -> None:
            await store.close()  # a copy of a memory that was open is a store that nobody has open
            async with Harness.open(store, tasks=tasks, settings=chosen, run=run, on_report=reports.append) as h:
                if probed:
                    copier.copy("open")
                await main(h)
                copier.copy("end")

        crashed = False
        try:
            loop.run_until_complete(life())
        except Crash:
            crashed = True
            copier.boundaries.append(Boundary("crash", image_of(store), world.copy(), START_MS))
        ended = start_ms + round(loop.time() * 1000)
        loop.abandon()
        return copier, crashed, ended


reports: list[BaseException] = []


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    """Lives of a store in this test's folder, in a world where nothing has happened."""
    world.become(World())
    reports.clear()
    return Lives(tmp_path)


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
    assert h.engine.runs.active() == frozenset()


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
    waits = h.engine.waits
    assert not waits._tasks
    assert not waits._idlers


@dataclass(frozen=True)
class Program:
    """What a first life does, and what every recovery from it has to come to."""

    tasks: Sequence[type[Phase[Any]]]
    main: Callable[[Harness], Awaitable[None]]
    check: Callable[[Mapping[TaskId, TaskRecord], Counter[str], int], None]
    """The tasks when all is over, how often each effect was performed in all lives, and how many lives crashed."""


def sweep(
    lives: Lives, program: Program, *, deaths: int = 1, seed: int | None = None, sample: int | None = None
) -> int:
    """Recover from every boundary, and with more deaths from boundaries of those recoveries; how many there were."""
    first, _, _ = lives.live(program.main, *program.tasks, probed=True, seed=seed)
    todo = [(boundary, 1) for boundary in first.boundaries]
    dice, done = random.Random(seed), 0
    while todo:
        boundary, died = todo.pop()
        done += 1
        world.become(boundary.world)

        async def again(h: Harness, boundary: Boundary = boundary, died: int = died) -> None:
            before = lives.tasks(boundary.image)
            await opened_in_order(h, before)
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
            more = (
                copier.boundaries
                if sample is None
                else dice.sample(copier.boundaries, min(sample, len(copier.boundaries)))
            )
            todo += [(each, died + 1) for each in more]
    return done


def facts(now: Mapping[TaskId, TaskRecord], written: Sequence[Json]) -> dict[str, list[object]]:
    return {
        "task": [record.id for record in now.values()],
        "outcome": [(record.id, record.outcome) for record in now.values()],
        "marked": [record.id for record in now.values() if record.abort_requested],
        "note": list(written),
    }


def performs(name: str) -> Callable[[], None]:
    return lambda: world.effects.append(name)


# --- Programs ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", PROGRAMS)
def test_t7_m3_o5_a_store_recovers_from_a_crash_of_its_recovery(lives: Lives, name: str, seed: int) -> None:
    lives.memory = True
    assert sweep(lives, PROGRAMS[name], deaths=2, seed=seed, sample=1) > 20
    assert reports == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", PROGRAMS)
def test_t7_m3_o5_a_store_recovers_from_three_crashes_anywhere(lives: Lives, name: str, seed: int) -> None:
    lives.memory = True
    assert sweep(lives, PROGRAMS[name], deaths=3, seed=seed, sample=2) > 100
    assert reports == []


# --- T8, O4: code that is missing, too old, or cannot read what is stored ---------------------------------------------


def killed(
    lives: Lives,
    main: Callable[[Harness], Awaitable[None]],
    *tasks: type[Phase[Any]],
    image: Image = None,
    restart_limit: int = 5,
    suspect_ms: int = 1000,
) -> Image:
    """The store that a life leaves behind which dies at its end."""

    async def to_death(h: Harness) -> None:
        await main(h)
        die()
        await asyncio.sleep(1)

    copier, crashed, _ = lives.live(to_death, *tasks, image=image, restart_limit=restart_limit, suspect_ms=suspect_ms)
    assert crashed
    return copier.boundaries[-1].image


class Sit(Phase[str], task="sitter", version=2):
    n: Input[int]
    more: str = "two"

    async def run(self, rt: Runtime) -> "Done[str]":
        world.effects.append(f"ran {self.more}")
        await asyncio.sleep(100)
        return Done(f"{self.n} {self.more}")


def sitters(version: int, upgrades: bool = True) -> type[Phase[str]]:
    """The same task in another version, as another module that was edited would hold it."""

    class Sit(Phase[str], task="sitter", version=version):
        n: Input[int]
        more: str = "other"
        always: str = "new"

        async def run(self, rt: Runtime) -> "Done[str]":
            world.effects.append(f"ran {self.more}")
            return Done(f"{self.n} {self.more} in version {version}")

        async def abort(self, rt: Runtime) -> "Aborted":
            world.effects.append("aborted")
            return Aborted()

        @classmethod
        def upgrade(cls, input: JsonObject, checkpoint: JsonObject, version: int) -> "Phase[str]":
            if not upgrades:
                raise ValueError("cannot read this")
            n = input["n"]
            assert isinstance(n, int)
            return cls(n * 10, f"upgraded {checkpoint['more']}", "new")

    return Sit


async def sits(h: Harness) -> None:
    await (await h.root()).start(Sit(4))
    await asyncio.sleep(1)


CODES: Mapping[str, Callable[[], tuple[type[Phase[str]], ...]]] = {
    "missing_task": lambda: (),
    "task_too_old": lambda: (sitters(1),),
    "migration_failed": lambda: (sitters(3, upgrades=False),),
}


@pytest.mark.parametrize("reason", CODES)
def test_t8_a_blocked_task_is_kept_shown_and_goes_on_with_the_right_code(lives: Lives, reason: str) -> None:
    image = killed(lives, sits, Sit)

    async def blocked(h: Harness) -> None:
        await quiet(h)
        [verdict] = await h.verdicts()
        assert (verdict.name, verdict.facts.blocked and verdict.facts.blocked.reason) == ("blocked", reason)
        [record] = await h.tasks()
        assert (record.status, record.restarts, record.version) == ("pending", 1, 2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(h.wait_idle(), 1000)
        h.uninstall("sitter")
        h.install(sitters(3))
        assert await h.wait(TaskRef(record.id)) == "40 upgraded two in version 3"
        [record] = await h.tasks()
        assert (record.version, record.input) == (3, {"n": 40})

    lives.live(blocked, *CODES[reason](), image=image)
    assert world.effects == ["ran two", "ran upgraded two"]


@pytest.mark.parametrize("when", ["while blocked", "before the crash"])
@pytest.mark.parametrize("reason", CODES)
def test_o4_an_abort_of_a_blocked_task_ends_it_orphaned_with_the_reason(lives: Lives, reason: str, when: str) -> None:
    image = killed(lives, sits, Sit) if when == "while blocked" else None
    if image is None:
        copier, crashed, _ = lives.live(marks_and_dies, Sit)
        assert crashed
        image = copier.boundaries[-1].image

    async def orphaned(h: Harness) -> None:
        ref = TaskRef[str](TaskId(7))
        if when == "while blocked":
            await quiet(h)
            assert await h.abort(ref)
        with pytest.raises(TaskOrphaned) as ended:
            await h.wait(ref)
        assert ended.value.outcome == Orphaned(reason)
        await h.wait_idle()

    lives.live(orphaned, *CODES[reason](), image=image)
    assert world.effects == ["ran two"], "none of its code ran"


async def marks_and_dies(h: Harness) -> None:
    await sits(h)
    await h.engine.abort(TaskRef(TaskId(7)))
    die()
    await asyncio.sleep(1)


class Owner(Phase[str], task="owner"):
    async def run(self, rt: Runtime) -> "Waiting[Owned]":
        async with rt.commit() as tx:
            return tx.become(Waiting(on=(tx.spawn(Deep(2)),), then=Owned()))

    async def abort(self, rt: Runtime) -> "Aborted":
        world.effects.append("owner aborted")
        return Aborted("owner")


class Owned(Phase[str]):
    async def run(self, rt: Runtime) -> "Done[str]":
        world.effects.append("owner went on")
        return Done("went on")

    async def abort(self, rt: Runtime) -> "Aborted":
        world.effects.append("owner aborted")
        return Aborted("owner")


async def unsafe_work(h: Harness) -> None:
    """Work as an unsafe tool makes it for itself."""
    ref = await (await h.root()).start(Owner())
    await asyncio.sleep(1)
    async with h.engine.session.block(h.engine._subject(ref.id)) as tx:
        for record in list(h.engine.table.live()):
            if record.id == ref.id:
                tx.put_task(replace(record, abandon_on_restart=True))


@pytest.mark.parametrize("code", ["there", "missing", "all missing"])
def test_o7_abandoned_work_is_marked_first_and_none_of_its_phases_runs(lives: Lives, code: str) -> None:
    image = killed(lives, unsafe_work, Owner, Deep)
    tasks: dict[str, tuple[type[Phase[str]], ...]] = {"there": (Owner, Deep), "missing": (Deep,), "all missing": ()}

    async def abandoned(h: Harness) -> None:
        [top, *below] = await h.tasks()
        assert (top.abort_requested, top.abort_reason) == (True, "restart")
        assert top.live == (code != "all missing")
        assert all(record.abort_requested and record.abort_reason is None for record in below)
        assert world.effects == []
        h.resume()
        await h.wait_idle()
        outcome = await h.outcome(TaskRef[str](top.id))
        assert outcome == (Aborted("owner") if code == "there" else Orphaned("missing_task"))

    lives.live(abandoned, *tasks[code], image=image, run=False)
    undone = [] if code == "all missing" else ["undo 0", "undo 1", "undo 2"]
    assert world.effects == [*undone, *(["owner aborted"] if code == "there" else [])]


def test_o7_a_clean_close_abandons_too_and_a_later_task_is_not_abandoned(lives: Lives) -> None:
    copier, _, _ = lives.live(unsafe_work, Owner, Deep)
    image = image_of(copier.store)

    async def marked(h: Harness) -> None:
        assert (await h.task(7)).abort_reason == "restart"
        h.resume()
        await h.wait_idle()
        await unsafe_work(h)
        [fresh] = [record for record in await h.tasks(live=True) if record.abandon_on_restart]
        assert not fresh.abort_requested

    lives.live(marked, Owner, Deep, image=image, run=False)


# --- T9: parking, and suspects ----------------------------------------------------------------------------------------


class Poison(Phase[str], task="poison"):
    async def run(self, rt: Runtime) -> "Done[str]":
        world.effects.append("poison")
        await asyncio.sleep(0.2)
        die()
        await asyncio.sleep(1)
        return Done("survived")


class Work(Phase[str], task="worker"):
    """Half a second without progress: longer than the poison takes, shorter than a suspect has."""

    n: Input[int]

    async def run(self, rt: Runtime) -> "Done[str]":
        world.effects.append(f"work {self.n}")
        await asyncio.sleep(0.5)
        return Done(f"worked {self.n}")


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("neighbours", [1, 3, 8])
def test_t9_a_poisoned_task_is_parked_and_its_neighbours_are_not(lives: Lives, neighbours: int, place: str) -> None:
    async def begin(h: Harness) -> None:
        root = await h.root()
        async with root.commit() as tx:
            kinds: list[Phase[str]] = [Work(n) for n in range(neighbours)]
            kinds.insert(0 if place == "first" else neighbours, Poison())
            for kind in kinds:
                tx.spawn(kind)
        await quiet(h)

    image: Image = None
    for n in range(20):
        copier, crashed, _ = lives.live(quiet if n else begin, Poison, Work, image=image, seed=n)
        if not crashed:
            break
        image = copier.boundaries[-1].image
    else:
        raise AssertionError("it crashes for ever")
    assert Counter(world.effects)["poison"] == 5

    async def parked(h: Harness) -> None:
        await quiet(h)
        records = await h.tasks()
        assert Counter(record.kind for record in records if record.live) == {"poison": 1}
        assert all(isinstance(r.outcome, stored.Completed) for r in records if r.kind == "worker")
        [verdict] = await h.verdicts()
        assert (verdict.name, verdict.task.restarts) == ("parked", 5)
        await h.retry(verdict.id)
        assert (await h.task(verdict.id)).restarts == 0
        await quiet(h)

    copier, crashed, _ = lives.live(parked, Poison, Work, image=image)
    assert crashed, "retry lets it try again"


def test_t9_without_progress_every_opening_counts_and_progress_clears_it(lives: Lives) -> None:
    image = killed(lives, sits, Sit)
    for restarts in range(1, 5):

        async def counted(h: Harness, restarts: int = restarts) -> None:
            await asyncio.sleep(1)
            assert (await h.task(7)).restarts == restarts
            assert (await h.task(7)).status == "running"

        image = killed(lives, counted, Sit, image=image)

    async def parked(h: Harness) -> None:
        await quiet(h)
        assert [verdict.name for verdict in await h.verdicts()] == ["parked"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(h.wait(TaskRef(TaskId(7))), 100)

    image = killed(lives, parked, Sit, image=image)

    async def still(h: Harness) -> None:
        await parked(h)
        assert (await h.task(7)).restarts == 5, "a parked task is not found running, so it is not counted"

    image = killed(lives, still, Sit, image=image)

    async def retried(h: Harness) -> None:
        await h.retry(7)
        assert await h.wait(TaskRef(TaskId(7))) == "4 two"

    lives.live(retried, Sit, image=image)


def test_t9_an_abort_of_a_parked_task_runs_its_handler_and_a_handler_cut_off_too_often_gives_up(lives: Lives) -> None:
    class Doomed(Phase[str], task="doomed"):
        async def run(self, rt: Runtime) -> "Done[str]":
            await asyncio.sleep(1)
            die()
            await asyncio.sleep(1)
            return Done("never")

        async def abort(self, rt: Runtime) -> "Aborted":
            world.effects.append("abort")
            await asyncio.sleep(1)
            die()
            await asyncio.sleep(1)
            return Aborted("never")

    async def begin(h: Harness) -> None:
        await (await h.root()).start(Doomed())
        await quiet(h)

    image: Image = None
    crashed, life = True, begin
    while crashed:
        copier, crashed, _ = lives.live(life, Doomed, image=image)
        image, life = copier.boundaries[-1].image if crashed else image_of(copier.store), quiet

    async def abort(h: Harness) -> None:
        await h.abort(7)
        assert (await h.task(7)).restarts == 0
        await quiet(h)

    life = abort
    for _ in range(5):
        copier, crashed, _ = lives.live(life, Doomed, image=image)
        assert crashed
        image, life = copier.boundaries[-1].image, quiet

    async def given_up(h: Harness) -> None:
        record = await h.task(7)
        assert record.outcome == stored.Faulted(
            error=stored.TaskError(message="its abort handler was cut off 5 times", detail={"reason": "restart_limit"})
        )

    lives.live(given_up, Doomed, image=image)
    assert world.effects == ["abort"] * 5


def test_t9_suspects_run_one_at_a_time_with_a_bounded_time_in_an_order_that_turns(lives: Lives) -> None:
    class Slow(Phase[str], task="slow"):
        n: Input[int]

        async def run(self, rt: Runtime) -> "Done[str]":
            world.effects.append(f"{self.n} at {asyncio.get_running_loop().time():.0f}")
            await asyncio.sleep(1000)
            return Done("slowly")

    async def begin(h: Harness) -> None:
        for n in range(4):
            await (await h.root()).start(Slow(n))
        await asyncio.sleep(1)

    async def wait(h: Harness) -> None:
        await asyncio.sleep(10)

    image = killed(lives, begin, Slow)
    orders = []
    for _ in range(5):
        world.effects.clear()
        image = killed(lives, wait, Slow, image=image, restart_limit=100, suspect_ms=2000)
        orders.append([effect.split() for effect in world.effects])
    together, *turns = orders
    assert [at for _, _, at in together] == ["0"] * 4
    for order in turns:
        assert [at for _, _, at in order] == ["0", "2", "4", "6"]
    assert len({order[0][0] for order in turns}) == 4


def test_t9_a_suspect_that_rests_does_not_block_the_line(lives: Lives) -> None:
    """One whose code is gone, one that is kept by a fault, one that is aborted: the next may try at once."""

    class Faulty(Phase[str], task="faulty"):
        async def run(self, rt: Runtime) -> "Done[str]":
            if world.effects:
                raise ValueError("boom")
            await asyncio.sleep(1000)
            return Done("no")

    async def begin(h: Harness) -> None:
        root = await h.root()
        for phase in (Sit(1), Faulty(), Sit(2), Faulty(), Work(1)):
            await root.start(phase)
        await asyncio.sleep(0.1)

    async def wait(h: Harness) -> None:
        await asyncio.sleep(0.1)

    world.effects.clear()
    image = killed(lives, begin, Sit, Faulty, Work)
    world.effects.clear()
    image = killed(lives, wait, Sit, Faulty, Work, image=image, suspect_ms=10_000)
    world.effects[:] = ["from now on"]

    async def last(h: Harness) -> None:
        started = asyncio.get_running_loop().time()
        assert await h.wait(TaskRef[str](TaskId(11))) == "worked 1"
        assert asyncio.get_running_loop().time() - started < 5

    lives.live(last, Faulty, Work, image=image, suspect_ms=10_000)


# --- T11: a kept fault over openings ----------------------------------------------------------------------------------


def cell(works: bool) -> type[Phase[str]]:
    class Cell(Phase[str], task="cell"):
        async def run(self, rt: Runtime) -> "Done[str]":
            await rt.memo("kept", "memo")
            world.effects.append("works" if works else "raises")
            if not works:
                raise ValueError("boom")
            return Done(await rt.memo("kept", "another"))

    return Cell


@pytest.mark.parametrize("crash", [False, True])
def test_t11_a_new_opening_counts_frees_and_reruns_a_kept_task(lives: Lives, crash: bool) -> None:
    broken = cell(works=False)

    async def begin(h: Harness) -> None:
        ref = await (await h.root()).start(broken())
        with pytest.raises(TaskFaulted):
            await h.wait(ref)

    async def again(h: Harness) -> None:
        assert isinstance(await h.outcome(TaskRef[str](TaskId(7))), Faulted)

    def ended(main: Callable[[Harness], Awaitable[None]], image: Image) -> Image:
        if crash:
            return killed(lives, main, broken, image=image)
        return image_of(lives.live(main, broken, image=image)[0].store)

    image = ended(begin, None)
    for n in range(1, 5):
        image = ended(again, image)
        [record] = lives.tasks(image).values()
        fault = record.memos["pidurable.fault"]
        assert isinstance(fault, Mapping)
        assert (record.status, record.restarts, record.memos["kept"], fault["count"]) == ("pending", n, "memo", n + 1)

    async def parked(h: Harness) -> None:
        await quiet(h)
        assert [verdict.name for verdict in await h.verdicts()] == ["parked"]

    image = ended(parked, image)
    works = cell(works=True)

    async def mended(h: Harness) -> None:
        await h.retry(7)
        assert await h.wait(TaskRef(TaskId(7))) == "memo"

    lives.live(mended, works, image=image)
    assert world.effects == ["raises"] * 5 + ["works"]


def test_t11_a_fault_of_an_earlier_opening_does_not_forbid_a_wait(lives: Lives) -> None:
    broken = cell(works=False)

    class Waits(Phase[str], task="waits"):
        on: Input[TaskRef[str]]

        async def run(self, rt: Runtime) -> "Waiting[Went]":
            return Waiting(on=(self.on,), then=Went())

    class Went(Phase[str]):
        async def run(self, rt: Runtime) -> "Done[str]":
            return Done("went on")

    async def begin(h: Harness) -> None:
        await h.outcome(await (await h.root()).start(broken()))

    image = killed(lives, begin, broken)

    async def waits(h: Harness) -> None:
        ref = await (await h.root()).start(Waits(TaskRef(TaskId(7))))
        await asyncio.sleep(1)
        assert (await h.task(ref)).status == "waiting"
        h.install(broken)
        assert await h.wait(ref) == "went on"
        assert isinstance((await h.task(7)).outcome, stored.Faulted), "it was waited for, so its fault ended it"

    lives.live(waits, Waits, image=image)


# --- T7: what an opening leaves alone ---------------------------------------------------------------------------------


def test_t7_an_opening_with_nothing_to_do_changes_no_row_and_no_number(lives: Lives) -> None:
    async def begin(h: Harness) -> None:
        ref = await (await h.root()).start(Nap(1000))
        await (await h.root()).start(Owner())
        await asyncio.sleep(1)
        assert (await h.task(ref)).status == "sleeping"

    copier, _, _ = lives.live(begin, Nap, Owner, Deep)
    image = image_of(copier.store)

    async def nothing(h: Harness) -> None:
        opened = h.engine.session.opened
        await asyncio.sleep(1)
        assert h.engine.session.opened.next_seq == opened.next_seq

    before = lives.tasks(image)
    again, _, _ = lives.live(nothing, image=image)
    assert lives.tasks(image_of(again.store)) == before

    async def sequence(h: Harness) -> None:
        world.told.append(("seq", h.engine.session.opened.next_seq))

    lives.live(sequence, image=image, run=False)
    lives.live(sequence, image=image_of(again.store), run=False)
    assert world.told[0] == world.told[1]


def test_t5_a_completing_task_whose_work_has_ended_is_closed_at_the_opening(lives: Lives) -> None:
    """Only a writer that commits the end of the work alone leaves such a row; the opening closes it, without code."""

    class Holder(Phase[str], task="holder"):
        async def run(self, rt: Runtime) -> "Done[str]":
            async with rt.commit() as tx:
                tx.spawn(Nap(1000))
                return tx.become(Done("held"))

    async def begin(h: Harness) -> None:
        await (await h.root()).start(Holder())
        await asyncio.sleep(1)

    image = killed(lives, begin, Holder, Nap)
    assert not lives.memory
    store = lives.place(image)
    assert isinstance(store, SqliteStorage)
    nap = next(record for record in lives.tasks(image).values() if record.kind == "nap")
    ended = replace(nap, state=stored.Terminal(outcome=stored.Completed(result="up")), memos={}, ended_at_ms=START_MS)
    with closing(sqlite3.connect(store.path)) as file:
        file.execute("UPDATE tasks SET status='terminal', record=? WHERE id=?", (encode_task(ended), nap.id))
        file.commit()

    async def closed(h: Harness) -> None:
        assert await h.tasks(live=True) == ()

    lives.live(closed, image=image_of(store), run=False)


def test_o6_everything_settles_while_paused_and_nothing_starts(lives: Lives) -> None:
    image = killed(lives, marks, Owner, Deep)

    async def paused(h: Harness) -> None:
        records = await everything(h)
        assert all(record.abort_requested for record in records.values())
        await quiet(h)
        assert await everything(h) == records
        assert world.effects == []
        h.resume()
        await h.wait_idle()

    lives.live(paused, Owner, Deep, image=image, run=False)
    assert world.effects == ["undo 0", "undo 1", "undo 2", "owner aborted"]


async def marks(h: Harness) -> None:
    """A mark on the owner that is stored alone: the crash comes before the marks that follow from it."""
    ref = await (await h.root()).start(Owner())
    await asyncio.sleep(1)
    await h.abort(ref)


def test_t4_o2_a_wait_that_a_stranger_stored_can_be_marked_and_ends(lives: Lives) -> None:
    """It names a task that is not there, and one that it does not own: refused when written here, not when found."""

    async def begin(h: Harness) -> None:
        root = await h.root()
        await root.start(Owner())
        await root.start(Nap(1000))
        await asyncio.sleep(1)

    image = killed(lives, begin, Owner, Deep, Nap)
    store = lives.place(image)
    assert isinstance(store, SqliteStorage)
    records = lives.tasks(image)
    owner = next(record for record in records.values() if record.kind == "owner")
    nap = next(record for record in records.values() if record.kind == "nap")
    assert isinstance(owner.state, stored.Waiting)
    state = replace(owner.state, on=(*owner.state.on, nap.id, TaskId(9999)), fail_fast=True)
    with closing(sqlite3.connect(store.path)) as file:
        file.execute("UPDATE tasks SET record=? WHERE id=?", (encode_task(replace(owner, state=state)), owner.id))
        file.commit()

    async def marked(h: Harness) -> None:
        assert await h.abort(owner.id)
        outcome = await h.outcome(TaskRef[str](owner.id))
        assert outcome == Aborted("owner")
        assert await h.tasks(live=True) == (), "what it names is marked with a failed sibling, owned or not (T4)"

    lives.live(marked, Owner, Deep, Nap, image=image_of(store))
