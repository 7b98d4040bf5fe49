"""What the tests of the agent room share: one store, opened again and again on loops with virtual time."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pidurable_nb import Extension, Harness, Phase
from pidurable_nb.agent.conversation import Conversation
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.agent.harness import Opening
from pidurable_nb.agent.stored import live
from pidurable_nb.clock import LoopClock
from pidurable_nb.ids import JsonObject
from pidurable_nb.lab.dying import loop
from pidurable_nb.models.model import Model
from pidurable_nb.probe import Mark
from pidurable_nb.records.message import calls_of, items, role_of, stop_reason
from pidurable_nb.records.transcript import Answered, Placed, Queued, SubmissionRecord, Unanswered, Written
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import ConversationQuery, Storage, SubmissionQuery
from pidurable_nb.tools.tool import Tool

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

    def agent(
        self,
        *models: Model,
        tools: Sequence[Tool] = (),
        extensions: Sequence[Extension] = (),
        settings: Settings | Callable[[], Settings] | None = None,
        run: bool = True,
    ) -> Opening:
        """Open the store with these models and tools; to be awaited or entered within `run`. The clock is this one."""
        clock = self.clock

        def timed() -> Settings:
            return replace(settings() if callable(settings) else settings or Settings(), clock=clock)

        return Harness.open(
            self.make(), models=models, tools=tools, extensions=extensions, settings=timed, run=run,
            on_report=self.reports.append,
        )  # fmt: skip

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

    def __init__(self, store: MemoryStorage, clock: LoopClock, *, copies: bool = True) -> None:
        self.store = store
        self.clock = clock
        self.copies = copies
        self.deaths: list[Death] = []

    async def reach(self, mark: Mark) -> None:
        if self.copies and mark.edge == "after" and mark.seq is not None:
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
        self.tools: Sequence[Tool] = ()
        self.settings = Settings()
        self.reports: list[BaseException] = []

    def live(self, after: Death | None = None, *, later_ms: int = 1000, mortal: bool = True) -> list[Death]:
        """One life to its end, of a new store or behind a death. Gives the deaths that a mortal one could have died."""
        store = copy.deepcopy(after.store) if after is not None else MemoryStorage()
        clock = LoopClock(after.at_ms + later_ms if after is not None else START_MS)
        copier = Copier(store, clock, copies=mortal)
        settings = replace(self.settings, clock=clock, probe=copier)

        async def life() -> None:
            await store.close()  # a copy of a memory that was open
            opening = Harness.open(
                store, extensions=self.extensions, models=self.models, tools=self.tools, settings=settings,
                on_report=self.reports.append,
            )  # fmt: skip
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
            possible = self.live(last, mortal=died < deaths)
            yield died
            waiting += [(died + 1, death) for death in possible]
        assert self.reports == []


class Interrupter:
    """A probe that begins `act` at the `at`-th place that the core passes: commits, effects, chunks, publications."""

    one_by_one = False

    def __init__(self, at: int, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.at = at
        self.act = act
        self.passed = 0
        self.acting: asyncio.Task[None] | None = None

    def _pass(self) -> None:
        if self.passed == self.at:
            self.acting = asyncio.get_running_loop().create_task(self.act())
        self.passed += 1

    async def reach(self, mark: Mark) -> None:
        self._pass()

    def note(self, mark: Mark) -> None:
        self._pass()

    async def perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        self._pass()
        got = do()
        return await got if inspect.isawaitable(got) else got  # pyright: ignore[reportReturnType]


# -- what holds of every store -----------------------------------------------------------------------------------------


async def live_of(where: Conversation) -> JsonObject:
    """What `pi.live` says, as stored."""
    harness = where.owning_harness
    return await harness.engine.session.snapshot(live.LIVE, live.at(live.LIVE, where.id)) or {}


async def inbox_of(where: Conversation) -> list[JsonObject]:
    """What waits, as stored."""
    harness = where.owning_harness
    found = await harness.engine.session.snapshot(live.INBOX, live.at(live.INBOX, where.id)) or {}
    return [dict(item) for item in items(found.get("items")) if isinstance(item, dict)]


async def submissions_of(h: Harness) -> list[SubmissionRecord]:
    """Every submission, in id order."""
    return list((await h.engine.session.scan_submissions(SubmissionQuery(), limit=10_000)).items)


async def sound(h: Harness) -> None:
    """S2, B16: what holds of the submissions of every conversation in which nothing runs."""
    submissions = await submissions_of(h)
    for record in (await h.engine.session.scan_conversations(ConversationQuery(), limit=1000)).items:
        where = Conversation(h, record.id)
        mine = [found for found in submissions if found.conversation == record.id]
        await _sound(where, mine)


async def _sound(where: Conversation, mine: list[SubmissionRecord]) -> None:
    state = await live_of(where)
    assert {"run", "generation", "tools", "nestedTools", "compactions"}.isdisjoint(state), state
    waiting = [item["id"] for item in await inbox_of(where)]
    assert waiting == [found.id for found in mine if isinstance(found.state, Queued)]
    entries = {entry.id: entry for entry in (await where.entries(limit=10_000, order="ascending")).items}
    placed: list[int] = []
    for found in mine:
        match found.state:
            case Placed():
                raise AssertionError(f"submission {found.id} is placed, and nothing runs")
            case Answered(entry=entry, answer=answer):
                assert answer > entry
                assert role_of((entries[answer].model or ({},))[0]) == "assistant"
                assert stop_reason((entries[answer].model or ({},))[0]) in ("stop", "length", "toolUse")
                placed.append(entry)
            case Unanswered(entry=entry) if entry is not None:
                placed.append(entry)
            case Written(entry=entry):
                placed.append(entry)
            case _:
                pass
    assert len(set(placed)) == len(placed)
    assert all(id in entries for id in placed)
    own = [entry for entry in entries.values() if entry.conversation == where.id]  # a fork may begin within a round
    messages = [message for entry in own for message in entry.model or ()]
    called = [call.id for message in messages for call in calls_of(message) if stop_reason(message) == "toolUse"]
    given = [message["toolCallId"] for message in messages if role_of(message) == "toolResult"]
    assert sorted(map(str, given)) == sorted(called)
