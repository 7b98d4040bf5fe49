"""Owns what a decision may read: live tasks, who owns them, and what their conversations are busy with.

Never decides. A file gives a frozen `Snapshot`; the running engine gives its own table through the same `View`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pidurable_nb.ids import ConversationId, DocumentId, SubmissionId, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import SubmissionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """What `pi.live` says about a conversation: the run in charge, its inputs, and the names of tools by task.

    `partial` is true when some of an answer is stored there.
    """

    document: DocumentId
    task: TaskId | None = None
    inputs: tuple[SubmissionId, ...] = ()
    tools: Mapping[TaskId, str] = field(default_factory=dict)
    partial: bool = False


class View(Protocol):
    """What a decision about a task may read."""

    @property
    def opening(self) -> int | None:
        """Number of the opening that reads; None for a file that nobody opened."""
        ...

    @property
    def fresh(self) -> bool:
        """True while everything here was found by a new opening (O7)."""
        ...

    def task(self, id: TaskId) -> TaskRecord | None:
        """A live task, or a terminal one that is named in a wait."""
        ...

    def live(self) -> Iterable[TaskRecord]:
        """Every live task."""
        ...

    def parent(self, id: TaskId) -> TaskId | None:
        """The task that owns it, directly or through its conversation; terminal ones are known too (O1)."""
        ...

    def background(self, id: TaskId) -> bool:
        """True for a background task, terminal ones included (O3)."""
        ...

    def below(self, id: TaskId) -> tuple[TaskId, ...]:
        """The live ordinary owned work of a task, at any depth (O2, O3)."""
        ...

    def run(self, conversation: ConversationId) -> LiveRun | None:
        """What the conversation is busy with; None when it has no such document."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One state of a store. `tasks` holds the live ones, and the terminal ones named in a wait or owning live work.

    `owners` maps a conversation to the task that owns it, None for ownerless ones. `opening` is None for a file.
    """

    tasks: Mapping[TaskId, TaskRecord]
    owners: Mapping[ConversationId, TaskId | None]
    submissions: tuple[SubmissionRecord, ...] = ()
    runs: Mapping[ConversationId, LiveRun] = field(default_factory=dict)
    inboxes: Mapping[ConversationId, DocumentId] = field(default_factory=dict)
    opening: int | None = None
    fresh: bool = True
    _owned: Mapping[TaskId, tuple[TaskId, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        owned: dict[TaskId, list[TaskId]] = {}
        for id in sorted(self.tasks):
            above = self.parent(id)
            if above is not None:
                owned.setdefault(above, []).append(id)
        object.__setattr__(self, "_owned", {above: tuple(ids) for above, ids in owned.items()})

    def task(self, id: TaskId) -> TaskRecord | None:
        return self.tasks.get(id)

    def live(self) -> Iterable[TaskRecord]:
        return (record for record in self.tasks.values() if record.live)

    def parent(self, id: TaskId) -> TaskId | None:
        record = self.tasks.get(id)
        if record is None:
            return None
        return record.owner if record.owner is not None else self.owners.get(record.conversation)

    def background(self, id: TaskId) -> bool:
        record = self.tasks.get(id)
        return record is not None and record.background

    def below(self, id: TaskId) -> tuple[TaskId, ...]:
        found: dict[TaskId, bool] = {id: False}
        unseen = [id]
        while unseen:
            for work in self._owned.get(unseen.pop(), ()):
                record = self.tasks[work]
                if work not in found and not record.background:
                    found[work] = record.live
                    unseen.append(work)
        return tuple(sorted(work for work, live in found.items() if live))

    def run(self, conversation: ConversationId) -> LiveRun | None:
        return self.runs.get(conversation)


class Owners(Protocol):
    """The part of a view that the owner chain needs."""

    def parent(self, id: TaskId) -> TaskId | None: ...

    def background(self, id: TaskId) -> bool: ...


def ancestors(view: Owners, id: TaskId) -> Iterator[TaskId]:
    """Every task above `id`, nearest first."""
    seen = {id}
    above = view.parent(id)
    while above is not None and above not in seen:
        yield above
        seen.add(above)
        above = view.parent(above)


def ordinary_ancestors(view: Owners, id: TaskId) -> tuple[TaskId, ...]:
    """The tasks whose ordinary owned work includes `id`: up to and including the first background one (O3)."""
    if view.background(id):
        return ()
    found: list[TaskId] = []
    for above in ancestors(view, id):
        found.append(above)
        if view.background(above):
            break
    return tuple(found)


def holds_failure(record: TaskRecord) -> bool:
    """T4, O5: ended, or is held, with any outcome but completed."""
    outcome = record.outcome
    return outcome is not None and not isinstance(outcome, stored.Completed)
