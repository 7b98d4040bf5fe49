"""Owns deriving agent events from commits: what one commit means to who shows a conversation. Never writes.

Every event is true of what is stored. A batch is what one commit came to; its order is what a consumer may rely on:
what streams, the entries, what ended, what was settled, what changed, and last what started.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from pidurable_nb.agent.stored import live
from pidurable_nb.agent.watching.agent_event import (
    AgentChanged,
    AgentEvent,
    AutoRetryEnd,
    AutoRetryStart,
    CompactionEnd,
    CompactionStart,
    DeferredPoll,
    EntryAppended,
    GenerationInFlight,
    InboxUpdate,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RunEnd,
    RunStart,
    SubmissionChanged,
    TaskFailure,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    TurnEnd,
    TurnStart,
    UsageChanged,
)
from pidurable_nb.agent.watching.following import Following, follow
from pidurable_nb.agent.watching.live_state import (
    NO_USAGE,
    LiveState,
    inbox_items,
    live_state,
    objects_in,
    snapshot_of,
    text_in,
)
from pidurable_nb.agent.watching.message_change import message_changes, output_change
from pidurable_nb.agent.watching.view import ConversationView, read_view, view_after
from pidurable_nb.ids import ABSENT, Absent, ConversationId, Json, JsonObject, TaskId
from pidurable_nb.probe import ConversationSubject, Subject
from pidurable_nb.records import task as stored
from pidurable_nb.records.message import calls_of, usage_of
from pidurable_nb.records.strict import same
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import EntryRecord
from pidurable_nb.session.changes import Changes, TaskChange
from pidurable_nb.session.session import Session
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.store.storage import TaskQuery

Batch: TypeAlias = tuple[AgentEvent, ...]
PAGE = 500


def events_between(before: ConversationView, changes: Changes, after: ConversationView) -> Batch:
    """What one commit means to who shows the conversation; empty when it means nothing.

    `before` and `after` are its views around the commit. In `changes.tasks`, `before` must be None for new tasks only.
    """
    here = after.conversation.id
    was, now = live_state(before), live_state(after)
    entries = [entry for entry in changes.entries if entry.conversation == here]
    tasks = [change for _, change in sorted(changes.tasks.items()) if change.after.conversation == here]
    ended = dict(_ended_calls(was, now))
    results = {call: entry for entry in entries if (call := _result_of(entry)) in ended}
    return (
        *_tool_starts(was, now, changes, after),
        *_partial(was, now),
        *_tool_updates(was, now),
        *_waits(was.generation, now.generation),
        *_appended(entries, ended, partial=_cleared(was, now)),
        *(ToolExecutionEnd(call_id=call, tool=tool) for call, tool in ended.items() if call not in results),
        *_compaction_ends(was, now),
        *_task_failures(tasks),
        *(TurnEnd() for change in tasks if change.after.kind == "pi.generation" and _decided(change)),
        *((RunEnd(inputs=was.run),) if was.run is not None and _another_run(was, now) else ()),
        *_submissions(changes, here),
        *_documents(before, after),
        *_compaction_starts(was, now),
        *((RunStart(inputs=now.run),) if now.run is not None and _another_run(was, now) else ()),
        *(TurnStart() for change in tasks if change.after.kind == "pi.generation" and change.before is None),
    )


# -- what streams ------------------------------------------------------------------------------------------------------


def _partial(was: LiveState, now: LiveState) -> Iterator[AgentEvent]:
    """The answer in flight began, or went on."""
    message = now.partial
    if message is None:
        return
    known = was.partial if _same_attempt(was, now) else None
    if known is None:
        yield MessageStart(message)
        return
    changes, usage = message_changes(known, message), usage_of(message)
    if changes or not same(usage_of(known), usage):
        yield MessageUpdate(usage=usage, changes=changes)


def _same_attempt(was: LiveState, now: LiveState) -> bool:
    old, new = was.generation, now.generation
    return old is not None and new is not None and old.attempt == new.attempt


def _cleared(was: LiveState, now: LiveState) -> bool:
    """An answer in flight became an entry in this commit: who shows it has seen its start."""
    return was.partial is not None and (now.partial is None or not _same_attempt(was, now))


def _waits(was: GenerationInFlight | None, now: GenerationInFlight | None) -> Iterator[AgentEvent]:
    """A back-off began or ended, or a deferred answer is asked for at another time."""
    old, new = (was.retry if was is not None else None), (now.retry if now is not None else None)
    if was is not None and old is not None and new is None:
        yield AutoRetryEnd(was.attempt)
    if now is not None and new is not None and new != old:
        yield AutoRetryStart(attempt=now.attempt, at_ms=new.at_ms, error=new.error)
    poll = now.poll_at_ms if now is not None else None
    if poll is not None and (was is None or was.poll_at_ms != poll):
        yield DeferredPoll(poll)


# -- tools -------------------------------------------------------------------------------------------------------------


def _before(was: LiveState, call: str, slot: JsonObject) -> JsonObject | None:
    """The slot as it was. A call whose id a provider uses again is another call: its slot is no longer done."""
    old = was.tools.get(call)
    again = old is not None and old.get("status") == "done" and slot.get("status") != "done"
    return None if again else old


def _running(slot: JsonObject | None) -> bool:
    return slot is not None and slot.get("status") == "running"


def _tool_starts(was: LiveState, now: LiveState, changes: Changes, after: ConversationView) -> Iterator[AgentEvent]:
    for call, slot in now.tools.items():
        if _running(slot) and not _running(_before(was, call, slot)):
            arguments = _intent(slot, changes)
            if arguments is None:
                arguments = _asked(call, after)
            yield ToolExecutionStart(call_id=call, tool=text_in(slot, "name"), arguments=arguments)


def _intent(slot: JsonObject, changes: Changes) -> JsonObject | None:
    """The arguments that the call's task is about to run with (E1)."""
    id = slot.get("taskId")
    change = changes.tasks.get(TaskId(id)) if isinstance(id, int) else None
    checkpoint = change.after.checkpoint if change is not None else None
    arguments = checkpoint.get("arguments") if checkpoint is not None else None
    return arguments if isinstance(arguments, Mapping) else None


def _asked(call: str, view: ConversationView) -> JsonObject:
    """The arguments that the model asked with, where the intent is not in this commit."""
    for entry in reversed(view.entries):
        if entry.kind == "pi.assistant" and entry.model:
            for message in entry.model:
                for asked in calls_of(message):
                    if asked.id == call:
                        return asked.arguments
    return {}


def _tool_updates(was: LiveState, now: LiveState) -> Iterator[AgentEvent]:
    for call, slot in now.tools.items():
        if not _running(slot):
            continue
        old = _before(was, call, slot)
        known = old if old is not None and _running(old) else {}
        output = output_change(text_in(known, "output"), text_in(slot, "output"))
        details = _changed_details(known, slot)
        diagnostics = None
        if not same(known.get("diagnostics"), slot.get("diagnostics")):
            diagnostics = objects_in(slot, "diagnostics")
        if output is not None or details is not ABSENT or diagnostics is not None:
            yield ToolExecutionUpdate(
                call_id=call, tool=text_in(slot, "name"), output=output, details=details, diagnostics=diagnostics
            )


def _changed_details(before: JsonObject, after: JsonObject) -> Json | Absent:
    if "details" in after and not ("details" in before and same(before["details"], after["details"])):
        return after["details"]
    return None if "details" in before and "details" not in after else ABSENT


def _ended_calls(was: LiveState, now: LiveState) -> Iterator[tuple[str, str]]:
    """The calls that are over: their slot is done, or went with its run before it was. By id, with the tool's name."""
    for call, slot in now.tools.items():
        old = was.tools.get(call)
        if slot.get("status") == "done":
            if old is None or old.get("status") != "done" or old.get("entry") != slot.get("entry"):
                yield call, text_in(slot, "name")
    for call, slot in was.tools.items():
        if call not in now.tools and slot.get("status") != "done":
            yield call, text_in(slot, "name")


def _result_of(entry: EntryRecord) -> str | None:
    """The call whose result an entry is."""
    if entry.kind != "pi.tool-result" or not entry.model:
        return None
    call = entry.model[0].get("toolCallId")
    return call if isinstance(call, str) else None


# -- entries, tasks and submissions ------------------------------------------------------------------------------------


def _appended(entries: Iterable[EntryRecord], ended: Mapping[str, str], *, partial: bool) -> Iterator[AgentEvent]:
    """The entries in order. With `partial`, the first answer among them began before this commit."""
    for entry in entries:
        call = _result_of(entry)
        if call is not None and call in ended:
            yield ToolExecutionEnd(call_id=call, tool=ended[call], entry=entry)
        if not entry.model:
            yield EntryAppended(entry)
            continue
        if partial and entry.kind == "pi.assistant":
            partial = False
        else:
            yield MessageStart(entry.model[0])
        yield MessageEnd(entry)


def _decided(change: TaskChange) -> bool:
    """The outcome was committed now, whether it is held or not (T5)."""
    return change.after.outcome is not None and (change.before is None or change.before.outcome is None)


def _task_failures(tasks: Iterable[TaskChange]) -> Iterator[AgentEvent]:
    for change in tasks:
        if not _decided(change):
            continue
        task = change.after
        match task.outcome:
            case stored.Faulted(error=error):
                yield TaskFailure(task=task.id, kind=task.kind, message=error.message)
            case stored.Orphaned(reason=reason):
                yield TaskFailure(task=task.id, kind=task.kind, message=reason)
            case _:
                pass


def _submissions(changes: Changes, here: ConversationId) -> Iterator[AgentEvent]:
    for _, change in sorted(changes.submissions.items()):
        if change.after.conversation == here:
            yield SubmissionChanged(change.after)


def _another_run(was: LiveState, now: LiveState) -> bool:
    """A run is known by its first input: it goes on when a task hands it over, and when a steer joins."""
    return (was.run is None) != (now.run is None) or (was.run or ())[:1] != (now.run or ())[:1]


# -- documents ---------------------------------------------------------------------------------------------------------


def _documents(before: ConversationView, after: ConversationView) -> Iterator[AgentEvent]:
    if _changed(before, after, live.INBOX.kind):
        yield InboxUpdate(inbox_items(after))
    if _changed(before, after, live.AGENT.kind):
        yield AgentChanged(after.docs.get(live.AGENT.kind, {}))
    if _changed(before, after, live.USAGE.kind):
        yield UsageChanged(after.docs.get(live.USAGE.kind, NO_USAGE))


def _changed(before: ConversationView, after: ConversationView, kind: str) -> bool:
    old, new = before.docs.get(kind), after.docs.get(kind)
    return old is not new and not (old is not None and new is not None and same(old, new))


def _compaction_ends(was: LiveState, now: LiveState) -> Iterator[AgentEvent]:
    for task, status in was.compactions.items():
        if task not in now.compactions:
            yield CompactionEnd(task=task, reason=text_in(status, "reason"))


def _compaction_starts(was: LiveState, now: LiveState) -> Iterator[AgentEvent]:
    for task, status in now.compactions.items():
        if task not in was.compactions:
            blocking = status.get("blocking") is True
            yield CompactionStart(task=task, reason=text_in(status, "reason"), blocking=blocking)


# -- following ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """What events are derived from: the view, and the live tasks of the conversation."""

    view: ConversationView
    tasks: Mapping[TaskId, TaskRecord]


EventWatch: TypeAlias = Following[Told, Batch]
"""The events of one conversation, a batch for every commit that means something; the first is a snapshot alone."""


class EventProjection:
    """A conversation, to be followed as batches of events."""

    def __init__(self, conversation: ConversationId) -> None:
        self._conversation = conversation

    @property
    def subject(self) -> Subject:
        return ConversationSubject(self._conversation)

    async def read(self, tx: Transaction) -> Told:
        view = await read_view(tx, self._conversation)
        tasks: dict[TaskId, TaskRecord] = {}
        after: int | None = None
        while True:
            query = TaskQuery(conversation=self._conversation, live=True)
            page = await tx.scan_tasks(query, limit=PAGE, after=after)
            tasks.update((record.id, record) for record in page.items)
            after = page.next
            if after is None:
                return Told(view, tasks)

    def advance(self, value: Told, changes: Changes) -> tuple[Told, Batch | None]:
        here = self._conversation
        view = view_after(value.view, changes)
        mine = {id: change.after for id, change in changes.tasks.items() if change.after.conversation == here}
        if not mine and view is value.view and not any(_submissions(changes, here)):
            return value, None
        known = {id: TaskChange(value.tasks.get(id), after) for id, after in mine.items()}
        batch = events_between(value.view, replace(changes, tasks=known), view)
        tasks = {id: record for id, record in {**value.tasks, **mine}.items() if record.live} if mine else value.tasks
        return Told(view, tasks), batch or None

    def whole(self, value: Told) -> Batch:
        return (snapshot_of(value.view),)


async def watch_events(session: Session, conversation: ConversationId) -> EventWatch:
    """Tell what commits mean for one conversation, beginning with a snapshot of it. Not for those that it owns.

    Who is more than 100 batches behind gets one snapshot of the newest state instead of them (V4).
    Raises: StorageRequestError when there is no such conversation; SessionClosed; SessionFailed.
    """
    return await follow(session, EventProjection(conversation), first=True)
