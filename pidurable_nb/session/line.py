"""Owns the mutation line: who may write now, first come first served (C3). Never knows what is written."""

from __future__ import annotations

import asyncio
from collections import deque


class Line:
    """One holder at a time. Taking a free line does not suspend."""

    __slots__ = ("_held", "_idle", "_waiting")

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._idle: list[asyncio.Future[None]] = []

    @property
    def busy(self) -> bool:
        """True while somebody holds the line or waits for it."""
        return self._held or bool(self._waiting)

    def take(self) -> bool:
        """Take the line if it is free and nobody waits; False otherwise."""
        if self._held:
            return False
        self._held = True
        return True

    async def turn(self) -> bool:
        """Wait for the line in order. True: it is held; False: the line was broken meanwhile.

        A caller that is cancelled leaves the queue; a turn that it had been given already goes to the next.
        """
        mine: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            return await mine
        except BaseException:
            if mine.done() and not mine.cancelled() and mine.result():
                self.release()
            elif mine in self._waiting:
                self._waiting.remove(mine)
                self._tell_idle()
            raise

    def release(self) -> None:
        """Give the line to who waits longest, or free it."""
        while self._waiting:
            heir = self._waiting.popleft()
            if not heir.done():
                heir.set_result(True)  # the line stays held: nobody gets in between
                return
        self._held = False
        self._tell_idle()

    def break_off(self) -> None:
        """Send everybody who waits away; the holder keeps the line."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(False)
        self._tell_idle()

    async def idle(self) -> None:
        """Return when nobody holds the line or waits for it."""
        while self.busy:
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(told)
            await told

    def _tell_idle(self) -> None:
        if self._held or self._waiting:
            return
        for told in self._idle:
            if not told.done():
                told.set_result(None)
        self._idle.clear()
