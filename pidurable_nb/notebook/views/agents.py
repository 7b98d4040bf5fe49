"""Owns the page about what a conversation works with: its model, tools, extensions, prompt. Never resolves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pidurable_nb.agent.extending.resolution import Agent
from pidurable_nb.ids import ConversationId
from pidurable_nb.models.model import Model, ModelRef
from pidurable_nb.notebook.views.markup import View, bdi, code, cut, items, quiet
from pidurable_nb.tools.tool import Tool


@dataclass(frozen=True, repr=False)
class AgentView(View):
    """What a conversation works with, as resolved now. `asked` is the model that its next request goes to."""

    conversation: ConversationId
    agent: Agent
    asked: Model | None
    known: tuple[ModelRef, ...]

    @property
    def label(self) -> str:
        return f"Agent of conversation {self.conversation}"

    def facts(self) -> Sequence[tuple[str, str]]:
        """What it is, as (word, foreign text)."""
        agent = self.agent
        found = [("model", self._model())]
        if agent.thinking != "off":
            found.append(("thinking", agent.thinking))
        offered = {tool.name for tool in agent.offered}
        tools = [_tool(tool, shown=tool.name in offered) for tool in agent.tools]
        found.append(("tools", ", ".join(tools) or "none"))
        found.append(("extensions", ", ".join(cut(each.name, 40) for each in agent.extensions) or "none"))
        found.append(("prompt", ", ".join(cut(each.key, 40) for each in agent.sections) or "empty"))
        if agent.instructions is not None:
            found.append(("instructions", cut(agent.instructions, 240)))
        if agent.cwd is not None:
            found.append(("cwd", cut(agent.cwd, 120)))
        return found

    def _model(self) -> str:
        others = ", ".join(cut(str(ref), 60) for ref in self.known) or "none: define one in a cell, model = ..."
        if self.asked is None:
            chosen = f"{cut(str(self.agent.model), 60)} is not here; " if self.agent.model is not None else ""
            return f"{chosen}known: {others}"
        chosen = "" if self.agent.model is not None else " (the first; none was chosen)"
        return f"{cut(str(self.asked.ref), 60)}{chosen}"

    def html(self) -> str:
        lines = [f"{quiet(word)} {code(text)}" for word, text in self.facts()]
        return f"<p>{bdi(self.label)}</p>{items(lines)}"

    def text(self) -> str:
        return "\n".join([self.label, *(f"  {word}: {text}" for word, text in self.facts())])


def _tool(tool: Tool, *, shown: bool) -> str:
    return f"{cut(tool.name, 64)} ({tool.replay}{'' if shown else ', not shown to the model'})"
