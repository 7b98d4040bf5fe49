"""Owns the promises of the `Storage` protocol as checks that anyone can run on a storage of their own.

With pytest:

    @each_check()
    def test_my_storage_keeps(check: Check) -> None:
        asyncio.run(check.run(make))        # async def make() -> Storage: opens a fresh, empty one

Without it, `for check in checks(): asyncio.run(check.run(make))`; a broken promise is an AssertionError that shows what
was expected and found. `Reopening` makes any storage that can be opened again answer from what it has really stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from pidurable_nb.errors import StorageError
from pidurable_nb.ids import ConversationId, DocumentId, EntryId, Seq, SubmissionId, TaskId
from pidurable_nb.records.document import Address, DocumentRecord, Scope, StoredDocument
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, SubmissionRecord
from pidurable_nb.store.storage import (
    CURRENT,
    At,
    Commit,
    ConversationQuery,
    Opened,
    Order,
    Page,
    Storage,
    StoredEntry,
    SubmissionQuery,
    TaskQuery,
)
from pidurable_nb.testing import (
    storage_commits,
    storage_documents,
    storage_lives,
    storage_scans,
    storage_transcripts,
    storage_values,
)
from pidurable_nb.testing.storage_checks import Check, Make

if TYPE_CHECKING:
    import pytest

__all__ = ["Check", "Make", "Reopening", "checks", "each_check"]


def checks(*, reopens: bool = True) -> tuple[Check, ...]:
    """Every check; without those that close a storage and open it again when it cannot do that."""
    modules = (storage_commits, storage_values, storage_transcripts, storage_scans, storage_documents, storage_lives)
    found = [check for module in modules for check in module.promise.checks]
    return tuple(check for check in found if reopens or not check.reopens)


def each_check(*, reopens: bool = True) -> pytest.MarkDecorator:
    """Parametrise a pytest function with `check`, each under its law and name. Only here is pytest needed."""
    import pytest

    return pytest.mark.parametrize("check", checks(reopens=reopens), ids=str)


class Reopening:
    """A storage that is closed after every group and opened again, by a new object each time.

    `make` gives an object, not opened yet, on the same data every time. What a group did not store is lost.
    """

    def __init__(self, make: Callable[[], Storage]) -> None:
        self._make = make
        self._inner: Storage | None = None

    @property
    def _open(self) -> Storage:
        if self._inner is None:
            raise StorageError("this storage is closed; open it first", stored="no")
        return self._inner

    @property
    def barrier(self) -> Literal["synced", "ordinary"]:
        """As the storage itself says."""
        return (self._inner or self._make()).barrier

    async def open(self) -> Opened:
        """Open a new object."""
        storage = self._make()
        opened = await storage.open()
        self._inner = storage
        return opened

    async def close(self) -> None:
        """Close it. Idempotent."""
        inner, self._inner = self._inner, None
        if inner is not None:
            await inner.close()

    def mint(self) -> int:
        """The next unused id."""
        return self._open.mint()

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        """Commit, close, open."""
        seqs = await self._open.commit(group)
        await self.close()
        await self.open()
        return seqs

    async def maintain(self) -> None:
        """Housekeeping, close, open."""
        await self._open.maintain()
        await self.close()
        await self.open()

    async def conversation(self, id: ConversationId) -> ConversationRecord | None:
        """As the storage itself."""
        return await self._open.conversation(id)

    async def scan_conversations(
        self, query: ConversationQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[ConversationRecord]:
        """As the storage itself."""
        return await self._open.scan_conversations(query, limit=limit, after=after, order=order)

    async def entry(self, id: EntryId) -> StoredEntry | None:
        """As the storage itself."""
        return await self._open.entry(id)

    async def visible_entry(self, conversation: ConversationId, id: EntryId) -> StoredEntry | None:
        """As the storage itself."""
        return await self._open.visible_entry(conversation, id)

    async def latest_head(self, conversation: ConversationId, *, until: EntryId | None = None) -> EntryRecord | None:
        """As the storage itself."""
        return await self._open.latest_head(conversation, until=until)

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
        """As the storage itself."""
        return await self._open.scan_entries(
            conversation, limit=limit, first=first, last=last, after=after, order=order
        )

    async def task(self, id: TaskId) -> TaskRecord | None:
        """As the storage itself."""
        return await self._open.task(id)

    async def scan_tasks(
        self, query: TaskQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[TaskRecord]:
        """As the storage itself."""
        return await self._open.scan_tasks(query, limit=limit, after=after, order=order)

    async def submission(self, id: SubmissionId) -> SubmissionRecord | None:
        """As the storage itself."""
        return await self._open.submission(id)

    async def submission_by_request(self, conversation: ConversationId, request_id: str) -> SubmissionRecord | None:
        """As the storage itself."""
        return await self._open.submission_by_request(conversation, request_id)

    async def scan_submissions(
        self, query: SubmissionQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[SubmissionRecord]:
        """As the storage itself."""
        return await self._open.scan_submissions(query, limit=limit, after=after, order=order)

    async def find_document(self, address: Address, at: At = CURRENT) -> DocumentRecord | None:
        """As the storage itself."""
        return await self._open.find_document(address, at)

    async def document(self, id: DocumentId, at: At = CURRENT) -> StoredDocument | None:
        """As the storage itself."""
        return await self._open.document(id, at)

    async def documented(self, tasks: Sequence[TaskId]) -> frozenset[TaskId]:
        """As the storage itself."""
        return await self._open.documented(tasks)

    async def scan_documents(
        self, scope: Scope, *, limit: int, kind: str | None = None, at: At = CURRENT, after: int | None = None
    ) -> Page[DocumentRecord]:
        """As the storage itself."""
        return await self._open.scan_documents(scope, limit=limit, kind=kind, at=at, after=after)
