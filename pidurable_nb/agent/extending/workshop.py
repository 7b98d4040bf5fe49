"""Owns what the built-in tasks work with: models, extensions, an environment, contexts, settings. Never schedules.

The engine knows none of this; a built-in task finds it through the rules of conversations that its engine asks.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from pidurable_nb.agent.extending.extension import Extensions
from pidurable_nb.agent.extending.resolution import Agent, resolve
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.agent.request.context import Contexts
from pidurable_nb.agent.stored import live
from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import ConversationId, JsonObject, TaskId
from pidurable_nb.models.model import Model, ModelRef
from pidurable_nb.session.session import Session
from pidurable_nb.tools.environment import Environment
from pidurable_nb.tools.tool import Tool

if TYPE_CHECKING:
    from pidurable_nb.agent.conversation import Conversation

EnvironmentSource: TypeAlias = (
    "Environment | Callable[[ConversationId, str | None], Environment | None | Awaitable[Environment | None]]"
)
"""The environment, or what builds that of a conversation from its id and its `cwd`, at every use."""


def _unopened(id: ConversationId) -> Conversation:
    raise StorageRequestError(f"conversation {id}: no harness is open here")


@dataclass(slots=True, eq=False)
class Workshop:
    """What the built-in tasks of one open store work with."""

    session: Session
    settings: Callable[[], Settings]
    extensions: Extensions
    models: Mapping[ModelRef, Model]
    contexts: Contexts
    report: Callable[[BaseException], None]
    environment: EnvironmentSource | None = None
    conversation: Callable[[ConversationId], Conversation] = field(default=_unopened)
    """A conversation as its users see it, for tools."""
    states: dict[ConversationId, JsonObject] = field(default_factory=dict)
    """What `pi.agent` says, for conversations in which something lives: decisions about tools read it at once."""
    pinned: dict[TaskId, Tool] = field(default_factory=dict)
    """The tools of calls whose intent was committed just now, until they run: a reload in between changes nothing."""

    def model(self, ref: ModelRef | None) -> Model | None:
        """The model of that name, if the host gave it; the host's first one for a conversation that chose none."""
        return self.models.get(ref) if ref is not None else next(iter(self.models.values()), None)

    async def agent(self, conversation: ConversationId) -> Agent:
        """The conversation's agent, resolved now from its stored state."""
        state = await self.session.snapshot(live.AGENT, live.at(live.AGENT, conversation))
        return self.resolved(state if state is not None else {})

    def resolved(self, state: JsonObject) -> Agent:
        """The agent that a stored state stands for, with what is installed now."""
        return resolve(state, self.extensions.snapshot(), self.settings().extensions, self.report)

    async def live(self, conversation: ConversationId) -> JsonObject:
        """What `pi.live` says, as stored."""
        found = await self.session.snapshot(live.LIVE, live.at(live.LIVE, conversation))
        return found if found is not None else {}

    async def session_id(self, conversation: ConversationId) -> str | None:
        """The identity that the conversation shows to providers."""
        found = await self.session.snapshot(live.PROVIDER, live.at(live.PROVIDER, conversation))
        id = found.get("sessionId") if found is not None else None
        return id if isinstance(id, str) and id else None

    async def environment_of(self, conversation: ConversationId, cwd: str | None) -> Environment | None:
        """The environment of a conversation, built anew. Raises what the host's builder raises."""
        source = self.environment
        if source is None or not callable(source):
            return source
        made = source(conversation, cwd)
        return await made if inspect.isawaitable(made) else made
