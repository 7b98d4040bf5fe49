"""What the tests of the session room share: storages that can be held and made to fail, recorders, small records.

The storages are real ones; what is put over them only delays, counts and breaks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from pidurable_nb.clock import SystemClock
from pidurable_nb.errors import SessionFailed, StorageError
from pidurable_nb.ids import ROOT, ConversationId, Json, JsonObject, Seq, TaskId
from pidurable_nb.probe import Mark, Probe, SessionSubject
from pidurable_nb.records.document import Address, ConversationScope, DocumentRecord, Scope, SessionScope
from pidurable_nb.records.task import Pending, TaskRecord
from pidurable_nb.records.transcript import ConversationRecord
from pidurable_nb.session.changes import Changes
from pidurable_nb.session.definition import Definition
from pidurable_nb.session.session import Session
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import CURRENT, At, Commit, Page

T = TypeVar("T")
V = TypeVar("V")


class Crash(BaseException):
    """A simulated crash."""


@dataclass
class Control:
    """What is done to a storage on the way."""

    gate: asyncio.Event | None = None
    """Groups wait here before the storage sees them."""
    fail_commit: int | None = None
    """The group that holds the n-th commit fails, from 1."""
    fail_read: bool = False
    stored: bool = False
    """A failing group is stored all the same, as after an error of the fsync."""
    error: Callable[[], BaseException] = lambda: StorageError("the disk is gone", stored="unknown")
    groups: list[int] = field(default_factory=list)
    """The sizes of the groups that were stored."""
    seen: int = 0
    commits: list[Commit] = field(default_factory=list)
    reads: int = 0
    minted: int = 0
    slow_read: asyncio.Event | None = None
    scans: int = 0

    async def commit(
        self, group: Sequence[Commit], store: Callable[[Sequence[Commit]], Awaitable[tuple[Seq, ...]]]
    ) -> tuple[Seq, ...]:
        if self.gate is not None:
            await self.gate.wait()
        before = self.seen
        self.seen += len(group)
        if self.fail_commit is not None and before < self.fail_commit <= self.seen:
            if self.stored:
                await store(group)
            raise self.error()
        seqs = await store(group)
        self.groups.append(len(group))
        self.commits.extend(group)
        return seqs

    async def read(self, read: Callable[[], Awaitable[T]]) -> T:
        self.reads += 1
        if self.slow_read is not None:
            await self.slow_read.wait()
        found = await read()
        if self.fail_read:
            raise self.error()
        return found


class FaultyMemory(MemoryStorage):
    """A storage in memory under control."""

    def __init__(self) -> None:
        super().__init__()
        self.control = Control()

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        return await self.control.commit(group, super().commit)

    async def task(self, id: TaskId) -> TaskRecord | None:
        return await self.control.read(partial(super().task, id))

    async def find_document(self, address: Address, at: At = CURRENT) -> DocumentRecord | None:
        return await self.control.read(partial(super().find_document, address, at))

    async def scan_documents(
        self, scope: Scope, *, limit: int, kind: str | None = None, at: At = CURRENT, after: int | None = None
    ) -> Page[DocumentRecord]:
        self.control.scans += 1
        return await super().scan_documents(scope, limit=limit, kind=kind, at=at, after=after)


class FaultySqlite(SqliteStorage):
    """A SQLite file under control."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.control = Control()

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        return await self.control.commit(group, super().commit)

    async def task(self, id: TaskId) -> TaskRecord | None:
        return await self.control.read(partial(super().task, id))

    async def find_document(self, address: Address, at: At = CURRENT) -> DocumentRecord | None:
        return await self.control.read(partial(super().find_document, address, at))

    async def scan_documents(
        self, scope: Scope, *, limit: int, kind: str | None = None, at: At = CURRENT, after: int | None = None
    ) -> Page[DocumentRecord]:
        self.control.scans += 1
        return await super().scan_documents(scope, limit=limit, kind=kind, at=at, after=after)


Faulty = FaultyMemory | FaultySqlite


class Recorder:
    """A probe that keeps every mark, and crashes at the n-th that fits."""

    def __init__(self, *, one_by_one: bool = False, crash: Callable[[Mark], bool] | None = None) -> None:
        self._one_by_one = one_by_one
        self.crash = crash
        self.marks: list[Mark] = []

    @property
    def one_by_one(self) -> bool:
        return self._one_by_one

    async def reach(self, mark: Mark) -> None:
        self.note(mark)

    def note(self, mark: Mark) -> None:
        self.marks.append(mark)
        if self.crash is not None and self.crash(mark):
            raise Crash

    async def perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        made = do()
        if inspect.isawaitable(made):
            return await made
        return made


class Follower:
    """An attendant that writes down what it hears, and may add to commits."""

    def __init__(self) -> None:
        self.staged_changes: list[Changes] = []
        self.stored_changes: list[Changes] = []
        self.failures: list[SessionFailed] = []
        self.add: Callable[[Transaction], Awaitable[None] | None] = lambda tx: None
        self.on_stored: Callable[[Changes], None] = self.stored_changes.append

    def candidate(self, tx: Transaction) -> Awaitable[None] | None:
        return self.add(tx)

    def staged(self, changes: Changes) -> None:
        self.staged_changes.append(changes)

    def stored(self, changes: Changes) -> None:
        self.on_stored(changes)

    def failed(self, error: SessionFailed) -> None:
        self.failures.append(error)


NOTES = Definition(kind="app.notes", scope="session")
PLAN = Definition(kind="app.plan", scope="conversation", history="rewindable", fork="as_of")
MOOD = Definition(kind="app.mood", scope="conversation", fork="current")
SCRATCH = Definition(kind="app.scratch", scope="conversation", history="rewindable", fork="initial")
CALL = Definition(kind="app.call", scope="task", family=True)


class Kit:
    """What a test needs, by attribute, since test modules cannot import each other."""

    Crash = Crash
    Recorder = Recorder
    Follower = Follower
    subject = SessionSubject()
    notes, plan, mood, scratch, call = NOTES, PLAN, MOOD, SCRATCH, CALL
    notes_at = NOTES.at(SessionScope())

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.reports: list[BaseException] = []

    def storage(self) -> Faulty:
        """A new storage, or a new object for the same file."""
        return FaultyMemory() if self._file is None else FaultySqlite(self._file)

    def again(self, storage: Faulty) -> Faulty:
        """The storage of the same data, for another opening: a file gets a new object."""
        return storage if isinstance(storage, FaultyMemory) else self.storage()

    async def open(self, storage: Faulty | None = None, probe: Probe | None = None) -> Session:
        session = await Session.open(
            storage if storage is not None else self.storage(),
            clock=SystemClock(),
            probe=probe,
            report=self.reports.append,
        )
        return session

    async def root(self, session: Session) -> None:
        """Make the root conversation."""
        async with session.block(self.subject) as tx:
            tx.put_conversation(ConversationRecord(id=ROOT))

    def task(self, id: int, *, note: Json = None, kind: str = "app.task", conversation: int = 1) -> TaskRecord:
        return TaskRecord(
            id=TaskId(id),
            conversation=ConversationId(conversation),
            kind=kind,
            version=1,
            input={},
            state=Pending(checkpoint={"phase": "p", "note": note}),
        )

    @staticmethod
    def note_of(record: TaskRecord | None) -> Json:
        """What `task` was made with."""
        assert record is not None
        assert record.checkpoint is not None
        return record.checkpoint["note"]

    async def write_notes(self, session: Session, **values: Json) -> None:
        """One commit that changes the session's notes."""
        async with session.block(self.subject) as tx:
            draft = await tx.edit(NOTES, NOTES.at(SessionScope()))
            draft.update(values)

    @staticmethod
    def in_conversation(definition: Definition, conversation: int = 1) -> Address:
        return definition.at(ConversationScope(ConversationId(conversation)))

    @staticmethod
    async def turns(n: int = 5) -> None:
        """Let everybody who can go on do so."""
        for _ in range(n):
            await asyncio.sleep(0)

    @staticmethod
    def plain(value: JsonObject | None) -> dict[str, Json] | None:
        return None if value is None else dict(value)


@pytest.fixture(params=["memory", "sqlite"])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Kit:
    """The kit over each kind of storage."""
    return Kit(None if request.param == "memory" else tmp_path / "session.sqlite")


@pytest.fixture
def memory_kit() -> Kit:
    """The kit over memory only, for sweeps that open hundreds of sessions."""
    return Kit(None)
