"""Owns naming rows of a store as `tasks/12` and reading them as text. Never writes one."""

from __future__ import annotations

from pidurable_nb.ids import ConversationId, DocumentId, EntryId, Json, SubmissionId, TaskId
from pidurable_nb.records.codec import (
    BadRecord,
    dumps,
    encode_conversation,
    encode_entry,
    encode_submission,
    encode_task,
    loads,
)
from pidurable_nb.store.storage import Storage
from pidurable_nb.store.stranger import StoreFile


async def row_of_storage(storage: Storage, row: str) -> str | None:
    """A row as text; a document's is its value. None when there is no such row."""
    table, _, number = row.partition("/")
    id = int(number)
    match table:
        case "conversations":
            conversation = await storage.conversation(ConversationId(id))
            return encode_conversation(conversation) if conversation is not None else None
        case "entries":
            entry = await storage.entry(EntryId(id))
            return encode_entry(entry.entry) if entry is not None else None
        case "tasks":
            task = await storage.task(TaskId(id))
            return encode_task(task) if task is not None else None
        case "submissions":
            submission = await storage.submission(SubmissionId(id))
            return encode_submission(submission) if submission is not None else None
        case "documents":
            document = await storage.document(DocumentId(id))
            return dumps(document.value) if document is not None else None
        case _:
            raise ValueError(f"{row!r} names no row; write tasks/12, entries/7, documents/2, submissions/8 or so")


def row_of_file(file: StoreFile, row: str) -> str | None:
    """The same of a file that is only looked at."""
    table, _, number = row.partition("/")
    id = int(number)
    match table:
        case "conversations":
            conversation = file.conversation(ConversationId(id))
            return encode_conversation(conversation) if conversation is not None else None
        case "entries":
            entry = file.entry(EntryId(id))
            return encode_entry(entry.entry) if entry is not None else None
        case "tasks":
            task = file.task(TaskId(id))
            return encode_task(task) if task is not None else None
        case "submissions":
            submission = file.submission(SubmissionId(id))
            return encode_submission(submission) if submission is not None else None
        case "documents":
            value = file.document_value(DocumentId(id))
            return dumps(value[1]) if value is not None else None
        case _:
            raise ValueError(f"{row!r} names no row; write tasks/12, entries/7, documents/2, submissions/8 or so")


def json_of(text: str) -> Json:
    """A row's text as what it says; the text itself where that is no JSON."""
    try:
        return loads(text)
    except BadRecord:
        return text
