"""Owns what a durable state is: a store in memory, its ledger and its time, and when two of them are the same.

Two states are the same when their rows, the next id and what the ledger counts are. Left out is what no code may
depend on: sequence numbers, times that have passed and how long tools took, how often an opening found a task (T9),
random identities, the order of effects, and whether one was asked twice or more often. Ids are compared as they are:
two orders of creation make two states, which is more than there have to be and never too few. Never runs a life.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

from pidurable_nb.engine.transition import FAULT_MEMO
from pidurable_nb.ids import DocumentId, Json, Seq
from pidurable_nb.lab.dying.run import EPOCH_MS
from pidurable_nb.lab.outside.world import read_ledger
from pidurable_nb.records.codec import (
    dumps,
    encode_conversation,
    encode_document,
    encode_entry,
    encode_submission,
    encode_task,
)
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import EntryRecord, SubmissionRecord
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.memory_documents import Documents
from pidurable_nb.store.memory_tables import Table
from pidurable_nb.store.storage import (
    ChangeDocument,
    Commit,
    CopyDocument,
    CreateDocument,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    RetireDocument,
    Write,
    finished,
)

__all__ = [
    "CRASH",
    "Books",
    "Choice",
    "Choices",
    "ExploredStorage",
    "State",
    "comparable",
    "key_of",
    "task_text",
    "timeless",
]

R = TypeVar("R")

CRASH: Final[Literal["crash"]] = "crash"
Choice: TypeAlias = int | Literal["crash"]
"""One step of a story: which of those that wait goes on, from 0; or that the life ends here and another begins."""
Choices: TypeAlias = tuple[Choice, ...]

_MOST: Final = 2
"""An effect that was asked more often counts as asked so often: once and more than once are what promises are about."""
_TIME: Final = re.compile(r"1(?<![\w.]1)(?:7[5-9]|8[0-4])\d{10}(?:\.\d+)?(?!\w)")
_IDENTITY: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TOOK: Final = re.compile(r"(\"durationMs\":|'durationMs': |duration_ms=|'began': )[\d.]+")
"""How long a call of a tool took, in its result and in the code that measures it."""
_HYPHENS: Final = re.compile(r"-[0-9a-f]{4}-[0-9a-f]{4}-")
"""In every identity, and quick to look for."""

_AHEAD: Final = "ahead by "


def timeless(text: str, now_ms: int) -> str:
    """The text with times as how far they lie ahead, if they do, and without durations and random identities."""

    def ahead(found: re.Match[str]) -> str:
        at_ms = float(found[0])
        return "past" if at_ms <= now_ms else f"{_AHEAD}{at_ms - now_ms:g} ms"

    plain = _IDENTITY.sub("identity", text) if _HYPHENS.search(text) is not None else text
    return _TIME.sub(ahead, _TOOK.sub(r"\g<1>0", plain))


class ExploredStorage(MemoryStorage):
    """A storage in memory that can be copied, and that keeps the texts of its rows in a form that can be compared.

    `changed` are sentences about final rows that a commit changed.
    """

    def __init__(self) -> None:
        super().__init__(origin="explored")
        self._rows: dict[str, str] = {}
        self._seen: dict[str, str] = {}
        self._unseen: set[str] = set()
        """Rows that were written since they were compared, or that name a time that was ahead then."""
        self.changed: list[str] = []

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        """As any, and then follow what was written."""
        seqs = await super().commit(group)
        for commit in group:
            for write in commit.writes:
                self._follow(write)
        return seqs

    def _follow(self, write: Write) -> None:
        match write:
            case PutConversation(record=conversation):
                self._put(f"conversations/{conversation.id}", encode_conversation(conversation))
            case PutEntry(record=entry):
                self._final(f"entries/{entry.id}", encode_entry(entry), final=True)
            case PutTask(record=task):
                self._final(f"tasks/{task.id}", task_text(task), final=not task.live)
            case PutSubmission(record=submission):
                settled = submission.status in ("done", "unanswered")
                self._final(f"submissions/{submission.id}", encode_submission(submission), final=settled)
            case CreateDocument() | CopyDocument():
                self._document(write.record.id)
            case ChangeDocument() | RetireDocument():
                self._document(write.id)

    def _final(self, row: str, text: str, *, final: bool) -> None:
        """V1, T6, S5: what is final never changes again."""
        before = self._rows.get(row)
        self._put(row, f"final {text}" if final else text)
        if before is not None and before.startswith("final ") and before != self._rows[row]:
            self.changed.append(f"{row} was final, and a later commit changed it (V1, T6, S5)")

    def _document(self, id: DocumentId) -> None:
        record = self._documents.table.facts(id)
        assert record is not None
        text = encode_document(replace(record, created_at=Seq(1), retired_at=None))
        if record.retired_at is not None:
            text += " retired"
        if record.rewindable:  # what it was at some entry can be asked for (V3)
            for revision in self._documents.revisions[id]:
                entries = sum(1 for seq in self._entry_seqs.values() if seq <= revision.seq)
                text += f" {entries}:{revision.kind}:{revision.version}:{revision.text}"
        elif record.retired_at is None:
            found = finished(self.document(id))
            text += dumps(found.value) if found is not None else ""
        self._put(f"documents/{id}", text)

    def _put(self, row: str, text: str) -> None:
        self._rows[row] = text
        self._unseen.add(row)

    # -- what it holds -------------------------------------------------------------------------------------------------

    def seen(self, now_ms: int) -> dict[str, str]:
        """The rows as they are compared."""
        if self._unseen:
            for row in self._unseen:
                self._seen[row] = timeless(self._rows[row], now_ms)
            self._unseen = {row for row in self._unseen if _AHEAD in self._seen[row]}
            self._seen = dict(sorted(self._seen.items()))
        return {**self._seen, "next id": str(self._next_id)}

    def exactly(self) -> str:
        """Every row as it is stored, to the letter."""
        tables = (self._conversations, self._entries, self._tasks, self._submissions, self._documents.table)
        rows = [f"{id} {row.text}" for table in tables for id, row in table.rows.items()]
        rows += [f"{id} {each}" for id, kept in self._documents.revisions.items() for each in kept]
        return "\n".join([f"{self._next_id} {self._next_seq}", *rows])

    def tasks(self) -> tuple[TaskRecord, ...]:
        """All tasks, oldest first."""
        return _all(self._tasks)

    def entries(self) -> tuple[EntryRecord, ...]:
        """All entries, oldest first."""
        return _all(self._entries)

    def submissions(self) -> tuple[SubmissionRecord, ...]:
        """All submissions, oldest first."""
        return _all(self._submissions)

    # -- copies --------------------------------------------------------------------------------------------------------

    def copied(self) -> ExploredStorage:
        """A closed copy, as a crash leaves it. Rows are frozen, so that only what holds them is copied."""
        made = copy.copy(self)
        vars(made).update({name: _copied(value) for name, value in vars(self).items()})
        made._counter = None
        return made

    def forget_restarts(self) -> None:
        """T9: no task was found by an opening before. Without this, crashes alone would park everything."""
        found = [task for task in self.tasks() if task.live and task.restarts]
        if found:
            writes = tuple(PutTask(replace(task, restarts=0)) for task in found)
            finished(self.open())
            finished(self.commit([Commit(writes)]))
            finished(self.close())


def task_text(task: TaskRecord) -> str:
    """The text of a task as it is compared, but for its times."""
    memos: Mapping[str, Json] = task.memos
    fault = memos.get(FAULT_MEMO)
    if isinstance(fault, Mapping):  # T11: by which opening, and how often, does not matter to what comes next
        memos = {**memos, FAULT_MEMO: {**fault, "opening": int(bool(fault.get("opening"))), "count": 1}}
    return encode_task(replace(task, restarts=0, memos=memos))


def _all(table: Table[R]) -> tuple[R, ...]:
    return tuple(record for id in table.ids if (record := table.read(id)) is not None)


def _copied(value: object) -> object:
    """A copy of what changes in place. What it holds is shared, but for further containers."""
    if isinstance(value, dict):
        return {key: _copied(each) if isinstance(each, dict | list) else each for key, each in value.items()}
    if isinstance(value, list):
        return list(value)
    if isinstance(value, set):
        return set(value)
    if isinstance(value, Table | Documents):
        made = copy.copy(value)
        vars(made).update({name: _copied(each) for name, each in vars(value).items()})
        return made
    return value


class Books:
    """What the ledger at `path` counts. It is read again only when it has grown."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = ""
        self._size = 0

    def look(self) -> bool:
        """Read what was added. False when nothing was."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size == self._size:
            return False
        self._size = size
        lines = read_ledger(self.path)
        counts = Counter(f"{each.edge} {each.effect} {each.key} {dumps(each.value)} {each.error}" for each in lines)
        self.text = "\n".join(f"{min(times, _MOST)} {line}" for line, times in sorted(counts.items()))
        return True

    def content(self) -> bytes:
        """The ledger itself."""
        return self.path.read_bytes() if self.path.exists() else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A durable state, as a crash leaves it. `path` leads there from the beginning; `life` counts those on it.

    `rows` is what is compared.
    """

    key: bytes
    storage: ExploredStorage
    ledger: bytes
    now_ms: int
    life: int
    path: Choices
    rows: Mapping[str, str]

    @property
    def onward(self) -> Choices:
        """The path to the beginning of the life behind this state."""
        return (*self.path, CRASH) if self.life else self.path

    @classmethod
    def beginning(cls) -> State:
        """Nothing is stored, nothing happened."""
        return cls(key=b"", storage=ExploredStorage(), ledger=b"", now_ms=EPOCH_MS, life=0, path=(), rows={})

    @classmethod
    def left(cls, key: bytes, storage: ExploredStorage, books: Books, now_ms: int, life: int, path: Choices) -> State:
        """What a life leaves that dies now."""
        kept = storage.copied()
        kept.forget_restarts()
        return cls(
            key=key, storage=kept, ledger=books.content(), now_ms=now_ms, life=life, path=path,
            rows=comparable(storage, books, now_ms),
        )  # fmt: skip


def comparable(storage: ExploredStorage, books: Books, now_ms: int) -> dict[str, str]:
    """Everything that two states are compared by, by name."""
    return storage.seen(now_ms) | {"ledger": timeless(books.text, now_ms)}


def key_of(rows: Mapping[str, str]) -> bytes:
    """A digest of what two states are compared by."""
    return blake2b(
        "\n".join(f"{row} {text}" for row, text in rows.items()).encode("utf-8", "surrogatepass"), digest_size=16
    ).digest()
