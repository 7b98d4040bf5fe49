"""Owns which call a `pi.tool` task is: a model's, out of the answer that asked for it, or one of another call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import EntryId, TaskId
from pidurable_nb.records.message import ToolCall, calls_of
from pidurable_nb.session.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A call that an answer asked for."""

    call: ToolCall
    assistant: EntryId


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedCall:
    """A call that another call made, under a key that its reruns use again."""

    call: ToolCall
    parent: TaskId
    parent_call: str
    key: str
    progress: bool


def member_of(stored: ModelCall | NestedCall) -> Literal["tools", "nestedTools"]:
    """Where in `pi.live` the call's slot is."""
    return "tools" if isinstance(stored, ModelCall) else "nestedTools"


def nested_name(input: object) -> str | None:
    """The tool that a nested call is of; None for a call of a model, which its answer names."""
    match input:
        case {"kind": "nested", "call": {"name": str(name)}}:
            return name
        case _:
            return None


async def stored_call(rt: Runtime) -> ModelCall | NestedCall:
    """The call that the running task stands for. Raises StorageRequestError when the store holds no such call."""
    return await call_of(rt.engine.session, rt.id, rt.input)


async def call_of(session: Session, id: TaskId, input: object) -> ModelCall | NestedCall:
    """The call that the input of a task names."""
    nested = nested_call(input)
    if nested is not None:
        return nested
    match input:
        case {"assistant": int(assistant), "callId": str(asked)}:
            entry = await session.entry(EntryId(assistant))
            for message in (entry.entry.model or ()) if entry is not None else ():
                for one in calls_of(message):
                    if one.id == asked:
                        return ModelCall(call=one, assistant=EntryId(assistant))
        case _:
            pass
    raise StorageRequestError(f"task {id}: the store holds no call that its input names: {input!r}"[:500])


def nested_call(input: object) -> NestedCall | None:
    """The call that a call made; None for a call of a model, and for what is none."""
    match input:
        case {"kind": "nested", "parent": int(parent), "parentCallId": str(above), "key": str(key), "call": call} if (
            isinstance(call, Mapping)
        ):
            found = calls_of({"content": [{**call, "type": "toolCall"}]})
            progress = isinstance(input, Mapping) and input.get("progress") is not False
            for one in found:
                return NestedCall(call=one, parent=TaskId(parent), parent_call=above, key=key, progress=progress)
        case _:
            pass
    return None
