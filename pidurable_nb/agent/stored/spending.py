"""Owns what a conversation spends: the writes to `pi.usage`, each in the commit of what was paid for. Never sums up."""

from __future__ import annotations

from collections.abc import Mapping

from pidurable_nb.agent.stored import live
from pidurable_nb.ids import ConversationId, Json, JsonObject
from pidurable_nb.records.message import Message, added, no_usage, usage_of
from pidurable_nb.session.transaction import Transaction


async def spend_on_model(tx: Transaction, conversation: ConversationId, message: Message) -> None:
    """The answer's usage, under its own provider and model; failed answers cost too."""
    if isinstance(message.get("usage"), Mapping):
        name = f"{message.get('provider')}/{message.get('model')}"
        await _spend(tx, conversation, "models", name, usage_of(message))


async def spend_on_tool(tx: Transaction, conversation: ConversationId, tool: str, usage: JsonObject | None) -> None:
    """What a tool call spent by itself, for example on a model of its own."""
    if usage is not None:
        await _spend(tx, conversation, "tools", tool, usage)


async def _spend(tx: Transaction, conversation: ConversationId, member: str, name: str, usage: JsonObject) -> None:
    draft = await tx.edit(live.USAGE, live.at(live.USAGE, conversation))
    kept = draft.get(member)
    sums: dict[str, Json] = dict(kept) if isinstance(kept, Mapping) else {}
    before = sums.get(name)
    sums[name] = added(before if isinstance(before, Mapping) else no_usage(), usage)
    draft[member] = sums
