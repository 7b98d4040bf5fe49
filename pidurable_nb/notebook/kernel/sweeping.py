"""Owns a sweep that a notebook runs: told of while it goes on, stopped by an interrupt, its stories laid out again.

It runs off the kernel's thread, which has a loop, and off the harness's, which has work. Never counts, never renders.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pidurable_nb.agent.opening import Durability
from pidurable_nb.errors import PidurableError
from pidurable_nb.lab.dying.lane import in_thread
from pidurable_nb.lab.scenario import Scenario, around
from pidurable_nb.lab.sweeping.points import SweepKind, named
from pidurable_nb.lab.sweeping.reopen import left_in, scenario_of, story_image
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.stop import until_stopped
from pidurable_nb.lab.sweeping.sweep import Progress, sweep
from pidurable_nb.lab.sweeping.tally import OutcomeClass, Witness
from pidurable_nb.notebook.kernel.deaths import Died

EVERY_S = 0.1
"""What is shown of a sweep that goes on changes at most this often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How a cell wants a scenario swept. `stop` ends it at the first violation."""

    kinds: tuple[SweepKind, ...]
    durability: Durability
    second: bool = False
    seed: int = 1
    processes: int = 1
    stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Something that came of a crash and is worth looking at, with the sentence where it is not allowed."""

    kind: OutcomeClass
    witness: Witness
    because: str

    @property
    def at(self) -> str:
        """Where it crashed."""
        return named(self.witness.crashes)


class NoSuchStory(PidurableError):
    """The sweep keeps no such story; the message says which it keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A sweep that was run or loaded here, with the scenario where this notebook has it."""

    result: SweepResult
    scenario: Scenario | None

    @property
    def stories(self) -> Sequence[Story]:
        """A story for each class that was met and is not as promised, then one for each violation that has another."""
        found: dict[Witness, Story] = {}
        for kind, witness in self.result.witnesses.items():
            found[witness] = Story(kind=kind, witness=witness, because="")
        for each in self.result.violations:
            known = found.get(each.witness)
            if known is None or not known.because:
                met: OutcomeClass = "broken" if each.kind == "mispredicted" else each.kind
                found[each.witness] = Story(
                    kind=met if known is None else known.kind, witness=each.witness, because=each.text
                )
        return tuple(found.values())

    def story(self, which: str | int) -> Story:
        """The story of that number, from 1, or the first of that class. Raises: NoSuchStory."""
        stories = self.stories
        if isinstance(which, int) or which.isdecimal():
            at = int(which)
            if 1 <= at <= len(stories):
                return stories[at - 1]
        else:
            for each in stories:
                if each.kind == which:
                    return each
        there = ", ".join(f"{n} {each.kind}" for n, each in enumerate(stories, 1)) or "none: all was as promised"
        raise NoSuchStory(f"there is no story {which!r}; there is {there}")


def run(scenario: Scenario, wanted: Wanted, tell: Callable[[Progress, bool], None]) -> SweepResult:
    """Sweep, and tell how far it has come, and whether it is being stopped, at most ten times a second, in this thread.

    At an interrupt the work in hand is finished and what was found so far is the result; a second one is raised.
    Raises: what `sweep` raises.
    """
    newest: list[Progress] = []

    def work(stop: threading.Event) -> SweepResult:
        def heard(progress: Progress) -> None:
            newest[:] = [progress]
            if wanted.stop and progress.problems:
                stop.set()

        return sweep(
            scenario,
            kinds=wanted.kinds,
            durability=wanted.durability,
            second=wanted.second,
            seed=wanted.seed,
            processes=wanted.processes,
            stop=stop,
            on_progress=heard,
        )

    told: list[tuple[Progress, bool]] = []

    def watch(stopping: bool) -> None:
        if newest and [(newest[0], stopping)] != told:
            told[:] = [(newest[0], stopping)]
            tell(*told[0])

    found = until_stopped(work, watch=watch, every_s=EVERY_S)
    watch(False)
    return found


def lay_out(swept: Swept, story: Story, scenarios: Mapping[str, Scenario], folder: Path) -> tuple[Died, int]:
    """A run that died as the story tells, with store and ledger in `folder`, and the time when the next life begins.

    Raises: UnknownScenario, NothingLeft, NeverPassed, NoSuchImage.
    """
    result = swept.result
    scenario = scenario_of(result, swept.scenario or _here(result.scenario, scenarios))
    with around(scenario):
        image = in_thread(
            lambda: story_image(
                scenario, story.witness, seed=result.seed, durability=result.durability, folder=folder / "story"
            )
        )
    store, ledger = left_in(image, story.witness)
    died = Died(
        scenario=scenario,
        kind="freeze",
        point=story.at,
        signal=None,
        output="",
        passed=(),
        store=store,
        ledger=ledger,
        walks=folder / "walks",
    )
    return died, image.plan.start_ms


def _here(name: str, scenarios: Mapping[str, Scenario]) -> Scenario | None:
    module, colon, rest = name.partition(":")
    found = scenarios.get(rest) if colon else None
    return found if found is not None and found.module == module else None
