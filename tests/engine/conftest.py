"""What the tests of the engine share: one store that is opened again and again, on loops with virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pidurable_nb import Harness, Phase
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.agent.harness import Opening
from pidurable_nb.clock import LoopClock
from pidurable_nb.lab.dying import loop
from pidurable_nb.probe import Probe
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import Storage

T = TypeVar("T")
START_MS = 1_750_000_000_000


class Bench:
    """A store and its lives. Every life runs on a deterministic loop of its own, and its virtual time goes on."""

    def __init__(self, make: Callable[[], Storage]) -> None:
        self.make = make
        self.reports: list[BaseException] = []
        """What the host heard, over all lives."""
        self.clock = LoopClock(START_MS)

    def open(
        self,
        *tasks: type[Phase[Any]],
        run: bool = True,
        probe: Probe | None = None,
        restart_limit: int = 5,
        suspect_ms: int = 1000,
    ) -> Opening:
        """Open the store with this code; to be awaited or entered within `run`."""
        settings = Settings(clock=self.clock, probe=probe, restart_limit=restart_limit, suspect_ms=suspect_ms)
        return Harness.open(self.make(), tasks=tasks, settings=settings, run=run, on_report=self.reports.append)

    def run(self, main: Coroutine[Any, Any, T], *, seed: int | None = None, limit: int = 200_000) -> T:
        """One life, to the end of `main`. Raises: Deadlock when something waits for ever, Runaway when it spins."""
        try:
            return loop.run(main, seed=seed, limit=limit)
        finally:
            self.clock = LoopClock(self.clock.start_ms + 1_000_000)


@pytest.fixture(params=["memory", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """A new store, of each kind."""
    if request.param == "memory":
        storage = MemoryStorage()
        return Bench(lambda: storage)
    return Bench(lambda: SqliteStorage(tmp_path / "store.sqlite", durability="kill", inline=True))


@pytest.fixture
def memory() -> Bench:
    """A new store in memory, for sweeps that run hundreds of lives."""
    storage = MemoryStorage()
    return Bench(lambda: storage)


@pytest.fixture
def fresh() -> Callable[[], Bench]:
    """Makes new stores in memory, for sweeps over seeds."""

    def make() -> Bench:
        storage = MemoryStorage()
        return Bench(lambda: storage)

    return make
