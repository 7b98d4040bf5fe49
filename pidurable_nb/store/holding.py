"""Owns a store file that is open for writing: connection, lock and identity, from refusing it to letting it go.

Never knows what is written. What is acquired is let go in every case, in the other order; the one exception is a file
that has become somebody else's, which is not touched any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pidurable_nb.errors import StorageError, StoreRefused
from pidurable_nb.ids import ROOT
from pidurable_nb.records.document import Address, ConversationScope
from pidurable_nb.store import opening, sqlite_documents
from pidurable_nb.store.copying import named, open_here
from pidurable_nb.store.line import Inline, Line, Threaded
from pidurable_nb.store.opening import Claim
from pidurable_nb.store.ownership import OpenFiles, StoreLock, file_identity

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a store is opened: see `SqliteStorage`. `synced`: the opening transaction too."""

    synced: bool
    busy_timeout_s: float
    vfs: str | None
    inline: bool
    draw: Callable[[], str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A store that this process owns."""

    path: Path
    line: Inline | Threaded
    lock: StoreLock
    files: OpenFiles
    claim: Claim

    async def let_go(self) -> None:
        """Fold the log into the file, close it, free the lock.

        Raises: StorageError when folding or closing failed. The store is let go all the same, and the log keeps what
        it holds.
        """
        try:
            if not self.files.may_fold():
                self.line.abandon()
                return
            try:
                await self.line.run(lambda line: line.checkpoint("TRUNCATE"))
            finally:
                await _close(self.line, self.path)
        finally:
            open_here.discard(self.files.database)
            self.lock.release()


async def hold(path: Path, how: How) -> Holding:
    """Take the store for writing: lock, examine, migrate, claim.

    Durability: no row of the format changes when it is at the newest version. A refusal leaves no trace.
    Raises: StoreRefused and its family; StorageError when the opening transaction itself failed.
    """
    lock, exists = _take(path, how) if how.inline else await _take_elsewhere(path, how)
    kept = False
    try:
        lock.sign(fresh=not exists)
        held = await _connect(path, lock, how)
        with contextlib.suppress(OSError):
            lock.sign(fresh=False)
        kept = True
        return held
    finally:
        if not kept:
            # What was cut off while it was made is known by its lock file, and is made to the end the next time.
            lock.release(keep=not exists)


def _take(path: Path, how: How) -> tuple[StoreLock, bool]:
    """The lock, and whether a store is there; everything is refused here that can be refused without writing."""
    if not opening.look(path):
        opening.make_folder(path)
    lock = StoreLock(path)
    try:
        exists = opening.look(path)
        if exists:
            exists = opening.examine(path, lock, busy_timeout_s=how.busy_timeout_s)
    except BaseException:
        lock.withdraw()
        raise
    return lock, exists


async def _take_elsewhere(path: Path, how: How) -> tuple[StoreLock, bool]:
    """`_take` off the loop, because it waits for the disk; given back when the caller is cancelled meanwhile."""
    taking = asyncio.ensure_future(asyncio.to_thread(_take, path, how))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(_give_back)
        raise


def _give_back(taking: asyncio.Future[tuple[StoreLock, bool]]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result()[0].withdraw()


async def _connect(path: Path, lock: StoreLock, how: How) -> Holding:
    uri = f"{path.as_uri()}?mode=rwc" + (f"&vfs={how.vfs}" if how.vfs else "")
    line: Inline | Threaded | None = None
    held: Holding | None = None
    try:
        if how.inline:
            line = Inline(uri, busy_timeout_s=how.busy_timeout_s)
        else:
            line = await Threaded.connect(uri, busy_timeout_s=how.busy_timeout_s)
        connected = line
        held = await line.run(lambda connection: _claim(path, lock, how, connection, connected))
        return held
    except StorageError as error:
        raise (opening.refusal(error.__cause__, path) or error) from error.__cause__
    except sqlite3.Error as error:
        refused = opening.refusal(error, path)
        raise (refused or StorageError(f"{named(path)} is not opened: {error}", stored="unknown")) from error
    finally:
        if held is None:
            if line is not None:
                with contextlib.suppress(StorageError):
                    await _close(line, path)
            with contextlib.suppress(OSError):
                open_here.discard(file_identity(path))


def _claim(path: Path, lock: StoreLock, how: How, line: Line, through: Inline | Threaded) -> Holding:
    """On the worker: settings, then the one opening transaction."""
    open_here.add(file_identity(path))
    # Not trusted_schema=OFF: it forbids the json_valid of the format's own checks. What the schema may say has been
    # read word by word instead.
    line.execute("PRAGMA cell_size_check=ON")
    mode: str = line.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise StoreRefused(
            f"{named(path)} cannot have a write-ahead log where it is (journal mode {mode}); put it on a local disk",
            path=path,
        )
    line.execute("PRAGMA wal_autocheckpoint=0")
    # A copy has another inode. (Another device number may only be another day.)
    identity = str(file_identity(path)[1]) if how.draw is None else None
    claimed = line.write(
        lambda cursor: opening.claim(
            cursor,
            path,
            draw=how.draw or _random_name,
            identity=identity,
            session_id=lambda: _session_id(cursor),
        ),
        synced=how.synced,
    )
    return Holding(path=path, line=through, lock=lock, files=OpenFiles(path, lock), claim=claimed)


async def _close(line: Inline | Threaded, path: Path) -> None:
    try:
        await line.close()
    except sqlite3.Error as error:
        raise StorageError(f"closing {named(path)} failed: {error}", stored="unknown") from error


def _random_name() -> str:
    return secrets.token_hex(16)


def _session_id(cursor: sqlite3.Cursor) -> object:
    """What the root conversation's provider document says, None where there is none."""
    record = sqlite_documents.find_document(cursor, Address("pi.provider", ConversationScope(ROOT)), "current")
    if record is None:
        return None
    found = sqlite_documents.document(cursor, record.id, "current")
    return None if found is None else found.value.get("sessionId")
