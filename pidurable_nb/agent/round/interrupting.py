"""Owns settling a tool call that a crash cut off and that must not run again (E3). Never runs a tool or asks a model.

The model is told: an error result with the output that was committed so far stands directly after the call, and the
call's task ends failed. Nobody can say whether the tool had its effect; the result says that too (E6).
"""

from __future__ import annotations

from collections.abc import Sequence

from pidurable_nb.agent.round.nesting import forget_nested, store_nested
from pidurable_nb.agent.round.results import Ending, append_result, interrupted
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.stored.stored_call import NestedCall, nested_call
from pidurable_nb.engine.transition import Finish, Reserve, advance
from pidurable_nb.ids import EntryId, JsonObject
from pidurable_nb.records import task as stored
from pidurable_nb.records.message import ToolCall, calls_of
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.session.transaction import Transaction


def can_interrupt(record: TaskRecord) -> bool:
    """Whether a cut call can be settled from what is stored: its input names a call."""
    return record.kind == "pi.tool" and (_asked(record) is not None or nested_call(record.input) is not None)


async def interrupt(tx: Transaction, record: TaskRecord) -> None:
    """Write the interrupted result, close the call's slot, and end its task, all in this block (E3, O6)."""
    nested = nested_call(record.input)
    if nested is not None:
        await _interrupt_nested(tx, record, nested)
        return
    asked = _asked(record)
    assert asked is not None
    assistant, call = asked
    entry = await tx.entry(assistant)
    draft = await tx.edit(live.LIVE, live.at(live.LIVE, record.conversation))
    slot = live.slot_by_call(draft, call) or {}  # one that is dropped, where the document has none
    named = slot.get("name")
    name = named if isinstance(named, str) else _called(entry.model if entry is not None else None, call) or "tool"
    ending = interrupted(name, slot)
    result = append_result(tx, record.conversation, ToolCall(id=call, name=name, arguments={}), ending)
    live.end_slot(slot, {"entry": result})
    forget_nested(draft, record.id)
    _end(tx, record, ending, {"kind": "model", "entryId": result})


async def _interrupt_nested(tx: Transaction, record: TaskRecord, nested: NestedCall) -> None:
    draft = await tx.edit(live.LIVE, live.at(live.LIVE, record.conversation))
    ending = interrupted(nested.call.name, live.slot_of(draft, record.id, "nestedTools") or {})
    await store_nested(tx, record.id, record.conversation, nested, ending)
    _end(tx, record, ending, {"kind": "nested"})


def _end(tx: Transaction, record: TaskRecord, ending: Ending, result: JsonObject) -> None:
    outcome = stored.Failed(error=stored.TaskError(message=ending.text), result=result)
    running = advance(record, Reserve(), now_ms=tx.now_ms())
    tx.put_task(advance(running, Finish(outcome, drained=True), now_ms=tx.now_ms()))


def _asked(record: TaskRecord) -> tuple[EntryId, str] | None:
    match record.input:
        case {"callId": str(call), "assistant": int(assistant)}:
            return EntryId(assistant), call
        case _:
            return None


def _called(messages: Sequence[JsonObject] | None, call: str) -> str | None:
    """The name of the tool that the assistant called."""
    found = (one.name for message in messages or () for one in calls_of(message) if one.id == call)
    return next(found, None)
