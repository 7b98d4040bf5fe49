"""Owns who waits for what outside the task machine: for the end of a task, for nothing to live. Never decides when.

A wait that is given up leaves nothing behind, so that a host may poll with a timeout for as long as it likes.
"""

from __future__ import annotations

import asyncio

from pidurable_nb.ids import TaskId


class Waits:
    """The waits of one engine."""

    def __init__(self) -> None:
        self._tasks: dict[TaskId, list[asyncio.Future[None]]] = {}
        self._idlers: list[asyncio.Future[None]] = []

    async def task(self, id: TaskId) -> None:
        """Return when `tell` is called for the task. Raises what `end` is given."""
        waiters = self._tasks.setdefault(id, [])
        try:
            await _turn(waiters)
        finally:
            if not waiters and self._tasks.get(id) is waiters:
                del self._tasks[id]

    async def idle(self) -> None:
        """Return when `tell_idle` is called. Raises what `end` is given."""
        await _turn(self._idlers)

    def tell(self, id: TaskId) -> None:
        """The task has ended, or rests: whoever waits for it looks again."""
        _tell(self._tasks.pop(id, []))

    def tell_idle(self) -> None:
        """Nothing may live: whoever waits for that looks again."""
        idlers, self._idlers = self._idlers, []
        _tell(idlers)

    def end(self, error: BaseException) -> None:
        """Nobody will be told any more."""
        waiting = [waiter for waiters in self._tasks.values() for waiter in waiters] + self._idlers
        self._tasks.clear()
        self._idlers = []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # whoever gave up waiting does not fetch it


def _tell(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


async def _turn(waiters: list[asyncio.Future[None]]) -> None:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.append(waiter)
    try:
        await waiter
    finally:
        if waiter.cancelled():
            waiters.remove(waiter)
