"""The demonstration: everything is killed for real, comes out right, and does what was foretold."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pidurable_nb.lab.demo import Shown, demonstrate, predicted, show
from pidurable_nb.lab.dying.forkserver import ForkServer
from pidurable_nb.lab.outside.bank import BankServer
from pidurable_nb.lab.scenario import BUILT_IN, builtin, builtins


@pytest.fixture(scope="module")
def shown() -> dict[str, Shown]:
    return {each.name: each for each in demonstrate()}


def test_everything_dies_by_signal_nine_and_is_recovered_as_foretold(shown: dict[str, Shown]) -> None:
    assert list(shown) == list(BUILT_IN)
    for each in shown.values():
        assert each.broken == ()
        assert set(each.signals) == {9}
        assert each.predicted_equals_done
        assert each.verdicts
        assert each.ok
        if (point := builtin(each.name).kill_point) is not None:
            assert each.point == point


def test_m3_ticker_prints_each_number_once_over_both_lives(shown: dict[str, Shown]) -> None:
    assert shown["ticker"].effects == {f"print tick {n}": 1 for n in range(1, 6)}
    assert (shown["ticker"].outcome, shown["ticker"].verdicts) == ("completed", ("rerun",))
    assert shown["ticker"].steps > 5


def test_m3_two_orders_shows_two(shown: dict[str, Shown]) -> None:
    assert shown["two-orders"].effects["mail Ada"] == 2
    assert shown["two-orders"].effects["mail Grace"] <= 1


def test_e6_checkout_is_asked_twice_and_applies_once(shown: dict[str, Shown]) -> None:
    checkout = shown["checkout"]
    assert max(checkout.effects.values()) == 2
    assert max(checkout.applied.values()) == 1
    assert checkout.outcome == "failed"


def test_t12_sleeper_was_foretold_to_sleep(shown: dict[str, Shown]) -> None:
    assert shown["sleeper"].verdicts == ("sleep",)


def test_t9_the_storm_was_killed_five_times_and_then_parked(shown: dict[str, Shown]) -> None:
    storm = shown["restart-storm"]
    assert storm.signals == (9,) * 5
    assert "parked" in storm.verdicts
    assert storm.outcome == "neighbour completed, poison pending"


def test_e3_refund_was_paid_once_and_foretold_to_be_interrupted(shown: dict[str, Shown]) -> None:
    refund = shown["refund"]
    assert refund.verdicts == ("wait", "interrupt")
    assert refund.effects['refund(order="A-1017", cents=4200)'] == 1
    assert refund.applied == {"pay back A-1017": 1}


def test_e2_overnight_was_foretold_to_look_again(shown: dict[str, Shown]) -> None:
    assert shown["overnight"].verdicts == ("wait", "replay")
    assert shown["overnight"].effects['read_log(host="db-1")'] == 2


def test_m1_approval_asked_nobody_again(shown: dict[str, Shown]) -> None:
    assert shown["approval"].verdicts == ("wait", "rerun", "rerun")
    assert shown["approval"].effects["decision on A-1017"] == 1


def test_a_scenario_that_breaks_its_promise_is_not_ok(tmp_path: Path) -> None:
    ticker = builtin("ticker")
    with BankServer(), ForkServer(["pidurable_nb.lab.dying.run", "pidurable_nb.store.sqlite"]) as server:
        late = show(replace(ticker, kill_point="ticker#1/tick:effect.after@99"), tmp_path / "late", server)
        gone = show(replace(ticker, module="no_such_module"), tmp_path / "gone", server)
    assert (late.ok, late.signals, late.predicted_equals_done, late.broken) == (False, (), False, ())
    assert not gone.ok
    assert "no_such_module" in gone.broken[0]
    assert "no ticker was ever begun" in gone.broken


def test_nothing_is_foretold_of_a_store_that_was_never_made(tmp_path: Path) -> None:
    assert predicted(builtin("ticker"), tmp_path / "none.sqlite", now_ms=None) == ()


def test_the_command_prints_one_object_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pidurable_nb", "demo", "ticker", "two-orders", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["ok"] is True
    ticker, two_orders = said["scenarios"]
    assert ticker["killed_by"] == 9
    assert ticker["point"] == "ticker#1/tick:effect.after@3"
    assert ticker["effects"] == {f"print tick {n}": 1 for n in range(1, 6)}
    assert ticker["outcome"] == "completed"
    assert ticker["verdicts"] == ["rerun"]
    assert ticker["predicted_equals_done"] is True
    assert isinstance(ticker["steps"], int)
    assert two_orders["effects"]["mail Ada"] == 2
    assert "ticker: memo before effect" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_command_prints_a_page_for_people_and_knows_its_scenarios(tmp_path: Path) -> None:
    page = subprocess.run(
        [sys.executable, "-m", "pidurable_nb", "demo", "sleeper"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    ).stdout
    assert "killed by signal 9 at sleeper#1/doze:commit.after" in page
    assert page.rstrip().endswith("1 of 1 as promised")
    wrong = subprocess.run(
        [sys.executable, "-m", "pidurable_nb", "demo", "nothing"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "there are ticker" in wrong.stderr


def test_every_built_in_scenario_is_in_the_demonstration() -> None:
    assert [scenario.name for scenario in builtins()] == list(BUILT_IN)
