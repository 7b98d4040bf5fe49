"""Owns what every block owes the task machine before it is staged: owners that live, waits that can end, and held ends.

Never starts anything. It runs on the line, on what the block is about to write; what it refuses rolls the block back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pidurable_nb.engine.snapshot import ancestors
from pidurable_nb.engine.table import TaskTable
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
        self._ended: list[TaskRecord] = []

    def take_ended(self) -> list[TaskRecord]:
        """The terminal tasks that waits of the block name which is staged now."""
        ended, self._ended = self._ended, []
        return ended

    async def complete(self, tx: Transaction) -> None:
        """O1, O2, T4, T5. Raises OwnerGone, IllegalTransition or StorageRequestError; the block is rolled back."""
        self._ended = []  # of a block that was rolled back
        tasks = tx.written_tasks
        if not tasks and not tx.written_conversations:
            return
        made = {record.id: record for record in tx.written_conversations}
        for conversation in made.values():
            if conversation.owner is not None:
                await self._check_owner(conversation.owner.task, tasks, f"conversation {conversation.id}")
        for record in list(tasks.values()):
            if self._engine.table.live_task(record.id) is None and record.live:
                await self._check_new(record, tasks, made)
            if isinstance(record.state, stored.Waiting):
                if self._is_new_wait(record, record.state):
                    await self._check_wait(record, record.state, tx)
            elif isinstance(record.state, stored.Terminal):
                await self._end(record, tasks, made, tx)

    async def _check_new(
        self, record: TaskRecord, tasks: Mapping[TaskId, TaskRecord], made: Mapping[ConversationId, ConversationRecord]
    ) -> None:
        what = f"task {record.kind} {record.id}"
        if record.owner is not None:
            await self._check_owner(record.owner, tasks, what)
        if record.conversation not in made:
            await self._engine.kin.know(record.conversation)
            await self._engine.kin.know_owners(record.conversation)

    def _is_new_wait(self, record: TaskRecord, state: stored.Waiting) -> bool:
        """What was accepted once is not checked again when the task is only marked: its fault, if any, is old."""
        known = self._engine.table.live_task(record.id)
        return known is None or not isinstance(known.state, stored.Waiting) or known.state.on != state.on

    async def _check_owner(self, owner: TaskId, tasks: Mapping[TaskId, TaskRecord], what: str) -> None:
        record = self._engine.table.live_task(owner) or tasks.get(owner)  # before this block: its end may be held (T5)
        if record is None:
            raise OwnerGone(f"{what}: its owner, task {owner}, has ended or never was; nothing can be owned by it (O2)")
        if record.outcome is not None:
            raise OwnerGone(f"{what}: its owner, task {owner}, has its outcome; nothing new can be owned by it (O2)")
        if record.abort_requested:
            raise OwnerGone(f"{what}: its owner, task {owner}, is to be aborted; compensate inline instead (O2)")

    async def _check_wait(self, record: TaskRecord, state: stored.Waiting, tx: Transaction) -> None:
        table = self._engine.table
        above = set(ancestors(table, record.id))
        for id in state.on:
            if id == record.id or id in above:
                raise IllegalTransition(
                    f"task {record.id} waits for task {id}, itself or an owner; that never ends (T4)"
                )
            named = tx.peek_task(id) or table.task(id) or await self._engine.session.task(id)
            if named is None:
                raise StorageRequestError(f"task {record.id} waits for task {id}, which does not exist (T4)")
            if state.fail_fast and named.owner != record.id:
                raise IllegalTransition(
                    f"task {record.id} does not own task {id}; fail_fast is for owned tasks only (T4)"
                )
            if self._engine.rests(named):
                raise IllegalTransition(f"task {id} rests on a fault; retry it before task {record.id} waits (T11)")
            if not named.live:
                self._ended.append(named)

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
        here = _owner_of(new, table, made)
        background = new.background
        while here is not None and not background:
            if here == owner:
                return True
            known = tasks.get(here)
            background = known.background if known is not None else table.background(here)
            here = _owner_of(known, table, made) if known is not None else table.parent(here)
        return False


def _owner_of(record: TaskRecord, table: TaskTable, made: Mapping[ConversationId, ConversationRecord]) -> TaskId | None:
    """The task that owns it, directly or through its conversation, which this block may have made."""
    if record.owner is not None:
        return record.owner
    conversation = made.get(record.conversation)
    if conversation is None:
        return table.conversation_owner(record.conversation)
    return conversation.owner.task if conversation.owner is not None else None
