"""Owns the stable copy of a store's two files, without a lock and without a trace beside the original.

Plain standard library and no import of this package, because it is also run as a program, by its path: closing a
database file drops every POSIX lock that the process holds on it, so a process that has the store open lets another
one read it. Never opens `-shm`, never follows a `-wal` elsewhere, never copies a rollback journal (one may name other
files to delete).
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from dataclasses import dataclass

TRIES = 5
MAGIC = b"SQLite format 3\0"
SMALLEST_PAGE = 512
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
WAL_HEADER = 32
CHUNK = 1 << 20
GRAIN_NS = 20_000_000
"""Times of files are as coarse as the kernel's tick: a younger file may change again without a new time."""
PAUSE_S = 0.05
REFUSED_STATUS = 3

_READ = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class CarryRefused(Exception):
    """The copy is refused: `kind` is that of a StoreRefused, `text` goes on after the file's name."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


@dataclass(frozen=True, slots=True)
class _Look:
    """What would differ if somebody checkpointed, reset the log or replaced a file meanwhile."""

    db: tuple[int, int, int, int]
    wal: tuple[int, int] | None
    wal_header: bytes
    journal: bool


def carry(source: str, target: str, most: int) -> None:
    """Copy `source`, and its `-wal` if there is one, to `target`, as they were at one moment.

    Frames that are appended to the log meanwhile do no harm: the copy holds the commits that were whole when it was
    read. What must not change is the database file and the log's header; five tries.
    Raises: CarryRefused. Nothing is left at `target` then.
    """
    looked = _look(source, most)
    _recognise(source, looked.db[2])
    made: list[str] = []
    try:
        db = _create(target, made)
        try:
            wal = _create(target + "-wal", made)
            try:
                _until_stable(source, db, wal, most)
                empty = os.fstat(wal).st_size == 0
            finally:
                os.close(wal)
        finally:
            os.close(db)
        if empty:
            os.unlink(target + "-wal")
    except BaseException:
        for path in made:
            if os.path.lexists(path):
                os.unlink(path)
        raise


def _until_stable(source: str, db: int, wal: int, most: int) -> None:
    journal = False
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S * attempt)
        before = _settled(source, most)
        journal = before.journal
        if journal:
            continue
        _pour(source, db, most)
        if before.wal is None:
            os.ftruncate(wal, 0)
        else:
            _pour(source + "-wal", wal, most)
        if _look(source, most) == before:
            return
    if journal:
        raise CarryRefused(
            "damaged",
            "stands beside the rollback journal of an unfinished transaction; "
            "let the program that wrote it open it once, then try again",
        )
    raise CarryRefused(
        "busy", f"kept changing while it was copied, {TRIES} times; try again, or stop the process that writes it"
    )


def _settled(source: str, most: int) -> _Look:
    """A look at a database file whose time is old enough for the next change to give it another one."""
    looked = _look(source, most)
    age = time.time_ns() - looked.db[3]
    if 0 <= age < GRAIN_NS:
        time.sleep((GRAIN_NS - age) / 1e9)
        looked = _look(source, most)
    return looked


def _look(source: str, most: int) -> _Look:
    found = _stat(source)
    if found is None:
        raise CarryRefused("not_a_store", "does not exist; name the file of a store")
    if stat.S_ISDIR(found.st_mode):
        raise CarryRefused("not_a_store", "is a directory; name the file of a store")
    if not stat.S_ISREG(found.st_mode):
        raise CarryRefused("not_a_store", "is no regular file; name the file of a store")
    log = _stat(source + "-wal")
    if log is not None and not stat.S_ISREG(log.st_mode):
        raise CarryRefused("hostile", "has a -wal beside it that is no regular file; do not open it")
    header = b"" if log is None else _head(source + "-wal", WAL_HEADER)
    if found.st_size > most and _head(source, len(MAGIC)) == MAGIC:
        raise CarryRefused("hostile", f"is {found.st_size:,} bytes, over the limit of {most:,}; raise the limit")
    if log is not None and log.st_size > most:
        raise CarryRefused("hostile", f"has a -wal of {log.st_size:,} bytes, over the limit of {most:,}")
    return _Look(
        db=(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns),
        wal=(log.st_dev, log.st_ino) if log is not None and header else None,
        wal_header=header,
        journal=_head(source + "-journal", len(JOURNAL_MAGIC)) == JOURNAL_MAGIC,
    )


def _recognise(source: str, size: int) -> None:
    head = _head(source, len(MAGIC))
    if not head:
        raise CarryRefused("not_a_store", "is empty; name the file of a store")
    if not MAGIC.startswith(head):
        raise CarryRefused("not_a_store", "is no SQLite database; name the file of a store")
    if size < SMALLEST_PAGE:
        raise CarryRefused("damaged", f"is cut off after {size} bytes; restore a copy")


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(error) from error


def _head(path: str, size: int) -> bytes:
    """The first bytes of a regular file; none when there is no such file."""
    found = _stat(path)
    if found is None or not stat.S_ISREG(found.st_mode):
        return b""
    try:
        file = os.open(path, _READ)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise _unreadable(error) from error
    try:
        return os.pread(file, size, 0)
    except OSError as error:
        raise _unreadable(error) from error
    finally:
        os.close(file)


def _pour(path: str, target: int, most: int) -> None:
    """The bytes of `path` replace those of `target`."""
    try:
        file = os.open(path, _READ)
    except FileNotFoundError:
        os.ftruncate(target, 0)
        return  # the second look sees that it is gone
    except OSError as error:
        raise _unreadable(error) from error
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise CarryRefused("hostile", "was replaced by something else while it was copied; do not open it")
        taken = 0
        _store(target, b"", 0)
        while taken <= most:
            try:
                chunk = os.pread(file, CHUNK, taken)
            except OSError as error:
                raise _unreadable(error) from error
            if not chunk:
                return
            _store(target, chunk, taken)
            taken += len(chunk)
        raise CarryRefused("hostile", f"grew over the limit of {most:,} bytes while it was copied")
    finally:
        os.close(file)


def _store(target: int, chunk: bytes, at: int) -> None:
    try:
        if not at:
            os.ftruncate(target, 0)
        while chunk:
            written = os.pwrite(target, chunk, at)
            chunk, at = chunk[written:], at + written
    except OSError as error:
        raise CarryRefused("refused", f"could not be copied: {error.strerror}; make room and try again") from error


def _create(path: str, made: list[str]) -> int:
    try:
        file = os.open(path, _WRITE, 0o600)
    except OSError as error:
        raise CarryRefused("refused", f"could not be copied: {error.strerror} at the copy's place") from error
    made.append(path)
    return file


def _unreadable(error: OSError) -> CarryRefused:
    return CarryRefused("refused", f"cannot be read: {error.strerror}; look at its permissions and its disk")


def _main(source: str, target: str, most: str) -> int:
    try:
        carry(source, target, int(most))
    except CarryRefused as refused:
        sys.stdout.write(json.dumps({"kind": refused.kind, "text": refused.text}))
        return REFUSED_STATUS
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(*sys.argv[1:]))
