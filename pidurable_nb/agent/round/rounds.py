"""Owns a round of tool calls: which calls become tasks, what each begins with, and what their end leads to.

Planned off the mutation line, with the code of tools; written in the commit of the answer that called. A call that no
hook is asked about begins at its intent, so that answer and intent are one commit (E1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pidurable_nb.agent.extending.resolution import Agent
from pidurable_nb.agent.extending.workshop import Workshop
from pidurable_nb.agent.request.prompt import replay
from pidurable_nb.agent.round.results import Ending, append_result, refused
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.stored.recovery import TOOL
from pidurable_nb.engine.launching import Launching
from pidurable_nb.engine.phase import TaskRef
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.errors import InvalidArguments
from pidurable_nb.ids import EntryId, Json, JsonObject, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.message import Message, ToolCall, blocks_of, calls_of, items
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.tools.tool import Tool

TOOL_VERSION = 2
CALL: JsonObject = {"phase": "call"}
"""Where a call begins that hooks are asked about, or whose arguments do not fit."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a generation waits for: the entry that called, the calls' tasks so far, the calls that come later."""

    assistant: EntryId
    tools: tuple[TaskRef[Json], ...]
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A call of the answer. `tool` is set where it begins at its intent, with these arguments."""

    call: ToolCall
    offered: bool
    tool: Tool | None = None
    arguments: JsonObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """The calls in order, and whether they run one by one."""

    message: Message
    calls: tuple[PlannedCall, ...]
    sequential: bool

    @property
    def begun(self) -> tuple[PlannedCall, ...]:
        """The calls that begin with the answer: all that were offered, or the first of them."""
        offered = tuple(planned for planned in self.calls if planned.offered)
        return offered[:1] if self.sequential else offered

    @property
    def unsafe(self) -> bool:
        """E5: whether an unsafe intent is part of the commit."""
        return any(planned.tool is not None and planned.tool.replay == "unsafe" for planned in self.begun)


def distinct(message: Message) -> Message:
    """The answer with an id of its own for every call: results name their call by it."""
    seen: set[str] = set()
    blocks: list[Json] = []
    for block in blocks_of(message):
        id = block.get("id")
        if block.get("type") == "toolCall" and isinstance(id, str):
            fresh, n = id or "call", 2
            while fresh in seen:
                fresh, n = f"{id}-{n}", n + 1
            seen.add(fresh)
            block = block if fresh == id else {**block, "id": fresh}
        blocks.append(block)
    return {**message, "content": blocks}


def plan_round(agent: Agent, message: Message, shown: Sequence[Message], shop: Workshop) -> RoundPlan:
    """What to do with the calls of an answer. `shown` is the context of its request: it says what was offered."""
    message = distinct(message)
    offered = {str(tool.get("name")) for tool in replay(shown).tools}
    hooked = any(named.hooks.before_tool is not None for named in agent.hooks)
    calls = tuple(_planned(call, call.name in offered, agent, hooked) for call in calls_of(message))
    called = (agent.tool(planned.call.name) for planned in calls if planned.offered)
    modes = {tool.mode for tool in called if tool is not None}
    sequential = shop.settings().tool_execution == "sequential" or "sequential" in modes
    return RoundPlan(message=message, calls=calls, sequential=sequential)


def _planned(call: ToolCall, offered: bool, agent: Agent, hooked: bool) -> PlannedCall:
    tool = agent.tool(call.name)
    if not offered or hooked or tool is None or call.error is not None:
        return PlannedCall(call=call, offered=offered)
    try:
        return PlannedCall(call=call, offered=True, tool=tool, arguments=tool.validated(call.arguments))
    except InvalidArguments:
        return PlannedCall(call=call, offered=True)


async def write_round(
    tx: Transaction, launch: Launching, rt: Runtime, shop: Workshop, plan: RoundPlan, assistant: EntryId
) -> Round:
    """Make the tasks and slots of the round; a call that was not offered has its result at once."""
    slots: list[Json] = []
    tasks: list[TaskRef[Json]] = []
    pending: list[str] = []
    for planned in plan.calls:
        slot: dict[str, Json] = {"callId": planned.call.id, "name": planned.call.name, "status": "pending"}
        if not planned.offered:
            ending = refused("tool_unavailable", f"the tool {planned.call.name!r} is not available; it was not offered")
            slot.update({"status": "done", "entry": append_result(tx, rt.conversation, planned.call, ending)})
        elif plan.sequential and tasks:
            pending.append(planned.call.id)
        else:
            record = _put_call(tx, launch, rt, shop, planned, assistant)
            slot.update({"status": "running" if record.phase == "execute" else "pending", "taskId": record.id})
            tasks.append(TaskRef(record.id))
        slots.append(slot)
    draft = await tx.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
    draft.pop("generation", None)
    draft["tools"] = slots
    return Round(assistant, tuple(tasks), tuple(pending))


def _put_call(
    tx: Transaction, launch: Launching, rt: Runtime, shop: Workshop, planned: PlannedCall, assistant: EntryId
) -> TaskRecord:
    """A task of the round: at its intent where that can run at once, else at its beginning (E1)."""
    record = call_task(tx, rt, assistant, planned.call.id)
    if planned.tool is not None and planned.arguments is not None:
        checkpoint: JsonObject = {
            "phase": "execute", "arguments": planned.arguments, "replay": planned.tool.replay
        }  # fmt: skip
        intent = replace(record, state=stored.Pending(checkpoint=checkpoint))
        if launch.may_start(intent):  # an intent that is stored and does not start would look cut to a recovery
            shop.pinned[record.id] = planned.tool
            return launch.put(tx, intent)
    return launch.put(tx, record)


def call_task(tx: Transaction, rt: Runtime, assistant: EntryId, call: str) -> TaskRecord:
    """The task of a model's call, owned by the generation."""
    return TaskRecord(
        id=TaskId(tx.mint()),
        conversation=rt.conversation,
        kind=TOOL,
        version=TOOL_VERSION,
        input={"kind": "model", "assistant": assistant, "callId": call},
        state=stored.Pending(checkpoint=CALL),
        owner=rt.id,
    )


# -- the end of a round ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """What the results of a round ask for together."""

    add_tools: tuple[str, ...] = ()
    terminate: bool = False
    handoff: str | None = None

    @property
    def ends_run(self) -> bool:
        return self.terminate or self.handoff is not None

    @property
    def asks(self) -> bool:
        """Whether the round does not just go on."""
        return self.ends_run or bool(self.add_tools)


def controls_of(records: Sequence[TaskRecord], calls: int) -> Controls:
    """The controls of the calls' results, in call order: all must terminate, the last handoff counts.

    `calls` is how many results the round has; those without a task ask for nothing.
    """
    asked = [control for record in records if (control := _control(record)) is not None]
    names = dict.fromkeys(name for control in asked for name in items(control.get("addTools")) if isinstance(name, str))
    handoffs = [text for control in asked if isinstance(text := control.get("handoff"), str)]
    ending = sum(control.get("terminate") is True for control in asked)
    return Controls(
        add_tools=tuple(names),
        terminate=calls > 0 and ending == calls,
        handoff=handoffs[-1] if handoffs else None,
    )


def _control(record: TaskRecord) -> JsonObject | None:
    outcome = record.outcome
    result = outcome.result if isinstance(outcome, stored.Completed) else None
    control = result.get("control") if isinstance(result, Mapping) else None
    return control if isinstance(control, Mapping) else None


def slots_of(state: JsonObject, member: Literal["tools", "nestedTools"] = "tools") -> tuple[JsonObject, ...]:
    """The slots of a round, in call order."""
    return tuple(slot for slot in items(state.get(member)) if isinstance(slot, Mapping))


def results_of(state: JsonObject) -> tuple[EntryId, ...]:
    """The round's result entries, in call order."""
    return tuple(EntryId(entry) for slot in slots_of(state) if isinstance(entry := slot.get("entry"), int))


def not_started(tx: Transaction, rt: Runtime, message: Message | None, pending: Sequence[str]) -> None:
    """A round that is aborted: the calls that never began get an aborted result (V2)."""
    for call in calls_of(message) if message is not None else ():
        if call.id in pending:
            ending = Ending.error("aborted", f"{call.name} was aborted before it began", outcome="aborted")
            append_result(tx, rt.conversation, call, ending)
