"""Owns how a sweep goes and the pieces that it is cut into, in memory and as JSON.

A piece is enough for anybody who has the scenario, in this process, in a child of it, or on another machine. How a
sweep is cut depends on what there is to do, never on how many do it, so everybody's sums are the same. Never does one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pidurable_nb.agent.opening import DURABILITIES, Durability
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.lab.dying.crash import CRASH_KINDS, CrashKind
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import Plan
from pidurable_nb.lab.judging.invariants import Expected
from pidurable_nb.lab.sweeping.failing import Place
from pidurable_nb.lab.sweeping.lives import Image
from pidurable_nb.lab.sweeping.points import WHICH, Which
from pidurable_nb.lab.sweeping.units import expected_json, expected_of

__all__ = ["CHUNK", "Deaths", "Faults", "Identities", "Images", "Piece", "Sweeping", "chunks", "piece_of"]

CHUNK: Final = 24
"""Crashes of a piece, about: enough to pay for a process, few enough to share them out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeping:
    """How a sweep goes. `awaited` are the effects of the life in which nothing crashes."""

    seed: int = 1
    durability: Durability = "barrier"
    second: bool = False
    which: Which = "commits"
    awaited: tuple[Expected, ...] = ()

    @property
    def nothing(self) -> Image:
        """What a first life begins with."""
        files = self.which == "files"
        plan = Plan(seed=self.seed, durability=self.durability, same_bytes=True, record_files=files)
        return Image(folder=None, plan=plan)

    def to_json(self) -> JsonObject:
        """What `of_json` makes of it again."""
        return {
            "seed": self.seed,
            "durability": self.durability,
            "second": self.second,
            "which": self.which,
            "awaited": [expected_json(each) for each in self.awaited],
        }

    @classmethod
    def of_json(cls, value: Json) -> Sweeping:
        """What another process wrote. Raises: ValueError for anything else."""
        match value:
            case {
                "seed": int(seed),
                "durability": str(durability),
                "second": bool(second),
                "which": str(which),
                "awaited": list(awaited),
            } if durability in DURABILITIES and which in WHICH:
                return cls(
                    seed=seed,
                    durability=DURABILITIES[durability],
                    second=second,
                    which=WHICH[which],
                    awaited=tuple(map(expected_of, awaited)),
                )
            case _:
                raise ValueError(f"{value!r} is no way for a sweep to go")


@dataclass(frozen=True, slots=True)
class Deaths:
    """Crash a first life at each of the points, in each of these ways, compare what they left, and recover."""

    kinds: tuple[CrashKind, ...]
    points: tuple[Point, ...]

    def to_json(self) -> JsonObject:
        """What `piece_of` makes of it again."""
        return {"deaths": list(self.kinds), "points": [str(point) for point in self.points]}


@dataclass(frozen=True, slots=True)
class Images:
    """What a kill or a power cut may leave behind operations `first` to `last` of a first life; 0 is the beginning."""

    kind: Literal["kill", "power"]
    first: int
    last: int

    def to_json(self) -> JsonObject:
        """What `piece_of` makes of it again."""
        return {"images": self.kind, "first": self.first, "last": self.last}


@dataclass(frozen=True, slots=True)
class Faults:
    """A first life for each of the faults, and what comes of it."""

    places: tuple[Place, ...]

    def to_json(self) -> JsonObject:
        """What `piece_of` makes of it again."""
        return {"faults": [str(place) for place in self.places]}


@dataclass(frozen=True, slots=True)
class Identities:
    """Freeze, kill and cut the log of operations before each of these operations, and compare."""

    points: tuple[Point, ...]

    def to_json(self) -> JsonObject:
        """What `piece_of` makes of it again."""
        return {"identities": [str(point) for point in self.points]}


Piece: TypeAlias = Deaths | Images | Faults | Identities


def piece_of(value: Json) -> Piece:
    """The piece that another process wrote. Raises: ValueError for anything else."""
    match value:
        case {"deaths": list(kinds), "points": list(points)} if all(kind in CRASH_KINDS for kind in kinds):
            return Deaths(tuple(CRASH_KINDS[str(kind)] for kind in kinds), _points_of(points))
        case {"images": "kill", "first": int(first), "last": int(last)}:
            return Images("kill", first, last)
        case {"images": "power", "first": int(first), "last": int(last)}:
            return Images("power", first, last)
        case {"faults": list(places)}:
            return Faults(tuple(Place.parse(str(place)) for place in places))
        case {"identities": list(points)}:
            return Identities(_points_of(points))
        case _:
            raise ValueError(f"{value!r} is no piece of a sweep")


def chunks(points: Sequence[Point]) -> list[tuple[Point, ...]]:
    """Points cut into pieces: neighbours, which often leave the same bytes, together."""
    return [tuple(points[at : at + CHUNK]) for at in range(0, len(points), CHUNK)]


def _points_of(points: Sequence[Json]) -> tuple[Point, ...]:
    return tuple(Point.parse(str(point)) for point in points)
