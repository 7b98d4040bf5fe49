"""What cells define reaches the open store: tools, extensions and models, before and after it was opened."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest
from IPython.core.interactiveshell import InteractiveShell

from pidurable_nb import Extension
from pidurable_nb.agent.harness import Harness
from pidurable_nb.notebook.kernel.cells import CELLS, Cells, is_model
from pidurable_nb.notebook.kernel.opened import Opened

LOOKUP = """
from pidurable_nb import tool
@tool(replay="safe")
async def lookup(host: str) -> str:
    '''Find a host.'''
    return "WORD " + host
"""
MODEL = """
from pidurable_nb.models import CallTools, Say, Scripted, call
model = Scripted(CallTools(call("lookup", host="::1")), Say("WORD"))
"""


class Shell(Protocol):
    ip: InteractiveShell

    def run(self, source: str) -> object: ...


def harness(shell: Shell) -> Harness:
    opened = shell.ip.user_ns["pi"]
    assert isinstance(opened, Opened)
    return opened.harness


def bundles(shell: Shell) -> dict[str, list[str]]:
    """The installed extensions in order, with the names of their tools."""
    installed = harness(shell).shop.extensions.snapshot().extensions
    return {extension.name: [tool.name for tool in extension.tools] for extension in installed}


def ask(shell: Shell, text: str) -> str:
    """The answer to a question in the root conversation."""
    shell.run(f"%%pi ask --as answer\n{text}\n")
    answer: str = shell.ip.user_ns["answer"].text
    return answer


@pytest.mark.parametrize("first", ["open", "define"])
def test_a_tool_and_a_model_work_whether_the_store_was_opened_before_or_after(shell: Shell, first: str) -> None:
    cells = [LOOKUP.replace("WORD", "found"), MODEL.replace("WORD", "it is up")]
    for cell in ["%pi new a.sqlite", *cells] if first == "open" else [*cells, "%pi new a.sqlite"]:
        shell.run(cell)
    assert bundles(shell) == {CELLS: ["lookup"]}
    assert ask(shell, "is it up?") == "it is up"
    assert "lookup: found ::1" in str(shell.run("%pi transcript"))


def test_the_tools_of_cells_are_replaced_as_a_whole(shell: Shell) -> None:
    shell.run("%pi new a.sqlite")
    shell.run(LOOKUP)
    shell.run(LOOKUP.replace("lookup", "search"))
    assert bundles(shell) == {CELLS: ["lookup", "search"]}
    before = harness(shell).shop.extensions.snapshot()
    shell.run("x = 1")
    assert harness(shell).shop.extensions.snapshot() is before
    shell.run(LOOKUP)
    assert harness(shell).shop.extensions.snapshot() is not before
    shell.run("del lookup")
    assert bundles(shell) == {CELLS: ["search"]}
    shell.run("del search")
    assert bundles(shell) == {}


def test_an_extension_brings_its_own_tools_and_they_are_not_offered_twice(shell: Shell) -> None:
    shell.run(LOOKUP)
    shell.run(LOOKUP.replace("lookup", "search"))
    shell.run("from pidurable_nb import Extension\nops = Extension('ops', tools=[lookup])")
    shell.run("%pi new a.sqlite")
    assert bundles(shell) == {"ops": ["lookup"], CELLS: ["search"]}
    shell.run("ops = Extension('ops', tools=[search])")
    assert bundles(shell) == {"ops": ["search"], CELLS: ["lookup"]}


def test_a_model_that_is_defined_anew_answers_the_next_request(shell: Shell) -> None:
    shell.run("%pi new a.sqlite")
    shell.run("from pidurable_nb.models import Scripted\nmodel = Scripted.by(lambda request: 'one')")
    assert ask(shell, "first") == "one"
    shell.run("model = Scripted.by(lambda request: 'two')")
    assert ask(shell, "second") == "two"


def test_of_two_models_with_one_name_the_newer_is_used_and_that_is_said_once(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run("%pi new a.sqlite")
    shell.run("from pidurable_nb.models import Scripted\nold = Scripted.by(lambda request: 'old')")
    shell.run("new = Scripted.by(lambda request: 'new')\nalias = new")
    shell.run("x = 1")
    assert capsys.readouterr().err == "%pi: new and old are two models called scripted/teacher: new is used\n"
    assert ask(shell, "who?") == "new"
    shell.run("old = Scripted.by(lambda request: 'older')")
    assert ask(shell, "who now?") == "older"


def test_what_a_cell_showed_does_not_bring_old_code_back(shell: Shell) -> None:
    shell.run("%pi new a.sqlite")
    shell.run(LOOKUP)
    shell.ip.user_ns["_"] = shell.ip.user_ns["_12"] = shell.ip.user_ns["lookup"]
    shell.run(LOOKUP)
    assert harness(shell).shop.extensions.snapshot().extensions[0].tools[0] is shell.ip.user_ns["lookup"]


def test_a_refused_extension_is_said_once_and_what_was_there_stays(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run("%pi new a.sqlite")
    shell.run(LOOKUP)
    shell.run("from pidurable_nb import Extension\nbad = Extension('bad', tools=[lookup, lookup])")
    shell.run("other = Extension('cells', tools=[])")
    shell.run("x = 1")
    said = capsys.readouterr().err
    assert said.count("extension 'bad': two tools are named 'lookup'") == 1
    assert said.count("the extension 'cells' is the notebook's own") == 1
    assert bundles(shell) == {CELLS: ["lookup"]}


def test_looking_for_models_runs_nothing_of_a_strangers_object() -> None:
    class Nosy:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

    class Client:
        ref = "main"

        def stream(self) -> None: ...

    assert not any(is_model(value) for value in (Nosy(), Client(), Client, len, 3, None))
    assert Cells(lambda: {"nosy": Nosy(), "client": Client()}).offer().models == ()


def test_the_offer_names_what_the_notebook_has() -> None:
    names: dict[str, object] = {"ops": Extension("ops"), "again": Extension("ops")}
    offer = Cells(lambda: names).offer()
    assert offer.extensions == (names["again"],)
    assert offer.remarks == ("again and ops are two extensions called ops: again is used",)


def test_coding_tools_work_in_the_environment_of_the_notebook(shell: Shell) -> None:
    shell.run(
        "from pidurable_nb import Extension\nfrom pidurable_nb.models import CallTools, Scripted, call\n"
        "from pidurable_nb.tools import LocalEnvironment, coding_tools\n"
        "coding = Extension('coding', tools=coding_tools())\n"
        "model = Scripted(CallTools(call('write', path='a.txt', content='hello')), 'written')"
    )
    shell.run("%pi new a.sqlite")
    shell.run("from pathlib import Path\nPath('place').mkdir()\nplace = LocalEnvironment('place')")
    assert bundles(shell) == {"coding": ["read", "write", "edit", "bash"]}
    assert ask(shell, "write it") == "written"
    assert Path("place/a.txt").read_text() == "hello"
