"""Owns exploration: every order of a scenario's steps and any number of crashes, until no new durable state comes.

A durable state is what a crash can leave (`states`). From each of them a life is opened and led through every
order of its commits and effects (`life`), and whatever a crash would leave behind a step is a durable state
again. A way ends where it comes to a place that was met before: a state, together with where everything stands. Seeded
orders of everything the loop does, not only of commits and effects, are `seeds`.

That a way may end there is right only when what comes next depends on the place alone. Every step that is taken twice
has to lead to the same place, or `Unsound` is raised. Each way takes one step more before it ends, and every eighth
goes on to the end of its life, so that steps are taken twice that come from elsewhere.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.dying.loop import Runaway
from pidurable_nb.lab.explore.judge import awaited_by, behind_a_step, in_the_end
from pidurable_nb.lab.explore.life import Life, Option
from pidurable_nb.lab.explore.result import Explored, Found, Seeded, Told, unnumbered
from pidurable_nb.lab.explore.seeded import seeds, surroundings, tell
from pidurable_nb.lab.explore.states import CRASH, Choices, State, key_of
from pidurable_nb.lab.judging.invariants import Expected, Problem
from pidurable_nb.lab.scenario import Scenario, find
from pidurable_nb.lab.sweeping.result import name_of

__all__ = [
    "Explored", "Found", "NoSuchChoice", "Seeded", "Told", "TooManyTasks", "Unsound", "closure", "replay", "seeds",
]  # fmt: skip

MOST_TASKS: Final = 4
_TO_THE_END: Final = 8
_AROUND: Final = 60
"""How many characters before a difference are shown."""

Place: TypeAlias = tuple[bytes, int]
"""A durable state by its key, and where everything stands by the number of its label."""


class Unsound(PidurableError):
    """What a task does next depends on something that is neither stored nor in a local variable of its code.

    `task` and `phase` say whose step it was, None where it was no task's; `differs` what once was so and once was not.
    """

    def __init__(self, step: str, task: int | None, phase: str | None, differs: tuple[str, ...]) -> None:
        whose = f"task {task} in phase {phase}" if task is not None else "what is no task's code"
        super().__init__(
            f"a step of {whose} ({step}) led from one place to two: {'; '.join(differs)}. What comes next depends on "
            f"something that no row has, as a global variable. Keep it in a checkpoint, a memo or a document"
        )
        self.task = task
        self.phase = phase
        self.differs = differs


class TooManyTasks(PidurableError):
    """More tasks are at work at a time than can be explored in every order."""


class NoSuchChoice(PidurableError):
    """The run cannot be repeated: what went on then does not wait now. The code was changed, or is not the same."""


def closure(
    scenario: Scenario | str,
    *,
    most: int = 100_000,
    on_progress: Callable[[str], None] | None = None,
) -> Explored:
    """Every order and any number of crashes of a scenario with up to four tasks at work at a time.

    After `most` lives it is given up, and the result is not `closed`. Counts of restarts are taken back behind every
    crash, since crashes alone would park everything (T9). Facts that invariants are given have no store file.

    Raises: Unsound, TooManyTasks, UnknownScenario.
    """
    chosen = find(scenario) if isinstance(scenario, str) else scenario
    with surroundings(chosen) as ledger:
        return _Explorer(chosen, ledger, on_progress).explore(most)


def replay(
    scenario: Scenario | str, *, choices: Choices | None = None, seed: int | None = None, crashes: int = 1
) -> Told:
    """One run again, as an exploration named it: by its choices, or by its seed and how many crashes it may have.

    Raises: NoSuchChoice, UnknownScenario; ValueError when both are given, or none.
    """
    if (choices is None) == (seed is None):
        raise ValueError("a run is named by its choices or by its seed; give one of them")
    chosen = find(scenario) if isinstance(scenario, str) else scenario
    with surroundings(chosen) as ledger:
        if seed is not None:
            return tell(chosen, ledger, seed, crashes)
        assert choices is not None
        return _Again(chosen, ledger).run(choices)


@dataclass(slots=True)
class _Way:
    """A life under way, by its choices since it began."""

    life: Life
    begin: State
    choices: Choices = ()

    @property
    def path(self) -> Choices:
        """Its choices since the beginning of everything."""
        return (*self.begin.onward, *self.choices)


class _Explorer:
    """What is known of a scenario so far."""

    def __init__(self, scenario: Scenario, ledger: Path, on_progress: Callable[[str], None] | None) -> None:
        self._scenario = scenario
        self._ledger = ledger
        self._on_progress = on_progress
        self._states: dict[bytes, State] = {}
        self._open: deque[State] = deque()
        self._labels: dict[str, int] = {}
        self._met: dict[Place, int] = {}
        """How many ways have ended at each place."""
        self._edges: dict[tuple[Place, int], Place] = {}
        self._steps = 0
        """How many steps lead away from the places that were met: each is an edge in the end."""
        self._again = 0
        self._merged = 0
        self._runs = 0
        self._found: dict[Problem, Found] = {}
        self._awaited: tuple[Expected, ...] | None = None

    def explore(self, most: int) -> Explored:
        began = time.monotonic()
        self._open.append(State.beginning())
        ways: list[tuple[State, Choices]] = []
        while (ways or self._open) and self._runs < most:
            if not ways:
                ways.append((self._open.popleft(), ()))
            begin, choices = ways.pop()
            self._runs += 1
            ways += self._follow(begin, choices)
            if self._on_progress is not None and self._runs % 500 == 0:
                self._on_progress(f"{self._runs} lives, {len(self._states)} states, {len(self._open)} to go on from")
        return Explored(
            scenario=name_of(self._scenario),
            states=len(self._states),
            places=len(self._met),
            edges=len(self._edges),
            again=self._again,
            runs=self._runs,
            violations=tuple(self._found.values()),
            closed=not ways and not self._open and len(self._edges) == self._steps,
            seconds=time.monotonic() - began,
        )

    def _follow(self, begin: State, choices: Choices) -> list[tuple[State, Choices]]:
        """Lead a life by these choices and then on, until it is over or comes to a known place; the ways beside it."""
        beside: list[tuple[State, Choices]] = []
        with Life(self._scenario, begin, self._ledger) as life:
            way = _Way(life, begin)
            try:
                here, options = self._arrive(way)
                for choice in choices:
                    assert isinstance(choice, int)
                    here, options = self._step(way, here, options, choice)
                while options and here not in self._met:
                    self._met[here] = 0
                    self._steps += len(options)
                    beside += [(begin, (*way.choices, other)) for other in range(len(options) - 1, 0, -1)]
                    here, options = self._step(way, here, options, 0)
                if options:
                    self._test(way, here, options)
                else:
                    self._met.setdefault(here, 0)
            except Runaway as error:
                self._wrong(way, (Problem("stuck", str(error)),))
        return beside

    def _test(self, way: _Way, here: Place, options: tuple[Option, ...]) -> None:
        """Go on from a place where ways end, as far as such places follow: what came next there has to come again."""
        self._merged += 1
        steps = -1 if self._merged % _TO_THE_END == 0 else 1
        while options and steps and here in self._met:
            self._met[here] = turn = self._met[here] + 1
            here, options = self._step(way, here, options, turn % len(options))
            steps -= 1

    def _step(
        self, way: _Way, here: Place, options: tuple[Option, ...], choice: int
    ) -> tuple[Place, tuple[Option, ...]]:
        option = options[choice]
        told = way.life.take(option)
        way.choices = (*way.choices, choice)
        there, onward = self._arrive(way)
        known = self._edges.get((here, choice))
        if known is None:
            self._edges[here, choice] = there
        elif known != there:
            raise self._unsound(way, told, option, known, there)
        else:
            self._again += 1
        return there, onward

    def _arrive(self, way: _Way) -> tuple[Place, tuple[Option, ...]]:
        """Where a life stands now. Its state is one to crash in, if it is new."""
        life = way.life
        at_work = life.at_work()
        if len(at_work) > MOST_TASKS:
            raise TooManyTasks(
                f"{self._scenario.name} has {len(at_work)} tasks at work at a time ({', '.join(at_work)}); every order "
                f"is followed for up to {MOST_TASKS}. Take fewer, or draw orders by seeds"
            )
        grown = life.books.look()
        rows = life.rows()
        key = key_of(rows)
        if key not in self._states:
            state = State.left(key, life.storage, life.books, life.now_ms, life.number, way.path)
            self._states[key] = state
            self._open.append(state)
        if grown or life.storage.changed:
            self._wrong(way, tuple(behind_a_step(self._scenario, life.storage, self._ledger)))
        label, options = life.label()
        if life.over:
            self._judge(way)
        return (key, self._labels.setdefault(label, len(self._labels))), options

    def _judge(self, way: _Way) -> None:
        self._wrong(way, tuple(_wrong_in_the_end(self._scenario, way.life, self._expected(way))))

    def _expected(self, way: _Way) -> tuple[Expected, ...]:
        """The effects of the first life that ended and had none before it."""
        if self._awaited is None and way.life.ended and way.begin.life == 0:
            self._awaited = awaited_by(way.life.storage, way.life.keeper.performed)
        return self._awaited or ()

    def _wrong(self, way: _Way, problems: tuple[Problem, ...]) -> None:
        for problem in problems:
            self._found.setdefault(
                unnumbered(problem),
                Found(kind=problem.kind, text=problem.text, scenario=name_of(self._scenario), choices=way.path),
            )

    def _unsound(self, way: _Way, told: str, option: Option, known: Place, other: Place) -> Unsound:
        """Name what differs, and the task that it is about: the step may have been another's that started it."""
        if known[0] != other[0]:
            one, two = self._states[known[0]].rows, self._states[other[0]].rows
        else:
            texts = {number: text for text, number in self._labels.items()}
            one, two = _lines(texts[known[1]]), _lines(texts[other[1]])
        names = [name for name in {**one, **two} if one.get(name) != two.get(name)]
        named = (re.fullmatch(r"tasks?[ /](\d+)", name) for name in names)
        task = next((TaskId(int(found[1])) for found in named if found is not None), option.task)
        phase = way.life.phase_of(task) if task is not None else None
        differs = tuple(f"{name} once {_apart(one.get(name), two.get(name))}" for name in names)
        return Unsound(told, task, phase if phase is not None else option.phase, differs)


def _lines(label: str) -> dict[str, str]:
    """What stands where, by its name."""
    return {line.partition(": ")[0]: line.partition(": ")[2] for line in label.split("\n")}


def _apart(one: str | None, two: str | None) -> str:
    """Two texts where they are not the same, with a little around it."""
    if one is None or two is None:
        return f"{_short(one)} and once {_short(two)}"
    at = next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    begin = max(0, at - _AROUND)
    return f"{_short(one[begin:])} and once {_short(two[begin:])}"


def _short(text: str | None) -> str:
    if text is None:
        return "not there"
    return text if len(text) <= 3 * _AROUND else f"{text[: 3 * _AROUND]}…"


def _wrong_in_the_end(scenario: Scenario, life: Life, awaited: tuple[Expected, ...]) -> list[Problem]:
    """What is wrong with a life that is over."""
    if life.deadlock:
        waiting = "; ".join(sorted(life.pending()))
        return [Problem("stuck", f"deadlock: nothing can ever happen any more, and it has not ended: {waiting}")]
    if not life.ended:
        return []  # an effect took it
    return list(in_the_end(scenario, life.storage, life.books.path, life.left, awaited, life.error))


class _Again:
    """Leads lives by the choices of a run, and tells what happens."""

    def __init__(self, scenario: Scenario, ledger: Path) -> None:
        self._scenario = scenario
        self._ledger = ledger
        self._steps: list[str] = []
        self._problems: dict[Problem, None] = {}

    def run(self, choices: Choices) -> Told:
        awaited = self._whole()
        state, rest = State.beginning(), list(choices)
        while True:
            at = rest.index(CRASH) if CRASH in rest else len(rest)
            state = self._life(state, [choice for choice in rest[:at] if isinstance(choice, int)], awaited)
            if at == len(rest):
                break
            self._steps.append("crash")
            rest = rest[at + 1 :]
        return Told(scenario=name_of(self._scenario), steps=tuple(self._steps), problems=tuple(self._problems))

    def _whole(self) -> tuple[Expected, ...]:
        """The effects of the story in which nothing crashes."""
        with Life(self._scenario, State.beginning(), self._ledger) as life:
            while options := life.label()[1]:
                life.take(options[0])
            return awaited_by(life.storage, life.keeper.performed) if life.ended else ()

    def _life(self, state: State, choices: list[int], awaited: tuple[Expected, ...]) -> State:
        """Lead a life by its choices; the state in which it is then."""
        with Life(self._scenario, state, self._ledger) as life:
            try:
                for choice in choices:
                    options = life.label()[1]
                    if not 0 <= choice < len(options):
                        raise NoSuchChoice(
                            f"step {len(self._steps) + 1} is choice {choice}, and {len(options)} things wait there; "
                            f"was the code changed? Explore it again"
                        )
                    self._steps.append(life.take(options[choice]))
                    self._note(behind_a_step(self._scenario, life.storage, self._ledger))
                if life.over:
                    self._note(_wrong_in_the_end(self._scenario, life, awaited))
            except Runaway as error:
                self._note([Problem("stuck", str(error))])
            life.books.look()
            return State.left(b"", life.storage, life.books, life.now_ms, life.number, ())

    def _note(self, problems: Iterable[Problem]) -> None:
        self._problems.update(dict.fromkeys(problems))
