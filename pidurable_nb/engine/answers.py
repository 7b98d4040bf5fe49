"""Owns what is said about tasks to those who wait: how they ended, what they own, that nothing is left. Never decides.

Everything here is stored (C2), but for the question whether anything lives, which waits until that is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pidurable_nb.engine.kin import PAGE
from pidurable_nb.engine.phase import Aborted, Done, Failed, Faulted, Orphaned, Outcome, TaskRef
from pidurable_nb.engine.transition import kept_fault
from pidurable_nb.errors import (
    IllegalTransition,
    SessionClosed,
    StorageRequestError,
    TaskAborted,
    TaskFailed,
    TaskFaulted,
    TaskOrphaned,
)
from pidurable_nb.ids import TaskId
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.store.storage import TaskQuery

if TYPE_CHECKING:
    from typing import Any

    from pidurable_nb.engine.engine import Engine

R = TypeVar("R")


class Answers:
    """The answers of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def wait(self, ref: TaskRef[R]) -> R:
        """The task's result, when it is terminal. Raises TaskEnded when it has none, or a fault keeps it (T5, T11)."""
        outcome, kept = await self._ended(ref)
        return _result(ref, outcome, kept=kept)

    async def outcome(self, ref: TaskRef[R]) -> Outcome[R]:
        """How the task ended, when it has, or the fault that keeps it."""
        outcome, _ = await self._ended(ref)
        return outcome

    async def _ended(self, ref: TaskRef[R]) -> tuple[Outcome[R], bool]:
        while True:
            record = self._engine.stored_task(ref.id)
            if record is None:
                return await self.outcome_of(ref), False
            fault = kept_fault(record)
            if fault is not None and self._engine.rests(record) and not self._engine.freeing(ref.id):
                return Faulted(fault.message, fault.detail), True
            self._refuse_ended()
            await self._engine.waits.task(ref.id)

    def _refuse_ended(self) -> None:
        if self._engine.session.failed is not None:
            raise self._engine.session.failure()
        if self._engine.over:
            raise SessionClosed("the harness is closed; open the store again to wait")

    async def outcome_of(self, ref: TaskRef[R]) -> Outcome[R]:
        """The outcome of a terminal task. Raises IllegalTransition for a live one, StorageRequestError for none."""
        record = await self._engine.session.task(ref.id)
        if record is None:
            raise StorageRequestError(f"task {ref.id} does not exist")
        if record.live or record.outcome is None:
            raise IllegalTransition(f"task {ref.id} is {record.status}; wait for it before asking for its outcome")
        return self._public(record)

    async def result_of(self, ref: TaskRef[R]) -> R:
        """The result of a terminal task. Raises TaskEnded when it has none."""
        return _result(ref, await self.outcome_of(ref), kept=False)

    def _public(self, record: TaskRecord) -> Outcome[Any]:
        return self._engine.registry.decode_outcome(record)

    async def children_of(self, record: TaskRecord) -> tuple[TaskId, ...]:
        """The tasks that a task owns, ended ones included, oldest first."""
        found: list[TaskId] = []
        after: int | None = record.id
        while True:
            query = TaskQuery(conversation=record.conversation)
            page = await self._engine.session.scan_tasks(query, limit=PAGE, after=after)
            found += [child.id for child in page.items if child.owner == record.id]
            if page.next is None:
                return tuple(found)
            after = page.next

    async def idle(self) -> None:
        """Return when no ordinary task lives; background work does not count (O3)."""
        while True:
            self._refuse_ended()
            if not self._engine.table.idle:
                await self._engine.waits.idle()
                continue
            await self._engine.session.settled()  # the table is ahead of what is stored (C2)
            if self._engine.table.idle:
                return


def _result(ref: TaskRef[R], outcome: Outcome[R], *, kept: bool) -> R:
    match outcome:
        case Done(result=result):
            return result
        case Failed():
            raise TaskFailed(ref.id, outcome)
        case Aborted():
            raise TaskAborted(ref.id, outcome)
        case Faulted():
            raise TaskFaulted(ref.id, outcome, kept=kept)
        case Orphaned():
            raise TaskOrphaned(ref.id, outcome)
