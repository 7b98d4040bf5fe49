"""Owns walking a recovery step by step on a copy, forwards and backwards. Never touches the store that it was given.

A step runs the recovery from where it stands; it is no slide of a finished one. Going back restores the store as it
was: the walk is made again from the first image, in the same order, with every effect answered from the record, so
that nothing outside is asked twice for looking twice.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from pidurable_nb.agent.extending.extension import Extension
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.agent.stored.recovery import AssumedCode
from pidurable_nb.engine.decide import STARTS, Verdict, decide_tasks
from pidurable_nb.engine.phase import Phase
from pidurable_nb.engine.registry import BuiltIn, Code, Registry
from pidurable_nb.engine.snapshot import Snapshot
from pidurable_nb.ids import JsonObject, TaskId
from pidurable_nb.lab.dying.crash import Act
from pidurable_nb.lab.dying.lane import Lane
from pidurable_nb.lab.looking.explain import snapshot_of
from pidurable_nb.lab.looking.inspect import inspect_open
from pidurable_nb.lab.looking.program import Program
from pidurable_nb.lab.looking.rows import row_of_file
from pidurable_nb.lab.walking.verdict_check import Disagreement, acted, disagreements
from pidurable_nb.lab.walking.walk import Answer, Choice, Perform, Step, Walk, just_run
from pidurable_nb.models.model import Model
from pidurable_nb.probe import Mark
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.store.copying import copy_store
from pidurable_nb.store.folding import fold
from pidurable_nb.store.storage import Storage
from pidurable_nb.store.stranger import StoreFile
from pidurable_nb.tools.tool import Tool

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """A row of the store before and after a step, as its record's text; None where it was not there."""

    row: str
    before: str | None
    after: str | None

    @property
    def sign(self) -> str:
        """`+` made, `-` gone, `~` changed."""
        return "+" if self.before is None else "-" if self.after is None else "~"


class Stepper:
    """A recovery of a copy of `source` with this code and these models, one step at a time.

    Work that needs a model which is not given stays where it is; with nothing given all of this package's kinds do.
    `verdicts` are read before anything is opened. `perform` stands for the outside; by default an effect is run. Use
    it as a context manager, from any one thread at a time; the walk itself has a thread of its own.

    Raises: StoreRefused and its kinds.
    """

    def __init__(
        self,
        source: Path,
        *,
        tasks: Sequence[type[Phase[object]]] = (),
        tools: Sequence[Tool] = (),
        extensions: Sequence[Extension] = (),
        models: Sequence[Model] = (),
        settings: Settings | None = None,
        now_ms: int | None = None,
        perform: Perform = just_run,
        patience_s: float = 60.0,
    ) -> None:
        self.source = source
        self.now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self._program = Program(
            tasks=tuple(tasks), tools=tuple(tools), extensions=tuple(extensions), models=tuple(models),
            settings=settings if settings is not None else Settings(),
        )  # fmt: skip
        self._perform = perform
        self._patience_s = patience_s
        self._folder = tempfile.TemporaryDirectory(prefix="pidurable_nb-walk-")
        self._lane = Lane("pidurable_nb walk")
        self._walks = 0
        self._closed = False
        self._installed: list[tuple[int, type[Phase[object]]]] = []
        self._changes: list[tuple[RowChange, ...]] = []
        self._rows: dict[str, str | None] = {}
        self.steps: list[Step] = []
        image = Path(self._folder.name) / "image"
        image.mkdir()
        self._image = copy_store(source, image)
        self._before = StoreFile.of_copy(copy_store(self._image, self._new_folder()))
        self.snapshot: Snapshot = snapshot_of(self._before)
        policy = self._program.settings.engine.policy
        self.verdicts: Mapping[TaskId, Verdict] = decide_tasks(self.snapshot, self._code(), policy, self.now_ms)
        self._walk: Walk = self._on_thread(lambda: self._begin(()))

    def __enter__(self) -> Stepper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- where it stands -----------------------------------------------------------------------------------------------

    @property
    def at(self) -> int:
        """How many steps were taken."""
        return len(self.steps)

    @property
    def store(self) -> Path:
        """The copy that is walked on, as it is now. Copy it before reading: it is open."""
        return self._copy

    @property
    def next_mark(self) -> Mark | None:
        """What the next step will do; None at the end."""
        return self._walk.next_mark

    @property
    def died(self) -> bool:
        """Whether code of this recovery crashed its own process: the walk ends there."""
        return self._walk.died

    def decided(self) -> tuple[Verdict, ...] | None:
        """What the engine would do with every live task now; None while it is being opened, before it decides."""
        harness = self._walk.harness
        return None if harness is None else self._on_thread(harness.engine.verdicts)

    def read(self, asking: Callable[[Storage], Coroutine[None, None, T]]) -> T:
        """What the walked copy says now. `asking` only reads."""
        return self._on_thread(lambda: self._walk.read(asking))

    def changes(self, step: Step) -> tuple[RowChange, ...]:
        """The rows of a step, before and after."""
        return self._changes[step.n - 1]

    def effects(self) -> Counter[str]:
        """How often this recovery asked the outside for what."""
        return Counter(step.effect for step in self.steps if step.asked and step.effect is not None)

    # -- moving --------------------------------------------------------------------------------------------------------

    def next(self, choice: Choice = "auto") -> Step | None:
        """Take one step; None when nothing is left to do. `choice` counts where the step is an effect."""
        step = self._on_thread(lambda: self._walk.next(choice))
        if step is not None:
            self.steps.append(step)
            self._changes.append(self._changed(step))
        return step

    def back(self) -> None:
        """Undo the last step: the copy is as it was before it. Raises IndexError at the first image."""
        if not self.steps:
            raise IndexError("this is the first image; there is no step to take back")
        self._return_to(len(self.steps) - 1)

    def back_to(self, n: int) -> None:
        """Undo steps until `n` are left. Raises IndexError when fewer were taken."""
        if not 0 <= n <= len(self.steps):
            raise IndexError(f"{len(self.steps)} steps were taken; there is no going back to {n}")
        if n < len(self.steps):
            self._return_to(n)

    def run(self, *, until: int | None = None) -> None:
        """Take steps until nothing is left, or until `until` were taken."""
        while (until is None or self.at < until) and self.next() is not None:
            pass

    def install(self, first: type[Phase[object]]) -> None:
        """Change code between two steps; the next step runs the new one (T10)."""
        self._installed.append((self.at, first))
        self._on_thread(lambda: self._walk.install(first))

    def close(self) -> None:
        """Drop the walk and its copies. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._on_thread(self._walk.close)
        self._lane.close()
        self._before.close()
        self._folder.cleanup()

    def _return_to(self, n: int) -> None:
        answers = self._walk.gatekeeper.answers
        kept = self.steps[:n]
        self._on_thread(self._walk.close)
        self._walk = self._on_thread(lambda: self._begin(answers))
        self.steps, self._changes, self._rows = [], [], {}
        installs = [(at, first) for at, first in self._installed if at <= n]
        self._installed = installs
        for at in range(n + 1):
            for where, first in installs:
                if where == at:
                    self._on_thread(partial(self._walk.install, first))
            if at < n:
                again = self._on_thread(self._walk.next)
                if again is None:
                    raise RuntimeError("the walk ended early when it was made again; its code is not deterministic")
                self.steps.append(kept[at] if kept[at].effect is not None else again)
                self._changes.append(self._changed(again))

    # -- what came of it -----------------------------------------------------------------------------------------------

    def disagreements(self) -> tuple[Disagreement, ...]:
        """The tasks of which something else was done than predicted; empty, or this package is wrong."""
        return disagreements(self.verdicts.values(), acted(self._acts()), may_rest=self._not_yet)

    def _acts(self) -> Iterator[Act]:
        for step in self.steps:
            if step.verdict is not None:
                yield step.task, step.verdict
            yield from ((task, "resume") for task in step.carried)

    def _not_yet(self, verdict: Verdict) -> bool:
        """It was not reached: the walk was stopped, time did not come to it, or what it is held by still lives."""
        timed = verdict.name in ("wait", "sleep")
        return timed or self.next_mark is not None or bool(verdict.held_by) or verdict.task.restarts >= 2

    def stopped(self) -> tuple[tuple[TaskId, str], ...]:
        """The tasks that live at the end and that nothing here can move, each with what it needs."""
        harness = self._walk.harness
        if harness is None:
            return ()
        verdicts = self._on_thread(harness.engine.verdicts)
        return tuple((v.id, need) for v in verdicts if (need := _need(v, self._walk.needs)) is not None)

    def inspection(self) -> JsonObject:
        """The copy as `inspect` shows it."""
        with StoreFile.of_copy(copy_store(self._copy, self._new_folder())) as file:
            return inspect_open(file).json()

    def save(self, out: Path) -> None:
        """Write the recovered copy to `out`, folded into one file. Raises FileExistsError."""
        if out.exists():
            raise FileExistsError(f"{out} exists; name a new file")
        folded = copy_store(self._copy, self._new_folder())
        fold(folded)
        out.write_bytes(folded.read_bytes())

    # -- inside --------------------------------------------------------------------------------------------------------

    def _code(self) -> Code:
        """What is predicted with: of nothing given, that built-in kinds are as here, and nothing else is installed."""
        return AssumedCode(installed=Registry()) if self._program.empty else self._program.code_for(self._before)

    def _begin(self, answers: Sequence[Answer]) -> Walk:
        self._copy = copy_store(self._image, self._new_folder())
        return Walk(
            self._copy,
            program=self._program,
            now_ms=self.now_ms,
            answers=answers,
            perform=self._perform,
            patience_s=self._patience_s,
        )

    def _new_folder(self) -> Path:
        self._walks += 1
        folder = Path(self._folder.name) / str(self._walks)
        folder.mkdir()
        return folder

    def _on_thread(self, work: Callable[[], T]) -> T:
        return self._lane.call(work)

    def _changed(self, step: Step) -> tuple[RowChange, ...]:
        """The rows of a step. What is not known from an earlier step is read from the first image."""
        for row in step.changed:
            if row not in self._rows:
                self._rows[row] = row_of_file(self._before, row)
        after = self._on_thread(lambda: {row: self._walk.row(row) for row in step.changed})
        found = tuple(RowChange(row=row, before=self._rows[row], after=after[row]) for row in step.changed)
        self._rows.update(after)
        return found


def _need(verdict: Verdict, needs: Callable[[TaskRecord], str]) -> str | None:
    if verdict.name == "blocked":
        return verdict.needs
    if verdict.name == "parked":
        return "retry"
    if verdict.name == "faulted":
        return "mended code or retry"
    if verdict.name in STARTS | {"interrupt"} and isinstance(verdict.facts.fit, BuiltIn):
        return needs(verdict.task)
    if verdict.name == "sleep":
        return "time"
    return None
