"""Owns what counts as a JSON value where it enters (C7): `detach`, and equality as JSON sees it: `same`. Never writes
or reads text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isfinite

from pidurable_nb.errors import NotJson
from pidurable_nb.ids import MAX_INTEGER, Json

MAX_DEPTH = 200
"""How deep a value may nest: less than a record may, and far from where any reader or walker of values overflows."""

HOLDERS = 8
"""Levels that records and documents put above a value which they hold, with room to spare."""

_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_NAME = re.compile(r"[^\W\d]\w*")


def detach(value: object, *, at: str = "$", held: bool = False) -> Json:
    """A deep copy of `value` that is plain JSON: `dict` with `str` keys, `list`, `str`, `int`, `float`, `bool`, `None`.

    Tuples become lists, mappings become dicts. Lone surrogates are kept; two that make up one character become it, as
    they would when the store is read again. Types are exact: an enum or a numpy float is what its author makes of it.

    Raises: NotJson, whose `at` is the path of the first value that is none: NaN or an infinity, an integer beyond
    2^53-1 either way, a key that is no string, a foreign object, a cycle, nesting deeper than `MAX_DEPTH`; for what is
    to be `held` in a record, so deep that the record would be. Laws: C7.

    >>> detach({"tries": (1, 2)})
    {'tries': [1, 2]}
    >>> detach({"items": [0, {"rate": float("nan")}]})
    Traceback (most recent call last):
    ...
    pidurable_nb.errors.NotJson: $.items[1].rate: nan is no JSON number; store None or leave it out
    """
    try:
        return _copy(value, MAX_DEPTH - HOLDERS if held else MAX_DEPTH)
    except _Unfit as unfit:
        problem, path = unfit.problem, unfit.path[::-1]
    if problem is _TOO_DEEP:
        cycle = _find_cycle(value, [], set())
        problem, path = (_TOO_DEEP, path[:5]) if cycle is None else ("contains itself; JSON has no cycles", cycle)
    where = at + "".join(map(_segment, path)) + ("…" if problem is _TOO_DEEP else "")
    raise NotJson(f"{where}: {problem}", at=where)


def same(a: Json, b: Json) -> bool:
    """True when both are the same JSON value: the order of keys is ignored, `True` is not 1 and 1 is not 1.0."""
    if a is b:
        return True
    if isinstance(a, str):
        return isinstance(b, str) and a == b
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and len(a) == len(b) and all(k in b and same(v, b[k]) for k, v in a.items())
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def whole_characters(text: str) -> str:
    """`text` with every pair of surrogates as the character that it spells; lone ones stay."""
    if text.isascii() or _PAIR.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


class _Unfit(Exception):
    """What is wrong; the path is collected on the way out, innermost first, so that a fit value pays nothing."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[object] = []


_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"


def _copy(value: object, depth: int) -> Json:
    if type(value) is str:
        return value if value.isascii() else whole_characters(value)
    if type(value) is dict:
        return _copy_object(value, depth)
    if type(value) is list or type(value) is tuple:
        return _copy_array(value, depth)
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        if -MAX_INTEGER <= value <= MAX_INTEGER:
            return value
        raise _Unfit("an integer beyond 2^53-1, which other readers round; store it as text")
    if type(value) is float:
        if isfinite(value):
            return value
        raise _Unfit(f"{value} is no JSON number; store None or leave it out")
    if isinstance(value, Mapping):
        return _copy_object(value, depth)
    kind = type(value)
    raise _Unfit(f"{kind.__module__}.{kind.__qualname__} is no JSON value; store what it is made of")


def _copy_object(value: Mapping[object, object], depth: int) -> dict[str, Json]:
    if depth == 0:
        raise _Unfit(_TOO_DEEP)
    copy: dict[str, Json] = {}
    key: object = None
    try:
        for key, item in value.items():
            if type(key) is not str:
                raise _Unfit(f"the key is {type(key).__qualname__}, not str")
            name = key if key.isascii() else _new_key(key, copy)
            if type(item) is str and item.isascii():  # most of what is stored: it takes no call
                copy[name] = item
            else:
                copy[name] = _copy(item, depth - 1)
    except _Unfit as unfit:
        unfit.path.append(key)
        raise
    return copy


def _copy_array(value: Sequence[object], depth: int) -> list[Json]:
    if depth == 0:
        raise _Unfit(_TOO_DEEP)
    copy: list[Json] = []
    try:
        for item in value:
            copy.append(_copy(item, depth - 1))  # noqa: PERF401 - its length is the place that failed
    except _Unfit as unfit:
        unfit.path.append(len(copy))
        raise
    return copy


def _new_key(key: str, members: Mapping[str, Json]) -> str:
    name = whole_characters(key)
    if name in members:
        raise _Unfit("two keys that spell the same text")
    return name


def _find_cycle(value: object, path: list[object], above: set[int]) -> list[object] | None:
    """The path of the first container that stands below itself. Goes no deeper than `MAX_DEPTH`."""
    if id(value) in above:
        return list(path)
    if len(path) > MAX_DEPTH:
        return None
    if isinstance(value, Mapping):
        items: list[tuple[object, object]] = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    else:
        return None
    above.add(id(value))
    for key, item in items:
        path.append(key)
        found = _find_cycle(item, path, above)
        if found is not None:
            return found
        path.pop()
    above.discard(id(value))
    return None


def _segment(key: object) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    if isinstance(key, str) and _NAME.fullmatch(key):
        return f".{key}"
    return f"[{key!r}]"
