"""Owns recording one run: what reached the files of the store, and what was acknowledged between the operations.

A run begins with nothing, or with a store that an earlier life left. From a recording follows what any crash of that
run leaves, without running anything again. Never judges what is left.
"""

from __future__ import annotations

import contextlib
import io
import sqlite3
import tempfile
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from pidurable_nb.clock import LoopClock
from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import Seq
from pidurable_nb.lab.dying.crash import Act, CrashPlan, Passed
from pidurable_nb.lab.dying.identity import FILES, STORE
from pidurable_nb.lab.dying.loop import DeterministicLoop
from pidurable_nb.lab.dying.point import Namer, Point
from pidurable_nb.lab.dying.run import EPOCH_MS, LEDGER, Plan, SeededIds, carry, let_go, life
from pidurable_nb.lab.dying.vfs import FileOp, Gate, LockGate, RecordingVfs, seed_prng
from pidurable_nb.lab.images.disk import Blocks, Disk, blocks_of
from pidurable_nb.lab.images.promises import Contents, Doing, Failure, Promises, Row, Told
from pidurable_nb.lab.outside.world import SimulatedCrash, World
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.probe import Mark
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.plain import NOTHING, Content, content
from pidurable_nb.store.sqlite import Durability, SqliteStorage
from pidurable_nb.store.storage import Commit, Opened, Storage

__all__ = ["Begins", "Here", "Recording", "Work", "record"]

T = TypeVar("T")
V = TypeVar("V")
Work: TypeAlias = Callable[[Storage], Awaitable[None]]
"""What is recorded, where it is no scenario: gets the storage unopened, and closes what it opens."""

_STEPS: Final = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Where a scenario was behind operation `after_op`: its newest point, the time, and how long the ledger was."""

    after_op: int
    point: Point
    at_ms: int
    ledger_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begins:
    """What a run began with: the files that an earlier life left, what is in them, and the ledger; or nothing at all.

    `life` is the number of the life that begins, `start_ms` when it does.
    """

    life: int = 1
    start_ms: int = EPOCH_MS
    files: Mapping[str, Blocks] = field(default_factory=dict)
    content: Content = NOTHING
    ledger: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One run: what it began with, its file operations in order, and what was acknowledged between them.

    `store` is the name of the database file. `locks` counts the exclusive locks that were asked for. `failure` is the
    first error of the storage, where faults were given, and `raised` what the run ended with then. The rest is a
    scenario's: `course` is where it was between the
    operations, `ledger` the whole ledger of its effects; `passed`, `acts` and `published` are those of `run.Lived`.
    """

    store: str
    durability: Durability
    ops: tuple[FileOp, ...]
    told: tuple[Told, ...]
    begins: Begins = Begins()
    locks: int = 0
    failure: Failure | None = None
    raised: Exception | None = None
    course: tuple[Here, ...] = ()
    ledger: bytes = b""
    passed: tuple[Passed, ...] = ()
    acts: tuple[Act, ...] = ()
    published: tuple[Changes, ...] = ()

    @property
    def last(self) -> int:
        """The number of the last operation, 0 where there is none."""
        return self.ops[-1].n if self.ops else 0

    def contents(self) -> Contents:
        """The rows that were there at the beginning, and after each acknowledgement."""
        return Contents(self._told_before(), made=self.begins.content != NOTHING)

    def disk(self) -> Disk:
        """The disk as it was at the beginning: what an earlier life left is safe."""
        return Disk.holding(self.begins.files)

    def without(self, n: int) -> Recording:
        """The same run on a disk that ignored operation `n`: for a negative control, take a sync."""
        return replace(self, ops=tuple(op for op in self.ops if op.n != n))

    def here(self, n: int) -> Here | None:
        """Where the scenario was when operation `n + 1` came; None before its first point."""
        at = bisect_right(self.course, n, key=lambda here: here.after_op)
        return self.course[at - 1] if at else None

    def ledger_at(self, n: int) -> bytes:
        """The ledger when operation `n + 1` came: the most that can have happened outside by a crash behind `n`."""
        return self.ledger[: self.outside(n)[0]]

    def outside(self, n: int) -> tuple[int, int]:
        """How long the ledger was when operation `n + 1` came, and the time: when a crash behind `n` ended the life."""
        here = self.here(n)
        return (len(self.begins.ledger), self.begins.start_ms) if here is None else (here.ledger_bytes, here.at_ms)

    def moments(self) -> Iterator[tuple[FileOp | None, int]]:
        """Every operation, None for the beginning, each with the last number before the next one that was recorded.

        Until then the files stay as they are, and more may be acknowledged, or fail.
        """
        ends = [op.n - 1 for op in self.ops]
        failed = 0 if self.failure is None else self.failure.after_op
        return zip((None, *self.ops), (*ends, max(self.last, failed)), strict=True)

    def promises(self) -> Promises:
        """What this durability promises behind each operation."""
        log = f"{self.store}-wal"
        syncs = [op.n for op in self.ops if op.op == "sync" and op.file == log]
        return Promises(self.durability, self._told_before(), syncs, self.failure, floor=self.begins.content.newest)

    def _told_before(self) -> tuple[Told, ...]:
        """What was acknowledged, behind what was there at the beginning."""
        there = self.begins.content
        if there == NOTHING:
            return self.told
        return (Told(begun_after=0, after_op=0, newest=there.newest, barrier=True, added=there.rows), *self.told)

    def folds(self) -> tuple[tuple[int, ...], ...]:
        """The syncs of each folding of the log and of the log's new beginning, by number: `(log, database, header)`.

        `log` is missing where the log had been synced already, `header` where nothing was written afterwards.
        """
        log = f"{self.store}-wal"
        found: list[list[int]] = []
        log_sync: int | None = None
        logged = header = False
        for op in self.ops:
            if op.op == "sync" and op.file == log:
                if header and found:
                    found[-1].append(op.n)
                log_sync = None if header else op.n
            elif op.op == "sync" and op.file == self.store and logged:
                found.append([op.n] if log_sync is None else [log_sync, op.n])
                log_sync = None
            elif op.op == "write" and op.file == log:
                log_sync, logged = None, True
            header = op.op == "write" and op.file == log and op.offset == 0 and op.size == _HEADER
        return tuple(map(tuple, found))


_HEADER: Final = 32
"""Bytes of the header of a log."""


# Recording.


class Witness(SqliteStorage):
    """A storage that writes down what it acknowledged, and what it failed with first."""

    def __init__(
        self,
        path: Path,
        vfs: RecordingVfs,
        *,
        durability: Durability,
        wal_limit_pages: int,
        draw: Callable[[], str],
        namer: Namer,
        look: Callable[[], None],
        there: Content,
    ) -> None:
        super().__init__(
            path,
            durability=durability,
            busy_timeout_ms=0,
            wal_limit_pages=wal_limit_pages,
            vfs=vfs.name,
            inline=True,
            draw=draw,
        )
        self.told: list[Told] = []
        self.failure: Failure | None = None
        self._vfs = vfs
        self._namer = namer
        self._look_around = look
        self._rows: frozenset[Row] = there.rows

    async def open(self) -> Opened:
        """As any; it counts as a transaction."""
        begun = self._vfs.count
        opened = await self._watched("open", super().open())
        await self._namer.learn(self)
        await self._tell(begun, opened.next_seq - 1, barrier=False)
        return opened

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        """As any."""
        begun = self._vfs.count
        seqs = await self._watched("commit", super().commit(group), commits=len(group))
        if seqs:
            await self._tell(begun, seqs[-1], barrier=any(part.barrier for part in group))
        return seqs

    async def maintain(self) -> None:
        """As any."""
        await self._watched("maintain", super().maintain())

    async def close(self) -> None:
        """As any."""
        await self._watched("close", super().close())

    async def _watched(self, doing: Doing, work: Coroutine[object, object, T], *, commits: int = 0) -> T:
        begun = self._vfs.count
        try:
            return await work
        except PidurableError as error:
            if self.failure is None:
                self.failure = Failure(
                    doing=doing, begun_after=begun, after_op=self._vfs.count, error=error, commits=commits
                )
            raise

    async def _tell(self, begun: int, newest: int, *, barrier: bool) -> None:
        after = self._vfs.count
        found = await self._run(content)
        told = Told(
            begun_after=begun,
            after_op=after,
            newest=newest,
            barrier=barrier,
            added=found.rows - self._rows,
            removed=self._rows - found.rows,
        )
        self._rows = (self._rows - told.removed) | told.added
        self.told.append(told)
        self._look_around()


class _Follower(CrashPlan):
    """A probe that looks around behind every point."""

    look: Callable[[], None]

    async def reach(self, mark: Mark) -> None:
        await super().reach(mark)
        self.look()

    def note(self, mark: Mark) -> None:
        super().note(mark)
        self.look()

    async def perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        value = await super().perform(mark, do)
        self.look()
        return value


def record(
    what: Scenario | Work,
    folder: Path,
    *,
    durability: Durability = "barrier",
    seed: int | None = 1,
    wal_limit_pages: int = 1000,
    gate: Gate | None = None,
    lock_gate: LockGate | None = None,
    begin: Plan | None = None,
) -> Recording:
    """Run one life of a scenario, or a piece of work, in this thread, and keep every operation on the store's files.

    The store is made in `folder`, beside the ledger of effects; with `begin` it lies there with its ledger, as an
    earlier life left them, and life and time are those of that plan. A small `wal_limit_pages` has the log folded
    often. The same code, seed and gates give the same recording to the byte, and leave the bytes that `run_here`
    leaves. A scenario that kills itself is recorded up to there. Raises: what the run raises; but where gates are
    given, an error that followed from one of the storage is kept as `failure`. ValueError when there is a store, and
    no `begin`.
    """
    path = folder / STORE
    if begin is None and path.exists():
        raise ValueError(f"{path} exists; a recording begins with nothing, name an empty folder")
    begins = _begins(folder, Plan() if begin is None else begin)
    locks = 0

    def count_lock(slot: int) -> int | None:
        nonlocal locks
        locks += 1
        return None if lock_gate is None else lock_gate(slot)

    vfs = RecordingVfs(gate=gate, lock_gate=count_lock)
    world = World(folder / LEDGER, begins.life)
    loop = DeterministicLoop(seed, limit=_STEPS)

    def freeze(crash: SimulatedCrash) -> None:
        vfs.freeze()
        world.shut()
        loop.halt(crash)

    ids, namer, clock = SeededIds(f"{begins.life}"), Namer(begins.life), LoopClock(begins.start_ms)
    probe = _Follower(world, namer, clock, at=None, kind="freeze", freeze=freeze)
    course: list[Here] = []

    def look() -> None:
        if probe.passed:
            passed, size = probe.passed[-1], world.ledger.stat().st_size if world.ledger.exists() else 0
            course.append(Here(after_op=vfs.count, point=passed.point, at_ms=passed.at_ms, ledger_bytes=size))

    probe.look = look
    storage = Witness(
        path, vfs, durability=durability, wal_limit_pages=wal_limit_pages, draw=ids.name, namer=namer, look=look,
        there=begins.content,
    )  # fmt: skip

    async def main() -> None:
        if isinstance(what, Scenario):
            await life(what, storage, probe, clock=clock, ids=ids)
        else:
            await what(storage)

    raised: Exception | None = None
    seed_prng(1 + begins.life)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SimulatedCrash):
            loop.run_until_complete(main())
    except Exception as error:
        if storage.failure is None or (gate is None and lock_gate is None):
            raise
        raised = error
    finally:
        world.shut()
        loop.abandon()
        let_go(storage)
        vfs.close()
        seed_prng(None)
    return Recording(
        store=STORE,
        durability=durability,
        ops=tuple(vfs.ops),
        told=tuple(storage.told),
        begins=begins,
        locks=locks,
        failure=storage.failure,
        raised=raised,
        course=tuple(course),
        ledger=_bytes_of(world.ledger),
        passed=tuple(probe.passed),
        acts=tuple(probe.acts),
        published=tuple(probe.published),
    )


def _begins(folder: Path, plan: Plan) -> Begins:
    """What lies in the folder. It is read from a copy: opening recovers."""
    files = {path.name: blocks_of(path.read_bytes()) for path in (folder / name for name in FILES) if path.exists()}
    found = NOTHING
    if STORE in files:
        with tempfile.TemporaryDirectory(prefix="begins-", dir=folder) as aside:
            connection = sqlite3.connect(carry(folder / STORE, Path(aside)), isolation_level=None)
            try:
                found = content(connection)
            finally:
                connection.close()
    return Begins(
        life=plan.number,
        start_ms=plan.start_ms,
        files={name: blocks for name, blocks in files.items() if blocks},
        content=found,
        ledger=_bytes_of(folder / LEDGER),
    )


def _bytes_of(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
