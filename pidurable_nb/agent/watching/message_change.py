"""Owns how what streams grew: an answer in flight, and a tool's output, from one commit to the next.

Compares two stored values; what an observer applies to the one gives the other. Never reads a store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records.message import Message, items
from pidurable_nb.records.strict import same
from pidurable_nb.store.delta import Append, Trim
from pidurable_nb.store.diff import diff


@dataclass(frozen=True, slots=True)
class BlockStart:
    """A new block at the end of the content, as far as it has come."""

    index: int
    block: JsonObject


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The text of block `index` goes on."""

    index: int
    delta: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """The thinking of block `index` goes on."""

    index: int
    delta: str


@dataclass(frozen=True, slots=True)
class BlockReplaced:
    """Block `index` is now this one."""

    index: int
    block: JsonObject


@dataclass(frozen=True, slots=True)
class WholeMessage:
    """The message is now this one."""

    message: Message


MessageChange: TypeAlias = BlockStart | TextDelta | ThinkingDelta | BlockReplaced | WholeMessage


@dataclass(frozen=True, slots=True)
class OutputGrew:
    """The kept output lost its first `trim_start` characters, and then `append` was added."""

    trim_start: int
    append: str


@dataclass(frozen=True, slots=True)
class OutputSet:
    """The kept output is now this."""

    text: str


OutputChange: TypeAlias = OutputGrew | OutputSet

_GROWING: Final[Mapping[str, tuple[str, type[TextDelta] | type[ThinkingDelta]]]] = {
    "text": ("text", TextDelta),
    "thinking": ("thinking", ThinkingDelta),
}


def message_changes(before: Message, after: Message) -> tuple[MessageChange, ...]:
    """What became of a message in flight, its usage aside; in the order of its blocks."""
    old, new = items(before.get("content")), items(after.get("content"))
    if len(new) < len(old) or not _same_but(before, after, "content", "usage"):
        return (WholeMessage(after),)
    changes: list[MessageChange] = []
    for index, block in enumerate(new):
        if not isinstance(block, Mapping):
            return (WholeMessage(after),)
        was = old[index] if index < len(old) else None
        if index >= len(old):
            changes.append(BlockStart(index, block))
        elif not same(was, block):
            changes.append(_grown(index, was, block) or BlockReplaced(index, block))
    return tuple(changes)


def _grown(index: int, before: Json, after: JsonObject) -> MessageChange | None:
    """The delta of a block that only became longer."""
    if not isinstance(before, Mapping) or before.get("type") != after.get("type"):
        return None
    member, delta = _GROWING.get(str(after.get("type")), (None, None))
    if member is None or delta is None:
        return None
    old, new = before.get(member), after.get(member)
    if not isinstance(old, str) or not isinstance(new, str) or not new.startswith(old):
        return None
    return delta(index, new[len(old) :]) if _same_but(before, after, member) else None


def _same_but(one: JsonObject, other: JsonObject, *members: str) -> bool:
    """Whether two objects differ in nothing but these members."""
    names = (one.keys() | other.keys()).difference(members)
    return all(name in one and name in other and same(one[name], other[name]) for name in names)


def output_change(before: str, after: str) -> OutputChange | None:
    """What became of the kept output of a tool; None: nothing."""
    if before == after:
        return None
    match diff({"output": before}, {"output": after}):
        case (Append(text=added),):
            grew = OutputGrew(0, added)
        case (Trim(), Append(text=added)):
            grew = OutputGrew(len(before) - (len(after) - len(added)), added)
        case (Trim(),):
            grew = OutputGrew(len(before) - len(after), "")
        case _:
            return OutputSet(after)
    # the delta counts in UTF-16 units: halves of a character that meet are one character here
    fits = 0 <= grew.trim_start <= len(before) and before[grew.trim_start :] + grew.append == after
    return grew if fits else OutputSet(after)
