"""Owns laying out a story of a sweep again, up to the store that its last crash left, for looking and walking.

Everything is lived again in this process; a life that was killed is frozen, which leaves the same bytes. Never judges
what is left, and imports no scenario by itself that nobody has imported yet.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from pidurable_nb.agent.opening import Durability
from pidurable_nb.errors import PidurableError
from pidurable_nb.lab.dying.identity import STORE
from pidurable_nb.lab.dying.lane import in_thread
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import LEDGER, Plan
from pidurable_nb.lab.outside.world import World, copy_ledger
from pidurable_nb.lab.scenario import BUILT_IN, Scenario, UnknownScenario, around, find
from pidurable_nb.lab.sweeping.failing import Place
from pidurable_nb.lab.sweeping.faults import Faulty
from pidurable_nb.lab.sweeping.images import lay_out_story
from pidurable_nb.lab.sweeping.lives import Image, live
from pidurable_nb.lab.sweeping.points import ImageName, named
from pidurable_nb.lab.sweeping.replay import NeverPassed
from pidurable_nb.lab.sweeping.tally import Witness
from pidurable_nb.lab.walking.stepper import Stepper

if TYPE_CHECKING:
    from pidurable_nb.lab.sweeping.result import SweepResult

__all__ = ["NothingLeft", "Reopened", "scenario_of", "story_image"]

T = TypeVar("T")


class NothingLeft(PidurableError):
    """No store is left to look at: nothing crashed in the story, or nothing was stored before it did."""


def story_image(scenario: Scenario, witness: Witness, *, seed: int, durability: Durability, folder: Path) -> Image:
    """The store that the last crash of a story left, with its ledger, in a folder within `folder`.

    Its plan is that of the life which goes on from there. Lives that die by themselves between two crashes are lived.
    Needs a thread without an event loop, and the bank where the scenario has one.
    Raises: NothingLeft, NeverPassed, NoSuchImage.
    """
    crashes = witness.crashes
    points = [crash for crash in crashes if isinstance(crash, Point)]
    images = [crash for crash in crashes if isinstance(crash, ImageName)]
    if not crashes:
        raise NothingLeft(f"nothing crashes in this story of {scenario.name}: it goes wrong by itself; replay it")
    if len(images) == len(crashes):
        return lay_out_story(scenario, images, seed=seed, durability=durability, folder=folder)
    if len(crashes) == 1 and isinstance(crashes[0], Place):
        _, left = Faulty(scenario, folder, durability=durability, seed=seed).live(crashes[0])
        return left
    if len(points) == len(crashes):
        return _at_points(scenario, points, seed=seed, durability=durability, folder=folder)
    raise NothingLeft(f"{named(crashes)}: points, images and faults do not go together in one story")


def _at_points(
    scenario: Scenario, points: Sequence[Point], *, seed: int, durability: Durability, folder: Path
) -> Image:
    image = Image(folder=None, plan=Plan(seed=seed, durability=durability, same_bytes=True))
    for point in sorted(points, key=lambda point: point.life):
        while True:
            begun = image.plan.number
            lived, image = live(scenario, image, folder / str(begun), at=point)
            if lived.crashed == point:
                break
            if lived.crashed is None or begun >= point.life:
                like = next((str(p) for p in lived.points if p.place == point.place), str(lived.points[-1]))
                raise NeverPassed(
                    f"life {begun} of {scenario.name} never comes by {point}; it comes by {like}, for instance"
                )
    return image


def scenario_of(found: SweepResult, scenario: Scenario | None = None) -> Scenario:
    """The scenario of a sweep: the one given, else the one of its name where that is built in or imported already.

    A sweep that somebody else saved names a module, and importing it would run it: that is for the reader to decide.
    Raises: UnknownScenario.
    """
    if scenario is not None:
        return scenario
    module, colon, _ = found.scenario.partition(":")
    if colon and module not in sys.modules:
        raise UnknownScenario(
            f"{found.scenario} is not imported here: import it, if you trust it, or pass scenario=; "
            "SweepResult.source has the text that was swept"
        )
    if not colon and found.scenario not in BUILT_IN:
        raise UnknownScenario(f"{found.scenario} is no built-in scenario; pass scenario=")
    return find(found.scenario)


class Reopened:
    """A story of a sweep, laid out up to its last crash. A context manager; what it made is removed at its end.

    `store` and `ledger` are as the crash left them, `now_ms` is when the next life begins, and `stepper` walks its
    recovery on a copy, with effects that go on from a copy of the ledger.
    Raises: UnknownScenario, NothingLeft, NeverPassed, NoSuchImage, StoreRefused where that is what was left.
    """

    def __init__(self, found: SweepResult, witness: Witness, scenario: Scenario | None = None) -> None:
        self.scenario = scenario_of(found, scenario)
        self.witness = witness
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pidurable-story-")))
            stack.enter_context(around(self.scenario))
            image = in_thread(
                lambda: story_image(
                    self.scenario, witness, seed=found.seed, durability=found.durability, folder=folder / "story"
                )
            )
            self.store, self.ledger = left_in(image, witness)
            self.now_ms = image.plan.start_ms
            program = self.scenario.program()
            world = World(copy_ledger(self.ledger, folder / "walk.jsonl"), image.plan.number)
            self.stepper = stack.enter_context(
                Stepper(
                    self.store, tasks=program.tasks, tools=program.tools, extensions=program.extensions,
                    models=program.models, settings=program.settings, now_ms=self.now_ms, perform=world.perform,
                )
            )  # fmt: skip
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the walk and remove what was laid out. Idempotent."""
        self._stack.close()


def left_in(image: Image, witness: Witness) -> tuple[Path, Path]:
    """Store and ledger of an image. Raises: NothingLeft where the crash came before there was a file."""
    if image.folder is None or not (image.folder / STORE).exists():
        raise NothingLeft(f"at {named(witness.crashes)} there was no store yet: the next life begins with nothing")
    return image.folder / STORE, image.folder / LEDGER
