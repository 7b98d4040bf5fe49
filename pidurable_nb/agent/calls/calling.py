"""Owns how a tool call ends: its result, its slot, its task, in one commit, and with the round's last one what follows.

The last result of a round that asks for nothing special also ends the waiting generation and begins the next request,
in the same commit, where no hook has to be asked and the prompt has not changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pidurable_nb.agent.extending.hooking import run_on_abort
from pidurable_nb.agent.extending.resolution import Agent
from pidurable_nb.agent.extending.workshop import Workshop
from pidurable_nb.agent.generating.generation import request_of
from pidurable_nb.agent.generating.preparing import Prepared, prepare
from pidurable_nb.agent.inbox import runs
from pidurable_nb.agent.inbox.boundary import items_of
from pidurable_nb.agent.round.nesting import forget_nested, store_nested
from pidurable_nb.agent.round.results import Code, Ending, append_result, as_output, ending_of, partial_output
from pidurable_nb.agent.round.rounds import controls_of, slots_of
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.stored.recovery import GENERATION
from pidurable_nb.agent.stored.spending import spend_on_tool
from pidurable_nb.agent.stored.stored_call import ModelCall, NestedCall, member_of, stored_call
from pidurable_nb.engine.launching import Launching
from pidurable_nb.engine.phase import Aborted, Done, Failed
from pidurable_nb.engine.registry import TaskDefinition
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.engine.transition import Finish, Reserve, advance
from pidurable_nb.engine.tx import TaskTx
from pidurable_nb.ids import ABSENT, EntryId, Json, JsonObject, TaskId
from pidurable_nb.records import task as stored_tasks
from pidurable_nb.records.message import ToolCall, items
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.tools.tool import OutputLimits


async def settle_call(
    rt: Runtime, shop: Workshop, agent: Agent, stored: ModelCall | NestedCall, ending: Ending
) -> Done[Json] | Failed:
    """Commit the result. A tool that raised ends failed: what it owns is not supervised any more (O2)."""
    if isinstance(stored, NestedCall):
        async with rt.commit() as tx:
            await store_nested(tx.rows, rt.id, rt.conversation, stored, ending)
            return tx.become(_outcome(ending, {"kind": "nested"}))
    follows = await _next_request(rt, shop, agent, ending)
    with rt.engine.runs.launching() as launch:
        async with rt.commit() as tx:
            carry = follows if follows is not None and await _may_follow(tx, rt, follows) else None
            entry = await write_result(tx.rows, rt, stored.call, ending)
            if carry is not None:
                await _begin_next(tx.rows, launch, rt, shop, carry, entry)
            result: dict[str, Json] = {"kind": "model", "entryId": entry}
            if ending.control and ending.how == "completed":
                result["control"] = ending.control
            return tx.become(_outcome(ending, result))


def _outcome(ending: Ending, result: Json) -> Done[Json] | Failed:
    return Done(result) if ending.how == "completed" else Failed(ending.text, result=result)


async def write_result(tx: Transaction, rt: Runtime, call: ToolCall, ending: Ending) -> EntryId:
    """The result entry, what it spent, and the slot that is done with it."""
    entry = append_result(tx, rt.conversation, call, ending)
    await spend_on_tool(tx, rt.conversation, call.name, ending.usage)
    draft = await tx.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
    slot = live.slot_of(draft, rt.id)
    if slot is not None:
        live.end_slot(slot, {"entry": entry})
    forget_nested(draft, rt.id)
    return entry


# -- the next request in the same commit -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Follows:
    """What may follow the result at once: the generation that waits for it, and the request that comes next."""

    generation: TaskRecord
    on: tuple[TaskId, ...]
    assistant: EntryId
    prepared: Prepared


async def _next_request(rt: Runtime, shop: Workshop, agent: Agent, ending: Ending) -> Follows | None:
    """Off the line: whether this looks like the last result of a plain round, and the request behind it."""
    if ending.control or any(named.hooks.after_tools is not None for named in agent.hooks):
        return None
    waiting = _waiting_generation(rt)
    if waiting is None:
        return None
    generation, on, assistant = waiting
    if any(rt.engine.table.live_task(id) is not None for id in on if id != rt.id):
        return None
    if len(on) > 1:
        await rt.engine.session.settled()  # the table is ahead of what is stored: what the others asked for is not yet
    ended = [await rt.engine.session.task(id) for id in on if id != rt.id]
    if controls_of([record for record in ended if record is not None], len(on)).asks:
        return None
    prepared = await prepare(rt, shop)
    if prepared is None or prepared.planned:
        return None
    policy = shop.settings().compaction
    result: dict[str, Json] = {"role": "toolResult", "content": list(ending.content)}
    if prepared.crowded(policy, result, by=policy.background):
        return None
    return Follows(generation=generation, on=on, assistant=assistant, prepared=prepared)


def _waiting_generation(rt: Runtime) -> tuple[TaskRecord, tuple[TaskId, ...], EntryId] | None:
    """The generation that waits for this call in a round of which nothing is left to start, and the round's calls."""
    table = rt.engine.table
    own = table.live_task(rt.id)
    generation = table.live_task(own.owner) if own is not None and own.owner is not None else None
    if generation is None or generation.kind != GENERATION or generation.abort_requested:
        return None
    state, checkpoint = generation.state, generation.checkpoint
    if not isinstance(state, stored_tasks.Waiting) or checkpoint is None or checkpoint.get("phase") != "tools":
        return None
    assistant = checkpoint.get("assistant")
    calls = tuple(TaskId(id) for id in items(checkpoint.get("tools")) if isinstance(id, int))
    if items(checkpoint.get("pending")) or not isinstance(assistant, int) or rt.id not in state.on:
        return None
    return generation, calls, EntryId(assistant)


async def _may_follow(tx: TaskTx, rt: Runtime, follows: Follows) -> bool:
    """On the line: whether everything is still as it looked, and nothing waits in the inbox."""
    table = rt.engine.table
    if table.live_task(follows.generation.id) is not follows.generation or table.has_below(rt.id):
        return False
    if any(table.live_task(id) is not None for id in follows.on if id != rt.id):
        return False
    here = rt.conversation
    if items_of(await tx.rows.read(live.INBOX, live.at(live.INBOX, here))):
        return False
    state = await tx.rows.read(live.LIVE, live.at(live.LIVE, here))
    return state is not None and all(slot.get("taskId") in (None, *follows.on) for slot in slots_of(state))


async def _begin_next(
    tx: Transaction, launch: Launching, rt: Runtime, shop: Workshop, follows: Follows, cutoff: EntryId
) -> None:
    """T2: the generation is freed and ends, and the next one stands at its request, without code in between."""
    now = tx.now_ms()
    outcome = stored_tasks.Completed(result={"entryId": follows.assistant})
    running = advance(follows.generation, Reserve(), now_ms=now)
    tx.put_task(advance(running, Finish(outcome, drained=True), now_ms=now), before=follows.generation)
    draft = await tx.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
    inputs = runs.inputs_of(draft)
    draft.pop("tools", None)
    draft["generation"] = {"attempt": 1}
    request = request_of(follows.prepared, shop.settings(), attempt=1, cutoff=cutoff)
    definition = rt.engine.registry.definition(GENERATION)
    assert isinstance(definition, TaskDefinition)
    await runs.start(tx, launch, rt.conversation, inputs, definition.checkpoint(request))


# -- aborted -----------------------------------------------------------------------------------------------------------


async def abort_call(rt: Runtime, shop: Workshop) -> Aborted:
    """O2: the aborted result, from what was stored of the call, after hooks had their say. What it owned has ended."""
    stored = await stored_call(rt)
    shop.pinned.pop(rt.id, None)
    agent = await shop.agent(rt.conversation)
    output, details, said = partial_output(await slot_now(rt, shop, stored))
    code, text = _why_aborted(rt, stored.call)
    ending = Ending.error(code, text, outcome="aborted", output=output, details=details, diagnostics=said)
    ending = await _on_abort(rt, agent, stored.call, ending)
    async with rt.commit() as tx:
        if isinstance(stored, NestedCall):
            await store_nested(tx.rows, rt.id, rt.conversation, stored, ending)
            return tx.become(Aborted(result={"kind": "nested"}))
        entry = await write_result(tx.rows, rt, stored.call, ending)
        return tx.become(Aborted(result={"kind": "model", "entryId": entry}))


async def slot_now(rt: Runtime, shop: Workshop, stored: ModelCall | NestedCall) -> JsonObject:
    """What `pi.live` holds of the call, as stored."""
    state = await shop.live(rt.conversation)
    return next((slot for slot in slots_of(state, member_of(stored)) if slot.get("taskId") == rt.id), {})


def _why_aborted(rt: Runtime, call: ToolCall) -> tuple[Code, str]:
    """O7: a call that an unsafe one made is given up by the opening that finds it; any other was aborted."""
    record = rt.engine.table.live_task(rt.id)
    if record is not None and record.abort_reason == "restart":
        return "abandoned", f"{call.name} was given up: the call that made it was cut off and does not run again"
    return "aborted", f"{call.name} was aborted"


async def _on_abort(rt: Runtime, agent: Agent, call: ToolCall, ending: Ending) -> Ending:
    if not any(named.hooks.on_abort is not None for named in agent.hooks):
        return ending
    shown = as_output(ending)
    left = await run_on_abort(agent.hooks, call, shown, api=rt, report=rt.report)
    if left is shown:
        return ending
    tool = agent.tool(call.name)
    replaced = ending_of(
        left, retained="", reported=(), details=ABSENT, limits=tool.limits if tool is not None else OutputLimits(),
        cut=None, duration_ms=None,
    )  # fmt: skip
    return replace(replaced, how="aborted", text=ending.text, control={})
