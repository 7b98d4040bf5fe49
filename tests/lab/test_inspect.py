"""What `inspect` says about a store, against the manifests that came with the stores; and its page of plain text."""

from __future__ import annotations

import json
import shutil
import sqlite3
import unicodedata
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.lab.looking.inspect import inspect_open, inspect_store
from pidurable_nb.lab.looking.inspect_text import WIDTH, inspection_text
from pidurable_nb.store.stranger import StoreFile
from pidurable_nb.store.visible import columns, fitted, visible

STORES = Path(__file__).resolve().parents[2] / "fixtures" / "stores"
MANIFESTS = sorted(path for path in STORES.glob("*.json") if path.name != "verdicts.json")
KEYS = [
    *("format", "integrity", "next_id", "next_seq", "counts"),
    *("entries_by_kind", "tasks_by_status", "tasks_by_kind", "task_outcomes", "submissions_by_status"),
    *("conversations", "tasks", "submissions", "documents"),
]


def objects(value: Json) -> list[JsonObject]:
    assert isinstance(value, list)
    found: list[JsonObject] = []
    for item in value:
        assert isinstance(item, Mapping)
        found.append(item)
    return found


def page(path: Path) -> str:
    with StoreFile.open(path) as store:
        return inspection_text(inspect_open(store))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("which", ["store", "recovered"])
def test_every_count_is_that_of_the_manifest(manifest: Path, which: str) -> None:
    told = json.loads(manifest.read_text())
    if which == "recovered" and "recovered" not in told:
        assert manifest.stem == "big"
        return
    told = told["store"] if which == "store" else told["recovered"]["store"]
    suffix = ".recovered.sqlite" if which == "recovered" else ".sqlite"
    said = inspect_store(manifest.with_name(manifest.stem + suffix))
    assert list(said) == KEYS
    assert said["format"] == told["schemaVersion"]
    assert said["integrity"] == told["integrity"]
    assert said["next_id"] == int(told["nextId"])
    assert said["next_seq"] == told["nextSeq"]
    assert said["counts"] == {
        "conversations": told["counts"]["conversations"],
        "entries": told["counts"]["entries"],
        "tasks": told["counts"]["tasks"],
        "submissions": told["counts"]["submissions"],
        "documents": told["counts"]["documents"],
        "document_revisions": told["counts"]["revisions"],
    }
    assert said["entries_by_kind"] == told["entriesByKind"]
    assert said["tasks_by_status"] == told["tasksByStatus"]
    assert said["tasks_by_kind"] == told["tasksByKind"]
    assert said["task_outcomes"] == told["taskOutcomes"]
    assert said["submissions_by_status"] == told["submissionsByStatus"]
    assert sum(document["alive"] is True for document in objects(said["documents"])) == told["counts"]["documentsLive"]
    for conversation in objects(said["conversations"]):
        if "transcripts" in told:
            assert conversation["transcript"] == told["transcripts"][str(conversation["id"])]


def test_v3_fork_is_told_as_the_contract_shows_it() -> None:
    conversations = objects(inspect_store(STORES / "fork.sqlite")["conversations"])
    assert conversations[1] == {
        "id": 19,
        "parent": {"conversation": 1, "at": 16},
        "owner_task": None,
        "transcript": ["30:pi.user", "33:pi.user"],
        "visible": 5,
    }
    owned = objects(inspect_store(STORES / "subagent.sqlite")["conversations"])[1]
    assert (owned["id"], owned["parent"], owned["owner_task"]) == (13, None, 12)


def test_tasks_are_told_with_what_recovery_depends_on() -> None:
    ticker = objects(inspect_store(STORES / "ticker.sqlite")["tasks"])
    assert ticker == [
        {
            "id": 7,
            "conversation": 1,
            "kind": "demo.ticker",
            "version": 1,
            "owner": None,
            "status": "running",
            "phase": "tick",
            "on": None,
            "until_ms": None,
            "outcome": None,
            "memos": ["printed-1", "printed-2"],
            "restarts": 0,
            "abort_requested": False,
            "background": False,
        }
    ]
    checkout = objects(inspect_store(STORES / "checkout-running.sqlite")["tasks"])
    assert (checkout[0]["status"], checkout[0]["on"]) == ("waiting", [8, 9, 10, 11])
    assert (checkout[1]["status"], checkout[1]["outcome"], checkout[1]["phase"]) == ("terminal", "completed", None)
    assert checkout[1]["owner"] == 7
    sleeper = objects(inspect_store(STORES / "fork.sqlite")["tasks"])[0]
    assert (sleeper["status"], sleeper["until_ms"]) == ("sleeping", 4102444800000)


def test_s2_submissions_are_told_with_their_request_and_reason() -> None:
    inbox = objects(inspect_store(STORES / "inbox.sqlite")["submissions"])
    assert inbox[1] == {
        "id": 10,
        "conversation": 1,
        "type": "input",
        "status": "queued",
        "request_id": "steer-1",
        "reason": None,
    }


def test_documents_are_told_with_their_newest_value() -> None:
    documents = {document["id"]: document for document in objects(inspect_store(STORES / "fork.sqlite")["documents"])}
    assert documents[14] == {
        "id": 14,
        "kind": "demo.session",
        "scope": "session",
        "key": None,
        "version": 1,
        "alive": True,
        "value": {"forks": 0, "last": [34, 9]},
    }
    assert (documents[13]["alive"], documents[13]["key"]) == (False, "kéy")
    assert documents[13]["value"] is not None, "a rewindable document keeps its values after its end"
    assert documents[58]["scope"] == "task:57"
    recovered = objects(inspect_store(STORES / "fork.recovered.sqlite")["documents"])
    reclaimed = next(document for document in recovered if document["id"] == 58)
    assert (reclaimed["alive"], reclaimed["version"], reclaimed["value"]) == (False, None, None)


def test_wal_that_was_never_folded_shows_the_newest_state() -> None:
    assert inspect_store(STORES / "raw" / "ticker.sqlite") == inspect_store(STORES / "ticker.sqlite")


@pytest.mark.parametrize("path", sorted(STORES.glob("*.sqlite")), ids=lambda path: path.stem)
def test_page_fits_80_columns_and_names_every_live_task(path: Path) -> None:
    lines = page(path).splitlines()
    assert [line for line in lines if columns(line) > WIDTH] == []
    with StoreFile.open(path) as store:
        for task in store.live_tasks():
            assert any(f"{task.id} {task.kind}" in line and task.status in line for line in lines), task
    if "recovered" in path.name or path.stem == "big":
        assert "Nothing to recover: every task had ended." in page(path)


def test_long_lists_are_folded_and_counted() -> None:
    lines = page(STORES / "big.sqlite").splitlines()
    assert len(lines) < 80
    assert "       ended and not listed: 360 completed, 65 failed, 45 faulted, 30 aborted" in lines
    assert "       and 31 more conversations: --json lists all" in lines


def test_foreign_text_is_inert_on_the_page(tmp_path: Path) -> None:
    store = Path(shutil.copy(STORES / "tool-unsafe.sqlite", tmp_path))
    evil = "a\x1b[31m\u202eb\u2028c\ud800\n\x9b2J"
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        for table, id, key in (("tasks", 12, "kind"), ("submissions", 8, "requestId"), ("entries", 7, "kind")):
            ((text,),) = db.execute(f"SELECT record FROM {table} WHERE id = ?", (id,)).fetchall()
            db.execute(f"UPDATE {table} SET record = ? WHERE id = ?", (json.dumps({**json.loads(text), key: evil}), id))
        value = json.dumps({evil: evil})
        db.execute("UPDATE document_revisions SET content = ? WHERE document_id = 5", (value,))
    shown = page(store)
    acting = {char for char in shown if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}} - {"\n"}
    assert acting == set()
    assert r"a\x1b[31m\u202eb" in shown
    assert objects(inspect_store(store)["tasks"])[1]["kind"] == evil, "the JSON keeps what is stored"


def test_owners_that_are_missing_or_own_each_other_do_not_hide_a_task(tmp_path: Path) -> None:
    store = Path(shutil.copy(STORES / "checkout-running.sqlite", tmp_path))
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        for id, owner in ((7, 8), (8, 7), (9, 9), (10, 4000)):
            ((text,),) = db.execute("SELECT record FROM tasks WHERE id = ?", (id,)).fetchall()
            db.execute(
                "UPDATE tasks SET record = ? WHERE id = ?", (json.dumps({**json.loads(text), "owner": owner}), id)
            )
    shown = page(store)
    assert [id for id in (7, 8, 9, 10, 11) if f"{id} demo." not in shown] == []


def test_time_beyond_every_calendar_is_shown(tmp_path: Path) -> None:
    store = Path(shutil.copy(STORES / "fork.sqlite", tmp_path))
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("UPDATE tasks SET record = replace(record, '4102444800000', '1e300')")
    assert "until 1e+300 ms" in page(store)


def test_text_is_fitted_by_columns_not_by_characters() -> None:
    assert visible("tab\there") == r"tab\there"
    assert visible("Zoë 日本") == "Zoë 日本"
    assert columns("日本") == 4
    assert fitted("日本語", 5) == "日本…"
    assert fitted("abc", 3) == "abc"
