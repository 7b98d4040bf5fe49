"""Owns the shape of a scene: everything that the laboratory shows at one position of a recovery, as plain records.

A position is 0, the file as the crash left it, or the number of steps taken. Every text is foreign and raw: whoever
shows it escapes it. Never reads a store, takes no step and renders nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pidurable_nb.ids import JsonObject
from pidurable_nb.lab.scene.parts import Bar, Col, Effect, Entries, Mark, Sub, Talk, Task, as_json

Outside: TypeAlias = Literal["none", "again", "unknown"]
Agreement: TypeAlias = Literal["agrees", "milder", "differs", "choice"]
Sign: TypeAlias = Literal["+", "-", "~"]


# --- The step ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A law that a step followed."""

    id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """What recovery will do with one task, or with a submission (then `task` is None)."""

    task: int | None
    submission: int | None
    verdict: str
    because: str
    outside: Outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A question of the decision with its answer; `read` is what answered it, `exit` the way not taken."""

    question: str
    answer: str
    read: str
    exit: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """A decision, in its order: the questions answered no before, those that mattered, and the verdict."""

    skipped: tuple[str, ...]
    rungs: tuple[Rung, ...]
    end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRow:
    """One change of one row. The sizes say how long a text is where it is cut; else 0."""

    sign: Sign
    row: str
    before: str
    after: str
    before_size: int = 0
    after_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to go on at a step. `disabled` says why it is impossible; `then` what came of it, or would."""

    id: str
    label: str
    detail: str
    chosen: bool
    disabled: str | None
    then: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What can be chosen at a step; at a lens nothing runs, and only what is supposed of the world changes."""

    question: str
    kind: Literal["effect", "lens"]
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShown:
    """The step that led to this position, or the crash itself at position 0."""

    n: int
    group: str
    verb: str
    mark: Mark
    title: str
    say: str
    note: str | None
    outside: Outside
    laws: tuple[Law, ...]
    predicted: str | None = None
    happened: str | None = None
    agreement: Agreement | None = None
    table: tuple[TableRow, ...] | None = None
    ladder: Ladder | None = None
    diff: tuple[DiffRow, ...] = ()
    commit: int | None = None
    choice: Choice | None = None
    task: int | None = None
    submission: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRow:
    """A place where the next run may be made to die."""

    point: str
    text: str
    kinds: tuple[str, ...]
    occurrence: int
    armed: bool

    def to_json(self) -> JsonObject:
        """As the page gets it."""
        return as_json(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How many there are, where `tasks` and `submissions` show the newest and what lives."""

    tasks: int
    live: int
    submissions: int
    conversations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything that is shown at one position.

    `last` is the number of steps once the end was reached. `words` is a sentence that replaces everything. `watched`
    says why there are no steps, where a store that is open and alive is watched instead of walked.
    """

    store: str
    scenario: str | None
    how: str | None
    position: int
    last: int | None
    next: str | None
    words: str | None
    timeline: tuple[Col, ...]
    bars: tuple[Bar, ...]
    conversations: tuple[Talk, ...]
    entries: Entries
    tasks: tuple[Task, ...]
    submissions: tuple[Sub, ...]
    effects: tuple[Effect, ...]
    step: StepShown
    points: tuple[PointRow, ...]
    totals: Totals
    watched: str | None = None

    def to_json(self) -> JsonObject:
        """As the page gets it: names without the underscore that Python needs."""
        return as_json(self)
