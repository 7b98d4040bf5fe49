"""Owns what a conversation sees through its forks (V3), as pure functions. Never reads a store.

A fork sees its own entries, and of every conversation above it the entries up to the lowest fork point on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pidurable_nb.ids import ConversationId, EntryId
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord


@dataclass(frozen=True, slots=True)
class Segment:
    """The visible part of one conversation: its entries up to `cap`, all of them when None."""

    conversation: ConversationId
    cap: EntryId | None = None

    def sees(self, entry: EntryId) -> bool:
        """True when an entry of this conversation is in the visible part."""
        return self.cap is None or entry <= self.cap


def segments(
    conversation: ConversationRecord, look: Callable[[ConversationId], ConversationRecord | None]
) -> tuple[Segment, ...]:
    """The visible parts, from the conversation itself upwards.

    Storages do not check references: the chain ends at a conversation that is missing, and at one that was passed.
    """
    found = {conversation.id: Segment(conversation.id)}
    cap: EntryId | None = None
    record: ConversationRecord | None = conversation
    while record is not None and (parent := record.parent) is not None and parent.conversation not in found:
        cap = parent.at if cap is None else min(cap, parent.at)
        found[parent.conversation] = Segment(parent.conversation, cap)
        record = look(parent.conversation)
    return tuple(found.values())


def visible(entry: EntryRecord, through: Iterable[Segment]) -> bool:
    """True when `entry` is in one of the segments."""
    return any(part.conversation == entry.conversation and part.sees(entry.id) for part in through)
