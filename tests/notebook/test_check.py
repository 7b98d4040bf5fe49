"""Checks with hidden seeds: what is right passes in every run, what is constant, guessed or broken in none."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
from IPython.core.error import UsageError

from pidurable_nb import Call, tool
from pidurable_nb.lab.outside.world import NoWorld
from pidurable_nb.notebook.study.check import Checked, check
from pidurable_nb.notebook.study.exercises import ONE_REFUND, SECOND_TOOL, WHERE_IT_DIED, Case, Till
from pidurable_nb.store.stranger import StoreFile
from pidurable_nb.tools.tool import Tool

# --- N1 -------------------------------------------------------------------------------------------------------------


def died(store: Path) -> tuple[int, str | None]:
    with StoreFile.open(store) as file:
        (task,) = file.live_tasks()
        return file.next_seq - 1, task.phase


def test_n1_reading_the_store_finds_every_hidden_kill() -> None:
    checked = check(died, WHERE_IT_DIED, seeds=range(12))
    assert checked, checked
    found = [(str(fact["seq"]), str(fact["phase"])) for fact in checked.facts]
    assert {phase for _, phase in found} == {"parcel", "weigh", "label"}
    assert len(set(found)) >= 6
    assert all({"effects", "entries", "attempts", "settled", "killed_at"} <= set(fact) for fact in checked.facts)


@pytest.mark.parametrize("answer", [(3, "parcel"), (7, "label"), (9, "weigh"), None, 7, "label"])
def test_n1_a_constant_does_not_pass(answer: object) -> None:
    assert not check(lambda store: answer, WHERE_IT_DIED, seeds=range(4))


def test_three_runs_are_drawn_and_can_be_repeated() -> None:
    first = check(died, WHERE_IT_DIED)
    other = check(died, WHERE_IT_DIED)
    seeds = [trial.seed for trial in first.trials]
    assert len(seeds) == 3
    assert seeds != [trial.seed for trial in other.trials]
    assert check(died, WHERE_IT_DIED, seeds=seeds).facts == first.facts


def test_n1_what_the_function_does_to_its_store_changes_no_fact() -> None:
    def breaks(store: Path) -> tuple[int, str | None]:
        found = died(store)
        for file in store.parent.iterdir():
            file.write_bytes(b"")
        return found

    assert check(breaks, WHERE_IT_DIED, seeds=[1, 2])


# --- N2 -------------------------------------------------------------------------------------------------------------


def table(case: Case) -> int:
    if case.stored:
        return 1
    paid_before = case.done > case.steps.index(case.pays)
    return int(paid_before) + (case.policy == "safe")


def test_n2_the_table_equals_the_ledger_wherever_the_tool_pays() -> None:
    checked = check(table, SECOND_TOOL, seeds=range(4))
    assert checked, checked
    for fact in checked.facts:
        assert sorted(map(int, map(str, fact["effects"]))) == [0, 1, 1, 1, 1, 2]  # type: ignore[arg-type]  # a list


def row() -> Callable[[Case], int]:
    """The six numbers of the first lesson, one after the other."""
    numbers = iter([1, 2, 1, 0, 1, 1] * 9)
    return lambda case: next(numbers)


@pytest.mark.parametrize(
    "guess", [lambda case: 1, lambda case: 2 if case.policy == "safe" else 1, lambda case: True, row()]
)
def test_n2_a_table_that_was_learnt_by_heart_does_not_pass(guess: Callable[[Case], object]) -> None:
    checked = check(guess, SECOND_TOOL, seeds=[1, 2, 3])
    assert not checked
    assert any("paid, not" in text for trial in checked.trials for text in trial.problems)


# --- N3 -------------------------------------------------------------------------------------------------------------


def keyed(till: Till) -> Tool:
    @tool(replay="safe")
    async def refund(order: str, cents: int, call: Call) -> str:
        """Pay it back."""
        return till.pay(order, cents, key=call.key("refund"))

    return refund


def remembered(till: Till) -> Tool:
    @tool(replay="safe")
    async def refund(order: str, cents: int, call: Call) -> str:
        """Pay it back."""
        return till.pay(order, cents, key=await call.memo("key", secrets.token_hex(8)))

    return refund


def unsafe(till: Till) -> Tool:
    @tool()
    async def refund(order: str, cents: int, call: Call) -> str:
        """Pay it back."""
        return till.pay(order, cents, key=call.key("refund"))

    return refund


def no_key(till: Till) -> Tool:
    @tool(replay="safe")
    async def refund(order: str, cents: int) -> str:
        """Pay it back."""
        return till.pay(order, cents)

    return refund


def random_key(till: Till) -> Tool:
    @tool(replay="safe")
    async def refund(order: str, cents: int) -> str:
        """Pay it back."""
        return till.pay(order, cents, key=secrets.token_hex(8))

    return refund


def one_key(till: Till) -> Tool:
    @tool(replay="safe")
    async def refund(order: str, cents: int) -> str:
        """Pay it back."""
        return till.pay(order, cents, key="refund")

    return refund


@pytest.mark.parametrize("made", [keyed, remembered])
def test_n3_a_key_that_a_rerun_finds_again_pays_once_at_every_crash(made: Callable[[Till], Tool]) -> None:
    checked = check(made, ONE_REFUND, seeds=[5])
    assert checked, checked
    (fact,) = checked.facts
    assert fact["settled"] is True
    assert int(str(fact["crashes"])) > 30


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (unsafe, "was paid 0 times, after a crash at"),
        (no_key, "was paid 2 times, after a crash at"),
        (random_key, "was paid 2 times, after a crash at pi.tool"),
        (one_key, "was paid 0 times, also where nothing crashes"),
    ],
)
def test_n3_every_other_repair_fails_and_names_the_crash(made: Callable[[Till], Tool], said: str) -> None:
    checked = check(made, ONE_REFUND, seeds=[5])
    assert not checked
    assert any(said in text for text in checked.trials[0].problems), checked


def test_n3_what_is_no_tool_is_said() -> None:
    checked = check(lambda till: "refund", ONE_REFUND)
    assert not checked
    assert "your function gave str, not a tool" in repr(checked)


def test_a_till_pays_in_a_run_only() -> None:
    with pytest.raises(NoWorld):
        Till().pay("A-1", 1)


# --- All of them ----------------------------------------------------------------------------------------------------


def raises(given: object) -> object:
    raise ValueError("<script>\n\u202e")


@pytest.mark.parametrize("exercise", [WHERE_IT_DIED, SECOND_TOOL, ONE_REFUND])
def test_what_a_function_raises_is_told_and_inert(exercise: object) -> None:
    checked = check(raises, exercise, seeds=[1])  # type: ignore[arg-type]  # each takes another argument
    assert isinstance(checked, Checked)
    assert not checked
    forms = checked._repr_mimebundle_()
    assert "your function raised ValueError" in forms["text/plain"]
    assert "<script>" not in forms["text/html"]
    assert "\u202e" not in forms["text/html"] + forms["text/plain"]


def test_a_check_shows_both_forms_with_the_facts_and_the_seeds() -> None:
    forms = check(died, WHERE_IT_DIED, seeds=[4])._repr_mimebundle_()
    for form in forms.values():
        assert "N1: holds in 1 of 1 hidden runs." in form
        assert "seeds=[4] repeats them" in form
        assert "killed_at" in form


@pytest.mark.parametrize("seeds", [[], ["1"], [True], [1.5]])
def test_seeds_are_whole_numbers(seeds: list[int]) -> None:
    with pytest.raises(UsageError, match="seeds="):
        check(died, WHERE_IT_DIED, seeds=seeds)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(UsageError, match="tuple is no function; N1 wants the path of a store"):
        check((1, "x"), WHERE_IT_DIED)  # type: ignore[misc]  # which is what is tested
