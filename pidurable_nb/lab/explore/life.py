"""Owns one life that goes forward a gate at a time, in an order that somebody else chooses. Never chooses or judges.

Whatever could go first waits at a gate of its own: every commit block before it takes the line, every effect before the
outside is asked, and every read of a document outside a block. Between two gates nothing is left to choose. So each
step has one commit or one effect at most, and what the store and the ledger are behind it is a durable state. Time is
a gate too: where a timer is set, that it rings is one of the choices.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, ParamSpec, Self, TypeVar

from pidurable_nb.agent.harness import Harness
from pidurable_nb.clock import LoopClock
from pidurable_nb.engine.phase import TaskRef
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.dying.loop import DeterministicLoop
from pidurable_nb.lab.dying.run import SeededIds
from pidurable_nb.lab.explore.label import places
from pidurable_nb.lab.explore.states import Books, State, comparable, timeless
from pidurable_nb.lab.outside.world import SimulatedCrash, World
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.probe import Mark, SessionSubject, TaskSubject
from pidurable_nb.records import task as stored
from pidurable_nb.session.line import Line

if TYPE_CHECKING:
    from pidurable_nb.engine.decide import Verdict

__all__ = ["Life", "Option"]

P = ParamSpec("P")
V = TypeVar("V")
What = Literal["commit", "effect", "read", "time"]

_STEPS: Final = 200_000
"""A life whose loop takes more steps than this has run away."""
_NUMBERED: Final = re.compile(r"task (\d+)")


@dataclass(slots=True, eq=False)
class Gate:
    """Where one piece of work waits for its turn."""

    what: What
    name: str
    task: asyncio.Task[object]
    open: asyncio.Future[None] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Option:
    """What may go on: of which task in which phase, where it is a task's code. `gate` None: time does."""

    what: What
    name: str
    task: TaskId | None
    phase: str | None
    gate: Gate | None = field(repr=False, compare=False)


class Keeper:
    """The probe of an explored life: everything waits here until its gate is opened."""

    one_by_one = True

    def __init__(self, world: World) -> None:
        self.waiting: list[Gate] = []
        self.performed: list[tuple[TaskId, str]] = []
        """The effects that tasks had, each with whose it was."""
        self.died = False
        self.open = False
        """Whether the harness is open: until then one thing at a time goes on, and holds the line while it waits."""
        self.holder: asyncio.Task[object] | None = None
        self.did: Mark | None = None
        self._world = world

    async def reach(self, mark: Mark) -> None:
        if mark.edge == "before" and mark.what not in ("phase", "publish"):
            self.did = mark
            if not self.open:
                await self.wait("commit", mark.what)

    def note(self, mark: Mark) -> None:
        """Nothing waits at a publication."""

    async def perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        await self.wait("effect", mark.name or "")
        self.did = mark
        if isinstance(mark.subject, TaskSubject):
            self.performed.append((mark.subject.id, mark.name or ""))
        try:
            return await self._world.perform(mark, do)
        except SimulatedCrash:
            self.died = True  # the effect took the process with it: this life takes no step any more
            await asyncio.get_running_loop().create_future()
            raise

    async def wait(self, what: What, name: str = "") -> None:
        """Return when the gate is opened."""
        task = asyncio.current_task()
        assert task is not None
        gate = Gate(what, name, task, asyncio.get_running_loop().create_future())
        self.waiting.append(gate)
        try:
            await gate.open
        finally:
            if gate in self.waiting:  # cancelled
                self.waiting.remove(gate)

    def reading(self, read: Callable[P, Coroutine[object, object, V]]) -> Callable[P, Coroutine[object, object, V]]:
        """The read of a document, with a gate before it, but within a block: there nobody can get in between."""

        async def gated(*args: P.args, **kwargs: P.kwargs) -> V:
            if self.holder is None or asyncio.current_task() is not self.holder:
                await self.wait("read", getattr(args[0], "__name__", "") if args else "")
            return await read(*args, **kwargs)

        return gated


class GatedLine(Line):
    """A line that is free for whoever is let through the gate."""

    __slots__ = ("_gated", "_keeper")

    def __init__(self, keeper: Keeper) -> None:
        super().__init__()
        self._keeper = keeper
        self._gated = 0

    @property
    def busy(self) -> bool:
        return self._gated > 0 or super().busy

    def take(self) -> bool:
        return False

    async def turn(self) -> bool:
        self._gated += 1
        try:
            await self._keeper.wait("commit")
        except BaseException:
            self._gated -= 1
            self._tell_idle()
            raise
        self._gated -= 1
        got = super().take() or await super().turn()
        if got:
            self._keeper.holder = asyncio.current_task()
        return got

    def release(self) -> None:
        self._keeper.holder = None
        super().release()


class Life:
    """A life of `scenario` that begins with `state`, as a context. `scratch` is where its ledger is, alone.

    It is over when it ended by itself, when an effect ended it, or at a deadlock. Leaving the context drops everything
    where it stands, as a crash would.
    """

    def __init__(self, scenario: Scenario, state: State, scratch: Path) -> None:
        self.scenario = scenario
        self.number = state.life + 1
        self.storage = state.storage.copied()
        scratch.unlink(missing_ok=True)
        if state.ledger:
            scratch.write_bytes(state.ledger)
        self.books = Books(scratch)
        self.books.look()
        self.harness: Harness | None = None
        self.left: tuple[Verdict, ...] = ()
        """What was decided about every task that lived when the scenario had been attended."""
        self._world = World(scratch, self.number)
        self.keeper = Keeper(self._world)
        self._loop = DeterministicLoop(limit=_STEPS)
        self._clock = LoopClock(state.now_ms)
        self._now_ms = state.now_ms
        self._main = self._loop.create_task(self._story(), name="scenario")

    def __enter__(self) -> Self:
        try:
            self._run()
        except BaseException:
            self._drop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def _drop(self) -> None:
        self._world.shut()
        if self._main.done() and not self._main.cancelled():
            self._main.exception()  # looked at or not, it is told
        self._loop.abandon()

    async def _story(self) -> None:
        """As `run.life`, with a gate before the line."""
        scenario, keeper = self.scenario, self.keeper
        opening = scenario.program().open(self.storage, clock=self._clock, ids=SeededIds("explored"), probe=keeper)
        async with opening as harness:
            engine = harness.engine
            assert not engine.session.line.busy
            engine.session.line = GatedLine(keeper)
            engine.read_document = keeper.reading(engine.read_document)  # type: ignore[method-assign]
            keeper.open = True
            self.harness = harness
            if scenario.asks or not await _roots(harness):
                await scenario.begin(harness)
            await scenario.attend(harness, await _roots(harness))
            if not harness.closed.done():
                self.left = await harness.verdicts()

    def _run(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._loop.run_until_idle()

    # -- where it stands -----------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """Its time."""
        return self._clock.start_ms + round(self._loop.time() * 1000)

    @property
    def ended(self) -> bool:
        """Whether it came to its own end."""
        return self._main.done()

    @property
    def error(self) -> BaseException | None:
        """What the scenario itself raised."""
        return self._main.exception() if self._main.done() else None

    @property
    def over(self) -> bool:
        """Whether there is no next step."""
        return self.ended or self.keeper.died or self.deadlock

    @property
    def deadlock(self) -> bool:
        """Whether it is not at its end, and everything that lives waits for something that will never come."""
        idle = not self.keeper.waiting and self._loop.next_timer() is None
        return idle and not self.ended and not self.keeper.died

    def pending(self) -> tuple[str, ...]:
        """What has not ended, each with the place where it waits."""
        return self._loop.pending()

    def rows(self) -> dict[str, str]:
        """What a crash would leave now, to compare."""
        return comparable(self.storage, self.books, self.now_ms)

    def at_work(self) -> tuple[str, ...]:
        """The tasks of which code runs, or may: they neither wait nor sleep, and have no outcome."""
        live = self.harness.engine.table.live() if self.harness is not None else ()
        working = (record for record in live if isinstance(record.state, stored.Pending | stored.Running))
        return tuple(f"{record.kind} {record.id}" for record in working)

    def phase_of(self, task: TaskId) -> str | None:
        """The phase in which a task stands, while it lives."""
        record = self.harness.engine.table.live_task(task) if self.harness is not None else None
        return record.phase if record is not None else None

    def label(self) -> tuple[str, tuple[Option, ...]]:
        """Where everything stands that has not ended, and what may go on, in an order that repeats."""
        found = places({task for task in asyncio.all_tasks(self._loop) if not task.done()})
        gates = sorted(self.keeper.waiting, key=lambda gate: (found.get(gate.task, ""), gate.what, gate.name))
        options = [self._option(gate) for gate in gates]
        stands = sorted(found.values())
        due = self._loop.next_timer()
        if due is not None:
            options.append(Option("time", "", None, None, None))
            stands.append(f"time: in {round((due - self._loop.time()) * 1000)} ms")
        stands.append(f"touched: {', '.join(map(str, self._touched()))}")
        return timeless("\n".join(stands), self.now_ms), () if self.over else tuple(options)

    def _touched(self) -> tuple[TaskId, ...]:
        """What the scheduler has still to decide, in its order: nothing else of the engine is not in the rows."""
        return tuple(self.harness.engine.scheduler._touched) if self.harness is not None else ()

    def _option(self, gate: Gate) -> Option:
        found = _NUMBERED.fullmatch(gate.task.get_name())
        task = TaskId(int(found[1])) if found is not None else None
        return Option(gate.what, gate.name, task, self.phase_of(task) if task is not None else None, gate)

    # -- going on ------------------------------------------------------------------------------------------------------

    def take(self, option: Option) -> str:
        """One step; what it did, in words. Raises: Runaway."""
        keeper = self.keeper
        keeper.did = None
        if option.gate is None:
            before = self.now_ms
            self._loop.advance()
            self._run()
            return f"time passes: {self.now_ms - before} ms"
        keeper.waiting.remove(option.gate)
        option.gate.open.set_result(None)
        self._run()
        return self._told(option)

    def _told(self, option: Option) -> str:
        mark = self.keeper.did
        who = option.gate.task.get_name() if option.gate is not None else ""
        if mark is None:
            return f"{who}: {option.what} {option.name}".rstrip()
        match mark.subject:
            case TaskSubject(id=id, kind=kind, phase=phase):
                who = f"{kind} {id}/{phase}"
            case SessionSubject():
                pass
            case subject:
                who = f"{type(subject).__name__.removesuffix('Subject').lower()} {subject.id}"
        name = f" {mark.name}" if mark.name else ""
        return f"{who}: {mark.what}{name}"


async def _roots(harness: Harness) -> tuple[TaskRef[object], ...]:
    return tuple(TaskRef[object](record.id) for record in await harness.tasks() if record.owner is None)
