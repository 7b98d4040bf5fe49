"""Owns sweeps and single crashes as assertions: whoever calls them gets what was found, or a failure that tells it.

Works in every test runner, and without one. Never chooses a point, never knows pytest.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias, TypeVar

from pidurable_nb.agent.opening import DURABILITIES, Durability
from pidurable_nb.errors import PidurableError
from pidurable_nb.lab.dying.forkserver import ForkServerError
from pidurable_nb.lab.dying.point import BadPoint
from pidurable_nb.lab.scenario import Scenario, UnknownScenario, find
from pidurable_nb.lab.sweeping.hands import NotKilled
from pidurable_nb.lab.sweeping.points import SWEEP_KINDS, WHICH, SweepKind, Where, Which, where
from pidurable_nb.lab.sweeping.replay import NeverPassed, Replayed, replay
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.sweep import sweep
from pidurable_nb.testing import failure

__all__ = [
    "CrashSweep", "Kinds", "Plainly", "WrongSetting", "assert_sweep", "check_crash",
    "importable", "one_of", "some_of", "sweep_scenario", "the_scenario",
]  # fmt: skip

Kinds: TypeAlias = SweepKind | Sequence[SweepKind]
"""Ways to crash; one may be given by its name alone."""

T = TypeVar("T", bound=str)

_TAKES: Final = (
    "a kill, and more than one process, take a scenario in a module that a new process can import; freeze takes any"
)
_REFUSALS: Final = (BadPoint, ForkServerError, NeverPassed, NotKilled, UnknownScenario)
"""What the laboratory says to its caller. What code of a scenario raises keeps its traceback."""
_LOOP: Final = (
    "a life runs an event loop of its own, and one is running here already; sweep in a plain test function, or in "
    "await asyncio.to_thread(...)"
)


def sweep_scenario(
    scenario: Scenario | str,
    *,
    kinds: Kinds = ("freeze",),
    durability: Durability = "barrier",
    second: bool = False,
    points: Which = "commits",
    seed: int = 1,
    processes: int = 1,
) -> SweepResult:
    """Crash the scenario everywhere, recover from each crash, and return what was found when every promise held.

    The scenario is an object, or `module:name`, or the name of a built-in one. `kinds` are some of `freeze`, `kill`,
    `power`, `fault`; a kill, and more than one process, need a scenario that another process can import. Everything
    else is as in `pidurable_nb.lab.sweeping.sweep`.

    Laws: C1, C2, C6, T6, T7, T9, M1, M3, E5, E6, and whatever the scenario promises itself.
    Raises: AssertionError, which tells the first broken promise as a story; UnknownScenario; WrongSetting; NotKilled;
    ForkServerError.

    >>> found = sweep_scenario("sleeper")
    >>> found.classes == {"as_promised": found.points}
    True
    """
    __tracebackhide__ = True
    with Plainly():
        there = the_scenario(scenario)
        found = sweep(
            there,
            kinds=some_of("kinds", kinds, SWEEP_KINDS),
            durability=one_of("durability", durability, DURABILITIES),
            second=second,
            points=one_of("points", points, WHICH),
            seed=seed,
            processes=processes,
        )
    if found.done < found.pieces or (found.ok and not found.pieces):
        raise KeyboardInterrupt  # a sweep returns what it found so far; a test run is to end
    assert_sweep(found, there)
    return found


def assert_sweep(found: SweepResult, scenario: Scenario | str | None = None) -> None:
    """Return when the sweep came to its end and every promise held.

    The story of a failure is told from the scenario, or from the one of that name that the result names.
    Raises: AssertionError, which says what broke and where, tells the first story, and how to see it again.
    """
    __tracebackhide__ = True
    if found.ok and found.complete:
        return
    raise AssertionError(failure.of_sweep(found, scenario)) from None


def check_crash(
    scenario: Scenario | str,
    *crashes: Where | str,
    kind: SweepKind = "freeze",
    durability: Durability = "barrier",
    seed: int = 1,
) -> Replayed:
    """Crash the scenario there, once a life at most, recover, and return the story when every promise held.

    It is what a failure of a sweep prints, and stays as the test of that one crash:

    >>> told = check_crash("two-orders", "act-first#1/actFirst:effect.after")
    >>> told.asked["mail Ada"]
    2

    Raises: AssertionError, which tells the story; BadPoint; NeverPassed, naming a point that the scenario does come by;
    UnknownScenario; WrongSetting; NotKilled; ForkServerError.
    """
    __tracebackhide__ = True
    with Plainly():
        told = replay(
            the_scenario(scenario),
            [where(crash) if isinstance(crash, str) else crash for crash in crashes],
            how=one_of("kind", kind, SWEEP_KINDS),
            durability=one_of("durability", durability, DURABILITIES),
            seed=seed,
        )
    if not told.ok:
        raise AssertionError(failure.of_story(told)) from None
    return told


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashSweep:
    """`sweep_scenario` with the seed and the processes of a test run, as the fixture `crash_sweep` gives it."""

    seed: int
    processes: int
    root: Path

    def __call__(
        self,
        scenario: Scenario | str,
        *,
        kinds: Kinds = ("freeze",),
        durability: Durability = "barrier",
        second: bool = False,
        points: Which = "commits",
        seed: int | None = None,
        processes: int | None = None,
    ) -> SweepResult:
        """What the sweep found, when every promise held. A named scenario may stand in a module of the root folder.

        Raises: as `sweep_scenario`.
        """
        __tracebackhide__ = True
        with importable(self.root):
            return sweep_scenario(
                scenario,
                kinds=kinds,
                durability=durability,
                second=second,
                points=points,
                seed=self.seed if seed is None else seed,
                processes=self.processes if processes is None else processes,
            )


def _first_and_last(error: Exception) -> str:
    """What is said first, and what the traceback under it ends with."""
    first, *more = str(error).strip().splitlines()
    return f"{first}: {more[-1]}" if more else first


class WrongSetting(PidurableError, ValueError):
    """An argument is none of what can stand there; the message lists what can."""


class Plainly:
    """A context for work of the laboratory whose refusals carry no traceback of it: what matters is who called.

    Raises: RuntimeError on entering where an event loop runs already, since a life runs one of its own.
    """

    def __enter__(self) -> None:
        __tracebackhide__ = True
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise RuntimeError(_LOOP)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        if isinstance(error, ForkServerError) and "cannot be imported" in str(error):
            raise ForkServerError(f"{_first_and_last(error)}; {_TAKES}") from None
        if isinstance(error, _REFUSALS):
            raise error.with_traceback(None) from None


# What is given from outside.


def the_scenario(scenario: object) -> Scenario:
    """The scenario itself, or the one of that name. Raises: UnknownScenario, WrongSetting."""
    __tracebackhide__ = True
    if isinstance(scenario, Scenario):
        return scenario
    if isinstance(scenario, str):
        return find(scenario)
    raise WrongSetting(f"{scenario!r} is no scenario; give a Scenario, or the name of one as 'module:name'")


def one_of(what: str, value: object, known: Mapping[str, T]) -> T:
    """The word, if it is a known one. Raises: WrongSetting."""
    __tracebackhide__ = True
    for each in known.values():
        if each == value:
            return each
    raise WrongSetting(f"{what} cannot be {value!r}; write one of {', '.join(known)}")


def some_of(what: str, values: object, known: Mapping[str, T]) -> tuple[T, ...]:
    """The words, each once, if all are known ones; a single one may stand for itself. Raises: WrongSetting."""
    __tracebackhide__ = True
    words: list[object] = list(values) if isinstance(values, list | tuple | set | frozenset) else [values]
    if not words:
        raise WrongSetting(f"{what} is empty; write some of {', '.join(known)}")
    chosen: dict[T, None] = {}
    for word in words:  # no generator: its frame would be in the traceback
        chosen[one_of(what, word, known)] = None
    return tuple(chosen)


@contextmanager
def importable(root: Path) -> Generator[None]:
    """While the block runs modules in `root` can be imported, here and in processes that begin in it.

    It comes last: it hides nothing.
    """
    entry = str(root)
    if entry in sys.path:
        yield
        return
    sys.path.append(entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)
