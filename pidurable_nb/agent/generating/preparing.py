"""Owns preparing a request: what the agent is now, what its prompt says, and what has to be added to the transcript.

Reads and renders, off the mutation line; never writes. Sections are code of the user's: what they raise is reported.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pidurable_nb.agent.extending.extension import PromptInput, Section
from pidurable_nb.agent.extending.hooking import stops_the_asker
from pidurable_nb.agent.extending.resolution import Agent
from pidurable_nb.agent.extending.settings import Compaction
from pidurable_nb.agent.extending.workshop import Workshop
from pidurable_nb.agent.request.context import Context
from pidurable_nb.agent.request.estimate import context_tokens
from pidurable_nb.agent.request.prompt import SystemEntry, plan, replay
from pidurable_nb.agent.request.selecting import select_range
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.ids import EntryId
from pidurable_nb.models.model import Model, ModelRef
from pidurable_nb.records.message import Message
from pidurable_nb.tools.environment import Environment

NO_MODEL: Final = "no_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that can be made: its model, and what the transcript needs before it."""

    agent: Agent
    model: Model
    ref: ModelRef
    context: Context
    planned: tuple[SystemEntry, ...]

    @property
    def tail(self) -> EntryId:
        """The newest entry of the context."""
        head = self.context.head.id if self.context.head is not None else EntryId(0)
        return max((head, *(entry.id for entry in self.context.entries[-1:])))

    def tokens(self, *more: Message) -> int:
        """About how large the request is, with the planned messages and `more` at its end."""
        return context_tokens(self.context, [*(entry.message for entry in self.planned), *more])

    def crowded(self, policy: Compaction, *more: Message, by: int = 0) -> bool:
        """Whether the context leaves less room than the policy keeps, or will soon, and compacting would help (K1)."""
        window = self.model.context_window
        if not policy.enabled or window <= 0 or self.tokens(*more) <= window - policy.reserve - by:
            return False
        return select_range(self.context, policy.keep_recent) is not None


async def prepare(rt: Runtime, shop: Workshop) -> Prepared | None:
    """What the conversation's next request needs; None when its agent has no model that the host knows."""
    agent = await shop.agent(rt.conversation)
    model = shop.model(agent.model)
    if model is None:
        return None
    context = await shop.contexts.at(rt.conversation)
    shown = dict(replay(context.messages).sections)
    environment = await _environment(rt, shop, agent)
    asked = PromptInput(conversation=rt.conversation, agent=agent, environment=environment, shown=shown, read=rt.read)
    sections: list[tuple[str, str]] = []
    for section in agent.sections:
        text = await _rendered(section, asked, shown, rt)
        if text is not None:
            sections.append((section.key, text))
    tools = [tool.declaration() for tool in agent.offered]
    planned = plan(context, sections, tools, rt.engine.clock.now_ms())
    return Prepared(agent=agent, model=model, ref=model.ref, context=context, planned=planned)


async def _environment(rt: Runtime, shop: Workshop, agent: Agent) -> Environment | None:
    """The environment that sections see; one that cannot be built is reported, and the request is made without."""
    try:
        return await shop.environment_of(rt.conversation, agent.cwd)
    except Exception as error:
        if stops_the_asker(error):
            raise
        error.add_note(f"in building the environment of conversation {rt.conversation}")
        rt.report(error)
        return None


async def _rendered(section: Section, asked: PromptInput, shown: Mapping[str, str], rt: Runtime) -> str | None:
    """The section's text; what it shows already when it raises."""
    try:
        made = section.render(asked)
        text = await made if inspect.isawaitable(made) else made
        if text is not None and not isinstance(text, str):
            raise TypeError(f"section {section.key!r} gave {text!r}; it gives text, or None to be left out")
    except Exception as error:
        if stops_the_asker(error):
            raise
        error.add_note(f"in section {section.key!r} of conversation {rt.conversation}")
        rt.report(error)
        return shown.get(section.key)
    if text is None:
        return None
    return f"<{section.key}>\n{text}\n</{section.key}>" if section.tag else text
