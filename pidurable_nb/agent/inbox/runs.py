"""Owns the run of a conversation: who is in charge of it, which inputs it owes an answer, and how those are settled.

`pi.live.run` is there exactly while the conversation is busy. Every way out of a run goes through here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from pidurable_nb.agent.inbox import boundary
from pidurable_nb.agent.inbox.boundary import Selection
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.stored.recovery import GENERATION
from pidurable_nb.engine.launching import Launching
from pidurable_nb.ids import ConversationId, EntryId, Json, JsonObject, SubmissionId, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.message import items
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import Answered, Placed, Unanswered
from pidurable_nb.session.transaction import Transaction

VERSION: Final = 1
FIRST: Final[JsonObject] = {"phase": "prepare", "attempt": 1}
"""Where a generation begins."""


def generation(tx: Transaction, conversation: ConversationId, checkpoint: JsonObject = FIRST) -> TaskRecord:
    """A new generation of the conversation, which owns it."""
    return TaskRecord(
        id=TaskId(tx.mint()),
        conversation=conversation,
        kind=GENERATION,
        version=VERSION,
        input={},
        state=stored.Pending(checkpoint=checkpoint),
    )


async def start(
    tx: Transaction,
    launch: Launching,
    conversation: ConversationId,
    inputs: Sequence[SubmissionId],
    checkpoint: JsonObject = FIRST,
) -> TaskId:
    """Begin a run, or hand the run over to a new generation: it owes these inputs an answer."""
    record = launch.put(tx, generation(tx, conversation, checkpoint))
    draft = await tx.edit(live.LIVE, live.at(live.LIVE, conversation))
    draft["run"] = {"taskId": record.id, "inputs": list(inputs)}
    return record.id


def inputs_of(state: JsonObject | None) -> tuple[SubmissionId, ...]:
    """The inputs that the run owes an answer."""
    run = state.get("run") if state is not None else None
    listed = run.get("inputs") if isinstance(run, Mapping) else None
    return tuple(SubmissionId(id) for id in items(listed) if isinstance(id, int))


def end(draft: dict[str, Json]) -> None:
    """The conversation is idle from now on, in this draft of `pi.live`."""
    for member in ("run", "generation", "tools"):
        draft.pop(member, None)


async def answer(tx: Transaction, inputs: Sequence[SubmissionId], by: EntryId) -> None:
    """S2: the inputs have their answer."""
    for id in inputs:
        record = await tx.peek_submission(id)
        if record is not None and isinstance(record.state, Placed):
            tx.put_submission(replace(record, state=Answered(entry=record.state.entry, answer=by)))


async def give_up(tx: Transaction, inputs: Sequence[SubmissionId], reason: str, detail: Json = None) -> None:
    """S2: the inputs stay without an answer, for this reason."""
    for id in inputs:
        record = await tx.peek_submission(id)
        if record is not None and isinstance(record.state, Placed):
            state = Unanswered(reason=reason, detail=detail, entry=record.state.entry)
            tx.put_submission(replace(record, state=state))


async def next_run(tx: Transaction, launch: Launching, selection: Selection) -> bool:
    """Place what a final boundary selected and start a run for its inputs; False when there are none."""
    users = await boundary.place(tx, selection)
    if users:
        await start(tx, launch, selection.conversation, users)
    return bool(users)
