"""Owns what every block owes the task machine before it is staged: owners that live, waits that can end, and held ends.

Never starts anything. It runs on the line, on what the block is about to write; what it refuses rolls the block back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pidurable_nb.engine.snapshot import ancestors
from pidurable_nb.engine.transition import kept_fault
from pidurable_nb.errors import IllegalTransition, OwnerGone, StorageRequestError
from pidurable_nb.ids import ConversationId, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord
from pidurable_nb.session.transaction import Transaction

if TYPE_CHECKING:
    from pidurable_nb.engine.engine import Engine


class Candidates:
    """Checks and completes the tasks that a block writes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def complete(self, tx: Transaction) -> None:
        """O1, O2, T4, T5. Raises OwnerGone, IllegalTransition or StorageRequestError; the block is rolled back."""
        tasks = tx.written_tasks
        if not tasks and not tx.written_conversations:
            return
        made = {record.id: record for record in tx.written_conversations}
        for record in made.values():
            if record.owner is not None:
                await self._check_owner(record.owner.task, tasks, f"conversation {record.id}")
        for record in list(tasks.values()):
            if self._engine.table.live_task(record.id) is None and record.live:
                await self._check_new(record, tasks, made)
            if isinstance(record.state, stored.Waiting):
                await self._check_wait(record, record.state, tasks)
            elif isinstance(record.state, stored.Terminal):
                await self._end(record, tasks, made, tx)

    async def _check_new(
        self, record: TaskRecord, tasks: Mapping[TaskId, TaskRecord], made: Mapping[ConversationId, ConversationRecord]
    ) -> None:
        what = f"task {record.kind} {record.id}"
        if record.owner is not None:
            await self._check_owner(record.owner, tasks, what)
        if record.conversation not in made:
            await self._engine.know(record.conversation)

    async def _check_owner(self, owner: TaskId, tasks: Mapping[TaskId, TaskRecord], what: str) -> None:
        record = tasks.get(owner) or self._engine.table.live_task(owner)
        if record is None:
            raise OwnerGone(f"{what}: its owner, task {owner}, has ended or never was; nothing can be owned by it (O2)")
        if record.outcome is not None:
            raise OwnerGone(f"{what}: its owner, task {owner}, ends in this or an earlier commit (O2)")
        if record.abort_requested:
            raise OwnerGone(f"{what}: its owner, task {owner}, is to be aborted; compensate inline instead (O2)")

    async def _check_wait(
        self, record: TaskRecord, state: stored.Waiting, tasks: Mapping[TaskId, TaskRecord]
    ) -> None:
        table = self._engine.table
        above = set(ancestors(table, record.id))
        for id in state.on:
            if id == record.id or id in above:
                raise IllegalTransition(f"task {record.id} waits for task {id}, itself or an owner; that never ends (T4)")
            named = tasks.get(id) or table.task(id) or await self._engine.session.task(id)
            if named is None:
                raise StorageRequestError(f"task {record.id} waits for task {id}, which does not exist (T4)")
            if state.fail_fast and named.owner != record.id:
                raise IllegalTransition(
                    f"task {record.id} does not own task {id}; fail_fast is for owned tasks only (T4)"
                )
            if kept_fault(named) is not None:
                raise IllegalTransition(f"task {id} rests on a fault; retry it before task {record.id} waits (T11)")
            if not named.live:
                table.learn_ended(named)

    async def _end(
        self,
        record: TaskRecord,
        tasks: Mapping[TaskId, TaskRecord],
        made: Mapping[ConversationId, ConversationRecord],
        tx: Transaction,
    ) -> None:
        """T5: an outcome is held while ordinary owned work lives, judged on what this block leaves behind."""
        held = self._engine.table.has_below(record.id) and any(
            id not in tasks or tasks[id].live for id in self._engine.table.below(record.id)
        )
        if not held and not any(self._is_below(new, record.id, tasks, made) for new in tasks.values()):
            await tx.retire_task_documents(record.id)
            await self._engine.settle_outcome(tx, record)
            return
        assert isinstance(record.state, stored.Terminal)
        tx.put_task(replace(record, state=stored.Completing(outcome=record.state.outcome), ended_at_ms=None))

    def _is_below(
        self,
        new: TaskRecord,
        owner: TaskId,
        tasks: Mapping[TaskId, TaskRecord],
        made: Mapping[ConversationId, ConversationRecord],
    ) -> bool:
        """Whether a task made by this very block is ordinary work of `owner`."""
        table = self._engine.table
        if not new.live or table.live_task(new.id) is not None:
            return False
        here: TaskRecord | None = new
        while here is not None and not here.background:
            conversation = made.get(here.conversation)
            if here.owner is not None:
                above: TaskId | None = here.owner
            elif conversation is not None:
                above = conversation.owner.task if conversation.owner is not None else None
            else:
                above = table.conversation_owner(here.conversation)
            if above == owner:
                return True
            here = (tasks.get(above) or table.task(above)) if above is not None else None
        return False
