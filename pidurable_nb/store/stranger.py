"""Owns reading stores that somebody else wrote, from a private copy. Never writes, never migrates, never trusts.

The original and its folder stay as they are, to the byte. What is not a plain store is refused before anything in it
is used; what is read afterwards is bounded in size, depth and time.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Protocol, TypeVar

from pidurable_nb.errors import NewerFormat, NotAStore, StorageRequestError
from pidurable_nb.ids import ConversationId, DocumentId, EntryId, Json, JsonObject, Seq, SubmissionId, TaskId
from pidurable_nb.records import codec
from pidurable_nb.records.document import DocumentRecord
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, SubmissionRecord
from pidurable_nb.store import delta, layout
from pidurable_nb.store.confined import DEFAULT_LIMITS, MOST_INTEGER, Confined, Limits, Row
from pidurable_nb.store.copying import copy_store
from pidurable_nb.store.storage import StoredEntry
from pidurable_nb.store.visible import visible


class _Numbered(Protocol):
    @property
    def id(self) -> int: ...


R = TypeVar("R", bound=_Numbered)

_DIGITS: Final = re.compile(r"[0-9]{1,19}")
_ONLY_AN_INDEX: Final = re.compile(r"(row|wrong|non-unique|rowid|values)\b.*\bindex \S+$")
_HEADING: Final = "*** in database"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many rows there are of each; ended tasks and retired documents included."""

    conversations: int
    entries: int
    tasks: int
    submissions: int
    documents: int
    document_revisions: int


@dataclass(frozen=True, slots=True)
class _Table(Generic[R]):
    """One table of records: which columns repeat what its records say."""

    name: str
    what: str
    decode: Callable[[str], R]
    columns: str
    repeated: Callable[[R], Row]


_CONVERSATIONS = _Table(
    "conversations",
    "conversation",
    codec.decode_conversation,
    "owner_conversation_id, owner_task_id",
    lambda record: (None, None) if record.owner is None else (record.owner.conversation, record.owner.task),
)
_ENTRIES = _Table(
    "entries", "entry", codec.decode_entry, "conversation_id, head", lambda record: (record.conversation, record.head)
)
_TASKS = _Table(
    "tasks", "task", codec.decode_task, "conversation_id, status", lambda record: (record.conversation, record.status)
)
_SUBMISSIONS = _Table(
    "submissions",
    "submission",
    codec.decode_submission,
    "conversation_id, status",
    lambda record: (record.conversation, record.status),
)
_DOCUMENTS = _Table(
    "documents",
    "document",
    codec.decode_document,
    "created_at, retired_at",
    lambda record: (record.created_at, record.retired_at),
)


class StoreFile:
    """A store that is looked at: an open, private copy of it. Use it with `with`, from one thread at a time.

    What it yields is read lazily. Every method raises DamagedStore for a record that is none, HostileStore for one
    beyond the limits.
    """

    @classmethod
    def open(cls, source: Path, *, limits: Limits = DEFAULT_LIMITS) -> StoreFile:
        """Copy the store at `source` to a private place and open the copy; `close` removes it.

        Raises: NotAStore, NewerFormat, DamagedStore, HostileStore, StoreBusy, StoreRefused: one line that says what,
        which file, what next. Not a byte of the store or beside it has changed then either.
        """
        folder = tempfile.TemporaryDirectory(prefix="pidurable-", ignore_cleanup_errors=True)
        try:
            copy = copy_store(source, Path(folder.name), most_bytes=limits.file_bytes)
            return cls(Confined(copy, source=source, limits=limits), folder)
        except BaseException:
            folder.cleanup()
            raise

    @classmethod
    def of_copy(cls, copy: Path, *, limits: Limits = DEFAULT_LIMITS) -> StoreFile:
        """Open a file that is the caller's own copy, where it stands: `-shm` and `-wal` may appear beside it."""
        return cls(Confined(copy, source=copy, limits=limits), None)

    def __init__(self, file: Confined, folder: tempfile.TemporaryDirectory[str] | None) -> None:
        self._file = file
        self._folder = folder
        self._forks: dict[int, ConversationRecord] = {}
        self._visible: dict[tuple[int, int], int] = {}
        try:
            self._prefix, self._format = self._recognise()
            self._integrity = self._check()
            self._next_id, self._next_seq = self._numbers()
        except BaseException:
            file.close()
            raise

    def __enter__(self) -> StoreFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the copy, and remove it when it was made here. Idempotent."""
        self._file.close()
        if self._folder is not None:
            self._folder.cleanup()

    # --- The file -----------------------------------------------------------------------------------------------

    @property
    def source(self) -> Path:
        """The file as it was named."""
        return self._file.source

    @property
    def format(self) -> int:
        """The stored version of the format."""
        return self._format

    @property
    def next_id(self) -> int:
        """The smallest id that was not used yet (C6)."""
        return self._next_id

    @property
    def next_seq(self) -> Seq:
        """The number of the next commit."""
        return self._next_seq

    @property
    def integrity(self) -> str:
        """`ok`, or what is wrong with an index first. The records are whole then, and are read without indexes."""
        return self._integrity

    @property
    def counts(self) -> Counts:
        """How many rows there are of each."""
        return Counts(
            conversations=self._count("conversations"),
            entries=self._count("entries"),
            tasks=self._count("tasks"),
            submissions=self._count("submissions"),
            documents=self._count("documents"),
            document_revisions=self._count("document_revisions"),
        )

    # --- Records ------------------------------------------------------------------------------------------------

    def conversations(self) -> Iterator[ConversationRecord]:
        """Every conversation, in id order."""
        return self._scan(_CONVERSATIONS)

    def conversation(self, id: ConversationId) -> ConversationRecord | None:
        """The conversation with that id."""
        return self._get(_CONVERSATIONS, id)

    def entries(self, conversation: ConversationId | None = None) -> Iterator[EntryRecord]:
        """Every entry, or the conversation's own ones (not those of its parents), oldest first."""
        if conversation is None:
            return self._scan(_ENTRIES)
        return self._scan(_ENTRIES, "WHERE conversation_id = ?", conversation)

    def entry(self, id: EntryId) -> StoredEntry | None:
        """The entry with that id, and the number of its commit."""
        entry = self._get(_ENTRIES, id)
        found = self._file.first(f"SELECT commit_seq FROM {self._table('entries')} WHERE id = ?", id)
        if entry is None or found is None:
            return None
        return StoredEntry(entry=entry, commit_seq=Seq(self._integer(found[0], f"commit_seq of entry {id}")))

    def tasks(self) -> Iterator[TaskRecord]:
        """Every task, ended ones included, in id order."""
        return self._scan(_TASKS)

    def live_tasks(self) -> Iterator[TaskRecord]:
        """The tasks that have not ended, in id order."""
        return self._scan(_TASKS, "WHERE status <> 'terminal'")

    def task(self, id: TaskId) -> TaskRecord | None:
        """The task with that id."""
        return self._get(_TASKS, id)

    def submissions(self) -> Iterator[SubmissionRecord]:
        """Every submission, in id order."""
        return self._scan(_SUBMISSIONS)

    def open_submissions(self) -> Iterator[SubmissionRecord]:
        """The queued and placed ones, in id order."""
        return self._scan(_SUBMISSIONS, "WHERE status IN ('queued', 'placed')")

    def submission(self, id: SubmissionId) -> SubmissionRecord | None:
        """The submission with that id."""
        return self._get(_SUBMISSIONS, id)

    def documents(self) -> Iterator[DocumentRecord]:
        """Every incarnation of every document, retired ones included, in id order."""
        return self._scan(_DOCUMENTS)

    def document_value(self, id: DocumentId, at: Seq | None = None) -> tuple[int, JsonObject] | None:
        """Version and value of the newest revision, or of the newest at commit `at`; None when none is kept.

        A current-only document keeps nothing before its newest base, and nothing at all once it is retired.
        """
        revisions, until = self._table("document_revisions"), MOST_INTEGER if at is None else at
        base = self._file.first(
            f"SELECT seq, version, content FROM {revisions} WHERE document_id = ? AND kind = 'base' AND seq <= ?"
            " ORDER BY seq DESC LIMIT 1",
            id,
            until,
        )
        if base is None:
            if self._file.first(f"SELECT seq FROM {revisions} WHERE document_id = ? AND seq <= ?", id, until):
                raise self._file.damaged(f"document {id} has a change and no value that it changes")
            return None
        seq, version = (self._integer(number, f"a revision of document {id}") for number in base[:2])
        value = self._content(id, seq, base[2])
        tail = (
            f"SELECT seq, version, content FROM {revisions} WHERE document_id = ? AND seq > ? AND seq <= ? ORDER BY seq"
        )
        for changed_at, its_version, content in self._file.rows(tail, id, seq, until):
            if its_version != version:
                raise self._file.damaged(
                    f"document {id} changes its version at commit {changed_at}, without a new value"
                )
            try:
                value = delta.apply(value, delta.parse(self._content(id, changed_at, content)))
            except delta.BadDelta as error:
                raise self._file.damaged(f"document {id}, commit {changed_at}: {visible(str(error))}") from error
        if not isinstance(value, dict):
            raise self._file.damaged(f"the value of document {id} is no object")
        return version, value

    def visible_count(self, conversation: ConversationId) -> int:
        """How many entries the conversation sees: its own, and those of its parents up to each fork's entry (V3).

        Raises: StorageRequestError for an unknown conversation.
        """
        if self._fork(conversation) is None:
            raise StorageRequestError(f"there is no conversation {conversation} in the store")
        way: dict[int, int] = {}
        here, until, total = conversation, MOST_INTEGER, 0
        while (here, until) not in self._visible:
            if here in way:
                raise self._file.damaged(f"conversation {here} is a fork of itself")
            way[here] = until
            record = self._fork(here)
            if record is None:
                raise self._file.damaged(f"a conversation is a fork of {here}, which is not there")
            if record.parent is None:
                break
            here, until = record.parent.conversation, min(record.parent.at, until)
        else:
            total = self._visible[here, until]
        for id, last in reversed(way.items()):
            total += self._count("entries", "WHERE conversation_id = ? AND id <= ?", id, last)
            self._visible[id, last] = total
        return total

    # --- Opening ------------------------------------------------------------------------------------------------

    def _recognise(self) -> tuple[str, int]:
        """The table prefix and the format, once everything else in the schema is known to be plain."""
        things = [
            layout.Thing(str(kind), str(name), str(table), sql if isinstance(sql, str) else None)
            for kind, name, table, sql in self._file.rows("SELECT type, name, tbl_name, sql FROM sqlite_master")
        ]
        prefix = layout.find_prefix(things, self.source)
        layout.check_table(things, prefix, "durable_schema", self.source)
        self._prefix, self._integrity = prefix, "not known yet"
        self._file.allow([prefix + "durable_schema"])
        (version,) = self._only("durable_schema", "version")
        stored = self._integer(version, "the version of its format")
        if stored > layout.NEWEST_FORMAT:
            newest = layout.NEWEST_FORMAT
            raise self._file.refused(
                NewerFormat, f"has format {stored}, and this version knows formats up to {newest}; upgrade pidurable-nb"
            )
        if stored < 1:
            raise self._file.refused(NotAStore, "is an empty database: its first opening was cut off")
        for name in layout.TABLES:
            layout.check_table(things, prefix, name, self.source)
        layout.check_rest(things, prefix, self.source)
        self._file.allow(prefix + name for name in layout.TABLES)
        return prefix, stored

    def _check(self) -> str:
        said = "\n".join(str(text) for (text,) in self._file.rows("PRAGMA integrity_check(100)"))
        problems = [line for line in said.splitlines() if not line.startswith(_HEADING)]
        first = visible(problems[0]) if problems else "no answer to an integrity check"
        if first != "ok" and not all(_ONLY_AN_INDEX.match(line) for line in problems):
            raise self._file.damaged(first)
        return first

    def _numbers(self) -> tuple[int, Seq]:
        next_id, next_seq = self._only("durable_metadata", "next_id, next_seq")
        if not isinstance(next_id, str) or not _DIGITS.fullmatch(next_id):
            raise self._file.damaged("its next id is no number")
        return int(next_id), Seq(self._integer(next_seq, "its next commit"))

    # --- Reading ------------------------------------------------------------------------------------------------

    def _table(self, name: str) -> str:
        """The table as a query names it. With a broken index, rows are found without any."""
        return f'"{self._prefix}{name}"' + ("" if self._integrity == "ok" else " NOT INDEXED")

    def _only(self, table: str, columns: str) -> Row:
        rows: Iterable[Row] = self._file.rows(f"SELECT {columns} FROM {self._table(table)} LIMIT 2")
        match list(rows):
            case [row]:
                return row
            case found:
                raise self._file.damaged(f"{table} has {len(found) or 'no'} rows where one belongs")

    def _count(self, table: str, where: str = "", *parameters: int) -> int:
        found = self._file.first(f"SELECT count(*) FROM {self._table(table)} {where}", *parameters)
        return self._integer(found[0] if found else None, "a count")

    def _scan(self, table: _Table[R], where: str = "", *parameters: int) -> Iterator[R]:
        columns = f"id, record, {table.columns}"
        for row in self._file.rows(f"SELECT {columns} FROM {self._table(table.name)} {where} ORDER BY id", *parameters):
            yield self._record(table, row)

    def _get(self, table: _Table[R], id: int) -> R | None:
        columns = f"id, record, {table.columns}"
        row = self._file.first(f"SELECT {columns} FROM {self._table(table.name)} WHERE id = ?", id)
        return None if row is None else self._record(table, row)

    def _record(self, table: _Table[R], row: Row) -> R:
        id, text, *repeated = row
        if not isinstance(text, str):
            raise self._file.damaged(f"the record of {table.what} {id} is no text")
        try:
            record = table.decode(text)
        except codec.BadRecord as error:
            raise self._file.damaged(
                f"{table.what} {id}: {visible(error.field or error.record)}: {visible(error.problem)}"
            ) from error
        if (record.id, *table.repeated(record)) != (id, *repeated):
            raise self._file.damaged(f"the record of {table.what} {id} is that of another one, or of another time")
        return record

    def _fork(self, id: ConversationId) -> ConversationRecord | None:
        if id not in self._forks:
            found = self._get(_CONVERSATIONS, id)
            if found is None:
                return None
            self._forks[id] = found
        return self._forks[id]

    def _content(self, id: DocumentId, seq: object, text: object) -> Json:
        if not isinstance(text, str):
            raise self._file.damaged(f"document {id}, commit {seq}: the content is no text")
        try:
            return codec.loads(text, f"document {id}")
        except codec.BadRecord as error:
            raise self._file.damaged(f"document {id}, commit {seq}: {visible(error.problem)}") from error

    def _integer(self, value: object, what: str) -> int:
        if type(value) is not int:
            raise self._file.damaged(f"{what} is no whole number")
        return value
