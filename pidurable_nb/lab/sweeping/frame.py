"""Owns the data frame of a sweep: a row for each place of its matrix. pandas is imported when a frame is asked for.

Never counts anything anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pidurable_nb.lab.dying.point import Point, TaskPlace
from pidurable_nb.lab.sweeping.matrix import worst_of
from pidurable_nb.lab.sweeping.points import named
from pidurable_nb.lab.sweeping.tally import CLASSES

if TYPE_CHECKING:
    import pandas as pd

    from pidurable_nb.lab.sweeping.result import SweepResult

__all__ = ["COLUMNS", "frame", "rows"]

COLUMNS: Final = ("point", "kind", "task", "phase", "what", "images", *CLASSES, "broken", "worst", "witness")
"""`task` is a task by kind and number, `what` with its edge; a column for each class counts; `witness` is the story
that the sweep kept for the class of `worst`, which is one of the whole sweep and may crash elsewhere."""


def rows(found: SweepResult) -> list[Mapping[str, object]]:
    """The rows of the frame: a point, or `` for what came before the first, and how it died there."""
    stories = found.witnesses
    made: list[Mapping[str, object]] = []
    for (point, kind), counts in found.cells.items():
        worst = worst_of(counts)
        witness = stories.get(worst)
        made.append(
            {
                "point": point,
                "kind": kind,
                **_parts(point),
                "images": sum(counts.values()),
                **{each: counts.get(each, 0) for each in (*CLASSES, "broken")},
                "worst": worst,
                "witness": None if witness is None else named(witness.crashes),
            }
        )
    return made


def _parts(name: str) -> Mapping[str, str | None]:
    if not name:
        return {"task": None, "phase": None, "what": None}
    point = Point.parse(name)
    what = point.what if point.edge is None else f"{point.what}.{point.edge}"
    if not isinstance(point.place, TaskPlace):
        return {"task": None, "phase": None, "what": what}
    return {"task": str(point.place).rpartition("/")[0], "phase": point.place.phase or None, "what": what}


def frame(found: SweepResult) -> pd.DataFrame:
    """The rows as a frame. Raises: ModuleNotFoundError where pandas is not installed."""
    import pandas as pd

    return pd.DataFrame(rows(found), columns=list(COLUMNS))
