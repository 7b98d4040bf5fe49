"""Owns the public words to extend an agent with, and the ready extensions. Holds no code of its own.

    from pidurable_nb.extensions import Hooks, history, reminding, subagents

    mine = Extension("mine", tools=[...], hooks=Hooks(...))
    Harness.open(store, extensions=[subagents(), history(), reminding(), mine])

Importing it loads nothing; each name loads when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pidurable_nb import names_of

if TYPE_CHECKING:
    from pidurable_nb.agent.extending.configuring import Adjusted, AgentChange, Without
    from pidurable_nb.agent.extending.extension import (
        Extension,
        ExtensionRefused,
        PromptInput,
        Section,
        section,
        wrap_section,
        wrap_tool,
    )
    from pidurable_nb.agent.extending.hooking import Block, Compacting, Decline, HookApi, Hooks, Replace, Summary
    from pidurable_nb.agent.household import conversation_of
    from pidurable_nb.agent.ready.history import history
    from pidurable_nb.agent.ready.reminding import reminding
    from pidurable_nb.agent.ready.subagents import subagents

__all__ = [
    "Adjusted",
    "AgentChange",
    "Block",
    "Compacting",
    "Decline",
    "Extension",
    "ExtensionRefused",
    "HookApi",
    "Hooks",
    "PromptInput",
    "Replace",
    "Section",
    "Summary",
    "Without",
    "conversation_of",
    "history",
    "reminding",
    "section",
    "subagents",
    "wrap_section",
    "wrap_tool",
]

_ROOMS = {
    "Adjusted": "pidurable_nb.agent.extending.configuring",
    "AgentChange": "pidurable_nb.agent.extending.configuring",
    "Block": "pidurable_nb.agent.extending.hooking",
    "Compacting": "pidurable_nb.agent.extending.hooking",
    "Decline": "pidurable_nb.agent.extending.hooking",
    "Extension": "pidurable_nb.agent.extending.extension",
    "ExtensionRefused": "pidurable_nb.agent.extending.extension",
    "HookApi": "pidurable_nb.agent.extending.hooking",
    "Hooks": "pidurable_nb.agent.extending.hooking",
    "PromptInput": "pidurable_nb.agent.extending.extension",
    "Replace": "pidurable_nb.agent.extending.hooking",
    "Section": "pidurable_nb.agent.extending.extension",
    "Summary": "pidurable_nb.agent.extending.hooking",
    "Without": "pidurable_nb.agent.extending.configuring",
    "conversation_of": "pidurable_nb.agent.household",
    "history": "pidurable_nb.agent.ready.history",
    "reminding": "pidurable_nb.agent.ready.reminding",
    "section": "pidurable_nb.agent.extending.extension",
    "subagents": "pidurable_nb.agent.ready.subagents",
    "wrap_section": "pidurable_nb.agent.extending.extension",
    "wrap_tool": "pidurable_nb.agent.extending.extension",
}

__getattr__, __dir__ = names_of(__name__, _ROOMS)
