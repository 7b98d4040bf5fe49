"""Owns typed reads of documents outside a block. Never writes."""

from __future__ import annotations

from typing import TypeVar

from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import ConversationId, EntryId, TaskId
from pidurable_nb.records.document import Address, ConversationScope, Scope, SessionScope, TaskScope
from pidurable_nb.session.documents import Document, decoded, definition_of
from pidurable_nb.session.session import Session

D = TypeVar("D", bound=Document)


def address_of(
    doc: type[Document], *, conversation: ConversationId | None, task: TaskId | None, key: str | None
) -> Address:
    """Where a document of this class lives, seen from a conversation or a task."""
    definition = definition_of(doc)
    scope: Scope
    match definition.scope:
        case "session":
            scope = SessionScope()
        case "task":
            if task is None:
                raise StorageRequestError(f"{definition.kind} belongs to a task; read it from that task's code")
            scope = TaskScope(task)
        case "conversation":
            if conversation is None:
                raise StorageRequestError(f"{definition.kind} belongs to a conversation; name one: of=…")
            scope = ConversationScope(conversation)
    return Address(definition.kind, scope, key)


async def read_document(
    session: Session,
    doc: type[D],
    *,
    conversation: ConversationId | None,
    task: TaskId | None,
    key: str | None,
    at: EntryId | None,
) -> D:
    """The stored value, today or as it was at the end of the commit of an entry (V3); the defaults where none was.

    Raises StorageRequestError where the history is not kept or the entry is not visible.
    """
    definition, address = definition_of(doc), address_of(doc, conversation=conversation, task=task, key=key)
    if at is None:
        value = await session.snapshot(definition, address)
    else:
        value = await session.snapshot_as_of(definition, address, at)
    return decoded(doc, value) if value is not None else doc()
