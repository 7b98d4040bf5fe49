"""Owns the public words to teach and learn with: predictions that are answered once. Holds no code of its own.

    from pidurable_nb.study import predict

    seen = predict("N1/screen", "The answer was on the screen. Is it stored?", ["yes", "no"], belief="W5")
    seen.require()                                     # in the cell that runs: predict first
    seen.reveal("no", because="The commit of that text had not returned.")

Importing it loads nothing; each name loads when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pidurable_nb import names_of

if TYPE_CHECKING:
    from pidurable_nb.notebook.study.beliefs import BELIEFS
    from pidurable_nb.notebook.study.predict import Question, predict
    from pidurable_nb.notebook.study.scores import Answer, Scores, scores

__all__ = ["BELIEFS", "Answer", "Question", "Scores", "predict", "scores"]

_ROOMS = {
    "predict": "pidurable_nb.notebook.study.predict",
    "Question": "pidurable_nb.notebook.study.predict",
    "Answer": "pidurable_nb.notebook.study.scores",
    "Scores": "pidurable_nb.notebook.study.scores",
    "scores": "pidurable_nb.notebook.study.scores",
    "BELIEFS": "pidurable_nb.notebook.study.beliefs",
}
"""Where each name lives."""

__getattr__, __dir__ = names_of(__name__, _ROOMS)
