"""Owns what a running tool may do: report, remember, commit, talk to conversations, call other tools.

A call belongs to one invocation. After that ended, each operation raises InvocationEnded and writes nothing (T13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, overload

from pidurable_nb.agent.configuring import AgentChange, configure
from pidurable_nb.agent.resolution import Agent
from pidurable_nb.agent.workshop import Workshop
from pidurable_nb.engine.facts import Fact, Frozen
from pidurable_nb.engine.phase import Phase, TaskRef
from pidurable_nb.engine.runtime import Runtime, TaskBlock
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
OWNED = "pi.tool.conversation"
"""The memo of a conversation that the call owns; one with a name has `:name` behind it."""
STARTED = "pi.tool.task"
"""The memo of a task that the call started; one with a name has `:name` behind it."""


class Call(Injected):
    """One call of a tool, for the tool itself: a parameter of this type is not in the tool's schema."""

    def __init__(self, rt: Runtime, shop: Workshop, asked: ToolCall, tool: Tool) -> None:
        self._rt = rt
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
        """The idempotency key of this purpose: the same in every rerun of this call, another for every purpose (E6)."""
        return self._rt.key(purpose)

    def now(self) -> datetime:
        """The harness clock, in UTC (T12)."""
        return self._rt.now()

    async def agent(self) -> Agent:
        """The agent of the calling conversation, resolved now."""
        self._rt.check("agent")
        return await self._shop.agent(self._rt.conversation)

    # -- reporting -----------------------------------------------------------------------------------------------------

    def output(self, chunk: str | bytes) -> None:
        """Append to the running output, like a standard output. What is kept of it is bounded by the tool's limits.

        Durability: in `pi.live` within the next window of progress (V5). A tool that returns None answers with it.
        """
        self._rt.check("output")
        self.retained.add(chunk)
        self.changed()

    async def details(self, value: Json) -> None:
        """Replace what readers see of the call beside its output. Raises NotJson.

        Durability: this value, or a later one, is stored on return; behind a call that shows no progress, with its end.
        """
        self._rt.check("details")
        self.detailed = detach(value, at="$.details")
        if self.changed is self.nothing:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self.changed()
        await waiter

    def diagnostic(self, diagnostic: Diagnostic) -> None:
        """Add a remark for the model and the reader; it is no part of the tool's data."""
        self._rt.check("diagnostic")
        self.reported.append(diagnostic.json())
        self.changed()

    # -- remembering and writing ---------------------------------------------------------------------------------------

    async def memo(self, name: str, value: F, *, barrier: bool = False) -> F:
        """The kept value: this one, or that of whoever was first (M1). As `Runtime.memo`."""
        return await self._rt.memo(name, value, barrier=barrier)

    @overload
    async def recall(self, name: str, of: type[dict[str, Json]]) -> Mapping[str, Json] | None: ...
    @overload
    async def recall(self, name: str, of: type[F]) -> F | None: ...
    async def recall(self, name: str, of: type[object]) -> object:
        """The kept value of an earlier moment or attempt, or None. As `Runtime.recall`."""
        return await self._rt.recalled(name, of)

    def commit(self, *, barrier: bool = False) -> TaskBlock:
        """A block of writes; what it spawns is owned by this call (O1). As `Runtime.commit`, without `become`."""
        return self._rt.commit(barrier=barrier)

    async def read(
        self, doc: type[D], *, of: ConversationId | None = None, key: str | None = None, at: EntryId | None = None
    ) -> D:
        """The stored value of a document, its defaults where it was never written."""
        return await self._rt.read(doc, of=of, key=key, at=at)

    async def spawn(self, phase: Phase[R], *, name: str = "", background: bool = False) -> TaskRef[R]:
        """The task of this name that the call started: started once, found by a rerun, whatever `phase` it has then.

        The call owns it and ends after it; one in the `background` is the conversation's, and outlives the call (O3).
        Durability: stored on return, together with what finds it again. Raises UnknownPhase when not installed.
        """
        memo = f"{STARTED}:{name}" if name else STARTED
        async with self._rt.commit() as tx:
            record = self._rt.gate()
            kept = record.memos.get(memo)
            if isinstance(kept, int):
                return TaskRef(TaskId(kept))
            made = tx.spawn(phase, background=background)
            tx.rows.put_task(replace(record, memos={**record.memos, memo: made.id}))
            return made

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

    def stored(self) -> None:
        """What was reported so far is stored, or will be with the result."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def end(self) -> None:
        """The tool has returned."""
        self.changed = self.nothing
        self.retained.end()
        self.stored()


UNCHANGED_AGENT = AgentChange()
