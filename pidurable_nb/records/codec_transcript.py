"""Owns the stored names of conversations, entries and submissions. Never does I/O.

Import it through `records.codec`.
"""

from __future__ import annotations

from typing import assert_never

from pidurable_nb.ids import ABSENT, Absent, ConversationId, EntryId, Json, JsonObject, SubmissionId, TaskId
from pidurable_nb.records import reading as r
from pidurable_nb.records.jsontext import dumps, loads
from pidurable_nb.records.reading import Object
from pidurable_nb.records.transcript import (
    Answered,
    ConversationRecord,
    Edit,
    EntryRecord,
    Owner,
    Parent,
    Placed,
    Queued,
    SubmissionRecord,
    SubmissionState,
    Unanswered,
    Written,
)

_CONVERSATION = frozenset(("id", "parent", "owner"))
_ENTRY = frozenset(("id", "conversationId", "kind", "model", "data", "head", "edits", "byTaskId"))
_SUBMISSION = frozenset(("id", "conversationId", "requestId", "type", "status"))
_QUEUED = _SUBMISSION
_PLACED = _SUBMISSION | {"entry"}
_ANSWERED = _SUBMISSION | {"entry", "answer"}
_UNANSWERED = _SUBMISSION | {"entry", "reason", "detail"}
_STATUSES = {"input": ("queued", "placed", "done", "unanswered"), "write": ("queued", "done", "unanswered")}


# --- Conversations ----------------------------------------------------------------------------------------------


def encode_conversation(record: ConversationRecord) -> str:
    """The stored text of a conversation."""
    return dumps(conversation_json(record))


def conversation_json(record: ConversationRecord) -> JsonObject:
    """The stored form of a conversation as an object."""
    out: Object = {"id": record.id}
    if record.parent is not None:
        out["parent"] = {"conversationId": record.parent.conversation, "at": record.parent.at}
    if record.owner is not None:
        out["owner"] = {"conversationId": record.owner.conversation, "taskId": record.owner.task}
    return r.merged(out, record.extra)


def decode_conversation(text: str) -> ConversationRecord:
    """The conversation that stored text holds. Raises: BadRecord."""
    return conversation_of(loads(text, "conversation"))


def conversation_of(value: Json) -> ConversationRecord:
    """The conversation that its stored form holds. Raises: BadRecord."""
    return r.whole("conversation", value, _conversation)


def _conversation(obj: Object) -> ConversationRecord:
    parent = r.an_object(obj, "parent") if "parent" in obj else None
    owner = r.an_object(obj, "owner") if "owner" in obj else None
    return ConversationRecord(
        id=ConversationId(r.integer(obj, "id")),
        parent=None
        if parent is None
        else Parent(
            conversation=ConversationId(r.integer(parent, "conversationId", "parent.")),
            at=EntryId(r.integer(parent, "at", "parent.")),
        ),
        owner=None
        if owner is None
        else Owner(
            conversation=ConversationId(r.integer(owner, "conversationId", "owner.")),
            task=TaskId(r.integer(owner, "taskId", "owner.")),
        ),
        extra=r.rest(obj, _CONVERSATION),
    )


# --- Entries ----------------------------------------------------------------------------------------------------


def encode_entry(record: EntryRecord) -> str:
    """The stored text of an entry."""
    return dumps(entry_json(record))


def entry_json(record: EntryRecord) -> JsonObject:
    """The stored form of an entry as an object. It shares the JSON inside the record."""
    out: Object = {"id": record.id, "conversationId": record.conversation, "kind": record.kind}
    if record.model is not None:
        out["model"] = list(record.model)
    if not isinstance(record.data, Absent):
        out["data"] = record.data
    if record.head is not None:
        out["head"] = record.head
    if record.edits:
        out["edits"] = [_edit_json(edit) for edit in record.edits]
    if record.by_task is not None:
        out["byTaskId"] = record.by_task
    return r.merged(out, record.extra)


def _edit_json(edit: Edit) -> JsonObject:
    if edit.messages is None:
        return {"target": edit.target, "action": "omit"}
    return {"target": edit.target, "action": "replace", "messages": list(edit.messages)}


def decode_entry(text: str) -> EntryRecord:
    """The entry that stored text holds. Raises: BadRecord."""
    return entry_of(loads(text, "entry"))


def entry_of(value: Json) -> EntryRecord:
    """The entry that its stored form holds; the record takes `value` over. Raises: BadRecord."""
    return r.whole("entry", value, _entry)


def _entry(obj: Object) -> EntryRecord:
    head, by_task = r.optional_integer(obj, "head"), r.optional_integer(obj, "byTaskId")
    extra = r.rest(obj, _ENTRY)
    if obj.get("edits") == []:  # as none at all, but the text must come back as it was
        extra = {**extra, "edits": []}
    return EntryRecord(
        id=EntryId(r.integer(obj, "id")),
        conversation=ConversationId(r.integer(obj, "conversationId")),
        kind=r.name(obj, "kind"),
        model=tuple(r.objects(obj, "model")) if "model" in obj else None,
        data=obj.get("data", ABSENT),
        head=None if head is None else EntryId(head),
        edits=_edits(obj) if "edits" in obj else (),
        by_task=None if by_task is None else TaskId(by_task),
        extra=extra,
    )


def _edits(obj: Object) -> tuple[Edit, ...]:
    edits: list[Edit] = []
    for index, edit in enumerate(r.objects(obj, "edits")):
        at = f"edits[{index}]."
        target = EntryId(r.integer(edit, "target", at))
        if r.word(edit, "action", ("omit", "replace"), at) == "omit":
            edits.append(Edit(target=target))
        else:
            edits.append(Edit(target=target, messages=tuple(r.objects(edit, "messages", at))))
    return tuple(edits)


# --- Submissions ------------------------------------------------------------------------------------------------


def encode_submission(record: SubmissionRecord) -> str:
    """The stored text of a submission."""
    return dumps(submission_json(record))


def submission_json(record: SubmissionRecord) -> JsonObject:
    """The stored form of a submission as an object. It shares the JSON inside the record."""
    out: Object = {"id": record.id, "conversationId": record.conversation}
    if record.request_id is not None:
        out["requestId"] = record.request_id
    out["type"] = record.type
    out["status"] = record.status
    match record.state:
        case Queued():
            pass
        case Placed(entry=entry) | Written(entry=entry):
            out["entry"] = entry
        case Answered(entry=entry, answer=answer):
            out["entry"] = entry
            out["answer"] = answer
        case Unanswered(reason=reason, detail=detail, entry=placed):
            out["reason"] = reason
            if placed is not None:
                out["entry"] = placed
            if detail is not None:
                out["detail"] = detail
        case _:
            assert_never(record.state)
    return r.merged(out, record.extra)


def decode_submission(text: str) -> SubmissionRecord:
    """The submission that stored text holds. Raises: BadRecord."""
    return submission_of(loads(text, "submission"))


def submission_of(value: Json) -> SubmissionRecord:
    """The submission that its stored form holds; the record takes `value` over. Raises: BadRecord."""
    return r.whole("submission", value, _submission)


def _submission(obj: Object) -> SubmissionRecord:
    is_input = r.word(obj, "type", _STATUSES) == "input"
    state, extra = _submission_state(obj, is_input)
    return SubmissionRecord(
        id=SubmissionId(r.integer(obj, "id")),
        conversation=ConversationId(r.integer(obj, "conversationId")),
        type="input" if is_input else "write",
        state=state,
        request_id=r.optional_text(obj, "requestId"),
        extra=extra,
    )


def _submission_state(obj: Object, is_input: bool) -> tuple[SubmissionState, JsonObject]:
    status = r.word(obj, "status", _STATUSES["input" if is_input else "write"])
    if status == "queued":
        return Queued(), r.rest(obj, _QUEUED)
    if status == "unanswered":
        placed = r.optional_integer(obj, "entry")
        entry = None if placed is None else EntryId(placed)
        state = Unanswered(reason=r.text(obj, "reason"), detail=obj.get("detail"), entry=entry)
        return state, r.rest_and_null(obj, _UNANSWERED, "detail")
    entry = EntryId(r.integer(obj, "entry"))
    if status == "placed":
        return Placed(entry=entry), r.rest(obj, _PLACED)
    if not is_input:
        return Written(entry=entry), r.rest(obj, _PLACED)
    return Answered(entry=entry, answer=EntryId(r.integer(obj, "answer"))), r.rest(obj, _ANSWERED)
