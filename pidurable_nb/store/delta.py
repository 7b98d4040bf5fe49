"""Owns the operations of document deltas: their stored form and what each does to a JSON value. Never does I/O and
never decides which operations to write (`diff` does).

A string here is what a JavaScript string is, a sequence of UTF-16 units: `Trim` counts in them, and the halves of a
character that meet at an append become that character again. Values are immutable by agreement. What an operation
touches is rebuilt, from the root down to it, as plain `dict` and `list`; everything else is shared with the value
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard, assert_never

from pidurable_nb.ids import Json
from pidurable_nb.store.utf16 import drop_units, join

Path: TypeAlias = "tuple[str | int, ...]"
"""From the root down: a string is an object's key, an integer an array's index."""

FORBIDDEN = frozenset({"__proto__", "constructor", "prototype"})
"""Keys that no path may name, because they are more than keys to a JavaScript reader. Values may hold them."""


class BadDelta(ValueError):
    """A batch that is malformed, or that does not fit the value it is applied to; nothing was changed.

    `index` is the operation's place in its batch (None: the batch itself), `verb` its stored verb where there is one.
    """

    def __init__(self, problem: str, *, index: int | None = None, verb: str | None = None) -> None:
        which = "delta batch" if index is None else f"delta operation {index}"
        named = "" if verb is None else f" ({verb!r})"
        super().__init__(f"{which}{named}: {problem}")
        self.index = index
        self.verb = verb


@dataclass(frozen=True, slots=True)
class Replace:
    """The whole value becomes `value`. Only ever the first of a batch."""

    value: Json


@dataclass(frozen=True, slots=True)
class Put:
    """A property or an array element becomes `value`; the index just behind an array appends."""

    path: Path
    value: Json


@dataclass(frozen=True, slots=True)
class Delete:
    """A property goes, if it is there; an array element goes and must be there."""

    path: Path


@dataclass(frozen=True, slots=True)
class Append:
    """The string at `path` grows by `text`."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class Trim:
    """The string at `path` loses its first `units` UTF-16 units, at most all of them."""

    path: Path
    units: int


@dataclass(frozen=True, slots=True)
class Splice:
    """The array at `path` loses `removed` elements at `index` and gets `items` there; both are cut at its end."""

    path: Path
    index: int
    removed: int
    items: Sequence[Json]


@dataclass(frozen=True, slots=True)
class Reorder:
    """The array at `path` is rearranged: element k is what was element `order[k]`."""

    path: Path
    order: tuple[int, ...]


Op: TypeAlias = Replace | Put | Delete | Append | Trim | Splice | Reorder

VERBS: Mapping[type[Op], str] = {
    Replace: "r",
    Put: "s",
    Delete: "d",
    Append: "a",
    Trim: "t",
    Splice: "p",
    Reorder: "m",
}


# --- JSON kinds -------------------------------------------------------------------------------------------------


def is_array(value: Json) -> TypeGuard[Sequence[Json]]:
    """True for what JSON writes as an array."""
    return isinstance(value, (list, tuple))


def is_object(value: Json) -> TypeGuard[Mapping[str, Json]]:
    """True for what JSON writes as an object."""
    return isinstance(value, (dict, Mapping))


def _is_count(value: Json) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _kind(value: Json) -> str:
    if is_object(value):
        return "an object"
    if is_array(value):
        return "an array"
    if isinstance(value, str):
        return "a string"
    if value is None:
        return "null"
    return "a boolean" if isinstance(value, bool) else "a number"


# --- Stored form ------------------------------------------------------------------------------------------------


def encode(ops: Iterable[Op]) -> list[list[Json]]:
    """The batch as the JSON arrays that are stored, in the plain form that every reader knows."""
    return [_encode(op) for op in ops]


def _encode(op: Op) -> list[Json]:
    match op:
        case Replace(value):
            return ["r", value]
        case Put(path, value):
            return ["s", list(path), value]
        case Delete(path):
            return ["d", list(path)]
        case Append(path, text):
            return ["a", list(path), text]
        case Trim(path, units):
            return ["t", list(path), units]
        case Splice(path, index, removed, items):
            return ["p", list(path), index, removed, list(items)]
        case Reorder(path, order):
            return ["m", list(path), list(order)]
        case _:
            assert_never(op)


def parse(batch: Json) -> tuple[Op, ...]:
    """The operations of a stored batch, each checked for its shape. Payloads are shared, not copied.

    Raises: BadDelta for anything but a well-formed plain batch, naming the operation. Whether the operations fit a
    value is seen when they are applied.
    """
    if not is_array(batch):
        raise BadDelta(f"{_kind(batch)} where an array of operations belongs")
    ops: list[Op] = []
    for index, row in enumerate(batch):
        if not is_array(row) or not row:
            raise BadDelta("an operation is an array that starts with its verb", index=index)
        verb = row[0]
        if not isinstance(verb, str):
            raise BadDelta(f"{_kind(verb)} where the verb belongs", index=index)
        reader = _READERS.get(verb)
        if reader is None:
            raise BadDelta(f"unknown verb; known are {' '.join(_READERS)}", index=index, verb=verb)
        read, arity = reader
        if len(row) != arity:
            raise BadDelta(f"{len(row)} members where {arity} belong", index=index, verb=verb)
        try:
            op = read(row)
        except _Unfit as unfit:
            raise BadDelta(str(unfit), index=index, verb=verb) from None
        if index and isinstance(op, Replace):
            raise BadDelta("replaces the whole value, so it must be the first of its batch", index=index, verb=verb)
        ops.append(op)
    return tuple(ops)


class _Unfit(Exception):
    """Why one operation is refused; the caller adds which one."""


def _path(value: Json, *, root: bool = False) -> Path:
    if not is_array(value):
        raise _Unfit(f"{_kind(value)} where the path belongs")
    if not value and not root:
        raise _Unfit("an empty path; only 'r', 'p' and 'm' work on the root")
    return tuple(_segment(segment) for segment in value)


def _segment(segment: Json) -> str | int:
    if isinstance(segment, str):
        if segment in FORBIDDEN:
            raise _Unfit(f"{segment!r} is forbidden in a path")
        return segment
    if not _is_count(segment):
        raise _Unfit("a path segment is neither a key nor a whole number from 0")
    return segment


def _count(value: Json, what: str) -> int:
    if not _is_count(value):
        raise _Unfit(f"{what} is not a whole number from 0")
    return value


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise _Unfit(f"{_kind(value)} where the text belongs")
    return value


def _elements(value: Json) -> Sequence[Json]:
    if not is_array(value):
        raise _Unfit(f"{_kind(value)} where an array belongs")
    return value


_READERS: Mapping[str, tuple[Callable[[Sequence[Json]], Op], int]] = {
    "r": (lambda row: Replace(row[1]), 2),
    "s": (lambda row: Put(_path(row[1]), row[2]), 3),
    "d": (lambda row: Delete(_path(row[1])), 2),
    "a": (lambda row: Append(_path(row[1]), _text(row[2])), 3),
    "t": (lambda row: Trim(_path(row[1]), _count(row[2], "the length to drop")), 3),
    "p": (
        lambda row: Splice(
            _path(row[1], root=True),
            _count(row[2], "the index"),
            _count(row[3], "the number to remove"),
            _elements(row[4]),
        ),
        5,
    ),
    "m": (
        lambda row: Reorder(_path(row[1], root=True), tuple(_count(k, "a place") for k in _elements(row[2]))),
        3,
    ),
}


# --- Applying ---------------------------------------------------------------------------------------------------


def apply(value: Json, ops: Iterable[Op]) -> Json:
    """The value that the operations make of `value`, in order, each seeing the effect of the ones before it.

    `value` and the payloads are left as they are. Every subtree that no operation reaches is shared with the result;
    without any effect the result is `value` itself.
    Raises: BadDelta, naming the operation, when one does not fit.
    """
    work = _Work(value)
    for index, op in enumerate(ops):
        try:
            if index and isinstance(op, Replace):
                raise _Unfit("replaces the whole value, so it must be the first of its batch")
            work.do(op)
        except _Unfit as unfit:
            raise BadDelta(str(unfit), index=index, verb=VERBS[type(op)]) from None
    return work.root


_Container: TypeAlias = "dict[str, Json] | list[Json]"


class _Work:
    """One value under change. Containers that this call made are changed in place, all others are copied first, so
    that a batch of many operations on one long array copies it once."""

    __slots__ = ("_made", "root")

    def __init__(self, root: Json) -> None:
        self.root = root
        # Keyed by identity; holding the container keeps its id from being given to another one.
        self._made: dict[int, _Container] = {}

    def do(self, op: Op) -> None:
        match op:
            case Replace(value):
                self.root = value
            case Put(path, value):
                self._put(path, value)
            case Delete(path):
                self._delete(path)
            case Append(path, text):
                self._put(path, join(self._string(path), text))
            case Trim(path, units):
                self._put(path, drop_units(self._string(path), units))
            case Splice(path, index, removed, items):
                self._array(path)
                self._own_array(path)[index : index + removed] = items
            case Reorder(path, order):
                old = self._array(path)
                if sorted(order) != list(range(len(old))):
                    raise _Unfit(f"the order must name each of the array's {len(old)} places once")
                self._own_array(path)[:] = [old[k] for k in order]
            case _:
                assert_never(op)

    # Looking: nothing is copied before an operation is known to fit.

    def _look(self, path: Path) -> Json:
        node = self.root
        for segment in path:
            if is_object(node):
                key = _key(segment, path)
                if key not in node:
                    raise _Unfit(f"{_show(path)}: there is no {key!r}")
                node = node[key]
            elif is_array(node):
                node = node[_place(segment, path, len(node))]
            else:
                raise _Unfit(f"{_show(path)}: {segment!r} leads into {_kind(node)}")
        return node

    def _parent(self, path: Path) -> Mapping[str, Json] | Sequence[Json]:
        if not path:
            raise _Unfit("an empty path; only 'r', 'p' and 'm' work on the root")
        parent = self._look(path[:-1])
        if is_object(parent) or is_array(parent):
            return parent
        raise _Unfit(f"{_show(path)}: {path[-1]!r} leads into {_kind(parent)}")

    def _string(self, path: Path) -> str:
        self._parent(path)
        node = self._look(path)
        if not isinstance(node, str):
            raise _Unfit(f"{_show(path)} is {_kind(node)}, not a string")
        return node

    def _array(self, path: Path) -> Sequence[Json]:
        node = self._look(path)
        if not is_array(node):
            raise _Unfit(f"{_show(path)} is {_kind(node)}, not an array")
        return node

    # Changing.

    def _put(self, path: Path, value: Json) -> None:
        parent, last = self._parent(path), path[-1]
        if is_object(parent):
            key = _key(last, path)
            self._own_object(path[:-1])[key] = value
            return
        place = _place(last, path, len(parent) + 1)
        self._own_array(path[:-1])[place : place + 1] = (value,)

    def _delete(self, path: Path) -> None:
        parent, last = self._parent(path), path[-1]
        if is_object(parent):
            key = _key(last, path)
            if key in parent:
                del self._own_object(path[:-1])[key]
            return
        place = _place(last, path, len(parent))
        del self._own_array(path[:-1])[place]

    def _own_object(self, path: Path) -> dict[str, Json]:
        mine = self._own(path)
        assert isinstance(mine, dict)
        return mine

    def _own_array(self, path: Path) -> list[Json]:
        mine = self._own(path)
        assert isinstance(mine, list)
        return mine

    def _own(self, path: Path) -> _Container:
        mine = self.root = self._copied(self.root)
        for segment in path:
            if isinstance(mine, dict):
                key = _key(segment, path)
                child = mine[key] = self._copied(mine[key])
            else:
                place = _place(segment, path, len(mine))
                child = mine[place] = self._copied(mine[place])
            mine = child
        return mine

    def _copied(self, value: Json) -> _Container:
        made = self._made.get(id(value))
        if made is not None:
            return made
        assert is_object(value) or is_array(value)
        copy: _Container = dict(value) if is_object(value) else list(value)
        self._made[id(copy)] = copy
        return copy


def _key(segment: str | int, path: Path) -> str:
    if not isinstance(segment, str):
        raise _Unfit(f"{_show(path)}: {segment} is an index, and this is an object")
    if segment in FORBIDDEN:
        raise _Unfit(f"{_show(path)}: {segment!r} is forbidden in a path")
    return segment


def _place(segment: str | int, path: Path, end: int) -> int:
    if isinstance(segment, str):
        raise _Unfit(f"{_show(path)}: {segment!r} is a key, and this is an array")
    if not 0 <= segment < end:
        raise _Unfit(f"{_show(path)}: {segment} is beyond the end of the array")
    return segment


def _show(path: Path) -> str:
    return "/".join(("", *map(str, path))) or "the root"
