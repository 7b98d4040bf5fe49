"""Owns admission: how something asked for enters a conversation once (S1), waits, and is placed or withdrawn (S2, S4).

Never runs a model. Runs for inputs stand on top of this; writes need nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pidurable_nb.agent import live
from pidurable_nb.errors import RequestConflict
from pidurable_nb.ids import ABSENT, Absent, ConversationId, Json, JsonObject, SubmissionId
from pidurable_nb.records.strict import same
from pidurable_nb.records.transcript import (
    EntryRecord,
    Queued,
    SubmissionRecord,
    Unanswered,
    Written,
)
from pidurable_nb.session.transaction import Transaction

Match = Literal["new", "same", "differs", "unknown"]
"""S1: whether the request was admitted now, or what an admitted one asked for compares to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDraft:
    """An entry that somebody asks to have written."""

    kind: str
    text: str | None = None
    data: Json | Absent = ABSENT
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """A submission, and how it compares to what was asked for."""

    id: SubmissionId
    match: Match


async def admit_write(
    tx: Transaction, conversation: ConversationId, draft: WriteDraft, request_id: str | None
) -> Admission:
    """Admit a write once (S1): queued behind a run, else placed at once, behind the writes that wait already (S2, S4).

    A write starts no run, so inputs that wait stay where they are (S3).
    """
    if request_id is not None:
        known = await tx.submission_by_request(conversation, request_id)
        if known is not None:
            return await _admitted_before(tx, known, draft)
    state = await tx.read(live.LIVE, live.at(live.LIVE, conversation))
    inbox = await tx.read(live.INBOX, live.at(live.INBOX, conversation))
    items = items_of(inbox)
    busy = live.busy(state)
    waiting = () if busy else await _queued_writes(tx, items)
    record = SubmissionRecord(
        id=SubmissionId(tx.mint()), conversation=conversation, type="write", state=Queued(), request_id=request_id
    )
    entry = _entry_of(draft, tx.now_ms())
    if busy:
        box = await tx.edit(live.INBOX, live.at(live.INBOX, conversation))
        box["items"] = [*items, {"id": record.id, "mode": "write", "entry": entry}]
        tx.put_submission(record)
        return Admission(record.id, "new")
    if waiting:
        placed = {queued.id for queued, _ in waiting}
        box = await tx.edit(live.INBOX, live.at(live.INBOX, conversation))
        box["items"] = [item for item in items if item.get("id") not in placed]
    for queued, kept in (*waiting, (record, entry)):
        _place(tx, queued, kept)
    return Admission(record.id, "new")


async def _queued_writes(
    tx: Transaction, items: Sequence[JsonObject]
) -> tuple[tuple[SubmissionRecord, JsonObject], ...]:
    """The writes that wait, in id order, with the entries they asked for."""
    found: list[tuple[SubmissionRecord, JsonObject]] = []
    for item in items:
        id, entry = item.get("id"), item.get("entry")
        if item.get("mode") == "write" and isinstance(id, int) and isinstance(entry, Mapping):
            record = await tx.submission(SubmissionId(id))
            if record is not None and isinstance(record.state, Queued):
                found.append((record, entry))
    return tuple(found)


async def _admitted_before(tx: Transaction, known: SubmissionRecord, draft: WriteDraft) -> Admission:
    if known.type != "write":
        raise RequestConflict(
            f"request {known.request_id!r} of conversation {known.conversation} was admitted as an {known.type}; "
            f"a write needs another request id (S1)"
        )
    match known.state:
        case Written(entry=entry):
            found = await tx.entry(entry)
            return Admission(known.id, _compared(_shown(found), draft) if found is not None else "unknown")
        case Queued():
            inbox = await tx.read(live.INBOX, live.at(live.INBOX, known.conversation))
            item = next((item for item in items_of(inbox) if item.get("id") == known.id), None)
            entry_json = item.get("entry") if item is not None else None
            return Admission(known.id, _compared(entry_json, draft) if isinstance(entry_json, Mapping) else "unknown")
        case _:
            return Admission(known.id, "unknown")


def _compared(kept: JsonObject, draft: WriteDraft) -> Match:
    """S1: the content without its times."""
    asked = _entry_of(draft, 0)
    return "same" if same(_timeless(kept), _timeless(asked)) else "differs"


def _timeless(entry: JsonObject) -> Json:
    model = entry.get("model")
    messages: Sequence[Json] = model if isinstance(model, Sequence) and not isinstance(model, str) else ()
    bare: list[Json] = [
        {name: value for name, value in m.items() if name != "timestamp"} if isinstance(m, Mapping) else m
        for m in messages
    ]
    return {**{name: entry[name] for name in ("kind", "data", "head") if name in entry}, "model": bare}


def _shown(entry: EntryRecord) -> JsonObject:
    shown: dict[str, Json] = {"kind": entry.kind}
    if entry.model is not None:
        shown["model"] = list(entry.model)
    if entry.data is not ABSENT:
        shown["data"] = entry.data
    if entry.head == entry.id:
        shown["head"] = "self"
    return shown


def _entry_of(draft: WriteDraft, now_ms: int) -> JsonObject:
    """The draft as the inbox stores it."""
    entry: dict[str, Json] = {"kind": draft.kind}
    if draft.text is not None:
        entry["model"] = [{"role": "user", "content": draft.text, "timestamp": now_ms}]
    if draft.data is not ABSENT:
        entry["data"] = draft.data
    if draft.reset:
        entry["head"] = "self"
    return entry


def _place(tx: Transaction, record: SubmissionRecord, entry: JsonObject) -> None:
    model, head = entry.get("model"), entry.get("head")
    messages = tuple(m for m in model if isinstance(m, Mapping)) if isinstance(model, Sequence) else None
    placed = tx.append(
        str(entry["kind"]),
        data=entry.get("data", ABSENT),
        model=messages,
        head="self" if head == "self" else None,
        conversation=record.conversation,
    )
    tx.put_submission(replace(record, state=Written(entry=placed)))


def items_of(inbox: JsonObject | None) -> tuple[JsonObject, ...]:
    """What waits, in order."""
    items = inbox.get("items") if inbox is not None else None
    if not isinstance(items, Sequence) or isinstance(items, str):
        return ()
    return tuple(item for item in items if isinstance(item, Mapping))


async def withdraw(tx: Transaction, submission: SubmissionRecord) -> bool:
    """Take back a queued submission; False when it was placed or settled already (S2)."""
    if not isinstance(submission.state, Queued):
        return False
    box = await tx.edit(live.INBOX, live.at(live.INBOX, submission.conversation))
    box["items"] = [item for item in items_of(box) if item.get("id") != submission.id]
    tx.put_submission(replace(submission, state=Unanswered(reason="aborted")))
    return True


async def withdraw_inputs(tx: Transaction, conversation: ConversationId, queued: Sequence[SubmissionRecord]) -> None:
    """S4: a cancelled conversation gives up its queued inputs and keeps its queued writes."""
    inputs = [record for record in queued if record.type == "input" and isinstance(record.state, Queued)]
    if not inputs:
        return
    gone = {record.id for record in inputs}
    box = await tx.edit(live.INBOX, live.at(live.INBOX, conversation))
    box["items"] = [item for item in items_of(box) if item.get("id") not in gone]
    for record in inputs:
        tx.put_submission(replace(record, state=Unanswered(reason="aborted")))
