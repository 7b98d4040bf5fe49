"""Owns what the C interface of a VFS looks like from Python, and which loaded library is the one behind `sqlite3`.

Another copy of SQLite would not see what is registered here, and two copies on one file corrupt its locks; so a library
counts only when `sqlite3` proves to see a registration made in it. Never touches a file.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sqlite3
from collections.abc import Sequence
from ctypes.util import find_library

from pidurable_nb.errors import PidurableError

OPEN_CREATE = 0x4
OPEN_DELETE_ON_CLOSE = 0x8
OPEN_JOURNALS = 0x800 | 0x4000 | 0x80000
"""Main journal, super-journal, log: SQLite's VFS syncs the directory with the first sync of such a file."""
SHM_LOCK_EXCLUSIVE = 0x2 | 0x8
FCNTL_SIZE_HINT = 5
TESTCTRL_PRNG_SEED = 28


class VfsUnavailable(PidurableError):
    """The library behind `sqlite3` cannot be reached: no recording and no freezing in this Python; kills still work."""


# A file name stays a raw pointer: the unix VFS keeps it until the file closes, and c_char_p would hand it a copy.
XOPEN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
XDELETE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
XRANDOMNESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
XCLOSE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
XWRITE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
XTRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
XSYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
XSHMLOCK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int)
XCONTROL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)

_VFS_METHODS = (
    *("xOpen", "xDelete", "xAccess", "xFullPathname", "xDlOpen", "xDlError", "xDlSym", "xDlClose", "xRandomness"),
    *("xSleep", "xCurrentTime", "xGetLastError", "xCurrentTimeInt64"),
    *("xSetSystemCall", "xGetSystemCall", "xNextSystemCall"),
)
_FILE_METHODS = (
    *("xClose", "xRead", "xWrite", "xTruncate", "xSync", "xFileSize", "xLock", "xUnlock", "xCheckReservedLock"),
    *("xFileControl", "xSectorSize", "xDeviceCharacteristics"),
    *("xShmMap", "xShmLock", "xShmBarrier", "xShmUnmap", "xFetch", "xUnfetch"),
)


class Vfs(ctypes.Structure):
    """`sqlite3_vfs`, version 3."""

    _fields_ = [
        ("iVersion", ctypes.c_int),
        ("szOsFile", ctypes.c_int),
        ("mxPathname", ctypes.c_int),
        ("pNext", ctypes.c_void_p),
        ("zName", ctypes.c_void_p),
        ("pAppData", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _VFS_METHODS),
    ]


class FileMethods(ctypes.Structure):
    """`sqlite3_io_methods`, version 3."""

    _fields_ = [("iVersion", ctypes.c_int), *((name, ctypes.c_void_p) for name in _FILE_METHODS)]


class File(ctypes.Structure):
    """The one field of `sqlite3_file` that is not private to its VFS."""

    _fields_ = [("pMethods", ctypes.c_void_p)]


def named_copy(base: Vfs, name: str) -> tuple[Vfs, ctypes.Array[ctypes.c_char]]:
    """A copy of SQLite's own VFS under another name, and the buffer of that name, which must live as long."""
    copy = Vfs.from_buffer_copy(base)
    buffer = ctypes.create_string_buffer(name.encode())
    copy.pNext = None
    copy.zName = ctypes.addressof(buffer)
    return copy, buffer


class SqliteLibrary:
    """The functions of one loaded SQLite library that a VFS needs, proven to be the library behind `sqlite3`.

    Raises: `VfsUnavailable` when none of `candidates` is that library; the message says why for each.
    """

    def __init__(self, candidates: Sequence[str | None]) -> None:
        reasons: list[str] = []
        for path in candidates:
            reason = self._try(path)
            if reason is None:
                return
            reasons.append(f"{path or 'this process'}: {reason}")
        raise VfsUnavailable(
            f"the SQLite library behind sqlite3 {sqlite3.sqlite_version} cannot be reached, so its file operations can "
            f"be neither recorded nor frozen ({'; '.join(reasons)}). Use a Python whose _sqlite3 module links to a "
            "shared libsqlite3, or real kills through the fork server."
        )

    def _try(self, path: str | None) -> str | None:
        """Take the library at `path`, or say why not."""
        try:
            library = ctypes.CDLL(path)
            self.vfs_find = library.sqlite3_vfs_find
            self.vfs_register = library.sqlite3_vfs_register
            self.vfs_unregister = library.sqlite3_vfs_unregister
            self.test_control = library.sqlite3_test_control
            libversion = library.sqlite3_libversion
        except (OSError, AttributeError) as error:
            return str(error)
        libversion.restype = ctypes.c_char_p
        self.vfs_find.argtypes, self.vfs_find.restype = [ctypes.c_char_p], ctypes.POINTER(Vfs)
        self.vfs_register.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self.vfs_unregister.argtypes = [ctypes.c_void_p]
        version = libversion().decode()
        if version != sqlite3.sqlite_version:
            return f"is SQLite {version}"
        base = self.vfs_find(None)
        if not base or base.contents.iVersion < 3:
            return "has no default VFS of version 3"
        return None if self._seen_by_sqlite3() else "is another copy of SQLite than the one sqlite3 uses"

    def _seen_by_sqlite3(self) -> bool:
        """Whether `sqlite3` sees what is registered here: two copies of one version cannot be told apart otherwise."""
        name = f"pidurable-probe-{os.getpid()}"
        vfs, _buffer = named_copy(self.default_vfs(), name)
        self.vfs_register(ctypes.addressof(vfs), 0)
        try:
            sqlite3.connect(f"file::memory:?vfs={name}", uri=True).close()
        except sqlite3.OperationalError:
            return False
        finally:
            self.vfs_unregister(ctypes.addressof(vfs))
        return True

    def default_vfs(self) -> Vfs:
        """SQLite's own VFS, as it is in the library."""
        base: Vfs = self.vfs_find(None).contents
        return base


@functools.cache
def library() -> SqliteLibrary:
    """The library behind `sqlite3`: beside its module, in this process, or the system's, whichever proves to be it.

    Raises: `VfsUnavailable` when it is none of them, as with an interpreter that hides a built-in SQLite.
    """
    import _sqlite3

    beside = getattr(_sqlite3, "__file__", None)
    system = find_library("sqlite3")
    return SqliteLibrary([*([beside] if beside else []), None, *([system] if system else [])])
