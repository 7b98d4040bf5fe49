"""Owns what a sweep found, in memory, as the JSON of the command line, and as the command that shows a story again.

Never runs anything.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pidurable_nb.agent.opening import Durability
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.lab.judging.invariants import Broken
from pidurable_nb.lab.scenario import BUILT_IN, Scenario
from pidurable_nb.lab.sweeping.frame import frame
from pidurable_nb.lab.sweeping.picture import picture_svg, picture_text
from pidurable_nb.lab.sweeping.points import SweepKind, command, named
from pidurable_nb.lab.sweeping.tally import CLASSES, WORST_FIRST, Cell, OutcomeClass, Tally, Timed, Took, Witness

if TYPE_CHECKING:
    import pandas as pd

    from pidurable_nb.lab.sweeping.reopen import Reopened

__all__ = ["CLASSES", "SweepResult", "Violation", "name_of", "replay_command"]

_KILL_NOTE: Final = (
    "durability kill: a barrier is an ordinary commit (E5); a killed process loses nothing by it, a power cut may lose "
    "the newest commits, and what they guarded may happen twice"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Something that the chosen durability does not allow, with one witness and what to type to see it again."""

    kind: Broken
    text: str
    witness: Witness
    replay: str

    def to_json(self) -> JsonObject:
        """An element of `violations`."""
        at = named(self.witness.crashes)
        return {"class": self.kind, "point": at, "because": self.text, "replay": self.replay}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a sweep found.

    `points` are the first life's. `tally` has the counts: images that crashes left, what became of them, a story for
    each class that is not as promised, allowed or not. A sweep that was stopped has `done` fewer than all its `pieces`.
    `source` is the text of the scenario's module where that was saved with it, to read and never to run.
    """

    scenario: str
    kinds: tuple[SweepKind, ...]
    durability: Durability
    seed: int
    second: bool
    points: int
    tally: Tally
    done: int
    pieces: int
    seconds: float
    sqlite: str = sqlite3.sqlite_version
    source: str | None = None

    @property
    def images(self) -> int:
        """The images that crashes left, each recovered from, or found to be what no recovery can begin with."""
        return self.tally.images

    @property
    def runs(self) -> int:
        """The lives that were run for it."""
        return self.tally.runs

    @property
    def classes(self) -> Mapping[OutcomeClass, int]:
        """What became of the images: the classes that were met."""
        return dict(self.tally.classes)

    @property
    def witnesses(self) -> Mapping[OutcomeClass, Witness]:
        """A story for each class that is not as promised, allowed or not."""
        return {kind: self.tally.witnesses[kind] for kind in WORST_FIRST if kind in self.tally.witnesses}

    @property
    def violations(self) -> tuple[Violation, ...]:
        """What the chosen durability does not allow."""
        return tuple(
            Violation(kind=problem.kind, text=problem.text, witness=witness, replay=self.replay(witness))
            for problem, witness in self.tally.problems.items()
        )

    @property
    def cells(self) -> Mapping[Cell, Mapping[OutcomeClass, int]]:
        """The matrix: for each point and kind how often which class was met."""
        return {cell: dict(counts) for cell, counts in self.tally.cells.items()}

    @property
    def rates(self) -> Mapping[Timed, Took]:
        """How many images were checked, lives frozen, processes killed, faults run, each in how many seconds."""
        return dict(self.tally.took)

    @property
    def complete(self) -> bool:
        """Whether it came to its end; False when it was stopped before."""
        return 0 < self.pieces == self.done

    @property
    def ok(self) -> bool:
        """Whether nothing happened that is not allowed, as far as it came."""
        return not self.tally.problems

    @property
    def byte_identical(self) -> str | None:
        """`N of N` places where frozen, killed and replayed lives left the same bytes; None when none was compared."""
        return f"{self.tally.same} of {self.tally.compared}" if self.tally.compared else None

    @property
    def note(self) -> str | None:
        """What the chosen durability does not promise, and whether the sweep was stopped."""
        notes = [_KILL_NOTE] if self.durability == "kill" else []
        if not self.complete:
            notes.append(f"stopped after {self.done} of {self.pieces} pieces")
        return "; ".join(notes) or None

    @property
    def counts(self) -> Mapping[OutcomeClass, int]:
        """The classes as a table has them: all of `CLASSES`, and behind them what else was met."""
        found: dict[OutcomeClass, int] = dict.fromkeys(CLASSES, 0)
        found.update(self.tally.classes)
        return found

    def replay(self, witness: Witness) -> str:
        """What to type to see that story again."""
        return replay_command(self.scenario, witness, seed=self.seed, durability=self.durability)

    def frame(self) -> pd.DataFrame:
        """The matrix as a data frame, a row for each point and kind. Raises: ModuleNotFoundError without pandas."""
        return frame(self)

    def picture(self) -> str:
        """The matrix as an SVG that stands by itself: points down, kinds across, everywhere the worst that was met."""
        return picture_svg(self)

    def text(self) -> str:
        """The matrix as plain text, at most 80 columns wide."""
        return picture_text(self)

    def save(self, path: Path | str) -> None:
        """Write all of it to one file that another person can load, in place of an older one. Raises: OSError."""
        from pidurable_nb.lab.sweeping.file import save  # which makes results, and so imports this module

        save(self, Path(path))

    @classmethod
    def load(cls, path: Path | str) -> SweepResult:
        """What somebody saved; nothing in it is run or imported. Raises: SavedSweepRefused, OSError."""
        from pidurable_nb.lab.sweeping.file import load

        return load(Path(path))

    def reopen(self, witness: Witness, scenario: Scenario | None = None) -> Reopened:
        """A story laid out up to its last crash: the store as it was left, and a stepper on a copy; a context manager.

        Without a `scenario` it is the built-in one of that name, or the one of a module that is imported already.
        Raises: UnknownScenario, NothingLeft, NeverPassed, NoSuchImage, StoreRefused where that is what was left.
        """
        from pidurable_nb.lab.sweeping.reopen import Reopened  # which looks at stores, and so needs much

        return Reopened(self, witness, scenario)

    def to_json(self) -> JsonObject:
        """The object that `pidurable-nb sweep --json` prints."""
        shown: dict[str, Json] = {
            "scenario": self.scenario,
            "kinds": list(self.kinds),
            "durability": self.durability,
            "sqlite": self.sqlite,
            "seed": self.seed,
            "points": self.points,
            "images": self.images,
            "runs": self.runs,
            "classes": {str(kind): count for kind, count in self.counts.items()},
            "violations": [violation.to_json() for violation in self.violations],
        }
        if self.byte_identical is not None:
            shown["byte_identical"] = self.byte_identical
        shown |= {"ok": self.ok, "seconds": round(self.seconds, 1)}
        if self.witnesses:
            shown["witnesses"] = {
                kind: {"point": named(witness.crashes), "replay": self.replay(witness)}
                for kind, witness in self.witnesses.items()
            }
        if self.rates:
            shown["rates"] = {what: round(took.rate, 1) for what, took in self.rates.items()}
        if self.note is not None:
            shown["note"] = self.note
        return shown


def name_of(scenario: Scenario) -> str:
    """What the command line calls a scenario."""
    built_in = scenario.module.startswith("pidurable_nb.") and scenario.name in BUILT_IN
    return scenario.name if built_in else f"{scenario.module}:{scenario.name}"


def replay_command(scenario: str, witness: Witness, *, seed: int, durability: Durability) -> str:
    options = ["--kind", witness.how] if witness.how != "freeze" else []
    if durability != "barrier":
        options += ["--durability", durability]
    return command(scenario, witness.crashes, seed=seed, options=options)
