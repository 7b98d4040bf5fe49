"""Owns the agent events of one conversation as records: what a user interface or a wire is told.

Every event is relative to the newest `Snapshot` and the events since, never to how documents are laid out. Each class
says its name on the wire in `type`. Never derives one; `events` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from pidurable_nb.agent.watching.message_change import MessageChange, OutputChange
from pidurable_nb.ids import ABSENT, Absent, Json, JsonObject, SubmissionId, TaskId
from pidurable_nb.records.message import Message
from pidurable_nb.records.transcript import EntryRecord, SubmissionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A failed request is sent again at a time of the harness clock, milliseconds since 1970 (G2)."""

    at_ms: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationInFlight:
    """The current attempt to get an answer: at most one of what has arrived, a back-off, and a poll that is due."""

    attempt: int
    message: Message | None = None
    retry: Retry | None = None
    poll_at_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxItem:
    """Something that waits: `mode` is steer, followUp or write."""

    id: SubmissionId
    mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a consumer needs to know; replaces whatever it holds. `run` None: nothing runs.

    `tools` and `compactions` are those of `pi.live`, `agent` and `usage` the documents, each as stored.
    """

    type: ClassVar[str] = "snapshot"
    entries: Sequence[EntryRecord]
    run: tuple[SubmissionId, ...] | None
    generation: GenerationInFlight | None
    tools: tuple[JsonObject, ...]
    compactions: tuple[JsonObject, ...]
    inbox: tuple[InboxItem, ...]
    agent: JsonObject
    usage: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """A run has the conversation now. Steers that join it later are not named."""

    type: ClassVar[str] = "run_start"
    inputs: tuple[SubmissionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """A run is over. How its inputs were settled is said by `SubmissionChanged`."""

    type: ClassVar[str] = "run_end"
    inputs: tuple[SubmissionId, ...]


@dataclass(frozen=True, slots=True)
class TurnStart:
    """A model is to be asked."""

    type: ClassVar[str] = "turn_start"


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The outcome of asking a model is decided, its tools included."""

    type: ClassVar[str] = "turn_end"


@dataclass(frozen=True, slots=True)
class MessageStart:
    """A message begins: an answer in flight with what has arrived of it, or the message of an entry that follows."""

    type: ClassVar[str] = "message_start"
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageUpdate:
    """The answer in flight went on; `usage` is what it has spent so far."""

    type: ClassVar[str] = "message_update"
    usage: JsonObject
    changes: tuple[MessageChange, ...]


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """The message that began is in the transcript, in this entry."""

    type: ClassVar[str] = "message_end"
    entry: EntryRecord


@dataclass(frozen=True, slots=True)
class EntryAppended:
    """An entry without messages."""

    type: ClassVar[str] = "entry_appended"
    entry: EntryRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExecutionStart:
    """A tool runs, with the arguments of its intent (E1)."""

    type: ClassVar[str] = "tool_execution_start"
    call_id: str
    tool: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExecutionUpdate:
    """A tool goes on: what changed of its output, its details (None: they went) and its diagnostics (all of them)."""

    type: ClassVar[str] = "tool_execution_update"
    call_id: str
    tool: str
    output: OutputChange | None = None
    details: Json | Absent = ABSENT
    diagnostics: tuple[JsonObject, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExecutionEnd:
    """A call is over. `entry` is its result; None when its task faulted or was orphaned."""

    type: ClassVar[str] = "tool_execution_end"
    call_id: str
    tool: str
    entry: EntryRecord | None = None


@dataclass(frozen=True, slots=True)
class InboxUpdate:
    """What waits now."""

    type: ClassVar[str] = "inbox_update"
    items: tuple[InboxItem, ...]


@dataclass(frozen=True, slots=True)
class SubmissionChanged:
    """A submission was admitted, placed or settled (S2)."""

    type: ClassVar[str] = "submission"
    record: SubmissionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRetryStart:
    """The attempt failed and waits, until a time in milliseconds since 1970, to be made again (G2)."""

    type: ClassVar[str] = "auto_retry_start"
    attempt: int
    at_ms: float
    error: str


@dataclass(frozen=True, slots=True)
class AutoRetryEnd:
    """The wait behind this attempt is over: it is made again, or given up."""

    type: ClassVar[str] = "auto_retry_end"
    attempt: int


@dataclass(frozen=True, slots=True)
class DeferredPoll:
    """The provider answers later: it is asked again at this time, milliseconds since 1970."""

    type: ClassVar[str] = "deferred_poll"
    poll_at_ms: float


@dataclass(frozen=True, slots=True)
class AgentChanged:
    """The conversation's agent settings are now these."""

    type: ClassVar[str] = "agent_changed"
    agent: JsonObject


@dataclass(frozen=True, slots=True)
class UsageChanged:
    """The conversation has spent this."""

    type: ClassVar[str] = "usage_changed"
    usage: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """A task of the conversation faulted or was orphaned (T11, O4)."""

    type: ClassVar[str] = "task_failed"
    task: TaskId
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStart:
    """A compaction is under way; a `blocking` one holds the run."""

    type: ClassVar[str] = "compaction_start"
    task: TaskId
    reason: str
    blocking: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionEnd:
    """A compaction is over. Whether it made a summary is its task's outcome; the entry has events of its own."""

    type: ClassVar[str] = "compaction_end"
    task: TaskId
    reason: str


AgentEvent: TypeAlias = (
    Snapshot
    | RunStart
    | RunEnd
    | TurnStart
    | TurnEnd
    | MessageStart
    | MessageUpdate
    | MessageEnd
    | EntryAppended
    | ToolExecutionStart
    | ToolExecutionUpdate
    | ToolExecutionEnd
    | InboxUpdate
    | SubmissionChanged
    | AutoRetryStart
    | AutoRetryEnd
    | DeferredPoll
    | AgentChanged
    | UsageChanged
    | TaskFailure
    | CompactionStart
    | CompactionEnd
)
