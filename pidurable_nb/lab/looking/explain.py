"""Owns saying what recovery will do with a store that nobody opened, and why. Never decides it: `engine.decide` does.

Reads a store from a private copy (`store.stranger`); not a byte of it or beside it changes. What is read is what the
decision needs: live work, the ended tasks that it names, and the documents of its conversations.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pidurable_nb.agent.stored import live
from pidurable_nb.agent.stored.recovery import AssumedCode
from pidurable_nb.engine.decide import Policy, Verdict, decide_tasks
from pidurable_nb.engine.registry import Code
from pidurable_nb.engine.snapshot import LiveRun, Snapshot
from pidurable_nb.engine.submissions import SubmissionVerdict, decide_submissions
from pidurable_nb.ids import ConversationId, DocumentId, JsonObject, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import ConversationScope, DocumentRecord
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import Placed, Queued, SubmissionRecord
from pidurable_nb.store.confined import DEFAULT_LIMITS, Limits
from pidurable_nb.store.stranger import StoreFile

ASSUMED = "code installed"
"""What is said where no code was named: everything is taken as installed, at its stored version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What recovery will do, before anything was opened: a verdict for every live task and open submission.

    `assumed` says which code the verdicts are about; `snapshot` is what they were read from.
    """

    source: Path
    now_ms: int
    assumed: str
    snapshot: Snapshot
    tasks: tuple[Verdict, ...]
    submissions: tuple[SubmissionVerdict, ...]

    def to_json(self) -> JsonObject:
        """The object that `pidurable-nb why --json` prints."""
        return {
            "now_ms": self.now_ms,
            "assumed": self.assumed,
            "verdicts": [
                *(_task_json(verdict) for verdict in self.tasks),
                *(_submission_json(verdict) for verdict in self.submissions),
            ],
        }


def explain(
    store: Path | StoreFile,
    *,
    code: Code | None = None,
    assumed: str = ASSUMED,
    now_ms: int | None = None,
    policy: Policy | None = None,
    all: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Explanation:
    """What recovery will do with the store, and why, in id order. `all` includes settled submissions.

    Without `code`, tasks of the user's are taken as installed at their stored version and tools as declaring their
    stored replay policy. `now_ms` defaults to the system's clock. `limits` count for a store that is opened here.

    Raises: StoreRefused and its kinds.
    Laws: T7, O5, O6.
    """
    if not isinstance(store, StoreFile):
        with StoreFile.open(store, limits=limits) as file:
            return explain(file, code=code, assumed=assumed, now_ms=now_ms, policy=policy, all=all)
    at_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    snapshot = snapshot_of(store, all=all)
    chosen = policy if policy is not None else Policy()
    tasks = decide_tasks(snapshot, code if code is not None else AssumedCode(), chosen, at_ms)
    submissions = decide_submissions(snapshot, tasks, chosen)
    return Explanation(
        source=store.source,
        now_ms=at_ms,
        assumed=assumed,
        snapshot=snapshot,
        tasks=tuple(tasks[id] for id in sorted(tasks)),
        submissions=tuple(submissions[id] for id in sorted(submissions)),
    )


# --- Reading a file ---------------------------------------------------------------------------------------------------


def snapshot_of(file: StoreFile, *, all: bool = False) -> Snapshot:
    """What a decision may read about a file: its live tasks and open submissions, and what stands around them.

    Raises: StoreRefused and its kinds.
    """
    tasks = {record.id: record for record in file.live_tasks()}
    submissions = tuple(file.submissions() if all else file.open_submissions())
    _add_named(file, tasks)
    busy = {record.conversation for record in tasks.values() if record.live}
    busy.update(record.conversation for record in submissions if _open(record))
    owners = _owners(file, tasks, busy)
    runs, inboxes = _documents(file, busy)
    return Snapshot(tasks=tasks, owners=owners, submissions=submissions, runs=runs, inboxes=inboxes)


def _open(record: SubmissionRecord) -> bool:
    return isinstance(record.state, Queued | Placed)


def _add_named(file: StoreFile, tasks: dict[TaskId, TaskRecord]) -> None:
    """The ended tasks that a wait names (T4)."""
    waits = [record.state.on for record in tasks.values() if isinstance(record.state, stored.Waiting)]
    for id in dict.fromkeys(id for on in waits for id in on):
        if id not in tasks and (ended := file.task(id)) is not None:
            tasks[id] = ended


def _owners(
    file: StoreFile, tasks: dict[TaskId, TaskRecord], busy: Iterable[ConversationId]
) -> dict[ConversationId, TaskId | None]:
    """Who owns each conversation, upwards to the top (O1); ended owners on the way are added to `tasks`."""
    owners: dict[ConversationId, TaskId | None] = {}
    unseen = list(tasks.values())
    waiting = list(busy)
    while unseen or waiting:
        above: list[TaskId] = []
        if unseen:
            record = unseen.pop()
            waiting.append(record.conversation)
            above += [record.owner] if record.owner is not None else []
        else:
            here = waiting.pop()
            if here not in owners:
                conversation = file.conversation(here)
                owner = conversation.owner if conversation is not None else None
                owners[here] = owner.task if owner is not None else None
                above += [owner.task] if owner is not None else []
        for id in above:
            if id not in tasks and (ended := file.task(id)) is not None:
                tasks[id] = ended
                unseen.append(ended)
    return owners


def _documents(
    file: StoreFile, busy: set[ConversationId]
) -> tuple[dict[ConversationId, LiveRun], dict[ConversationId, DocumentId]]:
    """What the busy conversations say about themselves. Only their values are read."""
    runs: dict[ConversationId, LiveRun] = {}
    inboxes: dict[ConversationId, DocumentId] = {}
    for conversation, record in documents_in(file, busy):
        if record.kind == live.INBOX.kind:
            inboxes[conversation] = record.id
        elif record.kind == live.LIVE.kind:
            found = file.document_value(record.id)
            runs[conversation] = live.live_run(record.id, found[1] if found is not None else None)
    return runs, inboxes


def documents_in(
    file: StoreFile, conversations: set[ConversationId]
) -> Iterator[tuple[ConversationId, DocumentRecord]]:
    """The documents of these conversations that are alive and no members of a family."""
    for record in file.documents():
        conversation = _conversation_of(record)
        if conversation is not None and conversation in conversations:
            yield conversation, record


def _conversation_of(record: DocumentRecord) -> ConversationId | None:
    """The conversation of a document that is alive and no member of a family."""
    if record.retired_at is not None or record.key is not None or not isinstance(record.scope, ConversationScope):
        return None
    return record.scope.conversation


# --- Showing ----------------------------------------------------------------------------------------------------------


def _task_json(verdict: Verdict) -> JsonObject:
    was = verdict.facts.was
    return {
        "subject": "task",
        "id": verdict.id,
        "kind": was.kind,
        "status": was.status,
        "phase": was.phase,
        "verdict": verdict.name,
        "laws": list(verdict.laws),
        "because": verdict.because,
        "outside_world": verdict.outside,
        "rows": list(verdict.reads),
    }


def _submission_json(verdict: SubmissionVerdict) -> JsonObject:
    record = verdict.submission
    return {
        "subject": "submission",
        "id": verdict.id,
        "kind": record.type,
        "status": record.status,
        "phase": None,
        "verdict": verdict.name,
        "laws": list(verdict.laws),
        "because": verdict.because,
        "outside_world": verdict.outside,
        "rows": list(verdict.reads),
    }
