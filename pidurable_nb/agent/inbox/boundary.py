"""Owns boundaries: which queued items are placed at one, in which order, and which are stale (S4). Never starts a run.

Everything that has to be read from tables is read by `select`, before the block writes (C5); `place` writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from pidurable_nb.agent.stored import live
from pidurable_nb.ids import ABSENT, ConversationId, EntryId, Json, JsonObject, SubmissionId
from pidurable_nb.records.message import items, user_message
from pidurable_nb.records.transcript import Placed, Queued, SubmissionRecord, Unanswered, Written
from pidurable_nb.session.transaction import Transaction

BoundaryKind = Literal["post_tools", "final"]
QueueMode = Literal["all", "one_at_a_time"]
Head: TypeAlias = EntryId | Literal["self"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueModes:
    """How many queued items of a kind one boundary takes."""

    steering: QueueMode = "one_at_a_time"
    follow_up: QueueMode = "one_at_a_time"


@dataclass(frozen=True, slots=True)
class Item:
    """A queued submission, as the inbox keeps it."""

    id: SubmissionId
    raw: JsonObject

    @property
    def mode(self) -> str:
        mode = self.raw.get("mode")
        return mode if isinstance(mode, str) else ""

    @property
    def entry(self) -> JsonObject:
        """A write's entry; the kind and data that an input is placed under."""
        entry = self.raw.get("entry")
        return entry if isinstance(entry, Mapping) else {}

    @property
    def head(self) -> Head:
        """Where a write moves the start of what the model sees."""
        head = self.entry.get("head")
        return "self" if head == "self" else EntryId(head) if isinstance(head, int) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a boundary takes. `kept` stays in the inbox, in order; `reset`: one of the writes cuts the context here."""

    conversation: ConversationId
    writes: tuple[Item, ...] = ()
    stale: tuple[Item, ...] = ()
    users: tuple[Item, ...] = ()
    kept: tuple[Item, ...] = ()
    reset: bool = False

    @property
    def empty(self) -> bool:
        """Whether nothing leaves the inbox."""
        return not (self.writes or self.stale or self.users)


def items_of(inbox: JsonObject | None) -> tuple[Item, ...]:
    """What waits, in order."""
    found = inbox.get("items") if inbox is not None else None
    return tuple(
        Item(SubmissionId(id), item)
        for item in items(found)
        if isinstance(item, Mapping) and isinstance(id := item.get("id"), int)
    )


async def select(
    tx: Transaction,
    conversation: ConversationId,
    kind: BoundaryKind,
    modes: QueueModes,
    *,
    joined: Sequence[Item] = (),
    cut: bool = False,
) -> Selection:
    """What a boundary of this kind takes; `joined` are items that this very block queues behind the others.

    `cut`: a head that this block writes before cuts off everything, so that a queued one is stale.
    """
    waiting = (*items_of(await tx.read(live.INBOX, live.at(live.INBOX, conversation))), *joined)
    writes = [item for item in waiting if item.mode == "write"]
    start = float("inf") if cut else 0.0
    if not cut and any(isinstance(item.head, int) for item in writes):
        marker = await tx.latest_head(conversation)
        start = marker.head or 0 if marker is not None else 0
    placed, stale, reset = _ordered(writes, start)
    final = kind == "final" or reset
    taken = _first([item for item in waiting if item.mode == "steer"], modes.steering)
    if final:
        taken += _first([item for item in waiting if item.mode == "followUp"], modes.follow_up)
    gone = {item.id for item in (*placed, *stale, *taken)}
    return Selection(
        conversation=conversation,
        writes=tuple(placed),
        stale=tuple(stale),
        users=tuple(sorted(taken, key=lambda item: item.id)),
        kept=tuple(item for item in waiting if item.id not in gone),
        reset=reset,
    )


def _ordered(writes: Sequence[Item], start: float) -> tuple[list[Item], list[Item], bool]:
    """The writes that are placed, those that would bring back what a head cut, and whether one is a reset."""
    placed: list[Item] = []
    stale: list[Item] = []
    reset = False
    for item in writes:
        head = item.head
        if head == "self":
            reset, start = True, float("inf")  # every entry that exists is older than the one that is written now
        elif head is not None and head < start:
            stale.append(item)
            continue
        elif head is not None:
            start = head
        placed.append(item)
    return placed, stale, reset


def _first(waiting: list[Item], mode: QueueMode) -> list[Item]:
    return waiting if mode == "all" else waiting[:1]


async def place(tx: Transaction, selection: Selection) -> tuple[SubmissionId, ...]:
    """Write what was selected: writes first, then inputs, each in id order. Returns the inputs that were placed."""
    box = await tx.edit(live.INBOX, live.at(live.INBOX, selection.conversation))
    kept = [item.raw for item in selection.kept]
    if box.get("items") != kept:
        box["items"] = kept
    for item in selection.writes:
        record = await _queued(tx, item)
        if record is not None:
            tx.put_submission(
                replace(record, state=Written(entry=append_write(tx, selection.conversation, item.entry)))
            )
    for item in selection.stale:
        record = await _queued(tx, item)
        if record is not None:
            tx.put_submission(replace(record, state=Unanswered(reason="stale")))
    placed: list[SubmissionId] = []
    for item in selection.users:
        record = await _queued(tx, item)
        if record is not None:
            entry = append_input(tx, selection.conversation, item.raw.get("content"), item.entry)
            tx.put_submission(replace(record, state=Placed(entry=entry)))
            placed.append(item.id)
    return tuple(placed)


async def _queued(tx: Transaction, item: Item) -> SubmissionRecord | None:
    """The record of an item; None where a stranger's store keeps an item of nobody's, which is dropped."""
    record = await tx.peek_submission(item.id)
    return record if record is not None and isinstance(record.state, Queued) else None


def append_input(tx: Transaction, conversation: ConversationId, content: Json, entry: JsonObject) -> EntryId:
    """The user's message, with the time of its placement."""
    kind = entry.get("kind")
    message = user_message(content if isinstance(content, str) else _blocks(content), tx.now_ms())
    return tx.append(
        kind if isinstance(kind, str) and kind else "pi.user",
        model=(message,),
        data=entry.get("data", ABSENT),
        conversation=conversation,
    )


def _blocks(content: Json) -> tuple[JsonObject, ...]:
    return tuple(block for block in items(content) if isinstance(block, Mapping))


def append_write(tx: Transaction, conversation: ConversationId, entry: JsonObject) -> EntryId:
    """The entry that a write asked for."""
    head, model = entry.get("head"), entry.get("model")
    return tx.append(
        str(entry.get("kind") or "app.write"),
        data=entry.get("data", ABSENT),
        model=None if model is None else _blocks(model),
        head="self" if head == "self" else EntryId(head) if isinstance(head, int) else None,
        conversation=conversation,
    )
