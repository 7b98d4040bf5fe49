"""Owns what a compaction summarizes: where a context is cut, and the text that the summarizer reads (K1).

Pure. Never asks a model and never writes: old entries stay in the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pidurable_nb.agent.request.context import Context
from pidurable_nb.agent.request.estimate import estimate_tokens
from pidurable_nb.agent.request.ordering import ordered
from pidurable_nb.ids import EntryId, Json
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.message import Message, ToolCall, blocks_of, calls_of, role_of
from pidurable_nb.records.transcript import EntryRecord

MOST_OF_A_RESULT: Final = 2_000
"""How many characters of a tool result the summarizer reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What is summarized, and `first_kept`, the first entry that is kept as it is: the summary's head.

    `summarized` are the head marker, where there is one, and the entries before the cut; `messages` are theirs, with
    results directly behind their calls.
    """

    first_kept: EntryId
    summarized: tuple[EntryRecord, ...]
    messages: tuple[Message, ...]


def select_range(context: Context, keep_recent_tokens: int) -> Cut | None:
    """Where to cut so that about `keep_recent_tokens` stay; None when there is nothing to compact.

    The cut stands before a user's or an assistant's message, and never between a call and its result. A result too
    long to keep is summarized with its call: less than `keep_recent_tokens` stays then. Laws: K1, V2.
    """
    reached = _reached(context, keep_recent_tokens)
    candidates = _candidates(context)
    if reached is None or not candidates:
        return None
    cut = next((index for index in candidates if index >= reached), candidates[-1])
    if not any(context.contributions[_marker(context) : cut]):
        return None
    return _cut(context, cut)


def cut_at(context: Context, first_kept: EntryId) -> Cut:
    """The cut that was selected before, from the same context. Raises: ValueError when it holds no such entry."""
    for index in range(_marker(context), len(context.entries)):
        if context.entries[index].id == first_kept:
            return _cut(context, index)
    raise ValueError(f"entry {first_kept} is not active in this context; derive it as of the entry it was cut from")


def _cut(context: Context, index: int) -> Cut:
    messages = [message for contribution in context.contributions[:index] for message in contribution]
    return Cut(
        first_kept=context.entries[index].id,
        summarized=context.entries[:index],
        messages=ordered(messages, front=False),
    )


def _marker(context: Context) -> int:
    """How many entries stand before those that may be kept: the head marker."""
    return 0 if context.head is None else 1


def _reached(context: Context, tokens: int) -> int | None:
    """The newest entry from which on there are at least so many tokens; None when there are fewer."""
    sum_of = 0
    for index in range(len(context.entries) - 1, _marker(context) - 1, -1):
        sum_of += sum(map(estimate_tokens, context.contributions[index]))
        if sum_of >= tokens:
            return index
    return None


def _candidates(context: Context) -> list[int]:
    """The entries before which a cut may stand, in order."""
    found: list[int] = []
    held: list[int] = []  # since the newest answer: a result of its calls may still come
    asked: frozenset[str] = frozenset()
    marker = _marker(context)
    for index, contribution in enumerate(context.contributions):
        first = role_of(contribution[0]) if contribution and index >= marker else ""
        if first in ("user", "assistant"):
            held.append(index)
        for message in contribution:
            if role_of(message) == "assistant":  # this entry's own first message, or the end of those before it
                found += held
                held, asked = [], frozenset(call.id for call in calls_of(message))
            elif role_of(message) == "toolResult" and message.get("toolCallId") in asked:
                held = []
    return found + held


# -- what the summarizer reads ---------------------------------------------------------------------------------------


def serialize(messages: Iterable[Message]) -> str:
    """The messages as text, one labelled paragraph each. System messages are left out, and long results are cut."""
    return "\n\n".join(part for message in messages for part in _parts(message))


def _parts(message: Message) -> list[str]:
    match role_of(message):
        case "user":
            return _labelled("User", _text(message))
        case "assistant":
            thinking = "\n".join(_strings(message, "thinking", "thinking"))
            calls = "; ".join(map(_call, calls_of(message)))
            return [
                *_labelled("Assistant thinking", thinking),
                *_labelled("Assistant", _text(message)),
                *_labelled("Assistant tool calls", calls),
            ]
        case "toolResult":
            return _labelled("Tool result", _text(message)[:MOST_OF_A_RESULT])
        case _:
            return []


def _labelled(label: str, text: str) -> list[str]:
    return [f"[{label}]: {text}"] if text else []


def _call(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={dumps(value)}' for key, value in call.arguments.items())})"


def _text(message: Message) -> str:
    return "\n".join(_strings(message, "text", "text"))


def _strings(message: Message, type: str, member: str) -> Sequence[str]:
    found: list[str] = []
    for block in blocks_of(message):
        value: Json = block.get(member)
        if block.get("type") == type and isinstance(value, str):
            found.append(value)
    return found
