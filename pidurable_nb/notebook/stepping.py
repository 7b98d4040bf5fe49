"""Owns the walk through a recovery that a notebook is in: beginning it, its steps as they are shown, its end.

A step runs the recovery on a copy, with the code that the notebook has then. Never touches the store it walks from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from IPython.core.error import UsageError

from pidurable_nb.engine.graph import PhaseClass, place
from pidurable_nb.engine.phase import Phase
from pidurable_nb.lab.stepper import Stepper
from pidurable_nb.lab.walk import Choice, Perform, Step, just_run
from pidurable_nb.notebook.steps import RecoveryView, Seen, StepView
from pidurable_nb.probe import Mark, TaskSubject


class Walking:
    """One walk. `store` is where it began."""

    def __init__(
        self, store: Path, *, tasks: Sequence[type[Phase[object]]], now_ms: int | None, perform: Perform | None
    ) -> None:
        self.store = store
        self._installed: dict[str, PhaseClass] = {first._task: first for first in tasks if first._task is not None}
        self._stepper = Stepper(store, tasks=tasks, now_ms=now_ms, perform=perform or just_run)

    @property
    def at(self) -> int:
        """How many steps were taken."""
        return self._stepper.at

    def next(self, choice: Choice) -> Step | None:
        """Take one step; None at the end."""
        return self._stepper.next(choice)

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

    def whole(self, effects_before: Mapping[str, int] | None) -> RecoveryView:
        """All steps so far, and what they came to."""
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
            stopped=stepper.stopped() if stepper.next_mark is None else (),
            over=stepper.next_mark is None,
        )

    @property
    def upcoming(self) -> str:
        """What the next step will do, in a few words."""
        mark = self._stepper.next_mark
        if mark is not None:
            return described(mark)
        stopped = self._stepper.stopped()
        return "nothing is left" + "".join(f"; task {id} needs {need}" for id, need in stopped)

    def _seen(self, step: Step) -> Seen:
        predicted = self._stepper.verdicts.get(step.task) if step.task is not None else None
        return Seen(step, self._stepper.changes(step), predicted)


def described(mark: Mark) -> str:
    """What the core is about to do at a mark."""
    name = f" {mark.name}" if mark.name else ""
    if isinstance(mark.subject, TaskSubject):
        return f"{mark.what}{name}, task {mark.subject.id} in {mark.subject.phase or 'no phase'}"
    return f"{mark.what}{name}"
