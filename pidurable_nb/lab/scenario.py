"""Owns what a scenario is: code, inputs and invariants in one object, used by notebooks, sweeps, benchmarks and tests.

Never runs one (`lab.run` does) and never decides how it dies.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pidurable_nb.agent.extending.extension import Extension
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.agent.harness import Harness
from pidurable_nb.engine.decide import Verdict
from pidurable_nb.engine.phase import Phase, TaskRef
from pidurable_nb.errors import NotAStore, PidurableError
from pidurable_nb.ids import Json
from pidurable_nb.lab.looking.program import Program
from pidurable_nb.lab.outside.bank import BankServer, Statement, statement
from pidurable_nb.lab.outside.world import applied, asked
from pidurable_nb.models.model import Model
from pidurable_nb.records.message import items
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import Answered, EntryRecord, SubmissionRecord
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.stranger import StoreFile
from pidurable_nb.tools.tool import Tool

__all__ = [
    "BUILT_IN", "RESTS", "EffectPolicy", "Facts", "Scenario", "UnknownScenario", "around", "builtin", "builtins",
    "facts_of", "faulted", "find", "is_request", "outcomes_are", "standing", "unanswered", "until", "until_still",
    "violations",
]  # fmt: skip

EffectPolicy = Literal["at_most_once", "at_least_once", "keyed"]
"""What the author of an effect chose: a memo before it, a memo or checkpoint behind it, or a key."""

Roots: TypeAlias = tuple[TaskRef[object], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is true after the last life, read from the store and the ledger: never what anybody remembers."""

    store: Path
    ledger: Path
    tasks: tuple[TaskRecord, ...]
    entries: tuple[EntryRecord, ...]
    submissions: tuple[SubmissionRecord, ...]
    asked: Mapping[str, int]
    applied: Mapping[str, int]
    books: Statement

    def roots(self) -> tuple[TaskRecord, ...]:
        """The tasks that nobody owns, oldest first."""
        return tuple(record for record in self.tasks if record.owner is None)

    def told(self, tool: str) -> tuple[str, ...]:
        """What the model was told of each call of a tool, oldest first: `done`, or the code of what went wrong."""
        results = (entry for entry in self.entries if entry.kind == "pi.tool-result" and _of_tool(entry) == tool)
        return tuple(_code(entry) for entry in results)

    def of_kind(self, kind: str) -> tuple[TaskRecord, ...]:
        """The tasks of one name, oldest first."""
        return tuple(record for record in self.tasks if record.kind == kind)


def _of_tool(result: EntryRecord) -> Json:
    return result.model[0].get("toolName") if result.model else None


def _code(result: EntryRecord) -> str:
    said = result.data.get("diagnostics") if isinstance(result.data, Mapping) else None
    for diagnostic in items(said) if said is not None else ():
        match diagnostic:
            case {"severity": "error", "code": str(code)}:
                return code
            case _:
                pass
    return "done"


def _none(facts: Facts) -> Iterable[str]:
    return ()


async def until(harness: Harness, holds: Callable[[Sequence[Verdict]], bool]) -> None:
    """Return when `holds` is true of the verdicts on all live tasks: asked now, and again after every commit.

    Returns too when the harness is closed, by somebody else or because its storage failed.
    """
    moved = asyncio.Event()

    def heard(_changes: Changes) -> None:
        moved.set()

    dispose = harness.engine.session.subscribe(heard)
    harness.closed.add_done_callback(lambda _: moved.set())
    try:
        while not harness.closed.done() and not holds(await harness.verdicts()):
            await moved.wait()
            moved.clear()
    finally:
        dispose()


async def until_still(harness: Harness, roots: Roots) -> None:
    """Return when nothing moves any more: every task has ended, or rests until somebody does something about it."""
    await until(harness, lambda verdicts: all(verdict.name in RESTS for verdict in verdicts))


def faulted(verdicts: Sequence[Verdict]) -> bool:
    """Whether a task rests because its code raised (T11)."""
    return any(verdict.name == "faulted" for verdict in verdicts)


RESTS: Final = frozenset({"parked", "blocked", "faulted"})
"""The verdicts on tasks that do not move by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Something that can be killed anywhere and has to come out right.

    `tasks`, `tools`, `extensions` and `models` give the code of one life; each is called once a life, as a process
    loads its code once. `begin` starts the work, in one commit, where a store holds none yet; a scenario that `asks`
    begins in every life: it submits under request ids, which admits once (S1), and awaits nothing else. `attend` is
    what a person does in every life until it may be closed. `kill_point` is where a demonstration kills it; None where
    the scenario kills itself. `policy` says what was chosen for effects, by patterns of their names; `invariants` gives
    a sentence for each promise that was broken. `virtual` scenarios sleep, or depend on an order, and run on the
    deterministic loop.
    """

    name: str
    title: str
    module: str
    tasks: Callable[[], Sequence[type[Phase[object]]]] = tuple
    tools: Callable[[], Sequence[Tool]] = tuple
    extensions: Callable[[], Sequence[Extension]] = tuple
    models: Callable[[], Sequence[Model]] = tuple
    begin: Callable[[Harness], Awaitable[None]]
    asks: bool = False
    attend: Callable[[Harness, Roots], Awaitable[None]] = until_still
    invariants: Callable[[Facts], Iterable[str]] = _none
    kill_point: str | None
    policy: Mapping[str, EffectPolicy] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    needs_bank: bool = False
    virtual: bool = False
    lives: int = 2
    """How many lives a demonstration takes, the last one included."""

    def __repr__(self) -> str:
        return f"<scenario {self.name}: {self.title}>"

    def program(self) -> Program:
        """What one life is opened with."""
        return Program(
            tasks=tuple(self.tasks()),
            tools=tuple(self.tools()),
            extensions=tuple(self.extensions()),
            models=tuple(self.models()),
            settings=self.settings,
        )

    def policy_of(self, effect: str) -> EffectPolicy | None:
        """What was chosen for an effect of that name; the first pattern that fits counts.

        Where nothing was, a request to a model happens at least once (G1).
        """
        for pattern, policy in self.policy.items():
            if fnmatchcase(effect, pattern):
                return policy
        return "at_least_once" if is_request(effect) else None


def around(scenario: Scenario) -> AbstractContextManager[BankServer | None]:
    """What its effects need around them: the bank, where a scenario banks."""
    return BankServer() if scenario.needs_bank else nullcontext()


def is_request(effect: str) -> bool:
    """Whether the effect is a request to a model: each round makes one, and one that was cut is sent again (G1)."""
    return effect.startswith("ask ")


# What is true afterwards.


def facts_of(store: Path, ledger: Path) -> Facts:
    """The facts of a store that nobody has open, and of its ledger; a store that was never made holds no tasks.

    Raises: StoreRefused.
    """
    tasks: tuple[TaskRecord, ...] = ()
    entries: tuple[EntryRecord, ...] = ()
    submissions: tuple[SubmissionRecord, ...] = ()
    with suppress(NotAStore):
        if store.exists():
            with StoreFile.of_copy(store) as file:
                tasks = tuple(sorted(file.tasks(), key=lambda record: record.id))
                entries = tuple(sorted(file.entries(), key=lambda record: record.id))
                submissions = tuple(sorted(file.submissions(), key=lambda record: record.id))
    return Facts(
        store=store,
        ledger=ledger,
        tasks=tasks,
        entries=entries,
        submissions=submissions,
        asked=asked(ledger),
        applied=applied(ledger),
        books=statement(ledger),
    )


def violations(scenario: Scenario, facts: Facts) -> Iterator[str]:
    """A sentence for every promise that was broken: of the effects' policies, then of the scenario itself."""
    for effect, times in facts.asked.items():
        policy = scenario.policy_of(effect)
        if policy == "at_most_once" and times > 1:
            yield f"{effect} happened {times} times; its memo comes first, so it happens at most once (M3)"
        if policy == "keyed" and facts.applied.get(effect, 0) > 1:
            yield f"{effect} was applied {facts.applied[effect]} times under one key (E6)"
    yield from scenario.invariants(facts)


def outcomes_are(facts: Facts, **expected: str) -> Iterator[str]:
    """A sentence for each task kind that did not end as it should: `outcomes_are(facts, ticker="completed")`."""
    for kind, outcome in expected.items():
        found = facts.of_kind(kind)
        if not found:
            yield f"no {kind} was ever begun"
        for record in found:
            if standing(record) != outcome:
                yield f"{kind} {record.id} is {standing(record)}, not {outcome}"


def unanswered(facts: Facts) -> Iterator[str]:
    """A sentence for each input that has no answer, and one where nothing was asked at all."""
    inputs = [record for record in facts.submissions if record.type == "input"]
    if not inputs:
        yield "nobody was ever heard: no input was admitted"
    for record in inputs:
        if not isinstance(record.state, Answered):
            yield f"submission {record.id} of conversation {record.conversation} is {record.status}, not answered"


def standing(record: TaskRecord) -> str:
    """One word for where a task stands: its outcome when it has ended, else its status."""
    if record.outcome is None or record.live:
        return record.status
    return type(record.outcome).__name__.lower()


# Finding one.

BUILT_IN: Final[Mapping[str, str]] = {
    "ticker": "ticker",
    "two-orders": "two_orders",
    "checkout": "checkout",
    "fix-the-cell": "fix_the_cell",
    "sleeper": "sleeper",
    "restart-storm": "restart_storm",
    "refund": "refund",
    "overnight": "overnight",
    "approval": "approval",
    "support-desk": "support_desk",
    "subagent": "subagent",
    "alarm": "alarm",
}
"""The module of each built-in scenario, in the order of a demonstration."""


class UnknownScenario(PidurableError):
    """There is no such scenario; the message lists what there is."""


def builtin(name: str) -> Scenario:
    """The built-in scenario of that name. Raises: UnknownScenario."""
    if name not in BUILT_IN:
        raise UnknownScenario(
            f"no built-in scenario is called {name!r}; there are {', '.join(BUILT_IN)}, or module:name"
        )
    return _in_module(f"pidurable_nb.lab.scenarios.{BUILT_IN[name]}", name)


def builtins() -> tuple[Scenario, ...]:
    """All built-in scenarios, in the order of a demonstration."""
    return tuple(builtin(name) for name in BUILT_IN)


def find(name: str) -> Scenario:
    """The scenario `module:name`, or the built-in one of that name. Raises: UnknownScenario.

    Importing the module runs it: only name code that you trust.
    """
    module, colon, rest = name.partition(":")
    return _in_module(module, rest) if colon else builtin(name)


def _in_module(module: str, name: str) -> Scenario:
    try:
        values = vars(importlib.import_module(module)).values()
    except ImportError as error:
        raise UnknownScenario(f"module {module!r} cannot be imported: {error}") from error
    found = {value.name: value for value in values if isinstance(value, Scenario)}
    if name not in found:
        there = ", ".join(found) or "none"
        raise UnknownScenario(f"module {module!r} holds no scenario called {name!r}; there is {there}")
    return found[name]
