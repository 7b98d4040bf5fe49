"""Owns guessing how many tokens messages are. Never asks a model: four characters count as one token.

A guess only decides when to compact and how much to keep. What a provider said about its last request counts more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from pidurable_nb.agent.request.context import Context
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.message import Message, blocks_of, items, role_of, usage_of

CHARACTERS_PER_TOKEN: Final = 4
IMAGE_TOKENS: Final = 1_200
"""What an image counts as, whatever its size."""


def estimate_tokens(message: Message) -> int:
    """About how many tokens the message takes in a request, rounded up."""
    characters = sum(map(_block_characters, blocks_of(message)))
    if role_of(message) == "system":
        characters += _system_characters(message)
    return -(-characters // CHARACTERS_PER_TOKEN)


def context_tokens(context: Context, planned: Sequence[Message]) -> int:
    """About how many tokens a request of this context takes, with the `planned` system messages at its end.

    It starts at the newest answer that says what it used, if the request that it answers was already behind the head:
    everything through that answer is what the provider counted. What follows is estimated, and so is everything where
    there is no such answer.
    """
    counted, rest = _counted(context)
    return counted + sum(map(estimate_tokens, chain(rest, planned)))


def used_tokens(message: Message) -> int:
    """How long the context was behind this answer, as its provider counted it; 0 where it did not."""
    usage = usage_of(message)
    total = _count(usage, "totalTokens")
    return total or sum(_count(usage, name) for name in ("input", "output", "cacheRead", "cacheWrite"))


def _counted(context: Context) -> tuple[int, tuple[Message, ...]]:
    """What the newest answer that counts says, and the messages behind it."""
    behind = context.head.id if context.head is not None else 0
    for entry, contribution in zip(reversed(context.entries), reversed(context.contributions), strict=True):
        if entry.id <= behind:  # its request did not know the head
            break
        for message in reversed(contribution):
            if role_of(message) == "assistant" and (used := used_tokens(message)):
                return used, _after(context.messages, message)
    return 0, context.messages


def _after(messages: tuple[Message, ...], message: Message) -> tuple[Message, ...]:
    for index in range(len(messages), 0, -1):
        if messages[index - 1] is message:
            return messages[index:]
    return messages


def _block_characters(block: JsonObject) -> int:
    match block.get("type"):
        case "text":
            return _length(block.get("text"))
        case "thinking":
            return _length(block.get("thinking"))
        case "image":
            return IMAGE_TOKENS * CHARACTERS_PER_TOKEN
        case "toolCall":
            return _length(block.get("name")) + len(dumps(block.get("arguments", {})))
        case _:
            return 0


def _system_characters(message: Message) -> int:
    sections = message.get("sections")
    texts = sections.values() if isinstance(sections, Mapping) else ()
    return sum(map(_length, texts)) + sum(len(dumps(tool)) for tool in items(message.get("toolsAdded")))


def _length(text: Json) -> int:
    return len(text) if isinstance(text, str) else 0


def _count(usage: JsonObject, name: str) -> int:
    count = usage.get(name)
    return max(0, int(count)) if isinstance(count, int | float) else 0
