"""Owns the matrix of a sweep: a row a point, a column a kind, and in each place what became of the crashes there.

Words, signs and order are here; how it is drawn is `picture`'s. Never counts anything anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pidurable_nb.lab.sweeping.points import SweepKind
from pidurable_nb.lab.sweeping.tally import WORST_FIRST, OutcomeClass

if TYPE_CHECKING:
    from pidurable_nb.lab.sweeping.result import SweepResult

__all__ = ["BEFORE_FIRST", "KIND_WORDS", "MOST_POINTS", "WORDS", "Matrix", "Outcomes", "Row", "matrix", "worst_of"]

MOST_POINTS: Final = 60
"""Of more points than this, neighbours with the same outcome share a row."""
MOST_ROWS: Final = 200
"""And of more rows than this, the rest is left out, and counted."""

BEFORE_FIRST: Final = "before the first point"
"""The row of crashes that came before any point: while the file was being made."""

WORDS: Final[Mapping[OutcomeClass, str]] = {
    "as_promised": "as promised",
    "lost_within_bound": "lost, as allowed",
    "effect_twice": "happened twice",
    "lost_acknowledged": "lost, though told",
    "stuck": "stuck",
    "corrupt": "corrupt",
    "broken": "promise broken",
}
"""The word for each class."""

KIND_WORDS: Final[Mapping[SweepKind, str]] = {
    "freeze": "frozen",
    "kill": "killed",
    "power": "power cut",
    "fault": "disk fault",
}
"""The heading of each column."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of the crashes in one place of the matrix. There is at least one."""

    counts: Mapping[OutcomeClass, int]

    @property
    def total(self) -> int:
        """How many crashes they were."""
        return sum(self.counts.values())

    @property
    def worst(self) -> OutcomeClass:
        """The worst that was met."""
        return worst_of(self.counts)

    @property
    def words(self) -> str:
        """The counts as a sentence has them, the worst first."""
        return ", ".join(f"{self.counts[each]} {WORDS[each]}" for each in WORST_FIRST if self.counts.get(each))

    def __add__(self, other: Outcomes) -> Outcomes:
        both = dict(self.counts)
        for each, count in other.counts.items():
            both[each] = both.get(each, 0) + count
        return Outcomes(both)


@dataclass(frozen=True, slots=True)
class Row:
    """A point, or `points` neighbours with the same outcome, of which `first` and `last` are named."""

    first: str
    last: str
    points: int
    cells: Mapping[SweepKind, Outcomes]

    @property
    def name(self) -> str:
        """What the row is called."""
        return self.first or BEFORE_FIRST

    @property
    def rest(self) -> str:
        """How many more points stand in the row; empty for a single one."""
        return f"and {self.points - 1} more, to {self.last}" if self.points > 1 else ""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The rows that are shown, and how many `points` there are, of which `left_out` are in no row."""

    kinds: tuple[SweepKind, ...]
    rows: tuple[Row, ...]
    points: int
    left_out: int

    @property
    def grouped(self) -> bool:
        """Whether some row stands for several points."""
        return any(row.points > 1 for row in self.rows)


def worst_of(counts: Mapping[OutcomeClass, int]) -> OutcomeClass:
    """The worst class that was met."""
    met: list[OutcomeClass] = [each for each in WORST_FIRST if counts.get(each)]
    return met[0] if met else "as_promised"


def matrix(found: SweepResult, *, most_points: int = MOST_POINTS, most_rows: int = MOST_ROWS) -> Matrix:
    """The matrix of a sweep, points in the order of their life."""
    by_point: dict[str, dict[SweepKind, Outcomes]] = {}
    for (point, kind), counts in found.cells.items():
        if any(counts.values()):
            by_point.setdefault(point, {})[kind] = Outcomes(counts)
    if "" in by_point:
        by_point = {"": by_point.pop(""), **by_point}
    rows = [Row(point, point, 1, cells) for point, cells in by_point.items()]
    shown = _grouped(rows) if len(rows) > most_points else rows
    left_out = sum(row.points for row in shown[most_rows:])
    return Matrix(
        kinds=found.kinds, rows=tuple(shown[:most_rows]), points=len(rows) - ("" in by_point), left_out=left_out
    )


def _grouped(rows: Sequence[Row]) -> list[Row]:
    found: list[Row] = []
    for row in rows:
        if found and _outcome(found[-1]) == _outcome(row):
            before = found.pop()
            cells: dict[SweepKind, Outcomes] = {kind: cell + row.cells[kind] for kind, cell in before.cells.items()}
            row = Row(before.first, row.last, before.points + 1, cells)
        found.append(row)
    return found


def _outcome(row: Row) -> Mapping[SweepKind, OutcomeClass]:
    return {kind: cell.worst for kind, cell in row.cells.items()}
