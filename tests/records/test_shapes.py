"""What may be stored, how it looks on disk, and what is refused: the list of DESIGN section 3."""

import copy
import json
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypeVar, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidurable_nb.errors import NotJson, PhaseRefused
from pidurable_nb.ids import EntryId, Json, TaskId
from pidurable_nb.records.frozen import FrozenObject, TaskRef, as_code, freeze
from pidurable_nb.records.shapes import (
    DoesNotFit,
    Fields,
    Shape,
    camel_case,
    compile_fields,
    compile_shape,
    forget_shapes,
    shape_of,
    stored,
    to_json,
)
from pidurable_nb.records.strict import same

T = TypeVar("T")
Name = NewType("Name", str)


class Color(Enum):
    RED = "red"
    BLUE = 2


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


class Rights(Flag):
    READ = 1
    WRITE = 2


class Odd(Enum):
    PAIR = (1, 2)


@dataclass(frozen=True)
class Receipt:
    payment: int
    charge_id: str
    note: str | None = None
    remark: str = stored("comment", default="")


@dataclass(frozen=True)
class Card:
    kind: Literal["card"]
    number: str


@dataclass(frozen=True)
class Cash:
    amount: int
    kind: Literal["cash", "coins"] = "cash"


@dataclass(frozen=True)
class Untagged:
    amount: int


@dataclass(frozen=True)
class Tree:
    name: str
    below: "tuple[Tree, ...]" = ()


@dataclass(frozen=True)
class Leaf:
    kind: Literal["leaf"] = "leaf"


@dataclass(frozen=True)
class Node:
    parts: "tuple[Node | Leaf, ...]"
    kind: Literal["node"] = "node"


@dataclass(frozen=True)
class Box(Generic[T]):
    item: T
    others: tuple[T, ...] = ()


@dataclass
class Loose:
    n: int = 0


class Pair(NamedTuple):
    a: int
    b: int


HERE = globals()


def shape(annotation: object, *, mutable: bool = False) -> Shape[object]:
    return compile_shape(annotation, where="Some.field", names=lambda: HERE, mutable=mutable)


MOMENT = datetime(2026, 7, 1, 12, 30, 0, 5000, tzinfo=UTC)

ROUND_TRIPS: list[tuple[object, object, Json]] = [
    (str, "é", "é"),
    (str, "\ud800", "\ud800"),
    (bool, True, True),
    (int, 2**53 - 1, 2**53 - 1),
    (float, 0.5, 0.5),
    (float, 3, 3),
    (Literal["a", 1, True], True, True),
    (Color, Color.BLUE, 2),
    (Level, Level.LOW, 1),
    (Word, Word.YES, "yes"),
    (EntryId, 7, 7),
    (Name, "x", "x"),
    (Json, None, None),
    (Json, "text", "text"),
    (TaskRef, TaskRef(TaskId(9)), 9),
    (TaskRef[str], TaskRef(TaskId(9)), 9),
    (datetime, MOMENT, 1782909000005),
    (timedelta, timedelta(seconds=1.5), 1500),
    (tuple[str, ...], ("a", "b"), ["a", "b"]),
    (tuple[int, str], (1, "b"), [1, "b"]),
    (tuple[()], (), []),
    (tuple[Json, ...], (1, None), [1, None]),
    (tuple[str | None, ...], ("a", None), ["a", None]),
    (Receipt, Receipt(1, "c"), {"payment": 1, "chargeId": "c", "comment": ""}),
    (Receipt, Receipt(1, "c", "n", "r"), {"payment": 1, "chargeId": "c", "note": "n", "comment": "r"}),
    (Optional[Receipt], None, None),  # noqa: UP045 - the older spelling is legal too
    (Card | Cash, Card("card", "4"), {"kind": "card", "number": "4"}),
    (Union[Card, Cash], Cash(3, "coins"), {"amount": 3, "kind": "coins"}),  # noqa: UP007 - likewise
    (Tree, Tree("a", (Tree("b"),)), {"name": "a", "below": [{"name": "b", "below": []}]}),
    (Node, Node((Leaf(), Node(()))), {"parts": [{"kind": "leaf"}, {"parts": [], "kind": "node"}], "kind": "node"}),
    (Box[int], Box(1, (2,)), {"item": 1, "others": [2]}),
    (Box[Box[str]], Box(Box("x")), {"item": {"item": "x", "others": []}, "others": []}),
    (Annotated[int, "seconds"], 4, 4),
    ("Receipt | None", Receipt(1, "c"), {"payment": 1, "chargeId": "c", "comment": ""}),
    ("tuple[Json, ...]", ("a",), ["a"]),
]


@pytest.mark.parametrize(("annotation", "value", "on_disk"), ROUND_TRIPS, ids=str)
def test_t8_what_is_legal_comes_back_as_it_was(annotation: object, value: object, on_disk: Json) -> None:
    compiled = shape(annotation)
    made = compiled.encode(value)
    assert same(made, on_disk)
    back = compiled.decode(json.loads(json.dumps(made)))
    assert back == value
    assert type(back) is type(value)


REFUSED: list[tuple[object, str]] = [
    (list[str], "tuple[str, ...]"),
    (list, "tuple[X, ...]"),
    (set[int], "tuple[int, ...]"),
    (frozenset[int], "tuple[int, ...]"),
    (tuple, "tuple[X, ...]"),
    (dict[str, int], "a frozen dataclass, or Json"),
    (Mapping[str, int], "a frozen dataclass, or Json"),
    (object, "Json"),
    (Any, "Json"),
    (None, "Json"),
    (bytes, "str, for instance base64"),
    (Decimal, "str"),
    (complex, "tuple[float, float]"),
    (Pair, "a frozen dataclass"),
    (Callable[[], int], "a frozen dataclass"),
    (Path, "str"),
    (Loose, "@dataclass(frozen=True)"),
    (str | int, "Literal"),
    (str | Receipt, "Literal"),
    (Card | Untagged, "Literal['card']"),
    (Rights, "int"),
    (Odd, "str or int values"),
    (Literal[Color.RED], "Enum"),
    (Literal[None], "X | None"),
    (T, "name a type"),
    ("str | (", "cannot be read"),
]


@pytest.mark.parametrize(("annotation", "instead"), REFUSED, ids=str)
def test_t8_what_is_illegal_is_refused_with_what_to_write_instead(annotation: object, instead: str) -> None:
    with pytest.raises(PhaseRefused) as refused:
        shape(annotation)
    assert str(refused.value).startswith("Some.field: ")
    assert instead in str(refused.value)


def test_a_name_that_is_not_defined_is_a_name_error_that_says_it() -> None:
    with pytest.raises(NameError) as missing:
        shape("tuple[Later, ...]")
    assert missing.value.name == "Later"
    with pytest.raises(NameError) as missing:
        shape("sys.Later")
    assert missing.value.name == "Later"
    assert sys is not None


MISFITS: list[tuple[object, object, str]] = [
    (int, True, "$"),
    (int, 1.0, "$"),
    (int, Level.LOW, "$"),
    (int, 2**53, "$"),
    (bool, 1, "$"),
    (str, Word.YES, "$"),
    (float, float("nan"), "$"),
    (float, float("-inf"), "$"),
    (float, True, "$"),
    (Literal[1], True, "$"),
    (Literal["a"], [], "$"),
    (Color, "red", "$"),
    (datetime, datetime(2026, 1, 1), "$"),  # noqa: DTZ001 - naive is the point
    (timedelta, 5, "$"),
    (TaskRef, 5, "$"),
    (Json, object(), "$"),
    (Json, {"a": [1, {1: 2}]}, "$.a[1][1]"),
    (Json, {"a": [1, float("nan")]}, "$.a[1]"),
    (tuple[str, ...], ["a"], "$"),
    (tuple[str, ...], ("a", 1), "$[1]"),
    (tuple[int, str], (1,), "$"),
    (tuple[int, str], (1, 2), "$[1]"),
    (tuple[int, int], Pair(1, 2), "$"),
    (Receipt, Receipt(1, None), "$.charge_id"),  # type: ignore[arg-type]
    (Tree, Tree("a", (Tree("b"), Tree("c", (Tree(1),)))), "$.below[1].below[0].name"),  # type: ignore[arg-type]
    (Card | Cash, Receipt(1, "c"), "$"),
    (Box[int], Box(1, ("x",)), "$.others[0]"),
]


@pytest.mark.parametrize(("annotation", "value", "at"), MISFITS, ids=str)
def test_c7_a_value_of_another_type_is_refused_with_its_path(annotation: object, value: object, at: str) -> None:
    with pytest.raises(NotJson) as refused:
        shape(annotation).encode(value)
    assert refused.value.at == at
    assert str(refused.value).startswith(f"{at}: ")


def test_c7_a_subclass_of_a_dataclass_is_refused() -> None:
    @dataclass(frozen=True)
    class Special(Receipt):
        pass

    with pytest.raises(NotJson, match="expected Receipt, got"):
        shape(Receipt).encode(Special(1, "c"))


def test_c7_what_is_stored_shares_nothing_with_the_value() -> None:
    items: list[Json] = [1]
    made = shape(Json).encode({"items": items})
    items.append(2)
    assert made == {"items": [1]}


UNFIT: list[tuple[object, Json, str]] = [
    (int, "1", "$"),
    (int, 1.0, "$"),
    (int, True, "$"),
    (bool, None, "$"),
    (Literal["a"], "b", "$"),
    (Color, "green", "$"),
    (datetime, 1e300, "$"),
    (datetime, "now", "$"),
    (timedelta, 1e300, "$"),
    (tuple[int, ...], {"a": 1}, "$"),
    (tuple[int, ...], "ab", "$"),
    (tuple[int, ...], [1, "x"], "$[1]"),
    (tuple[int, int], [1], "$"),
    (Receipt, [], "$"),
    (Receipt, {"payment": 1}, "$.charge_id"),
    (Receipt, {"payment": 1, "chargeId": 3}, "$.charge_id"),
    (Card | Cash, {"kind": "cheque"}, "$.kind"),
    (Card | Cash, {}, "$.kind"),
    (Tree, {"name": "a", "below": [{"below": []}]}, "$.below[0].name"),
]


@pytest.mark.parametrize(("annotation", "on_disk", "at"), UNFIT, ids=str)
def test_t8_stored_json_of_another_shape_does_not_fit_and_names_the_field(
    annotation: object, on_disk: Json, at: str
) -> None:
    with pytest.raises(DoesNotFit) as unfit:
        shape(annotation).decode(on_disk)
    assert unfit.value.at == at
    assert isinstance(unfit.value, ValueError)


def test_t8_missing_fields_take_their_default_and_unknown_ones_are_ignored() -> None:
    assert shape(Receipt).decode({"payment": 1, "chargeId": "c", "later": 5}) == Receipt(1, "c")
    assert shape(Receipt).decode({"payment": 1, "chargeId": "c", "note": None}) == Receipt(1, "c")


def test_t8_what_post_init_refuses_does_not_fit() -> None:
    @dataclass(frozen=True)
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("odd")

    with pytest.raises(DoesNotFit, match="Even refused it: ValueError: odd") as unfit:
        shape(Even).decode({"n": 3})
    assert isinstance(unfit.value.__cause__, ValueError)


def test_a_stored_time_may_be_fractional() -> None:
    assert shape(datetime).decode(1782909000005.5) == MOMENT + timedelta(microseconds=500)


def test_a_time_is_stored_without_its_zone() -> None:
    there = MOMENT.astimezone(timezone(timedelta(hours=5)))
    assert shape(datetime).encode(there) == shape(datetime).encode(MOMENT)


def test_none_needs_the_default_none() -> None:
    @dataclass(frozen=True)
    class Forgot:
        note: str | None

    @dataclass(frozen=True)
    class Strange:
        note: str | None = "x"

    for cls in (Forgot, Strange):
        with pytest.raises(PhaseRefused, match=r"note: str \| None = None"):
            shape(cls)


def test_two_fields_of_one_name_on_disk_are_refused() -> None:
    @dataclass(frozen=True)
    class Twice:
        due_at: int
        due: int = stored("dueAt", default=0)

    with pytest.raises(PhaseRefused, match=r"Twice\.due_at and Twice\.due are both 'dueAt'"):
        shape(Twice)


def test_a_field_outside_the_constructor_is_refused() -> None:
    @dataclass(frozen=True)
    class Counted:
        n: int = field(init=False, default=0)

    with pytest.raises(PhaseRefused, match=r"Counted\.n is no parameter"):
        shape(Counted)


def test_names_on_disk_are_camel_case() -> None:
    names = ["n", "due_at", "a_b_c", "n_2", "_hidden_one", "already"]
    assert [camel_case(name) for name in names] == ["n", "dueAt", "aBC", "n2", "_hiddenOne", "already"]


def test_json_is_decoded_deeply_frozen_and_equal_to_what_was_stored() -> None:
    value: Json = {"a": [1, {"b": None}]}
    back = shape(Json).decode(value)
    assert back == {"a": (1, {"b": None})}
    assert isinstance(back, FrozenObject)
    with pytest.raises(TypeError, match="frozen"):
        back["a"] = 1
    with pytest.raises(TypeError, match="frozen"):
        back.update(a=1)
    with pytest.raises(TypeError, match="frozen"):
        back.pop("a")
    with pytest.raises(TypeError, match="frozen"):
        back |= {"b": 1}
    assert shape(Json).encode(back) == value
    assert hash(back) == hash(freeze(value))


def test_frozen_json_can_be_copied_pickled_and_written() -> None:
    value = freeze({"a": [1], "b": {}})
    assert copy.deepcopy(value) is value
    assert pickle.loads(pickle.dumps(value)) == value
    assert json.dumps(value) == '{"a": [1], "b": {}}'
    assert repr(value) == "{'a': (1,), 'b': {}}"


def test_a_task_ref_is_its_id() -> None:
    assert TaskRef(TaskId(3)) == TaskRef[str](TaskId(3))
    assert len({TaskRef(TaskId(3)), TaskRef(TaskId(3)), TaskRef(TaskId(4))}) == 2
    assert repr(TaskRef(TaskId(3))) == "TaskRef(3)"


def test_documents_may_be_mutable() -> None:
    @dataclass
    class Item:
        text: str
        done: bool = False

    @dataclass
    class Todo:
        items: list[Item] = field(default_factory=list)
        by_name: dict[str, tuple[int, ...]] = field(default_factory=dict)

    todo = Todo([Item("write")], {"a": (1,)})
    compiled = shape(Todo, mutable=True)
    made = compiled.encode(todo)
    assert made == {"items": [{"text": "write", "done": False}], "byName": {"a": [1]}}
    assert compiled.decode(made) == todo
    with pytest.raises(NotJson) as refused:
        compiled.encode(Todo(by_name={"a": ("x",)}))  # type: ignore[dict-item]
    assert refused.value.at == "$.by_name.a[0]"
    with pytest.raises(NotJson, match="is int, not str"):
        compiled.encode(Todo(by_name={1: ()}))  # type: ignore[dict-item]
    with pytest.raises(PhaseRefused, match=r"dict\[str, int\]"):
        shape(dict[int, int], mutable=True)
    with pytest.raises(PhaseRefused, match=r"tuple\[int, \.\.\.\]"):
        shape(set[int], mutable=True)


def test_c7_a_document_that_contains_itself_is_refused() -> None:
    @dataclass
    class Ring:
        below: "list[Ring]" = field(default_factory=list)

    ring = Ring()
    ring.below.append(ring)
    with pytest.raises(NotJson, match="contains itself"):
        shape(Ring, mutable=True).encode(ring)


def test_fields_are_one_object_of_chosen_fields() -> None:
    fields = compile_fields(Receipt)
    assert [(f.name, f.stored, f.shape.text, f.required) for f in fields] == [
        ("payment", "payment", "int", True),
        ("charge_id", "chargeId", "str", True),
        ("note", "note", "str | None", False),
        ("remark", "comment", "str", False),
    ]
    some = Fields.of(fields[:2])
    assert some.encode(Receipt(1, "c", "n")) == {"payment": 1, "chargeId": "c"}
    assert some.decode({"payment": 1, "chargeId": "c"}) == {"payment": 1, "charge_id": "c"}


def test_a_class_stands_for_the_newest_of_its_name() -> None:
    module = types.ModuleType("cells_of_shapes")
    sys.modules[module.__name__] = module
    try:
        cell = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Part:\n    n: int\n"
        exec(cell, vars(module))
        old = vars(module)["Part"]
        exec(cell, vars(module))
        new = vars(module)["Part"]
        compiled = shape(types.GenericAlias(tuple, (old, ...)))
        assert compiled.encode((new(1),)) == [{"n": 1}]
        with pytest.raises(NotJson, match="older or another class called Part"):
            compiled.encode((old(1),))
        assert compiled.uses == {new}
    finally:
        del sys.modules[module.__name__]


def test_generics_resolve_through_bases() -> None:
    @dataclass(frozen=True)
    class Pairs(Box[tuple[T, T]], Generic[T]):
        pass

    @dataclass(frozen=True)
    class Numbers(Pairs[int]):
        pass

    assert shape(Numbers).encode(Numbers((1, 2))) == {"item": [1, 2], "others": []}
    with pytest.raises(NotJson) as refused:
        shape(Numbers).encode(Numbers((1, "x")))  # type: ignore[arg-type]
    assert refused.value.at == "$.item[1]"


def test_shape_of_is_compiled_once_until_classes_may_have_changed() -> None:
    assert shape_of(Receipt) is shape_of(Receipt)
    before = shape_of(Receipt)
    forget_shapes()
    assert shape_of(Receipt) is not before


def test_to_json_takes_frozen_dataclasses_and_json() -> None:
    assert to_json(Receipt(1, "c")) == {"payment": 1, "chargeId": "c", "comment": ""}
    assert to_json((1, {"a": ()})) == [1, {"a": []}]
    with pytest.raises(PhaseRefused, match="can be changed"):
        to_json(Loose())
    with pytest.raises(NotJson):
        to_json(object())


def test_values_are_shown_as_the_code_that_makes_them() -> None:
    value: object = (Color.RED, Receipt(1, "c"), (Level.LOW,), [TaskRef(TaskId(2))])
    assert as_code(value) == (
        "(Color.RED, Receipt(payment=1, charge_id='c', note=None, remark=''), (Level.LOW,), [TaskRef(2)])"
    )
    assert eval(as_code(value)) == value


scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False) | st.text()
jsons = st.recursive(
    scalars.filter(lambda v: v not in (float("inf"), float("-inf"))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(jsons)
def test_c7_any_json_survives_freezing_and_storing(value: Json) -> None:
    compiled = shape(Json)
    assert same(compiled.encode(compiled.decode(compiled.encode(value))), compiled.encode(value))
