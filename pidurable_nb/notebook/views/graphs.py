"""Owns the three figures: a task's state machine, who owns what, and which conversation is a fork of which.

Fill colours stand in the DOT, on a white ground, so that a saved figure says the same everywhere; each colour has a
word beside it. Never lays anything out (that is `svg`) and never reads a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pidurable_nb.engine.graph import Edge
from pidurable_nb.ids import ConversationId, TaskId
from pidurable_nb.lab.looking.inspect import outcome_word
from pidurable_nb.notebook.views.comforts import Comfort, have
from pidurable_nb.notebook.views.dot import Digraph, escape
from pidurable_nb.notebook.views.markup import COLOURS, View, cut, esc, items, quiet
from pidurable_nb.notebook.views.svg import draw
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord

FOLDED_OVER: Final = 60
"""A tree of more tasks leaves out what has ended."""
ENDS: Final = {"done": "completed", "failed": "failed", "aborted": "aborted"}
"""The stored outcome of each word that a phase may end with."""
_VIA: Final = {"wait": "waits", "sleep": "sleeps"}
_INK, _LINE, _SAID = "#16191d", "#868d96", "#4b5159"
_COM, _LOST, _INT = COLOURS["com"][0], COLOURS["lost"][0], COLOURS["int"][0]
_AGAIN = COLOURS["again"][0]


class Figure(View):
    """A drawn graph: an SVG, and the same as text. Where nothing can draw, the text is all."""

    def __init__(self, dot: str | None, *, label: str, titles: Mapping[str, str], lines: Sequence[str]) -> None:
        self._dot = dot
        self._label = label
        self._titles = titles
        self._lines = tuple(lines)
        self._svg: str | None = None

    @property
    def label(self) -> str:
        return self._label

    @property
    def dot(self) -> str | None:
        """The graph as it is given to the layout; None without the graphviz package."""
        return self._dot

    def svg(self) -> str | None:
        """The picture, drawn once."""
        if self._dot is None:
            have(Comfort.GRAPHS)
        elif self._svg is None:
            self._svg = draw(self._dot, label=self._label, titles=self._titles)
        return self._svg

    def html(self) -> str:
        return self.svg() or "<pre>" + "\n".join(esc(line) for line in self._lines) + "</pre>"

    def text(self) -> str:
        return "\n".join([self._label, *self._lines])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        picture = self.svg()
        if picture is None:
            return {"text/plain": self.plain()}
        return {"image/svg+xml": picture, "text/plain": self.plain()}


# --- The state machine ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a task stands in its diagram: at a phase with a status, or at an outcome."""

    phase: str | None
    status: str
    outcome: str | None = None

    @classmethod
    def of(cls, task: TaskRecord) -> Standing:
        """Where the stored task stands."""
        return cls(phase=task.phase, status=task.status, outcome=outcome_word(task))


def state_machine(name: str, arrows: Sequence[Edge], first: str, at: Standing | None = None) -> Figure:
    """The diagram that a task's return annotations draw, with the state it stands in lit."""
    phases = list(dict.fromkeys([first, *(edge.source for edge in arrows)]))
    phases += [e.target for e in arrows if e.target not in phases and e.via not in ENDS]
    ends = [end for end in ENDS if any(edge.via == end for edge in arrows)]
    lit_end = at.outcome if at is not None else None
    extra = [lit_end] if lit_end is not None and lit_end not in ENDS.values() else []
    lost = at is not None and at.outcome is None and at.phase is not None and at.phase not in phases
    graph, titles = _graph("LR"), {"s": "start"}
    graph.node("s", {"label": "", "shape": "circle", "width": "0.12", **_filled(_INK)})
    nodes = {("phase", phase): f"p{n}" for n, phase in enumerate(dict.fromkeys(phases))}
    for (_, phase), node in nodes.items():
        here = at is not None and at.outcome is None and at.phase == phase
        _state(graph, node, phase, at.status if here and at is not None else None, _COM)
        titles[node] = phase
    for n, word in enumerate([*(ENDS[end] for end in ends), *extra]):
        nodes["end", word] = f"e{n}"
        lit = word == lit_end and at is not None
        _end(graph, f"e{n}", word, at.status if lit and at is not None else None)
        titles[f"e{n}"] = word
    graph.edge("s", nodes["phase", first])
    for edge in arrows:
        target = nodes["end", ENDS[edge.via]] if edge.via in ENDS else nodes["phase", edge.target]
        via = _VIA.get(edge.via)
        drawn = {"label": via, "style": "dashed"} if via else {}
        graph.edge(nodes["phase", edge.source], target, drawn)
    lines = list(_machine_lines(arrows, phases, at))
    if lost and at is not None:
        lines.append(f"it stands in {cut(at.phase or '')}, which this code does not have")
    return Figure(graph.source, label=f"States of {cut(name)}", titles=titles, lines=lines)


def _machine_lines(arrows: Sequence[Edge], phases: Iterable[str], at: Standing | None) -> Iterable[str]:
    for phase in dict.fromkeys(phases):
        here = at is not None and at.outcome is None and at.phase == phase
        targets = [
            (ENDS[e.via] if e.via in ENDS else cut(e.target)) + (f" ({_VIA[e.via]})" if e.via in _VIA else "")
            for e in arrows
            if e.source == phase
        ]
        mark = f"[{cut(phase)}]  <- here, {at.status}" if here and at is not None else cut(phase)
        yield f"{mark}  ->  {', '.join(dict.fromkeys(targets)) or 'nothing'}"
    if at is not None and at.outcome is not None:
        yield f"[{at.outcome}]  <- here, {at.status}"


def _state(graph: Digraph, node: str, word: str, status: str | None, fill: str) -> None:
    graph.node(node, {"shape": "box", **_lit(word, status, fill), "style": "rounded,filled"})


def _end(graph: Digraph, node: str, word: str, status: str | None) -> None:
    fill = _COM if word == "completed" else _INT
    graph.node(node, {"shape": "box", **_lit(word, status, fill), "peripheries": "2"})


def _lit(word: str, status: str | None, fill: str) -> Mapping[str, str]:
    """The word of a state, on `fill` with its status where the task stands there."""
    label = escape(cut(word, 40))
    if status is None:
        return {"label": label, **_filled("#ffffff", _LINE)}
    return {"label": f"{label}\\n● {status}", **_filled(fill), "fontcolor": "#ffffff"}


def _filled(fill: str, line: str | None = None) -> Mapping[str, str]:
    return {"style": "filled", "fillcolor": fill, "color": fill if line is None else line}


# --- Who owns what --------------------------------------------------------------------------------------------------


def ownership(
    tasks: Sequence[TaskRecord], conversations: Iterable[ConversationRecord] = (), *, lit: TaskId | None = None
) -> Figure:
    """Conversations, the tasks that they own, and what those own in turn (O1). One task may be lit."""
    shown = [task for task in tasks if task.live or task.id == lit] if len(tasks) > FOLDED_OVER else list(tasks)
    folded = len(tasks) - len(shown)
    graph, titles = _graph("LR"), dict[str, str]()
    there = {task.id for task in shown}
    owners = {record.id: record.owner for record in conversations}
    for conversation in dict.fromkeys([*(task.conversation for task in shown)]):
        node = f"c{conversation}"
        titles[node] = f"conversation {conversation}"
        graph.node(node, {"label": titles[node], "shape": "plaintext", "fontcolor": _SAID})
        owner = owners.get(conversation)
        if owner is not None and owner.task in there:
            graph.edge(f"t{owner.task}", node)
    for task in shown:
        node = f"t{task.id}"
        titles[node] = f"task {task.id}"
        _task(graph, node, task, task.id == lit)
        above = f"t{task.owner}" if task.owner in there else f"c{task.conversation}"
        graph.edge(above, node, {"style": "dashed"} if task.background else {})
    lines = list(tree_lines(shown, lit))
    if folded:
        lines.append(f"{folded:,} ended tasks are left out: %pi tree --all")
    return Figure(graph.source, label="Who owns what", titles=titles, lines=lines)


def word_of(task: TaskRecord) -> str:
    """What became of a task so far, in one or two stored words."""
    outcome = outcome_word(task)
    if outcome is not None:
        return outcome if task.status == "terminal" else f"completing, {outcome}"
    return f"{task.status}, {cut(task.phase, 30)}" if task.phase else task.status


def _task(graph: Digraph, node: str, task: TaskRecord, lit: bool) -> None:
    outcome = outcome_word(task)
    colour = {None: _COM, "completed": _LOST}.get(outcome, _INT)
    marks = [mark for mark, on in (("to be aborted", task.abort_requested), ("background", task.background)) if on]
    said = ", ".join([word_of(task), *marks])
    drawn = {
        "label": f"{task.id}  {escape(cut(task.kind, 40))}\\n{escape(said)}",
        "shape": "box",
        **_filled(colour if lit else "#ffffff", colour),
        "style": "rounded,filled" + (",bold" if lit else ""),
        "fontcolor": "#ffffff" if lit else _INK,
    }
    graph.node(node, drawn)


def tree_lines(tasks: Sequence[TaskRecord], lit: TaskId | None = None) -> Iterable[str]:
    """Who owns what as text, a task in each line, what it owns indented below it."""
    there = {task.id for task in tasks}
    below: dict[TaskId | None, list[TaskRecord]] = {}
    for task in tasks:
        below.setdefault(task.owner if task.owner in there else None, []).append(task)
    waiting = [(task, 0) for task in reversed(below.get(None, []))]
    seen: set[TaskId] = set()
    while waiting:
        task, depth = waiting.pop()
        if task.id in seen:
            continue
        seen.add(task.id)
        here = ">" if task.id == lit else " "
        yield f"{'  ' * depth}{here}{task.id} {cut(task.kind, 40)}  {word_of(task)}"
        waiting += [(child, depth + 1) for child in reversed(below.get(task.id, []))]


# --- Forks ----------------------------------------------------------------------------------------------------------


def fork_graph(conversations: Sequence[ConversationRecord], visible: Mapping[ConversationId, int]) -> Figure:
    """Which conversation is a fork of which, and behind which entry (V3)."""
    graph, titles = _graph("LR"), dict[str, str]()
    there = {record.id for record in conversations}
    lines: list[str] = []
    for record in conversations:
        node, seen = f"c{record.id}", visible.get(record.id, 0)
        titles[node] = f"conversation {record.id}"
        owned = f"\\nowned by task {record.owner.task}" if record.owner is not None else ""
        label = f"conversation {record.id}\\n{seen:,} visible{owned}"
        graph.node(node, {"label": label, "shape": "box", **_filled("#ffffff", _LINE), "style": "rounded,filled"})
        line = f"conversation {record.id}, {seen:,} visible"
        if record.parent is not None:
            if record.parent.conversation in there:
                graph.edge(f"c{record.parent.conversation}", node, {"label": f"at {record.parent.at}"})
            line += f", fork of {record.parent.conversation} behind {record.parent.at}"
        lines.append(line + (f", owned by task {record.owner.task}" if record.owner is not None else ""))
    return Figure(graph.source, label="Forks", titles=titles, lines=lines)


def _graph(direction: str) -> Digraph:
    return Digraph(
        graph={"rankdir": direction, "bgcolor": "white", "pad": "0.1", "nodesep": "0.2", "ranksep": "0.45"},
        node={"fontname": "Helvetica,Arial,sans-serif", "fontsize": "11", "height": "0.3", "margin": "0.12,0.06"},
        edge={
            "fontname": "Helvetica,Arial,sans-serif", "fontsize": "10", "color": _LINE, "fontcolor": _SAID,
            "arrowsize": "0.7",
        },
    )  # fmt: skip


def caption(lines: Iterable[str]) -> str:
    """Facts under a figure, as markup."""
    return quiet(items(esc(line) for line in lines))
