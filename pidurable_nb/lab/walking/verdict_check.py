"""Owns the question whether recovery did what was predicted, for steppers, sweeps and demonstrations alike.

A prediction is read from a store that nobody has open; what was done is the first verdict that the engine acted on for
each task afterwards. A waiting task that the commit of another freed and ended was resumed by that commit. What follows
from the store is marked before anything is started (O6): a task that is marked later was overtaken by what others did
in the new life, and is aborted whatever was predicted. Never decides, and never runs a recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pidurable_nb.engine.decide import STARTS, Verdict
from pidurable_nb.engine.registry import BuiltIn
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.dying.crash import MARK, Act

__all__ = ["NOTHING", "Acted", "Disagreement", "acted", "agrees", "disagreements"]

NOTHING: Final = "nothing"
"""What was done to a task to which nothing was done."""

_RESTS: Final = frozenset({"blocked", "parked", "faulted"})
_OVERTAKEN: Final = frozenset({"abort", "orphan", NOTHING})
_TIMED: Final = frozenset({"wait", "sleep"})
_IN_TIME: Final = frozenset({"resume", "poll", "abort", "orphan", "finish"})
"""What becomes of a task that was predicted to wait or to sleep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A task of which recovery did something else than was predicted. That is an error of this package."""

    task: TaskId
    predicted: str
    done: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """The first verdict that a life acted on for each task, and the tasks that were marked after work had begun."""

    first: Mapping[TaskId, str]
    overtaken: frozenset[TaskId]


def acted(acts: Iterable[Act]) -> Acted:
    """What was done, from the verdicts acted on, in order."""
    first: dict[TaskId, str] = {}
    overtaken: set[TaskId] = set()
    begun = False
    for task, verdict in acts:
        begun = begun or verdict in STARTS
        if task is not None and verdict != MARK:
            first.setdefault(task, verdict)
        elif task is not None and begun and task not in first:
            overtaken.add(task)
    return Acted(first=first, overtaken=frozenset(overtaken))


def disagreements(
    verdicts: Iterable[Verdict], done: Acted, *, may_rest: Callable[[Verdict], bool]
) -> tuple[Disagreement, ...]:
    """The tasks of which something else was done than predicted; empty, or this package is wrong.

    `may_rest` says of which tasks nothing has to have been done yet.
    """
    found: list[Disagreement] = []
    for verdict in verdicts:
        was = done.first.get(verdict.id, NOTHING)
        overtaken = verdict.id in done.overtaken and was in _OVERTAKEN
        if not overtaken and not agrees(verdict, was, may_rest=may_rest(verdict)):
            found.append(Disagreement(task=verdict.id, predicted=verdict.name, done=was))
    return tuple(found)


def agrees(verdict: Verdict, done: str, *, may_rest: bool) -> bool:
    """Whether `done` is what the verdict predicts. With `may_rest`, nothing may have been done either."""
    if done == verdict.name:
        return True
    if verdict.name in _TIMED and done in _IN_TIME:
        return True
    if verdict.name == "abandon" and done == "orphan":
        return True
    return done == NOTHING and (may_rest or verdict.name in _RESTS or _lacks_code(verdict))


def _lacks_code(verdict: Verdict) -> bool:
    return verdict.name in STARTS | {"interrupt"} and isinstance(verdict.facts.fit, BuiltIn)
