"""Owns starting a compaction, and what became of one. The task itself is in `compaction`."""

from __future__ import annotations

from collections.abc import Mapping

from pidurable_nb.agent.extending.hooking import CompactionReason
from pidurable_nb.agent.stored import compacting_state, live
from pidurable_nb.agent.stored.recovery import COMPACTION
from pidurable_nb.engine.launching import Launching
from pidurable_nb.engine.phase import Done, TaskRef
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.ids import ConversationId, EntryId, Json, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.session.transaction import Transaction


async def start(
    tx: Transaction,
    launch: Launching,
    conversation: ConversationId,
    reason: CompactionReason,
    *,
    owner: TaskId | None = None,
    background: bool = False,
    instructions: str | None = None,
) -> TaskRef[Json]:
    """A new compaction. One that a generation owns is waited for; the others place their summary when they can (K1)."""
    input: dict[str, Json] = {"reason": reason}
    if instructions is not None:
        input["instructions"] = instructions
    record = TaskRecord(
        id=TaskId(tx.mint()),
        conversation=conversation,
        kind=COMPACTION,
        version=1,
        input=input,
        state=stored.Pending(checkpoint={"phase": "select"}),
        owner=owner,
        background=background,
    )
    launch.put(tx, record)
    draft = await tx.edit(live.LIVE, live.at(live.LIVE, conversation))
    compacting_state.add(draft, record.id, reason, blocking=owner is not None)
    return TaskRef(record.id)


async def start_blocking(tx: Transaction, launch: Launching, rt: Runtime, reason: CompactionReason) -> TaskRef[Json]:
    """One that the running generation owns and waits for."""
    return await start(tx, launch, rt.conversation, reason, owner=rt.id)


async def begin_background(tx: Transaction, launch: Launching, conversation: ConversationId) -> None:
    """One beside the run, unless one is under way (K1)."""
    state = await tx.read(live.LIVE, live.at(live.LIVE, conversation))
    if not compacting_state.any_live(state):
        await start(tx, launch, conversation, "threshold", background=True)


async def compacted_entry(rt: Runtime, compaction: TaskRef[Json]) -> EntryId | None:
    """The summary that a blocking compaction placed; None when it placed none."""
    (outcome,) = await rt.outcomes((compaction,))
    result = outcome.result if isinstance(outcome, Done) else None
    entry = result.get("entryId") if isinstance(result, Mapping) else None
    return EntryId(entry) if isinstance(entry, int) else None
