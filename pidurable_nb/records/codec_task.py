"""Owns the stored names of task records. Never does I/O, and never decides what a task does next.

Import it through `records.codec`.
"""

from __future__ import annotations

from typing import assert_never

from pidurable_nb.ids import ConversationId, Json, JsonObject, TaskId
from pidurable_nb.records import reading as r
from pidurable_nb.records import task as stored
from pidurable_nb.records.jsontext import dumps, loads
from pidurable_nb.records.reading import Object
from pidurable_nb.records.task import NOTHING, TaskRecord

_KNOWN = frozenset(
    (
        *("id", "conversationId", "kind", "version", "input", "owner", "background", "state", "memos"),
        *("abortRequested", "abortReason", "abandonOnRestart", "startedAt", "endedAt", "restarts"),
    )
)
_KNOWN_STATE = {
    "pending": frozenset(("status", "checkpoint")),
    "running": frozenset(("status", "checkpoint")),
    "waiting": frozenset(("status", "checkpoint", "on", "policy")),
    "sleeping": frozenset(("status", "checkpoint", "until")),
    "completing": frozenset(("status", "outcome")),
    "terminal": frozenset(("status", "outcome")),
}
_KNOWN_OUTCOME = {
    "completed": frozenset(("status", "result")),
    "failed": frozenset(("status", "error", "result")),
    "aborted": frozenset(("status", "reason", "result")),
    "orphaned": frozenset(("status", "reason")),
    "faulted": frozenset(("status", "error")),
}
_KNOWN_ERROR = frozenset(("message", "detail"))
_POLICIES = ("failFast", "allSettled")


# --- Writing ----------------------------------------------------------------------------------------------------


def encode_task(record: TaskRecord) -> str:
    """The stored text of a task."""
    return dumps(task_json(record))


def task_json(record: TaskRecord) -> JsonObject:
    """The stored form of a task as an object. It shares the JSON inside the record."""
    out: Object = {
        "id": record.id,
        "conversationId": record.conversation,
        "kind": record.kind,
        "version": record.version,
        "input": record.input,
        "background": record.background,
        "abortRequested": record.abort_requested,
        "state": state_json(record.state),
    }
    if record.owner is not None:
        out["owner"] = record.owner
    if record.abort_reason is not None:
        out["abortReason"] = record.abort_reason
    if record.abandon_on_restart:
        out["abandonOnRestart"] = True
    if record.memos:
        out["memos"] = record.memos
    if record.started_at_ms is not None:
        out["startedAt"] = record.started_at_ms
    if record.ended_at_ms is not None:
        out["endedAt"] = record.ended_at_ms
    if record.restarts:
        out["restarts"] = record.restarts
    return r.merged(out, record.extra)


def state_json(state: stored.State) -> JsonObject:
    """The stored form of a task's state."""
    match state:
        case stored.Pending():
            out: Object = {"status": "pending", "checkpoint": state.checkpoint}
        case stored.Running():
            out = {"status": "running", "checkpoint": state.checkpoint}
        case stored.Waiting():
            policy = "failFast" if state.fail_fast else "allSettled"
            out = {"status": "waiting", "checkpoint": state.checkpoint, "on": list(state.on), "policy": policy}
        case stored.Sleeping():
            out = {"status": "sleeping", "checkpoint": state.checkpoint, "until": state.until_ms}
        case stored.Completing():
            out = {"status": "completing", "outcome": outcome_json(state.outcome)}
        case stored.Terminal():
            out = {"status": "terminal", "outcome": outcome_json(state.outcome)}
        case _:
            assert_never(state)
    return r.merged(out, state.extra)


def outcome_json(outcome: stored.Outcome) -> JsonObject:
    """The stored form of an outcome."""
    match outcome:
        case stored.Completed():
            out: Object = {"status": "completed", "result": outcome.result}
        case stored.Failed():
            out = {"status": "failed", "error": _error_json(outcome.error)}
            if outcome.result is not None:
                out["result"] = outcome.result
        case stored.Aborted():
            out = {"status": "aborted"}
            if outcome.reason is not None:
                out["reason"] = outcome.reason
            if outcome.result is not None:
                out["result"] = outcome.result
        case stored.Orphaned():
            out = {"status": "orphaned", "reason": outcome.reason}
        case stored.Faulted():
            out = {"status": "faulted", "error": _error_json(outcome.error)}
        case _:
            assert_never(outcome)
    return r.merged(out, outcome.extra)


def _error_json(error: stored.TaskError) -> JsonObject:
    out: Object = {"message": error.message}
    if error.detail is not None:
        out["detail"] = error.detail
    return r.merged(out, error.extra)


# --- Reading ----------------------------------------------------------------------------------------------------


def decode_task(text: str) -> TaskRecord:
    """The task that stored text holds. Raises: BadRecord."""
    return task_of(loads(text, "task"))


def task_of(value: Json) -> TaskRecord:
    """The task that its stored form holds; the record takes `value` over. Raises: BadRecord."""
    return r.whole("task", value, _task)


def _task(obj: Object) -> TaskRecord:
    owner = r.optional_integer(obj, "owner")
    return TaskRecord(
        id=TaskId(r.integer(obj, "id")),
        conversation=ConversationId(r.integer(obj, "conversationId")),
        kind=r.name(obj, "kind"),
        version=r.integer(obj, "version"),
        input=r.anything(obj, "input"),
        state=_state(r.an_object(obj, "state")),
        owner=None if owner is None else TaskId(owner),
        background=r.flag(obj, "background"),
        abort_requested=r.flag(obj, "abortRequested"),
        abort_reason=r.optional_text(obj, "abortReason"),
        abandon_on_restart="abandonOnRestart" in obj and r.flag(obj, "abandonOnRestart"),
        memos=r.an_object(obj, "memos") if "memos" in obj else NOTHING,
        started_at_ms=r.optional_integer(obj, "startedAt", least=0),
        ended_at_ms=r.optional_integer(obj, "endedAt", least=0),
        restarts=r.integer(obj, "restarts", least=0) if "restarts" in obj else 0,
        extra=r.rest(obj, _KNOWN),
    )


def _state(obj: Object) -> stored.State:
    at = "state."
    status = r.word(obj, "status", _KNOWN_STATE, at)
    extra = r.rest(obj, _KNOWN_STATE[status])
    if status == "completing":
        return stored.Completing(outcome=_outcome(r.an_object(obj, "outcome", at)), extra=extra)
    if status == "terminal":
        return stored.Terminal(outcome=_outcome(r.an_object(obj, "outcome", at)), extra=extra)
    checkpoint = r.an_object(obj, "checkpoint", at)
    if status == "pending":
        return stored.Pending(checkpoint=checkpoint, extra=extra)
    if status == "running":
        return stored.Running(checkpoint=checkpoint, extra=extra)
    if status == "sleeping":
        return stored.Sleeping(checkpoint=checkpoint, until_ms=r.moment(obj, "until", at), extra=extra)
    on = tuple(map(TaskId, r.integers(obj, "on", at)))
    fail_fast = r.word(obj, "policy", _POLICIES, at) == "failFast"
    return stored.Waiting(checkpoint=checkpoint, on=on, fail_fast=fail_fast, extra=extra)


def _outcome(obj: Object) -> stored.Outcome:
    at = "state.outcome."
    status = r.word(obj, "status", _KNOWN_OUTCOME, at)
    known = _KNOWN_OUTCOME[status]
    if status == "completed":
        return stored.Completed(result=r.anything(obj, "result", at), extra=r.rest(obj, known))
    if status == "failed":
        error = _error(r.an_object(obj, "error", at))
        return stored.Failed(error=error, result=obj.get("result"), extra=r.rest_and_null(obj, known, "result"))
    if status == "aborted":
        reason = r.optional_text(obj, "reason", at)
        return stored.Aborted(reason=reason, result=obj.get("result"), extra=r.rest_and_null(obj, known, "result"))
    if status == "orphaned":
        return stored.Orphaned(reason=r.text(obj, "reason", at), extra=r.rest(obj, known))
    return stored.Faulted(error=_error(r.an_object(obj, "error", at)), extra=r.rest(obj, known))


def _error(obj: Object) -> stored.TaskError:
    return stored.TaskError(
        message=r.text(obj, "message", "state.outcome.error."),
        detail=obj.get("detail"),
        extra=r.rest_and_null(obj, _KNOWN_ERROR, "detail"),
    )
