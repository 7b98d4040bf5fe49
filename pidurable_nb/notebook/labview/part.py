"""Owns the names of the parts that a lab is composed of: each is a view of its own too. Renders nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, TypeAlias, get_args

from pidurable_nb.errors import PidurableError

Part: TypeAlias = Literal[
    "timeline", "step", "transcript", "forks", "inbox", "tasks", "memos", "effects", "points",
]  # fmt: skip
PARTS: Final[tuple[Part, ...]] = get_args(Part)


class NoSuchPart(PidurableError, ValueError):
    """A lab has no part of that name; the message lists those that it has."""


def part_of(name: str) -> Part:
    """The part of that name. Raises: NoSuchPart."""
    for part in PARTS:
        if part == name:
            return part
    raise NoSuchPart(f"a lab has no part {name!r:.40}; it has {', '.join(PARTS)}")


def wants(parts: Collection[Part], *of: Part) -> bool:
    """Whether one of these is to be seen: no parts means all of them."""
    return not parts or any(part in parts for part in of)
