"""Owns one read-only connection to a file that nobody vouches for: what it may do, how long, and what its errors mean.

Never knows what the tables hold. Works on a private copy only: even a reader writes `-shm`. Opened read-only, SQLite
does not even parse CHECK constraints, so an integrity check runs nothing of the file's; what they promise is checked by
whoever reads the rows.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from pidurable_nb.errors import DamagedStore, HostileStore, NotAStore, StoreRefused
from pidurable_nb.store.copying import MOST_BYTES, named
from pidurable_nb.store.visible import visible

Row: TypeAlias = "tuple[object, ...]"

MOST_INTEGER: Final = 2**63 - 1
_OLDEST_SQLITE: Final = (3, 37)
_TICKS: Final = 20_000
"""SQLite's operations between two looks at the clock."""

_LIMITS: Final = (
    (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000),
    (sqlite3.SQLITE_LIMIT_COLUMN, 100),
    (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 50),
    (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 3),
    (sqlite3.SQLITE_LIMIT_VDBE_OP, 100_000),
    (sqlite3.SQLITE_LIMIT_FUNCTION_ARG, 8),
    (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 100),
    (sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 20),
    (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1),
    (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of a foreign store is taken in: bytes of each file, bytes of one value, seconds of one query."""

    file_bytes: int = MOST_BYTES
    value_bytes: int = 64 << 20
    query_s: float = 60.0


DEFAULT_LIMITS: Final = Limits()


class Confined:
    """A connection that can only select from tables named to it, within limits."""

    def __init__(self, copy: Path, *, source: Path, limits: Limits) -> None:
        self.source = source
        self._limits = limits
        self._deadline = 0.0
        self._tables = frozenset({"sqlite_master", "sqlite_schema"})
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            has = sqlite3.sqlite_version
            raise self.refused(StoreRefused, f"needs SQLite 3.37, and this Python has {has}; use a newer Python")
        with self._meaning():
            self._connection = sqlite3.connect(
                copy.absolute().as_uri() + "?mode=ro", uri=True, isolation_level=None, check_same_thread=False
            )
        try:
            self._confine()
        except BaseException:
            self._connection.close()
            raise

    def _confine(self) -> None:
        connection = self._connection
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._limits.value_bytes)
        for limit, most in _LIMITS:
            connection.setlimit(limit, most)
        connection.set_progress_handler(self._late, _TICKS)
        self._deadline = time.monotonic() + self._limits.query_s
        with self._meaning():
            for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "mmap_size=0"):
                connection.execute(f"PRAGMA {pragma}").close()
        connection.set_authorizer(self._authorize)

    def allow(self, tables: Iterable[str]) -> None:
        """From now on these tables may be read too."""
        self._tables |= frozenset(tables)

    def rows(self, sql: str, *parameters: int) -> Generator[Row]:
        """The rows of one SELECT, each taken when it is asked for.

        Raises: DamagedStore, HostileStore (a value or the time beyond the limits), NotAStore.
        """
        with self._meaning():
            self._deadline = time.monotonic() + self._limits.query_s
            cursor = self._connection.execute(sql, parameters)
        try:
            while True:
                with self._meaning():
                    self._deadline = time.monotonic() + self._limits.query_s
                    row: Row | None = cursor.fetchone()
                if row is None:
                    return
                yield row
        finally:
            with suppress(sqlite3.ProgrammingError):  # an abandoned iterator may outlive the file
                cursor.close()

    def first(self, sql: str, *parameters: int) -> Row | None:
        """The first row of one SELECT."""
        rows = self.rows(sql, *parameters)
        try:
            return next(rows, None)
        finally:
            rows.close()

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        self._connection.close()

    # --- What is refused, and in which words --------------------------------------------------------------------

    def refused(self, kind: type[StoreRefused], text: str) -> StoreRefused:
        """The error of that kind: which file, then `text`."""
        return kind(f"{named(self.source)} {text}", path=self.source)

    def damaged(self, what: str) -> StoreRefused:
        """The error for a store that cannot be read any further."""
        return self.refused(DamagedStore, f"is damaged: {what}; restore a copy")

    def _late(self) -> bool:
        return time.monotonic() > self._deadline

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        match action:
            case sqlite3.SQLITE_SELECT:
                allowed = True
            case sqlite3.SQLITE_READ:
                allowed = first in self._tables
            case sqlite3.SQLITE_FUNCTION:
                allowed = second == "count"
            case sqlite3.SQLITE_PRAGMA:
                allowed = first == "integrity_check"
            case _:
                allowed = False
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    @contextmanager
    def _meaning(self) -> Generator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # a closed file: the caller's mistake, not the store's
        except sqlite3.Error as error:
            raise self._meant(error) from error
        except UnicodeDecodeError as error:  # a message of SQLite's that quotes bytes of the file
            raise self.damaged("it holds text that is no UTF-8") from error

    def _meant(self, error: sqlite3.Error) -> StoreRefused:
        said = visible(str(error))
        if "unsafe use of" in said:  # what `trusted_schema=OFF` says of a function in the schema
            return self.refused(HostileStore, f"runs code in its schema ({said}); do not open it")
        match getattr(error, "sqlite_errorcode", 0) & 0xFF:
            case sqlite3.SQLITE_NOTADB:
                return self.refused(NotAStore, "is no SQLite database; name the file of a store")
            case sqlite3.SQLITE_TOOBIG:
                most = self._limits.value_bytes
                return self.refused(
                    HostileStore, f"holds a value of more than {most:,} bytes; raise the limit to see it"
                )
            case sqlite3.SQLITE_INTERRUPT:
                within = self._limits.query_s
                return self.refused(
                    HostileStore, f"keeps one query busy for over {within:g} s; raise the limit to wait"
                )
            case sqlite3.SQLITE_AUTH:
                return self.refused(HostileStore, f"asks for more than reading its tables ({said}); do not open it")
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_IOERR | sqlite3.SQLITE_FULL | sqlite3.SQLITE_NOMEM:
                return self.refused(StoreRefused, f"cannot be read from its copy ({said}); make room and try again")
            case _:
                return self.damaged(said)
