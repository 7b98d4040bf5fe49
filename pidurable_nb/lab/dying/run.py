"""Owns running one life of a scenario: from opening the store to closing it, or to its death.

A life runs here, on the deterministic loop, and dies by freezing; or in a child of the fork server, and dies by
SIGKILL. Both open the same store with the same code, so that their points have the same names. Never judges the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pidurable_nb.agent.harness import Harness
from pidurable_nb.agent.opening import DURABILITIES, Durability
from pidurable_nb.agent.stored.live import Ids, RandomIds, uuid7
from pidurable_nb.clock import Clock, LoopClock, SystemClock
from pidurable_nb.engine.phase import TaskRef
from pidurable_nb.errors import PidurableError, StorageError
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.lab.dying.crash import CRASH_KINDS, Act, CrashKind, CrashPlan, Passed
from pidurable_nb.lab.dying.forkserver import ForkServer
from pidurable_nb.lab.dying.loop import DeterministicLoop
from pidurable_nb.lab.dying.point import Namer, Point
from pidurable_nb.lab.dying.vfs import FileOp, RecordingVfs, seed_prng
from pidurable_nb.lab.outside.world import SimulatedCrash, World
from pidurable_nb.lab.scenario import Scenario, find
from pidurable_nb.probe import Mark
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.ownership import lock_path
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import Opened, Storage

__all__ = [
    "CHILD", "EPOCH_MS", "LIFE_S", "DidNotDie", "Lived", "Plan", "SeededIds", "asked_of_child", "carry", "child",
    "fork_server", "life", "run_here",
]  # fmt: skip

LEDGER: Final = "effects.jsonl"
EPOCH_MS: Final = 1_750_000_000_000
"""When the virtual time of a first life begins."""
_STEPS: Final = 200_000
"""A life that takes more steps of its loop than this has run away."""


class SeededIds:
    """Identities that repeat with their seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def uuid(self, now_ms: int) -> str:
        """The next identity."""
        return uuid7(now_ms, self._random.getrandbits(74))

    def name(self) -> str:
        """The next random name of a store."""
        return f"{self._random.getrandbits(128):032x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one life goes. `number` counts lives from 1; `at` is where it dies, None where it may end by itself.

    Its virtual time begins at `start_ms`: no earlier than the life before it ended, or the clock was set back.

    `seed` decides the order of what is ready, None is first in, first out; names and, with `same_bytes`, SQLite's salts
    repeat in either case. `same_bytes` changes a global of SQLite: for comparisons. `record_files` keeps every file
    operation. `virtual` is for lives in a child: here every life is.
    """

    number: int = 1
    start_ms: int = EPOCH_MS
    at: Point | None = None
    kind: CrashKind = "freeze"
    seed: int | None = None
    durability: Durability = "barrier"
    same_bytes: bool = False
    record_files: bool = False
    virtual: bool = True
    journal: Path | None = None

    def then(self, ended_ms: int) -> Plan:
        """The plan for the life behind one that ended then: a second later, and to its own end."""
        return replace(self, number=self.number + 1, start_ms=ended_ms + 1000, at=None, journal=None)

    def to_json(self) -> JsonObject:
        """What `from_json` makes a plan of, in another process."""
        return {
            "number": self.number,
            "start_ms": self.start_ms,
            "at": None if self.at is None else str(self.at),
            "kind": self.kind,
            "seed": self.seed,
            "durability": self.durability,
            "same_bytes": self.same_bytes,
            "virtual": self.virtual,
            "journal": None if self.journal is None else str(self.journal),
        }

    @classmethod
    def from_json(cls, value: JsonObject) -> Plan:
        """The plan that another process wrote. Raises: ValueError for anything else."""
        match value:
            case {
                "number": int(number),
                "start_ms": int(start_ms),
                "at": str() | None as at,
                "kind": str(kind),
                "seed": int() | None as seed,
                "durability": str(durability),
                "same_bytes": bool(same_bytes),
                "virtual": bool(virtual),
                "journal": str() | None as journal,
            } if kind in CRASH_KINDS and durability in DURABILITIES:
                return cls(
                    number=number,
                    start_ms=start_ms,
                    at=None if at is None else Point.parse(at),
                    kind=CRASH_KINDS[kind],
                    seed=seed,
                    durability=DURABILITIES[durability],
                    same_bytes=same_bytes,
                    virtual=virtual,
                    journal=None if journal is None else Path(journal),
                )
            case _:
                raise ValueError(f"{value!r} is no plan of a life")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """What is known of a life after it: the points it passed, where it died, what its storage failed with.

    `error` is what ended it when it was neither the plan nor its own end. `ops` are the file operations, if recorded.
    `image` is a copy of the store as it was when the life died; None when it ended by itself. `published` is what its
    commits changed, from when they were followed: not what the opening settled. `acts` are the verdicts it acted on,
    `lost` the memos that came second.
    """

    number: int
    passed: tuple[Passed, ...]
    published: tuple[Changes, ...] = ()
    acts: tuple[Act, ...] = ()
    lost: tuple[Mark, ...] = ()
    crashed: Point | None = None
    error: Exception | None = None
    ops: tuple[FileOp, ...] = ()
    image: Path | None = None

    @property
    def points(self) -> tuple[Point, ...]:
        """The names of what it passed, in order."""
        return tuple(passed.point for passed in self.passed)

    def next(self, plan: Plan) -> Plan:
        """The same plan for the life behind this one, a second later and to its own end."""
        return plan.then(self.passed[-1].at_ms if self.passed else plan.start_ms)


async def life(scenario: Scenario, storage: Storage, recorder: CrashPlan, *, clock: Clock, ids: Ids) -> None:
    """Open the store, begin the scenario where nothing was begun, attend it, and close.

    A client that got no answer asks again: what was begun is found by the tasks that the store holds, what was asked
    for by its request id.
    """
    async with scenario.program().open(storage, clock=clock, ids=ids, probe=recorder) as harness:
        harness.engine.session.subscribe(recorder.follow)
        if scenario.asks or not await _roots(harness):
            await scenario.begin(harness)
        await scenario.attend(harness, await _roots(harness))


async def _roots(harness: Harness) -> tuple[TaskRef[object], ...]:
    return tuple(TaskRef[object](record.id) for record in await harness.tasks() if record.owner is None)


# In this process.


def run_here(scenario: Scenario, store: Path, ledger: Path, plan: Plan, *, image: Path | None = None) -> Lived:
    """Live one life in this process, in this thread, and return when it ended or died by freezing.

    A store that died is left as it is for looking at; the next life goes on from `image`, a folder that a copy of it
    is made in at the moment of the crash, before abandoned code runs its `finally` blocks. What effects print is
    dropped. Raises: Deadlock, Runaway, and what the scenario itself raises.
    """
    if plan.same_bytes:
        seed_prng(1 + plan.number)
    world = World(ledger, plan.number)
    loop: DeterministicLoop | None = None
    vfs: RecordingVfs | None = None
    kept: list[Path] = []

    def freeze(crash: SimulatedCrash) -> None:
        assert vfs is not None
        assert loop is not None
        vfs.freeze()
        world.shut()
        loop.halt(crash)
        if image is not None:
            kept.append(carry(store, image))

    clock = LoopClock(plan.start_ms)
    recorder = _recorder(world, clock, plan, freeze)
    loop = DeterministicLoop(plan.seed, limit=_STEPS)
    vfs = RecordingVfs(record=plan.record_files, gate=recorder.gate if recorder.watches_files else None)
    ids = SeededIds(f"{plan.number}")
    storage = Introduced(store, recorder.namer, plan, vfs.name, ids)
    main = life(scenario, storage, recorder, clock=clock, ids=ids)
    try:
        error = _drive(loop, main)
    finally:
        world.shut()
        loop.abandon()
        let_go(storage)
        vfs.close()
        if plan.same_bytes:
            seed_prng(None)
    return Lived(
        number=plan.number,
        passed=tuple(recorder.passed),
        published=tuple(recorder.published),
        acts=tuple(recorder.acts),
        lost=tuple(recorder.lost),
        crashed=recorder.crashed,
        error=error,
        ops=tuple(vfs.ops),
        image=kept[0] if kept else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Lives, each going on where the one before died; the last ended by itself. `store` is what it left."""

    lives: tuple[Lived, ...]
    store: Path


class DidNotDie(PidurableError):
    """The run came to its end: the point is not on its way, or its code failed before."""


class NeverEnds(PidurableError):
    """Life after life died, although nothing was to kill them any more."""


def run_to_end(scenario: Scenario, folder: Path, plan: Plan, *, most: int = 20) -> Story:
    """Live in `folder` until a life ends by itself: the first as planned, the others as long as they live.

    The ledger is `effects.jsonl` there. Raises: NeverEnds after `most` lives; what `run_here` raises.
    """
    store = folder / "1" / "store.sqlite"
    lives: list[Lived] = []
    while len(lives) < most:
        lived = run_here(scenario, store, folder / LEDGER, plan, image=folder / str(plan.number + 1))
        lives.append(lived)
        if lived.crashed is None:
            return Story(lives=tuple(lives), store=store)
        assert lived.image is not None
        store, plan = lived.image, lived.next(plan)
    raise NeverEnds(f"{scenario.name} still dies in its life {most}, at {lives[-1].crashed}; look at {store}")


class Introduced(SqliteStorage):
    """A storage that tells a namer what it holds when it has been opened, before anybody else asks it."""

    def __init__(
        self, path: Path, namer: Namer, plan: Plan, vfs: str | None = None, ids: SeededIds | None = None
    ) -> None:
        draw = None if ids is None else ids.name
        super().__init__(path, durability=plan.durability, inline=ids is not None, vfs=vfs, draw=draw)
        self._namer = namer

    async def open(self) -> Opened:
        """As any, and then count what is there."""
        opened = await super().open()
        await self._namer.learn(self)
        return opened


def _recorder(world: World, clock: Clock, plan: Plan, freeze: Callable[[SimulatedCrash], None]) -> CrashPlan:
    return CrashPlan(
        world,
        Namer(plan.number),
        clock,
        at=plan.at,
        kind=plan.kind,
        freeze=freeze,
        journal=plan.journal,
        files=plan.record_files,
    )


def _drive(loop: DeterministicLoop, main: Coroutine[None, None, None]) -> Exception | None:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            loop.run_until_complete(main)
        except SimulatedCrash:
            return None
        except StorageError as error:
            return error
    return None


def let_go(storage: Storage) -> None:
    """Close what an inline storage holds; it never suspends, so no loop is needed. Folding a frozen log fails."""
    closing = storage.close()
    with contextlib.suppress(StopIteration, StorageError):
        closing.send(None)
    closing.close()


def carry(store: Path, into: Path) -> Path:
    """Copy a dead store to the folder `into`: database, log, journal, and the lock file that says who had it.

    Never `-shm`. A journal is there where the store was just being made.
    """
    into.mkdir(parents=True, exist_ok=True)
    beside = [store.with_name(store.name + end) for end in ("-wal", "-journal")]
    for path in (store, *beside, lock_path(store)):
        if path.exists():
            shutil.copyfile(path, into / path.name)
    return into / store.name


# In a child of the fork server.


CHILD: Final = f"{__name__}:child"
"""What a fork server is told to run for a life."""
LIFE_S: Final = 60.0
"""How long a life may take there."""


def fork_server() -> ForkServer:
    """A server that lives are killed in, which finds modules of the working folder too; enter it once for many."""
    return ForkServer([__name__], extra_path=[Path.cwd()])


def asked_of_child(scenario: Scenario, store: Path, ledger: Path, plan: Plan) -> JsonObject:
    """The argument with which `child` lives one life."""
    name = f"{scenario.module}:{scenario.name}"
    return {"scenario": name, "store": str(store), "ledger": str(ledger), "plan": plan.to_json()}


def child(argument: Json) -> None:
    """Live one life in this process, which may be killed on the way: the target of a fork server.

    The argument is one that `asked_of_child` made.
    """
    match argument:
        case {"scenario": str(name), "store": str(store), "ledger": str(ledger), "plan": dict(how)}:
            plan = Plan.from_json(how)
            if plan.virtual:
                lived = run_here(find(name), Path(store), Path(ledger), plan)
                if lived.error is not None:
                    raise lived.error
            else:
                asyncio.run(_run_really(find(name), Path(store), Path(ledger), plan))
        case _:
            raise ValueError(f"{argument!r} names no life")


async def _run_really(scenario: Scenario, store: Path, ledger: Path, plan: Plan) -> None:
    """The product as its users have it: asyncio's own loop, the storage on its thread, the clock on the wall."""
    world = World(ledger, plan.number)

    def freeze(_crash: SimulatedCrash) -> None:
        raise RuntimeError("a life that is not on the deterministic loop dies by kill only")

    clock = SystemClock()
    recorder = _recorder(world, clock, plan, freeze)
    storage = Introduced(store, recorder.namer, plan)
    await life(scenario, storage, recorder, clock=clock, ids=RandomIds())
