"""Owns rows in memory, kept as their stored text, in id order, with a way back from every change. Never knows a rule
of the format.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from pidurable_nb.store.storage import Order, Page

R = TypeVar("R")
K = TypeVar("K")
V = TypeVar("V")

Undo = list[Callable[[], object]]
"""What takes an open group back, in order of the changes."""


def roll_back(undo: Undo) -> None:
    """Take every change back, the newest first."""
    while undo:
        undo.pop()()


def put(table: dict[K, V], key: K, value: V, undo: Undo) -> None:
    """Set `table[key]`."""
    if key in table:
        before = table[key]
        undo.append(lambda: table.__setitem__(key, before))
    else:
        undo.append(lambda: table.pop(key))
    table[key] = value


def insert(ids: list[int], id: int, undo: Undo) -> None:
    """Add an id to an ordered list."""
    insort(ids, id)
    undo.append(lambda: ids.remove(id))


def between(ids: list[int], first: int | None, last: int | None, order: Order) -> Iterator[int]:
    """The ids of an ordered list from `first` to `last`, both included."""
    low = 0 if first is None else bisect_left(ids, first)
    high = len(ids) if last is None else bisect_right(ids, last)
    places = range(low, high) if order == "ascending" else range(high - 1, low - 1, -1)
    return (ids[place] for place in places)


@dataclass(frozen=True, slots=True)
class Row(Generic[R]):
    """A stored record. `facts` is what its writer gave: only its frozen members are ever looked at, since the JSON in
    it may still change under the writer's hands. What is handed out is read from `text` each time."""

    facts: R
    text: str


class Table(Generic[R]):
    """Rows by id."""

    def __init__(self, encode: Callable[[R], str], decode: Callable[[str], R]) -> None:
        self.rows: dict[int, Row[R]] = {}
        self.ids: list[int] = []
        self._encode = encode
        self._decode = decode

    def put(self, id: int, record: R, undo: Undo) -> None:
        """Add or replace a row."""
        if id not in self.rows:
            insert(self.ids, id, undo)
        put(self.rows, id, Row(record, self._encode(record)), undo)

    def facts(self, id: int) -> R | None:
        """The record, for its frozen members only."""
        row = self.rows.get(id)
        return None if row is None else row.facts

    def read(self, id: int) -> R | None:
        """The record, detached."""
        row = self.rows.get(id)
        return None if row is None else self._decode(row.text)

    def scan(self, keep: Callable[[R], bool], *, limit: int, after: int | None, order: Order) -> Page[R]:
        """The first `limit` records behind `after` that `keep` takes, in id order."""
        return self.page((id for id in behind(self.ids, after, order) if keep(self.rows[id].facts)), limit)

    def page(self, ids: Iterator[int], limit: int) -> Page[R]:
        """The first `limit` of these, detached, and the cursor behind them if there are more."""
        taken: list[int] = []
        for id in ids:
            if len(taken) == limit:
                return self._page(taken, taken[-1])
            taken.append(id)
        return self._page(taken, None)

    def _page(self, ids: list[int], cursor: int | None) -> Page[R]:
        return Page(tuple(self._decode(self.rows[id].text) for id in ids), cursor)


def behind(ids: list[int], after: int | None, order: Order) -> Iterator[int]:
    """The ids of an ordered list that come after `after` in this order."""
    if after is None:
        return between(ids, None, None, order)
    if order == "ascending":
        return between(ids, after + 1, None, order)
    return between(ids, None, after - 1, order)
