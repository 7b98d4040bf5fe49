"""Walking recoveries on copies: what a step is, that back is back, and that the store that was given stays as it is."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pidurable_nb import Json, Phase
from pidurable_nb.engine import decide as deciding
from pidurable_nb.engine import rows
from pidurable_nb.engine.decide import Verdict
from pidurable_nb.lab.code import Loaded, load_code
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import LEDGER, Plan, run_here
from pidurable_nb.lab.outside.bank import BankServer
from pidurable_nb.lab.outside.world import World
from pidurable_nb.lab.scenario import builtin
from pidurable_nb.lab.walking.recover import NoLedger, effects_before, recover
from pidurable_nb.lab.walking.stepper import Stepper
from pidurable_nb.lab.walking.walk import just_run
from pidurable_nb.probe import Mark

FIXTURES = Path(__file__).parents[2] / "fixtures"
STORES = FIXTURES / "stores"
CODE = FIXTURES / "code" / "demo_tasks.py"
NAMES = sorted(p.stem for p in STORES.glob("*.sqlite") if ".recovered" not in p.name)
NOW_MS = 1_800_000_000_000


@pytest.fixture(scope="module")
def demo() -> Loaded:
    return load_code(str(CODE))


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A private copy of the fixture that the test names."""
    name = str(request.param)
    for suffix in ("", "-wal"):
        source = STORES / f"{name}.sqlite{suffix}"
        if source.is_file():
            shutil.copy(source, tmp_path / f"store.sqlite{suffix}")
    return tmp_path / "store.sqlite"


CELL = """
from pidurable_nb import Done, Input, Json, Phase, Runtime

class Tick(Phase[Json], task="demo.ticker"):
    n: int
    until: Input[int]

    async def run(self, rt: Runtime) -> Done[Json]:
        return Done({"ticks": -1})
"""


def prints(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def manifest(name: str) -> dict[str, Json]:
    found: dict[str, Json] = json.loads((STORES / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("store", NAMES, indirect=True)
def test_t7_recovering_any_store_changes_no_byte_of_it_or_beside_it(store: Path, demo: Loaded) -> None:
    before = prints(store.parent)
    found = recover(store, code=demo, now_ms=NOW_MS)
    assert prints(store.parent) == before
    assert found.predicted_equals_done, found.disagreements
    assert found.after["integrity"] == "ok"


@pytest.mark.parametrize("store", ["ticker", "checkout-running"], indirect=True)
def test_m3_effects_of_a_recovery_are_those_that_its_manifest_counted(
    store: Path, demo: Loaded, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["store"]
    recovered = manifest(str(name))["recovered"]
    assert isinstance(recovered, dict)
    ledger = STORES / f"{name}.effects.jsonl"
    found = recover(store, code=demo, ledger=ledger, now_ms=NOW_MS)
    assert dict(found.effects) == recovered["effectsInRecovery"]
    total = dict(found.effects)
    for effect, count in (found.effects_before or {}).items():
        total[effect] = total.get(effect, 0) + count
    assert total == recovered["effectsTotal"]
    after = recovered["store"]
    assert isinstance(after, dict)
    assert found.after["task_outcomes"] == after["taskOutcomes"]
    assert not found.stopped


@pytest.mark.parametrize("store", ["ticker", "checkout-running"], indirect=True)
def test_o6_the_first_step_settles_and_only_then_anything_starts(store: Path, demo: Loaded) -> None:
    with Stepper(store, tasks=demo.tasks, now_ms=NOW_MS) as stepper:
        stepper.run()
        kinds = [step.kind for step in stepper.steps]
    assert kinds[0] == "reconcile"
    assert "T7" in stepper.steps[0].laws
    assert kinds.index("reserve") < kinds.index("effect")
    assert all(step.laws and step.text for step in stepper.steps)


@pytest.mark.parametrize("store", ["ticker", "checkout-running"], indirect=True)
def test_back_restores_every_row_from_every_step_and_asks_nothing_twice(store: Path, demo: Loaded) -> None:
    asked: list[str | None] = []

    async def noted(mark: Mark, do: Callable[[], object]) -> object:
        asked.append(mark.name)
        return await just_run(mark, do)

    with Stepper(store, tasks=demo.tasks, now_ms=NOW_MS, perform=noted) as stepper:
        images: list[dict[str, str | None]] = []
        texts: list[tuple[str, tuple[str, ...]]] = []
        while True:
            images.append(table(stepper))
            if (step := stepper.next()) is None:
                break
            texts.append((step.kind, step.changed))
        once = list(asked)
        for at in reversed(range(len(images) - 1)):
            stepper.back()
            assert stepper.at == at
            assert table(stepper) == images[at]
        stepper.run()
        assert [(step.kind, step.changed) for step in stepper.steps] == texts
        assert asked == once
        assert table(stepper) == images[-1]
        assert sum(stepper.effects().values()) == len(once)


def table(stepper: Stepper) -> dict[str, str | None]:
    """Every task row of the walked copy."""
    found = stepper.inspection()
    return {"tasks": json.dumps(found["tasks"], sort_keys=True), "next": json.dumps(found["next_seq"])}


@pytest.mark.parametrize("store", ["ticker"], indirect=True)
def test_without_code_recovery_goes_as_far_as_none_is_needed_and_says_what_is(store: Path) -> None:
    found = recover(store, now_ms=NOW_MS)
    assert [step.kind for step in found.steps] == ["reconcile"]
    assert found.stopped == ((7, "demo.ticker 1"),)
    assert found.predicted_equals_done


@pytest.mark.parametrize("store", ["ticker"], indirect=True)
def test_until_stops_after_so_many_steps_and_out_holds_that_state(store: Path, demo: Loaded, tmp_path: Path) -> None:
    out = tmp_path / "out.sqlite"
    found = recover(store, code=demo, until=4, out=out, now_ms=NOW_MS)
    assert len(found.steps) == 4
    assert out.is_file()
    assert not (tmp_path / "out.sqlite-wal").exists()
    again = recover(out, code=demo, now_ms=NOW_MS)
    assert again.after["task_outcomes"] == {"completed": 1}
    with pytest.raises(FileExistsError, match=r"out\.sqlite"):
        recover(store, out=out)


@pytest.mark.parametrize("store", ["ticker"], indirect=True)
def test_t10_code_changed_between_two_steps_is_what_the_next_step_runs(store: Path, tmp_path: Path) -> None:
    own = tmp_path / "redefined_tasks.py"  # a module of its own: its newest class must not reach other tests
    shutil.copy(CODE, own)
    demo = load_code(str(own))
    first = next(cls for cls in demo.tasks if cls._task == "demo.ticker")
    with Stepper(store, tasks=[first], now_ms=NOW_MS) as stepper:
        stepper.run(until=3)
        cell: dict[str, object] = {"__name__": first.__module__}
        exec(CELL, cell)
        again = cell["Tick"]
        assert isinstance(again, type)
        assert issubclass(again, Phase)
        stepper.install(again)
        stepper.run()
        outcomes = stepper.inspection()["task_outcomes"]
        assert outcomes == {"completed": 1}
        assert any("T10" in step.laws for step in stepper.steps)
        assert stepper.effects() == {"print tick 3": 1}  # the phase that ran went on to its boundary


@pytest.mark.parametrize("store", ["ticker"], indirect=True)
def test_an_effect_can_be_run_or_assumed_to_have_happened_or_not(store: Path, demo: Loaded) -> None:
    for choice, asked in (("run", 1), ("happened", 0), ("not", 0)):
        with Stepper(store, tasks=demo.tasks, now_ms=NOW_MS) as stepper:
            while (mark := stepper.next_mark) is not None and mark.what != "effect":
                stepper.next()
            step = stepper.next(choice)  # type: ignore[arg-type]
            assert step is not None
            assert step.effect == "print tick 3"
            assert sum(stepper.effects().values()) == asked
            following = stepper.next()
            assert following is not None
            assert ("T11" in following.laws) == (choice == "not")


@pytest.mark.parametrize("store", ["ticker"], indirect=True)
def test_a_step_shows_its_rows_before_and_after(store: Path, demo: Loaded) -> None:
    with Stepper(store, tasks=demo.tasks, now_ms=NOW_MS) as stepper:
        step = stepper.next()
        assert step is not None
        (change,) = stepper.changes(step)
        assert change.sign == "~"
        assert change.row == "tasks/7"
        assert change.before is not None
        assert change.after is not None
        assert json.loads(change.before)["state"]["status"] == "running"
        assert json.loads(change.after)["state"]["status"] == "pending"


@pytest.mark.parametrize("store", ["ticker", "checkout-running"], indirect=True)
def test_nothing_but_decide_chooses_a_decide_that_always_parks_stops_everything(
    store: Path, demo: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked = next(row for row in rows.TASK_ROWS if row.name == "parked")
    honest = deciding.decide_task

    def always(*args: object, **kwargs: object) -> Verdict:
        verdict = honest(*args, **kwargs)  # type: ignore[arg-type]
        return Verdict(verdict.task, "parked", verdict.facts, parked)

    monkeypatch.setattr(deciding, "decide_task", always)
    with Stepper(store, tasks=demo.tasks, now_ms=NOW_MS) as stepper:
        assert {verdict.name for verdict in stepper.verdicts.values()} == {"parked"}
        stepper.run()
        assert [step.kind for step in stepper.steps] == ["reconcile"]
        assert {need for _, need in stepper.stopped()} == {"retry"}
        assert not stepper.effects()


def test_a_ledger_of_another_implementation_is_counted_and_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    assert effects_before(STORES / "ticker.effects.jsonl") == {"print tick 1": 1, "print tick 2": 1}
    bad = tmp_path / "ledger.jsonl"
    bad.write_text('{"effect": "a"}\nnothing\n{"effect": "b"}\n')
    with pytest.raises(NoLedger, match="line 2"):
        effects_before(bad)
    with pytest.raises(NoLedger, match="cannot be read"):
        effects_before(tmp_path / "none")


# Agents.


@pytest.fixture(scope="module")
def agents() -> Loaded:
    return load_code(str(FIXTURES / "code" / "agents.py"))


@pytest.mark.parametrize("store", NAMES, indirect=True)
def test_o6_with_tools_and_a_model_what_was_predicted_of_any_store_is_done(store: Path, agents: Loaded) -> None:
    found = recover(store, code=agents, now_ms=NOW_MS)
    assert found.predicted_equals_done, found.disagreements
    assert not any("model" in needs or "pi." in needs for _, needs in found.stopped)


@pytest.mark.parametrize("store", ["tool-unsafe"], indirect=True)
def test_e3_a_cut_call_is_settled_without_code_and_the_model_that_hears_of_it_is_named(
    store: Path, agents: Loaded, demo: Loaded
) -> None:
    nothing = recover(store, now_ms=NOW_MS)
    assert [step.verdict for step in nothing.steps if step.verdict] == ["interrupt"]
    assert [needs for _, needs in nothing.stopped] == ["pi.generation 1"]
    assert [needs for _, needs in recover(store, code=demo, now_ms=NOW_MS).stopped] == ["model scripted/script-1"]
    assert recover(store, code=agents, now_ms=NOW_MS).effects == {"ask scripted/script-1": 1}


def died(name: str, folder: Path) -> Path:
    scenario = builtin(name)
    plan = Plan(at=Point.parse(str(scenario.kill_point)))
    with BankServer():
        lived = run_here(scenario, folder / "s" / "store.sqlite", folder / LEDGER, plan, image=folder / "dead")
    assert lived.image is not None
    return lived.image


@pytest.mark.parametrize("name", ["refund", "overnight", "approval"])
def test_a_scenario_is_recovered_from_its_module_with_its_bank_and_its_ledger(name: str, tmp_path: Path) -> None:
    store, scenario = died(name, tmp_path), builtin(name)
    before = (tmp_path / LEDGER).read_bytes()
    found = recover(store, code=load_code(scenario.module), ledger=tmp_path / LEDGER)
    assert found.predicted_equals_done
    assert found.stopped == ()
    assert found.after["submissions_by_status"] == {"done": 1}
    assert (tmp_path / LEDGER).read_bytes() == before
    for effect, times in found.effects.items():
        if scenario.policy_of(effect) == "at_most_once":
            assert times + (found.effects_before or {}).get(effect, 0) == 1


def test_t2_a_step_says_when_it_ends_who_waited_too(tmp_path: Path) -> None:
    found = recover(died("overnight", tmp_path), code=load_code(builtin("overnight").module))
    carrying = [step for step in found.steps if step.carried]
    assert carrying
    assert all(step.kind == "outcome" and "T2" in step.laws for step in carrying)
    assert all(f"tasks/{id}" in step.changed for step in carrying for id in step.carried)


@pytest.mark.parametrize("name", ["overnight", "approval"])
def test_back_through_an_agent_asks_no_model_and_no_tool_twice(name: str, tmp_path: Path) -> None:
    program = load_code(builtin(name).module).program
    asked: list[str | None] = []
    world = World(tmp_path / "walk.jsonl", life=2)

    async def noted(mark: Mark, do: Callable[[], object]) -> object:
        asked.append(mark.name)
        return await world.perform(mark, do)

    with Stepper(
        died(name, tmp_path), tools=program.tools, extensions=program.extensions, models=program.models, perform=noted
    ) as stepper:
        stepper.run()
        told, once = [(step.kind, step.text.partition(":")[2]) for step in stepper.steps], list(asked)
        for _ in range(len(told)):
            stepper.back()
        stepper.run()
        assert [(step.kind, step.text.partition(":")[2]) for step in stepper.steps] == told
        assert asked == once
        assert stepper.disagreements() == ()
