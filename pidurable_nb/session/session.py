"""Owns a session: one store, one line, one writer; publication in order, poisoning, and an orderly close.

Never knows what a record means: who does attends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from pidurable_nb.clock import Clock
from pidurable_nb.errors import SessionClosed, SessionFailed, StorageError
from pidurable_nb.ids import ConversationId, Seq, TaskId
from pidurable_nb.probe import Mark, Probe, Subject, What
from pidurable_nb.session.block import Block
from pidurable_nb.session.changes import Changes, DocumentChange, Listener, changed_rows
from pidurable_nb.session.forking import Forking
from pidurable_nb.session.line import Line
from pidurable_nb.session.outside import Outside
from pidurable_nb.session.reads import StoredReads
from pidurable_nb.session.shelf import Turn
from pidurable_nb.session.staged_reads import StagedReads
from pidurable_nb.session.staging import Overlay, Staged
from pidurable_nb.session.table_reads import Ground
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.session.writer import Writer
from pidurable_nb.store.storage import Opened, Storage


class Attendant(Protocol):
    """The engine: adds what follows from a commit, and follows every one."""

    def candidate(self, tx: Transaction) -> Awaitable[None] | None:
        """At the end of a block with writes, still on the line, before anything is staged: more writes through tx."""
        ...

    def staged(self, changes: Changes) -> None:
        """On the line, as the commit is staged, in order."""
        ...

    def stored(self, changes: Changes) -> None:
        """After COMMIT and adoption, in order, before watches and callers hear of it."""
        ...

    def failed(self, error: SessionFailed) -> None:
        """Once, when the session has failed."""
        ...


class Session(Outside):
    """A store that is open for writing.

    Commits are blocks; reads and watches outside of one see only what is stored (C2, V4). A storage error ends the
    session (F1). It belongs to the event loop that opened it.
    """

    __slots__ = (
        "_attendant",
        "_closing",
        "_ground",
        "_listeners",
        "_overlay",
        "_report",
        "_storage",
        "_writer",
        "closing",
        "failed",
        "line",
        "opened",
        "probe",
    )

    def __init__(
        self,
        storage: Storage,
        opened: Opened,
        clock: Clock,
        probe: Probe | None,
        report: Callable[[BaseException], None],
    ) -> None:
        super().__init__(StoredReads(storage, self.poison))
        self.opened = opened
        self.probe = probe
        self.failed: SessionFailed | None = None
        self.closing = False
        self.line = Line()
        self._storage = storage
        self._report = report
        self._attendant: Attendant | None = None
        self._listeners: list[Listener] = []
        self._closing: asyncio.Task[None] | None = None
        self._overlay = Overlay()
        self._ground = Ground(
            clock,
            self._overlay,
            self._stored,
            StagedReads(self._overlay, self._stored),
            self._shelf,
            Forking(self._stored, self._overlay, self._shelf, self._flush),
        )
        self._writer = Writer(storage, self, one_by_one=probe is not None and probe.one_by_one)

    @classmethod
    async def open(
        cls,
        storage: Storage,
        *,
        clock: Clock,
        probe: Probe | None = None,
        report: Callable[[BaseException], None],
    ) -> Session:
        """Open the storage for writing. Raises: StoreRefused, StorageError."""
        return cls(storage, await storage.open(), clock, probe, report)

    def attend(self, attendant: Attendant) -> None:
        """Set the engine; at most one."""
        if self._attendant is not None:
            raise ValueError("a session has one attendant, and this one has it")
        self._attendant = attendant

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every stored commit, in order, from now on; returns what ends that.

        A listener that raises is reported, and goes on being called.
        """
        self._listeners.append(listener)

        def dispose() -> None:
            with suppress(ValueError):
                self._listeners.remove(listener)

        return dispose

    def block(
        self,
        subject: Subject,
        *,
        what: What = "commit",
        barrier: bool = False,
        name: str | None = None,
        conversation: ConversationId | None = None,
        by_task: TaskId | None = None,
        laws: tuple[str, ...] = (),
        text: str = "",
    ) -> Block:
        """A commit, to be entered with `async with`. The keywords describe it to the probe; see `Block`."""
        tx = Transaction(self._ground, subject, conversation, by_task)
        return Block(self, subject, what, barrier, name, laws, text, tx)

    # -- what a block needs ----------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Raises SessionFailed or SessionClosed when nothing may start any more."""
        if self.failed is not None:
            raise self.failure()
        if self.closing:
            raise SessionClosed("the session is closed; open the store again")

    def failure(self) -> SessionFailed:
        """The error of a session that has failed, fresh for every caller."""
        failed = self.failed
        assert failed is not None
        fresh = SessionFailed(str(failed), cause=failed.cause)
        fresh.__cause__ = failed.cause
        return fresh

    @property
    def newest(self) -> Staged | None:
        """The newest commit that is not stored yet."""
        return self._writer.newest

    def candidate(self, tx: Transaction) -> Awaitable[None] | None:
        """What the engine adds to a commit."""
        return self._attendant.candidate(tx) if self._attendant is not None else None

    def stage(self, staged: Staged) -> None:
        """Show the commit to later blocks, and queue it for the writer."""
        if self._attendant is not None:
            self._attendant.staged(staged.changes)
        self._overlay.add(staged.changes)
        for turn in staged.turns:
            self._shelf.stage(turn)
        self._writer.put(staged)

    async def _flush(self) -> None:
        newest = self._writer.newest
        if newest is not None:
            cancelled = await newest.settle()
            if cancelled is not None:
                raise cancelled
        if self.failed is not None:
            raise self.failure()

    # -- what the writer needs -------------------------------------------------------------------------------------

    def adopt(self, staged: Staged, seq: Seq) -> None:
        """A commit is stored: make it the stored state, and tell everybody in order (C2, C8)."""
        self._overlay.drop(staged.changes)
        for turn in staged.turns:
            self._shelf.store(turn, seq)
        if self.failed is not None:  # by a read, while this was under way: its caller may know, nobody follows any more
            staged.store(seq)
            return
        changes = _stamped(staged, seq)
        if self._attendant is not None:
            self._attendant.stored(changes)
        probe = self.probe
        if probe is not None:
            rows = changed_rows(staged.changes)
            probe.note(Mark(staged.subject, "publish", "before", seq=seq, rows=rows))
        for change in changes.documents:
            self._watches.publish(change, seq)
        for listener in tuple(self._listeners):
            self._tell(listener, changes)
        staged.store(seq)
        if probe is not None:
            probe.note(Mark(staged.subject, "publish", "after", seq=seq))

    def _tell(self, listener: Listener, changes: Changes) -> None:
        try:
            listener(changes)
        except Exception as error:
            self.report(error)

    def report(self, error: BaseException) -> None:
        """Tell who opened the session; what that raises is nobody's."""
        with suppress(Exception):
            self._report(error)

    def poison(self, error: StorageError) -> SessionFailed:
        """The storage cannot be trusted any more: end everything that waits (F1). The first error counts."""
        if self.failed is not None:
            return self.failed
        failed = self._fail(error)
        self._writer.lose_queue(failed)
        self.report(failed)
        return failed

    def crash(self, crash: BaseException) -> SessionFailed:
        """The writer ended by something else than the storage: nothing more is stored, and no answer will come."""
        if self.failed is None:
            error = StorageError(f"the session was ended by {crash!r}; reopen the store", stored="unknown")
            error.__cause__ = crash
            self._fail(error)
            if isinstance(crash, Exception):
                self.report(crash)
        assert self.failed is not None
        self._writer.lose_all(self.failed)
        return self.failed

    def _fail(self, error: StorageError) -> SessionFailed:
        failed = self.failed = SessionFailed(f"the session has failed: {error}", cause=error)
        failed.__cause__ = error
        self.line.break_off()
        self._watches.end("session_failed")
        if self._attendant is not None:
            try:
                self._attendant.failed(failed)
            except Exception as second:
                self.report(second)
        return failed

    # -- the end ---------------------------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Return when everything staged by now is stored. Raises: SessionFailed."""
        await self._flush()

    async def close(self) -> None:
        """Refuse what is new, let what is on the line end, store what is staged, close the storage. Idempotent.

        Durability: everything that was staged is stored, unless the session has failed.
        Raises: StorageError when closing the storage fails.
        """
        if self._closing is None:
            self.closing = True
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="pidurable_nb close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self.failed is None:
            await self.line.idle()
        await self._writer.stop()
        self._watches.end("session_closed")
        try:
            await self._storage.close()
        except Exception:
            if self.failed is None:
                raise


def _stamped(staged: Staged, seq: Seq) -> Changes:
    """The changes of a commit with its number, in the records of its documents too."""
    was = staged.changes
    documents = was.documents
    if documents:
        documents = tuple(map(_stamped_document, documents, staged.turns))
    return Changes(seq, was.barrier, was.tasks, was.conversations, was.entries, was.submissions, documents)


def _stamped_document(was: DocumentChange, turn: Turn) -> DocumentChange:
    return DocumentChange(turn.incarnation.record, was.value, was.ops, was.version, was.created)
