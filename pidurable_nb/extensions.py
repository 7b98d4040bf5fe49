"""Owns the public words to extend an agent with, and the ready extensions. Holds no code of its own.

    from pidurable_nb.extensions import Hooks, history, reminding, subagents

    mine = Extension("mine", tools=[...], hooks=Hooks(...))
    Harness.open(store, extensions=[subagents(), history(), reminding(), mine])

Importing it loads nothing; each name loads when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pidurable_nb.agent.configuring import Adjusted, AgentChange, Without
    from pidurable_nb.agent.extension import (
        Extension,
        ExtensionRefused,
        PromptInput,
        Section,
        section,
        wrap_section,
        wrap_tool,
    )
    from pidurable_nb.agent.history import history
    from pidurable_nb.agent.hooking import Block, Compacting, Decline, HookApi, Hooks, Replace, Summary
    from pidurable_nb.agent.household import conversation_of
    from pidurable_nb.agent.reminding import reminding
    from pidurable_nb.agent.subagents import subagents

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
    "Adjusted": "configuring",
    "AgentChange": "configuring",
    "Block": "hooking",
    "Compacting": "hooking",
    "Decline": "hooking",
    "Extension": "extension",
    "ExtensionRefused": "extension",
    "HookApi": "hooking",
    "Hooks": "hooking",
    "PromptInput": "extension",
    "Replace": "hooking",
    "Section": "extension",
    "Summary": "hooking",
    "Without": "configuring",
    "conversation_of": "household",
    "history": "history",
    "reminding": "reminding",
    "section": "extension",
    "subagents": "subagents",
    "wrap_section": "extension",
    "wrap_tool": "extension",
}


def __getattr__(name: str) -> object:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"pidurable_nb.agent.{room}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
