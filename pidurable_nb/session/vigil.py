"""Owns noticing a commit block that waits for something else than its transaction (C3). Never looks at what for.

While user code holds the block, one callback is always queued on the loop. If it runs while no operation of the
transaction is under way, the block has suspended on something foreign: its task is cancelled, and the block's end
turns that into SuspendedBlock. So a block that awaits, say, its own session cannot hold the line for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class Vigil:
    """Watches over one block."""

    __slots__ = ("_armed", "_before", "_inside", "_loop", "_task", "_watching", "tripped")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None
        self._before = 0
        self._armed: asyncio.Handle | None = None
        self._inside = 0
        self._watching = False
        self.tripped = False

    def begin(self) -> None:
        """User code gets the block, in the running task."""
        loop = self._loop = asyncio.get_running_loop()
        task = self._task = asyncio.current_task(loop)
        if task is not None:
            self._before = task.cancelling()
            self._watching = True
            self._armed = loop.call_soon(self._look)

    def end(self) -> None:
        """User code has left the block."""
        self._watching = False
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None

    async def inside(self, work: Awaitable[T]) -> T:
        """Wait for an operation of the transaction."""
        self._inside += 1
        try:
            return await work
        finally:
            self._inside -= 1
            self._arm()

    def _arm(self) -> None:
        if self._watching and self._armed is None and self._loop is not None:
            self._armed = self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._armed = None
        if self._watching and not self._inside and self._task is not None and not self.tripped:
            self.tripped = True
            self._task.cancel("a commit block waited for something else than its transaction (C3)")

    def forgive(self) -> bool:
        """Take the cancellation back that `tripped` caused; False when somebody else cancelled the task too."""
        return self._task is None or self._task.uncancel() <= self._before
