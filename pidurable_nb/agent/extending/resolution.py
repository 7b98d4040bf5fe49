"""Owns what a conversation's stored choices come to with the code that is installed: its agent. Never writes them.

Choices are names. One that is not installed is skipped and takes effect again when it is; a value that says nothing
legible, such as a stranger's, counts as unset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar, get_args

from pidurable_nb.agent.extending.extension import (
    INSTRUCTIONS,
    Extension,
    ExtensionRefused,
    Installed,
    PromptInput,
    Section,
    SectionWrap,
    ToolWrap,
)
from pidurable_nb.agent.extending.hooking import Hooks, NamedHooks, Report
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.models.model import ModelRef, Thinking
from pidurable_nb.records.message import items
from pidurable_nb.tools.tool import Tool

T = TypeVar("T", Tool, Section)

THINKING: Final[Mapping[str, Thinking]] = {level: level for level in get_args(Thinking)}
"""The thinking levels by their stored word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What a conversation works with, resolved once for one decision.

    `tools` are those that a call may reach; `offered` those of them that the model is shown, which are all unless the
    conversation narrows them. `sections` end with the instructions. `model` None: a request fails with `no_model`.
    """

    model: ModelRef | None = None
    thinking: Thinking = "off"
    extensions: tuple[Extension, ...] = ()
    tools: tuple[Tool, ...] = ()
    offered: tuple[Tool, ...] = ()
    sections: tuple[Section, ...] = ()
    hooks: tuple[NamedHooks, ...] = ()
    instructions: str | None = None
    cwd: str | None = None

    def tool(self, name: str) -> Tool | None:
        """The tool that a call of this name reaches; None is answered `tool_unavailable`."""
        return next((tool for tool in self.tools if tool.name == name), None)


def resolve(state: JsonObject, installed: Installed, default: Sequence[str] | None, report: Report) -> Agent:
    """The agent of a conversation: its stored `pi.agent`, what is installed, and the host's default selection.

    `default` None is every installed extension, in install order. State, in the stored form:

    - `extensions`: an array is exactly these, in its order; `{add, remove}` edits the default. First positions count.
    - `tools`: those of the extensions in order, a later one in the place of an earlier one of its name, then wrapped,
      then filtered: an array keeps these, in its order; `{remove}` drops these. There is nothing to add to all.
    - `modelTools`: a further filter of the same forms, on what the model is shown. What it leaves out stays reachable
      for a call that was offered before, or that a tool makes itself.
    - sections like tools, then `instructions`, which nothing wraps; hooks in extension order.

    A wrap that raises, or gives something of another name, loses its target for this resolution: it is reported.
    """
    extensions = selected(state.get("extensions"), installed, default)
    tools = {tool.name: tool for extension in extensions for tool in extension.tools}
    sections = {section.key: section for extension in extensions for section in extension.sections}
    for extension in extensions:
        for wrap in extension.wraps:
            if isinstance(wrap, ToolWrap):
                _apply(tools, wrap.tool, partial(_wrapped_tool, wrap), extension, report)
            else:
                _apply(sections, wrap.section, partial(_wrapped_section, wrap), extension, report)
    instructions = _text(state.get("instructions"))
    if instructions is not None:
        sections[INSTRUCTIONS] = Section(INSTRUCTIONS, Verbatim(instructions))
    kept = _filtered(tuple(tools.values()), state.get("tools"))
    return Agent(
        model=model_of(state.get("model")),
        thinking=_thinking(state.get("thinkingLevel")),
        extensions=extensions,
        tools=kept,
        offered=_filtered(kept, state.get("modelTools")),
        sections=tuple(sections.values()),
        hooks=tuple(NamedHooks(each.name, each.hooks) for each in extensions if each.hooks != Hooks()),
        instructions=instructions,
        cwd=_text(state.get("cwd")),
    )


def selected(choice: Json, installed: Installed, default: Sequence[str] | None) -> tuple[Extension, ...]:
    """The installed extensions that a stored `extensions` selects, in order."""
    by_name = {extension.name: extension for extension in installed.extensions}
    base = tuple(by_name) if default is None else tuple(default)
    names: tuple[str, ...] = base
    if isinstance(choice, Mapping):
        removed = set(_names(choice.get("remove")))
        names = tuple(name for name in (*base, *_names(choice.get("add"))) if name not in removed)
    elif _is_array(choice):
        names = _names(choice)
    return tuple(by_name[name] for name in dict.fromkeys(names) if name in by_name)


def model_of(stored: Json) -> ModelRef | None:
    """The model that a stored `model` names; None where it names none."""
    if not isinstance(stored, Mapping):
        return None
    provider, model_id = _text(stored.get("provider")), _text(stored.get("modelId"))
    return ModelRef(provider, model_id) if provider and model_id else None


# -- sections ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Renders a text as it is."""

    text: str

    def __call__(self, about: PromptInput) -> str:
        return self.text


# -- wraps -------------------------------------------------------------------------------------------------------------


def _apply(targets: dict[str, T], name: str, make: Callable[[T], T], extension: Extension, report: Report) -> None:
    """Put what the wrap makes of its target in the target's place; without a target, nothing."""
    target = targets.get(name)
    if target is None:
        return
    try:
        targets[name] = make(target)
    except Exception as error:
        del targets[name]
        error.add_note(f"in extension {extension.name!r}, its wrap of {name!r}, which is left out of this resolution")
        report(error)


def _wrapped_tool(wrap: ToolWrap, tool: Tool) -> Tool:
    made: object = wrap.wrap(tool)
    if not isinstance(made, Tool) or made.name != wrap.tool:
        raise ExtensionRefused(f"a wrap of the tool {wrap.tool!r} gave {made!r}; it gives a tool of the same name")
    return made


def _wrapped_section(wrap: SectionWrap, section: Section) -> Section:
    made: object = wrap.wrap(section)
    if not isinstance(made, Section) or made.key != wrap.section:
        raise ExtensionRefused(f"a wrap of the section {wrap.section!r} gave {made!r}; it gives one with the same key")
    return made


# -- stored values -----------------------------------------------------------------------------------------------------


def _filtered(tools: tuple[Tool, ...], choice: Json) -> tuple[Tool, ...]:
    if isinstance(choice, Mapping):
        removed = set(_names(choice.get("remove")))
        return tuple(tool for tool in tools if tool.name not in removed)
    if _is_array(choice):
        by_name = {tool.name: tool for tool in tools}
        return tuple(by_name[name] for name in dict.fromkeys(_names(choice)) if name in by_name)
    return tools


def _is_array(value: Json) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _names(value: Json) -> tuple[str, ...]:
    """The names in an array; what is no text names nothing."""
    return tuple(name for name in items(value) if isinstance(name, str))


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _thinking(value: Json) -> Thinking:
    return THINKING.get(value, "off") if isinstance(value, str) else "off"
