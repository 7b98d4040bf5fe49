"""Owns how single values are stored: numbers, text, `Json`, enums, literals, references, times. Never looks inside
a container; `shapes` does.

A value that does not fit raises `Misfit`, whose path the containers around it complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum
from math import isfinite

from pidurable_nb.clock import as_datetime, as_ms
from pidurable_nb.errors import NotJson
from pidurable_nb.ids import MAX_INTEGER, Json, TaskId
from pidurable_nb.records.coder import Coder, Misfit, wrong
from pidurable_nb.records.frozen import TaskRef, freeze
from pidurable_nb.records.strict import detach, whole_characters

_MILLISECOND = timedelta(milliseconds=1)


def _text(value: object) -> str:
    if type(value) is not str:
        raise wrong("str", value)
    return value if value.isascii() else whole_characters(value)


def _flag(value: object) -> bool:
    if value is True or value is False:
        return value
    raise wrong("bool", value)


def _integer(value: object) -> int:
    if type(value) is not int:
        raise wrong("int", value)
    if -MAX_INTEGER <= value <= MAX_INTEGER:
        return value
    raise Misfit("an integer beyond 2^53-1, which other readers round; store it as text")


def _number(value: object) -> int | float:
    """An int stays one: it is what its author wrote, and what a JavaScript writer makes of 1.0."""
    if type(value) is float:
        if isfinite(value):
            return value
        raise Misfit(f"{value} is no JSON number; store None or leave it out")
    if type(value) is int:
        return _integer(value)
    raise wrong("float", value)


def _json(value: object) -> Json:
    try:
        return detach(value, at="")
    except NotJson as error:
        raise Misfit(str(error).removeprefix(f"{error.at}: "), tail=error.at) from error


def _reference(value: object) -> Json:
    if type(value) is not TaskRef:
        raise wrong("TaskRef", value)
    return _integer(value.id)


def _referred(value: Json) -> TaskRef[object]:
    return TaskRef(TaskId(_integer(value)))


def _moment(value: object) -> Json:
    if type(value) is not datetime:
        raise wrong("datetime", value)
    if value.utcoffset() is None:
        raise Misfit(f"{value!r} has no time zone; write datetime.now(timezone.utc) or rt.now()")
    return as_ms(value)


def _stored_moment(value: Json) -> datetime:
    try:
        return as_datetime(_number(value))
    except (OverflowError, OSError, ValueError) as error:
        raise Misfit(f"{value} is no time that a datetime can hold") from error


def _span(value: object) -> Json:
    if type(value) is not timedelta:
        raise wrong("timedelta", value)
    return round(value / _MILLISECOND)


def _stored_span(value: Json) -> timedelta:
    try:
        return timedelta(milliseconds=_number(value))
    except OverflowError as error:
        raise Misfit(f"{value} is no span that a timedelta can hold") from error


JSON: Coder = (_json, freeze)
REFERENCE: Coder = (_reference, _referred)
SCALARS: Mapping[object, Coder] = {
    str: (_text, _text),
    bool: (_flag, _flag),
    int: (_integer, _integer),
    float: (_number, _number),
    datetime: (_moment, _stored_moment),
    timedelta: (_span, _stored_span),
}


def literal_coder(options: tuple[str | int | bool, ...]) -> Coder:
    """One of these values, each with its own type: True is not 1."""
    known = {(type(option), option) for option in options}
    expected = " or ".join(map(repr, options))

    def check(value: object) -> Json:
        if isinstance(value, (str, int)) and (type(value), value) in known:
            return value
        raise wrong(expected, value)

    return check, check


def enum_coder(cls: type[Enum]) -> Coder:
    """A member by its value."""
    members = {(type(member.value), member.value): member for member in cls}
    name = cls.__name__

    def encode(value: object) -> Json:
        if type(value) is not cls:
            raise wrong(name, value)
        plain: Json = value.value
        return plain

    def decode(value: Json) -> object:
        found = members.get((type(value), value)) if isinstance(value, (str, int, float)) else None
        if found is None:
            raise wrong(f"the value of a {name}", value)
        return found

    return encode, decode
