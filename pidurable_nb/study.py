"""Owns the public words to teach and learn with: predictions that are answered once, and checks with hidden
seeds. Holds no code of its own.

    from pidurable_nb.study import WHERE_IT_DIED, check, predict

    seen = predict("N1/screen", "The answer was on the screen. Is it stored?", ["yes", "no"], belief="W5")
    seen.require()                                     # in the cell that runs: predict first
    seen.reveal("no", because="The commit of that text had not returned.")

    check(died, WHERE_IT_DIED)                         # a function of the learner, in runs that nobody has seen

Importing it loads nothing; each name loads when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pidurable_nb import names_of

if TYPE_CHECKING:
    from pidurable_nb.notebook.study.beliefs import BELIEFS
    from pidurable_nb.notebook.study.check import Checked, Exercise, Trial, check
    from pidurable_nb.notebook.study.exercises import ONE_REFUND, SECOND_TOOL, WHERE_IT_DIED, Case, Till
    from pidurable_nb.notebook.study.predict import Question, predict
    from pidurable_nb.notebook.study.scores import Answer, Scores, scores

__all__ = [
    "BELIEFS",
    "ONE_REFUND",
    "SECOND_TOOL",
    "WHERE_IT_DIED",
    "Answer",
    "Case",
    "Checked",
    "Exercise",
    "Question",
    "Scores",
    "Till",
    "Trial",
    "check",
    "predict",
    "scores",
]

_ROOMS = {
    "predict": "pidurable_nb.notebook.study.predict",
    "Question": "pidurable_nb.notebook.study.predict",
    "Answer": "pidurable_nb.notebook.study.scores",
    "Scores": "pidurable_nb.notebook.study.scores",
    "scores": "pidurable_nb.notebook.study.scores",
    "check": "pidurable_nb.notebook.study.check",
    "Checked": "pidurable_nb.notebook.study.check",
    "Exercise": "pidurable_nb.notebook.study.check",
    "Trial": "pidurable_nb.notebook.study.check",
    "WHERE_IT_DIED": "pidurable_nb.notebook.study.exercises",
    "SECOND_TOOL": "pidurable_nb.notebook.study.exercises",
    "ONE_REFUND": "pidurable_nb.notebook.study.exercises",
    "Case": "pidurable_nb.notebook.study.exercises",
    "Till": "pidurable_nb.notebook.study.exercises",
    "BELIEFS": "pidurable_nb.notebook.study.beliefs",
}
"""Where each name lives."""

__getattr__, __dir__ = names_of(__name__, _ROOMS)
