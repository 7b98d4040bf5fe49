"""Owns which state may follow which (T1), as a pure function of records. Never decides that something should happen."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from pidurable_nb.errors import IllegalTransition
from pidurable_nb.ids import Json, JsonObject, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.strict import same

FAULT_MEMO = "pidurable.fault"
"""The engine's own memo of a kept fault (T11); names that start with `pidurable.` are closed to user code."""
NO_OPENING = 0
"""In that memo: code of the task has run since, so the fault only counts. Openings count from 1."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Code of the task is about to run. `free` when its wait is satisfied or its sleep is due."""

    free: bool = True


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The task's own code goes on from another checkpoint."""

    checkpoint: JsonObject


@dataclass(frozen=True, slots=True)
class Wait:
    """The task's own code waits for other tasks (T4)."""

    checkpoint: JsonObject
    on: tuple[TaskId, ...]
    fail_fast: bool


@dataclass(frozen=True, slots=True)
class Sleep:
    """The task's own code sleeps until a time (T12)."""

    checkpoint: JsonObject
    until_ms: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The outcome is decided. `drained` when no ordinary owned work lives (T5)."""

    outcome: stored.Outcome
    drained: bool


@dataclass(frozen=True, slots=True)
class Drain:
    """The last owned work of a completing task has ended (T5)."""


@dataclass(frozen=True, slots=True)
class Reopen:
    """An opening found the task (T7)."""


@dataclass(frozen=True, slots=True)
class Close:
    """A clean close, which does not count (T7)."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """The task's code was re-installed; the next reservation runs the new one (T10)."""


@dataclass(frozen=True, slots=True)
class KeepFault:
    """The task's code raised and the task is kept (T11). `memo` is the engine's."""

    memo: Json


@dataclass(frozen=True, slots=True)
class Free:
    """A re-install or `retry` frees a kept fault or a parked task: `restarts` start again (T9, T11)."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """The task is ended without any of its code (O4)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Mark:
    """The task is to be aborted (O2, O5, O7)."""

    reason: str | None = None


Event: TypeAlias = (
    Reserve | Checkpoint | Wait | Sleep | Finish | Drain | Reopen | Close | HandOver | KeepFault | Free | Orphan | Mark
)


def advance(record: stored.TaskRecord, event: Event, *, now_ms: int) -> stored.TaskRecord:
    """The record after `event`. Raises IllegalTransition, naming both, when T1 does not allow it."""
    state = record.state
    match event:
        case Reserve():
            return _reserved(record, event, now_ms)
        case Checkpoint(checkpoint) if isinstance(state, stored.Running):
            return _progressed(record, stored.Running(checkpoint=checkpoint))
        case Wait(checkpoint, on, fail_fast) if isinstance(state, stored.Running):
            return _progressed(record, stored.Waiting(checkpoint=checkpoint, on=on, fail_fast=fail_fast))
        case Sleep(checkpoint, until_ms) if isinstance(state, stored.Running):
            return _progressed(record, stored.Sleeping(checkpoint=checkpoint, until_ms=until_ms))
        case Finish(outcome, drained) if isinstance(state, stored.Running):
            return _ended(record, outcome, drained=drained, now_ms=now_ms)
        case Drain() if isinstance(state, stored.Completing):
            return _ended(record, state.outcome, drained=True, now_ms=now_ms)
        case Reopen():
            return _reopened(record)
        case Close() | HandOver() if isinstance(state, stored.Running):
            return replace(record, state=stored.Pending(checkpoint=state.checkpoint, extra=state.extra))
        case KeepFault(memo) if isinstance(state, stored.Running):
            memos = {**record.memos, FAULT_MEMO: memo}
            return replace(record, state=stored.Pending(checkpoint=state.checkpoint), memos=memos)
        case Free() if isinstance(state, stored.Pending):
            return replace(record, restarts=0, memos=without_fault(record.memos))
        case Orphan(reason) if isinstance(state, stored.Pending | stored.Waiting | stored.Sleeping):
            return _ended(record, stored.Orphaned(reason=reason), drained=True, now_ms=now_ms)
        case Mark(reason) if not isinstance(state, stored.Terminal):
            if record.abort_requested:
                return record
            return replace(
                record, abort_requested=True, abort_reason=reason, restarts=0, memos=without_fault(record.memos)
            )
        case _:
            raise IllegalTransition(
                f"task {record.id} is {record.status}; {type(event).__name__.lower()} is not legal there (T1)"
            )


def _reserved(record: stored.TaskRecord, event: Reserve, now_ms: int) -> stored.TaskRecord:
    started = record.started_at_ms if record.started_at_ms is not None else now_ms
    match record.state:
        case stored.Pending(checkpoint=checkpoint):
            pass
        case stored.Waiting(checkpoint=checkpoint) | stored.Sleeping(checkpoint=checkpoint) if (
            event.free or record.abort_requested
        ):
            pass
        case _:
            raise IllegalTransition(f"task {record.id} is {record.status} and not free; it cannot be reserved (T1)")
    return replace(
        record, state=stored.Running(checkpoint=checkpoint), started_at_ms=started, memos=_over(record.memos)
    )


def _progressed(
    record: stored.TaskRecord, state: stored.Running | stored.Waiting | stored.Sleeping
) -> stored.TaskRecord:
    """T9: a state committed by the task's own code that differs clears `restarts` and the kept fault."""
    if (not record.restarts and FAULT_MEMO not in record.memos) or not differs(record.state, state):
        return record.with_state(state)
    return replace(record, state=state, restarts=0, memos=without_fault(record.memos))


def _ended(record: stored.TaskRecord, outcome: stored.Outcome, *, drained: bool, now_ms: int) -> stored.TaskRecord:
    """T5, T6: the checkpoint, the memos and `restarts` go with the outcome."""
    state: stored.State = stored.Terminal(outcome=outcome) if drained else stored.Completing(outcome=outcome)
    ended = now_ms if drained else None
    return replace(record, state=state, memos=stored.NOTHING, restarts=0, ended_at_ms=ended)


def _reopened(record: stored.TaskRecord) -> stored.TaskRecord:
    """T7: what an opening makes of a task. Everything but running and kept faults stays as it is."""
    match record.state:
        case stored.Running(checkpoint=checkpoint, extra=extra):
            state = stored.Pending(checkpoint=checkpoint, extra=extra)
            return replace(record, state=state, restarts=record.restarts + 1)
        case stored.Pending() if kept_fault(record) is not None:
            return replace(record, restarts=record.restarts + 1)
        case stored.Pending() | stored.Waiting() | stored.Sleeping() | stored.Completing() | stored.Terminal():
            return record
        case _:
            assert_never(record.state)


def differs(before: stored.State, after: stored.State) -> bool:
    """T9: whether a task's own commit is progress: another status, checkpoint, `on`, due time or outcome."""
    match before, after:
        case stored.Running(checkpoint=old), stored.Running(checkpoint=new):
            return old != new or not same(old, new)  # unequal is never the same; equal may be: True == 1
        case _:
            return True


def without_fault(memos: Mapping[str, Json]) -> Mapping[str, Json]:
    """The memos without the engine's own."""
    if FAULT_MEMO not in memos:
        return memos
    return {name: value for name, value in memos.items() if name != FAULT_MEMO}


def _over(memos: Mapping[str, Json]) -> Mapping[str, Json]:
    """The memos when code runs again: a fault is there to be counted, and no opening keeps its task any more.

    Without this, a clean close would leave a row that the next opening takes for kept, and counts (T9).
    """
    memo = memos.get(FAULT_MEMO)
    return {**memos, FAULT_MEMO: {**memo, "opening": NO_OPENING}} if isinstance(memo, Mapping) else memos


@dataclass(frozen=True, slots=True)
class KeptFault:
    """T11: a fault that did not end its task. `opening` is the one that kept it."""

    message: str
    detail: Json
    phase: str
    opening: int
    count: int


def kept_fault(record: stored.TaskRecord) -> KeptFault | None:
    """The fault that keeps a pending task from being scheduled; None when there is none or the memo is stale."""
    memo = record.memos.get(FAULT_MEMO)
    if not isinstance(record.state, stored.Pending) or not isinstance(memo, Mapping):
        return None
    error, phase = memo.get("error"), memo.get("phase")
    opening, count = memo.get("opening"), memo.get("count")
    if not isinstance(opening, int) or opening == NO_OPENING:
        return None
    message = error.get("message") if isinstance(error, Mapping) else None
    if not isinstance(error, Mapping) or not isinstance(message, str) or not isinstance(phase, str):
        return None
    if memo.get("digest") != checkpoint_digest(record.state.checkpoint):
        return None
    return KeptFault(message, error.get("detail"), phase, opening, count if isinstance(count, int) else 1)


def fault_memo(record: stored.TaskRecord, *, message: str, detail: Json, phase: str, opening: int) -> Json:
    """The memo that keeps this fault, counting those of the same checkpoint."""
    checkpoint = record.checkpoint or stored.NOTHING
    digest = checkpoint_digest(checkpoint)
    before = record.memos.get(FAULT_MEMO)
    count = 1
    if isinstance(before, Mapping) and before.get("digest") == digest:
        last = before.get("count")
        count = last + 1 if isinstance(last, int) else 2
    error: dict[str, Json] = {"message": message}
    if detail is not None:
        error["detail"] = detail
    return {"error": error, "phase": phase, "digest": digest, "opening": opening, "count": count}


def checkpoint_digest(checkpoint: JsonObject) -> str:
    """A digest of a checkpoint that does not depend on key order."""
    return hashlib.sha256(dumps(_ordered(checkpoint)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _ordered(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {name: _ordered(value[name]) for name in sorted(value)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_ordered(item) for item in value]
    return value
