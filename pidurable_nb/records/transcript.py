"""Owns conversations, entries and submissions as they are stored. Never derives what a model sees from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pidurable_nb.ids import ABSENT, Absent, ConversationId, EntryId, Json, JsonObject, SubmissionId, TaskId
from pidurable_nb.records.task import NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """Where a fork leaves its parent: behind the entry `at` (V3)."""

    conversation: ConversationId
    at: EntryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The task that owns a conversation, and that task's own conversation (O1)."""

    conversation: ConversationId
    task: TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecord:
    """A transcript scope. Written once."""

    id: ConversationId
    parent: Parent | None = None
    owner: Owner | None = None
    extra: JsonObject = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What an entry does to the model's view of an older one. `messages` None omits it."""

    target: EntryId
    messages: tuple[JsonObject, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRecord:
    """An immutable line of a transcript (V1).

    `model` are messages in the stored form; `data` is any JSON, ABSENT when there is none (an explicit null is kept);
    `head` moves the start of what the model sees; `by_task` is the task whose runtime committed it.
    """

    id: EntryId
    conversation: ConversationId
    kind: str
    model: tuple[JsonObject, ...] | None = None
    data: Json | Absent = ABSENT
    head: EntryId | None = None
    edits: tuple[Edit, ...] = ()
    by_task: TaskId | None = None
    extra: JsonObject = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Admitted; its content waits in the inbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An input whose entry is in the transcript; a run answers it."""

    entry: EntryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An input that was answered."""

    entry: EntryId
    answer: EntryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A write whose entry is in the transcript."""

    entry: EntryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """Settled without an answer, for `reason`. `entry` is set where an input had been placed."""

    reason: str
    detail: Json = None
    entry: EntryId | None = None


Settled: TypeAlias = Answered | Written | Unanswered
SubmissionState: TypeAlias = Queued | Placed | Settled
SubmissionStatus = Literal["queued", "placed", "done", "unanswered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRecord:
    """What somebody asked for, once (S1, S2). Replaced whole on change; a settled one never changes (S5)."""

    id: SubmissionId
    conversation: ConversationId
    type: Literal["input", "write"]
    state: SubmissionState
    request_id: str | None = None
    extra: JsonObject = field(default_factory=lambda: NOTHING)

    @property
    def status(self) -> SubmissionStatus:
        """The stored word for `state`."""
        match self.state:
            case Queued():
                return "queued"
            case Placed():
                return "placed"
            case Answered() | Written():
                return "done"
            case Unanswered():
                return "unanswered"
