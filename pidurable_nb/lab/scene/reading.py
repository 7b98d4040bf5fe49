"""Owns reading one text of a position whole, a page at a time, and finding something in it.

Pages show what is long cut, and say its size; this is where the rest is. Places in a text are counted in characters
(code points), half a character as one. Never cuts without saying so, and never reads a file by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import ConversationId, EntryId, JsonObject, TaskId
from pidurable_nb.lab.scene.facts import Facts
from pidurable_nb.lab.scene.parts import sayable, short
from pidurable_nb.lab.scene.rows import SHORT, Known, memo_texts, said, value_text
from pidurable_nb.lab.scene.transcript import Reader
from pidurable_nb.records.codec import encode_entry, loads
from pidurable_nb.records.document import ConversationScope
from pidurable_nb.records.message import calls_of, text_of
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import EntryRecord
from pidurable_nb.store.confined import MOST_INTEGER

PAGE: Final = 16_000
"""Characters of a page at most."""

CallPart: TypeAlias = Literal["arguments", "output", "lost"]
Side: TypeAlias = Literal["before", "after"]


class NothingThere(PidurableError, LookupError):
    """What was to be read is not at this position; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfEntry:
    """An entry: what it says, its texts first and its data where it has none; with `stored`, its whole row as JSON."""

    entry: int
    stored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OfCall:
    """A part of a tool call, which is named by the answer that asked for it and the id that it has there."""

    entry: int
    id: str
    part: CallPart


@dataclass(frozen=True, slots=True, kw_only=True)
class OfTask:
    """A memo of a task, or with None its checkpoint."""

    task: int
    memo: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfRow:
    """One side of a line of what the step to `position` changed."""

    position: int
    row: int
    side: Side


Of: TypeAlias = OfEntry | OfCall | OfTask | OfRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A page of a text of `total` characters: those from `start`."""

    start: int
    total: int
    text: str

    def to_json(self) -> JsonObject:
        """As the page gets it. Half a character has no form of its own there: then `text` is JSON text, `escaped`."""
        if self.text == sayable(self.text):
            return {"start": self.start, "total": self.total, "text": self.text}
        return {"start": self.start, "total": self.total, "text": json.dumps(self.text), "escaped": True}


def there(facts: Facts, id: int) -> TaskRecord:
    """The task with that id. Raises: NothingThere."""
    record = facts.tasks.get(TaskId(id))
    if record is None:
        raise NothingThere(f"there is no task {id} at this position")
    return record


def passage(text: str, start: int, count: int) -> Passage:
    """At most `count` characters, and `PAGE`, from `start`."""
    begin = min(max(start, 0), len(text))
    return Passage(start=begin, total=len(text), text=text[begin : begin + max(min(count, PAGE), 0)])


def found_in(text: str, what: str, start: int) -> int | None:
    """Where `what` stands next, from `start`; None where it does not."""
    at = text.find(what, max(start, 0))
    return at if at >= 0 else None


def whole(facts: Facts, known: Known, of: OfEntry | OfCall | OfTask) -> str:
    """All of that text, as it is at these facts. Raises: NothingThere."""
    match of:
        case OfEntry(entry=id, stored=stored):
            return _partial(facts, -id) if id < 0 else entry_text(_stored(facts, id), stored=stored)
        case OfCall():
            return _call(facts, known, of)
        case OfTask():
            return _task(facts, known, of)


def _stored(facts: Facts, id: int) -> EntryRecord:
    kept = facts.entry(EntryId(id)) if id <= MOST_INTEGER else None
    if kept is None:
        raise NothingThere(f"there is no entry {id} at this position")
    return kept.entry


def entry_text(entry: EntryRecord, *, stored: bool) -> str:
    """What an entry says, whole; or the whole of its row as JSON, on lines of its own."""
    return json.dumps(loads(encode_entry(entry)), ensure_ascii=False, indent=2) if stored else said(entry)


def _partial(facts: Facts, id: int) -> str:
    """What is stored of an answer that arrives."""
    for record in facts.documents():
        if record.id == id and isinstance(record.scope, ConversationScope):
            match facts.document(record.scope.conversation, record.kind):
                case (_, {"generation": {"message": Mapping() as message}}):
                    return text_of(message)
                case _:
                    pass
    raise NothingThere("no answer arrives there any more: it is an entry now, or was dropped")


def _call(facts: Facts, known: Known, of: OfCall) -> str:
    entry = _stored(facts, of.entry)
    for message in entry.model or ():
        for call in calls_of(message):
            if sayable(short(call.id, SHORT)) == sayable(of.id):
                texts = Reader(facts, known, ConversationId(entry.conversation)).texts(entry, call)
                match of.part:
                    case "arguments":
                        return texts.arguments
                    case "output":
                        return texts.output
                    case "lost":
                        return texts.lost
    raise NothingThere(f"there is no such call in entry {of.entry}")


def _task(facts: Facts, known: Known, of: OfTask) -> str:
    record = there(facts, of.task)
    if of.memo is not None:
        for name, text in memo_texts(record, known):
            if sayable(short(name, SHORT)) == sayable(of.memo):
                return text
        raise NothingThere(f"task {of.task} has no such memo at this position")
    if record.checkpoint is None:
        raise NothingThere(f"task {of.task} has no checkpoint at this position")
    return value_text(record.checkpoint)
