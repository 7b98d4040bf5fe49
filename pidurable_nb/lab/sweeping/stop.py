"""Owns running something long that may be stopped and then still has an answer, a sweep for one.

An interrupt never reaches the work itself, where it could hit a half done write inside of SQLite: the work has a thread
of its own and is asked to stop. Never decides when the work is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["until_stopped"]

T = TypeVar("T")


class _Working(threading.Thread, Generic[T]):
    """A thread with an answer. It is a daemon: a process that is made to end does not wait for it."""

    def __init__(self, work: Callable[[threading.Event], T]) -> None:
        super().__init__(name="pidurable_nb sweeping", daemon=True)
        self.stop = threading.Event()
        self.ended = threading.Event()  # not join: interrupted there, Python 3.11 takes a thread for dead that is not
        self._work = work
        self._answers: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work, and keep what it gave or raised."""
        try:
            self._answers.append(self._work(self.stop))
        except BaseException as error:
            self._error = error
        finally:
            self.ended.set()

    def answer(self) -> T:
        """What the work gave. Raises: what it raised."""
        if self._error is not None:
            raise self._error
        return self._answers[0]


def until_stopped(
    work: Callable[[threading.Event], T],
    *,
    watch: Callable[[bool], None] = lambda _stopping: None,
    every_s: float = 0.1,
) -> T:
    """What `work` gives, which looks at its event and ends early when that is set: at the first KeyboardInterrupt here.

    `watch` is called in this thread meanwhile, and told whether the work is being stopped. A second interrupt is raised
    at once, and the work left to end by itself. Raises: what the work raises; KeyboardInterrupt.
    """
    working = _Working(work)
    working.start()
    try:
        while True:
            try:
                while not working.ended.wait(every_s):
                    watch(working.stop.is_set())
                return working.answer()
            except KeyboardInterrupt:
                if working.stop.is_set():
                    raise
                working.stop.set()
    finally:
        working.stop.set()
