"""Sweeps: every crash point of every built-in scenario, a second crash in every recovery, and what is said about it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from pidurable_nb.agent.harness import Harness
from pidurable_nb.engine.phase import TaskRef
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import EPOCH_MS, LEDGER, Plan, run_here
from pidurable_nb.lab.images.images import NoSuchImage
from pidurable_nb.lab.judging import invariants
from pidurable_nb.lab.judging.invariants import Acknowledged, content_of
from pidurable_nb.lab.looking.explain import explain
from pidurable_nb.lab.outside.bank import BankServer
from pidurable_nb.lab.outside.world import append
from pidurable_nb.lab.scenario import BUILT_IN, Facts, Scenario, builtin, facts_of
from pidurable_nb.lab.sweeping.lives import Image, live
from pidurable_nb.lab.sweeping.points import where
from pidurable_nb.lab.sweeping.replay import NeverPassed, replay
from pidurable_nb.lab.sweeping.result import CLASSES
from pidurable_nb.lab.sweeping.sweep import sweep
from pidurable_nb.lab.walking.verdict_check import NOTHING, acted, disagreements
from pidurable_nb.store.stranger import StoreFile

ALLOWED_TWICE = {
    "two-orders", "checkout", "fix-the-cell", "restart-storm",
    "refund", "overnight", "approval", "support-desk", "subagent", "alarm",
}  # fmt: skip
"""The scenarios with effects that their authors chose to happen at least once."""


def swept(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pidurable_nb", "sweep", *words], capture_output=True, text=True, check=False
    )


# Every built-in scenario.


TWICE = tuple(name for name in BUILT_IN if name not in ("overnight", "alarm"))
"""Those that are crashed a second time in every recovery here: the night is long, and `pidurable-nb sweep overnight
--second` takes minutes; an alarm dies twice in tests/agent/test_reminding.py."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TWICE)
def test_c2_m3_t9_o6_every_builtin_survives_a_crash_at_every_commit_boundary_and_a_second_in_its_recovery(
    name: str,
) -> None:
    found = sweep(builtin(name), second=True, processes=min(os.cpu_count() or 1, 4))
    assert found.ok, found.violations
    assert found.images > 5 * found.points > 100  # a second crash for each of the first, at many points
    assert sum(found.classes.values()) == found.images
    assert set(found.classes) <= ({"as_promised", "effect_twice"} if name in ALLOWED_TWICE else {"as_promised"})


def test_m3_a_ticker_prints_each_number_once_at_most_wherever_it_dies() -> None:
    found = sweep(builtin("ticker"))
    assert found.ok, found.violations
    assert found.classes == {"as_promised": found.points}


def test_m3_acting_before_remembering_happens_twice_and_that_is_told_with_a_story_and_no_violation() -> None:
    found = sweep(builtin("two-orders"))
    assert found.ok, found.violations
    assert found.classes["effect_twice"] > 0
    [crash] = found.witnesses["effect_twice"].crashes
    told = replay(builtin("two-orders"), [crash])
    assert told.asked["mail Ada"] == 2
    assert told.ok


def test_e6_a_checkout_that_dies_between_capture_and_checkpoint_balances(tmp_path: Path) -> None:
    told = replay(builtin("checkout"), [Point.parse("payment#1/capture:effect.after")])
    assert told.ok, told.problems
    assert told.asked["capture 1"] == 2
    assert told.applied["capture 1"] == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["ticker", "sleeper"])
def test_a_crash_before_every_file_operation_loses_nothing(name: str) -> None:
    found = sweep(builtin(name), points="files", processes=2)
    assert found.ok, found.violations
    assert found.points > 100
    assert found.classes == {"as_promised": found.images}


# Real kills.


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_t7_every_commit_boundary_by_sigkill_ends_as_by_freezing_and_leaves_the_same_bytes() -> None:
    scenario = builtin("two-orders")
    both = sweep(scenario, kinds=("freeze", "kill"), processes=2)
    frozen = sweep(scenario)
    assert both.ok, both.violations
    assert {cell: counts for cell, counts in both.cells.items() if cell[1] == "freeze"} == frozen.cells
    assert set(both.classes) == set(frozen.classes)
    for (point, _), counts in frozen.cells.items():  # where freezing ends so, a kill does, or an image of one
        assert set(counts) <= set(both.cells[point, "kill"])
    assert both.images > 2 * frozen.images  # and in the midst of every write
    same, _, of = (both.byte_identical or "").partition(" of ")
    assert int(same) == int(of) > 2 * both.points


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BUILT_IN)
def test_c2_m3_every_builtin_survives_sigkill_at_every_commit_boundary(name: str) -> None:
    found = sweep(builtin(name), kinds=("kill",), processes=min(os.cpu_count() or 1, 4))
    assert found.ok, found.violations
    assert found.rates["kill"].count == found.points
    assert found.images > 3 * found.points  # and what a kill may leave behind every operation on the files


# What is said about it.


def test_the_json_of_a_sweep_is_what_the_command_line_promises() -> None:
    found = sweep(builtin("sleeper")).to_json()
    assert list(found) == [
        "scenario", "kinds", "durability", "sqlite", "seed", "points", "images", "runs", "classes", "violations",
        "ok", "seconds", "rates",
    ]  # fmt: skip
    assert found["sqlite"] == sqlite3.sqlite_version
    assert found["classes"] == {"as_promised": found["points"]} | dict.fromkeys(CLASSES[1:], 0)


def test_e5_a_sweep_says_that_a_barrier_is_an_ordinary_commit_with_durability_kill() -> None:
    found = sweep(builtin("sleeper"), durability="kill")
    assert found.ok, found.violations
    assert "E5" in str(found.to_json()["note"])


def broken(facts: Facts) -> list[str]:
    """An invariant that nothing can meet once the number 2 is printed twice or not at all."""
    return [] if facts.asked.get("print tick 2") == 1 else ["2 was lost"]


def test_a_violation_has_one_witness_that_replays_from_its_command() -> None:
    strict = replace(builtin("ticker"), invariants=broken)
    found = sweep(strict)
    assert not found.ok
    assert [violation.text for violation in found.violations] == ["2 was lost"]
    [violation] = found.violations
    assert violation.kind == "broken"
    assert found.classes["broken"] + found.classes["as_promised"] == found.images
    assert violation.replay == f"pidurable-nb sweep ticker --point '{violation.witness.crashes[0]}' --seed 1"
    told = replay(strict, violation.witness.crashes)
    assert [problem.text for problem in told.problems] == ["2 was lost"]
    assert told.lives[0].died == violation.witness.crashes[0]
    assert told.lives[1].died is None


def test_a_story_goes_through_lives_that_end_themselves_to_the_crash_that_was_asked_for() -> None:
    told = replay(builtin("restart-storm"), [Point.parse("3!session:open.after")])
    assert [life.number for life in told.lives] == list(range(1, len(told.lives) + 1))
    assert str(told.lives[0].died) == "poison#1/poison:effect.before"  # it kills itself
    assert str(told.lives[2].died) == "3!session:open.after"
    assert told.ok, told.problems


def test_a_story_may_begin_with_what_a_power_cut_left_and_go_on_with_one_of_its_recovery() -> None:
    crashes = [where("power@120/keep:0"), where("2!kill@33")]
    told = replay(builtin("refund"), crashes, how="power")
    assert told.ok, told.problems
    assert [str(life.died) for life in told.lives] == ["power@120/keep:0", "2!kill@33", "None"]
    assert "behind operation 120" in (told.lives[0].said or "")
    assert told.asked['refund(order="A-1017", cents=4200)'] == 1


def test_e5_the_story_of_a_doubled_refund_is_told_with_durability_kill_and_is_no_violation_of_it() -> None:
    found = sweep(builtin("refund"), kinds=("power",), durability="kill", processes=2)
    assert found.ok, found.violations
    assert found.classes["effect_twice"] > 0
    told = replay(builtin("refund"), found.witnesses["effect_twice"].crashes, how="power", durability="kill")
    assert told.asked['refund(order="A-1017", cents=4200)'] == 2


def test_an_image_that_is_none_is_refused() -> None:
    with pytest.raises(NoSuchImage, match="is no image of this recording of"):
        replay(builtin("sleeper"), [where("kill@4000")])


def test_a_point_that_is_never_passed_is_refused_with_one_that_is() -> None:
    with pytest.raises(NeverPassed, match=r"never comes by ticker#1/tick:memo.before@99; it comes by ticker#1/tick"):
        replay(builtin("ticker"), [Point.parse("ticker#1/tick:memo.before@99")])


# The command line.


def test_sweep_prints_one_json_object_and_tells_its_progress_elsewhere() -> None:
    done = swept("sleeper", "--json", "--processes", "2")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert found["ok"] is True
    assert "sleeper: freeze" in done.stderr


def test_sweep_tells_one_story_by_its_point_killed_for_real() -> None:
    done = swept("ticker", "--kind", "kill", "--point", "ticker#1/tick:effect.after@2", "--seed", "1", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [life["died"] for life in found["lives"]] == ["ticker#1/tick:effect.after@2", None]
    assert set(found["lives"][1]["foretold"].values()) == {"rerun"}
    assert found["effects"]["print tick 2"] == 1
    text = swept("ticker", "--point", "ticker#1/tick:effect.after@2")
    assert re.search(r"^life 2\n  foretold  task \d+ rerun$", text.stdout, re.MULTILINE)


@pytest.mark.parametrize("kinds", ["powr", "freeze,", "freeze,power,lightning", ""])
def test_a_kind_that_is_not_there_is_wrong_usage_in_one_line(kinds: str) -> None:
    done = swept("ticker", "--kind", kinds)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "write some of freeze, kill, power, fault" in done.stderr


def test_a_scenario_of_a_module_is_swept_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        (Path(str(sys.modules[builtin("sleeper").module].__file__)).read_text()).replace(
            'name="sleeper"', 'name="napper"'
        )
    )
    words = [sys.executable, "-m", "pidurable_nb", "sweep", "mine:napper", "--json", "--processes", "2"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["scenario"] == "mine:napper"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["mine.py"]


def test_a_scenario_that_is_not_there_is_one_line() -> None:
    done = swept("tickr", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["kind"] == "usage"


# The invariants themselves.


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """A checkout that died when two payments had been captured."""
    point = Point.parse("payment#2/capture:commit.after")
    with BankServer():
        _, left = live(builtin("checkout"), Image(folder=None, plan=Plan(seed=1)), tmp_path / "life", at=point)
    assert left.folder is not None
    return left.folder / "store.sqlite"


def changed(store: Path, sql: str) -> invariants.Content:
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute(sql)
    with StoreFile.of_copy(store) as file:
        return content_of(file)


def test_c1_a_row_that_names_a_missing_one_is_found(dead: Path) -> None:
    with StoreFile.of_copy(dead) as file:
        assert content_of(file).wrong == ()
    wrong = changed(dead, "DELETE FROM tasks WHERE id = (SELECT min(id) FROM tasks)").wrong
    assert any("names tasks/" in text and "which is not there" in text for text in wrong)


def test_c2_what_was_acknowledged_and_is_missing_older_or_rolled_back_is_found(dead: Path) -> None:
    with StoreFile.of_copy(dead) as file:
        content = content_of(file)
    told = Acknowledged(seq=content.next_seq - 1, rows=content.rows, in_flight=frozenset())
    row = next(name for name in content.rows if name.startswith("tasks/"))
    assert list(invariants.lost(told, content)) == []
    behind = replace(content, next_seq=content.next_seq - 1)
    assert [p.kind for p in invariants.lost(told, behind)] == ["lost_acknowledged"]
    gone = replace(content, rows={name: text for name, text in content.rows.items() if name != row})
    assert [p.text for p in invariants.lost(told, gone)] == [f"{row} was acknowledged, and is not in the store (C2)"]
    other = replace(content, rows={**content.rows, row: "{}"})
    assert [p.kind for p in invariants.lost(told, other)] == ["lost_acknowledged"]
    newer = replace(other, next_seq=content.next_seq + 1)
    assert list(invariants.lost(replace(told, in_flight=frozenset([row])), newer)) == []


def test_t6_a_final_row_that_recovery_changed_is_found(dead: Path) -> None:
    with StoreFile.of_copy(dead) as file:
        content = content_of(file)
    ended = next(row for row in content.final if row.startswith("tasks/"))
    after = replace(content, rows={**content.rows, ended: "{}"})
    assert [p.text for p in invariants.forgotten(content, after)] == [
        f"{ended} was final, and recovery changed it (V1, T6, S5)"
    ]


async def leaves_at_once(harness: Harness, roots: tuple[TaskRef[object], ...]) -> None:
    """Closes before anything was done."""


async def waits_for_ever(harness: Harness, roots: tuple[TaskRef[object], ...]) -> None:
    await asyncio.Event().wait()


def test_a_task_that_was_left_though_it_would_go_on_is_stuck_and_so_is_a_life_that_never_ends() -> None:
    left = sweep(replace(builtin("sleeper"), attend=leaves_at_once))
    assert "stuck" in {violation.kind for violation in left.violations}
    assert any("was left, though it would" in violation.text for violation in left.violations)
    endless = sweep(replace(builtin("sleeper"), attend=waits_for_ever))
    assert {violation.kind for violation in endless.violations} == {"stuck"}
    assert "Deadlock" in endless.violations[0].text


def test_m3_e6_effects_beyond_their_policy_are_found(tmp_path: Path) -> None:
    ledger = tmp_path / LEDGER
    run_here(builtin("ticker"), tmp_path / "store.sqlite", ledger, Plan())
    facts = facts_of(tmp_path / "store.sqlite", ledger)
    scenario: Scenario = builtin("ticker")
    assert list(invariants.beyond_policy(scenario, facts)) == []
    assert not invariants.twice(scenario, facts)
    append(ledger, {"effect": "print tick 1", "edge": "before", "key": None, "life": 2})
    facts = facts_of(tmp_path / "store.sqlite", ledger)
    assert [problem.kind for problem in invariants.beyond_policy(scenario, facts)] == ["effect_twice"]
    assert invariants.twice(scenario, facts)


# Explanation equals behaviour.


def test_o6_what_others_do_in_the_new_life_may_overtake_a_prediction_and_nothing_else_may(dead: Path) -> None:
    verdicts = [verdict for verdict in explain(dead, now_ms=EPOCH_MS).tasks if verdict.name == "rerun"]
    assert verdicts
    id = verdicts[0].id
    other = TaskId(10_000)

    def differs(*acts: tuple[TaskId, str]) -> list[str]:
        found = disagreements(verdicts[:1], acted(acts), may_rest=lambda _: False)
        return [each.done for each in found]

    assert differs((id, "rerun")) == []
    assert differs((id, "abort")) == ["abort"]
    assert differs((id, "mark"), (id, "abort")) == ["abort"]  # a mark before anything started was to be foreseen
    assert differs((other, "start"), (id, "mark"), (id, "abort")) == []
    assert differs((other, "start"), (id, "mark"), (id, "resume")) == ["resume"]
    assert acted([(id, "mark")]).first.get(id, NOTHING) == NOTHING
