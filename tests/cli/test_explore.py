"""`pidurable-nb explore`: closures and seeds as one JSON object, a story by its seed, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pidurable_nb.cli import main

CODE = Path(__file__).resolve().parents[2] / "fixtures" / "code"


@pytest.fixture(autouse=True)
def _scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CODE))


def test_explore_closes_a_scenario_and_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "sleeper", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["scenario"], found["ok"], found["seeds"]) == ("sleeper", True, None)
    assert found["closure"]["closed"] is True
    assert found["closure"]["states"] > 10
    assert found["closure"]["violations"] == []


def test_explore_takes_seeds_alone_or_beside_the_closure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "sleeper", "--seeds", "5", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["closure"] is None
    assert (alone["seeds"]["seeds"], alone["seeds"]["identical"]) == (5, 5)
    assert main(["explore", "sleeper", "--seeds", "5", "--closure"]) == 0
    page = capsys.readouterr().out
    assert "closed: nothing new comes" in page
    assert "5 of 5 the same when told again" in page


def test_a_violation_is_exit_code_1_and_comes_with_the_python_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explore", "explored:counted"]) == 1
    page = capsys.readouterr().out
    assert "VIOLATION  broken: two counted, and both came to the same number" in page
    assert "    print(replay('explored:counted', choices=(" in page
    assert "something is not as promised" in page


def test_one_story_is_told_by_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "two-orders", "--seed", "3", "--crashes", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert "act-first#1/actFirst:effect.after" in found["steps"]
    assert main(["explore", "two-orders", "--seed", "3", "--crashes", "0"]) == 0
    assert "act-first#1/actFirst:effect.after" in capsys.readouterr().out


def test_a_scenario_that_cannot_be_explored_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "explored:cheating", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "unsound"
    assert main(["explore", "explored:five"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "no-such-scenario"]) == 2
    assert main(["explore", "sleeper", "--seeds", "none"]) == 2
    assert "is no number" in capsys.readouterr().err
