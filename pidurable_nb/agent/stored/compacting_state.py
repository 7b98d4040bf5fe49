"""Owns the live compactions of a conversation, as `pi.live` shows them. Never runs one."""

from __future__ import annotations

from collections.abc import Mapping

from pidurable_nb.ids import Json, JsonObject, TaskId
from pidurable_nb.records.message import items


def add(draft: dict[str, Json], task: TaskId, reason: str, *, blocking: bool) -> None:
    """A compaction was created."""
    status: JsonObject = {"taskId": task, "reason": reason, "blocking": blocking, "attempt": 1}
    draft["compactions"] = [*items(draft.get("compactions")), status]
    draft.pop("compactionFailure", None)


def change(draft: dict[str, Json], task: TaskId, attempt: int, retry: JsonObject | None) -> None:
    """It makes another attempt, or waits for the time of one."""
    listed = draft.get("compactions")
    for status in listed if isinstance(listed, list) else ():
        if isinstance(status, dict) and status.get("taskId") == task:
            status["attempt"] = attempt
            if retry is None:
                status.pop("retry", None)
            else:
                status["retry"] = retry


def remove(draft: dict[str, Json], task: TaskId, *, reason: str = "", error: str | None = None) -> None:
    """It has its outcome. `error` stays to be seen until the next one begins."""
    kept = [s for s in items(draft.get("compactions")) if not (isinstance(s, Mapping) and s.get("taskId") == task)]
    if kept:
        draft["compactions"] = kept
    else:
        draft.pop("compactions", None)
    if error is not None:
        draft["compactionFailure"] = {"taskId": task, "reason": reason, "error": error}


def any_live(state: JsonObject | None) -> bool:
    """Whether a compaction is under way."""
    return bool(items(state.get("compactions"))) if state is not None else False
