"""Owns taking turns: who works on one thing waits for those who came before. Never knows what the thing is.

Turns are held across event loops and threads, since a process may have several harnesses; an asyncio lock would not.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Hashable
from concurrent.futures import Future, InvalidStateError


class Turns:
    """Queues by key, first come first served. A key that nobody waits for costs nothing."""

    __slots__ = ("_guard", "_queues")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queues: dict[Hashable, deque[Future[None]]] = {}

    def __len__(self) -> int:
        """How many keys are in use."""
        return len(self._queues)

    @contextlib.asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncGenerator[None]:
        """Wait for the turn, and have it within the block. One who is cancelled while waiting leaves the queue."""
        mine: Future[None] = Future()
        with self._guard:
            self._queues.setdefault(key, deque()).append(mine)
        try:
            self._next(key)
            await asyncio.wrap_future(mine)
            yield
        finally:
            with self._guard:
                self._queues[key].remove(mine)
            self._next(key)

    def _next(self, key: Hashable) -> None:
        with self._guard:
            queue = self._queues.get(key)
            if not queue:
                self._queues.pop(key, None)
                return
            first = queue[0]
        with contextlib.suppress(InvalidStateError):  # it has its turn already, or was cancelled and goes
            first.set_result(None)
