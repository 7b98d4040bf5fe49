"""Owns every public exception: one class per different thing a caller can do. Never raises one itself.

PidurableError
+- StoreRefused                 the file cannot be opened; nothing was changed
|  +- NotAStore                 another kind of file: name the right one
|  +- NewerFormat               written by a newer version: upgrade this package
|  +- DamagedStore              truncated or corrupt: restore a copy
|  +- HostileStore              carries what no store carries: do not open it
|  +- StoreBusy                 another process writes too fast to copy: try again
|  +- StoreOwned                another process owns it: view a copy, or stop that process
+- StorageError                 the storage failed; `.stored` says what is known (F4)
|  +- AnotherWriter             somebody writes without the lock (F5)
+- StorageRequestError          one illegal read; nothing else is affected (F2)
+- SessionFailed                the harness ended after a storage error: reopen (F1)
+- SessionClosed                the harness was closed: reopen
+- ReadAfterWrite               read the table before the first write of the block (C5)
+- NotJson                      a value that cannot be stored, with its path (C7)
+- BlockEnded                   a transaction or draft outside its block
+- SuspendedBlock               a commit block waited for something else than its transaction (C3)
+- OwnerGone                    new work below an owner that is ending (O1, O2)
+- IllegalTransition            a state that the laws do not allow here (T1, T3)
+- InvocationEnded              this runtime's invocation is over (T13)
+- EffectInBlock                an effect inside a commit block (C3)
+- KeyShared                    two effects with one idempotency key (E6)
+- PhaseRefused                 a phase class that cannot be stored; refused when defined
+- UnknownPhase                 a task that is not ready or not installed
+- DuplicateTask                two classes of one task name
+- DocumentRefused              a document class, or its stored value, that does not fit
+- ConversationBusy             `when_busy="reject"` and a run is active (S3)
+- RequestConflict              one request id, two types of submission (S1)
+- WrongLoop                    called from another event loop than the harness's
+- ToolError                    raised by a tool to answer with an error
+- ToolRefused                  a function that cannot be a tool; refused when defined
+- InvalidArguments             arguments that a tool does not take; the message is for the model
+- TaskEnded                    a task ended without a result
   +- TaskFailed  +- TaskAborted  +- TaskFaulted  +- TaskOrphaned
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pidurable_nb.ids import TaskId

Stored = Literal["no", "unknown"]
"""F4: `no` is proven, `unknown` is everything else."""


class PidurableError(Exception):
    """The root of everything this package raises on purpose."""


class StoreRefused(PidurableError):
    """The file is not opened, and not a byte of it or beside it was changed."""

    kind: str = "refused"

    def __init__(self, message: str, *, path: Path | None = None) -> None:
        super().__init__(message)
        self.path = path


class NotAStore(StoreRefused):
    """The file is something else than a store: a directory, no database, another database, nothing at all."""

    kind = "not_a_store"


class NewerFormat(StoreRefused):
    """The store was written by a newer format than this package knows."""

    kind = "newer_format"


class DamagedStore(StoreRefused):
    """The store is truncated or corrupt."""

    kind = "damaged"


class HostileStore(StoreRefused):
    """The file carries something that no store carries: a view, a trigger, a foreign schema, an oversized value."""

    kind = "hostile"


class StoreBusy(StoreRefused):
    """Another process kept writing while a stable copy was tried."""

    kind = "busy"


class StoreOwned(StoreRefused):
    """Another process owns the store for writing (F5)."""

    kind = "owned"

    def __init__(self, message: str, *, path: Path, pid: int | None, host: str | None, since: str | None) -> None:
        super().__init__(message, path=path)
        self.pid = pid
        self.host = host
        self.since = since


class StorageError(PidurableError):
    """The storage failed: the harness that met it ends (F1). `stored` says whether the commit is on disk (F4)."""

    def __init__(self, message: str, *, stored: Stored) -> None:
        super().__init__(message)
        self.stored: Stored = stored


class AnotherWriter(StorageError):
    """Somebody wrote to the store without its lock (F5)."""


class StorageRequestError(PidurableError):
    """One read was illegal: an unknown conversation, a bad cursor, history that is not kept (F2)."""


class SessionFailed(PidurableError):
    """The harness ended after a storage error; reopen the store and submit again with the same request id (F1)."""

    def __init__(self, message: str, *, cause: StorageError) -> None:
        super().__init__(message)
        self.cause = cause
        self.stored: Stored = cause.stored


class SessionClosed(PidurableError):
    """The harness was closed; open the store again."""


class ReadAfterWrite(PidurableError):
    """A table was read after the first table write of the same block (C5)."""


class NotJson(PidurableError):
    """A value that is not strict JSON, named by its path; nothing was stored (C7)."""

    def __init__(self, message: str, *, at: str) -> None:
        super().__init__(message)
        self.at = at


class BlockEnded(PidurableError):
    """A transaction or a draft was used after its block."""


class SuspendedBlock(PidurableError):
    """A commit block waited for something else than its own transaction while holding the line (C3)."""


class OwnerGone(PidurableError):
    """New work was created below an owner that is missing, ending, ended or abort-marked (O1, O2)."""


class IllegalTransition(PidurableError):
    """The laws do not allow this state here (T1, T3, T4)."""


class InvocationEnded(PidurableError):
    """The invocation that this runtime belonged to has ended; nothing was written (T13)."""


class EffectInBlock(PidurableError):
    """An effect was started inside a commit block (C3)."""


class KeyShared(PidurableError):
    """Two effects of one invocation were given the same idempotency key (E6)."""


class PhaseRefused(PidurableError, TypeError):
    """A phase class whose shape cannot be stored; refused where it is defined."""


class UnknownPhase(PidurableError):
    """A task that is not installed, or not ready because a name in it is not defined yet."""


class DuplicateTask(PidurableError):
    """Two classes claim one task name, or two phases one stored name."""


class DocumentRefused(PidurableError):
    """A document class that is not legal, or a stored value that does not fit it."""


class ConversationBusy(PidurableError):
    """A run is active and the caller asked to be rejected; nothing was stored (S3)."""


class RequestConflict(PidurableError):
    """A request id that was admitted for another type of submission (S1)."""


class WrongLoop(PidurableError):
    """The harness belongs to another event loop; the message names what to call instead."""


class ToolError(PidurableError):
    """Raised by a tool: the model gets this text as an error result (E4)."""


class ToolRefused(PidurableError, TypeError):
    """A function or a setting that cannot make a tool; refused where it is defined."""


class InvalidArguments(PidurableError):
    """Arguments that do not fit a tool. The message lists every wrong field, in words for the model."""

    def __init__(self, message: str, *, tool: str) -> None:
        super().__init__(message)
        self.tool = tool


class TaskEnded(PidurableError):
    """A task ended without a result; `outcome` says how, `kept` whether it can still go on (T11)."""

    def __init__(self, ref: TaskId, outcome: object, *, kept: bool = False) -> None:
        super().__init__(f"task {ref}: {outcome}" + ("; kept, it goes on after a re-install or retry" if kept else ""))
        self.ref = ref
        self.outcome = outcome
        self.kept = kept


class TaskFailed(TaskEnded):
    """The task's own code decided that it failed."""


class TaskAborted(TaskEnded):
    """The task's abort handler ran and ended it."""


class TaskFaulted(TaskEnded):
    """The task's code raised, or ended without progress (T11)."""


class TaskOrphaned(TaskEnded):
    """The task was aborted while its code was missing: none of its code ran (O4)."""
