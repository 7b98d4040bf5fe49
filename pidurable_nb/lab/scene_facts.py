"""Owns the facts of a store at one position of a walk: what its file held, and what the steps so far changed.

The file is read once, from a copy that is the caller's own; a later position is the same facts with the rows of its
steps over them. Never decides, never takes a step, and never shows anything.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, TypeVar

from pidurable_nb.agent import live
from pidurable_nb.agent.recovery import TOOL
from pidurable_nb.engine.snapshot import LiveRun, Snapshot
from pidurable_nb.ids import ConversationId, DocumentId, EntryId, JsonObject, Seq, SubmissionId, TaskId
from pidurable_nb.lab.stepper import RowChange
from pidurable_nb.records import codec
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import ConversationScope, DocumentRecord
from pidurable_nb.records.message import items
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, Placed, Queued, SubmissionRecord
from pidurable_nb.store.ancestry import segments
from pidurable_nb.store.storage import Storage, StoredDocument, StoredEntry
from pidurable_nb.store.stranger import StoreFile

T = TypeVar("T")
KEPT: Final = 2000
"""Entries that are kept in memory once they were read."""


class Base:
    """What a file holds: its records in memory, but for the entries, of which only the order is; `file` stays open."""

    def __init__(self, file: StoreFile) -> None:
        self.file = file
        self.next_seq: Seq = file.next_seq
        self.tasks: dict[TaskId, TaskRecord] = {record.id: record for record in file.tasks()}
        self.submissions: dict[SubmissionId, SubmissionRecord] = {record.id: record for record in file.submissions()}
        self.conversations: dict[ConversationId, ConversationRecord] = {r.id: r for r in file.conversations()}
        self.documents: dict[DocumentId, DocumentRecord] = {record.id: record for record in file.documents()}
        self.order: dict[ConversationId, list[EntryId]] = {}
        self.heads: dict[ConversationId, list[EntryId]] = {}
        self.results: dict[TaskId, EntryId] = {}
        self.answers: dict[tuple[str, bool], int] = {}
        for entry in file.entries():
            self.order.setdefault(entry.conversation, []).append(entry.id)
            if entry.head is not None:
                self.heads.setdefault(entry.conversation, []).append(entry.id)
            if entry.kind == "pi.tool-result" and entry.by_task is not None:
                self.results[entry.by_task] = entry.id
        self.entry = lru_cache(maxsize=KEPT)(file.entry)
        self.value = lru_cache(maxsize=200)(self._value)

    def _value(self, id: DocumentId) -> JsonObject | None:
        found = self.file.document_value(id)
        return found[1] if found is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """What one step wrote, as records. A document's value is None where it was retired."""

    seq: Seq | None = None
    tasks: Mapping[TaskId, TaskRecord] = field(default_factory=dict)
    submissions: Mapping[SubmissionId, SubmissionRecord] = field(default_factory=dict)
    conversations: Mapping[ConversationId, ConversationRecord] = field(default_factory=dict)
    entries: tuple[StoredEntry, ...] = ()
    documents: Mapping[DocumentId, tuple[DocumentRecord | None, JsonObject | None]] = field(default_factory=dict)


def patch_of(changes: Iterable[RowChange], seq: Seq | None, read: Reading) -> Patch:
    """The records of the rows that a step changed. `read` asks the walked copy for what a row's text does not say."""
    tasks: dict[TaskId, TaskRecord] = {}
    submissions: dict[SubmissionId, SubmissionRecord] = {}
    conversations: dict[ConversationId, ConversationRecord] = {}
    entries: list[StoredEntry] = []
    documents: dict[DocumentId, tuple[DocumentRecord | None, JsonObject | None]] = {}
    for change in changes:
        table, _, number = change.row.partition("/")
        id = int(number)
        match table, change.after:
            case "tasks", str(text):
                tasks[TaskId(id)] = codec.decode_task(text)
            case "submissions", str(text):
                submissions[SubmissionId(id)] = codec.decode_submission(text)
            case "conversations", str(text):
                conversations[ConversationId(id)] = codec.decode_conversation(text)
            case "entries", str():
                if (entry := read.entry(EntryId(id))) is not None:
                    entries.append(entry)
            case "documents", _:
                document = read.document(DocumentId(id))
                documents[DocumentId(id)] = (document.record, document.value) if document is not None else (None, None)
            case _:
                pass
    return Patch(
        seq=seq, tasks=tasks, submissions=submissions, conversations=conversations,
        entries=tuple(sorted(entries, key=lambda kept: kept.entry.id)), documents=documents,
    )  # fmt: skip


class Reading:
    """Asks a walked copy for records."""

    def __init__(self, ask: Asking) -> None:
        self._ask = ask

    def entry(self, id: EntryId) -> StoredEntry | None:
        """The entry with the number of its commit."""
        return self._ask.read(lambda storage: storage.entry(id))

    def document(self, id: DocumentId) -> StoredDocument | None:
        """The document with its record."""
        return self._ask.read(lambda storage: storage.document(id))


class Asking:
    """What can be asked about a walked copy; a stepper is one."""

    def read(self, asking: Callable_[Storage, T]) -> T:
        raise NotImplementedError
