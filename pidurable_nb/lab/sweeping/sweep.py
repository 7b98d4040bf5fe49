"""Owns the sweep: a crash at every point of a scenario, of every kind that was asked for, and the count.

Cuts the work into pieces, has them done by whoever is free, and adds up. Never runs a life itself (`work` does)
and never changes the scenario.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from pidurable_nb.agent.opening import Durability
from pidurable_nb.lab.dying.crash import CrashKind
from pidurable_nb.lab.dying.identity import file_points
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.sweeping.dask import Client, done_far
from pidurable_nb.lab.sweeping.faults import fault_pieces
from pidurable_nb.lab.sweeping.file import source_of
from pidurable_nb.lab.sweeping.hands import Crew, Hands, crew
from pidurable_nb.lab.sweeping.images import image_pieces
from pidurable_nb.lab.sweeping.pieces import Deaths, Identities, Piece, Sweeping, chunks
from pidurable_nb.lab.sweeping.points import SweepKind, Which
from pidurable_nb.lab.sweeping.result import SweepResult, name_of
from pidurable_nb.lab.sweeping.tally import Tally, Witness
from pidurable_nb.lab.sweeping.work import work

__all__ = ["Identity", "Progress", "freeze_equals_kill", "sweep"]

_BOTH: Final[tuple[CrashKind, ...]] = ("freeze", "kill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a sweep has come. `str` of it is a line for people."""

    scenario: str
    kinds: tuple[SweepKind, ...]
    done: int
    of: int
    images: int
    problems: int

    def __str__(self) -> str:
        found = f", {self.problems} violations" if self.problems else ""
        kinds = " and ".join(self.kinds)
        return f"{self.scenario}: {kinds}, {self.done} of {self.of} pieces, {self.images} images{found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """At how many places all ways to die left the same bytes, and the places where they did not."""

    same: int
    of: int
    different: tuple[Point, ...]

    def __str__(self) -> str:
        return f"{self.same} of {self.of}"


def sweep(
    scenario: Scenario,
    *,
    kinds: Sequence[SweepKind] = ("freeze",),
    durability: Durability = "barrier",
    second: bool = False,
    points: Which = "commits",
    seed: int = 1,
    processes: int = 1,
    client: Client | None = None,
    stop: threading.Event | None = None,
    on_progress: Callable[[Progress], None] = lambda _progress: None,
) -> SweepResult:
    """Crash the scenario at every point of its first life, recover, and count what became of it.

    `freeze` stops a life without ending its process. `kill` is SIGKILL in children of a fork server at every point, and
    what a kill may leave behind every operation on the files, in the midst of a write too. Both: the bytes they leave
    are compared. `power` is what a power cut may leave behind every operation, `fault` fails every operation once. With
    `second` each recovery, all lives of it where they kill themselves, is crashed again everywhere, and recovered from.

    With more than one process everything is done in children, and the scenario must be one that they can import. With a
    `client` of Dask it is done wherever that has workers, which must be able to import it too. The result is the same.
    When `stop` is set, or at KeyboardInterrupt, what was found so far is returned.

    Laws: C1, C2, C6, T6, T7, T9, M1, M3, E5, E6, F1, F4, S1, S5, O5, O6, and whatever the scenario promises itself.
    Raises: NotKilled, ForkServerError.
    """
    begun = time.monotonic()
    chosen: tuple[SweepKind, ...] = tuple(dict.fromkeys(kinds))
    sweeping = Sweeping(seed=seed, durability=durability, second=second, which=points)
    halt = stop if stop is not None else threading.Event()
    tally, passed, done, of = Tally(), 0, 0, 0
    here = client is None  # a client's workers have fork servers of their own
    hands = crew(scenario, processes=processes if here else 1, kill=here and "kill" in chosen)
    with suppress(KeyboardInterrupt), hands as workers:
        sweeping, crashed_at = _whole(workers, sweeping, tally, chosen[0])
        passed = len(crashed_at)
        pieces = _cut(workers, sweeping, chosen, crashed_at)
        of = len(pieces)
        for counted in _done(workers, client, sweeping, pieces, halt):
            tally.add(counted)
            done += 1
            on_progress(_progress(scenario, chosen, tally, done, of))
    return SweepResult(
        scenario=name_of(scenario),
        kinds=chosen,
        durability=durability,
        seed=seed,
        second=second,
        points=passed,
        tally=tally,
        done=done,
        pieces=of,
        seconds=time.monotonic() - begun,
        source=source_of(name_of(scenario)),
    )


def _progress(scenario: Scenario, kinds: tuple[SweepKind, ...], tally: Tally, done: int, of: int) -> Progress:
    return Progress(
        scenario=scenario.name, kinds=kinds, done=done, of=of, images=tally.images, problems=len(tally.problems)
    )


def _whole(crew: Crew, sweeping: Sweeping, tally: Tally, how: SweepKind) -> tuple[Sweeping, tuple[Point, ...]]:
    """The story in which nothing crashes: what it does outside, and the points of its first life."""
    [first] = crew.first.recover([sweeping.nothing], sweeping.which, ())
    tally.runs += len(first.lives)
    for problem in first.problems:
        tally.problems.setdefault(problem, Witness((), how))
    return replace(sweeping, awaited=first.effects), first.lives[0].points


def _cut(crew: Crew, sweeping: Sweeping, kinds: Sequence[SweepKind], points: Sequence[Point]) -> list[Piece]:
    """All there is to do, in pieces."""
    scenario, hands = crew.first.scenario, crew.first
    dying: tuple[CrashKind, ...] = tuple(kind for kind in _BOTH if kind in kinds)
    pieces: list[Piece] = []
    if dying:
        pieces += [Deaths(dying, chunk) for chunk in chunks(points)]
    if dying == _BOTH:
        pieces += map(Identities, chunks(file_points(scenario, sweeping.nothing.plan, hands.new())))
    if "kill" in kinds:
        pieces += image_pieces(scenario, sweeping, "kill", hands.new())
    if "power" in kinds:
        pieces += image_pieces(scenario, sweeping, "power", hands.new())
    if "fault" in kinds:
        pieces += fault_pieces(scenario, sweeping, hands.new())
    return pieces


def _done(
    crew: Crew, client: Client | None, sweeping: Sweeping, pieces: Sequence[Piece], stop: threading.Event
) -> Iterator[Tally]:
    """The tallies of the pieces, in their order, until `stop` is set."""
    if client is not None:
        yield from done_far(client, crew.first.scenario, sweeping, pieces, stop)
        return

    def do(hands: Hands, piece: Piece) -> Tally | None:
        return None if stop.is_set() else work(hands, sweeping, piece)

    for tally in crew.share(pieces, do):
        if tally is None:
            return
        yield tally


def freeze_equals_kill(
    scenario: Scenario,
    *,
    durability: Durability = "barrier",
    seed: int = 1,
    processes: int = 1,
    on_progress: Callable[[Progress], None] = lambda _progress: None,
) -> Identity:
    """Freeze, kill, and cut the log of operations, before every file operation of the scenario, and compare the bytes.

    What is compared are database and `-wal`: of a life that was frozen, after all its abandoned code has run; of one
    that died by SIGKILL; and of the recorded operations up to there, replayed. Raises: NotKilled, ForkServerError.
    """
    tally, sweeping = Tally(), Sweeping(seed=seed, durability=durability)
    with crew(scenario, processes=processes, kill=True) as workers:
        points = file_points(scenario, sweeping.nothing.plan, workers.first.new())
        pieces = list(map(Identities, chunks(points)))
        for done, counted in enumerate(_done(workers, None, sweeping, pieces, threading.Event()), start=1):
            tally.add(counted)
            on_progress(_progress(scenario, _BOTH, tally, done, len(pieces)))
    different = tuple(crash for each in tally.different for crash in each.crashes if isinstance(crash, Point))
    return Identity(same=tally.same, of=tally.compared, different=different)
