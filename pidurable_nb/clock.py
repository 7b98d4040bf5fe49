"""Owns what time it is. Never decides what happens at a time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The harness clock: wall time for what is stored, and waiting until a wall time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...

    async def sleep_until(self, at_ms: float) -> None:
        """Return when `now_ms()` has reached `at_ms`, or earlier if the clock may have been set (T12)."""
        ...


class SystemClock:
    """The machine's wall clock."""

    LONGEST_NAP_S = 3600.0
    """A sleeper looks at the clock this often, so that a clock that was set is noticed (T12)."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until(self, at_ms: float) -> None:
        await asyncio.sleep(min(max((at_ms - self.now_ms()) / 1000, 0.0), self.LONGEST_NAP_S))


class LoopClock:
    """Virtual time: that of the event loop in which it is first asked, counted from `start_ms`."""

    def __init__(self, start_ms: int = 1_750_000_000_000) -> None:
        self.start_ms = start_ms
        self._loop: asyncio.AbstractEventLoop | None = None

    def now_ms(self) -> int:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self.start_ms + round(self._loop.time() * 1000)

    async def sleep_until(self, at_ms: float) -> None:
        await asyncio.sleep(max((at_ms - self.now_ms()) / 1000, 0.0))


def as_datetime(ms: float) -> datetime:
    """The aware UTC datetime of a stored time."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def as_ms(at: datetime) -> int:
    """The stored form of an aware datetime. Raises ValueError for a naive one."""
    if at.tzinfo is None:
        raise ValueError(f"{at!r} has no time zone; write datetime.now(timezone.utc) or rt.now()")
    return round(at.timestamp() * 1000)
