"""Owns comparing what was predicted of a step with what happened. Makes nothing equal, and takes no step.

A prediction is what `decide`, or the code's own edges, said right before the step, and what was said before anything
was opened; an outcome is what the walk did and what the ledger counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pidurable_nb.engine.transition import kept_fault
from pidurable_nb.lab.looking.inspect import outcome_word
from pidurable_nb.lab.scene.parts import short
from pidurable_nb.lab.scene.scene import Agreement
from pidurable_nb.lab.scene.taken import MARK, Taken
from pidurable_nb.lab.scene.words import OUTSIDE_WORDS, many
from pidurable_nb.probe import TaskSubject
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord

_LEADS: Final = frozenset({"abort", "orphan", "give_up", "abandon", "finish"})
"""What a task that is marked for abort is predicted to come to."""
_ENDS: Final[Mapping[str, str]] = {"completed": "done", "failed": "failed", "aborted": "aborted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What was said before, what came, and what that makes."""

    predicted: str | None
    happened: str
    agreement: Agreement | None


def compared(taken: Taken) -> Compared:
    step = taken.step
    commit = f" · commit {step.seq}" if step.seq is not None else ""
    if taken.opens:
        return _compared_opening(taken, commit)
    if step.verdict is not None:
        return _compared_verdict(taken, step.verdict, commit)
    if step.effect is not None:
        return _compared_effect(taken)
    return _compared_commit(taken, commit)


def _compared_opening(taken: Taken, commit: str) -> Compared:
    foreseen = {f"tasks/{record.id}" for record in taken.before.live() if reopens(record)}
    came = set(taken.step.changed)
    return Compared(
        predicted=f"{many(len(foreseen), 'row')}, no effect",
        happened=f"{many(len(came), 'row')}, no effect{commit}",
        agreement="agrees" if foreseen == came else "differs",
    )


def reopens(record: TaskRecord) -> bool:
    return isinstance(record.state, stored.Running) or kept_fault(record) is not None


def _compared_verdict(taken: Taken, verdict: str, commit: str) -> Compared:
    ruled = taken.ruled
    predicted = f"{ruled.name} · outside {OUTSIDE_WORDS[ruled.outside]}" if ruled is not None else None
    happened = f"{verdict}{commit} · {many(len(taken.step.changed), 'row')}, no effect"
    if ruled is None:
        return Compared(predicted=None, happened=happened, agreement=None)
    fits = ruled.name in _LEADS if verdict == MARK else ruled.name == verdict
    return Compared(predicted=predicted, happened=happened, agreement="agrees" if fits and _kept(taken) else "differs")


def _kept(taken: Taken) -> bool:
    """Whether what was said before anything was opened still holds: for the first thing that is done to a task."""
    first, verdict = taken.first, taken.step.verdict
    if first is None or taken.seen or verdict in (None, MARK) or first.name == verdict:
        return True
    waited = first.name in ("wait", "sleep") and verdict in ("resume", "poll", "abort", "orphan", "finish")
    return waited or (taken.marked and verdict in ("abort", "orphan")) or (first.name, verdict) == ("abandon", "orphan")


def _compared_effect(taken: Taken) -> Compared:
    repeat = "no repeat" if not taken.again else "again" if taken.counted else "perhaps again"
    predicted = f"1 effect, {repeat}"
    delta = taken.counts.after - taken.counts.before
    if taken.chosen != "run":
        word = {"record": "answered from the record", "happened": "assumed done", "not": "assumed not done"}
        return Compared(predicted=predicted, happened=f"0 effects · {word[taken.chosen]}", agreement="choice")
    happened = (
        f"{many(delta, 'effect')} · asked {taken.counts.after} {'in all' if taken.counted else 'in this recovery'}"
    )
    return Compared(predicted=predicted, happened=happened, agreement="agrees" if delta == 1 else "differs")


def _compared_commit(taken: Taken, commit: str) -> Compared:
    """A commit of a phase: the code says what may follow, by its edges. Any code may raise besides (T11)."""
    mark, step = taken.mark, taken.step
    rows_changed = many(len(step.changed), "row")
    if mark is not None and mark.what == "memo":
        record = taken.after.tasks.get(step.task) if step.task is not None else None
        kept = record is not None and mark.name in record.memos
        name = short(mark.name or "", 60)
        return Compared(
            predicted=f"memo {name} is stored",
            happened=f"memo {name}{commit}",
            agreement="agrees" if kept else "differs",
        )
    before = taken.before.tasks.get(step.task) if step.task is not None else None
    after = taken.after.tasks.get(step.task) if step.task is not None else None
    if mark is None or before is None or after is None or not isinstance(mark.subject, TaskSubject):
        return Compared(predicted=None, happened=f"{rows_changed}{commit}", agreement=None)
    allowed = _may_become(taken, before, mark.subject.phase)
    became = _became(before, after)
    if allowed is None:
        return Compared(predicted=None, happened=f"{became or rows_changed}{commit}", agreement=None)
    fits = became is None or became in allowed or became == "fault"
    words = _any_of(allowed, fault=became == "fault")
    if taken.since == 0 and taken.repeats is not None and fits:
        return Compared(
            predicted=f"{short(words, 80)} · outside can happen again",
            happened=f"{became or 'no transition'} · 0 effects{commit}", agreement="milder",
        )  # fmt: skip
    return Compared(
        predicted=f"{short(words, 80)}, or nothing yet" if became is None else short(words, 80),
        happened=f"{became or rows_changed}{commit}", agreement="agrees" if fits else "differs",
    )  # fmt: skip


def _any_of(allowed: frozenset[str], *, fault: bool) -> str:
    """Phases first, then outcomes; a fault only where it came, since any code may raise (T11)."""
    ends = [end for end in ("done", "failed", "aborted") if end in allowed]
    names = [*sorted(allowed - set(ends)), *ends, *(["a fault"] if fault else [])]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}" if names else "nothing"


def _may_become(taken: Taken, before: TaskRecord, phase: str) -> frozenset[str] | None:
    """The phases and outcomes that the code names behind this phase; None where no code tells."""
    edges = taken.edges.get(before.kind)
    if edges is None:
        return None
    if phase == "abort":
        return frozenset({"done", "failed", "aborted"})
    return frozenset(edge.to for edge in edges if edge.from_ == (before.phase or phase))


def _became(before: TaskRecord, after: TaskRecord) -> str | None:
    """What a task became; None where it stays as it was."""
    word = outcome_word(after)
    if word is not None:
        return _ENDS.get(word, "fault" if word == "faulted" else word)
    if kept_fault(after) is not None and isinstance(before.state, stored.Running):
        return "fault"
    same = before.status == after.status and before.checkpoint == after.checkpoint
    return None if same else short(after.phase or after.status, 60)
