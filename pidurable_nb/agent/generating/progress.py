"""Owns how often progress is stored (V5): partial answers and tool output, at most so often, less often when large.

Never knows what is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Final

from pidurable_nb.errors import InvocationEnded, SessionClosed, SessionFailed, StorageError

CHARS_PER_S: Final = 100 * 1024
"""What is written large is written less often: the next write waits for as long as this rate would have taken."""
_OVER: Final = (InvocationEnded, SessionClosed, SessionFailed, StorageError)
"""Nothing may be written any more; whoever does the work meets the same, and says so."""


class Throttle:
    """`async with Throttle(...)`: after `touch()`, `write` is called soon, and not again for a while.

    `write` gives the size of what it wrote. What changed after the last write is not written at the end: the commit
    that ends the work carries it. Laws: V5.
    """

    def __init__(self, every: timedelta, write: Callable[[], Awaitable[int]]) -> None:
        self._every_s = every.total_seconds()
        self._write = write
        self._touched = asyncio.Event()
        self._writing = False
        self._ending = False

    async def __aenter__(self) -> Throttle:
        self._due = asyncio.get_running_loop().time() + self._every_s
        self._work = asyncio.create_task(self._run(), name="progress")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = True
        if not self._writing:
            self._work.cancel()
        try:
            await asyncio.wait((self._work,))
        except asyncio.CancelledError:
            self._work.cancel()
            raise
        with suppress(asyncio.CancelledError, *_OVER):
            self._work.result()

    def touch(self) -> None:
        """Something changed."""
        self._touched.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._ending:
            await self._touched.wait()
            await asyncio.sleep(max(self._due - loop.time(), 0.0))
            self._touched.clear()
            self._writing = True
            try:
                size = await self._write()
            finally:
                self._writing = False
            self._due = loop.time() + max(self._every_s, size / CHARS_PER_S)
