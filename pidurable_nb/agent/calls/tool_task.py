"""Owns a tool call as a durable task, as phases in the stored format (E1 to E5).

    call -> execute -> its result, in one commit with the end of the task

`call` asks hooks and records the intent; `execute` runs the tool. Whoever finds a task in `execute` and runs this code
may do so: a cut call that must not run again is settled without code (`interrupting`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pidurable_nb.agent.calls.calling import abort_call, settle_call, slot_now
from pidurable_nb.agent.calls.executing import execute
from pidurable_nb.agent.extending.hooking import Block, run_after_tool, run_before_tool
from pidurable_nb.agent.extending.resolution import Agent
from pidurable_nb.agent.household import shop_of
from pidurable_nb.agent.round.results import Ending, as_output, ending_of, interrupted, refused
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.stored.stored_call import ModelCall, NestedCall, member_of, stored_call
from pidurable_nb.engine.phase import Aborted, Done, Failed, Phase
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.errors import InvalidArguments
from pidurable_nb.ids import ABSENT, Json, JsonObject
from pidurable_nb.records.message import ToolCall
from pidurable_nb.tools.tool import Tool


class Begin(Phase[Json], task="pi.tool", version=2, phase="call"):
    """Find the tool, ask the hooks, check the arguments, and record what is about to be done (E1)."""

    async def run(self, rt: Runtime) -> Execute | Done[Json] | Failed:
        shop = shop_of(rt)
        stored = await stored_call(rt)
        agent = await shop.agent(rt.conversation)
        decided = await self._decide(rt, agent, stored.call)
        if isinstance(decided, Ending):
            return await settle_call(rt, shop, agent, stored, decided)
        tool, arguments = decided
        unsafe = tool.replay == "unsafe"
        shop.pinned[rt.id] = tool
        async with rt.commit(barrier=unsafe) as tx:
            draft = await tx.rows.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
            slot = live.slot_of(draft, rt.id, member_of(stored))
            if slot is not None:
                slot["status"] = "running"
            return tx.become(Execute(arguments, tool.replay))

    async def _decide(self, rt: Runtime, agent: Agent, call: ToolCall) -> tuple[Tool, JsonObject] | Ending:
        """What to run with which arguments, or the result of a call that is not made."""
        tool = agent.tool(call.name)
        if tool is None:
            return refused("tool_unavailable", f"the tool {call.name!r} is not available now")
        if call.error is not None:
            return refused("invalid_arguments", call.error)
        try:
            arguments = tool.validated(call.arguments)
            asked = ToolCall(id=call.id, name=call.name, arguments=arguments)
            left = await run_before_tool(agent.hooks, asked, api=rt, report=rt.report)
            if isinstance(left, Block):
                return refused("blocked", left.text)
            return tool, arguments if left.arguments is asked.arguments else tool.validated(left.arguments)
        except InvalidArguments as error:
            return refused("invalid_arguments", str(error))

    async def abort(self, rt: Runtime) -> Aborted:
        return await abort_call(rt, shop_of(rt))


class Execute(Phase[Json]):
    """Run the tool with the stored arguments, and tell the model what came of it."""

    arguments: Json
    replay: Literal["safe", "unsafe"]

    async def run(self, rt: Runtime) -> Done[Json] | Failed:
        shop = shop_of(rt)
        stored = await stored_call(rt)
        agent = await shop.agent(rt.conversation)
        tool = shop.pinned.pop(rt.id, None) or self._replayed(agent.tool(stored.call.name))
        if tool is None or not isinstance(self.arguments, Mapping):
            slot = await slot_now(rt, shop, stored)
            return await settle_call(rt, shop, agent, stored, interrupted(stored.call.name, slot))
        ending = await execute(rt, shop, stored, tool, self.arguments, agent.cwd)
        ending = await self._after(rt, agent, stored, tool, ending)
        return await settle_call(rt, shop, agent, stored, ending)

    def _replayed(self, tool: Tool | None) -> Tool | None:
        """E2: the tool of a call that a recovery found here; None when it may have changed since that was decided."""
        return tool if tool is not None and self.replay == tool.replay == "safe" else None

    async def _after(
        self, rt: Runtime, agent: Agent, stored: ModelCall | NestedCall, tool: Tool, ending: Ending
    ) -> Ending:
        """What the hooks make of the result, of a raise too; what they put in its place is bounded like it."""
        if not any(named.hooks.after_tool is not None for named in agent.hooks):
            return ending
        shown = as_output(ending)
        assert isinstance(self.arguments, Mapping)
        call = ToolCall(id=stored.call.id, name=stored.call.name, arguments=self.arguments)
        left = await run_after_tool(agent.hooks, call, shown, api=rt, report=rt.report)
        if left is shown:
            return ending
        replaced = ending_of(
            left, retained="", reported=(), details=ABSENT, limits=tool.limits, cut=None,
            duration_ms=ending.duration_ms,
        )  # fmt: skip
        return replace(replaced, how=ending.how, text=ending.text)

    async def abort(self, rt: Runtime) -> Aborted:
        return await abort_call(rt, shop_of(rt))
