"""Owns how a prediction is shown: its sentences, its static page, its plain text, and what the page of the widget gets.

Never reads a store. What is not locked and revealed yet stands in none of them: nobody here knows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pidurable_nb.notebook.study.beliefs import BELIEFS
from pidurable_nb.notebook.study.scores import Answer, named
from pidurable_nb.notebook.views.markup import View, bdi, code, cut, esc, items, lines_of, prose, quiet, toned

MOST_TEXT: Final = 4_000
"""How many characters of a question are shown."""
MOST_CHOICE: Final = 400
"""And of a choice."""
NAMED: Final = 60
"""And of a choice inside a sentence."""
OPEN: Final = "Choose what happens, say how sure you are, and lock it."
HEADLESS: Final = "predict(…, choose=1, confidence=0.8) locks the first choice at 80 % without a widget."


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question as a cell asks it. `key` is what it is answered once for, in every kernel."""

    key: str
    notebook: str
    id: str
    seed: str | None
    question: str
    choices: tuple[str, ...]
    beliefs: tuple[str, ...]

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        return named(self.notebook, self.id, self.seed)

    def number(self, text: str) -> int:
        """Which of today's choices has that text, from 1; 0 for none."""
        return self.choices.index(text) + 1 if text in self.choices else 0

    def answered(self, choice: int, confidence: float) -> Answer:
        """An answer to it, before anything is stored."""
        return Answer(
            key=self.key, notebook=self.notebook, id=self.id, seed=self.seed, question=self.question,
            choices=self.choices, choice=choice, confidence=round(confidence, 4), beliefs=self.beliefs,
        )  # fmt: skip


# --- Sentences ------------------------------------------------------------------------------------------------------


def saying(answer: Answer) -> str:
    """What was predicted, and how surely."""
    return f"{cut(answer.predicted, NAMED)}, at {answer.percent} %"


def said(asked: Asked, answer: Answer | None, tried: Answer | None = None, *, new: bool = False) -> str:
    """One sentence about where the prediction stands. `tried` is what somebody wanted to lock just now."""
    if answer is None:
        return OPEN
    if new:
        return f"Locked: {saying(answer)}. It is stored, and stays as it is."
    other = (answer.question, answer.choices) != (asked.question, asked.choices)
    words = " The question had other words then." if other else ""
    if tried is None:
        return f"Locked before: {saying(answer)}. The first answer stands.{words}"
    if (tried.predicted, tried.percent) == (answer.predicted, answer.percent):
        return f"Locked before, with the same answer: {saying(answer)}. It is stored once.{words}"
    return f"Locked before: {saying(answer)}. The first answer stands; {saying(tried)}, is not stored.{words}"


def verdict(answer: Answer) -> str:
    """The word for how prediction and outcome compare."""
    return "agrees" if answer.right else "differs"


def reconciling(answer: Answer) -> str:
    """What may follow a wrong prediction; nothing after a right one."""
    if answer.right is not False or answer.notes:
        return ""
    name = answer.beliefs[0] if answer.beliefs else "W1"
    return f'Which belief led there? .reconcile("{name}", "one sentence of your own") keeps it; it is not graded.'


# --- The page of the widget -----------------------------------------------------------------------------------------


def page_of(asked: Asked, answer: Answer | None, sentence: str) -> dict[str, object]:
    """Everything that the widget's page gets. Texts are made visible here; the page sets them as text."""
    state: dict[str, object] = {
        "name": cut(asked.name, MOST_CHOICE),
        "question": "\n".join(lines_of(asked.question, MOST_TEXT)),
        "choices": [cut(choice, MOST_CHOICE) for choice in asked.choices],
        "said": sentence,
        "locked": None,
        "revealed": None,
    }
    if answer is not None:
        state["locked"] = {
            "choice": asked.number(answer.predicted), "text": cut(answer.predicted, MOST_CHOICE),
            "percent": answer.percent,
        }  # fmt: skip
        if answer.happened is not None:
            state["revealed"] = {
                "choice": asked.number(answer.happened), "text": cut(answer.happened, MOST_CHOICE),
                "right": answer.right, "verdict": verdict(answer), "because": cut(answer.because, MOST_TEXT),
                "reconcile": reconciling(answer),
            }  # fmt: skip
    return state


# --- The static form ------------------------------------------------------------------------------------------------


class PredictionView(View):
    """A question, the locked answer, and what happened, where that is revealed. No kernel is needed."""

    def __init__(self, asked: Asked, answer: Answer | None, sentence: str) -> None:
        self.asked = asked
        self.answer = answer
        self.sentence = sentence

    @property
    def label(self) -> str:
        return f"Prediction {self.asked.name}"

    def marks(self, choice: str) -> Sequence[str]:
        """The words beside a choice."""
        answer = self.answer
        if answer is None:
            return ()
        found = [f"predicted, at {answer.percent} %"] if choice == answer.predicted else []
        return [*found, *(["happened"] if choice == answer.happened else [])]

    def html(self) -> str:
        rows = []
        for choice in self.asked.choices:
            marks = "".join(f" {toned('com', mark)}" for mark in self.marks(choice))
            rows.append(f"<li>{bdi(cut(choice, MOST_CHOICE))}{marks}</li>")
        head = f"{prose(self.asked.question, MOST_TEXT)}<ol>{''.join(rows)}</ol><p>{esc(self.sentence)}</p>"
        if self.answer is None:
            return head + f"<p>{quiet(code(HEADLESS))}</p>"
        return head + _outcome(self.answer)

    def text(self) -> str:
        lines = lines_of(self.asked.question, MOST_TEXT)
        for n, choice in enumerate(self.asked.choices, 1):
            marks = ", ".join(self.marks(choice))
            lines.append(f"  {n}  {cut(choice, MOST_CHOICE)}" + (f"   <- {marks}" if marks else ""))
        lines.append(self.sentence)
        if self.answer is None:
            lines.append(HEADLESS)
        else:
            lines += _outcome_lines(self.answer)
        return "\n".join(lines)


class RevealView(View):
    """What was predicted beside what happened."""

    def __init__(self, asked: Asked, answer: Answer, sentence: str) -> None:
        self.asked = asked
        self.answer = answer
        self.sentence = sentence

    @property
    def label(self) -> str:
        return f"Reveal of {self.asked.name}"

    def html(self) -> str:
        said = f"<p>{quiet(esc(self.sentence))}</p>" if self.sentence else ""
        return prose(self.asked.question, MOST_TEXT) + _outcome(self.answer) + said

    def text(self) -> str:
        lines = [*lines_of(self.asked.question, MOST_TEXT), *_outcome_lines(self.answer)]
        return "\n".join([*lines, self.sentence] if self.sentence else lines)


def _outcome(answer: Answer) -> str:
    if answer.happened is None:
        return ""
    word = toned("com" if answer.right else "int", verdict(answer))
    rows = [
        f"{quiet('predicted')} {bdi(cut(answer.predicted, MOST_CHOICE))}, at {answer.percent} %",
        f"{quiet('happened')} {bdi(cut(answer.happened, MOST_CHOICE))}: {word}",
    ]
    because = f"<p>{esc(cut(answer.because, MOST_TEXT))}</p>" if answer.because else ""
    more = reconciling(answer)
    return items(rows) + because + _notes(answer) + (f"<p>{quiet(esc(more))}</p>" if more else "")


def _notes(answer: Answer) -> str:
    return items(
        f"{code(cut(note.belief, 20))} {bdi(cut(note.sentence, MOST_CHOICE))}"
        + (f" {quiet(esc(f'{belief.says}: {belief.instead}'))}" if (belief := BELIEFS.get(note.belief)) else "")
        for note in answer.notes
    ) if answer.notes else ""  # fmt: skip


def _outcome_lines(answer: Answer) -> list[str]:
    if answer.happened is None:
        return []
    lines = [
        f"predicted: {cut(answer.predicted, MOST_CHOICE)}, at {answer.percent} %",
        f"happened:  {cut(answer.happened, MOST_CHOICE)}   ({verdict(answer)})",
    ]
    lines += [cut(answer.because, MOST_TEXT)] if answer.because else []
    lines += [f"{cut(note.belief, 20)}: {cut(note.sentence, MOST_CHOICE)}" for note in answer.notes]
    return [*lines, *([reconciling(answer)] if reconciling(answer) else [])]
