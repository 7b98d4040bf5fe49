"""Owns what a tool call ended with, and the `pi.tool-result` entry that tells the model. Never runs a tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pidurable_nb.ids import ABSENT, Absent, ConversationId, EntryId, Json, JsonObject
from pidurable_nb.records.frozen import freeze
from pidurable_nb.records.message import Diagnostic, ToolCall, harness_block, items
from pidurable_nb.records.strict import detach
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.tools.bounds import bounded, truncated
from pidurable_nb.tools.tool import Output, OutputLimits

How = Literal["completed", "failed", "aborted"]
Code = Literal[
    "tool_unavailable", "invalid_arguments", "blocked", "tool_error", "interrupted", "aborted", "abandoned",
    "truncated", "invalid_structured_output",
]  # fmt: skip
"""The codes of the diagnostics that the harness writes itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a call ended with, bounded already. `how` is the outcome of its task; `text` says why it did not complete.

    `control` is what the result asks of the round, in the stored form; `duration_ms` how long the tool ran.
    """

    content: tuple[JsonObject, ...] = ()
    is_error: bool = False
    details: Json | Absent = ABSENT
    diagnostics: tuple[JsonObject, ...] = ()
    usage: JsonObject | None = None
    control: JsonObject = field(default_factory=dict[str, Json])
    structured: Json | Absent = ABSENT
    duration_ms: int | None = None
    how: How = "completed"
    text: str = ""

    @classmethod
    def error(
        cls,
        code: Code,
        text: str,
        *,
        outcome: How = "completed",
        output: str = "",
        details: Json | Absent = ABSENT,
        diagnostics: Sequence[JsonObject] = (),
        duration_ms: int | None = None,
    ) -> Ending:
        """An error result that the harness writes itself: what was there of the output, and why there is no more."""
        said = Diagnostic(severity="error", code=code, message=text).json()
        content: tuple[JsonObject, ...] = ({"type": "text", "text": output},) if output else ()
        return cls(
            content=content, is_error=True, details=details, diagnostics=(*diagnostics, said), duration_ms=duration_ms,
            how=outcome, text=text,
        )  # fmt: skip


def refused(code: Code, text: str) -> Ending:
    """A call that was not made: the model may react, so its task completes."""
    return Ending.error(code, text)


def interrupted(name: str, slot: JsonObject) -> Ending:
    """E3: a call that was cut and does not run again, with what its slot holds of it."""
    output, details, said = partial_output(slot)
    text = f"{name} was cut off by a crash and may have run in part; it was not run again"
    return Ending.error("interrupted", text, outcome="failed", output=output, details=details, diagnostics=said)


def ending_of(
    output: Output,
    *,
    retained: str,
    reported: Sequence[JsonObject],
    details: Json | Absent,
    limits: OutputLimits,
    cut: Diagnostic | None,
    duration_ms: int | None,
) -> Ending:
    """What a tool's result is, completed by what the call reported while it ran, and bounded.

    `cut` is what to say about the running output, where the result has no content of its own.

    Raises: NotJson for details or usage that cannot be stored (C7).
    """
    if output.content is None:
        content: tuple[JsonObject, ...] = ({"type": "text", "text": retained},) if retained else ()
    else:
        given = output.content
        blocks = ({"type": "text", "text": given},) if isinstance(given, str) else tuple(given)
        content, cut = bounded(blocks, limits)
    said = [*reported, *(diagnostic.json() for diagnostic in output.diagnostics)]
    if cut is not None:
        said.append(cut.json())
    shown = output.details if output.details is not ABSENT else details
    structured = output.structured
    if not isinstance(structured, Absent):
        structured = detach(structured, at="the result", held=True)
    return Ending(
        content=tuple(_object(block) for block in content),
        is_error=output.is_error,
        details=ABSENT if shown is ABSENT else detach(shown, at="details", held=True),
        diagnostics=tuple(said),
        usage=_object(output.usage) if output.usage is not None else None,
        control=control_of(output),
        structured=structured,
        duration_ms=duration_ms,
    )


def control_of(output: Output) -> JsonObject:
    """What a result asks of the round, in the stored form."""
    control: dict[str, Json] = {}
    if output.add_tools:
        control["addTools"] = list(output.add_tools)
    if output.terminate:
        control["terminate"] = True
    if output.handoff is not None:
        control["handoff"] = output.handoff
    return control


def append_result(tx: Transaction, conversation: ConversationId, call: ToolCall, ending: Ending) -> EntryId:
    """The entry that answers the call; the model reads its diagnostics in the last block."""
    content: list[Json] = list(ending.content)
    if ending.diagnostics:
        content.append(harness_block(ending.diagnostics))
    message: dict[str, Json] = {
        "role": "toolResult",
        "toolCallId": call.id,
        "toolName": call.name,
        "content": content,
        "isError": ending.is_error,
        "timestamp": tx.now_ms(),
    }
    if ending.details is not ABSENT:
        message["details"] = ending.details
    if ending.usage is not None:
        message["usage"] = ending.usage
    if ending.duration_ms is not None:
        message["durationMs"] = ending.duration_ms
    return tx.append(
        "pi.tool-result", model=(message,), data={"diagnostics": list(ending.diagnostics)}, conversation=conversation
    )


def partial_output(slot: JsonObject) -> tuple[str, Json | Absent, tuple[JsonObject, ...]]:
    """What a slot of `pi.live` holds of a call that was cut: output, details, diagnostics, with what was dropped."""
    output = slot.get("output")
    said = tuple(item for item in items(slot.get("diagnostics")) if isinstance(item, Mapping))
    lines, size = slot.get("droppedLines"), slot.get("droppedBytes")
    dropped = truncated(lines if isinstance(lines, int) else 0, size if isinstance(size, int) else 0)
    if dropped is not None:
        said = (*said, dropped.json())
    details: Json | Absent = slot.get("details", ABSENT)
    return output if isinstance(output, str) else "", details, said


def as_output(ending: Ending) -> Output:
    """The result as hooks see it, and may replace it; changing it in place raises there."""
    diagnostics = tuple(_diagnostic(item) for item in ending.diagnostics)
    control = ending.control
    handoff, added = control.get("handoff"), control.get("addTools")
    return Output(
        content=tuple(_frozen(block) for block in ending.content),
        is_error=ending.is_error,
        details=ending.details if isinstance(ending.details, Absent) else freeze(ending.details),
        diagnostics=diagnostics,
        usage=_frozen(ending.usage) if ending.usage is not None else None,
        add_tools=tuple(name for name in items(added) if isinstance(name, str)),
        terminate=control.get("terminate") is True,
        handoff=handoff if isinstance(handoff, str) else None,
        structured=ending.structured if isinstance(ending.structured, Absent) else freeze(ending.structured),
    )


def _frozen(value: JsonObject) -> JsonObject:
    frozen = freeze(value)
    assert isinstance(frozen, Mapping)
    return frozen


def _diagnostic(item: JsonObject) -> Diagnostic:
    severity, code = item.get("severity"), item.get("code")
    return Diagnostic(
        severity=severity if severity in ("info", "warn", "error") else "info",
        message=str(item.get("message", "")),
        code=code if isinstance(code, str) else None,
    )


def _object(value: JsonObject) -> JsonObject:
    copy = detach(value, at="$", held=True)
    assert isinstance(copy, dict)
    return copy


def ending_json(ending: Ending) -> JsonObject:
    """An ending as a record of an effect keeps it."""
    value: dict[str, Json] = {"content": list(ending.content), "isError": ending.is_error}
    value["diagnostics"] = list(ending.diagnostics)
    value["control"] = ending.control
    if ending.details is not ABSENT:
        value["details"] = ending.details
    if ending.structured is not ABSENT:
        value["structured"] = ending.structured
    if ending.usage is not None:
        value["usage"] = ending.usage
    if ending.duration_ms is not None:
        value["durationMs"] = ending.duration_ms
    return value


def read_ending(value: Json) -> Ending:
    """The ending that was kept; an empty one where the effect was only assumed to have happened."""
    kept = value if isinstance(value, Mapping) else {}
    usage, control, duration = kept.get("usage"), kept.get("control"), kept.get("durationMs")
    return Ending(
        content=tuple(block for block in items(kept.get("content")) if isinstance(block, Mapping)),
        is_error=kept.get("isError") is True,
        details=kept.get("details", ABSENT),
        diagnostics=tuple(item for item in items(kept.get("diagnostics")) if isinstance(item, Mapping)),
        usage=usage if isinstance(usage, Mapping) else None,
        control=control if isinstance(control, Mapping) else {},
        structured=kept.get("structured", ABSENT),
        duration_ms=duration if isinstance(duration, int) else None,
    )
