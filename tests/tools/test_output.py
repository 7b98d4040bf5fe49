"""What a function returns becomes an output, or an error that names the tool and the type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pidurable_nb.ids import ABSENT, Json, JsonObject
from pidurable_nb.records.message import Diagnostic
from pidurable_nb.tools.output import Output, content_blocks, output_of


@dataclass(frozen=True)
class Weather:
    wind_speed: int
    place: str = "Zürich"


@dataclass
class Changing:
    x: int


@dataclass(frozen=True)
class Handle:
    path: Path


def test_text_stays_and_json_is_shown_indented_and_kept() -> None:
    assert output_of("héllo", tool="t") == Output(content="héllo")
    assert output_of(None, tool="t") == Output()
    assert output_of({"a": (1, "ü")}, tool="t") == Output(
        content='{\n  "a": [\n    1,\n    "ü"\n  ]\n}', structured={"a": [1, "ü"]}
    )
    assert output_of(False, tool="t") == Output(content="false", structured=False)
    assert output_of([], tool="t") == Output(content="[]", structured=[])


def test_a_frozen_dataclass_is_shown_as_it_is_stored() -> None:
    made = output_of(Weather(3), tool="t")
    assert made.structured == {"windSpeed": 3, "place": "Zürich"}
    assert made.content == '{\n  "windSpeed": 3,\n  "place": "Zürich"\n}'


@pytest.mark.parametrize(
    "returned", [b"x", {1, 2}, object(), Path(), Changing(1), Handle(Path()), float("nan"), 2**60, {1: 2}, int,
                 datetime.now(UTC)],
)  # fmt: skip
def test_anything_else_is_a_type_error_that_names_the_tool_and_the_type(returned: object) -> None:
    with pytest.raises(TypeError, match="the tool grab returned an object of type") as caught:
        output_of(returned, tool="grab")
    assert type(returned).__qualname__ in str(caught.value)
    assert "Return str, JSON" in str(caught.value)


def test_an_output_is_detached_from_what_its_author_can_change() -> None:
    block: dict[str, Json] = {"type": "text", "text": "a"}
    details: dict[str, Json] = {"n": [1]}
    content: list[JsonObject] = [block, {"type": "image", "data": "…"}]
    made = output_of(Output(content=content, details=details, diagnostics=(), terminate=True), tool="t")
    block["text"] = "b"
    details.clear()
    content.clear()
    assert made.content == ({"type": "text", "text": "a"}, {"type": "image", "data": "…"})
    assert (made.details, made.terminate, made.structured) == ({"n": [1]}, True, ABSENT)
    assert output_of(Output(details=None), tool="t").details is None


@pytest.mark.parametrize(
    "output",
    [
        Output(content=[{"text": "x"}]),
        Output(content=[{"type": "text"}]),
        Output(content={"type": "text"}),  # type: ignore[arg-type]
        Output(content=["x"]),  # type: ignore[list-item]
        Output(content=3),  # type: ignore[arg-type]
        Output(details={"x": float("inf")}),
        Output(details=Path()),  # type: ignore[arg-type]
        Output(usage=[1]),  # type: ignore[arg-type]
        Output(add_tools="read"),  # type: ignore[arg-type]
        Output(diagnostics=("x",)),  # type: ignore[arg-type]
        Output(handoff=3),  # type: ignore[arg-type]
    ],
)
def test_an_output_that_cannot_be_stored_names_tool_and_field(output: Output) -> None:
    with pytest.raises(TypeError, match=r"the tool t returned an Output that cannot be stored: Output\."):
        output_of(output, tool="t")


@pytest.mark.parametrize(
    ("content", "blocks"),
    [(None, ()), ("", ()), ("a", ({"type": "text", "text": "a"},)), ([{"type": "x"}], ({"type": "x"},))],
)
def test_content_is_stored_as_blocks(content: str | Sequence[JsonObject] | None, blocks: object) -> None:
    assert content_blocks(content) == blocks


def test_diagnostics_and_tools_pass() -> None:
    remark = Diagnostic(severity="info", message="m")
    made = output_of(Output(diagnostics=(remark,), add_tools=("a",), usage={"input": 1}, handoff="go on"), tool="t")
    assert (made.diagnostics, made.add_tools, made.usage, made.handoff) == ((remark,), ("a",), {"input": 1}, "go on")
