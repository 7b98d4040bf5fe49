"""Store files as tests look at them: every row, what SQLite says of them, and how they are opened. Tests nothing."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Final

from pidurable_nb.store.sqlite import SqliteStorage

STORES: Final = Path(__file__).parents[2] / "fixtures" / "stores"
TABLES: Final = (
    "durable_schema", "durable_metadata", "record_ids", "conversations", "entries", "tasks", "submissions",
    "documents", "document_revisions",
)  # fmt: skip


def copied(name: str, folder: Path) -> Path:
    """A copy of a fixture that may be written to."""
    target = folder / f"{name}.sqlite"
    shutil.copyfile(STORES / f"{name}.sqlite", target)
    return target


def dump(path: Path, tables: tuple[str, ...] = TABLES) -> dict[str, list[tuple[object, ...]]]:
    """Every row of the format's tables."""
    db = sqlite3.connect(path)
    found = {table: db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables}
    db.close()
    return found


def sound(path: Path) -> bool:
    """What SQLite itself says about the file."""
    db = sqlite3.connect(path)
    said: str = db.execute("PRAGMA integrity_check").fetchone()[0]
    db.close()
    return said == "ok"


async def opened(path: Path, *, inline: bool = False) -> SqliteStorage:
    storage = SqliteStorage(path, inline=inline)
    await storage.open()
    return storage


async def close_new(path: Path) -> None:
    """Make an empty store."""
    await (await opened(path)).close()


def scripted(path: Path, *statements: str) -> None:
    """Run statements on a store behind everybody's back."""
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()
