"""Owns a storage that keeps everything in memory, as the reference of what a storage does. Never survives its process.

Rows are kept as their stored text, so that what is read is what would come back from a file, and shares nothing with
what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from typing import Final, Literal, TypeAlias
from uuid import uuid4

from pidurable_nb.errors import NotJson, StorageError, StorageRequestError
from pidurable_nb.ids import MAX_INTEGER, ConversationId, DocumentId, EntryId, Seq, SubmissionId, TaskId
from pidurable_nb.records import codec
from pidurable_nb.records.document import Address, DocumentRecord, Scope, StoredDocument, TaskScope
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, SubmissionRecord
from pidurable_nb.store.ancestry import Segment, segments, visible
from pidurable_nb.store.memory_documents import Documents
from pidurable_nb.store.memory_tables import Table, Undo, between, insert, put, roll_back
from pidurable_nb.store.storage import (
    CURRENT,
    At,
    Commit,
    ConversationQuery,
    CopyDocument,
    CreateDocument,
    Opened,
    Order,
    Page,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    StoredEntry,
    SubmissionQuery,
    TaskQuery,
    Write,
)

RecordType: TypeAlias = Literal["conversation", "entry", "task", "submission", "document"]

_REPLACEABLE: Final = ("task", "submission")


class MemoryStorage:
    """A storage in memory; closing and opening it again keeps the data.

    Durability: none. A barrier is an ordinary commit.
    """

    def __init__(self, *, origin: str | None = None) -> None:
        self._origin = uuid4().hex if origin is None else origin
        self._store_id = uuid4().hex
        self._opening = 0
        self._counter: int | None = None
        self._next_id = 2
        self._next_seq = 1
        self._types: dict[int, RecordType] = {}
        self._conversations = Table(codec.encode_conversation, codec.decode_conversation)
        self._entries = Table(codec.encode_entry, codec.decode_entry)
        self._entry_seqs: dict[int, Seq] = {}
        self._entries_in: dict[int, list[int]] = {}
        self._heads_in: dict[int, list[int]] = {}
        self._tasks = Table(codec.encode_task, codec.decode_task)
        self._submissions = Table(codec.encode_submission, codec.decode_submission)
        self._requests: dict[tuple[int, str], int] = {}
        self._documents = Documents()

    # --- Opening and closing -------------------------------------------------------------------------------------

    @property
    def barrier(self) -> Literal["synced", "ordinary"]:
        """Always ordinary: there is nothing to sync to (E5)."""
        return "ordinary"

    async def open(self) -> Opened:
        """Start minting behind what is stored. Raises: StorageError when it is open already."""
        if self._counter is not None:
            raise StorageError("this memory storage is open already; close it first", stored="no")
        self._counter = self._next_id
        self._opening += 1
        return Opened(next_seq=Seq(self._next_seq), origin=self._origin, store_id=self._store_id, opening=self._opening)

    async def close(self) -> None:
        """Forget ids that were minted and never committed. Idempotent."""
        self._counter = None

    async def maintain(self) -> None:
        """Nothing to do."""
        self._open_counter()

    def mint(self) -> int:
        """The next unused id (C6). Raises: StorageError when there is none."""
        minted = self._open_counter()
        if minted > MAX_INTEGER:
            raise StorageError("no ids are left: the next one is beyond 2^53-1", stored="no")
        self._counter = minted + 1
        return minted

    def _open_counter(self) -> int:
        if self._counter is None:
            raise StorageError("this memory storage is closed; open it first", stored="no")
        return self._counter

    # --- Committing ----------------------------------------------------------------------------------------------

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        """Store all commits of the group or none of them (C1, C8).

        Raises: StorageError, always with stored "no".
        """
        self._open_counter()
        undo: Undo = [self._restore(self._counter, self._next_id, self._next_seq)]
        try:
            return tuple([self._store(commit.writes, undo) for commit in group])
        except NotJson as error:
            roll_back(undo)
            raise StorageError(f"a value that cannot be stored reached the storage: {error}", stored="no") from error
        except BaseException:
            roll_back(undo)
            raise

    def _restore(self, counter: int | None, next_id: int, next_seq: int) -> Callable[[], None]:
        def restore() -> None:
            self._counter, self._next_id, self._next_seq = counter, next_id, next_seq

        return restore

    def _store(self, writes: tuple[Write, ...], undo: Undo) -> Seq:
        seq = Seq(self._next_seq)
        highest = self._claim_ids(writes, undo)
        for write in writes:
            match write:
                case PutConversation(record=conversation):
                    self._conversations.put(conversation.id, conversation, undo)
                case PutEntry(record=entry):
                    self._put_entry(entry, seq, undo)
                case PutTask(record=task):
                    self._tasks.put(task.id, task, undo)
                case PutSubmission(record=submission):
                    self._put_submission(submission, undo)
                case _:
                    pass
        self._documents.write(writes, seq, undo)
        self._next_id = self._counter = max(self._next_id, self._open_counter(), highest + 1)
        self._next_seq += 1
        return seq

    def _claim_ids(self, writes: tuple[Write, ...], undo: Undo) -> int:
        """Check every id before anything is written; the highest of them."""
        highest = 0
        for write in writes:
            claim = _claim(write)
            if claim is None:
                continue
            id, type_ = claim
            if not 1 <= id <= MAX_INTEGER:
                raise StorageError(f"{type_} {id}: an id is from 1 to 2^53-1", stored="no")
            before = self._types.get(id)
            if before is not None and (before != type_ or type_ not in _REPLACEABLE):
                raise StorageError(f"{type_} {id}: the id belongs to a stored {before}", stored="no")
            put(self._types, id, type_, undo)
            highest = max(highest, id)
        return highest

    def _put_entry(self, record: EntryRecord, seq: Seq, undo: Undo) -> None:
        self._entries.put(record.id, record, undo)
        put(self._entry_seqs, record.id, seq, undo)
        insert(self._entries_in.setdefault(record.conversation, []), record.id, undo)
        if record.head is not None:
            insert(self._heads_in.setdefault(record.conversation, []), record.id, undo)

    def _put_submission(self, record: SubmissionRecord, undo: Undo) -> None:
        self._submissions.put(record.id, record, undo)
        if record.request_id is not None:
            request = (record.conversation, codec.indexed(record.request_id))
            put(self._requests, request, min(record.id, self._requests.get(request, record.id)), undo)

    # --- Conversations and entries -------------------------------------------------------------------------------

    async def conversation(self, id: ConversationId) -> ConversationRecord | None:
        """The conversation, None when unknown."""
        self._open_counter()
        return self._conversations.read(id)

    async def scan_conversations(
        self, query: ConversationQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[ConversationRecord]:
        """The conversations that fit the query."""
        self._check_page(limit, after)

        def keep(record: ConversationRecord) -> bool:
            owner = (None, None) if record.owner is None else (record.owner.conversation, record.owner.task)
            wanted = (query.owner_conversation, query.owner_task)
            return all(want is None or want == have for want, have in zip(wanted, owner, strict=True))

        return self._conversations.scan(keep, limit=limit, after=after, order=order)

    async def entry(self, id: EntryId) -> StoredEntry | None:
        """The entry, None when unknown."""
        self._open_counter()
        entry = self._entries.read(id)
        return None if entry is None else StoredEntry(entry=entry, commit_seq=self._entry_seqs[id])

    async def visible_entry(self, conversation: ConversationId, id: EntryId) -> StoredEntry | None:
        """The entry when it is visible from `conversation` through its forks, else None."""
        parts = self._segments(conversation)
        stored = await self.entry(id)
        return stored if stored is not None and visible(stored.entry, parts) else None

    async def latest_head(self, conversation: ConversationId, *, until: EntryId | None = None) -> EntryRecord | None:
        """The newest visible entry with a head, at or before `until`."""
        parts = self._segments(conversation)
        newest = next(self._in_parts(self._heads_in, parts, None, until, "descending"), None)
        return None if newest is None else self._entries.read(newest)

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
        """The visible entries between `first` and `last`, both included. Raises: StorageRequestError."""
        self._check_page(limit, after)
        parts = self._segments(conversation)
        if not parts:
            raise StorageRequestError(f"conversation {conversation} is not stored")
        lowest: int | None = first
        highest: int | None = last
        if after is not None and order == "ascending":
            lowest = max(after + 1, first or 0)
        elif after is not None:
            highest = _lower(after - 1, last)
        return self._entries.page(self._in_parts(self._entries_in, parts, lowest, highest, order), limit)

    def _segments(self, conversation: ConversationId) -> tuple[Segment, ...]:
        self._open_counter()
        record = self._conversations.facts(conversation)
        return () if record is None else segments(record, self._conversations.facts)

    @staticmethod
    def _in_parts(
        index: dict[int, list[int]], parts: Sequence[Segment], first: int | None, last: int | None, order: Order
    ) -> Iterator[int]:
        runs = [between(index.get(part.conversation, []), first, _lower(last, part.cap), order) for part in parts]
        return merge(*runs, reverse=order == "descending")

    # --- Tasks and submissions -----------------------------------------------------------------------------------

    async def task(self, id: TaskId) -> TaskRecord | None:
        """The task, None when unknown."""
        self._open_counter()
        return self._tasks.read(id)

    async def scan_tasks(
        self, query: TaskQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[TaskRecord]:
        """The tasks that fit the query."""
        self._check_page(limit, after)
        kind = None if query.kind is None else codec.indexed(query.kind)

        def keep(task: TaskRecord) -> bool:
            return (
                (query.conversation is None or task.conversation == query.conversation)
                and (kind is None or codec.indexed(task.kind) == kind)
                and (query.status is None or task.status == query.status)
                and (query.live is None or task.live == query.live)
                and (query.abort_requested is None or task.abort_requested == query.abort_requested)
                and (query.background is None or task.background == query.background)
            )

        return self._tasks.scan(keep, limit=limit, after=after, order=order)

    async def submission(self, id: SubmissionId) -> SubmissionRecord | None:
        """The submission, None when unknown."""
        self._open_counter()
        return self._submissions.read(id)

    async def submission_by_request(self, conversation: ConversationId, request_id: str) -> SubmissionRecord | None:
        """The submission that was admitted with this request id (S1)."""
        self._open_counter()
        id = self._requests.get((conversation, codec.indexed(request_id)))
        return None if id is None else self._submissions.read(id)

    async def scan_submissions(
        self, query: SubmissionQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[SubmissionRecord]:
        """The submissions that fit the query."""
        self._check_page(limit, after)

        def keep(submission: SubmissionRecord) -> bool:
            is_open = submission.status in ("queued", "placed")
            return (
                (query.conversation is None or submission.conversation == query.conversation)
                and (query.status is None or submission.status == query.status)
                and (query.open is None or is_open == query.open)
            )

        return self._submissions.scan(keep, limit=limit, after=after, order=order)

    # --- Documents -----------------------------------------------------------------------------------------------

    async def find_document(self, address: Address, at: At = CURRENT) -> DocumentRecord | None:
        """The incarnation at that address, alive at `at`."""
        self._open_counter()
        return self._documents.find(address, at)

    async def document(self, id: DocumentId, at: At = CURRENT) -> StoredDocument | None:
        """The value of one incarnation. Raises: StorageRequestError where no history is kept."""
        self._open_counter()
        return self._documents.read(id, at)

    async def scan_documents(
        self, scope: Scope, *, limit: int, kind: str | None = None, at: At = CURRENT, after: int | None = None
    ) -> Page[DocumentRecord]:
        """The incarnations alive at `at` in exactly this scope."""
        self._check_page(limit, after)
        return self._documents.scan(scope, limit=limit, kind=kind, at=at, after=after)

    async def documented(self, tasks: Sequence[TaskId]) -> frozenset[TaskId]:
        """Those of these tasks that have a document alive."""
        self._open_counter()
        scopes = ((id, self._documents.scan(TaskScope(id), limit=1, kind=None, at=CURRENT, after=None)) for id in tasks)
        return frozenset(id for id, page in scopes if page.items)

    def _check_page(self, limit: int, after: int | None) -> None:
        self._open_counter()
        if limit < 1:
            raise StorageRequestError(f"a page holds at least one record, not {limit}")
        if after is not None and not 0 <= after <= MAX_INTEGER:
            raise StorageRequestError(f"{after} is no cursor; take it from the page before")


def _claim(write: Write) -> tuple[int, RecordType] | None:
    match write:
        case PutConversation(record=conversation):
            return conversation.id, "conversation"
        case PutEntry(record=entry):
            return entry.id, "entry"
        case PutTask(record=task):
            return task.id, "task"
        case PutSubmission(record=submission):
            return submission.id, "submission"
        case CreateDocument(record=document) | CopyDocument(record=document):
            return document.id, "document"
        case _:
            return None


def _lower(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)
