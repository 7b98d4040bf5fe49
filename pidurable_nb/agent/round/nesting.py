"""Owns calls that a call makes: the document that a rerun finds them by, their slot, their result.

A nested call is a `pi.tool` task of its own, owned by the calling one, so it has an intent, a policy and a result of
its own. Its result is for the code that asked; no entry of the transcript stands for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pidurable_nb.agent.round.results import Ending
from pidurable_nb.agent.round.rounds import CALL, TOOL_VERSION
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.stored.recovery import TOOL
from pidurable_nb.agent.stored.spending import spend_on_tool
from pidurable_nb.agent.stored.stored_call import NestedCall, nested_call
from pidurable_nb.engine.phase import TaskRef
from pidurable_nb.errors import KeyShared, ToolError
from pidurable_nb.ids import ABSENT, ConversationId, Json, JsonObject, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.document import Address, TaskScope
from pidurable_nb.records.message import items
from pidurable_nb.records.strict import detach, same
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.session.definition import Definition, base_never
from pidurable_nb.session.transaction import Transaction

if TYPE_CHECKING:
    from pidurable_nb.engine.runtime import Runtime

NESTED: Final = Definition(kind="pi.tool.nested-call", scope="task", family=True, base_when=base_never)
MADE: Final = "pi.tool.madeNestedCalls"
"""The memo of a call that made nested ones."""
LONGEST_ERROR: Final = 500
_TAKEN: Final = re.compile(r"[1-9][0-9]*")


def address(parent: TaskId, key: str) -> Address:
    """Where the nested call of this key is kept."""
    return Address(NESTED.kind, TaskScope(parent), key)


def check_key(key: str) -> str:
    """An explicit key of a nested call. Raises ValueError for what could be taken for another."""
    if not key or "/" in key or key == "__proto__" or _TAKEN.fullmatch(key):
        raise ValueError(
            f"nested call key {key!r}: not empty, no '/', no whole number; those count calls without a key"
        )
    return key


async def call_nested(rt: Runtime, parent_call: str, name: str, arguments: JsonObject, key: str) -> Json:
    """Make the call, or find it as an earlier attempt made it, and wait for its result.

    Durability: the nested call is stored before it runs, with this key. Raises ToolError when it ends with an error,
    KeyShared when the key is that of another call (E6), NotJson.
    """
    given = detach(arguments, at="arguments", held=True)
    if not isinstance(given, Mapping):
        raise TypeError(f"the arguments of a nested call of {name} are a JSON object, by the tool's parameters")
    found = await rt.engine.session.snapshot(NESTED, address(rt.id, key))
    task = _task_of(found)
    if task is None:
        task = await _make(rt, parent_call, name, given, key)
    await _check_same(rt, task, name, given, key)
    await rt.engine.answers.outcome(TaskRef(task))
    kept = await rt.engine.session.snapshot(NESTED, address(rt.id, key))
    result = kept.get("result") if kept is not None else None
    if not isinstance(result, Mapping):
        raise ToolError(f"the nested call {parent_call}/{key} of {name} ended without a result")
    if result.get("isError") is True:
        raise ToolError(_error_of(result) or f"the nested call {parent_call}/{key} of {name} failed")
    return result.get("structuredOutput")


def _task_of(kept: JsonObject | None) -> TaskId | None:
    task = kept.get("taskId") if kept is not None else None
    return TaskId(task) if isinstance(task, int) else None


async def _check_same(rt: Runtime, task: TaskId, name: str, given: Json, key: str) -> None:
    """E6: the call that was made under this key, by this attempt or an earlier one, is this very call."""
    record = await rt.engine.session.task(task)
    made = nested_call(record.input) if record is not None else None
    if made is not None and (made.call.name != name or not same(made.call.arguments, given)):
        raise KeyShared(
            f"task {rt.id}: the nested call {key!r} was made of {made.call.name} with "
            f"{dumps(made.call.arguments)[:200]}, and now of {name} with {dumps(given)[:200]}; "
            "give each its own key, and keep in a memo what differs between attempts"
        )


async def _make(rt: Runtime, parent_call: str, name: str, given: Json, key: str) -> TaskId:
    id = f"{parent_call}/{key}"
    call: JsonObject = {"type": "toolCall", "id": id, "name": name, "arguments": given}
    with rt.engine.runs.launching() as launch:
        async with rt.commit() as tx:
            record = rt.gate()
            if MADE not in record.memos:
                tx.rows.put_task(replace(record, memos={**record.memos, MADE: True}))
            draft = await tx.rows.edit(NESTED, address(rt.id, key))
            made = _task_of(draft)
            if made is not None:
                return made
            input: JsonObject = {
                "kind": "nested", "parent": rt.id, "parentCallId": parent_call, "key": key, "call": call
            }  # fmt: skip
            nested = TaskRecord(
                id=TaskId(tx.rows.mint()),
                conversation=rt.conversation,
                kind=TOOL,
                version=TOOL_VERSION,
                input=input,
                state=stored.Pending(checkpoint=CALL),
                owner=rt.id,
                abandon_on_restart=rt.abandons,
            )
            launch.put(tx.rows, nested)
            draft["taskId"] = nested.id
            state = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
            slot: JsonObject = {
                "callId": id, "name": name, "status": "pending", "taskId": nested.id, "parentCallId": parent_call,
                "parentTaskId": rt.id, "arguments": given,
            }  # fmt: skip
            state["nestedTools"] = [*items(state.get("nestedTools")), slot]
            return nested.id


async def store_nested(
    tx: Transaction, task: TaskId, conversation: ConversationId, nested: NestedCall, ending: Ending
) -> None:
    """The result, where the code that asked finds it; the slot shows how it went."""
    draft = await tx.edit(NESTED, address(nested.parent, nested.key))
    draft["taskId"] = task
    draft["result"] = _result(task, ending)
    await spend_on_tool(tx, conversation, nested.call.name, ending.usage)
    state = await tx.edit(live.LIVE, live.at(live.LIVE, conversation))
    slot = live.slot_of(state, task, "nestedTools")
    if slot is not None:
        summary: dict[str, Json] = {"isError": ending.is_error}
        if ending.duration_ms is not None:
            summary["durationMs"] = ending.duration_ms
        if ending.usage is not None:
            summary["usage"] = ending.usage
        if ending.text:
            summary["error"] = ending.text[:LONGEST_ERROR]
        live.end_slot(slot, {"summary": summary})


def _result(task: TaskId, ending: Ending) -> JsonObject:
    result: dict[str, Json] = {"taskId": task, "isError": ending.is_error, "diagnostics": list(ending.diagnostics)}
    text = "".join(str(block.get("text", "")) for block in ending.content if block.get("type") == "text")
    result["structuredOutput"] = ending.structured if ending.structured is not ABSENT else text
    if ending.details is not ABSENT:
        result["details"] = ending.details
    if ending.usage is not None:
        result["usage"] = ending.usage
    if ending.duration_ms is not None:
        result["durationMs"] = ending.duration_ms
    return result


def forget_nested(draft: dict[str, Json], parent: TaskId) -> None:
    """A call that ended takes the slots of its nested calls with it."""
    slots = draft.get("nestedTools")
    if isinstance(slots, list):
        kept = [slot for slot in slots if not (isinstance(slot, Mapping) and slot.get("parentTaskId") == parent)]
        if kept:
            draft["nestedTools"] = kept
        else:
            del draft["nestedTools"]


def _error_of(result: Mapping[str, Json]) -> str | None:
    for item in items(result.get("diagnostics")):
        if isinstance(item, Mapping) and item.get("severity") == "error":
            return str(item.get("message"))
    text = result.get("structuredOutput")
    return text if isinstance(text, str) and text else None
