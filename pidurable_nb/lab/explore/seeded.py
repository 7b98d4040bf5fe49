"""Owns whole stories in orders that seeds decide, each told twice. Never judges by itself.

A seed decides the order of everything that is ready on the loop, how often the story crashes, and where.
"""

from __future__ import annotations

import contextlib
import io
import random
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Final

from pidurable_nb.agent.harness import Harness
from pidurable_nb.clock import Clock, LoopClock
from pidurable_nb.engine.decide import Verdict
from pidurable_nb.lab.dying.crash import CrashPlan, Passed
from pidurable_nb.lab.dying.loop import DeterministicLoop
from pidurable_nb.lab.dying.point import Namer, Point
from pidurable_nb.lab.dying.run import EPOCH_MS, LEDGER, SeededIds, life
from pidurable_nb.lab.explore.judge import in_the_end
from pidurable_nb.lab.explore.result import Found, Seeded, Told, unnumbered
from pidurable_nb.lab.explore.states import ExploredStorage
from pidurable_nb.lab.judging.invariants import Expected, Problem, expected
from pidurable_nb.lab.outside.world import SimulatedCrash, World
from pidurable_nb.lab.scenario import Roots, Scenario, around, find
from pidurable_nb.lab.sweeping.result import name_of

__all__ = ["seeds", "surroundings", "tell"]

_STEPS: Final = 200_000
_LIVES: Final = 20


class _Doomed(CrashPlan):
    """A plan that ends the life at the `nth` point that it passes; None: nowhere."""

    def __init__(
        self, world: World, namer: Namer, clock: Clock, *, nth: int | None, freeze: Callable[[SimulatedCrash], None]
    ) -> None:
        super().__init__(world, namer, clock, at=None, kind="freeze", freeze=freeze)
        self._nth = nth

    def _arrived(self, point: Point) -> None:
        if len(self.passed) == self._nth:
            raise self._crash(point)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Story:
    """What became of one seed. `digest` is of everything: the points, the rows and the ledger, to the letter."""

    points: tuple[str, ...]
    digest: bytes
    lives: int
    crashes: int
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """What is known of one life: the points it passed, what lived when it was attended, and how it ended."""

    passed: tuple[Passed, ...]
    left: tuple[Verdict, ...]
    error: Exception | None
    crashed: bool


@dataclass(slots=True)
class _Teller:
    """Tells stories of one scenario, with its ledger at a path."""

    scenario: Scenario
    ledger: Path
    whole: int = 0
    """How many points the life passes that nothing cuts off and nothing reorders."""
    awaited: tuple[Expected, ...] = ()

    def prepare(self) -> None:
        """Live once, undisturbed."""
        self.ledger.unlink(missing_ok=True)
        passed = self._life(ExploredStorage(), seed=None, number=1, now_ms=EPOCH_MS, nth=None).passed
        self.whole, self.awaited = len(passed), expected(passed)

    def story(self, seed: int, crashes: int) -> _Story:
        """Life after life, until one ends by itself."""
        drawn = random.Random(f"crashes of {seed}")
        planned = [drawn.randint(1, max(self.whole, 1)) for _ in range(drawn.randint(0, crashes))]
        self.ledger.unlink(missing_ok=True)
        storage, now_ms, passed = ExploredStorage(), EPOCH_MS, list[Passed]()
        for number in range(1, _LIVES + 1):
            nth = planned[number - 1] if number <= len(planned) else None
            ended = self._life(storage, seed=seed * _LIVES + number, number=number, now_ms=now_ms, nth=nth)
            passed += ended.passed
            now_ms = (passed[-1].at_ms if passed else now_ms) + 1000
            storage = storage.copied()
            if not ended.crashed:
                found = in_the_end(self.scenario, storage, self.ledger, ended.left, self.awaited, ended.error)
                return self._told(storage, passed, number, found)
        never = Problem("stuck", f"{_LIVES} lives died, with nothing to kill them any more")
        return self._told(storage, passed, _LIVES, (never,))

    def _life(self, storage: ExploredStorage, *, seed: int | None, number: int, now_ms: int, nth: int | None) -> _Ended:
        world, clock = World(self.ledger, number), LoopClock(now_ms)
        loop = DeterministicLoop(seed, limit=_STEPS)
        left: list[Verdict] = []

        def freeze(crash: SimulatedCrash) -> None:
            world.shut()
            loop.halt(crash)

        async def attend(harness: Harness, roots: Roots) -> None:
            await self.scenario.attend(harness, roots)
            if not harness.closed.done():
                left.extend(await harness.verdicts())

        plan = _Doomed(world, Namer(number), clock, nth=nth, freeze=freeze)
        attended = replace(self.scenario, attend=attend)
        error: Exception | None = None
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                loop.run_until_complete(self._lived(attended, storage, plan, clock, number))
        except SimulatedCrash:
            pass
        except Exception as met:  # a deadlock, a runaway, or what the scenario raises: it is judged
            error = met
        finally:
            world.shut()
            loop.abandon()
        return _Ended(passed=tuple(plan.passed), left=tuple(left), error=error, crashed=plan.crashed is not None)

    async def _lived(
        self, scenario: Scenario, storage: ExploredStorage, plan: CrashPlan, clock: Clock, number: int
    ) -> None:
        """As `run.life`; the namer first counts what there is."""
        if number > 1:
            await storage.open()
            await plan.namer.learn(storage)
            await storage.close()
        await life(scenario, storage, plan, clock=clock, ids=SeededIds(f"{number}"))

    def _told(
        self, storage: ExploredStorage, passed: list[Passed], lives: int, problems: tuple[Problem, ...]
    ) -> _Story:
        points = tuple(str(each.point) for each in passed)
        ledger = self.ledger.read_bytes() if self.ledger.exists() else b""
        text = "\n".join((*points, storage.exactly())).encode("utf-8", "surrogatepass")
        return _Story(
            points=points, digest=blake2b(text + ledger).digest(), lives=lives, crashes=lives - 1, problems=problems
        )


@contextlib.contextmanager
def surroundings(scenario: Scenario) -> Generator[Path]:
    """What lives happen in: a place for a ledger, and an open bank for whom needs one."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pidurable-explore-"))
        stack.enter_context(around(scenario))
        yield Path(folder) / LEDGER


def seeds(
    scenario: Scenario | str,
    which: Iterable[int],
    *,
    crashes: int = 1,
    on_progress: Callable[[str], None] | None = None,
) -> Seeded:
    """One whole story for each seed, with up to so many crashes, told twice and judged by the invariants.

    Both times every point, every row and the ledger have to be the same to the letter; a seed that is not repeated is
    a violation.

    Raises: UnknownScenario.
    """
    chosen = find(scenario) if isinstance(scenario, str) else scenario
    began, name = time.monotonic(), name_of(chosen)
    found: dict[Problem, Found] = {}
    orders: set[tuple[str, ...]] = set()
    count = identical = runs = crashed = 0
    with surroundings(chosen) as ledger:
        teller = _Teller(chosen, ledger)
        teller.prepare()
        for seed in which:
            one, two = teller.story(seed, crashes), teller.story(seed, crashes)
            count, runs, crashed = count + 1, runs + one.lives + two.lives, crashed + one.crashes
            identical += one.digest == two.digest
            orders.add(one.points)
            problems = one.problems if one.digest == two.digest else (*one.problems, _unlike(one, two))
            for problem in problems:
                violation = Found(kind=problem.kind, text=problem.text, scenario=name, seed=seed, crashes=crashes)
                found.setdefault(unnumbered(problem), violation)
            if on_progress is not None and count % 500 == 0:
                on_progress(f"{count} seeds, {len(orders)} orders")
    return Seeded(
        scenario=name, seeds=count, identical=identical, orders=len(orders), runs=runs, crashes=crashed,
        violations=tuple(found.values()), seconds=time.monotonic() - began,
    )  # fmt: skip


def tell(scenario: Scenario, ledger: Path, seed: int, crashes: int) -> Told:
    """The story of one seed."""
    teller = _Teller(scenario, ledger)
    teller.prepare()
    story = teller.story(seed, crashes)
    return Told(scenario=name_of(scenario), steps=story.points, problems=story.problems)


def _unlike(one: _Story, two: _Story) -> Problem:
    pairs = zip(one.points, two.points, strict=False)
    at = next((f"{a} came once and {b} once" for a, b in pairs if a != b), "the points are the same, the rows are not")
    return Problem("broken", f"a story does not repeat itself from its seed: {at}")
