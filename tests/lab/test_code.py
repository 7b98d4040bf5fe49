"""Loading the module that a store is explained or recovered with, and what is then no longer assumed."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from pidurable_nb.lab.code import CodeNotLoaded, Loaded, load_code
from pidurable_nb.lab.looking.explain import explain
from pidurable_nb.store.stranger import StoreFile

STORES = Path(__file__).resolve().parents[2] / "fixtures" / "stores"

TICKER = """
    from pidurable_nb.engine.phase import Done, Input, Phase
    from pidurable_nb.engine.runtime import Runtime

    class Tick(Phase[str], task="demo.ticker", version={version}):
        n: int
        until: Input[int]

        async def run(self, rt: Runtime) -> "Tick | Done[str]":
            return Done("x")

    class Later(Phase[str]):
        async def run(self, rt: Runtime) -> Done[str]:
            return Done("x")
"""

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(text: str, name: str = "some_module_of_a_test") -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return put


def verdicts(store: str, loaded: Loaded) -> dict[int, str]:
    with StoreFile.open(STORES / f"{store}.sqlite") as file:
        return {int(v.id): v.name for v in explain(file, code=loaded.code_for(file), policy=loaded.policy).tasks}


def test_a_file_gives_its_tasks_under_the_name_it_was_given(write: Write) -> None:
    path = write(TICKER.format(version=1))
    loaded = load_code(path)
    assert loaded.name == path
    assert [first.__name__ for first in loaded.tasks] == ["Tick"]
    assert verdicts("ticker", loaded) == {7: "rerun"}


def test_t8_a_task_that_the_module_has_not_is_blocked(write: Write) -> None:
    assert verdicts("ticker", load_code(write("x = 1"))) == {7: "blocked"}
    assert verdicts("checkout-running", load_code(write(TICKER.format(version=1), "other"))) == {
        7: "wait",
        9: "blocked",
        10: "blocked",
        11: "blocked",
    }


def test_t8_a_newer_version_without_an_upgrade_is_blocked(write: Write) -> None:
    assert verdicts("ticker", load_code(write(TICKER.format(version=2)))) == {7: "blocked"}


TOOLS = """
    from pidurable_nb import tool

    @tool(replay="{replay}")
    async def transfer(amount: float) -> str:
        '''Move money.'''
        return "moved"
"""


def test_e2_a_tool_answers_for_itself_and_a_missing_one_is_not_run_again(write: Write) -> None:
    assert verdicts("tool-safe", load_code(write(TOOLS.format(replay="safe"), "a"))) == {9: "wait", 12: "replay"}
    assert verdicts("tool-safe", load_code(write(TOOLS.format(replay="unsafe"), "b"))) == {9: "wait", 12: "interrupt"}
    assert verdicts("tool-safe", load_code(write("x = 1", "c"))) == {9: "wait", 12: "interrupt"}


def test_e3_no_module_upgrades_a_stored_unsafe(write: Write) -> None:
    assert verdicts("tool-unsafe", load_code(write(TOOLS.format(replay="safe")))) == {9: "wait", 12: "interrupt"}


def test_t9_the_settings_of_the_module_count(write: Write) -> None:
    text = TICKER.format(version=1) + "\n    from pidurable_nb.agent.extending.settings import Settings\n"
    assert verdicts("ticker", load_code(write(text + "    settings = Settings(restart_limit=1)\n"))) == {7: "parked"}
    with pytest.raises(CodeNotLoaded, match="settings of"):
        load_code(write("settings = {}", "wrong"))


def test_an_importable_name_is_found_beside_the_working_directory(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(TICKER.format(version=1), "tasks_of_a_test")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    loaded = load_code("tasks_of_a_test")
    assert (loaded.name, len(loaded.tasks)) == ("tasks_of_a_test", 1)
    assert sys.path == path


def test_a_module_may_import_what_stands_beside_it(write: Write) -> None:
    write("from pidurable_nb import Extension\nBESIDE = Extension('beside')", "beside_of_a_test")
    loaded = load_code(write("import beside_of_a_test as b\nextensions = [b.BESIDE]"))
    assert [extension.name for extension in loaded.program.extensions] == ["beside"]


def test_what_the_module_prints_does_not_reach_standard_output(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    load_code(write("print('hello')"))
    assert capsys.readouterr() == ("", "hello\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("import not_there_at_all", "not_there_at_all"),
    ],
)
def test_a_broken_module_is_refused_with_its_name_and_cause(text: str, says: str, write: Write) -> None:
    path = write(text, "broken_module_of_a_test")
    with pytest.raises(CodeNotLoaded, match=says) as refused:
        load_code(path)
    assert path in str(refused.value)
    assert refused.value.__cause__ is not None
    assert "broken_module_of_a_test" not in sys.modules


def test_t10_a_file_that_is_loaded_again_keeps_its_module_name(write: Write) -> None:
    first = load_code(write(TICKER.format(version=1), "again_of_a_test"))
    second = load_code(write(TICKER.format(version=1), "again_of_a_test"))
    assert first.tasks != second.tasks
    assert {task.__module__ for task in (*first.tasks, *second.tasks)} == {"again_of_a_test"}


def test_a_file_never_takes_the_name_of_another_module(write: Write) -> None:
    loaded = load_code(write(TICKER.format(version=1), "json"))
    assert loaded.tasks[0].__module__ != "json"
    assert sys.modules["json"].__name__ == "json"
    assert not hasattr(sys.modules["json"], "Tick")


@pytest.mark.parametrize("name", ["no_such_module_anywhere", "no.such", "/nowhere/at/all.py", ""])
def test_a_module_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(CodeNotLoaded):
        load_code(name)


AGENT = """
    from pidurable_nb import Extension, tool
    from pidurable_nb.models import Scripted

    @tool(replay="safe")
    async def look(host: str) -> str:
        \"\"\"Look.\"\"\"
        return host

    @tool()
    async def own(host: str) -> str:
        \"\"\"Of an extension.\"\"\"
        return host

    theirs = Extension("theirs", tools=[own])
    teacher = Scripted("well")
"""


def test_a_module_gives_its_tools_extensions_and_models_by_what_they_are(write: Write) -> None:
    program = load_code(write(AGENT, "agent_of_a_test")).program
    assert [tool.name for tool in program.tools] == ["look"]  # the other one comes with its extension
    assert [extension.name for extension in program.extensions] == ["theirs"]
    assert [str(model.ref) for model in program.models] == ["scripted/teacher"]


def test_a_list_that_holds_something_else_is_refused(write: Write) -> None:
    for name, text in (("models", "models = ['a']"), ("extensions", "extensions = [1]")):
        with pytest.raises(CodeNotLoaded, match=f"{name} of .* holds a"):
            load_code(write(text, f"wrong_{name}"))


def test_a_scenario_gives_its_module_what_a_life_is_opened_with() -> None:
    loaded = load_code("pidurable_nb.lab.scenarios.refund")
    assert loaded.scenario is not None
    assert sorted(tool.name for tool in loaded.program.tools) == ["paid_back", "refund"]
    assert [str(model.ref) for model in loaded.program.models] == ["scripted/clerk"]
