"""Owns an event loop in which nothing is left to chance: virtual time, and an order that one seed decides.

There is no selector and there are no threads, so two runs with one seed take the same steps. Time stands still while
anything is ready, and jumps to the next timer when nothing is. Never touches the outside world, and never knows what
it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakSet, WeakValueDictionary

from pidurable_nb.errors import PidurableError

__all__ = ["Deadlock", "DeterministicLoop", "Runaway", "run"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_Task = asyncio.Task[Any]

_CLOSINGS = 100
"""How often abandoned code is told to end before it is kept for good instead."""

_undead: list[object] = []
"""Abandoned code that refuses to end. Collecting it would run its `finally` at a moment that nobody chose."""


class Deadlock(PidurableError):
    """Nothing is ready and no timer is set, so nothing will ever happen; `pending` names the tasks and their places."""

    def __init__(self, pending: tuple[str, ...]) -> None:
        waiting = "; ".join(pending) or "no task"
        super().__init__(f"nothing is ready and no timer is set, so this run would wait for ever. Pending: {waiting}")
        self.pending = pending


class Runaway(PidurableError):
    """The run took more steps than its limit: something polls, or wakes itself, for ever."""


class DeterministicLoop(asyncio.BaseEventLoop):
    """An event loop with virtual time, in seconds from 0.

    With a `seed` each next step is drawn from all that are ready; without one it is first in, first out. `limit` is the
    number of steps after which a run counts as a Runaway.

    Code that is still suspended when the run is over is dropped by `abandon()`, which closes it and so runs its
    `finally` blocks: whoever simulates a crash shuts the gates to the outside first.
    """

    # What BaseEventLoop keeps, and its own `_run_once` works on.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _asyncgens: WeakSet[AsyncGenerator[Any, Any]]

    def __init__(self, seed: int | None = None, *, limit: int | None = None) -> None:
        super().__init__()
        self.steps = 0
        """How many callbacks have run."""
        self._random = None if seed is None else random.Random(seed)
        self._limit = limit
        self._now = 0.0
        self._until_idle = False
        self._halted: BaseException | None = None
        self._abandoned = False
        self._born: WeakValueDictionary[int, _Task] = WeakValueDictionary()
        self._births = 0
        self._thread: int | None = None

    # -- time ----------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds since this loop was made."""
        return self._now

    def next_timer(self) -> float | None:
        """When the next timer is due, or None when none is set."""
        self._drop_cancelled_timers()
        return self._scheduled[0].when() if self._scheduled else None

    def advance(self) -> bool:
        """Set the time to that of the next timer; what it wakes runs with the next run. False when none is set."""
        when = self.next_timer()
        if when is None:
            return False
        self._now = max(self._now, when)
        return True

    # -- running -------------------------------------------------------------------------------------------------------

    def run_until_idle(self) -> None:
        """Run until nothing is ready, and return; time does not pass. Raises what `halt` was given."""
        self._until_idle = True
        try:
            self.run_forever()
        finally:
            self._until_idle = False

    def run_forever(self) -> None:
        """As any loop; raises Deadlock, Runaway, or what `halt` was given, from the midst of the run."""
        self._thread = threading.get_ident()
        super().run_forever()

    def halt(self, reason: BaseException) -> None:
        """The step that calls this is the last: the run raises `reason`, and what is suspended stays so."""
        self._halted = self._halted or reason

    def abandon(self) -> None:
        """Drop everything that is suspended and close the loop, without a word and without another step.

        Dropped code sees GeneratorExit where it stands and runs its `finally` blocks, oldest task first. What it
        raises then, and what it waits for, is ignored.
        """
        if self._abandoned:
            return
        self._abandoned = True
        self._ready.clear()
        self._scheduled.clear()
        generators = list(self._asyncgens)  # held here: collected on the way, they would ask this loop to close them
        for task in list(self._born.values()):
            if not task.done():
                _end(task.get_coro())
        for generator in generators:
            closing = generator.aclose()
            with contextlib.suppress(BaseException):
                closing.send(None)
            _end(closing)
        self._ready.clear()
        self._scheduled.clear()
        self.close()

    def pending(self) -> tuple[str, ...]:
        """The tasks that have not ended, oldest first, each with the place where it waits."""
        return tuple(_place(task) for task in list(self._born.values()) if not task.done())

    # -- what asyncio calls --------------------------------------------------------------------------------------------

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = super().create_task(coro, name=name, context=context)
        self._births += 1
        self._born[self._births] = task
        return task

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._thread is not None and self._thread != threading.get_ident():
            raise RuntimeError("another thread cannot call into a deterministic loop: when it comes is left to chance")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Runs `func` in this thread, as a step of its own."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
                future.set_exception(error)

        self.call_soon(work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # A dropped task is destroyed while pending, and its crash is nobody's to retrieve: that is the point.
        if not self._abandoned and self._halted is None:
            super().call_exception_handler(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped as they come up."""

    def _process_events(self, event_list: object) -> None:
        """There are no events."""

    def _write_to_self(self) -> None:
        """Nobody waits in a selector."""

    def _run_once(self) -> None:
        self._drop_cancelled_timers()
        if not self._ready and not self._is_due():
            if self._stopping:
                return
            if self._until_idle:
                self.stop()
                return
            if not self.advance():
                raise Deadlock(self.pending())
        while self._is_due():
            self._ready.append(heapq.heappop(self._scheduled))
        handle = self._pick()
        if not handle.cancelled():
            self.steps += 1
            handle._run()
        if self._halted is not None:
            raise self._halted
        if self._limit is not None and self.steps > self._limit:
            raise Runaway(f"{self.steps} steps and no end. Pending: {'; '.join(self.pending())}")

    def _pick(self) -> asyncio.Handle:
        if self._random is None or len(self._ready) == 1:
            return self._ready.popleft()
        at = self._random.randrange(len(self._ready))
        handle = self._ready[at]
        del self._ready[at]
        return handle

    def _is_due(self) -> bool:
        return bool(self._scheduled) and self._scheduled[0].when() <= self._now

    def _drop_cancelled_timers(self) -> None:
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)


def run(main: Coroutine[Any, Any, T], *, seed: int | None = None, limit: int | None = None) -> T:
    """What `main` returns, run on a loop of its own; whatever it left behind is cancelled as by `asyncio.run`.

    When `main` raises something that is no Exception, a simulated crash, what is left is abandoned instead.
    """
    loop = DeterministicLoop(seed, limit=limit)
    try:
        got = loop.run_until_complete(main)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, Deadlock | Runaway):
            _wind_up(loop)
        else:
            loop.abandon()
        raise
    _wind_up(loop)
    return got


def _wind_up(loop: DeterministicLoop) -> None:
    """Cancel what is left, let it end, and close the loop; what does not end by itself is dropped."""
    try:
        for task in list(loop._born.values()):
            if not task.done():
                task.cancel()
        loop.run_until_idle()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        if loop.pending():
            loop.abandon()
        else:
            loop.close()


def _end(code: object) -> None:
    """Close suspended code. Code that waits in its `finally` is closed again there, up to a limit."""
    close = getattr(code, "close", None)
    if close is None:
        return
    for _ in range(_CLOSINGS):
        try:
            close()
            return
        except RuntimeError as error:
            if "ignored GeneratorExit" not in str(error):
                return
        except BaseException:
            return
    _undead.append(code)


def _place(task: _Task) -> str:
    frames = task.get_stack(limit=1)
    where = f" at {frames[0].f_code.co_qualname}, line {frames[0].f_lineno}" if frames else ""
    return f"{task.get_name()}{where}"
