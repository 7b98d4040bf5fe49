"""Owns what a block reads of the tables, and that it reads them before it writes (C5). Never writes."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from pidurable_nb.clock import Clock
from pidurable_nb.errors import BlockEnded, ReadAfterWrite
from pidurable_nb.ids import ConversationId, EntryId, SubmissionId, TaskId
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, SubmissionRecord
from pidurable_nb.session.changes import TaskChange
from pidurable_nb.session.forking import Forking
from pidurable_nb.session.reads import StoredReads
from pidurable_nb.session.shelf import Shelf
from pidurable_nb.session.staged_reads import StagedReads
from pidurable_nb.session.staging import Overlay
from pidurable_nb.session.vigil import Vigil
from pidurable_nb.store.storage import ConversationQuery, Order, Page, SubmissionQuery, TaskQuery

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """What every transaction of a session stands on."""

    clock: Clock
    overlay: Overlay
    stored: StoredReads
    staged: StagedReads
    shelf: Shelf
    forking: Forking


class TableReads:
    """The reading half of a transaction. All raise BlockEnded outside the block, ReadAfterWrite after a write."""

    __slots__ = ("_ground", "_open", "_tasks", "_written", "vigil")

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._open: bool | None = None  # None: not entered yet
        self._written = False
        self._tasks: dict[TaskId, TaskChange] = {}
        self.vigil = Vigil()

    def now_ms(self) -> int:
        """The harness clock."""
        return self._ground.clock.now_ms()

    def _check(self) -> None:
        if not self._open:
            raise BlockEnded(
                "this commit block has not been entered" if self._open is None else "this commit block has ended"
            )

    async def _read(self, read: Awaitable[T]) -> T:
        return await self.vigil.inside(read)

    def _may_read(self) -> StagedReads:
        self._check()
        if self._written:
            raise ReadAfterWrite("tables are read before the first write of a block; move the read up (C5)")
        return self._ground.staged

    # -- reads of tables -----------------------------------------------------------------------------------------

    async def conversation(self, id: ConversationId) -> ConversationRecord | None:
        """The conversation."""
        return await self._read(self._may_read().conversation(id))

    async def entry(self, id: EntryId) -> EntryRecord | None:
        """The entry, in whatever conversation."""
        return await self._read(self._may_read().entry(id))

    async def visible_entry(self, conversation: ConversationId, id: EntryId) -> EntryRecord | None:
        """The entry when it is visible from `conversation` through its forks."""
        return await self._read(self._may_read().visible_entry(conversation, id))

    async def latest_head(self, conversation: ConversationId, *, until: EntryId | None = None) -> EntryRecord | None:
        """The newest visible entry with a head, at or before `until`."""
        return await self._read(self._may_read().latest_head(conversation, until=until))

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
        """A page of the visible entries. Raises: StorageRequestError for an unknown conversation."""
        reads = self._may_read()
        return await self._read(
            reads.scan_entries(conversation, limit=limit, first=first, last=last, after=after, order=order)
        )

    async def task(self, id: TaskId) -> TaskRecord | None:
        """The task."""
        reads = self._may_read()
        staged = self._ground.overlay.tasks.get(id)
        return staged if staged is not None else await self._read(reads.task(id))

    async def scan_tasks(
        self, query: TaskQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[TaskRecord]:
        """A page of tasks."""
        return await self._read(self._may_read().scan_tasks(query, limit=limit, after=after, order=order))

    async def submission(self, id: SubmissionId) -> SubmissionRecord | None:
        """The submission."""
        return await self._read(self._may_read().submission(id))

    async def submission_by_request(self, conversation: ConversationId, request_id: str) -> SubmissionRecord | None:
        """The submission that was admitted with that request id (S1)."""
        return await self._read(self._may_read().submission_by_request(conversation, request_id))

    async def scan_submissions(
        self, query: SubmissionQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[SubmissionRecord]:
        """A page of submissions."""
        return await self._read(self._may_read().scan_submissions(query, limit=limit, after=after, order=order))

    async def scan_conversations(
        self, query: ConversationQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[ConversationRecord]:
        """A page of conversations."""
        return await self._read(self._may_read().scan_conversations(query, limit=limit, after=after, order=order))

    def peek_task(self, id: TaskId) -> TaskRecord | None:
        """The task as this block, or a staged commit, wrote it; None when neither did. For the engine: not under C5."""
        change = self._tasks.get(id)
        return change.after if change is not None else self._ground.overlay.tasks.get(id)
