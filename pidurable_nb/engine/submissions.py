"""Owns the verdict of an open submission: what becomes of what somebody asked for (S1 to S5). Pure, never writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pidurable_nb.engine.decide import Policy, Verdict, conversation_cancelled, verdicts_failing, verdicts_marked
from pidurable_nb.engine.snapshot import Snapshot, holds_failure
from pidurable_nb.ids import SubmissionId, TaskId
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import Placed, Queued, SubmissionRecord

SubmissionVerdictName = Literal["settle", "place", "hold", "withdraw", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionVerdict:
    """What happens to one submission. `outside` is always none: a submission only waits or is answered."""

    submission: SubmissionRecord
    name: SubmissionVerdictName
    laws: tuple[str, ...]
    because: str
    reads: tuple[str, ...]

    @property
    def id(self) -> SubmissionId:
        return self.submission.id

    @property
    def outside(self) -> Literal["none"]:
        return "none"


def decide_submissions(
    snapshot: Snapshot, tasks: Mapping[TaskId, Verdict], policy: Policy
) -> Mapping[SubmissionId, SubmissionVerdict]:
    """A verdict for every submission of the snapshot, given those of its tasks."""
    cancelled = verdicts_marked(tasks) | verdicts_failing(tasks)
    return {
        record.id: _queued(record, snapshot, cancelled, policy)
        if isinstance(record.state, Queued)
        else _placed(record, snapshot)
        for record in snapshot.submissions
    }


def _placed(record: SubmissionRecord, snapshot: Snapshot) -> SubmissionVerdict:
    if not isinstance(record.state, Placed):
        return _verdict(record, "keep", ("S5",), "Settled before the crash; it does not change.")
    charge, rows = _run(record, snapshot)
    if charge is None:
        return _verdict(record, "settle", ("S2",), "Its run has ended; the submission is settled as that ended.", rows)
    because = "Its run goes on; when that ends, the submission is settled with it."
    return _verdict(record, "settle", ("S2",), because, rows)


def _queued(
    record: SubmissionRecord, snapshot: Snapshot, cancelled: frozenset[TaskId], policy: Policy
) -> SubmissionVerdict:
    charge, rows = _run(record, snapshot)
    if record.type == "input":
        owner = snapshot.owners.get(record.conversation)
        source = conversation_cancelled(snapshot, owner, cancelled)
        if source is not None:
            because = "Its conversation was cancelled; it is withdrawn, unanswered."
            return _verdict(record, "withdraw", ("O5", "S4"), because, (f"tasks/{source}",))
        ends = charge is not None and (charge.id in cancelled or holds_failure(charge))
        if ends and policy.after_failed_run == "withdraw":
            because = "The run before it ends without an answer; it is withdrawn, unanswered."
            return _verdict(record, "withdraw", ("S4",), because, rows)
    inbox = snapshot.inboxes.get(record.conversation)
    if inbox is None:
        because = "It is queued, and the inbox that holds what it asks is gone; it stays so."
        return _verdict(record, "hold", ("S2",), because)
    if charge is not None:
        because = "It waits behind the run and joins when that ends well."
        return _verdict(record, "place", ("S2", "S4"), because, (f"documents/{inbox}", *rows))
    because = "Nothing runs here; the next submission will place it."
    return _verdict(record, "hold", ("S2", "S4"), because, (f"documents/{inbox}",))


def _run(record: SubmissionRecord, snapshot: Snapshot) -> tuple[TaskRecord | None, tuple[str, ...]]:
    """The live task in charge of the conversation, and the rows that say so."""
    run = snapshot.run(record.conversation)
    if run is None:
        return None, ()
    charge = snapshot.task(run.task) if run.task is not None else None
    if charge is None or not charge.live:
        return None, ()
    return charge, (f"documents/{run.document}", f"tasks/{charge.id}")


def _verdict(
    record: SubmissionRecord, name: SubmissionVerdictName, laws: tuple[str, ...], because: str,
    rows: tuple[str, ...] = (),
) -> SubmissionVerdict:  # fmt: skip
    reads = (f"submissions/{record.id}", *rows)
    return SubmissionVerdict(submission=record, name=name, laws=laws, because=because, reads=reads)
