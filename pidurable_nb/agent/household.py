"""Owns the rules of conversations that the engine triggers: their documents, their queues, their runs' ends.

Never schedules; the engine calls in the commits where these rules belong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pidurable_nb.agent.extending.workshop import Workshop
from pidurable_nb.agent.inbox import withdrawing
from pidurable_nb.agent.inbox.boundary import items_of
from pidurable_nb.agent.inbox.ending import end_unanswered
from pidurable_nb.agent.round import interrupting, nesting
from pidurable_nb.agent.stored import compacting_state, live
from pidurable_nb.clock import Clock
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.engine.snapshot import LiveRun
from pidurable_nb.ids import ConversationId, Json
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import ConversationScope
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, SubmissionRecord
from pidurable_nb.session.changes import Changes
from pidurable_nb.session.session import Session
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.store.storage import SubmissionQuery

if TYPE_CHECKING:
    from pidurable_nb.agent.conversation import Conversation

PAGE = 200


class ConversationRules:
    """What every conversation has and owes (V3, S2, S4)."""

    def __init__(self, ids: live.Ids, clock: Clock, shop: Workshop) -> None:
        self._ids = ids
        self._clock = clock
        self.shop = shop

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
        found: list[SubmissionRecord] = []
        after: int | None = None
        while True:
            query = SubmissionQuery(conversation=conversation, status="queued")
            page = await tx.scan_submissions(query, limit=PAGE, after=after)
            found += page.items
            if page.next is None:
                return tuple(found)
            after = page.next

    async def withdraw(
        self, tx: Transaction, conversation: ConversationId, queued: tuple[SubmissionRecord, ...]
    ) -> None:
        """S4: a conversation that is cancelled from above gives up its queued inputs."""
        await withdrawing.withdraw_inputs(tx, conversation, queued)

    async def settle(self, tx: Transaction, task: TaskRecord) -> None:
        """The engine wrote this outcome: settle the run, the slot or the compaction that it was for."""
        if not task.kind.startswith("pi."):
            return
        draft = await tx.edit(live.LIVE, live.at(live.LIVE, task.conversation))
        run = draft.get("run")
        if isinstance(run, Mapping) and run.get("taskId") == task.id:
            reason, detail = _why(task)
            await end_unanswered(tx, task.conversation, reason, detail)
            await self.run_failed(tx, task.conversation)
        if task.kind == "pi.tool":
            for member in live.SLOTS:
                slot = live.slot_of(draft, task.id, member)
                if slot is not None:
                    slot["status"] = "done"
            nesting.forget_nested(draft, task.id)
        if task.kind == "pi.compaction":
            reason, detail = _why(task)
            error = detail if isinstance(detail, str) and detail else reason
            asked = task.input.get("reason") if isinstance(task.input, Mapping) else None
            compacting_state.remove(draft, task.id, reason=asked if isinstance(asked, str) else "manual", error=error)

    async def run_failed(self, tx: Transaction, conversation: ConversationId) -> None:
        """S4: a run ended without an answer; its queue stays, unless the host wants it withdrawn."""
        if self.shop.settings().after_failed_run != "withdraw":
            return
        inbox = await tx.read(live.INBOX, live.at(live.INBOX, conversation))
        records = [await tx.peek_submission(item.id) for item in items_of(inbox)]
        waiting = [record for record in records if record is not None]
        await withdrawing.withdraw_inputs(tx, conversation, waiting, "run_failed")

    def can_interrupt(self, record: TaskRecord) -> bool:
        """Whether a cut call can be settled from what is stored."""
        return interrupting.can_interrupt(record)

    async def interrupt(self, tx: Transaction, record: TaskRecord) -> None:
        """E3: whoever asked is told that the call was cut off."""
        await interrupting.interrupt(tx, record)

    async def live_run(self, session: Session, conversation: ConversationId) -> LiveRun | None:
        """What `pi.live` says, as stored."""
        agent = await session.snapshot(live.AGENT, live.at(live.AGENT, conversation))
        self.shop.states[conversation] = agent if agent is not None else {}
        address = live.at(live.LIVE, conversation)
        record = await session.document_record(address)
        if record is None:
            return None
        return live.live_run(record.id, await session.snapshot(live.LIVE, address))

    def live_run_of(self, changes: Changes) -> dict[ConversationId, LiveRun]:
        """What `pi.live` became in this commit."""
        found: dict[ConversationId, LiveRun] = {}
        for change in changes.documents:
            if isinstance(change.record.scope, ConversationScope):
                here = change.record.scope.conversation
                if change.record.kind == live.LIVE.kind:
                    found[here] = live.live_run(change.record.id, change.value)
                elif change.record.kind == live.AGENT.kind:
                    self.shop.states[here] = change.value if change.value is not None else {}
        return found


def rules_of(rt: Runtime) -> ConversationRules:
    """The rules that this harness's conversations follow."""
    rules = rt.engine.household
    assert isinstance(rules, ConversationRules)
    return rules


def shop_of(rt: Runtime) -> Workshop:
    """What the built-in tasks of this harness work with."""
    return rules_of(rt).shop


def conversation_of(rt: Runtime, id: ConversationId) -> Conversation:
    """A conversation as its users see it, for the phases of a task: to submit to it, and to wait for its answers."""
    return shop_of(rt).conversation(id)


def _why(task: TaskRecord) -> tuple[str, Json]:
    """S2: the reason that the inputs of a run get which the engine ended."""
    match task.outcome:
        case stored.Faulted(error=error):
            return "faulted", error.message
        case stored.Orphaned(reason=reason):
            return reason, None
        case _:
            return "faulted", None
