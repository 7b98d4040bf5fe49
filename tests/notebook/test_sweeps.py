"""Sweeping from cells: what is shown, what is laid out again, what a cell can be swept with, and stopping it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Protocol

import pandas as pd
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.notebook.kernel.sweeping import NoSuchStory
from pidurable_nb.notebook.kernel.sweeps import SweepView, WitnessView
from pidurable_nb.notebook.views.steps import StepView
from pidurable_nb.notebook.views.verdicts import WhyView

MINE = """%%pi scenario mine
class Say(Phase[str], task="say"):
    n: int
    async def run(self, rt: Runtime) -> "Done[str]":
        await rt.effect("say", lambda: None)
        return Done("said")

async def begin(harness):
    root = await harness.root()
    await root.start(Say(1))

policy = {"say": "at_least_once"}
"""
BROKEN = (
    MINE + "\ndef invariants(facts):\n    return ['<b>said\\u202e</b> twice'] if facts.asked.get('say') == 2 else []\n"
)


class Shell(Protocol):
    ip: InteractiveShell

    def run(self, source: str) -> object: ...
    def show(self, value: object) -> dict[str, str]: ...
    def complete(self, line: str) -> list[str]: ...


class Ran(Protocol):
    text: str
    data: list[dict[str, str]]
    updates: int


class Kernel(Protocol):
    def run(self, source: str, *, timeout_s: float = 60.0) -> Ran: ...
    def interrupt(self) -> None: ...


def swept(shell: Shell, line: str) -> SweepView:
    found = shell.run(line)
    assert isinstance(found, SweepView)
    return found


def test_a_sweep_says_what_came_of_it_where_and_under_which_conditions(shell: Shell) -> None:
    view = swept(shell, "%pi sweep --processes 1 two-orders")
    result = view.result
    data = shell.show(view)
    for form in (data["text/html"], data["text/plain"]):
        assert f"Nothing happened that is not allowed, in {result.images} crashes." in form
        assert f"SQLite {result.sqlite}" in form
        assert "durability barrier" in form
        assert "seed 1" in form
        assert f"{result.points} points, {result.images} images, {result.runs} lives" in form
        assert "act-first#1/actFirst:effect.after" in form
        assert "%pi witness 1" in form
        assert "happened twice" in form
        assert "a second, by one pair of hands: freeze" in form
    assert data["text/html"].count("<svg ") == 1
    assert isinstance(view.frame(), pd.DataFrame)


def test_every_story_opens_in_the_stepper_by_its_class_or_its_number(shell: Shell) -> None:
    shell.run("x = %pi sweep two-orders --processes 1")
    opened = shell.run("x.witness('effect_twice')")
    assert isinstance(opened, WitnessView)
    before = opened.store.read_bytes()
    assert "mail Ada: 1" in shell.show(opened)["text/plain"]
    why = shell.run("%pi why")
    assert isinstance(why, WhyView)
    assert "rerun" in [said.verdict for said in why.said]
    step = shell.run("%pi step")
    assert isinstance(step, StepView)
    assert step.step.laws == ("T7",)
    again = shell.run("%pi witness 1")
    assert isinstance(again, WitnessView)
    assert again.store.read_bytes() == before == opened.store.read_bytes()
    first = shell.run("%pi step")
    assert isinstance(first, StepView)
    assert first.step.n == 1  # of a new walk
    with pytest.raises(NoSuchStory, match="there is 1 effect_twice"):
        shell.run("x.witness(2)")
    with pytest.raises(UsageError, match="NoSuchStory: there is no story 'stuck'"):
        shell.run("%pi witness stuck")
    assert shell.complete("%pi witness eff") == ["effect_twice"]


def test_a_sweep_is_saved_and_loaded_by_somebody_who_runs_nothing(shell: Shell, tmp_path: Path) -> None:
    shell.run(MINE)
    saved = swept(shell, "%pi sweep mine --processes 1 --save found.json").result
    assert json.loads(Path("found.json").read_text())["source"] == Path("scenario_mine.py").read_text()
    Path("scenario_mine.py").unlink()
    loaded = swept(shell, "%pi sweep --load found.json")
    assert loaded.result.to_json() == saved.to_json()
    assert loaded.result.source is not None
    assert isinstance(loaded.witness("effect_twice"), WitnessView)  # this notebook still has the scenario
    Path("bad.json").write_text("{}")
    for line, says in [
        ("--load bad.json", "SavedSweepRefused: bad.json is no sweep that was saved"),
        ("--load none.json", "none.json cannot be read: No such file"),
        ("--load found.json mine", "name no scenario with it"),
        ("mine --save no/where.json", "cannot be written"),
        ("mine --kind lightning", "cannot crash by 'lightning'"),
        ("mine --processes 0", "'0' is no number"),
        ("", "name a scenario"),
    ]:
        with pytest.raises(UsageError) as wrong:
            shell.run(f"%pi sweep {line}")
        assert says in str(wrong.value)


def test_a_cell_that_became_a_scenario_is_killed_for_real(shell: Shell) -> None:
    shell.run(MINE)
    view = swept(shell, "%pi sweep --kind freeze,kill --processes 2 mine")
    assert view.result.ok, view.result.violations
    assert view.result.scenario == "scenario_mine:mine"
    same, _, of = (view.result.byte_identical or "").partition(" of ")
    assert int(same) == int(of) > 0
    assert "places, however it died" in view.text()


def test_code_of_ordinary_cells_is_swept_in_this_process_and_by_no_kill(shell: Shell, tick: str) -> None:
    shell.run(tick)
    view = swept(shell, "%pi sweep Tick(5, 5)")
    assert view.result.ok, view.result.violations
    assert view.result.classes == {"as_promised": view.result.points}
    for line in ("--kind kill Tick(5, 5)", "Tick(5, 5) --processes 2"):
        with pytest.raises(UsageError, match="no child process can import the code of a cell"):
            shell.run(f"%pi sweep {line}")


def test_a_violation_is_shown_with_its_sentence_as_text_and_stop_stops_at_it(shell: Shell) -> None:
    shell.run(BROKEN)
    view = swept(shell, "%pi sweep mine --processes 1 --stop")
    assert not view.result.ok
    data = shell.show(view)
    assert "<b>said" not in data["text/html"]
    assert "&lt;b&gt;said\\u202e&lt;/b&gt; twice" in data["text/html"]
    assert "1 thing happened that must not" in view.headline
    assert view.stories[0].kind == "broken"
    opened = view.witness("broken")
    assert isinstance(opened, WitnessView)
    assert "twice" in dict(opened.facts)["because"]


def test_progress_is_one_display_that_changes_in_place(shell: Shell) -> None:
    page = CapturingDisplayPublisher()  # type: ignore[no-untyped-call]  # half typed
    shell.ip.display_pub = page
    view = swept(shell, "%pi sweep ticker --processes 1")
    texts = [output["data"]["text/plain"] for output in page.outputs]
    assert len({output["transient"]["display_id"] for output in page.outputs}) == 1
    assert [output["update"] for output in page.outputs] == [False, *[True] * (len(texts) - 1)]
    assert (
        texts[-1] == f"ticker: freeze, {view.result.pieces} of {view.result.pieces} pieces, {view.result.images} images"
    )
    assert len(texts) <= 2 + view.result.seconds * 10  # ten a second


def test_what_may_be_typed_behind_it_is_offered(shell: Shell) -> None:
    assert "two-orders" in shell.complete("%pi sweep two")
    assert "--durability" in shell.complete("%pi sweep --dur")


def test_points_are_listed_with_task_phase_law_and_commit(shell: Shell) -> None:
    frame = shell.run("%pi points ticker")
    assert isinstance(frame, pd.DataFrame)
    row = frame[frame.point == "ticker#1/tick:memo.before@2"].iloc[0]
    assert (row.task, row.phase, row.laws) == ("ticker#1", "tick", ["M1", "M2"])
    assert row.commit > 1
    for form in shell.show(frame).values():
        assert "M1 M2" in form
    files = shell.run("%pi points --files ticker")
    assert isinstance(files, pd.DataFrame)
    assert len(files) > len(frame)
    assert "session:vfs.sync@2" in set(files.point)


@pytest.mark.slow
def test_interrupting_the_kernel_stops_the_sweep_and_keeps_what_was_found(kernel: Kernel) -> None:
    kernel.run("%load_ext pidurable_nb")

    def interrupt() -> None:
        while not Path("begun").exists():
            time.sleep(0.01)
        kernel.interrupt()

    kernel.run(
        "from pathlib import Path\nfrom pidurable_nb.notebook.kernel import sweeping\n"
        "def heard(progress, stopping, tell):\n"
        "    Path('begun').touch()\n    tell(progress, stopping)\n"
        "run = sweeping.run\n"
        "from pidurable_nb.notebook.commands import sweep_cells\n"
        "sweep_cells.run = lambda s, w, tell: run(s, w, lambda p, stopping: heard(p, stopping, tell))"
    )
    threading.Thread(target=interrupt, daemon=True).start()
    ran = kernel.run("x = %pi sweep checkout --processes 1\nx", timeout_s=100)
    assert "Stopped after " in ran.data[-1]["text/plain"]
    kernel.run("x.save('part.json')")
    part = SweepResult.load("part.json")
    assert 0 < part.done < part.pieces
    assert part.images > 0
    assert kernel.run("print(x.result.complete)").text == "False\n"
