"""Owns what a running tool may do: report, remember, commit, talk to conversations, call other tools.

A call belongs to one invocation. After that ended, each operation raises InvocationEnded and writes nothing (T13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeVar, overload

from pidurable_nb.agent.extending.configuring import AgentChange, configure
from pidurable_nb.agent.extending.resolution import Agent
from pidurable_nb.agent.extending.workshop import Workshop
from pidurable_nb.agent.round.nesting import call_nested, check_key
from pidurable_nb.engine.facts import Fact, Frozen
from pidurable_nb.engine.phase import Phase, State, TaskRef
from pidurable_nb.engine.runtime import Runtime, TaskBlock
from pidurable_nb.engine.tx import TaskTx
from pidurable_nb.errors import IllegalTransition, InvocationEnded
from pidurable_nb.ids import ABSENT, Absent, ConversationId, EntryId, Json, JsonObject, TaskId
from pidurable_nb.records.message import Diagnostic, ToolCall
from pidurable_nb.records.strict import detach
from pidurable_nb.session.documents import Document
from pidurable_nb.tools.bounds import RetainedOutput
from pidurable_nb.tools.environment import Environment
from pidurable_nb.tools.tool import Injected, Tool

if TYPE_CHECKING:
    from pidurable_nb.agent.conversation import Conversation

F = TypeVar("F", bound="Fact | Frozen")
D = TypeVar("D", bound=Document)
R = TypeVar("R")
S = TypeVar("S", bound=State)
OWNED = "pi.tool.conversation"
"""The memo of a conversation that the call owns; one with a name has `:name` behind it."""
STARTED = "pi.tool.task"
"""The memo of a task that the call started; one with a name has `:name` behind it."""
RESERVED: Final = "pi."
"""How the names of memos begin that calls keep for themselves."""


class CallTx(TaskTx):
    """The block of a running call. What it spawns and creates is owned by the call (O1)."""

    def become(self, to: S) -> S:
        """Refused: a call ends when its function returns. Raises IllegalTransition."""
        raise IllegalTransition(f"a tool cannot become {to!r}; return what the model is to get, or raise ToolError")


class CallBlock(TaskBlock):
    """`async with call.commit() as tx`: what happens inside lands whole or not at all (C1)."""

    __slots__ = ("_call",)

    def __init__(self, call: Call, rt: Runtime, *, barrier: bool) -> None:
        super().__init__(rt, barrier=barrier)
        self._call = call

    async def __aenter__(self) -> CallTx:
        self._call.check("commit")
        rt = self._rt
        found = await super().__aenter__()
        self._tx = tx = CallTx(found.rows, rt.engine, rt, rt.gate())
        return tx


class Call(Injected):
    """One call of a tool, for the tool itself: a parameter of this type is not in the tool's schema."""

    def __init__(self, rt: Runtime, shop: Workshop, asked: ToolCall, tool: Tool, arguments: JsonObject) -> None:
        self._rt = rt
        self._arguments = arguments
        self._shop = shop
        self._tool = tool
        self._environment: Environment | None = None
        self.call_id = asked.id
        """The model's id of the call: not unique in a store, so no request id; that is what `key` is for."""
        self.name = asked.name
        self.retained = RetainedOutput(tool.limits)
        self.reported: list[JsonObject] = []
        self.detailed: Json | Absent = ABSENT
        self.changed: Callable[[], None] = self.nothing
        self._waiting: list[asyncio.Future[None]] = []
        self._nested = 0
        self._ended = False

    def check(self, what: str) -> None:
        """T13: refuse `what` once the tool has returned, or its invocation has ended."""
        if self._ended:
            raise InvocationEnded(f"the call {self.call_id} of {self.name} has ended; its {what} wrote nothing")
        self._rt.check(what)

    # -- who it is -----------------------------------------------------------------------------------------------------

    @property
    def conversation_id(self) -> ConversationId:
        """The conversation that the call is part of."""
        return self._rt.conversation

    @property
    def environment(self) -> Environment | None:
        """Files and processes of the conversation; None where the host gave none."""
        return self._environment

    @environment.setter
    def environment(self, environment: Environment | None) -> None:
        self._environment = environment

    @property
    def task_id(self) -> TaskId:
        """The task that this call is; the same in every rerun."""
        return self._rt.id

    def key(self, purpose: str) -> str:
        """The idempotency key of this purpose: the same in every rerun of this call, another for every purpose (E6).

        The stored arguments are part of it: after a power cut the ids of this call may be another one's (C6).
        """
        return self._rt.key_for(self._arguments, purpose)

    def now(self) -> datetime:
        """The harness clock, in UTC (T12)."""
        return self._rt.now()

    async def agent(self) -> Agent:
        """The agent of the calling conversation, resolved now."""
        self.check("agent")
        return await self._shop.agent(self._rt.conversation)

    # -- reporting -----------------------------------------------------------------------------------------------------

    def progress(self, chunk: str | bytes) -> None:
        """Append to the running output, like a standard output. What is kept of it is bounded by the tool's limits.

        Durability: in `pi.live` within the next window of progress (V5). A tool that returns None answers with it.
        """
        self.check("output")
        self.retained.add(chunk)
        self.changed()

    async def details(self, value: Json) -> None:
        """Replace what readers see of the call beside its output. Raises NotJson.

        Durability: this value, or a later one, is stored on return; behind a call that shows no progress, with its end.
        """
        self.check("details")
        self.detailed = detach(value, at="details", held=True)
        if self.changed is self.nothing:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self.changed()
        await waiter

    def diagnostic(self, diagnostic: Diagnostic) -> None:
        """Add a remark for the model and the reader; it is no part of the tool's data."""
        self.check("diagnostic")
        if not isinstance(diagnostic, Diagnostic):
            raise TypeError(f"a diagnostic is Diagnostic(severity=..., message=...), not {diagnostic!r}")
        self.reported.append(diagnostic.json())
        self.changed()

    # -- remembering and writing ---------------------------------------------------------------------------------------

    async def memo(self, name: str, value: F, *, barrier: bool = False) -> F:
        """The kept value: this one, or that of whoever was first (M1). As `Runtime.memo`."""
        self._check_memo(name, "memo")
        return await self._rt.memo(name, value, barrier=barrier)

    @overload
    async def recall(self, name: str, of: type[dict[str, Json]]) -> Mapping[str, Json] | None: ...
    @overload
    async def recall(self, name: str, of: type[F]) -> F | None: ...
    async def recall(self, name: str, of: type[object]) -> object:
        """The kept value of an earlier moment or attempt, or None. As `Runtime.recall`."""
        self._check_memo(name, "recall")
        return await self._rt.recalled(name, of)

    def _check_memo(self, name: str, what: str) -> None:
        self.check(what)
        if name.startswith(RESERVED):
            raise IllegalTransition(f"memo {name!r}: names that start with {RESERVED!r} are the harness's")

    def commit(self, *, barrier: bool = False) -> CallBlock:
        """A block of writes; what it spawns is owned by this call (O1). As `Runtime.commit`, without `become`."""
        self.check("commit")
        return CallBlock(self, self._rt, barrier=barrier)

    async def wait(self, ref: TaskRef[R]) -> R:
        """The result of a task, when it is terminal. Raises TaskEnded when it has none (T5, T11)."""
        self.check("wait")
        return await self._rt.engine.answers.wait(ref)

    async def read(
        self, doc: type[D], *, of: ConversationId | None = None, key: str | None = None, at: EntryId | None = None
    ) -> D:
        """The stored value of a document, its defaults where it was never written."""
        self.check("read")
        return await self._rt.read(doc, of=of, key=key, at=at)

    async def spawn(self, phase: Phase[R], *, name: str = "", background: bool = False) -> TaskRef[R]:
        """The task of this name that the call started: started once, found by a rerun, whatever `phase` it has then.

        The call owns it and ends after it; one in the `background` is the conversation's, and outlives the call (O3).
        Durability: stored on return, together with what finds it again. Raises UnknownPhase when not installed.
        """
        self.check("spawn")
        memo = f"{STARTED}:{name}" if name else STARTED
        async with self._rt.commit() as tx:
            record = self._rt.gate()
            kept = record.memos.get(memo)
            if isinstance(kept, int):
                return TaskRef(TaskId(kept))
            made = tx.spawn(phase, background=background)
            tx.rows.put_task(replace(record, memos={**record.memos, memo: made.id}))
            return made

    # -- other tools ---------------------------------------------------------------------------------------------------

    async def run_tool(self, tool: str | Tool, arguments: Mapping[str, Json], *, key: str | None = None) -> Json:
        """What another tool of the agent answers: the JSON that it returned, or its text. Tools hidden from the model
        count too. It runs as a call of its own, with hooks, an intent and a policy; no entry stands for it.

            found = await call.run_tool("lookup", {"host": host})

        A rerun finds the call by its key and does not make it again. Without one, keys count the calls of an attempt,
        so a rerun makes them in the same order; calls made at the same time are given keys.

        Durability: the result is stored on return. Raises ToolError when it ends with an error, cut off included;
        KeyShared when the key is that of another tool or other arguments (E6); ValueError for a key that could be
        taken for another; NotJson.
        """
        self.check("run_tool")
        if key is None:
            self._nested += 1
            key = str(self._nested)
        else:
            check_key(key)
        name = tool if isinstance(tool, str) else tool.name
        return await call_nested(self._rt, self.call_id, name, arguments, key)

    # -- conversations -------------------------------------------------------------------------------------------------

    async def conversation(
        self,
        name: str = "",
        *,
        tools: Sequence[str | Tool] | None = None,
        instructions: str | None = None,
        change: AgentChange | None = None,
    ) -> Conversation:
        """The conversation of this name that the call owns: made once, found by a rerun (O1).

        It begins as a copy of the calling conversation's agent. `tools` are the only ones it is offered; `change` is
        whatever else is to be different. Durability: stored on return.
        """
        self.check("conversation")
        memo = f"{OWNED}:{name}" if name else OWNED
        asked = change if change is not None else AgentChange()
        asked = replace(
            asked,
            tools=tuple(tools) if tools is not None else asked.tools,
            instructions=instructions if instructions is not None else asked.instructions,
        )
        async with self._rt.commit() as tx:
            record = self._rt.gate()
            kept = record.memos.get(memo)
            if isinstance(kept, int):
                made = ConversationId(kept)
            else:
                made = await tx.create_conversation()
                tx.rows.put_task(replace(record, memos={**record.memos, memo: made}))
                if asked != UNCHANGED_AGENT:
                    await configure(tx.rows, made, asked)
        return self._shop.conversation(made)

    def open(self, id: ConversationId) -> Conversation:
        """A conversation by its id, whoever owns it."""
        self._rt.check("conversation")
        return self._shop.conversation(id)

    # -- for the execution ---------------------------------------------------------------------------------------------

    @staticmethod
    def nothing() -> None:
        """Nobody stores progress now."""

    @property
    def truncated(self) -> Diagnostic | None:
        """What to say about the output that was not kept."""
        return self.retained.diagnostic

    def progress_fields(self) -> dict[str, Json]:
        """The call's slot: what it shows while the tool runs."""
        fields: dict[str, Json] = {}
        if self.retained.text:
            fields["output"] = self.retained.text
        if self.retained.dropped_bytes:
            fields["droppedBytes"] = self.retained.dropped_bytes
            fields["droppedLines"] = self.retained.dropped_lines
        if self.detailed is not ABSENT:
            fields["details"] = self.detailed
        if self.reported:
            fields["diagnostics"] = list(self.reported)
        return fields

    def take_waiting(self) -> list[asyncio.Future[None]]:
        """Who waits for what was reported so far to be stored."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def end(self) -> None:
        """The tool has returned: what was reported last is stored with the result."""
        self._ended = True
        self.changed = self.nothing
        self.retained.end()
        answer(self.take_waiting())


def answer(waiting: Sequence[asyncio.Future[None]], error: Exception | None = None) -> None:
    """What they wait for has happened, or never will."""
    for waiter in waiting:
        if not waiter.done():
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)


UNCHANGED_AGENT = AgentChange()
