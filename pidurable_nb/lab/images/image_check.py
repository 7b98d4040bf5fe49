"""Owns opening an image with SQLite alone and saying what became of it: as promised, lost within bounds, lost, corrupt.

The files of one image become those of the next by writing the blocks that differ; nothing that recovery or closing
writes reaches them. What was seen once is not looked at again: neither an image with the same bytes, nor a database
that recovers to the same frames or pages. Never runs code of a scenario.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, TypeAlias

from pidurable_nb.lab.dying.run import LEDGER
from pidurable_nb.lab.dying.vfs import FileOp, RecordingVfs
from pidurable_nb.lab.images.disk import BLOCK, Blocks
from pidurable_nb.lab.images.images import Image
from pidurable_nb.lab.images.recording import Recording
from pidurable_nb.store.plain import NOTHING, Content, content, digest, integrity

__all__ = ["Checker", "Finding", "Outcome", "Reader", "Scratch", "check", "lay_out"]

Outcome = Literal["as_promised", "lost_within_bound", "lost_acknowledged", "corrupt"]
"""`lost_within_bound`: acknowledged commits are missing, none that the durability promised; `lost_acknowledged`: one
that it promised is; `corrupt`: pages are not sound, or the rows are not those that any commit left."""

Reader: TypeAlias = Callable[[sqlite3.Connection], Content]
"""Reads what the recorded run wrote: `store.plain.content` for a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of one image. `newest` is the newest commit in it, None where it could not be read.

    Where nothing is wrong, images with one `state` hold the same: all pages that SQLite sees are the same.
    """

    image: str
    outcome: Outcome
    newest: int | None
    text: str
    state: bytes = b""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is in some bytes, whatever they have to hold; `wrong` is a sentence where that cannot be.

    `state` is a digest of all pages, of none in a store that was never made.
    """

    newest: int | None
    wrong: str | None = None
    state: bytes = b""


class Scratch:
    """A folder in memory where that is possible, which holds one image at a time."""

    def __init__(self, folder: Path | None = None) -> None:
        shared = Path("/dev/shm")
        in_memory = str(shared) if folder is None and os.access(shared, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="pidurable-images-", dir=folder or in_memory))
        self._place = str(self.folder)
        self._known: dict[str, Blocks] = {}

    def put(self, files: Mapping[str, Blocks]) -> None:
        """Make the folder hold exactly these files, writing only what differs from the ones before."""
        for name in [name for name in self._known if name not in files]:
            self.forget(name)
        for name, blocks in files.items():
            self._write(name, self._known.get(name), blocks)
            self._known[name] = blocks

    def forget(self, name: str) -> None:
        """Somebody else wrote to the file, or deleted it: it is made anew the next time."""
        self._known.pop(name, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, name: str) -> str:
        """Where a file of that name lies."""
        return f"{self._place}/{name}"

    def _write(self, name: str, before: Blocks | None, blocks: Blocks) -> None:
        if before is blocks:
            return
        fd = os.open(self.path(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            old = before or ()
            # Blocks that two images have in common are one object: comparing costs next to nothing.
            changed = [at for at, (was, block) in enumerate(zip(old, blocks, strict=False)) if was is not block]
            for at in (*changed, *range(len(old), len(blocks))):
                os.pwrite(fd, blocks[at], at * BLOCK)
            os.ftruncate(fd, (len(blocks) - 1) * BLOCK + len(blocks[-1]))
        finally:
            os.close(fd)


class Checker:
    """Checks the images of one recording, in a folder of its own; close it, or use it as a context.

    `fits` says whether what a reader found is what its newest commit left; without it, the recording knows. The counts
    say how many images were checked, how many of these were opened, and how many of those were read to the end.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        reader: Reader = content,
        fits: Callable[[Content], bool] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.checked = self.opened = self.read = 0
        self._store = recording.store
        self._reader = reader
        self._fits = fits if fits is not None else recording.contents().fits
        self._scratch = Scratch(folder)
        self._by_bytes: dict[bytes, _Seen] = {}
        self._by_log: dict[tuple[int, bytes], _Seen] = {}
        self._by_pages: dict[bytes, _Seen] = {}
        self._closing = False
        self._touched: set[str] = set()
        self._vfs = RecordingVfs(record=False, gate=self._gate)
        self._uri = self._vfs.uri(self._scratch.folder / self._store)

    def __enter__(self) -> Checker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder and take the VFS from SQLite."""
        self._vfs.close()
        self._scratch.close()

    def check(self, image: Image) -> Finding:
        """Open the image, as the next life of the store would, and judge what is in it.

        Raises: nothing for whatever is in the image; OSError when the folder fails.
        """
        self.checked += 1
        seen = self._by_bytes.get(image.key)
        if seen is None:
            seen = self._by_bytes[image.key] = self._look(image)
        return _judged(image, seen)

    def _look(self, image: Image) -> _Seen:
        if self._store not in image.blocks and f"{self._store}-journal" not in image.blocks:
            return self._fitting(NOTHING)  # SQLite takes a log without a database for none
        self.opened += 1
        self._scratch.put(image.blocks)
        self._closing = False
        try:
            connection = sqlite3.connect(self._uri, uri=True, isolation_level=None)
            try:
                return self._recovered(connection, image)
            finally:
                self._closing = True
                connection.close()
        except sqlite3.Error as error:
            return _Seen(None, f"{error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})")
        finally:
            left = {self._store + end for end in _LEFT} - image.blocks.keys()
            for name in self._touched | left:
                self._scratch.forget(name)
            self._touched.clear()

    def _recovered(self, connection: sqlite3.Connection, image: Image) -> _Seen:
        connection.execute("PRAGMA schema_version").fetchone()  # the first read recovers
        log = self._log_key(image)
        if log is not None and log in self._by_log:
            return self._by_log[log]
        pages: bytes | None = None
        with contextlib.suppress(sqlite3.Error, MemoryError):
            pages = digest(connection)
        seen = self._by_pages.get(pages) if pages is not None else None
        if seen is None:
            self.read += 1
            unsound = integrity(connection)
            seen = _Seen(None, f"integrity_check says {unsound}")
            if not unsound:
                seen = self._fitting(self._reader(connection), pages if pages is not None else image.key)
        if pages is not None:
            self._by_pages[pages] = seen
        if log is not None:
            self._by_log[log] = seen
        return seen

    def _log_key(self, image: Image) -> tuple[int, bytes] | None:
        """What decides all pages: the database file, and the frames that SQLite took from the log when it recovered.

        Their number, the checksum over them, and the salts are in the index that recovery made. None where no log was
        recovered, but perhaps a journal.
        """
        if f"{self._store}-journal" in image.blocks:
            return None
        try:
            with open(self._scratch.path(f"{self._store}-shm"), "rb") as index:
                header = index.read(_INDEX_HEADER.stop)
        except FileNotFoundError:
            return None
        return hash(image.blocks.get(self._store)), header[_INDEX_HEADER]

    def _fitting(self, found: Content, state: bytes = b"") -> _Seen:
        if self._fits(found):
            return _Seen(found.newest, state=b"" if found == NOTHING else state)
        return _Seen(found.newest, f"the rows are not those that commit {found.newest} left")

    def _gate(self, op: FileOp) -> int | None:
        """Recovery may write, which is then forgotten; closing would fold the log, and may not."""
        if self._closing:
            return sqlite3.SQLITE_READONLY
        self._touched.add(op.file)
        return None


_LEFT: Final = ("-wal", "-journal", "-shm")
"""What opening may leave beside a database."""
_INDEX_HEADER: Final = slice(12, 40)
"""Of a log's index: page size, frames, pages, checksum over the frames, salts."""


def check(image: Image, recording: Recording, *, reader: Reader = content) -> Finding:
    """Check a single image; of many, `Checker` remembers what it saw."""
    with Checker(recording, reader=reader) as checker:
        return checker.check(image)


def lay_out(image: Image, recording: Recording, folder: Path) -> Path:
    """Write the image to a folder that has none of its files, beside the ledger as it was, for a life to go on from.

    The store's path is returned. There is no lock file: whoever held it is dead.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content_of_file in image.files.items():
        (folder / name).write_bytes(content_of_file)
    ledger = recording.ledger_at(image.after_op)
    if ledger:
        (folder / LEDGER).write_bytes(ledger)
    return folder / recording.store


def _judged(image: Image, seen: _Seen) -> Finding:
    newest = seen.newest
    if seen.wrong is not None or newest is None:
        return Finding(image=image.name, outcome="corrupt", newest=newest, text=seen.wrong or "nothing can be read")
    outcome: Outcome = "as_promised"
    text = f"everything up to commit {newest} is there"
    if newest > image.most:
        outcome, text = "corrupt", f"commit {newest} is there, which had not been begun; {image.most} had"
    elif newest < image.acknowledged:
        outcome = "lost_acknowledged"
        text = f"the store ends with commit {newest}, and up to {image.acknowledged} everything was promised"
    elif newest < image.told:
        outcome = "lost_within_bound"
        text = f"the store ends with commit {newest}; {image.told} was told of, and up to {image.acknowledged} promised"
    return Finding(image=image.name, outcome=outcome, newest=newest, text=text, state=seen.state)
