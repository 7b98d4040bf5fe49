"""Owns one run of a task's code: phase after phase until the task waits, sleeps, ends, faults or is stopped.

Never decides whether a task may run; the scheduler reserved it before (T2). Every path out of here leaves the task in
a state that the next decision understands.
"""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pidurable_nb.engine.definition import TaskDefinition
from pidurable_nb.engine.phase import Aborted, Done, Failed, Phase, Sleeping, State, Waiting
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.engine.transition import Finish, HandOver, KeepFault, advance, fault_memo
from pidurable_nb.errors import IllegalTransition, InvocationEnded, SessionClosed, SessionFailed, StorageError
from pidurable_nb.ids import Json, TaskId
from pidurable_nb.probe import Mark
from pidurable_nb.records import task as stored

if TYPE_CHECKING:
    from pidurable_nb.engine.engine import Engine

ABORT = "abort"
"""The name that a point gives to a task's abort handler."""


@dataclass(frozen=True, slots=True)
class Returned:
    """What a phase or an abort handler returned."""

    state: State


@dataclass(frozen=True, slots=True)
class Stopped:
    """The invocation was cancelled, or may not write any more: its task is left as it is stored."""


@dataclass(frozen=True, slots=True)
class Raised:
    """User code raised, or broke a law of its own (F3)."""

    error: BaseException


class Invocation:
    """One run of a task's code. `aborting` runs the abort handler instead of the phases."""

    def __init__(
        self, engine: Engine, record: stored.TaskRecord, definition: TaskDefinition, *, aborting: bool
    ) -> None:
        self.engine = engine
        self.id: TaskId = record.id
        self.aborting = aborting
        self.ended = False
        self.definition = definition
        self._stopping = False
        self._runtime = Runtime(engine, self, record)
        self.task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Begin running. The task is stored as running already (T2)."""
        self.task = asyncio.create_task(self._run(), name=f"task {self.id}")
        return self.task

    def stop(self) -> None:
        """Cancel the code; its runtime refuses everything from now on (T13)."""
        self._stopping = True
        self.ended = True
        if self.task is not None:
            self.task.cancel()

    async def _run(self) -> None:
        """Whatever is raised on the way is a fault of the task's code, or the end of the session (F1, F3)."""
        try:
            try:
                await self._work()
            except _OVER:
                return
            except asyncio.CancelledError as error:
                if not self._stopping:
                    await self._fault(self._noted(error).error)
            except Exception as error:
                await self._fault(self._noted(error).error)
        except _OVER:
            return
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        finally:
            self.ended = True
            self.engine.runs.over(self)

    async def _work(self) -> None:
        if self.aborting:
            await self._abort()
        else:
            while await self._phase():
                pass

    # -- phases --------------------------------------------------------------------------------------------------------

    async def _phase(self) -> bool:
        """Run the phase that the task stands in. True when the next one follows in this invocation."""
        record = self._runtime.gate()
        checkpoint = record.checkpoint or stored.NOTHING
        phase = self.definition.decode(record.input, checkpoint)
        self._runtime.begin(record.phase or "")
        match await self._call(phase):
            case Stopped():
                return False
            case Raised(error):
                await self._fault(error)
                return False
            case Returned(state):
                return await self._step(state)

    async def _call(self, phase: Phase[object]) -> Returned | Stopped | Raised:
        probe, subject = self.engine.probe, self._runtime.subject
        if probe is not None:
            await probe.reach(Mark(subject, "phase", "before"))
        code = phase.abort if self.aborting else phase.run
        try:
            returned = Returned(await code(self._runtime))
        except asyncio.CancelledError as error:
            if self._stopping:
                raise
            return self._noted(error)
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and probe is not None:
                raise  # a simulated crash: this life is over, and nothing is written about it
            return Stopped() if self._is_over() else self._noted(error)
        if probe is not None:
            await probe.reach(Mark(subject, "phase", "after"))
        return returned

    def _is_over(self) -> bool:
        """T13: whether an error may come from the end of the invocation, so that it is nobody's fault (T11)."""
        return self.ended or self._runtime.overtaken or self.engine.over

    def _noted(self, error: BaseException) -> Raised:
        phase = self._runtime.subject.phase
        error.add_note(f"in task {self.id}, {self.definition.name} {self.definition.version}, phase {phase}")
        return Raised(error)

    async def _step(self, returned: State) -> bool:
        """T3: after a phase returned. True when the next phase follows in this invocation. Raises what it violates."""
        runtime = self._runtime
        if runtime.landed is None:
            self._check_state(returned)
            async with runtime.commit() as tx:
                tx.become(returned)
                self._check_progress(returned, tx.progress)
        elif returned is not runtime.landed and returned != runtime.landed:
            raise IllegalTransition(
                f"task {self.id} committed {runtime.landed!r} and then returned {returned!r}; "
                f"return exactly what the last become committed (T3)"
            )
        if not isinstance(returned, Phase):
            return False
        self._check_progress(returned, runtime.progressed)
        return not await self._hand_over()

    def _check_progress(self, returned: State, progress: bool) -> None:
        if not progress:
            raise IllegalTransition(
                f"task {self.id} returned {returned!r}, where it already stood; a phase must make progress (T3, T9)"
            )

    def _check_state(self, returned: State) -> None:
        if not isinstance(returned, Phase | Waiting | Sleeping) and not _is_outcome(returned):
            raise IllegalTransition(
                f"task {self.id} returned {returned!r}; return a phase, Waiting, Sleeping, Done, Failed or Aborted"
            )

    async def _hand_over(self) -> bool:
        """T10: at a phase boundary, give the task to newly installed code. True when this invocation ends for it."""
        engine = self.engine
        record = engine.table.live_task(self.id)
        if record is None or not engine.replaced(self.definition, record):
            return False
        block = engine.session.block(self._runtime.subject, what="reconcile", laws=("T10",), text="handed over")
        async with block as tx:
            record = engine.table.live_task(self.id)
            if record is not None and isinstance(record.state, stored.Running):
                tx.put_task(advance(record, HandOver(), now_ms=tx.now_ms()))
        return True

    # -- the abort handler ---------------------------------------------------------------------------------------------

    async def _abort(self) -> None:
        """O2: run the abort handler once; owned work has ended before."""
        record = self._runtime.gate()
        phase = self.definition.decode(record.input, record.checkpoint or stored.NOTHING)
        self._runtime.begin(record.phase or "", shown=ABORT)
        match await self._call(phase):
            case Stopped():
                return
            case Raised(error):
                await self._fault(error)
            case Returned(state) if not _is_outcome(state):
                text = f"task {self.id}: abort returned {state!r}; return Aborted, Done or Failed"
                await self._fault(IllegalTransition(text))
            case Returned(state):
                await self._step(state)

    # -- faults --------------------------------------------------------------------------------------------------------

    async def _fault(self, error: BaseException) -> None:
        """T11: isolate the error. The task ends faulted, or is kept until its code changes."""
        engine, subject = self.engine, self._runtime.subject
        message, detail = _described(error)
        kind: Consequence = "ended"
        async with engine.session.block(subject, what="reconcile", laws=("T11", "F3"), text=message) as tx:
            record = engine.table.live_task(self.id)
            if record is None or not isinstance(record.state, stored.Running):
                kind = "unchanged"  # its outcome was committed before it misbehaved, and an outcome is final (T6)
            elif self._runtime.overtaken:
                kind = "marked"
            elif self._keeps(record) and engine.replaced(self.definition, record):
                kind = "replaced"
                tx.put_task(advance(record, HandOver(), now_ms=tx.now_ms()))
            elif self._keeps(record):
                kind = "kept"
                memo = fault_memo(record, message=message, detail=detail, phase=subject.phase, opening=engine.opening)
                tx.put_task(advance(record, KeepFault(memo), now_ms=tx.now_ms()))
            else:
                outcome = stored.Faulted(error=stored.TaskError(message=message, detail=detail))
                tx.put_task(advance(record, Finish(outcome, drained=True), now_ms=tx.now_ms()))
        error.add_note(_CONSEQUENCE[kind])
        engine.report(error)

    def _keeps(self, record: stored.TaskRecord) -> bool:
        engine = self.engine
        return not (
            self.aborting
            or self.definition.on_fault == "terminal"
            or record.kind.startswith("pi.")
            or engine.table.parent(record.id) is not None
            or engine.table.waiters(record.id)
        )


def _is_outcome(state: object) -> bool:
    return isinstance(state, Done | Failed | Aborted)


Consequence = Literal["kept", "replaced", "ended", "unchanged", "marked"]
_CONSEQUENCE: Final[dict[Consequence, str]] = {
    "kept": "the task is kept; mend its code or retry it, and it goes on",
    "replaced": "its code was installed anew meanwhile; the task goes on with that",
    "ended": "the task ended faulted",
    "unchanged": "the task keeps the state that it had committed before",
    "marked": "the task is to be aborted; its abort handler follows",
}
_OVER: Final = (SessionFailed, SessionClosed, StorageError, InvocationEnded)
"""The invocation may not write any more; whoever has to know has been told."""
_HERE = str(Path(__file__).parent.parent)


def _described(error: BaseException) -> tuple[str, Json]:
    """The message and the place of an error, as they are stored: the last lines of its own trace, bounded."""
    try:
        text = str(error)
    except Exception:  # an error of the user's that cannot even say what it is
        text = ""
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    trace = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in trace if not frame.filename.startswith(_HERE)][-3:]
    where: list[Json] = [f"{frame.name}, line {frame.lineno}" for frame in frames]
    return message[:2000], {"type": type(error).__qualname__, "at": where}
