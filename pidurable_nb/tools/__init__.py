"""Owns tools: how a function becomes one, what bounds its output, and the environment it works in. Never opens a store.

Holds only names; each brings its module with it when it is used. `tool` alone is here from the start: a submodule has
the same name, and would stand in its place once anybody imported it. pydantic comes with the first tool that is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pidurable_nb import names_of
from pidurable_nb.tools.tool import tool as tool

if TYPE_CHECKING:
    from pidurable_nb.records.message import Diagnostic
    from pidurable_nb.tools.bounds import RetainedOutput
    from pidurable_nb.tools.coding import coding_tools
    from pidurable_nb.tools.environment import Environment, Listed, Ran, Stat, Stream
    from pidurable_nb.tools.injected import Injected
    from pidurable_nb.tools.local import LocalEnvironment
    from pidurable_nb.tools.output import Output, OutputLimits
    from pidurable_nb.tools.tool import Execute, Tool

__all__ = [
    "Diagnostic",
    "Environment",
    "Execute",
    "Injected",
    "Listed",
    "LocalEnvironment",
    "Output",
    "OutputLimits",
    "Ran",
    "RetainedOutput",
    "Stat",
    "Stream",
    "Tool",
    "coding_tools",
    "tool",
]

_ROOMS = {
    "Diagnostic": "pidurable_nb.records.message",
    "RetainedOutput": "pidurable_nb.tools.bounds",
    "coding_tools": "pidurable_nb.tools.coding",
    "Environment": "pidurable_nb.tools.environment",
    "Listed": "pidurable_nb.tools.environment",
    "Ran": "pidurable_nb.tools.environment",
    "Stat": "pidurable_nb.tools.environment",
    "Stream": "pidurable_nb.tools.environment",
    "Injected": "pidurable_nb.tools.injected",
    "LocalEnvironment": "pidurable_nb.tools.local",
    "Output": "pidurable_nb.tools.output",
    "OutputLimits": "pidurable_nb.tools.output",
    "Execute": "pidurable_nb.tools.tool",
    "Tool": "pidurable_nb.tools.tool",
}
"""Where each name lives."""

__getattr__, __dir__ = names_of(__name__, _ROOMS)
