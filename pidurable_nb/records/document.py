"""Owns document records and their addresses. Never knows what a document means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pidurable_nb.ids import ConversationId, DocumentId, JsonObject, Seq, TaskId
from pidurable_nb.records.task import NOTHING

History = Literal["latest", "rewindable"]
ForkPolicy = Literal["as_of", "current", "initial"]


@dataclass(frozen=True, slots=True)
class SessionScope:
    """The document belongs to the store."""

    def __str__(self) -> str:
        return "session"


@dataclass(frozen=True, slots=True)
class ConversationScope:
    """The document belongs to a conversation."""

    conversation: ConversationId

    def __str__(self) -> str:
        return f"conversation:{self.conversation}"


@dataclass(frozen=True, slots=True)
class TaskScope:
    """The document belongs to a task and is retired with it."""

    task: TaskId

    def __str__(self) -> str:
        return f"task:{self.task}"


Scope: TypeAlias = SessionScope | ConversationScope | TaskScope


@dataclass(frozen=True, slots=True)
class Address:
    """The logical name of a document. `key` None is a singleton; the empty key is a family member."""

    kind: str
    scope: Scope
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRecord:
    """One incarnation of a document. `history` and `fork` are set for conversation scope only.

    Alive at s: created_at <= s < retired_at.
    """

    id: DocumentId
    kind: str
    scope: Scope
    created_at: Seq
    key: str | None = None
    history: History | None = None
    fork: ForkPolicy | None = None
    retired_at: Seq | None = None
    extra: JsonObject = field(default_factory=lambda: NOTHING)

    @property
    def address(self) -> Address:
        """The logical name that this incarnation answers to."""
        return Address(self.kind, self.scope, self.key)

    @property
    def rewindable(self) -> bool:
        """True when every revision is kept."""
        return self.history == "rewindable"

    def alive_at(self, seq: Seq) -> bool:
        """Half-open: a document retired in the commit that made it was never alive."""
        return self.created_at <= seq and (self.retired_at is None or seq < self.retired_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDocument:
    """A document's value as materialised by the storage, before any migration."""

    record: DocumentRecord
    version: int
    value: JsonObject
    deltas_since_base: int
