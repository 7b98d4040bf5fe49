"""Owns where a recovered copy is kept: in a folder of this kernel, or in the file that somebody names for it.

The store that was recovered is never the file, nor anything that belongs to it. Never takes a step of a recovery.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from IPython.core.error import UsageError

from pidurable_nb.notebook.kernel.desk import Desk
from pidurable_nb.notebook.kernel.stepping import Walking
from pidurable_nb.store.copying import named
from pidurable_nb.store.stranger import StoreFile

_BESIDE: Final = ("-wal", "-journal")
"""What SQLite would take for the newest part of a database of that name."""
_OWN: Final = ("", "-wal", "-shm", "-journal", ".lock")


def place_for(desk: Desk, store: Path, into: Path, *, replace: bool) -> Path:
    """Where the recovered copy of `store` goes, looked at before anything is run. Nothing is changed yet.

    Raises: UsageError for a file that is there, unless it is a store that is to be replaced; for the store itself and
    its side files; for a folder that is missing. StoreRefused where what is to be replaced is no store.
    """
    into = into.expanduser()
    if _belongs(into, store):
        raise UsageError(
            f"%pi recover: {named(into)} belongs to the store that is recovered, which stays as it is; "
            "name another file"
        )
    if not into.parent.is_dir():
        raise UsageError(f"%pi recover: there is no folder {named(into.parent)}; make it, or name another file")
    if into.exists() or into.is_symlink():
        if not replace:
            raise UsageError(f"%pi recover: {named(into)} is there already; name a new file, or add --replace")
        if desk.is_open(into):
            raise UsageError(f"%pi recover: {named(into)} is open here; %pi close first, or name another file")
        with StoreFile.open(into):
            return into
    for left in (into.with_name(into.name + end) for end in _BESIDE):
        if left.exists():
            raise UsageError(f"%pi recover: {named(left)} lies there, without its store; move it, or name another file")
    return into


def keep(desk: Desk, walking: Walking, into: Path | None, *, replace: bool) -> Path:
    """Write the copy that `walking` recovered to `into`, else to a folder of this kernel; return the file.

    A file in a folder of this kernel lives until the extension is unloaded. Raises: UsageError naming what the system
    refused, or what came there meanwhile; StoreRefused, StoreOwned where the store to be replaced cannot be removed.
    """
    kept = desk.folder(walking.store.stem) / walking.store.name
    walking.save(kept)
    if into is None:
        return kept
    if replace and into.exists():
        desk.remove(into)
    made = False
    try:
        with kept.open("rb") as copy, into.open("xb") as file:
            made = True
            shutil.copyfileobj(copy, file)
    except OSError as error:
        if made:
            into.unlink(missing_ok=True)
        why = "a file came there meanwhile" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(
            f"%pi recover: the copy is recovered, but {named(into)} cannot be written: {why}; name another file"
        ) from error
    kept.unlink()
    return into


def _belongs(into: Path, store: Path) -> bool:
    """Whether a file is the store, under whatever name, or would be one of its side files."""
    if into.exists() and store.exists() and into.samefile(store):
        return True
    own = store.resolve()
    return into.resolve() in {own.with_name(own.name + end) for end in _OWN}
