"""`%pi` in a shell: what it runs, returns, completes, refuses and leaves behind."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Protocol

import pandas as pd
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from pidurable_nb import Harness, TaskFaulted
from pidurable_nb.notebook.kernel.opened import Opened


class Shell(Protocol):
    ip: InteractiveShell

    def run(self, source: str) -> object: ...
    def complete(self, line: str) -> list[str]: ...
    def show(self, value: object) -> dict[str, str]: ...
    def knows(self, magic: str) -> bool: ...


# --- the way through ------------------------------------------------------------------------------------------------


def test_a_task_is_defined_started_and_awaited(shell: Shell, tick: str, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run(tick)
    assert isinstance(shell.run("%pi new a.sqlite"), Opened)
    assert shell.run("%pi start --wait Tick(1, 3)") == "counted to 3"
    assert "tick 1\ntick 2\ntick 3\n" in capsys.readouterr().out
    shell.run("root = await pi.root()\nref = await root.start(Tick(2, 3))")
    assert shell.run("await pi.wait(ref)") == "counted to 3"


def test_tasks_are_a_data_frame_with_a_form_of_their_own(shell: Shell, tick: str) -> None:
    shell.run(tick)
    shell.run("%pi new a.sqlite")
    shell.run("%pi start --wait Tick(1, 2)")
    shell.run("x = %pi tasks")
    frame = shell.ip.user_ns["x"]
    assert isinstance(frame, pd.DataFrame)
    assert frame.loc[0, "outcome"] == "completed"
    assert type(frame[frame.status == "terminal"]) is pd.DataFrame
    data = shell.show(frame)
    assert "completed" in data["text/html"]
    assert "ticker" in data["text/plain"]


def test_defining_a_task_after_opening_installs_it(shell: Shell, tick: str) -> None:
    shell.run("%pi new a.sqlite")
    shell.run(tick)
    assert shell.run("%pi start --wait Tick(1, 1)") == "counted to 1"


def test_t11_a_faulting_task_goes_on_when_its_cell_is_fixed(shell: Shell) -> None:
    cell = """
from pidurable_nb import Done, Phase, Runtime
class Flaky(Phase[str], task="flaky"):
    n: int
    async def run(self, rt: Runtime) -> Done[str]:
        return Done(str(BODY))
"""
    shell.run("%pi new a.sqlite")
    shell.run(cell.replace("BODY", "1 / 0"))
    shell.run("ref = %pi start Flaky(1)")
    with pytest.raises(TaskFaulted):
        shell.run("await pi.wait(ref)")
    assert "FAULTED" in str(shell.run("%pi why"))
    shell.run(cell.replace("BODY", "self.n"))
    assert shell.run("await pi.wait(ref)") == "1"


def test_a_commit_block_runs_on_the_harness_loop_through_call(shell: Shell) -> None:
    shell.run("%pi new a.sqlite")
    shell.run(
        "async def note():\n    async with pi.commit() as tx:\n        return tx.append('note', text='hello')\n"
        "entry = pi.call(note)"
    )
    frame = shell.run("%pi transcript")
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.text) == ["hello"]


def test_another_name_and_another_durability_can_be_chosen(shell: Shell) -> None:
    shell.run("%pi new a.sqlite --as mine --durability power")
    assert isinstance(shell.ip.user_ns["mine"], Opened)
    assert "durability power" in str(shell.run("%pi status"))
    shell.run("%pi close")
    assert "mine" not in shell.ip.user_ns


def test_a_copy_is_worked_on_and_the_store_stays_as_it_is(shell: Shell, tick: str) -> None:
    shell.run(tick)
    shell.run("%pi new a.sqlite --paused")
    shell.run("%pi start Tick(1, 2)")
    shell.run("%pi close")
    before = {path.name: path.read_bytes() for path in Path().iterdir() if path.suffix != ".lock"}
    opened = shell.run("%pi open a.sqlite --copy")
    assert isinstance(opened, Opened)
    assert opened.path != Path("a.sqlite")
    shell.run("await pi.wait_idle()")
    shell.run("%pi close")
    assert {path.name: path.read_bytes() for path in Path().iterdir() if path.suffix != ".lock"} == before


def test_replace_removes_only_a_store_that_nobody_has_open(shell: Shell) -> None:
    shell.run("%pi new a.sqlite")
    with pytest.raises(UsageError, match="--replace"):
        shell.run("%pi new a.sqlite")
    shell.run("%pi new a.sqlite --replace")
    shell.run("%pi close")
    Path("other.txt").write_text("not a store")
    with pytest.raises(UsageError, match="NotAStore"):
        shell.run("%pi new other.txt --replace")
    assert Path("other.txt").read_text() == "not a store"

    async def owned_elsewhere() -> None:
        async with Harness.open("a.sqlite"):
            await asyncio.to_thread(refused)

    def refused() -> None:
        with pytest.raises(UsageError, match="StoreOwned"):
            shell.run("%pi new a.sqlite --replace")

    asyncio.run(owned_elsewhere())
    assert Path("a.sqlite").exists()


# --- help, completion, configuration --------------------------------------------------------------------------------


def test_help_lists_every_command(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run("%pi")
    general = capsys.readouterr().out
    assert all(f"    {name} " in general or f"    {name}\n" in general for name in ("new", "why", "kill", "step"))
    shell.run("%pi why --help")
    assert "--at TIME" in capsys.readouterr().out
    shell.run("%pi?")
    assert "watch them recover" in capsys.readouterr().out


def test_subcommands_options_choices_stores_tasks_and_points_are_completed(shell: Shell, tick: str) -> None:
    shell.run(tick)
    shell.run("%pi new a.sqlite")
    shell.run("%pi start --wait Tick(1, 1)")
    assert shell.complete("%pi ta") == ["task", "tasks"]
    assert shell.complete("x = %pi ta") == ["task", "tasks"]
    assert shell.complete("%pi open --d") == ["--durability"]
    assert shell.complete("%pi open --durability b") == ["barrier"]
    assert shell.complete("%pi open a") == ["a.sqlite"]
    assert "7" in shell.complete("%pi task 7")
    assert "ticker#1/tick:effect.after@3" in shell.complete("%pi kill tic")
    assert "two-orders" in shell.complete("%pi points two")
    assert shell.complete("%%pi sce") == ["scenario"]


def test_completion_never_raises_where_nothing_is_open(shell: Shell) -> None:
    assert shell.complete("%pi task 7") == []


def test_settings_are_listed_changed_and_obeyed(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run("%config Pi")
    assert "Pi.max_rows" in capsys.readouterr().out
    shell.run("%config Pi.handle = 'here'")
    shell.run("%pi new a.sqlite")
    assert isinstance(shell.ip.user_ns["here"], Opened)


def test_a_bad_setting_is_refused_and_does_not_break_the_next_load(
    bare: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    bare.run("%load_ext pidurable_nb")
    bare.run("%config Pi.max_rows = -1")
    bare.run("%config Pi.durability = 'sometimes'")
    bare.run("%reload_ext pidurable_nb")
    assert bare.knows("pi")
    bare.ip.config.Pi.max_rows = "many"
    bare.run("%unload_ext pidurable_nb")
    bare.run("%load_ext pidurable_nb")
    assert "back at their defaults" in capsys.readouterr().err
    assert bare.run("%pi status") is not None


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%pi nothing", "invalid choice: 'nothing'"),
        ("%pi tasks", "no store is open here"),
        ("%pi close", "no store is open"),
        ("%pi start Tick(1)", "no store is open here"),
        ("%pi open nowhere.sqlite", "%pi new nowhere.sqlite"),
        ("%pi tasks nowhere.sqlite", "NotAStore"),
        ("%pi tasks a b", "one store and one number"),
        ("%pi task 1 2", "one store and one number"),
        ("%pi back", "no recovery is being walked"),
        ("%pi kill", "name a scenario"),
        ("%pi kill nothing-like-it", "UnknownScenario"),
        ("%pi kill ticker#x ticker", "BadPoint"),
        ("%pi kill ticker#1/tick:effect.after@99 ticker", "DidNotDie"),
        ("%pi why --at yesterday", "is no time"),
        ("%pi open 'x", "close the quotation"),
        ("%pi scenario x", "write %%pi scenario x"),
        ("%%pi status\nx = 1", "takes no cell"),
        ("%%pi scenario x\nx = 1", "the cell has no task"),
        ("%%pi scenario ../x\nx = 1", "is no name"),
    ],
)
def test_wrong_use_is_one_line(shell: Shell, line: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        shell.run(line)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("expression", "said"), [("Tick(", "no Python expression"), ("3", "not a phase"), ("", "is missing")]
)
def test_only_a_phase_is_started(shell: Shell, tick: str, expression: str, said: str) -> None:
    shell.run(tick)
    shell.run("%pi new a.sqlite")
    with pytest.raises(UsageError, match=said):
        shell.run(f"%pi start {expression}")


def test_an_error_in_the_expression_keeps_its_own_traceback(shell: Shell) -> None:
    shell.run("%pi new a.sqlite")
    with pytest.raises(NameError):
        shell.run("%pi start Nothing(1)")


def test_two_tasks_of_one_name_are_said_and_the_kernel_goes_on(
    shell: Shell, tick: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run("%pi new a.sqlite")
    shell.run(tick)
    shell.run(tick.replace("class Tick", "class Tock").replace("Tick |", "Tock |").replace("(Tick(", "(Tock("))
    shell.run("%pi status")
    assert shell.run("%pi start --wait Tick(1, 1)") == "counted to 1"


# --- the end --------------------------------------------------------------------------------------------------------


def test_unloading_removes_everything_and_closes_the_store_in_order(bare: Shell, tick: str) -> None:
    matchers = list(bare.ip.Completer.custom_matchers)
    hooks = list(bare.ip.events.callbacks["post_run_cell"])
    bare.run("%load_ext pidurable_nb")
    for cell in (tick, "%pi new a.sqlite", "%pi start --wait Tick(1, 1)"):
        bare.run(cell)
    bare.run("%unload_ext pidurable_nb")
    assert not bare.knows("pi")
    assert bare.ip.Completer.custom_matchers == matchers
    assert "Pi" not in {type(one).__name__ for one in bare.ip.configurables}
    assert bare.ip.events.callbacks["post_run_cell"] == hooks
    assert "pi" not in bare.ip.user_ns
    assert "pidurable" not in {thread.name for thread in threading.enumerate()}

    async def opens() -> None:
        async with Harness.open("a.sqlite") as harness:
            record = await harness.task(7)
            assert record.restarts == 0

    asyncio.run(opens())


def test_loading_twice_changes_nothing(shell: Shell) -> None:
    shell.run("%load_ext pidurable_nb")
    shell.run("%pi new a.sqlite")
    shell.run("%load_ext pidurable_nb")
    assert isinstance(shell.ip.user_ns["pi"], Opened)
