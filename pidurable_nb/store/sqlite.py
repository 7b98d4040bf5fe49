"""Owns the SQLite storage: one connection, one hop per call, one transaction per group. Never knows what records mean.

What it is made of: `holding` takes the file (`opening` accepts or refuses it, `ownership` keeps others out) and lets it
go; `sqlite_rows` turns a group into statements, `sqlite_reads` and `sqlite_documents` answer questions; `line` runs all
of it on the worker.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar

from pidurable_nb.errors import AnotherWriter, NotJson, StorageError, StorageRequestError
from pidurable_nb.ids import MAX_INTEGER, ConversationId, DocumentId, EntryId, Seq, SubmissionId, TaskId
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.document import Address, DocumentRecord, Scope, StoredDocument
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, SubmissionRecord
from pidurable_nb.store import sqlite_documents, sqlite_reads
from pidurable_nb.store.copying import named
from pidurable_nb.store.holding import Holding, How, hold
from pidurable_nb.store.line import Line
from pidurable_nb.store.opening import Claim
from pidurable_nb.store.sqlite_rows import NEW_REVISION, Copy, Plan, plan
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
)

T = TypeVar("T")
Durability = Literal["kill", "barrier", "power"]

PAGE_AND_FRAME: Final = 4096 + 24
HARD_LIMIT: Final = 8
"""How many times the ordinary limit the log may reach before it is folded in front of a commit."""

_ADVANCE: Final = (
    "UPDATE durable_metadata SET next_id = CAST(max(CAST(next_id AS INTEGER), ?1) AS TEXT), next_seq = ?2"
    " WHERE singleton = 1 AND next_seq = ?3"
    " AND EXISTS (SELECT 1 FROM pidurable_store WHERE token = ?4 AND store_id = ?5)"
)
_STANDS: Final = (
    "SELECT next_seq, (SELECT token FROM pidurable_store), (SELECT store_id FROM pidurable_store) FROM durable_metadata"
)


class SqliteStorage:
    """A storage in one SQLite file, in the format of Pi Durable 1.4.

    Durability: `"kill"` survives the death of the process, `"barrier"` (default) also a power cut as far as the last
    barrier commit (E5), `"power"` a power cut after any commit. With `inline` the same work runs on the calling thread
    and never suspends. `vfs` names a registered SQLite VFS; `draw` makes the store's random names, for runs that are
    compared byte by byte (the file's identity is then not stored either).
    """

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = "barrier",
        busy_timeout_ms: int = 5000,
        wal_limit_pages: int = 1000,
        vfs: str | None = None,
        inline: bool = False,
        draw: Callable[[], str] | None = None,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self.durability: Durability = durability
        self._how = How(
            synced=durability == "power", busy_timeout_s=busy_timeout_ms / 1000, vfs=vfs, inline=inline, draw=draw
        )
        self._wal_limit_pages = wal_limit_pages
        self._held: Holding | None = None
        self._next_id = 0
        self._committed_id = 0
        self._next_seq = 0
        self._pages = 0
        """About how many pages the log has grown by since it was last folded."""

    def __repr__(self) -> str:
        return f"<SqliteStorage {named(self.path)} {self.durability}>"

    @property
    def barrier(self) -> Literal["synced", "ordinary"]:
        """`ordinary` with durability `kill`, else `synced` (E5)."""
        return "ordinary" if self.durability == "kill" else "synced"

    # --- Opening and closing ------------------------------------------------------------------------------------

    async def open(self) -> Opened:
        """Take the store for writing: lock, examine, migrate, claim.

        Durability: no row of the format changes when it is at version 2 already. A refusal leaves no trace.
        Raises: StoreRefused and its family; StorageError when the opening transaction itself failed.
        """
        if self._held is not None:
            raise StorageError(f"{self!r} is open already", stored="no")
        self._held = await hold(self.path, self._how)
        claim = self._held.claim
        self._next_id = self._committed_id = claim.next_id
        self._next_seq = claim.next_seq
        return Opened(
            next_seq=Seq(claim.next_seq),
            origin=claim.origin,
            store_id=claim.store_id,
            opening=claim.opening,
            notes=claim.notes,
        )

    async def close(self) -> None:
        """Fold the log into the file, close it, free the lock. Idempotent.

        Raises: StorageError when folding failed; the store is let go all the same, and the log keeps what it holds.
        """
        held, self._held = self._held, None
        if held is not None:
            await held.let_go()

    # --- Ids and commits ----------------------------------------------------------------------------------------

    def mint(self) -> int:
        """The next unused id, in memory. Raises: StorageError beyond 2^53-1, or when the store is not open."""
        self._open()
        id = self._next_id
        if id > MAX_INTEGER:
            raise StorageError(f"{named(self.path)} has used every id up to 2^53-1", stored="no")
        self._next_id = id + 1
        return id

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        """Store the group as one transaction, in one hop.

        Durability: on return it survives a kill; a group that holds a barrier, or any group under `power`, also a
        power cut, together with everything before it.
        Raises: StorageError with its class (F4); AnotherWriter (F5).
        """
        held = self._open()
        if not group:
            return ()
        first = Seq(self._next_seq)
        try:
            planned = plan(group, first_seq=first, fresh_from=self._committed_id)
        except NotJson as error:
            raise StorageError(f"a value that cannot be stored reached the storage: {error}", stored="no") from error
        before, next_id = self._next_id, max(self._next_id, planned.highest + 1)
        self._next_id = next_id
        synced = self.durability == "power" or (self.durability == "barrier" and any(part.barrier for part in group))
        try:
            await held.line.run(lambda line: self._store(held, line, planned, len(group), next_id, synced=synced))
        except StorageError:
            if self._next_id == next_id:
                self._next_id = before
            raise
        return tuple([Seq(first + offset) for offset in range(len(group))])

    def _store(self, held: Holding, line: Line, planned: Plan, commits: int, next_id: int, *, synced: bool) -> None:
        """On the worker: look at the files, then the transaction."""
        held.files.check()
        if self._pages >= HARD_LIMIT * self._wal_limit_pages:
            self._fold(held, line)  # housekeeping never got its turn
        first = self._next_seq
        claim = held.claim

        def write(cursor: sqlite3.Cursor) -> None:
            cursor.execute(_ADVANCE, (next_id, first + commits, first, claim.token, claim.store_id))
            if cursor.rowcount != 1:
                raise self._another_writer(cursor, claim)
            for part in planned.parts:
                contents = [_copied(cursor, copy) for copy in part.copies]
                _run_steps(cursor, part.steps)
                for copy, (version, text) in zip(part.copies, contents, strict=True):
                    cursor.execute(NEW_REVISION, (copy.id, copy.seq, "base", version, text))

        line.write(write, synced=synced)
        # Here, not where the caller waits: it may have been cancelled, and the commit is stored all the same.
        self._next_seq = first + commits
        self._committed_id = max(self._committed_id, next_id)
        self._pages += 3 + 2 * planned.rows + planned.bytes // 4096

    def _another_writer(self, cursor: sqlite3.Cursor, claim: Claim) -> AnotherWriter:
        row: tuple[int, int, str] | None = cursor.execute(_STANDS).fetchone()
        found = "its metadata is gone" if row is None else f"sequence number {row[0]} and token {row[1]} are there"
        return AnotherWriter(
            f"somebody else wrote to {named(self.path)}: {found}, where this process left {self._next_seq} and "
            f"{claim.token}; nothing of this commit is stored. Stop the other writer, then open the store again",
            stored="no",
        )

    # --- The log ------------------------------------------------------------------------------------------------

    async def maintain(self) -> None:
        """Fold the log when it has grown by about `wal_limit_pages` since it was last folded.

        Raises: StorageError when the fold failed.
        """
        held = self._open()
        if self._pages >= self._wal_limit_pages:
            await held.line.run(lambda line: self._fold(held, line))

    def _fold(self, held: Holding, line: Line) -> None:
        held.files.check()
        self._pages = 0
        # Somebody's reading keeps a log from being begun again; one that has grown over it is cut once that is over.
        grown = held.files.log_size() > HARD_LIMIT * self._wal_limit_pages * PAGE_AND_FRAME
        line.checkpoint("TRUNCATE" if grown else "PASSIVE")
        held.files.folded()

    # --- Reads --------------------------------------------------------------------------------------------------

    async def conversation(self, id: ConversationId) -> ConversationRecord | None:
        """The conversation, or None."""
        return await self._look(lambda cursor: sqlite_reads.conversation(cursor, id))

    async def scan_conversations(
        self, query: ConversationQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[ConversationRecord]:
        """A page of conversations."""
        return await self._look(lambda cursor: sqlite_reads.scan_conversations(cursor, query, limit, after, order))

    async def entry(self, id: EntryId) -> StoredEntry | None:
        """The entry with its commit's number, or None."""
        return await self._look(lambda cursor: sqlite_reads.entry(cursor, id))

    async def visible_entry(self, conversation: ConversationId, id: EntryId) -> StoredEntry | None:
        """The entry when it is visible from `conversation` through its forks, else None."""
        return await self._read(lambda cursor: sqlite_reads.visible_entry(cursor, conversation, id))

    async def latest_head(self, conversation: ConversationId, *, until: EntryId | None = None) -> EntryRecord | None:
        """The newest visible entry with a head, at or before `until`."""
        return await self._read(lambda cursor: sqlite_reads.latest_head(cursor, conversation, until))

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
            lambda cursor: sqlite_reads.scan_entries(cursor, conversation, limit, first, last, after, order)
        )

    async def task(self, id: TaskId) -> TaskRecord | None:
        """The task, or None."""
        return await self._look(lambda cursor: sqlite_reads.task(cursor, id))

    async def scan_tasks(
        self, query: TaskQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[TaskRecord]:
        """A page of tasks."""
        return await self._look(lambda cursor: sqlite_reads.scan_tasks(cursor, query, limit, after, order))

    async def submission(self, id: SubmissionId) -> SubmissionRecord | None:
        """The submission, or None."""
        return await self._look(lambda cursor: sqlite_reads.submission(cursor, id))

    async def submission_by_request(self, conversation: ConversationId, request_id: str) -> SubmissionRecord | None:
        """The submission that was admitted under `request_id`, or None."""
        return await self._look(lambda cursor: sqlite_reads.submission_by_request(cursor, conversation, request_id))

    async def scan_submissions(
        self, query: SubmissionQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[SubmissionRecord]:
        """A page of submissions."""
        return await self._look(lambda cursor: sqlite_reads.scan_submissions(cursor, query, limit, after, order))

    async def find_document(self, address: Address, at: At = CURRENT) -> DocumentRecord | None:
        """The incarnation at that address, alive at `at`."""
        return await self._look(lambda cursor: sqlite_documents.find_document(cursor, address, at))

    async def document(self, id: DocumentId, at: At = CURRENT) -> StoredDocument | None:
        """The value of one incarnation: its newest base and what follows, in one view."""
        return await self._read(lambda cursor: sqlite_documents.document(cursor, id, at))

    async def scan_documents(
        self, scope: Scope, *, limit: int, kind: str | None = None, at: At = CURRENT, after: int | None = None
    ) -> Page[DocumentRecord]:
        """The incarnations alive at `at` in exactly this scope."""
        return await self._look(lambda cursor: sqlite_documents.scan_documents(cursor, scope, limit, kind, at, after))

    async def documented(self, tasks: Sequence[TaskId]) -> frozenset[TaskId]:
        """Those of these tasks that have a document alive, in one hop."""
        return await self._read(lambda cursor: sqlite_documents.documented(cursor, tasks))

    # --- One hop ------------------------------------------------------------------------------------------------

    async def _look(self, do: Callable[[sqlite3.Cursor], T]) -> T:
        return await self._run(lambda line: line.look(do))

    async def _read(self, do: Callable[[sqlite3.Cursor], T]) -> T:
        return await self._run(lambda line: line.read(do))

    async def _run(self, do: Callable[[Line], T]) -> T:
        return await self._open().line.run(do)

    def _open(self) -> Holding:
        if self._held is None:
            raise StorageError(f"{self!r} is not open", stored="no")
        return self._held


def _run_steps(cursor: sqlite3.Cursor, steps: Sequence[tuple[str, tuple[str | int | None, ...], int, str]]) -> None:
    at, end, execute = 0, len(steps), cursor.execute
    while at < end:
        sql, parameters, skip, needed = steps[at]
        execute(sql, parameters)
        if skip and cursor.rowcount:
            at += skip
        elif needed and not cursor.rowcount:
            raise StorageError(f"the commit was refused: {needed}; nothing of it is stored", stored="no")
        at += 1


def _copied(cursor: sqlite3.Cursor, copy: Copy) -> tuple[int, str]:
    """Version and text of the source's value, before this commit."""
    try:
        found = sqlite_documents.document(cursor, copy.source, copy.at)
    except StorageRequestError as error:
        raise StorageError(f"the commit was refused: {error}; nothing of it is stored", stored="no") from error
    if found is None:
        raise StorageError(
            f"the commit was refused: document {copy.source} is not alive at {copy.at}; nothing of it is stored",
            stored="no",
        )
    return found.version, dumps(found.value)
