"""Owns reading a store as SQLite alone sees it: all rows of the format, the newest commit, whether pages are sound.

No record is understood and nothing is refused: for comparing what a crash left with what was there. Reads through any
connection, the one of an open store included, and never writes.
"""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import dataclass
from typing import Final

__all__ = ["NOTHING", "Content", "content", "digest", "integrity"]

_TABLES: Final = (
    "SELECT name FROM sqlite_schema WHERE type = 'table'"
    " AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'pidurable\\_%' ESCAPE '\\'"
)


@dataclass(frozen=True, slots=True)
class Content:
    """What is in a store: the number of its newest commit, and each row behind the name of its table."""

    newest: int
    rows: frozenset[tuple[object, ...]]


NOTHING: Final = Content(0, frozenset())
"""A store that was never made."""


def content(connection: sqlite3.Connection) -> Content:
    """Everything in the tables of the format, as one view. Raises: sqlite3.Error."""
    begun = not connection.in_transaction
    if begun:
        connection.execute("BEGIN")
    try:
        tables = [name for (name,) in connection.execute(_TABLES)]
        rows: list[tuple[object, ...]] = []
        for table in tables:
            quoted = table.replace('"', '""')
            rows += [(table, *row) for row in connection.execute(f'SELECT * FROM "{quoted}"')]
        newest = 0
        if "durable_metadata" in tables:
            found = connection.execute("SELECT next_seq FROM durable_metadata").fetchone()
            newest = -1 if found is None else found[0] - 1
        return Content(newest, frozenset(rows))
    finally:
        if begun:
            connection.execute("COMMIT")


def integrity(connection: sqlite3.Connection) -> str | None:
    """The first thing that SQLite finds wrong with the pages, None when they are sound. Raises: sqlite3.Error."""
    said = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    return None if said == "ok" else said


def digest(connection: sqlite3.Connection) -> bytes:
    """A digest of all pages, those in the log included, as the connection sees them. Raises: sqlite3.Error."""
    return hashlib.sha256(connection.serialize()).digest()
