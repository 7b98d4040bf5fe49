"""Owns a ready extension: conversations that work for another one, at once or in the background. Never runs a model.

    delegate          the call owns a conversation, asks it, and waits: both end together (O2)
    spawn_subagent    a conversation with a name, that outlives the call and the run
    message_subagent  asks it in the background; its answer comes back as a message

A crash anywhere repeats nothing: what was made is found again, and what was asked is asked under the same key (S1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from pidurable_nb.agent.calls.call import Call
from pidurable_nb.agent.conversation import Conversation
from pidurable_nb.agent.extending.configuring import UNCHANGED, AgentChange, Unchanged, configure
from pidurable_nb.agent.extending.extension import Extension
from pidurable_nb.agent.household import conversation_of
from pidurable_nb.agent.submission import Answered
from pidurable_nb.engine.phase import Done, Input, Phase
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.errors import ToolError
from pidurable_nb.ids import ConversationId, JsonObject
from pidurable_nb.records.transcript import Unanswered
from pidurable_nb.session.documents import Document
from pidurable_nb.tools.tool import tool

NAME: Final = "subagents"
ANSWER: Final = "subagent.answer"
"""The kind of the entries that answers of subagents become."""


# -- in the foreground -------------------------------------------------------------------------------------------------


@tool(replay="safe")
async def delegate(
    task: Annotated[str, "all that a colleague needs to know, who sees nothing of this conversation"],
    call: Call,
    tools: Annotated[list[str] | None, "the only tools that it needs; all of yours unless given"] = None,
) -> str:
    """Give a self-contained task to a subagent, wait for it, and get its answer."""
    child = await call.conversation(change=await _colleague(call, tools=tools))
    await call.details({"conversationId": child.id})
    asked = await child.submit(task, request_id=call.key("ask"))
    match await asked.wait():
        case Answered(text=text):
            return text
        case Unanswered(reason=reason):
            raise ToolError(f"The subagent gave no answer: {reason}.")


async def _colleague(
    call: Call, *, tools: list[str] | None = None, instructions: str | Unchanged = UNCHANGED
) -> AgentChange:
    """What a subagent has otherwise than who asks: not this extension, so that it starts none of its own."""
    agent = await call.agent()
    change = AgentChange(
        extensions=[extension for extension in agent.extensions if extension.name != NAME],
        instructions=instructions,
    )
    if tools is None:
        return change
    own = {tool.name for tool in subagents().tools}
    known = [tool.name for tool in agent.tools if tool.name not in own]
    if not set(tools) <= set(known):
        raise ToolError(f"A subagent can have these tools: {', '.join(known) or 'none'}.")
    return replace(change, tools=tools, model_tools=None)


# -- in the background -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A subagent with a name. `spawned_by` is the key of the call that made it."""

    conversation: ConversationId
    spawned_by: str
    stopped: bool = False


class Team(Document, kind="subagents.team", scope="conversation", fork="initial"):
    """The subagents of a conversation by their names. A fork has its own."""

    members: dict[str, Member] = field(default_factory=dict)


class Anchor(Phase[None], task="subagents.anchor"):
    """Owns the conversation of a subagent. It ends at once, held while that works (T5); nothing ends with it (O5)."""

    async def run(self, rt: Runtime) -> Done[None]:
        return Done(None)


class Report(Phase[None], task="subagents.report"):
    """Ask a subagent and bring its answer back. Run again after a crash, both are found by their keys (S1)."""

    name: Input[str]
    subagent: Input[ConversationId]
    text: Input[str]

    async def run(self, rt: Runtime) -> Done[None]:
        asked = await conversation_of(rt, self.subagent).submit(self.text, request_id=rt.key("ask"))
        match await asked.wait():
            case Answered(text=text):
                await self._tell(rt, f"Subagent {self.name} answers: {text}")
            case Unanswered(reason=reason) if await self._at_work(rt):
                await self._tell(rt, f"Subagent {self.name} gave no answer: {reason}.")
            case Unanswered():
                pass  # whoever stopped it knows
        return Done(None)

    async def _tell(self, rt: Runtime, text: str) -> None:
        asker = conversation_of(rt, rt.conversation)
        about: JsonObject = {"name": self.name, "conversationId": self.subagent}
        await asker.submit(text, request_id=rt.key("answer"), when_busy="follow_up", kind=ANSWER, data=about)

    async def _at_work(self, rt: Runtime) -> bool:
        member = (await rt.read(Team)).members.get(self.name)
        return member is not None and member.conversation == self.subagent and not member.stopped


@tool(replay="safe", mode="sequential")
async def spawn_subagent(
    name: Annotated[str, "how you call it"],
    instructions: Annotated[str, "what it is for and how it works; it sees nothing of this conversation"],
    call: Call,
) -> str:
    """Start a subagent that works beside you. It remembers its own conversation. Then give it work with a message."""
    if not name.strip():
        raise ToolError("A subagent needs a name.")
    change = await _colleague(call, instructions=instructions)
    async with call.commit() as tx:
        members = (await tx.edit(Team)).members
        known = members.get(name)
        if known is None or (known.stopped and known.spawned_by != call.key("spawn")):
            anchor = tx.spawn(Anchor(), background=True)
            made = await tx.create_conversation(owner=anchor)
            await configure(tx.rows, made, change)
            members[name] = Member(conversation=made, spawned_by=call.key("spawn"))
        elif known.spawned_by != call.key("spawn"):
            raise ToolError(f"There is a subagent {name} already. Take another name, or stop it first.")
    return f"Subagent {name} is ready."


@tool(replay="safe")
async def message_subagent(name: str, text: str, call: Call) -> str:
    """Ask a subagent something. Its answer comes later, as a message; you need not wait for it."""
    member = await _member(call, name)
    await call.spawn(Report(name, member.conversation, text), background=True)
    return f"Subagent {name} was asked. Its answer will come as a message."


@tool(replay="safe")
async def list_subagents(call: Call) -> str:
    """Say which subagents there are, and what they do now."""
    members = (await call.read(Team)).members
    lines = [f"{name}: {await _state(call.open(member.conversation), member)}" for name, member in members.items()]
    return "\n".join(lines) or "There are no subagents."


@tool(replay="safe", mode="sequential")
async def stop_subagent(name: str, call: Call) -> str:
    """End what a subagent does now. It gets no more messages, and its name is free."""
    async with call.commit() as tx:
        members = (await tx.edit(Team)).members
        member = _known(members, name)
        members[name] = replace(member, stopped=True)
    await call.open(member.conversation).abort()
    return f"Subagent {name} was stopped."


async def _member(call: Call, name: str) -> Member:
    member = _known((await call.read(Team)).members, name)
    if member.stopped:
        raise ToolError(f"Subagent {name} was stopped. Start it again first.")
    return member


def _known(members: Mapping[str, Member], name: str) -> Member:
    member = members.get(name)
    if member is None:
        raise ToolError(f"There is no subagent {name}. There are: {', '.join(members) or 'none'}.")
    return member


async def _state(conversation: Conversation, member: Member) -> str:
    if member.stopped:
        return "stopped"
    return "working" if await conversation.busy() else "idle"


def subagents() -> Extension:
    """Subagents: `delegate` for one task and its answer; the other four tools for those that work in the background.

    A subagent has the model, the extensions and the working directory of who starts it, but not this extension.

    Durability: a message is admitted to the subagent once, and its answer to who asked once, whatever crashes between
    (S1). Laws: O1, O2, O3.
    """
    background = (spawn_subagent, message_subagent, list_subagents, stop_subagent)
    return Extension(NAME, tools=(delegate, *background), tasks=(Anchor, Report))
