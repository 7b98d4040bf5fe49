"""Owns a verdict as a scene keeps it: read whole when it was given, with the questions that led to it. Gives none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pidurable_nb.engine import rows
from pidurable_nb.engine.decide import Outside, Verdict
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.scene.parts import short
from pidurable_nb.lab.scene.scene import Ladder, Rung
from pidurable_nb.records import task as stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """A verdict as it was when it was asked for: nothing in it is read later."""

    task: TaskId
    name: str
    because: str
    outside: Outside
    laws: tuple[str, ...]
    asked: tuple[tuple[str, bool], ...]
    read: str
    otherwise: str | None
    first_no: str | None


def ruling_of(verdict: Verdict) -> Ruling:
    """Everything that is shown of a verdict, read now."""
    return Ruling(
        task=verdict.id,
        name=verdict.name,
        because=verdict.because,
        outside=verdict.outside,
        laws=verdict.laws,
        asked=verdict.asked,
        read=_read(verdict),
        otherwise=_otherwise(verdict),
        first_no=_policies(verdict) if verdict.name == "interrupt" else None,
    )


def _otherwise(verdict: Verdict) -> str | None:
    """What the first later row that fits would have said; None where none does."""
    if verdict.name == "finish":
        return None  # no later question is asked of a task that is completing
    after = rows.TASK_ROWS[rows.TASK_ROWS.index(verdict.row) + 1 :]
    return next((row.name for row in after if row.fits(verdict.facts)), None)


def _read(verdict: Verdict) -> str:
    """What the row that fits read, with its values."""
    task, facts, state = verdict.task, verdict.facts, verdict.task.state
    name = f"task {task.id}"
    phase = short(task.phase or "", 60)
    match verdict.name:
        case "finish":
            return f"{name} status = completing" + (f", owns live {ids(facts.below)}" if facts.below else "")
        case "orphan" | "abort" | "abandon" | "give_up":
            if verdict.name == "abandon":
                return f"{name} abandonOnRestart = true"
            implied = facts.implied
            marked = f"{name} abortRequested = true" if implied is None else f"task {implied.source}, by {implied.law}"
            lacks = f", code: {facts.blocked.reason}" if verdict.name == "orphan" and facts.blocked is not None else ""
            return marked + lacks
        case "wait" | "resume" if isinstance(state, stored.Waiting):
            alive = f", alive: {ids(facts.alive)}" if facts.alive else ", none alive"
            return f"{name} on = {ids(state.on)}{alive}"
        case "sleep" | "resume" if isinstance(state, stored.Sleeping):
            return f"{name} until = {state.until_ms:.0f}, now {facts.now_ms:.0f}"
        case "blocked":
            return f"{name} needs {short(verdict.needs or 'code', 80)}"
        case "parked":
            return f"{name} restarts = {facts.restarts}, limit {facts.limit}"
        case "faulted":
            return f"{name} memo pidurable.fault"
        case "start":
            return f"{name} startedAt: none, restarts = 0"
        case "replay":
            return _policies(verdict)
        case "interrupt" | "resend" | "poll":
            return f"{name} checkpoint.phase = {phase}"
        case _:
            memos = ", ".join(short(memo, 30) for memo in list(task.memos)[:5])
            return f"{name} checkpoint.phase = {phase}" + (f", memos: {memos}" if memos else ", no memo")


def _policies(verdict: Verdict) -> str:
    if not verdict.facts.code.was_safe(verdict.task):
        return "stored replay = unsafe"  # what is declared today is not even asked (E3)
    return f"stored replay = safe, current = {'safe' if verdict.name == 'replay' else 'not safe'}"


def ids(tasks: Sequence[TaskId]) -> str:
    """The first numbers of a list, and how many more there are."""
    found = ", ".join(str(id) for id in tasks[:8])
    return f"{found} and {len(tasks) - 8} more" if len(tasks) > 8 else found


def ladder_of(ruling: Ruling) -> Ladder:
    """The questions in the order in which they were asked; the last one was answered with yes."""
    *before, (question, _) = ruling.asked
    last = Rung(
        question=question, answer="yes", read=ruling.read,
        exit=f"no → {ruling.otherwise}" if ruling.otherwise is not None else None,
    )  # fmt: skip
    rungs = [last]
    if ruling.first_no is not None and before:
        no, _ = before.pop()
        rungs.insert(0, Rung(question=no, answer="no", read=ruling.first_no, exit="yes → replay"))
    return Ladder(skipped=tuple(asked for asked, _ in before), rungs=tuple(rungs), end=ruling.name)
