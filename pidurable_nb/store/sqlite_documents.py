"""Owns the questions about documents: which incarnation, which value. Each function runs on the worker, with one view;
never writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pidurable_nb.errors import StorageError, StorageRequestError
from pidurable_nb.ids import MAX_INTEGER, DocumentId, Json, JsonObject, TaskId
from pidurable_nb.records.codec import BadRecord, decode_document, loads
from pidurable_nb.records.document import Address, DocumentRecord, Scope, StoredDocument
from pidurable_nb.store import delta
from pidurable_nb.store.sqlite_reads import Cursor, check_page, decoded, one, page_of, spelled
from pidurable_nb.store.sqlite_rows import scope_columns
from pidurable_nb.store.storage import CURRENT, At, Page


def find_document(cursor: Cursor, address: Address, at: At) -> DocumentRecord | None:
    """As `Storage.find_document`."""
    scope, owner = scope_columns(address.scope)
    alive, moments = _alive(at)
    row: tuple[str] | None = cursor.execute(
        "SELECT record FROM documents WHERE kind IN (?, ?) AND scope_kind = ? AND owner_id = ? AND family = ?"
        f" AND key_value IN (?, ?) AND {alive} ORDER BY created_at DESC, id DESC LIMIT 1",
        (
            *spelled(address.kind),
            scope,
            owner,
            int(address.key is not None),
            *spelled(address.key or ""),
            *moments,
        ),
    ).fetchone()
    return None if row is None else decoded(decode_document, row[0])


def _alive(at: At) -> tuple[str, tuple[int, ...]]:
    if at == CURRENT:
        return "retired_at IS NULL", ()
    return "created_at <= ? AND (retired_at IS NULL OR retired_at > ?)", (at, at)


def scan_documents(
    cursor: Cursor, scope: Scope, limit: int, kind: str | None, at: At, after: int | None
) -> Page[DocumentRecord]:
    """As `Storage.scan_documents`."""
    check_page(limit, after)
    scope_kind, owner = scope_columns(scope)
    alive, moments = _alive(at)
    of_kind = "" if kind is None else " AND kind IN (?, ?)"
    rows: list[tuple[int, str]] = cursor.execute(
        f"SELECT id, record FROM documents WHERE scope_kind = ? AND owner_id = ?{of_kind} AND id > ? AND {alive}"
        " ORDER BY id LIMIT ?",
        (scope_kind, owner, *(() if kind is None else spelled(kind)), after or 0, *moments, limit + 1),
    ).fetchall()
    return page_of(rows, limit, decode_document)


MOST_NAMED = 500
"""Ids in one statement: SQLite bounds the parameters."""


def documented(cursor: Cursor, tasks: Sequence[TaskId]) -> frozenset[TaskId]:
    """As `Storage.documented`."""
    found: set[TaskId] = set()
    for start in range(0, len(tasks), MOST_NAMED):
        named = tasks[start : start + MOST_NAMED]
        marks = ", ".join("?" * len(named))
        rows: list[tuple[int]] = cursor.execute(
            f"SELECT DISTINCT owner_id FROM documents WHERE scope_kind = 'task' AND owner_id IN ({marks})"
            " AND retired_at IS NULL",
            tuple(named),
        ).fetchall()
        found.update(TaskId(id) for (id,) in rows)
    return frozenset(found)


def document(cursor: Cursor, id: DocumentId, at: At) -> StoredDocument | None:
    """As `Storage.document`: the newest base, and what follows it."""
    record = one(cursor, "documents", id, decode_document)
    if record is None:
        return None
    if at != CURRENT and not record.rewindable:
        raise StorageRequestError(f"document {id} ({record.kind}) keeps no history; read it at {CURRENT!r}")
    gone = record.retired_at is not None if at == CURRENT else not record.alive_at(at)
    if gone:
        return None
    base, tail = _revisions(cursor, id, MAX_INTEGER if at == CURRENT else at)
    version, text = base
    return StoredDocument(
        record=record, version=version, value=_materialised(id, text, tail), deltas_since_base=len(tail)
    )


def _revisions(cursor: Cursor, id: DocumentId, until: int) -> tuple[tuple[int, str], list[str]]:
    """(version, text) of the newest base at or before `until`, and the texts of the deltas behind it.

    Raises: StorageError when they are not one chain.
    """
    base: tuple[int, int, str] | None = cursor.execute(
        "SELECT seq, version, content FROM document_revisions WHERE document_id = ? AND kind = 'base' AND seq <= ?"
        " ORDER BY seq DESC LIMIT 1",
        (id, until),
    ).fetchone()
    if base is None:
        raise _broken(id, f"no base at or before commit {until}" if until < MAX_INTEGER else "no base")
    rows: list[tuple[str, int, str]] = cursor.execute(
        "SELECT kind, version, content FROM document_revisions WHERE document_id = ? AND seq > ? AND seq <= ?"
        " ORDER BY seq",
        (id, base[0], until),
    ).fetchall()
    for kind, version, _ in rows:
        if kind != "delta" or version != base[1]:
            raise _broken(id, f"a {kind} of version {version} behind its base of version {base[1]}")
    return (base[1], base[2]), [content for _, _, content in rows]


def _materialised(id: DocumentId, base: str, tail: Sequence[str]) -> JsonObject:
    try:
        value: Json = loads(base)
        for text in tail:
            value = delta.apply(value, delta.parse(loads(text)))
    except (BadRecord, delta.BadDelta) as error:
        raise _broken(id, str(error)) from error
    if not isinstance(value, Mapping):
        raise _broken(id, "its value is not an object")
    return value


def _broken(id: DocumentId, problem: str) -> StorageError:
    return StorageError(f"the store is damaged: document {id} has {problem}", stored="unknown")
