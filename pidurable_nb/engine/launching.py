"""Owns tasks that one commit both makes, or frees, and reserves (T2), so that their code starts when it is stored.

Never starts a task whose code is missing, or that recovery has to look at first: those are left as decisions find them.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from pidurable_nb.engine.registry import Fits, TaskDefinition
from pidurable_nb.engine.suspects import SUSPECT_RESTARTS
from pidurable_nb.engine.transition import Reserve, advance
from pidurable_nb.ids import TaskId
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.session.transaction import Transaction

if TYPE_CHECKING:
    from pidurable_nb.engine.engine import Engine


class Launching:
    """`with engine.runs.launching() as launch:` around a block; what the block puts through it starts with its commit.

    When the block does not land, nothing starts (C4).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids: list[TaskId] = []

    def __enter__(self) -> Launching:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.runs.forget_launched(self._ids)

    def may_start(self, record: TaskRecord) -> bool:
        """Whether `put` would have the task start with this commit."""
        return self._startable(record) is not None

    def put(self, tx: Transaction, record: TaskRecord, *, before: TaskRecord | None = None) -> TaskRecord:
        """Write the task as running, when its code may start at once, else as it is. Returns what was written."""
        definition = self._startable(record)
        if definition is not None:
            record = advance(record, Reserve(), now_ms=tx.now_ms())
            self._engine.runs.launch(record.id, definition)
            self._ids.append(record.id)
        tx.put_task(record, before=before)
        return record

    def _startable(self, record: TaskRecord) -> TaskDefinition | None:
        engine = self._engine
        if not engine.scheduler.running or engine.over or record.abort_requested:
            return None
        if record.restarts >= SUSPECT_RESTARTS:
            return None
        fit = engine.code.fit(record)
        return fit.definition if isinstance(fit, Fits) and not fit.migrated else None
