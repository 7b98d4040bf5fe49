"""Owns the commit block: from the line, through user code, to what the caller gets to know and when (C2, C3, C4, C8).

Never knows what is in it.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

from pidurable_nb.errors import BlockEnded, SessionFailed, StorageError, SuspendedBlock
from pidurable_nb.ids import Seq
from pidurable_nb.probe import Edge, Mark, Subject, What
from pidurable_nb.session.staging import Staged
from pidurable_nb.session.transaction import Transaction

if TYPE_CHECKING:
    from pidurable_nb.session.session import Session


class Block:
    """One commit: everything in the block is stored, or nothing (C1).

    Durability: when the block is left without an exception, what it wrote is stored, and synced for a barrier (E5).
    Raises: what user code raises, after a rollback (C4); SessionClosed; SessionFailed, also in place of anything else
    when the block could have read a commit that was lost (C8); StorageError when its own commit was (F1, F4);
    SuspendedBlock (C3); NotJson (C7); DocumentRefused. A cancellation rolls back, or is delivered after COMMIT (F4).
    """

    __slots__ = (
        "_barrier",
        "_laws",
        "_name",
        "_read",
        "_session",
        "_subject",
        "_text",
        "_tx",
        "_vigil",
        "_what",
        "seq",
    )

    def __init__(
        self,
        session: Session,
        subject: Subject,
        what: What,
        barrier: bool,
        name: str | None,
        laws: tuple[str, ...],
        text: str,
        tx: Transaction,
    ) -> None:
        self._session = session
        self._subject = subject
        self._what: What = what
        self._barrier = barrier
        self._name = name
        self._laws = laws
        self._text = text
        self._tx = tx
        self._vigil = tx.vigil
        self._read: Staged | None = None
        self.seq: Seq | None = None
        """The commit's number, once it is stored; None when there was nothing to store."""

    async def __aenter__(self) -> Transaction:
        session, tx = self._session, self._tx
        session.admit()
        if not tx.begin():
            raise BlockEnded("this block was entered before; make a new one")
        if not session.line.take():
            if await session.line.turn():
                if session.failed is not None:
                    session.line.release()
                    raise session.failure()
            else:
                raise session.failure()
        self._read = session.newest
        self._vigil.begin()
        return tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session, tx, vigil = self._session, self._tx, self._vigil
        vigil.end()
        staged: Staged | None = None
        failure: BaseException | None = None
        try:
            if vigil.tripped:
                self._refuse_suspension(error)
            if error is None:
                staged = await self._stage()
        except BaseException as raised:
            failure = raised
        tx.end()
        session.line.release()
        ended = failure if failure is not None else error
        if staged is not None:
            await self._learn(staged)
        elif ended is None or isinstance(ended, (Exception, asyncio.CancelledError)):
            await self._learn_what_was_read(ended)
        if failure is not None:
            raise failure

    async def _stage(self) -> Staged | None:
        """Everything between user code and the queue of the writer. Whoever cancels until here gets a rollback."""
        session, tx = self._session, self._tx
        if not tx.seal():
            return None
        addition = session.candidate(tx)
        if addition is not None:
            await addition
            tx.seal()
        staged = tx.staged(self._barrier)
        if not staged.commit.writes:
            return None
        if session.probe is not None:
            await session.probe.reach(self._mark("before", None))
        if session.failed is not None:
            raise session.failure()
        session.stage(staged)
        return staged

    async def _learn(self, staged: Staged) -> None:
        """Return when the block's own commit is stored (C8)."""
        cancelled = await staged.settle()
        if cancelled is not None:
            raise cancelled
        if staged.error is not None:
            raise self._loss(staged.error)
        self.seq = staged.seq
        if self._session.probe is not None:
            await self._session.probe.reach(self._mark("after", staged.seq))

    async def _learn_what_was_read(self, ended: BaseException | None) -> None:
        """Return when the newest commit that the block could have read is stored (C8)."""
        session, read = self._session, self._read
        if read is not None and not read.settled:
            cancelled = await read.settle()
            if cancelled is not None and not isinstance(ended, asyncio.CancelledError):
                raise cancelled
        if session.failed is None or isinstance(ended, (asyncio.CancelledError, SessionFailed, StorageError)):
            return
        if ended is None or (read is not None and read.error is not None):
            raise session.failure() from ended

    def _loss(self, error: StorageError | SessionFailed) -> BaseException:
        if isinstance(error, SessionFailed):
            return self._session.failure()
        return error.with_traceback(None)  # one error for the whole group: each caller gets its own traceback

    def _refuse_suspension(self, error: BaseException | None) -> None:
        alone = self._vigil.forgive()
        if error is not None and not isinstance(error, (Exception, asyncio.CancelledError)):
            return
        if not alone:
            raise error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError()
        raise SuspendedBlock(
            "a commit block waited for something else than its transaction while it held the line, and was rolled "
            "back; do that before the block (C3)"
        ) from error

    def _mark(self, edge: Edge, seq: Seq | None) -> Mark:
        return Mark(self._subject, self._what, edge, self._name, None, seq, self._laws, self._text)
