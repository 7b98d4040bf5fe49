"""Every witness of a sweep reopens in the stepper: points, images and faults, in a first life and in later ones."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pidurable_nb.lab.dying.identity import digest_of, files_in
from pidurable_nb.lab.outside.world import asked
from pidurable_nb.lab.scenario import Scenario, UnknownScenario, builtin
from pidurable_nb.lab.sweeping.points import Where, where
from pidurable_nb.lab.sweeping.reopen import NothingLeft, story_image
from pidurable_nb.lab.sweeping.replay import NeverPassed
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.sweep import sweep
from pidurable_nb.lab.sweeping.tally import Tally, Witness


def of(scenario: str, *names: str) -> tuple[SweepResult, Witness]:
    """A result as a sweep of that scenario gives it, and a story of it."""
    found = SweepResult(
        scenario=scenario, kinds=("freeze",), durability="barrier", seed=1, second=True, points=1, tally=Tally(),
        done=1, pieces=1, seconds=1.0,
    )  # fmt: skip
    crashes: tuple[Where, ...] = tuple(map(where, names))
    return found, Witness(crashes, "freeze")


def test_the_witness_of_a_class_opens_where_it_crashed_and_walking_on_shows_it_happen() -> None:
    found = sweep(builtin("two-orders"))
    with found.reopen(found.witnesses["effect_twice"]) as story:
        folder = story.store.parent
        assert asked(story.ledger) == {"mail Ada": 1}
        before = files_in(folder)
        verdicts = {verdict.name for verdict in story.stepper.verdicts.values()}
        assert "rerun" in verdicts
        while story.stepper.next() is not None:
            pass
        assert story.stepper.effects()["mail Ada"] == 1  # once more
        assert asked(story.ledger) == {"mail Ada": 1}  # the copy of the ledger has it, not the story's
        assert files_in(folder) == before
    assert not folder.exists()


@pytest.mark.parametrize(
    "names",
    [
        ("ticker#1/tick:memo.after@2",),
        ("session:vfs.write@90",),
        ("ticker#1/tick:effect.after@2", "2!ticker#1/tick:effect.after@2"),
        ("kill@150",),
        ("kill@90", "2!kill@20"),
        ("power@120/keep:0",),
        ("eio@write:150",),
    ],
    ids=" then ".join,
)
def test_a_story_of_every_kind_is_laid_out_the_same_again(names: tuple[str, ...], tmp_path: Path) -> None:
    _, witness = of("ticker", *names)
    left = [
        story_image(builtin("ticker"), witness, seed=1, durability="barrier", folder=tmp_path / n) for n in ("a", "b")
    ]
    assert left[0].folder is not None
    assert left[1].folder is not None
    assert tmp_path / "a" in left[0].folder.parents
    assert digest_of(files_in(left[0].folder)) == digest_of(files_in(left[1].folder))
    assert left[0].plan == left[1].plan
    assert left[0].plan.at is None
    assert left[0].plan.number == len(names) + 1


def test_lives_that_kill_themselves_are_lived_up_to_the_crash_and_a_running_loop_is_no_hindrance() -> None:
    found, witness = of("restart-storm", "3!session:open.after")

    async def opened() -> int:
        with found.reopen(witness) as story:
            return story.now_ms

    later = asyncio.run(opened())
    found, witness = of("restart-storm", "session:open.after")
    with pytest.raises(NeverPassed):
        found.reopen(witness)
    assert later > 1_750_000_002_000  # two lives and a second after each


def test_the_bank_is_open_while_its_scenario_is_walked() -> None:
    found, witness = of("checkout", "payment#1/capture:effect.after")
    with found.reopen(witness) as story:
        while story.stepper.next() is not None:
            pass
        assert story.stepper.effects()["capture 1"] == 1
        assert story.stepper.disagreements() == ()


def test_what_left_nothing_is_said() -> None:
    found, witness = of("ticker")
    with pytest.raises(NothingLeft, match="nothing crashes in this story of ticker"):
        found.reopen(witness)
    with pytest.raises(NeverPassed, match=r"life 1 of ticker never comes by ticker#1/tick:memo.before@99"):
        found.reopen(of("ticker", "ticker#1/tick:memo.before@99")[1])
    with pytest.raises(NothingLeft, match="there was no store yet"):
        found.reopen(of("ticker", "kill@0")[1])


def test_no_module_is_imported_because_a_saved_sweep_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strangers.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    found, witness = of("strangers:mine", "ticker#1/tick:memo.after@2")
    with pytest.raises(UnknownScenario, match="import it, if you trust it, or pass scenario="):
        found.reopen(witness)
    assert "strangers" not in sys.modules
    mine: Scenario = replace(builtin("ticker"), module="strangers", name="mine")
    with found.reopen(witness, mine) as story:
        assert story.scenario is mine
        assert story.stepper.next() is not None
