"""Owns the images of one recorded life of a sweep: which of them stand for the same state, and what is wrong in them.

What recovery does follows from the rows of the store, the ledger, the time and the number of the life. Images that
agree in these are one state: recovering from one of them says what becomes of all. Where a store was not made yet there
are no rows, and opening looks at the very bytes: then these count. Never recovers from any.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.images.image_check import Checker, Finding, lay_out
from pidurable_nb.lab.images.images import Effort, Image, kill_images, power_images
from pidurable_nb.lab.images.recording import Recording, record
from pidurable_nb.lab.judging.invariants import Problem
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.sweeping.lives import Image as Left
from pidurable_nb.lab.sweeping.lives import place
from pidurable_nb.lab.sweeping.points import ImageName

__all__ = ["ImageKind", "Seen", "Sorted", "State", "images_of", "laid_out", "recorded", "sorted_out"]

ImageKind: TypeAlias = Literal["kill", "power"]

LOG_PAGES: Final[Mapping[ImageKind, int]] = {"kill": 1000, "power": 32}
"""How long a log may grow. A power cut is worst while it is folded: the life of a scenario, which is short, has some
folds then."""

LOG_HEADER: Final = 32
"""Bytes of the header of a log."""

FIRST: Final = Effort(per_op=32)
SECOND: Final = Effort(per_op=2, small=2, window=2, samples=1, cuts=1)
"""How many power cuts of a first life, and of every recovery from one."""


def recorded(scenario: Scenario, left: Left, kind: ImageKind, folder: Path) -> Recording:
    """The life that begins with what was left, until it ends, or dies by itself. `folder` is made."""
    place(left, folder)
    plan = left.plan
    return record(
        scenario, folder, durability=plan.durability, seed=plan.seed, wal_limit_pages=LOG_PAGES[kind],
        begin=None if left.folder is None else plan,
    )  # fmt: skip


def images_of(
    recording: Recording, kind: ImageKind, *, seed: int, effort: Effort = FIRST, behind: Collection[int] | None = None
) -> Iterator[Image]:
    """What crashes of that kind may leave behind these operations, or behind all."""
    if kind == "kill":
        return kill_images(recording, behind=behind)
    return power_images(recording, seed=seed, effort=effort, behind=behind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An image that was looked at: its name, the newest point before it, and what is wrong in the store itself.

    `lost`: acknowledged commits are missing, none that the durability promises to keep.
    """

    name: ImageName
    point: Point | None
    lost: bool
    problems: tuple[Problem, ...] = ()


@dataclass(slots=True)
class State:
    """Images from which recovery does the same; `image` is the first of them."""

    image: Image
    seen: list[Seen] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Images by their state; nobody recovers from those that are `ruined`. `seconds` is what looking at them took."""

    states: tuple[State, ...]
    ruined: tuple[Seen, ...]
    seconds: float

    @property
    def count(self) -> int:
        """How many images there were."""
        return len(self.ruined) + sum(len(state.seen) for state in self.states)


def sorted_out(recording: Recording, images: Iterable[Image]) -> Sorted:
    """Open and check each of the images: pages, rows, and what had been promised.

    Laws: C1, C2, E5, S1.
    """
    begun = time.monotonic()
    states: dict[tuple[object, int, int], State] = {}
    ruined: list[Seen] = []
    contents = recording.contents()
    with Checker(recording) as checker:
        for image in images:
            finding = checker.check(image)
            asked_for = contents.lost_requests(finding.newest, image.told) if finding.newest is not None else ()
            here = recording.here(image.after_op)
            seen = Seen(
                name=ImageName(image.name, recording.begins.life),
                point=None if here is None else here.point,
                lost=finding.outcome == "lost_within_bound",
                problems=tuple(_wrong(finding, () if recording.durability == "kill" else asked_for)),
            )
            if seen.problems:
                ruined.append(seen)
                continue
            held = finding.state or _unmade(image, recording.store)
            state = states.setdefault((held, *recording.outside(image.after_op)), State(image))
            state.seen.append(seen)
    return Sorted(states=tuple(states.values()), ruined=tuple(ruined), seconds=time.monotonic() - begun)


def _unmade(image: Image, store: str) -> object:
    """What there is of a store that was not made yet. Frames of its log without a commit are nothing to anybody."""
    log = image.blocks.get(f"{store}-wal", (b"",))
    return image.blocks.get(store), image.blocks.get(f"{store}-journal"), log[0][:LOG_HEADER], len(log[0]) > LOG_HEADER


def _wrong(finding: Finding, lost: Iterable[str]) -> Iterator[Problem]:
    if finding.outcome in ("lost_acknowledged", "corrupt"):
        yield Problem(finding.outcome, finding.text)
    for request in lost:
        yield Problem("lost_acknowledged", f"request id {request} was admitted, and is not in the store (S1)")


def laid_out(recording: Recording, image: Image, left: Left, folder: Path) -> Left:
    """The image in a folder, beside the ledger, for the life behind the one that began with `left`."""
    lay_out(image, recording, folder)
    plan = replace(left.plan, record_files=False, number=recording.begins.life)
    return Left(folder=folder, plan=plan.then(recording.outside(image.after_op)[1]))
