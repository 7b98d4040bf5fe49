"""Owns the picture of all tasks of a position: a box for each, lines to what it owns and to what it waits for.

Holds numbers, paths that are made here of numbers, and texts, which are foreign and raw: whoever shows them escapes
them. Never decides and never renders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pidurable_nb.ids import ConversationId, JsonObject, TaskId
from pidurable_nb.lab.looking.inspect import outcome_word
from pidurable_nb.lab.scene.facts import Facts
from pidurable_nb.lab.scene.forest import HEIGHT, WIDTH, Forest, lay_out
from pidurable_nb.lab.scene.parts import as_json, short
from pidurable_nb.lab.scene.rows import label_of
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord

MOST_DRAWN: Final = 2000
"""Boxes of one picture."""
MOST_WAITS: Final = 4000
LONGEST: Final = 60
"""Characters of a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A task, and the box that stands for it."""

    id: int
    name: str
    kind: str
    state: str
    outcome: str | None
    aborting: bool
    background: bool
    x: int
    y: int
    w: int
    h: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A line from one task to another: it owns it, or waits for it. `d` is a path, in the numbers of the boxes."""

    from_: int
    to: int
    kind: Literal["owns", "waits"]
    d: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A picture in pixels. `total` counts the tasks that there are; `edges_left` the lines that are not drawn."""

    width: int
    height: int
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    total: int
    edges_left: int

    def to_json(self) -> JsonObject:
        """As the page gets it."""
        return as_json(self)


class Drawing:
    """The picture of a position, drawn when it is first asked for and kept until another position is."""

    def __init__(self) -> None:
        self._of: Facts | None = None
        self._graph: Graph | None = None

    def of(self, facts: Facts) -> Graph:
        """The picture of these facts."""
        if self._graph is None or self._of is not facts:
            self._graph = graph_of(facts.tasks.values(), facts.conversations, lambda one: label_of(facts, one))
            self._of = facts
        return self._graph


def graph_of(
    tasks: Iterable[TaskRecord],
    conversations: Mapping[ConversationId, ConversationRecord],
    name: Callable[[TaskRecord], str],
    most: int | None = None,
) -> Graph:
    """All of the tasks, or where they are more than `MOST_DRAWN`, what lives and the newest of the rest.

    `most` is how wide it may become, where it can be so narrow. Waiting for a task that has ended, or is not drawn,
    is no line.
    """
    every = {record.id: record for record in tasks}
    shown = _chosen(every)
    forest = lay_out(((record.id, _owner(record, conversations)) for record in shown), most)
    nodes = tuple(_node(record, name(record), forest) for record in shown)
    owns = [
        Edge(from_=forest.owners[record.id], to=record.id, kind="owns", d=forest.line(record.id))
        for record in shown
        if record.id in forest.owners
    ]
    waits = [
        (record.id, on)
        for record in shown
        if isinstance(record.state, stored.Waiting)
        for on in dict.fromkeys(record.state.on)
        if on in forest.places and every[on].live
    ]
    drawn = [Edge(from_=one, to=on, kind="waits", d=forest.dashed(one, on)) for one, on in waits[:MOST_WAITS]]
    return Graph(
        width=forest.width, height=forest.height, nodes=nodes, edges=(*owns, *drawn), total=len(every),
        edges_left=len(waits) - len(drawn),
    )  # fmt: skip


def _chosen(every: Mapping[TaskId, TaskRecord]) -> Sequence[TaskRecord]:
    """In id order: what lives and the newest of the rest."""
    ids = sorted(every)
    if len(ids) > MOST_DRAWN:
        live = [id for id in ids if every[id].live][:MOST_DRAWN]
        kept = set(live)
        rest = [id for id in ids if id not in kept]
        ids = sorted([*live, *rest[len(rest) - (MOST_DRAWN - len(live)) :]])
    return [every[id] for id in ids]


def _owner(record: TaskRecord, conversations: Mapping[ConversationId, ConversationRecord]) -> int | None:
    """Its owner: a task, or the task that owns the conversation in which it runs."""
    if record.owner is not None:
        return record.owner
    conversation = conversations.get(record.conversation)
    return conversation.owner.task if conversation is not None and conversation.owner is not None else None


def _node(record: TaskRecord, name: str, forest: Forest) -> Node:
    x, y = forest.places[record.id]
    return Node(
        id=record.id, name=short(name, LONGEST), kind=short(record.kind, LONGEST), state=record.status,
        outcome=outcome_word(record), aborting=record.abort_requested, background=record.background,
        x=x, y=y, w=WIDTH, h=HEIGHT,
    )  # fmt: skip
