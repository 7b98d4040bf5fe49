"""Owns what the system messages of a request come to: one prompt and one list of tools. Never sends anything.

Providers know one prompt in front; the transcript has a system message wherever something changed. So all of them are
replayed in order, each as a patch of what stands before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pidurable_nb.ids import JsonObject
from pidurable_nb.models import fields
from pidurable_nb.records.message import UNSENT, Message, role_of, stop_reason, text_of

NO_OUTPUT: Final = "(no output)"
"""What stands for a tool result without any content: providers refuse an empty one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a provider is given: the prompt, the declarations of the tools, and the messages that are left."""

    text: str
    tools: tuple[JsonObject, ...]
    messages: tuple[Message, ...]


def prompt_of(messages: Sequence[Message]) -> Prompt:
    """Fold the system messages, and leave out answers that never reach a later request (V2)."""
    sections: dict[str, str] = {}
    tools: dict[str, JsonObject] = {}
    rest: list[Message] = []
    for place, message in enumerate(messages):
        if role_of(message) != "system":
            if stop_reason(message) not in UNSENT:
                rest.append(message)
            continue
        if said := text_of(message):  # ours is always empty; a foreign one is a section of its own
            sections[f"\0{place}"] = said
        for name, text in fields.member(message, "sections").items():
            if isinstance(text, str):
                sections[name] = text
            else:
                sections.pop(name, None)
        for removed in fields.objects(message, "toolsRemoved"):
            tools.pop(fields.text(removed, "name"), None)
        for added in fields.objects(message, "toolsAdded"):
            tools[fields.text(added, "name")] = added
    text = "\n\n".join(section for section in sections.values() if section)
    return Prompt(text=text, tools=tuple(tools.values()), messages=tuple(rest))
