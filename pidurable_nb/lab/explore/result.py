"""Owns what an exploration found, in memory, as the JSON of the command line, and as the Python that repeats a run.

Never runs anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pidurable_nb.ids import JsonObject
from pidurable_nb.lab.explore.states import Choices
from pidurable_nb.lab.judging.invariants import Broken, Problem

__all__ = ["Explored", "Found", "Seeded", "Told", "unnumbered"]


def unnumbered(problem: Problem) -> Problem:
    """The problem without how often: twice or three times, it is one violation."""
    return Problem(problem.kind, re.sub(r"\d+ times", "# times", problem.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Something that must not be, and the run that shows it: its `choices`, or its `seed` and the crashes allowed."""

    kind: Broken
    text: str
    scenario: str
    choices: Choices | None = None
    seed: int | None = None
    crashes: int = 0

    def program(self) -> str:
        """Python that repeats the run and prints it."""
        how = f"choices={self.choices!r}" if self.seed is None else f"seed={self.seed}, crashes={self.crashes}"
        return f"from pidurable_nb.lab.explore import replay\n\nprint(replay({self.scenario!r}, {how}))\n"

    def to_json(self) -> JsonObject:
        """An element of `violations`."""
        return {"class": self.kind, "because": self.text, "program": self.program()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """A crash closure. `closed`: every order and every crash was followed until nothing new came.

    `states` are durable: what a crash can leave. `places` are those of lives, each a state together with where
    everything stood; `edges` are the steps between them, each of them taken. `again` counts the steps that were taken
    again on another way, and led to the same place. `runs` are lives.
    """

    scenario: str
    states: int
    places: int
    edges: int
    again: int
    runs: int
    violations: tuple[Found, ...]
    closed: bool
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it came to its end, and nothing was found."""
        return self.closed and not self.violations

    def to_json(self) -> JsonObject:
        """The object `closure` of `pidurable-nb explore --json`."""
        return {
            "states": self.states,
            "places": self.places,
            "edges": self.edges,
            "again": self.again,
            "runs": self.runs,
            "closed": self.closed,
            "violations": [each.to_json() for each in self.violations],
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """Whole stories, one a seed, each told twice. `identical` of them were the same to the letter both times.

    `runs` are lives, `crashes` those that were cut off; `orders` counts the different sequences of points.
    """

    scenario: str
    seeds: int
    identical: int
    orders: int
    runs: int
    crashes: int
    violations: tuple[Found, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether everything repeated itself, and nothing was found."""
        return self.identical == self.seeds and not self.violations

    def to_json(self) -> JsonObject:
        """The object `seeds` of `pidurable-nb explore --json`."""
        return {
            "seeds": self.seeds,
            "identical": self.identical,
            "orders": self.orders,
            "runs": self.runs,
            "crashes": self.crashes,
            "violations": [each.to_json() for each in self.violations],
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One run: what happened, step by step, and what was wrong. `str()` is a page of it."""

    scenario: str
    steps: tuple[str, ...]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems

    def __str__(self) -> str:
        lines = [self.scenario, *(f"{n:>4}  {step}" for n, step in enumerate(self.steps, start=1))]
        lines += [f"VIOLATION  {problem.kind}: {problem.text}" for problem in self.problems]
        lines.append("nothing happened that is not allowed" if self.ok else "something happened that is not allowed")
        return "\n".join(lines)

    def to_json(self) -> JsonObject:
        """The object of `pidurable-nb explore --seed N --json`."""
        return {
            "scenario": self.scenario,
            "steps": list(self.steps),
            "violations": [{"class": problem.kind, "because": problem.text} for problem in self.problems],
            "ok": self.ok,
        }
