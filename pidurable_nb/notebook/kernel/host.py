"""Owns the one thread with the one event loop on which this kernel's harness and its database live.

While a cell blocks, the kernel's own loop stands still; this one does not, so durable work goes on. A magic is
synchronous and waits here; a cell may `await`. Never knows what the harness does, and never renders anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from pidurable_nb.lab.dying.lane import PlainThread

T = TypeVar("T")
V = TypeVar("V")

SETTLE_S = 5.0
"""How long interrupted work may take to end, and an orderly close at exit."""


class _End:
    """Nothing more is told."""


class HostEnded(RuntimeError):
    """The thread has ended: `%load_ext pidurable_nb` starts another."""


class Host:
    """A daemon thread with one event loop. It starts with the first call, and ends with `shut` or with the process.

    Whatever the work raises reaches the caller. A `SystemExit` of some task ends that task and not the loop.
    """

    def __init__(self, name: str = "pidurable") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def here(self) -> bool:
        """Whether the caller is on the thread."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[None, None, T]) -> Future[T]:
        """Start `work` on the thread and return at once. Raises HostEnded."""
        try:
            loop = self._started()
        except HostEnded:
            work.close()
            raise
        # In a context of its own: what a cell's context holds, where its output goes for one, is no affair of work that
        # outlives the cell. What the work prints then appears below the cell that runs at that moment.
        return contextvars.Context().run(asyncio.run_coroutine_threadsafe, work, loop)

    def call(self, work: Coroutine[None, None, T], *, timeout_s: float | None = None) -> T:
        """What `work` returns, waiting for it. An interrupt cancels it, lets it settle and is raised again.

        Raises: HostEnded; RuntimeError on the thread itself, which would wait for itself; TimeoutError.
        """
        if self.here:
            work.close()
            raise RuntimeError("this is the harness's own thread: await instead of calling")
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except (KeyboardInterrupt, TimeoutError):
            self._cancel(future)
            raise

    def follow(
        self, work: Callable[[Callable[[V], None]], Coroutine[None, None, T]], show: Callable[[V], None], every_s: float
    ) -> T:
        """Like `call`; what the work tells meanwhile is shown here, only the newest, and at most so often.

        An interrupt cancels the work, lets it settle and is raised again.
        """
        told: SimpleQueue[V | _End] = SimpleQueue()
        future = self.submit(work(told.put))
        future.add_done_callback(lambda ended: told.put(_End()))
        try:
            while not isinstance(news := told.get(), _End):
                while not told.empty() and not isinstance(later := told.get(), _End):
                    news = later
                show(news)
                if future in wait((future,), every_s).done:
                    break
        except BaseException:
            self._cancel(future)
            raise
        return future.result()

    async def carry(self, work: Coroutine[None, None, T]) -> T:
        """What `work` returns, awaited from any loop. Cancelling the waiter cancels the work."""
        if self.here:
            return await work
        return await asyncio.wrap_future(self.submit(work))

    def shut(self) -> None:
        """Cancel what still runs, let it end, and end the thread. Idempotent; nothing runs here afterwards."""
        with self._lock:
            self._ended = True
            loop, thread = self._loop, self._thread
            self._loop = None
        if loop is None or thread is None or not thread.is_alive() or self.here:
            return
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(_wind_up(), loop).result(SETTLE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SETTLE_S)

    def _cancel(self, future: Future[T]) -> None:
        """Cancel it and give it a moment: its cancellation is delivered after its commit has settled."""
        if future.done():
            return
        future.cancel()

        async def turn() -> None:
            await asyncio.sleep(0.05)

        with contextlib.suppress(Exception):
            self.submit(turn()).result(SETTLE_S)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._ended:
                raise HostEnded("the harness's thread has ended; run %reload_ext pidurable_nb")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = PlainThread(self._name, partial(self._run, self._loop))
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while True:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # of one task: it has its end, the others need the loop
            break
        loop.close()


async def _wind_up() -> None:
    """Cancel every other task and wait until all have ended."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
