"""The built-in scenarios: each keeps its promises untouched, and shows its lesson when it dies at its kill point."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import LEDGER, NeverEnds, Plan, Story, run_here, run_to_end
from pidurable_nb.lab.dying.vfs import replay
from pidurable_nb.lab.outside.bank import BankServer
from pidurable_nb.lab.outside.world import World
from pidurable_nb.lab.scenario import BUILT_IN, Facts, UnknownScenario, builtin, builtins, facts_of, find, violations
from pidurable_nb.records.message import calls_of, text_of

pytestmark = pytest.mark.usefixtures("open_bank")


@pytest.fixture(scope="module")
def open_bank() -> Iterator[None]:
    with BankServer():
        yield


def lived(name: str, folder: Path, plan: Plan) -> tuple[Story, Facts]:
    """The scenario, lived to its end in `folder`; nothing of it broke a promise."""
    scenario = builtin(name)
    story = run_to_end(scenario, folder, plan)
    facts = facts_of(story.store, folder / LEDGER)
    assert list(violations(scenario, facts)) == []
    return story, facts


def killed(name: str, folder: Path) -> tuple[Story, Facts]:
    """The same, frozen at its kill point first."""
    point = builtin(name).kill_point
    assert point is not None
    story, facts = lived(name, folder, Plan(at=Point.parse(point)))
    assert [str(life.crashed) for life in story.lives] == [point, "None"]
    return story, facts


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_scenario_keeps_its_promises_in_any_order(name: str, tmp_path: Path) -> None:
    for seed in (None, 1, 2):
        lived(name, tmp_path / str(seed), Plan(seed=seed))


@pytest.mark.parametrize("name", ["ticker", "checkout"])
def test_one_seed_is_one_run_to_the_byte(name: str, tmp_path: Path) -> None:
    scenario = builtin(name)
    runs = [
        run_here(
            scenario, tmp_path / f"{n}" / "store.sqlite", tmp_path / f"{n}.jsonl",
            Plan(seed=7, same_bytes=True, record_files=True),
        )
        for n in range(2)
    ]  # fmt: skip
    assert runs[0].points == runs[1].points
    assert replay(runs[0].ops) == replay(runs[1].ops)


def test_every_point_of_a_run_has_a_name_of_its_own(tmp_path: Path) -> None:
    points = run_here(builtin("checkout"), tmp_path / "store.sqlite", tmp_path / "l", Plan(record_files=True)).points
    assert len({str(point) for point in points}) == len(points)
    assert [Point.parse(str(point)) for point in points] == list(points)


def test_m3_ticker_prints_each_number_once(tmp_path: Path) -> None:
    _, facts = killed("ticker", tmp_path)
    assert facts.asked == {f"print tick {n}": 1 for n in range(1, 6)}


def test_m3_two_orders_shows_the_duplicate(tmp_path: Path) -> None:
    _, facts = killed("two-orders", tmp_path)
    assert facts.asked == {"mail Ada": 2, "mail Grace": 1}


def test_e6_checkout_asks_twice_and_applies_once(tmp_path: Path) -> None:
    _, facts = killed("checkout", tmp_path)
    assert facts.asked["capture 2"] == 2
    assert facts.applied["capture 2"] == 1
    assert set(facts.applied.values()) <= {0, 1}
    assert facts.applied["capture 3"] == 0
    assert facts.books.captured == facts.books.refunded > 0
    assert set(facts.books.refunds.values()) == {1}


def test_e6_checkout_balances_when_the_refund_itself_is_cut(tmp_path: Path) -> None:
    points = ("payment#4/abort:effect.after", "payment#2/abort:effect.before", "checkout#1/collect:effect.after")
    told = [lived("checkout", tmp_path / str(n), Plan(at=Point.parse(at)))[1] for n, at in enumerate(points)]
    assert [facts.books.captured == facts.books.refunded > 0 for facts in told] == [True] * 3
    assert [facts.asked["refund 4"] for facts in told] == [2, 1, 1]
    assert told[2].asked["refund 1"] == 2


def test_t11_fix_the_cell_goes_on_where_it_stood(tmp_path: Path) -> None:
    story, facts = killed("fix-the-cell", tmp_path)
    assert facts.asked == {f"book line {n}": 1 for n in range(1, 5)}
    assert [str(p.point) for p in story.lives[1].passed if p.verdict == "rerun"] == [
        "2!invoice#1/book:reserve.before",
        "2!invoice#1/book:reserve.before@2",
    ]


def test_t12_sleeper_wakes_at_the_time_that_it_stored(tmp_path: Path) -> None:
    story, facts = killed("sleeper", tmp_path)
    woken = [p.at_ms for p in story.lives[1].passed if p.verdict == "resume"]
    asleep = story.lives[0].passed[-1].at_ms
    assert woken == [asleep + 120_000]
    assert facts.asked == {"ring": 1}


def test_t9_restart_storm_parks_the_poison_and_lets_its_neighbour_finish(tmp_path: Path) -> None:
    story, facts = lived("restart-storm", tmp_path, Plan())
    assert [life.crashed is not None for life in story.lives] == [True] * 5 + [False]
    assert facts.of_kind("poison")[0].restarts == 5
    assert facts.asked["crash the process"] == 5


def test_e3_refund_is_paid_once_and_the_customer_is_answered(tmp_path: Path) -> None:
    story, facts = killed("refund", tmp_path)
    assert facts.asked['refund(order="A-1017", cents=4200)'] == 1
    assert facts.applied["pay back A-1017"] == 1
    assert facts.told("refund") == ("interrupted",)
    assert facts.told("paid_back") == ("done",)
    assert answers(facts) == ["Your 42.00 have been paid back."]
    assert [verdict for _, verdict in story.lives[1].acts] == ["interrupt", "resume", "resume"]


def test_e3_refund_that_was_cut_before_it_paid_is_asked_for_again_by_the_model_alone(tmp_path: Path) -> None:
    story, facts = lived("refund", tmp_path, Plan(at=Point.parse("pi.tool#1/execute:effect.before")))
    assert facts.asked['refund(order="A-1017", cents=4200)'] == 1
    assert facts.told("refund") == ("interrupted", "done")
    assert story.lives[1].acts[0][1] == "interrupt"


def test_e2_overnight_looks_again_and_restarts_once(tmp_path: Path) -> None:
    story, facts = killed("overnight", tmp_path)
    assert facts.asked['read_log(host="db-1")'] == 2
    assert facts.asked['restart(host="db-1")'] == 1
    assert story.lives[1].acts[0][1] == "replay"
    assert facts.told("read_log") == ("done", "done")


def test_e3_overnight_cut_in_the_restart_looks_before_it_decides(tmp_path: Path) -> None:
    for edge, told in (("before", ("interrupted", "done")), ("after", ("interrupted",))):
        at = Point.parse(f"pi.tool#6/execute:effect.{edge}")
        _, facts = lived("overnight", tmp_path / edge, Plan(at=at))
        assert facts.asked['restart(host="db-1")'] == 1
        assert facts.told("restart") == told


def test_m1_approval_asks_nobody_whose_decision_is_kept(tmp_path: Path) -> None:
    _, facts = killed("approval", tmp_path)
    assert facts.asked["decision on A-1017"] == 1
    assert sorted(facts.told("refund")) == ["blocked", "done"]


def test_m1_approval_never_asks_again_behind_the_memo_wherever_it_dies(tmp_path: Path) -> None:
    scenario = builtin("approval")
    points = run_here(scenario, tmp_path / "whole" / "s", tmp_path / "whole.jsonl", Plan()).points
    of_first = [point for point in points if str(point).startswith("pi.tool#1/")]
    kept = False
    for n, point in enumerate(of_first):
        _, facts = lived("approval", tmp_path / str(n), Plan(at=point))
        kept = kept or str(point) == "pi.tool#1/call:memo.after"
        if kept:
            assert facts.asked["decision on A-1017"] == 1, point
    assert kept


def answers(facts: Facts) -> list[str]:
    return [
        text_of(message)
        for entry in facts.entries
        if entry.kind == "pi.assistant" and entry.model and not calls_of(message := entry.model[0])
    ]


def test_a_storm_without_a_limit_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(NeverEnds, match="restart-storm still dies in its life 3"):
        run_to_end(builtin("restart-storm"), tmp_path, Plan(), most=3)


def test_a_life_that_died_before_it_made_the_store_is_begun_again(tmp_path: Path) -> None:
    for n in range(1, 20, 3):
        story, _ = lived("ticker", tmp_path / str(n), Plan(at=Point.parse(f"session:vfs.write@{n}")))
        assert len(story.lives) == 2


def test_a_frozen_store_holds_what_the_log_says_whatever_its_code_still_tries(tmp_path: Path) -> None:
    whole = run_here(
        builtin("checkout"), tmp_path / "a" / "s", tmp_path / "a.l", Plan(record_files=True, same_bytes=True)
    )
    for n in (20, 60, 99):
        at = Point.parse(f"session:vfs.write@{n}")
        store = tmp_path / str(n) / "s"
        frozen = run_here(
            builtin("checkout"), store, tmp_path / f"{n}.l", Plan(at=at, record_files=True, same_bytes=True)
        )
        prefix = whole.ops[: len(frozen.ops)]
        assert frozen.crashed == at
        assert frozen.ops == prefix
        files = {name: content for name, content in replay(prefix).items() if content}
        assert {path.name: path.read_bytes() for path in store.parent.iterdir() if path.name in files} == files


def test_the_world_is_shut_when_a_life_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds: list[World] = []
    real = World.__init__

    def noted(self: World, ledger: Path, life: int = 1) -> None:
        real(self, ledger, life)
        worlds.append(self)

    monkeypatch.setattr(World, "__init__", noted)
    run_here(builtin("ticker"), tmp_path / "s", tmp_path / "l", Plan())
    assert [world.is_shut for world in worlds] == [True]


def test_scenarios_are_found_by_name() -> None:
    assert [scenario.name for scenario in builtins()] == list(BUILT_IN)
    assert find("ticker") is builtin("ticker") is find("pidurable_nb.lab.scenarios.ticker:ticker")
    with pytest.raises(UnknownScenario, match="there are ticker, two-orders"):
        find("tikcer")
    with pytest.raises(UnknownScenario, match="there is ticker"):
        find("pidurable_nb.lab.scenarios.ticker:nothing")
    with pytest.raises(UnknownScenario, match="cannot be imported"):
        find("no_such_module:nothing")


def test_every_scenario_says_what_it_promises() -> None:
    for scenario in builtins():
        assert scenario.policy
        assert scenario.kill_point is None or str(Point.parse(scenario.kill_point)) == scenario.kill_point
        assert scenario.module.endswith(BUILT_IN[scenario.name])
