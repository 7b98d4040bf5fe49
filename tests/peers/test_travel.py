"""Stores travel: what we wrote and were killed over, the peer finishes; what it wrote, we finish; and back again.

The peer is Pi Durable's Python port. Where it deviates from the format of the original, a comment says so and what is
tested is the original's form on our side.
"""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pidurable_nb.lab.looking.explain import explain
from pidurable_nb.lab.looking.inspect import inspect_store

pytest.importorskip("pi_durable", reason="the peer is optional: make test PEERS=1")

if TYPE_CHECKING:
    from tests.peers.conftest import Halves, Life

SIDES = ("ours", "theirs")
OTHER = {"ours": "theirs", "theirs": "ours"}
KILLED = -signal.SIGKILL
FINISHED_AT_MS = 1_900_000_000_000 + 3_600_000


# -- reading a store by nobody's code ----------------------------------------------------------------------------------


def copied(store: Path, into: Path) -> Path:
    """The store and what travels with it: opening the original to look would fold its log."""
    into.mkdir(parents=True, exist_ok=True)
    for file in (store, store.with_name(store.name + "-wal")):
        if file.exists():
            shutil.copyfile(file, into / file.name)
    return into / store.name


def rows(store: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(copied(store, store.parent / "look"))) as db:
        found = db.execute(sql).fetchall()
    shutil.rmtree(store.parent / "look")
    return found


def records(store: Path, table: str) -> dict[int, Any]:
    return {id: json.loads(record) for id, record in rows(store, f"SELECT id, record FROM {table} ORDER BY id")}


def numbers(store: Path) -> tuple[int, int]:
    ((next_id, next_seq),) = rows(store, "SELECT next_id, next_seq FROM durable_metadata")
    return int(next_id), next_seq


# -- one world, seeded by one side and finished by the other -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """A store that `seeder` was killed over, a copy of it as it died, and what the other side made of it."""

    seeder: str
    seed: Life
    died: Path
    finish: Life
    store: Path

    @property
    def finisher(self) -> str:
        return OTHER[self.seeder]

    def task(self, name: str) -> int:
        id: int = self.seed.told["tasks"][name]
        return id


@pytest.fixture(scope="module", params=SIDES, ids=[f"{side}-then-{OTHER[side]}" for side in SIDES])
def journey(request: pytest.FixtureRequest, halves: Halves, tmp_path_factory: pytest.TempPathFactory) -> Journey:
    seeder = str(request.param)
    store = tmp_path_factory.mktemp(seeder) / "world.sqlite"
    seed = halves.run(seeder, "seed", store)
    died = copied(store, store.parent / "died")
    finish = halves.run(OTHER[seeder], "finish", store, seed.told)
    return Journey(seeder=seeder, seed=seed, died=died, finish=finish, store=store)


def test_t7_what_ran_when_the_process_was_killed_is_found_by_the_other_side(journey: Journey) -> None:
    assert (journey.seed.code, journey.finish.code) == (KILLED, 0)
    died = records(journey.died, "tasks")
    assert Counter(task["state"]["status"] for task in died.values()) == {
        "running": 5, "waiting": 2, "sleeping": 2, "terminal": 2,
    }  # fmt: skip
    assert journey.finish.told["live"] == [id for id, task in died.items() if task["state"]["status"] != "terminal"]


def test_t6_results_are_those_of_a_life_that_was_never_cut(journey: Journey) -> None:
    after = records(journey.store, "tasks")
    ended = {name: after[journey.task(name)]["state"]["outcome"] for name in ("ticker", "good", "bad", "nap")}
    assert ended == {
        "ticker": {"status": "completed", "result": "counted to 3"},
        "good": {"status": "completed", "result": [["Done", "r-1"], ["Done", "r-2"], ["Done", "r-3"]]},
        "bad": {"status": "completed", "result": [["Done", "r-11"], ["Aborted", None], ["Failed", None]]},
        "nap": {"status": "completed", "result": "awake"},
    }
    assert [task["state"]["outcome"] for task in after.values() if task["kind"] == "café.paiement"][3:] == [
        {"status": "completed", "result": "r-11"},
        {"status": "aborted", "reason": "sibling declined"},
        {"status": "failed", "error": {"message": "declined", "detail": {"auth": "auth-13"}}},
    ]
    assert not [id for id, task in after.items() if task["state"]["status"] == "terminal" and "restarts" in task]


def test_m3_the_second_life_does_what_the_stored_phases_ask_for_and_nothing_else(journey: Journey) -> None:
    expected: Counter[str] = Counter(["print seed 3", "refund 12"])
    for task in records(journey.died, "tasks").values():
        n, phase = task["input"].get("n"), task["state"].get("checkpoint", {}).get("phase")
        if n is not None and phase is not None:
            expected += Counter([f"authorize {n}"] if phase == "authorize" else [])
            expected += Counter([f"capture {n}"] if n != 13 else [])
    assert Counter(journey.finish.effects) == expected


def test_m1_a_memo_of_the_other_side_keeps_its_effect_from_happening_twice(journey: Journey) -> None:
    ticker = records(journey.died, "tasks")[journey.task("ticker")]
    assert (ticker["state"]["checkpoint"]["n"], ticker["memos"]) == (2, {"printed-é-1": True, "printed-é-2": True})
    both = Counter(journey.seed.effects + journey.finish.effects)
    assert {n: both[f"print seed {n}"] for n in (1, 2, 3)} == {1: 1, 2: 1, 3: 1}


def test_t4_a_failed_payment_gets_its_sibling_aborted_across_the_border(journey: Journey) -> None:
    died, after = records(journey.died, "tasks"), records(journey.store, "tasks")
    bad = journey.task("bad")
    assert died[bad]["state"] == {
        "status": "waiting", "checkpoint": {"phase": "collect", "payments": died[bad]["state"]["on"]},
        "on": died[bad]["state"]["on"], "policy": "failFast",
    }  # fmt: skip
    owned = [task for task in after.values() if task.get("owner") == bad]
    assert [task["abortRequested"] for task in owned] == [False, True, False]


def test_t12_a_sleep_keeps_its_due_time_on_both_sides(journey: Journey) -> None:
    died, after, long = records(journey.died, "tasks"), records(journey.store, "tasks"), journey.task("long")
    assert died[journey.task("nap")]["state"]["until"] == 1_900_000_060_000
    assert journey.finish.told["long"] == "sleeping"
    assert after[long] == died[long]


def test_s1_a_request_that_the_other_side_admitted_is_not_admitted_again(journey: Journey) -> None:
    again = journey.finish.told["writes"]
    # The peer looks non-ASCII request ids up in its own escaped form only, and so would admit ours a second time: it
    # asks for the ASCII one alone. We ask for both, whoever wrote them.
    assert again == {id: was for id, was in journey.seed.told["writes"].items() if id in again}
    assert len(again) == (1 if journey.finisher == "theirs" else 2)
    assert records(journey.store, "submissions") == records(journey.died, "submissions")


def test_v3_documents_and_forks_are_read_as_they_were_written(journey: Journey) -> None:
    then = {"title": "un 🎉", "items": []}
    assert journey.finish.told["docs"] == {
        "todo": {"title": "deux 🎉🎉", "items": ["a", "\udfff", "c 😀"]}, "todo-then": then, "todo-fork": then,
        "mode": {"mode": "β"}, "mode-fork": {"mode": "α"},
        "page": {"text": "page é, plus"}, "page-fork": {"text": ""}, "totals": {"commits": 2},
    }  # fmt: skip


def test_v1_entries_keep_astral_characters_and_lone_surrogates(journey: Journey) -> None:
    seed, told = journey.seed.told, journey.finish.told
    lone = {"lone": "\ud800", "reversed": "\udc00\ud83d", "whole": "😀", "ключ": ["é", None]}
    note = [seed["entry"], "app.note.é", "smile 😀 and fête", lone]
    assert told["root"][0] == told["fork"][0] == note
    assert [kind for _, kind, *_ in told["root"]] == ["app.note.é", "app.asked", "app.asked"]
    assert [(kind, data) for _, kind, _, data in told["fork"][1:]] == [("app.branch", {"n": 1})]
    assert records(journey.store, "entries") == records(journey.died, "entries")


def test_v3_a_document_of_a_task_ends_with_it_and_goes_on_until_then(journey: Journey) -> None:
    was, now = (
        [d for d in records(store, "documents").values() if d["kind"] == "app.progress"]
        for store in (journey.died, journey.store)
    )
    assert ([d["id"] for d in was], [d.get("retiredAt") is None for d in was]) == ([d["id"] for d in now], [True])
    assert [d["retiredAt"] > d["createdAt"] for d in now] == [True]


def test_c6_ids_go_on_and_the_file_is_whole(journey: Journey) -> None:
    assert rows(journey.store, "PRAGMA integrity_check") == [("ok",)]
    was, now = ({id for (id,) in rows(store, "SELECT id FROM record_ids")} for store in (journey.died, journey.store))
    assert was <= now
    (id_was, seq_was), (id_now, seq_now) = numbers(journey.died), numbers(journey.store)
    assert (id_now > max(now), id_now >= id_was, seq_now > seq_was) == (True, True, True)


def test_columns_are_written_as_the_original_writes_them(journey: Journey) -> None:
    # The peer escapes what is not ASCII, which the original does not: we write its form and read both.
    payment = {"ours": '"café.paiement"', "theirs": r'"caf\u00e9.paiement"'}
    asked = {"ours": '"prière-🎈"', "theirs": r'"pri\u00e8re-\ud83c\udf88"'}
    assert rows(journey.died, "SELECT DISTINCT kind FROM tasks WHERE kind LIKE '%paiement\"'") == [
        (payment[journey.seeder],)
    ]
    assert (asked[journey.seeder],) in rows(journey.died, "SELECT request_id FROM submissions")


# -- there and back again ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_c6_a_store_goes_there_and_back_twice_and_no_id_comes_twice(halves: Halves, tmp_path: Path) -> None:
    store = tmp_path / "world.sqlite"
    seen: dict[int, str] = {}
    last, ticker, identity = (0, 0), None, None
    for visit, side in enumerate(("ours", "theirs", "ours", "theirs", "ours"), start=1):
        life = halves.run(side, "more", store, f"visit-{visit}")
        assert (life.code, life.told["totals"]) == (KILLED, visit)
        assert life.told["live"] == ([] if ticker is None else [ticker])
        # The ticker of the visit before was killed behind its memo: only its second tick is still to be printed.
        found = () if ticker is None else (f"print visit-{visit - 1} 2",)
        assert life.effects == (*found, f"print visit-{visit} 1")
        ids = dict(rows(store, "SELECT id, record_type FROM record_ids"))
        assert ids.items() >= seen.items()
        assert all(id > max(seen, default=0) for id in ids.keys() - seen.keys())
        assert rows(store, "PRAGMA integrity_check") == [("ok",)]
        numbered = numbers(store)
        assert (numbered[0] > last[0], numbered[1] > last[1]) == (True, True)
        columns = rows(store, "SELECT store_id, origin FROM pidurable_store")
        assert identity in (None, columns)
        seen, last, ticker, identity = ids, numbered, life.told["ticker"], columns
    todo = next(d for d in inspect_documents(store) if d["kind"] == "app.todo" and d["scope"] == "conversation:1")
    assert todo["value"] == {"title": "", "items": [f"visit-{n}" for n in range(1, 6)]}
    assert [(task["kind"], task["outcome"]) for task in inspect_tasks(store)] == [("ticker", "completed")] * 4 + [
        ("ticker", None)
    ]


def inspect_documents(store: Path) -> list[dict[str, Any]]:
    documents: Any = inspect_store(store)["documents"]
    return list(documents)


def inspect_tasks(store: Path) -> list[dict[str, Any]]:
    tasks: Any = inspect_store(store)["tasks"]
    return list(tasks)


def test_t11_a_kept_fault_is_an_ordinary_pending_task_to_the_peer(halves: Halves, tmp_path: Path) -> None:
    store = tmp_path / "world.sqlite"
    fault = halves.run("ours", "fault", store)
    assert (fault.code, fault.told["outcome"]) == (KILLED, "Faulted")
    shaky = fault.told["shaky"]
    kept = records(store, "tasks")[shaky]
    assert (kept["state"]["status"], list(kept["memos"])) == ("pending", ["pidurable.fault"])
    peer = halves.run("theirs", "run_steady", store, fault.told)
    (seen,) = peer.told["inspection"]["tasks"]
    assert (seen["record"]["id"], seen["state"]) == (shaky, {"kind": "ready", "migrates": False})
    assert peer.effects == ("shake", "steady")
    ended = records(store, "tasks")[shaky]
    assert (ended["state"]["outcome"], "memos" in ended) == ({"status": "completed", "result": "stood"}, False)


def test_t11_a_fault_that_the_peer_went_on_from_is_stale_to_us(halves: Halves, tmp_path: Path) -> None:
    store = tmp_path / "world.sqlite"
    fault = halves.run("ours", "fault", store)
    peer = halves.run("theirs", "steady_then_die", store, fault.told)
    assert (peer.code, peer.effects) == (KILLED, ("shake", "steady"))
    cut = records(store, "tasks")[fault.told["shaky"]]
    assert (cut["state"]["checkpoint"], list(cut["memos"])) == ({"phase": "steady"}, ["pidurable.fault"])
    assert [verdict.name for verdict in explain(store).tasks] == ["rerun"]
    ours = halves.run("ours", "steady", store, fault.told)
    assert (ours.code, ours.effects) == (0, ("steady",))
    assert records(store, "tasks")[fault.told["shaky"]]["state"]["outcome"]["status"] == "completed"


# -- where the peer deviates -------------------------------------------------------------------------------------------


def contents(store: Path, key: str) -> list[Any]:
    sql = (
        "SELECT content FROM document_revisions WHERE document_id IN (SELECT id FROM documents WHERE key_value IN ({}))"
    )
    forms = ", ".join(f"'{form}'" for form in {json.dumps(key), json.dumps(key, ensure_ascii=False)})
    return [json.loads(content) for (content,) in rows(store, sql.format(forms) + " ORDER BY document_id, seq")]


STAYS = "abc " * 60


def test_text_that_loses_astral_characters_is_counted_in_utf16(halves: Halves, tmp_path: Path) -> None:
    store = tmp_path / "world.sqlite"
    halves.run("ours", "window", store)
    whole = {"text": f" {STAYS}, qrst 🎉"}
    # Two smiles are four units: the original's count. The peer counts characters and reads our text without its first
    # two letters, as it would read the original's.
    assert contents(store, "window")[1:] == [
        [["t", ["text"], 4], ["a", ["text"], ", qrst"]],
        [["t", ["text"], 2], ["a", ["text"], " 🎉"]],
    ]
    assert halves.run("ours", "again", store).told["pages"] == [whole, whole]


def test_text_that_the_peer_trimmed_is_read_as_the_original_reads_it(halves: Halves, tmp_path: Path) -> None:
    store = tmp_path / "world.sqlite"
    halves.run("theirs", "window", store)
    # The peer wrote 2 for two smiles where the original writes 4: what it meant is lost to every reader but itself.
    assert contents(store, "window")[1][0] == ["t", ["text"], 2]
    read = {"text": f"\ude00😀 {STAYS}, qrst 🎉"}
    told = halves.run("ours", "again", store).told
    assert told["pages"] == [read, read]  # the second under a key that the peer escaped
    assert told["match"] == "same"
    assert rows(store, "SELECT count(*) FROM submissions") == [(1,)]


def test_our_columns_hold_non_ascii_raw_and_we_find_our_own_among_the_peers_doubles(
    halves: Halves, tmp_path: Path
) -> None:
    store = tmp_path / "world.sqlite"
    halves.run("ours", "window", store)
    assert ('"ключ"',) in rows(store, "SELECT key_value FROM documents")
    ((admitted, request),) = rows(store, "SELECT id, request_id FROM submissions")
    assert request == '"prière-🎈"'
    # The peer looks up its escaped form only: it neither finds our document nor our request, and admits it again.
    halves.run("theirs", "again", store)
    ours = halves.run("ours", "again", store)
    assert (ours.told["write"], ours.told["match"]) == (admitted, "same")
    assert ours.told["pages"][1] == {"text": f" {STAYS}, qrst 🎉"}


# -- inspect and the peer say the same ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A store that the peer had last, what it said about it, and what we say."""

    peer: dict[str, Any]
    live: dict[str, Any]
    ours: dict[str, Any]
    store: Path


@pytest.fixture(scope="module", params=["nothing", "finish"], ids=["live", "finished"])
def said(request: pytest.FixtureRequest, halves: Halves, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """The peer's own world after its own opening, with everything live in it; and after it finished it."""
    store = tmp_path_factory.mktemp("said") / "world.sqlite"
    seed = halves.run("theirs", "seed", store)
    told = halves.run("theirs", str(request.param), store, seed.told).told
    ours: Any = inspect_store(store)
    return Said(peer=told["everything"], live=told["left"], ours=ours, store=store)


def test_inspect_counts_what_the_peer_counts(said: Said) -> None:
    peer, counts = said.peer, said.ours["counts"]
    assert (said.ours["integrity"], said.ours["format"]) == ("ok", 2)
    assert counts["conversations"] == len(peer["conversations"])
    assert counts["tasks"] == len(peer["tasks"])
    assert counts["submissions"] == len(peer["submissions"])
    own = {entry["id"]: entry["kind"] for entries in peer["transcripts"].values() for entry in entries}
    assert (counts["entries"], said.ours["entries_by_kind"]) == (len(own), dict(Counter(own.values())))
    assert said.ours["tasks_by_status"] == dict(Counter(task["state"]["status"] for task in peer["tasks"]))
    assert said.ours["tasks_by_kind"] == dict(Counter(task["kind"] for task in peer["tasks"]))


def test_inspect_lists_tasks_as_the_peer_lists_them(said: Said) -> None:
    listed = [
        {
            "id": task["id"],
            "conversation": task["conversationId"],
            "kind": task["kind"],
            "version": task["version"],
            "owner": task.get("owner"),
            "status": task["state"]["status"],
            "phase": task["state"].get("checkpoint", {}).get("phase"),
            "on": task["state"].get("on"),
            "until_ms": task["state"].get("until"),
            "outcome": task["state"].get("outcome", {}).get("status"),
            "memos": list(task.get("memos", {})),
            "restarts": task.get("restarts", 0),
            "abort_requested": task["abortRequested"],
            "background": task["background"],
        }
        for task in said.peer["tasks"]
    ]
    assert said.ours["tasks"] == listed


def test_inspect_lists_conversations_and_submissions_as_the_peer_does(said: Said) -> None:
    talks = []
    for talk in said.peer["conversations"]:
        visible = said.peer["transcripts"][str(talk["id"])]
        parent = talk.get("parent")
        talks.append(
            {
                "id": talk["id"],
                "parent": parent and {"conversation": parent["conversationId"], "at": parent["at"]},
                "owner_task": talk.get("owner", {}).get("taskId"),
                "transcript": [f"{e['id']}:{e['kind']}" for e in visible if e["conversationId"] == talk["id"]],
                "visible": len(visible),
            }
        )
    assert said.ours["conversations"] == talks
    assert said.ours["submissions"] == [
        {
            "id": asked["id"],
            "conversation": asked["conversationId"],
            "type": asked["type"],
            "status": asked["status"],
            "request_id": asked.get("requestId"),
            "reason": asked.get("reason"),
        }
        for asked in said.peer["submissions"]
    ]


def test_inspect_gives_documents_the_values_that_the_peer_gives_them(said: Said) -> None:
    def scope(document: dict[str, Any]) -> str:
        of = document["scope"]
        owner = of.get("conversationId", of.get("taskId"))
        return of["kind"] if owner is None else f"{of['kind']}:{owner}"

    listed = [
        {
            "id": document["id"],
            "kind": document["kind"],
            "scope": scope(document),
            "key": document.get("key"),
            "version": document["version"],
            "alive": True,
            "value": document["value"],
        }
        for document in sorted(said.peer["documents"], key=lambda document: int(document["id"]))
    ]
    assert [document for document in said.ours["documents"] if document["alive"]] == listed


def test_why_agrees_with_what_the_peer_would_do(said: Said) -> None:
    verdicts = {verdict.id: verdict.name for verdict in explain(said.store, now_ms=FINISHED_AT_MS).tasks}
    fits = {"ready": {"start", "rerun", "resume"}, "waiting": {"wait"}, "sleeping": {"sleep"}}
    assert verdicts.keys() == {task["record"]["id"] for task in said.live["tasks"]}
    for task in said.live["tasks"]:
        assert verdicts[task["record"]["id"]] in fits[task["state"]["kind"]]
