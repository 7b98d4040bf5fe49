"""Owns the task record: its six stored states and its five outcomes (T1). Never decides which comes next.

Import it as `from pidurable_nb.records import task as stored`: the states here are rows, those of `engine.phase` are
what a phase returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pidurable_nb.ids import ConversationId, Json, JsonObject, TaskId

NOTHING: JsonObject = {}
"""The empty object, shared: records never change."""

BlockedReason = Literal["missing_task", "task_too_old", "migration_failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskError:
    """Why a task failed or faulted. `detail` None is left out on disk."""

    message: str
    detail: Json = None
    extra: JsonObject = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The task did what it was for."""

    result: Json
    extra: JsonObject = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The task's own code decided that it failed."""

    error: TaskError
    result: Json = None
    extra: JsonObject = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """The task's abort handler ended it."""

    reason: str | None = None
    result: Json = None
    extra: JsonObject = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphaned:
    """The task was aborted and none of its code could run (O4). `reason` is a BlockedReason where we wrote it."""

    reason: str
    extra: JsonObject = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulted:
    """The task's code raised, or ended without progress (T11)."""

    error: TaskError
    extra: JsonObject = field(default_factory=lambda: NOTHING)


Outcome: TypeAlias = Completed | Failed | Aborted | Orphaned | Faulted


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """No code of the task runs; it may start or go on at `checkpoint`."""

    checkpoint: JsonObject
    extra: JsonObject = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Code of the task runs from `checkpoint` on, or ran when its process died."""

    checkpoint: JsonObject
    extra: JsonObject = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """No code runs until every task in `on` is terminal (T4)."""

    checkpoint: JsonObject
    on: tuple[TaskId, ...]
    fail_fast: bool
    extra: JsonObject = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleeping:
    """No code runs until the harness clock shows `until_ms`, milliseconds since 1970 (T12)."""

    checkpoint: JsonObject
    until_ms: float
    extra: JsonObject = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completing:
    """The outcome is final; owned work still lives (T5)."""

    outcome: Outcome
    extra: JsonObject = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """The outcome is a receipt (T6)."""

    outcome: Outcome
    extra: JsonObject = field(default_factory=lambda: NOTHING)


LiveState: TypeAlias = Pending | Running | Waiting | Sleeping | Completing
State: TypeAlias = LiveState | Terminal
Status = Literal["pending", "running", "waiting", "sleeping", "completing", "terminal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task as it is stored; replaced whole on every change (T3).

    `input` is immutable. `owner` is the owning task, None where the conversation owns it (O1). `memos` end with the
    task (M2). Times are milliseconds since 1970. `restarts` counts as T9 says, 0 when left out on disk.
    """

    id: TaskId
    conversation: ConversationId
    kind: str
    version: int
    input: Json
    state: State
    owner: TaskId | None = None
    background: bool = False
    abort_requested: bool = False
    abort_reason: str | None = None
    abandon_on_restart: bool = False
    memos: Mapping[str, Json] = field(default_factory=lambda: NOTHING)
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    restarts: int = 0
    extra: JsonObject = field(default_factory=lambda: NOTHING)

    def with_state(self, state: State) -> TaskRecord:
        """The same task in another state. On the path of every commit, where `dataclasses.replace` is too dear."""
        new = object.__new__(TaskRecord)
        for name in TaskRecord.__slots__:
            object.__setattr__(new, name, getattr(self, name))
        object.__setattr__(new, "state", state)
        return new

    @property
    def status(self) -> Status:
        """The stored word for `state`."""
        match self.state:
            case Pending():
                return "pending"
            case Running():
                return "running"
            case Waiting():
                return "waiting"
            case Sleeping():
                return "sleeping"
            case Completing():
                return "completing"
            case Terminal():
                return "terminal"

    @property
    def live(self) -> bool:
        """True until the task is terminal."""
        return not isinstance(self.state, Terminal)

    @property
    def checkpoint(self) -> JsonObject | None:
        """What the next code of the task starts from; None once the outcome is decided."""
        match self.state:
            case Completing() | Terminal():
                return None
            case Pending() | Running() | Waiting() | Sleeping():
                return self.state.checkpoint

    @property
    def phase(self) -> str | None:
        """The stored name of the phase that the task stands in; None once the outcome is decided."""
        checkpoint = self.checkpoint
        if checkpoint is None:
            return None
        phase = checkpoint.get("phase")
        return phase if isinstance(phase, str) else None

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, or will end once its owned work has; None before."""
        match self.state:
            case Completing() | Terminal():
                return self.state.outcome
            case Pending() | Running() | Waiting() | Sleeping():
                return None
