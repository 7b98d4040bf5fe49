"""Owns what a coder is, `Shape`: how one Python type is stored, and what is said of a value that does not fit. Never
knows a type; `scalars` and `containers` do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from pidurable_nb.errors import NotJson
from pidurable_nb.ids import Json

T = TypeVar("T")
Encode: TypeAlias = Callable[[object], Json]
Decode: TypeAlias = Callable[[Json], object]
Coder: TypeAlias = tuple[Encode, Decode]


class Misfit(Exception):
    """What is wrong; the path is collected on the way out, innermost first, so that a fit value pays nothing."""

    def __init__(self, problem: str, *, tail: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.tail = tail
        self.path: list[str | int] = []

    def where(self, at: str) -> str:
        """The path of the value that is wrong, below `at`."""
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in reversed(self.path))
        return at + "".join(parts) + self.tail


def wrong(expected: str, value: object) -> Misfit:
    """The misfit of a value of another type."""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:59] + "…"
    if type(value).__name__ == expected:
        return Misfit(f"{shown} is of an older or another class called {expected}; make it anew")
    return Misfit(f"expected {expected}, got {type(value).__qualname__} {shown}")


class DoesNotFit(ValueError):
    """A stored value does not have today's shape; `at` is the path of the field."""

    def __init__(self, message: str, *, at: str) -> None:
        super().__init__(message)
        self.at = at


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shape(Generic[T]):
    """How one type is stored. `text` is its spelling, `uses` the classes it was made of, `optional`: it may be None."""

    text: str
    encoder: Callable[[T], Json]
    decoder: Callable[[Json], T]
    uses: frozenset[type] = frozenset()
    optional: bool = False

    def encode(self, value: T, *, at: str = "$") -> Json:
        """`value` as plain JSON that shares nothing with it. Raises: NotJson naming the path below `at` (C7)."""
        try:
            return self.encoder(value)
        except (Misfit, RecursionError) as error:
            raise not_json(error, at) from error.__cause__

    def decode(self, value: Json, *, at: str = "$") -> T:
        """The value that was stored. Raises: DoesNotFit naming the field below `at`."""
        try:
            return self.decoder(value)
        except (Misfit, RecursionError) as error:
            raise does_not_fit(error, at) from error.__cause__

    def same_as(self, other: Shape[object]) -> bool:
        """True when both were made of the same types."""
        return self.text == other.text and self.uses == other.uses


def not_json(error: Misfit | RecursionError, at: str) -> NotJson:
    """The public error of a value that cannot be stored."""
    where, problem = _told(error, at)
    return NotJson(f"{where}: {problem}", at=where)


def does_not_fit(error: Misfit | RecursionError, at: str) -> DoesNotFit:
    """The public error of a stored value that has another shape."""
    where, problem = _told(error, at)
    return DoesNotFit(f"{where}: {problem}", at=where)


def _told(error: Misfit | RecursionError, at: str) -> tuple[str, str]:
    if isinstance(error, Misfit):
        return error.where(at), error.problem
    return at, "nested too deeply, or contains itself"
