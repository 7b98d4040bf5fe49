"""Owns what must hold in a store in memory: behind every step, and in the end. Never runs a life.

The checks are those of sweeps, as far as they need no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pidurable_nb.engine.decide import Verdict
from pidurable_nb.engine.snapshot import Snapshot
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.explore.states import ExploredStorage
from pidurable_nb.lab.judging.invariants import Expected, Problem, beyond_policy, never_happened, stuck
from pidurable_nb.lab.looking.explain import ASSUMED, Explanation
from pidurable_nb.lab.outside.bank import statement
from pidurable_nb.lab.outside.world import applied, asked
from pidurable_nb.lab.scenario import Facts, Scenario

__all__ = ["awaited_by", "behind_a_step", "in_the_end"]

NO_FILE: Final = Path("a store in memory")
"""What facts have for their store: there is no such file."""


def facts_in(storage: ExploredStorage, ledger: Path) -> Facts:
    """What is true now."""
    return Facts(
        store=NO_FILE,
        ledger=ledger,
        tasks=storage.tasks(),
        entries=storage.entries(),
        submissions=storage.submissions(),
        asked=asked(ledger),
        applied=applied(ledger),
        books=statement(ledger),
    )


def behind_a_step(scenario: Scenario, storage: ExploredStorage, ledger: Path) -> Iterator[Problem]:
    """What no later step can mend: a final row that changed, and an effect that happened too often."""
    yield from (Problem("lost_acknowledged", text) for text in storage.changed)
    yield from beyond_policy(scenario, replace(_NOTHING, ledger=ledger, asked=asked(ledger), applied=applied(ledger)))


def in_the_end(
    scenario: Scenario,
    storage: ExploredStorage,
    ledger: Path,
    left: Sequence[Verdict],
    awaited: Iterable[Expected],
    error: BaseException | None,
) -> tuple[Problem, ...]:
    """What must hold when a life has ended by itself. `left` are the verdicts on what lived then."""
    if error is not None:
        return (Problem("stuck", f"a life ended with {type(error).__name__}: {error}"),)
    facts = facts_in(storage, ledger)
    found = [*behind_a_step(scenario, storage, ledger), *never_happened(scenario, facts, awaited)]
    found += [Problem("broken", text) for text in scenario.invariants(facts)]
    found += stuck(_explained(left))
    return tuple(dict.fromkeys(found))


def awaited_by(storage: ExploredStorage, performed: Iterable[tuple[TaskId, str]]) -> tuple[Expected, ...]:
    """The effects of a story in which nothing crashed, each with whose it was."""
    tasks = storage.tasks()
    kinds = {task.id: task.kind for task in tasks}
    found: dict[Expected, None] = {}
    for id, effect in performed:
        ordinal = sum(1 for task in tasks if task.kind == kinds[id] and task.id <= id)
        found[Expected(kinds[id], ordinal, effect)] = None
    return tuple(found)


def _explained(left: Sequence[Verdict]) -> Explanation:
    return Explanation(
        source=NO_FILE, now_ms=0, assumed=ASSUMED, snapshot=Snapshot(tasks={}, owners={}), tasks=tuple(left),
        submissions=(),
    )  # fmt: skip


_NOTHING: Final = Facts(
    store=NO_FILE, ledger=NO_FILE, tasks=(), entries=(), submissions=(), asked={}, applied={}, books=statement(NO_FILE)
)
