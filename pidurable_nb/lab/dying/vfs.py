"""Owns one registered SQLite VFS per epoch: it records, fails or freezes the file operations of SQLite.

The shim is registered in the very library that `sqlite3` (and so aiosqlite) uses. SQLite's own VFS does all the work:
after it has opened a file, the file's method table is replaced by a patched copy of itself.

Covered are the files that outlive a connection: database, `-wal`, journals. Not covered: `-shm`, which is memory-mapped
and rebuilt by recovery (but its locks can be refused), and temporary files, which SQLite unlinks as it opens them.
Never knows what the rows mean.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import sqlite3
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from pidurable_nb.lab.dying.sqlite_abi import (
    FCNTL_SIZE_HINT,
    OPEN_CREATE,
    OPEN_DELETE_ON_CLOSE,
    OPEN_JOURNALS,
    SHM_LOCK_EXCLUSIVE,
    TESTCTRL_PRNG_SEED,
    XCLOSE,
    XCONTROL,
    XDELETE,
    XOPEN,
    XRANDOMNESS,
    XSHMLOCK,
    XSYNC,
    XTRUNCATE,
    XWRITE,
    File,
    FileMethods,
    VfsUnavailable,
    library,
    named_copy,
)

__all__ = ["FileOp", "Gate", "Kind", "LockGate", "RecordingVfs", "Short", "VfsUnavailable", "replay", "seed_prng"]

Kind: TypeAlias = Literal["write", "truncate", "sync", "delete"]

_REFUSAL: dict[Kind, int] = {
    "write": sqlite3.SQLITE_IOERR_WRITE,
    "truncate": sqlite3.SQLITE_IOERR_TRUNCATE,
    "sync": sqlite3.SQLITE_IOERR_FSYNC,
    "delete": sqlite3.SQLITE_IOERR_DELETE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOp:
    """One operation on a file that outlives its connection.

    `n` counts from 1 within one VFS. `offset` and `data` are those of a write; `size` is the number of bytes of a
    write, or the length that a truncate leaves. `file` is a name without directory. `directory` holds the names that
    are safe from here on, where the operation also syncs the directory: the first sync of a log or a journal, and a
    delete that asks for it.
    """

    n: int
    op: Kind
    file: str
    offset: int | None = None
    data: bytes | None = None
    size: int | None = None
    directory: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Short:
    """What a gate answers to a write of which only the first `size` bytes reach the file; SQLite gets `code`."""

    size: int
    code: int


Gate: TypeAlias = Callable[[FileOp], "int | Short | None"]
"""Asked before each operation: None lets it through, an error code of SQLite is what SQLite gets instead."""

LockGate: TypeAlias = Callable[[int], "int | None"]
"""Asked before an exclusive lock of the log's index is taken, with its number: 0 is the writer's, 1 that of folding."""


def seed_prng(seed: int | None) -> None:
    """Make SQLite's random numbers, so its WAL salts, repeat from here on; None gives true randomness back.

    Process-wide, and therefore for recordings and tests only: files of two runs can be compared byte by byte when each
    run seeds before it opens its store. Raises: `VfsUnavailable`; ValueError for a seed outside 1 to 2^31-1.
    """
    if seed is not None and not 0 < seed < 2**31:
        raise ValueError(f"seed {seed} is outside 1 to 2^31-1")
    library().test_control(ctypes.c_int(TESTCTRL_PRNG_SEED), ctypes.c_int(seed or 0), ctypes.c_void_p(None))


_numbers = itertools.count(1)
_registered: set[RecordingVfs] = set()
"""Keeps alive what SQLite has pointers to: collecting one of these would crash the process."""


class RecordingVfs:
    """Everything SQLite does to the files of `uri(path)` passes here: it is counted, recorded, asked about, or refused.

    Laws: `replay(vfs.ops)` is what the files hold. Once `freeze()` has returned, or a gate has called it, nothing more
    reaches them, whatever the abandoned code and its `finally` blocks try. A frozen VFS never thaws: recover from a
    copy.

    `gate(op)` runs before each operation, in the thread that asked, and may freeze, kill this process, return an error
    code, or return None. It must not wait for another thread: freezing waits for the operation in flight. A gate that
    raises freezes the VFS, since no exception crosses SQLite; it is kept in `failure`.

    `seed` makes this VFS's own `xRandomness` repeat. SQLite asks the default VFS for its generator: see `seed_prng`.
    Raises: `VfsUnavailable`.
    """

    def __init__(
        self,
        *,
        record: bool = True,
        gate: Gate | None = None,
        lock_gate: LockGate | None = None,
        seed: int | None = None,
    ) -> None:
        self.ops: list[FileOp] = []
        """What reached the files, in order. Empty when not recording."""
        self.blocked: list[FileOp] = []
        """What was tried after the freeze, without its data."""
        self.marks: list[tuple[int, str]] = []
        """What else happened, with the number of the last operation before it."""
        self.failure: BaseException | None = None
        """What the gate raised."""
        self.name = f"pidurable-{next(_numbers)}"
        self._record = record
        self._gate = gate
        self._lock_gate = lock_gate
        self._random = None if seed is None else random.Random(seed)
        self._asked = 0
        self._frozen = False
        self._lock = threading.RLock()
        self._files: dict[int, str] = {}
        self._names: set[str] = set()
        self._entry_unsynced: set[int] = set()
        self._methods: dict[int, FileMethods] = {}
        self._callbacks: list[object] = []
        self._closing = False
        _release_closed()
        self._register()

    def _register(self) -> None:
        self._library = library()
        base = self._library.default_vfs()
        self._base = ctypes.addressof(base)
        self._base_open = XOPEN(base.xOpen)
        self._base_delete = XDELETE(base.xDelete)
        self._vfs, self._name_buffer = named_copy(base, self.name)
        self._vfs.xOpen = self._pointer(XOPEN(self._on_open))
        self._vfs.xDelete = self._pointer(XDELETE(self._on_delete))
        if self._random is not None:
            self._vfs.xRandomness = self._pointer(XRANDOMNESS(self._on_randomness))
        code = self._library.vfs_register(ctypes.addressof(self._vfs), 0)
        if code != sqlite3.SQLITE_OK:
            raise VfsUnavailable(f"SQLite refused to register {self.name}: error code {code}")
        _registered.add(self)

    def __repr__(self) -> str:
        state = "frozen" if self._frozen else "closed" if self._closing else "open"
        return f"<RecordingVfs {self.name} {state}, {self.count} operations>"

    @property
    def count(self) -> int:
        """Operations so far that were not blocked: `count + 1` is the `n` of the next."""
        return self._asked - len(self.blocked)

    @property
    def frozen(self) -> bool:
        """Whether nothing reaches the files any more."""
        return self._frozen

    def uri(self, path: Path) -> str:
        """What `sqlite3.connect(..., uri=True)` takes to open `path` through this VFS; `&mode=ro` may follow."""
        return f"{path.absolute().as_uri()}?vfs={self.name}"

    def mark(self, label: str) -> None:
        """Note that something happened between two file operations. Nothing happens after a freeze."""
        with self._lock:
            if not self._frozen:
                self.marks.append((self.count, label))

    def freeze(self) -> None:
        """From here on no operation reaches the files; one that another thread has in flight is complete on return."""
        with self._lock:
            self._frozen = True

    def close(self) -> bool:
        """Take the name from SQLite and say whether the object is free; with open files it is kept until they close."""
        if not self._closing:
            self._library.vfs_unregister(ctypes.addressof(self._vfs))
            self._closing = True
        _release_closed()
        return self not in _registered

    # What SQLite calls. A callback must never raise: ctypes would answer OK for an operation that did not happen.

    def _pointer(self, callback: ctypes._CFunctionType) -> int | None:
        self._callbacks.append(callback)
        return ctypes.cast(callback, ctypes.c_void_p).value

    def _on_open(self, _vfs: int, name: int | None, file: int, flags: int, flags_out: int | None) -> int:
        opened = File.from_address(file)
        opened.pMethods = None
        try:
            with self._lock:
                if self._frozen:
                    return sqlite3.SQLITE_CANTOPEN
                code: int = self._base_open(self._base, name, file, flags, flags_out)
                table: int | None = opened.pMethods
                if code == sqlite3.SQLITE_OK and table and name is not None and not flags & OPEN_DELETE_ON_CLOSE:
                    self._files[file] = _basename(name)
                    self._names.add(self._files[file])
                    if flags & OPEN_CREATE and flags & OPEN_JOURNALS:
                        self._entry_unsynced.add(file)
                    opened.pMethods = ctypes.addressof(self._patched(table))
                return code
        except BaseException as error:
            return self._fail(error, sqlite3.SQLITE_CANTOPEN)

    def _on_delete(self, _vfs: int, name: int, sync_directory: int) -> int:
        file = _basename(name)

        def do() -> int:
            code: int = self._base_delete(self._base, name, sync_directory)
            if code == sqlite3.SQLITE_OK:
                self._names.discard(file)
            return code

        directory = tuple(sorted(self._names - {file})) if sync_directory else None
        return self._through("delete", file, do, directory=directory)

    def _on_randomness(self, _vfs: int, size: int, out: int) -> int:
        if self._random is not None:
            ctypes.memmove(out, self._random.randbytes(size), size)
        return size

    def _patched(self, address: int) -> FileMethods:
        """The method table at `address` with the changing methods replaced; one copy per table, used by many files."""
        if address in self._methods:
            return self._methods[address]
        methods = FileMethods.from_buffer_copy(FileMethods.from_address(address))
        close, write, truncate = XCLOSE(methods.xClose), XWRITE(methods.xWrite), XTRUNCATE(methods.xTruncate)
        sync, control = XSYNC(methods.xSync), XCONTROL(methods.xFileControl)
        files = self._files
        entry_unsynced = self._entry_unsynced

        def on_close(file: int) -> int:
            code: int = close(file)
            files.pop(file, None)
            entry_unsynced.discard(file)
            return code

        def on_write(file: int, data: int, size: int, offset: int) -> int:
            def part(size: int) -> int:
                code: int = write(file, data, size, offset)
                return code

            return self._through(
                "write", files[file], lambda: part(size), offset=offset, size=size, data=data, part=part
            )

        def on_truncate(file: int, size: int) -> int:
            return self._through("truncate", files[file], lambda: truncate(file, size), size=size)

        def on_sync(file: int, flags: int) -> int:
            def do() -> int:
                code: int = sync(file, flags)
                if code == sqlite3.SQLITE_OK:
                    entry_unsynced.discard(file)
                return code

            directory = tuple(sorted(self._names)) if file in entry_unsynced else None
            return self._through("sync", files[file], do, directory=directory)

        def on_control(file: int, request: int, argument: int | None) -> int:
            # With memory-mapped I/O a size hint makes the file longer behind xWrite's back; a hint may be ignored.
            if request == FCNTL_SIZE_HINT:
                return sqlite3.SQLITE_OK
            code: int = control(file, request, argument)
            return code

        methods.xClose = self._pointer(XCLOSE(on_close))
        methods.xWrite = self._pointer(XWRITE(on_write))
        methods.xTruncate = self._pointer(XTRUNCATE(on_truncate))
        methods.xSync = self._pointer(XSYNC(on_sync))
        methods.xFileControl = self._pointer(XCONTROL(on_control))
        if self._lock_gate is not None and methods.xShmLock:
            methods.xShmLock = self._pointer(XSHMLOCK(self._locking(methods.xShmLock, self._lock_gate)))
        self._methods[address] = methods
        return methods

    def _locking(self, base: int, gate: LockGate) -> Callable[[int, int, int, int], int]:
        """`xShmLock` that asks first."""
        lock = XSHMLOCK(base)

        def on_lock(file: int, slot: int, count: int, flags: int) -> int:
            try:
                refused = gate(slot) if flags & SHM_LOCK_EXCLUSIVE == SHM_LOCK_EXCLUSIVE else None
            except BaseException as error:
                return self._fail(error, sqlite3.SQLITE_IOERR_SHMLOCK)
            code: int = refused or lock(file, slot, count, flags)
            return code

        return on_lock

    def _through(
        self,
        kind: Kind,
        file: str,
        do: Callable[[], int],
        *,
        offset: int | None = None,
        size: int | None = None,
        data: int | None = None,
        part: Callable[[int], int] | None = None,
        directory: tuple[str, ...] | None = None,
    ) -> int:
        """Count, ask, do and record one operation; the answer is SQLite's code."""
        try:
            with self._lock:
                self._asked += 1
                if self._frozen:
                    self.blocked.append(FileOp(n=self._asked, op=kind, file=file, offset=offset, size=size))
                    return _REFUSAL[kind]
                if self._gate is None and not self._record:
                    return do()
                taken = None if data is None or size is None else ctypes.string_at(data, size)
                op = FileOp(
                    n=self._asked, op=kind, file=file, offset=offset, data=taken, size=size, directory=directory
                )
                return self._judge(op, do, part)
        except BaseException as error:
            return self._fail(error, _REFUSAL[kind])

    def _judge(self, op: FileOp, do: Callable[[], int], part: Callable[[int], int] | None) -> int:
        fault = None if self._gate is None else self._gate(op)
        if self._frozen:
            self.blocked.append(FileOp(n=op.n, op=op.op, file=op.file, offset=op.offset, size=op.size))
            return _REFUSAL[op.op]
        if isinstance(fault, Short):
            return self._cut(op, fault, part)
        code = fault or do()
        if code == sqlite3.SQLITE_OK and self._record:
            self.ops.append(op)
        return code

    def _cut(self, op: FileOp, short: Short, part: Callable[[int], int] | None) -> int:
        """Do and record a piece of a write; of any other operation, nothing."""
        if part is not None and op.data is not None and 0 < short.size < len(op.data):
            done = part(short.size)
            if done == sqlite3.SQLITE_OK and self._record:
                self.ops.append(replace(op, data=op.data[: short.size], size=short.size))
        return short.code

    def _fail(self, error: BaseException, code: int) -> int:
        self._frozen = True
        self.failure = error
        return code


def _basename(name: int) -> str:
    return os.path.basename(os.fsdecode(ctypes.string_at(name)))


def _release_closed() -> None:
    for vfs in list(_registered):
        if vfs._closing and not vfs._files:
            _registered.discard(vfs)


def replay(ops: Iterable[FileOp]) -> dict[str, bytes]:
    """What each file holds after these operations, starting from an empty directory.

    A file that was opened and never written is not in it; SQLite makes no difference between an empty file and none.
    """
    files: dict[str, bytearray] = {}
    for op in ops:
        if op.op == "write":
            if op.data is None or op.offset is None:
                raise ValueError(f"operation {op.n} on {op.file} was blocked or not recorded: its data is not known")
            content = files.setdefault(op.file, bytearray())
            content.extend(bytes(max(0, op.offset - len(content))))
            content[op.offset : op.offset + len(op.data)] = op.data
        elif op.op == "truncate":
            content = files.setdefault(op.file, bytearray())
            size = op.size or 0
            content.extend(bytes(max(0, size - len(content))))
            del content[size:]
        elif op.op == "delete":
            files.pop(op.file, None)
    return {name: bytes(content) for name, content in files.items()}
