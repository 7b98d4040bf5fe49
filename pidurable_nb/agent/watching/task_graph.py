"""Owns the view of all live tasks: what runs, what waits for what, and who owns which conversations.

Never decides what happens to a task: whether it is blocked or parked is a verdict's to say. Never writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, assert_never

from pidurable_nb.agent.watching.following import Following, follow
from pidurable_nb.engine.engine import Engine
from pidurable_nb.ids import ConversationId, Seq, TaskId
from pidurable_nb.probe import SessionSubject, Subject
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord
from pidurable_nb.session.changes import Changes
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.store.storage import ConversationQuery

PAGE = 500
OutcomeStatus = Literal["completed", "failed", "aborted", "orphaned", "faulted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """Pending or running, at a phase. A pending one may be blocked, parked, or kept by a fault."""

    status: Literal["pending", "running"]
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Waits until every task in `on` has ended; those that have are no nodes any more (T4)."""

    phase: str
    on: tuple[TaskId, ...]
    fail_fast: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleeping:
    """Waits for a time of the harness clock, milliseconds since 1970 (T12)."""

    phase: str
    until_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Completing:
    """The outcome is held until the ordinary owned work has ended (T5)."""

    outcome: OutcomeStatus


NodeState: TypeAlias = Active | Waiting | Sleeping | Completing


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNode:
    """A live task, without its input, checkpoint and memos.

    `owner` is None for a task that its conversation owns. `conversations` are those that it owns, in id order.
    """

    id: TaskId
    kind: str
    conversation: ConversationId
    owner: TaskId | None
    background: bool
    abort_requested: bool
    state: NodeState
    conversations: tuple[ConversationId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGraph:
    """Every live task of a session, by id: there from the commit that creates it until the one that ends it.

    `seq` is the commit that made it so, 0 for one that was read from the store; equality ignores it.
    """

    tasks: Mapping[TaskId, TaskNode]
    seq: Seq = field(default=Seq(0), compare=False)


def node_of(record: TaskRecord, conversations: tuple[ConversationId, ...] = ()) -> TaskNode | None:
    """The node of a task; None when it is terminal."""
    state = _state_of(record)
    if state is None:
        return None
    return TaskNode(
        id=record.id,
        kind=record.kind,
        conversation=record.conversation,
        owner=record.owner,
        background=record.background,
        abort_requested=record.abort_requested,
        state=state,
        conversations=conversations,
    )


def _state_of(record: TaskRecord) -> NodeState | None:
    phase = record.phase or ""
    match record.state:
        case stored.Pending():
            return Active(status="pending", phase=phase)
        case stored.Running():
            return Active(status="running", phase=phase)
        case stored.Waiting(on=on, fail_fast=fail_fast):
            return Waiting(phase=phase, on=on, fail_fast=fail_fast)
        case stored.Sleeping(until_ms=until_ms):
            return Sleeping(phase=phase, until_ms=until_ms)
        case stored.Completing(outcome=outcome):
            return Completing(outcome=outcome_status(outcome))
        case stored.Terminal():
            return None
        case _ as never:
            assert_never(never)


def outcome_status(outcome: stored.Outcome) -> OutcomeStatus:
    """The stored word for an outcome."""
    match outcome:
        case stored.Completed():
            return "completed"
        case stored.Failed():
            return "failed"
        case stored.Aborted():
            return "aborted"
        case stored.Orphaned():
            return "orphaned"
        case stored.Faulted():
            return "faulted"
        case _ as never:
            assert_never(never)


def graph_of(tasks: Iterable[TaskRecord], conversations: Iterable[ConversationRecord]) -> TaskGraph:
    """The graph of these tasks, of which the live ones count, and of the conversations that they own."""
    owned: dict[TaskId, list[ConversationId]] = {}
    for conversation in conversations:
        if conversation.owner is not None:
            owned.setdefault(conversation.owner.task, []).append(conversation.id)
    nodes: dict[TaskId, TaskNode] = {}
    for record in sorted(tasks, key=lambda record: record.id):
        node = node_of(record, tuple(sorted(owned.get(record.id, ()))))
        if node is not None:
            nodes[node.id] = node
    return TaskGraph(tasks=nodes)


def graph_after(before: TaskGraph, changes: Changes) -> TaskGraph:
    """The graph after a commit; the same object when the commit changes no node. Nodes are shared."""
    changed: dict[TaskId, TaskNode | None] = {}
    for id, change in changes.tasks.items():
        known = before.tasks.get(id)
        node = node_of(change.after, known.conversations if known is not None else ())
        if node != known:
            changed[id] = node
    for conversation in changes.conversations:
        owner = conversation.owner.task if conversation.owner is not None else None
        if owner is None:
            continue
        node = changed[owner] if owner in changed else before.tasks.get(owner)
        if node is not None and conversation.id not in node.conversations:
            changed[owner] = replace(node, conversations=(*node.conversations, conversation.id))
    if not changed:
        return before
    tasks = dict(before.tasks)  # as many pointers as tasks live; a commit that changes no node copies nothing
    for id, node in changed.items():
        if node is None:
            tasks.pop(id, None)
        else:
            tasks[id] = node
    return TaskGraph(tasks=tasks, seq=changes.seq if changes.seq is not None else before.seq)


GraphWatch: TypeAlias = Following[TaskGraph, TaskGraph]
"""The graphs of one session: `value` is the newest; iterating gives one for every later commit that changes a node."""


class GraphProjection:
    """The live tasks of a running engine, to be followed as graphs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def subject(self) -> Subject:
        return SessionSubject()

    async def read(self, tx: Transaction) -> TaskGraph:
        """The table is the staged state, and so is what the block reads: nothing is staged while it holds the line."""
        tasks = list(self._engine.table.live())
        conversations: list[ConversationRecord] = []
        for record in tasks:
            conversations += await _owned(tx, record.id)
        return graph_of(tasks, conversations)

    def advance(self, value: TaskGraph, changes: Changes) -> tuple[TaskGraph, TaskGraph | None]:
        after = graph_after(value, changes)
        return after, None if after is value else after

    def whole(self, value: TaskGraph) -> TaskGraph:
        return value


async def _owned(tx: Transaction, task: TaskId) -> list[ConversationRecord]:
    """The conversations of one task: most own none, and there is no scan of all tasks' at once."""
    found: list[ConversationRecord] = []
    after: int | None = None
    while True:
        page = await tx.scan_conversations(ConversationQuery(owner_task=task), limit=PAGE, after=after)
        found += page.items
        if page.next is None:
            return found
        after = page.next


async def watch_graph(engine: Engine) -> GraphWatch:
    """Follow all live tasks from the stored state on (V4). Starts nothing. Raises: SessionClosed, SessionFailed."""
    return await follow(engine.session, GraphProjection(engine))
