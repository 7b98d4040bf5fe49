"""Owns the one connection of a store and what runs on it: pieces of work, each one hop and at most one transaction.

aiosqlite hands each call to its worker thread; a hop costs as much as a commit. So a piece of work crosses once, as the
argument of `executemany`, and everything in it runs there, down to the question whether a transaction is still open
where an error was met (F4). Never knows a table.
"""

from __future__ import annotations

import ctypes
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, Literal, TypeVar

import aiosqlite

from pidurable_nb.errors import PidurableError, StorageError, Stored

T = TypeVar("T")
Phase = Literal["begin", "write", "commit", "read"]
Synchronous = Literal["NORMAL", "FULL"]

_REFUSED: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_INTERRUPT,
    }
)
"""Before COMMIT these prove that nothing of the transaction is stored."""


def classify(error: sqlite3.Error, *, in_transaction_after: bool, phase: Phase) -> Stored:
    """F4: what is known about the transaction that met `error`, given whether SQLite left it open.

    Proven are a refusal before COMMIT and a full disk that SQLite rolled back by itself. Everything else is unknown:
    after a failed fsync SQLite says that it rolled back, and a kill brings the commit to life.
    """
    extended: int | None = getattr(error, "sqlite_errorcode", None)
    if extended is None or phase == "read":
        return "unknown"
    code = extended & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return "no" if phase != "commit" or not in_transaction_after else "unknown"
    if phase == "commit":
        # A COMMIT that was refused and left the transaction open has written nothing; the caller rolls it back.
        return "no" if code == sqlite3.SQLITE_BUSY and in_transaction_after else "unknown"
    return "no" if code in _REFUSED else "unknown"


class Line(sqlite3.Connection):
    """The connection, on whichever thread works for it. Runs `Work`; knows which `synchronous` it is in."""

    _synchronous: Synchronous | None = None

    def executemany(self, sql: str, parameters: Iterable[object], /) -> sqlite3.Cursor:
        """Run a piece of work in one call. Raises TypeError for anything else; statements run by `execute`."""
        if not isinstance(parameters, Work):
            raise TypeError("a Line runs Work")
        parameters.run(self)
        return sqlite3.Cursor(self)

    def synchronous(self, wanted: Synchronous) -> None:
        """Set it where it is not so already: outside a transaction, since SQLite refuses to change it inside."""
        if self._synchronous != wanted:
            self.execute(f"PRAGMA synchronous={wanted}")
            self._synchronous = wanted

    def write(self, do: Callable[[sqlite3.Cursor], T], *, synced: bool = False) -> T:
        """Run `do` as one transaction, on disk on return when `synced`.

        Raises: StorageError with its class (F4), the transaction rolled back; an error of ours that `do` raises passes.
        """
        phase: Phase = "begin"
        cursor = self.cursor()
        try:
            self.synchronous("FULL" if synced else "NORMAL")
            cursor.execute("BEGIN IMMEDIATE")
            phase = "write"
            result = do(cursor)
            phase = "commit"
            cursor.execute("COMMIT")
            return result
        except PidurableError as error:
            if not self._rolled_back() and isinstance(error, StorageError):
                error.stored = "unknown"
            raise
        except Exception as error:
            raise self._failed(error, phase) from error
        except BaseException:
            self._rolled_back()
            raise
        finally:
            cursor.close()  # a traceback that keeps it would keep the file open after `close`

    def read(self, do: Callable[[sqlite3.Cursor], T]) -> T:
        """Run `do` with one view of the store. Raises: StorageError; what else `do` raises passes."""
        cursor = self.cursor()
        try:
            cursor.execute("BEGIN")
            result = do(cursor)
            cursor.execute("COMMIT")
            return result
        except (sqlite3.Error, MemoryError) as error:
            raise self._failed(error, "read") from error
        except BaseException:
            self._rolled_back()
            raise
        finally:
            cursor.close()

    def look(self, do: Callable[[sqlite3.Cursor], T]) -> T:
        """Run `do`, which is one statement and so has one view by itself. Raises: as `read`."""
        cursor = self.cursor()
        try:
            return do(cursor)
        except (sqlite3.Error, MemoryError) as error:
            raise self._failed(error, "read") from error
        finally:
            cursor.close()

    def _failed(self, error: Exception, phase: Phase) -> StorageError:
        open_still = self.in_transaction
        stored: Stored = "unknown"
        if isinstance(error, sqlite3.Error):
            stored = classify(error, in_transaction_after=open_still, phase=phase)
        elif phase == "write" and isinstance(error, (ValueError, OverflowError)):
            stored = "no"  # a value that has no place in a column, found before COMMIT
        if not self._rolled_back():
            stored = "unknown"
        what = "reading" if phase == "read" else "the commit"
        known = "nothing of it is stored" if stored == "no" else "whether it is stored is unknown"
        named = getattr(error, "sqlite_errorname", type(error).__name__)
        said = f"{what} failed: {error} ({named})"
        return StorageError(said if phase == "read" else f"{said}; {known}", stored=stored)

    def _rolled_back(self) -> bool:
        """Leave no transaction open; False when that failed too."""
        try:
            if self.in_transaction:
                self.execute("ROLLBACK")
            return True
        except sqlite3.Error:
            return False

    def checkpoint(self, mode: Literal["PASSIVE", "RESTART", "TRUNCATE"]) -> tuple[bool, int, int]:
        """Fold the log: (somebody stood in the way, frames in the log, frames folded). Never waits for anybody.

        Raises: StorageError, unknown: a checkpoint that failed half way has lost nothing that a reopening cannot tell.
        """
        try:
            waited = self.execute("PRAGMA busy_timeout").fetchone()
            self.execute("PRAGMA busy_timeout=0")
            try:
                busy, log, folded = self.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            finally:
                self.execute(f"PRAGMA busy_timeout={waited[0]}")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return True, 0, 0
            raise self._failed(error, "read") from error
        except sqlite3.Error as error:
            raise self._failed(error, "read") from error
        return bool(busy), int(log), int(folded)


class Work(Generic[T]):
    """A function of the line, and its result once it has run. Iterable only because `executemany` takes an iterable."""

    __slots__ = ("_do", "result")
    result: T

    def __init__(self, do: Callable[[Line], T]) -> None:
        self._do = do

    def __iter__(self) -> Iterator[Iterable[object]]:
        return iter(())

    def run(self, line: Line) -> None:
        """Do it, where the line is."""
        self.result = self._do(line)


class Inline:
    """A line without a thread: the same work, called directly, never suspending. For the deterministic loop."""

    def __init__(self, uri: str, *, busy_timeout_s: float) -> None:
        self._line = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=busy_timeout_s, factory=Line)

    async def run(self, do: Callable[[Line], T]) -> T:
        """Run one piece of work."""
        return do(self._line)

    async def close(self) -> None:
        """Close the connection."""
        self._line.close()

    def abandon(self) -> None:
        """Never close the connection."""
        _immortal(self._line)


class Threaded:
    """A line on aiosqlite's worker thread: one hop per piece of work, in order."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection
        self._lines: list[Line] = []

    @classmethod
    async def connect(cls, uri: str, *, busy_timeout_s: float) -> Threaded:
        """Open the file, on a worker of its own. Raises: sqlite3.Error."""
        made: list[aiosqlite.Connection] = []

        def make() -> None:
            made.append(aiosqlite.connect(uri, uri=True, isolation_level=None, timeout=busy_timeout_s, factory=Line))

        # A thread inherits from its maker whether the interpreter waits for it: aiosqlite's worker must not be waited
        # for, or a forgotten harness hangs the interpreter before any atexit handler runs.
        maker = threading.Thread(target=make, daemon=True)
        maker.start()
        maker.join()
        threaded = cls(await made[0])
        await threaded.run(threaded._lines.append)
        return threaded

    async def run(self, do: Callable[[Line], T]) -> T:
        """Run one piece of work; when the caller is cancelled meanwhile, the work is done all the same."""
        work = Work(do)
        await self._connection.executemany("", work)
        return work.result

    async def close(self) -> None:
        """Close the connection and end the worker."""
        self._lines.clear()
        await self._connection.close()

    def abandon(self) -> None:
        """Never close the connection; its worker sleeps until the process ends."""
        _immortal(self._connection)
        for line in self._lines:
            _immortal(line)


def _immortal(thing: object) -> None:
    """Keep `thing` until the process is gone, beyond the interpreter's own clearing of modules.

    Closing a connection, and collecting one closes it, folds its log into the database file. Where that file or its
    log has become somebody else's, folding would destroy what they wrote.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
