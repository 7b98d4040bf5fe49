"""Owns what a recorded run was told by its storage, and what follows from that for a crash behind any operation.

Pure: never runs anything, and never looks into a file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pidurable_nb.errors import StorageError, Stored
from pidurable_nb.store.plain import NOTHING, Content
from pidurable_nb.store.sqlite import Durability

__all__ = ["Contents", "Doing", "Failure", "Promise", "Promises", "Row", "Told"]

Row: TypeAlias = tuple[object, ...]
Doing = Literal["open", "commit", "maintain", "close"]

_STRIDE: Final = 16
_KEPT: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A transaction that was acknowledged: an opening, or a group of commits.

    The storage was asked after operation `begun_after` and answered after operation `after_op`. `newest` is the number
    of the newest commit from then on. `added` and `removed` are the rows that a reader now saw, and saw no more.
    """

    begun_after: int
    after_op: int
    newest: int
    barrier: bool
    added: frozenset[Row] = frozenset()
    removed: frozenset[Row] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The first error of the storage: in which call, between which operations, and what it said is stored (F4).

    `commits` is how many commits the group had that met it.
    """

    doing: Doing
    begun_after: int
    after_op: int
    error: Exception
    commits: int = 0

    @property
    def stored(self) -> Stored | None:
        """What is known of the transaction that met it; None for a refusal to open, which says nothing of the kind."""
        return self.error.stored if isinstance(self.error, StorageError) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a crash behind an operation may leave: commits up to `least` are there, none is behind `most`.

    `told` is the newest that was acknowledged.
    """

    least: int
    told: int
    most: int


class Contents:
    """The rows after each commit, put together again from what changed.

    With `made` there was a store from the first of them on, so that none at all is no content.
    """

    def __init__(self, told: Sequence[Told], *, made: bool = False) -> None:
        self._told = tuple(told)
        self._made = made
        self._asked_for = _asked_for(told)
        self._numbers = [each.newest for each in told]
        self._strides: list[frozenset[Row]] = []
        rows: frozenset[Row] = frozenset()
        for at, each in enumerate(told):
            rows = (rows - each.removed) | each.added
            if at % _STRIDE == 0:
                self._strides.append(rows)
        self._kept: OrderedDict[int, frozenset[Row]] = OrderedDict()

    def at(self, newest: int) -> frozenset[Row] | None:
        """The rows when commit `newest` was the newest; None when no acknowledgement ever ended with it."""
        at = bisect_right(self._numbers, newest) - 1
        if at < 0 or self._numbers[at] != newest:
            return None
        if at not in self._kept:
            rows = self._strides[at // _STRIDE]
            for each in self._told[at - at % _STRIDE + 1 : at + 1]:
                rows = (rows - each.removed) | each.added
            self._kept[at] = rows
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return self._kept[at]

    def fits(self, found: Content) -> bool:
        """Whether these rows are those of their newest commit. A store that was never made fits as long as none is."""
        return (found == NOTHING and not self._made) or self.at(found.newest) == found.rows

    def lost_requests(self, newest: int, told: int) -> tuple[str, ...]:
        """The request ids that commits up to `told` admitted, and that are not there when `newest` is the newest."""
        return tuple(request for at, request in self._asked_for if newest < at <= told)


def _asked_for(told: Sequence[Told]) -> tuple[tuple[int, str], ...]:
    """Every request id, with the number of the commit that admitted it (S1)."""
    found: dict[tuple[object, str], int] = {}
    for each in told:
        for row in each.added:
            match row:
                case ("submissions", _, conversation, str(request), *_):
                    found.setdefault((conversation, request), each.newest)
                case _:
                    pass
    return tuple((newest, request) for (_, request), newest in found.items())


class Promises:
    """What may be left behind each operation of a recording. What was there when it began, up to `floor`, stays."""

    def __init__(
        self,
        durability: Durability,
        told: Sequence[Told],
        log_syncs: Sequence[int],
        failure: Failure | None,
        *,
        floor: int = 0,
    ) -> None:
        self._durability: Durability = durability
        self._floor = floor
        self._ends = [each.after_op for each in told]
        self._begins = [each.begun_after for each in told]
        self._newest = [each.newest for each in told]
        barriers = [each for each in told if each.barrier]
        self._barrier_ends = [each.after_op for each in barriers]
        self._barriers = [each.newest for each in barriers]
        self._syncs = log_syncs
        self._failed = failure if failure is not None and failure.doing == "commit" else None
        self._before_failure = 0 if failure is None else bisect_right(self._ends, failure.begun_after)

    def kill(self, op: int) -> Promise:
        """After a kill: everything that was acknowledged is there."""
        told = self._told(op)
        return Promise(least=told, told=told, most=self._most(op, told))

    def power(self, op: int) -> Promise:
        """After a power cut: everything, or all up to the last barrier, or up to the last sync of the log."""
        told = self._told(op)
        synced = bisect_right(self._syncs, op)
        least = _last(self._newest, bisect_left(self._ends, self._syncs[synced - 1])) if synced else 0
        match self._durability:
            case "power":
                least = told
            case "barrier":
                least = max(least, _last(self._barriers, bisect_right(self._barrier_ends, op)))
            case "kill":
                pass
        return Promise(least=max(least, self._floor), told=told, most=self._most(op, told))

    def _told(self, op: int) -> int:
        return _last(self._newest, bisect_right(self._ends, op))

    def _most(self, op: int, told: int) -> int:
        """With the transaction that was under way."""
        most = max(told, _last(self._newest, bisect_left(self._begins, op)))
        if self._failed is None or op <= self._failed.begun_after:
            return most
        sure = self._failed.stored == "no" and op >= self._failed.after_op
        return most if sure else max(most, _last(self._newest, self._before_failure) + self._failed.commits)


def _last(numbers: Sequence[int], count: int) -> int:
    return numbers[count - 1] if count else 0
