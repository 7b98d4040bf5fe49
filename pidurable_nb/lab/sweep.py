"""Owns the sweep: a crash at every point of a scenario, a second one at every point of each recovery, and the count.

Images that are the same to the byte are recovered from once: store, ledger and time decide everything that follows.
Never runs a life itself (`sweep_lives` does) and never changes the scenario.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pidurable_nb.agent.opening import Durability
from pidurable_nb.lab.crash import CrashKind
from pidurable_nb.lab.identity import file_points
from pidurable_nb.lab.invariants import Expected, Problem
from pidurable_nb.lab.points import Point
from pidurable_nb.lab.run import Plan
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.sweep_hands import Crew, Hands, crew
from pidurable_nb.lab.sweep_lives import Death, Image
from pidurable_nb.lab.sweep_points import Crashes, Which
from pidurable_nb.lab.sweep_result import (
    WORST_FIRST,
    OutcomeClass,
    SweepResult,
    Violation,
    Witness,
    name_of,
    replay_command,
)

__all__ = ["Identity", "freeze_equals_kill", "sweep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """At how many places all ways to die left the same bytes, and the places where they did not."""

    same: int
    of: int
    different: tuple[Point, ...]

    def __str__(self) -> str:
        return f"{self.same} of {self.of}"


_CHUNK: Final = 24
"""Deaths of a batch, about: enough to pay for a process, few enough to share them out."""


# Sweeping.


def sweep(
    scenario: Scenario,
    *,
    kinds: Sequence[CrashKind] = ("freeze",),
    durability: Durability = "barrier",
    second: bool = False,
    points: Which = "commits",
    seed: int = 1,
    processes: int = 1,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> SweepResult:
    """Crash the scenario at every point of its first life, recover, and count what became of it.

    `freeze` stops a life without ending its process, `kill` is SIGKILL in children of a fork server. With `second` each
    recovery, all lives of it where they kill themselves, is crashed again at every point, and recovered from. With more
    than one process everything is done in children, and the scenario must be one that they can import.

    Laws: C1, C2, C6, T6, T7, T9, M1, M3, E6, S1, S5, O5, O6, and whatever the scenario promises itself.
    Raises: NotKilled, ForkServerError.
    """
    begun = time.monotonic()
    chosen = tuple(dict.fromkeys(kinds))
    with crew(scenario, processes=processes, kill="kill" in chosen) as workers:
        plan = Plan(seed=seed, durability=durability, same_bytes=True, record_files=points == "files")
        tally = _Sweep(workers, chosen, second, points, on_progress).run(Image(folder=None, plan=plan))
    name = name_of(scenario)
    violations = tuple(
        Violation(
            kind=problem.kind,
            text=problem.text,
            witness=witness,
            replay=replay_command(name, witness, seed=seed, durability=durability),
        )
        for problem, witness in tally.problems.items()
    )
    return SweepResult(
        scenario=name,
        kinds=chosen,
        durability=durability,
        seed=seed,
        points=tally.points,
        images=tally.images,
        runs=tally.runs,
        classes=dict(tally.classes),
        witnesses=tally.witnesses,
        violations=violations,
        same_bytes=tally.same if len(chosen) == len(_BOTH) else None,
        compared=tally.compared,
        seconds=time.monotonic() - begun,
    )


_BOTH: Final[tuple[CrashKind, ...]] = ("freeze", "kill")


@dataclass(slots=True)
class _Tally:
    """A count of what became of images."""

    points: int = 0
    images: int = 0
    runs: int = 0
    same: int = 0
    compared: int = 0
    classes: Counter[OutcomeClass] = field(default_factory=Counter)
    witnesses: dict[OutcomeClass, Witness] = field(default_factory=dict)
    problems: dict[Problem, Witness] = field(default_factory=dict)
    different: list[Witness] = field(default_factory=list)

    def count(self, problems: Iterable[Problem], twice: bool, witness: Witness) -> None:
        """One image: what was wrong with it, and whether an effect happened twice."""
        self.images += 1
        found: set[OutcomeClass] = {"effect_twice"} if twice else set()
        for problem in problems:
            self.problems.setdefault(problem, witness)
            found.add("broken" if problem.kind == "mispredicted" else problem.kind)
        for worst in WORST_FIRST:
            if worst in found:
                self.classes[worst] += 1
                self.witnesses.setdefault(worst, witness)
                return
        self.classes["as_promised"] += 1

    def compare(self, same: bool, witness: Witness) -> None:
        """One place, and whether all ways to die there left the same database and log."""
        self.compared += 1
        self.same += same
        if not same:
            self.different.append(witness)
            self.problems.setdefault(Problem("corrupt", "a frozen and a killed life left different bytes"), witness)

    def add(self, other: _Tally) -> None:
        """What somebody else has counted."""
        self.images, self.runs = self.images + other.images, self.runs + other.runs
        self.same, self.compared = self.same + other.same, self.compared + other.compared
        self.classes.update(other.classes)
        self.witnesses = other.witnesses | self.witnesses
        self.problems = other.problems | self.problems
        self.different += other.different


@dataclass(frozen=True, slots=True)
class _Died:
    """A death, and how it was died."""

    death: Death
    how: CrashKind


@dataclass(frozen=True, slots=True)
class _Node:
    """Deaths that left the same image."""

    deaths: tuple[_Died, ...]

    @property
    def image(self) -> Image:
        return self.deaths[0].death.image


class _Sweep:
    """One sweep under way, shared out among hands."""

    def __init__(
        self,
        crew: Crew,
        kinds: Sequence[CrashKind],
        second: bool,
        which: Which,
        on_progress: Callable[[str], None],
    ) -> None:
        self._crew = crew
        self._kinds = kinds
        self._second = second
        self._which: Which = which
        self._tell = on_progress
        self._awaited: tuple[Expected, ...] = ()

    def run(self, nothing: Image) -> _Tally:
        """The whole of it, from no store at all."""
        tally = _Tally()
        name = self._crew.first.scenario.name
        [first] = self._crew.first.recover([nothing], self._which, ())
        tally.runs += len(first.lives)
        for problem in first.problems:
            tally.problems.setdefault(problem, Witness((), self._kinds[0]))
        self._awaited = first.effects
        points = first.lives[0].points
        tally.points = len(points)
        deaths: list[_Died] = []
        pieces = _pieces(points, len(self._crew))
        for kind in self._kinds:
            for died in self._crew.share(pieces, partial(_died, kind=kind, image=nothing)):
                deaths += died
                self._tell(f"{name}: {kind}, {len(deaths)} deaths of a first life")
        tally.runs += len(deaths)
        _compare(tally, deaths, ())
        if len(self._kinds) == len(_BOTH):
            _identity(self._crew, nothing, tally, self._tell)
        nodes = _nodes(deaths)
        for done, explored in enumerate(self._crew.share(nodes, self._explore), start=1):
            tally.add(explored)
            self._tell(f"{name}: {done} of {len(nodes)} different images, {tally.images} recovered from")
        return tally

    def _explore(self, hands: Hands, node: _Node) -> _Tally:
        """Recover from an image, and crash that recovery everywhere."""
        tally = _Tally()
        [found] = hands.recover([node.image], self._which, self._awaited)
        tally.runs += len(found.lives)
        for died in node.deaths:
            witness = Witness((died.death.point,), died.how)
            tally.count([*died.death.problems, *found.problems], found.twice, witness)
        if self._second:
            before = (node.deaths[0].death.point,)
            again: list[_Died] = []
            for life in found.lives:
                for kind in self._kinds:
                    again += _died(hands, life.points, kind=kind, image=life.image)
            tally.runs += len(again)
            _compare(tally, again, before)
            nodes = _nodes(again)
            founds = hands.recover([each.image for each in nodes], self._which, self._awaited)
            for each, came in zip(nodes, founds, strict=True):
                tally.runs += len(came.lives)
                for died in each.deaths:
                    witness = Witness((*before, died.death.point), died.how)
                    tally.count([*died.death.problems, *came.problems], came.twice, witness)
            _forget(each.image for each in nodes)
        _forget(life.image for life in found.lives)
        return tally


def _identity(crew: Crew, nothing: Image, tally: _Tally, tell: Callable[[str], None]) -> None:
    """Freeze equals kill, before every file operation of a first life."""
    scenario = crew.first.scenario
    points = file_points(scenario, nothing.plan, crew.first.folder / "operations")

    def work(hands: Hands, piece: Sequence[Point]) -> list[tuple[Point, bool]]:
        frozen = hands.compare(nothing, piece)
        return [(each.point, each.frozen == each.prefix == hands.killed_files(nothing, each.point)) for each in frozen]

    for compared in crew.share(_pieces(points, len(crew)), work):
        for point, same in compared:
            tally.runs += 2
            tally.compare(same, Witness((point,), "kill"))
        tell(f"{scenario.name}: {tally.same} of {tally.compared} places left the same bytes")


def freeze_equals_kill(
    scenario: Scenario,
    *,
    durability: Durability = "barrier",
    seed: int = 1,
    processes: int = 1,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> Identity:
    """Freeze, kill, and cut the log of operations, before every file operation of the scenario, and compare the bytes.

    What is compared are database and `-wal`: of a life that was frozen, after all its abandoned code has run; of one
    that died by SIGKILL; and of the recorded operations up to there, replayed. Raises: NotKilled, ForkServerError.
    """
    tally = _Tally()
    plan = Plan(seed=seed, durability=durability, same_bytes=True)
    with crew(scenario, processes=processes, kill=True) as workers:
        _identity(workers, Image(folder=None, plan=plan), tally, on_progress)
    return Identity(
        same=tally.same,
        of=tally.compared,
        different=tuple(witness.crashes[0] for witness in tally.different),
    )


def _died(hands: Hands, points: Sequence[Point], *, kind: CrashKind, image: Image) -> list[_Died]:
    found = hands.kill(image, points) if kind == "kill" else hands.freeze(image, points)
    return [_Died(death, kind) for death in found]


def _pieces(points: Sequence[Point], crew: int) -> list[Sequence[Point]]:
    """Points shared out, late ones, which take longer to reach, among all."""
    count = max(crew, -(-len(points) // _CHUNK)) if crew > 1 else 1
    return [points[at::count] for at in range(count) if points[at::count]]


def _nodes(deaths: Iterable[_Died]) -> list[_Node]:
    """Deaths by the image that they left."""
    same: dict[str, list[_Died]] = {}
    for died in deaths:
        same.setdefault(died.death.key, []).append(died)
    return [_Node(tuple(found)) for found in same.values()]


def _compare(tally: _Tally, deaths: Iterable[_Died], before: Crashes) -> None:
    """Hold lives that were killed against lives that were frozen at the same points."""
    files: dict[CrashKind, dict[Point, str]] = {kind: {} for kind in _BOTH}
    for died in deaths:
        files[died.how][died.death.point] = died.death.files
    for point, killed in files["kill"].items():
        if point in files["freeze"]:
            tally.compare(files["freeze"][point] == killed, Witness((*before, point), "kill"))


def _forget(images: Iterable[Image]) -> None:
    for image in images:
        if image.folder is not None:
            shutil.rmtree(image.folder, ignore_errors=True)
