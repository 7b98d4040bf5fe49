"""Owns faults of the disk: failing one operation of a run, going through all of them, and judging what the store said.

Each fault is a run of its own. What counts is whether an error that says that nothing is stored is right about it, at
the moment of the error and behind it, and whether what was acknowledged is there. Never repairs anything.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pidurable_nb.errors import Stored
from pidurable_nb.lab.dying.loop import Deadlock, Runaway
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import Plan
from pidurable_nb.lab.dying.vfs import FileOp, Kind, Short
from pidurable_nb.lab.images.image_check import Checker, Finding, Outcome
from pidurable_nb.lab.images.images import kill_images
from pidurable_nb.lab.images.promises import Failure
from pidurable_nb.lab.images.recording import Recording, Work, record
from pidurable_nb.lab.judging.invariants import Broken, Problem
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.sweeping.lives import Image
from pidurable_nb.store.sqlite import Durability

__all__ = [
    "FAULTS",
    "Fault",
    "FaultGate",
    "FaultRun",
    "Place",
    "expected_stored",
    "left_by",
    "places",
    "run_fault",
    "wrong",
]

Fault = Literal["eio", "full", "busy", "short"]
"""`eio`: the operation fails. `full`: there is no space for it. `short`: there was space for a part of it, which is in
the file. `busy`: somebody else holds the lock that is asked for."""

FAULTS: Final[tuple[Fault, ...]] = ("eio", "full", "busy", "short")

PlaceKind: TypeAlias = Kind | Literal["lock"]

_EIO: Final[dict[Kind, int]] = {
    "write": sqlite3.SQLITE_IOERR_WRITE,
    "truncate": sqlite3.SQLITE_IOERR_TRUNCATE,
    "sync": sqlite3.SQLITE_IOERR_FSYNC,
    "delete": sqlite3.SQLITE_IOERR_DELETE,
}
_OPS: Final[dict[str, PlaceKind]] = {
    "write": "write", "truncate": "truncate", "sync": "sync", "delete": "delete", "lock": "lock",
}  # fmt: skip
_NEEDS_SPACE: Final[frozenset[Kind]] = frozenset({"write", "truncate"})
"""What needs space. (A sync that finds the disk full is an input or output error.)"""


@dataclass(frozen=True, slots=True)
class Place:
    """The `n`-th operation of a kind of a run, from 1, and what happens there; `lock` is one of the log's index.

    `str(place)` is its name, `eio@write:12`, and `Place.parse(name)` gives it back.
    """

    fault: Fault
    op: PlaceKind
    n: int

    def __str__(self) -> str:
        return f"{self.fault}@{self.op}:{self.n}"

    @classmethod
    def parse(cls, name: str) -> Place:
        """The place of that name. Raises: ValueError, saying what a name looks like."""
        fault, _, rest = name.partition("@")
        op, _, n = rest.partition(":")
        faults: dict[str, Fault] = {known: known for known in FAULTS}
        if fault not in faults or op not in _OPS or not n.isdecimal() or int(n) < 1:
            raise ValueError(f"{name!r} names no fault; write FAULT@OPERATION:N, as in eio@sync:3")
        return cls(faults[fault], _OPS[op], int(n))


class FaultGate:
    """The gates of a VFS that let one fault happen: give `gate` and `lock_gate` to a RecordingVfs, or to `record`.

    `stays`: from there on every operation of that kind fails, as on a disk that stays full, or broken. `met` is the
    operation that failed, once it has; `after_op` is the last operation before the fault, a refused lock's too.
    """

    def __init__(self, place: Place, *, stays: bool = False) -> None:
        self.place = place
        self.met: FileOp | None = None
        self.happened = False
        self.after_op = 0
        self._stays = stays
        self._seen = 0
        self._last = 0

    def gate(self, op: FileOp) -> int | Short | None:
        """The gate of file operations."""
        before, self._last = self._last, op.n
        if op.op != self.place.op or not self._is_here(before):
            return None
        self.met = self.met or op
        match self.place.fault:
            case "eio":
                return _EIO[op.op]
            case "full":
                return sqlite3.SQLITE_FULL
            case "busy":
                return sqlite3.SQLITE_BUSY
            case "short":
                return Short((op.size or 0) // 2, sqlite3.SQLITE_FULL)

    def lock_gate(self, slot: int) -> int | None:
        """The gate of exclusive locks: a lock fails by being busy."""
        if self.place.op != "lock" or not self._is_here(self._last):
            return None
        return sqlite3.SQLITE_BUSY if self.place.fault == "busy" else sqlite3.SQLITE_IOERR_SHMLOCK

    def _is_here(self, before: int) -> bool:
        self._seen += 1
        here = self._seen >= self.place.n if self._stays else self._seen == self.place.n
        if here and not self.happened:
            self.happened, self.after_op = True, before
        return here


def places(recording: Recording, faults: Sequence[Fault] = ("eio", "full")) -> Iterator[Place]:
    """Every operation of a recorded run with every fault that it can meet: each is a run.

    `full` and `short` are met by what needs space, `busy` by the exclusive locks of the log.
    """
    seen: dict[PlaceKind, int] = {}
    for op in recording.ops:
        seen[op.op] = seen.get(op.op, 0) + 1
        for fault in faults:
            fits = {"eio": True, "full": op.op in _NEEDS_SPACE, "short": _cuttable(op), "busy": False}
            if fits[fault]:
                yield Place(fault, op.op, seen[op.op])
    if "busy" in faults:
        for n in range(1, recording.locks + 1):
            yield Place("busy", "lock", n)


def _cuttable(op: FileOp) -> bool:
    return op.op == "write" and (op.size or 0) > 1


def expected_stored(place: Place, doing: str, *, log: bool) -> frozenset[Stored]:
    """What an error may say is stored (F4), by what is known of such faults; `log`: it happened on the log.

    A full disk on the log, and a lock that is busy, prove that nothing is stored; what the disk refuses otherwise
    proves nothing. An error that says less than it could is never wrong.
    """
    certain = place.fault == "busy" or (place.fault in ("full", "short") and log)
    if doing == "commit" and certain:
        return frozenset({"no"})
    if doing == "open" and place.fault != "eio":
        return frozenset({"no", "unknown"})  # an opening is no commit of anybody's
    return frozenset({"unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRun:
    """A run that met a fault, with what it left: `recording.failure` says which call failed, and how.

    The fault came behind operation `after_op`. `met` is the operation that failed, None where a lock was refused.
    """

    place: Place
    met: FileOp | None
    happened: bool
    after_op: int
    recording: Recording

    @property
    def point(self) -> Point | None:
        """The newest point before the fault; None before the first."""
        here = self.recording.here(self.after_op)
        return None if here is None else here.point

    def __str__(self) -> str:
        failure = self.recording.failure
        said = (
            "nobody was told"
            if failure is None
            else f"{failure.doing} raised {type(failure.error).__name__}: {failure.error}"
        )
        return f"{self.place} failed behind {self.point or 'no point at all'}, and {said}"


def run_fault(
    what: Scenario | Work,
    folder: Path,
    place: Place,
    *,
    durability: Durability = "barrier",
    seed: int | None = 1,
    wal_limit_pages: int = 1000,
    stays: bool = False,
) -> FaultRun:
    """Run it as `record` did, in an empty folder, and let this one fault happen. The store is closed afterwards."""
    gate = FaultGate(place, stays=stays)
    recording = record(
        what,
        folder,
        durability=durability,
        seed=seed,
        wal_limit_pages=wal_limit_pages,
        gate=gate.gate,
        lock_gate=gate.lock_gate,
    )
    return FaultRun(place=place, met=gate.met, happened=gate.happened, after_op=gate.after_op, recording=recording)


def wrong(run: FaultRun, whole: Recording) -> Iterator[Problem]:
    """Everything that is wrong after a fault: F1, F4, C1, C2. `whole` is the same run without one.

    Looks at what a kill would leave behind every operation from the fault to the end: what was acknowledged is there,
    nothing is that an error called not stored, and pages are sound.
    """
    failure = run.recording.failure
    if failure is None:
        if run.met is not None and run.met.op in ("write", "sync"):
            yield Problem("broken", f"the fault was swallowed: {run.met.op} {run.met.n}, on {run.met.file} (F1)")
    else:
        yield from _belied(run, failure)
        yield from _outlived(run.recording, failure)
    for finding in _behind(run, whole):
        if finding.outcome != "as_promised":
            text = f"after the fault, a kill ({finding.image}) leaves a store that is {finding.outcome}: {finding.text}"
            yield Problem(_KINDS[finding.outcome], text)


_KINDS: Final[dict[Outcome, Broken]] = {
    "corrupt": "corrupt", "lost_acknowledged": "lost_acknowledged", "lost_within_bound": "lost_acknowledged",
}  # fmt: skip
"""What is wrong with what a kill leaves. No loss by one is within bounds."""


def _belied(run: FaultRun, failure: Failure) -> Iterator[Problem]:
    """F4: the error says more than such an error can know."""
    log = run.met is None or run.met.file.endswith("-wal")
    if failure.stored is not None and failure.stored not in expected_stored(run.place, failure.doing, log=log):
        yield Problem(
            "broken", f"{failure.doing} says that its commit is stored: {failure.stored}, which is not so (F4)"
        )


def _outlived(recording: Recording, failure: Failure) -> Iterator[Problem]:
    """F1: the error ended the session, and everybody who waited for it."""
    later = [told.newest for told in recording.told if told.begun_after >= failure.after_op]
    if later:
        text = f"{failure.doing} failed, and the session went on: commit {later[0]} was acknowledged after it (F1)"
        yield Problem("broken", text)
    if isinstance(recording.raised, Deadlock | Runaway):
        yield Problem("stuck", f"{failure.doing} failed, and the life never ended: {recording.raised} (F1)")


def _behind(run: FaultRun, whole: Recording) -> Iterator[Finding]:
    if run.recording.failure is None and run.recording.ops == whole.ops:
        return  # a fault of no consequence: a kill leaves what it leaves where there is none
    behind = {op.n for op in run.recording.ops if op.n >= run.after_op} | {run.recording.last}
    with Checker(run.recording, fits=whole.contents().fits) as checker:
        for image in kill_images(run.recording, behind=behind):
            yield checker.check(image)


def left_by(run: FaultRun, folder: Path, *, seed: int | None = 1) -> Image:
    """The store that the fault left in `folder`, for the next life to begin with, on a disk that is well again."""
    passed = run.recording.passed
    plan = Plan(seed=seed, durability=run.recording.durability, same_bytes=True)
    return Image(folder=folder, plan=plan.then(passed[-1].at_ms if passed else plan.start_ms))
