"""Owns reading `pi.live` and the other built-in documents as what a user interface is told. Never writes them.

What a stranger's store holds in another shape is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pidurable_nb.agent.stored import live
from pidurable_nb.agent.watching.agent_event import GenerationInFlight, InboxItem, Retry, Snapshot
from pidurable_nb.agent.watching.view import ConversationView
from pidurable_nb.ids import Json, JsonObject, SubmissionId, TaskId
from pidurable_nb.records.message import Message, items

NO_USAGE: JsonObject = {"models": {}, "tools": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """What `pi.live` says, as far as events tell it. `tools` are its slots by their call."""

    run: tuple[SubmissionId, ...] | None
    generation: GenerationInFlight | None
    tools: Mapping[str, JsonObject]
    compactions: Mapping[TaskId, JsonObject]

    @property
    def partial(self) -> Message | None:
        """The answer in flight."""
        return self.generation.message if self.generation is not None else None


def live_state(view: ConversationView) -> LiveState:
    """What the view's `pi.live` says."""
    value = view.docs.get(live.LIVE.kind, {})
    tools = {text_in(slot, "callId"): slot for slot in objects_in(value, "tools")}
    compactions = {
        TaskId(id): status for status in objects_in(value, "compactions") if isinstance(id := status.get("taskId"), int)
    }
    return LiveState(run=_inputs(value), generation=_generation(value), tools=tools, compactions=compactions)


def _inputs(value: JsonObject) -> tuple[SubmissionId, ...] | None:
    run = value.get("run")
    if not isinstance(run, Mapping):
        return None
    return tuple(SubmissionId(id) for id in items(run.get("inputs")) if isinstance(id, int))


def _generation(value: JsonObject) -> GenerationInFlight | None:
    kept = value.get("generation")
    if not isinstance(kept, Mapping):
        return None
    message, retry, deferred = kept.get("message"), kept.get("retry"), kept.get("deferred")
    return GenerationInFlight(
        attempt=int(_number(kept.get("attempt"))),
        message=message if isinstance(message, Mapping) else None,
        retry=Retry(at_ms=_number(retry.get("at")), error=text_in(retry, "error"))
        if isinstance(retry, Mapping)
        else None,
        poll_at_ms=_number(deferred.get("pollAt")) if isinstance(deferred, Mapping) else None,
    )


def inbox_items(view: ConversationView) -> tuple[InboxItem, ...]:
    """What waits in the conversation, in id order."""
    waiting = objects_in(view.docs.get(live.INBOX.kind, {}), "items")
    return tuple(
        InboxItem(id=SubmissionId(id), mode=text_in(item, "mode"))
        for item in waiting
        if isinstance(id := item.get("id"), int)
    )


def snapshot_of(view: ConversationView) -> Snapshot:
    """Everything that events later tell changes of."""
    state = live_state(view)
    return Snapshot(
        entries=view.entries,
        run=state.run,
        generation=state.generation,
        tools=tuple(state.tools.values()),
        compactions=tuple(state.compactions.values()),
        inbox=inbox_items(view),
        agent=view.docs.get(live.AGENT.kind, {}),
        usage=view.docs.get(live.USAGE.kind, NO_USAGE),
    )


def objects_in(value: JsonObject, member: str) -> tuple[JsonObject, ...]:
    """The objects of an array that a member holds."""
    return tuple(item for item in items(value.get(member)) if isinstance(item, Mapping))


def text_in(value: JsonObject, member: str) -> str:
    """The text that a member holds; empty where it holds none."""
    text = value.get(member)
    return text if isinstance(text, str) else ""


def _number(value: Json) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
