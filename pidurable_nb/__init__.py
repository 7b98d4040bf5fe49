"""A durable agent harness that lives in a Jupyter kernel, and a laboratory around it.

Owns the names that users import; holds no code of its own. Importing it loads nothing: each name brings its room with
it when it is used, so that a kernel or a command line that needs little starts quickly.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from IPython.core.interactiveshell import InteractiveShell

    from pidurable_nb.agent.calls.call import Call
    from pidurable_nb.agent.conversation import Conversation
    from pidurable_nb.agent.extending.configuring import AgentChange
    from pidurable_nb.agent.extending.extension import Extension
    from pidurable_nb.agent.extending.settings import Settings
    from pidurable_nb.agent.harness import Harness
    from pidurable_nb.agent.submission import Answered, Submission
    from pidurable_nb.engine.phase import (
        Aborted,
        Done,
        Failed,
        Faulted,
        Input,
        Orphaned,
        Outcome,
        Phase,
        Sleeping,
        TaskRef,
        Waiting,
        stored,
    )
    from pidurable_nb.engine.runtime import Runtime
    from pidurable_nb.engine.tx import TaskTx, Tx
    from pidurable_nb.errors import (
        PidurableError,
        SessionFailed,
        TaskAborted,
        TaskEnded,
        TaskFailed,
        TaskFaulted,
        TaskOrphaned,
        ToolError,
    )
    from pidurable_nb.ids import Json
    from pidurable_nb.records.transcript import Unanswered, Written
    from pidurable_nb.session.documents import Document
    from pidurable_nb.tools.output import Output
    from pidurable_nb.tools.tool import tool

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "AgentChange",
    "Answered",
    "Call",
    "Conversation",
    "Document",
    "Done",
    "Extension",
    "Failed",
    "Faulted",
    "Harness",
    "Input",
    "Json",
    "Orphaned",
    "Outcome",
    "Output",
    "Phase",
    "PidurableError",
    "Runtime",
    "SessionFailed",
    "Settings",
    "Sleeping",
    "Submission",
    "TaskAborted",
    "TaskEnded",
    "TaskFailed",
    "TaskFaulted",
    "TaskOrphaned",
    "TaskRef",
    "TaskTx",
    "ToolError",
    "Tx",
    "Unanswered",
    "Waiting",
    "Written",
    "__version__",
    "stored",
    "tool",
]


_ROOMS = {
    "Conversation": "pidurable_nb.agent.conversation",
    "Submission": "pidurable_nb.agent.submission",
    "Answered": "pidurable_nb.agent.submission",
    "Call": "pidurable_nb.agent.calls.call",
    "AgentChange": "pidurable_nb.agent.extending.configuring",
    "Extension": "pidurable_nb.agent.extending.extension",
    "Output": "pidurable_nb.tools.output",
    "tool": "pidurable_nb.tools.tool",
    "ToolError": "pidurable_nb.errors",
    "Harness": "pidurable_nb.agent.harness",
    "Settings": "pidurable_nb.agent.extending.settings",
    "Aborted": "pidurable_nb.engine.phase",
    "Done": "pidurable_nb.engine.phase",
    "Failed": "pidurable_nb.engine.phase",
    "Faulted": "pidurable_nb.engine.phase",
    "Input": "pidurable_nb.engine.phase",
    "Orphaned": "pidurable_nb.engine.phase",
    "Outcome": "pidurable_nb.engine.phase",
    "Phase": "pidurable_nb.engine.phase",
    "Sleeping": "pidurable_nb.engine.phase",
    "TaskRef": "pidurable_nb.engine.phase",
    "Waiting": "pidurable_nb.engine.phase",
    "stored": "pidurable_nb.engine.phase",
    "Runtime": "pidurable_nb.engine.runtime",
    "TaskTx": "pidurable_nb.engine.tx",
    "Tx": "pidurable_nb.engine.tx",
    "PidurableError": "pidurable_nb.errors",
    "SessionFailed": "pidurable_nb.errors",
    "TaskAborted": "pidurable_nb.errors",
    "TaskEnded": "pidurable_nb.errors",
    "TaskFailed": "pidurable_nb.errors",
    "TaskFaulted": "pidurable_nb.errors",
    "TaskOrphaned": "pidurable_nb.errors",
    "Json": "pidurable_nb.ids",
    "Unanswered": "pidurable_nb.records.transcript",
    "Written": "pidurable_nb.records.transcript",
    "Document": "pidurable_nb.session.documents",
}
"""Where each name lives."""


def names_of(module: str, rooms: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a public module whose names load when they are used."""
    there = vars(sys.modules[module])

    def load(name: str) -> object:
        room = rooms.get(name)
        if room is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found: object = getattr(import_module(room), name)
        there[name] = found
        return found

    def listed() -> list[str]:
        return sorted({*there, *there["__all__"]})

    return load, listed


__getattr__, __dir__ = names_of(__name__, _ROOMS)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """`%load_ext pidurable_nb`: the `%pi` magic in this kernel."""
    from pidurable_nb.notebook.extension import load_ipython_extension as load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """`%unload_ext pidurable_nb`: nothing of it stays; the open store is closed in order."""
    from pidurable_nb.notebook.extension import unload_ipython_extension as unload

    unload(shell)
