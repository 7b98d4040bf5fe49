"""Owns one crash of a sweep and one recovery from it: what is run, on which copy, and what was wrong with it.

Everything here is in this process and in folders that the caller gives; a life that is killed is run elsewhere, and
only judged here. Never chooses where to crash.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pidurable_nb.errors import NotAStore, StoreRefused
from pidurable_nb.lab.dying.crash import Passed
from pidurable_nb.lab.dying.identity import STORE, digest_of, files_in
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import LEDGER, Lived, Plan, carry, run_here
from pidurable_nb.lab.judging.invariants import (
    NOTHING_THERE,
    Content,
    Expected,
    Problem,
    acknowledged,
    beyond_policy,
    content_of,
    forgotten,
    lost,
    never_happened,
    owed,
    ruined,
    stuck,
    twice,
)
from pidurable_nb.lab.looking.explain import Explanation, explain
from pidurable_nb.lab.scenario import Facts, Scenario, facts_of
from pidurable_nb.lab.walking.verdict_check import acted, disagreements
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.stranger import StoreFile

__all__ = ["Death", "Image", "Recovered", "die", "judge", "live", "place", "recover"]

MOST_LIVES: Final = 20
"""A scenario that kills itself is given so many lives to come to an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A store as a life left it, with its ledger, in a folder; None before the first life. `plan` is for the next."""

    folder: Path | None
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A life that died at `point`. Images with one `key` are the same to the byte, and so is what follows from them.

    `files` is a digest of database and log alone.
    """

    point: Point
    image: Image
    key: str
    files: str
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What came of an image. `twice`: some effect happened more than once, allowed or not.

    `lives` has for each the image that it began with, and what it passed; one that kills itself is not the last.
    """

    problems: tuple[Problem, ...]
    twice: bool
    lives: tuple[tuple[Image, tuple[Passed, ...]], ...]


def place(image: Image, into: Path) -> tuple[Path, Path]:
    """Copy an image to a new folder: store and ledger for a life to begin with."""
    into.mkdir(parents=True)
    if image.folder is not None:
        carry(image.folder / STORE, into)
        if (image.folder / LEDGER).exists():
            shutil.copyfile(image.folder / LEDGER, into / LEDGER)
    return into / STORE, into / LEDGER


def live(scenario: Scenario, image: Image, folder: Path, *, at: Point | None = None) -> tuple[Lived, Image]:
    """Live in `folder`, which is made, until the end or until frozen at a point.

    The image that a frozen life left is in a folder beside it.
    """
    store, ledger = place(image, folder)
    plan = replace(image.plan, at=at, kind="freeze")
    dead = folder.with_name(f"{folder.name}-dead")
    lived = run_here(scenario, store, ledger, plan, image=dead)
    if lived.crashed is not None and ledger.exists():
        shutil.copyfile(ledger, dead / LEDGER)
    return lived, Image(folder=dead, plan=lived.next(image.plan))


# What a store shows that nobody has open.


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was seen in a store: its content, and what recovery will do; None where there is nothing to recover."""

    content: Content
    explained: Explanation | None


def look(scenario: Scenario, store: Path, *, now_ms: int) -> Looked:
    """Look at a store that nobody has open, a copy of the lab's own: `-shm` may appear beside it.

    One that was just being made is what SQLite makes of its journal.
    """
    if not store.exists():
        return Looked(content=NOTHING_THERE, explained=None)
    if store.with_name(f"{store.name}-journal").exists():
        with closing(sqlite3.connect(store)) as connection, suppress(sqlite3.Error):
            connection.execute("PRAGMA schema_version").fetchone()  # the first read rolls back
    try:
        with StoreFile.of_copy(store) as file:
            policy = scenario.settings.engine.policy
            explained = explain(file, code=scenario.program().code_for(file), policy=policy, now_ms=now_ms)
            return Looked(content=content_of(file), explained=explained)
    except NotAStore:  # it died before its first opening came to an end
        return Looked(content=NOTHING_THERE, explained=None)
    except StoreRefused as error:
        return Looked(content=replace(NOTHING_THERE, wrong=(str(error),)), explained=None)


# Dying.


def die(scenario: Scenario, image: Image, points: Sequence[Point], folder: Path) -> Iterator[Death]:
    """Freeze a life that begins with `image` at each of the points, one after the other."""
    judged = _Judge(scenario, image, folder)
    for number, point in enumerate(points):
        here = folder / str(number)
        lived, left = live(scenario, image, here, at=point)
        told = Told(lived.passed, lived.published) if lived.crashed == point else None
        yield judged(point, left, told)
        shutil.rmtree(here)


def judge(scenario: Scenario, image: Image, killed: Sequence[tuple[Point, Path]], folder: Path) -> Iterator[Death]:
    """What really killed lives left, that had begun with `image`: each point, and the folder that the life was in.

    What such a life had told is what the same life, run here to its end, had told by that point.
    """
    judged = _Judge(scenario, image, folder)
    for point, there in killed:
        told = judged.by(point)
        ended_ms = told.passed[-1].at_ms if told is not None else image.plan.start_ms
        yield judged(point, Image(folder=there, plan=image.plan.then(ended_ms)), told)


@dataclass(frozen=True, slots=True)
class Told:
    """What a life had passed and published when it died."""

    passed: tuple[Passed, ...]
    published: tuple[Changes, ...]


class _Judge:
    """Holds deaths against the same life when nothing cuts it off."""

    def __init__(self, scenario: Scenario, image: Image, folder: Path) -> None:
        self._scenario = scenario
        self._image = image
        self._folder = folder
        self._whole, _ = live(scenario, image, folder / "whole")
        shutil.rmtree(folder / "whole")
        self._looked: dict[str, Content] = {}

    def by(self, point: Point) -> Told | None:
        """What the life had told when it was at `point`."""
        at = next((n for n, passed in enumerate(self._whole.passed) if passed.point == point), None)
        if at is None:
            return None
        passed = self._whole.passed[: at + 1]
        seqs = {each.mark.seq for each in passed if each.mark is not None and each.mark.edge == "after"}
        return Told(passed, tuple(changes for changes in self._whole.published if changes.seq in seqs))

    def __call__(self, point: Point, left: Image, told: Told | None) -> Death:
        assert left.folder is not None
        if told is None:
            problem = Problem("broken", f"{point} was not reached again: the scenario does not repeat itself")
            return Death(point=point, image=self._image, key=str(point), files="", problems=(problem,))
        files = digest_of(files_in(left.folder))
        promised = acknowledged(told.passed, told.published, self._whole.passed)
        return Death(
            point=point,
            image=left,
            key=self._key(files, left),
            files=files,
            problems=tuple(lost(promised, self._content(left, files))),
        )

    def _key(self, files: str, left: Image) -> str:
        """What decides everything that follows: the store, what the world was asked, and what time it is."""
        assert left.folder is not None
        ledger = left.folder / LEDGER
        asked = ledger.read_bytes() if ledger.exists() else b""
        return hashlib.sha256(f"{files} {left.plan.number} {left.plan.start_ms} ".encode() + asked).hexdigest()

    def _content(self, left: Image, files: str) -> Content:
        if files not in self._looked:
            scratch = self._folder / f"look-{len(self._looked)}"
            store, _ = place(left, scratch)
            self._looked[files] = look(self._scenario, store, now_ms=left.plan.start_ms).content
            shutil.rmtree(scratch)
        return self._looked[files]


# Recovering.


def recover(scenario: Scenario, image: Image, folder: Path, *, awaited: Sequence[Expected] = ()) -> Recovered:
    """Live from `image` on until a life ends by itself, and say what was wrong, then or on the way.

    `awaited` are the effects of the story in which nothing crashed.
    """
    course = _Course(scenario, folder)
    while course.life(image):
        assert course.left is not None
        image = course.left
    if course.ended:
        course.judge(awaited)
    return Recovered(problems=tuple(dict.fromkeys(course.problems)), twice=course.twice, lives=tuple(course.lives))


class _Course:
    """A recovery under way: life after life, each looked at before it begins."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.problems: list[Problem] = []
        self.twice = False
        self.lives: list[tuple[Image, tuple[Passed, ...]]] = []
        self.left: Image | None = None
        self.ended = False
        self._scenario = scenario
        self._folder = folder
        self._before = NOTHING_THERE
        self._facts: Facts | None = None
        self._here = folder
        self._ended_ms = 0

    def life(self, image: Image) -> bool:
        """Live once, and compare with what was predicted. True when it died and another life has to follow."""
        number = len(self.lives) + 1
        seen = self._look(image, number)
        self.problems += ruined(seen.content)
        self._before = seen.content if number == 1 else self._before
        self._here = self._folder / str(number)
        lived = self._live(image)
        self.lives.append((image, lived.passed if lived is not None else ()))
        if lived is None:
            return False
        self.ended = lived.crashed is None
        self._compare(seen.explained, lived)
        if not self.ended and number == MOST_LIVES:
            self.problems.append(Problem("stuck", f"{MOST_LIVES} lives died, with nothing to kill them any more"))
            return False
        return not self.ended

    def _live(self, image: Image) -> Lived | None:
        """One life, and what it left; None, and a sentence, when it failed."""
        number = image.plan.number
        try:
            lived, self.left = live(self._scenario, image, self._here)
            if lived.error is not None:
                self.problems.append(Problem("stuck", f"the storage of life {number} failed: {lived.error}"))
                return None
            if lived.crashed is None:
                self._facts = facts_of(self._here / STORE, self._here / LEDGER)
                self._ended_ms = self.left.plan.start_ms
            return lived
        except StoreRefused as error:
            self.problems.append(
                Problem("corrupt", f"the store cannot be opened in life {number}, or after it: {error}")
            )
        except Exception as error:
            self.problems.append(Problem("stuck", f"life {number} ended with {type(error).__name__}: {error}"))
        return None

    def _look(self, image: Image, number: int) -> Looked:
        if image.folder is None:
            return Looked(content=NOTHING_THERE, explained=None)
        scratch = self._folder / f"{number}-look"
        store, _ = place(image, scratch)
        return look(self._scenario, store, now_ms=image.plan.start_ms)

    def _compare(self, explained: Explanation | None, lived: Lived) -> None:
        """Explanation equals behaviour. A life that died may not have come to all of it."""
        if explained is None:
            return
        live_on = {record.id for record in self._facts.tasks if record.live} if self._facts is not None else set[int]()
        for each in disagreements(
            explained.tasks,
            acted(lived.acts),
            may_rest=lambda verdict: not self.ended or verdict.id in live_on,
        ):
            text = f"task {each.task} was predicted to {each.predicted} in life {lived.number}, and did {each.done}"
            self.problems.append(Problem("mispredicted", text))

    def judge(self, awaited: Sequence[Expected]) -> None:
        """What must hold after the last life."""
        after, facts = look(self._scenario, self._here / STORE, now_ms=self._ended_ms), self._facts
        assert facts is not None
        self.problems += ruined(after.content)
        self.problems += owed(after.content)
        self.problems += forgotten(self._before, after.content)
        self.problems += beyond_policy(self._scenario, facts)
        self.problems += never_happened(self._scenario, facts, awaited)
        self.problems += [Problem("broken", text) for text in self._scenario.invariants(facts)]
        if after.explained is not None:
            self.problems += stuck(after.explained)
        self.twice = twice(self._scenario, facts, awaited)
