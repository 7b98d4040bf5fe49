"""Owns reading what is stored, and that a storage that fails a read ends the session (F1, F2).

Never sees staged state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pidurable_nb.errors import SessionFailed, StorageError, StorageRequestError
from pidurable_nb.ids import ConversationId, DocumentId, EntryId, SubmissionId, TaskId
from pidurable_nb.records.document import Address, DocumentRecord, Scope, StoredDocument
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, SubmissionRecord
from pidurable_nb.store.storage import (
    CURRENT,
    At,
    ConversationQuery,
    Order,
    Page,
    Storage,
    StoredEntry,
    SubmissionQuery,
    TaskQuery,
)

T = TypeVar("T")

PAGE = 200
"""How much one read of a whole scan asks for."""


def as_storage_error(error: Exception) -> StorageError:
    """What a storage raised, as the one class that ends a session; a foreign exception proves nothing (F4)."""
    if isinstance(error, StorageError):
        return error
    name = type(error).__qualname__
    wrapped = StorageError(f"the storage raised {name}: {error}; reopen the store", stored="unknown")
    wrapped.__cause__ = error
    return wrapped


class StoredReads:
    """The reads of a storage. What it raises but StorageRequestError is handed to `poison` on its way out."""

    __slots__ = ("_first", "_poison", "_storage")

    def __init__(self, storage: Storage, poison: Callable[[StorageError], SessionFailed]) -> None:
        self._storage = storage
        self._poison = poison
        self._first: int | None = None

    async def _guard(self, read: Awaitable[T]) -> T:
        try:
            return await read
        except StorageRequestError:
            raise
        except Exception as error:
            failure = as_storage_error(error)
            self._poison(failure)
            if failure is error:
                raise
            raise failure from error

    def mint(self) -> int:
        """The next unused id (C6)."""
        try:
            id = self._storage.mint()
        except Exception as error:
            failure = as_storage_error(error)
            self._poison(failure)
            if failure is error:
                raise
            raise failure from error
        if self._first is None:
            self._first = id
        return id

    def new(self, id: int) -> bool:
        """True when this session minted the id: nothing of that name was stored before it opened."""
        return self._first is not None and id >= self._first

    def documented(self, tasks: Sequence[TaskId]) -> Awaitable[frozenset[TaskId]]:
        return self._guard(self._storage.documented(tasks))

    def conversation(self, id: ConversationId) -> Awaitable[ConversationRecord | None]:
        return self._guard(self._storage.conversation(id))

    def scan_conversations(
        self, query: ConversationQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Awaitable[Page[ConversationRecord]]:
        return self._guard(self._storage.scan_conversations(query, limit=limit, after=after, order=order))

    def entry(self, id: EntryId) -> Awaitable[StoredEntry | None]:
        return self._guard(self._storage.entry(id))

    def visible_entry(self, conversation: ConversationId, id: EntryId) -> Awaitable[StoredEntry | None]:
        return self._guard(self._storage.visible_entry(conversation, id))

    def latest_head(
        self, conversation: ConversationId, *, until: EntryId | None = None
    ) -> Awaitable[EntryRecord | None]:
        return self._guard(self._storage.latest_head(conversation, until=until))

    def scan_entries(
        self,
        conversation: ConversationId,
        *,
        limit: int,
        first: EntryId | None = None,
        last: EntryId | None = None,
        after: int | None = None,
        order: Order = "descending",
    ) -> Awaitable[Page[EntryRecord]]:
        return self._guard(
            self._storage.scan_entries(conversation, limit=limit, first=first, last=last, after=after, order=order)
        )

    def task(self, id: TaskId) -> Awaitable[TaskRecord | None]:
        return self._guard(self._storage.task(id))

    def scan_tasks(
        self, query: TaskQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Awaitable[Page[TaskRecord]]:
        return self._guard(self._storage.scan_tasks(query, limit=limit, after=after, order=order))

    def submission(self, id: SubmissionId) -> Awaitable[SubmissionRecord | None]:
        return self._guard(self._storage.submission(id))

    def submission_by_request(
        self, conversation: ConversationId, request_id: str
    ) -> Awaitable[SubmissionRecord | None]:
        return self._guard(self._storage.submission_by_request(conversation, request_id))

    def scan_submissions(
        self, query: SubmissionQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Awaitable[Page[SubmissionRecord]]:
        return self._guard(self._storage.scan_submissions(query, limit=limit, after=after, order=order))

    def find_document(self, address: Address, at: At = CURRENT) -> Awaitable[DocumentRecord | None]:
        return self._guard(self._storage.find_document(address, at))

    def document(self, id: DocumentId, at: At = CURRENT) -> Awaitable[StoredDocument | None]:
        return self._guard(self._storage.document(id, at))

    async def documents(self, scope: Scope, at: At = CURRENT) -> list[DocumentRecord]:
        """Every incarnation alive at `at` in exactly this scope."""
        found: list[DocumentRecord] = []
        after: int | None = None
        while True:
            page = await self._guard(self._storage.scan_documents(scope, limit=PAGE, at=at, after=after))
            found.extend(page.items)
            if page.next is None:
                return found
            after = page.next
