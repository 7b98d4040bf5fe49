"""Owns the part of a sweep that records a life once and derives every crash of it.

That is all that a kill may leave behind each operation on the files, a write cut in two included, and what a power cut
may leave. Each image is opened and checked. Every different state among them is recovered from, and what comes of it
counts for all images of that state. Second crashes are derived from the recorded recoveries in the same way. Never
kills anybody.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from pidurable_nb.agent.opening import Durability
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.images.images import Image, NoSuchImage, image
from pidurable_nb.lab.images.recording import Recording
from pidurable_nb.lab.judging.invariants import Broken
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.sweeping.lives import Image as Left
from pidurable_nb.lab.sweeping.lives import Recovered, live, recover
from pidurable_nb.lab.sweeping.pieces import Images, Sweeping
from pidurable_nb.lab.sweeping.points import Crashes, ImageName
from pidurable_nb.lab.sweeping.states import (
    FIRST,
    SECOND,
    ImageKind,
    Seen,
    State,
    images_of,
    laid_out,
    recorded,
    sorted_out,
)
from pidurable_nb.lab.sweeping.tally import Tally, Witness

__all__ = ["count_images", "image_pieces", "lay_out_story"]

_TWICE: Final[frozenset[Broken]] = frozenset({"effect_twice"})
"""What a power cut may do with durability `kill` (E5): a memo that is no barrier is gone, and its effect is not."""

_OPERATIONS: Final = 64
"""Operations of a piece, about: what follows from their images takes some seconds."""


def image_pieces(scenario: Scenario, sweeping: Sweeping, kind: ImageKind, folder: Path) -> tuple[Images, ...]:
    """The operations of a first life, cut into ranges where commits begin, so that no image is in two of them.

    `folder` is made, and removed.
    """
    recording = recorded(scenario, sweeping.nothing, kind, folder)
    shutil.rmtree(folder)
    pieces: list[Images] = []
    first = 0
    for end in [*(told.begun_after for told in recording.told), recording.last]:
        if first <= end and (end - first >= _OPERATIONS or end == recording.last):
            pieces.append(Images(kind, first, end))
            first = end + 1
    return tuple(pieces)


def count_images(scenario: Scenario, sweeping: Sweeping, piece: Images, folder: Path) -> Tally:
    """What became of the images of a range, and of their recoveries where second crashes are wanted.

    An image counts once for its bytes, what it has to hold, and the effects before it. `folder` is made, and removed.
    Laws: C1, C2, E5, S1, and those of `lives.recover`.
    """
    counting = _Counting(scenario, sweeping, piece.kind, folder)
    left = sweeping.nothing
    recording = recorded(scenario, left, piece.kind, folder / "life")
    behind = range(piece.first, piece.last + 1)
    images = images_of(recording, piece.kind, seed=sweeping.seed, effort=FIRST, behind=behind)
    counting.count(recording, left, images, second=sweeping.second)
    shutil.rmtree(folder)
    return counting.tally


class _Counting:
    """Images under way: checked, recovered from by their states, and counted."""

    def __init__(self, scenario: Scenario, sweeping: Sweeping, kind: ImageKind, folder: Path) -> None:
        self.tally = Tally()
        self._scenario = scenario
        self._sweeping = sweeping
        self._kind: ImageKind = kind
        self._folder = folder
        self._folders = 0
        self._allowed = _TWICE if kind == "power" and sweeping.durability == "kill" else frozenset[Broken]()

    def count(
        self,
        recording: Recording,
        left: Left,
        images: Iterable[Image],
        *,
        second: bool,
        before: Crashes = (),
        row: Point | None = None,
    ) -> None:
        """Images of a life that began with `left`, and was recorded. `row` is where the first of two crashes counts."""
        found = sorted_out(recording, images)
        self.tally.timed("images", found.count, found.seconds)
        for seen in found.ruined:
            self._tell(seen, None, before, row)
        for state in found.states:
            self._recover(recording, left, state, second=second, before=before, row=row)

    def _recover(
        self, recording: Recording, left: Left, state: State, *, second: bool, before: Crashes, row: Point | None
    ) -> None:
        here = self._new()
        begun = laid_out(recording, state.image, left, here / "image")
        came = recover(self._scenario, begun, here / "lives", awaited=self._sweeping.awaited)
        self.tally.runs += len(came.lives)
        for seen in state.seen:
            self._tell(seen, came, before, row)
        if second and all(passed for _, passed in came.lives):
            first = state.seen[0]
            for life, _ in came.lives:
                again = recorded(self._scenario, life, self._kind, self._new())
                images = images_of(again, self._kind, seed=self._sweeping.seed, effort=SECOND)
                self.tally.runs += 1
                self.count(again, life, images, second=False, before=(first.name,), row=first.point)
        shutil.rmtree(here)

    def _tell(self, seen: Seen, came: Recovered | None, before: Crashes, row: Point | None) -> None:
        twice = came is not None and came.twice
        problems = seen.problems if came is None else (*seen.problems, *came.problems)
        if twice and self._allowed:  # what the scenario says then, it says of the effect that happened twice
            problems = tuple(problem for problem in problems if problem.kind != "broken")
        self.tally.count(
            problems,
            twice=twice,
            witness=Witness((*before, seen.name), self._kind),
            point=row if before else seen.point,
            lost=seen.lost,
            allowed=self._allowed,
        )

    def _new(self) -> Path:
        self._folders += 1
        return self._folder / str(self._folders)


# One image, to go on from.


def lay_out_story(
    scenario: Scenario, names: Sequence[ImageName], *, seed: int, durability: Durability, folder: Path
) -> Left:
    """The store that these crashes leave, one after the other, with its ledger, in a folder within `folder`.

    Lives in between that kill themselves are lived. The plan is that of the life behind the last crash.
    Raises: NoSuchImage for a name that is none of the life that it is of; its message says of which.
    """
    left = Sweeping(seed=seed, durability=durability).nothing
    for number, name in enumerate(sorted(names, key=lambda name: name.life), start=1):
        here = folder / str(number)
        while left.plan.number < name.life:
            lived, left = live(scenario, left, here / f"life-{left.plan.number}")
            if lived.crashed is None:
                raise NoSuchImage(f"{name}: life {lived.number} of {scenario.name} ends, no life {name.life} follows")
        if left.plan.number > name.life:
            raise NoSuchImage(f"{name}: life {name.life} of {scenario.name} has crashed already in this story")
        recording = recorded(scenario, left, name.kind, here / "life")
        made = image(recording, name.name, seed=seed)
        left = laid_out(recording, made, left, here / "image")
    return left
