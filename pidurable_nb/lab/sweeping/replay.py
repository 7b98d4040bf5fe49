"""Owns telling one story of a sweep again: its crashes, and step by step what each life did. Never looks for one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pidurable_nb.agent.opening import Durability
from pidurable_nb.errors import PidurableError, StoreRefused
from pidurable_nb.ids import Json, JsonObject, TaskId
from pidurable_nb.lab.dying.crash import CrashKind, Passed
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import LEDGER, Lived, Plan
from pidurable_nb.lab.images.images import Image as Made
from pidurable_nb.lab.images.images import image as image_of
from pidurable_nb.lab.judging.invariants import Problem, expected
from pidurable_nb.lab.outside.world import applied, asked
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.sweeping.failing import Place
from pidurable_nb.lab.sweeping.faults import fault_story
from pidurable_nb.lab.sweeping.hands import Hands, crew
from pidurable_nb.lab.sweeping.lives import MOST_LIVES, Image, live, look, place
from pidurable_nb.lab.sweeping.points import ImageName, SweepKind, Where, life_of
from pidurable_nb.lab.sweeping.result import name_of
from pidurable_nb.lab.sweeping.states import laid_out, recorded, sorted_out
from pidurable_nb.probe import TaskSubject

__all__ = ["LifeTold", "NeverPassed", "Replayed", "StepTold", "replay"]


class NeverPassed(PidurableError):
    """The scenario does not come by that point with this seed; the message names a point that it does come by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTold:
    """One thing that a life did: the point before it, and the verdict, laws and sentence where it acted on one."""

    n: int
    point: Point
    task: TaskId | None
    verdict: str | None
    laws: tuple[str, ...]
    text: str

    def to_json(self) -> JsonObject:
        """A step as it is printed."""
        return {
            "n": self.n,
            "point": str(self.point),
            "task": self.task,
            "verdict": self.verdict,
            "laws": list(self.laws),
            "text": self.text,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeTold:
    """One life: what was predicted for it, by task, what it did, and where it died; None where it ended by itself.

    `said` is what the storage said of a fault, where there was one.
    """

    number: int
    foretold: Mapping[TaskId, str]
    steps: tuple[StepTold, ...]
    died: Where | None
    said: str | None = None

    def to_json(self) -> JsonObject:
        """A life as it is printed."""
        told: dict[str, Json] = {
            "life": self.number,
            "foretold": {str(id): verdict for id, verdict in self.foretold.items()},
            "steps": [step.to_json() for step in self.steps],
            "died": None if self.died is None else str(self.died),
        }
        if self.said is not None:
            told["said"] = self.said
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One story, told from its beginning, with what the world was asked and everything that was wrong."""

    scenario: str
    how: SweepKind
    durability: Durability
    seed: int
    lives: tuple[LifeTold, ...]
    asked: Mapping[str, int]
    applied: Mapping[str, int]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing happened that is not allowed."""
        return not self.problems

    def to_json(self) -> JsonObject:
        """The object that `pidurable-nb sweep --point … --json` prints."""
        found: dict[str, Json] = {
            "scenario": self.scenario,
            "kinds": [self.how],
            "durability": self.durability,
            "seed": self.seed,
            "lives": [life.to_json() for life in self.lives],
            "effects": dict(self.asked),
        }
        if self.applied:
            found["applied"] = dict(self.applied)
        found["violations"] = [{"class": problem.kind, "because": problem.text} for problem in self.problems]
        found["ok"] = self.ok
        return found


def replay(
    scenario: Scenario,
    crashes: Sequence[Where],
    *,
    how: SweepKind = "freeze",
    durability: Durability = "barrier",
    seed: int = 1,
) -> Replayed:
    """Tell one story of a sweep: crash at these points, each in its own life, and recover to the end.

    Raises: NeverPassed when a life does not come by its point; NotKilled, ForkServerError.
    """
    with crew(scenario, processes=1, kill=how == "kill") as workers:
        teller = _Teller(workers.first, "kill" if how == "kill" else "freeze")
        image = Image(folder=None, plan=Plan(seed=seed, durability=durability, same_bytes=True))
        awaited = expected(teller.whole(image)[0].passed)
        for crash in sorted(crashes, key=life_of):
            match crash:
                case Point():
                    image = teller.crash(image, crash)
                case ImageName():
                    image = teller.cut(image, crash)
                case Place():
                    image = teller.fail(image, crash)
        [found] = teller.hands.recover([image], "commits", awaited)
        ledger = teller.end(image)
        return Replayed(
            scenario=name_of(scenario),
            how=how,
            durability=durability,
            seed=seed,
            lives=tuple(teller.lives),
            asked=asked(ledger),
            applied=applied(ledger),
            problems=(*teller.problems, *found.problems),
        )


class _Teller:
    """Lives a story once more, and writes down what every life does."""

    def __init__(self, hands: Hands, how: CrashKind) -> None:
        self.hands = hands
        self.lives: list[LifeTold] = []
        self.problems: list[Problem] = []
        self._how: CrashKind = how
        self._folders = 0

    def whole(self, image: Image, *, files: bool = False) -> tuple[Lived, Image, Path]:
        """A life from `image` to its end, the image that it left if it died, and the folder that it was in."""
        here = self._new()
        begun = replace(image, plan=replace(image.plan, record_files=files))
        lived, left = live(self.hands.scenario, begun, here)
        return lived, replace(left, plan=replace(left.plan, record_files=image.plan.record_files)), here

    def crash(self, image: Image, point: Point) -> Image:
        """Crash at `point`, after the lives before it that die by themselves; the image that is left."""
        while True:
            lived, left, _ = self.whole(image, files=point.what[:4] == "vfs.")
            if lived.number == point.life or lived.crashed is None:
                break
            self._tell(image, lived.passed, lived.crashed)
            image = left
        at = next((n for n, passed in enumerate(lived.passed) if passed.point == point), None)
        if at is None:
            like = next((str(p) for p in lived.points if p.place == point.place), str(lived.points[-1]))
            name = self.hands.scenario.name
            raise NeverPassed(f"life {lived.number} of {name} never comes by {point}; it comes by {like}, for instance")
        freeze = self._how == "freeze"
        killed = [] if freeze else [self.hands.killed(image, point)]
        [death] = self.hands.freeze(image, [point]) if freeze else self.hands.judge(image, [point], killed)
        self.problems += death.problems
        self._tell(image, lived.passed[: at + 1], point)
        return death.image

    def cut(self, image: Image, name: ImageName) -> Image:
        """A life up to where its crash may leave that image, and the image."""
        scenario = self.hands.scenario
        while image.plan.number < name.life:
            lived, left, _ = self.whole(image)
            if lived.crashed is None:
                raise NeverPassed(f"life {lived.number} of {scenario.name} ends by itself, so there is no {name}")
            self._tell(image, lived.passed, lived.crashed)
            image = left
        recording = recorded(scenario, image, name.kind, self._new())
        made = image_of(recording, name.name, seed=image.plan.seed or 1)
        for ruined in sorted_out(recording, [made]).ruined:
            self.problems += ruined.problems
        until = recording.outside(made.after_op)[1]
        here = recording.here(made.after_op)
        points = [each.point for each in recording.passed]
        count = points.index(here.point) + 1 if here is not None else 0
        left = laid_out(recording, made, image, self._new())
        self._tell(image, recording.passed[:count], name, said=_left(made, until - image.plan.start_ms))
        return left

    def fail(self, image: Image, place: Place) -> Image:
        """A first life with that fault, and the image that is left."""
        scenario, plan = self.hands.scenario, image.plan
        if plan.number != 1:
            raise NeverPassed(f"{place} fails an operation of a first life, and that of this story has died already")
        run, left, problems = fault_story(
            scenario, place, durability=plan.durability, seed=plan.seed, folder=self._new()
        )
        if not run.happened:
            raise NeverPassed(f"life 1 of {scenario.name} has no {place.op} {place.n} that could fail")
        self.problems += problems
        self._tell(image, run.recording.passed, place if run.recording.failure is not None else None, said=str(run))
        return left

    def end(self, image: Image) -> Path:
        """Tell the lives that follow, until one ends by itself; the ledger of the story."""
        here = image.folder if image.folder is not None else self._new()
        for _ in range(MOST_LIVES):
            try:
                lived, left, here = self.whole(image)
            except StoreRefused:  # what is wrong with it is among the problems
                break
            self._tell(image, lived.passed, lived.crashed)
            if lived.crashed is None:
                break
            image = left
        return here / LEDGER

    def _tell(self, image: Image, passed: Sequence[Passed], died: Where | None, *, said: str | None = None) -> None:
        foretold: dict[TaskId, str] = {}
        if image.folder is not None:
            here = self._new()
            store, _ = place(image, here)
            seen = look(self.hands.scenario, store, now_ms=image.plan.start_ms).explained
            foretold = {verdict.id: verdict.name for verdict in seen.tasks} if seen is not None else {}
            shutil.rmtree(here)
        steps = tuple(replace(step, n=n) for n, step in enumerate(_steps(passed), start=1))
        number = image.plan.number
        self.lives.append(LifeTold(number=number, foretold=foretold, steps=steps, died=died, said=said))

    def _new(self) -> Path:
        self._folders += 1
        return self.hands.folder / f"told-{self._folders}"


def _left(image: Made, after_ms: int) -> str:
    """What a crash left, in a sentence."""
    promised = f"commits up to {image.acknowledged} have to be there, and up to {image.told} were told of"
    return f"what {image.kind} may leave behind operation {image.after_op}, after {after_ms} ms: {promised}"


def _steps(passed: Sequence[Passed]) -> Iterator[StepTold]:
    """What a life did, without what only tells of it: publications, the edges of phases, and what is behind."""
    for each in passed:
        mark = each.mark
        if mark is not None and (mark.what in ("publish", "phase") or mark.edge == "after"):
            continue
        task = mark.subject.id if mark is not None and isinstance(mark.subject, TaskSubject) else None
        laws, text = (mark.laws, mark.text or mark.name or "") if mark is not None else ((), "")
        yield StepTold(n=0, point=each.point, task=task, verdict=each.verdict, laws=laws, text=text)
