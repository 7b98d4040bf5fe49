"""Owns a running task machine: opening, following its session, waiting, aborting, installing. Never decides.

It ties the table of live tasks, the scheduler that acts on verdicts, and the invocations that run code to one session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pidurable_nb.clock import Clock
from pidurable_nb.engine.answers import Answers
from pidurable_nb.engine.candidates import Candidates
from pidurable_nb.engine.decide import Policy, Verdict, decide_tasks
from pidurable_nb.engine.household import Household
from pidurable_nb.engine.kin import Kin
from pidurable_nb.engine.phase import Phase, TaskRef
from pidurable_nb.engine.reading import D, read_document
from pidurable_nb.engine.registry import Code, Fits, Registry, TaskDefinition
from pidurable_nb.engine.running import Running
from pidurable_nb.engine.scheduler import Scheduler
from pidurable_nb.engine.snapshot import ancestors
from pidurable_nb.engine.table import TaskTable
from pidurable_nb.engine.transition import Close, Free, Mark, Reopen, advance, kept_fault
from pidurable_nb.engine.tx import startable
from pidurable_nb.engine.waits import Waits
from pidurable_nb.errors import (
    SessionClosed,
    SessionFailed,
    StorageError,
    StorageRequestError,
)
from pidurable_nb.ids import ConversationId, EntryId, TaskId
from pidurable_nb.probe import ConversationSubject, Probe, SessionSubject, TaskSubject
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.session.changes import Changes
from pidurable_nb.session.session import Session
from pidurable_nb.session.transaction import Transaction

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the host decides for the task machine. `suspect_ms`: how long a suspect may take to progress (T9)."""

    policy: Policy = Policy()
    suspect_ms: int = 1000


class Engine:
    """The task machine of one open session."""

    def __init__(
        self,
        session: Session,
        registry: Registry,
        household: Household,
        *,
        clock: Clock,
        probe: Probe | None,
        report: Callable[[BaseException], None],
        settings: Callable[[], EngineSettings],
    ) -> None:
        self.session = session
        self.registry = registry
        self.code: Code = registry
        self.household = household
        self.clock = clock
        self.probe = probe
        self.report = report
        self.settings = settings
        self.opening = session.opened.opening
        self.origin = session.opened.origin
        self.table = TaskTable(self.opening)
        self.kin = Kin(session, self.table, household)
        self.scheduler = Scheduler(self)
        self._candidates = Candidates(self)
        self._stored: dict[TaskId, TaskRecord] = {}
        self.runs = Running(self)
        self.waits = Waits()
        self.answers = Answers(self)
        self._freeing: set[TaskId] = set()
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._unsubscribe = registry.subscribe(self._code_changed)

    # -- what its parts ask --------------------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        return self.settings().policy

    @property
    def one_by_one(self) -> bool:
        return self.probe is not None and self.probe.one_by_one

    def stored_task(self, id: TaskId) -> TaskRecord | None:
        """The live task as it is stored, which staged commits have not changed yet (C2, C8)."""
        return self._stored.get(id)

    def startable(self, phase: Phase[object]) -> TaskDefinition:
        """The definition with which a task can begin at `phase`. Raises UnknownPhase."""
        name = type(phase)._task
        return startable(self.registry.ready(name) if name is not None else None, phase)

    @property
    def over(self) -> bool:
        """Whether no code of a task may run any more: the session has failed, or everything is being closed."""
        return self._closing or self.session.failed is not None

    def rests(self, record: TaskRecord) -> bool:
        """T11: whether a fault keeps the task that this very opening has seen."""
        fault = kept_fault(record)
        return fault is not None and fault.opening == self.opening

    def freeing(self, id: TaskId) -> bool:
        """Whether new code is about to free a fault that is stored still (T11)."""
        return id in self._freeing

    def replaced(self, definition: TaskDefinition, record: TaskRecord) -> bool:
        """T10: whether other code is installed for the task by now, and can take it."""
        current = self.registry.definition(record.kind)
        return current is not definition and isinstance(self.code.fit(record), Fits)

    def can_interrupt(self, record: TaskRecord) -> bool:
        """Whether a cut tool call can be settled without its code."""
        return self.household.can_interrupt(record)

    async def interrupt(self, tx: Transaction, record: TaskRecord) -> None:
        """Settle a cut tool call (E3)."""
        await self.household.interrupt(tx, record)

    async def settle_outcome(self, tx: Transaction, record: TaskRecord) -> None:
        """A task becomes terminal: what depended on an outcome that the engine wrote is settled with it."""
        if isinstance(record.outcome, stored.Faulted | stored.Orphaned):
            await self.household.settle(tx, record)

    async def read_document(
        self,
        doc: type[D],
        *,
        conversation: ConversationId | None = None,
        task: TaskId | None = None,
        key: str | None = None,
        at: EntryId | None = None,
    ) -> D:
        """The stored value of a document."""
        return await read_document(self.session, doc, conversation=conversation, task=task, key=key, at=at)

    # -- opening (T7) --------------------------------------------------------------------------------------------------

    async def open(self, *, run: bool) -> None:
        """Take over what is stored; settle what settles (O6); then start work, when `run`.

        Durability: tasks that were running are pending and counted. When nothing ran and nothing follows, no row of
        the format has changed and the sequence number stays.
        """
        self.session.attend(self)
        self._stored.update(await self.kin.load())
        await self._reopen()
        self.scheduler.touch_all(self.opening)
        await self.scheduler.drain()
        self.table.fresh = False
        self.scheduler.start()
        if run:
            self.scheduler.resume()

    async def _reopen(self) -> None:
        now_ms = self.clock.now_ms()
        changed = [(r, advance(r, Reopen(), now_ms=now_ms)) for r in self.table.live()]
        changed = [(before, after) for before, after in changed if before is not after]
        if changed:
            block = self.session.block(SessionSubject(), what="open", laws=("T7",), text="what ran is pending again")
            async with block as tx:
                for _, after in changed:
                    tx.put_task(after)

    # -- following the session (Attendant) -----------------------------------------------------------------------------

    async def candidate(self, tx: Transaction) -> None:
        """At the end of every block: complete and check what it wrote about tasks."""
        await self._candidates.complete(tx)

    def staged(self, changes: Changes) -> None:
        for conversation in changes.conversations:
            self.table.learn_conversation(conversation)
        for conversation_id, run in self.household.live_run_of(changes).items():
            self.table.set_run(conversation_id, run)
        for ended in self._candidates.take_ended():
            self.table.learn_ended(ended)
        self.runs.staged(changes)
        for id, change in changes.tasks.items():
            before, after = self.table.live_task(id), change.after
            above = tuple(ancestors(self.table, id)) if not after.live else ()  # before the table forgets them
            self.table.put(after)
            runs = self.runs.invocation(id) is not None and isinstance(after.state, stored.Running)
            if runs and not after.abort_requested:
                self.scheduler.progressed(after)  # its own code goes on; there is nothing to decide
            else:
                self.scheduler.touch_around(before, after, above)

    def stored(self, changes: Changes) -> None:
        for id, change in changes.tasks.items():
            after = change.after
            if after.live:
                self._stored[id] = after
                if self.rests(after):
                    self.waits.tell(id)
            else:
                self._stored.pop(id, None)
                self.waits.tell(id)
        self.runs.stored(changes)
        if self.table.idle:
            self.waits.tell_idle()

    def failed(self, error: SessionFailed) -> None:
        """F1: every wait ends with the cause, and running code is cancelled."""
        self.runs.stop()
        self.waits.end(error)

    # -- what a harness asks -------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Start work from now on. May be called from anywhere."""
        if _running_loop() is self._loop:
            self.scheduler.resume()
        else:
            self._loop.call_soon_threadsafe(self.scheduler.resume)

    async def abort(self, ref: TaskRef[object], *, background: bool = False) -> bool:
        """Mark the task for abort (O2), and with `background` what it started beyond that boundary too (O3).

        False when it had ended already. Raises StorageRequestError for none.

        Durability: the marks are stored on return; the abort handlers run later, bottom up.
        """
        async with self.session.block(self._subject(ref.id), laws=("O2",), text="marked for abort") as tx:
            live = self.table.live_task(ref.id) is not None
            for id in (ref.id, *(sorted(self.table.descendants(ref.id)) if background else ())):
                record = self.table.live_task(id)
                if record is not None and not record.abort_requested:
                    tx.put_task(advance(record, Mark(), now_ms=tx.now_ms()))
        if live:
            return True
        if await self.session.task(ref.id) is None:
            raise StorageRequestError(f"task {ref.id} does not exist")
        return False

    async def abort_conversation(self, id: ConversationId, *, background: bool) -> None:
        """Mark what runs in a conversation for abort, and withdraw its queued inputs (O2, O3, S4)."""
        text = "the conversation is aborted"
        async with self.session.block(ConversationSubject(id), laws=("O2", "S4"), text=text, conversation=id) as tx:
            queued = await self.household.queued(tx, id)
            for task in self.table.of_conversation(id, background=background):
                record = self.table.live_task(task)
                if record is not None and not record.abort_requested:
                    tx.put_task(advance(record, Mark(), now_ms=tx.now_ms()))
            await self.household.withdraw(tx, id, queued)

    async def retry(self, ref: TaskRef[object]) -> None:
        """Let a parked or faulted task go on (T9, T11). Raises StorageRequestError when it is not live.

        Durability: its count is cleared on return.
        """
        async with self.session.block(self._subject(ref.id), laws=("T9",), text="retried") as tx:
            record = self.table.live_task(ref.id)
            if record is None:
                raise StorageRequestError(f"task {ref.id} is not live; there is nothing to retry")
            if isinstance(record.state, stored.Pending) and (record.restarts or kept_fault(record) is not None):
                tx.put_task(advance(record, Free(), now_ms=tx.now_ms()))

    def _subject(self, id: TaskId) -> TaskSubject | SessionSubject:
        record = self.table.live_task(id)
        return TaskSubject(id, record.kind, record.phase or "") if record is not None else SessionSubject()

    def verdicts(self) -> tuple[Verdict, ...]:
        """What would happen to every live task, as decided now."""
        return tuple(decide_tasks(self.table, self.code, self.policy, self.clock.now_ms()).values())

    # -- code (T8, T10, T11) -------------------------------------------------------------------------------------------

    def _code_changed(self, kinds: frozenset[str]) -> None:
        """Code is installed from wherever a cell runs; deciding again is for the engine's own loop."""
        if _running_loop() is self._loop:
            self._decide_again(kinds)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._decide_again, kinds)

    def _decide_again(self, kinds: frozenset[str]) -> None:
        if self.over:
            return
        concerned = [record for record in self.table.live() if record.kind in kinds]
        for record in concerned:
            self.scheduler.touch(record.id)
        kept = [record.id for record in concerned if self.rests(record)]
        if kept:
            self._freeing.update(kept)
            self.runs.spawn(self._free(kept), "free kept faults")

    async def _free(self, ids: Sequence[TaskId]) -> None:
        """T11: a re-install of its code frees a kept task."""
        text = "its code was installed again"
        try:
            async with self.session.block(SessionSubject(), what="reconcile", laws=("T11",), text=text) as tx:
                for id in ids:
                    record = self.table.live_task(id)
                    if record is not None and self.rests(record):
                        tx.put_task(advance(record, Free(), now_ms=tx.now_ms()))
        except (SessionClosed, SessionFailed, StorageError):
            return
        finally:
            self._freeing.difference_update(ids)

    # -- closing -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop all code, and write back what ran as pending, without counting it (T7).

        Code that does not end when it is cancelled is left behind, reported, and can write nothing any more (T13).

        Durability: every admitted commit has settled.
        """
        if self._closing:
            return
        self._closing = True
        self._unsubscribe()
        self.scheduler.stop()
        try:
            await self.runs.end()
            if self.session.failed is None:
                await self._write_back()
        except (SessionFailed, StorageError):
            pass  # the session has failed, and says so to everybody
        finally:
            failed = self.session.failed
            self.waits.end(failed or SessionClosed("the harness was closed; open the store again to wait"))

    async def _write_back(self) -> None:
        ran = [record for record in self.table.live() if isinstance(record.state, stored.Running)]
        if not ran:
            return
        async with self.session.block(SessionSubject(), what="reconcile", laws=("T7",), text="closed") as tx:
            for record in ran:
                tx.put_task(advance(record, Close(), now_ms=tx.now_ms()))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
