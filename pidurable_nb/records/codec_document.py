"""Owns the stored names of document records; their values are plain JSON. Never does I/O.

Import it through `records.codec`.
"""

from __future__ import annotations

from typing import assert_never

from pidurable_nb.ids import ConversationId, DocumentId, Json, JsonObject, Seq, TaskId
from pidurable_nb.records import reading as r
from pidurable_nb.records.document import (
    ConversationScope,
    DocumentRecord,
    ForkPolicy,
    History,
    Scope,
    SessionScope,
    TaskScope,
)
from pidurable_nb.records.jsontext import dumps, loads
from pidurable_nb.records.reading import Object

_KNOWN = frozenset(("id", "kind", "scope", "key", "createdAt", "retiredAt"))
_KNOWN_IN_CONVERSATION = _KNOWN | {"history", "fork"}
_SCOPES = {
    "session": frozenset(("kind",)),
    "conversation": frozenset(("kind", "conversationId")),
    "task": frozenset(("kind", "taskId")),
}
_HISTORIES: dict[str, History] = {"latest": "latest", "rewindable": "rewindable"}
_FORKS: dict[str, ForkPolicy] = {"asOf": "as_of", "current": "current", "initial": "initial"}
_FORK_NAMES: dict[ForkPolicy, str] = {policy: name for name, policy in _FORKS.items()}


def encode_document(record: DocumentRecord) -> str:
    """The stored text of a document's record."""
    return dumps(document_json(record))


def document_json(record: DocumentRecord) -> JsonObject:
    """The stored form of a document's record as an object."""
    out: Object = {"id": record.id, "kind": record.kind, "scope": scope_json(record.scope)}
    if record.key is not None:
        out["key"] = record.key
    if record.history is not None:
        out["history"] = record.history
    if record.fork is not None:
        out["fork"] = _FORK_NAMES[record.fork]
    out["createdAt"] = record.created_at
    if record.retired_at is not None:
        out["retiredAt"] = record.retired_at
    return r.merged(out, record.extra)


def scope_json(scope: Scope) -> JsonObject:
    """The stored form of a scope."""
    match scope:
        case SessionScope():
            return {"kind": "session"}
        case ConversationScope(conversation):
            return {"kind": "conversation", "conversationId": conversation}
        case TaskScope(task):
            return {"kind": "task", "taskId": task}
        case _:
            assert_never(scope)


def decode_document(text: str) -> DocumentRecord:
    """The document record that stored text holds. Raises: BadRecord."""
    return document_of(loads(text, "document"))


def document_of(value: Json) -> DocumentRecord:
    """The document record that its stored form holds. Raises: BadRecord."""
    return r.whole("document", value, _document)


def _document(obj: Object) -> DocumentRecord:
    scope = _scope(r.an_object(obj, "scope"))
    in_conversation = isinstance(scope, ConversationScope)
    retired_at = r.optional_integer(obj, "retiredAt")
    return DocumentRecord(
        id=DocumentId(r.integer(obj, "id")),
        kind=r.name(obj, "kind"),
        scope=scope,
        created_at=Seq(r.integer(obj, "createdAt")),
        key=r.optional_text(obj, "key"),
        history=_HISTORIES[r.word(obj, "history", _HISTORIES)] if in_conversation else None,
        fork=_FORKS[r.word(obj, "fork", _FORKS)] if in_conversation else None,
        retired_at=None if retired_at is None else Seq(retired_at),
        extra=r.rest(obj, _KNOWN_IN_CONVERSATION if in_conversation else _KNOWN),
    )


def _scope(obj: Object) -> Scope:
    at = "scope."
    kind = r.word(obj, "kind", _SCOPES, at)
    if obj.keys() != _SCOPES[kind]:
        # A scope is an address: a member that we do not know may mean another one.
        unknown = sorted(obj.keys() - _SCOPES[kind])
        if unknown:
            raise r.Unfit(at + unknown[0][:60], f"no member of a {kind} scope")
    if kind == "conversation":
        return ConversationScope(ConversationId(r.integer(obj, "conversationId", at)))
    if kind == "task":
        return TaskScope(TaskId(r.integer(obj, "taskId", at)))
    return SessionScope()
