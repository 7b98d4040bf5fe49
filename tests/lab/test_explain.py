"""What `why` says about stores that another implementation wrote and that were really killed, and about made ones."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import unicodedata
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from pidurable_nb.engine.decide import Policy
from pidurable_nb.ids import Json, JsonObject, TaskId
from pidurable_nb.lab.looking.explain import ASSUMED, Explanation, explain, snapshot_of
from pidurable_nb.lab.looking.explain_text import to_text
from pidurable_nb.records.codec import dumps
from pidurable_nb.store.stranger import StoreFile
from pidurable_nb.store.visible import columns

STORES = Path(__file__).resolve().parents[2] / "fixtures" / "stores"
VERDICTS: Mapping[str, Mapping[str, list[str]]] = {
    name: accepted
    for name, accepted in json.loads((STORES / "verdicts.json").read_text()).items()
    if isinstance(accepted, dict)
}
NAMES = sorted(path.stem for path in STORES.glob("*.sqlite"))
KEYS = {"subject", "id", "kind", "status", "phase", "verdict", "laws", "because", "outside_world", "rows"}


def said(explanation: Explanation) -> dict[str, str]:
    tasks = {str(verdict.id): str(verdict.name) for verdict in explanation.tasks}
    return tasks | {f"submission {verdict.id}": str(verdict.name) for verdict in explanation.submissions}


def traces(folder: Path) -> dict[str, object]:
    seen: dict[str, object] = {".": os.stat(folder).st_mtime_ns}
    for path in sorted(folder.iterdir()):
        if path.is_file():
            found = path.stat()
            seen[path.name] = (found.st_size, found.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
    return seen


def changed(name: str, into: Path, *statements: tuple[str, tuple[object, ...]]) -> Path:
    """A copy of a store, with rows of it changed."""
    path = into / f"{name}.sqlite"
    shutil.copyfile(STORES / f"{name}.sqlite", path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement, parameters in statements:
            assert db.execute(statement, parameters).rowcount, statement
    return path


def put_task(record: Mapping[str, Json]) -> tuple[str, tuple[object, ...]]:
    state = record["state"]
    assert isinstance(state, Mapping)
    columns = (record["id"], record["conversationId"], dumps(record["kind"]), state["status"])
    marks = (int(bool(record["abortRequested"])), int(bool(record["background"])), dumps(dict(record)))
    return "INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?)", (*columns, *marks)


def task(id: int, state: JsonObject, **more: Json) -> dict[str, Json]:
    known: dict[str, Json] = {"id": id, "conversationId": 1, "kind": "demo.job", "version": 1, "input": {}}
    return {**known, "background": False, "abortRequested": False, "state": state, "startedAt": 1, **more}


# --- Stores of another implementation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_store_gets_its_accepted_verdicts_and_keeps_every_byte(name: str) -> None:
    before = traces(STORES)
    found = said(explain(STORES / f"{name}.sqlite"))
    accepted = {} if name == "big" else VERDICTS.get(name)
    if accepted is None:  # a recovered store, or one in which everything had ended
        assert set(found) <= {"57"}
    else:
        assert set(found) == set(accepted)
        assert {key: verdict for key, verdict in found.items() if verdict not in accepted[key]} == {}
    assert traces(STORES) == before


def test_every_accepted_verdict_belongs_to_a_store() -> None:
    assert set(VERDICTS) <= set(NAMES)
    assert len(VERDICTS) == 9


def test_a_store_with_its_log_beside_it_is_read_with_it_and_left_as_it_was() -> None:
    before = traces(STORES / "raw")
    assert said(explain(STORES / "raw" / "ticker.sqlite")) == {"7": "rerun"}
    assert traces(STORES / "raw") == before


def test_the_json_is_what_the_command_line_promises() -> None:
    found = explain(STORES / "tool-unsafe.sqlite", now_ms=1_800_000_000_000)
    shown = found.to_json()
    assert json.loads(json.dumps(shown)) == shown
    assert list(shown) == ["now_ms", "assumed", "verdicts"]
    assert (shown["now_ms"], shown["assumed"]) == (1_800_000_000_000, "code installed")
    verdicts = shown["verdicts"]
    assert isinstance(verdicts, list)
    assert verdicts[1] == {
        "subject": "task",
        "id": 12,
        "kind": "pi.tool",
        "status": "running",
        "phase": "execute",
        "verdict": "interrupt",
        "laws": ["T7", "E1", "E3"],
        "because": "The transfer is not run again. It is unsafe, so the model is told it was cut off.",
        "outside_world": "unknown",
        "rows": ["tasks/12", "documents/2"],
    }
    assert verdicts[2] == {
        "subject": "submission",
        "id": 8,
        "kind": "input",
        "status": "placed",
        "phase": None,
        "verdict": "settle",
        "laws": ["S2"],
        "because": "Its run goes on; when that ends, the submission is settled with it.",
        "outside_world": "none",
        "rows": ["submissions/8", "documents/2", "tasks/9"],
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_row_that_is_named_exists_in_the_store(name: str) -> None:
    path = STORES / f"{name}.sqlite"
    verdicts = json.loads(json.dumps(explain(path, all=True).to_json()))["verdicts"]
    with StoreFile.open(path) as file:
        there = {f"tasks/{record.id}" for record in file.tasks()}
        there |= {f"documents/{record.id}" for record in file.documents()}
        there |= {f"submissions/{record.id}" for record in file.submissions()}
    for verdict in verdicts:
        assert set(verdict) == KEYS
        assert set(verdict["rows"]) <= there
        assert verdict["laws"]
        assert len(verdict["because"]) <= 90


def test_s5_settled_submissions_are_listed_when_asked_for() -> None:
    path = STORES / "tool-unsafe.recovered.sqlite"
    assert said(explain(path)) == {}
    assert said(explain(path, all=True)) == {"submission 8": "keep"}


def test_t12_the_time_is_an_argument() -> None:
    path = STORES / "fork.sqlite"
    assert said(explain(path, now_ms=4_102_444_799_999)) == {"57": "sleep"}
    assert said(explain(path, now_ms=4_102_444_800_000)) == {"57": "resume"}


def test_t9_the_limit_of_restarts_is_an_argument() -> None:
    assert said(explain(STORES / "ticker.sqlite", policy=Policy(restart_limit=1))) == {"7": "parked"}


def test_only_what_decides_is_read_into_the_snapshot() -> None:
    with StoreFile.open(STORES / "big.sqlite") as file:
        snapshot = snapshot_of(file)
    assert (snapshot.tasks, snapshot.owners, snapshot.runs, snapshot.inboxes) == ({}, {}, {}, {})
    with StoreFile.open(STORES / "subagent.sqlite") as file:
        snapshot = snapshot_of(file)
    assert snapshot.owners == {1: None, 13: 12}
    assert snapshot.runs[snapshot.tasks[TaskId(12)].conversation].tools == {12: "delegate"}


def test_t4_the_ended_tasks_of_a_wait_are_known() -> None:
    with StoreFile.open(STORES / "checkout-running.sqlite") as file:
        snapshot = snapshot_of(file)
    assert {id: record.status for id, record in snapshot.tasks.items()}[TaskId(8)] == "terminal"


# --- Made stores ------------------------------------------------------------------------------------------------------


def test_e3_the_child_of_a_call_that_was_unsafe_is_aborted(tmp_path: Path) -> None:
    with StoreFile.open(STORES / "subagent.sqlite") as file:
        record = file.task(TaskId(12))
    assert record is not None
    unsafe = ('UPDATE tasks SET record = replace(record, \'"replay":"safe"\', \'"replay":"unsafe"\') WHERE id = 12', ())
    found = explain(changed("subagent", tmp_path, unsafe))
    assert said(found) == {
        "9": "wait",
        "12": "interrupt",
        "21": "abort",
        "submission 8": "settle",
        "submission 20": "settle",
    }
    assert {verdict.id: verdict.outside for verdict in found.tasks} == {9: "none", 12: "unknown", 21: "none"}


def test_o1_ended_owners_on_the_way_up_are_known(tmp_path: Path) -> None:
    top = task(70, {"status": "running", "checkpoint": {"phase": "work"}}, abortRequested=True)
    ended = task(71, {"status": "terminal", "outcome": {"status": "completed", "result": None}}, owner=70)
    low = task(72, {"status": "running", "checkpoint": {"phase": "work"}}, owner=71)
    found = explain(changed("big", tmp_path, put_task(top), put_task(ended), put_task(low)))
    assert said(found) == {"70": "abort", "72": "abort"}
    assert found.tasks[1].reads == ("tasks/72", "tasks/70")


def test_owners_in_a_circle_do_not_keep_it_busy(tmp_path: Path) -> None:
    state: JsonObject = {"status": "running", "checkpoint": {"phase": "work"}}
    circle = [task(70, state, owner=71), task(71, state, owner=70)]
    assert said(explain(changed("big", tmp_path, *map(put_task, circle)))) == {"70": "rerun", "71": "rerun"}


@pytest.mark.parametrize("row", ["tasks/12", "documents/2"])
def test_blanking_a_row_that_decided_changes_what_is_said(row: str, tmp_path: Path) -> None:
    table, _, id = row.partition("/")
    gone = (f"DELETE FROM {table} WHERE id = ?", (int(id),))
    before = explain(STORES / "tool-unsafe.sqlite").tasks[1]
    assert row in before.reads
    after = {verdict.id: verdict for verdict in explain(changed("tool-unsafe", tmp_path, gone)).tasks}
    assert before.id not in after or after[before.id].because != before.because


def test_a_thousand_tasks_below_a_cancelled_owner_are_explained(tmp_path: Path) -> None:
    path = changed(
        "big",
        tmp_path,
        put_task(task(100_000, {"status": "running", "checkpoint": {"phase": "work"}}, abortRequested=True)),
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN")
        for n in range(1000):
            owner = 100_000 + (n if n % 2 else 0)
            db.execute(
                *put_task(task(100_001 + n, {"status": "pending", "checkpoint": {"phase": "work"}}, owner=owner))
            )
        db.execute("COMMIT")
    found = explain(path)
    assert {verdict.name for verdict in found.tasks} == {"abort"}
    assert len(found.tasks[0].held_by) == 1000
    page = to_text(found)
    assert "901 more tasks" in page


# --- The page ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_eighty_columns_of_plain_text(name: str) -> None:
    page = to_text(explain(STORES / f"{name}.sqlite", all=True))
    assert page.isascii()
    assert max(map(len, page.splitlines())) <= 80
    assert "…" not in page


def test_the_page_says_what_happens_why_and_what_was_assumed() -> None:
    page = to_text(explain(STORES / "tool-unsafe.sqlite", now_ms=1_796_043_700_000))
    assert page.startswith("tool-unsafe.sqlite\nas of  2026-11-30 13:01 UTC, read from a copy\n")
    assert "task 12   INTERRUPT   pi.tool, running in execute" in page
    assert "The transfer is not run again. It is unsafe, so the model is told it was cut" in page
    assert "outside: ? unknown   laws T7 E1 E3" in page
    assert "from tasks/12 documents/2" in page
    assert "assumed installed, and tools declared as stored" in page
    assert "(E5)" in page


def test_an_empty_page_says_that_nothing_is_to_recover() -> None:
    assert "Nothing to recover: every task had ended." in to_text(explain(STORES / "big.sqlite"))


def test_foreign_text_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    nasty = "\x1b[2J\u202eevil\nline\u0000\ud800"
    state: JsonObject = {"status": "running", "checkpoint": {"phase": nasty}}
    path = changed("big", tmp_path, put_task(task(70, state, kind=nasty)))
    found = explain(path, assumed=f"module {nasty}")
    assert found.to_json()["verdicts"]
    page = to_text(found)
    assert not [char for char in page if char != "\n" and unicodedata.category(char) in {"Cc", "Cf", "Cs"}]
    assert max(columns(line) for line in page.splitlines()) <= 80


def test_without_code_it_is_said_that_code_is_assumed() -> None:
    assert explain(STORES / "ticker.sqlite").assumed == ASSUMED == "code installed"
