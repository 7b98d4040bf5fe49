"""Owns the questions that are put to every table but the documents'. Each function runs on the worker, with one view;
never writes.

Every scan walks one index in id order and stops at its limit, whatever else the table holds: SQLite has no statistics
of our tables, so the column to walk by is chosen here and the others are kept from it by a unary plus.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from pidurable_nb.errors import StorageError, StorageRequestError
from pidurable_nb.ids import MAX_INTEGER, ConversationId, EntryId, Seq
from pidurable_nb.records.codec import (
    BadRecord,
    both_spellings,
    decode_conversation,
    decode_entry,
    decode_submission,
    decode_task,
)
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, SubmissionRecord
from pidurable_nb.store.sqlite_rows import Value
from pidurable_nb.store.storage import (
    ConversationQuery,
    Order,
    Page,
    StoredEntry,
    SubmissionQuery,
    TaskQuery,
)

T = TypeVar("T")
Cursor = sqlite3.Cursor
LIVE: Final = ("pending", "running", "waiting", "sleeping", "completing")
OPEN: Final = ("queued", "placed")


def decoded(decode: Callable[[str], T], text: str) -> T:
    """A record of stored text. Raises: StorageError when it is not one."""
    try:
        return decode(text)
    except BadRecord as error:
        raise StorageError(f"the store is damaged: {error}", stored="unknown") from error


# --- One record -------------------------------------------------------------------------------------------------


def one(cursor: Cursor, table: str, id: int, decode: Callable[[str], T]) -> T | None:
    """The record of a row. Raises: StorageError when it is damaged."""
    row: tuple[str] | None = cursor.execute(f"SELECT record FROM {table} WHERE id = ?", (id,)).fetchone()
    return None if row is None else decoded(decode, row[0])


def conversation(cursor: Cursor, id: int) -> ConversationRecord | None:
    """As `Storage.conversation`."""
    return one(cursor, "conversations", id, decode_conversation)


def task(cursor: Cursor, id: int) -> TaskRecord | None:
    """As `Storage.task`."""
    return one(cursor, "tasks", id, decode_task)


def submission(cursor: Cursor, id: int) -> SubmissionRecord | None:
    """As `Storage.submission`."""
    return one(cursor, "submissions", id, decode_submission)


def submission_by_request(cursor: Cursor, conversation: ConversationId, request_id: str) -> SubmissionRecord | None:
    """As `Storage.submission_by_request`: the oldest one, in either spelling."""
    row: tuple[str] | None = cursor.execute(
        "SELECT record FROM submissions WHERE conversation_id = ? AND request_id IN (?, ?) ORDER BY id LIMIT 1",
        (conversation, *spelled(request_id)),
    ).fetchone()
    return None if row is None else decoded(decode_submission, row[0])


def spelled(text: str) -> tuple[str, str]:
    """For `IN (?, ?)`: both forms in which an indexed column may hold `text`; twice the same where they agree."""
    spellings = both_spellings(text)
    return spellings[0], spellings[-1]


def entry(cursor: Cursor, id: EntryId) -> StoredEntry | None:
    """As `Storage.entry`."""
    row: tuple[str, int] | None = cursor.execute(
        "SELECT record, commit_seq FROM entries WHERE id = ?", (id,)
    ).fetchone()
    return None if row is None else StoredEntry(entry=decoded(decode_entry, row[0]), commit_seq=Seq(row[1]))


# --- Scans of one table -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Walk:
    """`column` has an index that continues with the id; it is walked once per value, and the walks are merged."""

    column: str
    values: tuple[Value, ...]


def scan_tasks(cursor: Cursor, query: TaskQuery, limit: int, after: int | None, order: Order) -> Page[TaskRecord]:
    """As `Storage.scan_tasks`."""
    given: dict[str, tuple[Value, ...]] = {}
    if query.status is not None or query.live is not None:
        given["status"] = _statuses(query.status, query.live, LIVE, ("terminal",))
    if query.conversation is not None:
        given["conversation_id"] = (query.conversation,)
    if query.kind is not None:
        given["kind"] = tuple(both_spellings(query.kind))
    if query.abort_requested is not None:
        given["abort_requested"] = (int(query.abort_requested),)
    if query.background is not None:
        given["background"] = (int(query.background),)
    live = "status" in given and "terminal" not in given["status"]
    # Live work and abort marks are few, a conversation's or a kind's tasks may be many, terminal ones are most.
    preferred = ["status" if live else "", "abort_requested" if query.abort_requested else ""]
    preferred += ["conversation_id", "kind", "status", "background" if query.background else ""]
    return _scan(cursor, "tasks", decode_task, given, preferred, limit, after, order)


def scan_submissions(
    cursor: Cursor, query: SubmissionQuery, limit: int, after: int | None, order: Order
) -> Page[SubmissionRecord]:
    """As `Storage.scan_submissions`."""
    given: dict[str, tuple[Value, ...]] = {}
    if query.status is not None or query.open is not None:
        given["status"] = _statuses(query.status, query.open, OPEN, ("done", "unanswered"))
    if query.conversation is not None:
        given["conversation_id"] = (query.conversation,)
    few = "status" in given and set(given["status"]) <= set(OPEN)
    preferred = ["status" if few else "", "conversation_id", "status"]
    return _scan(cursor, "submissions", decode_submission, given, preferred, limit, after, order)


def scan_conversations(
    cursor: Cursor, query: ConversationQuery, limit: int, after: int | None, order: Order
) -> Page[ConversationRecord]:
    """As `Storage.scan_conversations`."""
    given: dict[str, tuple[Value, ...]] = {}
    if query.owner_task is not None:
        given["owner_task_id"] = (query.owner_task,)
    if query.owner_conversation is not None:
        given["owner_conversation_id"] = (query.owner_conversation,)
    preferred = ["owner_task_id", "owner_conversation_id"]
    return _scan(cursor, "conversations", decode_conversation, given, preferred, limit, after, order)


def _statuses(
    status: str | None, open_: bool | None, open_ones: tuple[str, ...], ended: tuple[str, ...]
) -> tuple[Value, ...]:
    wanted = (*open_ones, *ended) if open_ is None else open_ones if open_ else ended
    return wanted if status is None else tuple(word for word in wanted if word == status)


def _scan(
    cursor: Cursor,
    table: str,
    decode: Callable[[str], T],
    given: Mapping[str, tuple[Value, ...]],
    preferred: Sequence[str],
    limit: int,
    after: int | None,
    order: Order,
) -> Page[T]:
    check_page(limit, after)
    if not all(given.values()):
        return Page(())
    column = next((column for column in preferred if column in given), None)
    walk = _Walk("", (None,)) if column is None else _Walk(column, given[column])
    where, values = ["TRUE"], list[Value]()
    for name, wanted in given.items():
        if name != walk.column:
            where.append(f"+{name} IN ({', '.join('?' * len(wanted))})")
            values += wanted
    if after is not None:
        where.append("id > ?" if order == "ascending" else "id < ?")
        values.append(after)
    branches, parameters = list[str](), list[Value]()
    for value in walk.values:
        own = f" AND {walk.column} = ?" if walk.column else ""
        branches.append(f"SELECT id, record FROM {table} WHERE {' AND '.join(where)}{own}")
        parameters += [*values, value] if own else values
    direction = "ASC" if order == "ascending" else "DESC"
    sql = f"{' UNION ALL '.join(branches)} ORDER BY id {direction} LIMIT ?"
    rows: list[tuple[int, str]] = cursor.execute(sql, (*parameters, limit + 1)).fetchall()
    return page_of(rows, limit, decode)


def check_page(limit: int, after: int | None) -> None:
    """Raises: StorageRequestError for a page that nobody can want."""
    if limit < 1:
        raise StorageRequestError(f"a page of {limit} items; ask for at least 1")
    if after is not None and not 0 <= after <= MAX_INTEGER:
        raise StorageRequestError(f"{after} is no cursor; use the `next` of the page before")


def page_of(rows: Sequence[tuple[int, str]], limit: int, decode: Callable[[str], T]) -> Page[T]:
    """The first `limit` of (id, record), and where to go on when there are more."""
    items = tuple([decoded(decode, text) for _, text in rows[:limit]])
    return Page(items, rows[limit - 1][0] if len(rows) > limit else None)


# --- Transcripts through forks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The entries of one conversation that are seen: those up to `cap`."""

    conversation: int
    cap: int


_CHAIN: Final = (
    "WITH RECURSIVE chain (id, parent, at) AS ("
    " SELECT id, json_extract(record, '$.parent.conversationId'), json_extract(record, '$.parent.at')"
    "  FROM conversations WHERE id = ?"
    " UNION SELECT c.id, json_extract(c.record, '$.parent.conversationId'), json_extract(c.record, '$.parent.at')"
    "  FROM chain JOIN conversations AS c ON c.id = chain.parent"
    ") SELECT id, parent, at FROM chain"
)


def _stretches(cursor: Cursor, conversation: ConversationId, cap: int) -> list[_Stretch]:
    """What is seen from `conversation`, itself first, then its parents, each up to where the fork left it; nothing for
    an unknown one. As in `ancestry`, the chain ends at a conversation that is missing or was passed.
    """
    rows: list[tuple[int, int | None, int | None]] = cursor.execute(_CHAIN, (conversation,)).fetchall()
    parents = {id: (parent, at) for id, parent, at in rows}
    chain = list[_Stretch]()
    id: int | None = conversation if rows else None
    passed = set[int]()
    while id is not None and id not in passed:
        passed.add(id)
        chain.append(_Stretch(id, cap))
        id, at = parents.get(id, (None, None))
        cap = min(cap, at or 0)
    return chain


def visible_entry(cursor: Cursor, conversation: ConversationId, id: EntryId) -> StoredEntry | None:
    """As `Storage.visible_entry`."""
    row: tuple[int] | None = cursor.execute("SELECT conversation_id FROM entries WHERE id = ?", (id,)).fetchone()
    chain = _stretches(cursor, conversation, MAX_INTEGER)
    seen = row is not None and any(part.conversation == row[0] and id <= part.cap for part in chain)
    return entry(cursor, id) if seen else None


def latest_head(cursor: Cursor, conversation: ConversationId, until: EntryId | None) -> EntryRecord | None:
    """As `Storage.latest_head`."""
    chain = _stretches(cursor, conversation, MAX_INTEGER if until is None else until)
    rows = _merged(cursor, chain, 0, 1, "descending", " AND head IS NOT NULL")
    return decoded(decode_entry, rows[0][1]) if rows else None


def scan_entries(
    cursor: Cursor,
    conversation: ConversationId,
    limit: int,
    first: EntryId | None,
    last: EntryId | None,
    after: int | None,
    order: Order,
) -> Page[EntryRecord]:
    """As `Storage.scan_entries`."""
    check_page(limit, after)
    low = 0 if first is None else first
    high = MAX_INTEGER if last is None else last
    if after is not None and order == "ascending":
        low = max(low, after + 1)
    elif after is not None:
        high = min(high, after - 1)
    chain = _stretches(cursor, conversation, high)
    if not chain:
        raise StorageRequestError(f"conversation {conversation} is not stored")
    return page_of(_merged(cursor, chain, low, limit + 1, order, ""), limit, decode_entry)


def _merged(
    cursor: Cursor, chain: Sequence[_Stretch], low: int, limit: int, order: Order, also: str
) -> list[tuple[int, str]]:
    """The first `limit` entries in that order, one index range per conversation until no other can hold an earlier one.

    Going down, a parent holds nothing above where its child left it. Going up, a child holds nothing below its own id:
    ids are minted in order, and an entry names its conversation.
    """
    descending = order == "descending"
    sql = (
        f"SELECT id, record FROM entries WHERE conversation_id = ? AND id BETWEEN ? AND ?{also}"
        f" ORDER BY id {'DESC' if descending else 'ASC'} LIMIT ?"
    )
    found = list[tuple[int, str]]()
    for part in chain if descending else reversed(chain):
        if len(found) == limit:
            edge = found[-1][0]
            if edge >= part.cap if descending else edge < part.conversation:
                break
        rows: list[tuple[int, str]] = cursor.execute(sql, (part.conversation, low, part.cap, limit)).fetchall()
        if found and rows:
            rows = sorted([*found, *rows], key=lambda row: row[0], reverse=descending)[:limit]
        found = rows or found
    return found
