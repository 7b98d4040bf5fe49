"""Owns the table of the recovery decision: its rows in order, each with its question, laws, sentence and consequence.

The first row that fits is the verdict. `decide` prepares the facts and is the only module that reads this table;
what it prints and what the scheduler does come from the same row, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

from pidurable_nb.clock import as_datetime
from pidurable_nb.ids import TaskId
from pidurable_nb.records import task as stored

if TYPE_CHECKING:
    from pidurable_nb.engine.decide import Facts, Outside

VerdictName: TypeAlias = Literal[
    "finish", "orphan", "abandon", "give_up", "abort", "wait", "sleep", "blocked", "parked", "faulted", "start",
    "replay", "interrupt", "resend", "poll", "resume", "rerun",
]  # fmt: skip

LONGEST = 90
"""Characters of a sentence, at most."""
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def number(n: int) -> str:
    """A small number as a word."""
    return _NUMBERS[n] if 0 <= n < len(_NUMBERS) else str(n)


def _none(facts: Facts) -> tuple[str, ...]:
    return ()


def _free(facts: Facts) -> tuple[TaskId, ...]:
    return ()


def _below(facts: Facts) -> tuple[TaskId, ...]:
    return facts.below


def _says(text: str) -> Callable[[Facts], str]:
    return lambda facts: text


def _causes(what: Outside) -> Callable[[Facts], Outside]:
    return lambda facts: what


def _by(*laws: str) -> Callable[[Facts], tuple[str, ...]]:
    return lambda facts: laws


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a question that facts answer with yes or no, and what a yes means."""

    name: VerdictName
    question: str
    fits: Callable[[Facts], bool]
    laws: Callable[[Facts], tuple[str, ...]]
    sentence: Callable[[Facts], str]
    outside: Callable[[Facts], Outside] = _causes("none")
    reads: Callable[[Facts], tuple[str, ...]] = _none
    held_by: Callable[[Facts], tuple[TaskId, ...]] = _free


def built_in(facts: Facts) -> bool:
    """True for the kinds of this package: no code of the user's is in them, but for hooks."""
    return facts.task.kind.startswith("pi.")


def _runs_user_code(facts: Facts) -> Outside:
    return "none" if built_in(facts) and not facts.code.hooked(facts.task) else "again"


def _finish_sentence(facts: Facts) -> str:
    if facts.below:
        return "Its outcome is already decided; it closes when the work it owns has ended."
    return "Its outcome was already decided; the work it owned has ended, so it closes."


def _orphan_laws(facts: Facts) -> tuple[str, ...]:
    due = ("O7",) if facts.abandoned else ()
    return (*due, *_implied_law(facts), "T8", "O4")


_LACKS = {
    "missing_task": "gone",
    "task_too_old": "too old",
    "migration_failed": "unable to read it",
}


def _orphan_sentence(facts: Facts) -> str:
    blocked = facts.blocked
    lack = _LACKS[blocked.reason] if blocked is not None else "gone"
    return f"It is to be aborted and its code is {lack}; it ends, and nothing of it is undone."


def _blocked_sentence(facts: Facts) -> str:
    match facts.blocked.reason if facts.blocked is not None else None:
        case "task_too_old":
            return "Its code is older than what is stored; it stays as it is until newer code is there."
        case "migration_failed":
            return "Its code cannot read what is stored; it stays as it is until that is mended."
        case _:
            return "Its code is not installed; it stays as it is until it is."


def _abort_sentence(facts: Facts) -> str:
    if facts.implied is None:
        return "It is to be aborted; its abort handler runs once its own work has ended."
    if facts.implied.law == "T4":
        return "A sibling failed; its abort handler runs once its own work has ended."
    return "Its owner was cancelled; its abort handler runs once its own work has ended."


def _implied_law(facts: Facts) -> tuple[str, ...]:
    return (facts.implied.law,) if facts.implied is not None else ()


def _abort_laws(facts: Facts) -> tuple[str, ...]:
    return (*_implied_law(facts), "O2")


def _implied_row(facts: Facts) -> tuple[str, ...]:
    return (f"tasks/{facts.implied.source}",) if facts.implied is not None else ()


def _wait_sentence(facts: Facts) -> str:
    if len(facts.alive) == 1:
        return "It waits for one task that is still alive."
    return f"It waits for {number(len(facts.alive))} tasks that are still alive."


def _sleeps(facts: Facts) -> bool:
    return isinstance(facts.state, stored.Sleeping) and facts.state.until_ms > facts.now_ms


def _sleep_sentence(facts: Facts) -> str:
    until = facts.state.until_ms if isinstance(facts.state, stored.Sleeping) else 0.0
    return f"It sleeps until {_when(until, facts.now_ms)}; nothing runs before."


def _when(at_ms: float, now_ms: float) -> str:
    try:
        at = as_datetime(at_ms)
        same_day = at.date() == as_datetime(now_ms).date()
    except (OverflowError, OSError, ValueError):
        return "a time that no calendar has"
    return at.strftime("%H:%M") if same_day else _date(at)


def _date(at: datetime) -> str:
    return f"{at.day} {at:%B} {at.year}, {at:%H:%M}"


def _parked_sentence(facts: Facts) -> str:
    if facts.restarts == 1:
        return "One opening found it running without progress; it rests until retried."
    return f"{number(facts.restarts).capitalize()} openings found it running without progress; it rests until retried."


def _give_up_sentence(facts: Facts) -> str:
    times = "once" if facts.restarts == 1 else f"{number(facts.restarts)} times"
    return f"Its abort was cut off {times}; it ends as faulted."


def _about_tool(facts: Facts, says: str) -> str:
    """`says` with the tool's name in it, cut to what a sentence holds; a name that would not print is left out."""
    run = facts.live_run
    name = run.tools.get(facts.task.id) if run is not None else None
    if not name or not name.isprintable():
        name = "tool"
    room = LONGEST - len(says.format(""))
    return says.format(name if len(name) <= room else name[: room - 1] + "…")


def _name_row(facts: Facts) -> tuple[str, ...]:
    run = facts.live_run
    return (f"documents/{run.document}",) if run is not None and facts.task.id in run.tools else ()


def _interrupt_sentence(facts: Facts) -> str:
    if facts.code.was_safe(facts.task):
        return _about_tool(facts, "The {} is not run again: safe then, not now. The model is told it was cut off.")
    return _about_tool(facts, "The {} is not run again. It is unsafe, so the model is told it was cut off.")


def _resend_sentence(facts: Facts) -> str:
    if facts.task.kind == "pi.compaction":
        return "The request for a summary was cut; it is sent again."
    if facts.live_run is not None and facts.live_run.partial:
        return "The request was cut; what was stored is kept as aborted, and it is sent again."
    return "The request was cut before any of its answer was stored; it is sent again."


def _resend_rows(facts: Facts) -> tuple[str, ...]:
    run = facts.live_run
    partial = facts.task.kind != "pi.compaction" and run is not None and run.partial
    return (f"documents/{run.document}",) if partial and run is not None else ()


def _resumes(facts: Facts) -> bool:
    return isinstance(facts.state, stored.Waiting | stored.Sleeping)


def _resume_sentence(facts: Facts) -> str:
    if isinstance(facts.state, stored.Sleeping):
        return "The time it slept for has come; it goes on."
    if len(_resume_rows(facts)) < len(_on(facts)):
        return "Something it waited for is not in the store, the rest has ended; it goes on."
    return "Everything it waited for has ended; it goes on."


def _resume_laws(facts: Facts) -> tuple[str, ...]:
    return ("T12",) if isinstance(facts.state, stored.Sleeping) else ("T4",)


def _wait_rows(facts: Facts) -> tuple[str, ...]:
    return tuple(f"tasks/{id}" for id in facts.alive)


def _on(facts: Facts) -> tuple[TaskId, ...]:
    return facts.state.on if isinstance(facts.state, stored.Waiting) else ()


def _resume_rows(facts: Facts) -> tuple[str, ...]:
    return tuple(f"tasks/{id}" for id in _on(facts) if facts.view.task(id) is not None)


def _rerun_sentence(facts: Facts) -> str:
    if built_in(facts) and facts.code.hooked(facts.task):
        return "It runs again from its last checkpoint; a hook that ran may run again."
    if built_in(facts):
        return "It runs again from its last checkpoint; nothing outside had been asked."
    if not facts.task.memos:
        return "It runs again from its last checkpoint; what came after may happen twice."
    return "It runs again from its last checkpoint; only what a memo guards is left out."


TASK_ROWS: tuple[Row, ...] = (
    Row(
        "finish", "Is its outcome already decided?",
        lambda f: isinstance(f.state, stored.Completing),
        _by("T5"), _finish_sentence, held_by=_below,
    ),
    Row(
        "orphan", "Is it to be aborted, and its code missing, too old or unable to read it?",
        lambda f: (f.marked or f.abandoned) and f.blocked is not None,
        _orphan_laws, _orphan_sentence, _causes("unknown"), _implied_row, _below,
    ),
    Row(
        "abandon", "Was it started by an unsafe tool that died?",
        lambda f: f.abandoned,
        _by("O7"), _says("It was started by an unsafe tool that died; it is not resumed, only ended."),
        _causes("unknown"),
    ),
    Row(
        "give_up", "Is it to be aborted, and was that cut off too often?",
        lambda f: f.marked and f.restarts >= f.limit,
        _by("T9"), _give_up_sentence,
        held_by=_below,
    ),
    Row(
        "abort", "Is it to be aborted?",
        lambda f: f.marked,
        _abort_laws, _abort_sentence, _runs_user_code, _implied_row, _below,
    ),
    Row(
        "wait", "Is a task it waits for still alive?",
        lambda f: bool(f.alive),
        _by("T4"), _wait_sentence, reads=_wait_rows,
    ),
    Row("sleep", "Does it sleep until a later time?", _sleeps, _by("T12"), _sleep_sentence),
    Row(
        "blocked", "Is its code missing, too old or unable to read it?",
        lambda f: f.blocked is not None,
        _by("T8"), _blocked_sentence,
    ),
    Row(
        "parked", "Did too many openings find it running without progress?",
        lambda f: f.restarts >= f.limit,
        _by("T9"), _parked_sentence,
    ),
    Row(
        "faulted", "Did its code raise an error in this opening?",
        lambda f: f.fault is not None,
        _by("T11"), _says("Its code raised an error; it rests until the code changes or it is retried."),
    ),
    Row(
        "start", "Did it never begin?",
        lambda f: isinstance(f.state, stored.Pending) and f.task.started_at_ms is None and not f.task.restarts,
        _by("T2"), _says("It never began; it begins now."),
    ),
    Row(
        "replay", "Is it a tool call cut in execute, safe then and now?",
        lambda f: f.refined == "replay",
        _by("E1", "E2"), lambda f: _about_tool(f, "The {} may run again: it is declared safe."),
        _causes("again"), _name_row,
    ),
    Row(
        "interrupt", "Is it a tool call cut in execute?",
        lambda f: f.refined == "interrupt",
        _by("E1", "E3"), _interrupt_sentence, _causes("unknown"), _name_row,
    ),
    Row(
        "resend", "Is it a model request that was cut?",
        lambda f: f.refined == "resend",
        _by("G1"), _resend_sentence, _causes("again"), _resend_rows,
    ),
    Row(
        "poll", "Is it an answer that the provider deferred?",
        lambda f: f.refined == "poll",
        _by("T12"), _says("The provider may have finished meanwhile; it is asked for the same answer."),
    ),
    Row(
        "resume", "Has everything it waited or slept for come?",
        _resumes, _resume_laws, _resume_sentence, reads=_resume_rows,
    ),
    Row(
        "rerun", "Was it cut in any other phase?",
        lambda f: isinstance(f.state, stored.Pending | stored.Running),
        _by("T3", "M3"), _rerun_sentence, _runs_user_code,
    ),
)  # fmt: skip
"""DESIGN section 5, in its order. `pending` and `running` are not told apart below `start`."""
