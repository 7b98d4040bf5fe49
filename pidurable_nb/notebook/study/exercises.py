"""Owns the three exercises of the first lessons: what is run with a seed, and what is true of it afterwards.

Each is a real run of the laboratory that dies by freezing, which leaves the bytes that a kill leaves. Never asks what a
learner thinks: a function is given a store, a case or a till, and its answer is compared with store and ledger.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from pidurable_nb import Done, Harness, Input, Phase, Runtime, tool
from pidurable_nb.ids import Json
from pidurable_nb.lab.dying.lane import in_thread
from pidurable_nb.lab.dying.point import Point, TaskPlace
from pidurable_nb.lab.dying.run import LEDGER, Plan, carry, run_here, run_to_end
from pidurable_nb.lab.outside.world import append, crash_this_process, current_ledger, read_ledger
from pidurable_nb.lab.scenario import Facts, Scenario, facts_of, unanswered
from pidurable_nb.lab.sweeping.sweep import sweep
from pidurable_nb.models import Answer, CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.notebook.study.check import Trial, asking
from pidurable_nb.notebook.views.markup import cut
from pidurable_nb.records.message import role_of
from pidurable_nb.store.stranger import StoreFile
from pidurable_nb.tools.tool import Tool

Replay = Literal["safe", "unsafe"]
REPLAYS: Final[tuple[Replay, ...]] = ("safe", "unsafe")
MOST_PROBLEMS: Final = 3


class Till:
    """An outside that pays. With a key it pays once, and answers the same whenever it is asked with that key."""

    def pay(self, order: str, cents: int, *, key: str | None = None) -> str:
        """Pay `cents` back for an order: the receipt. Raises NoWorld outside of a run of the laboratory."""
        ledger = current_ledger()
        known = [line for line in read_ledger(ledger) if line.edge == "applied" and line.effect.startswith("pay ")]
        if key is not None and any(line.key == key for line in known):
            return f"receipt of {key}"
        append(ledger, {"effect": f"pay {order}", "edge": "applied", "key": key, "value": cents})
        return f"receipt {len(known) + 1}" if key is None else f"receipt of {key}"


def paid(ledger: Path, order: str) -> list[Json]:
    """The cents of every payment for an order, oldest first."""
    return [line.value for line in read_ledger(ledger) if line.edge == "applied" and line.effect == f"pay {order}"]


def _settled(facts: Facts) -> bool:
    return not list(unanswered(facts))


# --- N1: where did it die? ------------------------------------------------------------------------------------------


class Parcel(Phase[str], task="parcel"):
    left: Input[int]
    n: int = 1

    async def run(self, rt: Runtime) -> Weigh:
        await rt.memo(f"found-{self.n}", True)
        return Weigh(self.left, self.n)


class Weigh(Phase[str]):
    left: Input[int]
    n: int

    async def run(self, rt: Runtime) -> Label:
        grams = await rt.effect(f"weigh {self.n}", lambda: 100 + self.n)
        async with rt.commit() as tx:
            tx.append("parcel.weight", data={"n": self.n, "grams": grams})
            return tx.become(Label(self.left, self.n))


class Label(Phase[str]):
    left: Input[int]
    n: int

    async def run(self, rt: Runtime) -> Parcel | Done[str]:
        await rt.memo(f"label-{self.n}", f"P{self.n}", barrier=True)
        await rt.effect(f"label {self.n}", lambda: f"P{self.n}")
        return Parcel(self.left, self.n + 1) if self.n < self.left else Done(f"{self.left} parcels")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereItDied:
    """N1: a function that is given a store names the last committed sequence number, and the phase of its task."""

    name: str = "N1"
    wants: str = "the path of a store whose process was killed, and gives (last committed seq, phase of its live task)"
    runs: int = 3

    def trial(self, function: Callable[[Path], object], seed: int, folder: Path) -> Trial:
        """Kill parcels at a point that the seed picks, and ask where."""
        chance = random.Random(seed)
        scenario = _parcels(chance.randint(2, 5))
        passed = in_thread(lambda: run_here(scenario, folder / "whole.sqlite", folder / "whole.jsonl", Plan())).points
        inside = [point for point in passed if isinstance(point.place, TaskPlace) and point.edge is not None]
        chance.shuffle(inside)
        for n, point in enumerate(inside):
            died = _died(scenario, point, folder / str(n))
            with StoreFile.of_copy(carry(died, folder / str(n) / "looked")) as file:
                live = list(file.live_tasks())
                truth = (file.next_seq - 1, live[0].phase if live else None)
                facts: dict[str, Json] = {
                    "effects": _happened(folder / str(n) / LEDGER), "entries": file.counts.entries,
                    "attempts": 1, "settled": not live, "seq": truth[0], "phase": truth[1], "killed_at": str(point),
                }  # fmt: skip
            if live:
                break
        else:
            raise AssertionError("a run of parcels has a point at which its task lives")
        got, problems = asking(lambda: function(died))
        if not problems and (not isinstance(got, tuple | list) or tuple(got) != truth):
            problems = (f"the store ends with {truth[0]}, and its task stands in {truth[1]}",)
        return Trial(
            seed=seed, asked="where did it die?", expected=repr(truth), answered=cut(repr(got)), facts=facts,
            problems=problems,
        )  # fmt: skip


def _parcels(count: int) -> Scenario:
    async def begin(harness: Harness) -> None:
        await (await harness.root()).start(Parcel(count))

    return Scenario(
        name="parcels", title="parcels", module=__name__, tasks=lambda: [Parcel], begin=begin, kill_point=None
    )


def _died(scenario: Scenario, point: Point, folder: Path) -> Path:
    (folder / "alive").mkdir(parents=True)
    plan = Plan(at=point, kind="freeze")
    store = folder / "alive" / "store.sqlite"
    lived = in_thread(lambda: run_here(scenario, store, folder / LEDGER, plan, image=folder / "dead"))
    assert lived.image is not None, f"{point} was passed before"
    return lived.image


def _happened(ledger: Path) -> dict[str, Json]:
    counts: dict[str, Json] = {}
    for line in read_ledger(ledger):
        if line.edge == "after":
            before = counts.get(line.effect, 0)
            counts[line.effect] = before + 1 if isinstance(before, int) else 1
    return counts


# --- N2: two crashes, one refund ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell of the table: a tool of several steps, one of which pays, and where its process died the first time.

    `done` counts the steps that were done then. `stored`: the result of the tool was committed before it died.
    """

    policy: Replay
    steps: tuple[str, ...]
    pays: str
    done: int
    stored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondTool:
    """N2: a function that is given a case says how often the outside is paid in the end; six cases make the table."""

    name: str = "N2"
    wants: str = "a Case (policy, steps, pays, done, stored), and gives how often was paid in the end"
    runs: int = 2

    def trial(self, function: Callable[[Case], object], seed: int, folder: Path) -> Trial:
        """Run the six cells of a tool that the seed makes, and compare each with its ledger."""
        counts, answers, problems = list[Json](), list[object](), list[str]()
        told: dict[str, Json] = {}
        entries = attempts = 0
        settled = True
        cases = _cases(random.Random(seed))
        for n, case in enumerate(cases):
            story = _paying(case, folder / str(n))
            counts.append(len(paid(folder / str(n) / LEDGER, "A-1")))
            got, raised = asking(lambda case=case: function(case))  # type: ignore[misc]  # bound now
            answers.append(got)
            problems += raised
            if not raised and (got != counts[-1] or isinstance(got, bool)):
                problems.append(f"{_moment(case)}: {counts[-1]} paid, not {cut(repr(got))}")
            told[_moment(case)] = ", ".join(story.told("second"))
            entries += len(story.entries)
            attempts += sum(times for effect, times in story.asked.items() if effect.startswith("second("))
            settled = settled and _settled(story)
        facts: dict[str, Json] = {
            "effects": counts, "entries": entries, "attempts": attempts, "settled": settled, "told": told
        }  # fmt: skip
        steps = ", ".join(cases[0].steps)
        return Trial(
            seed=seed, asked=f"a tool of {steps}; {cases[0].pays} pays", expected=repr(counts),
            answered=cut(repr(answers)), facts=facts, problems=tuple(problems),
        )  # fmt: skip


def _cases(chance: random.Random) -> list[Case]:
    """Both policies, each before the payment, between payment and stored result, and after that."""
    steps = tuple(chance.sample(("look up", "check limit", "print", "mail", "file"), chance.randint(1, 4)))
    at = chance.randint(0, len(steps))
    steps = (*steps[:at], "pay", *steps[at:])
    before, between = chance.randint(0, at), chance.randint(at + 1, len(steps))
    moments = [(before, False), (between, False), (len(steps), True)]
    cases = [
        Case(policy=policy, steps=steps, pays="pay", done=done, stored=stored)
        for policy in REPLAYS
        for done, stored in moments
    ]
    chance.shuffle(cases)  # or six numbers in a row would pass
    return cases


def _moment(case: Case) -> str:
    where = "after its result was stored" if case.stored else f"after {case.done} of its steps"
    return f"{case.policy}, died {where}"


_STORED: Final = Point.parse("pi.tool#1/execute:publish.before")
"""Behind the commit that holds the result."""


def _paying(case: Case, folder: Path) -> Facts:
    """Two lives of one call of that tool: the first dies where the case says."""
    folder.mkdir()
    till, lives = Till(), list[None]()

    @tool(replay=case.policy)
    async def second(order: str) -> str:
        """Pay an order back, in several steps."""
        lives.append(None)
        for n in range(len(case.steps) + 1):
            if len(lives) == 1 and not case.stored and n == case.done:
                crash_this_process()
            if n < len(case.steps) and case.steps[n] == case.pays:
                till.pay(order, 4200)
        return "paid"

    def clerk(request: ModelRequest) -> Answer:
        asked = role_of(request.messages[-1]) == "user"
        return CallTools(call("second", order="A-1")) if asked else Say("That is what I know.")

    scenario = _desk("second", lambda: [second], clerk)
    plan = Plan(at=_STORED if case.stored else None, kind="freeze")
    story = in_thread(lambda: run_to_end(scenario, folder, plan))
    return facts_of(story.store, folder / LEDGER)


def _desk(
    name: str, tools: Callable[[], list[Tool]], clerk: Callable[[ModelRequest], Answer],
    invariants: Callable[[Facts], Iterator[str]] = lambda facts: iter(()),
) -> Scenario:  # fmt: skip
    async def begin(harness: Harness) -> None:
        await (await harness.root()).submit("I want my money back.", request_id="ticket-1")

    begun: Callable[[Harness], Awaitable[None]] = begin
    return Scenario(
        name=name, title=name, module=__name__, tools=tools, models=lambda: [Scripted.by(clerk, name="clerk")],
        begin=begun, asks=True, invariants=invariants, kill_point=None,
    )  # fmt: skip


# --- N3: effectively once -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRefund:
    """N3: a function that is given a till makes a tool that pays each order once, wherever its process dies."""

    name: str = "N3"
    wants: str = "a Till with pay(order, cents, key=...), and gives a tool with the parameters order: str, cents: int"
    runs: int = 2

    def trial(self, function: Callable[[Till], object], seed: int, folder: Path) -> Trial:
        """Crash at every point of a run in which the tool is called for two orders, and count what was paid."""
        chance = random.Random(seed)
        orders = {f"A-{number}": chance.randint(100, 9900) for number in chance.sample(range(1000, 10_000), 2)}
        asked = "a crash at every point; " + ", ".join(f"{name} {cents}" for name, cents in orders.items())
        made, problems = asking(lambda: function(Till()))
        expected = "each order is paid once"
        if not problems and not isinstance(made, Tool):
            problems = (f"your function gave {type(made).__name__}, not a tool; write @tool(...) above the function",)
        if problems or not isinstance(made, Tool):
            return Trial(
                seed=seed, asked=asked, expected=expected, answered="no tool", facts={}, problems=problems
            )  # fmt: skip
        scenario = _refunds(made, orders)
        result = in_thread(lambda: sweep(scenario, kinds=("freeze",), seed=chance.randint(1, 1000)))
        whole = in_thread(lambda: run_to_end(scenario, _new(folder), Plan()))
        facts = facts_of(whole.store, folder / "whole" / LEDGER)
        said = tuple(f"{found.text}, {_where(found.witness.crashes)}" for found in result.violations)
        return Trial(
            seed=seed, asked=asked, expected=expected,
            answered=expected if not said else f"it does not hold after each of {result.images} crashes",
            facts={
                "effects": {name: paid(facts.ledger, name) for name in orders}, "entries": len(facts.entries),
                "attempts": result.runs, "settled": _settled(facts), "crashes": result.images,
            },
            problems=said[:MOST_PROBLEMS],
        )  # fmt: skip


def _new(folder: Path) -> Path:
    made = folder / "whole"
    made.mkdir()
    return made


def _where(crashes: tuple[object, ...]) -> str:
    return f"after a crash at {', '.join(map(str, crashes))}" if crashes else "also where nothing crashes"


def _refunds(made: Tool, orders: Mapping[str, int]) -> Scenario:
    """One request that is answered with a call of the tool for each order, in turn."""

    def clerk(request: ModelRequest) -> Answer:
        done = sum(1 for message in request.messages if role_of(message) == "toolResult")
        names = list(orders)
        if done < len(names):
            return CallTools(call(made.name, order=names[done], cents=orders[names[done]]))
        return Say("That is what I know.")

    def invariants(facts: Facts) -> Iterator[str]:
        yield from unanswered(facts)
        for name, cents in orders.items():
            found = paid(facts.ledger, name)
            if found != [cents]:
                yield f"{name} was paid {len(found)} times" if len(found) != 1 else f"{name} got another sum"

    desk = _desk("refunds", lambda: [made], clerk, invariants)
    return replace(desk, policy={f"{made.name}(*": "at_least_once"})


WHERE_IT_DIED: Final = WhereItDied()
SECOND_TOOL: Final = SecondTool()
ONE_REFUND: Final = OneRefund()
