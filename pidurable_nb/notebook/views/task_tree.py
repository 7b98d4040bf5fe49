"""Owns the saved picture of many tasks: who owns what and who waits for whom, as one SVG that stands by itself.

Boxes of a kind are one path, so that a thousand tasks are a few hundred kilobytes; colours stand in the SVG, on a white
ground, each with a sign and a word. Foreign names are escaped and cut. Never lays anything out and reads no store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from pidurable_nb.lab.looking.inspect import outcome_word
from pidurable_nb.lab.scene.graph import Graph, Node, graph_of
from pidurable_nb.notebook.views.graphs import Figure, tree_lines
from pidurable_nb.notebook.views.markup import COLOURS, View, attribute, esc
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord
from pidurable_nb.store.visible import fitted, visible

WIDTH: Final = 1040
"""How wide the picture is, unless it has to be wider: it is to be read as it is, on a page that scrolls."""
HEAD: Final = 44
"""Room for the sentence above it."""
MOST_COLUMNS: Final = 17
"""Characters in a box."""
_INK, _LINE, _SAID, _INT = "#16191d", "#868d96", "#4b5159", COLOURS["int"][0]
_SIGNS: Final[Mapping[str, str]] = {
    "pending": "○", "running": "▸", "waiting": "‖", "sleeping": "z", "completing": "▸", "completed": "✓",
}  # fmt: skip
_NO: Final = "✕"
_BOXES: Final[Mapping[str, str]] = {
    "live": f'stroke="{_INK}" stroke-width="1.75"',
    "completed": f'stroke="{_LINE}"',
    "orphaned": f'stroke="{_INT}" stroke-dasharray="3 2"',
    "no": f'stroke="{_INT}"',
}
_INKS: Final[Mapping[str, str]] = {"live": _INK, "completed": _SAID, "orphaned": _INT, "no": _INT}


class TaskTree(View):
    """The tasks of a store, drawn: all of them with `every`, else those that live; it says how many there are.

    As text there are at most `limit` lines.
    """

    def __init__(
        self, tasks: Sequence[TaskRecord], conversations: Iterable[ConversationRecord], *, every: bool, limit: int
    ) -> None:
        self._shown = list(tasks) if every else [task for task in tasks if task.live]
        self._left = len(tasks) - len(self._shown)
        self._words = Counter(_word(task.status, outcome) for task, outcome in _outcomes(tasks))
        self._limit = limit
        known = {record.id: record for record in conversations}
        self._graph = graph_of(self._shown, known, lambda task: visible(task.kind), WIDTH)

    @property
    def label(self) -> str:
        return "Who owns what"

    @property
    def graph(self) -> Graph:
        """What is drawn, as numbers."""
        return self._graph

    def said(self) -> Sequence[str]:
        """How many tasks there are, of which kind, and what of them is not drawn."""
        counts = ", ".join(f"{n:,} {word}" for word, n in sorted(self._words.items()))
        found = [f"{self._words.total():,} tasks: {counts}."]
        if self._left:
            found.append(f"{self._left:,} ended ones are left out: %pi tree --all draws them.")
        if (undrawn := len(self._shown) - len(self._graph.nodes)) > 0:
            found.append(f"{undrawn:,} more are not drawn.")
        return found

    def svg(self) -> str:
        """The picture."""
        graph = self._graph
        said = self.said()
        named = attribute(f"{self.label}. {' '.join(said)}")
        width, height = max(graph.width, 640), graph.height + HEAD
        boxes: dict[str, list[str]] = {tone: [] for tone in _BOXES}
        texts: dict[str, list[str]] = {tone: [] for tone in _BOXES}
        for node in graph.nodes:
            tone = _tone(node)
            boxes[tone].append(f"M{node.x} {node.y}h{node.w}v{node.h}h-{node.w}z")
            texts[tone].append(_texts(node))
        lines = {kind: "".join(edge.d for edge in graph.edges if edge.kind == kind) for kind in ("owns", "waits")}
        parts = [
            f'<path fill="#fff" d="M0 0h{width}v{height}h-{width}z"/>',
            *(f'<text x="12" y="{16 + n * 15}" fill="{_INK}">{esc(line)}</text>' for n, line in enumerate(said[:2])),
            f'<g transform="translate(0 {HEAD - 8})"><path fill="none" stroke="{_LINE}" d="{lines["owns"]}"/>',
            f'<path fill="none" stroke="{_SAID}" stroke-dasharray="5 3" d="{lines["waits"]}"/>',
            *(f'<path fill="#fff" {_BOXES[tone]} d="{"".join(found)}"/>' for tone, found in boxes.items() if found),
            *(f'<g fill="{_INKS[tone]}">{"".join(found)}</g>' for tone, found in texts.items() if found),
            "</g>",
        ]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
            f'aria-label="{named}" '
            f'font-family="ui-monospace,Menlo,Consolas,monospace" font-size="11">{"".join(parts)}</svg>'
        )

    def html(self) -> str:
        return self.svg()  # it begins with what is said

    def text(self) -> str:
        lines = [*self.said(), *islice(tree_lines(self._shown), self._limit)]
        more = len(self._shown) - self._limit
        return "\n".join([*lines, *([f"and {more:,} more"] if more > 0 else [])])


class SmallTree(View):
    """A few tasks, as the figure that a task has."""

    def __init__(self, figure: Figure) -> None:
        self._figure = figure

    @property
    def label(self) -> str:
        return self._figure.label

    def html(self) -> str:
        return self._figure.html()

    def text(self) -> str:
        return self._figure.text()


def _outcomes(tasks: Iterable[TaskRecord]) -> Iterable[tuple[TaskRecord, str | None]]:
    return ((task, outcome_word(task)) for task in tasks)


def _word(state: str, outcome: str | None) -> str:
    return outcome or state if state == "terminal" else state


def _tone(node: Node) -> str:
    if node.state != "terminal":
        return "live"
    return node.outcome if node.outcome in ("completed", "orphaned") else "no"


def _texts(node: Node) -> str:
    """The two lines in a box, and the whole name where it is cut."""
    word = _word(node.state, node.outcome)
    sign = _SIGNS.get(word, _NO)
    line = f"{sign} {node.id} {visible(node.name)}"
    shown = fitted(line, MOST_COLUMNS)
    title = f"<title>{esc(node.name)}</title>" if shown != line else ""
    state = f"{word}, to abort" if node.aborting and node.state != "terminal" else word
    x, y = node.x + 6, node.y
    return f'<text x="{x}" y="{y + 14}">{title}{esc(shown)}</text><text x="{x}" y="{y + 28}">{esc(state)}</text>'
