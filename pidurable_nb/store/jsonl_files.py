"""Owns the file operations of a JSONL store: each is one call, so that it can be recorded, failed or stopped one by
one. Never knows what a file holds.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final, Literal, Protocol

from pidurable_nb.errors import HostileStore, Stored, StoreRefused
from pidurable_nb.store.copying import named

Step = Literal["sidecar", "main", "sync"]
"""Where a commit was when a file operation failed: before its line, at its line, behind it."""

_OPEN: Final = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Files(Protocol):
    """What changes files. Every method may raise OSError, and may then have done a part of its work."""

    def open(self, path: Path, *, new: bool) -> int:
        """A descriptor for appending; with `new` of a file that is not there yet."""
        ...

    def append(self, fd: int, data: bytes) -> int:
        """Write at the end of the file; how many bytes of `data` are written."""
        ...

    def truncate(self, fd: int, length: int) -> None: ...

    def fsync(self, fd: int) -> None: ...

    def rename(self, old: Path, new: Path) -> None:
        """Put one file in the place of another."""
        ...

    def unlink(self, path: Path) -> None: ...

    def fsync_dir(self, folder: Path) -> None: ...

    def close(self, fd: int) -> None: ...


class RealFiles:
    """The operations of the system."""

    def open(self, path: Path, *, new: bool) -> int:
        """A descriptor for appending."""
        return os.open(path, _OPEN | (os.O_CREAT | os.O_EXCL if new else 0), 0o644)

    def append(self, fd: int, data: bytes) -> int:
        """Write at the end of the file."""
        return os.write(fd, data)

    def truncate(self, fd: int, length: int) -> None:
        """Cut the file."""
        os.ftruncate(fd, length)

    def fsync(self, fd: int) -> None:
        """Bring content and size to the disk."""
        os.fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        """Put one file in the place of another."""
        os.replace(old, new)

    def unlink(self, path: Path) -> None:
        """Remove the file."""
        os.unlink(path)

    def fsync_dir(self, folder: Path) -> None:
        """Bring the folder's entries to the disk."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self, fd: int) -> None:
        """Let go of a descriptor."""
        os.close(fd)


def append_all(files: Files, fd: int, data: bytes) -> None:
    """Append until everything is written. Raises: OSError; a beginning may be written then."""
    done = files.append(fd, data)
    while done < len(data):
        done += files.append(fd, data[done:])


def classify(error: BaseException, *, at: Step, taken_back: bool) -> Stored:
    """F4: what is known about the commit that met `error`.

    A commit is its line in `main.jsonl`: what fails before that is written proves that nothing is stored. A disk that
    is full took a beginning of the line at most, which proves the same once it is cut off again. Everything else is
    unknown.
    """
    if at == "sidecar":
        return "no"
    full = isinstance(error, OSError) and error.errno in _FULL
    return "no" if at == "main" and full and taken_back else "unknown"


def read_whole(path: Path) -> bytes | None:
    """The content, None where nothing has that name. Raises: HostileStore for no regular file; StoreRefused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreRefused(
            f"{named(path)} cannot be read: {error.strerror}; change its permissions, or look at a copy", path=path
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise HostileStore(f"{named(path)} is no regular file; do not open this folder", path=path)
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    except OSError as error:
        raise StoreRefused(f"{named(path)} cannot be read: {error.strerror}; restore a copy", path=path) from error
    finally:
        os.close(fd)
