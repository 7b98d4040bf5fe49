"""Owns where the blocking work of a storage is done: on a thread of its own, one hop per piece of work, or right here.
Never knows what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Hop(Protocol):
    """Does pieces of work, one at a time and in order."""

    async def run(self, do: Callable[[], T]) -> T:
        """Do it. When the caller is cancelled meanwhile, it is done all the same."""
        ...

    def follow(self, do: Callable[[], object]) -> None:
        """Do it behind everything that was asked for, without anybody waiting."""
        ...

    def close(self) -> None:
        """No more work; what was asked for is still done."""
        ...


class Here:
    """Work on the calling thread, which never suspends: for the deterministic loop."""

    async def run(self, do: Callable[[], T]) -> T:
        """Do it now."""
        return do()

    def follow(self, do: Callable[[], object]) -> None:
        """Do it now."""
        do()

    def close(self) -> None:
        """Nothing to let go of."""


class Elsewhere:
    """Work on one worker thread. The interpreter does not wait for a worker that has nothing to do."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pidurable_nb jsonl")

    async def run(self, do: Callable[[], T]) -> T:
        """Do it on the worker."""
        asked: Future[T] = self._worker.submit(do)
        return await asyncio.shield(asyncio.wrap_future(asked))

    def follow(self, do: Callable[[], object]) -> None:
        """Do it on the worker."""
        self._worker.submit(do)

    def close(self) -> None:
        """The worker ends behind its last piece of work."""
        self._worker.shutdown(wait=False)
