"""Owns who lost a memo (M1): the values that came second, by task and name, in the order in which they came.

A store keeps only the first value. What a run was seen to lose is known; of every other run nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pidurable_nb.ids import TaskId
from pidurable_nb.lab.scene.parts import LostMemo, short
from pidurable_nb.probe import Mark, TaskSubject

MOST: Final = 20
"""Losers that are kept for one memo: the newest."""
LONGEST: Final = 300


def lost_in(seen: Iterable[tuple[str, Mark]]) -> Mapping[tuple[TaskId, str], tuple[LostMemo, ...]]:
    """The losers of each memo. `seen` gives who tried, and the mark that says what lost."""
    found: dict[tuple[TaskId, str], tuple[LostMemo, ...]] = {}
    for by, mark in seen:
        if isinstance(mark.subject, TaskSubject) and mark.name is not None:
            at = mark.subject.id, mark.name
            found[at] = (*found.get(at, ()), LostMemo(value=short(mark.text, LONGEST), by=by))[-MOST:]
    return found
