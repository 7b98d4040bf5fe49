"""Owns what of an answer becomes an entry, a part of one too (G1), and the ways out of a run without an answer.

Used by the generation itself and where the engine ends one (T11, O4). Everything here only writes.
"""

from __future__ import annotations

from collections.abc import Mapping

from pidurable_nb.agent.inbox import runs
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.stored.spending import spend_on_model
from pidurable_nb.ids import ConversationId, EntryId, Json, JsonObject
from pidurable_nb.records.message import Message
from pidurable_nb.session.transaction import Transaction


def partial_of(state: JsonObject) -> Message | None:
    """The part of an answer that `pi.live` holds."""
    generation = state.get("generation")
    partial = generation.get("message") if isinstance(generation, Mapping) else None
    return partial if isinstance(partial, Mapping) else None


async def append_answer(tx: Transaction, conversation: ConversationId, message: Message) -> EntryId:
    """Whatever the model said becomes an entry, and what it cost is counted with it."""
    entry = tx.append("pi.assistant", model=(message,), conversation=conversation)
    await spend_on_model(tx, conversation, message)
    return entry


async def keep_partial(tx: Transaction, conversation: ConversationId, partial: Message | None) -> None:
    """G1: what was stored of a cut answer becomes an aborted entry, which no later request contains."""
    if partial is not None:
        await append_answer(tx, conversation, {**partial, "stopReason": "aborted"})


async def end_unanswered(tx: Transaction, conversation: ConversationId, reason: str, detail: Json = None) -> None:
    """The run ends: its inputs stay without an answer, a partial answer is kept as aborted, the inbox stays (S4)."""
    draft = await tx.edit(live.LIVE, live.at(live.LIVE, conversation))
    await keep_partial(tx, conversation, partial_of(draft))
    inputs = runs.inputs_of(draft)
    runs.end(draft)
    await runs.give_up(tx, inputs, reason, detail)
