"""What survives: barriers, faults of the disk, damage, and a log that stays small."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from pidurable_nb.errors import (
    StorageError,
)
from pidurable_nb.ids import DocumentId, TaskId
from pidurable_nb.lab.dying.vfs import FileOp, RecordingVfs
from pidurable_nb.store.line import Phase, classify
from pidurable_nb.store.ownership import lock_path
from pidurable_nb.store.sqlite import Durability, SqliteStorage
from pidurable_nb.store.storage import (
    Commit,
    PutEntry,
    TaskQuery,
)
from pidurable_nb.testing.storage_checks import (
    commit,
    entry,
    note,
    start,
)
from tests.store.files import copied, dump, opened, scripted, sound

# --- Durability and faults --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "ordinary", "barrier"), [("kill", 0, 0), ("barrier", 0, 1), ("power", 1, 1)])
def test_e5_a_barrier_is_synced_before_it_is_acknowledged(
    tmp_path: Path, watched: Callable[..., RecordingVfs], durability: Durability, ordinary: int, barrier: int
) -> None:
    vfs = watched()

    async def main() -> None:
        storage = SqliteStorage(tmp_path / "s.sqlite", durability=durability, vfs=vfs.name)
        await storage.open()
        assert storage.barrier == ("ordinary" if durability == "kill" else "synced")
        await start(storage)

        async def syncs(*group: Commit) -> int:
            before = len(vfs.ops)
            await storage.commit(group)
            ops = vfs.ops[before:]
            synced = [op for op in ops if op.op == "sync"]
            assert {op.file for op in synced} <= {"s.sqlite-wal"}
            assert not synced or ops[-1].op == "sync"  # after the last frame of the group
            return len(synced)

        plain, marked = Commit(()), Commit((), barrier=True)
        assert await syncs(plain) == ordinary
        assert await syncs(marked) == barrier
        assert await syncs(plain, marked, plain) == barrier
        assert await syncs(plain) == ordinary
        assert await syncs(marked) == barrier
        await storage.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("op", "code", "barrier", "class_"),
    [
        ("write", sqlite3.SQLITE_FULL, False, "no"),
        ("write", sqlite3.SQLITE_FULL, True, "no"),
        ("write", sqlite3.SQLITE_IOERR_WRITE, False, "unknown"),
        ("sync", sqlite3.SQLITE_IOERR_FSYNC, True, "unknown"),
    ],
)
@pytest.mark.parametrize("nth", [1, 2, 5])
def test_f4_a_fault_of_the_disk_has_the_class_of_the_crash_model(
    tmp_path: Path,
    watched: Callable[..., RecordingVfs],
    op: str,
    code: int,
    barrier: bool,
    class_: str,
    nth: int,
) -> None:
    path = tmp_path / "s.sqlite"
    left = [0]

    def gate(met: FileOp) -> int | None:
        if not left[0] or met.op != op or not met.file.endswith("-wal"):
            return None
        left[0] -= 1
        return code if left[0] == 0 else None

    vfs = watched(gate)

    async def main() -> int:
        storage = SqliteStorage(path, vfs=vfs.name)
        await storage.open()
        await start(storage)
        kept = await note(storage)
        left[0] = 1 if op == "sync" else nth
        with pytest.raises(StorageError) as failed:
            await commit(storage, PutEntry(entry(storage.mint())), barrier=barrier)
        assert failed.value.stored == class_
        await storage.close()
        return kept

    kept = asyncio.run(main())
    assert sound(path)
    found = [row[0] for row in dump(path)["entries"]]
    assert found in ([kept], [kept, kept + 1])
    assert class_ == "unknown" or found == [kept]


def test_f1_a_read_that_meets_a_corrupt_record_is_a_storage_error(tmp_path: Path) -> None:
    path = copied("ticker", tmp_path)
    scripted(path, "UPDATE tasks SET record = '{\"id\":7}'", "DELETE FROM document_revisions WHERE document_id = 2")
    scripted(path, "INSERT INTO document_revisions VALUES (3, 90, 'delta', 1, '[[\"x\"]]')")
    scripted(path, "INSERT INTO document_revisions VALUES (4, 90, 'delta', 2, '[]')")

    async def main() -> None:
        storage = await opened(path)
        for read in (
            storage.task(TaskId(7)),
            storage.scan_tasks(TaskQuery(), limit=5),
            storage.document(DocumentId(2)),
            storage.document(DocumentId(3)),
            storage.document(DocumentId(4)),
        ):
            with pytest.raises(StorageError, match="damaged"):
                await read
        await storage.close()

    asyncio.run(main())


class Met(sqlite3.OperationalError):
    """An error of SQLite with a chosen code."""

    def __init__(self, code: int) -> None:
        super().__init__("met")
        self.sqlite_errorcode = code


@pytest.mark.parametrize(
    ("code", "open_after", "phase", "class_"),
    [
        (sqlite3.SQLITE_BUSY, False, "begin", "no"),
        (sqlite3.SQLITE_BUSY, True, "write", "no"),
        (sqlite3.SQLITE_BUSY, True, "commit", "no"),
        (sqlite3.SQLITE_BUSY, False, "commit", "unknown"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, False, "begin", "no"),
        (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, True, "write", "no"),
        (sqlite3.SQLITE_CONSTRAINT_CHECK, True, "commit", "unknown"),
        (sqlite3.SQLITE_TOOBIG, True, "write", "no"),
        (sqlite3.SQLITE_READONLY, False, "begin", "no"),
        (sqlite3.SQLITE_AUTH, True, "write", "no"),
        (sqlite3.SQLITE_INTERRUPT, True, "write", "no"),
        (sqlite3.SQLITE_INTERRUPT, False, "commit", "unknown"),
        (sqlite3.SQLITE_FULL, False, "commit", "no"),
        (sqlite3.SQLITE_FULL, False, "write", "no"),
        (sqlite3.SQLITE_FULL, True, "commit", "unknown"),
        (sqlite3.SQLITE_IOERR_WRITE, False, "write", "unknown"),
        (sqlite3.SQLITE_IOERR_FSYNC, False, "commit", "unknown"),
        (sqlite3.SQLITE_IOERR_SHMMAP, False, "begin", "unknown"),
        (sqlite3.SQLITE_NOMEM, True, "write", "unknown"),
        (sqlite3.SQLITE_CORRUPT, True, "write", "unknown"),
        (sqlite3.SQLITE_BUSY, False, "read", "unknown"),
    ],
)
def test_f4_classes_follow_the_table(code: int, open_after: bool, phase: Phase, class_: str) -> None:
    assert classify(Met(code), in_transaction_after=open_after, phase=phase) == class_


def test_f4_an_error_without_a_code_is_unknown() -> None:
    error = sqlite3.ProgrammingError("closed")
    assert classify(error, in_transaction_after=False, phase="write") == "unknown"


# --- The log ----------------------------------------------------------------------------------------------------------


def log_size(path: Path) -> int:
    return path.with_name(path.name + "-wal").stat().st_size


def test_f4_housekeeping_keeps_the_log_small_over_5000_commits(tmp_path: Path) -> None:
    path, most = tmp_path / "s.sqlite", 0

    async def main() -> int:
        storage = SqliteStorage(path, inline=True, wal_limit_pages=200)
        await storage.open()
        await start(storage)
        largest = most
        for number in range(5000):
            await commit(storage, PutEntry(entry(storage.mint(), data="x" * 300)))
            await storage.maintain()
            if number % 50 == 0:
                largest = max(largest, log_size(path))
        await storage.close()
        return largest

    assert asyncio.run(main()) < 2 * 200 * 4120
    assert len(dump(path)["entries"]) == 5000


def test_f4_a_log_that_housekeeping_never_reaches_is_bounded_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    async def main() -> int:
        storage = SqliteStorage(path, inline=True, wal_limit_pages=50)
        await storage.open()
        await start(storage)
        largest = 0
        for _ in range(1000):
            await note(storage)
            largest = max(largest, log_size(path))
        await storage.close()
        return largest

    assert asyncio.run(main()) < 2 * 8 * 50 * 4120


def test_f4_a_reader_that_stands_in_the_way_is_no_error_and_the_log_is_cut_when_it_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    async def main() -> None:
        storage = SqliteStorage(path, wal_limit_pages=20)
        await storage.open()
        await start(storage)
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchone()
        for _ in range(100):
            await note(storage)
            await storage.maintain()
        grown = log_size(path)
        assert grown > 8 * 20 * 4120
        reader.close()
        for _ in range(20):
            await note(storage)
            await storage.maintain()
        assert log_size(path) < grown
        await storage.close()

    asyncio.run(main())


def test_f4_a_checkpoint_that_fails_is_looked_at(tmp_path: Path, watched: Callable[..., RecordingVfs]) -> None:
    broken = [False]
    vfs = watched(lambda op: sqlite3.SQLITE_IOERR_WRITE if broken[0] and op.file == "s.sqlite" else None)
    path = tmp_path / "s.sqlite"

    async def main() -> None:
        storage = SqliteStorage(path, vfs=vfs.name, wal_limit_pages=1)
        await storage.open()
        await start(storage)
        broken[0] = True
        with pytest.raises(StorageError) as failed:
            await storage.maintain()
        assert failed.value.stored == "unknown"
        with pytest.raises(StorageError):
            await storage.close()
        await storage.close()

    asyncio.run(main())
    assert len(dump(path)["conversations"]) == 1  # the log still holds it
    assert not lock_path(path).exists()


def test_f4_after_a_freeze_nothing_reaches_the_files_and_closing_ends(
    tmp_path: Path, watched: Callable[..., RecordingVfs]
) -> None:
    path, vfs = tmp_path / "s.sqlite", watched()

    async def main() -> None:
        storage = SqliteStorage(path, vfs=vfs.name)
        await storage.open()
        await start(storage)
        vfs.freeze()
        before = [path.read_bytes(), path.with_name("s.sqlite-wal").read_bytes()]
        with pytest.raises(StorageError) as failed:
            await note(storage)
        assert failed.value.stored == "unknown"
        with pytest.raises(StorageError):
            await storage.close()
        assert [path.read_bytes(), path.with_name("s.sqlite-wal").read_bytes()] == before

    asyncio.run(main())
    assert len(dump(path)["conversations"]) == 1
