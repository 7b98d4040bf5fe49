"""Owns what places to crash at are called, which points of a life are among them, and what a path of crashes is called.

A crash is at a point of a life, is an image that a life may leave, or is a fault of its disk:

    ticker#1/tick:effect.after@2     a point; freezing and killing crash there
    kill@120+4096                    what a kill leaves in the midst of the 120th operation on the store's files
    2!power@31/keep:7                what a power cut behind the 31st operation of the second life may leave
    eio@sync:3                       the third sync of the first life fails

Never crashes anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from pidurable_nb.lab.dying.crash import Passed
from pidurable_nb.lab.dying.point import BadPoint, Point
from pidurable_nb.lab.sweeping.failing import Place

__all__ = [
    "SWEEP_KINDS", "WHICH", "Crashes", "ImageName", "SweepKind", "Where", "Which", "chosen", "command", "kinds_of",
    "life_of", "named", "where",
]  # fmt: skip

SweepKind = Literal["freeze", "kill", "power", "fault"]
"""`freeze`: nothing reaches files or outside any more, and the process lives. `kill`: a real SIGKILL at every point,
and what one may leave behind every operation. `power`: what a power cut may leave. `fault`: an operation fails."""

SWEEP_KINDS: Final[Mapping[str, SweepKind]] = {each: each for each in get_args(SweepKind)}

Which = Literal["commits", "files"]
"""`commits`: before and after of every reserve, memo, commit, effect, publication and opening. `files`: before every
write, sync, truncate and delete of the store's files."""
WHICH: Final[Mapping[str, Which]] = {each: each for each in get_args(Which)}


@dataclass(frozen=True, slots=True)
class ImageName:
    """An image that a crash of a life may leave, by its name in `lab.images`: `kill@120+4096`, `power@120/keep:7`."""

    name: str
    life: int = 1

    def __str__(self) -> str:
        return self.name if self.life == 1 else f"{self.life}!{self.name}"

    @property
    def kind(self) -> Literal["kill", "power"]:
        """How the life died that left it."""
        return "kill" if self.name.startswith("kill@") else "power"


Where: TypeAlias = Point | ImageName | Place
"""One crash of a story."""

Crashes: TypeAlias = tuple[Where, ...]
"""Crashes of one story, one a life at most, in order."""

_IMAGE: Final = re.compile(r"(?:(?P<life>[1-9]\d*)!)?(?P<name>kill@\d+(?:\+\d+)?|power@\d+/[a-z]+:[0-9a-f]+(?:\+\d+)?)")
_INSIDE: Final = frozenset({"phase", "chunk"})
"""What happens between two boundaries, where neither store nor world can change."""


def where(text: str) -> Where:
    """The crash of that name. Raises: BadPoint, saying what a name looks like."""
    image = _IMAGE.fullmatch(text)
    if image is not None:
        return ImageName(image["name"], int(image["life"] or 1))
    if text.partition("@")[0] in ("eio", "full", "busy", "short"):
        try:
            return Place.parse(text)
        except ValueError as error:
            raise BadPoint(str(error)) from error
    return Point.parse(text)


def kinds_of(text: str) -> tuple[SweepKind, ...]:
    """The kinds that somebody wrote, by commas, each once. Raises: BadPoint, naming those that there are."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in SWEEP_KINDS:
            raise BadPoint(f"a sweep cannot crash by {word!r}; write some of {', '.join(SWEEP_KINDS)}")
    return tuple(dict.fromkeys(SWEEP_KINDS[word] for word in words))


def life_of(crash: Where) -> int:
    """The life that the crash ends; a fault is one of the first."""
    return 1 if isinstance(crash, Place) else crash.life


def chosen(passed: Iterable[Passed], which: Which) -> tuple[Point, ...]:
    """The points of a life that are crash points."""
    points = (each.point for each in passed)
    if which == "files":
        return tuple(point for point in points if point.what[:4] == "vfs.")
    return tuple(point for point in points if point.what[:4] != "vfs." and point.what not in _INSIDE)


def named(path: Sequence[Where]) -> str:
    """The path as one line; empty for a story without a crash."""
    return ", ".join(map(str, path))


def command(scenario: str, path: Sequence[Where], *, seed: int, options: Sequence[str] = ()) -> str:
    """What to type to see the story again."""
    words = ["pidurable-nb", "sweep", scenario, *options]
    for crash in path:
        words += ["--point", str(crash)]
    return shlex.join([*words, "--seed", str(seed)])
