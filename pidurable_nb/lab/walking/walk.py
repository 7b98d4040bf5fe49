"""Owns one recovery of a copy that goes forward a gate at a time, in a deterministic loop. Never looks back.

Every commit and every effect of the harness stops at a gate; releasing the first gate and running until nothing is
ready is one step. Nothing here decides: what happens at a step is what the engine does.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeVar

from pidurable_nb.agent.harness import Harness
from pidurable_nb.agent.stored.live import uuid7
from pidurable_nb.clock import LoopClock
from pidurable_nb.engine.phase import Phase
from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import Seq, TaskId
from pidurable_nb.lab.dying.crash import carried
from pidurable_nb.lab.dying.loop import DeterministicLoop
from pidurable_nb.lab.looking.program import Program
from pidurable_nb.lab.looking.rows import row_of_storage
from pidurable_nb.lab.outside.world import SimulatedCrash
from pidurable_nb.probe import Mark, Subject, TaskSubject
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import Storage, finished

V = TypeVar("V")
Choice = Literal["auto", "run", "record", "happened", "not"]
"""At an effect: run it, answer from the record, assume that it happened, or that it did not.

`auto` answers from the record where an earlier pass over this step left one, and runs it otherwise.
"""
StepKind = Literal["reconcile", "reserve", "effect", "commit", "outcome", "place"]

PROGRESS: Final = "progress"
"""The name of a commit that stores what there is so far (V5)."""
_GATED = frozenset({"open", "reconcile", "reserve", "memo", "commit"})


class NotHappened(PidurableError):
    """An effect that was assumed not to have happened: what the task's code gets instead of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a recovery, as it happened.

    `verdict` is the one that was acted on, where the step acts on one. `changed` are rows of the store. `effect` is
    the name of the effect that this step is about, `asked` whether the outside was asked for it. `carried` are waiting
    tasks that the commit of this step resumed and ended along with it (T2). `lost` are memos that came second in it.
    """

    n: int
    kind: StepKind
    task: TaskId | None
    laws: tuple[str, ...]
    text: str
    changed: tuple[str, ...]
    verdict: str | None = None
    effect: str | None = None
    asked: bool = False
    carried: tuple[TaskId, ...] = ()
    seq: Seq | None = None
    lost: tuple[Mark, ...] = ()


@dataclass(slots=True)
class Gate:
    """Where one piece of work waits for its turn."""

    mark: Mark
    open: asyncio.Future[None] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """What an effect gave. `error` is what it raised; `asked` whether the outside was asked for it.

    `took_s` is the virtual time that it took. `wrote`: its own task wrote to the store meanwhile, as a tool's body may,
    or it waited for other work of this recovery; an answer from the record would leave that out, or come before it, so
    it is run again where a walk is made again.
    """

    name: str
    value: object
    error: Exception | None = None
    asked: bool = True
    took_s: float = 0.0
    wrote: bool = False


@dataclass(slots=True)
class Begun:
    """An effect that was begun, in the order of beginnings; `answer` is None while there is none yet."""

    name: str
    subject: Subject
    asked: bool
    told: str
    answer: Answer | None = None
    wrote: bool = False


class Gatekeeper:
    """The probe of a walk: everything waits here, and one thing at a time goes on.

    What is stored of an answer or of output while it arrives (V5) is no step of its own.
    """

    one_by_one = True

    def __init__(self, *, answers: Sequence[Answer], perform: Perform) -> None:
        self.waiting: list[Gate] = []
        self.begun: list[Begun] = []
        self.rows: list[str] = []
        self.seq: Seq | None = None
        self.choice: Choice = "auto"
        self.carried: list[TaskId] = []
        self.lost: list[Mark] = []
        self.died = False
        self.released = 0
        self._answers = list(answers)
        self._perform = perform

    @property
    def answers(self) -> tuple[Answer, ...]:
        """What effects gave, on this pass and, behind it, on earlier ones; one without an answer is to be run again."""
        given = (each.answer or Answer(each.name, None, wrote=True) for each in self.begun)
        return (*given, *self._answers)

    @property
    def asking(self) -> bool:
        """Whether an effect has begun and given nothing yet."""
        return any(each.answer is None for each in self.begun)

    async def reach(self, mark: Mark) -> None:
        if mark.edge == "before" and mark.what in _GATED and mark.name != PROGRESS:
            for each in self.begun:
                if each.answer is None and _same_task(each.subject, mark.subject):
                    each.wrote = True
            await self._wait(mark)

    def note(self, mark: Mark) -> None:
        if mark.what == "lost":
            self.lost.append(mark)
        elif mark.edge == "before":
            self.rows += mark.rows
            self.seq = mark.seq

    async def perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        await self._wait(mark)
        value: V = await self._answer(mark, do)
        return value

    async def _wait(self, mark: Mark) -> None:
        gate = Gate(mark, asyncio.get_running_loop().create_future())
        self.waiting.append(gate)
        await gate.open

    async def _answer(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        name = mark.name or ""
        recorded = self._answers.pop(0) if self._answers else None
        if recorded is not None and recorded.name != name:
            recorded = None  # other code, another way: what follows was not recorded
            self._answers.clear()
        known = recorded if recorded is not None and self.choice in ("auto", "record") else None
        asks = known.asked if known is not None else self.choice not in ("happened", "not")
        begun = Begun(name, mark.subject, asks, "from the record" if known is not None else self.choice)
        self.begun.append(begun)
        if known is not None and not known.wrote:
            await asyncio.sleep(known.took_s)
            answer = known
        else:
            answer = await self._give(mark, begun, do)
        begun.answer = answer
        if answer.error is not None:
            raise answer.error
        return answer.value  # type: ignore[return-value]  # recorded from this effect; an assumed one answers None

    async def _give(self, mark: Mark, begun: Begun, do: Callable[[], object]) -> Answer:
        name = begun.name
        match self.choice:
            case "auto" | "run" | "record":
                loop = asyncio.get_running_loop()
                began, gates = loop.time(), self.released
                try:
                    value, failed = await self._perform(mark, do), None
                except Exception as error:
                    value, failed = None, error
                except SimulatedCrash:
                    self.died = True  # the effect took the process with it: this life takes no step any more
                    begun.answer = Answer(name, None)
                    await loop.create_future()
                    raise
                took_s = loop.time() - began
                met = took_s == 0 and self.released > gates  # it waited for what other work did, and for no time
                return Answer(name, value, failed, took_s=took_s, wrote=begun.wrote or met)
            case "happened":
                return Answer(name, None, asked=False)
            case "not":
                return Answer(name, None, NotHappened(f"{name}: assumed not to have happened"), asked=False)


def _same_task(one: Subject, other: Subject) -> bool:
    return isinstance(one, TaskSubject) and isinstance(other, TaskSubject) and one.id == other.id


Perform = Callable[[Mark, Callable[[], object]], Awaitable[object]]


async def just_run(mark: Mark, do: Callable[[], object]) -> object:
    """Perform an effect by calling it, and nothing else."""
    got = do()
    return await got if inspect.isawaitable(got) else got


class Counted:
    """Identities that are the same in every walk of the same store."""

    def __init__(self) -> None:
        self._count = 0

    def uuid(self, now_ms: int) -> str:
        self._count += 1
        return uuid7(now_ms, self._count)


class Walk:
    """A harness on `store`, stopped at every gate. Its virtual time starts at `now_ms`.

    It moves while an effect takes time, and at most `patience_s` besides: nobody waits for what sleeps longer. Use it
    from one thread. `close` drops everything where it stands, as a crash would.
    """

    def __init__(
        self,
        store: Path,
        *,
        program: Program,
        now_ms: int,
        answers: Sequence[Answer] = (),
        perform: Perform = just_run,
        patience_s: float = 60.0,
    ) -> None:
        self.gatekeeper = Gatekeeper(answers=answers, perform=perform)
        self.reports: list[BaseException] = []
        self.harness: Harness | None = None
        self.steps: list[Step] = []
        self._program = program
        self._until_s = patience_s
        self._loop = DeterministicLoop()
        self._storage = SqliteStorage(store, inline=True)
        self._opening = self._loop.create_task(self._open(LoopClock(now_ms)), name="open")
        self._run()

    async def _open(self, clock: LoopClock) -> None:
        keeper = self.gatekeeper
        harness = await self._program.open(
            self._storage, clock=clock, ids=Counted(), probe=keeper, code=self._program.able,
            on_report=self.reports.append,
        )  # fmt: skip
        harness.engine.session.subscribe(lambda changes: keeper.carried.extend(carried(changes)))
        self.harness = harness

    def _run(self) -> None:
        """Run until everything waits at a gate; let a little time pass when nothing does."""
        loop = self._loop
        loop.run_until_idle()
        while not self.gatekeeper.waiting:
            due, began, asking = loop.next_timer(), loop.time(), self.gatekeeper.asking
            if due is None or (due > self._until_s and not asking):
                break
            loop.advance()
            if asking:
                self._until_s += loop.time() - began  # an effect takes the time that it takes
            loop.run_until_idle()
        if self._opening.done() and (error := self._opening.exception()) is not None:
            raise error

    @property
    def died(self) -> bool:
        """Whether an effect ended this life, as code that crashes its own process does."""
        return self.gatekeeper.died

    @property
    def next_mark(self) -> Mark | None:
        """What the next step will do; None when there is none."""
        waiting = self.gatekeeper.waiting
        return waiting[0].mark if waiting and not self.died else None

    def next(self, choice: Choice = "auto") -> Step | None:
        """Go through the first gate; None when nothing waits."""
        keeper = self.gatekeeper
        keeper.lost = []
        while keeper.waiting and not keeper.died:
            gate = keeper.waiting.pop(0)
            keeper.released += 1
            keeper.rows, keeper.carried, keeper.seq, keeper.choice = [], [], None, choice
            begun = len(keeper.begun)
            gate.open.set_result(None)
            self._run()
            if gate.mark.what == "effect" or keeper.rows:
                effect = keeper.begun[begun] if gate.mark.what == "effect" else None
                self.steps.append(self._step(gate.mark, effect))
                return self.steps[-1]
        return None

    def install(self, first: type[Phase[object]]) -> None:
        """Install code between two steps; the next step runs it (T10)."""
        if self.harness is not None:
            self.harness.install(first)

    def needs(self, record: TaskRecord) -> str:
        """What a live task that is not run here is in need of."""
        states = self.harness.shop.states if self.harness is not None else {}
        return self._program.needs(record, states.get(record.conversation, {}))

    def _step(self, mark: Mark, effect: Begun | None) -> Step:
        keeper = self.gatekeeper
        task = mark.subject.id if isinstance(mark.subject, TaskSubject) else _only_task(keeper.rows)
        kind, text, laws = self._told(mark, task, effect)
        return Step(
            n=len(self.steps) + 1,
            kind=kind,
            task=task,
            laws=laws,
            text=text,
            changed=tuple(dict.fromkeys(keeper.rows)),
            verdict=mark.name if mark.what in ("reserve", "reconcile") else None,
            effect=mark.name if mark.what == "effect" else None,
            asked=effect is not None and effect.asked,
            carried=tuple(keeper.carried),
            seq=keeper.seq,
            lost=tuple(keeper.lost),
        )

    def _told(self, mark: Mark, task: TaskId | None, effect: Begun | None) -> tuple[StepKind, str, tuple[str, ...]]:
        match mark.what:
            case "open":
                return "reconcile", "What ran when it died is pending again, and counted.", mark.laws
            case "reserve":
                return "reserve", mark.text, mark.laws
            case "reconcile":
                return "reconcile", mark.text or "What follows is settled.", mark.laws
            case "memo":
                return "commit", f"It remembers {mark.name}; a rerun will know.", ("M1",)
            case "effect":
                return "effect", _effect_text(mark.name, effect, self.died), ("M3", "E6") if mark.key else ("M3",)
            case _:
                return self._committed(task)

    def _committed(self, task: TaskId | None) -> tuple[StepKind, str, tuple[str, ...]]:
        record = self._task_now(task) if task is not None else None
        if record is None:
            if task is not None and self.gatekeeper.carried:
                return "outcome", "It ends, and with it who waited for it; what comes next begins.", ("C1", "T2", "T6")
            if task is not None:
                return "outcome", "It has its outcome, and ends.", ("C1", "T6")
            return "commit", "What the block wrote landed whole.", ("C1",)
        match record.state:
            case stored.Waiting(on=on):
                return "commit", f"It waits for {len(on)} {'task' if len(on) == 1 else 'tasks'}.", ("C1", "T4")
            case stored.Sleeping():
                return "commit", "It sleeps until a time that is stored.", ("C1", "T12")
            case stored.Completing():
                return "outcome", "Its outcome is decided; it ends when the work it owns has.", ("C1", "T5")
            case _:
                return "commit", f"It goes on from the checkpoint of {record.phase}.", ("C1", "T3")

    def _task_now(self, id: TaskId) -> TaskRecord | None:
        return self.harness.engine.table.live_task(id) if self.harness is not None else None

    def live(self) -> tuple[TaskRecord, ...]:
        """The tasks that live now."""
        return tuple(self.harness.engine.table.live()) if self.harness is not None else ()

    def row(self, row: str) -> str | None:
        """A row of the store as it is stored now; None when there is none."""
        return finished(row_of_storage(self._storage, row))

    def read(self, asking: Callable[[Storage], Coroutine[None, None, V]]) -> V:
        """What the store says now. `asking` only reads: the storage answers inline, behind the back of the harness."""
        return finished(asking(self._storage))

    def close(self) -> None:
        """Drop everything where it stands. The storage lets go of its files."""
        self._loop.abandon()
        finished(self._storage.close())


def _only_task(rows: Sequence[str]) -> TaskId | None:
    """The task that a step is about when it is about one only."""
    tasks = {row for row in rows if row.startswith("tasks/")}
    return TaskId(int(tasks.pop().removeprefix("tasks/"))) if len(tasks) == 1 else None


def _effect_text(name: str | None, effect: Begun | None, died: bool) -> str:
    if died:
        return f"The process dies in it: {name}."
    match effect.told if effect is not None else None:
        case "from the record":
            return f"Answered from the record: {name}."
        case "not":
            return f"Assumed not to have happened: {name}."
        case "happened":
            return f"Assumed to have happened: {name}."
        case _:
            return f"The outside is asked: {name}."
