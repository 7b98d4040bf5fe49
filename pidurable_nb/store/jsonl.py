"""Owns the JSONL storage: one folder of text files, one hop per call, one line per commit. Never knows what records
mean.

What it is made of: `jsonl_holding` takes the folder and lets it go; `jsonl_recovery` reads it, with `jsonl_main` for
the file that counts; `jsonl_tables` answers questions from memory and says what a commit writes; `jsonl_journal` and
`jsonl_sidecars` write it in an order that survives, by the operations of `jsonl_files`; `jsonl_lines` is the text;
`jsonl_hop` is where the work is done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from pidurable_nb.errors import NotJson, StorageError
from pidurable_nb.ids import MAX_INTEGER, ConversationId, DocumentId, EntryId, Seq, SubmissionId, TaskId
from pidurable_nb.records.document import Address, DocumentRecord, Scope, StoredDocument
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, SubmissionRecord
from pidurable_nb.store.copying import named
from pidurable_nb.store.jsonl_files import Files, RealFiles
from pidurable_nb.store.jsonl_holding import Holding, hold
from pidurable_nb.store.jsonl_hop import Elsewhere, Here, Hop
from pidurable_nb.store.jsonl_tables import Tables, highest_id
from pidurable_nb.store.storage import (
    CURRENT,
    At,
    Commit,
    ConversationQuery,
    Opened,
    Order,
    Page,
    StoredEntry,
    SubmissionQuery,
    TaskQuery,
    finished,
)

T = TypeVar("T")


class JsonlStorage:
    """A storage in one folder: `main.jsonl`, a `doc-ID.jsonl` for each document, a `task-ID.jsonl` for each live task.

    Everything is held in memory while it is open. Durability: without `fsync` a commit survives the death of the
    process, and nothing is promised after a power cut. With `fsync` a power cut takes back at most the newest commits,
    and no barrier commit (E5) with what came before it. With `inline` the same work runs on the calling thread and
    never suspends. `files` does the file operations.
    """

    def __init__(self, folder: Path, *, fsync: bool = False, inline: bool = False, files: Files | None = None) -> None:
        self.folder = Path(os.path.realpath(folder))
        self.fsync = fsync
        self._inline = inline
        self._files: Files = RealFiles() if files is None else files
        self._held: Holding | None = None
        self._hop: Hop = Here()
        self._next_id = 0

    def __repr__(self) -> str:
        return f"<JsonlStorage {named(self.folder)}{' fsync' if self.fsync else ''}>"

    @property
    def barrier(self) -> Literal["synced", "ordinary"]:
        """`synced` with `fsync`, else `ordinary` (E5)."""
        return "synced" if self.fsync else "ordinary"

    # --- Opening and closing ------------------------------------------------------------------------------------

    async def open(self) -> Opened:
        """Take the folder for writing: lock, read, cut off what a crash left, raise the fencing token (F5).

        Durability: no record changes. A refusal leaves the folder as it was.
        Raises: StoreRefused and its family; StorageError when repairing or signing it failed.
        """
        if self._held is not None:
            raise StorageError(f"{self!r} is open already", stored="no")
        hop: Hop = Here() if self._inline else Elsewhere()
        taken: list[Holding] = []

        def take() -> Holding:
            taken.append(hold(self.folder, self._files, fsync=self.fsync))
            return taken[0]

        try:
            held = await hop.run(take)
        except BaseException:
            # A caller that was cancelled leaves a folder behind that is still being taken.
            hop.follow(lambda: _abandon(taken))
            hop.close()
            raise
        self._held, self._hop, self._next_id = held, hop, held.tables.next_id
        return Opened(
            next_seq=held.tables.next_seq,
            origin=held.opening.origin,
            store_id=held.opening.store_id,
            opening=held.opening.opening,
            notes=held.notes,
        )

    async def close(self) -> None:
        """Reclaim space, sync where the store syncs, free the lock. Idempotent.

        Raises: StorageError when that failed; the folder is let go all the same, with everything acknowledged in it.
        """
        held, self._held = self._held, None
        if held is not None:
            try:
                await self._hop.run(held.let_go)
            finally:
                self._hop.close()

    # --- Ids and commits ----------------------------------------------------------------------------------------

    def mint(self) -> int:
        """The next unused id, in memory. Raises: StorageError beyond 2^53-1, or when the store is not open."""
        self._open()
        id = self._next_id
        if id > MAX_INTEGER:
            raise StorageError(f"{named(self.folder)} has used every id up to 2^53-1", stored="no")
        self._next_id = id + 1
        return id

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        """Store the group in one hop, as one line for each commit behind everything that the lines name.

        Durability: on return it survives a kill; a group that holds a barrier, with `fsync`, also a power cut,
        together with everything before it. A kill before that may leave a beginning of the group, whole commits in
        order.
        Raises: StorageError with its class (F4); AnotherWriter (F5).
        """
        held = self._open()
        if not group:
            return ()
        before, next_id = self._next_id, max(self._next_id, highest_id(group) + 1)
        self._next_id = next_id
        try:
            return await self._hop.run(lambda: held.commit(group, next_id))
        except NotJson as error:
            self._take_back(before, next_id)
            raise StorageError(f"a value that cannot be stored reached the storage: {error}", stored="no") from error
        except StorageError:
            self._take_back(before, next_id)
            raise

    def _take_back(self, before: int, next_id: int) -> None:
        """An explicit id that was refused moves nothing, unless ids were minted behind it."""
        if self._next_id == next_id:
            self._next_id = before

    async def maintain(self) -> None:
        """Reclaim space when there is enough of it, and note how far the store is synced. Raises: StorageError."""
        held = self._open()
        await self._hop.run(held.journal.maintain)

    # --- Reads --------------------------------------------------------------------------------------------------

    async def conversation(self, id: ConversationId) -> ConversationRecord | None:
        """The conversation, or None."""
        return await self._read(lambda tables: tables.conversation(id))

    async def scan_conversations(
        self, query: ConversationQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[ConversationRecord]:
        """A page of conversations."""
        return await self._read(lambda tables: tables.scan_conversations(query, limit=limit, after=after, order=order))

    async def entry(self, id: EntryId) -> StoredEntry | None:
        """The entry with its commit's number, or None."""
        return await self._read(lambda tables: tables.entry(id))

    async def visible_entry(self, conversation: ConversationId, id: EntryId) -> StoredEntry | None:
        """The entry when it is visible from `conversation` through its forks, else None."""
        return await self._read(lambda tables: tables.visible_entry(conversation, id))

    async def latest_head(self, conversation: ConversationId, *, until: EntryId | None = None) -> EntryRecord | None:
        """The newest visible entry with a head, at or before `until`."""
        return await self._read(lambda tables: tables.latest_head(conversation, until=until))

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
        """The visible entries between `first` and `last`, both included, through the forks (V3)."""
        return await self._read(
            lambda tables: tables.scan_entries(
                conversation, limit=limit, first=first, last=last, after=after, order=order
            )
        )

    async def task(self, id: TaskId) -> TaskRecord | None:
        """The task, or None."""
        return await self._read(lambda tables: tables.task(id))

    async def scan_tasks(
        self, query: TaskQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[TaskRecord]:
        """A page of tasks."""
        return await self._read(lambda tables: tables.scan_tasks(query, limit=limit, after=after, order=order))

    async def submission(self, id: SubmissionId) -> SubmissionRecord | None:
        """The submission, or None."""
        return await self._read(lambda tables: tables.submission(id))

    async def submission_by_request(self, conversation: ConversationId, request_id: str) -> SubmissionRecord | None:
        """The submission that was admitted under `request_id`, or None."""
        return await self._read(lambda tables: tables.submission_by_request(conversation, request_id))

    async def scan_submissions(
        self, query: SubmissionQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[SubmissionRecord]:
        """A page of submissions."""
        return await self._read(lambda tables: tables.scan_submissions(query, limit=limit, after=after, order=order))

    async def find_document(self, address: Address, at: At = CURRENT) -> DocumentRecord | None:
        """The incarnation at that address, alive at `at`."""
        return await self._read(lambda tables: tables.find_document(address, at))

    async def document(self, id: DocumentId, at: At = CURRENT) -> StoredDocument | None:
        """The value of one incarnation: its newest base and what follows."""
        return await self._read(lambda tables: tables.document(id, at))

    async def scan_documents(
        self, scope: Scope, *, limit: int, kind: str | None = None, at: At = CURRENT, after: int | None = None
    ) -> Page[DocumentRecord]:
        """The incarnations alive at `at` in exactly this scope."""
        return await self._read(lambda tables: tables.scan_documents(scope, limit=limit, kind=kind, at=at, after=after))

    async def documented(self, tasks: Sequence[TaskId]) -> frozenset[TaskId]:
        """Those of these tasks that have a document alive, in one hop."""
        return await self._read(lambda tables: tables.documented(tasks))

    # --- One hop ------------------------------------------------------------------------------------------------

    async def _read(self, ask: Callable[[Tables], Coroutine[object, None, T]]) -> T:
        held = self._open()
        return await self._hop.run(lambda: finished(ask(held.tables)))

    def _open(self) -> Holding:
        if self._held is None:
            raise StorageError(f"{self!r} is not open", stored="no")
        return self._held


def _abandon(taken: Sequence[Holding]) -> None:
    for late in taken:
        late.abandon()
