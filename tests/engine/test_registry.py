"""What is installed, and whether what is stored fits it (T8, T10)."""

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pidurable_nb.engine.definition import TaskDefinition
from pidurable_nb.engine.phase import Done, Failed, Phase
from pidurable_nb.engine.registry import Blocked, BuiltIn, Code, Fits, NotReady, Refined, Registry
from pidurable_nb.errors import DuplicateTask, IllegalTransition, PhaseRefused
from pidurable_nb.ids import ConversationId, Json, JsonObject, TaskId
from pidurable_nb.records import task as rows
from pidurable_nb.records.shapes import DoesNotFit
from pidurable_nb.records.task import TaskRecord

Cell = Callable[[str], dict[str, object]]

TICK = """class Tick(Phase[str], task="demo.ticker", version={version}):
    n: int
    until: Input[int]
    {more}
    async def run(self, rt) -> "Tick | Done[str]": ...
"""


@pytest.fixture
def cell() -> Iterator[Cell]:
    """Runs source in one namespace that stands in sys.modules, as a notebook runs its cells in `__main__`."""
    module = types.ModuleType("cells_of_a_registry")
    sys.modules[module.__name__] = module
    exec(
        "from pidurable_nb.engine.phase import *\nfrom pidurable_nb.ids import Json\nfrom dataclasses import dataclass",
        vars(module),
    )

    def run(source: str) -> dict[str, object]:
        exec(compile(source, "<cell>", "exec", dont_inherit=True), vars(module))
        return vars(module)

    yield run
    del sys.modules[module.__name__]


def tick(cell: Cell, version: int = 1, more: str = "") -> type[Phase[object]]:
    return phase_in(cell(TICK.format(version=version, more=more)), "Tick")


def phase_in(names: dict[str, object], name: str) -> type[Phase[object]]:
    found = names[name]
    assert isinstance(found, type)
    assert issubclass(found, Phase)
    return found


def record(
    checkpoint: JsonObject, *, version: int = 1, input: Json = None, kind: str = "demo.ticker", id: int = 7
) -> TaskRecord:
    return TaskRecord(
        id=TaskId(id),
        conversation=ConversationId(1),
        kind=kind,
        version=version,
        input={"until": 5} if input is None else input,
        state=rows.Pending(checkpoint=checkpoint),
    )


STORED = record({"phase": "tick", "n": 2})


def heard(registry: Registry) -> list[set[str]]:
    changes: list[set[str]] = []
    registry.subscribe(lambda names: changes.append(set(names)))
    return changes


def make(cls: object, *fields: object) -> Phase[object]:
    """An instance of a class that no type checker has seen."""
    assert callable(cls)
    made: object = cls(*fields)
    assert isinstance(made, Phase)
    return made


# -- what is installed -------------------------------------------------------------------------------------------------


def test_t10_the_same_name_with_another_class_object_is_installed_again(cell: Cell) -> None:
    registry = Registry()
    changes = heard(registry)
    old = registry.install(tick(cell))
    assert registry.definition("demo.ticker") is old
    generation = registry.generation
    assert registry.install(phase_in(cell(""), "Tick")) is old
    assert registry.generation == generation
    new = registry.install(tick(cell))
    assert new is not old
    assert registry.definition("demo.ticker") is new
    assert registry.generation == generation + 1
    assert changes == [{"demo.ticker"}, {"demo.ticker"}]


def test_another_class_of_that_task_name_is_refused_naming_both_places(cell: Cell) -> None:
    registry = Registry()
    installed = registry.install(tick(cell))
    other = "class Tock(Phase[str], task='demo.ticker'):\n    async def run(self, rt) -> Done[str]: ..."
    tock = phase_in(cell(other), "Tock")
    with pytest.raises(DuplicateTask) as refused:
        registry.install(tock)
    assert "cells_of_a_registry.Tick" in str(refused.value)
    assert "cells_of_a_registry.Tock" in str(refused.value)
    assert registry.definition("demo.ticker") is installed
    registry.uninstall("demo.ticker")
    assert isinstance(registry.install(tock), TaskDefinition)


def test_what_is_refused_leaves_the_installed_code_alone(cell: Cell) -> None:
    registry = Registry()
    installed = registry.install(tick(cell))
    broken = phase_in(cell("class Tick(Phase[str], task='demo.ticker'):\n    async def run(self, rt): ..."), "Tick")
    with pytest.raises(PhaseRefused, match="says nothing of what follows"):
        registry.install(broken)
    assert registry.definition("demo.ticker") is installed
    assert registry.refresh() == {"demo.ticker"}
    now = registry.definition("demo.ticker")
    assert isinstance(now, NotReady)
    assert "says nothing of what follows" in now.why


def test_t8_a_task_becomes_ready_when_the_missing_name_is_defined(cell: Cell) -> None:
    registry = Registry()
    changes = heard(registry)
    first = "class One(Phase[int], task='one'):\n    async def run(self, rt) -> 'Waiting[Two]': ..."
    missing = registry.install(phase_in(cell(first), "One"))
    assert isinstance(missing, NotReady)
    assert missing.missing == "Two"
    assert registry.refresh() == set()
    fit = registry.fit(record({"phase": "one"}, kind="one"))
    assert isinstance(fit, Blocked)
    assert (fit.reason, fit.needs) == ("missing_task", "one 1")
    assert "Two is not defined yet" in fit.detail
    cell("class Two(Phase[int]):\n    async def run(self, rt) -> Done[int]: ...")
    assert registry.refresh() == {"one"}
    assert isinstance(registry.fit(record({"phase": "one"}, kind="one")), Fits)
    assert changes == [{"one"}, {"one"}]


def test_a_task_that_was_not_ready_is_tried_again_when_it_is_asked_for(cell: Cell) -> None:
    registry = Registry()
    first = "class One(Phase[int], task='one'):\n    async def run(self, rt) -> 'Waiting[Two]': ..."
    registry.install(phase_in(cell(first), "One"))
    assert isinstance(registry.ready("one"), NotReady)
    cell("class Two(Phase[int]):\n    async def run(self, rt) -> Done[int]: ...")
    assert isinstance(registry.definition("one"), NotReady)
    assert isinstance(registry.ready("one"), TaskDefinition)
    assert registry.ready("nobody") is None


def test_t10_refresh_says_which_tasks_changed(cell: Cell) -> None:
    registry = Registry()
    two = "class Two(Phase[int]):\n    async def run(self, rt) -> Done[int]: ..."
    cell(two)
    one = phase_in(cell("class One(Phase[int], task='one'):\n    async def run(self, rt) -> Waiting[Two]: ..."), "One")
    registry.install(tick(cell))
    before = registry.install(one)
    assert registry.refresh() == set()
    cell(two)  # a later phase of `one`, defined anew
    assert registry.refresh() == {"one"}
    after = registry.definition("one")
    assert isinstance(before, TaskDefinition)
    assert isinstance(after, TaskDefinition)
    assert before.phases["two"] is not after.phases["two"]
    tick(cell)
    assert registry.refresh() == {"demo.ticker"}


def test_t10_a_value_class_that_was_defined_anew_is_taken_by_refresh(cell: Cell) -> None:
    registry = Registry()
    part = "@dataclass(frozen=True)\nclass Part:\n    n: int"
    cell(part)
    one = "class One(Phase[int], task='one'):\n    part: Part\n    async def run(self, rt) -> 'One | Done[int]': ..."
    names = cell(one)
    registry.install(phase_in(names, "One"))
    cell(part)
    assert registry.refresh() == {"one"}
    definition = registry.definition("one")
    assert isinstance(definition, TaskDefinition)
    part_class = names["Part"]
    assert callable(part_class)
    assert definition.checkpoint(make(names["One"], part_class(3))) == {"phase": "one", "part": {"n": 3}}


def test_uninstall_forgets_and_a_listener_may_leave(cell: Cell) -> None:
    registry = Registry()
    changes: list[frozenset[str]] = []
    leave = registry.subscribe(changes.append)
    registry.install(tick(cell))
    assert list(registry.installed) == ["demo.ticker"]
    registry.uninstall("demo.ticker")
    registry.uninstall("demo.ticker")
    assert registry.installed == {}
    leave()
    registry.install(tick(cell))
    assert changes == [{"demo.ticker"}, {"demo.ticker"}]


# -- what is stored ----------------------------------------------------------------------------------------------------


def test_t8_a_stored_task_that_fits_comes_back_as_its_phase(cell: Cell) -> None:
    registry = Registry()
    code: Code = registry
    registry.install(tick(cell))
    fit = code.fit(STORED)
    assert isinstance(fit, Fits)
    assert repr(fit.phase) == "Tick(n=2, until=5)"
    assert not fit.migrated
    assert fit.input is STORED.input
    assert (code.refine(STORED), code.hooked(STORED), code.was_safe(STORED)) == (None, False, False)


def test_t8_missing_code_blocks(cell: Cell) -> None:
    registry = Registry()
    fit = registry.fit(STORED)
    assert fit == Blocked(reason="missing_task", detail="no task 'demo.ticker' is installed", needs="demo.ticker 1")
    registry.install(tick(cell))
    assert isinstance(registry.fit(STORED), Fits)
    registry.uninstall("demo.ticker")
    assert isinstance(registry.fit(STORED), Blocked)


def test_t8_code_older_than_what_is_stored_blocks(cell: Cell) -> None:
    registry = Registry()
    registry.install(tick(cell))
    fit = registry.fit(replace(STORED, version=2))
    assert isinstance(fit, Blocked)
    assert (fit.reason, fit.needs) == ("task_too_old", "demo.ticker 2")
    assert "stored by version 2" in fit.detail


@pytest.mark.parametrize(
    ("checkpoint", "input", "names"),
    [
        ({"phase": "tick"}, {"until": 5}, "Tick.n"),
        ({"phase": "tick", "n": "2"}, {"until": 5}, "Tick.n"),
        ({"phase": "tick", "n": 2}, {}, "Tick.until"),
        ({"phase": "tock", "n": 2}, {"until": 5}, "'tock'"),
    ],
)
def test_t8_what_does_not_fit_blocks_naming_the_field_and_upgrade(
    cell: Cell, checkpoint: JsonObject, input: Json, names: str
) -> None:
    registry = Registry()
    registry.install(tick(cell))
    fit = registry.fit(record(checkpoint, input=input))
    assert isinstance(fit, Blocked)
    assert fit.reason == "migration_failed"
    assert names in fit.detail
    assert "write Tick.upgrade" in fit.detail


def test_t8_a_new_field_with_a_default_needs_no_upgrade(cell: Cell) -> None:
    registry = Registry()
    registry.install(tick(cell, more="label: str = 'x'"))
    fit = registry.fit(STORED)
    assert isinstance(fit, Fits)
    assert repr(fit.phase) == "Tick(n=2, until=5, label='x')"


UPGRADE = """label: str = "x"
    calls = []
    @classmethod
    def upgrade(cls, input, checkpoint, version):
        cls.calls.append(version)
        {body}
"""


def test_t8_an_older_version_is_upgraded_once_for_the_same_rows(cell: Cell) -> None:
    registry = Registry()
    body = "return Tick(checkpoint['count'], input['to'], f'from {version}')"
    first = tick(cell, version=3, more=UPGRADE.format(body=body))
    definition = registry.install(first)
    assert isinstance(definition, TaskDefinition)
    old = record({"phase": "counting", "count": 2}, input={"to": 5, "kept": True}, version=2)
    fit = registry.fit(old)
    assert isinstance(fit, Fits)
    assert fit.migrated
    assert repr(fit.phase) == "Tick(n=2, until=5, label='from 2')"
    assert fit.input == {"to": 5, "kept": True, "until": 5}
    assert definition.checkpoint(fit.phase) == {"phase": "tick", "n": 2, "label": "from 2"}
    assert registry.fit(old) is fit
    assert registry.fit(replace(old, restarts=1)) is fit
    calls = vars(first)["calls"]
    assert calls == [2]
    registry.fit(replace(old, state=rows.Pending(checkpoint={"phase": "counting", "count": 3})))
    assert calls == [2, 2]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return Tick(checkpoint['count'], input['to'])", "Tick.upgrade from version 1 raised KeyError: 'count'"),
        ("return 5", "raised TypeError: Tick.upgrade gave 5; it has to give a phase"),
        ("return Tick('two', 5)", "raised NotJson: Tick.n: expected int"),
        ("return Other()", "raised IllegalTransition"),
    ],
)
def test_t8_an_upgrade_that_fails_blocks_and_is_not_tried_again(cell: Cell, body: str, says: str) -> None:
    registry = Registry()
    cell("class Other(Phase[str]):\n    async def run(self, rt) -> Done[str]: ...")
    first = tick(cell, version=2, more=UPGRADE.format(body=body))
    registry.install(first)
    fit = registry.fit(STORED)
    assert isinstance(fit, Blocked)
    assert (fit.reason, fit.needs) == ("migration_failed", "demo.ticker 1")
    assert says in fit.detail
    assert registry.fit(STORED) is fit
    assert vars(first)["calls"] == [1]
    mended = tick(cell, version=2, more=UPGRADE.format(body="return Tick(checkpoint['n'], input['until'])"))
    registry.install(mended)
    assert isinstance(registry.fit(STORED), Fits)


def test_t8_an_upgrade_that_nobody_wrote_blocks_and_says_so(cell: Cell) -> None:
    registry = Registry()
    registry.install(tick(cell, version=2))
    fit = registry.fit(STORED)
    assert isinstance(fit, Blocked)
    assert fit.reason == "migration_failed"
    assert "Tick has no upgrade from version 1; write Tick.upgrade" in fit.detail


def test_an_upgrade_sees_what_is_stored_frozen(cell: Cell) -> None:
    registry = Registry()
    registry.install(tick(cell, version=2, more=UPGRADE.format(body="checkpoint['n'] = 3")))
    fit = registry.fit(STORED)
    assert isinstance(fit, Blocked)
    assert "frozen" in fit.detail
    assert STORED.checkpoint == {"phase": "tick", "n": 2}


def test_t5_no_code_takes_a_task_that_has_its_outcome(cell: Cell) -> None:
    registry = Registry()
    registry.install(tick(cell))
    ended = replace(STORED, state=rows.Terminal(outcome=rows.Completed(result="counted")))
    with pytest.raises(IllegalTransition, match="no code takes it"):
        registry.fit(ended)
    assert registry.decode_outcome(ended) == Done("counted")
    with pytest.raises(IllegalTransition, match="no outcome yet"):
        registry.decode_outcome(STORED)
    held = replace(STORED, state=rows.Completing(outcome=rows.Completed(result=[1, {}])))
    with pytest.raises(DoesNotFit, match=r"demo\.ticker: Done\.result: expected str"):
        registry.decode_outcome(held)
    registry.uninstall("demo.ticker")
    assert registry.decode_outcome(held) == Done((1, {}))
    failed = replace(held, state=rows.Terminal(outcome=rows.Failed(error=rows.TaskError(message="no"))))
    assert registry.decode_outcome(failed) == Failed("no")


# -- built-in kinds ----------------------------------------------------------------------------------------------------


def refine_tool(task: TaskRecord) -> Refined | None:
    return "interrupt" if task.phase == "execute" else None


def upgrade_tool(input: Json, checkpoint: JsonObject, version: int) -> tuple[Json, JsonObject]:
    assert isinstance(input, dict)
    return {**input, "kind": "model"}, checkpoint


def test_built_in_kinds_are_known_before_their_run_is() -> None:
    registry = Registry()
    registry.register_builtin("pi.tool", 2, refine_tool, upgrade_tool, was_safe=lambda task: True)
    tool = record({"phase": "execute"}, kind="pi.tool", version=2, input={"kind": "model"})
    assert registry.fit(tool) == BuiltIn(
        kind="pi.tool", version=2, input={"kind": "model"}, checkpoint={"phase": "execute"}
    )
    assert registry.refine(tool) == "interrupt"
    assert registry.refine(record({"phase": "prepare"}, kind="pi.tool")) is None
    assert registry.was_safe(tool)
    assert not registry.hooked(tool)
    old = registry.fit(record({"phase": "execute"}, kind="pi.tool", version=1, input={"callId": "k"}))
    assert old == BuiltIn(
        kind="pi.tool",
        version=2,
        input={"callId": "k", "kind": "model"},
        checkpoint={"phase": "execute"},
        migrated=True,
    )
    newer = registry.fit(replace(tool, version=3))
    assert isinstance(newer, Blocked)
    assert (newer.reason, newer.needs) == ("task_too_old", "pi.tool 3")


def test_t8_a_built_in_kind_that_cannot_read_an_old_version_blocks() -> None:
    registry = Registry()
    registry.register_builtin("pi.tool", 2, refine_tool, upgrade_tool)
    registry.register_builtin("pi.compaction", 2, lambda task: None)
    for kind, says in [("pi.tool", "AssertionError"), ("pi.compaction", "does not know its version 1")]:
        fit = registry.fit(record({"phase": "execute"}, kind=kind, version=1, input=[1]))
        assert isinstance(fit, Blocked)
        assert fit.reason == "migration_failed"
        assert says in fit.detail
    unknown = registry.fit(record({"phase": "x"}, kind="pi.unknown"))
    assert isinstance(unknown, Blocked)
    assert (unknown.reason, unknown.needs) == ("missing_task", "pi.unknown 1")
