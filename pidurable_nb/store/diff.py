"""Owns the choice of operations: a small batch that makes one JSON value of another. Never applies one.

The order of an object's keys carries no meaning in the format: values that differ in nothing else are equal here, and
a key that is new comes last. Everything that JSON text tells apart differs: `true` from 1, and 1 from 1.0.
Subtrees are compared by identity first, since a value and its successor share what did not change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import compress
from operator import is_not
from typing import Final

from pidurable_nb.ids import Json
from pidurable_nb.store.delta import (
    FORBIDDEN,
    Append,
    Delete,
    Op,
    Path,
    Put,
    Reorder,
    Replace,
    Splice,
    Trim,
    is_array,
    is_object,
)
from pidurable_nb.store.utf16 import added, utf16_units

MOST_OPS: Final = 4096
"""A batch that would need more becomes one `Replace`."""

WINDOW: Final = 65_536
"""How far from its end a string is searched for what the next one starts with."""

SMALL: Final = 256
"""Operations that weigh less than this together stay as detailed as they are."""

TRIES: Final = 512
"""How many places in the window are compared before the search that is slower but linear in any text."""


def diff(old: Json, new: Json) -> tuple[Op, ...]:
    """A batch that makes `new` of `old`: `same(apply(old, diff(old, new)), new)`. Empty when they are equal.

    What one operation changes is not written again: an append costs its text, a removal nothing of what stays. Where
    many operations would weigh more than twice the container they change, the container is written instead. Payloads
    are shared with `new`.
    """
    if old is new:
        return ()
    if not is_object(old) or not is_object(new):
        return () if same(old, new) else (Replace(new),)
    writer = _Writer()
    try:
        writer.change((), old, new)
    except RecursionError:
        return (Replace(new),)  # right for any value, and nobody reads the difference of one nested that deep
    return tuple(writer.ops) if len(writer.ops) <= MOST_OPS else (Replace(new),)


def same(a: Json, b: Json) -> bool:
    """True when the two are the same JSON text but for the order of keys."""
    if a is b:
        return True
    if isinstance(a, str):
        return isinstance(b, str) and a == b
    if a is None or b is None or isinstance(a, bool) or isinstance(b, bool):
        return False
    if isinstance(a, int):
        return isinstance(b, int) and a == b
    if isinstance(a, float):
        return isinstance(b, float) and repr(a) == repr(b)  # text tells 0.0 from -0.0
    if is_object(a):
        return is_object(b) and len(a) == len(b) and all(k in b and same(v, b[k]) for k, v in a.items())
    return is_array(a) and is_array(b) and len(a) == len(b) and _common(a, b) == len(a)


class _Writer:
    """The batch so far. `weights` holds about how many characters each operation takes when stored."""

    __slots__ = ("ops", "weights")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.weights: list[int] = []

    def change(self, path: Path, old: Json, new: Json) -> None:
        """Add what makes `new` of `old`, the value that stands at `path` by then."""
        if old is new:
            return
        start = len(self.ops)
        if isinstance(old, str) and isinstance(new, str):
            if old != new:
                self._string(path, old, new)
        elif is_object(old) and is_object(new):
            self._object(path, old, new)
            self._fold(start, path, new)
        elif is_array(old) and is_array(new):
            self._array(path, old, new)
            self._fold(start, path, new)
        elif not same(old, new):
            self._whole(path, new)

    def _add(self, op: Op, weight: int) -> None:
        self.ops.append(op)
        self.weights.append(weight)

    def _whole(self, path: Path, value: Json) -> None:
        self._add(Put(path, value) if path else Replace(value), _path_weight(path) + _weight(value))

    def _undo(self, start: int) -> None:
        del self.ops[start:]
        del self.weights[start:]

    def _fold(self, start: int, path: Path, new: Json) -> None:
        """Write `new` whole where the operations since `start`, which make it, weigh more than twice as much."""
        spent = sum(self.weights[start:])
        if len(self.ops) - start < 2 or spent < SMALL:
            return
        most = spent // 2 - _path_weight(path)
        if _weight(new, most) < most:
            self._undo(start)
            self._whole(path, new)

    def _string(self, path: Path, old: str, new: str) -> None:
        text = added(old, new)
        if text is not None:
            self._add(Append(path, text), _path_weight(path) + len(text))
            return
        # Trimming takes a second operation: it pays where more stays than that one weighs.
        second = _path_weight(path) + 8
        kept = _overlap(old, new, second)
        if not kept:
            self._whole(path, new)
            return
        self._add(Trim(path, utf16_units(old[: len(old) - kept])), second)
        if kept < len(new):
            self._add(Append(path, new[kept:]), second + len(new) - kept)

    def _object(self, path: Path, old: Mapping[str, Json], new: Mapping[str, Json]) -> None:
        for key in FORBIDDEN:
            if (key in old) != (key in new) or (key in old and not same(old[key], new[key])):
                self._whole(path, new)  # no path may name this key, so its owner is written
                return
        for key in old:
            if key not in new:
                self._add(Delete((*path, key)), _path_weight((*path, key)))
        for key, value in new.items():
            if key not in old:
                self._whole((*path, key), value)
            elif (before := old[key]) is not value:
                self.change((*path, key), before, value)

    def _array(self, path: Path, old: Sequence[Json], new: Sequence[Json]) -> None:
        first = _common(old, new)
        last = _common_end(old, new, min(len(old), len(new)) - first)
        a, b = old[first : len(old) - last], new[first : len(new) - last]
        if not a or not b or len(a) == len(b) == 1:
            self._gap(path, first, a, b)
            return
        sources = _sources(a, b)
        kept = _rising([(i, j) for j, i in enumerate(sources) if i is not None])
        if len(a) == len(b):
            still = [(j, j) for j, i in enumerate(sources) if i == j]
            kept = kept if len(kept) > len(still) else still
            order = [i + first for i in sources if i is not None]
            if len(order) == len(a) and self._moved(path, first, order, kept, new):
                return
        at = behind = 0
        for i, j in (*kept, (len(a), len(b))):
            if behind < i or at < j:
                self._gap(path, first + at, a[behind:i], b[at:j])
            behind, at = i + 1, j + 1

    def _moved(
        self, path: Path, first: int, order: list[int], kept: list[tuple[int, int]], new: Sequence[Json]
    ) -> bool:
        """Add a `Reorder` where it is lighter than removing and inserting the elements that are not in `kept`."""
        weight = _path_weight(path) + len(new) * (len(str(len(new))) + 1)
        stays = {j for _, j in kept}
        moves = 0
        for j in range(len(order)):
            if j not in stays:
                moves += 2 * _path_weight(path) + 16 + _weight(new[first + j], weight)
        if moves <= weight:
            return False
        last = first + len(order)
        self._add(Reorder(path, (*range(first), *order, *range(last, len(new)))), weight)
        return True

    def _gap(self, path: Path, at: int, old: Sequence[Json], new: Sequence[Json]) -> None:
        """Make the elements `new` of the elements `old`, which begin at `at` by then. Those that have a partner change
        in place; neighbours that have nothing in common with theirs go into one splice."""
        paired = min(len(old), len(new))
        run = 0
        for k in range(paired):
            place = (*path, at + k)
            start = len(self.ops)
            self.change(place, old[k], new[k])
            match self.ops[start:]:
                case [Put(where, _)] if where == place:
                    self._undo(start)
                    run += 1
                case _:
                    self._carry(path, at + k - run, run, new[k - run : k])
                    run = 0
        self._carry(path, at + paired - run, run + len(old) - paired, new[paired - run :])

    def _carry(self, path: Path, at: int, removed: int, items: Sequence[Json]) -> None:
        if removed == 1 and len(items) == 1:
            self._whole((*path, at), items[0])
        elif removed or items:
            self._add(Splice(path, at, removed, items), _path_weight(path) + 8 + _weight(items))


# --- Weights ----------------------------------------------------------------------------------------------------


def _path_weight(path: Path) -> int:
    return 10 + sum(len(segment) + 3 if isinstance(segment, str) else 3 for segment in path)


def _weight(value: Json, enough: int | None = None) -> int:
    """About how many characters `value` takes as JSON text; it stops counting once there are `enough`."""
    weight = 0
    rest: list[Json] = [value]
    while rest and (enough is None or weight < enough):
        node = rest.pop()
        if isinstance(node, str):
            weight += len(node) + 3
        elif is_object(node):
            weight += 2 + sum(len(key) + 3 for key in node)
            rest.extend(node.values())
        elif is_array(node):
            weight += 2
            rest.extend(node)
        else:
            weight += len(repr(node)) + 1
    return weight


# --- Strings ----------------------------------------------------------------------------------------------------


def _overlap(old: str, new: str, least: int) -> int:
    """How much of the end of `old` is the start of `new`, at most WINDOW; 0 for less than `least`. Linear in WINDOW."""
    if len(new) < least:
        return 0
    if old.endswith(new):
        return len(new)
    tail, head = old[-WINDOW:], new[:WINDOW]
    needle = head[:least]
    at = tail.find(needle)
    for _ in range(TRIES):
        if at < 0:
            return 0
        if head.startswith(tail[at:]):
            return len(tail) - at
        at = tail.find(needle, at + 1)
    kept = _border(head, tail)
    return kept if kept >= least else 0


def _border(head: str, tail: str) -> int:
    """The length of the longest end of `tail` that `head` starts with (Knuth, Morris, Pratt)."""
    shorter = [0] * len(head)
    size = 0
    for place in range(1, len(head)):
        letter = head[place]
        while size and head[size] != letter:
            size = shorter[size - 1]
        size += head[size] == letter
        shorter[place] = size
    size = 0
    for letter in tail:
        if size == len(head):
            size = shorter[size - 1]
        while size and head[size] != letter:
            size = shorter[size - 1]
        size += head[size] == letter
    return size


# --- Arrays -----------------------------------------------------------------------------------------------------


def _common(old: Sequence[Json], new: Sequence[Json]) -> int:
    """How many elements at the start are the same. Identical ones are passed over without a step in Python."""
    count = min(len(old), len(new))
    for at in compress(range(count), map(is_not, old, new)):
        if not same(old[at], new[at]):
            return at
    return count


def _common_end(old: Sequence[Json], new: Sequence[Json], most: int) -> int:
    for at in compress(range(most), map(is_not, reversed(old), reversed(new))):
        if not same(old[-1 - at], new[-1 - at]):
            return at
    return most


def _sources(old: Sequence[Json], new: Sequence[Json]) -> list[int | None]:
    """For every element of `new` the place of an equal one in `old`, each used once and equal ones in order."""
    shared = set(map(id, old)) & set(map(id, new))
    places: dict[object, list[int]] = {}
    for place in reversed(range(len(old))):
        places.setdefault(_label(old[place], shared), []).append(place)
    found = (places.get(_label(value, shared)) for value in new)
    return [stack.pop() if stack else None for stack in found]


def _label(value: Json, shared: set[int]) -> object:
    """Equal for equal values. A container that stands in both arrays is not looked into: its identity will do."""
    if (is_array(value) or is_object(value)) and id(value) in shared:
        return id(value)
    return _frozen(value)


def _frozen(value: Json) -> object:
    if value is None or isinstance(value, str):
        return value
    if is_array(value):
        return tuple(map(_frozen, value))
    if is_object(value):
        return frozenset((key, _frozen(item)) for key, item in value.items())
    return type(value), repr(value)


def _rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest selection of `pairs`, whose second members rise, in which the first members rise too."""
    lowest: list[int] = []  # at k: the smallest first member that a selection of k + 1 pairs ends with
    ends: list[int] = []
    before: list[int] = []
    for place, (first, _) in enumerate(pairs):
        size = bisect_left(lowest, first)
        before.append(ends[size - 1] if size else -1)
        lowest[size : size + 1] = [first]
        ends[size : size + 1] = [place]
    chosen: list[tuple[int, int]] = []
    place = ends[-1] if ends else -1
    while place >= 0:
        chosen.append(pairs[place])
        place = before[place]
    return chosen[::-1]
