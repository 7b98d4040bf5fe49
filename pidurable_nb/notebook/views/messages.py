"""Owns what a stored message says to a reader, as foreign text. Never renders it and never reads a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from pidurable_nb.ids import ABSENT, Json, JsonObject
from pidurable_nb.notebook.views.markup import short
from pidurable_nb.records.message import Message, blocks_of, error_text, harness_block, items, role_of, stop_reason
from pidurable_nb.records.strict import same
from pidurable_nb.records.transcript import EntryRecord

MOST_BLOCKS: Final = 100


def said(entry: EntryRecord) -> str:
    """What an entry says: its messages, else its data."""
    texts = [text for message in entry.model or () for text in saying(message, diagnostics_of(entry))]
    if texts:
        return "\n".join(texts)
    return "" if entry.data is ABSENT else short(entry.data, 200)


def saying(message: Message, diagnostics: Sequence[JsonObject] = ()) -> Sequence[str]:
    """What a message says, part by part. `diagnostics` are those of the call that it is the result of."""
    if role_of(message) == "toolResult":
        return [f"{_name(message.get('toolName'))}: {result_text(message, diagnostics) or 'nothing'}"]
    found = [text for block in islice(blocks_of(message), MOST_BLOCKS) if (text := _block(block))]
    if role_of(message) == "assistant" and stop_reason(message) == "error":
        found.append(error_text(message))
    for word, member in (("offers", "toolsAdded"), ("offers no more", "toolsRemoved")):
        if names := [_name(tool) for tool in islice(items(message.get(member)), MOST_BLOCKS)]:
            found.append(f"{word} {', '.join(names)}")
    sections = message.get("sections")
    if isinstance(sections, Mapping):
        found += [f"{name}: {text if isinstance(text, str) else 'no more'}" for name, text in sections.items()]
    return found or (["the prompt is empty"] if role_of(message) == "system" else [])


def result_text(message: Message, diagnostics: Sequence[JsonObject]) -> str:
    """The text of a tool's result, then its diagnostics, one a line: the model reads them in a block of their own."""
    blocks = blocks_of(message)
    if diagnostics and blocks and same(blocks[-1], harness_block(diagnostics)):
        blocks = blocks[:-1]
    lines = [text for block in islice(blocks, MOST_BLOCKS) if (text := _block(block))]
    return "\n".join([*lines, *(_diagnostic(each) for each in diagnostics)])


def diagnostics_of(entry: EntryRecord) -> tuple[JsonObject, ...]:
    """The diagnostics that stand beside a tool's result."""
    kept = entry.data.get("diagnostics") if entry.data is not ABSENT and isinstance(entry.data, Mapping) else None
    return tuple(each for each in items(kept) if isinstance(each, Mapping))


def _diagnostic(diagnostic: JsonObject) -> str:
    text = diagnostic.get("message")
    return text if isinstance(text, str) else short(diagnostic)


def _name(tool: Json) -> str:
    named = tool.get("name") if isinstance(tool, Mapping) else tool
    return named if isinstance(named, str) else "?"


def _block(block: Json) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "thinking", "thinking": str(text)}:
            return f"[thinking, {len(text):,} characters]"
        case {"type": "toolCall", "name": str(name), "arguments": arguments}:
            return f"calls {name}({short(arguments, 120)})"
        case {"type": str(kind)}:
            return f"[{kind}]"
        case _:
            return ""
