"""Owns the arithmetic of predictions: right, sure, the Brier score, calibration, and the same per belief. Pure.

Never reads a store. Only answers that were revealed count; the others are open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pidurable_nb.notebook.study.beliefs import order

LEAST: Final = 0.5
"""The lowest confidence: a guess between two."""
SURE: Final = 0.8
"""From here on a wrong answer counts as wrong and sure."""
BANDS: Final = (50, 60, 70, 80, 90)
"""Where each band of confidence begins, in percent; the last one ends with 100."""
GUESSING: Final = 0.25
"""The Brier score of somebody who always says 50 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Which belief led to a wrong prediction, in the learner's own words. It is not graded."""

    belief: str
    sentence: str


def named(notebook: str, id: str, seed: str | None) -> str:
    """What a question, and its answer, is called in a sentence."""
    return f"{notebook}/{id}" + (f", seed {seed}" if seed is not None else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was predicted, as it was locked, and what came of it, where that was revealed.

    `choice` counts from 1; `confidence` is from 0.5 to 1; `happened` is the text of the choice that came true.
    """

    key: str
    notebook: str
    id: str
    seed: str | None
    question: str
    choices: tuple[str, ...]
    choice: int
    confidence: float
    beliefs: tuple[str, ...] = ()
    at_ms: int | None = None
    happened: str | None = None
    because: str = ""
    notes: tuple[Note, ...] = ()

    @property
    def name(self) -> str:
        """What it is called."""
        return named(self.notebook, self.id, self.seed)

    @property
    def predicted(self) -> str:
        """The text of the choice."""
        return self.choices[self.choice - 1]

    @property
    def percent(self) -> int:
        """The confidence in percent."""
        return round(self.confidence * 100)

    @property
    def right(self) -> bool | None:
        """Whether it came true; None while nothing is revealed. Texts are compared, so an order does not matter."""
        return None if self.happened is None else self.happened == self.predicted

    @property
    def penalty(self) -> float | None:
        """Its part of the Brier score: the square of how far the confidence was from what happened."""
        return None if self.right is None else (self.confidence - (1.0 if self.right else 0.0)) ** 2

    @property
    def wrong_and_sure(self) -> bool:
        """What teaching should change."""
        return self.right is False and self.confidence >= SURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The revealed answers of one group. Means are None where the group is empty."""

    answers: int
    right: int
    wrong_and_sure: int
    confidence: float | None
    brier: float | None

    @property
    def share(self) -> float | None:
        """The share that was right."""
        return self.right / self.answers if self.answers else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The answers of one band of confidence, both ends included, in percent."""

    low: int
    high: int
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """All of it: the whole, the bands that hold an answer, and the beliefs that one was about."""

    open: int
    all: Score
    bands: tuple[Band, ...]
    beliefs: tuple[tuple[str, Score], ...]


def score(answers: Iterable[Answer]) -> Score:
    """The score of the revealed ones among `answers`."""
    found = [(answer, penalty) for answer in answers if (penalty := answer.penalty) is not None]
    count = len(found)
    return Score(
        answers=count,
        right=sum(1 for answer, _ in found if answer.right),
        wrong_and_sure=sum(1 for answer, _ in found if answer.wrong_and_sure),
        confidence=sum(answer.confidence for answer, _ in found) / count if count else None,
        brier=sum(penalty for _, penalty in found) / count if count else None,
    )


def scores(answers: Sequence[Answer]) -> Scores:
    """Everything that a course says about predictions."""
    revealed = [answer for answer in answers if answer.right is not None]
    bands = []
    for low, after in zip(BANDS, (*BANDS[1:], 101), strict=True):
        inside = [answer for answer in revealed if low <= answer.percent < after]
        if inside:
            bands.append(Band(low=low, high=after - 1, score=score(inside)))
    names = sorted({name for answer in revealed for name in answer.beliefs}, key=order)
    return Scores(
        open=len(answers) - len(revealed),
        all=score(revealed),
        bands=tuple(bands),
        beliefs=tuple((name, score(a for a in revealed if name in a.beliefs)) for name in names),
    )
