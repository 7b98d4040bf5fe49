"""What is on disk: the format against real stores of another writer, what is refused, how a store is made."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pidurable_nb.errors import (
    DamagedStore,
    HostileStore,
    NewerFormat,
    NotAStore,
    StorageError,
    StoreBusy,
    StoreRefused,
)
from pidurable_nb.ids import ROOT, ConversationId, DocumentId, EntryId, TaskId
from pidurable_nb.lab.dying.vfs import FileOp, RecordingVfs, replay
from pidurable_nb.records import codec
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import Address, ConversationScope
from pidurable_nb.store.ownership import lock_path
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import (
    PutTask,
    SubmissionQuery,
    TaskQuery,
)
from pidurable_nb.testing.storage_checks import (
    all_pages,
    commit,
    note,
    start,
    task,
)
from tests.store.files import STORES, TABLES, close_new, copied, dump, opened, scripted, sound

NAMES = sorted(path.stem for path in STORES.glob("*.sqlite") if ".recovered" not in path.name)


def snapshot(folder: Path) -> dict[str, bytes | str]:
    """Everything in a folder, byte by byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else "no file"
        for path in sorted(folder.rglob("*"))
    }


# --- The format -------------------------------------------------------------------------------------------------------


def shape(path: Path) -> dict[str, object]:
    """Tables and indexes as SQLite understands them, whatever their text."""
    db = sqlite3.connect(path)
    listed = "name, ncol, wr, strict FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
    found: dict[str, object] = {row[0]: row[1:] for row in db.execute(f"SELECT {listed}") if row[0] in TABLES}
    for table in TABLES:
        found[f"{table} columns"] = db.execute(f"PRAGMA table_xinfo({table})").fetchall()
        for _, index, unique, origin, partial in db.execute(f"PRAGMA index_list({table})").fetchall():
            columns = db.execute(f"PRAGMA index_xinfo({index})").fetchall()
            found[f"{table} index {index}"] = (unique, origin, partial, columns)
    for pragma in ("user_version", "application_id", "page_size", "encoding", "auto_vacuum", "journal_mode"):
        found[pragma] = db.execute(f"PRAGMA {pragma}").fetchone()[0]
    db.close()
    return found


def test_format_a_new_store_has_the_tables_and_indexes_of_the_original(tmp_path: Path) -> None:
    async def main() -> None:
        await (await opened(tmp_path / "new" / "folder" / "s.sqlite")).close()

    asyncio.run(main())
    made = tmp_path / "new" / "folder" / "s.sqlite"
    original = copied("ticker", tmp_path)
    assert shape(made) == shape(original)
    assert dump(made)["durable_metadata"] == [(1, "2", 1)]
    assert dump(made)["durable_schema"] == [(1, 2)]
    db = sqlite3.connect(made)
    words = " ".join(row[0] for row in db.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL"))
    db.close()
    assert "--" not in words


@pytest.mark.parametrize("status", ["pending", "running", "waiting", "sleeping", "completing", "terminal", "asleep"])
def test_format_the_checks_accept_what_the_original_accepts(tmp_path: Path, status: str) -> None:
    asyncio.run(close_new(tmp_path / "s.sqlite"))
    for path in (tmp_path / "s.sqlite", copied("ticker", tmp_path)):
        db = sqlite3.connect(path, isolation_level=None)
        try:
            db.execute("INSERT INTO tasks VALUES (900, 1, '\"k\"', ?, 0, 0, '{}')", (status,))
            assert status != "asleep"
        except sqlite3.IntegrityError:
            assert status == "asleep"
        with pytest.raises(sqlite3.IntegrityError):
            db.execute("INSERT INTO entries VALUES (901, 1, NULL, 1, '{no json')")
        db.close()


@pytest.mark.parametrize("name", NAMES)
def test_t7_opening_changes_no_row_of_a_real_store(tmp_path: Path, name: str) -> None:
    path = copied(name, tmp_path)
    before = dump(path)
    manifest = json.loads((STORES / f"{name}.json").read_text())

    async def main() -> None:
        storage = SqliteStorage(path)
        found = await storage.open()
        assert found.next_seq == before["durable_metadata"][0][2]
        assert storage.mint() == int(str(before["durable_metadata"][0][1]))
        session = await storage.find_document(Address("pi.provider", ConversationScope(ROOT)))
        assert session is not None
        provider = await storage.document(session.id)
        assert provider is not None
        assert provider.value["sessionId"] == found.origin
        await storage.close()

    asyncio.run(main())
    assert manifest["what"]
    after = dump(path)
    if name == "schema-v1":
        before["durable_schema"] = [(1, 2)]
    assert after == before
    assert sound(path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", NAMES)
def test_format_every_record_of_a_real_store_is_read(tmp_path: Path, name: str) -> None:
    path = copied(name, tmp_path)
    rows = dump(path)

    async def main() -> None:
        storage = await opened(path, inline=True)
        for id, *_, record in rows["conversations"]:
            found = await storage.conversation(ConversationId(as_int(id)))
            assert found == codec.decode_conversation(str(record))
        for id, _, _, seq, record in rows["entries"]:
            kept = await storage.entry(EntryId(as_int(id)))
            assert kept is not None
            assert (kept.entry, kept.commit_seq) == (codec.decode_entry(str(record)), seq)
        tasks = await all_pages(lambda after: storage.scan_tasks(TaskQuery(), limit=7, after=after), 7)
        assert tasks == [codec.decode_task(str(row[-1])) for row in rows["tasks"]]
        submissions = await all_pages(
            lambda after: storage.scan_submissions(SubmissionQuery(), limit=3, after=after), 3
        )
        assert submissions == [codec.decode_submission(str(row[-1])) for row in rows["submissions"]]
        revised = {as_int(row[0]) for row in rows["document_revisions"]}
        for id, *_, retired, record in rows["documents"]:
            value = await storage.document(DocumentId(as_int(id)))
            assert (value is not None) == (retired is None)
            assert value is None or (value.record == codec.decode_document(str(record)) and id in revised)
        await storage.close()

    asyncio.run(main())


def as_int(value: object) -> int:
    assert isinstance(value, int)
    return value


def test_format_the_documents_of_a_real_store_have_the_values_its_writer_saw(tmp_path: Path) -> None:
    async def compare(name: str) -> int:
        compared = 0
        storage = await opened(copied(name, tmp_path), inline=True)
        for id, value in documents_of(json.loads((STORES / f"{name}.json").read_text())["store"].get("documents")):
            found = await storage.document(DocumentId(id))
            if found is not None:
                assert found.value == value, (name, id)
                compared += 1
        await storage.close()
        return compared

    compared = {name: asyncio.run(compare(name)) for name in NAMES}
    assert [name for name, values in compared.items() if not values] == ["big"]  # its manifest shows none


def documents_of(shown: object) -> Iterator[tuple[int, object]]:
    """(id, value) of what a manifest shows."""
    for item in shown if isinstance(shown, list) else []:
        if isinstance(item, dict) and "value" in item:
            yield item["record"]["id"], item["value"]


def test_format_version_1_is_migrated_and_tasks_may_sleep(tmp_path: Path) -> None:
    path = copied("schema-v1", tmp_path)
    asyncio.run(close_new(tmp_path / "new.sqlite"))
    before = dump(path)

    async def main() -> None:
        storage = SqliteStorage(path)
        found = await storage.open()
        assert "migrated from format 1 to 2" in found.notes
        sleeping = stored.Sleeping(checkpoint={"phase": "nap"}, until_ms=5.5)
        id = storage.mint()
        await commit(storage, PutTask(task(id, state=sleeping)))
        kept = await storage.task(TaskId(id))
        assert kept is not None
        assert kept.state == sleeping
        await storage.close()

    asyncio.run(main())
    assert shape(path) == shape(tmp_path / "new.sqlite")
    assert dump(path)["tasks"][:-1] == before["tasks"]
    assert dump(path)["document_revisions"] == before["document_revisions"]


def test_format_a_migration_that_fails_changes_nothing(tmp_path: Path, watched: Callable[..., RecordingVfs]) -> None:
    path = copied("schema-v1", tmp_path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode=WAL")  # as the opening would
    db.close()
    before = dump(path)
    vfs = watched(lambda op: sqlite3.SQLITE_FULL if op.file.endswith("-wal") and op.op == "write" else None)

    async def main() -> None:
        with pytest.raises(StorageError) as failed:
            await SqliteStorage(path, vfs=vfs.name).open()
        assert failed.value.stored == "no"

    asyncio.run(main())
    assert dump(path) == before
    assert not lock_path(path).exists()


# --- Refusals ---------------------------------------------------------------------------------------------------------


def make_newer(path: Path) -> None:
    scripted(path, "UPDATE durable_schema SET version = 3")


def make_newer_in_the_log(path: Path) -> None:
    """The version 3 is in the `-wal` only, as after a kill."""
    script = """
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
db.execute("UPDATE durable_schema SET version = 3")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    path.with_name(path.name + "-shm").unlink()
    assert path.with_name(path.name + "-wal").stat().st_size > 0


def make_foreign_log(path: Path) -> None:
    """The log of another store stands beside this one."""

    async def main() -> None:
        for name in (path, path.with_name("other.sqlite")):
            storage = await opened(name)
            await start(storage)
            await storage.close()
        other = await opened(path.with_name("other.sqlite"))
        await note(other)
        shutil.copyfile(path.with_name("other.sqlite-wal"), path.with_name(path.name + "-wal"))
        await other.close()

    path.unlink()
    asyncio.run(main())


def make_foreign_database(path: Path) -> None:
    path.unlink()
    scripted(path, "CREATE TABLE t (a)")


def make_marked_database(path: Path) -> None:
    path.unlink()
    scripted(path, "PRAGMA user_version=7")


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_empty_beside_a_log(path: Path) -> None:
    path.write_bytes(b"")
    path.with_name(path.name + "-wal").write_bytes(b"x" * 99)


REFUSALS: dict[str, tuple[Callable[[Path], object], type[StoreRefused]]] = {
    "a directory": (make_directory, NotAStore),
    "a pipe": (make_pipe, NotAStore),
    "a text": (lambda path: path.write_text("dear diary\n" * 50), NotAStore),
    "a short text": (lambda path: path.write_text("hi"), NotAStore),
    "nothing": (lambda path: path.write_bytes(b""), NotAStore),
    "nothing beside a log": (make_empty_beside_a_log, DamagedStore),
    "a log without its database": (
        lambda path: path.rename(path.with_name(path.name + "-wal")),
        DamagedStore,
    ),
    "the log of another store": (make_foreign_log, DamagedStore),
    "half a page": (lambda path: os.truncate(path, 2000), DamagedStore),
    "half a store": (lambda path: os.truncate(path, path.stat().st_size // 2), DamagedStore),
    "a store without its last byte": (lambda path: os.truncate(path, path.stat().st_size - 1), DamagedStore),
    "a newer store": (make_newer, NewerFormat),
    "a newer store, in its log": (make_newer_in_the_log, NewerFormat),
    "another database": (make_foreign_database, NotAStore),
    "an empty database of somebody": (make_marked_database, NotAStore),
    "a store under a prefix": (
        lambda path: scripted(path, *(f"ALTER TABLE {table} RENAME TO p_{table}" for table in TABLES)),
        NotAStore,
    ),
    "a store without a table": (lambda path: scripted(path, "DROP TABLE submissions"), NotAStore),
    "a store without its metadata": (lambda path: scripted(path, "DELETE FROM durable_metadata"), DamagedStore),
    "a next id in words": (lambda path: scripted(path, "UPDATE durable_metadata SET next_id='two'"), DamagedStore),
    "a next seq of zero": (lambda path: scripted(path, "UPDATE durable_metadata SET next_seq=0"), DamagedStore),
    "tables without a format": (lambda path: scripted(path, "UPDATE durable_schema SET version=0"), DamagedStore),
    "a trigger": (
        lambda path: scripted(path, "CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM tasks; END"),
        HostileStore,
    ),
    "a view": (lambda path: scripted(path, "CREATE VIEW v AS SELECT * FROM entries"), HostileStore),
}


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("inline", [False, True])
def test_refused_files_are_named_in_one_line_and_nothing_is_changed(tmp_path: Path, case: str, inline: bool) -> None:
    path = copied("ticker", tmp_path)
    make, kind = REFUSALS[case]
    make(path)
    before = snapshot(tmp_path)

    async def main() -> None:
        storage = SqliteStorage(path, inline=inline)
        with pytest.raises(StoreRefused) as refused:
            await storage.open()
        assert type(refused.value) is kind, refused.value
        assert "\n" not in str(refused.value)
        assert str(path) in str(refused.value)
        assert refused.value.path == path
        await storage.close()

    asyncio.run(main())
    assert snapshot(tmp_path) == before


def test_refused_is_a_place_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    before = snapshot(tmp_path)
    for path in (tmp_path / "file" / "s.sqlite", tmp_path / "file" / "deep" / "s.sqlite"):
        with pytest.raises(StoreRefused, match=r"s\.sqlite"):
            asyncio.run(SqliteStorage(path).open())
    assert snapshot(tmp_path) == before


def test_refused_is_what_the_user_may_not_write(tmp_path: Path) -> None:
    """A child without rights: these tests may run as root, whom no permission stops."""
    locked, shut = tmp_path / "locked", tmp_path / "shut"
    locked.mkdir()
    copied("ticker", locked).chmod(0o444)
    shut.mkdir()
    copied("ticker", shut).chmod(0o666)
    locked.chmod(0o777)
    shut.chmod(0o555)
    script = """
import asyncio, os, sys
from pathlib import Path
import aiosqlite
from pidurable_nb.errors import StoreRefused
from pidurable_nb.store.sqlite import SqliteStorage

os.chdir(sys.argv[1])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for path in ("locked/ticker.sqlite", "shut/ticker.sqlite", "shut/new.sqlite", "shut/deep/new.sqlite"):
    storage = SqliteStorage(Path(path), inline=True)
    storage.path = Path(os.path.abspath(path))
    try:
        asyncio.run(storage.open())
    except StoreRefused as error:
        print(path, "|", error)
    else:
        raise SystemExit(f"{path} was opened")
"""
    for folder in [tmp_path, *tmp_path.parents][:-2]:
        if folder.stat().st_uid == os.getuid() and folder != Path(folder.anchor):
            folder.chmod(folder.stat().st_mode | 0o055)
    before = snapshot(tmp_path)
    said = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True
    ).stdout
    shut.chmod(0o755)
    assert len(said.splitlines()) == 4
    assert snapshot(tmp_path) == before


def test_refused_while_a_process_without_the_lock_writes(tmp_path: Path) -> None:
    path = copied("ticker", tmp_path)
    foreign = sqlite3.connect(path, isolation_level=None)
    foreign.execute("PRAGMA journal_mode=WAL")
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        asyncio.run(SqliteStorage(path, busy_timeout_ms=20).open())
    foreign.execute("ROLLBACK")
    foreign.close()
    assert not lock_path(path).exists()


# --- Making a store ---------------------------------------------------------------------------------------------------


def test_c1_a_store_that_was_cut_off_while_it_was_made_is_made_to_the_end(
    tmp_path: Path, watched: Callable[..., RecordingVfs]
) -> None:
    vfs = watched()

    async def make() -> list[FileOp]:
        storage = SqliteStorage(tmp_path / "s.sqlite", vfs=vfs.name, inline=True)
        await storage.open()
        await start(storage)
        ops = list(vfs.ops)
        await storage.close()
        return ops

    async def recover(folder: Path, *, fresh: bool) -> int:
        folder.mkdir()
        for name, content in image.items():
            (folder / name).write_bytes(content)
        if fresh:
            (folder / "s.sqlite").touch()
            lock_path(folder / "s.sqlite").write_text('{"pid": 1, "fresh": true}')
        storage = await opened(folder / "s.sqlite", inline=True)
        kept = await storage.conversation(ROOT)
        if kept is None:
            await start(storage)
        await storage.close()
        assert sound(folder / "s.sqlite")
        return 0 if kept is None else 1

    ops = asyncio.run(make())
    found = []
    for n in range(len(ops) + 1):
        image = replay(ops[:n])
        found.append(asyncio.run(recover(tmp_path / str(n), fresh=False)))
        assert asyncio.run(recover(tmp_path / f"{n} killed", fresh=True)) == found[-1]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 1)


def test_origin_and_store_id_a_copy_gets_a_new_id_and_keeps_its_origin(tmp_path: Path) -> None:
    async def main() -> None:
        storage = SqliteStorage(tmp_path / "s.sqlite")
        first = await storage.open()
        await storage.close()
        again = await storage.open()
        assert (again.store_id, again.origin, again.opening) == (first.store_id, first.origin, first.opening + 1)
        await storage.close()
        shutil.copyfile(tmp_path / "s.sqlite", tmp_path / "copy.sqlite")
        copy = SqliteStorage(tmp_path / "copy.sqlite")
        found = await copy.open()
        assert found.store_id != first.store_id
        assert found.origin == first.origin
        assert any("copy" in line for line in found.notes)
        await copy.close()
        assert (await copy.open()).store_id == found.store_id
        await copy.close()

    asyncio.run(main())


def test_two_runs_with_drawn_names_hold_the_same_rows(tmp_path: Path) -> None:
    async def run(path: Path) -> None:
        names = iter(["one", "two"])
        storage = SqliteStorage(path, inline=True, draw=lambda: next(names))
        await storage.open()
        await start(storage)
        await note(storage)
        await storage.close()

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        asyncio.run(run(tmp_path / name / "s.sqlite"))
    assert (tmp_path / "a" / "s.sqlite").read_bytes() == (tmp_path / "b" / "s.sqlite").read_bytes()
