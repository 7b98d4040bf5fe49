"""The SQLite storage against the format, the crash model and its own promises: real files, real faults."""

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
from pidurable_nb.ids import ROOT, ConversationId, DocumentId, EntryId, Seq, TaskId
from pidurable_nb.lab.vfs import FileOp, RecordingVfs, replay
from pidurable_nb.records import codec
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import Address, ConversationScope
from pidurable_nb.store import delta
from pidurable_nb.store.line import Phase, classify
from pidurable_nb.store.ownership import lock_path
from pidurable_nb.store.sqlite import Durability, SqliteStorage
from pidurable_nb.store.storage import (
    Base,
    ChangeDocument,
    Commit,
    CreateDocument,
    Delta,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    SubmissionQuery,
    TaskQuery,
)
from pidurable_nb.testing.storage_checks import (
    all_pages,
    change,
    commit,
    conversation,
    create,
    document,
    entry,
    note,
    start,
    submission,
    task,
    value_of,
)

STORES = Path(__file__).parents[2] / "fixtures" / "stores"
NAMES = sorted(path.stem for path in STORES.glob("*.sqlite") if ".recovered" not in path.name)
TABLES = (
    "durable_schema",
    "durable_metadata",
    "record_ids",
    "conversations",
    "entries",
    "tasks",
    "submissions",
    "documents",
    "document_revisions",
)


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


def snapshot(folder: Path) -> dict[str, bytes | str]:
    """Everything in a folder, byte by byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else "no file"
        for path in sorted(folder.rglob("*"))
    }


async def opened(path: Path, **options: bool) -> SqliteStorage:
    storage = SqliteStorage(path, inline=options.get("inline", False))
    await storage.open()
    return storage


@pytest.fixture
def watched() -> Iterator[Callable[..., RecordingVfs]]:
    """Makes recording VFS objects and takes them from SQLite in the end."""
    made: list[RecordingVfs] = []

    def make(gate: Callable[[FileOp], int | None] | None = None) -> RecordingVfs:
        made.append(RecordingVfs(gate=gate))
        return made[-1]

    yield make
    free = [vfs.close() for vfs in made]
    assert all(free)


# --- The format -------------------------------------------------------------------------------------------------


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


async def close_new(path: Path) -> None:
    await (await opened(path)).close()


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
    for name in NAMES:
        path = copied(name, tmp_path)
        shown = json.loads((STORES / f"{name}.json").read_text())["store"].get("documents", {})

        async def main(path: Path = path, shown: object = shown) -> int:
            storage = await opened(path, inline=True)
            compared = 0
            for id, value in documents_of(shown):
                found = await storage.document(DocumentId(id))
                if found is not None:
                    assert found.value == value, (path.name, id)
                    compared += 1
            await storage.close()
            return compared

        assert asyncio.run(main()) > 0 or not list(documents_of(shown)), name


def documents_of(shown: object) -> Iterator[tuple[int, object]]:
    """(id, value) of what a manifest shows."""
    for item in shown if isinstance(shown, list) else []:
        if isinstance(item, dict) and "value" in item and "id" in item:
            yield item["id"], item["value"]


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


# --- Refusals ---------------------------------------------------------------------------------------------------


def scripted(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def make_newer(path: Path) -> None:
    scripted(path, "UPDATE durable_schema SET version = 3")


def make_newer_in_the_log(path: Path) -> None:
    """The version 3 is in the `-wal` only, as after a kill."""
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); "
            "db.execute('PRAGMA journal_mode=WAL'); db.execute('UPDATE durable_schema SET version = 3'); os._exit(0)",
            str(path),
        ],
        check=True,
    )
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


REFUSALS: dict[str, tuple[Callable[[Path], object], type[StoreRefused]]] = {
    "a directory": (lambda path: (path.unlink(), path.mkdir()), NotAStore),
    "a pipe": (lambda path: (path.unlink(), os.mkfifo(path)), NotAStore),
    "a text": (lambda path: path.write_text("dear diary\n" * 50), NotAStore),
    "a short text": (lambda path: path.write_text("hi"), NotAStore),
    "nothing": (lambda path: path.write_bytes(b""), NotAStore),
    "nothing beside a log": (
        lambda path: (path.write_bytes(b""), path.with_name(path.name + "-wal").write_bytes(b"x" * 99)),
        DamagedStore,
    ),
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
    "another database": (lambda path: (path.unlink(), scripted(path, "CREATE TABLE t (a)")), NotAStore),
    "an empty database of somebody": (lambda path: (path.unlink(), scripted(path, "PRAGMA user_version=7")), NotAStore),
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


# --- Making a store ---------------------------------------------------------------------------------------------


def test_c1_a_store_that_was_cut_off_while_it_was_made_is_made_to_the_end(
    tmp_path: Path, watched: Callable[..., RecordingVfs]
) -> None:
    vfs = watched()

    async def make() -> None:
        storage = SqliteStorage(tmp_path / "s.sqlite", vfs=vfs.name, inline=True)
        await storage.open()
        await start(storage)

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

    asyncio.run(make())
    found = []
    for n in range(len(vfs.ops) + 1):
        image = replay(vfs.ops[:n])
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


# --- Commits ----------------------------------------------------------------------------------------------------


def commits_in_log(path: Path) -> int:
    """How many transactions the log holds: frames that carry the size of the database."""
    log = path.with_name(path.name + "-wal").read_bytes()
    frames = range(32, len(log), 24 + 4096)
    return sum(int.from_bytes(log[at + 4 : at + 8], "big") != 0 for at in frames)


def test_c8_a_group_is_one_transaction_and_each_commit_has_its_number(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path / "s.sqlite")
        await start(storage)
        before = commits_in_log(tmp_path / "s.sqlite")
        ids = [storage.mint() for _ in range(200)]
        seqs = await storage.commit([Commit((PutTask(task(id)), PutEntry(entry(id + 1000)))) for id in ids])
        assert list(seqs) == list(range(2, 202))
        assert commits_in_log(tmp_path / "s.sqlite") == before + 1
        stored_entries = [await storage.entry(EntryId(id + 1000)) for id in ids]
        assert [found.commit_seq for found in stored_entries if found is not None] == list(seqs)
        await storage.close()

    asyncio.run(main())
    assert dump(tmp_path / "s.sqlite")["durable_metadata"] == [(1, str(1000 + 201 + 1), 202)]


def test_f4_a_refused_write_takes_the_whole_group_back_proven_not_stored(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path / "s.sqlite")
        await start(storage)
        kept = await note(storage)
        good = [Commit((PutEntry(entry(storage.mint())),)) for _ in range(3)]
        for bad in (PutEntry(entry(kept)), PutTask(task(kept)), ChangeDocument(DocumentId(77), Base(1, {}))):
            with pytest.raises(StorageError) as refused:
                await storage.commit([*good, Commit((bad,))])
            assert refused.value.stored == "no"
            assert "nothing of it is stored" in str(refused.value)
        await storage.commit(good)
        await storage.close()

    asyncio.run(main())
    assert dump(tmp_path / "s.sqlite")["durable_metadata"] == [(1, "6", 6)]
    assert sound(tmp_path / "s.sqlite")


def test_f4_cancelling_a_caller_leaves_its_commit_stored_and_the_storage_alive(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path / "s.sqlite")
        await start(storage)
        id = EntryId(storage.mint())
        caller = asyncio.ensure_future(storage.commit([Commit((PutEntry(entry(id)),))]))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert await storage.entry(id) is not None
        await note(storage)
        await storage.close()

    asyncio.run(main())


def test_inline_nothing_ever_suspends(tmp_path: Path) -> None:
    def run(awaitable: object) -> object:
        assert hasattr(awaitable, "send")
        try:
            awaitable.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("it suspended")

    storage = SqliteStorage(tmp_path / "s.sqlite", inline=True)
    run(storage.open())
    run(start(storage))
    id = run(note(storage))
    assert isinstance(id, int)
    assert run(storage.entry(EntryId(id))) is not None
    run(storage.maintain())
    run(storage.close())


def test_a_forgotten_storage_never_keeps_the_interpreter_alive(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.testing.storage_checks import start

async def main():
    global storage
    storage = SqliteStorage(Path(sys.argv[1]))
    await storage.open()
    await start(storage)

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s.sqlite")], check=True, timeout=60)
    asyncio.run(close_new(tmp_path / "s.sqlite"))
    assert len(dump(tmp_path / "s.sqlite")["conversations"]) == 1


def test_t3_a_task_row_is_in_step_with_its_record_whatever_changed(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    async def main() -> None:
        storage = await opened(path)
        await start(storage)
        id = storage.mint()
        running = stored.Running(checkpoint={"phase": "start"})
        for record in (
            task(id),
            task(id, state=running),
            task(id, state=stored.Running(checkpoint={"phase": "next"})),
            task(id, state=running, abort_requested=True),
            task(id, state=running, abort_requested=True, background=True),
            task(id, state=running, kind="app.other", conversation=ConversationId(5)),
            task(id, state=stored.Terminal(outcome=stored.Aborted())),
        ):
            await commit(storage, PutTask(record))
            assert await storage.task(TaskId(id)) == record
            fitting = TaskQuery(
                conversation=record.conversation,
                kind=record.kind,
                status=record.status,
                live=record.live,
                abort_requested=record.abort_requested,
                background=record.background,
            )
            assert (await storage.scan_tasks(fitting, limit=9)).items == (record,)
        await storage.close()

    asyncio.run(main())
    assert sound(path)


# --- Durability and faults --------------------------------------------------------------------------------------


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


# --- The log ----------------------------------------------------------------------------------------------------


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


# --- Strings ----------------------------------------------------------------------------------------------------


def test_format_both_spellings_of_an_indexed_string_are_found(tmp_path: Path) -> None:
    path, name = tmp_path / "s.sqlite", "été 💸"
    asyncio.run(close_new(path))
    theirs = json.dumps(name)
    assert not name.isascii()
    scripted(
        path,
        "UPDATE durable_metadata SET next_id='20', next_seq=2",
        "INSERT INTO record_ids VALUES (1,'conversation'),(2,'task'),(3,'submission'),(4,'document')",
        "INSERT INTO conversations VALUES (1, NULL, NULL, '{\"id\":1}')",
    )
    theirs_task = json.dumps(codec.task_json(task(2, kind=name)))
    theirs_submission = json.dumps(codec.submission_json(submission(3, request_id=name)))
    theirs_document = json.dumps(codec.document_json(document(4, kind=name, key=name)))
    db = sqlite3.connect(path)
    db.execute("INSERT INTO tasks VALUES (2, 1, ?, 'pending', 0, 0, ?)", (theirs, theirs_task))
    db.execute("INSERT INTO submissions VALUES (3, 1, ?, 'queued', ?)", (theirs, theirs_submission))
    db.execute(
        "INSERT INTO documents VALUES (4, ?, 1, ?, 'conversation', 1, 1, NULL, ?)", (theirs, theirs, theirs_document)
    )
    db.execute("INSERT INTO document_revisions VALUES (4, 1, 'base', 1, '{}')")
    db.commit()
    db.close()

    async def main() -> None:
        storage = await opened(path)
        own_task = task(storage.mint(), kind=name)
        own_submission = submission(storage.mint(), request_id="ï")
        await commit(storage, PutTask(own_task), PutSubmission(own_submission))
        for limit in (1, 2, 9):
            tasks = await all_pages(
                lambda after, limit=limit: storage.scan_tasks(TaskQuery(kind=name), limit=limit, after=after), limit
            )
            assert [found.id for found in tasks] == [2, own_task.id]
        found = await storage.submission_by_request(ROOT, name)
        assert found is not None
        assert found.id == 3
        assert await storage.submission_by_request(ROOT, "ï") == own_submission
        address = Address(name, ConversationScope(ROOT), name)
        record = await storage.find_document(address)
        assert record is not None
        assert record.id == 4
        listed = await storage.scan_documents(ConversationScope(ROOT), limit=9, kind=name)
        assert [found.id for found in listed.items] == [4]
        await storage.close()

    asyncio.run(main())
    rows = dump(path)
    assert rows["tasks"][-1][2] == '"été 💸"'
    assert rows["submissions"][-1][2] == '"ï"'


def test_c7_half_characters_and_nul_are_kept_in_every_column(tmp_path: Path) -> None:
    path, odd = tmp_path / "s.sqlite", "a\ud800b\x00c\udfff\ufeff"

    async def main() -> None:
        storage = await opened(path)
        await commit(storage, PutConversation(conversation(1)))
        ids = [storage.mint() for _ in range(4)]
        records = (
            task(ids[0], kind=odd, input={odd: odd}),
            submission(ids[1], request_id=odd),
            entry(ids[2], kind=odd, data=[odd]),
            document(ids[3], kind=odd, key=odd),
        )
        await commit(
            storage,
            PutTask(records[0]),
            PutSubmission(records[1]),
            PutEntry(records[2]),
            CreateDocument(records[3], Base(1, {odd: odd})),
        )
        await change(storage, DocumentId(ids[3]), delta.Append((odd,), odd))
        assert (await storage.scan_tasks(TaskQuery(kind=odd), limit=9)).items == (records[0],)
        assert await storage.submission_by_request(ROOT, odd) == records[1]
        found = await storage.entry(EntryId(ids[2]))
        assert found is not None
        assert found.entry == records[2]
        named = await storage.find_document(Address(odd, ConversationScope(ROOT), odd))
        assert named is not None
        assert await value_of(storage, named.id) == {odd: odd + odd}
        await storage.close()

    asyncio.run(main())
    assert dump(path)["tasks"][0][2] == '"a\\ud800b\\u0000c\\udfff\ufeff"'


# --- Scans ------------------------------------------------------------------------------------------------------


def test_scans_read_what_they_return_however_much_the_store_holds(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    async def steps(storage: SqliteStorage, many: int) -> list[int]:
        """How much SQLite computes for each question, in its own steps."""
        held = storage._held
        assert held is not None
        counted = [0]

        def count() -> int:
            counted[0] += 1
            return 0

        await held.line.run(lambda line: line.set_progress_handler(count, 10))
        found = []
        for ask in (
            lambda: storage.scan_tasks(TaskQuery(live=True), limit=10),
            lambda: storage.scan_tasks(TaskQuery(live=True, conversation=ROOT), limit=10),
            lambda: storage.scan_tasks(TaskQuery(status="running"), limit=10),
            lambda: storage.scan_tasks(TaskQuery(conversation=ROOT), limit=10, order="descending"),
            lambda: storage.scan_tasks(TaskQuery(abort_requested=True), limit=10),
            lambda: storage.scan_tasks(TaskQuery(), limit=10, after=many),
            lambda: storage.scan_submissions(SubmissionQuery(open=True), limit=10),
            lambda: storage.scan_entries(ROOT, limit=10),
            lambda: storage.latest_head(ROOT),
        ):
            counted[0] = 0
            await ask()
            found.append(counted[0])
        await held.line.run(lambda line: line.set_progress_handler(None, 10))
        return found

    async def main() -> None:
        storage = await opened(path, inline=True)
        await start(storage)
        ended = stored.Terminal(outcome=stored.Completed(result=None))

        def batch() -> Commit:
            ids = [storage.mint() for _ in range(300)]
            done = [PutTask(task(id, state=ended)) for id in ids[:100]]
            asleep = [
                PutTask(task(id, state=stored.Sleeping(checkpoint={"phase": "nap"}, until_ms=1.0)))
                for id in ids[100:200]
            ]
            return Commit((*done, *asleep, *(PutEntry(entry(id)) for id in ids[200:])))

        await storage.commit([batch()])
        few = await steps(storage, 200)
        await storage.commit([batch() for _ in range(30)])
        many = await steps(storage, 200)
        for small, large in zip(few, many, strict=True):
            assert large <= 2 * small + 20, (few, many)
        await storage.close()

    asyncio.run(main())


def test_v3_a_chain_of_forks_is_read_in_order_from_both_ends(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path / "s.sqlite", inline=True)
        await start(storage)
        here, wanted = ROOT, list[EntryId]()
        for _ in range(30):
            seen = [await note(storage, here) for _ in range(3)]
            wanted += seen[:2]
            fork_at, parent, here = seen[1], here, ConversationId(storage.mint())
            record = codec.conversation_of({"id": here, "parent": {"conversationId": parent, "at": fork_at}})
            await commit(storage, PutConversation(record))
        for limit in (1, 7, 100):
            up = await all_pages(
                lambda after, limit=limit: storage.scan_entries(here, limit=limit, after=after, order="ascending"),
                limit,
            )
            assert [found.id for found in up] == wanted
            down = await all_pages(
                lambda after, limit=limit: storage.scan_entries(here, limit=limit, after=after), limit
            )
            assert [found.id for found in down] == wanted[::-1]
        await storage.close()

    asyncio.run(main())


def test_documents_read_at_every_commit_as_they_were(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path / "s.sqlite")
        await start(storage)
        id = DocumentId(storage.mint())
        seqs = [await create(storage, document(id, history="rewindable"), {"n": 0})]
        for n in range(1, 40):
            whole = n % 7 == 0
            content = Base(1, {"n": n}) if whole else Delta(1, (delta.Put(("n",), n),))
            seqs.append(await commit(storage, ChangeDocument(id, content)))
        assert [await value_of(storage, id, seq) for seq in seqs] == [{"n": n} for n in range(40)]
        assert await value_of(storage, id, Seq(seqs[0] - 1)) is None
        found = await storage.document(id)
        assert found is not None
        assert found.deltas_since_base == 39 % 7
        await storage.close()

    asyncio.run(main())
