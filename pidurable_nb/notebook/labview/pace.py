"""Owns when a view that watches shows its next picture: not too often, never for nothing, and at the end the newest.

Never reads what is shown, and never waits by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

EVERY_S: Final = 0.04
"""From the beginning of one picture to that of the next, at least: 25 a second."""
SHARE: Final = 0.25
"""The part of the time that making pictures may take; the rest of the interpreter is for the work that is watched."""


class Pace:
    """Counts news and says when a picture of it is due. News that comes while one is made is shown by the next."""

    def __init__(
        self, *, now: Callable[[], float] = time.monotonic, every_s: float = EVERY_S, share: float = SHARE
    ) -> None:
        self._now = now
        self._every_s = every_s
        self._share = share
        self._lock = threading.Lock()
        self._news = False
        self._due = now()
        self._bell: Callable[[], None] = lambda: None

    def rings(self, bell: Callable[[], None]) -> None:
        """Call `bell` when there is news again where there was none."""
        self._bell = bell

    def stir(self) -> None:
        """There is news. From any thread; returns at once."""
        with self._lock:
            if self._news:
                return
            self._news = True
        self._bell()

    def due_s(self) -> float | None:
        """How long until the next picture; None while there is no news."""
        with self._lock:
            return max(self._due - self._now(), 0.0) if self._news else None

    @contextmanager
    def picture(self) -> Generator[None]:
        """Around making one: it shows all news from before."""
        with self._lock:
            self._news = False
        began = self._now()
        try:
            yield
        finally:
            took = self._now() - began
            with self._lock:
                self._due = began + max(self._every_s, took / self._share)
