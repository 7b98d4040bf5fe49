"""Owns running a tool once: what it reports meanwhile, gives, and raises (E4). Never commits a result."""

from __future__ import annotations

import asyncio
from typing import Final

from pidurable_nb.agent.calls.call import Call, answer
from pidurable_nb.agent.extending.workshop import Workshop
from pidurable_nb.agent.generating.progress import Throttle
from pidurable_nb.agent.round.results import Ending, ending_json, ending_of, read_ending, refused
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.stored.stored_call import ModelCall, NestedCall, member_of
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.errors import InvalidArguments, ToolError
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.message import ToolCall
from pidurable_nb.tools.tool import Output, Tool

LONGEST_NAME: Final = 80


def effect_name(tool: str, arguments: JsonObject) -> str:
    """How the world counts a call: the tool and what it was asked, so that two calls are two effects."""
    given = ", ".join(f"{name}={dumps(value)}" for name, value in arguments.items())
    name = f"{tool}({given})" if given else tool
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


async def execute(
    rt: Runtime, shop: Workshop, stored: ModelCall | NestedCall, tool: Tool, arguments: JsonObject, cwd: str | None
) -> Ending:
    """Run the tool with these arguments, as one effect. What it raises is an error result (E4).

    Raises what ends the invocation: cancellation, a failed session.
    """
    call = Call(rt, shop, stored.call, tool, arguments)
    loop = asyncio.get_running_loop()
    began: float | None = None

    def duration() -> int | None:
        return None if began is None else round((loop.time() - began) * 1000)

    async def store() -> int:
        return await _store_progress(rt, stored, call)

    async def do() -> Json:
        async with Throttle(shop.settings().progress_every, store) as throttle:
            if not isinstance(stored, NestedCall) or stored.progress:
                call.changed = throttle.touch
            try:
                output = await _run(rt, tool, arguments, call)
            finally:
                call.end()
        ending = ending_of(
            output, retained=call.retained.text, reported=call.reported, details=call.detailed, limits=tool.limits,
            cut=call.truncated, duration_ms=duration(),
        )  # fmt: skip
        return ending_json(ending)

    rt.abandons = tool.replay == "unsafe"
    try:
        call.environment = await shop.environment_of(rt.conversation, cwd)
        began = loop.time()
        return read_ending(await rt.effect(effect_name(stored.call.name, arguments), do))
    except Exception as error:
        if rt.over or rt.engine.over:
            raise
        if isinstance(error, InvalidArguments) and error.tool == tool.name:
            return refused("invalid_arguments", str(error))  # stored for a tool that has changed since
        return _raised(call, stored.call, error, duration())
    finally:
        rt.abandons = False
        call.end()


async def _run(rt: Runtime, tool: Tool, arguments: JsonObject, call: Call) -> Output:
    """A cancellation that nobody asked this call for is an error of the tool: it waited for something cancelled."""
    running = asyncio.current_task()
    assert running is not None
    asked = running.cancelling()
    try:
        return await tool.execute(arguments, call)
    except asyncio.CancelledError as error:
        if rt.over or running.cancelling() > asked:
            raise
        raise ToolError(f"{call.name} waited for something that was cancelled") from error
    finally:
        # A task group whose member failed may have asked for the cancellation of this task, and never takes it back.
        while not rt.over and running.cancelling() > asked:
            running.uncancel()


def _raised(call: Call, asked: ToolCall, error: Exception, duration_ms: int | None) -> Ending:
    try:
        text = str(error)
    except Exception:  # an error of the user's that cannot even say what it is
        text = ""
    text = text or f"{asked.name} raised {type(error).__name__}"
    said = [*call.reported, *((call.truncated.json(),) if call.truncated is not None else ())]
    return Ending.error(
        "tool_error", text[:2000], outcome="failed", output=call.retained.text, details=call.detailed,
        diagnostics=said, duration_ms=duration_ms,
    )  # fmt: skip


async def _store_progress(rt: Runtime, stored: ModelCall | NestedCall, call: Call) -> int:
    """V5: what the call reported so far, in its slot of `pi.live`. Returns its size."""
    block = rt.engine.session.block(
        rt.subject, name="progress", conversation=rt.conversation, by_task=rt.id, laws=("V5",), text="progress"
    )
    waiting: list[asyncio.Future[None]] = []
    try:
        async with block as tx:
            rt.gate()
            draft = await tx.edit(live.LIVE, live.at(live.LIVE, rt.conversation))
            slot = live.slot_of(draft, rt.id, member_of(stored))
            fields = call.progress_fields()
            waiting = call.take_waiting()  # who reports while this is being stored waits for the next one
            if slot is not None:
                slot.update(fields)
    except Exception as error:  # nothing is stored any more: nobody waits for it either
        answer([*waiting, *call.take_waiting()], error)
        raise
    answer(waiting)
    return len(dumps(fields))
