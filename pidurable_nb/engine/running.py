"""Owns the code that runs: reservations whose code is to start, invocations, and the engine's own background work.

Never decides what may run. A reservation is staged first and its code starts when that is stored (T2).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pidurable_nb.engine.decide import Verdict
from pidurable_nb.engine.invocation import Invocation
from pidurable_nb.engine.launching import Launching
from pidurable_nb.engine.registry import Fits, TaskDefinition
from pidurable_nb.ids import TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.session.changes import Changes

if TYPE_CHECKING:
    from pidurable_nb.engine.engine import Engine

CANCELLATIONS = 3
"""How often code is cancelled when everything is closed; legitimate work in a `finally` gets PATIENCE_S before it is
cut by the second."""
PATIENCE_S = 10.0


@dataclass(slots=True)
class Reserved:
    """A reservation: the code that starts when it is stored. `staged` is set for those that are part of a commit."""

    definition: TaskDefinition | None
    aborting: bool
    launched: bool = False
    staged: bool = False


class Running:
    """What runs in one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reserved: dict[TaskId, Reserved] = {}
        self._launched = 0
        self._invocations: dict[TaskId, Invocation] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stubborn: dict[Invocation, asyncio.TimerHandle] = {}

    # -- what is to run ------------------------------------------------------------------------------------------------

    def reserving(self, id: TaskId) -> bool:
        """Whether the task is reserved and its code has not started."""
        return id in self._reserved

    def reserve(self, verdict: Verdict) -> None:
        """T2: this verdict's code starts when the reservation is stored."""
        fit = verdict.facts.fit
        definition = fit.definition if isinstance(fit, Fits) else None
        self._reserved[verdict.id] = Reserved(definition, aborting=verdict.name == "abort")

    def forget(self, ids: Iterable[TaskId]) -> None:
        """Their reservation was not stored."""
        for id in ids:
            self._reserved.pop(id, None)

    def launching(self) -> Launching:
        """Around a block that makes or frees tasks whose code is to start with its commit (T2)."""
        return Launching(self._engine)

    def launch(self, id: TaskId, definition: TaskDefinition) -> None:
        """The block that is open reserves this task along with what else it does."""
        self._reserved[id] = Reserved(definition, aborting=False, launched=True)
        self._launched += 1

    def forget_launched(self, ids: Iterable[TaskId]) -> None:
        """Their block has ended: what it did not stage is not reserved (C4)."""
        for id in ids:
            reserved = self._reserved.get(id)
            if reserved is not None and reserved.launched and not reserved.staged:
                del self._reserved[id]
                self._launched -= 1
                self._engine.scheduler.touch(id)

    def staged(self, changes: Changes) -> None:
        """A commit is staged: what it reserves starts when it is stored."""
        if self._launched:
            for id in changes.tasks:
                if (reserved := self._reserved.get(id)) is not None and reserved.launched:
                    reserved.staged = True

    def stored(self, changes: Changes) -> None:
        """A commit is stored: start what it reserved, in order (C8)."""
        if self._launched:
            ready = [id for id in changes.tasks if (found := self._reserved.get(id)) is not None and found.staged]
            self._launched -= len(ready)
            self.start(ready)

    def start(self, ids: Sequence[TaskId]) -> None:
        """The reservations are stored: start their code, in order."""
        engine = self._engine
        for id in ids:
            reserved = self._reserved.pop(id, None)
            record = engine.table.live_task(id)
            if reserved is None or record is None or engine.over:
                continue
            definition, aborting = reserved.definition, reserved.aborting
            marked = record.abort_requested and not aborting  # since it was reserved: none of its phases runs
            if definition is None or not isinstance(record.state, stored.Running) or marked:
                engine.scheduler.touch(id)
                continue
            self._invocations[id] = invocation = Invocation(engine, record, definition, aborting=aborting)
            task = invocation.start()
            self._tasks.add(task)
            task.add_done_callback(functools.partial(self._invocation_done, invocation))
            engine.scheduler.started(id)

    # -- what runs -----------------------------------------------------------------------------------------------------

    def invocation(self, id: TaskId) -> Invocation | None:
        """The code of the task that runs now."""
        return self._invocations.get(id)

    def active(self) -> frozenset[TaskId]:
        """The tasks whose code runs."""
        return frozenset(self._invocations)

    def over(self, invocation: Invocation) -> None:
        """The code of a task has returned for good; decide the task again."""
        timer = self._stubborn.pop(invocation, None)
        if timer is not None:
            timer.cancel()
        if self._invocations.get(invocation.id) is invocation:
            del self._invocations[invocation.id]
            self._engine.scheduler.touch(invocation.id)

    def _invocation_done(self, invocation: Invocation, task: asyncio.Task[None]) -> None:
        """Also for one that was stopped before its first step, where none of its own code runs."""
        self._tasks.discard(task)
        self.over(invocation)
        if not task.cancelled() and (crash := task.exception()) is not None:
            self._end(crash)

    def _end(self, crash: BaseException) -> None:
        """No Exception gets here: whoever raised it, in code or in a probe, wants no more of this life (F1)."""
        session = self._engine.session
        if session.failed is None:
            session.report(session.crash(crash))

    def spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Run something of the engine's own until it ends or everything is closed."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._engine.over:
            self._engine.report(error)

    def give_time(self, for_ms: int, over: Callable[[], None]) -> asyncio.Task[None]:
        """T9: call `over` when the time that a suspect has for progress has passed."""
        clock = self._engine.clock

        async def wait() -> None:
            due = clock.now_ms() + for_ms
            while clock.now_ms() < due:
                await clock.sleep_until(due)
            over()

        return self.spawn(wait(), "time of a suspect")

    def stop_one(self, invocation: Invocation, tries: int = CANCELLATIONS) -> None:
        """Cancel the code of a task that is to be aborted, and again after some time while it does not end.

        Code that swallows every cancellation is left behind and reported, or its task could never end. T13: it can
        write nothing any more.
        """
        if tries:
            invocation.stop()
            loop = asyncio.get_running_loop()
            self._stubborn[invocation] = loop.call_later(PATIENCE_S, self.stop_one, invocation, tries - 1)
            return
        if invocation.task is not None:
            self._tasks.discard(invocation.task)
        text = f"task {invocation.id}: cancelled {CANCELLATIONS} times and not ended; left behind"
        self._engine.report(TimeoutError(text))
        self.over(invocation)

    def stop(self) -> None:
        """Cancel all code of tasks; it may write nothing any more (T13)."""
        for invocation in list(self._invocations.values()):
            invocation.stop()

    async def end(self) -> None:
        """Cancel what runs until it has ended: what swallows a cancellation gets a few more, each after some time."""
        for _ in range(CANCELLATIONS):
            self.stop()
            running = [task for task in self._tasks if not task.done()]
            if not running:
                return
            await asyncio.wait(running, timeout=PATIENCE_S)
        names = ", ".join(sorted(task.get_name() for task in self._tasks if not task.done()))
        if names:
            self._engine.report(TimeoutError(f"{names}: cancelled {CANCELLATIONS} times and not ended; left behind"))
