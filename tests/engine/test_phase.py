"""Phases as their authors write them: what a class becomes, what is refused, what a task is made of."""

import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, TypeVar

import pytest

from pidurable_nb.engine.definition import TaskDefinition, define
from pidurable_nb.engine.graph import Edge, NotReady, edges, graph
from pidurable_nb.engine.phase import (
    Aborted,
    Done,
    Failed,
    Faulted,
    Input,
    Orphaned,
    Phase,
    Sleeping,
    TaskRef,
    Waiting,
    phase_name,
    stored,
)
from pidurable_nb.errors import DuplicateTask, IllegalTransition, NotJson, PhaseRefused
from pidurable_nb.ids import Json, JsonObject, TaskId
from pidurable_nb.records import task as rows
from pidurable_nb.records.shapes import DoesNotFit

if TYPE_CHECKING:
    from pidurable_nb.engine.runtime import Runtime

T = TypeVar("T")


@dataclass(frozen=True)
class Receipt:
    payment: int
    charge: str


class Tick(Phase[str], task="ticker"):
    n: int
    to: Input[int]

    async def run(self, rt: "Runtime") -> "Tick | Done[str]":
        return Done("")


class Start(Phase[Receipt], task="checkout", version=2, on_fault="terminal"):
    order: Input[str]
    limit: Input[int] = 3

    async def run(self, rt: "Runtime") -> "Waiting[Collect] | Failed":
        return Failed("no")


class Collect(Phase[Receipt]):
    order: Input[str]
    parts: tuple[TaskRef[str], ...]
    payload: Json = None
    asked_by: str | None = None

    async def run(self, rt: "Runtime") -> "Sleeping[Rest] | Rest | Done[Receipt]":
        return Rest(Receipt(1, "c"))

    async def abort(self, rt: "Runtime") -> "Aborted | Done[Receipt]":
        return Aborted()


class Rest(Phase[Receipt], phase="wait-a-bit"):
    receipt: Receipt
    note: str | None = stored("remark", default=None)

    async def run(self, rt: "Runtime") -> Done[Receipt]:
        return Done(self.receipt)


def defined(first: type[Phase[object]]) -> TaskDefinition:
    found = define(first)
    assert isinstance(found, TaskDefinition), found
    return found


Cell = Callable[[str], dict[str, object]]


@pytest.fixture
def cell() -> Iterator[Cell]:
    """Runs source in one namespace that stands in sys.modules, as a notebook runs its cells in `__main__`."""
    module = types.ModuleType("cells_of_a_notebook")
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


def phase_in(names: dict[str, object], name: str) -> type[Phase[object]]:
    found = names[name]
    assert isinstance(found, type)
    assert issubclass(found, Phase)
    return found


def make(cls: object, *fields: object) -> Phase[object]:
    """An instance of a class that no type checker has seen."""
    assert callable(cls)
    made: object = cls(*fields)
    assert isinstance(made, Phase)
    return made


# -- the class ---------------------------------------------------------------------------------------------------------


def test_t3_a_phase_is_a_frozen_dataclass_of_its_checkpoint() -> None:
    tick = Tick(1, 5)
    assert tick == Tick(n=1, to=5)
    assert hash(tick) == hash(Tick(1, 5))
    assert replace(tick, n=2) == Tick(2, 5)
    with pytest.raises(FrozenInstanceError):
        setattr(tick, "n", 3)  # noqa: B010 - a type checker would refuse the plain form


def test_a_phase_is_shown_as_the_code_that_makes_it() -> None:
    rest = Rest(Receipt(1, "c"))
    assert repr(rest) == "Rest(receipt=Receipt(payment=1, charge='c'), note=None)"
    assert eval(repr(rest)) == rest


def test_a_local_phase_is_shown_by_its_plain_name() -> None:
    class Near(Phase[int], task="near"):
        async def run(self, rt: "Runtime") -> Done[int]:
            return Done(1)

    assert repr(Near()) == "Near()"


def test_a_phase_is_stored_under_its_class_name_or_its_own() -> None:
    assert [phase_name(cls) for cls in (Tick, Collect, Rest)] == ["tick", "collect", "wait-a-bit"]


def test_t8_a_mutable_field_is_refused_where_the_class_is_defined() -> None:
    with pytest.raises(PhaseRefused, match=r"Bad\.names: list\[str\] cannot be stored; write tuple\[str, \.\.\.\]"):

        class Bad(Phase[int]):  # pyright: ignore[reportUnusedClass]
            names: list[str]


def test_t8_a_mutable_field_is_refused_there_under_postponed_annotations_too(cell: Cell) -> None:
    cell("from __future__ import annotations")
    with pytest.raises(PhaseRefused, match=r"Bad\.names: list\[str\]"):
        cell("from __future__ import annotations\nclass Bad(Phase[int]):\n    ok: Later\n    names: list[str]")


def test_t8_a_mutable_field_named_later_is_refused_when_the_task_is_resolved(cell: Cell) -> None:
    names = cell(
        "class Fwd(Phase[int], task='fwd'):\n    at: 'Point'\n    async def run(self, rt) -> Done[int]: return Done(1)"
    )
    first = phase_in(names, "Fwd")
    missing = define(first)
    assert isinstance(missing, NotReady)
    assert missing.missing == "Point"
    cell("@dataclass\nclass Point:\n    x: int")
    with pytest.raises(PhaseRefused, match=r"Fwd\.at: Point can be changed"):
        define(first)
    cell("@dataclass(frozen=True)\nclass Point:\n    x: int")
    assert defined(first).phases == {"fwd": first}


@pytest.mark.parametrize(
    ("header", "body", "says"),
    [
        ("task=''", "n: int", "name of a task is text"),
        ("task='pi.tool'", "n: int", "are the harness's"),
        ("phase=''", "n: int", "phase on disk is text"),
        ("task='x', version=0", "n: int", "versions count from 1"),
        ("task='x', version=True", "n: int", "versions count from 1"),
        ("task='x', on_fault='retry'", "n: int", "'keep' or 'terminal'"),
        ("version=2", "n: int", "belong to the task"),
        ("task='x'", "def run(self, rt) -> Done[int]: return Done(1)", "async def run"),
        ("task='x'", "abort: int", "taken"),
        ("task='x'", "n: int = 1\n    m: int", "non-default argument"),
        ("task='x'", "n: Json = {}", "mutable default"),
        ("task='x'", "then: Phase[int]", "cannot be stored"),
    ],
)
def test_what_no_phase_can_be_is_refused_where_it_is_defined(cell: Cell, header: str, body: str, says: str) -> None:
    with pytest.raises(PhaseRefused, match=says):
        cell(f"class Wrong(Phase[int], {header}):\n    {body}")


def test_a_phase_is_no_value_of_a_phase(cell: Cell) -> None:
    cell("class Inner(Phase[int]):\n    n: int")
    with pytest.raises(PhaseRefused, match=r"Outer\.then: Inner is no value"):
        cell("class Outer(Phase[int]):\n    then: Inner")


def test_t12_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Sleeping(until=datetime(2026, 1, 1), then=Tick(1, 2))  # noqa: DTZ001 - naive is the point
    assert Sleeping(until=datetime(2026, 1, 1, tzinfo=UTC), then=Tick(1, 2)).then == Tick(1, 2)


def test_t4_a_wait_keeps_the_references_it_was_given() -> None:
    refs = [TaskRef[str](TaskId(3))]
    waiting = Waiting(on=refs, then=Tick(1, 2))
    refs.clear()
    assert waiting.on == (TaskRef(TaskId(3)),)
    assert waiting == Waiting(on=(TaskRef(TaskId(3)),), then=Tick(1, 2), fail_fast=False)
    with pytest.raises(TypeError, match=r"\(ref,\) for one"):
        Waiting(on=TaskRef(TaskId(3)), then=Tick(1, 2))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# -- the graph ---------------------------------------------------------------------------------------------------------


def test_t3_the_graph_is_read_from_return_annotations() -> None:
    assert graph(Tick) == {"tick": Tick}
    assert graph(Start) == {"start": Start, "collect": Collect, "wait-a-bit": Rest}
    assert edges(Start) == (
        Edge("start", "collect", "wait"),
        Edge("start", "failed", "failed"),
        Edge("collect", "wait-a-bit", "checkpoint"),
        Edge("collect", "wait-a-bit", "sleep"),
        Edge("collect", "done", "done"),
        Edge("collect", "aborted", "aborted"),
        Edge("wait-a-bit", "done", "done"),
    )


def test_a_name_that_is_not_defined_leaves_the_task_not_ready(cell: Cell) -> None:
    names = cell(
        "class One(Phase[int], task='one'):\n    async def run(self, rt) -> 'Waiting[Two] | Done[int]': return Done(1)"
    )
    first = phase_in(names, "One")
    for missing in (graph(first), edges(first), define(first)):
        assert isinstance(missing, NotReady)
        assert missing.missing == "Two"
        assert "Two is not defined yet" in missing.why
    names = cell("class Two(Phase[int]):\n    async def run(self, rt) -> Done[int]: return Done(2)")
    assert graph(first) == {"one": first, "two": names["Two"]}
    cell("del Two")
    assert isinstance(graph(first), NotReady)


def test_t10_a_class_in_an_annotation_stands_for_the_newest_of_its_name(cell: Cell) -> None:
    two = "class Two(Phase[int]):\n    n: int = {}\n    async def run(self, rt) -> {}: return Done(2)"
    cell(two.format(1, "Done[int]"))
    names = cell("class One(Phase[int], task='one'):\n    async def run(self, rt) -> Waiting[Two]: ...")
    first, old = phase_in(names, "One"), names["Two"]
    names = cell(two.format(2, "'Done[int] | Extra'"))
    assert names["Two"] is not old
    missing = define(first)
    assert isinstance(missing, NotReady)
    assert missing.missing == "Extra"
    names = cell("class Extra(Phase[int]):\n    async def run(self, rt) -> Done[int]: return Done(3)")
    assert graph(first) == {"one": first, "two": names["Two"], "extra": names["Extra"]}


def test_t10_an_old_class_is_installed_as_its_newest(cell: Cell) -> None:
    source = "class One(Phase[int], task='one'):\n    async def run(self, rt) -> 'One | Done[int]': return Done(1)"
    old = phase_in(cell(source), "One")
    new = phase_in(cell(source), "One")
    assert new is not old
    assert defined(old).first is new


def test_postponed_annotations_resolve_like_plain_ones(cell: Cell) -> None:
    names = cell(
        "from __future__ import annotations\n"
        "class One(Phase[Json], task='one'):\n"
        "    n: int\n    to: Input[int]\n    what: Json\n    parts: tuple[Json, ...] = ()\n"
        "    async def run(self, rt: Missing) -> One | Waiting[Two] | Done[Json]: return Done(1)\n"
        "class Two(Phase[Json]):\n"
        "    to: Input[int]\n    parts: tuple[TaskRef[Json], ...] = ()\n"
        "    async def run(self, rt: Missing) -> Done[Json]: return Done(2)\n"
    )
    one = phase_in(names, "One")
    definition = defined(one)
    assert definition.start(make(one, 1, 5, {"a": 1})) == (
        {"to": 5},
        {"phase": "one", "n": 1, "what": {"a": 1}, "parts": []},
    )


def test_phases_of_one_function_find_each_other() -> None:
    class One(Phase[int], task="local"):
        async def run(self, rt: "Runtime") -> "Two":
            return Two(5)

    class Two(Phase[int]):
        n: int

        async def run(self, rt: "Runtime") -> Done[int]:
            return Done(self.n)

    assert graph(One) == {"one": One, "two": Two}


def test_generic_phases_resolve_their_result_and_their_fields() -> None:
    class Page(Phase[tuple[T, ...]], Generic[T]):
        items: tuple[T, ...]

        async def run(self, rt: "Runtime") -> Done[tuple[T, ...]]:
            return Done(self.items)

    class Numbers(Page[int], task="numbers"):
        pass

    definition = defined(Numbers)
    assert definition.result_shape.text == "tuple[int, ...]"
    assert definition.start(Numbers((1, 2)))[1] == {"phase": "numbers", "items": [1, 2]}
    with pytest.raises(NotJson, match=r"Numbers\.items\[0\]"):
        definition.start(Numbers(("x",)))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("returns", "says"),
    [
        ("", "says nothing of what follows"),
        (" -> None", "says nothing of what follows"),
        (" -> int", "int names no state"),
        (" -> Phase[int]", "name the phases that may follow"),
        (" -> Waiting", r"Waiting\[Next\]"),
        (" -> 'Waiting[Done[int]]'", "names no state"),
        (" -> Orphaned", "names no state"),
        (" -> 'Done[int] | ('", "cannot be read"),
    ],
)
def test_t3_a_return_annotation_that_names_no_state_is_refused(cell: Cell, returns: str, says: str) -> None:
    names = cell(f"class One(Phase[int], task='one'):\n    async def run(self, rt){returns}: return Done(1)")
    with pytest.raises(PhaseRefused, match=says):
        define(phase_in(names, "One"))


def test_o2_abort_may_not_wait(cell: Cell) -> None:
    names = cell(
        "class One(Phase[int], task='one'):\n"
        "    async def run(self, rt) -> Done[int]: return Done(1)\n"
        "    async def abort(self, rt) -> 'Waiting[One]': ...\n"
    )
    with pytest.raises(PhaseRefused, match=r"One\.abort may end the task only"):
        define(phase_in(names, "One"))


def test_two_phases_of_one_stored_name_are_refused(cell: Cell) -> None:
    names = cell(
        "class Other(Phase[int], phase='one'):\n    async def run(self, rt) -> Done[int]: return Done(1)\n"
        "class One(Phase[int], task='t'):\n    async def run(self, rt) -> Other: ...\n"
    )
    with pytest.raises(DuplicateTask, match=r"cells_of_a_notebook\.One and cells_of_a_notebook\.Other"):
        define(phase_in(names, "One"))


def test_only_a_first_phase_begins_a_task() -> None:
    with pytest.raises(PhaseRefused, match=r"Collect begins no task"):
        define(Collect)


# -- the definition ----------------------------------------------------------------------------------------------------


def test_t8_a_definition_says_what_was_declared() -> None:
    definition = defined(Start)
    assert (definition.name, definition.version, definition.on_fault) == ("checkout", 2, "terminal")
    assert definition.identity == (__name__, "Start")
    assert definition.aborts == {"collect"}
    assert definition.result_shape.text == "Receipt"


def test_t3_a_state_is_stored_as_input_and_checkpoint_and_comes_back() -> None:
    definition = defined(Start)
    assert definition.start(Start("A-17")) == ({"order": "A-17", "limit": 3}, {"phase": "start"})
    collect = Collect("A-17", (TaskRef(TaskId(4)),), {"a": [1]})
    checkpoint, inputs = definition.encode(collect)
    assert checkpoint == {"phase": "collect", "parts": [4], "payload": {"a": [1]}}
    assert inputs == {"order": "A-17"}
    back = definition.decode({"order": "A-17", "limit": 3}, checkpoint)
    assert isinstance(back, Collect)
    assert (back.order, back.parts, back.payload) == ("A-17", (TaskRef(TaskId(4)),), {"a": (1,)})
    rest = Rest(Receipt(1, "c"), "n")
    assert definition.checkpoint(rest) == {
        "phase": "wait-a-bit",
        "receipt": {"payment": 1, "charge": "c"},
        "remark": "n",
    }


def test_only_the_first_phase_starts_a_task() -> None:
    with pytest.raises(IllegalTransition, match="begins at Start, not at Collect"):
        defined(Start).start(Collect("x", ()))


def test_a_phase_of_another_task_is_refused() -> None:
    with pytest.raises(IllegalTransition, match="is no phase of task 'checkout'"):
        defined(Start).encode(Tick(1, 2))


def test_t3_a_phase_of_an_older_cell_is_taken_by_name(cell: Cell) -> None:
    source = "class One(Phase[int], task='one'):\n    n: int{}\n    async def run(self, rt) -> 'One | Done[int]': ...\n"
    old = defined(phase_in(cell(source.format("")), "One"))
    new = phase_in(cell(source.format("\n    more: int = 7")), "One")
    assert old.checkpoint(make(new, 1)) == {"phase": "one", "n": 1, "more": 7}


def test_c7_what_cannot_be_stored_names_class_and_field() -> None:
    with pytest.raises(NotJson) as refused:
        defined(Tick).start(Tick("one", 5))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert refused.value.at == "Tick.n"


def test_t8_what_does_not_fit_names_class_and_field() -> None:
    definition = defined(Tick)
    unfits: list[tuple[Json, JsonObject, str]] = [
        ({"to": 5}, {"phase": "tick"}, "Tick.n"),
        ({}, {"phase": "tick", "n": 1}, "Tick.to"),
        (None, {"phase": "tick", "n": 1}, "Tick"),
        ({"to": 5}, {"phase": "tock"}, "phase"),
        ({"to": 5}, {}, "phase"),
    ]
    for input, checkpoint, at in unfits:
        with pytest.raises(DoesNotFit) as unfit:
            definition.decode(input, checkpoint)
        assert unfit.value.at == at
    assert definition.decode({"to": 5, "later": 1}, {"phase": "tick", "n": 1, "later": 1}) == Tick(1, 5)


def test_an_input_never_changes() -> None:
    definition = defined(Start)
    definition.check_input(Start("A", 3), {"order": "A", "limit": 3})
    definition.check_input(Collect("A", ()), {"order": "A", "limit": 3})
    definition.check_input(Start("A", 3), {"order": "A"})  # written before the field was there: its default
    with pytest.raises(IllegalTransition, match=r"Collect\.order is 'B', but the input of the task says 'A'"):
        definition.check_input(Collect("B", ()), {"order": "A", "limit": 3})
    with pytest.raises(IllegalTransition, match=r"Start\.limit is 4"):
        definition.check_input(Start("A", 4), {"order": "A"})


def test_an_input_is_compared_as_it_is_read(cell: Cell) -> None:
    names = cell(
        "from datetime import datetime\nfrom dataclasses import field\n"
        "class One(Phase[int], task='one'):\n"
        "    due: Input[datetime]\n    who: Input[str | None] = None\n"
        "    tags: Input[Json] = field(default_factory=tuple)\n"
        "    async def run(self, rt) -> 'One | Done[int]': ...\n"
    )
    definition = defined(phase_in(names, "One"))
    input = {"due": 1782909000005.5}
    definition.check_input(definition.decode(input, {"phase": "one"}), input)
    with pytest.raises(IllegalTransition, match=r"One\.who"):
        definition.check_input(definition.decode({**input, "who": "me"}, {"phase": "one"}), input)


@pytest.mark.parametrize(
    ("later", "says"),
    [
        ("limit: Input[str]", r"Next\.limit is str, but the input of task 'one' has One\.limit: int"),
        ("other: Input[int]", r"task 'one' has no input 'other'"),
        ("phase: str", "'phase' on disk is the name of the phase"),
        ("due_at: int\n    dueAt: int", "are both 'dueAt' on disk"),
    ],
)
def test_fields_that_clash_are_refused_when_the_task_is_resolved(cell: Cell, later: str, says: str) -> None:
    names = cell(
        f"class Next(Phase[int]):\n    {later}\n    async def run(self, rt) -> Done[int]: ...\n"
        "class One(Phase[int], task='one'):\n    limit: Input[int]\n    async def run(self, rt) -> Next: ...\n"
    )
    with pytest.raises(PhaseRefused, match=says):
        define(phase_in(names, "One"))


def test_t3_an_undeclared_successor_is_refused_naming_both() -> None:
    definition = defined(Start)
    wait = Waiting(on=(), then=Collect("A", ()))
    rest = Rest(Receipt(1, "c"))
    definition.check_declared("start", wait)
    definition.check_declared("start", Failed("no"))
    definition.check_declared("collect", rest)
    definition.check_declared("collect", Sleeping(until=datetime.now(UTC), then=rest))
    definition.check_declared("collect", Done(None), aborting=True)
    definition.check_declared("start", Aborted(), aborting=True)
    for phase, state, says in [
        ("start", Collect("A", ()), r"Start\.run does not declare Collect "),
        ("start", Done(1), r"Start\.run does not declare Done"),
        ("start", Waiting(on=(), then=rest), r"Start\.run does not declare Waiting\[Rest\]"),
        ("collect", wait, r"Collect\.run does not declare Waiting\[Collect\]"),
        ("start", None, "gave None, which is no state"),
        ("nowhere", rest, "has no phase 'nowhere'"),
    ]:
        with pytest.raises(IllegalTransition, match=says):
            definition.check_declared(phase, state)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(IllegalTransition, match=r"Collect\.abort does not declare Failed"):
        definition.check_declared("collect", Failed("no"), aborting=True)
    with pytest.raises(IllegalTransition, match=r"Start\.abort does not declare Waiting"):
        definition.check_declared("start", wait, aborting=True)


def test_outcomes_are_stored_and_come_back() -> None:
    definition = defined(Start)
    pairs: list[tuple[Done[object] | Failed | Aborted, rows.Outcome]] = [
        (Done(Receipt(1, "c")), rows.Completed(result={"payment": 1, "charge": "c"})),
        (Failed("no", {"a": [1]}), rows.Failed(error=rows.TaskError(message="no", detail={"a": [1]}))),
        (Aborted("stop"), rows.Aborted(reason="stop")),
        (Aborted(), rows.Aborted()),
    ]
    for outcome, row in pairs:
        assert definition.encode_outcome(outcome) == row
    assert definition.decode_outcome(rows.Completed(result={"payment": 1, "charge": "c"})) == Done(Receipt(1, "c"))
    failed = rows.Failed(error=rows.TaskError(message="no", detail={"a": [1]}))
    assert definition.decode_outcome(failed) == Failed("no", {"a": (1,)})
    assert definition.decode_outcome(rows.Orphaned(reason="missing_task")) == Orphaned("missing_task")
    assert definition.decode_outcome(rows.Faulted(error=rows.TaskError(message="oh"))) == Faulted("oh")
    with pytest.raises(NotJson, match=r"checkout: Done\.result"):
        definition.encode_outcome(Done("text"))
    with pytest.raises(NotJson, match=r"Failed\.message"):
        definition.encode_outcome(Failed(ValueError("x")))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(DoesNotFit, match=r"Done\.result\.charge"):
        definition.decode_outcome(rows.Completed(result={"payment": 1}))


def test_a_result_that_nobody_named_is_json(cell: Cell) -> None:
    for base in ("Phase", "Phase[None]", "Phase[Json]"):
        names = cell(f"class One({base}, task='one'):\n    async def run(self, rt) -> Done[Json]: ...")
        definition = defined(phase_in(names, "One"))
        assert definition.encode_outcome(Done({"a": (1,)})) == rows.Completed(result={"a": [1]})
    names = cell("class One(Phase[list[int]], task='one'):\n    async def run(self, rt) -> Done[list[int]]: ...")
    with pytest.raises(PhaseRefused, match=r"the result of One: list\[int\] cannot be stored; write tuple\[int"):
        define(phase_in(names, "One"))


def test_a_task_typed_in_a_real_kernel_shell_resolves_in_main() -> None:
    program = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "def cell(text):\n"
        "    done = shell.run_cell(text)\n"
        "    done.raise_error()\n"
        "cell('from pidurable_nb.engine.phase import *; from pidurable_nb.engine.definition import define')\n"
        "tick = 'class Tick(Phase[str], task=\"t\"):\\n'\\\n"
        "       '    n: int\\n'\\\n"
        "       '    async def run(self, rt) -> \"Tick | Later | Done[str]\": ...'\n"
        "cell(tick)\n"
        "cell('assert define(Tick).missing == \"Later\"')\n"
        "cell('class Later(Phase[str]):\\n    async def run(self, rt) -> Done[str]: ...')\n"
        "cell('held = Tick')\n"
        "cell(tick)\n"
        "cell('assert held is not Tick and define(held).phases == dict(tick=Tick, later=Later)')\n"
        'cell(\'assert define(Tick).identity == ("__main__", "Tick")\')\n'
        "print('all cells ran')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "all cells ran" in done.stdout, done.stdout + done.stderr


def test_field_is_still_there_for_defaults() -> None:
    class Made(Phase[int], task="made"):
        tags: tuple[str, ...] = field(default_factory=tuple)

        async def run(self, rt: "Runtime") -> Done[int]:
            return Done(1)

    assert defined(Made).decode({}, {"phase": "made"}) == Made()
