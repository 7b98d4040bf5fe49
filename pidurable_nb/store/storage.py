"""Owns the protocol between a session and whatever keeps its records. Never keeps anything itself.

A storage makes each commit atomic (C1), owns the one id namespace (C6), and returns detached values. Rules that it
may rely on: one session uses it, groups never overlap, and references are already checked.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

from pidurable_nb.ids import ConversationId, DocumentId, EntryId, JsonObject, Seq, SubmissionId, TaskId
from pidurable_nb.records.document import Address, DocumentRecord, Scope, StoredDocument
from pidurable_nb.records.task import Status, TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, SubmissionRecord, SubmissionStatus
from pidurable_nb.store.delta import Op

T = TypeVar("T")
Order = Literal["ascending", "descending"]
CURRENT: Literal["current"] = "current"
At: TypeAlias = "Seq | Literal['current']"


@dataclass(frozen=True, slots=True)
class Base:
    """A revision that holds the whole value."""

    version: int
    value: JsonObject


@dataclass(frozen=True, slots=True)
class Delta:
    """A revision that holds the change from the one before, at the same version."""

    version: int
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class PutConversation:
    """A new conversation."""

    record: ConversationRecord


@dataclass(frozen=True, slots=True)
class PutEntry:
    """A new entry. Its commit's sequence number becomes its `commit_seq`."""

    record: EntryRecord


@dataclass(frozen=True, slots=True)
class PutTask:
    """A new task, or the replacement of one."""

    record: TaskRecord


@dataclass(frozen=True, slots=True)
class PutSubmission:
    """A new submission, or the replacement of one."""

    record: SubmissionRecord


@dataclass(frozen=True, slots=True)
class CreateDocument:
    """A new incarnation. The storage stamps `created_at` (the record's own value is ignored)."""

    record: DocumentRecord
    base: Base


@dataclass(frozen=True, slots=True)
class CopyDocument:
    """A new incarnation whose first base is the stored value and version of another one, as it was before the commit.

    `at` is a sequence number for a rewindable source, or CURRENT.
    """

    record: DocumentRecord
    source: DocumentId
    at: At


@dataclass(frozen=True, slots=True)
class ChangeDocument:
    """The next revision of a document."""

    id: DocumentId
    content: Base | Delta


@dataclass(frozen=True, slots=True)
class RetireDocument:
    """The end of an incarnation, after its change in the same commit."""

    id: DocumentId


Write: TypeAlias = (
    PutConversation
    | PutEntry
    | PutTask
    | PutSubmission
    | CreateDocument
    | CopyDocument
    | ChangeDocument
    | RetireDocument
)


@dataclass(frozen=True, slots=True)
class Commit:
    """The writes of one commit, in order."""

    writes: tuple[Write, ...]
    barrier: bool = False


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a scan. `next` is the cursor of the next page, None at the end: the id after which it goes on."""

    items: tuple[T, ...]
    next: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQuery:
    """Which tasks: every field that is not None narrows. `live` is every status but terminal."""

    conversation: ConversationId | None = None
    kind: str | None = None
    status: Status | None = None
    live: bool | None = None
    abort_requested: bool | None = None
    background: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionQuery:
    """Which submissions: every field that is not None narrows. `open` is queued or placed."""

    conversation: ConversationId | None = None
    status: SubmissionStatus | None = None
    open: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationQuery:
    """Which conversations: every field that is not None narrows."""

    owner_conversation: ConversationId | None = None
    owner_task: TaskId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """An entry and the number of the commit that wrote it."""

    entry: EntryRecord
    commit_seq: Seq


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a storage knows once it is open. `opening` counts the openings for writing of this storage, from 1."""

    next_seq: Seq
    origin: str
    store_id: str
    opening: int
    format: int = 2
    notes: tuple[str, ...] = field(default=())


class Storage(Protocol):
    """Where a session keeps its records.

    Every method may raise StorageError with `stored` (F4); reads may raise StorageRequestError (F2). Scans return at
    most `limit` items behind `after`, in id order.
    """

    @property
    def barrier(self) -> Literal["synced", "ordinary"]:
        """`synced` when a barrier commit is on disk before it is acknowledged, else `ordinary` (E5)."""
        ...

    async def open(self) -> Opened:
        """Take the store for writing: lock, migrate, raise the fencing token (F5).

        Durability: no row of the format changes when it is already at the newest version.
        """
        ...

    def mint(self) -> int:
        """The next unused id of the one namespace, in memory; a commit writes it back (C6)."""
        ...

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        """Store all commits of the group, in order, as one transaction; return their sequence numbers (C8).

        Durability: on return the whole group is stored; with a barrier in it, and `barrier == "synced"`, synced too.
        When it raises, none of it is published; `stored` says what is known (F4).
        """
        ...

    async def conversation(self, id: ConversationId) -> ConversationRecord | None: ...

    async def scan_conversations(
        self, query: ConversationQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[ConversationRecord]: ...

    async def entry(self, id: EntryId) -> StoredEntry | None: ...

    async def visible_entry(self, conversation: ConversationId, id: EntryId) -> StoredEntry | None:
        """The entry when it is visible from `conversation` through its forks, else None."""
        ...

    async def latest_head(self, conversation: ConversationId, *, until: EntryId | None = None) -> EntryRecord | None:
        """The newest visible entry with a head, at or before `until`."""
        ...

    async def scan_entries(
        self,
        conversation: ConversationId,
        *,
        limit: int,
        first: EntryId | None = None,
        last: EntryId | None = None,
        after: int | None = None,
        order: Order = "descending",
    ) -> Page[EntryRecord]:
        """The visible entries between `first` and `last`, both included, through the forks (V3).

        Raises StorageRequestError for an unknown conversation.
        """
        ...

    async def task(self, id: TaskId) -> TaskRecord | None: ...

    async def scan_tasks(
        self, query: TaskQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[TaskRecord]: ...

    async def submission(self, id: SubmissionId) -> SubmissionRecord | None: ...

    async def submission_by_request(self, conversation: ConversationId, request_id: str) -> SubmissionRecord | None: ...

    async def scan_submissions(
        self, query: SubmissionQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[SubmissionRecord]: ...

    async def find_document(self, address: Address, at: At = CURRENT) -> DocumentRecord | None:
        """The incarnation at that address, alive at `at`."""
        ...

    async def document(self, id: DocumentId, at: At = CURRENT) -> StoredDocument | None:
        """The value of one incarnation. None when unknown, or not alive at `at`.

        Raises StorageRequestError when `at` is a number and the document keeps no history.
        """
        ...

    async def scan_documents(
        self, scope: Scope, *, limit: int, kind: str | None = None, at: At = CURRENT, after: int | None = None
    ) -> Page[DocumentRecord]:
        """The incarnations alive at `at` in exactly this scope."""
        ...

    async def documented(self, tasks: Sequence[TaskId]) -> frozenset[TaskId]:
        """Those of these tasks that have a document alive. Asked once, at an opening; ending a task asks nothing."""
        ...

    async def maintain(self) -> None:
        """Housekeeping between groups, off the commit path: a bounded WAL checkpoint. Raises StorageError."""
        ...

    async def close(self) -> None:
        """Fold what can be folded and let go of the store. Idempotent."""
        ...


def finished(work: Coroutine[object, None, T]) -> T:
    """What a coroutine returns that never suspends, as those of an inline storage: no loop is needed."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    work.close()
    raise RuntimeError("this storage suspends; only an inline one can be asked outside of a loop")
