"""A durable agent harness that lives in a Jupyter kernel, and a laboratory around it.

Owns the names that users import; holds no code of its own, and importing it loads neither Jupyter nor pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pidurable_nb.agent.conversation import Conversation, Submission
from pidurable_nb.agent.harness import Harness
from pidurable_nb.agent.settings import Settings
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
)
from pidurable_nb.ids import Json
from pidurable_nb.records.transcript import Unanswered, Written
from pidurable_nb.session.documents import Document

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "Conversation",
    "Document",
    "Done",
    "Failed",
    "Faulted",
    "Harness",
    "Input",
    "Json",
    "Orphaned",
    "Outcome",
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
    "Tx",
    "Unanswered",
    "Waiting",
    "Written",
    "__version__",
    "stored",
]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """`%load_ext pidurable_nb`: the `%pi` magic in this kernel."""
    from pidurable_nb.notebook.extension import load_ipython_extension as load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """`%unload_ext pidurable_nb`: nothing of it stays; the open store is closed in order."""
    from pidurable_nb.notebook.extension import unload_ipython_extension as unload

    unload(shell)
