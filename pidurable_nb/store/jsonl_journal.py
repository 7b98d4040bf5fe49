"""Owns how commits reach the folder of a JSONL store: the order of its file operations, and what is known when one of
them fails. Never knows what a record means.

The order is what a crash tests: sidecars first, then the line of the commit; and nothing is removed before the line
that makes it unnecessary is there, and on disk where the store syncs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from pidurable_nb.errors import AnotherWriter, StorageError, Stored
from pidurable_nb.store.copying import named
from pidurable_nb.store.jsonl_files import Files, Step, append_all, classify
from pidurable_nb.store.jsonl_lines import Mark, Opening, Ref, checksum, mark_line, marker_line, opening_line
from pidurable_nb.store.jsonl_recovery import MAIN, Found
from pidurable_nb.store.jsonl_sidecars import Sidecars
from pidurable_nb.store.jsonl_tables import Addition, Prepared
from pidurable_nb.store.ownership import StoreLock


class Journal:
    """The folder of one store, open for writing."""

    def __init__(self, folder: Path, files: Files, lock: StoreLock, *, fsync: bool) -> None:
        self._path = folder / MAIN
        self._files = files
        self._fsync = fsync
        self._sidecars = Sidecars(folder, files, fsync=fsync)
        self._lock_path = os.fspath(lock.path)
        self._lock = lock.inode
        self._pid = os.getpid()
        self._fd = -1
        self._identity = (0, 0)
        self._size = 0
        self._synced = 0
        self._marked = 0
        """How much of the file the newest line in it says is on disk."""
        self._broken: BaseException | None = None

    @property
    def at_home(self) -> bool:
        """Whether this is the process that opened the folder, and not a fork of it."""
        return os.getpid() == self._pid

    # --- Opening --------------------------------------------------------------------------------------------------

    def take(self, found: Found) -> None:
        """Open `main.jsonl`, cut off what a crash left behind, and remove what nothing needs. Raises: OSError."""
        self._fd = self._files.open(self._path, new=found.main is None)
        stat = os.fstat(self._fd)
        self._identity = (stat.st_dev, stat.st_ino)
        if found.main is not None:
            self._size = found.main.good
            if found.main.torn:
                self._files.truncate(self._fd, self._size)
        if self._fsync:
            self._files.fsync(self._fd)
            self._synced = self._size
        if found.opening is None:
            if self._fsync:
                self._files.fsync_dir(self._path.parent)
                self._files.fsync_dir(self._path.parent.parent)
            return
        # Lines of an opening that did not sync count as much as others: a barrier behind them covers them too.
        unsynced = self._fsync and not found.opening.fsync
        self._sidecars.take(found.sidecars, cuts=found.cuts, removals=found.removals, sync=unsynced)

    @property
    def file(self) -> str:
        """What tells this `main.jsonl` from a copy of it. (Another device number may only be another day.)"""
        return str(self._identity[1])

    @property
    def synced(self) -> int:
        """How many bytes of `main.jsonl` are on disk for sure."""
        return self._synced

    def sign(self, opening: Opening) -> None:
        """Append the line of this opening. Raises: OSError."""
        self._write(opening_line(opening))
        self._marked = opening.synced
        if self._fsync:
            self._sync()

    # --- Commits --------------------------------------------------------------------------------------------------

    def append(self, group: Sequence[Prepared], *, barrier: bool) -> None:
        """Publish the commits of a group, in order.

        Durability: on return they survive a kill; with `barrier`, where the store syncs, also a power cut.
        Raises: StorageError with its class (F4); AnotherWriter (F5). Nothing more is written after either.
        """
        self.check()
        additions = [addition for prepared in group for addition in prepared.additions]
        at: Step = "sidecar"
        before = self._size
        try:
            self._sidecars.append(additions)
            at = "main"
            self._write(b"".join([self._line(prepared) for prepared in group]))
            self._marked = self._synced
            at = "sync"
            if barrier and self._fsync:
                self._sync()
                self._mark()  # or damage to the newest line would look like a tail that was never synced
        except BaseException as error:
            self._broken = error
            self._fail(error, at, before)
        self._sidecars.confirm(additions, [name for prepared in group for name in prepared.ended])

    def _line(self, prepared: Prepared) -> bytes:
        refs = [_ref(addition) for addition in prepared.additions]
        return marker_line(
            seq=prepared.seq, next_id=prepared.next_id, rows=prepared.rows, refs=refs, synced=self._synced
        )

    def _fail(self, error: BaseException, at: Step, before: int) -> NoReturn:
        if not isinstance(error, Exception) or isinstance(error, AnotherWriter):
            raise error
        stored: Stored = classify(error, at=at, taken_back=at == "main" and self._taken_back(before))
        known = "nothing of it is stored" if stored == "no" else "whether it is stored is unknown"
        raise StorageError(f"the commit failed: {error}; {known}. Open the store again", stored=stored) from error

    def _taken_back(self, before: int) -> bool:
        """Cut off what was written of the lines; False when that failed too."""
        try:
            self._files.truncate(self._fd, before)
            if self._fsync:
                self._files.fsync(self._fd)  # or the lines that were whole could come back after a power cut
            return True
        except OSError:
            return False

    def _write(self, data: bytes) -> None:
        append_all(self._files, self._fd, data)
        self._size += len(data)

    def _sync(self) -> None:
        self._files.fsync(self._fd)
        self._synced = self._size

    # --- Housekeeping ---------------------------------------------------------------------------------------------

    def maintain(self, *, closing: bool = False) -> None:
        """Say how far `main.jsonl` is on disk, and reclaim space when it is worth it.

        A flush that fails ends the store, before anything is removed: after a failed one the system may call the next
        one a success though the data is lost, and the next barrier would be a lie.
        Raises: StorageError.
        """
        self.check()
        try:
            removals, rewrites = self._sidecars.due(closing=closing)
            if self._fsync and self._synced < self._size and (removals or rewrites or closing):
                self._sync()
            if self._marked < self._synced:
                self._mark()
            if removals or rewrites:
                self._sidecars.reclaim(removals, rewrites)
        except OSError as error:
            self._broken = error
            raise StorageError(
                f"keeping {named(self._path.parent)} in order failed: {error}; everything that was acknowledged is "
                "stored. Open the store again",
                stored="unknown",
            ) from error
        except BaseException as error:
            self._broken = error
            raise

    def _mark(self) -> None:
        self._write(mark_line(Mark(synced=self._synced)))
        self._marked = self._synced

    # --- Whose files they are -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise unless this process still owns the store, and `main.jsonl` is as it left it (F5).

        Raises: AnotherWriter; StorageError after an earlier failure.
        """
        if not self.at_home:
            raise AnotherWriter(
                f"this process is a fork of {self._pid}, which owns {named(self._path.parent)}; open the store again",
                stored="no",
            )
        if self._broken is not None:
            raise StorageError(
                f"{named(self._path.parent)} failed earlier ({self._broken}); nothing more is written. Open it again",
                stored="no",
            ) from self._broken
        try:
            main, lock = os.stat(self._path), os.stat(self._lock_path)
        except FileNotFoundError as error:
            raise self._gone(f"{named(Path(str(error.filename)))} was removed") from error
        except OSError as error:
            raise StorageError(f"cannot look at {error.filename}: {error.strerror}", stored="no") from error
        if (lock.st_dev, lock.st_ino) != self._lock:
            raise self._gone(f"{self._lock_path} was replaced")
        if (main.st_dev, main.st_ino) != self._identity:
            raise self._gone(f"{named(self._path)} was replaced")
        if main.st_size != self._size:
            raise self._gone(
                f"somebody else wrote to {named(self._path)}: it has {main.st_size} bytes, where this process left "
                f"{self._size}"
            )

    def _gone(self, what: str) -> AnotherWriter:
        return AnotherWriter(
            f"{what}; nothing more is written. Stop what touches the store, look at what is there, then open it again",
            stored="no",
        )

    def close(self) -> None:
        """Let go of every descriptor. Writes nothing."""
        self._sidecars.close()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with suppress(OSError):
                self._files.close(fd)


def _ref(addition: Addition) -> Ref:
    return Ref(file=addition.file, length=len(addition.data), sum=checksum(addition.data), whole=addition.whole)
