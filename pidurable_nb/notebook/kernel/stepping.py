"""Owns the walk through a recovery that a notebook is in: beginning it, its steps as they are shown, its end.

A step runs the recovery on a copy, with the code that the notebook has then. Never touches the store it walks from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from IPython.core.error import UsageError

from pidurable_nb.engine.graph import PhaseClass, place
from pidurable_nb.lab.looking.program import Program
from pidurable_nb.lab.outside.world import SimulatedCrash, World, applied
from pidurable_nb.lab.walking.stepper import Stepper
from pidurable_nb.lab.walking.walk import Choice, Perform, Step, just_run
from pidurable_nb.notebook.views.markup import cut
from pidurable_nb.notebook.views.steps import RecoveryView, Seen, StepView
from pidurable_nb.probe import Mark, TaskSubject

V = TypeVar("V")


class Walking:
    """One walk. `store` is where it began."""

    def __init__(self, store: Path, *, program: Program, now_ms: int | None, world: World | None) -> None:
        self.store = store
        self._installed: dict[str, PhaseClass] = {
            first._task: first for first in program.tasks if first._task is not None
        }
        self._world = world
        self._crashed = False
        perform: Perform = self._perform if world is not None else just_run
        self._stepper = Stepper(
            store, tasks=program.tasks, tools=program.tools, extensions=program.extensions, models=program.models,
            settings=program.settings, now_ms=now_ms, perform=perform,
        )  # fmt: skip

    def dead(self) -> bool:
        """Whether the code of this recovery crashed its process, as it did before: the walk ends there."""
        return self._crashed

    @property
    def at(self) -> int:
        """How many steps were taken."""
        return self._stepper.at

    def next(self, choice: Choice) -> Step | None:
        """Take one step; None at the end, and where the code crashes its process once more (`dead`)."""
        if self.dead():
            return None
        try:
            return self._stepper.next(choice)
        except Exception:
            if self.dead():  # an effect without an answer: there is no such step
                return None
            raise

    async def _perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        """The outside of a store that died here. Code that crashes its process stands still for good."""
        assert self._world is not None
        try:
            return await self._world.perform(mark, do)
        except SimulatedCrash:
            self._crashed = True
            never: asyncio.Future[V] = asyncio.get_running_loop().create_future()
            return await never

    def back(self) -> None:
        """Undo the last step. Raises UsageError before the first one."""
        if not self._stepper.at:
            raise UsageError("%pi back: this is where it died; there is no step to take back")
        self._stepper.back()

    def install(self, tasks: Mapping[str, PhaseClass]) -> None:
        """Code that a cell defined since; the next step runs it (T10)."""
        for name, first in tasks.items():
            known = self._installed.get(name)
            if known is first or (known is not None and place(known) != place(first)):
                continue  # another class of that name is what died here
            self._installed[name] = first
            self._stepper.install(first)

    def close(self) -> None:
        """Drop the walk and its copies. Idempotent."""
        self._stepper.close()

    # -- showing -----------------------------------------------------------------------------------------------------

    def last(self) -> StepView | None:
        """The last step, or None before the first."""
        steps = self._stepper.steps
        if not steps:
            return None
        return StepView(
            self._seen(steps[-1]), source=self.store.name, upcoming=self.upcoming, effects=self._stepper.effects()
        )

    def save(self, out: Path) -> None:
        """Write the copy as it is now to a new file, folded into one. Raises FileExistsError, OSError."""
        self._stepper.save(out)

    def whole(self, effects_before: Mapping[str, int] | None, *, store: Path, kept: bool) -> RecoveryView:
        """All steps so far, and what they came to. The recovered copy is `store`, a file of the user's where `kept`."""
        stepper = self._stepper
        wrong = [
            f"task {one.task}: predicted {one.predicted}, done {one.done}: an error of this package"
            for one in stepper.disagreements()
        ]
        return RecoveryView(
            [self._seen(step) for step in stepper.steps],
            source=self.store.name,
            effects=stepper.effects(),
            before=effects_before,
            disagreements=wrong,
            applied=applied(self._world.ledger) if self._world is not None else {},
            stopped=stepper.stopped() if self._over else (),
            over=self._over,
            store=store,
            ledger=self._world.ledger if self._world is not None else None,
            kept=kept,
        )

    @property
    def _over(self) -> bool:
        return self._stepper.next_mark is None and not self.dead()

    @property
    def upcoming(self) -> str:
        """What the next step will do, in a few words."""
        if self.dead():
            return "nothing: this code crashed its process once more; the next opening counts it"
        mark = self._stepper.next_mark
        if mark is not None:
            return described(mark)
        stopped = self._stepper.stopped()
        return "nothing is left" + "".join(f"; task {id} needs {cut(need)}" for id, need in stopped)

    def _seen(self, step: Step) -> Seen:
        predicted = self._stepper.verdicts.get(step.task) if step.task is not None else None
        return Seen(step, self._stepper.changes(step), predicted)


def described(mark: Mark) -> str:
    """What the core is about to do at a mark."""
    name = f" {cut(mark.name)}" if mark.name else ""
    if isinstance(mark.subject, TaskSubject):
        return f"{mark.what}{name}, task {mark.subject.id} in {cut(mark.subject.phase) or 'no phase'}"
    return f"{mark.what}{name}"
