"""Owns following something that commits change: from its stored state on, frame by frame, until it ends (V4).

What is followed is a `Projection`; the conversation view, the agent events and the task graph are three. Never sees
what is not stored, and never writes.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from pidurable_nb.probe import Subject
from pidurable_nb.session.changes import Changes
from pidurable_nb.session.session import Session
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.session.watch import Ended, Frames

S = TypeVar("S")
F = TypeVar("F")
F_co = TypeVar("F_co", covariant=True)


class Projection(Protocol[S, F_co]):
    """Something that is read once, and then derived from what commits changed. `subject` says for whom it is read."""

    @property
    def subject(self) -> Subject: ...

    async def read(self, tx: Transaction) -> S:
        """The state, in a block that holds the line."""
        ...

    def advance(self, value: S, changes: Changes) -> tuple[S, F_co | None]:
        """The state after a stored commit, and what to show of it; None: nothing. Must cost what changed."""
        ...

    def whole(self, value: S) -> F_co:
        """A frame that says everything, for who is new and for who is too far behind."""
        ...


class Following(Frames[F], Generic[S, F]):
    """A state and its changes, from the current one on.

    `value` is the newest stored state. Iterating gives a frame for every later commit that concerns it, in order; an
    observer that is more than 100 frames behind gets one frame that says everything instead. Iteration ends when the
    following has; `ended` says why. Laws: C2, V4.
    """

    __slots__ = ("_forget", "_projection", "_report", "_unsubscribe", "value")

    def __init__(self, session: Session, projection: Projection[S, F], value: S, *, first: bool) -> None:
        super().__init__()
        self.value = value
        self._projection = projection
        self._report = session.report
        if first:
            self._frames.append(projection.whole(value))
        self._unsubscribe = session.subscribe(self.hear)
        self._forget = session.on_end(self._end)

    def stop(self) -> None:
        """Follow no longer; what is queued can still be read. Idempotent."""
        self._end("stopped")

    # -- the session's side --------------------------------------------------------------------------------------------

    def hear(self, changes: Changes) -> None:
        """Take what a stored commit changed."""
        if self.ended is not None:
            return
        try:
            self.value, frame = self._projection.advance(self.value, changes)
        except Exception as error:  # newer code wrote a document that this code cannot read
            self._end("listener_error")
            self._report(error)
            return
        if frame is not None:
            self._put(frame, lambda: self._projection.whole(self.value))

    def _end(self, reason: Ended) -> None:
        if self.ended is None:
            self.ended = reason
            self._unsubscribe()
            self._forget()
            self._tell()


async def follow(session: Session, projection: Projection[S, F], *, first: bool = False) -> Following[S, F]:
    """Follow from the current stored state on: no commit is missed and none is shown twice.

    The state is read on the line, so no commit is staged meanwhile; it includes those that were staged before, and the
    block ends when they are stored. What is stored until the caller goes on is in the first state as well. With
    `first`, the first frame is the whole state.
    Raises: SessionClosed, SessionFailed, the StorageError that the reading meets (F1), and what the projection raises.
    """
    later: list[Changes] = []
    unsubscribe = session.subscribe(later.append)
    try:
        async with session.block(projection.subject) as tx:
            later.clear()
            newest = session.newest
            value = await projection.read(tx)
        session.admit()  # it may have ended while the block did
    finally:
        unsubscribe()
    included = newest.seq if newest is not None else None
    for changes in later:
        if included is None or (changes.seq is not None and changes.seq > included):
            value, _ = projection.advance(value, changes)
    return Following(session, projection, value, first=first)
