"""Owns reading one field of a stored object: its shape is checked, anything else is a `BadRecord`. Never knows which
fields a record has.

A reader takes the object, the key, and the path of the object itself (`"state."`), which costs nothing until it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from math import isfinite
from typing import NoReturn, TypeAlias, TypeVar

from pidurable_nb.ids import MAX_INTEGER, Json, JsonObject
from pidurable_nb.records.jsontext import BadRecord
from pidurable_nb.records.task import NOTHING

T = TypeVar("T")
Object: TypeAlias = "dict[str, Json]"

_MISSING = object()


class Unfit(Exception):
    """A field that does not fit; `whole` adds which record."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem


def whole(what: str, value: Json, read: Callable[[Object], T]) -> T:
    """The record that `read` makes of an object.

    Raises: BadRecord, which names the record by `what` and its id, and the field.
    """
    if not isinstance(value, dict):
        raise BadRecord(f"{_kind(value)} where an object belongs", record=what)
    try:
        return read(value)
    except Unfit as unfit:
        number = value.get("id")
        named = f"{what} {number}" if type(number) is int and number.bit_length() < 100 else what
        raise BadRecord(unfit.problem, record=named, field=unfit.field) from None


def refuse(obj: Object, key: str, at: str, expected: str) -> NoReturn:
    """Raise what is wrong with a field: that it is missing, or what stands there instead of `expected`."""
    found = obj.get(key, _MISSING)
    raise Unfit(at + key, f"missing; {expected} belongs here" if found is _MISSING else _instead(found, expected))


def anything(obj: Object, key: str, at: str = "") -> Json:
    """Any JSON, but there."""
    if key not in obj:
        refuse(obj, key, at, "a value")
    return obj[key]


def text(obj: Object, key: str, at: str = "") -> str:
    """A string."""
    value = obj.get(key)
    if isinstance(value, str):
        return value
    refuse(obj, key, at, "text")


def name(obj: Object, key: str, at: str = "") -> str:
    """A string that is not empty."""
    value = obj.get(key)
    if isinstance(value, str) and value:
        return value
    refuse(obj, key, at, "text that is not empty")


def optional_text(obj: Object, key: str, at: str = "") -> str | None:
    """A string, or the field left out."""
    return text(obj, key, at) if key in obj else None


def word(obj: Object, key: str, words: Collection[str], at: str = "") -> str:
    """One of a few strings."""
    value = obj.get(key)
    if isinstance(value, str) and value in words:
        return value
    refuse(obj, key, at, "one of " + ", ".join(words))


def flag(obj: Object, key: str, at: str = "") -> bool:
    """True or false."""
    value = obj.get(key)
    if isinstance(value, bool):
        return value
    refuse(obj, key, at, "true or false")


def integer(obj: Object, key: str, at: str = "", *, least: int = 1) -> int:
    """An integer from `least` (ids: 1) to 2^53-1."""
    value = obj.get(key)
    if type(value) is int and least <= value <= MAX_INTEGER:
        return value
    refuse(obj, key, at, f"an integer from {least} to 2^53-1")


def optional_integer(obj: Object, key: str, at: str = "", *, least: int = 1) -> int | None:
    """Such an integer, or the field left out."""
    return integer(obj, key, at, least=least) if key in obj else None


def moment(obj: Object, key: str, at: str = "") -> float:
    """A finite number from 0: milliseconds since 1970."""
    value = obj.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value >= 0:
        return value
    refuse(obj, key, at, "a number from 0")


def an_object(obj: Object, key: str, at: str = "") -> Object:
    """An object."""
    value = obj.get(key)
    if isinstance(value, dict):
        return value
    refuse(obj, key, at, "an object")


def integers(obj: Object, key: str, at: str = "") -> list[int]:
    """An array of ids."""
    value = obj.get(key)
    if not isinstance(value, list):
        refuse(obj, key, at, "an array of ids")
    found: list[int] = []
    for index, item in enumerate(value):
        if type(item) is not int or not 1 <= item <= MAX_INTEGER:
            raise Unfit(f"{at}{key}[{index}]", _instead(item, "an id"))
        found.append(item)
    return found


def objects(obj: Object, key: str, at: str = "") -> list[Object]:
    """An array of objects."""
    value = obj.get(key)
    if not isinstance(value, list):
        refuse(obj, key, at, "an array of objects")
    found: list[Object] = []
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise Unfit(f"{at}{key}[{index}]", _instead(item, "an object"))
        found.append(item)
    return found


def rest(obj: Object, known: Set[str]) -> JsonObject:
    """The fields that this version does not know; they are kept and written back."""
    if obj.keys() <= known:
        return NOTHING
    return {key: value for key, value in obj.items() if key not in known}


def rest_and_null(obj: Object, known: Set[str], *optional: str) -> JsonObject:
    """The same. An optional field of any JSON that stands there as `null` is kept too: our record has no other trace of
    it, and the text must come back as it was."""
    kept = rest(obj, known)
    nulls = {key: None for key in optional if key in obj and obj[key] is None}
    return {**kept, **nulls} if nulls else kept


def merged(known: Object, extra: JsonObject) -> Object:
    """What is written: the known fields, and behind them what was kept. A known field wins."""
    return {**known, **{key: value for key, value in extra.items() if key not in known}} if extra else known


def _instead(found: object, expected: str) -> str:
    return f"{_kind(found)} where {expected} belongs"


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    shown = repr(value) if not isinstance(value, int) or value.bit_length() < 200 else "a huge integer"
    return shown if len(shown) <= 60 else shown[:57] + "…"
