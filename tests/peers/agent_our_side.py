"""Our half of the travelling agents: a script that holds many stores at once, until it is killed or has finished them.

`agent_our_side.py LIFE FOLDER REPORT`; the worlds are JSON on the standard input: what is said, how the model answers,
where this life stands still. `agent_their_side.py` is the other half. Both append what they do outside to a ledger
beside each store. Never checks anything.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pidurable_nb import AgentChange, Answered, Call, Conversation, Extension, Harness, Settings, ToolError, tool
from pidurable_nb.agent.extending.extension import Hooks
from pidurable_nb.agent.extending.settings import Compaction, Retry
from pidurable_nb.clock import SystemClock
from pidurable_nb.ids import ConversationId, Json, JsonObject, Seq
from pidurable_nb.models.model import (
    ArgumentsDelta,
    CallStart,
    Finished,
    ModelEvent,
    ModelRef,
    ModelRequest,
    TextDelta,
)
from pidurable_nb.records.message import Message, ToolCall, blocks_of, role_of, text_of
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import Commit, PutTask
from pidurable_nb.tools.tool import Tool

LIFE, FOLDER, REPORT = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
SEEDED_MS, AN_HOUR_MS = 1_900_000_000_000, 3_600_000


class ShiftedClock(SystemClock):
    """The wall clock, somewhere else: each life begins at a known time."""

    def __init__(self, start_ms: int) -> None:
        self._shift_ms = start_ms - super().now_ms()

    def now_ms(self) -> int:
        return super().now_ms() + self._shift_ms


@dataclass
class Outside:
    """What a store's code does to the rest of the world, and where it stands still."""

    name: str
    held: frozenset[str]
    arrived: set[str] = field(default_factory=set)
    requests: list[Json] = field(default_factory=list)

    async def touch(self, effect: str) -> None:
        with (FOLDER / f"{self.name}.ledger").open("a", encoding="utf-8") as ledger:
            ledger.write(effect + "\n")
        self.arrived.add(effect)
        await self.hold(effect)

    async def hold(self, place: str) -> None:
        if place in self.held:
            await asyncio.Event().wait()


class Halting(SqliteStorage):
    """A store whose owner hears of no commit behind the n-th; it is on disk all the same."""

    def __init__(self, path: Path, outside: Outside, halt: int | str | None) -> None:
        super().__init__(path, durability="kill")  # as the other half keeps its stores
        self._outside, self._halt = outside, halt
        self._left = halt if isinstance(halt, int) else 1

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        seqs = await super().commit(group)
        if isinstance(self._halt, int):
            self._left -= len(group)
        elif self._halt is not None and [f"{t.kind}/{t.status}" for t in _tasks(group)].count(self._halt):
            self._left = 0
        if self._left <= 0:
            self._outside.held |= {"halted"}
            await self._outside.touch("halted")
        return seqs


def _tasks(group: Sequence[Commit]) -> list[Any]:
    return [write.record for commit in group for write in commit.writes if isinstance(write, PutTask)]


# -- the model ---------------------------------------------------------------------------------------------------------


def shown(message: Message) -> list[Json]:
    """A message as it matters to a model."""
    said: list[Json] = [role_of(message)]
    for block in blocks_of(message):
        if block["type"] == "toolCall":
            said.append([block["id"], block["name"], block["arguments"]])
        else:
            said.append(str(block.get("text")).split("<harness>")[0])
    if role_of(message) == "system":
        said += [message.get("sections", {}), message.get("toolsAdded", [])]
    if role_of(message) == "toolResult":
        said += [message["toolCallId"], message["isError"]]
    return said


def asked_for(messages: Sequence[Message]) -> str:
    """What a request is about: the newest text of the user, or the tools whose results came last."""
    if any("<conversation>" in text_of(message) for message in messages if role_of(message) == "user"):
        return "summary"
    last = [message for message in messages if role_of(message) != "system"][-1]
    return f"after {last['toolName']}" if role_of(last) == "toolResult" else text_of(last)


class Teller:
    """A model that answers by the world's script."""

    ref = ModelRef("scripted", "script-1")
    api = "scripted"
    context_window, max_tokens = 200_000, 8_000

    def __init__(self, outside: Outside, script: dict[str, Any]) -> None:
        self._outside, self._script = outside, script

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        asked = asked_for(request.messages)
        if asked != "summary":
            self._outside.requests.append([asked, [shown(message) for message in request.messages]])
        await self._outside.touch(f"ask {asked}")
        async for event in self._told(asked, self._script.get(asked, {"say": [f"answer to: {asked}"]})):
            yield event

    async def _told(self, asked: str, step: dict[str, Any]) -> AsyncIterator[ModelEvent]:
        for text in step.get("say", ()):
            yield TextDelta(0, text)
            await self._outside.hold(f"said {asked}")
        for index, (id, name, arguments) in enumerate(step.get("calls", ()), start=1):
            yield CallStart(index, id, name)
            yield ArgumentsDelta(index, json.dumps(arguments))
        if "break" in step:
            yield Finished(stop_reason="error", error=step["break"])
        elif "defer" in step:
            handle = {"id": step["defer"], "asked": asked, "pollAfterMs": 60_000}
            yield Finished(stop_reason="deferred", handle=handle)
        else:
            yield Finished(stop_reason="toolUse" if "calls" in step else "stop")

    async def fetch(self, handle: JsonObject) -> AsyncIterator[ModelEvent]:
        await self._outside.touch(f"fetch {handle['id']}")
        async for event in self._told(str(handle["asked"]), {"say": [f"fetched {handle['id']}"]}):
            yield event

    async def cancel(self, handle: JsonObject) -> None:
        await self._outside.touch(f"cancel {handle['id']}")


# -- tools: declared as the other half declares them, letter by letter -------------------------------------------------


def tools_of(outside: Outside) -> list[Tool]:
    async def transfer(amount: float, call: Call) -> None:
        """Move money"""
        call.progress(f"debited {amount:g}\n")
        await call.details({"step": 2})
        await outside.touch(f"transfer {amount:g}")
        call.progress("credited\n")

    async def lookup(what: str) -> str:
        """Look something up"""
        await outside.touch(f"lookup {what}")
        return f"{what} is up"

    async def step(n: float) -> str:
        """Take a step"""
        await outside.touch(f"step {n:g}")
        return f"took step {n:g}"

    async def delegate(call: Call) -> str:
        """Run a helper"""
        await outside.touch("delegate")
        child = await call.recall("child", int)
        if child is None:
            child = (await call.conversation()).id
            await call.memo("child", child)
        asked = await call.open(ConversationId(child)).submit("child job", request_id=f"delegate:{call.task_id}")
        settled = await asked.wait()
        return "child done" if isinstance(settled, Answered) else "child failed"

    async def nested(name: str, inner: str, call: Call) -> str:
        await outside.touch(name)
        given: JsonObject = {"what": "inner"} if inner == "lookup" else {"amount": 7}
        try:
            return f"{inner} said {await call.run_tool(inner, given, key='inner')}"
        except ToolError:
            return f"{inner} failed"

    async def outer(inner: str, call: Call) -> str:
        """Call another tool"""
        return await nested("outer", inner, call)

    async def spend(inner: str, call: Call) -> str:
        """Call another tool, once"""
        return await nested("spend", inner, call)

    number: JsonObject = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
    text: JsonObject = {"type": "object", "properties": {"inner": {"type": "string"}}, "required": ["inner"]}
    amount: JsonObject = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
    what: JsonObject = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}
    return [
        replace(tool(name="transfer")(transfer), parameters=amount),
        replace(tool(name="lookup", replay="safe")(lookup), parameters=what),
        replace(tool(name="step", mode="sequential")(step), parameters=number),
        replace(tool(name="delegate", replay="safe")(delegate), parameters={"type": "object"}),
        replace(tool(name="outer", replay="safe")(outer), parameters=text),
        replace(tool(name="spend")(spend), parameters=text),
    ]


def hooks_of(outside: Outside, world: dict[str, Any]) -> list[Extension]:
    async def before_tool(call: ToolCall, api: object) -> None:
        await outside.touch(f"before {call.id}")

    return [Extension("watching", hooks=Hooks(before_tool=before_tool))] if world.get("hooked") else []


# -- a store's life ----------------------------------------------------------------------------------------------------


@dataclass
class Living:
    """A store that is open, and what is done to it, step by step."""

    outside: Outside
    harness: Harness
    root: Conversation
    forks: list[Conversation] = field(default_factory=list)

    async def ask(self, text: str) -> None:
        await (await self.root.submit(text)).wait()

    async def submit(self, text: str, id: str, when: str | None = None) -> None:
        if when == "steer":
            await self.root.submit(text, request_id=id, when_busy="steer")
        else:
            await self.root.submit(text, request_id=id)

    async def write(self, kind: str, text: str, id: str) -> None:
        await self.root.write(kind, text=text, request_id=id)

    async def reach(self, effect: str) -> None:
        while effect not in self.outside.arrived:  # noqa: ASYNC110  # as the other half has to
            await asyncio.sleep(0.01)

    async def compact(self) -> None:
        await self.root.compact()

    async def reset(self, handoff: str) -> None:
        await self.root.reset(handoff)

    async def fork(self) -> None:
        (newest,) = (await self.root.entries(limit=1)).items
        self.forks.append(await self.root.fork(at=newest.id))

    async def ask_in(self, id: int, text: str) -> None:
        conversation = self.forks[0] if id == 0 else await self.harness.conversation(id)
        await (await conversation.submit(text)).wait()

    async def idle(self) -> None:
        await self.harness.wait_idle()


async def live(world: dict[str, Any], report: dict[str, Any]) -> None:
    outside = Outside(world["name"], frozenset(world["held"]))
    settings = Settings(
        clock=ShiftedClock(SEEDED_MS + (LIFE - 1) * AN_HOUR_MS), compaction=Compaction(keep_recent=80, reserve=1000),
        retry=Retry(delay=timedelta(minutes=1)),
    )  # fmt: skip
    storage = Halting(FOLDER / f"{world['name']}.sqlite", outside, world.get("halt"))
    reports: list[str] = []
    async with Harness.open(
        storage, tools=tools_of(outside), extensions=hooks_of(outside, world),
        models=[Teller(outside, world["script"])], settings=settings, run=LIFE == 1,
        on_report=lambda error: reports.append(repr(error)),
    ) as harness:  # fmt: skip
        root = await harness.root(agent=AgentChange(model=Teller.ref))
        living = Living(outside, harness, root)
        harness.resume()
        for step, *given in world["steps"]:
            await asyncio.wait_for(getattr(living, step)(*given), None if LIFE == 1 else 60)
        if not world["closes"]:
            await asyncio.Event().wait()
    report[world["name"]] = {"requests": outside.requests, "reports": reports}
    with (FOLDER / f"{world['name']}.ledger").open("a", encoding="utf-8") as ledger:
        ledger.write("ended\n")


async def main() -> None:
    report: dict[str, Any] = {}
    failed = await asyncio.gather(*(live(world, report) for world in json.load(sys.stdin)), return_exceptions=True)
    for error in failed:
        if error is not None:
            raise error
    REPORT.write_text(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main())
