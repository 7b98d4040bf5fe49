"""Owns acting on verdicts: settle before start (O6), reserve, wake by time. Never decides; asks `decide`.

Works from what changed. Nothing here looks at all tasks, except the first pass after an opening.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pidurable_nb.engine import decide
from pidurable_nb.engine.decide import SETTLES, STARTS, ImpliedMark, Verdict
from pidurable_nb.engine.registry import Fits
from pidurable_nb.engine.suspects import SUSPECT_RESTARTS, Suspects
from pidurable_nb.engine.transition import Drain, Finish, HandOver, Mark, Orphan, Reserve, advance
from pidurable_nb.errors import SessionClosed, SessionFailed, StorageError
from pidurable_nb.ids import ConversationId, TaskId
from pidurable_nb.probe import SessionSubject, Subject, TaskSubject
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import SubmissionRecord
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.store.storage import ConversationQuery

if TYPE_CHECKING:
    from pidurable_nb.engine.engine import Engine

MOST_CONVERSATIONS = 1000
"""The conversations of one cancelled task whose queues are withdrawn in one commit."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one pass is to do: the marks that follow, what settles by itself, and what may start.

    `cancelled` are tasks whose conversations have not given up their queues yet (S4).
    """

    marks: Mapping[TaskId, ImpliedMark] = field(default_factory=dict)
    settles: tuple[Verdict, ...] = ()
    starts: tuple[Verdict, ...] = ()
    cancelled: tuple[TaskId, ...] = ()


class Scheduler:
    """Acts on the verdicts of touched tasks until nothing is left to do."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._touched: dict[TaskId, None] = {}
        self._wake = asyncio.Event()
        self._due: list[tuple[float, TaskId]] = []
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = float("inf")
        self._wakings: dict[TaskId, float] = {}
        self._suspects = Suspects(self._give_time, self.touch)
        self._withdrawn: set[TaskId] = set()
        self._working: asyncio.Task[None] | None = None
        self.running = False

    # -- being told ----------------------------------------------------------------------------------------------------

    def touch(self, id: TaskId) -> None:
        """Something about this task changed: decide it again."""
        self._touched[id] = None
        self._wake.set()

    def touch_around(self, before: TaskRecord | None, after: TaskRecord, above: Sequence[TaskId]) -> None:
        """A task changed: decide again whatever its change may matter to. `above` are the owners of one that ended."""
        table = self._engine.table
        self.touch(after.id)
        if not after.live:
            self._withdrawn.discard(after.id)
            self._wakings.pop(after.id, None)
        self.progressed(after)
        ends = after.outcome is not None and (before is None or before.outcome is None or not after.live)
        if ends:
            for id in (*table.waiters(after.id), *above):  # the owners of ended work may close now
                self.touch(id)
        if after.live and decide.is_cancelled(table, after.id):
            for id in table.descendants(after.id):
                self.touch(id)

    def progressed(self, after: TaskRecord) -> None:
        """T9: a suspect that made progress, or ended, lets the next one try."""
        self._suspects.follow(after)

    def _give_time(self, over: Callable[[], None]) -> asyncio.Task[None]:
        engine = self._engine
        return engine.runs.give_time(engine.settings().suspect_ms, over)

    def started(self, id: TaskId) -> None:
        """Code of the task runs now."""
        self._suspects.started(id)

    def resume(self) -> None:
        """From now on start work, besides settling it."""
        self.running = True
        self._wake.set()

    # -- working -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Work from now on, until `stop` or the end of the session."""
        self._working = self._engine.runs.spawn(self._run(), "scheduler")

    def stop(self) -> None:
        """Decide nothing any more. A commit that was admitted still settles."""
        for task in (self._working, self._alarm):
            if task is not None:
                task.cancel()
        self._suspects.stop()

    async def _run(self) -> None:
        while not self._engine.over:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.drain()
            except (SessionClosed, SessionFailed, StorageError):
                return

    async def drain(self) -> None:
        """Settle everything that settles; then start what may start, unless paused (O6)."""
        waiting: dict[TaskId, None] = {}
        while self._touched:
            touched, self._touched = self._touched, {}
            try:
                await self._pass(touched, waiting)
            except (SessionClosed, SessionFailed, StorageError):
                raise
            except Exception:  # one commit that is refused must not end the work of everybody else
                for id in touched:
                    await self._pass_alone(id, waiting)
        self._touched.update(waiting)

    async def _pass_alone(self, id: TaskId, waiting: dict[TaskId, None]) -> None:
        try:
            await self._pass({id: None}, waiting)
        except (SessionClosed, SessionFailed, StorageError):
            raise
        except Exception as error:
            error.add_note(f"in settling or reserving task {id}; it rests until something about it changes")
            self._engine.report(error)

    async def _pass(self, touched: dict[TaskId, None], waiting: dict[TaskId, None]) -> None:
        """One commit of what follows from these tasks; what is left to decide is touched again."""
        plan = self._plan(touched)
        if plan.cancelled:
            await self._withdraw(plan.cancelled)
            self._touched = {**touched, **self._touched}
        elif plan.marks or plan.settles:
            done = await self._settle(plan)
            self._touched.update((id, None) for id in touched if id not in done)
        elif plan.starts and self.running:
            await self._start(plan.starts)
        elif plan.starts:
            waiting.update((verdict.id, None) for verdict in plan.starts)

    def _plan(self, touched: Iterable[TaskId]) -> Plan:
        engine = self._engine
        table = engine.table
        scope: dict[TaskId, TaskRecord] = {}
        for id in touched:
            for near in (id, *table.waiters(id)):
                record = table.live_task(near)
                if record is not None:
                    scope[near] = record
        marks = decide.implied_marks(table, among=scope.values())
        settles: list[Verdict] = []
        starts: list[Verdict] = []
        for id, record in scope.items():
            if id in marks or engine.runs.reserving(id):
                continue
            verdict = decide.decide_task(record, table, engine.code, engine.policy, engine.clock.now_ms())
            self._sort(verdict, settles, starts)
        cancelled = [id for id in scope if id not in self._withdrawn and decide.is_cancelled(table, id)]
        return Plan(marks, tuple(settles), tuple(starts), tuple(cancelled))

    def _sort(self, verdict: Verdict, settles: list[Verdict], starts: list[Verdict]) -> None:
        """What follows from a verdict now. Held ones are touched again when their owned work ends."""
        invocation = self._engine.runs.invocation(verdict.id)
        if invocation is not None:
            aborts = verdict.task.abort_requested and verdict.name in STARTS | SETTLES
            if aborts and not invocation.aborting and not invocation.ended:
                self._engine.runs.stop_one(invocation)
            return
        if verdict.name == "sleep" and isinstance(verdict.task.state, stored.Sleeping):
            self._wake_at(verdict.task.state.until_ms, verdict.id)
        if verdict.held_by:
            if verdict.name == "orphan" and verdict.facts.abandoned:
                settles.append(verdict)  # O7: it is marked first, so that the work it owns is cancelled with it
            return
        if verdict.name in SETTLES:
            if verdict.name != "interrupt" or self._engine.can_interrupt(verdict.task):
                settles.append(verdict)
        elif verdict.name not in STARTS or not isinstance(verdict.facts.fit, Fits):
            self._suspects.rests(verdict.id)
        elif not self.running or self._suspects.may_start(verdict.task):
            starts.append(verdict)

    # -- settling (O6) -------------------------------------------------------------------------------------------------

    async def _settle(self, plan: Plan) -> set[TaskId]:
        """One commit of what ends, or is marked, without any user code. Returns the tasks it dealt with."""
        engine = self._engine
        marks = list(plan.marks.items())
        settles = list(plan.settles)
        cut = sorted((v for v in settles if v.name == "interrupt"), key=lambda verdict: verdict.id)
        if engine.one_by_one:
            rest = [verdict for verdict in settles if verdict.name != "interrupt"]
            marks, settles = marks[:1], [] if marks else (rest or cut)[:1]
        elif cut and not marks:
            settles = cut[:1]  # owners come before what they own; each reads the transcript before it writes (C5)
        else:
            settles = [verdict for verdict in settles if verdict.name != "interrupt"]
        by_task = settles[0].id if len(settles) == 1 and settles[0].name == "interrupt" else None
        subject, name, laws, text = self._described(marks, settles)
        done: set[TaskId] = set()
        block = engine.session.block(subject, what="reconcile", name=name, laws=laws, text=text, by_task=by_task)
        async with block as tx:
            for id, _ in marks:
                record = engine.table.live_task(id)
                if record is not None and not record.abort_requested:
                    tx.put_task(advance(record, Mark(), now_ms=tx.now_ms()))
                done.add(id)
            for verdict in settles:
                record = engine.table.live_task(verdict.id)
                if record is verdict.task:
                    await self._act(verdict, tx)
                    done.add(verdict.id)
        return done

    async def _withdraw(self, cancelled: tuple[TaskId, ...]) -> None:
        """S4: the conversations that a cancelled task owns give up their queued inputs, once."""
        engine = self._engine
        text = "its conversation was cancelled; queued inputs are withdrawn"
        async with engine.session.block(SessionSubject(), what="reconcile", laws=("O5", "S4"), text=text) as tx:
            queues: list[tuple[ConversationId, tuple[SubmissionRecord, ...]]] = []
            for id in cancelled:
                page = await tx.scan_conversations(ConversationQuery(owner_task=id), limit=MOST_CONVERSATIONS)
                queues += [(found.id, await engine.household.queued(tx, found.id)) for found in page.items]
            for conversation_id, queued in queues:
                await engine.household.withdraw(tx, conversation_id, queued)
        self._withdrawn.update(id for id in cancelled if engine.table.live_task(id) is not None)

    def _described(
        self, marks: list[tuple[TaskId, ImpliedMark]], settles: list[Verdict]
    ) -> tuple[Subject, str, tuple[str, ...], str]:
        if marks:
            id, mark = marks[0]
            record = self._engine.table.live_task(id)
            subject = _subject(record) if record is not None else SessionSubject()
            text = "A sibling failed" if mark.law == "T4" else "Its owner was cancelled"
            text = f"{text}; it is to be aborted."
            return subject if len(marks) == 1 else SessionSubject(), "mark", (mark.law,), text
        first = settles[0]
        subject = _subject(first.task) if len(settles) == 1 else SessionSubject()
        return subject, first.name, first.laws, first.because

    async def _act(self, verdict: Verdict, tx: Transaction) -> None:
        record, now = verdict.task, tx.now_ms()
        match verdict.name:
            case "finish":
                after = advance(record, Drain(), now_ms=now)
            case "orphan" if verdict.held_by:
                after = advance(record, Mark("restart"), now_ms=now)
            case "orphan":
                if isinstance(record.state, stored.Running):
                    record = advance(record, HandOver(), now_ms=now)
                reason = verdict.facts.blocked.reason if verdict.facts.blocked is not None else "missing_task"
                marked = advance(record, Mark("restart" if verdict.facts.abandoned else None), now_ms=now)
                after = advance(marked, Orphan(reason), now_ms=now)
            case "give_up":
                error = stored.TaskError(
                    message=f"its abort handler was cut off {verdict.facts.restarts} times",
                    detail={"reason": "restart_limit"},
                )
                running = advance(record, Reserve(), now_ms=now)
                after = advance(running, Finish(stored.Faulted(error=error), drained=True), now_ms=now)
            case "abandon":
                after = advance(record, Mark("restart"), now_ms=now)
            case _:
                await self._engine.interrupt(tx, record)
                return
        tx.put_task(after)

    # -- starting ------------------------------------------------------------------------------------------------------

    async def _start(self, starts: tuple[Verdict, ...]) -> None:
        """T2: store the tasks as running; their code starts when that is stored."""
        engine = self._engine
        batch = starts[:1] if engine.one_by_one else starts
        for verdict in starts[len(batch) :]:
            self._touched[verdict.id] = None
        first = batch[0]
        subject: Subject = _subject(first.task) if len(batch) == 1 else SessionSubject()
        block = engine.session.block(
            subject, what="reserve", name=first.name, laws=first.laws, text=first.because,
            conversation=first.task.conversation,
        )  # fmt: skip
        ids = tuple(verdict.id for verdict in batch)
        try:
            async with block as tx:
                for verdict in batch:
                    record = engine.table.live_task(verdict.id)
                    if record is None or record is not verdict.task:
                        self.touch(verdict.id)
                        continue
                    engine.runs.reserve(verdict)
                    if not isinstance(record.state, stored.Running):
                        tx.put_task(self._reserved(verdict, record, tx.now_ms()))
        except BaseException:
            engine.runs.forget(ids)
            raise
        engine.runs.start(ids)

    def _reserved(self, verdict: Verdict, record: TaskRecord, now_ms: int) -> TaskRecord:
        fit = verdict.facts.fit
        if isinstance(fit, Fits) and fit.migrated:
            record = replace(record, version=fit.definition.version, input=fit.input)
            record = replace(record, state=_with_checkpoint(record.state, fit))
        return advance(record, Reserve(), now_ms=now_ms)

    def touch_all(self, opening: int) -> None:
        """The first pass: decide every live task; suspects come last, in an order that turns with each opening (T9)."""
        live = sorted(self._engine.table.live(), key=lambda record: record.id)
        calm = [record.id for record in live if record.restarts < SUSPECT_RESTARTS]
        suspects = [record.id for record in live if record.restarts >= SUSPECT_RESTARTS]
        turn = opening % len(suspects) if suspects else 0
        self._touched = dict.fromkeys(calm + suspects[turn:] + suspects[:turn])
        self._wake.set()

    # -- time (T12) ----------------------------------------------------------------------------------------------------

    def _wake_at(self, at_ms: float, id: TaskId) -> None:
        if self._wakings.get(id) == at_ms:
            return
        self._wakings[id] = at_ms
        heapq.heappush(self._due, (at_ms, id))
        if at_ms < self._alarm_at:
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = self._due[0][0] if self._due else float("inf")
        self._alarm = self._engine.runs.spawn(self._ring(), "due times") if self._due else None

    async def _ring(self) -> None:
        while self._due:
            await self._engine.clock.sleep_until(self._due[0][0])
            now = self._engine.clock.now_ms()
            while self._due and self._due[0][0] <= now:
                at_ms, id = heapq.heappop(self._due)
                if self._wakings.get(id) == at_ms:
                    del self._wakings[id]
                    self.touch(id)
            self._alarm_at = self._due[0][0] if self._due else float("inf")


def _subject(record: TaskRecord) -> TaskSubject:
    return TaskSubject(record.id, record.kind, record.phase or "")


def _with_checkpoint(state: stored.State, fit: Fits) -> stored.State:
    match state:
        case stored.Pending() | stored.Running() | stored.Waiting() | stored.Sleeping():
            return replace(state, checkpoint=fit.definition.checkpoint(fit.phase))
        case stored.Completing() | stored.Terminal():
            return state
