"""Owns the twelve beliefs that crashes disprove, and why. Never decides which of them somebody holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Belief:
    """Something that is often believed, and what holds instead."""

    says: str
    instead: str


BELIEFS: Final[Mapping[str, Belief]] = {
    "W1": Belief(
        "durable means that everything happens one time",
        "the record is kept one time; an effect happens at least once or at most once, by choice",
    ),
    "W2": Belief(
        "it resumes at the line where it stopped",
        "it goes on from the last committed checkpoint, and the code behind that runs again",
    ),
    "W3": Belief("variables and objects survive", "only committed values do"),
    "W4": Belief("replay reads back what happened", "in several systems it runs the code again"),
    "W5": Belief(
        "what was on the screen is stored",
        "it is where the commit comes before the display; partial output has a window",
    ),
    "W6": Belief("a crash and a power cut are the same", "the newest commits may survive the first and not the second"),
    "W7": Belief(
        "a retry with the same id is always harmless", "it is where admission is atomic, and for the same request only"
    ),
    "W8": Belief(
        "deterministic means no random numbers",
        "it means the same steps in the same order, on data from the past, with the code of today",
    ),
    "W9": Belief(
        "a fork copies the world", "it shares the transcript; documents follow a policy, and sent mails do not fork"
    ),
    "W10": Belief("more retries are more reliable", "a retry that nobody counts is a storm"),
    "W11": Belief("abort undoes", "it ends work; undoing is the task's own job, children first"),
    "W12": Belief("a memo is a cache", "it is a decision: the first writer wins, and it is never refreshed"),
}
"""By name, W1 to W12."""


def known(name: object) -> bool:
    """Whether there is a belief of that name."""
    return isinstance(name, str) and name in BELIEFS


def order(name: str) -> tuple[int, str]:
    """Where a belief stands among the others; what is none stands last."""
    return (list(BELIEFS).index(name) if name in BELIEFS else len(BELIEFS)), name
