"""Owns what must hold of conversations in a store: after every commit, and once nothing lives in them any more.

Reads what is stored, and says in a sentence what cannot be. Never runs anything and never decides what a run does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pidurable_nb.agent.inbox import runs
from pidurable_nb.agent.inbox.boundary import items_of
from pidurable_nb.agent.request.context import derive
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.stored.recovery import GENERATION
from pidurable_nb.ids import ConversationId, EntryId, Json, JsonObject, TaskId
from pidurable_nb.records.document import ConversationScope, DocumentRecord
from pidurable_nb.records.message import UNSENT, Message, calls_of, role_of, stop_reason
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, Placed, SubmissionRecord

__all__ = ["Stored", "unfinished", "unsound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The rows that say something about conversations, each oldest first, and the values of live documents by id."""

    conversations: Sequence[ConversationRecord]
    entries: Sequence[EntryRecord]
    tasks: Sequence[TaskRecord]
    submissions: Sequence[SubmissionRecord]
    documents: Sequence[DocumentRecord]
    values: Mapping[int, Json]

    def said(self, kind: str) -> dict[ConversationId, JsonObject]:
        """What the document of this kind says in each conversation that has one."""
        found: dict[ConversationId, JsonObject] = {}
        for record in self.documents:
            value = self.values.get(record.id)
            alive = record.kind == kind and record.retired_at is None and isinstance(value, Mapping)
            if alive and isinstance(record.scope, ConversationScope):
                found[record.scope.conversation] = value if isinstance(value, Mapping) else {}
        return found


# -- after every commit ------------------------------------------------------------------------------------------------


def unsound(there: Stored) -> Iterator[str]:
    """A sentence for everything about a conversation that no commit may leave behind. Laws: S2, V2, O2."""
    yield from _inboxes(there)
    yield from _runs(there)
    yield from _results_twice(there)
    yield from _outlived(there)


def _inboxes(there: Stored) -> Iterator[str]:
    """S2: what is queued waits in its conversation's inbox, and nothing else does."""
    queued: dict[ConversationId, set[int]] = {record.id: set() for record in there.conversations}
    for submission in there.submissions:
        if submission.status == "queued":
            queued.setdefault(submission.conversation, set()).add(submission.id)
    boxes = there.said(live.INBOX.kind)
    for conversation, ids in queued.items():
        waiting = [int(item.id) for item in items_of(boxes.get(conversation))]
        if sorted(ids) != sorted(waiting):
            yield f"conversation {conversation} queued {sorted(ids)}, and its inbox holds {sorted(waiting)} (S2)"


def _runs(there: Stored) -> Iterator[str]:
    """S2, S3: `pi.live.run` names the generation that lives, and the inputs that wait for its answer."""
    busy: dict[ConversationId, list[TaskId]] = {}
    for task in there.tasks:
        if task.kind == GENERATION and task.outcome is None:
            busy.setdefault(task.conversation, []).append(task.id)
    placed: dict[ConversationId, set[int]] = {}
    for submission in there.submissions:
        if isinstance(submission.state, Placed):
            placed.setdefault(submission.conversation, set()).add(submission.id)
    said = there.said(live.LIVE.kind)
    for conversation in dict.fromkeys((*said, *busy, *placed)):
        state = said.get(conversation, {})
        run = state.get("run")
        named = [run.get("taskId")] if isinstance(run, Mapping) else []
        generations, owed = busy.get(conversation, []), {int(id) for id in runs.inputs_of(state)}
        if named != generations:
            yield f"conversation {conversation}: pi.live.run names {named}, and the generations {generations} live (S3)"
        if owed != placed.get(conversation, set()):
            here = sorted(placed.get(conversation, set()))
            yield f"conversation {conversation}: {here} are placed, and its run owes {sorted(owed)} an answer (S2)"


def _results_twice(there: Stored) -> Iterator[str]:
    """V2: a result follows its call, and is the only one."""
    open: dict[ConversationId, set[str]] = {}
    for entry in there.entries:
        for message in entry.model or ():
            here = open.setdefault(entry.conversation, set())
            if role_of(message) == "assistant":
                here.clear()
                here.update(call.id for call in calls_of(message))
            elif role_of(message) == "toolResult":
                call = message.get("toolCallId")
                if call not in here:
                    yield f"entries/{entry.id} is a result of {call!r}, which has one, or was not just called (V2)"
                here.discard(str(call))


def _outlived(there: Stored) -> Iterator[str]:
    """O2: what runs in a conversation that a task owns does not outlive the task."""
    tasks = {task.id: task for task in there.tasks}
    owners = {record.id: record.owner.task for record in there.conversations if record.owner is not None}
    for task in there.tasks:
        above = tasks.get(owners[task.conversation]) if task.conversation in owners else None
        if above is not None and not above.live and task.live and not task.background:
            yield f"task {task.id} lives in conversation {task.conversation}, whose owner {above.id} has ended (O2)"


# -- once nothing lives ------------------------------------------------------------------------------------------------


def unfinished(there: Stored) -> Iterator[str]:
    """A sentence for each call that an idle conversation owes a result, in the transcript or in what a model sees."""
    busy = {task.conversation for task in there.tasks if task.live}
    for record in there.conversations:
        if record.id not in busy:
            yield from _results(there, record)


def _results(there: Stored, conversation: ConversationRecord) -> Iterator[str]:
    """V2: each call of an answer that is sent has one result, directly behind it, in call order."""
    visible = _visible(there, conversation)
    head = next((entry for entry in reversed(visible) if entry.head is not None), None)
    first = head.head if head is not None and head.head is not None else EntryId(0)
    messages = derive([entry for entry in visible if entry.id >= first], head).messages
    kept = Counter(_results_in(message for entry in visible for message in entry.model or ()))
    for at, message in enumerate(messages):
        if role_of(message) != "assistant" or stop_reason(message) in UNSENT:
            continue
        calls = [call.id for call in calls_of(message)]
        behind = list(_results_in(messages[at + 1 : at + 1 + len(calls)]))
        if behind != calls:
            yield f"conversation {conversation.id}: behind the calls {calls} stand the results {behind} (V2)"
        for missing in (call for call in calls if not kept[call]):
            if not _forked_within(conversation, visible, missing):
                yield f"conversation {conversation.id}: the call {missing!r} has no result, and nothing runs (V2)"


def _results_in(messages: Iterable[Message]) -> Iterator[str]:
    return (str(message.get("toolCallId")) for message in messages if role_of(message) == "toolResult")


def _visible(there: Stored, conversation: ConversationRecord) -> list[EntryRecord]:
    """V3: the conversation's entries, those of its parents up to each fork included, oldest first."""
    own = [entry for entry in there.entries if entry.conversation == conversation.id]
    if conversation.parent is None:
        return own
    at = conversation.parent.at
    parent = next(record for record in there.conversations if record.id == conversation.parent.conversation)
    return [*(entry for entry in _visible(there, parent) if entry.id <= at), *own]


def _forked_within(conversation: ConversationRecord, visible: Sequence[EntryRecord], call: str) -> bool:
    """Whether it was forked off between a call and its result: the result is not seen here."""
    asked = [
        entry for entry in visible if any(call == one.id for message in entry.model or () for one in calls_of(message))
    ]
    return conversation.parent is not None and all(entry.conversation != conversation.id for entry in asked)
