"""Owns the question whether recovery did what was predicted, for steppers, sweeps and demonstrations alike.

A prediction is read from a store that nobody has open; what was done is the first verdict that the engine acted on for
each task afterwards, marks left out. Never decides, and never runs a recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pidurable_nb.engine.decide import STARTS, Verdict
from pidurable_nb.engine.registry import BuiltIn
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.crash import Passed
from pidurable_nb.probe import TaskSubject

__all__ = ["NOTHING", "Disagreement", "acted", "agrees", "disagreements"]

NOTHING: Final = "nothing"
"""What was done to a task to which nothing was done."""

_RESTS: Final = frozenset({"blocked", "parked", "faulted"})
_TIMED: Final = frozenset({"wait", "sleep"})
_IN_TIME: Final = frozenset({"resume", "poll", "abort", "orphan", "finish"})
"""What becomes of a task that was predicted to wait or to sleep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A task of which recovery did something else than was predicted. That is an error of this package."""

    task: TaskId
    predicted: str
    done: str


def acted(passed: Iterable[Passed]) -> dict[TaskId, str]:
    """The first verdict that a life acted on for each task, marks left out."""
    done: dict[TaskId, str] = {}
    for each in passed:
        verdict, mark = each.verdict, each.mark
        if verdict is not None and verdict != "mark" and mark is not None and isinstance(mark.subject, TaskSubject):
            done.setdefault(mark.subject.id, verdict)
    return done


def disagreements(
    verdicts: Iterable[Verdict], done: Mapping[TaskId, str], *, may_rest: Callable[[Verdict], bool]
) -> tuple[Disagreement, ...]:
    """The tasks of which something else was done than predicted; empty, or this package is wrong.

    `may_rest` says of which tasks nothing has to have been done yet.
    """
    return tuple(
        Disagreement(task=verdict.id, predicted=verdict.name, done=done.get(verdict.id, NOTHING))
        for verdict in verdicts
        if not agrees(verdict, done.get(verdict.id, NOTHING), may_rest=may_rest(verdict))
    )


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
