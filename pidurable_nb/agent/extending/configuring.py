"""Owns changing what a conversation has chosen for itself: its stored `pi.agent`. Never looks at what is installed.

A change is of whole fields, and takes effect at the next resolution; it starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from pidurable_nb.agent.extending.resolution import THINKING
from pidurable_nb.agent.stored import live
from pidurable_nb.ids import ConversationId, Json, JsonObject
from pidurable_nb.models.model import ModelRef, Thinking
from pidurable_nb.records.message import items
from pidurable_nb.session.transaction import Transaction

if TYPE_CHECKING:
    from pidurable_nb.agent.extending.extension import Extension
    from pidurable_nb.tools.tool import Tool


class Unchanged(Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED
"""A field that a change leaves as it is, where None clears it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjusted:
    """The host's default selection with these added at its end and these removed; never an edit of a stored one."""

    add: Sequence[Extension | str] = ()
    remove: Sequence[Extension | str] = ()


@dataclass(frozen=True, slots=True)
class Without:
    """All tools of the selected extensions but these."""

    remove: Sequence[Tool | str]


ExtensionChoice: TypeAlias = "Sequence[Extension | str] | Adjusted"
ToolChoice: TypeAlias = "Sequence[Tool | str] | Without"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentChange:
    """New choices of a conversation. A field that is given replaces the stored one whole, None clears it.

    Extension and tool objects stand for their names; nothing checks that a name is installed. A list is exactly those,
    in its order. `model` may be written `"provider/model"`. `model_tools` narrows what the model is shown of `tools`.

    Raises: ValueError for what cannot be a choice, where the change is made.

    >>> AgentChange(model="anthropic/sonnet", thinking=None)
    AgentChange(model='anthropic/sonnet', thinking=None)
    >>> apply_change({"thinkingLevel": "low"}, AgentChange(model="anthropic/sonnet", tools=Without(["bash"])))
    {'thinkingLevel': 'low', 'model': {'provider': 'anthropic', 'modelId': 'sonnet'}, 'tools': {'remove': ['bash']}}
    """

    model: ModelRef | str | None | Unchanged = UNCHANGED
    thinking: Thinking | None | Unchanged = UNCHANGED
    extensions: ExtensionChoice | None | Unchanged = UNCHANGED
    tools: ToolChoice | None | Unchanged = UNCHANGED
    model_tools: ToolChoice | None | Unchanged = UNCHANGED
    instructions: str | None | Unchanged = UNCHANGED
    cwd: str | None | Unchanged = UNCHANGED

    def __post_init__(self) -> None:
        self.stored()

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name in self.__slots__ if (value := getattr(self, name)) is not UNCHANGED)
        return f"AgentChange({', '.join(given)})"

    def stored(self) -> JsonObject:
        """The fields that change, in the stored form; null for those that are cleared."""
        fields: dict[str, Json | Unchanged] = {
            "model": _model(self.model),
            "thinkingLevel": _thinking(self.thinking),
            "extensions": _extensions(self.extensions),
            "tools": _tools("tools", self.tools),
            "modelTools": _tools("model_tools", self.model_tools),
            "instructions": _text("instructions", self.instructions),
            "cwd": _text("cwd", self.cwd),
        }
        return {name: value for name, value in fields.items() if not isinstance(value, Unchanged)}


def apply_change(state: JsonObject, change: AgentChange) -> JsonObject:
    """The state with the change. What is not known here stays as it is."""
    changed = dict(state)
    for name, value in change.stored().items():
        if value is None:
            changed.pop(name, None)
        else:
            changed[name] = value
    return changed


async def configure(tx: Transaction, conversation: ConversationId, change: AgentChange) -> None:
    """Make the change in this block, which may be the one that makes the conversation.

    Durability: stored with the block. A change of nothing writes nothing.
    """
    if change.stored():
        draft = await tx.edit(live.AGENT, live.at(live.AGENT, conversation))
        changed = apply_change(draft, change)
        draft.clear()
        draft.update(changed)


def added_tools(state: JsonObject, names: Iterable[str]) -> JsonObject | None:
    """The state that offers these tools too, as a tool's `add_tools` asks; None when it already does.

    In `tools` and `modelTools` alike: an array gets a name that it lacks at its end, `{remove}` loses it. A filter
    that is unset, or says nothing legible, keeps nothing back.
    """
    wanted = tuple(dict.fromkeys(names))
    changed = dict(state)
    for filter in ("tools", "modelTools"):
        if filter in changed:
            changed[filter] = _admitting(changed[filter], wanted)
    return changed if any(changed[name] is not value for name, value in state.items()) else None


def _admitting(choice: Json, names: Sequence[str]) -> Json:
    """The filter, so that it lets these names pass; itself, where it does."""
    if isinstance(choice, Mapping):
        removed = items(choice.get("remove"))
        held = [name for name in removed if name not in names]
        return choice if len(held) == len(removed) else {**choice, "remove": held}
    offered = items(choice)
    missing = [name for name in names if name not in offered]
    return [*offered, *missing] if missing and not isinstance(choice, str) and isinstance(choice, Sequence) else choice


# -- the stored form ---------------------------------------------------------------------------------------------------


def _model(model: ModelRef | str | None | Unchanged) -> Json | Unchanged:
    if model is None or isinstance(model, Unchanged):
        return model
    if isinstance(model, str):  # the provider ends at the first slash: some providers' models have slashes in them
        provider, _, model_id = model.partition("/")
    else:
        provider, model_id = model.provider, model.model_id
    if not provider or not model_id:
        raise ValueError(f"model={model!r}: name one as 'provider/model', or as ModelRef(provider, model_id)")
    return {"provider": provider, "modelId": model_id}


def _thinking(level: Thinking | None | Unchanged) -> Json | Unchanged:
    if level is None or isinstance(level, Unchanged) or level in THINKING:
        return level
    raise ValueError(f"thinking={level!r}: one of {', '.join(THINKING)}, or None")


def _extensions(choice: ExtensionChoice | None | Unchanged) -> Json | Unchanged:
    if choice is None or isinstance(choice, Unchanged):
        return choice
    if isinstance(choice, Adjusted):
        edits = {"add": _names("extensions", choice.add), "remove": _names("extensions", choice.remove)}
        return {edit: names for edit, names in edits.items() if names}
    return _names("extensions", choice)


def _tools(field: str, choice: ToolChoice | None | Unchanged) -> Json | Unchanged:
    if choice is None or isinstance(choice, Unchanged):
        return choice
    if isinstance(choice, Without):
        return {"remove": _names(field, choice.remove)}
    return _names(field, choice)


def _names(field: str, choice: Sequence[Extension | Tool | str]) -> list[Json]:
    if isinstance(choice, str):
        raise ValueError(f"{field}={choice!r}: a list of names or objects; [{choice!r}] is a list of one")
    names: list[Json] = []
    for item in choice:
        name = item if isinstance(item, str) else getattr(item, "name", None)
        if not isinstance(name, str) or not name:
            raise ValueError(f"{field}: {item!r} is neither a name nor something installed under one")
        names.append(name)
    return names


def _text(field: str, text: str | None | Unchanged) -> Json | Unchanged:
    if text is None or isinstance(text, str | Unchanged):
        return text
    raise ValueError(f"{field}={text!r}: text, or None to clear it")
