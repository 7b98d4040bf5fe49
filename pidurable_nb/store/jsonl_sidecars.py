"""Owns the sidecars of an open JSONL store: their descriptors, what is appended to them, and when space is reclaimed.
Never decides that a record counts: that is a line of `main.jsonl`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pidurable_nb.errors import AnotherWriter, StorageError
from pidurable_nb.store.copying import named
from pidurable_nb.store.jsonl_files import Files, append_all
from pidurable_nb.store.jsonl_recovery import TEMPORARY, Extent
from pidurable_nb.store.jsonl_tables import Addition

MOST_OPEN: Final = 32
"""Descriptors that are kept at most."""

MOST_ENDED: Final = 16
"""Sidecars that nothing needs, before housekeeping removes them."""

MOST_WASTE: Final = 64 << 10
"""Unneeded bytes in front of the needed ones, before housekeeping writes a sidecar anew."""

SMALL_WASTE: Final = 4 << 10
"""The same, when the store is closed."""


@dataclass(slots=True)
class Sidecar:
    """One file as this process left it. `live` bytes at its end are needed. No identity: not looked at yet."""

    size: int
    live: int
    identity: tuple[int, int] | None = None

    @property
    def waste(self) -> int:
        """Bytes that a later record made unnecessary."""
        return self.size - self.live


class Sidecars:
    """The sidecars of one folder."""

    def __init__(self, folder: Path, files: Files, *, fsync: bool) -> None:
        self._folder = folder
        self._files = files
        self._fsync = fsync
        self._known: dict[str, Sidecar] = {}
        self._ended: set[str] = set()
        self._fds: OrderedDict[str, int] = OrderedDict()

    # --- At an opening --------------------------------------------------------------------------------------------

    def take(self, extents: Mapping[str, Extent], *, cuts: Iterable[str], removals: Iterable[str], sync: bool) -> None:
        """Begin with what a recovery found: unconfirmed tails are cut off, what nothing needs is removed.

        `sync`: they were written without being synced, and are synced now. Raises: OSError.
        """
        self._known = {name: Sidecar(size=extent.size, live=extent.live) for name, extent in extents.items()}
        tails, removed = frozenset(cuts), tuple(removals)
        for name in sorted(self._known if sync else tails):
            fd = self._descriptor(name)
            if name in tails:
                self._files.truncate(fd, self._known[name].size)
            if self._fsync:
                self._files.fsync(fd)
        for name in removed:
            self._files.unlink(self._folder / name)
        if self._fsync and (sync or removed):
            self._files.fsync_dir(self._folder)

    # --- One group ------------------------------------------------------------------------------------------------

    def append(self, additions: Iterable[Addition]) -> None:
        """Append complete records, one write for each sidecar, synced when the store syncs.

        Raises: OSError; AnotherWriter when a sidecar is not as this process left it.
        """
        texts: dict[str, list[bytes]] = {}
        for addition in additions:
            texts.setdefault(addition.file, []).append(addition.data)
        made = False
        for name, parts in texts.items():
            known = self._known.get(name)
            if known is None:
                made = True
                known = self._known[name] = Sidecar(size=0, live=0)
                fd = self._files.open(self._folder / name, new=True)
                self._keep(name, fd)
            else:
                fd = self._descriptor(name)
                self._check(name, known)
            data = b"".join(parts)
            append_all(self._files, fd, data)
            if self._fsync:
                self._files.fsync(fd)
            known.size += len(data)
        if made and self._fsync:
            self._files.fsync_dir(self._folder)

    def confirm(self, additions: Iterable[Addition], ended: Iterable[str]) -> None:
        """The commit that wrote these, or that ended those, is stored."""
        for addition in additions:
            known = self._known[addition.file]
            known.live = len(addition.data) if addition.whole else known.live + len(addition.data)
            self._ended.discard(addition.file)
        self._ended.update(name for name in ended if name in self._known)

    def _check(self, name: str, known: Sidecar) -> None:
        path = self._folder / name
        try:
            found = os.stat(path)
        except FileNotFoundError as error:
            raise _gone(path, "was removed") from error
        if (found.st_dev, found.st_ino) != known.identity or found.st_size != known.size:
            raise _gone(path, "was changed")

    def _descriptor(self, name: str) -> int:
        fd = self._fds.get(name)
        if fd is None:
            fd = self._files.open(self._folder / name, new=False)
            self._keep(name, fd)
        else:
            self._fds.move_to_end(name)
        return fd

    def _keep(self, name: str, fd: int) -> None:
        found = os.fstat(fd)
        identity = (found.st_dev, found.st_ino)
        known = self._known[name]
        if known.identity is None:
            known.identity = identity
        self._fds[name] = fd
        if len(self._fds) > MOST_OPEN:
            _, oldest = self._fds.popitem(last=False)
            self._files.close(oldest)

    def _forget(self, name: str) -> None:
        """Let go of the descriptor: its file is about to lose its name, and nothing more may be written to it."""
        fd = self._fds.pop(name, None)
        if fd is not None:
            self._files.close(fd)

    # --- Space ----------------------------------------------------------------------------------------------------

    def due(self, *, closing: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What is to be removed, and what is to be written anew: nothing while it would hardly be worth it."""
        most = SMALL_WASTE if closing else MOST_WASTE
        wasteful = tuple(
            [
                name
                for name, known in self._known.items()
                if known.waste > most and known.waste > known.live and name not in self._ended
            ]
        )
        enough = closing or len(self._ended) >= MOST_ENDED or bool(wasteful)
        return (tuple(sorted(self._ended)) if enough else ()), wasteful

    def reclaim(self, removals: Iterable[str], rewrites: Iterable[str]) -> None:
        """Remove these files, and write those anew without what nothing needs.

        The commits that allow it must be on disk already, where the store syncs. Raises: OSError.
        """
        removed = renamed = False
        for name in removals:
            self._forget(name)
            self._files.unlink(self._folder / name)
            del self._known[name]
            self._ended.discard(name)
            removed = True
        for name in rewrites:
            self._rewrite(name)
            renamed = True
        if self._fsync and (removed or renamed):
            # Before anything is appended under these names: or a power cut could bring the old file back without it.
            self._files.fsync_dir(self._folder)

    def _rewrite(self, name: str) -> None:
        known, path = self._known[name], self._folder / name
        old = self._descriptor(name)
        self._check(name, known)
        data = os.pread(old, known.live, known.waste)
        if len(data) != known.live:
            raise StorageError(f"{named(path)} could not be read whole; open the store again", stored="unknown")
        temporary = path.with_name(name + TEMPORARY)
        fd = self._files.open(temporary, new=True)
        try:
            append_all(self._files, fd, data)
            if self._fsync:
                self._files.fsync(fd)
            self._files.rename(temporary, path)
        except BaseException:
            self._files.close(fd)
            raise
        self._forget(name)
        known.size, known.identity = known.live, None
        self._keep(name, fd)

    def close(self) -> None:
        """Let go of every descriptor."""
        for fd in self._fds.values():
            with suppress(OSError):
                self._files.close(fd)
        self._fds.clear()


def _gone(path: Path, what: str) -> AnotherWriter:
    return AnotherWriter(
        f"{named(path)} {what} while this process had the store open; nothing more is written. "
        "Stop what touches it, look at what is there, then open the store again",
        stored="no",
    )
