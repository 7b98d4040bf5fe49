"""Exploration: every order and any number of crashes until nothing new comes, orders by seeds, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pidurable_nb.lab.dying.run import EPOCH_MS
from pidurable_nb.lab.explore import NoSuchChoice, TooManyTasks, Unsound, closure, replay, seeds
from pidurable_nb.lab.explore.states import timeless

CODE = Path(__file__).resolve().parents[2] / "fixtures" / "code"
PARTS, PART = 25, 400


@pytest.fixture(autouse=True)
def _scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CODE))


def repeated(program: str) -> str:
    """What the program prints, in an interpreter that has seen nothing yet."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(CODE)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Closures.


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_c1_m3_t7_three_tasks_are_explored_in_every_order_with_any_number_of_crashes_until_nothing_new_comes() -> None:
    found = closure("explored:three")
    assert found.ok, found.violations
    assert found.closed
    assert found.states > 400  # of each mail: not begun, running, remembered, sent, ended; and how that was found again
    assert found.places > found.states
    assert found.edges > found.places  # some places are reached in several ways
    assert found.again > found.edges  # and every step was taken again, more than once
    assert found.runs > found.states


def test_m3_two_orders_of_memo_and_effect_are_explored_to_their_end_and_both_keep_their_promise() -> None:
    found = closure("two-orders")
    assert found.ok, found.violations
    assert found.states > 50
    assert found.again > found.edges


def test_t12_time_is_one_of_the_choices_where_somebody_sleeps() -> None:
    found = closure("sleeper")
    assert found.ok, found.violations
    assert 10 < found.states < 50  # no clock in them: the same sleep is the same state, whenever it began


def test_the_same_scenario_is_explored_the_same_way_twice() -> None:
    one, two = closure("explored:counted"), closure("explored:counted")
    assert [(f.states, f.places, f.edges, f.again, f.runs) for f in (one,)] == [
        (f.states, f.places, f.edges, f.again, f.runs) for f in (two,)
    ]
    assert one.violations == two.violations


def test_a_closure_that_is_given_up_says_so_and_is_not_ok() -> None:
    found = closure("two-orders", most=10)
    assert not found.closed
    assert not found.ok
    assert found.runs == 10
    assert not found.violations


# What is found.


def test_m3_an_effect_before_its_memo_is_found_though_it_takes_one_order_and_one_crash_and_its_program_repeats_it() -> (
    None
):
    assert replay("explored:guarded", choices=()).ok
    assert seeds("explored:guarded", range(8), crashes=0).ok  # no order alone shows it
    found = closure("explored:guarded", most=150)
    [violation] = found.violations
    assert violation.kind == "effect_twice"
    assert "call the police" in violation.text
    assert violation.choices is not None
    assert violation.choices.count("crash") == 1
    assert f"VIOLATION  effect_twice: {violation.text}" in repeated(violation.program())


def test_c5_a_lost_update_is_found_between_the_read_and_the_commit_and_its_program_repeats_it() -> None:
    found = closure("explored:counted")
    assert found.closed
    [violation] = found.violations
    assert (violation.kind, violation.text) == ("broken", "two counted, and both came to the same number")
    assert violation.choices is not None
    assert "crash" not in violation.choices  # an order alone shows it
    told = replay("explored:counted", choices=violation.choices)
    assert [problem.text for problem in told.problems] == [violation.text]
    assert len(told.steps) == len(violation.choices)
    assert str(told).strip() == repeated(violation.program()).strip()


def test_a_deadlock_that_some_orders_come_to_is_a_violation_that_names_who_waits() -> None:
    found = closure("explored:locked")
    assert found.closed
    [violation] = found.violations
    assert violation.kind == "stuck"
    assert violation.text.startswith("deadlock: ")
    assert "task 7" in violation.text
    assert violation.choices is not None
    assert not replay("explored:locked", choices=violation.choices).ok


def test_a_life_that_nobody_ever_closes_is_a_deadlock_too() -> None:
    found = closure("explored:waiting", most=5)
    assert {violation.kind for violation in found.violations} == {"stuck"}


# What is refused.


def test_a_task_whose_next_step_depends_on_a_global_is_refused_with_its_name_and_what_differed() -> None:
    with pytest.raises(Unsound) as refused:
        closure("explored:cheating")
    assert (refused.value.task, refused.value.phase) == (7, "cheat")
    assert any("'turn': 1" in each and "'turn': 2" in each for each in refused.value.differs)
    assert "Keep it in a checkpoint, a memo or a document" in str(refused.value)


def test_five_tasks_at_a_time_are_refused_and_seeds_are_named_as_the_way_out() -> None:
    with pytest.raises(TooManyTasks, match=r"five has 5 tasks at work at a time \(mail 7, .*draw orders by seeds"):
        closure("explored:five")
    assert seeds("explored:five", range(2)).ok


def test_choices_that_do_not_exist_any_more_are_refused() -> None:
    with pytest.raises(NoSuchChoice, match="step 1 is choice 7, and 1 things wait there"):
        replay("explored:three", choices=(7,))
    with pytest.raises(ValueError, match="give one of them"):
        replay("explored:three")
    with pytest.raises(ValueError, match="give one of them"):
        replay("explored:three", choices=(0,), seed=1)


# Seeds.


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
def test_ten_thousand_seeds_are_identical_on_repetition(part: int) -> None:
    found = seeds("explored:pings", range(part * PART, (part + 1) * PART), crashes=part % 2)
    assert found.seeds == found.identical == PART
    assert found.ok, found.violations
    assert found.orders > PART // 4  # and they are not all one order
    assert (found.crashes > 0) == bool(part % 2)


def test_seeds_take_different_orders_each_the_same_to_the_letter_when_told_again() -> None:
    found = seeds("two-orders", range(40), crashes=2)
    assert found.seeds == found.identical == 40
    assert found.ok, found.violations
    assert found.orders > 20
    assert found.crashes > 10
    assert found.runs == 2 * (found.seeds + found.crashes)


def test_m3_a_seed_that_shows_a_violation_is_named_and_its_program_repeats_it() -> None:
    found = seeds("explored:counted", range(60), crashes=0)
    [violation] = found.violations
    assert found.identical == 60
    assert violation.seed is not None
    assert replay("explored:counted", seed=violation.seed, crashes=0).problems == (
        replay("explored:counted", seed=violation.seed, crashes=0).problems
    )
    assert f"VIOLATION  broken: {violation.text}" in repeated(violation.program())


def test_a_story_that_does_not_repeat_itself_is_a_violation() -> None:
    found = seeds("explored:cheating", range(3), crashes=0)
    assert found.identical < found.seeds
    assert any("does not repeat itself from its seed" in violation.text for violation in found.violations)


# When two states are the same.


def test_times_are_compared_by_how_far_they_lie_ahead_and_identities_not_at_all() -> None:
    text = f'{{"at":{EPOCH_MS},"until":{EPOCH_MS + 5000},"n":1750,"id":"01977420-dc00-7abc-8def-0123456789ab"}}'
    assert timeless(text, EPOCH_MS) == '{"at":past,"until":ahead by 5000 ms,"n":1750,"id":"identity"}'
    assert timeless(text, EPOCH_MS + 5000) == '{"at":past,"until":past,"n":1750,"id":"identity"}'
    later = text.replace(str(EPOCH_MS + 5000), str(EPOCH_MS + 7000))
    assert timeless(later, EPOCH_MS + 2000) == timeless(text, EPOCH_MS)
