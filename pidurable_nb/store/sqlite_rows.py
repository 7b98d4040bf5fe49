"""Owns how the writes of a group become statements of the format. Never runs one, never waits.

Everything is encoded here, on the caller's side of the hop and before the storage is asked, so that a value with no
place in the format fails before anything happened (C7). What is left to the worker is a flat list of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeAlias, assert_never

from pidurable_nb.errors import NotJson
from pidurable_nb.ids import MAX_INTEGER, DocumentId, Seq
from pidurable_nb.records.codec import (
    dumps,
    encode_conversation,
    encode_document,
    encode_entry,
    encode_submission,
    encode_task,
    indexed,
)
from pidurable_nb.records.document import ConversationScope, DocumentRecord, Scope, SessionScope, TaskScope
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import SubmissionRecord
from pidurable_nb.store import delta
from pidurable_nb.store.storage import (
    At,
    Base,
    ChangeDocument,
    Commit,
    CopyDocument,
    CreateDocument,
    Delta,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    RetireDocument,
)

Value: TypeAlias = str | int | None
Step: TypeAlias = "tuple[str, tuple[Value, ...], int, str]"
"""A statement, its parameters, how many steps to skip when it touched a row, why it must touch one ("": need not)."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A document whose first base is another one's value before this commit; `at` as in `CopyDocument`."""

    id: DocumentId
    seq: Seq
    source: DocumentId
    at: At


@dataclass(slots=True)
class Part:
    """Copies are read first and written last; the steps run between."""

    copies: list[Copy]
    steps: list[Step]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a group writes. `highest` is its highest id, `bytes` about how much text it holds."""

    parts: tuple[Part, ...]
    highest: int
    bytes: int
    rows: int


# A new id of a type that is written once: taken already is a violation of the primary key.
NEW_ID: Final = "INSERT INTO record_ids (id, record_type) VALUES (?, ?)"
# A new id, or one of the same type; one of another type violates NOT NULL.
SAME_ID: Final = (
    "INSERT INTO record_ids (id, record_type) VALUES (?, ?)"
    " ON CONFLICT (id) DO UPDATE SET record_type = NULL WHERE record_type <> excluded.record_type"
)
NEW_CONVERSATION: Final = (
    "INSERT INTO conversations (id, owner_conversation_id, owner_task_id, record) VALUES (?, ?, ?, ?)"
)
NEW_ENTRY: Final = "INSERT INTO entries (id, conversation_id, head, commit_seq, record) VALUES (?, ?, ?, ?, ?)"

# A statement that names a column rewrites its index even when the value stays. A task changes many times and most of
# its columns never do, so the narrow statements are tried first.
SAME_TASK_ROW: Final = (
    "UPDATE tasks SET record = ?1 WHERE id = ?2 AND status = ?3"
    " AND conversation_id = ?4 AND kind = ?5 AND abort_requested = ?6 AND background = ?7"
)
SAME_TASK_BUT_STATUS: Final = (
    "UPDATE tasks SET record = ?1, status = ?3 WHERE id = ?2"
    " AND conversation_id = ?4 AND kind = ?5 AND abort_requested = ?6 AND background = ?7"
)
ANY_TASK: Final = (
    "INSERT INTO tasks (record, id, status, conversation_id, kind, abort_requested, background)"
    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (id) DO UPDATE SET record = excluded.record,"
    " status = excluded.status, conversation_id = excluded.conversation_id, kind = excluded.kind,"
    " abort_requested = excluded.abort_requested, background = excluded.background"
)
SAME_SUBMISSION_BUT_STATUS: Final = (
    "UPDATE submissions SET record = ?1, status = ?3 WHERE id = ?2 AND conversation_id = ?4 AND request_id IS ?5"
)
ANY_SUBMISSION: Final = (
    "INSERT INTO submissions (record, id, status, conversation_id, request_id) VALUES (?1, ?2, ?3, ?4, ?5)"
    " ON CONFLICT (id) DO UPDATE SET record = excluded.record, status = excluded.status,"
    " conversation_id = excluded.conversation_id, request_id = excluded.request_id"
)

NEW_DOCUMENT: Final = (
    "INSERT INTO documents (id, kind, family, key_value, scope_kind, owner_id, created_at, retired_at, record)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, NULL, ?)"
)
NEW_REVISION: Final = (
    "INSERT INTO document_revisions (document_id, seq, kind, version, content)"
    " SELECT id, ?2, ?3, ?4, ?5 FROM documents WHERE id = ?1 AND retired_at IS NULL"
)
NEXT_DELTA: Final = (
    f"{NEW_REVISION} AND ?4 = (SELECT version FROM document_revisions WHERE document_id = ?1 ORDER BY seq DESC LIMIT 1)"
)
# A document without history keeps one base and what follows it.
FORGET_REVISIONS: Final = (
    "DELETE FROM document_revisions WHERE document_id = ?1 AND seq < ?2 AND NOT EXISTS"
    " (SELECT 1 FROM documents WHERE id = ?1 AND json_extract(record, '$.history') = 'rewindable')"
)
RETIRE: Final = (
    "UPDATE documents SET retired_at = ?2, record = json_set(record, '$.retiredAt', ?2)"
    " WHERE id = ?1 AND retired_at IS NULL"
)


def plan(group: Sequence[Commit], *, first_seq: Seq, fresh_from: int) -> Plan:
    """The statements of a group whose first commit is number `first_seq`.

    No id from `fresh_from` on is stored yet. Raises: NotJson for a value with no place in the format.
    """
    making = _Making(fresh_from)
    for offset, commit in enumerate(group):
        making.commit(commit, Seq(first_seq + offset))
    return Plan(tuple(making.parts), making.highest, making.bytes, making.rows)


class _Making:
    """A plan in the making."""

    def __init__(self, fresh_from: int) -> None:
        self.parts: list[Part] = [Part([], [])]
        self.highest = 0
        self.bytes = 0
        self.rows = 0
        self._fresh_from = fresh_from
        self._seen: set[int] = set()

    def commit(self, commit: Commit, seq: Seq) -> None:
        """Add one commit."""
        copies = [
            Copy(write.record.id, seq, write.source, write.at)
            for write in commit.writes
            if isinstance(write, CopyDocument)
        ]
        if copies:
            self.parts.append(Part(copies, []))
        steps = self.parts[-1].steps
        before = len(steps)
        for write in commit.writes:
            match write:
                case PutTask(record):
                    self._task(steps, record)
                case PutEntry(record):
                    steps.append((NEW_ID, (self._id(record.id), "entry"), 0, ""))
                    text = self._text(encode_entry(record))
                    steps.append((NEW_ENTRY, (record.id, record.conversation, record.head, seq, text), 0, ""))
                case ChangeDocument(id, content):
                    self._revision(steps, id, seq, content)
                case PutSubmission(record):
                    self._submission(steps, record)
                case CreateDocument(record, base):
                    self._document(steps, record, seq)
                    self._revision(steps, record.id, seq, base, first=True)
                case CopyDocument(record):
                    self._document(steps, record, seq)
                case RetireDocument(id):
                    steps.append((RETIRE, (id, seq), 0, f"document {id}, which is to be retired, is not alive"))
                    steps.append((FORGET_REVISIONS, (id, seq + 1), 0, ""))
                case PutConversation(record):
                    steps.append((NEW_ID, (self._id(record.id), "conversation"), 0, ""))
                    owner = (None, None) if record.owner is None else (record.owner.conversation, record.owner.task)
                    steps.append(
                        (NEW_CONVERSATION, (record.id, *owner, self._text(encode_conversation(record))), 0, "")
                    )
                case _:
                    assert_never(write)
        self.rows += len(steps) - before
        if copies:
            self.parts.append(Part([], []))  # later commits of the group see the copies

    def _id(self, id: int) -> int:
        if not 1 <= id <= MAX_INTEGER:
            raise NotJson(f"{id} is no id: ids are from 1 to 2^53-1", at="$.id")
        if id > self.highest:
            self.highest = id
        return id

    def _text(self, text: str) -> str:
        self.bytes += len(text)
        return text

    def _is_new(self, id: int) -> bool:
        """True where no row can be there, so that the narrow statements need not be tried."""
        new = id >= self._fresh_from and id not in self._seen
        if new:
            self._seen.add(id)
        return new

    def _task(self, steps: list[Step], record: TaskRecord) -> None:
        row = (
            self._text(encode_task(record)),
            self._id(record.id),
            record.status,
            record.conversation,
            _word(record.kind),
            int(record.abort_requested),
            int(record.background),
        )
        if not self._is_new(record.id):
            steps.append((SAME_TASK_ROW, row, 3, ""))
            steps.append((SAME_TASK_BUT_STATUS, row, 2, ""))
        steps.append((SAME_ID, (record.id, "task"), 0, ""))
        steps.append((ANY_TASK, row, 0, ""))

    def _submission(self, steps: list[Step], record: SubmissionRecord) -> None:
        row = (
            self._text(encode_submission(record)),
            self._id(record.id),
            record.status,
            record.conversation,
            None if record.request_id is None else indexed(record.request_id),
        )
        if not self._is_new(record.id):
            steps.append((SAME_SUBMISSION_BUT_STATUS, row, 2, ""))
        steps.append((SAME_ID, (record.id, "submission"), 0, ""))
        steps.append((ANY_SUBMISSION, row, 0, ""))

    def _document(self, steps: list[Step], record: DocumentRecord, seq: Seq) -> None:
        steps.append((NEW_ID, (self._id(record.id), "document"), 0, ""))
        scope, owner = scope_columns(record.scope)
        row = (
            record.id,
            _word(record.kind),
            int(record.key is not None),
            indexed(record.key or ""),
            scope,
            owner,
            seq,
            self._text(encode_document(replace(record, created_at=seq, retired_at=None))),
        )
        steps.append((NEW_DOCUMENT, row, 0, ""))

    def _revision(
        self, steps: list[Step], id: DocumentId, seq: Seq, content: Base | Delta, *, first: bool = False
    ) -> None:
        if isinstance(content, Base):
            text = self._text(dumps(content.value))
            if not first:
                steps.append((FORGET_REVISIONS, (id, seq), 0, ""))
            steps.append((NEW_REVISION, (id, seq, "base", content.version, text), 0, f"document {id} is not alive"))
        else:
            text = self._text(dumps(delta.encode(content.ops)))
            needed = f"document {id} is not alive, or its value is not of version {content.version}"
            steps.append((NEXT_DELTA, (id, seq, "delta", content.version, text), 0, needed))


def scope_columns(scope: Scope) -> tuple[str, int]:
    """`scope_kind` and `owner_id`."""
    match scope:
        case SessionScope():
            return "session", 0
        case ConversationScope(conversation):
            return "conversation", conversation
        case TaskScope(task):
            return "task", task
        case _:
            assert_never(scope)


@lru_cache(maxsize=512)
def _word(kind: str) -> str:
    return indexed(kind)
