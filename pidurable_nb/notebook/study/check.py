"""Owns `check`: a learner's function against hidden runs, and what is shown of it. Reads facts, never prose.

What runs, and what is true of it, an exercise says (`exercises`). The seeds are drawn anew, so that no constant passes.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from IPython.core.error import UsageError

from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import Json
from pidurable_nb.notebook.kernel.desk import usage_of
from pidurable_nb.notebook.views.markup import View, code, cut, esc, items, quiet, short, table, toned
from pidurable_nb.store.visible import visible

F_contra = TypeVar("F_contra", contravariant=True)
F = TypeVar("F")
MOST_SEED: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One hidden run. `asked` says what the function was given, `problems` what of its answer does not hold.

    `facts` come from store and ledger: `effects`, `entries`, `attempts`, `settled`, and what the exercise adds.
    """

    seed: int
    asked: str
    expected: str
    answered: str
    facts: Mapping[str, Json]
    problems: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the answer fits the facts."""
        return not self.problems


class Exercise(Protocol[F_contra]):
    """Something that a function of a learner is to get right in runs that the learner has not seen."""

    @property
    def name(self) -> str:
        """What it is called, as `N1`."""
        ...

    @property
    def wants(self) -> str:
        """What the function is given and gives, in one line."""
        ...

    @property
    def runs(self) -> int:
        """How many hidden runs there are unless told otherwise."""
        ...

    def trial(self, function: F_contra, seed: int, folder: Path) -> Trial:
        """Run it with this seed, in a folder of its own, ask the function, and compare."""
        ...


def check(function: F, exercise: Exercise[F], *, seeds: Sequence[int] | None = None) -> Checked:
    """Whether a function of a learner holds in runs that nobody has seen: `check(died, WHERE_IT_DIED)`.

    `seeds` repeats runs that a check has shown; by default they are drawn anew each time. What the function raises is
    told as a fact of its trial. Raises UsageError for what is no function or no seed.
    """
    if not callable(function):
        raise UsageError(f"check: {type(function).__name__} is no function; {exercise.name} wants {exercise.wants}")
    chosen = tuple(secrets.randbelow(MOST_SEED) for _ in range(exercise.runs)) if seeds is None else tuple(seeds)
    if not chosen or not all(map(_whole, chosen)):
        raise UsageError("check: seeds= is a list of whole numbers, such as those that a check has shown")
    trials = []
    with tempfile.TemporaryDirectory(prefix="pidurable-check-", ignore_cleanup_errors=True) as root:
        for n, seed in enumerate(chosen):
            folder = Path(root) / str(n)
            folder.mkdir()
            try:
                trials.append(exercise.trial(function, seed, folder))
            except PidurableError as error:
                raise usage_of(error) from error
    return Checked(exercise.name, exercise.wants, tuple(trials))


def _whole(seed: object) -> bool:
    return isinstance(seed, int) and not isinstance(seed, bool)


def asking(ask: Callable[[], object]) -> tuple[object, tuple[str, ...]]:
    """What a learner's function gives, and the sentence for what it raised."""
    try:
        return ask(), ()
    except Exception as error:
        said = cut(" ".join(f"{type(error).__name__}: {error}".split()), 300)
        return None, (f"your function raised {said}",)


class Checked(View):
    """What a check found: true where the function holds in every hidden run."""

    def __init__(self, name: str, wants: str, trials: tuple[Trial, ...]) -> None:
        self.name = name
        self.wants = wants
        self.trials = trials

    def __bool__(self) -> bool:
        return all(trial.holds for trial in self.trials)

    @property
    def facts(self) -> Sequence[Mapping[str, Json]]:
        """The facts of each run, with its seed."""
        return [{"seed": trial.seed, **trial.facts, "problems": list(trial.problems)} for trial in self.trials]

    @property
    def label(self) -> str:
        return f"Check of {self.name}"

    @property
    def headline(self) -> str:
        """How many of the runs it holds in."""
        return f"{self.name}: holds in {sum(trial.holds for trial in self.trials)} of {len(self.trials)} hidden runs."

    @property
    def again(self) -> str:
        """What repeats these runs."""
        return f"seeds={[trial.seed for trial in self.trials]} repeats them; without, others are drawn."

    def _rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        for trial in self.trials:
            word = "agrees" if trial.holds else "differs"
            yield str(trial.seed), trial.asked, trial.expected, trial.answered, word

    def html(self) -> str:
        rows = [
            (code(seed), esc(asked), code(cut(expected, 200)), code(cut(answered, 200)),
             toned("com" if word == "agrees" else "int", word))
            for seed, asked, expected, answered, word in self._rows()
        ]  # fmt: skip
        wrong = [f"{code(trial.seed)} {esc(cut(text, 400))}" for trial in self.trials for text in trial.problems]
        facts = items(f"{code(trial.seed)} {code(short(dict(trial.facts), 400))}" for trial in self.trials)
        return (
            f"<h2>{esc(self.headline)}</h2><p>{quiet(esc(f'Your function is given {self.wants}.'))}</p>"
            + table(("seed", "run", "happened", "your function", "compared"), rows)
            + (items(wrong) if wrong else "")
            + f"<h3>facts</h3>{facts}<p>{quiet(esc(self.again))}</p>"
        )

    def text(self) -> str:
        lines = [self.headline, f"Your function is given {self.wants}.", ""]
        for trial, (seed, asked, expected, answered, word) in zip(self.trials, self._rows(), strict=True):
            lines.append(f"{seed}: {visible(asked)}: {word}")
            lines += [f"  happened:      {cut(expected, 200)}", f"  your function: {cut(answered, 200)}"]
            lines += [f"  {cut(text, 400)}" for text in trial.problems]
            lines.append(f"  facts: {short(dict(trial.facts), 400)}")
        return "\n".join([*lines, "", self.again])
