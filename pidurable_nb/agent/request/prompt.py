"""Owns the system messages: what a transcript says the prompt and the tools are, and what has to be added to change it.

The messages in the transcript are the only record of what the model was shown. Never renders a section, never writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pidurable_nb.agent.request.context import Context
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records.message import Message, items, role_of
from pidurable_nb.records.strict import detach, same
from pidurable_nb.records.transcript import Edit

SYSTEM: Final = "pi.system"
"""The kind of the entries that hold these messages."""
_DECLARED: Final = ("name", "description", "parameters", "constrainedSampling")
"""What a model is told of a tool; nothing else of it enters a transcript."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the model was shown: named sections in order, and the declarations of the tools it was offered, in order."""

    sections: tuple[tuple[str, str], ...] = ()
    tools: tuple[JsonObject, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemEntry:
    """A `pi.system` entry to append: its one message, and the older entries that it omits from the context."""

    message: Message
    edits: tuple[Edit, ...] = ()


def replay(messages: Iterable[Message]) -> Shown:
    """What the system messages among these add up to, in their order.

    A section's text adds it at the end or replaces it where it stands; null removes it. Within one message tools are
    removed before others are added, so a tool that is both gets its new declaration at the end. Their `content` is no
    section and is not read: it is always empty as written here.
    """
    sections: dict[str, str] = {}
    tools: dict[str, JsonObject] = {}
    for message in messages:
        if role_of(message) == "system":
            _patch_sections(sections, message.get("sections"))
            for removed in items(message.get("toolsRemoved")):
                tools.pop(_name(removed), None)
            for added in items(message.get("toolsAdded")):
                if isinstance(added, Mapping) and _name(added):
                    tools[_name(added)] = added
    return Shown(sections=tuple(sections.items()), tools=tuple(tools.values()))


def _patch_sections(sections: dict[str, str], patch: Json) -> None:
    for key, text in patch.items() if isinstance(patch, Mapping) else ():
        if isinstance(text, str):
            sections[key] = text
        else:
            sections.pop(key, None)


def _name(tool: Json) -> str:
    name = tool.get("name") if isinstance(tool, Mapping) else None
    return name if isinstance(name, str) else ""


def plan(
    context: Context, desired_sections: Sequence[tuple[str, str]], desired_tools: Sequence[JsonObject], now_ms: int
) -> tuple[SystemEntry, ...]:
    """The entries to append, in one commit, so that the context shows exactly this, in this order; none when it does.

    Values that changed are patched where the order allows it. Where it does not, the first of two entries removes
    every section and the second adds them again. Behind a head that no system entry follows, one entry is a complete
    baseline, also when nothing changed, and omits the system entries that the head kept: a message is a patch, so
    only this makes the prompt begin anew. Pure.
    """
    sections = dict(desired_sections)
    tools = {_name(tool): _declaration(tool) for tool in desired_tools}
    if _beheaded(context):
        edits = tuple(Edit(target=entry.id) for entry in context.entries if entry.kind == SYSTEM)
        return (SystemEntry(message=_message(sections, [], list(tools.values()), now_ms), edits=edits),)
    shown = replay(context.messages)
    patches: list[Mapping[str, str | None] | None] = [*_section_patches(dict(shown.sections), sections)]
    removed, added = _tool_patch({_name(tool): tool for tool in shown.tools}, tools)
    if (removed or added) and not patches:
        patches.append(None)
    last = len(patches) - 1
    return tuple(
        SystemEntry(message=_message(patch, removed if at == last else [], added if at == last else [], now_ms))
        for at, patch in enumerate(patches)
    )


def _beheaded(context: Context) -> bool:
    """Whether a head cut off the baseline, and none was written since."""
    head = context.head
    return head is not None and not any(entry.kind == SYSTEM and entry.id > head.id for entry in context.entries)


def _section_patches(shown: Mapping[str, str], desired: Mapping[str, str]) -> list[dict[str, str | None]]:
    patch: dict[str, str | None] = {key: text for key, text in desired.items() if shown.get(key) != text}
    gone: dict[str, str | None] = {key: None for key in shown if key not in desired}
    reached = [key for key in shown if key in desired] + [key for key in desired if key not in shown]
    if reached != list(desired):
        return [dict.fromkeys(shown), dict(desired)]
    return [patch | gone] if patch or gone else []


def _tool_patch(
    shown: Mapping[str, JsonObject], desired: Mapping[str, JsonObject]
) -> tuple[list[str], list[JsonObject]]:
    """The names to remove and the declarations to add."""
    kept = [name for name, tool in shown.items() if name in desired and same(_declaration(tool), desired[name])]
    added = [name for name in desired if name not in kept]
    if kept + added != list(desired):
        return list(shown), list(desired.values())
    return [name for name in shown if name not in kept], [desired[name] for name in added]


def _declaration(tool: JsonObject) -> JsonObject:
    declared = detach({key: tool[key] for key in _DECLARED if tool.get(key) is not None}, at=f"tool {_name(tool)!r}")
    assert isinstance(declared, dict)
    return declared


def _message(
    sections: Mapping[str, str | None] | None, removed: Sequence[str], added: Sequence[JsonObject], now_ms: int
) -> Message:
    message: dict[str, Json] = {"role": "system", "content": ""}
    if sections is not None:
        message["sections"] = dict(sections)
    if removed:
        message["toolsRemoved"] = [{"name": name} for name in removed]
    if added:
        message["toolsAdded"] = list(added)
    message["timestamp"] = now_ms
    return message
