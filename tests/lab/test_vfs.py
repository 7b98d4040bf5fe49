"""The recording VFS: what it records is what reached the files, and a freeze leaves what a SIGKILL leaves."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pidurable_nb.ids import Json
from pidurable_nb.lab.dying.forkserver import ForkServer
from pidurable_nb.lab.dying.sqlite_abi import SqliteLibrary, library
from pidurable_nb.lab.dying.vfs import FileOp, RecordingVfs, VfsUnavailable, replay, seed_prng

HERE = Path(__file__).parent
STORE = "a store?100%#.db"  # a name that a URI must escape
SEED = 99


@pytest.fixture
def epoch() -> Iterator[Callable[..., RecordingVfs]]:
    """Makes VFS objects and takes them from SQLite in the end."""
    made: list[RecordingVfs] = []

    def make(*, record: bool = True, gate: Callable[[FileOp], int | None] | None = None) -> RecordingVfs:
        made.append(RecordingVfs(record=record, gate=gate))
        return made[-1]

    yield make
    seed_prng(None)
    free = [vfs.close() for vfs in made]
    assert all(free)


def connect(vfs: RecordingVfs, path: Path) -> sqlite3.Connection:
    return sqlite3.connect(vfs.uri(path), uri=True, isolation_level=None, check_same_thread=False)


def workload(connection: sqlite3.Connection, vfs: RecordingVfs) -> None:
    """Commits of several sizes, each of the four kinds of file operation, three sorts of checkpoint, and the close."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, body TEXT)")
    for k, size in enumerate((20, 9000, 300, 3000)):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES (?, ?)", (k, chr(97 + k) * size))
        connection.execute("COMMIT")
        vfs.mark(f"committed {k}")
        if k == 1:
            connection.execute("PRAGMA wal_checkpoint(RESTART)")
    connection.execute("DELETE FROM t WHERE k = 1")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.execute("INSERT INTO t VALUES (9, 'last')")
    connection.close()


HOSTILE = (
    "ROLLBACK",
    "INSERT INTO t VALUES (999, 'hostile')",
    "COMMIT",
    "BEGIN IMMEDIATE",
    "INSERT INTO t VALUES (998, 'hostile')",
    "COMMIT",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "VACUUM",
    "PRAGMA journal_mode = DELETE",
    "DROP TABLE t",
    "PRAGMA user_version = 9",
)


def be_hostile(connection: sqlite3.Connection) -> None:
    """What abandoned code might still try, and more."""
    for statement in HOSTILE:
        with contextlib.suppress(sqlite3.Error):
            connection.execute(statement)
    with contextlib.suppress(sqlite3.Error):
        connection.close()


def killed_at(argument: Json) -> None:
    """Run in a child of the fork server: the same workload, and a real SIGKILL before operation `n`."""
    assert isinstance(argument, list)
    path, n = argument
    seed_prng(SEED)

    def gate(op: FileOp) -> None:
        if op.n == n:
            os.kill(os.getpid(), signal.SIGKILL)

    vfs = RecordingVfs(record=False, gate=gate)
    workload(connect(vfs, Path(str(path))), vfs)


def on_disk(directory: Path) -> dict[str, bytes]:
    """Every file but `-shm`, which is memory-mapped and rebuilt by recovery."""
    return {file.name: file.read_bytes() for file in directory.iterdir() if not file.name.endswith("-shm")}


def without_empty(files: dict[str, bytes]) -> dict[str, bytes]:
    """A log knows no file that was opened and not written."""
    return {name: content for name, content in files.items() if content}


def record_workload(directory: Path) -> RecordingVfs:
    vfs = RecordingVfs()
    seed_prng(SEED)
    workload(connect(vfs, directory / STORE), vfs)
    assert vfs.close()
    return vfs


Epoch = Callable[..., RecordingVfs]


def test_the_log_replays_to_the_bytes_on_disk(tmp_path: Path) -> None:
    vfs = record_workload(tmp_path)
    assert {op.op for op in vfs.ops} == {"write", "truncate", "sync", "delete"}
    assert [op.n for op in vfs.ops] == list(range(1, vfs.count + 1))
    assert replay(vfs.ops) == on_disk(tmp_path)
    assert vfs.blocked == []
    assert vfs.failure is None


def test_marks_say_between_which_operations_something_happened(tmp_path: Path) -> None:
    vfs = record_workload(tmp_path)
    assert [label for _, label in vfs.marks] == [f"committed {k}" for k in range(4)]
    for index, label in vfs.marks:
        last = vfs.ops[index - 1]
        assert (last.op, last.file) == ("sync", f"{STORE}-wal"), label


def test_a_seeded_run_writes_the_same_bytes_again(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    assert record_workload(tmp_path / "one").ops == record_workload(tmp_path / "two").ops
    seed_prng(None)


def test_true_randomness_comes_back_when_the_seed_is_taken_away() -> None:
    def draw() -> bytes:
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            content: bytes = connection.execute("SELECT randomblob(16)").fetchone()[0]
        return content

    drawn = []
    for seed in (SEED, SEED, None, None):
        seed_prng(seed)
        drawn.append(draw())
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3
    with pytest.raises(ValueError, match="outside"):
        seed_prng(0)


def test_freeze_equals_kill_at_every_operation_whatever_abandoned_code_tries(tmp_path: Path) -> None:
    (tmp_path / "recorded").mkdir()
    ops = record_workload(tmp_path / "recorded").ops
    assert len(ops) > 40
    blocked = 0
    with ForkServer(["test_vfs"], extra_path=[HERE]) as server:
        for n in range(1, len(ops) + 1):
            frozen, killed = tmp_path / f"frozen-{n}", tmp_path / f"killed-{n}"
            frozen.mkdir()
            killed.mkdir()
            blocked += freeze_at(frozen / STORE, n)
            ended = server.run("test_vfs:killed_at", [str(killed / STORE), n], timeout_s=60)
            assert (ended.signal, ended.timed_out) == (signal.SIGKILL, False), ended.error
            assert without_empty(on_disk(frozen)) == without_empty(replay(ops[: n - 1])), n
            assert on_disk(frozen) == on_disk(killed), n
            check_recovery(frozen, tmp_path / f"copy-{n}")
    seed_prng(None)
    assert blocked > len(ops)


def freeze_at(path: Path, n: int) -> int:
    """Freeze before operation `n`, be hostile, close; the number of operations that were stopped."""

    def gate(op: FileOp) -> None:
        if op.n == n:
            vfs.freeze()

    vfs = RecordingVfs(record=False, gate=gate)
    seed_prng(SEED)
    connection = connect(vfs, path)
    with contextlib.suppress(sqlite3.Error):
        workload(connection, vfs)
    be_hostile(connection)
    assert vfs.frozen
    assert vfs.count == n - 1
    assert vfs.close()
    return len(vfs.blocked)


def check_recovery(store: Path, copy: Path) -> None:
    """A copy of what is left opens, is whole, and holds nothing hostile."""
    copy.mkdir()
    for name in on_disk(store):
        shutil.copy(store / name, copy / name)
    with contextlib.closing(sqlite3.connect(copy / STORE)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 't'").fetchone():
            assert connection.execute("SELECT count(*) FROM t WHERE k > 900").fetchone() == (0,)


def test_a_raised_base_exception_alone_lets_pending_work_commit_and_a_freeze_does_not(
    tmp_path: Path, epoch: Epoch
) -> None:
    def crash(vfs: RecordingVfs, path: Path, *, freeze: bool) -> None:
        connection = connect(vfs, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (k)")
        try:
            connection.execute("BEGIN")
            connection.execute("INSERT INTO t VALUES (1)")
            if freeze:
                vfs.freeze()
            raise KeyboardInterrupt
        finally:
            try:
                connection.execute("COMMIT")
            finally:
                connection.close()

    def rows(path: Path) -> list[tuple[int]]:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return connection.execute("SELECT k FROM t").fetchall()

    with pytest.raises(KeyboardInterrupt):
        crash(epoch(), tmp_path / "raised.db", freeze=False)
    with pytest.raises(sqlite3.OperationalError):
        crash(epoch(), tmp_path / "frozen.db", freeze=True)
    assert rows(tmp_path / "raised.db") == [(1,)]
    assert rows(tmp_path / "frozen.db") == []


def test_a_frozen_vfs_opens_nothing_and_creates_no_file(tmp_path: Path, epoch: Epoch) -> None:
    vfs = epoch()
    vfs.freeze()
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        connect(vfs, tmp_path / STORE)
    vfs.mark("too late")
    assert vfs.marks == []
    assert list(tmp_path.iterdir()) == []


def test_nothing_reaches_the_files_after_freeze_returned_while_another_thread_writes(
    tmp_path: Path, epoch: Epoch
) -> None:
    busy = threading.Event()
    stopped = threading.Event()

    def gate(op: FileOp) -> None:
        if op.n == 200:
            busy.set()

    vfs = epoch(gate=gate)
    connection = connect(vfs, tmp_path / STORE)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, body TEXT)")

    def write() -> None:
        with contextlib.suppress(sqlite3.Error):
            while True:
                connection.execute("INSERT INTO t (body) VALUES (?)", ("x" * 9000,))
        stopped.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert busy.wait(60)
    vfs.freeze()
    reached = replay(vfs.ops)
    assert stopped.wait(60)
    writer.join()
    be_hostile(connection)
    assert on_disk(tmp_path) == reached == replay(vfs.ops)
    assert vfs.blocked


def test_a_memory_mapped_database_does_not_grow_behind_the_log(tmp_path: Path, epoch: Epoch) -> None:
    def gate(op: FileOp) -> None:
        if op.op == "write" and op.file == STORE and (op.offset or 0) > 20 * 4096:
            vfs.freeze()

    vfs = epoch(gate=gate)
    connection = connect(vfs, tmp_path / STORE)
    connection.execute("PRAGMA mmap_size = 100000000")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, body TEXT)")
    connection.execute("INSERT INTO t VALUES (1, ?)", ("x" * 400_000,))
    with pytest.raises(sqlite3.OperationalError):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    be_hostile(connection)
    assert vfs.frozen
    assert on_disk(tmp_path) == replay(vfs.ops)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (sqlite3.SQLITE_IOERR_WRITE, "SQLITE_IOERR_WRITE"),
        (sqlite3.SQLITE_FULL, "SQLITE_FULL"),
    ],
)
def test_a_fault_on_a_write_surfaces_as_an_operational_error_and_stores_nothing(
    tmp_path: Path, epoch: Epoch, code: int, name: str
) -> None:
    armed = False

    def gate(op: FileOp) -> int | None:
        return code if armed and op.op == "write" else None

    vfs = epoch(gate=gate)
    connection = connect(vfs, tmp_path / STORE)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (k)")
    before = list(vfs.ops)
    armed = True
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("INSERT INTO t VALUES (1)")
    assert caught.value.sqlite_errorname == name
    assert vfs.ops == before
    assert vfs.count == before[-1].n + 1
    armed = False
    connection.execute("INSERT INTO t VALUES (2)")
    assert connection.execute("SELECT k FROM t").fetchall() == [(2,)]
    connection.close()
    assert replay(vfs.ops) == on_disk(tmp_path)


def test_a_fault_on_the_fsync_of_a_commit_surfaces_as_an_operational_error(tmp_path: Path, epoch: Epoch) -> None:
    armed = False

    def gate(op: FileOp) -> int | None:
        return sqlite3.SQLITE_IOERR_FSYNC if armed and op.op == "sync" else None

    vfs = epoch(gate=gate)
    connection = connect(vfs, tmp_path / STORE)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE t (k)")
    armed = True
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("INSERT INTO t VALUES (1)")
    assert caught.value.sqlite_errorname == "SQLITE_IOERR_FSYNC"
    armed = False
    connection.close()


def test_a_gate_that_does_nothing_changes_nothing(tmp_path: Path, epoch: Epoch) -> None:
    seen: list[FileOp] = []

    def watch(op: FileOp) -> None:
        seen.append(op)

    gated = epoch(gate=watch)
    runs = {"plain": None, "recorded": epoch(), "gated": gated, "silent": epoch(record=False)}
    for name, vfs in runs.items():
        (tmp_path / name).mkdir()
        seed_prng(SEED)
        if vfs is None:
            unseen = RecordingVfs(record=False)  # for its marks only: the connection does not go through it
            workload(sqlite3.connect(tmp_path / name / STORE, isolation_level=None), unseen)
            assert (unseen.count, unseen.close()) == (0, True)
        else:
            workload(connect(vfs, tmp_path / name / STORE), vfs)
    assert len({tuple(sorted(on_disk(tmp_path / name).items())) for name in runs}) == 1
    assert seen == gated.ops


def test_without_recording_operations_are_counted_and_not_kept(tmp_path: Path, epoch: Epoch) -> None:
    recorded, silent = epoch(), epoch(record=False)
    for vfs in (recorded, silent):
        seed_prng(SEED)
        directory = tmp_path / vfs.name
        directory.mkdir()
        workload(connect(vfs, directory / STORE), vfs)
    assert silent.ops == []
    assert silent.count == recorded.count > 0


def test_two_vfs_objects_do_not_mix(tmp_path: Path, epoch: Epoch) -> None:
    one, two = epoch(), epoch()
    connections = [connect(one, tmp_path / "one.db"), connect(two, tmp_path / "two.db")]
    for connection in connections:
        connection.execute("CREATE TABLE t (k)")
    one.freeze()
    with pytest.raises(sqlite3.OperationalError):
        connections[0].execute("INSERT INTO t VALUES (1)")
    connections[1].execute("INSERT INTO t VALUES (1)")
    for connection in connections:
        connection.close()
    assert {op.file for op in one.ops} == {"one.db", "one.db-journal"}
    assert {op.file for op in two.ops} == {"two.db", "two.db-journal"}
    assert (one.frozen, two.frozen) == (True, False)
    assert replay([*one.ops, *two.ops])["two.db"] == (tmp_path / "two.db").read_bytes()


def test_a_gate_that_raises_freezes_and_keeps_what_it_raised(tmp_path: Path, epoch: Epoch) -> None:
    def gate(op: FileOp) -> None:
        if op.n == 3:
            raise KeyboardInterrupt("in the gate")

    vfs = epoch(gate=gate)
    connection = connect(vfs, tmp_path / STORE)
    with pytest.raises(sqlite3.OperationalError):
        connection.execute("CREATE TABLE t (k)")
    be_hostile(connection)
    assert vfs.frozen
    assert repr(vfs.failure) == "KeyboardInterrupt('in the gate')"
    assert without_empty(on_disk(tmp_path)) == without_empty(replay(vfs.ops))


def test_closing_waits_for_the_last_connection_and_takes_the_name_away_at_once(tmp_path: Path) -> None:
    vfs = RecordingVfs()
    connection = connect(vfs, tmp_path / STORE)
    connection.execute("CREATE TABLE t (k)")
    assert not vfs.close()
    with pytest.raises(sqlite3.OperationalError, match="no such vfs"):
        connect(vfs, tmp_path / STORE)
    connection.execute("INSERT INTO t VALUES (1)")
    connection.close()
    assert vfs.close()
    assert vfs.close()
    assert replay(vfs.ops)[STORE] == (tmp_path / STORE).read_bytes()


def test_a_seeded_vfs_answers_its_own_randomness_from_the_seed() -> None:
    program = (
        "import ctypes, sys\n"
        f"sys.path.insert(0, {str(HERE.parents[1])!r})\n"
        "from pidurable_nb.lab.dying.sqlite_abi import XRANDOMNESS, library\n"
        "from pidurable_nb.lab.dying.vfs import RecordingVfs\n"
        "vfs = RecordingVfs(seed=int(sys.argv[1]))\n"
        "found = library().vfs_find(vfs.name.encode())\n"
        "out = ctypes.create_string_buffer(16)\n"
        "XRANDOMNESS(found.contents.xRandomness)(ctypes.addressof(found.contents), 16, ctypes.addressof(out))\n"
        "print(out.raw.hex())\n"
    )

    def draw(seed: int) -> str:
        return subprocess.run(
            [sys.executable, "-c", program, str(seed)], capture_output=True, text=True, check=True
        ).stdout

    assert draw(1) == draw(1) != draw(2)


def test_a_library_that_sqlite3_does_not_use_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "not_a_library").write_text("text")
    with pytest.raises(VfsUnavailable, match=r"(?s)not_a_library.*sqlite3_vfs_find"):
        SqliteLibrary([str(tmp_path / "not_a_library"), loaded_library("libc.")])
    # Same version, same code, loaded a second time from another file: what is registered there sqlite3 cannot see.
    copy = tmp_path / "another_sqlite.so"
    shutil.copy(loaded_library("libsqlite3."), copy)
    with pytest.raises(VfsUnavailable, match="is another copy of SQLite than the one sqlite3 uses"):
        SqliteLibrary([str(copy)])
    assert library() is library()


def loaded_library(name: str) -> str:
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if f"/{name}" in line}
    return min(paths)
