"""Owns who may write to a store: the lock beside it, and the proof that its files are still the ones that were opened.

The lock is an advisory `flock`: death frees it, a copy does not carry it, and a second opener is refused in the same
process too. Never opens the database file: closing any descriptor of it would drop the locks that SQLite holds on it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pidurable_nb.errors import AnotherWriter, StorageError, StoreOwned, StoreRefused
from pidurable_nb.store.copying import named

TRIES: Final = 50
"""How often the lock file may vanish under an opener before it gives up."""

GRAIN_NS: Final = 20_000_000
"""Times of folders are as coarse as the kernel's tick."""

_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What a lock file says about the process that wrote it. `fresh`: it was about to create the store."""

    pid: int | None = None
    host: str | None = None
    since: str | None = None
    fresh: bool = False

    def __str__(self) -> str:
        pid = "an unknown process" if self.pid is None else f"process {self.pid}"
        return pid + (f" on {self.host}" if self.host else "") + (f" since {self.since}" if self.since else "")


class StoreLock:
    """The lock of one store, held from construction until `release`.

    `before` is what the lock file said when it was taken: nothing where it is new, a dead owner's line otherwise.

    Raises: StoreOwned when somebody holds it; StoreRefused when the file cannot be made. Nothing is left behind then.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self.path = lock_path(store)
        self._fd, self._made = self._take()
        self.before = _read_holder(self._fd)

    def _take(self) -> tuple[int, bool]:
        for _ in range(TRIES):
            fd, made = self._open()
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _read_holder(fd)
                os.close(fd)
                raise StoreOwned(
                    f"{named(self.store)} is owned by {holder}; look at a copy, or stop that process",
                    path=self.store,
                    pid=holder.pid,
                    host=holder.host,
                    since=holder.since,
                ) from None
            except OSError as error:
                os.close(fd)
                raise self._refused(error) from error
            # An owner that closed meanwhile took its file away: what is locked here would be a file without a name.
            if _same_file(fd, self.path):
                return fd, made
            os.close(fd)
        raise StoreRefused(
            f"{named(self.path)} kept vanishing while it was locked; stop whatever removes it", path=self.store
        )

    def _open(self) -> tuple[int, bool]:
        try:
            return os.open(self.path, _OPEN | os.O_CREAT | os.O_EXCL, 0o644), True
        except FileExistsError:
            pass
        except OSError as error:
            raise self._refused(error) from error
        try:
            return os.open(self.path, _OPEN | os.O_CREAT, 0o644), False
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> StoreRefused:
        what = "no permission" if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else error.strerror
        return StoreRefused(
            f"{named(self.store)} is not opened for writing: {named(self.path)} cannot be locked ({what}); "
            "make the folder writable, or look at a copy",
            path=self.store,
        )

    @property
    def inode(self) -> tuple[int, int]:
        """(device, inode) of the file that is locked."""
        found = os.fstat(self._fd)
        return found.st_dev, found.st_ino

    def sign(self, *, fresh: bool) -> None:
        """Say in the file who holds it, for those that are refused."""
        text = json.dumps(
            {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "since": datetime.now(UTC).isoformat(timespec="seconds"),
                "fresh": fresh,
            }
        )
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text.encode(), 0)

    def release(self, *, keep: bool = False) -> None:
        """Let go, and take the file away under the lock unless it is to be kept. Idempotent."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            if not keep and _same_file(fd, self.path):
                os.unlink(self.path)
        except OSError:
            pass  # an empty lock file does no harm: only the lock itself refuses anybody
        finally:
            os.close(fd)

    def withdraw(self) -> None:
        """Let go as if it had never been tried: the file goes when this lock made it, and stays as it was otherwise."""
        self.release(keep=not self._made)


class OpenFiles:
    """The identity of the files that a store was opened with, to be compared before each group.

    What it notices cannot be seen through SQLite: a database or a `-wal` that was replaced or unlinked takes every
    write and loses it.
    """

    def __init__(self, store: Path, lock: StoreLock) -> None:
        self._db_path, self._wal_path = os.fspath(store), f"{store}-wal"
        self._folder_path = os.fspath(store.parent)
        self._folder: tuple[int, int, int] | None = None
        self._lock_path = os.fspath(lock.path)
        self._lock = lock.inode
        self._pid = os.getpid()
        self._db = _identity(os.stat(self._db_path))
        self._wal = _identity(os.stat(self._wal_path))
        self._db_state = self._look_at_db()

    @property
    def database(self) -> tuple[int, int]:
        """(device, inode) of the database file."""
        return self._db

    def check(self) -> None:
        """Raise StorageError when a file is not the one that was opened.

        Replacing or unlinking an entry changes its folder's time, so one look at an unchanged folder is enough.
        """
        try:
            folder = os.stat(self._folder_path)
            state = (folder.st_dev, folder.st_ino, folder.st_mtime_ns)
            if state != self._folder:
                self._check_each()
                # A time younger than the kernel's tick may cover another change that is still to come.
                settled = time.time_ns() - folder.st_mtime_ns > GRAIN_NS
                self._folder = state if settled else None
        except FileNotFoundError as error:
            raise self._gone(str(error.filename), "was removed") from error
        except OSError as error:
            raise StorageError(f"cannot look at {error.filename}: {error.strerror}", stored="no") from error
        if os.getpid() != self._pid:
            raise AnotherWriter(
                f"this process is a fork of {self._pid}, which owns {self._db_path}; open the store again",
                stored="no",
            )

    def _check_each(self) -> None:
        opened = {self._db_path: self._db, self._wal_path: self._wal, self._lock_path: self._lock}
        for path, identity in opened.items():
            if _identity(os.stat(path)) != identity:
                raise self._gone(path, "was replaced")

    def log_size(self) -> int:
        """The size of the log in bytes."""
        return os.stat(self._wal_path).st_size

    def _gone(self, path: str, what: str) -> AnotherWriter:
        return AnotherWriter(
            f"{path} {what} while this process had the store open; nothing more is written. "
            "Stop what touches it, look at what is there, then open the store again",
            stored="no",
        )

    def folded(self) -> None:
        """The log was folded into the database: from here on nobody else may change that."""
        self._db_state = self._look_at_db()

    def may_fold(self) -> bool:
        """Whether closing may fold the log into the database file.

        The usual case: everything is as it was. A log that was unlinked, beside a database that nobody has written
        since, is folded too, since it holds acknowledged commits that exist nowhere else. Anything else belongs to
        somebody else by now.
        """
        try:
            self._folder = None
            self.check()
            return True
        except StorageError:
            if os.getpid() != self._pid or os.path.lexists(self._wal_path):
                return False
        try:
            return _identity(os.stat(self._db_path)) == self._db and self._look_at_db() == self._db_state
        except OSError:
            return False

    def _look_at_db(self) -> tuple[int, int]:
        found = os.stat(self._db_path)
        return found.st_size, found.st_mtime_ns


def lock_path(store: Path) -> Path:
    """Where the lock of a store is."""
    return store.with_name(store.name + ".lock")


def file_identity(store: Path) -> tuple[int, int]:
    """(device, inode) of the database file."""
    return _identity(os.stat(store))


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _same_file(fd: int, path: Path) -> bool:
    try:
        return _identity(os.fstat(fd)) == _identity(os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _read_holder(fd: int) -> Holder:
    """What the file says; nothing at all when it says nothing readable."""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return Holder()
        found: object = json.loads(os.pread(fd, 4096, 0))
    except (OSError, ValueError, RecursionError):
        return Holder()
    if not isinstance(found, dict):
        return Holder()
    pid, host, since = found.get("pid"), found.get("host"), found.get("since")
    return Holder(
        pid=pid if isinstance(pid, int) else None,
        host=host[:100] if isinstance(host, str) else None,
        since=since[:40] if isinstance(since, str) else None,
        fresh=found.get("fresh") is True,
    )
