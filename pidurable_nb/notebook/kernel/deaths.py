"""Owns making a run die and what is then known of it: the scenario, the point, the store and the ledger as they were.

A run dies in a child process, by SIGKILL, or in this one, by freezing. Never recovers one, and never renders.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pidurable_nb.agent.harness import Harness
from pidurable_nb.agent.opening import Durability
from pidurable_nb.engine.graph import PhaseClass
from pidurable_nb.engine.phase import Phase
from pidurable_nb.lab.dying.crash import CrashKind, Passed, read_journal
from pidurable_nb.lab.dying.crash_points import passed_by
from pidurable_nb.lab.dying.lane import in_thread
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import CHILD, LIFE_S, DidNotDie, Plan, asked_of_child, fork_server, run_here
from pidurable_nb.lab.outside.world import World, asked, copy_ledger
from pidurable_nb.lab.scenario import Scenario, around

CELL: Final = "cell"
"""The name of a scenario that was made of an expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """A run that died here. Its store and ledger stay as they were then; a recovery works on copies of both.

    `signal` is the one that `waitpid` reported, None where it was frozen. `passed` are the points that it reached.
    """

    scenario: Scenario
    kind: CrashKind
    point: str
    signal: int | None
    output: str
    passed: tuple[str, ...]
    store: Path
    ledger: Path
    walks: Path

    def tasks(self) -> Sequence[type[Phase[object]]]:
        """The code that it ran; code of cells as it is now."""
        return self.scenario.tasks()

    def asked(self) -> dict[str, int]:
        """How often the outside was asked for what, when it died."""
        return asked(self.ledger)

    def world(self) -> World:
        """An outside for one recovery: it goes on from a copy of the ledger."""
        self.walks.mkdir(exist_ok=True)
        ledger = self.walks / f"{sum(1 for _ in self.walks.iterdir())}.jsonl"
        return World(copy_ledger(self.ledger, ledger), life=2)

    def outside(self) -> contextlib.AbstractContextManager[object]:
        """What its effects need around them."""
        return around(self.scenario)


def of_cell(phase: Phase[object], text: str, tasks: Callable[[], Sequence[PhaseClass]]) -> Scenario:
    """A scenario that starts one task with the code of this notebook. It can be frozen; no child could import it."""

    async def begin(harness: Harness) -> None:
        root = await harness.root()
        await root.start(phase)

    return Scenario(name=CELL, title=text, module="__main__", tasks=tasks, begin=begin, kill_point=None)


def points_of(scenario: Scenario, folder: Path, *, files: bool = False) -> Sequence[Passed]:
    """Every point of an undisturbed first life, in order; with `files` those before file operations too."""
    return passed_by(scenario, Plan(record_files=files), folder)


def freeze(scenario: Scenario, point: Point, folder: Path, durability: Durability) -> Died:
    """Run a first life here and freeze it at `point`. Raises DidNotDie."""
    store, ledger = folder / "alive" / f"{scenario.name}.sqlite", folder / "ledger.jsonl"
    store.parent.mkdir()
    plan = Plan(at=point, kind="freeze", durability=durability)
    with around(scenario):
        lived = in_thread(lambda: run_here(scenario, store, ledger, plan, image=folder))
    passed = tuple(str(one) for one in lived.points)
    if lived.image is None:
        raise DidNotDie(f"{point} was not reached: {_why_not(passed, point)}")
    return Died(
        scenario=scenario,
        kind="freeze",
        point=str(lived.crashed or point),
        signal=None,
        output="",
        passed=passed,
        store=lived.image,
        ledger=ledger,
        walks=folder / "walks",
    )


def kill(scenario: Scenario, point: Point | None, folder: Path, durability: Durability) -> Died:
    """Run a first life in a child process and kill it at `point`, or where it kills itself. Raises DidNotDie."""
    store, ledger, journal = folder / f"{scenario.name}.sqlite", folder / "ledger.jsonl", folder / "journal.jsonl"
    plan = Plan(at=point, kind="kill", durability=durability, virtual=scenario.virtual, journal=journal)
    with around(scenario), fork_server() as server:
        ended = server.run(CHILD, asked_of_child(scenario, store, ledger, plan), timeout_s=LIFE_S)
    passed = tuple(map(str, read_journal(journal).points))
    if ended.signal is None or ended.timed_out:
        last = ended.error.strip().rpartition("\n")[2]
        raise DidNotDie(f"the run ended by itself: {last or _why_not(passed, point)}")
    return Died(
        scenario=scenario,
        kind="kill",
        point=passed[-1] if passed else str(point),
        signal=ended.signal,
        output=ended.output,
        passed=passed,
        store=store,
        ledger=ledger,
        walks=folder / "walks",
    )


def _why_not(passed: Sequence[str], point: Point | None) -> str:
    if point is None:
        return "nothing in it crashes; name a point"
    place = str(point).partition(":")[0]
    near = [one for one in passed if one.startswith(place)]
    return (
        f"the run passed {len(passed)} points, {'none' if not near else near[-1]} last at {place}; %pi points lists all"
    )
