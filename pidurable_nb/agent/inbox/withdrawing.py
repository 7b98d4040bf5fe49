"""Owns taking back what is still queued (S2, S4). Never touches what was placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pidurable_nb.agent.inbox.boundary import items_of
from pidurable_nb.agent.stored import live
from pidurable_nb.ids import ConversationId
from pidurable_nb.records.transcript import Queued, SubmissionRecord, Unanswered
from pidurable_nb.session.transaction import Transaction


async def withdraw(tx: Transaction, submission: SubmissionRecord) -> bool:
    """Take back a queued submission; False when it was placed or settled already (S2)."""
    if not isinstance(submission.state, Queued):
        return False
    await _take_back(tx, submission.conversation, (submission,), "aborted")
    return True


async def withdraw_inputs(
    tx: Transaction, conversation: ConversationId, queued: Sequence[SubmissionRecord], reason: str = "aborted"
) -> None:
    """S4: a conversation that is cancelled gives up its queued inputs and keeps its queued writes."""
    inputs = [record for record in queued if record.type == "input" and isinstance(record.state, Queued)]
    if inputs:
        await _take_back(tx, conversation, inputs, reason)


async def _take_back(
    tx: Transaction, conversation: ConversationId, records: Sequence[SubmissionRecord], reason: str
) -> None:
    gone = {record.id for record in records}
    box = await tx.edit(live.INBOX, live.at(live.INBOX, conversation))
    box["items"] = [item.raw for item in items_of(box) if item.id not in gone]
    for record in records:
        tx.put_submission(replace(record, state=Unanswered(reason=reason)))
