"""Owns the live tasks of a running engine in memory: the staged state, indexed by owner and by wait.

Never decides and never writes. It is the `View` that decisions of a running harness read; it follows the commits of
its session as they are staged, so that everything here has the cost of what changed, not of what lives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pidurable_nb.engine.snapshot import LiveRun, ancestors, ordinary_ancestors
from pidurable_nb.ids import ConversationId, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord


@dataclass(frozen=True, slots=True)
class Edge:
    """What is kept of a task that may own live work: who owns it, and whether it is a boundary (O3)."""

    parent: TaskId | None
    background: bool
    conversation: ConversationId


class TaskTable:
    """The live tasks. `opening` is this opening's number; `fresh` is true until its first pass is over (O7)."""

    def __init__(self, opening: int) -> None:
        self.opening: int | None = opening
        self.fresh = True
        self._tasks: dict[TaskId, TaskRecord] = {}
        self._ended: dict[TaskId, TaskRecord] = {}
        self._edges: dict[TaskId, Edge] = {}
        self._owners: dict[ConversationId, TaskId | None] = {}
        self._children: dict[TaskId, set[TaskId]] = {}
        self._waiters: dict[TaskId, set[TaskId]] = {}
        self._below: Counter[TaskId] = Counter()
        self._runs: dict[ConversationId, LiveRun] = {}
        self._foreground = 0

    # -- what a decision reads -----------------------------------------------------------------------------------------

    def task(self, id: TaskId) -> TaskRecord | None:
        return self._tasks.get(id) or self._ended.get(id)

    def live(self) -> Iterable[TaskRecord]:
        return list(self._tasks.values())

    def live_task(self, id: TaskId) -> TaskRecord | None:
        """The task when it is live."""
        return self._tasks.get(id)

    def parent(self, id: TaskId) -> TaskId | None:
        edge = self._edges.get(id)
        return edge.parent if edge is not None else None

    def background(self, id: TaskId) -> bool:
        edge = self._edges.get(id)
        return edge is not None and edge.background

    def below(self, id: TaskId) -> tuple[TaskId, ...]:
        """The live ordinary owned work at any depth; costs nothing when there is none."""
        if not self._below.get(id):
            return ()
        return tuple(sorted(work for work in self.descendants(id) if id in ordinary_ancestors(self, work)))

    def run(self, conversation: ConversationId) -> LiveRun | None:
        return self._runs.get(conversation)

    # -- what the scheduler asks besides -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def idle(self) -> bool:
        """No task lives but background ones and what they own (O3)."""
        return not self._foreground

    def has_below(self, id: TaskId) -> bool:
        """Whether ordinary owned work of the task lives."""
        return bool(self._below.get(id))

    def descendants(self, id: TaskId) -> set[TaskId]:
        """Every live task below, boundaries crossed."""
        found: set[TaskId] = set()
        open_ = [id]
        while open_:
            for child in self._children.get(open_.pop(), ()):
                if child not in found:
                    open_.append(child)
                    found.add(child)
        return {child for child in found if child in self._tasks}

    def of_conversation(self, id: ConversationId, *, background: bool = False) -> tuple[TaskId, ...]:
        """The live work of a conversation and of what it owns, at any depth; with `background` across that boundary."""
        return tuple(sorted(task for task in self._tasks if self._is_of(task, id, background)))

    def _is_of(self, task: TaskId, conversation: ConversationId, background: bool) -> bool:
        for here in (task, *ancestors(self, task)):
            edge = self._edges.get(here)
            if edge is None or (edge.background and not background):
                return False
            if edge.conversation == conversation:
                return True
        return False

    def waiters(self, id: TaskId) -> tuple[TaskId, ...]:
        """The live tasks that wait for this one."""
        return tuple(self._waiters.get(id, ()))

    def conversation_known(self, id: ConversationId) -> bool:
        """Whether the owner of the conversation is in memory."""
        return id in self._owners

    def conversation_owner(self, id: ConversationId) -> TaskId | None:
        """The task that owns a known conversation."""
        return self._owners.get(id)

    def edge_known(self, id: TaskId) -> bool:
        """Whether the task's own owner is in memory."""
        return id in self._edges

    def set_run(self, conversation: ConversationId, run: LiveRun) -> None:
        """What the conversation is busy with, as its live document says."""
        self._runs[conversation] = run

    # -- following the session -----------------------------------------------------------------------------------------

    def learn_conversation(self, record: ConversationRecord) -> None:
        """Remember who owns a conversation; its owner must be learned before its tasks are put."""
        self._owners[record.id] = record.owner.task if record.owner is not None else None

    def learn_edge(self, record: TaskRecord) -> None:
        """Remember who owns a task that is above live work."""
        self._edges[record.id] = Edge(self._parent_of(record), record.background, record.conversation)

    def learn_ended(self, record: TaskRecord) -> None:
        """Remember a terminal task that a wait names."""
        self._ended[record.id] = record

    def put(self, after: TaskRecord) -> None:
        """Follow one staged change of a task."""
        before = self._tasks.get(after.id)
        if before is None:
            if not after.live:
                return
            self._add(after)
        self._follow_wait(before, after)
        if after.live:
            self._tasks[after.id] = after
        else:
            self._remove(after)

    def _parent_of(self, record: TaskRecord) -> TaskId | None:
        return record.owner if record.owner is not None else self._owners.get(record.conversation)

    def _add(self, record: TaskRecord) -> None:
        self.learn_edge(record)
        child = record.id
        above = self.parent(child)
        while above is not None:
            known = self._children.setdefault(above, set())
            if child in known:
                break
            known.add(child)
            child, above = above, self.parent(above)
        for ancestor in ordinary_ancestors(self, record.id):
            self._below[ancestor] += 1
        self._foreground += self._in_foreground(record.id)

    def _in_foreground(self, id: TaskId) -> bool:
        return not self.background(id) and not any(self.background(above) for above in ancestors(self, id))

    def _remove(self, record: TaskRecord) -> None:
        self._foreground -= self._in_foreground(record.id)
        for ancestor in ordinary_ancestors(self, record.id):
            self._below[ancestor] -= 1
            if not self._below[ancestor]:
                del self._below[ancestor]
        del self._tasks[record.id]
        if self._waiters.get(record.id):
            self._ended[record.id] = record
        self._prune(record.id)

    def _prune(self, id: TaskId) -> None:
        """Forget the edges of ended tasks that own no live work any more."""
        here: TaskId | None = id
        while here is not None and here not in self._tasks and not self._children.get(here):
            above = self.parent(here)
            self._children.pop(here, None)
            self._edges.pop(here, None)
            if above is not None and above in self._children:
                self._children[above].discard(here)
            here = above

    def _follow_wait(self, before: TaskRecord | None, after: TaskRecord) -> None:
        old = before.state.on if before is not None and isinstance(before.state, stored.Waiting) else ()
        new = after.state.on if isinstance(after.state, stored.Waiting) else ()
        if old is new:
            return
        for id in old:
            named = self._waiters.get(id)
            if named is not None:
                named.discard(after.id)
                if not named:
                    del self._waiters[id]
                    self._ended.pop(id, None)
        for id in new:
            self._waiters.setdefault(id, set()).add(after.id)


def missing_from_waits(table: TaskTable, tasks: Mapping[TaskId, TaskRecord]) -> set[TaskId]:
    """The tasks that stored waits name and that are not in memory: terminal ones, to be read once at the opening."""
    named: set[TaskId] = set()
    for record in tasks.values():
        if isinstance(record.state, stored.Waiting):
            named.update(id for id in record.state.on if table.task(id) is None)
    return named
