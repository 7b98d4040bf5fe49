"""Owns the count of a sweep: what became of images, with a story for everything that is worth one.

Counts of pieces add up to the count of the whole, in whatever process each was counted. Never runs anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.judging.invariants import Broken, Problem
from pidurable_nb.lab.sweeping.points import SWEEP_KINDS, Crashes, SweepKind, where

__all__ = ["CLASSES", "WORST_FIRST", "Cell", "OutcomeClass", "Tally", "Timed", "Took", "Witness", "problem_of"]

OutcomeClass = Literal[
    "as_promised", "lost_within_bound", "effect_twice", "lost_acknowledged", "stuck", "corrupt", "broken"
]
CLASSES: Final[tuple[OutcomeClass, ...]] = (
    "as_promised", "lost_within_bound", "effect_twice", "lost_acknowledged", "stuck", "corrupt",
)  # fmt: skip
"""What can become of a crash, in the order of a table; behind them `broken`, a promise of the scenario's own."""
WORST_FIRST: Final[tuple[OutcomeClass, ...]] = (
    "corrupt", "lost_acknowledged", "stuck", "broken", "effect_twice", "lost_within_bound", "as_promised",
)  # fmt: skip

Timed = Literal["images", "freeze", "kill", "fault"]
"""What has a rate: images opened and checked, lives frozen, processes killed, runs with a fault."""

Cell: TypeAlias = tuple[str, SweepKind]
"""A place in the matrix of a sweep: a point, or the newest one before an image or a fault, and how it died there."""

_BROKEN: Final[dict[str, Broken]] = {kind: kind for kind in get_args(Broken)}
_CLASS: Final[dict[str, OutcomeClass]] = {kind: kind for kind in get_args(OutcomeClass)}
_TIMED: Final[dict[str, Timed]] = {kind: kind for kind in get_args(Timed)}


@dataclass(frozen=True, slots=True)
class Witness:
    """One story: where it crashed, once a life at most, and how. It replays from these and the seed."""

    crashes: Crashes
    how: SweepKind

    def to_json(self) -> Json:
        """What `of_json` makes a witness of."""
        return [self.how, *map(str, self.crashes)]

    @classmethod
    def of_json(cls, value: Json) -> Witness:
        """The witness that another process wrote. Raises: ValueError for anything else."""
        match value:
            case [str(how), *crashes] if how in SWEEP_KINDS:
                return cls(tuple(where(str(crash)) for crash in crashes), SWEEP_KINDS[how])
            case _:
                raise ValueError(f"{value!r} is no witness")


@dataclass(frozen=True, slots=True)
class Took:
    """So many things were done in so many seconds of one pair of hands."""

    count: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """How many a second; 0 where nothing was done."""
        return self.count / self.seconds if self.seconds else 0.0

    def __add__(self, other: Took) -> Took:
        return Took(self.count + other.count, self.seconds + other.seconds)


@dataclass(slots=True)
class Tally:
    """A count of what became of images.

    `images` were recovered from, or found out by looking; `runs` are the lives that were run for it. At `same` of
    `compared` places all ways to die left the same bytes, `different` are the others. `problems` are what no setting
    allows, each with its first story. `cells` says for each place of the matrix how often which class was met there.
    """

    images: int = 0
    runs: int = 0
    same: int = 0
    compared: int = 0
    classes: Counter[OutcomeClass] = field(default_factory=Counter)
    witnesses: dict[OutcomeClass, Witness] = field(default_factory=dict)
    problems: dict[Problem, Witness] = field(default_factory=dict)
    different: list[Witness] = field(default_factory=list)
    cells: dict[Cell, Counter[OutcomeClass]] = field(default_factory=dict)
    took: dict[Timed, Took] = field(default_factory=dict)

    def count(
        self,
        problems: Iterable[Problem],
        *,
        twice: bool,
        witness: Witness,
        point: Point | None,
        lost: bool = False,
        allowed: frozenset[Broken] = frozenset(),
    ) -> None:
        """One image: what was wrong with it, whether an effect happened twice, whether commits were lost within bounds.

        `point` is its row in the matrix; None for one before the first. `allowed` are problems that the durability
        does not rule out: they are counted and have a witness, and are no violation.
        """
        self.images += 1
        found: set[OutcomeClass] = {"as_promised"}
        if lost:
            found.add("lost_within_bound")
        if twice:
            found.add("effect_twice")
        for problem in problems:
            if problem.kind not in allowed:
                self.problems.setdefault(problem, witness)
            found.add("broken" if problem.kind == "mispredicted" else problem.kind)
        worst: OutcomeClass = next(each for each in WORST_FIRST if each in found)
        self.classes[worst] += 1
        if worst != "as_promised":
            self.witnesses.setdefault(worst, witness)
        cell = ("" if point is None else str(point), witness.how)
        self.cells.setdefault(cell, Counter())[worst] += 1

    def compare(self, same: bool, witness: Witness) -> None:
        """One place, and whether all ways to die there left the same database and log."""
        self.compared += 1
        self.same += same
        if not same:
            self.different.append(witness)
            self.problems.setdefault(Problem("corrupt", "a frozen and a killed life left different bytes"), witness)

    def timed(self, what: Timed, count: int, seconds: float) -> None:
        """So many things were done in so many seconds of one pair of hands."""
        self.took[what] = self.took.get(what, Took()) + Took(count, seconds)

    def add(self, other: Tally) -> None:
        """What somebody else has counted; of two stories for one thing the one that is here already is kept."""
        self.images, self.runs = self.images + other.images, self.runs + other.runs
        self.same, self.compared = self.same + other.same, self.compared + other.compared
        self.classes.update(other.classes)
        self.witnesses = other.witnesses | self.witnesses
        self.problems = other.problems | self.problems
        self.different += other.different
        for cell, counts in other.cells.items():
            self.cells.setdefault(cell, Counter()).update(counts)
        for what, took in other.took.items():
            self.took[what] = self.took.get(what, Took()) + took

    # As JSON, both ways.

    def to_json(self) -> JsonObject:
        """What `of_json` makes a tally of."""
        return {
            "images": self.images,
            "runs": self.runs,
            "same": self.same,
            "compared": self.compared,
            "classes": _counts(self.classes),
            "witnesses": {kind: witness.to_json() for kind, witness in self.witnesses.items()},
            "problems": [[each.kind, each.text, witness.to_json()] for each, witness in self.problems.items()],
            "different": [witness.to_json() for witness in self.different],
            "cells": [[point, kind, _counts(counts)] for (point, kind), counts in self.cells.items()],
            "took": {what: [took.count, took.seconds] for what, took in self.took.items()},
        }

    @classmethod
    def of_json(cls, value: Json) -> Tally:
        """The tally that another process wrote. Raises: ValueError for anything else."""
        match value:
            case {
                "images": int(images),
                "runs": int(runs),
                "same": int(same),
                "compared": int(compared),
                "classes": dict(classes),
                "witnesses": dict(witnesses),
                "problems": list(problems),
                "different": list(different),
                "cells": list(cells),
                "took": dict(took),
            }:
                return cls(
                    images=images,
                    runs=runs,
                    same=same,
                    compared=compared,
                    classes=_counter(classes),
                    witnesses={_class_of(kind): Witness.of_json(witness) for kind, witness in witnesses.items()},
                    problems=dict(map(_problem_and_witness, problems)),
                    different=[Witness.of_json(witness) for witness in different],
                    cells=dict(map(_cell_of, cells)),
                    took={_timed_of(what): _took_of(each) for what, each in took.items()},
                )
            case _:
                raise ValueError(f"{value!r} is no tally")


def problem_of(kind: str, text: str) -> Problem:
    """The problem of that kind. Raises: ValueError for a kind that there is not."""
    if kind not in _BROKEN:
        raise ValueError(f"{kind!r} is no kind of problem")
    return Problem(_BROKEN[kind], text)


def _problem_and_witness(value: Json) -> tuple[Problem, Witness]:
    match value:
        case [str(kind), str(text), witness]:
            return problem_of(kind, text), Witness.of_json(witness)
        case _:
            raise ValueError(f"{value!r} is no problem with its witness")


def _cell_of(value: Json) -> tuple[Cell, Counter[OutcomeClass]]:
    match value:
        case [str(point), str(kind), dict(counts)] if kind in SWEEP_KINDS:
            return (point, SWEEP_KINDS[kind]), _counter(counts)
        case _:
            raise ValueError(f"{value!r} is no cell")


def _counter(value: JsonObject) -> Counter[OutcomeClass]:
    found: Counter[OutcomeClass] = Counter()
    for kind, count in value.items():
        if not isinstance(count, int):
            raise ValueError(f"{count!r} is no count")
        found[_class_of(kind)] = count
    return found


def _counts(counter: Counter[OutcomeClass]) -> JsonObject:
    return {str(kind): count for kind, count in counter.items()}


def _took_of(value: Json) -> Took:
    match value:
        case [int(count), float() | int() as seconds]:
            return Took(count, float(seconds))
        case _:
            raise ValueError(f"{value!r} is no time")


def _class_of(kind: str) -> OutcomeClass:
    if kind not in _CLASS:
        raise ValueError(f"{kind!r} is no class")
    return _CLASS[kind]


def _timed_of(what: str) -> Timed:
    if what not in _TIMED:
        raise ValueError(f"{what!r} has no rate")
    return _TIMED[what]
