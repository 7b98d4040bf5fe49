"""Owns a ready extension: looking up what was said long ago. Never changes what the model sees otherwise.

A reset or a compaction moves where the model begins to read and deletes nothing (V1): everything is still there.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Final

from pydantic import Field

from pidurable_nb.agent.calls.call import Call
from pidurable_nb.agent.conversation import Conversation
from pidurable_nb.agent.extending.extension import Extension
from pidurable_nb.ids import ABSENT
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.message import Message, calls_of, role_of, text_of
from pidurable_nb.records.transcript import EntryRecord
from pidurable_nb.tools.tool import tool

PAGE: Final = 500
MOST_READ: Final = 20_000
"""How many entries one call looks at; the next one goes on from there."""
BEFORE: Final = 80
BEHIND: Final = 200
"""How many characters of a text are shown around the first word that was found."""
NAME: Final = "search_history"

Words = Sequence[re.Pattern[str]]


@tool(replay="safe", name=NAME)
async def search_history(
    query: Annotated[str, "words that all have to occur in one message, in any order and case"],
    call: Call,
    limit: Annotated[int, Field(ge=1, le=50, description="how many messages to show at most")] = 10,
    before: Annotated[int | None, Field(ge=1, description="search only behind this number, to go on")] = None,
) -> str:
    """Search all that was ever said in this conversation, newest first, also what you do not see any more."""
    words = [re.compile(re.escape(word), re.IGNORECASE) for word in query.split()]
    found: list[str] = []
    read = 0
    async for entry in _backwards(call.open(call.conversation_id), before):
        read += 1
        found += _excerpts(entry, words)
        if len(found) >= limit:
            return _report(found, f"There may be more: search again with before={entry.id}.")
        if read == MOST_READ:
            return _report(found, f"Looked at {read} entries only: to go on, search again with before={entry.id}.")
    return _report(found, "That is all." if found else "Nothing was found.")


async def _backwards(conversation: Conversation, before: int | None) -> AsyncIterator[EntryRecord]:
    """The entries of the conversation, and of those that it is a fork of, newest first (V3)."""
    while True:
        page = await conversation.entries(limit=PAGE, after=before)
        for entry in page.items:
            yield entry
        if page.next is None:
            return
        before = page.next


def _excerpts(entry: EntryRecord, words: Words) -> Iterator[str]:
    """The entry as one line, if all words occur in one of its texts."""
    for who, text in _texts(entry):
        found = [hit for word in words if (hit := word.search(text)) is not None]
        if text.strip() and len(found) == len(words):
            at = min((hit.start() for hit in found), default=0)
            yield f"[{entry.id}] {who}: {_around(text, at)}"
            return


def _texts(entry: EntryRecord) -> Iterator[tuple[str, str]]:
    """Who said what in an entry. Searches and what they found are left out: they would find themselves."""
    if entry.model is None and entry.data is not ABSENT:
        yield entry.kind, dumps(entry.data)
    for message in entry.model or ():
        if message.get("toolName") != NAME:
            called = (f"{call.name}({dumps(call.arguments)})" for call in calls_of(message) if call.name != NAME)
            yield _speaker(message), "\n".join((text_of(message), *called))


def _speaker(message: Message) -> str:
    name = message.get("toolName")
    return f"result of {name}" if isinstance(name, str) else role_of(message)


def _around(text: str, at: int) -> str:
    """The text around a place, in one line."""
    first, last = max(at - BEFORE, 0), at + BEHIND
    line = " ".join(text[first:last].split())
    return f"{'…' if first else ''}{line}{'…' if last < len(text) else ''}"


def _report(found: Sequence[str], end: str) -> str:
    return "\n".join((*found, end))


def history() -> Extension:
    """The tool `search_history`: a conversation finds its own old entries, those before a reset or a compaction too.

    Forks find what they share with their parent. One call looks at 20,000 entries at most, and says when it stopped.
    """
    return Extension("history", tools=[search_history])
