"""Owns private copies of stores. Never changes a byte of the original or of its folder, and never loses its locks.

A copy is the database and its `-wal`; `-shm` is rebuilt from them. Copying takes no lock, so the store may be in use,
by this process too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from pidurable_nb.errors import DamagedStore, HostileStore, NotAStore, StoreBusy, StoreRefused
from pidurable_nb.store import carrying
from pidurable_nb.store.visible import visible

MOST_BYTES: Final = 4 << 30
"""The largest database, and the largest log, that is copied unless told otherwise."""

open_here: Final[set[tuple[int, int]]] = set()
"""(device, inode) of the database files that this process holds open for writing. A storage adds its file before it
opens it and removes it after it closed it; where the system lists open files, that list is consulted too."""

_KINDS: Final[dict[str, type[StoreRefused]]] = {
    kind.kind: kind for kind in (StoreRefused, NotAStore, DamagedStore, HostileStore, StoreBusy)
}


def copy_store(source: Path, into: Path, *, most_bytes: int = MOST_BYTES) -> Path:
    """Copy the store, as it was at one moment, into the directory `into`; return the copy's database file.

    `into` is made (0700) where it is missing. A symbolic link to the database file is followed, as SQLite does; a
    `-wal` that is one is refused. A store that this process has open is read by a child process, because closing any
    descriptor of a file drops the locks that SQLite holds on it.

    Raises: NotAStore, DamagedStore (cut off, or an unfinished rollback journal), HostileStore (too large, a `-wal`
    that is no file), StoreBusy after five tries, StoreRefused for what the system refuses. Nothing is left behind then.
    """
    try:
        original = os.path.realpath(source)
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise StoreRefused(f"{named(source)} cannot be copied: {error}", path=source) from error
    target = str(into / source.name)
    try:
        if _is_open_here(original):
            _carry_elsewhere(original, target, most_bytes)
        else:
            carrying.carry(original, target, most_bytes)
    except carrying.CarryRefused as refused:
        raise refusal(refused.kind, source, refused.text) from refused
    return Path(target)


def named(path: Path) -> str:
    """The file's name as it may be printed."""
    return visible(str(path))


def refusal(kind: str, path: Path, text: str) -> StoreRefused:
    """The error of that kind: which file, what, what next."""
    return _KINDS[kind](f"{named(path)} {text}", path=path)


def _is_open_here(path: str) -> bool:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return False
    wanted = (found.st_dev, found.st_ino)
    return wanted in open_here or any(_identity(name) == wanted for name in _descriptors())


def _descriptors() -> list[str]:
    try:
        return os.listdir("/dev/fd")
    except OSError:
        return []


def _identity(descriptor: str) -> tuple[int, int] | None:
    try:
        found = os.fstat(int(descriptor))
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _carry_elsewhere(source: str, target: str, most_bytes: int) -> None:
    if not sys.executable:
        raise carrying.CarryRefused("busy", "is open in this process, and no other can be started; close it first")
    command = [sys.executable, "-I", "-S", carrying.__file__, source, target, str(most_bytes)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode == carrying.REFUSED_STATUS:
        told = json.loads(done.stdout)
        raise carrying.CarryRefused(told["kind"], told["text"])
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise carrying.CarryRefused("refused", f"could not be copied by a child process: {visible(last)}")
