"""Owns what `%pi study` shows: the answers, how sure they were, and what that says per belief. Never reads a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pidurable_nb.notebook.study.beliefs import BELIEFS
from pidurable_nb.notebook.study.forms import NAMED, verdict
from pidurable_nb.notebook.study.scores import GUESSING, SURE, Answer, Score, Scores, scores
from pidurable_nb.notebook.views.markup import View, aligned, bdi, code, cut, esc, more, quiet, table, toned
from pidurable_nb.notebook.views.tables import Table, frame, moment, whole

COLUMNS: Final = (
    "notebook", "id", "seed", "question", "predicted", "confidence", "happened", "right", "penalty", "beliefs",
    "reconciled", "at",
)  # fmt: skip
_HEAD: Final = ("prediction", "predicted", "sure", "happened", "compared")


class StudyView(View):
    """All answers of a learner, and their scores."""

    def __init__(self, answers: Sequence[Answer], path: Path, limit: int) -> None:
        self.answers = answers
        self.path = path
        self.scores: Scores = scores(answers)
        self._limit = limit

    @property
    def label(self) -> str:
        return "Study"

    @property
    def headline(self) -> str:
        """The numbers in one sentence."""
        all = self.scores.all
        if not self.answers:
            return "Nothing is predicted yet."
        waiting = f"; {self.scores.open} not revealed" if self.scores.open else ""
        if all.brier is None:
            return f"Predicted {len(self.answers)}, revealed 0."
        return (
            f"Revealed {all.answers}, right {all.right}, wrong and sure {all.wrong_and_sure}{waiting}. "
            f"Brier score {all.brier:.2f}."
        )

    @property
    def _shown(self) -> Sequence[Answer]:
        return self.answers[-self._limit :]

    @property
    def _rest(self) -> str:
        return more(len(self._shown), len(self.answers), "earlier answers", whole())

    def html(self) -> str:
        parts = [f"<h2>{esc(self.headline)}</h2>"]
        if self.scores.all.answers:
            parts.append(f"<p>{quiet(esc(_LEGEND))}</p><h3>how sure, and how often right</h3>")
            parts.append(table(_BAND_HEAD, [[esc(cell) for cell in row] for row in self._bands()]))
        if self.scores.beliefs:
            parts.append("<h3>by belief</h3>")
            parts.append(table(_BELIEF_HEAD, [[esc(cell) for cell in row] for row in self._beliefs()]))
        if self.answers:
            rest = f"<p>{quiet(esc(self._rest))}</p>" if self._rest else ""
            parts.append(f"<h3>answers</h3>{rest}{table(_HEAD, [_cells(answer) for answer in self._shown])}")
        return "".join([*parts, f"<p>{quiet(code(cut(str(self.path), 200)))}</p>"])

    def text(self) -> str:
        parts = [self.headline]
        if self.scores.all.answers:
            parts += [_LEGEND, "", aligned(_BAND_HEAD, self._bands())]
        if self.scores.beliefs:
            parts += ["", aligned(_BELIEF_HEAD, self._beliefs(), widest=60)]
        if self.answers:
            parts += ["", *([self._rest] if self._rest else []), aligned(_HEAD, [_words(a) for a in self._shown])]
        return "\n".join([*parts, "", cut(str(self.path), 200)])

    def _bands(self) -> Sequence[Sequence[str]]:
        return [
            (f"{band.low} to {band.high} %", str(band.score.answers), str(band.score.right), *_shares(band.score))
            for band in self.scores.bands
        ]

    def _beliefs(self) -> Sequence[Sequence[str]]:
        return [
            (
                f"{name}: {BELIEFS[name].says}" if name in BELIEFS else name,
                str(found.answers), str(found.right), str(found.wrong_and_sure),
                "-" if found.brier is None else f"{found.brier:.2f}",
            )
            for name, found in self.scores.beliefs
        ]  # fmt: skip


_BAND_HEAD: Final = ("sure", "answers", "right", "mean sure", "share right")
_BELIEF_HEAD: Final = ("belief", "answers", "right", "wrong and sure", "Brier")
_LEGEND: Final = (
    f"Brier: 0 is right and certain, {GUESSING:.2f} is what always saying 50 % gives, 1 is wrong and certain. "
    f"Sure means {SURE * 100:.0f} % and more."
)


def _shares(score: Score) -> tuple[str, str]:
    if score.confidence is None or score.share is None:
        return "-", "-"
    return f"{score.confidence * 100:.0f} %", f"{score.share * 100:.0f} %"


def _words(answer: Answer) -> tuple[str, str, str, str, str]:
    happened = "not revealed" if answer.happened is None else cut(answer.happened, NAMED)
    word = "-" if answer.happened is None else verdict(answer)
    return answer.name, cut(answer.predicted, NAMED), f"{answer.percent} %", happened, word


def _cells(answer: Answer) -> Sequence[str]:
    name, predicted, sure, happened, word = _words(answer)
    shown = esc(word) if answer.right is None else toned("com" if answer.right else "int", word)
    notes = "".join(f"<br>{quiet(f'{esc(cut(note.belief, 20))}: {bdi(cut(note.sentence))}')}" for note in answer.notes)
    return code(name), bdi(predicted) + notes, esc(sure), bdi(happened), shown


def study_table(answers: Sequence[Answer], path: Path, *, limit: int) -> Table:
    """The answers as a data frame that shows itself with its scores."""
    return frame(StudyView(answers, path, limit), COLUMNS, [_facts(answer) for answer in answers])


def _facts(answer: Answer) -> Mapping[str, object]:
    at = None if answer.at_ms is None else moment(answer.at_ms)
    return {
        "notebook": answer.notebook, "id": answer.id, "seed": answer.seed, "question": answer.question,
        "predicted": answer.predicted, "confidence": answer.confidence, "happened": answer.happened,
        "right": answer.right, "penalty": answer.penalty, "beliefs": list(answer.beliefs),
        "reconciled": [(note.belief, note.sentence) for note in answer.notes], "at": at,
    }  # fmt: skip
