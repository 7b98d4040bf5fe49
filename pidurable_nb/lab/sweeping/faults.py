"""Owns what a sweep learns from faults: every operation of a first life failed once, and what became of the store.

What the storage said is judged by `faults`, what it left by a recovery like any other. Never fails two operations of
one life, and none of a recovery.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pidurable_nb.agent.opening import Durability
from pidurable_nb.lab.dying.identity import STORE, digest_of, files_in
from pidurable_nb.lab.dying.run import LEDGER
from pidurable_nb.lab.images.recording import Recording, record
from pidurable_nb.lab.judging.invariants import Expected, Problem
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.sweeping.failing import FAULTS, FaultRun, Place, left_by, places, run_fault, wrong
from pidurable_nb.lab.sweeping.lives import Image, Recovered, recover
from pidurable_nb.lab.sweeping.pieces import Faults, Sweeping
from pidurable_nb.lab.sweeping.tally import Tally, Witness
from pidurable_nb.store.ownership import lock_path

__all__ = ["CHUNK", "Faulted", "Faulty", "count_faults", "fault_pieces", "fault_story"]

CHUNK: Final = 16
"""Faults of a piece, about: each is a life, a look at every kill behind it, and a recovery."""

WAL_LIMIT_PAGES: Final = 40
"""How long the log of such a life may grow: it is folded some times on the way, for faults to meet that too."""


def fault_pieces(scenario: Scenario, sweeping: Sweeping, folder: Path) -> tuple[Faults, ...]:
    """Every operation of a first life with every fault that it can meet, in pieces. `folder` is made, and removed."""
    faults = _faulty(scenario, sweeping, folder).places()
    shutil.rmtree(folder)
    return tuple(Faults(faults[at : at + CHUNK]) for at in range(0, len(faults), CHUNK))


def count_faults(scenario: Scenario, sweeping: Sweeping, piece: Faults, folder: Path) -> Tally:
    """What became of the lives that met these faults, and of the stores that they left. `folder` is made, and removed.

    Each fault counts as one image. Laws: F1, F4, C1, C2, and those of `lives.recover`.
    """
    tally, faulty = Tally(), _faulty(scenario, sweeping, folder)
    begun = time.monotonic()
    for place in piece.places:
        met = faulty.meet(place)
        tally.count(met.problems, twice=met.recovered.twice, witness=Witness((place,), "fault"), point=met.run.point)
        tally.runs += 1
    tally.runs += faulty.lives
    tally.timed("fault", len(piece.places), time.monotonic() - begun)
    shutil.rmtree(folder)
    return tally


def fault_story(
    scenario: Scenario, place: Place, *, durability: Durability, seed: int | None, folder: Path
) -> tuple[FaultRun, Image, tuple[Problem, ...]]:
    """One life with its fault again, the store that it left in `folder`, which is made, and what was wrong by then.

    A run in which the fault never happened has nothing wrong.
    """
    faulty = Faulty(scenario, folder, durability=durability, seed=seed)
    run, left = faulty.live(place)
    return run, left, tuple(wrong(run, faulty.whole)) if run.happened else ()


def _faulty(scenario: Scenario, sweeping: Sweeping, folder: Path) -> Faulty:
    return Faulty(scenario, folder, durability=sweeping.durability, seed=sweeping.seed, awaited=sweeping.awaited)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulted:
    """A life that met a fault, what was wrong then or afterwards, and the store that it left.

    `recovered` is what came of that; the same object for faults that left the same bytes.
    """

    run: FaultRun
    left: Image
    problems: tuple[Problem, ...]
    recovered: Recovered


class Faulty:
    """First lives of one scenario on a disk that fails once each, in folders below `folder`, which is made.

    `awaited` are the effects of the life in which nothing fails. Laws: F1, F4, C1, C2, and those of any recovery.
    """

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        *,
        durability: Durability = "barrier",
        seed: int | None = 1,
        wal_limit_pages: int = WAL_LIMIT_PAGES,
        awaited: Sequence[Expected] = (),
    ) -> None:
        self._scenario = scenario
        self._folder = folder
        self._durability: Durability = durability
        self._seed = seed
        self._wal_limit_pages = wal_limit_pages
        self._awaited = awaited
        self._known: dict[str, Recovered] = {}
        self._folders = 0
        self.lives = 0
        """How many lives were lived to recover."""
        self.whole = self._record()
        """The life in which nothing fails."""

    def places(self) -> tuple[Place, ...]:
        """Every operation with every fault that it can meet."""
        return tuple(places(self.whole, FAULTS))

    def meet(self, place: Place, *, stays: bool = False) -> Faulted:
        """Live with this fault, look at what a kill would leave behind it, and recover from what is left."""
        run, left = self.live(place, stays=stays)
        if not run.happened:
            never = Problem("broken", f"{place} was not come by again: the scenario does not repeat itself")
            return Faulted(run=run, left=left, problems=(never,), recovered=self._recovered(left))
        found = tuple(wrong(run, self.whole))
        recovered = self._recovered(left)
        return Faulted(run=run, left=left, problems=(*found, *recovered.problems), recovered=recovered)

    def live(self, place: Place, *, stays: bool = False) -> tuple[FaultRun, Image]:
        """Live with this fault, and no further."""
        here = self._new()
        run = run_fault(
            self._scenario,
            here,
            place,
            durability=self._durability,
            seed=self._seed,
            wal_limit_pages=self._wal_limit_pages,
            stays=stays,
        )
        return run, left_by(run, here, seed=self._seed)

    def _recovered(self, left: Image) -> Recovered:
        """What comes of a store, once for the same bytes, ledger and time."""
        key = _key(left)
        if key not in self._known:
            here = self._new()
            self._known[key] = recover(self._scenario, left, here, awaited=self._awaited)
            self.lives += len(self._known[key].lives)
            shutil.rmtree(here)
        return self._known[key]

    def _record(self) -> Recording:
        return record(
            self._scenario,
            self._new(),
            durability=self._durability,
            seed=self._seed,
            wal_limit_pages=self._wal_limit_pages,
        )

    def _new(self) -> Path:
        self._folders += 1
        here = self._folder / str(self._folders)
        here.mkdir(parents=True)
        return here


def _key(left: Image) -> str:
    """What decides everything that follows. Whether a store was being made is in its lock file."""
    assert left.folder is not None
    ledger, lock = left.folder / LEDGER, lock_path(left.folder / STORE)
    asked = ledger.read_bytes() if ledger.exists() else b""
    said = f"{digest_of(files_in(left.folder))} {lock.exists()} {left.plan.start_ms} "
    return hashlib.sha256(said.encode() + asked).hexdigest()
