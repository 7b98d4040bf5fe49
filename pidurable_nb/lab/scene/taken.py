"""Owns a step that was taken, with what was known right before it and behind it. Never takes one, and words little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pidurable_nb.engine.decide import Outside
from pidurable_nb.engine.transition import kept_fault
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.scene.facts import Facts
from pidurable_nb.lab.scene.parts import Mark, PhaseEdge, short
from pidurable_nb.lab.scene.rows import label_of
from pidurable_nb.lab.scene.ruling import Ruling, ids
from pidurable_nb.lab.walking.stepper import RowChange
from pidurable_nb.lab.walking.walk import Step
from pidurable_nb.probe import Mark as Place
from pidurable_nb.records import task as stored

Chosen: TypeAlias = Literal["run", "record", "happened", "not"]
CHOSEN: Final[Mapping[str, Chosen]] = {"run": "run", "record": "record", "happened": "happened", "not": "not"}
MARK: Final = "mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How often the outside was asked for this effect: before the step, and behind it."""

    before: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A step that was taken, and what was known right before it.

    `ruled` is the verdict on its task then, `first` the one before anything was opened, and `seen` whether something
    was done to the task before; `marked` whether this recovery marked it for abort. `chosen` is what was chosen at an
    effect; `again` whether it may have been done before, which is sure where it is `counted`; `recorded` where an
    answer of it is kept. Where this is the first commit of a task behind its reservation, `repeats` is the verdict that
    it was reserved with, if that might repeat something, and `since` how many effects it asked for since.
    """

    step: Step
    mark: Place | None
    before: Facts
    after: Facts
    changes: Sequence[RowChange]
    ruled: Ruling | None
    first: Ruling | None
    seen: bool
    marked: bool = False
    chosen: Chosen = "run"
    counts: Counts = field(default_factory=Counts)
    again: bool = False
    recorded: str | None = None
    repeats: Ruling | None = None
    since: int | None = None
    edges: Mapping[str, tuple[PhaseEdge, ...]] = field(default_factory=dict)
    died: bool = False
    counted: bool = True

    @property
    def fault(self) -> str | None:
        """What its code raised, where this commit keeps or ends the task for that (T11)."""
        task = self.step.task
        before, after = (facts.tasks.get(task) if task is not None else None for facts in (self.before, self.after))
        if after is None or self.step.verdict is not None or before is None:
            return None
        kept = kept_fault(after)
        if kept is not None and kept_fault(before) != kept:
            return kept.message
        ended = after.outcome
        return ended.error.message if isinstance(ended, stored.Faulted) and before.outcome is None else None

    @property
    def opens(self) -> bool:
        """Whether it is the opening itself (T7)."""
        return self.step.kind == "reconcile" and self.step.verdict is None and "T7" in self.step.laws

    @property
    def settled(self) -> tuple[int, ...]:
        """The submissions that it settled."""
        found = []
        for change in self.changes:
            table, _, number = change.row.partition("/")
            if table == "submissions":
                record = next((r for id, r in self.after.submissions.items() if id == int(number)), None)
                old = next((r for id, r in self.before.submissions.items() if id == int(number)), None)
                ended = ("done", "unanswered")
                if record is not None and record.status in ended and (old is None or old.status not in ended):
                    found.append(int(number))
        return tuple(found)

    @property
    def verb(self) -> str:
        """The verdict that it acted on, or open, effect, settle, commit."""
        if self.step.verdict is not None:
            return self.step.verdict
        if self.opens:
            return "open"
        if self.step.effect is not None:
            return "effect"
        if self.fault is not None:
            return "faulted"
        return "settle" if self.settled else "commit"

    @property
    def group(self) -> str:
        """The part of a recovery that it belongs to."""
        match self.step.kind:
            case "reconcile":
                if self.fault is not None:
                    return "outcome"
                return "open" if self.opens else "abort marks" if self.step.verdict == MARK else "settle before start"
            case "reserve":
                return "resume" if self.step.verdict == "resume" else "start"
            case kind:
                return kind

    @property
    def shown_mark(self) -> Mark:
        """A reservation is a commit, so only an effect that happens again is shown as one."""
        if self.died:
            return "crash"
        if self.step.verdict == "interrupt":
            return "interrupted"
        if self.step.effect is not None:
            return "again" if self.outside == "again" else "none"
        return "commit"

    @property
    def outside(self) -> Outside:
        """What this step causes outside."""
        if self.step.effect is not None:
            if self.chosen == "happened":
                return "unknown"
            return "again" if self.chosen == "run" and self.again else "none"
        acts = self.step.verdict is not None and self.ruled is not None and self.ruled.name == self.step.verdict
        return self.ruled.outside if acts and self.ruled is not None else "none"

    @property
    def title(self) -> str:
        """What it is about."""
        if self.step.effect is not None:
            return short(self.step.effect, 120) + self._repeat
        if self.settled:
            what = "submission" if len(self.settled) == 1 else "submissions"
            return f"{what} {', '.join(str(id) for id in self.settled[:6])}"
        tasks = [TaskId(int(row.partition("/")[2])) for row in self.step.changed if row.startswith("tasks/")]
        if self.step.task is not None:
            record = self.after.tasks.get(self.step.task)
            return f"task {self.step.task}" + (f", {label_of(self.after, record)}" if record is not None else "")
        return f"{'task' if len(tasks) == 1 else 'tasks'} {ids(tasks)}" if tasks else "the session"

    @property
    def _repeat(self) -> str:
        if not (self.asked and self.again):
            return ""
        return ", again" if self.counted else ", perhaps again"

    @property
    def asked(self) -> bool:
        """Whether the outside was really asked."""
        return self.step.effect is not None and self.counts.after > self.counts.before
