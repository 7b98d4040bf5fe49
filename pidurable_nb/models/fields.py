"""Owns reading fields of foreign JSON, in which anything may stand. Never raises: what does not fit is not there."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from pidurable_nb.ids import MAX_INTEGER, Json, JsonObject
from pidurable_nb.records.message import items


def text(value: JsonObject, name: str) -> str:
    """The string of that name; empty where there is none."""
    found = value.get(name)
    return found if isinstance(found, str) else ""


def member(value: JsonObject, name: str) -> JsonObject:
    """The object of that name; empty where there is none."""
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def objects(value: JsonObject, name: str) -> tuple[JsonObject, ...]:
    """The objects in the array of that name."""
    return tuple(item for item in items(value.get(name)) if isinstance(item, Mapping))


def count(value: JsonObject, name: str) -> int:
    """The number of that name as a count: whole, not negative, small enough to be stored; else 0."""
    found = number(value.get(name))
    return int(found) if 0 <= found <= MAX_INTEGER else 0


def number(value: Json) -> int | float:
    """A finite number; 0 where something else stands."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else 0
