"""Owns a folder that is open for writing: its lock, its tables and its journal, from refusing it to letting it go.

Never knows what is written. What is acquired is let go in every case, in the other order.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pidurable_nb.errors import StorageError, StoreRefused
from pidurable_nb.ids import Seq
from pidurable_nb.store.copying import named
from pidurable_nb.store.jsonl_files import Files
from pidurable_nb.store.jsonl_journal import Journal
from pidurable_nb.store.jsonl_lines import FORMAT, Opening
from pidurable_nb.store.jsonl_recovery import MAIN, Found, recover
from pidurable_nb.store.jsonl_tables import Tables
from pidurable_nb.store.memory_tables import roll_back
from pidurable_nb.store.ownership import StoreLock
from pidurable_nb.store.storage import Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A folder that this process owns."""

    tables: Tables
    journal: Journal
    lock: StoreLock
    opening: Opening
    notes: tuple[str, ...]

    def commit(self, group: Sequence[Commit], next_id: int) -> tuple[Seq, ...]:
        """Store all commits of the group; on return the tables hold them, and on an error they do not.

        Raises: StorageError with its class (F4); AnotherWriter (F5); NotJson.
        """
        prepared, undo = self.tables.apply(group, next_id=next_id)
        try:
            self.journal.append(prepared, barrier=any(commit.barrier for commit in group))
        except BaseException:
            roll_back(undo)
            raise
        return tuple([part.seq for part in prepared])

    def let_go(self) -> None:
        """Bring the folder in order, close it, free the lock. A folder that is somebody else's by now is left alone.

        Raises: StorageError when bringing it in order failed; it is let go all the same.
        """
        try:
            self.journal.check()
        except StorageError:
            pass
        else:
            self.journal.maintain(closing=True)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close and free everything as it is. Idempotent."""
        self.journal.close()
        self.lock.release(keep=not self.journal.at_home)


def hold(folder: Path, files: Files, *, fsync: bool) -> Holding:
    """Take the folder for writing: lock, read, repair, sign.

    Durability: no record changes. A refusal leaves the folder as it was.
    Raises: StoreRefused and its family; StorageError when it could not be repaired or signed.
    """
    _make(folder)
    lock = StoreLock(folder / MAIN)
    try:
        found = recover(folder)
    except BaseException:
        lock.withdraw()
        raise
    journal = Journal(folder, files, lock, fsync=fsync)
    try:
        lock.sign(fresh=False)
        journal.take(found)
        opening = _opening(found, journal, fsync=fsync)
        journal.sign(opening)
    except BaseException as error:
        journal.close()
        lock.release()
        if isinstance(error, OSError):
            raise StorageError(
                f"{named(folder)} is not opened: {error}; what was acknowledged is still there", stored="no"
            ) from error
        raise
    return Holding(tables=found.tables, journal=journal, lock=lock, opening=opening, notes=_notes(found, opening))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreRefused(
            f"{named(folder)} cannot be made: {error.strerror} at {error.filename}; name another place", path=folder
        ) from error


def _opening(found: Found, journal: Journal, *, fsync: bool) -> Opening:
    before, file = found.opening, journal.file
    same = before is not None and before.file == file
    return Opening(
        format=FORMAT,
        store_id=before.store_id if before is not None and same else secrets.token_hex(16),
        origin=secrets.token_hex(16) if before is None else before.origin,
        opening=1 if before is None else before.opening + 1,
        token=1 if before is None else before.token + 1,
        file=file,
        fsync=fsync,
        synced=journal.synced,
    )


def _notes(found: Found, opening: Opening) -> tuple[str, ...]:
    if found.opening is not None and found.opening.store_id != opening.store_id:
        return (*found.notes, "a copy: it has a new store id and keeps its origin")
    return found.notes
