"""Owns whose turn it is among the tasks that openings keep finding without progress (T9). Never starts one.

A crash counts against everything that ran. So a task that was found often runs without the others of its kind: whoever
brings the process down is left alone with its crash, and does not park its neighbours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from pidurable_nb.ids import TaskId
from pidurable_nb.records.task import TaskRecord

SUSPECT_RESTARTS = 2
"""T9: from this count on a task is reserved alone, so that it is alone with a crash that it causes."""


GiveTime: TypeAlias = Callable[[Callable[[], None]], "asyncio.Task[None]"]
"""Calls what it is given when the time that a suspect has for progress has passed."""


class Suspects:
    """One suspect at a time tries; `next_one` hears of the one whose turn has come."""

    def __init__(self, give_time: GiveTime, next_one: Callable[[TaskId], None]) -> None:
        self._give_time = give_time
        self._next_one = next_one
        self._alone: TaskId | None = None
        self._queue: dict[TaskId, None] = {}
        self._time: asyncio.Task[None] | None = None

    def may_start(self, record: TaskRecord) -> bool:
        """Whether the task may be reserved now; a suspect that may not is queued."""
        if record.restarts < SUSPECT_RESTARTS:
            return True
        if self._alone is None:
            self._alone = record.id
        if self._alone == record.id:
            return True
        self._queue[record.id] = None
        return False

    def started(self, id: TaskId) -> None:
        """Code of the task runs: when it is the suspect that tries, its time begins."""
        if self._alone == id and self._time is None:
            self._time = self._give_time(self._pass_on)

    def rests(self, id: TaskId) -> None:
        """Nothing of the task runs, or will by itself: whoever comes next need not wait for it."""
        self._queue.pop(id, None)
        if self._alone == id:
            self._pass_on()

    def follow(self, after: TaskRecord) -> None:
        """The task changed. Progress, or its end, is what a suspect is given time for."""
        if not after.live or after.restarts < SUSPECT_RESTARTS:
            self.rests(after.id)

    def stop(self) -> None:
        """Nobody tries any more."""
        if self._time is not None:
            self._time.cancel()

    def _pass_on(self) -> None:
        self.stop()
        self._time = None
        self._alone = next(iter(self._queue), None)
        if self._alone is not None:
            del self._queue[self._alone]
            self._next_one(self._alone)
