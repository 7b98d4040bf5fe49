"""A store as SQLite alone sees it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from pidurable_nb.store.plain import NOTHING, content, digest, integrity

STORES = Path(__file__).parents[2] / "fixtures" / "stores"


def test_everything_in_the_tables_of_the_format_is_read_and_nothing_of_ours() -> None:
    for path in sorted(STORES.glob("*.sqlite")):
        with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            pages = bytearray(path.read_bytes())
            pages[18:20] = b"\x01\x01"  # there is no log in memory
            connection.deserialize(bytes(pages))
            connection.execute("CREATE TABLE pidurable_other (a)")
            found = content(connection)
            [next_seq] = connection.execute("SELECT next_seq FROM durable_metadata").fetchone()
            assert found.newest == next_seq - 1
            assert {str(row[0]) for row in found.rows} >= {"durable_metadata", "durable_schema"}
            assert not any(str(row[0]).startswith(("pidurable_", "sqlite_")) for row in found.rows)
            assert integrity(connection) is None
            assert not connection.in_transaction


def test_what_was_never_made_holds_nothing() -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        assert content(connection) == NOTHING


def test_pages_that_are_not_sound_are_told_and_a_digest_is_one_of_all_pages(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, text TEXT)")
        connection.execute("CREATE INDEX by_text ON t (text)")
        before = digest(connection)
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        assert digest(connection) == digest(connection) != before
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_schema SET rootpage = 2 WHERE name = 'by_text'")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        said = integrity(connection)
        assert said is not None
        assert said != "ok"
