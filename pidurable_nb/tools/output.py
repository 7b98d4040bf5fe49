"""Owns what a tool answers: `Output`, how much of it is kept, and how what a function returned becomes one.

Never bounds anything itself and never stores.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pidurable_nb.errors import NotJson, PhaseRefused, ToolRefused
from pidurable_nb.ids import ABSENT, Absent, Json, JsonObject
from pidurable_nb.records.message import Diagnostic
from pidurable_nb.records.shapes import to_json
from pidurable_nb.records.strict import detach

Retain = Literal["head", "tail"]
Content: TypeAlias = "str | Sequence[JsonObject] | None"


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """How much text of a tool is kept: whole lines, the first (`head`) or the last (`tail`).

    Raises: ToolRefused for a limit below 1 or another word.
    """

    max_bytes: int = 51200
    max_lines: int = 2000
    retain: Retain = "head"

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_lines < 1:
            raise ToolRefused(f"{self!r}: nothing would be kept; allow at least 1 byte and 1 line")
        if self.retain not in ("head", "tail"):
            raise ToolRefused(f'{self!r}: retain is "head" for the first lines or "tail" for the last')


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What a tool answers.

    `content` is text or content blocks; None means what the call gave to `progress()`. `details` are for renderers, and
    ABSENT means the last running ones. `usage` is what the tool itself spent on models. `add_tools` are offered from
    the next request on, `terminate` ends the run when all results of the round ask for it, and `handoff` ends it with
    a fresh context that begins with this text. `structured` is what a function returned, where that was JSON.
    """

    content: Content = None
    is_error: bool = False
    details: Json | Absent = ABSENT
    diagnostics: tuple[Diagnostic, ...] = ()
    usage: JsonObject | None = None
    add_tools: tuple[str, ...] = ()
    terminate: bool = False
    handoff: str | None = None
    structured: Json | Absent = ABSENT


def content_blocks(content: Content) -> tuple[JsonObject, ...]:
    """Content as stored: text is one block, no text is none."""
    if content is None:
        return ()
    if isinstance(content, str):
        return ({"type": "text", "text": content},) if content else ()
    return tuple(content)


def output_of(returned: object, *, tool: str) -> Output:
    """The output that a function's return value stands for.

    Text is the content as it is; JSON and frozen dataclasses are shown as indented JSON text and kept as `structured`,
    with the names that a dataclass has on disk. None leaves the content to what the call gave out.

    Raises: TypeError naming the tool and the type, for anything else.
    """
    if returned is None:
        return Output()
    if type(returned) is str:
        return Output(content=returned)
    if isinstance(returned, Output):
        return _checked(returned, tool)
    try:
        value = to_json(returned)
    except (NotJson, PhaseRefused, NameError) as error:
        raise TypeError(
            f"the tool {tool} returned {_kind_of(returned)}, which cannot be shown to a model: {error}. "
            "Return str, JSON, a frozen dataclass, Output or None"
        ) from error
    return Output(content=json.dumps(value, indent=2, ensure_ascii=False), structured=value)


def _checked(output: Output, tool: str) -> Output:
    """The same output, detached from what its author can still change."""
    given = output.content
    try:
        content = given if given is None or type(given) is str else _blocks(given, at="Output.content")
        details = (
            output.details
            if isinstance(output.details, Absent)
            else detach(output.details, at="Output.details", held=True)
        )
        structured = output.structured
        structured = (
            structured if isinstance(structured, Absent) else detach(structured, at="Output.structured", held=True)
        )
        usage = None if output.usage is None else _object(output.usage, at="Output.usage")
        _check_members(output.diagnostics, Diagnostic, at="Output.diagnostics")
        _check_members(output.add_tools, str, at="Output.add_tools")
        if output.handoff is not None and type(output.handoff) is not str:
            raise TypeError(f"Output.handoff is {_kind_of(output.handoff)}; it is text")
    except (NotJson, TypeError) as error:
        raise TypeError(f"the tool {tool} returned an Output that cannot be stored: {error}") from error
    return dataclasses.replace(
        output,
        content=content,
        details=details,
        structured=structured,
        usage=usage,
        diagnostics=tuple(output.diagnostics),
        add_tools=tuple(output.add_tools),
    )


def _blocks(given: object, *, at: str) -> tuple[JsonObject, ...]:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        raise TypeError(f"{at} is {_kind_of(given)}; it is str, None, or a sequence of blocks")
    blocks = tuple(_object(block, at=f"{at}[{n}]") for n, block in enumerate(given))
    for n, block in enumerate(blocks):
        if not isinstance(block.get("type"), str):
            raise TypeError(f'{at}[{n}] has no type; a block of text is {{"type": "text", "text": ...}}')
        if block["type"] == "text" and not isinstance(block.get("text"), str):
            raise TypeError(f"{at}[{n}] is a block of text without text")
    return blocks


def _object(value: object, *, at: str) -> JsonObject:
    found = detach(value, at=at, held=True)
    if not isinstance(found, Mapping):
        raise TypeError(f"{at} is {_kind_of(value)}; it is a JSON object")
    return found


def _check_members(value: object, kind: type, *, at: str) -> None:
    if not isinstance(value, (tuple, list)) or not all(isinstance(member, kind) for member in value):
        raise TypeError(f"{at} is {_kind_of(value)}; it is a tuple of {kind.__name__}")


def _kind_of(value: object) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"an object of type {name}"
