"""Whether recovery did what was predicted: every verdict that acts is matched by what happened, or it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from pidurable_nb.engine.decide import Verdict
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.demo import predicted
from pidurable_nb.lab.dying.crash import Act, read_journal
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import LEDGER, Plan, run_here
from pidurable_nb.lab.outside.bank import BankServer
from pidurable_nb.lab.scenario import builtin
from pidurable_nb.lab.walking.verdict_check import acted, disagreements

STORES = Path(__file__).parents[2] / "fixtures" / "stores"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Verdict, ...]:
    """A generation that waits, and its tool call that runs again."""
    folder = tmp_path_factory.mktemp("two")
    scenario = builtin("overnight")
    plan = Plan(at=Point.parse(str(scenario.kill_point)))
    lived = run_here(scenario, folder / "s" / "store.sqlite", folder / LEDGER, plan, image=folder / "dead")
    assert lived.image is not None
    found = predicted(scenario, lived.image, now_ms=lived.passed[-1].at_ms)
    assert [verdict.name for verdict in found] == ["wait", "replay"]
    return found


def wrong(verdicts: tuple[Verdict, ...], *acts: tuple[int, str], whole: bool = True) -> list[tuple[str, str]]:
    done: list[Act] = [(TaskId(id), verdict) for id, verdict in acts]
    found = disagreements(verdicts, acted(done), may_rest=lambda verdict: not whole)
    return [(each.predicted, each.done) for each in found]


def test_o6_every_verdict_that_acts_has_to_be_matched(two: tuple[Verdict, ...]) -> None:
    waits, runs = (int(verdict.id) for verdict in two)
    assert wrong(two, (runs, "replay"), (waits, "resume")) == []
    assert wrong(two, (runs, "replay")) == [("wait", "nothing")]
    assert wrong(two, (waits, "resume")) == [("replay", "nothing")]
    assert wrong(two, (runs, "interrupt"), (waits, "resume")) == [("replay", "interrupt")]
    assert wrong(two, (runs, "replay"), whole=False) == []
    assert wrong(two, whole=False) == []
    assert wrong(two, (runs, "rerun"), whole=False) == [("replay", "rerun")]


def test_o6_a_mark_before_anything_runs_overtakes_nothing(two: tuple[Verdict, ...]) -> None:
    waits, runs = (int(verdict.id) for verdict in two)
    assert wrong(two, (runs, "mark"), (runs, "abort"), (waits, "resume")) == [("replay", "abort")]
    assert wrong(two, (3, "rerun"), (runs, "mark"), (runs, "abort"), (waits, "resume")) == []


def test_t2_who_waited_is_resumed_by_the_commit_that_ends_it_along(tmp_path: Path) -> None:
    scenario = builtin("refund")
    with BankServer():
        lived = run_here(
            scenario, tmp_path / "store.sqlite", tmp_path / LEDGER, Plan(journal=tmp_path / "journal.jsonl")
        )
    generations = [id for id, verdict in lived.acts if verdict == "resume"]
    assert len(generations) == 1  # a round of one tool ends with it, without a reservation
    assert not any(":reserve" in str(point) for point in lived.points)
    assert read_journal(tmp_path / "journal.jsonl").acts == lived.acts
