"""Scenes of store files: that any store gives one at every position, of the agreed shape, and is never touched."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pidurable_nb.ids import Json
from pidurable_nb.lab.code import Loaded, load_code
from pidurable_nb.lab.scene.facts import Base, Facts
from pidurable_nb.lab.scene.parts import LONGEST
from pidurable_nb.lab.scene.scene import Scene
from pidurable_nb.lab.scene.source import CannotDo, NoScenario, StoreSource
from pidurable_nb.lab.walking.stepper import Stepper
from pidurable_nb.records.codec import dumps, encode_entry, encode_submission, encode_task
from pidurable_nb.store.copying import copy_store
from pidurable_nb.store.stranger import StoreFile

FIXTURES = Path(__file__).parents[2] / "fixtures"
STORES = FIXTURES / "stores"
NAMES = sorted(path.stem for path in STORES.glob("*.sqlite"))
NOW_MS = 1_800_000_000_000

ORACLE = "|"
SHAPE: Mapping[str, object] = {
    "store": "str", "scenario": "str|null", "how": "str|null", "position": "int", "last": "int|null",
    "next": "str|null", "words": "str|null",
    "timeline": [{
        "n": "int|null", "kind": {"fold", "commit", "kill", "lost", "step"}, "label": "str", "detail": "str",
        "task": "int|null", "submission": "int|null", "position": "int|null",
        "mark": {"commit", "interrupted", "again", "none", "crash", "future"}, "barrier": "bool",
    }],
    "bars": [{
        "lane": "int", "from": "float", "to": "float", "label": "str", "cut": "bool", "applied": "float|null",
        "task": "int|null", "detail": "str",
    }],
    "conversations": [{
        "id": "int", "parent": {"conversation": "int", "at": "int", None: "null"}, "total": "int",
        "policies": [{"kind": "str", "scope": "str", "fork": "str|null"}],
    }],
    "entries": {
        "conversation": "int|null", "start": "int", "total": "int",
        "rows": [{
            "id": "int", "conversation": "int", "role": {"user", "assistant", "tool", "head", "system", "other"},
            "kind": "str", "state": {"whole", "aborted", "failed", "interrupted", "deferred", "partial"},
            "text": "str", "old": "bool", "new": "bool", "task": "int|null", "submission": "int|null",
            "forks": ["int"], "commit": "int|null",
            "calls": [{
                "id": "str", "name": "str", "arguments": "str", "policy": "str|null", "task": "int|null",
                "status": "str", "output": "str", "lost": "str",
            }],
        }],
    },
    "tasks": [{
        "id": "int", "kind": "str", "name": "str", "owner": "int|null", "background": "bool", "state": "str",
        "phase": "str|null", "on": ["int"], "until_ms": "float|null", "restarts": "int", "limit": "int",
        "outcome": "str|null", "reason": "str|null", "checkpoint": "str|null", "aborting": "bool",
        "verdict": "str|null", "done": "str|null", "new": "bool",
        "path": [{"from": "str", "to": "str", "crash": "bool"}], "edges": [{"from": "str", "to": "str"}],
        "memos": [{
            "name": "str", "value": "str", "by": "str|null", "lost": [{"value": "str", "by": "str|null"}],
            "new": "bool",
        }],
    }],
    "submissions": [{
        "id": "int", "conversation": "int", "type": "str", "request_id": "str|null", "mode": "str|null", "text": "str",
        "status": "str", "reason": "str|null", "verdict": "str|null", "entry": "int|null", "new": "bool",
    }],
    "effects": [{
        "id": "str", "task": "int|null", "submission": "int|null", "label": "str", "again": "bool", "new": "bool",
        "layers": {
            name: {"mark": {"acted", "waits", "missing", "off"}, "text": "str", None: "null"}
            for name in ("checkpoint", "memo", "replay", "request", "key")
        },
        "asked": "int|null", "applied": "int|null", "word": "str",
        "store": {"mark": {"committed", "lost", "unknown", "none"}, "text": "str"},
    }],
    "step": {
        "n": "int", "group": "str", "verb": "str", "mark": {"commit", "interrupted", "again", "none", "crash"},
        "title": "str", "say": "str", "note": "str|null", "outside": {"none", "again", "unknown"},
        "laws": [{"id": "str", "text": "str"}], "predicted": "str|null", "happened": "str|null",
        "agreement": {"agrees", "milder", "differs", "choice", None},
        "table": [{
            "task": "int|null", "verdict": "str", "because": "str", "outside": {"none", "again", "unknown"}
        }, None],
        "ladder": {
            "skipped": ["str"],
            "rungs": [{"question": "str", "answer": "str", "read": "str", "exit": "str|null"}], "end": "str",
            None: "null",
        },
        "diff": [{"sign": {"+", "-", "~"}, "row": "str", "before": "str", "after": "str"}],
        "commit": "int|null",
        "choice": {
            "question": "str", "kind": {"effect", "lens"},
            "options": [{
                "id": "str", "label": "str", "detail": "str", "chosen": "bool", "disabled": "str|null", "then": "str"
            }],
            None: "null",
        },
    },
    "points": [{"point": "str", "text": "str", "kinds": [{"freeze", "kill"}], "occurrence": "int", "armed": "bool"}],
}  # fmt: skip
"""A dict: its keys at least (None: may be null); a list: of such (None in it: may be null); a set: one of; a string."""


def check(value: object, shape: object, at: str = "scene") -> None:
    """Assert that a JSON value has the agreed shape; keys may be added to it, and none left out."""
    if isinstance(shape, str):
        words = shape.split(ORACLE)
        fits = (
            (value is None and "null" in words)
            or (isinstance(value, str) and "str" in words)
            or (isinstance(value, bool) and "bool" in words)
            or (isinstance(value, int) and not isinstance(value, bool) and bool({"int", "float"} & set(words)))
            or (isinstance(value, float) and "float" in words)
        )
        assert fits, f"{at} is {value!r}, not {shape}"
    elif isinstance(shape, set):
        assert value in shape, f"{at} is {value!r}"
    elif isinstance(shape, list):
        if value is None and None in shape:
            return
        assert isinstance(value, list), f"{at} is no list"
        for number, item in enumerate(value):
            check(item, shape[0], f"{at}[{number}]")
    elif isinstance(shape, dict):
        if value is None and None in shape:
            return
        assert isinstance(value, dict), f"{at} is no object"
        for name in shape:
            if name is not None:
                assert name in value, f"{at}.{name} is missing"
                check(value[name], shape[name], f"{at}.{name}")


def as_page(scene: Scene) -> dict[str, Json]:
    """The scene as a page gets it, checked."""
    found: dict[str, Json] = json.loads(json.dumps(scene.to_json(), ensure_ascii=True))
    check(found, SHAPE)
    step = found["step"]
    assert isinstance(step, dict)
    assert len(str(step["say"])) <= 90
    return found


def positions(source: StoreSource) -> Iterator[Scene]:
    """The scenes from the first position to the end."""
    source.goto(0)
    while True:
        scene = source.scene()
        yield scene
        if scene.last == scene.position:
            return
        source.next()


@pytest.fixture(scope="module")
def demo() -> Loaded:
    return load_code(str(FIXTURES / "code" / "demo_tasks.py"))


def prints(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("coded", [False, True], ids=["alone", "with-code"])
@pytest.mark.parametrize("name", NAMES)
def test_t7_any_store_is_walked_to_its_end_as_predicted_and_no_byte_of_it_changes(
    tmp_path: Path, name: str, coded: bool, demo: Loaded
) -> None:
    store = Path(shutil.copy(STORES / f"{name}.sqlite", tmp_path))
    before = prints(tmp_path)
    with StoreSource(store, code=demo if coded else None, now_ms=NOW_MS) as source:
        pages = [as_page(scene) for scene in positions(source)]
        source.goto(0)
        assert source._stage.walking._stepper.disagreements() == ()
        again = [as_page(scene) for scene in positions(source)]
        back = [as_page(source.goto(at)) for at in reversed(range(len(pages)))]
    assert prints(tmp_path) == before
    for page in pages[1:]:
        step = page["step"]
        assert isinstance(step, dict)
        assert step["agreement"] in ("agrees", "milder", None), step
    assert again == list(reversed(back))
    known = len(pages) - 1
    for page, later in zip(pages, again, strict=True):  # the end was not known the first time
        assert later["last"] == known
        differing = {key for key in page if page[key] != later[key]}
        assert differing <= {"last", "timeline"}


@pytest.mark.parametrize("name", ["ticker", "checkout-running", "schema-v1", "tool-unsafe", "subagent"])
def test_facts_of_a_position_are_those_of_the_copy_that_was_walked_there(
    tmp_path: Path, name: str, demo: Loaded
) -> None:
    with StoreSource(STORES / f"{name}.sqlite", code=demo, now_ms=NOW_MS) as source:
        walking = source._stage.walking
        for _ in positions(source):
            at = tmp_path / str(walking.position)
            at.mkdir()
            stepper: Stepper = walking._stepper
            with StoreFile.of_copy(copy_store(stepper.store, at)) as file:
                assert told(walking.here.facts) == told(Facts(Base(file)))


def told(facts: Facts) -> dict[str, list[str]]:
    """Everything that facts say, as text."""
    entries = [
        f"{kept.commit_seq} {encode_entry(kept.entry)}"
        for id in sorted(facts.conversations)
        for kept in facts.window(id, 0, 10_000)
    ]
    documents = [
        f"{record.kind} {record.scope} {dumps(found[1])}"
        for record in facts.documents()
        for id in facts.conversations
        if str(record.scope) == f"conversation:{id}" and (found := facts.document(id, record.kind)) is not None
    ]
    return {
        "tasks": [encode_task(facts.tasks[id]) for id in sorted(facts.tasks)],
        "submissions": [encode_submission(facts.submissions[id]) for id in sorted(facts.submissions)],
        "entries": entries,
        "documents": documents,
    }


@pytest.mark.parametrize("name", NAMES)
def test_v3_pages_of_a_transcript_are_the_whole_of_it_through_every_fork(name: str) -> None:
    with (
        StoreSource(STORES / f"{name}.sqlite", now_ms=NOW_MS) as source,
        StoreFile.open(STORES / f"{name}.sqlite") as f,
    ):
        for conversation in f.conversations():
            total = f.visible_count(conversation.id)
            pages = [source.entries(conversation.id, start, 7) for start in range(0, total, 7)]
            ids = [row.id for page in pages for row in page.rows if row.id > 0]
            assert len(ids) == total
            assert all(page.total == total for page in pages)
            parent = conversation.parent
            own = [entry.id for entry in f.entries(conversation.id)]
            assert ids[total - len(own) :] == own
            if parent is not None:
                assert ids[total - len(own) - 1] == parent.at
                row = source.entries(parent.conversation, 0, 200).rows
                assert [conversation.id in one.forks for one in row if one.id == parent.at] in ([True], [])


def test_m3_a_memo_of_an_earlier_life_makes_the_rerun_milder_than_predicted(demo: Loaded) -> None:
    with StoreSource(STORES / "ticker.sqlite", code=demo, now_ms=NOW_MS) as source:
        found = [scene.step for scene in positions(source)]
        effects = source.scene().effects
    milder = [step for step in found if step.agreement == "milder"]
    assert len(milder) == 1
    assert milder[0].happened is not None
    assert "0 effects" in milder[0].happened
    assert all(effect.asked == 1 and effect.word == "in this recovery" for effect in effects)


def test_e3_the_decision_is_told_in_the_order_of_its_rows_with_what_it_read(demo: Loaded) -> None:
    with StoreSource(STORES / "tool-unsafe.sqlite", code=demo, now_ms=NOW_MS) as source:
        step = next(scene.step for scene in positions(source) if scene.step.verb == "interrupt")
    assert step.ladder is not None
    assert len(step.ladder.skipped) == 11
    replay, interrupt = step.ladder.rungs
    assert (replay.answer, replay.read, replay.exit) == ("no", "stored replay = unsafe", "yes → replay")
    assert (interrupt.answer, interrupt.exit, step.ladder.end) == ("yes", "no → rerun", "interrupt")
    assert step.choice is not None
    assert step.choice.kind == "lens"
    assert {"E1", "E3", "O6", "E6"} <= {law.id for law in step.laws}


def test_a_ledger_of_another_implementation_counts_what_was_asked_before(demo: Loaded) -> None:
    ledger = STORES / "checkout-running.effects.jsonl"
    with StoreSource(STORES / "checkout-running.sqlite", code=demo, ledger=ledger, now_ms=NOW_MS) as source:
        before = {effect.label: effect.asked for effect in source.scene().effects}
        after = {effect.label: effect.asked for effect in source.finish().effects}
    manifest = json.loads((STORES / "checkout-running.json").read_text())
    total = {name: count for name, count in after.items() if name in manifest["recovered"]["effectsTotal"]}
    assert total.items() <= manifest["recovered"]["effectsTotal"].items()
    assert set(before) <= set(after)


def test_without_a_ledger_nothing_is_said_that_rows_do_not_prove(demo: Loaded) -> None:
    with StoreSource(STORES / "tool-unsafe.sqlite", now_ms=NOW_MS) as source:
        cut = source.scene().effects[0]
        assert (cut.asked, cut.applied, cut.word, cut.store.mark) == (None, None, "unknown", "unknown")
    with StoreSource(STORES / "tool-safe.recovered.sqlite", now_ms=NOW_MS) as source:
        whole = source.scene().effects[0]
        assert (whole.asked, whole.word, whole.store.mark) == (1, "by record", "committed")


def test_nothing_to_recover_is_one_sentence() -> None:
    with StoreSource(STORES / "big.sqlite", now_ms=NOW_MS) as source:
        scene = source.scene()
    assert scene.words == "Nothing to recover: every task had ended."
    assert (scene.position, scene.last, scene.next) == (0, 0, None)


def test_a_file_cannot_be_made_to_die_and_says_so() -> None:
    with StoreSource(STORES / "ticker.sqlite", now_ms=NOW_MS) as source:
        assert source.points() == ()
        with pytest.raises(NoScenario, match="name a scenario"):
            source.run(["ticker#1/tick:effect.after"], "freeze")
        with pytest.raises(CannotDo, match="nothing to choose"):
            source.choose("run")
        assert source.back().position == 0
        assert source.goto(-3).position == 0


# --- Foreign and large ------------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script>\u202e\x1b[2J\x00 \ud83d " + "A" * 5000
NAME = "<img src=x>\u202e\x07\ud83d" + "B" * 400


def test_hostile_texts_pass_through_as_data_and_are_bounded(tmp_path: Path) -> None:
    store = Path(shutil.copy(STORES / "tool-unsafe.sqlite", tmp_path / "evil.sqlite"))
    rewrite(store, {"transfer": NAME}, says=HOSTILE)
    with StoreSource(store, now_ms=NOW_MS) as source:
        pages = [as_page(scene) for scene in positions(source)]
        scene = source.scene()
    user = next(row for row in scene.entries.rows if row.role == "user")
    assert user.text.startswith(HOSTILE[:30])
    assert len(user.text) <= LONGEST + 40
    assert user.text.endswith(f"({len(HOSTILE):,} characters)")
    assert any(task.name.startswith(NAME[:20]) and len(task.name) <= 300 for task in scene.tasks)
    assert len(pages) == 3
    assert "\\ud83d" in json.dumps(pages, ensure_ascii=True)
    assert all(len(json.dumps(page)) < 60_000 for page in pages)


def test_hostile_kinds_memos_and_phases_are_cut_where_they_stand(tmp_path: Path) -> None:
    store = Path(shutil.copy(STORES / "ticker.sqlite", tmp_path / "evil.sqlite"))
    rewrite(store, {"demo.ticker": NAME, "printed-1": NAME + "1", "tick": NAME}, says=HOSTILE)
    with StoreSource(store, now_ms=NOW_MS) as source:
        pages = [as_page(scene) for scene in positions(source)]
        task = source.scene().tasks[0]
    assert task.kind.startswith(NAME[:20])
    assert max(len(task.kind), len(task.name), len(task.phase or ""), len(task.checkpoint or "")) <= 300
    assert all(len(memo.name) <= 300 for memo in task.memos)
    assert all(len(json.dumps(page)) < 60_000 for page in pages)


def rewrite(store: Path, names: Mapping[str, str], *, says: str) -> None:
    """Put foreign texts where a store has names, and where a user said something."""
    with sqlite3.connect(store) as connection:
        for table, column in (("entries", "record"), ("tasks", "record"), ("document_revisions", "content")):
            for row, text in connection.execute(f"SELECT rowid, {column} FROM {table}").fetchall():
                record = json.loads(text)
                if table == "entries" and record["kind"] == "pi.user":
                    record["model"][0]["content"] = says
                text = json.dumps(record)
                for name, other in names.items():
                    text = text.replace(json.dumps(name), json.dumps(other))
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (text, row))
    connection.close()


@pytest.mark.parametrize("coded", [False, True], ids=["alone", "with-code"])
def test_every_law_that_a_scene_names_has_its_line(coded: bool, demo: Loaded) -> None:
    for name in NAMES:
        with StoreSource(STORES / f"{name}.sqlite", code=demo if coded else None, now_ms=NOW_MS) as source:
            for scene in positions(source):
                assert all(law.text for law in scene.step.laws), scene.step.laws


def test_many_commits_are_folded_and_the_end_never_is(tmp_path: Path) -> None:
    store = Path(shutil.copy(STORES / "tool-unsafe.sqlite", tmp_path / "many.sqlite"))
    lengthen(store, 300, commits=300)
    with StoreSource(store, now_ms=NOW_MS) as source:
        cols = source.scene().timeline
        last = source.finish().timeline[-1]
    assert [cols[0].kind, cols[-1].kind] == ["fold", "kill"]
    assert len(cols) == 32
    numbers = [col.n for col in cols[1:-1] if col.n is not None]
    assert cols[0].label == f"1–{numbers[0] - 1}"
    assert numbers == list(range(numbers[0], numbers[0] + 30))
    assert last.position == 2


def test_ten_thousand_entries_cost_a_window_only(tmp_path: Path) -> None:
    store = Path(shutil.copy(STORES / "tool-unsafe.sqlite", tmp_path / "long.sqlite"))
    lengthen(store, 10_000)
    with StoreSource(store, now_ms=NOW_MS) as source:
        source.next()
        read = source._stage.walking.base.entry
        before = read.cache_info()
        scene = source.scene()
        source.scene()
        after = read.cache_info()
        window = source.entries(1, 5000, 1000)
    assert after.misses - before.misses <= 60
    assert scene.entries.total > 10_000
    assert len(scene.entries.rows) == 60
    assert scene.entries.start == scene.entries.total - 60
    first = 5000 - (scene.entries.total - 10_000)
    assert [row.text for row in window.rows] == [f"line {n}" for n in range(first, first + 200)]
    assert len(json.dumps(scene.to_json(), ensure_ascii=True)) < 100_000


def lengthen(store: Path, count: int, *, commits: int = 1) -> None:
    """Append many entries by hand, as a long conversation has; each in a commit of its own, or all in one."""
    with sqlite3.connect(store) as connection:
        ((next_id, next_seq),) = connection.execute("SELECT next_id, next_seq FROM durable_metadata").fetchall()
        first = int(next_id)
        for n in range(count):
            message = {"role": "user", "content": f"line {n}", "timestamp": 1}
            record = {"id": first + n, "conversationId": 1, "kind": "pi.user", "model": [message]}
            row = (first + n, 1, None, next_seq + n * commits // count, json.dumps(record))
            connection.execute("INSERT INTO record_ids VALUES (?, 'entry')", (first + n,))
            connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", row)
        connection.execute(
            "UPDATE durable_metadata SET next_id = ?, next_seq = ?", (str(first + count), next_seq + commits)
        )
    connection.close()
