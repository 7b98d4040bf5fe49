"""Copies of stores: whole, private, and without a trace in the original or its folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pidurable_nb.errors import DamagedStore, HostileStore, NotAStore, StoreBusy, StoreRefused
from pidurable_nb.store.copying import copy_store, open_here

STORES = Path(__file__).resolve().parents[2] / "fixtures" / "stores"

# Each commit adds one row to `log` and one to the number in `total`: a torn copy shows two different counts.
WRITER = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA wal_autocheckpoint=20")
print("ready", flush=True)
while True:
    for _ in range(40):
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO log (text) VALUES (?)", ("x" * 3000,))
        db.execute("UPDATE total SET n = n + 1")
        db.execute("COMMIT")
    time.sleep(0.1)
"""

# Does another process get the lock of a writer?
INTRUDER = """
import sqlite3, sys
try: sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as error: print(error)
else: print("the lock was free")
"""


def traces(folder: Path) -> dict[str, object]:
    """Every byte and time of a folder and what is in it."""
    seen: dict[str, object] = {".": os.stat(folder).st_mtime_ns}
    for path in sorted(folder.iterdir()):
        found = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(found.st_mode) else ""
        seen[path.name] = (found.st_mode, found.st_size, found.st_mtime_ns, digest)
    return seen


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A store that was killed: nearly everything is still in its -wal."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for path in (STORES / "raw").iterdir():
        shutil.copy(path, folder)
    return folder / "ticker.sqlite"


def run(program: str, *args: Path) -> str:
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_copy_is_the_database_and_its_wal_never_its_shm(raw: Path, tmp_path: Path) -> None:
    before = traces(raw.parent)
    copy = copy_store(raw, tmp_path / "private")
    assert sorted(path.name for path in copy.parent.iterdir()) == ["ticker.sqlite", "ticker.sqlite-wal"]
    assert copy.read_bytes() == raw.read_bytes()
    assert Path(f"{copy}-wal").read_bytes() == Path(f"{raw}-wal").read_bytes()
    assert traces(raw.parent) == before


def test_copy_is_private(raw: Path, tmp_path: Path) -> None:
    copy = copy_store(raw, tmp_path / "private")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (copy.parent, copy, Path(f"{copy}-wal"))]
    assert modes == [0o700, 0o600, 0o600]


def test_empty_or_missing_wal_is_no_file_of_the_copy(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    store = Path(shutil.copy(STORES / "ticker.sqlite", folder))
    assert [path.name for path in copy_store(store, tmp_path / "a").parent.iterdir()] == ["ticker.sqlite"]
    Path(f"{store}-wal").touch()
    assert [path.name for path in copy_store(store, tmp_path / "b").parent.iterdir()] == ["ticker.sqlite"]


def test_symlink_to_the_database_is_followed_with_the_wal_of_its_target(raw: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite"
    link.symlink_to(raw)
    copy = copy_store(link, tmp_path / "private")
    assert copy.name == "link.sqlite"
    assert Path(f"{copy}-wal").read_bytes() == Path(f"{raw}-wal").read_bytes()


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
@pytest.mark.parametrize("open_in_this_process", [False, True])
def test_wal_that_is_no_regular_file_is_refused(
    raw: Path, tmp_path: Path, kind: str, open_in_this_process: bool
) -> None:
    wal = Path(f"{raw}-wal")
    wal.rename(tmp_path / "elsewhere")
    if kind == "symlink":
        wal.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(wal)
    else:
        wal.mkdir()
    if open_in_this_process:
        open_here.add((raw.stat().st_dev, raw.stat().st_ino))
    try:
        with pytest.raises(HostileStore, match="-wal beside it that is no regular file"):
            copy_store(raw, tmp_path / "private")
    finally:
        open_here.clear()
    assert list((tmp_path / "private").iterdir()) == []


def test_what_is_no_database_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    cases.mkdir()
    (cases / "empty").touch()
    (cases / "text").write_text("SQLite is what this is not")
    (cases / "folder").mkdir()
    os.mkfifo(cases / "fifo")
    (cases / "loop").symlink_to(cases / "loop")
    (cases / "dangling").symlink_to(cases / "nowhere")
    for name in ("empty", "text", "folder", "fifo", "loop", "dangling", "missing", "text/below"):
        with pytest.raises(NotAStore) as refused:
            copy_store(cases / name, tmp_path / "private")
        assert str(refused.value).startswith(str(cases / name)), name
        assert "\n" not in str(refused.value)
    assert list((tmp_path / "private").iterdir()) == []


def test_database_cut_off_inside_its_first_page_is_damaged(tmp_path: Path) -> None:
    for size in (7, 100, 511):
        cut = tmp_path / f"cut-{size}.sqlite"
        cut.write_bytes((STORES / "ticker.sqlite").read_bytes()[:size])
        with pytest.raises(DamagedStore, match=f"cut off after {size} bytes"):
            copy_store(cut, tmp_path / "private")


def test_size_cap_holds_for_database_and_wal(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(HostileStore, match="321,392 bytes, over the limit of 100,000"):
        copy_store(raw, tmp_path / "private", most_bytes=100_000)
    with pytest.raises(HostileStore, match="over the limit of 1,000"):
        copy_store(STORES / "ticker.sqlite", tmp_path / "private", most_bytes=1_000)
    assert list((tmp_path / "private").iterdir()) == []


def test_existing_file_at_the_copys_place_is_kept(raw: Path, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / raw.name).write_text("mine")
    with pytest.raises(StoreRefused, match="File exists"):
        copy_store(raw, private)
    assert (private / raw.name).read_text() == "mine"


def test_rollback_journal_of_an_unfinished_transaction_is_never_copied(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("CREATE TABLE t (a)")
        db.execute("PRAGMA cache_size=1")
        db.execute("BEGIN")
        for _ in range(200):
            db.execute("INSERT INTO t VALUES (randomblob(2000))")
        journal = Path(f"{store}-journal")
        assert journal.stat().st_size > 0
        before = traces(tmp_path)
        with pytest.raises(DamagedStore, match="rollback journal"):
            copy_store(store, tmp_path.parent / f"{tmp_path.name}-private")
        assert traces(tmp_path) == before


def test_store_in_use_is_copied_as_of_one_moment_or_said_to_be_busy(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    store = folder / "busy.sqlite"
    with closing(sqlite3.connect(store)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript("CREATE TABLE total (n); INSERT INTO total VALUES (3000); CREATE TABLE log (text)")
        db.executemany("INSERT INTO log VALUES (?)", [("x" * 5000,)] * 3000)  # large: copying takes a while
        db.commit()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, store], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        moments = set[int]()
        for attempt in range(1000):
            try:
                copy = copy_store(store, tmp_path / str(attempt))
            except StoreBusy:
                continue
            with closing(sqlite3.connect(copy)) as db:
                ((rows,), (total,), (check,)) = (
                    db.execute(query).fetchone()
                    for query in ("SELECT count(*) FROM log", "SELECT n FROM total", "PRAGMA integrity_check")
                )
            assert (rows, check) == (total, "ok")
            shutil.rmtree(copy.parent)
            moments.add(total)
            if len(moments) == 8:
                break
        assert len(moments) == 8
        assert writer.poll() is None, "the writer noticed nothing"
    finally:
        writer.kill()
        writer.communicate()


def test_copying_a_store_that_this_process_has_open_keeps_its_locks(tmp_path: Path) -> None:
    store = tmp_path / "mine.sqlite"
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("CREATE TABLE t (a)")
        db.execute("BEGIN IMMEDIATE")
        copy_store(store, tmp_path / "private")
        assert run(INTRUDER, store) == "database is locked"
        store.read_bytes()  # the control: what copying must not do
        assert run(INTRUDER, store) == "the lock was free"
