"""Owns commits between the end of their block and the storage's answer: what they hold, who waits for them, and what
later blocks see of them (C8). Never talks to a storage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pidurable_nb.errors import SessionFailed, StorageError
from pidurable_nb.ids import ConversationId, EntryId, Seq, SubmissionId, TaskId
from pidurable_nb.probe import Subject
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, SubmissionRecord
from pidurable_nb.session.changes import Changes
from pidurable_nb.session.shelf import Turn
from pidurable_nb.store.storage import Commit


class Staged:
    """One commit on its way. Settled once: stored with `seq`, or lost with `error`."""

    __slots__ = ("_waiting", "changes", "commit", "error", "seq", "settled", "subject", "turns")

    def __init__(self, commit: Commit, changes: Changes, turns: Sequence[Turn], subject: Subject) -> None:
        self.commit = commit
        self.changes = changes
        self.turns = turns
        self.subject = subject
        self.seq: Seq | None = None
        self.error: StorageError | SessionFailed | None = None
        self.settled = False
        self._waiting: list[asyncio.Future[None]] = []

    def store(self, seq: Seq) -> None:
        """The commit is stored: resume who waits for it."""
        self.seq = seq
        self._settle()

    def lose(self, error: StorageError | SessionFailed) -> None:
        """The commit is lost, or nobody knows: resume who waits for it with `error`."""
        self.error = error
        self._settle()

    def _settle(self) -> None:
        self.settled = True
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def settle(self) -> asyncio.CancelledError | None:
        """Return when the commit is settled, whatever happens to the caller meanwhile.

        A cancellation does not cut the wait (F4); it is returned, and the caller must raise it.
        """
        cancelled: asyncio.CancelledError | None = None
        while not self.settled:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError as error:
                cancelled = error
        return cancelled


class Overlay:
    """The records of staged commits that are not stored yet, newest of each id."""

    __slots__ = ("conversations", "entries", "submissions", "tasks")

    def __init__(self) -> None:
        self.conversations: dict[ConversationId, ConversationRecord] = {}
        self.entries: dict[EntryId, EntryRecord] = {}
        self.tasks: dict[TaskId, TaskRecord] = {}
        self.submissions: dict[SubmissionId, SubmissionRecord] = {}

    def add(self, changes: Changes) -> None:
        """Show what was staged."""
        for conversation in changes.conversations:
            self.conversations[conversation.id] = conversation
        for entry in changes.entries:
            self.entries[entry.id] = entry
        for task, change in changes.tasks.items():
            self.tasks[task] = change.after
        for submission, asked in changes.submissions.items():
            self.submissions[submission] = asked.after

    def drop(self, changes: Changes) -> None:
        """Forget what is stored now; what a later commit staged over it stays."""
        for conversation in changes.conversations:
            self.conversations.pop(conversation.id, None)
        for entry in changes.entries:
            self.entries.pop(entry.id, None)
        for task, change in changes.tasks.items():
            if self.tasks.get(task) is change.after:
                del self.tasks[task]
        for submission, asked in changes.submissions.items():
            if self.submissions.get(submission) is asked.after:
                del self.submissions[submission]
