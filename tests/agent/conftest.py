"""What the tests of the agent room share: one store, opened again and again on loops with virtual time."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pidurable_nb import Extension, Harness, Phase
from pidurable_nb.agent.harness import Opening
from pidurable_nb.agent.settings import Settings
from pidurable_nb.clock import LoopClock
from pidurable_nb.lab import loop
from pidurable_nb.models.model import Model
from pidurable_nb.probe import Mark
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import Storage

T = TypeVar("T")
V = TypeVar("V")
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


# -- a story from everywhere -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Death:
    """A store as a process leaves it that is killed behind a commit."""

    where: str
    store: MemoryStorage
    at_ms: int


class Copier:
    """A probe that copies the store behind every commit."""

    one_by_one = True

    def __init__(self, store: MemoryStorage, clock: LoopClock) -> None:
        self.store = store
        self.clock = clock
        self.deaths: list[Death] = []

    async def reach(self, mark: Mark) -> None:
        if mark.edge == "after" and mark.seq is not None:
            where = f"{mark.what} {mark.seq} of {mark.subject}"
            self.deaths.append(Death(where, copy.deepcopy(self.store), self.clock.now_ms()))

    def note(self, mark: Mark) -> None:
        pass

    async def perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        got = do()
        return await got if inspect.isawaitable(got) else got  # pyright: ignore[reportReturnType]


class Lives:
    """Plays one story over and over. A story is what a client does that begins anew with each life, and what holds."""

    def __init__(self, story: Callable[[Harness], Awaitable[None]]) -> None:
        self.story = story
        self.extensions: Sequence[Extension] = ()
        self.models: Sequence[Model] = ()
        self.reports: list[BaseException] = []

    def live(self, after: Death | None = None, *, later_ms: int = 1000) -> list[Death]:
        """One life to its end, of a new store or behind a death. Returns the deaths that it could have died."""
        store = copy.deepcopy(after.store) if after is not None else MemoryStorage()
        clock = LoopClock(after.at_ms + later_ms if after is not None else START_MS)
        copier = Copier(store, clock)
        settings = Settings(clock=clock, probe=copier)

        async def life() -> None:
            await store.close()  # a copy of a memory that was open
            opening = Harness.open(
                store, extensions=self.extensions, models=self.models, settings=settings, on_report=self.reports.append
            )
            async with opening as h:
                await self.story(h)

        try:
            loop.run(life(), limit=200_000)
        except BaseException as error:
            if after is not None:
                error.add_note(f"in the life behind {after.where}")
            raise
        return copier.deaths

    def sweep(self, *, deaths: int) -> Iterator[int]:
        """The story undisturbed, and behind so many deaths, of every kind. Gives how many deaths came before."""
        waiting: list[tuple[int, Death | None]] = [(0, None)]
        while waiting:
            died, last = waiting.pop()
            possible = self.live(last)
            yield died
            if died < deaths:
                waiting += [(died + 1, death) for death in possible]
        assert self.reports == []
