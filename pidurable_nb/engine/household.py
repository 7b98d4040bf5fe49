"""Owns what the engine asks of the room above it, which knows conversations and submissions. Never implements it."""

from __future__ import annotations

from typing import Protocol

from pidurable_nb.engine.snapshot import LiveRun
from pidurable_nb.ids import ConversationId
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, SubmissionRecord
from pidurable_nb.session.changes import Changes
from pidurable_nb.session.session import Session
from pidurable_nb.session.transaction import Transaction


class Household(Protocol):
    """The rules of conversations that the engine has to trigger but does not know."""

    async def created(self, tx: Transaction, record: ConversationRecord) -> None:
        """A conversation was made in this block: make what every conversation has."""
        ...

    async def queued(self, tx: Transaction, conversation: ConversationId) -> tuple[SubmissionRecord, ...]:
        """The queued submissions of a conversation, read before the block writes (C5)."""
        ...

    async def withdraw(
        self, tx: Transaction, conversation: ConversationId, queued: tuple[SubmissionRecord, ...]
    ) -> None:
        """The conversation is cancelled from above: its queued inputs are withdrawn, its writes stay (S4)."""
        ...

    async def settle(self, tx: Transaction, task: TaskRecord) -> None:
        """The engine itself wrote the outcome of a task, which is terminal now: settle what depended on it."""
        ...

    def can_interrupt(self, record: TaskRecord) -> bool:
        """Whether a cut tool call can be settled from what is stored, without its code and without a model."""
        ...

    async def interrupt(self, tx: Transaction, record: TaskRecord) -> None:
        """Settle a cut tool call as interrupted, in a block of its own (E3)."""
        ...

    async def live_run(self, session: Session, conversation: ConversationId) -> LiveRun | None:
        """What the conversation is busy with, as stored."""
        ...

    def live_run_of(self, changes: Changes) -> dict[ConversationId, LiveRun]:
        """What conversations became busy with in this commit."""
        ...
