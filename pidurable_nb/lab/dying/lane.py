"""Owns one thread that does one thing after another, for work that belongs to an event loop of its own.

Not an executor: those refuse work as soon as the interpreter begins to end, which is before anybody's `atexit`, and a
walk that is left open then could never be closed. Never knows what it does.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class PlainThread(threading.Thread):
    """A daemon that runs `work`; what it prints belongs to whatever runs at that moment, as with any newer ipykernel.

    ipykernel 6 sends it to the cell that started the thread, for as long as it lives, or to that of an ended thread
    which had the same number. It follows a thread to its parent, and finds none for this one.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=name, target=work, daemon=True)
        self._ipykernel_parent_thread_ident = 0  # no thread has this number


class Lane:
    """A thread of one's own. `call` does something there and waits for it."""

    def __init__(self, name: str) -> None:
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = PlainThread(name, partial(_run, self._waiting))
        self._thread.start()
        weakref.finalize(self, self._waiting.put, None).atexit = False  # one that is forgotten keeps no thread

    def call(self, work: Callable[[], T]) -> T:
        """What `work` returns, or raises. Raises RuntimeError when the lane is closed.

        Whoever is interrupted while it waits leaves the work going on.
        """
        if not self._thread.is_alive():
            raise RuntimeError(f"{self._thread.name} is closed")
        done: Future[T] = Future()

        def do() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # the caller's, whatever it is: a simulated crash is no Exception
                done.set_exception(error)

        self._waiting.put(do)
        return done.result()

    def close(self) -> None:
        """Do what waits, and end. Idempotent."""
        self._waiting.put(None)
        self._thread.join()


def in_thread(work: Callable[[], T]) -> T:
    """What `work` returns or raises, done where no event loop runs: a kernel's main thread has one."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="pidurable_nb life") as thread:
        return thread.submit(work).result()


def _run(waiting: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (do := waiting.get()) is not None:
        do()
        del do  # what it held is not kept until the next one comes
