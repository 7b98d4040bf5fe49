"""Killing, looking, stepping and going back, from cells: real signals, real stores, code that changes on the way."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

import pandas as pd
import pytest
from IPython.core.error import UsageError

from pidurable_nb.lab.outside.world import asked
from pidurable_nb.notebook.kernel.deathviews import DeathView
from pidurable_nb.notebook.views.graphs import Figure
from pidurable_nb.notebook.views.steps import RecoveryView, StepView
from pidurable_nb.notebook.views.verdicts import WhyView
from pidurable_nb.store.stranger import StoreFile

MINE = """%%pi scenario mine
class Say(Phase[str], task="say"):
    n: int
    async def run(self, rt: Runtime) -> "Say | Done[str]":
        await rt.effect(f"say {self.n}", lambda: print("said", self.n))
        return Say(self.n + 1) if self.n < 3 else Done("all said")

async def begin(harness):
    root = await harness.root()
    await root.start(Say(1))
"""


class Shell(Protocol):
    def run(self, source: str) -> object: ...
    def show(self, value: object) -> dict[str, str]: ...


def death(shell: Shell, line: str) -> DeathView:
    found = shell.run(line)
    assert isinstance(found, DeathView)
    return found


def step(shell: Shell, line: str) -> StepView:
    found = shell.run(line)
    assert isinstance(found, StepView)
    return found


def recovery(shell: Shell, line: str) -> RecoveryView:
    found = shell.run(line)
    assert isinstance(found, RecoveryView)
    return found


def test_a_scenario_is_killed_by_signal_9_and_its_store_is_at_hand(shell: Shell) -> None:
    died = death(shell, "%pi kill ticker")
    assert died.signal == 9
    assert died.died.output == "tick 1\ntick 2\ntick 3\n"
    assert died.asked == {"print tick 1": 1, "print tick 2": 1, "print tick 3": 1}
    before = died.store.read_bytes()
    frame = shell.run("%pi tasks")
    assert isinstance(frame, pd.DataFrame)
    assert frame.status.tolist() == ["running"]
    why = shell.run("%pi why")
    assert isinstance(why, WhyView)
    assert [said.verdict for said in why.said] == ["rerun"]
    assert died.store.read_bytes() == before


def test_m3_each_number_is_printed_once_over_both_lives(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run("%pi kill ticker")
    capsys.readouterr()
    found = recovery(shell, "%pi recover")
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tick ")]
    assert printed == ["tick 4", "tick 5"]
    assert found.effects == {"print tick 4": 1, "print tick 5": 1}
    assert found.disagreements == ()
    assert found.over


def test_steps_go_forth_and_back_and_back_undoes_the_rows(shell: Shell) -> None:
    shell.run("%pi kill ticker")
    first = step(shell, "%pi step")
    assert first.step.laws == ("T7",)
    second = step(shell, "%pi step")
    assert second.seen.agreement == "agrees"
    third = step(shell, "%pi step")
    assert any("n: 3 → 4" in line for line in third.seen.lines)
    again = step(shell, "%pi back")
    assert again.text() == second.text()
    assert step(shell, "%pi step").seen.lines == third.seen.lines
    assert step(shell, "%pi step 1").step.n == 1
    assert shell.run("%pi step 0") is None
    with pytest.raises(UsageError, match="no step to take back"):
        shell.run("%pi back")


def test_going_back_asks_nothing_outside_again(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run("%pi kill two-orders")
    shell.run("%pi step 100")
    capsys.readouterr()
    for _ in range(3):
        shell.run("%pi back")
    shell.run("%pi step 100")
    assert "mail to Ada" not in capsys.readouterr().out


def test_a_step_is_shown_with_its_sentence_its_laws_and_its_rows(shell: Shell) -> None:
    shell.run("%pi kill ticker")
    shell.run("%pi step")
    data = shell.show(shell.run("%pi step"))
    for form in data.values():
        assert "It runs again from its last checkpoint; only what a memo guards is left out." in form
        assert "T3 M3" in form
        assert "agrees" in form
        assert "tasks/7" in form
        assert "can happen again" in form


def test_code_that_changed_between_two_steps_is_what_the_next_step_runs(
    shell: Shell, tick: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run(tick)
    shell.run("%pi crash ticker#1/tick:effect.after@2 Tick(1, 5)")
    shell.run("%pi step 3")
    shell.run(tick.replace('print("tick", self.n)', 'print("new tick", self.n)'))
    capsys.readouterr()
    shell.run("%pi step 100")
    printed = [line for line in capsys.readouterr().out.splitlines() if "tick" in line and line[0] != " "]
    assert "new tick 5" in printed
    assert "tick 5" not in printed


def test_e6_a_checkout_is_refunded_once_and_the_ledger_shows_asked_and_applied(shell: Shell) -> None:
    shell.run("%pi kill checkout")
    found = recovery(shell, "%pi recover")
    assert found.disagreements == ()
    assert {name: times for name, times in found.applied.items() if name.startswith("refund")} == {
        "refund 1": 1, "refund 2": 1, "refund 4": 1,
    }  # fmt: skip
    assert "asked 1 in all, 1 of them in this recovery, applied 1" in found.text()


def test_the_machine_of_a_dead_task_is_drawn_from_the_code_that_it_died_with(shell: Shell) -> None:
    shell.run("%pi kill ticker")
    view = shell.run("%pi task 7")
    data = shell.show(view)
    assert "[tick]  <- here, running" in data["text/plain"]
    assert "● running" in data["text/html"]
    assert isinstance(getattr(view, "_machine", None), Figure)


def test_code_that_crashes_its_process_again_ends_the_walk_and_says_so(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run("%pi kill restart-storm")
    shell.run("%pi step 100")
    said = capsys.readouterr()
    assert "this code crashed its process once more" in said.out
    assert "Traceback" not in said.err
    assert not recovery(shell, "%pi recover").over


def test_points_have_names_that_can_be_died_at(shell: Shell, tick: str) -> None:
    shell.run(tick)
    frame = shell.run("%pi points Tick(4, 5)")
    assert isinstance(frame, pd.DataFrame)
    effects = frame[(frame.what == "effect") & (frame.edge == "before")]
    assert effects.name.tolist() == ["print tick 4", "print tick 5"]
    died = death(shell, f"%pi crash {effects.point.iloc[1]} Tick(4, 5)")
    assert died.asked == {"print tick 4": 1}
    assert died.signal is None


def test_a_cell_becomes_a_scenario_that_can_be_killed_and_changed(shell: Shell) -> None:
    shell.run(MINE)
    assert Path("scenario_mine.py").is_file()
    assert death(shell, "%pi kill say#1/say:effect.after@2 mine").asked == {"say 1": 1, "say 2": 1}
    assert recovery(shell, "%pi recover").effects == {"say 2": 1, "say 3": 1}
    shell.run(MINE.replace('"said"', '"shouted"'))
    assert death(shell, "%pi kill say#1/say:effect.after@2 mine").died.output == "shouted 1\nshouted 2\n"


def test_a_scenario_cell_overwrites_nobody_elses_file(shell: Shell) -> None:
    Path("scenario_mine.py").write_text("precious = 1\n")
    with pytest.raises(UsageError, match="not written by a cell"):
        shell.run(MINE)
    assert Path("scenario_mine.py").read_text() == "precious = 1\n"


def test_an_error_in_a_scenario_cell_is_the_cells_own(shell: Shell) -> None:
    with pytest.raises(ZeroDivisionError):
        shell.run(MINE + "\n1 / 0\n")


def test_code_of_a_cell_is_not_killed_and_the_way_out_is_named(shell: Shell, tick: str) -> None:
    shell.run(tick)
    with pytest.raises(UsageError, match=re.escape("%%pi scenario NAME")):
        shell.run("%pi kill ticker#1/tick:effect.after Tick(1, 5)")


def test_a_dead_store_can_be_opened_and_goes_on_for_real(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    died = death(shell, "%pi kill ticker")
    capsys.readouterr()
    shell.run(f"%pi open {died.store}")
    shell.run("await pi.wait_idle()")
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("tick")] == ["tick 4", "tick 5"]


# --- Keeping the recovered copy ---------------------------------------------------------------------------------------


def test_the_recovered_copy_and_its_ledger_can_be_looked_at_and_the_dead_store_stays(shell: Shell) -> None:
    died = death(shell, "%pi kill ticker")
    before = died.store.read_bytes()
    found = recovery(shell, "%pi recover")
    with StoreFile.open(found.store) as file:
        assert [record.status for record in file.tasks()] == ["terminal"]
    assert found.ledger is not None
    assert asked(found.ledger) == {f"print tick {n}": 1 for n in range(1, 6)}
    assert died.store.read_bytes() == before
    assert asked(died.died.ledger) == {f"print tick {n}": 1 for n in range(1, 4)}
    assert found.store != recovery(shell, "%pi recover").store
    assert "kept in" not in found.text()


def test_into_keeps_the_recovered_copy_and_it_opens_as_any_store(shell: Shell, tmp_path: Path) -> None:
    died = death(shell, "%pi kill refund")
    kept = tmp_path / "a name.sqlite"
    found = recovery(shell, f"%pi recover --into '{kept}'")
    assert found.store == kept
    for form in shell.show(found).values():
        assert f"kept in {kept}" in form
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[:6] == "a name") == ["a name.sqlite"]
    with StoreFile.open(kept) as file:
        assert not list(file.live_tasks())
        tasks = [(record.id, record.status) for record in file.tasks()]
    shell.run(f"%pi open '{kept}'")
    frame = shell.run("%pi tasks")
    assert isinstance(frame, pd.DataFrame)
    assert list(zip(frame.id, frame.status, strict=True)) == tasks
    shell.run("%pi close")
    why = shell.run(f"%pi why {died.store}")
    assert isinstance(why, WhyView)
    assert len(why.said)  # the store that died is as it was


def test_into_keeps_a_recovery_that_was_stopped_half_way_and_it_goes_on_from_there(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run("%pi kill ticker")
    kept = tmp_path / "half.sqlite"
    half = recovery(shell, f"%pi recover --until 3 --into {kept}")
    assert len(half) == 3
    capsys.readouterr()
    rest = recovery(shell, f"%pi recover {kept} --code pidurable_nb.lab.scenarios.ticker")
    assert rest.over
    assert rest.ledger is None
    assert [line for line in capsys.readouterr().out.splitlines() if line[:4] == "tick"] == ["tick 4", "tick 5"]


def test_a_file_that_is_there_goes_only_with_replace_and_only_if_it_is_a_store(shell: Shell, tmp_path: Path) -> None:
    shell.run("%pi kill ticker")
    kept, note = tmp_path / "kept.sqlite", tmp_path / "note.txt"
    recovery(shell, f"%pi recover --until 2 --into {kept}")
    note.write_text("mine")
    before = kept.read_bytes()
    with pytest.raises(UsageError, match=r"kept.sqlite is there already; name a new file, or add --replace"):
        shell.run(f"%pi recover --into {kept}")
    assert kept.read_bytes() == before
    with pytest.raises(UsageError, match="NotAStore"):
        shell.run(f"%pi recover --into {note} --replace")
    assert note.read_text() == "mine"
    shell.run(f"%pi open {kept} --paused")
    with pytest.raises(UsageError, match="is open here; %pi close first"):
        shell.run(f"%pi recover ticker --into {kept} --replace")
    shell.run("%pi close")
    shell.run("%pi kill ticker")
    assert recovery(shell, f"%pi recover --into {kept} --replace").store == kept
    with StoreFile.open(kept) as file:
        assert not list(file.live_tasks())
    with pytest.raises(UsageError, match="--replace goes with --into FILE"):
        shell.run("%pi recover --replace")


@pytest.mark.parametrize("replace", ["", "--replace"])
def test_the_store_that_is_recovered_is_never_written_under_no_name(shell: Shell, tmp_path: Path, replace: str) -> None:
    died = death(shell, "%pi kill ticker")
    before = died.store.read_bytes()
    link, hard = tmp_path / "link.sqlite", tmp_path / "hard.sqlite"
    link.symlink_to(died.store)
    hard.hardlink_to(died.store)
    sides = [died.store.with_name(died.store.name + end) for end in ("-wal", "-shm", "-journal", ".lock")]
    for own in (died.store, link, hard, *sides):
        with pytest.raises(UsageError, match="belongs to the store that is recovered, which stays as it is"):
            shell.run(f"%pi recover {died.store} --into {own} {replace}")
    assert died.store.read_bytes() == before
    assert link.is_symlink()
    with pytest.raises(UsageError, match="there is no folder"):
        shell.run(f"%pi recover --into {tmp_path}/none/kept.sqlite {replace}")
    left = tmp_path / "kept.sqlite-wal"
    left.write_bytes(b"of another store")
    with pytest.raises(UsageError, match=r"kept.sqlite-wal lies there, without its store"):
        shell.run(f"%pi recover --into {tmp_path}/kept.sqlite {replace}")
    assert not (tmp_path / "kept.sqlite").exists()


def test_help_says_where_the_recovered_copy_is_kept(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run("%pi recover --help")
    said = " ".join(capsys.readouterr().out.split())
    for word in ("--into FILE", "--replace", ".store is the recovered copy", ".ledger counts the effects"):
        assert word in said
