"""Owns what a sweep found, in memory, as the JSON of the command line, and as the command that shows a story again.

Never runs anything.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pidurable_nb.agent.opening import Durability
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.lab.crash import CrashKind
from pidurable_nb.lab.invariants import Broken
from pidurable_nb.lab.scenario import BUILT_IN, Scenario
from pidurable_nb.lab.sweep_points import Crashes, command, named

__all__ = ["CLASSES", "WORST_FIRST", "OutcomeClass", "SweepResult", "Violation", "Witness", "name_of", "replay_command"]

OutcomeClass = Literal[
    "as_promised", "lost_within_bound", "effect_twice", "lost_acknowledged", "stuck", "corrupt", "broken"
]
CLASSES: Final[tuple[OutcomeClass, ...]] = (
    "as_promised", "lost_within_bound", "effect_twice", "lost_acknowledged", "stuck", "corrupt",
)  # fmt: skip
"""What can become of a crash, in the order of a table; behind them `broken`, a promise of the scenario's own."""
WORST_FIRST: Final[tuple[OutcomeClass, ...]] = ("corrupt", "lost_acknowledged", "stuck", "broken", "effect_twice")

_KILL_NOTE: Final = (
    "durability kill: a barrier is an ordinary commit (E5); a killed process loses nothing by it, a power cut may"
)


@dataclass(frozen=True, slots=True)
class Witness:
    """One story: where it crashed, once a life at most, and how. It replays from these and the seed."""

    crashes: Crashes
    how: CrashKind


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

    `points` are the first life's; `images` what crashes left, each recovered from; `runs` the lives that were run.
    `classes` count what became of the images, and `witnesses` has a story for each that is not as promised, allowed or
    not. `same_bytes` of `compared` places left the same bytes frozen, killed and replayed from the log of operations;
    None when it was not asked for both kinds.
    """

    scenario: str
    kinds: tuple[CrashKind, ...]
    durability: Durability
    seed: int
    points: int
    images: int
    runs: int
    classes: Mapping[OutcomeClass, int]
    witnesses: Mapping[OutcomeClass, Witness]
    violations: tuple[Violation, ...]
    same_bytes: int | None
    compared: int
    seconds: float
    sqlite: str = sqlite3.sqlite_version

    @property
    def ok(self) -> bool:
        """Whether nothing happened that is not allowed."""
        return not self.violations

    @property
    def byte_identical(self) -> str | None:
        """`N of N`; None when it was not asked for both kinds."""
        return None if self.same_bytes is None else f"{self.same_bytes} of {self.compared}"

    @property
    def note(self) -> str | None:
        """What the chosen durability does not promise."""
        return _KILL_NOTE if self.durability == "kill" else None

    @property
    def counts(self) -> Mapping[OutcomeClass, int]:
        """The classes as a table has them: all of `CLASSES`, and behind them what else was met."""
        found: dict[OutcomeClass, int] = dict.fromkeys(CLASSES, 0)
        found.update(self.classes)
        return found

    def replay(self, witness: Witness) -> str:
        """What to type to see that story again."""
        return replay_command(self.scenario, witness, seed=self.seed, durability=self.durability)

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
