"""Owns what must hold after a crash, and after the last life: a sentence for everything that does not.

Reads stores that nobody has open, and ledgers. Never runs a life, and never knows how one died.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pidurable_nb.engine.decide import SETTLES, STARTS
from pidurable_nb.engine.registry import BuiltIn
from pidurable_nb.engine.transition import kept_fault
from pidurable_nb.ids import Json
from pidurable_nb.lab.dying.crash import Passed
from pidurable_nb.lab.dying.point import TaskPlace
from pidurable_nb.lab.judging.conversations import Stored, unfinished, unsound
from pidurable_nb.lab.looking.explain import Explanation
from pidurable_nb.lab.scenario import Facts, Scenario, is_request
from pidurable_nb.records import task as stored
from pidurable_nb.records.codec import (
    encode_conversation,
    encode_document,
    encode_entry,
    encode_submission,
    encode_task,
)
from pidurable_nb.records.document import ConversationScope, DocumentRecord, TaskScope
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, SubmissionRecord
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.stranger import StoreFile

__all__ = [
    "Acknowledged", "Broken", "Content", "Expected", "NOTHING_THERE", "Problem", "acknowledged", "beyond_policy",
    "content_of", "expected", "forgotten", "lost", "never_happened", "owed", "ruined", "stuck", "twice",
]  # fmt: skip

Broken = Literal["effect_twice", "lost_acknowledged", "stuck", "corrupt", "mispredicted", "broken"]
"""What can be wrong: the classes of outcomes that no durability allows, a verdict that did not come true, and a promise
that the scenario itself makes."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One sentence about one thing that is wrong."""

    kind: Broken
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Everything in a store that nobody has open. `rows` holds the text of each record by its name, as `tasks/12`.

    `final` are the rows that never change again: entries, ended tasks, settled submissions. `wrong` are sentences about
    rows that cannot be, `unfinished` about what a conversation owes in which nothing lives any more. A store that was
    never made to the end is `NOTHING_THERE`.
    """

    next_seq: int
    rows: Mapping[str, str]
    final: frozenset[str]
    wrong: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()


NOTHING_THERE: Final = Content(next_seq=1, rows={}, final=frozenset())


def content_of(file: StoreFile) -> Content:
    """What the store holds. Raises: DamagedStore, HostileStore."""
    conversations, entries, tasks = tuple(file.conversations()), tuple(file.entries()), tuple(file.tasks())
    submissions, documents = tuple(file.submissions()), tuple(file.documents())
    rows = {f"conversations/{record.id}": encode_conversation(record) for record in conversations}
    rows |= {f"entries/{record.id}": encode_entry(record) for record in entries}
    rows |= {f"tasks/{record.id}": encode_task(record) for record in tasks}
    rows |= {f"submissions/{record.id}": encode_submission(record) for record in submissions}
    values: dict[int, Json] = {}
    for record in documents:
        found = file.document_value(record.id)
        values[record.id] = found[1] if found is not None else None
        rows[f"documents/{record.id}"] = _document(record, values[record.id])
    final = {f"entries/{record.id}" for record in entries}
    final |= {f"tasks/{record.id}" for record in tasks if not record.live}
    final |= {f"submissions/{record.id}" for record in submissions if record.status in ("done", "unanswered")}
    wrong = [] if file.integrity == "ok" else [f"integrity_check says {file.integrity}"]
    wrong += _dangling(frozenset(rows), conversations, entries, tasks, submissions, documents)
    wrong += _admitted_twice(submissions)
    there = Stored(
        conversations=conversations, entries=entries, tasks=tasks, submissions=submissions, documents=documents,
        values=values,
    )  # fmt: skip
    wrong += unsound(there)
    return Content(
        next_seq=file.next_seq, rows=rows, final=frozenset(final), wrong=tuple(wrong),
        unfinished=tuple(unfinished(there)),
    )  # fmt: skip


def _document(record: DocumentRecord, value: Json) -> str:
    """A document with its value; the order of its members is not part of it."""
    said = None if record.retired_at is not None else value
    return encode_document(record) + json.dumps(said, sort_keys=True, default=dict)


def _dangling(
    there: frozenset[str],
    conversations: Sequence[ConversationRecord],
    entries: Sequence[EntryRecord],
    tasks: Sequence[TaskRecord],
    submissions: Sequence[SubmissionRecord],
    documents: Sequence[DocumentRecord],
) -> Iterator[str]:
    """A sentence for each row that names one which is not there."""
    named: list[tuple[str, str]] = []
    for conversation in conversations:
        here = f"conversations/{conversation.id}"
        if conversation.parent is not None:
            named += [(here, f"conversations/{conversation.parent.conversation}")]
            named += [(here, f"entries/{conversation.parent.at}")]
        if conversation.owner is not None:
            named += [(here, f"tasks/{conversation.owner.task}")]
    for entry in entries:
        named += [(f"entries/{entry.id}", f"conversations/{entry.conversation}")]
        named += [(f"entries/{entry.id}", f"entries/{entry.head}")] if entry.head is not None else []
        named += [(f"entries/{entry.id}", f"tasks/{entry.by_task}")] if entry.by_task is not None else []
    for task in tasks:
        here = f"tasks/{task.id}"
        named += [(here, f"conversations/{task.conversation}")]
        named += [(here, f"tasks/{task.owner}")] if task.owner is not None else []
        named += [(here, f"tasks/{id}") for id in task.state.on] if isinstance(task.state, stored.Waiting) else []
    named += [(f"submissions/{record.id}", f"conversations/{record.conversation}") for record in submissions]
    for document in documents:
        match document.scope:
            case ConversationScope(conversation=id):
                named += [(f"documents/{document.id}", f"conversations/{id}")]
            case TaskScope(task=task_id):
                named += [(f"documents/{document.id}", f"tasks/{task_id}")]
            case _:
                pass
    for row, other in named:
        if other not in there:
            yield f"{row} names {other}, which is not there"


def _admitted_twice(submissions: Sequence[SubmissionRecord]) -> Iterator[str]:
    """S1: one request id, one submission in its conversation."""
    seen: set[tuple[int, str]] = set()
    for record in submissions:
        if record.request_id is not None:
            key = (record.conversation, record.request_id)
            if key in seen:
                yield f"request id {record.request_id!r} was admitted twice in conversation {record.conversation} (S1)"
            seen.add(key)


# What was promised before the crash.


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """What a life had told anybody before it died: the newest number, and the rows that its commits had written.

    `in_flight` are the rows of commits that nobody had been told of: they may be stored, or not.
    """

    seq: int
    rows: Mapping[str, str]
    in_flight: frozenset[str]


def acknowledged(passed: Sequence[Passed], published: Iterable[Changes], whole: Sequence[Passed]) -> Acknowledged:
    """What a life told that passed these points and published these changes. `whole` is the same life, not cut off."""
    told = [p.mark.seq for p in passed if p.mark is not None and p.mark.edge == "after" and p.mark.seq is not None]
    heard = list(published)
    seq = max([0, *told, *(changes.seq or 0 for changes in heard)])
    rows: dict[str, str] = {}
    for changes in heard:
        rows |= _rows_of(changes)
    in_flight = [p.mark.rows for p in whole if p.mark is not None and p.mark.seq is not None and p.mark.seq > seq]
    return Acknowledged(seq=seq, rows=rows, in_flight=frozenset(row for names in in_flight for row in names))


def _rows_of(changes: Changes) -> dict[str, str]:
    rows = {f"conversations/{record.id}": encode_conversation(record) for record in changes.conversations}
    rows |= {f"entries/{record.id}": encode_entry(record) for record in changes.entries}
    rows |= {f"tasks/{id}": encode_task(change.after) for id, change in changes.tasks.items()}
    rows |= {f"submissions/{id}": encode_submission(change.after) for id, change in changes.submissions.items()}
    rows |= {f"documents/{each.record.id}": _document(each.record, each.value) for each in changes.documents}
    return rows


def lost(told: Acknowledged, content: Content) -> Iterator[Problem]:
    """C2, C6: what was told and is not in the store that the life left."""
    newest = content.next_seq - 1
    if newest < told.seq:
        yield Problem("lost_acknowledged", f"commit {told.seq} was acknowledged, and the store ends with {newest} (C2)")
        return
    later = told.in_flight if newest > told.seq else frozenset()
    for row, text in told.rows.items():
        if row not in content.rows:
            yield Problem("lost_acknowledged", f"{row} was acknowledged, and is not in the store (C2)")
        elif content.rows[row] != text and row not in later:
            yield Problem("lost_acknowledged", f"{row} is not in the store as it was acknowledged (C1, C2)")


def forgotten(before: Content, after: Content) -> Iterator[Problem]:
    """V1, T6, S5: what can never change, and a recovery changed it."""
    for row in sorted(before.final):
        if after.rows.get(row) != before.rows[row]:
            yield Problem("lost_acknowledged", f"{row} was final, and recovery changed it (V1, T6, S5)")


def ruined(content: Content) -> Iterator[Problem]:
    """A sentence for each row that cannot be."""
    return (Problem("corrupt", text) for text in content.wrong)


# After the last life.


def owed(content: Content) -> Iterator[Problem]:
    """A sentence for each call that an idle conversation still owes a result (V2)."""
    return (Problem("stuck", text) for text in content.unfinished)


def stuck(explained: Explanation) -> Iterator[Problem]:
    """Each live task that would start or settle by itself, and was left. One that rests or waits says why."""
    for verdict in explained.tasks:
        acts = verdict.name in STARTS | SETTLES and not verdict.held_by and not isinstance(verdict.facts.fit, BuiltIn)
        if acts and kept_fault(verdict.facts.was) is None:
            yield Problem("stuck", f"task {verdict.id} ({verdict.task.kind}) was left, though it would {verdict.name}")


def beyond_policy(scenario: Scenario, facts: Facts) -> Iterator[Problem]:
    """M3, E6: effects that happened more often than their author chose."""
    for effect, times in facts.asked.items():
        policy = scenario.policy_of(effect)
        if policy == "at_most_once" and times > 1:
            yield Problem("effect_twice", f"{effect} happened {times} times; its memo comes first (M3)")
        applied = facts.applied.get(effect, 0)
        if policy == "keyed" and applied > 1:
            yield Problem("effect_twice", f"{effect} was applied {applied} times under one key (E6)")


@dataclass(frozen=True, slots=True)
class Expected:
    """An effect, and whose it is: a task by its kind and its number within that kind."""

    kind: str
    ordinal: int
    effect: str


def twice(scenario: Scenario, facts: Facts, awaited: Iterable[Expected] = ()) -> bool:
    """Whether any effect happened more often outside than where nothing crashes, allowed or not.

    `awaited` are the effects of the story in which nothing crashed. Where keys are honoured, what was applied counts.
    Requests to a model do not: one that was cut is sent again by design (G1).
    """
    usual = Counter(each.effect for each in awaited)
    return any(
        (facts.applied.get(effect, 0) if scenario.policy_of(effect) == "keyed" else times) > max(1, usual[effect])
        for effect, times in facts.asked.items()
        if not is_request(effect)
    )


def expected(passed: Iterable[Passed]) -> tuple[Expected, ...]:
    """The effects of a life, and whose they are."""
    found: dict[Expected, None] = {}
    for each in passed:
        mark, at = each.mark, each.point.place
        if mark is not None and mark.what == "effect" and mark.edge == "after" and isinstance(at, TaskPlace):
            found[Expected(at.kind, at.ordinal, mark.name or "")] = None
    return tuple(found)


def never_happened(scenario: Scenario, facts: Facts, awaited: Iterable[Expected]) -> Iterator[Problem]:
    """M3: what was chosen to happen at least once and never did, although its task completed."""
    for each in awaited:
        same = facts.of_kind(each.kind)
        ended = len(same) >= each.ordinal and isinstance(same[each.ordinal - 1].outcome, stored.Completed)
        if ended and scenario.policy_of(each.effect) == "at_least_once" and not facts.asked.get(each.effect):
            yield Problem("broken", f"{each.effect} never happened, and the task that does it completed (M3)")
