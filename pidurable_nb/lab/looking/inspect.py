"""Owns what is in a store, counted and listed. Never says what will happen to it (that is `why`), never changes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pidurable_nb.ids import ConversationId, Json, JsonObject, Seq
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import DocumentRecord
from pidurable_nb.records.task import Outcome, TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, SubmissionRecord, Unanswered
from pidurable_nb.store.confined import DEFAULT_LIMITS, Limits
from pidurable_nb.store.stranger import Counts, StoreFile

OUTCOME_WORDS: Mapping[type[Outcome], str] = {
    stored.Completed: "completed",
    stored.Failed: "failed",
    stored.Aborted: "aborted",
    stored.Orphaned: "orphaned",
    stored.Faulted: "faulted",
}
"""The stored word of each outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation: its own entries as `id:kind`, oldest first, and how many it sees through its forks."""

    record: ConversationRecord
    transcript: tuple[str, ...]
    visible: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A document: version and value of its newest revision, None where the format reclaimed them."""

    record: DocumentRecord
    version: int | None
    value: JsonObject | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Everything that is in a store, as facts. `entries_by_kind` counts what `counts.entries` counts."""

    source: Path
    format: int
    integrity: str
    next_id: int
    next_seq: Seq
    counts: Counts
    entries_by_kind: Mapping[str, int]
    talks: tuple[Talk, ...]
    tasks: tuple[TaskRecord, ...]
    submissions: tuple[SubmissionRecord, ...]
    documents: tuple[Held, ...]

    def json(self) -> JsonObject:
        """The object that `pidurable-nb inspect --json` prints."""
        return {
            "format": self.format,
            "integrity": self.integrity,
            "next_id": self.next_id,
            "next_seq": self.next_seq,
            "counts": {
                "conversations": self.counts.conversations,
                "entries": self.counts.entries,
                "tasks": self.counts.tasks,
                "submissions": self.counts.submissions,
                "documents": self.counts.documents,
                "document_revisions": self.counts.document_revisions,
            },
            "entries_by_kind": dict(self.entries_by_kind),
            "tasks_by_status": _tally(task.status for task in self.tasks),
            "tasks_by_kind": _tally(task.kind for task in self.tasks),
            "task_outcomes": _tally(word for task in self.tasks if (word := outcome_word(task)) is not None),
            "submissions_by_status": _tally(submission.status for submission in self.submissions),
            "conversations": [_conversation(talk) for talk in self.talks],
            "tasks": [task_facts(task) for task in self.tasks],
            "submissions": [_submission(submission) for submission in self.submissions],
            "documents": [_document(held) for held in self.documents],
        }


def inspect_store(path: Path, *, limits: Limits = DEFAULT_LIMITS) -> JsonObject:
    """What is in the store at `path`, as the command line prints it. Not a byte of it or beside it changes.

    Raises: StoreRefused and its kinds.
    """
    with StoreFile.open(path, limits=limits) as store:
        return inspect_open(store).json()


def inspect_open(store: StoreFile) -> Inspection:
    """What is in a store that is open already."""
    kinds: Counter[str] = Counter()
    transcripts: dict[ConversationId, list[str]] = {}
    for entry in store.entries():
        kinds[entry.kind] += 1
        transcripts.setdefault(entry.conversation, []).append(f"{entry.id}:{entry.kind}")
    return Inspection(
        source=store.source,
        format=store.format,
        integrity=store.integrity,
        next_id=store.next_id,
        next_seq=store.next_seq,
        counts=store.counts,
        entries_by_kind=kinds,
        talks=tuple(
            Talk(
                record=record, transcript=tuple(transcripts.get(record.id, ())), visible=store.visible_count(record.id)
            )
            for record in store.conversations()
        ),
        tasks=tuple(store.tasks()),
        submissions=tuple(store.submissions()),
        documents=tuple(_held(store, record) for record in store.documents()),
    )


def outcome_word(task: TaskRecord) -> str | None:
    """How a task ended, or is held to end, in the stored word."""
    return None if task.outcome is None else OUTCOME_WORDS[type(task.outcome)]


def _held(store: StoreFile, record: DocumentRecord) -> Held:
    found = store.document_value(record.id)
    return Held(record=record, version=found[0] if found else None, value=found[1] if found else None)


def _tally(words: Iterable[str]) -> dict[str, Json]:
    return dict(Counter(words))


def _conversation(talk: Talk) -> JsonObject:
    parent, owner = talk.record.parent, talk.record.owner
    return {
        "id": talk.record.id,
        "parent": None if parent is None else {"conversation": parent.conversation, "at": parent.at},
        "owner_task": None if owner is None else owner.task,
        "transcript": list(talk.transcript),
        "visible": talk.visible,
    }


def task_facts(task: TaskRecord) -> JsonObject:
    """A task in the words of `inspect`."""
    state = task.state
    return {
        "id": task.id,
        "conversation": task.conversation,
        "kind": task.kind,
        "version": task.version,
        "owner": task.owner,
        "status": task.status,
        "phase": task.phase,
        "on": list(state.on) if isinstance(state, stored.Waiting) else None,
        "until_ms": state.until_ms if isinstance(state, stored.Sleeping) else None,
        "outcome": outcome_word(task),
        "memos": list(task.memos),
        "restarts": task.restarts,
        "abort_requested": task.abort_requested,
        "background": task.background,
    }


def _submission(submission: SubmissionRecord) -> JsonObject:
    state = submission.state
    return {
        "id": submission.id,
        "conversation": submission.conversation,
        "type": submission.type,
        "status": submission.status,
        "request_id": submission.request_id,
        "reason": state.reason if isinstance(state, Unanswered) else None,
    }


def _document(held: Held) -> JsonObject:
    record = held.record
    return {
        "id": record.id,
        "kind": record.kind,
        "scope": str(record.scope),
        "key": record.key,
        "version": held.version,
        "alive": record.retired_at is None,
        "value": held.value,
    }
