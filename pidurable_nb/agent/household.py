"""Owns the rules of conversations that the engine triggers: their documents, their queues, their runs' ends.

Never schedules; the engine calls in the commits where these rules belong.
"""

from __future__ import annotations

from collections.abc import Mapping

from pidurable_nb.agent import inbox, interrupting, live
from pidurable_nb.clock import Clock
from pidurable_nb.engine.snapshot import LiveRun
from pidurable_nb.ids import ConversationId, Json
from pidurable_nb.records.document import ConversationScope
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, SubmissionRecord
from pidurable_nb.session.changes import Changes
from pidurable_nb.session.session import Session
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.store.storage import SubmissionQuery

PAGE = 200


class ConversationRules:
    """What every conversation has and owes (V3, S2, S4)."""

    def __init__(self, ids: live.Ids, clock: Clock) -> None:
        self._ids = ids
        self._clock = clock

    async def created(self, tx: Transaction, record: ConversationRecord) -> None:
        """The documents of a new conversation, in the order of the format. A fork has its `pi.agent` already."""
        seed: Json = None
        if record.owner is not None:
            agent = await tx.read(live.AGENT, live.at(live.AGENT, record.owner.conversation))
            seed = dict(agent) if agent is not None else None
        here = record.id
        await tx.edit(live.LIVE, live.at(live.LIVE, here))
        await tx.edit(live.INBOX, live.at(live.INBOX, here))
        await tx.edit(live.USAGE, live.at(live.USAGE, here))
        await tx.edit(live.PROVIDER, live.at(live.PROVIDER, here), seed=live.provider_seed(self._ids, self._clock))
        await tx.edit(live.AGENT, live.at(live.AGENT, here), seed=seed)

    async def queued(self, tx: Transaction, conversation: ConversationId) -> tuple[SubmissionRecord, ...]:
        """The queued submissions, to be read before the block writes (C5)."""
        page = await tx.scan_submissions(SubmissionQuery(conversation=conversation, status="queued"), limit=PAGE)
        return page.items

    async def withdraw(
        self, tx: Transaction, conversation: ConversationId, queued: tuple[SubmissionRecord, ...]
    ) -> None:
        """S4: a conversation that is cancelled from above gives up its queued inputs."""
        await inbox.withdraw_inputs(tx, conversation, queued)

    async def settle(self, tx: Transaction, task: TaskRecord) -> None:
        """The engine wrote this outcome: settle the run, the slot or the compaction that it was for."""
        if not task.kind.startswith("pi."):
            return
        draft = await tx.edit(live.LIVE, live.at(live.LIVE, task.conversation))
        run = draft.get("run")
        if isinstance(run, Mapping) and run.get("taskId") == task.id:
            for member in ("run", "generation", "tools"):
                draft.pop(member, None)
        _end_slot(draft, task)

    def can_interrupt(self, record: TaskRecord) -> bool:
        """A model's cut call can be settled from what is stored."""
        return interrupting.can_interrupt(record)

    async def interrupt(self, tx: Transaction, record: TaskRecord) -> None:
        """E3: the model is told that its call was cut off."""
        await interrupting.interrupt(tx, record)

    async def live_run(self, session: Session, conversation: ConversationId) -> LiveRun | None:
        """What `pi.live` says, as stored."""
        address = live.at(live.LIVE, conversation)
        record = await session.document_record(address)
        if record is None:
            return None
        return live.live_run(record.id, await session.snapshot(live.LIVE, address))

    def live_run_of(self, changes: Changes) -> dict[ConversationId, LiveRun]:
        """What `pi.live` became in this commit."""
        return {
            change.record.scope.conversation: live.live_run(change.record.id, change.value)
            for change in changes.documents
            if change.record.kind == live.LIVE.kind and isinstance(change.record.scope, ConversationScope)
        }


def _end_slot(draft: dict[str, Json], task: TaskRecord) -> None:
    """A tool's slot is done without an entry; a compaction's status goes."""
    tools, compactions = draft.get("tools"), draft.get("compactions")
    if isinstance(tools, list):
        for slot in tools:
            if isinstance(slot, dict) and slot.get("taskId") == task.id and task.kind == "pi.tool":
                slot["status"] = "done"
    if isinstance(compactions, list) and task.kind == "pi.compaction":
        kept = [c for c in compactions if not (isinstance(c, Mapping) and c.get("taskId") == task.id)]
        if kept:
            draft["compactions"] = kept
        else:
            draft.pop("compactions", None)
