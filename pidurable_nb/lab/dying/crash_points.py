"""Owns the list of the places where a scenario may die, with what is at stake at each. Never crashes anything there."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pidurable_nb.ids import JsonObject, TaskId
from pidurable_nb.lab.dying.crash import Passed
from pidurable_nb.lab.dying.identity import STORE
from pidurable_nb.lab.dying.lane import in_thread
from pidurable_nb.lab.dying.point import Place, Point, PointWhat, TaskPlace
from pidurable_nb.lab.dying.run import LEDGER, Plan, run_here
from pidurable_nb.lab.scenario import Scenario, around
from pidurable_nb.probe import TaskSubject

__all__ = ["PointInfo", "Shown", "described", "laws_at", "points"]

Shown = Literal["commits", "files"]

_Occurrence: TypeAlias = tuple[Place, PointWhat, int]

_LAWS: Final[dict[str, tuple[str, ...]]] = {
    "reserve": ("T2",),
    "phase": ("T3",),
    "memo": ("M1", "M2"),
    "commit": ("C1", "C2"),
    "effect": ("M3", "E6"),
    "chunk": ("V5", "G1"),
    "publish": ("C2",),
    "open": ("T7",),
    "vfs.write": ("C1",),
    "vfs.truncate": ("C1",),
    "vfs.delete": ("C1",),
    "vfs.sync": ("E5",),
}
"""What a crash at such a place puts to the test, where the core names nothing of its own."""
_TOOL: Final = ("E1", "E2", "E3")
_MODEL: Final = ("G1",)
_ASKS: Final = frozenset({"pi.generation", "pi.compaction"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PointInfo:
    """A place where a first life may die. `str` of it is the point's name.

    `task` is a task by its kind and its number within that kind, as in `ticker#1`, `id` its id in this run, `phase` its
    stored phase; all None where the place is no task's. `commit` is the number of the commit that is made, stored or
    published there, in this run; `laws` are those that a crash there puts to the test.
    """

    point: Point
    task: str | None
    id: TaskId | None
    phase: str | None
    laws: tuple[str, ...]
    commit: int | None
    about: str

    def __str__(self) -> str:
        return str(self.point)

    def to_json(self) -> JsonObject:
        """A row, as a table or a page has it."""
        return {
            "point": str(self.point),
            "task": self.task,
            "id": self.id,
            "phase": self.phase,
            "what": self.point.what,
            "edge": self.point.edge,
            "laws": list(self.laws),
            "commit": self.commit,
            "about": self.about,
        }


def points(scenario: Scenario, *, seed: int = 1, files: bool = True) -> tuple[PointInfo, ...]:
    """Every place where a first life of the scenario may die, in order, under names that survive another choice of ids.

    The life is lived once, undisturbed, on a store of its own. With `files` the places before each operation on the
    store's files are among them. May be called where an event loop runs: the life has a thread.
    Raises: what the life itself raises.
    """
    with tempfile.TemporaryDirectory(prefix="pidurable-points-") as folder:
        return described(passed_by(scenario, Plan(seed=seed, same_bytes=True, record_files=files), Path(folder)))


def passed_by(scenario: Scenario, plan: Plan, folder: Path) -> tuple[Passed, ...]:
    """The points of a first life that ends by itself, lived in `folder`, on a thread. Raises: what it raises."""
    with around(scenario):
        lived = in_thread(lambda: run_here(scenario, folder / STORE, folder / LEDGER, plan))
    if lived.error is not None:
        raise lived.error
    return lived.passed


def described(passed: Sequence[Passed]) -> tuple[PointInfo, ...]:
    """What is known of the points that a life passed, in their order."""
    commits = _commits(passed)
    return tuple(_described(each, commit) for each, commit in zip(passed, commits, strict=True))


def _described(passed: Passed, commit: int | None) -> PointInfo:
    point, mark = passed.point, passed.mark
    place = point.place if isinstance(point.place, TaskPlace) else None
    subject = mark.subject if mark is not None and isinstance(mark.subject, TaskSubject) else None
    return PointInfo(
        point=point,
        task=None if place is None else str(place).rpartition("/")[0],
        id=None if subject is None else subject.id,
        phase=None if place is None else place.phase or None,
        laws=mark.laws if mark is not None and mark.laws else laws_at(point),
        commit=commit,
        about="" if mark is None else ", ".join(word for word in (mark.name, mark.text) if word),
    )


def laws_at(point: Point) -> tuple[str, ...]:
    """The laws that a crash at such a place puts to the test."""
    if point.what == "effect" and isinstance(point.place, TaskPlace):
        if point.place.kind == "pi.tool":
            return _TOOL
        if point.place.kind in _ASKS:
            return _MODEL
    return _LAWS[point.what]


def _commits(passed: Sequence[Passed]) -> list[int | None]:
    """The commit of each point: what its mark says, or the one behind it does, or the newest that is being stored."""
    behind: dict[_Occurrence, int] = {}
    for each in passed:
        if each.mark is not None and each.mark.seq is not None:
            behind[each.point.place, each.point.what, each.point.n] = each.mark.seq
    first = next((n for n, each in enumerate(passed) if each.mark is not None), len(passed))
    found: list[int | None] = [None] * len(passed)
    storing: int | None = None
    for at in range(len(passed) - 1, -1, -1):
        point, mark = passed[at].point, passed[at].mark
        if mark is None:
            found[at] = storing if at > first else None  # before the first there is only the making of the file
        else:
            found[at] = mark.seq if mark.seq is not None else behind.get((point.place, point.what, point.n))
            storing = mark.seq if point.what == "publish" and point.edge == "before" else storing
    return found
