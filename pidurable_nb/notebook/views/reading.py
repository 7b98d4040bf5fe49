"""Owns what the views read from a store that nobody opened here. Never writes, never decides, never renders."""

from __future__ import annotations

from collections.abc import Sequence

from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import ConversationId, TaskId
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import EntryRecord
from pidurable_nb.store.stranger import StoreFile


def transcript(file: StoreFile, conversation: ConversationId) -> Sequence[EntryRecord]:
    """What a conversation sees, oldest first: its own entries, and those of its parents up to each fork's (V3).

    Raises: StorageRequestError when there is no such conversation.
    """
    parts: list[list[EntryRecord]] = []
    seen: set[ConversationId] = set()
    here: ConversationId | None = conversation
    until: int | None = None
    while here is not None and here not in seen:
        seen.add(here)
        record = file.conversation(here)
        if record is None:
            raise StorageRequestError(f"conversation {here} does not exist in {file.source.name}")
        parts.append([entry for entry in file.entries(here) if until is None or entry.id <= until])
        if record.parent is None:
            break
        here = record.parent.conversation
        until = record.parent.at if until is None else min(record.parent.at, until)
    return [entry for part in reversed(parts) for entry in part]


def task(file: StoreFile, id: int) -> TaskRecord:
    """The task with that id. Raises StorageRequestError when there is none."""
    found = file.task(TaskId(id))
    if found is None:
        raise StorageRequestError(f"task {id} does not exist in {file.source.name}")
    return found


def family(tasks: Sequence[TaskRecord], id: TaskId) -> Sequence[TaskRecord]:
    """The task, the tasks above it and everything below it, as far as they own each other directly."""
    by_id = {record.id: record for record in tasks}
    kept: set[TaskId] = set()
    here: TaskId | None = id
    while here is not None and here in by_id and here not in kept:
        kept.add(here)
        here = by_id[here].owner
    below: dict[TaskId, list[TaskId]] = {}
    for record in tasks:
        if record.owner is not None:
            below.setdefault(record.owner, []).append(record.id)
    waiting = [id]
    while waiting:
        for child in below.get(waiting.pop(), ()):
            if child not in kept:
                kept.add(child)
                waiting.append(child)
    return [record for record in tasks if record.id in kept]
