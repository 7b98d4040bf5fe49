"""Owns what a JSONL store holds, as tables in memory, and what a commit writes to which file. Never opens a file.

The tables are those of the memory storage: rows as stored text, so nothing in them is shared with a writer or a reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pidurable_nb.ids import DocumentId, Json, Seq
from pidurable_nb.records import codec
from pidurable_nb.records.document import DocumentRecord
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.store.jsonl_lines import RowKind, revision_line, task_line
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.memory_documents import Revision
from pidurable_nb.store.memory_tables import Undo, roll_back
from pidurable_nb.store.storage import (
    Base,
    ChangeDocument,
    Commit,
    CopyDocument,
    CreateDocument,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    RetireDocument,
    Write,
)

Rows: TypeAlias = Mapping[tuple[RowKind, int], tuple[Seq, Json]]
"""The newest row of every record that `main.jsonl` keeps, and the commit that first wrote it, in that order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """A line for a sidecar. `whole`: the lines before it are not needed any more."""

    file: str
    data: bytes
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What one commit writes. `ended` are the sidecars that nothing needs once it is stored."""

    seq: Seq
    next_id: int
    rows: tuple[tuple[RowKind, str], ...]
    additions: tuple[Addition, ...]
    ended: tuple[str, ...]


def document_file(id: int) -> str:
    """The sidecar of one document incarnation."""
    return f"doc-{id}.jsonl"


def task_file(id: int) -> str:
    """The sidecar of one live task."""
    return f"task-{id}.jsonl"


def highest_id(group: Sequence[Commit]) -> int:
    """The highest id that a group writes a new record under, 0 when there is none."""
    highest = 0
    for commit in group:
        for write in commit.writes:
            if not isinstance(write, ChangeDocument | RetireDocument):
                highest = max(highest, write.record.id)
    return highest


class Tables(MemoryStorage):
    """The tables. Opening counts, names and the minting of ids belong to who uses them."""

    @property
    def next_seq(self) -> Seq:
        """The number of the next commit."""
        return Seq(self._next_seq)

    @property
    def next_id(self) -> int:
        """Behind every id that a commit kept."""
        return self._next_id

    def start(self, *, next_seq: int, next_id: int) -> None:
        """Begin with these counters."""
        self._next_seq, self._next_id, self._counter = next_seq, next_id, next_id

    # --- One group ------------------------------------------------------------------------------------------------

    def apply(self, group: Sequence[Commit], *, next_id: int) -> tuple[list[Prepared], Undo]:
        """Apply all commits or none, and say what each writes; the caller takes them back if it cannot be written.

        Raises: StorageError, stored "no"; NotJson.
        """
        undo: Undo = [self._restore(self._counter, self._next_id, self._next_seq)]
        self._counter = next_id
        try:
            return [self._prepared(commit.writes, self._store(commit.writes, undo)) for commit in group], undo
        except BaseException:
            roll_back(undo)
            raise

    def _prepared(self, writes: tuple[Write, ...], seq: Seq) -> Prepared:
        rows: dict[tuple[RowKind, int], str] = {}
        additions: dict[str, Addition] = {}
        ended: list[str] = []
        for write in writes:
            match write:
                case PutConversation(record=conversation):
                    rows["conversation", conversation.id] = self._conversations.rows[conversation.id].text
                case PutEntry(record=entry):
                    rows["entry", entry.id] = self._entries.rows[entry.id].text
                case PutSubmission(record=submission):
                    rows["submission", submission.id] = self._submissions.rows[submission.id].text
                case PutTask(record=task):
                    self._prepare_task(task.id, seq, rows, additions, ended)
                case CreateDocument(record=document) | CopyDocument(record=document):
                    self._prepare_document(document.id, seq, rows, additions, ended)
                case ChangeDocument(id=id) | RetireDocument(id=id):
                    self._prepare_document(id, seq, rows, additions, ended)
        return Prepared(
            seq=seq,
            next_id=self._next_id,
            rows=tuple([(kind, text) for (kind, _), text in rows.items()]),
            additions=tuple(additions.values()),
            ended=tuple(ended),
        )

    def _prepare_task(
        self,
        id: int,
        seq: Seq,
        rows: dict[tuple[RowKind, int], str],
        additions: dict[str, Addition],
        ended: list[str],
    ) -> None:
        row, file = self._tasks.rows[id], task_file(id)
        if row.facts.live:
            additions[file] = Addition(file=file, data=task_line(seq=seq, text=row.text), whole=True)
        elif ("task", id) not in rows:
            rows["task", id] = row.text
            ended.append(file)

    def _prepare_document(
        self,
        id: int,
        seq: Seq,
        rows: dict[tuple[RowKind, int], str],
        additions: dict[str, Addition],
        ended: list[str],
    ) -> None:
        row, file = self._documents.table.rows[id], document_file(id)
        record = row.facts
        if record.created_at == seq or record.retired_at == seq:
            rows["document", id] = row.text
        kept = self._documents.revisions[id]
        if kept and kept[-1].seq == seq:
            newest = kept[-1]
            data = revision_line(seq=seq, kind=newest.kind, version=newest.version, text=newest.text)
            whole = newest.kind == "base" and not record.rewindable
            additions[file] = Addition(file=file, data=data, whole=whole)
        elif not kept and file not in ended:
            ended.append(file)

    # --- What a recovery found ------------------------------------------------------------------------------------

    def load(self, rows: Rows, tasks: Mapping[int, TaskRecord], revisions: Mapping[int, tuple[Revision, ...]]) -> None:
        """Fill empty tables. Raises: codec.BadRecord."""
        undo: Undo = []
        for (kind, id), (seq, value) in rows.items():
            self._types[id] = kind
            match kind:
                case "conversation":
                    self._conversations.put(id, codec.conversation_of(value), undo)
                case "entry":
                    self._put_entry(codec.entry_of(value), seq, undo)
                case "submission":
                    self._put_submission(codec.submission_of(value), undo)
                case "task":
                    self._tasks.put(id, codec.task_of(value), undo)
                case "document":
                    self._load_document(codec.document_of(value), revisions.get(id, ()), undo)
            undo.clear()
        for id, task in tasks.items():
            self._types[id] = "task"
            self._tasks.put(id, task, undo)

    def _load_document(self, record: DocumentRecord, revisions: tuple[Revision, ...], undo: Undo) -> None:
        self._documents.write((CreateDocument(record, Base(1, {})),), record.created_at, undo)
        self._documents.revisions[record.id] = revisions
        if record.retired_at is not None:
            self._documents.write((RetireDocument(DocumentId(record.id)),), record.retired_at, undo)
