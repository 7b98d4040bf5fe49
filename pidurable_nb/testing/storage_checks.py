"""Owns what the checks of a storage are made of: a check, fresh storages, small records. Never checks anything itself.

Import the suite through `testing.storage_conformance`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from pidurable_nb.errors import StorageError, StorageRequestError
from pidurable_nb.ids import (
    ABSENT,
    ROOT,
    Absent,
    ConversationId,
    DocumentId,
    EntryId,
    Json,
    JsonObject,
    Seq,
    SubmissionId,
    TaskId,
)
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import Address, ConversationScope, DocumentRecord, History, Scope, SessionScope
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import (
    ConversationRecord,
    EntryRecord,
    Owner,
    Parent,
    Queued,
    SubmissionRecord,
    SubmissionState,
)
from pidurable_nb.store.delta import Op
from pidurable_nb.store.storage import (
    Base,
    ChangeDocument,
    Commit,
    CreateDocument,
    Delta,
    Opened,
    Page,
    PutConversation,
    PutEntry,
    Storage,
    Write,
)

R = TypeVar("R")

Make: TypeAlias = Callable[[], Awaitable[Storage]]
"""Opens a fresh, empty storage."""

Body: TypeAlias = Callable[[Storage], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise of the `Storage` protocol. `reopens`: it closes the storage and opens the same object again."""

    name: str
    law: str
    run: Callable[[Make], Coroutine[object, object, None]]
    reopens: bool = False

    def __str__(self) -> str:
        return f"{self.law.lower()}_{self.name}" if self.law else self.name


class Promises:
    """Collects the checks of one module: a decorator of functions that get a fresh storage."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def __call__(self, law: str = "", *, reopens: bool = False) -> Callable[[Body], Check]:
        """The decorator; the check is named as the function is."""

        def collect(body: Body) -> Check:
            async def run(make: Make) -> None:
                storage = await make()
                try:
                    await body(storage)
                finally:
                    await storage.close()

            check = Check(name=body.__name__, law=law, run=run, reopens=reopens)
            self.checks.append(check)
            return check

        return collect


def expect(found: object, wanted: object, what: str) -> None:
    """Fail the check, showing both, unless they are equal."""
    if found != wanted:
        raise AssertionError(f"{what}\n  expected: {wanted!r}\n  found:    {found!r}")


def expect_that(holds: bool, what: str) -> None:
    """Fail the check unless it holds."""
    if not holds:
        raise AssertionError(what)


def there(found: R | None, what: str) -> R:
    """What was found; fail the check when it is nothing."""
    if found is None:
        raise AssertionError(f"{what} is not there")
    return found


# --- Acting on a storage ----------------------------------------------------------------------------------------


async def commit(storage: Storage, *writes: Write, barrier: bool = False) -> Seq:
    """One commit in a group of its own; its sequence number."""
    (seq,) = await storage.commit([Commit(writes, barrier)])
    return seq


async def start(storage: Storage) -> Storage:
    """Commit the root conversation."""
    await commit(storage, PutConversation(conversation(ROOT)))
    return storage


async def reopen(storage: Storage) -> Opened:
    """Close and open."""
    await storage.close()
    return await storage.open()


@asynccontextmanager
async def refused(what: str) -> AsyncGenerator[None]:
    """Nothing but a StorageError, stored "no", may come of the block."""
    try:
        yield
    except StorageError as error:
        expect(error.stored, "no", f"{what}: refused before anything is stored")
        return
    raise AssertionError(f"{what}: nothing was raised where a StorageError belongs")


@asynccontextmanager
async def illegal(what: str) -> AsyncGenerator[None]:
    """Nothing but a StorageRequestError may come of the block."""
    try:
        yield
    except StorageRequestError:
        return
    raise AssertionError(f"{what}: nothing was raised where a StorageRequestError belongs")


async def all_pages(scan: Callable[[int | None], Awaitable[Page[R]]], limit: int) -> list[R]:
    """Every record of a scan, page by page. Each page but the last must be full and have a cursor."""
    found: list[R] = []
    cursor: int | None = None
    while True:
        page = await scan(cursor)
        expect_that(len(page.items) <= limit, f"a page of {limit} holds {len(page.items)} records")
        found += page.items
        if page.next is None:
            return found
        expect(len(page.items), limit, "a page with a cursor is full")
        expect_that(page.next != cursor, f"the cursor {cursor} moves")
        cursor = page.next


async def create(storage: Storage, record: DocumentRecord, value: JsonObject, *, version: int = 1) -> Seq:
    """Commit a new document."""
    return await commit(storage, CreateDocument(record, Base(version, value)))


async def change(storage: Storage, id: DocumentId, *ops: Op, version: int = 1) -> Seq:
    """Commit a delta."""
    return await commit(storage, ChangeDocument(id, Delta(version, ops)))


async def rebase(storage: Storage, id: DocumentId, value: JsonObject, *, version: int = 1) -> Seq:
    """Commit a whole value."""
    return await commit(storage, ChangeDocument(id, Base(version, value)))


async def value_of(storage: Storage, id: DocumentId, at: Seq | None = None) -> JsonObject | None:
    """The value of a document, now or as it was."""
    found = await storage.document(id) if at is None else await storage.document(id, at)
    return None if found is None else found.value


async def note(storage: Storage, conversation: ConversationId = ROOT) -> EntryId:
    """Commit a new entry."""
    id = EntryId(storage.mint())
    await commit(storage, PutEntry(entry(id, conversation)))
    return id


async def fork(storage: Storage, parent: ConversationId, at: EntryId) -> ConversationId:
    """Commit a fork of `parent` behind `at`."""
    id = ConversationId(storage.mint())
    await commit(storage, PutConversation(conversation(id, parent=Parent(conversation=parent, at=at))))
    return id


# --- Small records ----------------------------------------------------------------------------------------------


def conversation(id: int, *, parent: Parent | None = None, owner: Owner | None = None) -> ConversationRecord:
    """A conversation."""
    return ConversationRecord(id=ConversationId(id), parent=parent, owner=owner)


def entry(
    id: int,
    conversation: ConversationId = ROOT,
    *,
    kind: str = "app.note",
    data: Json | Absent = ABSENT,
    head: EntryId | None = None,
) -> EntryRecord:
    """An entry."""
    return EntryRecord(id=EntryId(id), conversation=conversation, kind=kind, data=data, head=head)


def task(
    id: int,
    *,
    conversation: ConversationId = ROOT,
    kind: str = "app.task",
    state: stored.State | None = None,
    input: Json = None,
    abort_requested: bool = False,
    background: bool = False,
) -> TaskRecord:
    """A task, pending unless said otherwise."""
    return TaskRecord(
        id=TaskId(id),
        conversation=conversation,
        kind=kind,
        version=1,
        input=input,
        state=stored.Pending(checkpoint={"phase": "start"}) if state is None else state,
        abort_requested=abort_requested,
        background=background,
    )


def submission(
    id: int,
    *,
    conversation: ConversationId = ROOT,
    state: SubmissionState | None = None,
    request_id: str | None = None,
) -> SubmissionRecord:
    """An input, queued unless said otherwise."""
    return SubmissionRecord(
        id=SubmissionId(id),
        conversation=conversation,
        type="input",
        state=Queued() if state is None else state,
        request_id=request_id,
    )


def document(
    id: int,
    *,
    kind: str = "app.document",
    scope: Scope | None = None,
    key: str | None = None,
    history: History = "latest",
) -> DocumentRecord:
    """A document, of the root conversation unless said otherwise; `history` counts only in a conversation."""
    where = ConversationScope(ROOT) if scope is None else scope
    inside = isinstance(where, ConversationScope)
    return DocumentRecord(
        id=DocumentId(id),
        kind=kind,
        scope=where,
        created_at=Seq(1),
        key=key,
        history=history if inside else None,
        fork="initial" if inside else None,
    )


SESSION_ADDRESS = Address("app.document", SessionScope())
"""The address of `document(…, scope=SessionScope())`."""
