"""Owns JSON as text: compact, non-ASCII as it is, lone surrogates as `\\udXXX`. Never knows what a value means.

Import it through `records.codec`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from math import isfinite

import orjson

from pidurable_nb.errors import NotJson
from pidurable_nb.ids import Json
from pidurable_nb.records.strict import detach, whole_characters

STORED_DEPTH = 254
"""How deep a stored record may nest: what the fast writer still writes."""

_EXACT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_SURROGATE = re.compile("[\ud800-\udfff]")


class BadRecord(ValueError):
    """Stored text that is not the record it should be. `record` names it, `field` is the path of what is wrong."""

    def __init__(self, problem: str, *, record: str = "value", field: str = "") -> None:
        super().__init__(f"{record}: {field}: {problem}" if field else f"{record}: {problem}")
        self.problem = problem
        self.record = record
        self.field = field


def dumps(value: Json) -> str:
    """The text of `value`, without spaces, always encodable as UTF-8.

    It trusts that the value passed `strict.detach`: that is where NaN and integers beyond 2^53-1 are refused. Here NaN
    would become `null`.
    Raises: NotJson for what has no text at all.
    """
    try:
        return orjson.dumps(value, _plain, _EXACT).decode()
    except TypeError:  # a lone surrogate, an integer beyond 64 bits, or nested too deep for it
        return _slow_dumps(value)


def loads(text: str, record: str = "value") -> Json:
    """The value of JSON text from anybody; `record` is what an error calls it.

    Raises: BadRecord for anything but one finite JSON value of at most `STORED_DEPTH` levels without duplicate keys.
    """
    try:
        value: Json = orjson.loads(text)
        # What is written back as the same text had no duplicate keys, no foreign numbers, no extreme depth.
        if orjson.dumps(value, None, _EXACT) == text.encode():
            return value
    except (ValueError, TypeError):
        pass
    return _slow_loads(text, record)


def indexed(text: str) -> str:
    """The form in which indexed columns hold `text`: its JSON text, quotes included."""
    return dumps(text)


def both_spellings(text: str) -> tuple[str, ...]:
    """Every form in which an indexed column may hold `text`, ours first: a peer escapes what is not ASCII."""
    ours, theirs = dumps(text), json.dumps(text)
    return (ours,) if ours == theirs else (ours, theirs)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__qualname__} is not JSON")


def _slow_dumps(value: Json) -> str:
    try:
        text = json.dumps(_checked(value, STORED_DEPTH), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        detach(value)  # names the path
        raise NotJson(f"no JSON text: {error}", at="$") from error
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _checked(value: Json, depth: int) -> Json:
    """A copy in plain containers with whole characters; integers of any size pass, as foreign records may hold them."""
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, Mapping):
        if depth == 0 or not all(type(key) is str for key in value):
            raise TypeError("a key that is no string, or too many levels")
        return {whole_characters(key): _checked(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if depth == 0:
            raise TypeError("too many levels")
        return [_checked(item, depth - 1) for item in value]
    return value


def _slow_loads(text: str, record: str) -> Json:
    try:
        value: Json = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
    except RecursionError as error:
        raise BadRecord(f"nested deeper than {STORED_DEPTH} levels", record=record) from error
    except ValueError as error:
        raise BadRecord(f"not JSON: {error}", record=record) from error
    if _deeper_than(value, STORED_DEPTH):
        raise BadRecord(f"nested deeper than {STORED_DEPTH} levels", record=record)
    return value


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    made = dict(pairs)
    if len(made) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {counts.most_common(1)[0][0][:60]!r} occurs twice in one object")
    return made


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _float(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"{digits[:40]} is no finite number")
    return number


def _deeper_than(value: Json, levels: int) -> bool:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(levels):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return bool(level)
