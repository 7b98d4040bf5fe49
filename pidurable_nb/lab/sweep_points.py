"""Owns which points of a life a sweep crashes at, and what a path of crashes is called. Never crashes anything."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from pidurable_nb.lab.crash import Passed
from pidurable_nb.lab.points import Point

__all__ = ["Crashes", "Which", "chosen", "command", "named"]

Which = Literal["commits", "files"]
"""`commits`: before and after of every reserve, memo, commit, effect, publication and opening. `files`: before every
write, sync, truncate and delete of the store's files."""

Crashes = tuple[Point, ...]
"""Crashes of one story, one a life at most, in order."""

_INSIDE: Final = frozenset({"phase", "chunk"})
"""What happens between two boundaries, where neither store nor world can change."""


def chosen(passed: Iterable[Passed], which: Which) -> tuple[Point, ...]:
    """The points of a life that are crash points."""
    points = (each.point for each in passed)
    if which == "files":
        return tuple(point for point in points if point.what[:4] == "vfs.")
    return tuple(point for point in points if point.what[:4] != "vfs." and point.what not in _INSIDE)


def named(path: Sequence[Point]) -> str:
    """The path as one line; empty for a story without a crash."""
    return ", ".join(map(str, path))


def command(scenario: str, path: Sequence[Point], *, seed: int, options: Sequence[str] = ()) -> str:
    """What to type to see the story again."""
    words = ["pidurable-nb", "sweep", scenario, *options]
    for point in path:
        words += ["--point", str(point)]
    return shlex.join([*words, "--seed", str(seed)])
