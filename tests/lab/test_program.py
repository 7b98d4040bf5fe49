"""Programs: what explains a file is what runs on it, with tools as the conversation's choices resolve them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pidurable_nb import AgentChange, Extension, Harness, tool
from pidurable_nb.agent.extending.extension import wrap_tool
from pidurable_nb.agent.stored.recovery import AssumedCode
from pidurable_nb.engine.registry import BuiltIn, Fits
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import Plan, run_here
from pidurable_nb.lab.looking.explain import explain
from pidurable_nb.lab.looking.program import Program
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.walking.stepper import Stepper
from pidurable_nb.models import CallTools, Scripted, call
from pidurable_nb.records.task import Pending
from pidurable_nb.store.stranger import StoreFile


@tool(replay="safe")
async def look(host: str) -> str:
    """Look at a host."""
    return f"{host} is up"


@tool()
async def act(host: str) -> str:
    """Do something to a host."""
    return "done"


def model() -> Scripted:
    return Scripted(CallTools(call("look", host="a"), call("act", host="a")), "well")


async def begin(harness: Harness) -> None:
    root = await harness.root(agent=AgentChange(model=model().ref))
    await root.submit("go", request_id="go")


ASKED = Scenario(
    name="asked",
    title="one round of two tools",
    module=__name__,
    tools=lambda: [look, act],
    models=lambda: [model()],
    begin=begin,
    asks=True,
    kill_point=None,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that died in both calls."""
    at = Point.parse("pi.tool#2/execute:effect.after")
    lived = run_here(ASKED, tmp_path / "s" / "store.sqlite", tmp_path / "l", Plan(at=at), image=tmp_path / "dead")
    assert lived.image is not None
    return lived.image


def verdicts(store: Path, program: Program) -> dict[str, str]:
    with StoreFile.open(store) as file:
        found = explain(file, code=program.code_for(file)).tasks
        return {
            str(each.task.kind) + (f" {each.id}" if each.task.kind == "pi.tool" else ""): each.name for each in found
        }


def in_the_calls(store: Path, program: Program) -> list[str]:
    return [name for kind, name in verdicts(store, program).items() if kind.startswith("pi.tool")]


def test_e2_a_tool_is_asked_as_the_harness_resolves_it(store: Path) -> None:
    program = ASKED.program()
    assert in_the_calls(store, program) == ["replay", "interrupt"]
    assert in_the_calls(store, replace(program, tools=(act,))) == ["interrupt", "interrupt"]
    in_extension = Extension("looking", tools=[look])
    assert in_the_calls(store, replace(program, tools=(), extensions=(in_extension,))) == ["replay", "interrupt"]


def test_e3_a_wrap_of_an_extension_counts_and_never_upgrades_what_was_stored(store: Path) -> None:
    careful = Extension("careful", wraps=[wrap_tool(look, lambda found: replace(found, replay="unsafe"))])
    careless = Extension("careless", wraps=[wrap_tool(act, lambda found: replace(found, replay="safe"))])
    assert in_the_calls(store, replace(ASKED.program(), extensions=(careful,))) == ["interrupt", "interrupt"]
    assert in_the_calls(store, replace(ASKED.program(), extensions=(careless,))) == ["replay", "interrupt"]


def test_e2_the_tools_that_a_conversation_chose_are_the_ones_it_has(tmp_path: Path) -> None:
    async def narrow(harness: Harness) -> None:
        await begin(harness)
        await (await harness.root()).configure(AgentChange(tools=("act",)))

    at = Point.parse("pi.tool#2/execute:commit.before")
    narrowed = replace(ASKED, begin=narrow, attend=ASKED.attend)
    lived = run_here(narrowed, tmp_path / "s" / "store.sqlite", tmp_path / "l", Plan(at=at), image=tmp_path / "dead")
    assert lived.image is not None
    assert "replay" not in in_the_calls(lived.image, ASKED.program())


def test_a_task_without_its_model_stays_and_says_which_it_needs(store: Path) -> None:
    program = replace(ASKED.program(), models=())
    with Stepper(store, tools=program.tools) as stepper:
        stepper.run()
        assert [need for _, need in stepper.stopped()] == ["model scripted/teacher"]
        assert stepper.disagreements() == ()
        assert dict(stepper.effects()) == {'look(host="a")': 1}
    with Stepper(store, tools=program.tools, models=[model()]) as stepper:
        stepper.run()
        assert stepper.stopped() == ()
        assert stepper.inspection()["submissions_by_status"] == {"done": 1}


def test_with_nothing_given_kinds_are_known_and_nothing_of_them_runs(store: Path) -> None:
    with Stepper(store) as stepper:
        assert sorted(verdict.name for verdict in stepper.verdicts.values()) == ["interrupt", "replay", "wait"]
        stepper.run()
        assert {need for _, need in stepper.stopped()} == {"pi.tool 2"}
        assert stepper.disagreements() == ()
        assert not stepper.effects()


def test_what_explains_a_file_has_the_code_of_built_in_kinds_where_their_model_is_there(store: Path) -> None:
    with StoreFile.open(store) as file:
        [generation] = [record for record in file.live_tasks() if record.kind == "pi.generation"]
        request = replace(generation, state=Pending(checkpoint={"phase": "prepare", "attempt": 1}))
        assert isinstance(ASKED.program().code_for(file).fit(request), Fits)
        assert isinstance(Program(tools=(look,)).code_for(file).fit(request), BuiltIn)
        assert isinstance(AssumedCode().fit(request), BuiltIn)
