"""What the tests of the agent room share: one store, opened again and again on loops with virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pidurable_nb import Harness, Phase
from pidurable_nb.agent.harness import Opening
from pidurable_nb.agent.settings import Settings
from pidurable_nb.clock import LoopClock
from pidurable_nb.lab import loop
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import Storage

T = TypeVar("T")
START_MS = 1_750_000_000_000


class Home:
    """A store and its lives. Every life runs on a deterministic loop of its own, and its virtual time goes on."""

    def __init__(self, make: Callable[[], Storage]) -> None:
        self.make = make
        self.reports: list[BaseException] = []
        self.clock = LoopClock(START_MS)

    def open(self, *tasks: type[Phase[Any]], run: bool = True, storage: Storage | None = None) -> Opening:
        """Open the store with this code; to be awaited or entered within `run`."""
        store = storage if storage is not None else self.make()
        settings = Settings(clock=self.clock)
        return Harness.open(store, tasks=tasks, settings=settings, run=run, on_report=self.reports.append)

    def run(self, main: Coroutine[Any, Any, T], *, seed: int | None = None, limit: int = 200_000) -> T:
        """One life, to the end of `main`. Raises: Deadlock when something waits for ever, Runaway when it spins."""
        try:
            return loop.run(main, seed=seed, limit=limit)
        finally:
            self.clock = LoopClock(self.clock.start_ms + 1_000_000)


@pytest.fixture(params=["memory", "sqlite"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """A new store, of each kind."""
    if request.param == "memory":
        storage = MemoryStorage()
        return Home(lambda: storage)
    return Home(lambda: SqliteStorage(tmp_path / "store.sqlite", durability="kill", inline=True))


@pytest.fixture
def memory() -> Home:
    """A new store in memory, for sweeps."""
    storage = MemoryStorage()
    return Home(lambda: storage)
