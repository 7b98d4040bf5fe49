"""Owns `predict`: a question in a cell, locked once before the cell that runs, revealed behind it.

The answer is a submission with a request id: a second click, a rerun, another kernel or a kill gives the first one
(S1). Never runs the experiment, and knows what is right only when the notebook reveals it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from IPython.core.error import UsageError

from pidurable_nb.errors import PidurableError
from pidurable_nb.notebook.kernel.at_hand import desk_at_hand
from pidurable_nb.notebook.kernel.desk import usage_of
from pidurable_nb.notebook.kernel.host import HostEnded
from pidurable_nb.notebook.study.beliefs import BELIEFS, known
from pidurable_nb.notebook.study.forms import Asked, PredictionView, RevealView, page_of, said
from pidurable_nb.notebook.study.scores import LEAST, Answer
from pidurable_nb.notebook.study.study import Kept, NotLocked, Study
from pidurable_nb.notebook.views.both_forms import need_page, publish_both
from pidurable_nb.store.visible import visible

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from pidurable_nb.notebook.study.widget import Done, PredictWidget

MOST_CHOICES: Final = 9
"""A key of the keyboard for each."""
_PART: Final = re.compile(r"\w[\w.+-]{0,79}")
_NO_PART: Final = re.compile(r"[^\w.+-]+")


def predict(
    id: str,
    question: str,
    choices: Sequence[str],
    *,
    seed: int | str | None = None,
    belief: str | Sequence[str] = (),
    choose: int | str | None = None,
    confidence: float | None = None,
) -> Question:
    """A question about what will happen, that is answered once: `predict("N1/screen", "Is it there?", ["yes", "no"])`.

    The part of `id` before a slash names the notebook; without one, its file does. Another `seed` is another question.
    `belief` names those of W1 to W12 that a wrong answer would come from. `choose` (a number from 1, or the text) with
    `confidence` (0.5 to 1) locks at once, where there are no widgets.

    Durability: what was locked is in the study store of the learner, across kernels and kills (S1, E5).
    Raises UsageError in one line: wrong use, no extension, a study store that something else keeps open.
    """
    desk = desk_at_hand("predict")
    asked = _asked(desk.shell, id, question, choices, seed, belief)
    made = Question(asked, Study(desk.host))
    if (choose is None) != (confidence is None):
        raise UsageError("predict: choose= and confidence= go together, as in choose=1, confidence=0.8")
    if choose is not None and confidence is not None:
        made.lock(choose, confidence)
    return made


class Question:
    """A question in a cell. `lock` answers it, `require` insists on an answer, `reveal` says what happened."""

    def __init__(self, asked: Asked, study: Study) -> None:
        self.asked = asked
        self.study = study
        self._answer = self._look()
        self._pending: Future[Kept] | None = None
        self._widget: PredictWidget | None = None
        self._sentence = said(asked, self._answer)

    # -- answering ---------------------------------------------------------------------------------------------------

    @property
    def locked(self) -> Answer | None:
        """The stored answer, with what was revealed of it; None while there is none. Looks into the store."""
        if self._pending is not None:
            self._settle(self._pending)
        if self._answer is None:
            self._answer = self._look()
            self._show(said(self.asked, self._answer))
        return self._answer

    def require(self) -> Answer:
        """The stored answer. Raises UsageError where there is none: what runs behind it is to be predicted first."""
        answer = self.locked
        if answer is None:
            raise UsageError(
                f"predict first: {visible(self.asked.name)} is not locked yet. Choose above and press Lock, then run "
                "this cell again"
            )
        return answer

    def lock(self, choice: int | str, confidence: float) -> Question:
        """Answer it: a number from 1 or the text of a choice, and how sure, 0.5 to 1. The first answer stands.

        Durability: stored on return, behind a barrier (S1, E5). Raises UsageError, and changes nothing then.
        """
        tried = self._tried(choice, confidence)
        self._take(self._written(self.study.lock(tried)), tried)
        return self

    def reveal(self, answer: int | str, because: str = "") -> RevealView:
        """Say what happened, beside what was predicted. The first reveal counts.

        Durability: stored on return, behind a barrier (S1, E5). Raises UsageError while nothing is locked: then nothing
        is revealed and nothing is stored.
        """
        if self.locked is None or not self._still_locked():
            raise self._unlocked()
        happened = self.asked.choices[self._number(answer) - 1]
        _text(because, "because=")
        kept = self._written(self.study.reveal(self.asked.key, happened, because))
        sentence = ""
        if kept.answer.happened is not None and kept.answer.happened != happened:
            sentence = "Revealed before, with another outcome; the first one counts."
        self._show(self._sentence)
        return RevealView(self.asked, kept.answer, sentence)

    def reconcile(self, belief: str, sentence: str) -> RevealView:
        """Keep which belief (W1 to W12) led to the prediction, in one sentence of one's own. It is not graded.

        Durability: stored on return. Raises UsageError before the reveal, and for what is no belief.
        """
        answer = self.locked
        if answer is None or not self._still_locked():
            raise self._unlocked()
        if answer.happened is None:
            raise UsageError(f"reconcile: {visible(self.asked.name)} is not revealed yet; reveal it first")
        if not known(belief):
            raise UsageError(f"reconcile: {visible(repr(belief)[:80])} is none of {', '.join(BELIEFS)}")
        if not _text(sentence, "the sentence").strip():
            raise UsageError("reconcile: say in one sentence what you believed, and what holds instead")
        kept = self._written(self.study.note(self.asked.key, belief, sentence))
        self._show(self._sentence)
        return RevealView(self.asked, kept.answer, "")

    # -- inside ------------------------------------------------------------------------------------------------------

    def _tried(self, choice: int | str, confidence: float) -> Answer:
        sure: object = confidence  # a cell is not type checked
        if isinstance(sure, bool) or not isinstance(sure, int | float) or not LEAST <= sure <= 1:
            raise UsageError(f"predict: confidence is a number from 0.5 to 1, such as 0.8, not {sure!r}"[:200])
        return self.asked.answered(self._number(choice), sure)

    def _number(self, choice: int | str) -> int:
        count = len(self.asked.choices)
        if isinstance(choice, str) and (number := self.asked.number(choice)):
            return number
        if isinstance(choice, int) and not isinstance(choice, bool) and 1 <= choice <= count:
            return choice
        raise UsageError(
            f"predict: {visible(repr(choice)[:80])} is no choice of {visible(self.asked.name)}; "
            f"name a number from 1 to {count}, or its text"
        )

    def _written(self, work: Coroutine[None, None, Kept]) -> Kept:
        try:
            kept = self.study.host.call(work)
        except NotLocked as error:
            raise self._unlocked() from error
        except PidurableError as error:
            raise usage_of(error) from error
        except HostEnded as ended:
            raise UsageError(f"{ended}, and the cell of this prediction again") from ended
        self._answer = kept.answer
        return kept

    def _still_locked(self) -> bool:
        """Whether the store holds the answer now. It may have been removed since (`%pi study --reset`)."""
        if self._look() is None:
            self._answer = None
            self._show(said(self.asked, None))
        return self._answer is not None

    def _unlocked(self) -> UsageError:
        return UsageError(
            f"predict first: {visible(self.asked.name)} is not locked yet, so nothing is revealed. Choose above and "
            "press Lock, then run this cell again"
        )

    def _look(self) -> Answer | None:
        try:
            return self.study.find(self.asked.key)
        except PidurableError as error:
            raise usage_of(error) from error

    def _settle(self, pending: Future[Kept]) -> None:
        """A click is being stored: its answer is part of what a cell behind it asks for."""
        with contextlib.suppress(PidurableError, CancelledError):  # the page says why
            self._answer = pending.result().answer
        self._pending = None

    def _take(self, kept: Kept, tried: Answer) -> None:
        self._answer = kept.answer
        self._show(said(self.asked, kept.answer, tried, new=kept.new))

    def _show(self, sentence: str) -> None:
        self._sentence = sentence
        if self._widget is not None:
            self._widget.state = page_of(self.asked, self._answer, sentence)

    def _clicked(self, choice: int, confidence: float, done: Done) -> None:
        """From the widget: submit, and tell when it is stored. Raises UsageError for what is no answer."""
        tried = self._tried(choice, confidence)
        try:
            pending = self.study.host.submit(self.study.lock(tried))
        except HostEnded as ended:
            raise UsageError(f"{ended}, and the cell of this prediction again") from ended
        self._pending = pending

        def stored(future: Future[Kept]) -> None:
            if future.cancelled():
                done("It was interrupted before it was stored: lock it again.")
            elif (error := future.exception()) is not None:
                done(visible(" ".join(str(error).split())))
            else:
                self._take(future.result(), tried)
                done(None)

        pending.add_done_callback(stored)

    # -- showing -----------------------------------------------------------------------------------------------------

    @property
    def view(self) -> PredictionView:
        """The static form, as it stands."""
        return PredictionView(self.asked, self._answer, self._sentence)

    def widget(self) -> PredictWidget:
        """The live form. One for all the places that show it."""
        if self._widget is None:
            from pidurable_nb.notebook.study.widget import PredictWidget  # widgets load when one is shown

            self._widget = PredictWidget(page_of(self.asked, self._answer, self._sentence), self._clicked)
        return self._widget

    def __repr__(self) -> str:
        return self.view.plain()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.view._repr_mimebundle_()

    def _ipython_display_(self) -> None:
        need_page()
        publish_both(self.widget().shown(), self.view._repr_mimebundle_(), live="pi-predict")


# --- What was asked -------------------------------------------------------------------------------------------------


def _asked(
    shell: InteractiveShell,
    id: str,
    question: str,
    choices: Sequence[str],
    seed: int | str | None,
    belief: str | Sequence[str],
) -> Asked:
    parts = _text(id, "the id").split("/")
    notebook, name = parts if len(parts) == 2 else (_notebook(shell), parts[0])
    if len(parts) > 2 or not _PART.fullmatch(name) or not _PART.fullmatch(notebook):
        raise UsageError(f"predict: {visible(repr(id)[:80])} is no id; write 'N1/screen', or 'screen'")
    if not _text(question, "the question").strip():
        raise UsageError(f"predict: the question of {id} is empty")
    found = () if isinstance(choices, str) else tuple(_text(choice, "each choice") for choice in choices)
    if not 2 <= len(found) <= MOST_CHOICES or len(set(found)) < len(found) or not all(text.strip() for text in found):
        raise UsageError(f"predict: {id} needs 2 to {MOST_CHOICES} choices, a list of texts that differ")
    if seed is not None and (isinstance(seed, bool) or not _PART.fullmatch(str(seed))):
        raise UsageError(f"predict: the seed of {id} is a number from 0 or a word, not {visible(repr(seed)[:80])}")
    beliefs = (belief,) if isinstance(belief, str) else tuple(belief)
    for one in beliefs:
        if not known(one):
            raise UsageError(f"predict: {visible(repr(one)[:80])} is no belief; they are {', '.join(BELIEFS)}")
    key = f"predict/{notebook}/{name}" + (f"/{seed}" if seed is not None else "")
    return Asked(
        key=key, notebook=notebook, id=name, seed=str(seed) if seed is not None else None, question=question,
        choices=found, beliefs=tuple(dict.fromkeys(beliefs)),
    )  # fmt: skip


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"predict: {what} is a text, not {type(value).__name__}")
    return value


def _notebook(shell: InteractiveShell) -> str:
    """What the notebook's file is called, as the server or the editor said it; its folder may change."""
    told = os.environ.get("JPY_SESSION_NAME") or shell.user_ns.get("__vsc_ipynb_file__")
    stem = PurePath(told).stem if isinstance(told, str) else ""
    return _NO_PART.sub("-", stem).strip(".+-")[:80] or "notebook"
