"""Owns following one document: a bounded queue of frames, and why it ended (V4). Never sees what is not stored."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Literal, Self, TypeVar

from pidurable_nb.ids import JsonObject, Seq
from pidurable_nb.records.document import Address
from pidurable_nb.session.changes import DocumentChange
from pidurable_nb.session.definition import Definition, todays
from pidurable_nb.store.delta import Op, Replace

F = TypeVar("F")

MOST_FRAMES: Final = 100
"""How many frames a slow observer can be behind before it gets the newest value at once."""

Ended = Literal["stopped", "retired", "session_closed", "session_failed", "listener_error"]


@dataclass(frozen=True, slots=True)
class Frame:
    """A document after a stored commit. `ops` lead here from the frame before; `value` None: it was retired."""

    value: JsonObject | None
    ops: tuple[Op, ...]
    seq: Seq


class Frames(Generic[F]):
    """What an observer has not read yet: at most 100 frames, then one that says everything instead (V4).

    Iterating gives them in order, and ends when the following has; `ended` says why.
    """

    __slots__ = ("_frames", "_waiting", "ended")

    def __init__(self) -> None:
        self.ended: Ended | None = None
        self._frames: deque[F] = deque()
        self._waiting: list[asyncio.Future[None]] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> F:
        while not self._frames:
            if self.ended is not None:
                raise StopAsyncIteration
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(told)
            await told
        return self._frames.popleft()

    def _put(self, frame: F, whole: Callable[[], F]) -> None:
        """Queue a frame; `whole` gives the one that stands for it and all before, for who is too far behind."""
        if len(self._frames) >= MOST_FRAMES:
            self._frames.clear()
            frame = whole()
        self._frames.append(frame)
        self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for told in waiting:
            if not told.done():
                told.set_result(None)


class Watch(Frames[Frame]):
    """The stored values of one document, from the current one on.

    `value` is the newest published value. Iterating gives every later one as a frame, in order; an observer that is
    more than 100 frames behind gets one frame with the newest value instead. With a listener each frame is given to
    it at publication, and iterating gives none. Iteration ends when the watch has; `ended` says why. Laws: C2, V4.
    """

    __slots__ = ("_close", "_definition", "_listener", "_report", "address", "value")

    def __init__(
        self,
        definition: Definition,
        address: Address,
        value: JsonObject,
        *,
        listener: Callable[[Frame], None] | None,
        close: Callable[[Watch], None],
        report: Callable[[BaseException], None],
    ) -> None:
        super().__init__()
        self._definition = definition
        self.address = address
        self.value: JsonObject | None = value
        self._listener = listener
        self._close = close
        self._report = report

    def stop(self) -> None:
        """Follow no longer; what is queued can still be read. Idempotent."""
        self.end("stopped")

    # -- the session's side ----------------------------------------------------------------------------------------

    def publish(self, change: DocumentChange, seq: Seq) -> None:
        """Take a stored change of the document."""
        if change.value is None:
            self._add(Frame(None, (), seq))
            self.end("retired")
            return
        try:
            value = todays(self._definition, change.value, change.version)
        except Exception as error:  # a newer class than the watch's wrote it, or its migrate failed
            self._fail(error)
            return
        ops = change.ops if value is change.value else (Replace(value),)
        self._add(Frame(value, ops, seq))

    def _add(self, frame: Frame) -> None:
        self.value = frame.value
        if self._listener is not None:
            try:
                self._listener(frame)
            except Exception as error:
                self._fail(error)
            return
        value = frame.value
        self._put(frame, lambda: frame if value is None else Frame(value, (Replace(value),), frame.seq))

    def _fail(self, error: Exception) -> None:
        self.end("listener_error")
        self._report(error)

    def end(self, reason: Ended) -> None:
        """End the watch, once."""
        if self.ended is None:
            self.ended = reason
            self._close(self)
            self._tell()


class Watches:
    """Every watch of a session, by address."""

    __slots__ = ("_by_address", "_told")

    def __init__(self) -> None:
        self._by_address: dict[Address, list[Watch]] = {}
        self._told: list[Callable[[Ended], None]] = []

    def tell(self, heard: Callable[[Ended], None]) -> Callable[[], None]:
        """Call `heard` when all of them end; returns what ends that."""
        self._told.append(heard)

        def dispose() -> None:
            if heard in self._told:
                self._told.remove(heard)

        return dispose

    def add(self, watch: Watch) -> None:
        self._by_address.setdefault(watch.address, []).append(watch)

    def remove(self, watch: Watch) -> None:
        """Forget a watch that ended."""
        watches = self._by_address.get(watch.address)
        if watches is not None and watch in watches:
            watches.remove(watch)
            if not watches:
                del self._by_address[watch.address]

    def publish(self, change: DocumentChange, seq: Seq) -> None:
        """Hand a stored change to those who follow that document."""
        watches = self._by_address.get(change.record.address) if self._by_address else None
        for watch in tuple(watches or ()):
            watch.publish(change, seq)

    def end(self, reason: Ended) -> None:
        """End all of them, and say so."""
        for heard in tuple(self._told):
            heard(reason)
        for watches in tuple(self._by_address.values()):
            for watch in tuple(watches):
                watch.end(reason)
