"""Owns what happens to a file before a storage works with it: looked at, refused or accepted, migrated, claimed.

A refusal changes nothing, in the file or beside it: what can be told without opening is told first, then the schema is
read through a connection that cannot write. Never reads the database file but through SQLite.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from pidurable_nb.errors import DamagedStore, HostileStore, NewerFormat, NotAStore, StoreBusy, StoreRefused
from pidurable_nb.ids import MAX_INTEGER
from pidurable_nb.store.carrying import JOURNAL_MAGIC, WAL_HEADER
from pidurable_nb.store.copying import named
from pidurable_nb.store.layout import NEWEST_FORMAT, TABLES, Thing, check_rest, check_table, find_prefix
from pidurable_nb.store.ownership import StoreLock

_OURS: Final = "pidurable_"

_accepted: Final[set[tuple[Thing, ...]]] = set()
"""Schemas that were read word by word and accepted: stores of one writer have the same, and are opened often."""
_MOST_ACCEPTED: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the opening transaction found and raised."""

    next_id: int
    next_seq: int
    store_id: str
    origin: str
    opening: int
    token: int
    notes: tuple[str, ...]


# --- Before anything is opened ----------------------------------------------------------------------------------


def look(path: Path) -> bool:
    """True when there is a file at `path`, False when a store may be made there. Told from `stat` alone.

    Raises: NotAStore, DamagedStore, StoreRefused.
    """
    log = _size(path, "-wal")
    size = _size(path, "")
    if size is None:
        if log:
            raise DamagedStore(
                f"{named(path)} is missing and its -wal is there, with commits in it; put the database back beside it",
                path=path,
            )
        return False
    if size == 0 and log:
        raise DamagedStore(f"{named(path)} is empty and its -wal is not: it was truncated; restore a copy", path=path)
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreRefused(f"{named(path)} may not be written; change its permissions, or look at a copy", path=path)
    return True


def _size(path: Path, suffix: str) -> int | None:
    whole = path.with_name(path.name + suffix)
    try:
        found = os.stat(whole)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreRefused(
            f"{named(whole)} cannot be looked at: {error}; name the file of a store", path=path
        ) from error
    if stat.S_ISDIR(found.st_mode):
        raise NotAStore(f"{named(whole)} is a directory; name the file of a store", path=path)
    if not stat.S_ISREG(found.st_mode):
        raise NotAStore(f"{named(whole)} is no regular file; name the file of a store", path=path)
    return found.st_size


def make_folder(path: Path) -> None:
    """The folders above a new store. Raises: StoreRefused."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreRefused(
            f"{named(path)} cannot be made: {error.strerror} at {error.filename}; name another place", path=path
        ) from error


def examine(path: Path, lock: StoreLock, *, busy_timeout_s: float) -> bool:
    """Read the schema of an existing file under its lock, and accept it or refuse it, without writing.

    False when there is nothing in it yet: it was cut off while it was made, and is made to the end now.
    Raises: NotAStore, NewerFormat, DamagedStore, HostileStore, StoreBusy, StoreRefused.
    """
    if _size(path, "") == 0:
        if not lock.before.fresh:
            raise NotAStore(f"{named(path)} is empty; delete it, and a store is made there", path=path)
        return False
    if _half_made(path):
        return False
    shm = path.with_name(path.name + "-shm")
    had_shm = shm.exists()
    accepted = False
    try:
        with refusals(path):
            frozen_origin = None
            if _size(path, "-wal"):
                # Frames of another store are as well-formed as our own; SQLite would fold them in without a word.
                with _reading(path, "&immutable=1", busy_timeout_s) as db:
                    frozen_origin = _origin(db)
            logged = bool(_size(path, "-wal"))
            with _reading(path, "" if logged else "&immutable=1", busy_timeout_s) as db:
                if not logged:
                    _check_length(db, path)
                check(db, path)
                origin = _origin(db)
        if frozen_origin not in (None, origin):
            raise DamagedStore(
                f"{named(path)} has the -wal of another store beside it; move that away, or restore a copy", path=path
            )
        accepted = True
    finally:
        if not accepted and not had_shm:
            shm.unlink(missing_ok=True)
    return True


_JOURNAL: Final = struct.Struct(">8s4xIIII")
"""The header of a rollback journal: magic, (records,) seed, pages before, bytes of a sector, of a page."""


def _half_made(path: Path) -> bool:
    """Whether the file was cut off in its very first transaction, by a power cut too, which may tear its only page.

    Its journal is still there, and says that the database was empty before: the first to open it for writing, which is
    SQLite's business, rolls back to that. Nobody else's journal is believed, nor one beside more pages, or a log.
    """
    if (_size(path, "-wal") or 0) > WAL_HEADER or (_size(path, "-journal") or 0) < _JOURNAL.size:
        return False
    with refusals(path), path.with_name(f"{path.name}-journal").open("rb") as journal:
        header: tuple[bytes, int, int, int, int] = _JOURNAL.unpack(journal.read(_JOURNAL.size))
    magic, _, pages, _, page_size = header
    return magic == JOURNAL_MAGIC and pages == 0 and (_size(path, "") or 0) <= page_size


@contextlib.contextmanager
def _reading(path: Path, options: str, timeout_s: float) -> Generator[sqlite3.Connection, None, None]:
    """A connection that cannot write. `immutable` looks past a log and leaves no trace; it is for files without one."""
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro{options}", uri=True, isolation_level=None, timeout=timeout_s)
    try:
        db.execute("PRAGMA trusted_schema=OFF")
        db.execute("PRAGMA cell_size_check=ON")
        yield db
    finally:
        db.close()


def _check_length(db: sqlite3.Connection, path: Path) -> None:
    """SQLite reads what is missing of a last page as zeros. (Under a log the file may be shorter for a while.)"""
    pages, size = (int(db.execute(f"PRAGMA {pragma}").fetchone()[0]) for pragma in ("page_count", "page_size"))
    if (_size(path, "") or 0) < pages * size:
        raise DamagedStore(f"{named(path)} is cut off: it has {pages} pages of {size} bytes; restore a copy", path=path)


def _origin(db: sqlite3.Connection) -> str | None:
    """The origin that the database file itself names, for comparison only."""
    try:
        row: tuple[str] | None = db.execute("SELECT origin FROM pidurable_store").fetchone()
    except sqlite3.DatabaseError:
        return None  # a database file that its log runs ahead of
    return row and row[0]


# --- The schema -------------------------------------------------------------------------------------------------


def check(db: sqlite3.Connection, path: Path) -> int:
    """The format of what is there, 0 for an empty database.

    Raises: NotAStore, NewerFormat, DamagedStore, HostileStore.
    """
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
    things = tuple([Thing(*row) for row in rows])
    format_things = [thing for thing in things if not thing.name.startswith(("sqlite_", _OURS))]
    if not format_things and not things and _is_blank(db):
        return 0
    prefix = find_prefix(format_things, path)
    if prefix:
        raise NotAStore(
            f"{named(path)} holds a store under the table prefix {prefix!r}, which is not opened for writing; "
            "look at a copy",
            path=path,
        )
    if things not in _accepted:
        check_table(things, "", "durable_schema", path)
    row: tuple[int] | None = db.execute("SELECT version FROM durable_schema WHERE singleton = 1").fetchone()
    version = 0 if row is None else row[0]
    if version > NEWEST_FORMAT:
        raise NewerFormat(
            f"{named(path)} has format {version}, and this version knows {NEWEST_FORMAT}; upgrade pidurable_nb",
            path=path,
        )
    if version == 0:
        if len([thing for thing in format_things if thing.type == "table"]) > 1:
            raise DamagedStore(f"{named(path)} has tables without a format; restore a copy", path=path)
        check_rest(things, "", path)
        return 0
    if things not in _accepted:
        for table in TABLES:
            check_table(things, "", table, path)
        check_rest(things, "", path)
        if len(_accepted) >= _MOST_ACCEPTED:
            _accepted.clear()
        _accepted.add(things)
    _check_metadata(db, path)
    return version


def _is_blank(db: sqlite3.Connection) -> bool:
    marks = [db.execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in ("user_version", "application_id")]
    return marks == [0, 0]


def _check_metadata(db: sqlite3.Connection, path: Path) -> tuple[int, int]:
    row: tuple[str, int] | None = db.execute(
        "SELECT next_id, next_seq FROM durable_metadata WHERE singleton = 1"
    ).fetchone()
    if row is None:
        raise DamagedStore(f"{named(path)} has lost its row of metadata; restore a copy", path=path)
    next_id, next_seq = row
    if not (next_id.isascii() and next_id.isdigit() and len(next_id) < 17):
        raise DamagedStore(f"{named(path)} has {next_id[:40]!r} for its next id; restore a copy", path=path)
    if not 1 <= next_seq <= MAX_INTEGER:
        raise DamagedStore(f"{named(path)} has {next_seq} for its next sequence number; restore a copy", path=path)
    return int(next_id), next_seq


@cache
def _schema() -> dict[str, tuple[str, ...]]:
    """The sections of `schema.sql`: name to statements, without comments."""
    sections: dict[str, tuple[str, ...]] = {}
    text = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
    for section in text.split("\n--- ")[1:]:
        name, _, body = section.partition("\n")
        plain = "\n".join(line for line in body.splitlines() if not line.startswith("--"))
        sections[name.strip()] = tuple(part.strip() for part in plain.split(";") if part.strip())
    return sections


def _run(cursor: sqlite3.Cursor, section: str) -> None:
    for statement in _schema()[section]:
        cursor.execute(statement)


# --- The opening transaction ------------------------------------------------------------------------------------


def claim(
    cursor: sqlite3.Cursor,
    path: Path,
    *,
    draw: Callable[[], str],
    identity: str | None,
    session_id: Callable[[], object],
) -> Claim:
    """Migrate, raise opening and token, and say where the counters stand. Runs in the opening transaction.

    `session_id` answers what the root conversation's `pi.provider` holds, for a store that has no origin yet.
    """
    notes: list[str] = []
    found = check(cursor.connection, path)
    if found < NEWEST_FORMAT:
        if found == 0:
            _run(cursor, "durable_schema")
        for version in range(found + 1, NEWEST_FORMAT + 1):
            _run(cursor, f"version {version}")
            cursor.execute("UPDATE durable_schema SET version = ? WHERE singleton = 1", (version,))
        notes.append("made anew" if found == 0 else f"migrated from format {found} to {NEWEST_FORMAT}")
    _run(cursor, "pidurable_store")
    next_id, next_seq = _check_metadata(cursor.connection, path)
    row: tuple[str, str, int, int, str | None] | None = cursor.execute(
        "SELECT store_id, origin, opening, token, file FROM pidurable_store WHERE singleton = 1"
    ).fetchone()
    if row is None:
        session = None if found == 0 else session_id()
        store_id, origin = draw(), session if isinstance(session, str) and session else draw()
        opening, token = 1, 1
        notes.append("store id and origin given")
    else:
        store_id, origin, opening, token = row[0], row[1], row[2] + 1, row[3] + 1
        if identity is not None and row[4] is not None and row[4] != identity:
            store_id = draw()
            notes.append("a copy: it has a new store id and keeps its origin")
    cursor.execute(
        "INSERT INTO pidurable_store (singleton, store_id, origin, opening, token, file) VALUES (1, ?, ?, ?, ?, ?)"
        " ON CONFLICT (singleton) DO UPDATE SET store_id = excluded.store_id, opening = excluded.opening,"
        " token = excluded.token, file = excluded.file",
        (store_id, origin, opening, token, identity),
    )
    return Claim(
        next_id=next_id,
        next_seq=next_seq,
        store_id=store_id,
        origin=origin,
        opening=opening,
        token=token,
        notes=tuple(notes),
    )


# --- What SQLite says, as a refusal -----------------------------------------------------------------------------


@contextlib.contextmanager
def refusals(path: Path) -> Generator[None, None, None]:
    """While nothing is written yet, an error of SQLite or of the system is a refusal with one clear line."""
    try:
        yield
    except sqlite3.Error as error:
        raise refusal(error, path) or StoreRefused(
            f"{named(path)} is not opened: {error}; look at its permissions and its disk, then try again", path=path
        ) from error
    except OSError as error:
        raise StoreRefused(f"{named(path)} is not opened: {error.strerror}", path=path) from error


def refusal(error: BaseException | None, path: Path) -> StoreRefused | None:
    """The refusal that an error of SQLite stands for, if it proves that nothing was changed."""
    extended: int | None = getattr(error, "sqlite_errorcode", None)
    match None if extended is None else extended & 0xFF:
        case sqlite3.SQLITE_NOTADB:
            return NotAStore(f"{named(path)} is no SQLite database; name the file of a store", path=path)
        case sqlite3.SQLITE_CORRUPT:
            return DamagedStore(f"{named(path)} is cut off or corrupt ({error}); restore a copy", path=path)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusy(
                f"{named(path)} is used by a process that does not know the lock; stop it and try again", path=path
            )
        case sqlite3.SQLITE_CONSTRAINT:
            return HostileStore(f"{named(path)} holds what no store holds ({error}); do not open it", path=path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return StoreRefused(
                f"{named(path)} is not opened for writing: {error}; change its permissions, or look at a copy",
                path=path,
            )
        case _:
            return None
