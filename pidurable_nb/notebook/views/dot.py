"""Owns a graph in the words of DOT, as the graphviz package writes them. Never lays one out.

Without that package a graph stays without words, and whoever would draw it has its text form.
"""

from __future__ import annotations

from collections.abc import Mapping

from pidurable_nb.notebook.views.comforts import Comfort, is_here

Attributes = Mapping[str, str]


class Digraph:
    """A directed graph that grows; the three are what holds for all of it."""

    def __init__(self, graph: Attributes, node: Attributes, edge: Attributes) -> None:
        self._words = None
        if is_here(Comfort.GRAPHS):
            import graphviz

            self._words = graphviz.Digraph(graph_attr=dict(graph), node_attr=dict(node), edge_attr=dict(edge))

    @property
    def source(self) -> str | None:
        """The graph as text; None where nobody can write it."""
        return None if self._words is None else str(self._words.source)

    def node(self, name: str, attributes: Attributes) -> None:
        """One more node."""
        if self._words is not None:
            self._words.node(name, **_texts(attributes))

    def edge(self, start: str, end: str, attributes: Attributes | None = None) -> None:
        """One more arrow. A node that was not described is described by its name."""
        if self._words is not None:
            self._words.edge(start, end, **_texts(attributes or {}))


def escape(text: str) -> str:
    """Foreign text for a label, where a backslash would begin a command (`\\N` is a node's name, `\\l` ends a line)."""
    return text.replace("\\", "\\\\")


def _texts(attributes: Attributes) -> dict[str, str]:
    """Every value as text: none is the markup that DOT knows in angle brackets."""
    import graphviz

    return {name: graphviz.nohtml(value) for name, value in attributes.items()}
