"""Owns folding the `-wal` of a store into its file, for one that is ours alone. Never touches a store in use."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def fold(copy: Path) -> None:
    """Fold `-wal` into `copy`, which is the caller's own and not open; `-wal` and `-shm` are gone then."""
    connection = sqlite3.connect(copy, isolation_level=None)
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
