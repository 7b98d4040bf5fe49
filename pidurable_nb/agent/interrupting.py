"""Owns settling a tool call that a crash cut off and that must not run again (E3). Never runs a tool or asks a model.

The model is told: an error result with the output that was committed so far stands directly after the call, and the
call's task ends failed. Nobody can say whether the tool had its effect; the result says that too (E6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pidurable_nb.agent import live
from pidurable_nb.engine.transition import Finish, Reserve, advance
from pidurable_nb.ids import EntryId, Json, JsonObject
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.session.transaction import Transaction

Severity = Literal["info", "warn", "error"]


def can_interrupt(record: TaskRecord) -> bool:
    """Whether a cut call can be settled from what is stored: a model's call is; a nested one belongs to its caller."""
    input = record.input
    return (
        record.kind == "pi.tool"
        and isinstance(input, Mapping)
        and isinstance(input.get("callId"), str)
        and isinstance(input.get("assistant"), int)
    )


async def interrupt(tx: Transaction, record: TaskRecord) -> None:
    """Write the interrupted result, close the call's slot, and end its task, all in this block (E3, O6)."""
    assert isinstance(record.input, Mapping)
    call = str(record.input["callId"])
    assistant = await tx.entry(EntryId(int(str(record.input["assistant"]))))
    draft = await tx.edit(live.LIVE, live.at(live.LIVE, record.conversation))
    slot = _slot(draft, call)
    name = str(slot.get("name") or _called(assistant.model if assistant is not None else None, call) or "tool")
    message = f"{name} was cut off by a crash and may have run in part; it was not run again"
    diagnostics: list[Json] = [*_items(slot.get("diagnostics")), _diagnostic("error", "interrupted", message)]
    result: dict[str, Json] = {
        "role": "toolResult",
        "toolCallId": call,
        "toolName": name,
        "content": _content(slot.get("output"), diagnostics),
        "isError": True,
        "timestamp": tx.now_ms(),
    }
    if "details" in slot:
        result["details"] = slot["details"]
    entry = tx.append(
        "pi.tool-result", model=(result,), data={"diagnostics": diagnostics}, conversation=record.conversation
    )
    for member in ("output", "droppedBytes", "droppedLines", "details", "diagnostics"):
        slot.pop(member, None)
    slot.update({"status": "done", "entry": entry})
    outcome = stored.Failed(error=stored.TaskError(message=message), result={"kind": "model", "entryId": entry})
    running = advance(record, Reserve(), now_ms=tx.now_ms())
    tx.put_task(advance(running, Finish(outcome, drained=True), now_ms=tx.now_ms()))


def _slot(draft: dict[str, Json], call: str) -> dict[str, Json]:
    """The call's slot in the draft; one of its own, which is dropped, where the document has none."""
    tools = draft.get("tools")
    if isinstance(tools, list):
        for slot in tools:
            if isinstance(slot, dict) and slot.get("callId") == call:
                return slot
    return {}


def _called(messages: Sequence[JsonObject] | None, call: str) -> str | None:
    """The name of the tool that the assistant called."""
    for message in messages or ():
        for block in _items(message.get("content")):
            if isinstance(block, Mapping) and block.get("type") == "toolCall" and block.get("id") == call:
                name = block.get("name")
                return name if isinstance(name, str) else None
    return None


def _content(output: Json, diagnostics: Sequence[Json]) -> list[Json]:
    kept: list[Json] = [{"type": "text", "text": output}] if isinstance(output, str) and output else []
    lines = [f"[{item.get('severity')}] {item.get('message')}" for item in diagnostics if isinstance(item, Mapping)]
    return [*kept, {"type": "text", "text": "\n".join(("<harness>", *lines, "</harness>"))}]


def _diagnostic(severity: Severity, code: str, message: str) -> JsonObject:
    return {"severity": severity, "code": code, "message": message}


def _items(value: Json) -> Sequence[Json]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
