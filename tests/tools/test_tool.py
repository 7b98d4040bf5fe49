"""A function becomes a tool: its name, text and schema, what is refused, and what arguments reach it."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Optional, TypeVar

import pytest
from pydantic import BaseModel, Field

from pidurable_nb.errors import InvalidArguments, ToolRefused
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records.strict import same
from pidurable_nb.tools import Injected, Output, OutputLimits, Tool, tool
from pidurable_nb.tools.output import output_of

if TYPE_CHECKING:
    from decimal import Decimal as Later

    from tests.tools.conftest import Call

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Tree(BaseModel):
    name: str
    below: list[Tree] = []


def run(main: Coroutine[object, object, T]) -> T:
    return asyncio.run(main)


def schema(made: Tool) -> JsonObject:
    return made.declaration()["parameters"]  # type: ignore[return-value]


def properties(made: Tool) -> JsonObject:
    return schema(made)["properties"]  # type: ignore[return-value]


def answer(made: Tool, arguments: Json, call: Injected | None = None) -> Output:
    return run(made.execute(made.validated(arguments), call))


def test_name_description_and_schema_come_from_the_function() -> None:
    @tool(replay="safe", mode="sequential", limits=OutputLimits(10, 2, "tail"))
    async def look_up(
        host: Annotated[str, "a name"], tries: Annotated[int, Field(description="how often", gt=0)] = 3
    ) -> str:
        """Find a host.

        It may take
        a while.
        """
        return f"{host}*{tries}"

    assert look_up.declaration() == {
        "name": "look_up",
        "description": "Find a host.\n\nIt may take\na while.",
        "parameters": {
            "type": "object",
            "properties": {
                "host": {"type": "string", "description": "a name"},
                "tries": {"type": "integer", "description": "how often", "exclusiveMinimum": 0, "default": 3},
            },
            "required": ["host"],
            "additionalProperties": False,
        },
    }
    assert list(schema(look_up)) == ["type", "properties", "required", "additionalProperties"]
    assert (look_up.replay, look_up.mode, look_up.limits.retain, look_up.needs_call) == (
        "safe",
        "sequential",
        "tail",
        False,
    )
    assert answer(look_up, {"host": "a"}).content == "a*3"
    assert answer(look_up, {"host": "a", "tries": "5"}).content == "a*5"


def test_e2_a_tool_is_unsafe_unless_it_says_safe() -> None:
    @tool()
    async def f() -> None:
        """Do."""

    assert (f.replay, f.mode, f.limits, f.needs_call) == ("unsafe", None, OutputLimits(51200, 2000, "head"), False)
    assert schema(f) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert answer(f, {}) == Output()


def test_the_call_is_given_and_is_not_in_the_schema(new_call: type[Call]) -> None:
    class Special(Injected):
        pass

    given: Injected = new_call()

    @tool()
    async def first(call: Special, x: int) -> bool:
        """Do."""
        return call is given and x == 1

    @tool()
    async def last(x: int, *, c: Annotated[Injected, "the call"]) -> bool:
        """Do."""
        return c is given and x == 1

    for made in (first, last):
        assert made.needs_call
        assert list(properties(made)) == ["x"]
        assert answer(made, {"x": 1}, given).structured is True
        with pytest.raises(TypeError, match="takes the call"):
            answer(made, {"x": 1})


def test_annotations_mean_what_their_author_sees_in_functions_around_too() -> None:
    class Outer(enum.Enum):
        A = "a"

    def around() -> Tool:
        @dataclass(frozen=True)
        class Inner:
            at: Point

        @tool()
        async def f(o: Outer, i: Inner, many: list[Inner], p: Point | None = None, c: Optional[Colour] = None) -> str:  # noqa: UP045 - as many still write it
            """Do."""
            return repr((o.value, i.at.x, len(many), p, c))

        return f

    arguments: Json = {"o": "a", "i": {"at": {"x": 1}}, "many": [{"at": {"x": 2, "y": 3}}], "c": "red"}
    assert answer(around(), arguments).content == repr(("a", 1, 1, None, Colour.RED))


def test_unquoted_annotations_of_another_module_style_work_too() -> None:
    program = (
        "from pidurable_nb import Json\nfrom pidurable_nb.tools import tool\n"
        "@tool()\n"
        "async def f(a: Json, b: list[Json], c: dict[str, Json] | None = None, d: 'list[E]' = ()) -> None:\n"
        "    'Do.'\n"
        "import json; print(json.dumps(f.declaration()['parameters']['properties']))\n"
    )
    done = subprocess.run([sys.executable, "-c", "E = int\n" + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "a": {},
        "b": {"type": "array", "items": {}},
        "c": {"anyOf": [{"type": "object", "additionalProperties": {}}, {"type": "null"}], "default": None},
        "d": {"type": "array", "items": {"type": "integer"}, "default": []},
    }


def test_json_parameters_take_any_json() -> None:
    @tool()
    async def f(a: Json, b: JsonObject | None = None, *, c: tuple[Json, ...] = ()) -> Json:
        """Do."""
        return [a, b, list(c)]

    assert answer(f, {"a": {"x": [1, None]}, "b": {"k": "v"}, "c": [True]}).structured == [
        {"x": [1, None]},
        {"k": "v"},
        [True],
    ]


def test_parameters_may_have_any_name_and_defaults_are_filled_in() -> None:
    @tool()
    async def f(
        title: str,
        json: int = 1,
        model_config: list[str] = ["a"],  # noqa: B006 - a default that is changed must not stay changed
        _private: str = "p",
        from_: Annotated[str, Field(alias="from")] = "here",
        /,
        schema: Literal["s", "t"] = "s",
    ) -> Json:
        """Do."""
        model_config.append("more")
        return [title, json, model_config, _private, from_, schema]

    assert list(properties(f)) == ["title", "json", "model_config", "_private", "from", "schema"]
    assert "title" not in properties(f)["title"]  # type: ignore[operator]
    for _ in range(2):
        assert answer(f, {"title": "x"}).structured == ["x", 1, ["a", "more"], "p", "here", "s"]
    assert answer(f, {"title": "x", "from": "there", "schema": "t"}).structured == [
        "x", 1, ["a", "more"], "p", "there", "t",
    ]  # fmt: skip


def test_a_definition_with_one_reader_stands_in_its_place_and_others_stay() -> None:
    @tool()
    async def f(once: Point, tree: Tree, one: Colour, two: Colour) -> None:
        """Do."""

    whole = schema(f)
    assert properties(f)["once"] == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
        "additionalProperties": False,
    }
    definitions = whole["$defs"]
    assert isinstance(definitions, Mapping)
    assert set(definitions) == {"Colour", "Tree"}
    assert "title" not in json.dumps(whole)


def test_the_schema_is_the_same_in_every_process() -> None:
    program = (
        "import json, sys\nfrom pidurable_nb.tools import tool\n"
        "@tool()\nasync def f(a: set[str] = {'x', 'y', 'z', 'w'}, b: frozenset[int] = frozenset({5, 3, 1})) -> None:\n"
        "    'Do.'\nprint(json.dumps(f.declaration()))\n"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1


def test_a_declaration_is_a_copy() -> None:
    @tool()
    async def f(x: int) -> None:
        """Do."""

    first = f.declaration()
    first["parameters"]["properties"].clear()  # type: ignore[call-overload, index, union-attr]
    assert list(properties(f)) == ["x"]


def refused(make: Callable[[], object], *words: str) -> None:
    with pytest.raises(ToolRefused) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_what_cannot_be_a_tool_is_refused_where_it_is_defined() -> None:
    async def bare(x, call: Injected) -> None:  # type: ignore[no-untyped-def]
        """Do."""

    async def stars(*many: int) -> None:
        """Do."""

    async def names(**more: int) -> None:
        """Do."""

    def sync() -> None:
        """Do."""

    async def silent(x: int) -> None:
        pass

    async def twice(a: Injected, b: Injected) -> None:
        """Do."""

    async def maybe(call: Injected | None = None) -> None:
        """Do."""

    async def later(x: Later) -> None:
        """Do."""

    async def strange(x: subprocess.Popen[bytes]) -> None:
        """Do."""

    async def callback(x: Callable[[], int]) -> None:
        """Do."""

    async def same_name(a: Annotated[int, Field(alias="b")], b: int) -> None:
        """Do."""

    async def fine() -> None:
        """Do."""

    refused(lambda: tool()(bare), "bare", "x has no annotation", "x: str")
    refused(lambda: tool()(stars), "stars", "*many", "name every parameter")
    refused(lambda: tool()(names), "**more")
    refused(lambda: tool()(sync), "sync is not async", "async def sync")  # type: ignore[arg-type]
    refused(lambda: tool()(silent), "silent", "docstring")
    refused(lambda: tool()(twice), "a and b", "keep one")
    refused(lambda: tool()(maybe), "call: Injected")
    refused(lambda: tool()(later), "later", "x", "'Later' is not defined", "TYPE_CHECKING")
    refused(lambda: tool()(strange), "strange", "cannot come from JSON", "Popen")
    refused(lambda: tool()(callback), "callback", "JSON schema")
    refused(lambda: tool()(same_name), "two parameters are called 'b'")
    refused(lambda: tool(fine), "@tool()", "fine")  # type: ignore[arg-type]
    refused(lambda: tool(replay="sure"), "'sure'", '"safe"', '"unsafe"')  # type: ignore[arg-type]
    refused(lambda: tool(mode="fast"), "'fast'", '"sequential"')  # type: ignore[arg-type]
    refused(lambda: tool()(3), "3")  # type: ignore[arg-type]
    refused(lambda: OutputLimits(max_bytes=0), "max_bytes=0", "at least 1")
    refused(lambda: OutputLimits(retain="middle"), "'middle'", '"head"')  # type: ignore[arg-type]
    for name in ("", "1a", "a b", "é", "x" * 65, "-a", "a\n"):
        refused(lambda name=name: tool(name=name)(fine), "fine", "name")  # type: ignore[misc]
    for name in ("a", "_", "A-b_9", "x" * 64):
        assert tool(name=name)(fine).name == name
    assert isinstance(ToolRefused("x"), TypeError)


def test_wrong_arguments_are_told_field_by_field() -> None:
    @tool()
    async def f(x: int, points: list[Point], colour: Colour = Colour.RED, ratio: float = 0.5) -> None:
        """Do."""

    with pytest.raises(InvalidArguments) as caught:
        f.validated(
            {"x": "five", "points": [{"x": 1}, {"y": "q" * 1000, "z": 1}], "colour": "green", "ratio": "nan", "y": 1}
        )
    lines = str(caught.value).splitlines()
    assert caught.value.tool == "f"
    assert lines[0] == "the arguments do not fit f:"
    by_path = {line.strip().partition(": ")[0]: line for line in lines[1:]}
    assert list(by_path) == ["x", "points[1].x", "points[1].y", "points[1].z", "colour", "ratio", "y"]
    assert 'given: "five"' in by_path["x"]
    assert by_path["points[1].x"].endswith("is required and was not given")
    assert len(by_path["points[1].y"]) < 320
    assert "'red' or 'blue'" in by_path["colour"]
    assert "finite" in by_path["ratio"]
    assert by_path["y"].endswith("no such parameter; the parameters are: x, points, colour, ratio")


@pytest.mark.parametrize("arguments", [None, [], "x", 3, {"x": 2**60}, {"x": float("nan")}, {"x": "\ud800"}, {}])
def test_arguments_that_are_no_object_or_no_json_are_refused(arguments: Json) -> None:
    @tool()
    async def f(x: str) -> None:
        """Do."""

    with pytest.raises(InvalidArguments, match="f"):
        f.validated(arguments)


def test_a_hundred_errors_are_told_in_twenty_lines() -> None:
    @tool()
    async def f(xs: list[int]) -> None:
        """Do."""

    with pytest.raises(InvalidArguments) as caught:
        f.validated({"xs": ["a"] * 100})
    assert len(str(caught.value).splitlines()) == 22
    assert str(caught.value).endswith("and 80 more")


def test_validated_arguments_are_as_given_and_repaired_first() -> None:
    def repair(arguments: Json) -> Json:
        if arguments == {"x": "boom"}:
            raise ValueError("no way")
        return {"x": "7"} if arguments == {"x": "seven"} else arguments

    @tool(prepare_arguments=repair)
    async def f(x: int, y: int = 1) -> int:
        """Do."""
        return x

    given: Json = {"x": "5"}
    assert same(f.validated(given), {"x": "5"})
    assert f.validated({"x": "seven"}) == {"x": "7"}
    assert answer(f, {"x": "seven"}).structured == 7
    for wrong in ({"x": "eight"}, {"x": "boom"}):
        with pytest.raises(InvalidArguments, match="f"):
            f.validated(wrong)


def test_execute_refuses_stored_arguments_that_no_longer_fit() -> None:
    @tool()
    async def f(x: int) -> None:
        """Do."""

    with pytest.raises(InvalidArguments, match="x: is required"):
        run(f.execute({}, None))


def test_e4_what_a_tool_raises_passes() -> None:
    @tool()
    async def f() -> None:
        """Do."""
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        answer(f, {})


def test_a_wrapped_tool_declares_and_validates_as_before() -> None:
    @tool(replay="safe")
    async def f(x: int) -> str:
        """Do."""
        return str(x)

    async def louder(arguments: JsonObject, call: Injected | None) -> Output:
        inner = await f.execute(arguments, call)
        return dataclasses.replace(inner, content=f"{inner.content}!")

    wrapped = f.wrapped(louder)
    assert answer(wrapped, {"x": "3"}).content == "3!"
    assert answer(f, {"x": 3}).content == "3"
    assert (wrapped.declaration(), wrapped.replay) == (f.declaration(), "safe")
    with pytest.raises(InvalidArguments):
        wrapped.validated({})


class Grumpy:
    """As an array or a data frame: comparing it gives no truth."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of this is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_a_tool_is_made_beside_names_that_cannot_be_compared() -> None:
    table = Grumpy()

    @tool()
    async def look(rows: JsonObject) -> str:
        """Look."""
        return f"{type(table).__name__} {len(rows)}"

    assert answer(look, {"rows": {"a": 1}}) == output_of("Grumpy 1", tool="look")
