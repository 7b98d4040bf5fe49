"""Owns one crash of a parametrised test: what the marker asks for, the places of a first life, and checking at one.

Never knows pytest: the plugin asks here, and turns refusals into what pytest shows.
"""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pidurable_nb.agent.opening import DURABILITIES, Durability
from pidurable_nb.errors import PidurableError
from pidurable_nb.lab.dying.crash import CRASH_KINDS, CrashKind
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.sweeping.hands import Hands, crew
from pidurable_nb.lab.sweeping.pieces import Deaths, Sweeping
from pidurable_nb.lab.sweeping.points import WHICH, Which
from pidurable_nb.lab.sweeping.result import SweepResult, name_of
from pidurable_nb.lab.sweeping.tally import Tally
from pidurable_nb.lab.sweeping.work import work
from pidurable_nb.testing.swept import (
    Plainly,
    WrongSetting,
    assert_sweep,
    importable,
    one_of,
    some_of,
    the_scenario,
)

__all__ = ["Asked", "Bench", "Course", "Courses", "CrashPoint", "NoCourse", "Place", "course_of", "crash_points"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a marker asks for: one test for each point of the first life, in each of these ways to die."""

    scenario: Scenario
    kinds: tuple[CrashKind, ...]
    durability: Durability
    second: bool
    points: Which
    seed: int

    def same_life(self, other: Asked) -> bool:
        """Whether the first life of both is the same."""
        same = (self.durability, self.points, self.seed) == (other.durability, other.points, other.seed)
        return same and self.scenario is other.scenario


def crash_points(
    scenario: object,
    *,
    kinds: object = ("freeze",),
    durability: object = "barrier",
    second: object = False,
    points: object = "commits",
    seed: object = 1,
) -> Asked:
    """What the marker's arguments say. Raises: WrongSetting, UnknownScenario, a sentence each."""
    if not isinstance(second, bool):
        raise WrongSetting(f"second cannot be {second!r}; write True or False")
    if not isinstance(seed, int) or seed < 1:
        raise WrongSetting(f"seed cannot be {seed!r}; write 1, 2, …")
    wanted = kinds if isinstance(kinds, list | tuple) else [kinds]
    if "power" in wanted or "fault" in wanted:
        raise WrongSetting("power and fault have images and no points; sweep them with the fixture crash_sweep")
    return Asked(
        scenario=the_scenario(scenario),
        kinds=some_of("kinds", kinds, CRASH_KINDS),
        durability=one_of("durability", durability, DURABILITIES),
        second=second,
        points=one_of("points", points, WHICH),
        seed=seed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One place of a course to crash at, and how."""

    course: Course
    point: Point
    kind: CrashKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A first life that nothing cut off: its points, in order, and what a crash at any of them is held against."""

    asked: Asked
    sweeping: Sweeping
    points: tuple[Point, ...]

    def places(self) -> list[tuple[str, Place]]:
        """Each place with a name of its own: the point's, and the kind where there are several."""
        several = len(self.asked.kinds) > 1
        return [
            (f"{point}-{kind}" if several else str(point), Place(course=self, point=point, kind=kind))
            for point in self.points
            for kind in self.asked.kinds
        ]


class Courses:
    """Keeps each course for whoever asks for the same first life again."""

    def __init__(self) -> None:
        self._lived: list[Course] = []

    def of(self, asked: Asked) -> Course:
        """The course that was asked for. Raises: NoCourse."""
        for course in self._lived:
            if course.asked.same_life(asked):
                return replace(course, asked=asked, sweeping=replace(course.sweeping, second=asked.second))
        self._lived.append(course_of(asked))
        return self._lived[-1]


class NoCourse(PidurableError):
    """The scenario breaks a promise, or cannot be run, where nothing crashes at all."""


def course_of(asked: Asked) -> Course:
    """Live the scenario once, here, on the deterministic loop. Raises: NoCourse."""
    sweeping = Sweeping(seed=asked.seed, durability=asked.durability, second=asked.second, which=asked.points)
    name = name_of(asked.scenario)
    with crew(asked.scenario, processes=1, kill=False) as workers:
        [whole] = workers.first.recover([sweeping.nothing], sweeping.which, ())
    if whole.problems:
        raise NoCourse(f"scenario {name} does not come out right where nothing crashes: {whole.problems[0].text}")
    points = whole.lives[0].points
    if not points:
        raise NoCourse(f"scenario {name} comes by no point to crash at; does its begin start anything?")
    return Course(asked=asked, sweeping=replace(sweeping, awaited=whole.effects), points=points)


class Bench:
    """Keeps what crashes of the same scenario share, until it is closed: folder, bank, fork server for kills."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._stack = ExitStack()
        self._hands: list[tuple[Scenario, bool, Hands]] = []

    def hands(self, scenario: Scenario, *, kill: bool) -> Hands:
        """Hands for the scenario, which can kill if asked. Raises: ForkServerError."""
        for known, kills, hands in self._hands:
            if known is scenario and kills == kill:
                return hands
        made = self._stack.enter_context(crew(scenario, processes=1, kill=kill)).first
        self._hands.append((scenario, kill, made))
        return made

    def close(self) -> None:
        """End what was begun, the last first."""
        self._hands.clear()
        self._stack.close()


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """One crash, as a test that is marked `crash_points` gets it. Its `str` is the point's name."""

    place: Place
    bench: Bench

    @property
    def scenario(self) -> Scenario:
        """What is crashed."""
        return self.place.course.asked.scenario

    @property
    def point(self) -> Point:
        """Where it is crashed, in its first life."""
        return self.place.point

    @property
    def kind(self) -> CrashKind:
        """How it dies there: `freeze` or `kill`."""
        return self.place.kind

    def __str__(self) -> str:
        return str(self.point)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.scenario.name} at {self.point}>"

    def check(self) -> SweepResult:
        """Crash there, recover, and return what was found when every promise held.

        A kill here is a real SIGKILL at the point; what one may leave in the midst of a write is the business of
        `crash_sweep`. Where the marker says `second`, the recovery is crashed again at each of its points.

        Raises: AssertionError, which tells the story; NotKilled; ForkServerError.
        """
        __tracebackhide__ = True
        with importable(self.bench.root):
            with Plainly():
                found = self._found()
            assert_sweep(found, self.scenario)
        return found

    def _found(self) -> SweepResult:
        begun = time.monotonic()
        course = self.place.course
        shared = self.bench.hands(self.scenario, kill=self.kind == "kill")
        hands = replace(shared, folder=shared.new())
        try:
            tally = work(hands, course.sweeping, Deaths((self.kind,), (self.point,)))
        finally:
            shutil.rmtree(hands.folder, ignore_errors=True)
        return _result(course.asked, self.kind, tally, time.monotonic() - begun)


def _result(asked: Asked, kind: CrashKind, tally: Tally, seconds: float) -> SweepResult:
    return SweepResult(
        scenario=name_of(asked.scenario),
        kinds=(kind,),
        durability=asked.durability,
        seed=asked.seed,
        second=asked.second,
        points=1,
        tally=tally,
        done=1,
        pieces=1,
        seconds=seconds,
    )
