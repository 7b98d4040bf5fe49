"""Owns one crash of a sweep and one recovery from it: what is run, on which copy, and what was wrong with it.

Everything here is in this process and in folders that the caller gives; a life that is killed is run elsewhere, and
only judged here. Never chooses where to crash.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pidurable_nb.agent.recovery import AssumedCode
from pidurable_nb.engine.registry import Code, Registry
from pidurable_nb.errors import DamagedStore, NotAStore, PidurableError, StoreRefused
from pidurable_nb.lab.crash import Passed
from pidurable_nb.lab.explain import Explanation, explain
from pidurable_nb.lab.invariants import (
    NOTHING_THERE,
    Content,
    Problem,
    acknowledged,
    beyond_policy,
    content_of,
    forgotten,
    lost,
    never_happened,
    ruined,
    stuck,
    twice,
)
from pidurable_nb.lab.points import Point
from pidurable_nb.lab.run import LEDGER, Lived, NeverEnds, Plan, carry, run_here
from pidurable_nb.lab.scenario import Scenario, facts_of
from pidurable_nb.lab.verdict_check import acted, disagreements
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.stranger import StoreFile

__all__ = ["Death", "Image", "Looked", "Recovered", "die", "files_of", "judge", "live", "look", "place", "recover"]

STORE: Final = "store.sqlite"
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
    """What came of an image. `lives` is how many it took, `passed` what the first of them passed.

    `twice`: some effect happened more than once, allowed or not.
    """

    problems: tuple[Problem, ...]
    twice: bool
    lives: int
    passed: tuple[Passed, ...]


def place(image: Image, into: Path) -> tuple[Path, Path]:
    """Copy an image to a new folder: store and ledger for a life to begin with."""
    into.mkdir(parents=True)
    if image.folder is not None:
        carry(image.folder / STORE, into)
        if (image.folder / LEDGER).exists():
            shutil.copyfile(image.folder / LEDGER, into / LEDGER)
    return into / STORE, into / LEDGER


def live(scenario: Scenario, image: Image, folder: Path, *, at: Point | None = None) -> tuple[Lived, Image]:
    """Live in `folder`, which is made, until the end or until frozen at a point; the image that a frozen life left."""
    store, ledger = place(image, folder)
    plan = replace(image.plan, at=at, kind="freeze")
    dead = folder / "dead"
    lived = run_here(scenario, store, ledger, plan, image=dead)
    if lived.crashed is not None and ledger.exists():
        shutil.copyfile(ledger, dead / LEDGER)
    return lived, Image(folder=dead, plan=lived.next(image.plan))


def files_of(folder: Path) -> str:
    """A digest of a store's database and log, as they lie in `folder`."""
    return _digest(folder / STORE, folder / f"{STORE}-wal")


def _digest(*paths: Path, salt: str = "") -> str:
    found = hashlib.sha256(salt.encode())
    for path in paths:
        content = path.read_bytes() if path.exists() else b""
        found.update(len(content).to_bytes(8, "big") + content)
    return found.hexdigest()


# What a store shows that nobody has open.


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was seen in a store: its content, and what recovery will do; None where there is nothing to recover."""

    content: Content
    explained: Explanation | None


def look(scenario: Scenario, store: Path, *, now_ms: int) -> Looked:
    """Look at a store that nobody has open; `-shm` may appear beside it."""
    try:
        with StoreFile.of_copy(store) as file:
            policy = scenario.settings.engine.policy
            explained = explain(file, code=_code_of(scenario), policy=policy, now_ms=now_ms)
            return Looked(content=content_of(file), explained=explained)
    except NotAStore:  # it died before its first opening came to an end
        return Looked(content=NOTHING_THERE, explained=None)
    except DamagedStore as error:
        return Looked(content=replace(NOTHING_THERE, wrong=(str(error),)), explained=None)


def _code_of(scenario: Scenario) -> Code:
    registry = Registry()
    for first in scenario.tasks():
        registry.install(first)
    return AssumedCode(installed=registry)


# Dying.


def die(scenario: Scenario, image: Image, points: Sequence[Point], folder: Path) -> Iterator[Death]:
    """Freeze a life that begins with `image` at each of the points, one after the other."""
    judged = _Judge(scenario, image, folder)
    for number, point in enumerate(points):
        lived, left = live(scenario, image, folder / str(number), at=point)
        told = Told(lived.passed, lived.published) if lived.crashed == point else None
        yield judged(point, left, told)


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
        self._folder = folder
        whole = replace(image, plan=replace(image.plan, record_files=True))
        self._whole, _ = live(scenario, whole, folder / "whole")
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
            return Death(point=point, image=left, key=str(point), files="", problems=(problem,))
        files = files_of(left.folder)
        promised = acknowledged(told.passed, told.published, self._whole.passed)
        return Death(
            point=point,
            image=left,
            key=_digest(left.folder / LEDGER, salt=f"{files} {left.plan.number} {left.plan.start_ms}"),
            files=files,
            problems=tuple(lost(promised, self._content(left, files))),
        )

    def _content(self, left: Image, files: str) -> Content:
        if files not in self._looked:
            scratch = self._folder / f"look-{len(self._looked)}"
            store, _ = place(left, scratch)
            self._looked[files] = look(self._scenario, store, now_ms=left.plan.start_ms).content
            shutil.rmtree(scratch)
        return self._looked[files]


# Recovering.


def recover(scenario: Scenario, image: Image, folder: Path, *, whole: Sequence[Passed] = ()) -> Recovered:
    """Live from `image` on until a life ends by itself, and say what was wrong, then or on the way.

    `whole` is what the first life passes when nothing cuts it off: it knows whose the effects are.
    """
    first: Lived | None = None
    problems: list[Problem] = []
    before = NOTHING_THERE
    lives, ended = 0, False
    store = folder / "1" / STORE
    while not ended and lives < MOST_LIVES:
        lives += 1
        store, _ = place(image, folder / f"{lives}-look")
        seen = look(scenario, store, now_ms=image.plan.start_ms) if image.folder is not None else NOTHING_SEEN
        before = seen.content if lives == 1 else before
        problems += ruined(seen.content)
        lived = _attempt(lambda: live(scenario, image, folder / str(lives)), problems)
        if lived is None:
            return Recovered(problems=tuple(problems), twice=False, lives=lives, passed=first.passed if first else ())
        ...
    return Recovered(problems=tuple(problems), twice=False, lives=lives, passed=first.passed if first else ())
