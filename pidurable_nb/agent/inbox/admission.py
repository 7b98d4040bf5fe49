"""Owns admission: how something asked for enters a conversation once (S1), and is placed or queued (S2, S3, S4).

Never answers anything. What was admitted before is found by its request id, and compared, before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from pidurable_nb.agent.inbox import boundary, runs
from pidurable_nb.agent.inbox.boundary import Head, Item, QueueModes
from pidurable_nb.agent.stored import live
from pidurable_nb.engine.launching import Launching
from pidurable_nb.errors import ConversationBusy, RequestConflict, StorageRequestError
from pidurable_nb.ids import ABSENT, Absent, ConversationId, Json, JsonObject, SubmissionId
from pidurable_nb.records.message import blocks_of, items
from pidurable_nb.records.strict import detach, same
from pidurable_nb.records.transcript import (
    Answered,
    EntryRecord,
    Placed,
    Queued,
    SubmissionRecord,
    Unanswered,
    Written,
)
from pidurable_nb.session.transaction import Transaction

Match = Literal["new", "same", "differs", "unknown"]
"""S1: whether the request was admitted now, or what an admitted one asked for compares to."""
WhenBusy = Literal["follow_up", "steer", "reject"]
_WHEN_BUSY: Final[tuple[WhenBusy, ...]] = get_args(WhenBusy)
_TYPES: dict[Literal["input", "write"], str] = {"input": "an input", "write": "a write"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDraft:
    """An entry that somebody asks to have written. `head` moves the start of what the model sees."""

    kind: str
    text: str | None = None
    model: Sequence[JsonObject] | None = None
    data: Json | Absent = ABSENT
    head: Head = None

    def entry(self, now_ms: int) -> JsonObject:
        """The draft as the inbox keeps it."""
        entry: dict[str, Json] = {"kind": self.kind}
        if self.text is not None:
            text = detach(self.text, at="$.text")
            entry["model"] = [{"role": "user", "content": text, "timestamp": now_ms}]
        elif self.model is not None:
            entry["model"] = [detach(message, at="$.model") for message in self.model]
        if self.data is not ABSENT:
            entry["data"] = detach(self.data, at="$.data")
        if self.head is not None:
            entry["head"] = self.head
        return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDraft:
    """Something that a user says. `kind` and `data` are those of an application's entry instead of `pi.user`."""

    content: str | Sequence[JsonObject]
    kind: str | None = None
    data: Json | Absent = ABSENT

    def stored_content(self) -> Json:
        """The content as it is stored. Raises NotJson, StorageRequestError for what is neither text nor blocks."""
        if isinstance(self.content, str):
            return detach(self.content, at="$.content")
        blocks: Sequence[object] = self.content
        for index, block in enumerate(blocks):
            if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
                raise StorageRequestError(
                    f"content[{index}] is {block!r}; content is text, or blocks as {{'type': 'text', 'text': 'hello'}}"
                )
        return detach(list(self.content), at="$.content")

    def entry(self) -> JsonObject:
        """What it is placed under; empty for `pi.user`."""
        if self.kind is None:
            return {}
        entry: dict[str, Json] = {"kind": self.kind}
        if self.data is not ABSENT:
            entry["data"] = detach(self.data, at="$.data")
        return entry


@dataclass(frozen=True, slots=True)
class Admission:
    """A submission, and how it compares to what was asked for."""

    id: SubmissionId
    match: Match


# -- inputs ------------------------------------------------------------------------------------------------------------


async def admit_input(
    tx: Transaction,
    launch: Launching,
    conversation: ConversationId,
    draft: InputDraft,
    *,
    request_id: str | None,
    when_busy: WhenBusy,
    modes: QueueModes,
) -> Admission:
    """Admit an input once (S1): placed with a run of its own when nothing runs or waits, else queued.

    Raises ConversationBusy when it may not wait (S3), RequestConflict for a request id of a write.
    """
    if when_busy not in _WHEN_BUSY:
        raise StorageRequestError(f"when_busy={when_busy!r}: one of {', '.join(_WHEN_BUSY)} (S3)")
    known = await _known(tx, conversation, request_id, "input")
    content, entry = draft.stored_content(), draft.entry()
    if known is not None:
        return await _compare_input(tx, known, content, entry)
    busy = live.busy(await tx.read(live.LIVE, live.at(live.LIVE, conversation)))
    if busy and when_busy == "reject":
        raise ConversationBusy(
            f"conversation {conversation} is busy with a run; wait for it, or submit with when_busy='steer' (S3)"
        )
    waiting = boundary.items_of(await tx.read(live.INBOX, live.at(live.INBOX, conversation)))
    if not busy and not waiting:
        placed = boundary.append_input(tx, conversation, content, entry)
        record = _record(tx, conversation, "input", request_id)
        tx.put_submission(replace(record, state=Placed(entry=placed)))
        await runs.start(tx, launch, conversation, (record.id,))
        return Admission(record.id, "new")
    record = _record(tx, conversation, "input", request_id)
    raw: dict[str, Json] = {"id": record.id, "mode": "steer" if when_busy == "steer" else "followUp"}
    raw["content"] = content
    if entry:
        raw["entry"] = entry
    await _queue(tx, launch, record, Item(record.id, raw), busy=busy, modes=modes)
    return Admission(record.id, "new")


# -- writes ------------------------------------------------------------------------------------------------------------


async def admit_write(
    tx: Transaction,
    launch: Launching,
    conversation: ConversationId,
    draft: WriteDraft,
    *,
    request_id: str | None,
    modes: QueueModes,
) -> Admission:
    """Admit a write once (S1): queued behind a run, else placed at once, behind whatever waits already (S2, S4).

    It starts no run by itself (S3); a final boundary that it brings about may, for inputs that waited.
    """
    known = await _known(tx, conversation, request_id, "write")
    entry = draft.entry(tx.now_ms())
    if known is not None:
        return await _compare_write(tx, known, entry)
    busy = live.busy(await tx.read(live.LIVE, live.at(live.LIVE, conversation)))
    record = _record(tx, conversation, "write", request_id)
    item = Item(record.id, {"id": record.id, "mode": "write", "entry": entry})
    await _queue(tx, launch, record, item, busy=busy, modes=modes)
    return Admission(record.id, "new")


async def _queue(
    tx: Transaction, launch: Launching, record: SubmissionRecord, item: Item, *, busy: bool, modes: QueueModes
) -> None:
    """Behind what waits; where nothing runs, that is a final boundary (S4)."""
    if busy:
        box = await tx.edit(live.INBOX, live.at(live.INBOX, record.conversation))
        waiting = box.get("items")
        box["items"] = [*(waiting if isinstance(waiting, list) else ()), item.raw]
        tx.put_submission(record)
        return
    selection = await boundary.select(tx, record.conversation, "final", modes, joined=(item,))
    tx.put_submission(record)
    await runs.next_run(tx, launch, selection)


def _record(
    tx: Transaction, conversation: ConversationId, type: Literal["input", "write"], request_id: str | None
) -> SubmissionRecord:
    return SubmissionRecord(
        id=SubmissionId(tx.mint()), conversation=conversation, type=type, state=Queued(), request_id=request_id
    )


# -- what was admitted before (S1) -------------------------------------------------------------------------------------


async def _known(
    tx: Transaction, conversation: ConversationId, request_id: str | None, type: Literal["input", "write"]
) -> SubmissionRecord | None:
    known = await tx.submission_by_request(conversation, request_id) if request_id is not None else None
    if known is not None and known.type != type:
        raise RequestConflict(
            f"request {known.request_id!r} of conversation {known.conversation} was admitted as {_TYPES[known.type]}; "
            f"{_TYPES[type]} needs another request id (S1)"
        )
    return known


async def _compare_input(tx: Transaction, known: SubmissionRecord, content: Json, entry: JsonObject) -> Admission:
    match known.state:
        case Placed(entry=at) | Answered(entry=at):
            found = await tx.entry(at)
        case Unanswered(entry=at) if at is not None:
            found = await tx.entry(at)
        case Queued():
            item = await _waiting(tx, known)
            if item is None:
                return Admission(known.id, "unknown")
            alike = _alike(item.raw.get("content"), content) and same(item.entry, entry)
            return Admission(known.id, "same" if alike else "differs")
        case _:
            found = None
    if found is None or not found.model:
        return Admission(known.id, "unknown")
    under: dict[str, Json] = {} if found.kind == "pi.user" else {"kind": found.kind}
    if found.data is not ABSENT:
        under["data"] = found.data
    alike = _alike(found.model[0].get("content"), content) and same(under, entry)
    return Admission(known.id, "same" if alike else "differs")


def _alike(one: Json, other: Json) -> bool:
    """Text is the same as one block of it: other writers of the format spell it so."""
    return same(list(blocks_of({"content": one})), list(blocks_of({"content": other})))


async def _compare_write(tx: Transaction, known: SubmissionRecord, entry: JsonObject) -> Admission:
    match known.state:
        case Written(entry=at):
            found = await tx.entry(at)
            kept = _shown(found) if found is not None else None
        case Queued():
            item = await _waiting(tx, known)
            kept = item.entry if item is not None else None
        case _:
            kept = None
    if kept is None:
        return Admission(known.id, "unknown")
    return Admission(known.id, "same" if same(_timeless(kept), _timeless(entry)) else "differs")


async def _waiting(tx: Transaction, known: SubmissionRecord) -> Item | None:
    inbox = await tx.read(live.INBOX, live.at(live.INBOX, known.conversation))
    return next((item for item in boundary.items_of(inbox) if item.id == known.id), None)


def _timeless(entry: JsonObject) -> Json:
    """S1: the content without its times."""
    bare: list[Json] = [
        {name: value for name, value in message.items() if name != "timestamp"}
        for message in items(entry.get("model"))
        if isinstance(message, Mapping)
    ]
    return {**{name: entry[name] for name in ("kind", "data", "head") if name in entry}, "model": bare}


def _shown(entry: EntryRecord) -> JsonObject:
    shown: dict[str, Json] = {"kind": entry.kind}
    if entry.model is not None:
        shown["model"] = list(entry.model)
    if entry.data is not ABSENT:
        shown["data"] = entry.data
    if entry.head is not None:
        shown["head"] = "self" if entry.head == entry.id else entry.head
    return shown
