"""Owns the demonstration: every built-in scenario killed for real, recovered, and compared with what was predicted.

Each life runs in a child of the fork server. Between two lives nobody has the store: the prediction is made from it
then, before anything is opened. Never kills a process that it did not start.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pidurable_nb.engine.decide import Verdict
from pidurable_nb.errors import NotAStore
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.lab.dying.crash import Journal, read_journal
from pidurable_nb.lab.dying.forkserver import Ended, ForkServer
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import CHILD, LEDGER, LIFE_S, Plan, asked_of_child
from pidurable_nb.lab.looking.explain import explain
from pidurable_nb.lab.outside.bank import BankServer
from pidurable_nb.lab.scenario import Facts, Scenario, builtins, facts_of, standing, violations
from pidurable_nb.lab.walking.verdict_check import acted, disagreements
from pidurable_nb.store.stranger import StoreFile

__all__ = ["Died", "Shown", "demonstrate", "predicted", "show"]


_STEPS: Final = frozenset({"open", "reserve", "memo", "commit", "effect"})
"""What counts as a step of a recovery, when it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What one scenario showed.

    `signals` are those that its lives ended with, as `waitpid` reports them. `verdicts` were predicted for the last
    life, and `steps` are what that life did. `broken` holds a sentence for everything that went wrong.
    """

    name: str
    title: str
    signals: tuple[int, ...]
    point: str
    effects: Mapping[str, int]
    applied: Mapping[str, int]
    outcome: str
    steps: int
    verdicts: tuple[str, ...]
    predicted_equals_done: bool
    broken: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether it died by SIGKILL, came out right, and did what was predicted."""
        return not self.broken and self.predicted_equals_done and bool(self.signals) and set(self.signals) == {9}

    def to_json(self) -> JsonObject:
        """One element of what `pidurable-nb demo --json` prints."""
        shown: dict[str, Json] = {
            "name": self.name,
            "killed_by": self.signals[0] if self.signals else None,
            "point": self.point,
            "lives": len(self.signals) + 1,
            "effects": dict(self.effects),
        }
        if self.applied:
            shown["applied"] = dict(self.applied)
        shown |= {
            "outcome": self.outcome,
            "steps": self.steps,
            "verdicts": list(self.verdicts),
            "predicted_equals_done": self.predicted_equals_done,
        }
        if self.broken:
            shown["broken"] = list(self.broken)
        return shown


def demonstrate(
    scenarios: Sequence[Scenario] | None = None, *, progress: Callable[[str], None] = lambda _line: None
) -> tuple[Shown, ...]:
    """Show the scenarios, all built-in ones by default, in a temporary folder. About a second each."""
    chosen = builtins() if scenarios is None else tuple(scenarios)
    modules = ["pidurable_nb.lab.dying.run", "pidurable_nb.store.sqlite", *(scenario.module for scenario in chosen)]
    shown: list[Shown] = []
    with tempfile.TemporaryDirectory(prefix="pidurable-demo-") as folder, BankServer(), ForkServer(modules) as server:
        for scenario in chosen:
            progress(f"{scenario.name}: {scenario.title}")
            shown.append(show(scenario, Path(folder) / scenario.name, server))
    return tuple(shown)


def show(scenario: Scenario, folder: Path, server: ForkServer) -> Shown:
    """Kill the scenario at its kill point, let it recover, and compare; in `folder`, which is made."""
    folder.mkdir(parents=True)
    store, ledger = folder / "store.sqlite", folder / LEDGER
    at = None if scenario.kill_point is None else Point.parse(scenario.kill_point)
    plan = Plan(at=at, kind="kill", virtual=scenario.virtual, journal=folder / "journal-1.jsonl")
    verdicts: tuple[Verdict, ...] = ()
    died: list[Died] = []
    while True:
        assert plan.journal is not None
        ended = server.run(CHILD, asked_of_child(scenario, store, ledger, plan), timeout_s=LIFE_S)
        journal = read_journal(plan.journal)
        agreed = _as_foretold(verdicts, journal, whole=ended.signal is None)
        if ended.signal is None or ended.timed_out or len(died) == scenario.lives:
            break
        died.append(Died(ended.signal, journal.points[-1] if journal.points else None, agreed))
        ended_ms = journal.ended_ms if journal.ended_ms is not None else plan.start_ms
        plan = replace(plan.then(ended_ms), journal=folder / f"journal-{plan.number + 1}.jsonl")
        verdicts = predicted(scenario, store, now_ms=plan.start_ms if plan.virtual else None)
    facts = facts_of(store, ledger)
    return Shown(
        name=scenario.name,
        title=scenario.title,
        signals=tuple(each.signal for each in died),
        point=str(died[0].at) if died else "",
        effects=facts.asked,
        applied=facts.applied,
        outcome=_outcome(facts),
        steps=sum(point.edge == "before" and point.what in _STEPS for point in journal.points),
        verdicts=tuple(verdict.name for verdict in verdicts),
        predicted_equals_done=bool(died) and agreed and all(each.agreed for each in died),
        broken=(*_complaints(ended), *violations(scenario, facts)),
    )


@dataclass(frozen=True, slots=True)
class Died:
    """How a life ended that was killed, and whether it had done what was predicted, as far as it came."""

    signal: int
    at: Point | None
    agreed: bool


def predicted(scenario: Scenario, store: Path, *, now_ms: int | None) -> tuple[Verdict, ...]:
    """The verdict for each live task of a store that nobody has open, with the code of the scenario."""
    try:
        with StoreFile.open(store) as file:
            code, policy = scenario.program().code_for(file), scenario.settings.engine.policy
            return explain(file, code=code, policy=policy, now_ms=now_ms).tasks
    except NotAStore:  # it died before the store was made
        return ()


def _as_foretold(verdicts: Sequence[Verdict], journal: Journal, *, whole: bool) -> bool:
    """Whether a life did what was predicted. One that was cut may not have come to all of it."""
    return not disagreements(verdicts, acted(journal.acts), may_rest=lambda verdict: not whole)


def _complaints(ended: Ended) -> Iterator[str]:
    if ended.timed_out:
        yield f"its last life took longer than {LIFE_S:.0f} seconds and was ended"
    elif ended.signal is not None:
        yield f"its last life was killed too, by signal {ended.signal}"
    elif ended.exit_code != 0:
        words = ended.error.strip().splitlines()
        yield f"its last life ended with exit code {ended.exit_code}: {words[-1] if words else 'it said nothing'}"


def _outcome(facts: Facts) -> str:
    """One word when all root tasks ended alike, else one for each."""
    words = {record.kind: standing(record) for record in facts.roots()}
    alike = set(words.values())
    return alike.pop() if len(alike) == 1 else ", ".join(f"{kind} {word}" for kind, word in words.items())
