"""Owns the small values that a task remembers: what a memo may hold, and its way to JSON and back (M1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, is_dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, get_origin

from pidurable_nb.ids import Json
from pidurable_nb.records.frozen import freeze
from pidurable_nb.records.shapes import DoesNotFit, shape_of, to_json

T = TypeVar("T")
Fact: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json]"
"""What a memo may hold: any JSON but None, so that absent is never stored (M1)."""

_SCALARS: tuple[type, ...] = (bool, int, float, str)
_ARRAYS: tuple[type, ...] = (list, tuple, Sequence)
_OBJECTS: tuple[type, ...] = (dict, Mapping)


class Frozen(Protocol):
    """A frozen dataclass, stored as an object."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def fact_of(value: object, *, at: str) -> Json:
    """The stored form of a value. Raises NotJson, naming the path."""
    return to_json(value, at=at)


def read_fact(kept: Json, of: type[T], *, at: str) -> T:
    """The kept value as an `of`, deeply frozen. Raises TypeError when it is a value of another type."""
    wanted = get_origin(of) or of
    if is_dataclass(wanted):
        try:
            return shape_of(of).decode(kept, at=at)
        except DoesNotFit as error:
            raise TypeError(f"{at} holds {kept!r}, which is no {of.__name__}: {error}") from error
    value: object = freeze(kept)
    fits = type(kept) is wanted if wanted in _SCALARS else isinstance(value, _family(wanted))
    if not fits:
        raise TypeError(f"{at} holds {kept!r}, not {getattr(of, '__name__', of)}")
    return value  # type: ignore[return-value]  # checked above; the type checker cannot follow a computed class


def _family(wanted: type) -> type | tuple[type, ...]:
    """What a JSON array or object of any spelling is read as."""
    if wanted in _ARRAYS:
        return (list, tuple)
    if wanted in _OBJECTS or issubclass(wanted, dict):
        return dict
    return wanted
