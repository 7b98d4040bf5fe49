"""Owns what one commit changed, as those who follow a session see it. Never changes anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pidurable_nb.ids import JsonObject, Seq, SubmissionId, TaskId
from pidurable_nb.records.document import DocumentRecord
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, SubmissionRecord
from pidurable_nb.store.delta import Op


@dataclass(frozen=True, slots=True)
class TaskChange:
    """A task before and after. `before` is None for a new one, and where the writer did not know it."""

    before: TaskRecord | None
    after: TaskRecord


@dataclass(frozen=True, slots=True)
class SubmissionChange:
    """A submission before and after. `before` is None for a new one, and where the writer did not know it."""

    before: SubmissionRecord | None
    after: SubmissionRecord


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """A document after the commit. `value` None: retired. `ops` lead from the value before, as its reader saw it.

    `record.created_at` is 0 until the commit that made the document is stored; the number is stamped then.
    """

    record: DocumentRecord
    value: JsonObject | None
    ops: tuple[Op, ...]
    version: int
    created: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything that one commit changed. `seq` is None while it is staged."""

    seq: Seq | None
    barrier: bool
    tasks: Mapping[TaskId, TaskChange]
    conversations: tuple[ConversationRecord, ...]
    entries: tuple[EntryRecord, ...]
    submissions: Mapping[SubmissionId, SubmissionChange]
    documents: tuple[DocumentChange, ...]


class Listener(Protocol):
    """Who follows every stored commit, in order. Called on the loop; must not wait."""

    def __call__(self, changes: Changes, /) -> None: ...


def changed_rows(changes: Changes) -> tuple[str, ...]:
    """The rows that a commit wrote, as `tasks/12`: conversations, entries, tasks, submissions, documents, by id."""
    return (
        *(f"conversations/{record.id}" for record in changes.conversations),
        *(f"entries/{record.id}" for record in changes.entries),
        *(f"tasks/{id}" for id in sorted(changes.tasks)),
        *(f"submissions/{id}" for id in sorted(changes.submissions)),
        *(f"documents/{change.record.id}" for change in changes.documents),
    )
