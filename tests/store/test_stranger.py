"""Reading stores that somebody else wrote: what they hold, as their own manifests tell it, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pidurable_nb.errors import (
    DamagedStore,
    HostileStore,
    NewerFormat,
    NotAStore,
    StorageRequestError,
    StoreRefused,
)
from pidurable_nb.ids import ConversationId, DocumentId, EntryId, Seq, TaskId
from pidurable_nb.records import codec
from pidurable_nb.store.confined import Limits
from pidurable_nb.store.stranger import StoreFile

STORES = Path(__file__).resolve().parents[2] / "fixtures" / "stores"
MANIFESTS = sorted(path for path in STORES.glob("*.json") if path.name != "verdicts.json")
TOLD = [path for path in MANIFESTS if path.name != "big.json"]  # its records are too many for its manifest


def traces(folder: Path) -> dict[str, object]:
    """Every byte and time of a folder and of the files in it."""
    seen: dict[str, object] = {".": os.stat(folder).st_mtime_ns}
    for path in sorted(folder.iterdir()):
        if path.is_file():
            found = path.stat()
            seen[path.name] = (found.st_size, found.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
    return seen


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A copy of a store with tasks, entries, a submission and deltas, to be spoiled."""
    folder = tmp_path / "spoiled"
    folder.mkdir()
    return Path(shutil.copy(STORES / "tool-unsafe.sqlite", folder))


def change(store: Path, script: str) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("PRAGMA ignore_check_constraints=ON")
        db.executescript(script)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def read_all(path: Path, limits: Limits | None = None) -> None:
    """Everything a caller can read."""
    with StoreFile.open(path, limits=limits or Limits()) as store:
        assert store.counts.tasks >= 0
        for conversation in store.conversations():
            store.visible_count(conversation.id)
        assert all(entry.id for entry in store.entries())
        assert all(task.id for task in store.tasks())
        assert all(submission.id for submission in store.submissions())
        for document in store.documents():
            store.document_value(document.id)


def refused(path: Path, kind: type[StoreRefused], limits: Limits | None = None) -> str:
    """The one line that refuses the store; nothing of it or beside it changed."""
    before = traces(path.parent)
    with pytest.raises(kind) as caught:
        read_all(path, limits)
    assert type(caught.value) is kind
    assert caught.value.path == path
    said = str(caught.value)
    assert said.startswith(str(path))
    assert said.isprintable()
    assert traces(path.parent) == before
    return said


# --- What is in it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("which", ["store", "recovered"])
def test_head_and_counts_are_those_of_the_manifest(manifest: Path, which: str) -> None:
    told = json.loads(manifest.read_text())
    if which == "recovered":
        if "recovered" not in told:
            assert manifest.stem == "big"
            return
        told = told["recovered"]
    told = told["store"]
    path = manifest.with_name(manifest.stem + (".recovered.sqlite" if which == "recovered" else ".sqlite"))
    with StoreFile.open(path) as store:
        assert (store.format, store.integrity) == (told["schemaVersion"], told["integrity"])
        assert (store.next_id, store.next_seq) == (int(told["nextId"]), told["nextSeq"])
        counts = store.counts
        assert counts.conversations == told["counts"]["conversations"]
        assert counts.entries == told["counts"]["entries"]
        assert counts.tasks == told["counts"]["tasks"]
        assert counts.submissions == told["counts"]["submissions"]
        assert counts.documents == told["counts"]["documents"]
        assert counts.document_revisions == told["counts"]["revisions"]


@pytest.mark.parametrize("manifest", TOLD, ids=lambda path: path.stem)
@pytest.mark.parametrize("which", ["store", "recovered"])
def test_records_and_document_values_are_those_of_the_manifest(manifest: Path, which: str) -> None:
    told = json.loads(manifest.read_text())
    told = told["store"] if which == "store" else told["recovered"]["store"]
    path = manifest.with_name(manifest.stem + (".recovered.sqlite" if which == "recovered" else ".sqlite"))
    with StoreFile.open(path) as store:
        assert [codec.conversation_json(record) for record in store.conversations()] == told["conversations"]
        assert [codec.entry_json(record) for record in store.entries()] == told["entries"]
        assert [codec.task_json(record) for record in store.tasks()] == told["tasks"]
        assert [codec.submission_json(record) for record in store.submissions()] == told["submissions"]
        for record, document in zip(store.documents(), told["documents"], strict=True):
            assert codec.document_json(record) == document["record"]
            if record.retired_at is None:
                assert store.document_value(record.id) == (document["version"], document["value"])
            else:
                assert (store.document_value(record.id) is None) == (not document.get("revisions"))
        for conversation in store.conversations():
            own = [f"{entry.id}:{entry.kind}" for entry in store.entries(conversation.id)]
            assert own == told["transcripts"][str(conversation.id)]


def test_single_records_are_found_by_id() -> None:
    with StoreFile.open(STORES / "inbox.sqlite") as store:
        entries, tasks, submissions = list(store.entries()), list(store.tasks()), list(store.submissions())
        for entry in entries:
            found = store.entry(entry.id)
            assert found is not None
            assert found.entry == entry
            assert 0 < found.commit_seq < store.next_seq
        assert [store.task(task.id) for task in tasks] == tasks
        assert [store.submission(submission.id) for submission in submissions] == submissions
        assert [store.conversation(it.id) for it in store.conversations()] == list(store.conversations())
        assert store.entry(EntryId(999)) is None
        assert store.task(TaskId(999)) is None
        assert store.document_value(DocumentId(999)) is None


def test_live_tasks_and_open_submissions_are_those_with_a_verdict() -> None:
    verdicts = json.loads((STORES / "verdicts.json").read_text())
    for name in (path.stem for path in MANIFESTS):
        with StoreFile.open(STORES / f"{name}.sqlite") as store:
            live = [str(task.id) for task in store.live_tasks()]
            live += [f"submission {submission.id}" for submission in store.open_submissions()]
        assert live == list(verdicts.get(name, {})), name


def test_v3_visible_entries_are_counted_through_the_forks() -> None:
    with StoreFile.open(STORES / "fork.sqlite") as store:
        assert [store.visible_count(ConversationId(id)) for id in (47, 34, 19, 1)] == [2, 5, 5, 6]
        with pytest.raises(StorageRequestError, match="no conversation 48"):
            store.visible_count(ConversationId(48))


def test_rewindable_document_is_read_at_any_commit_and_after_its_end() -> None:
    with StoreFile.open(STORES / "fork.sqlite") as store:
        values = [store.document_value(DocumentId(8), Seq(seq)) for seq in (1, 2, 4, 7, 8)]
        assert [value[1]["n"] if value else None for value in values] == [None, 1, 3, 5, 6]
        retired = store.document_value(DocumentId(13))
        assert retired == (2, {"title": "title 6 of 1", "at": 6})


def test_wal_that_was_never_folded_is_part_of_the_store() -> None:
    with StoreFile.open(STORES / "raw" / "ticker.sqlite") as raw, StoreFile.open(STORES / "ticker.sqlite") as folded:
        assert list(raw.tasks()) == list(folded.tasks())
        assert raw.next_seq == folded.next_seq == 7


@pytest.mark.parametrize(
    "path", sorted(STORES.glob("**/*.sqlite")), ids=lambda path: path.parent.name + "-" + path.stem
)
def test_reading_leaves_no_trace(path: Path) -> None:
    before = traces(path.parent)
    read_all(path)
    assert traces(path.parent) == before


def test_store_in_a_folder_that_takes_no_files_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "sealed"
    shutil.copytree(STORES / "raw", folder)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        before = traces(folder)
        read_all(folder / "ticker.sqlite")
        assert traces(folder) == before
    finally:
        folder.chmod(0o755)


def test_copy_is_removed_when_the_store_is_closed_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with StoreFile.open(STORES / "ticker.sqlite") as store:
        assert len(list(tmp_path.iterdir())) == 1
        store.close()
    with pytest.raises(NotAStore):
        StoreFile.open(STORES / "README.md")
    assert list(tmp_path.iterdir()) == []


def test_own_copy_is_read_where_it_stands(store: Path) -> None:
    with StoreFile.of_copy(store) as opened:
        assert opened.counts.tasks == 2
    assert store.exists()


def test_table_prefix_and_ordinary_tables_of_others_do_no_harm(store: Path) -> None:
    tables = [
        *("durable_schema", "durable_metadata", "record_ids", "conversations", "entries", "tasks", "submissions"),
        *("documents", "document_revisions"),
    ]
    change(store, ";".join(f"ALTER TABLE {table} RENAME TO app_{table}" for table in tables))
    change(store, "CREATE TABLE notes (id INTEGER PRIMARY KEY, text DEFAULT 'x'); CREATE INDEX n ON notes (text)")
    change(store, "CREATE TABLE pidurable_store (singleton INTEGER PRIMARY KEY, store_id TEXT); ANALYZE")
    with StoreFile.open(store) as opened:
        assert [task.id for task in opened.tasks()] == [9, 12]
        assert opened.counts.document_revisions == 9


def test_differences_of_indexes_and_of_spelling_do_no_harm(store: Path) -> None:
    change(
        store, "DROP INDEX tasks_by_status; DROP INDEX entries_by_conversation; DROP INDEX document_revisions_by_kind"
    )
    change(store, "CREATE UNIQUE INDEX mine ON [tasks] (\"id\" DESC, `status`) WHERE status <> 'terminal'")
    change(
        store,
        """
        PRAGMA writable_schema=ON;
        UPDATE sqlite_master SET sql = 'create TABLE entries(-- one line each
            id integer primary key, "conversation_id" INTEGER NOT NULL, [head] INTEGER, /* when (and) , where */
            commit_seq INTEGER NOT NULL, record TEXT NOT NULL, CHECK(json_valid(record))) strict'
        WHERE name = 'entries'
        """,
    )
    read_all(store)


def test_broken_index_is_reported_and_not_used(store: Path) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        ((page, sql),) = db.execute("SELECT rootpage, sql FROM sqlite_master WHERE name='tasks_by_status'").fetchall()
        db.execute("PRAGMA writable_schema=ON")
        db.execute("DELETE FROM sqlite_master WHERE name='tasks_by_status'")
        db.execute("PRAGMA writable_schema=RESET")
        db.execute("UPDATE tasks SET status='sleeping' WHERE status='running'")
        db.execute('UPDATE tasks SET record=replace(record, \'"status":"running"\', \'"until":5,"status":"sleeping"\')')
        db.execute("PRAGMA writable_schema=ON")
        db.execute("INSERT INTO sqlite_master VALUES ('index','tasks_by_status','tasks',?,?)", (page, sql))
    with StoreFile.open(store) as opened:
        assert "tasks_by_status" in opened.integrity
        assert [task.status for task in opened.live_tasks()] == ["waiting", "sleeping"]


def test_opening_in_this_process_keeps_the_locks_of_a_writer(store: Path) -> None:
    intruder = (
        "import sqlite3, sys\n"
        "try: sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute('BEGIN IMMEDIATE')\n"
        "except sqlite3.OperationalError as error: print(error)\n"
    )
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        db.execute("BEGIN IMMEDIATE")
        read_all(store)
        done = subprocess.run([sys.executable, "-c", intruder, store], capture_output=True, text=True, check=True)
    assert done.stdout == "database is locked\n"


# --- What is refused --------------------------------------------------------------------------------------------


def test_other_files_and_other_databases_are_no_stores(tmp_path: Path, store: Path) -> None:
    folder = tmp_path / "others"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "browser.sqlite")) as db:
        db.executescript("CREATE TABLE bookmarks (url TEXT); CREATE VIEW top AS SELECT url FROM bookmarks")
    assert "without the tables of a store" in refused(folder / "browser.sqlite", NotAStore)
    with closing(sqlite3.connect(folder / "nothing.sqlite")) as db:
        db.execute("VACUUM")
    assert "nothing is stored" in refused(folder / "nothing.sqlite", NotAStore)
    change(store, "DROP TABLE submissions")
    assert "no table submissions" in refused(store, NotAStore)
    assert "does not exist" in refused(folder / "missing.sqlite", NotAStore)


def test_first_opening_that_was_cut_off_is_no_store_yet(store: Path) -> None:
    change(store, "UPDATE durable_schema SET version = 0")
    assert "first opening was cut off" in refused(store, NotAStore)


def test_newer_format_is_refused_whatever_its_tables_look_like(store: Path) -> None:
    change(store, "UPDATE durable_schema SET version = 3; DROP TABLE tasks; CREATE VIEW tasks AS SELECT 1 AS id")
    assert "has format 3" in refused(store, NewerFormat)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("CREATE VIEW extra AS SELECT record FROM tasks", "the view extra"),
        ("DROP TABLE tasks; CREATE VIEW tasks AS SELECT 1 AS id", "tasks is a view"),
        ("DROP TABLE durable_schema; CREATE VIEW durable_schema AS SELECT 1 AS singleton, 2 AS version", "is a view"),
        ("CREATE TRIGGER t AFTER INSERT ON tasks BEGIN DELETE FROM entries; END", "the trigger t"),
        ("ALTER TABLE tasks ADD COLUMN twice INTEGER AS (id * 2)", "the table tasks is declared with 'twice'"),
        ("ALTER TABLE tasks ADD COLUMN mine TEXT", "the table tasks is declared with 'mine'"),
        ("CREATE TABLE other (a, b AS (a + 1))", "the table other has a generated column"),
        ("CREATE INDEX wild ON tasks (json_extract(record, '$.kind'))", "unsafe use of json_extract"),
        ("CREATE INDEX wild ON tasks (id + 1)", "the index wild is on more than columns"),
        ("CREATE INDEX wild ON tasks (id) WHERE length(record) > 5", "the index wild is on more than columns"),
        (
            """PRAGMA writable_schema=ON; INSERT INTO sqlite_master
            VALUES ('table', 'search', 'search', 0, 'CREATE VIRTUAL TABLE search USING nowhere(a)')""",
            "the virtual table search",
        ),
        (
            """PRAGMA writable_schema=ON; UPDATE sqlite_master
            SET sql = replace(sql, 'json_valid(record)', 'load_extension(record)') WHERE name = 'tasks'""",
            "the table tasks is declared with 'load_extension'",
        ),
        (
            """PRAGMA writable_schema=ON; UPDATE sqlite_master
            SET sql = replace(sql, 'head INTEGER', 'head INTEGER DEFAULT (randomblob(9))') WHERE name = 'entries'""",
            "the table entries is declared with 'DEFAULT'",
        ),
        (
            """PRAGMA writable_schema=ON; UPDATE sqlite_master
            SET sql = replace(sql, 'head INTEGER', 'head TEXT') WHERE name = 'entries'""",
            "the column entries.head is TEXT, not INTEGER",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_schema_that_no_store_has_is_hostile(store: Path, script: str, said: str) -> None:
    change(store, script)
    assert said in refused(store, HostileStore)


def test_view_with_a_name_that_acts_is_shown_inert(store: Path) -> None:
    change(store, 'CREATE VIEW "a\x1b[2J\u202eb\nc" AS SELECT 1')
    assert r"the view a\x1b[2J\u202eb\nc" in refused(store, HostileStore)


def put(store: Path, table: str, id: int, record: str) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("PRAGMA ignore_check_constraints=ON")
        db.execute(f"UPDATE {table} SET record = ? WHERE id = ?", (record, id))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def spoiled(spoil: Callable[[str], str]) -> Callable[[Path], None]:
    def at(store: Path) -> None:
        with closing(sqlite3.connect(store)) as db:
            ((record,),) = db.execute("SELECT record FROM tasks WHERE id = 12").fetchall()
        put(store, "tasks", 12, spoil(record))

    return at


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda record: record[:-1] + ',"memos":{"a":NaN}}', "NaN is no JSON number"),
        (lambda record: record[:-1] + ',"memos":{"a":1e999}}', "no finite number"),
        (lambda record: record[:-1] + ',"kind":"pi.tool"}', "occurs twice"),
        (lambda record: record[:-1] + ',"memos":{"a":' + "[" * 900 + "]" * 900 + "}}", "nested deeper"),
        (lambda record: record[:-1] + ',"memos":{"a":' + "9" * 5000 + "}}", "not JSON"),
        (lambda record: record.replace('"version":2', '"version":"2"'), "version"),
        (lambda record: record.replace('"version":2,', ""), "version"),
        (lambda record: record.replace('"id":12', '"id":11'), "that of another one"),
        (lambda record: record.replace('"running"', '"pending"'), "or of another time"),
        (lambda record: "[]", "task"),
        (lambda record: record[:30], "not JSON"),
    ],
    ids=["NaN", "infinite", "duplicate", "deep", "digits", "type", "missing", "id", "status", "array", "cut"],
)
def test_c7_record_that_is_none_is_damage(store: Path, spoil: Callable[[str], str], said: str) -> None:
    spoiled(spoil)(store)
    assert said in refused(store, DamagedStore)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("DELETE FROM durable_metadata", "durable_metadata has no rows"),
        ("UPDATE durable_metadata SET next_id = '12x'", "next id is no number"),
        ("DELETE FROM document_revisions WHERE document_id = 2 AND kind = 'base'", "no value that it changes"),
        ("UPDATE document_revisions SET version = 7 WHERE kind = 'delta'", "changes its version"),
        ("UPDATE document_revisions SET content = '[[\"z\"]]' WHERE kind = 'delta'", "unknown verb"),
        ("UPDATE document_revisions SET content = '[1]' WHERE kind = 'base'", "document"),
        ("UPDATE document_revisions SET content = '{\"a\":1,\"a\":2}' WHERE kind = 'base'", "occurs twice"),
        ('UPDATE conversations SET record = \'{"id":1,"parent":{"conversationId":1,"at":7}}\'', "fork of itself"),
        ('UPDATE conversations SET record = \'{"id":1,"parent":{"conversationId":5,"at":7}}\'', "not there"),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else None,
)
def test_rows_that_do_not_belong_together_are_damage(store: Path, script: str, said: str) -> None:
    change(store, script)
    assert said in refused(store, DamagedStore)


def test_oversized_value_is_hostile_within_the_limits_given(store: Path) -> None:
    limits = Limits(value_bytes=20_000)
    read_all(store, limits)
    spoiled(lambda record: record[:-1] + ',"memos":{"a":"' + "x" * 30_000 + '"}}')(store)
    assert "more than 20,000 bytes" in refused(store, HostileStore, limits)
    read_all(store)


def test_query_that_takes_too_long_is_ended(store: Path) -> None:
    rows = ",".join(f"({n}, 1, NULL, 1, '{{}}')" for n in range(1000, 9000))
    change(store, f"INSERT INTO entries VALUES {rows}")
    assert "keeps one query busy" in refused(store, HostileStore, Limits(query_s=-1.0))


def test_truncated_and_overwritten_files_are_damaged(store: Path) -> None:
    whole = store.read_bytes()
    for size in (600, 4096, len(whole) // 2, len(whole) - 1):
        store.write_bytes(whole[:size])
        refused(store, DamagedStore)
    for page in range(1, len(whole) // 4096, 3):
        store.write_bytes(whole[: page * 4096] + b"\xa5" * 4096 + whole[(page + 1) * 4096 :])
        refused(store, DamagedStore)


def test_no_flipped_byte_leads_to_anything_but_a_reading_or_a_refusal(store: Path) -> None:
    whole = store.read_bytes()
    outcomes = set[str]()
    for at in [*range(100), *range(100, len(whole), 997)]:
        store.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        os.utime(store, (0, 0))  # an old file is copied without waiting for its time to be told from the next
        try:
            read_all(store)
        except StoreRefused as error:
            outcomes.add(error.kind if str(error).isprintable() else f"unprintable at {at}")
    assert "damaged" in outcomes
    assert outcomes <= {"damaged", "not_a_store", "hostile", "newer_format", "refused"}
