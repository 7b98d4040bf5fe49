"""Trials: lives of a story with tools, cut at every place, and a ledger of what the tools did outside."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pidurable_nb import Answered, Extension, Harness, Phase
from pidurable_nb.agent.conversation import Conversation
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.agent.extending.workshop import EnvironmentSource
from pidurable_nb.agent.harness import Opening
from pidurable_nb.agent.stored import live
from pidurable_nb.clock import LoopClock
from pidurable_nb.ids import ROOT, ConversationId, Json
from pidurable_nb.lab.dying import loop
from pidurable_nb.models.model import Model
from pidurable_nb.probe import Mark
from pidurable_nb.records.message import Message, items, text_of
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.storage import TaskQuery
from pidurable_nb.tools.tool import Tool
from tests.agent.conftest import START_MS, Copier, Death, Lives

T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True)
class Cut(Death):
    """A death, and what had been done outside until then."""

    ledger: tuple[str, ...] = ()


class Cutter(Copier):
    """A probe that copies the store wherever a kill leaves another one, or another outside, behind."""

    def __init__(self, store: MemoryStorage, clock: LoopClock, ledger: list[str]) -> None:
        super().__init__(store, clock)
        self.ledger = ledger
        self.commits = 0

    async def reach(self, mark: Mark) -> None:
        self.commits += mark.edge == "after" and mark.seq is not None
        self._cut(mark)

    async def perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        self._cut(mark)
        try:
            return await super().perform(mark, do)
        finally:
            self._cut(mark)

    def _cut(self, mark: Mark) -> None:
        last = self.deaths[-1] if self.deaths else None
        made = Cut(f"{mark.what} {mark.edge} of {mark.subject}", self.store, self.clock.now_ms(), tuple(self.ledger))
        if isinstance(last, Cut) and last.ledger == made.ledger and last.store._next_seq == self.store._next_seq:
            return
        self.deaths.append(replace(made, store=copy.deepcopy(self.store)))


class Trial(Lives):
    """Lives of a story whose tools say what they do: `trial.did("paid")`. The ledger outlives them, as the world does.

    A life may be cut between any two things that happen: before and after each commit, and each effect.
    """

    def __init__(self, story: Callable[[Harness], Awaitable[None]]) -> None:
        super().__init__(story)
        self.tools: Sequence[Tool] = ()
        self.tasks: Sequence[type[Phase[Any]]] = ()
        self.ledger: list[str] = []
        self.settings = Settings()
        self.lives = 0

    def did(self, what: str) -> None:
        """A tool does something outside."""
        self.ledger.append(what)

    def live(self, after: Death | None = None, *, later_ms: int = 1000, mortal: bool = True) -> list[Death]:
        """One life to its end, of a new store or behind a death. Returns the deaths that a mortal one could die."""
        self.lives += 1
        store = copy.deepcopy(after.store) if after is not None else MemoryStorage()
        clock = LoopClock(after.at_ms + later_ms if after is not None else START_MS)
        self.ledger[:] = after.ledger if isinstance(after, Cut) else ()
        cutter = Cutter(store, clock, self.ledger)
        settings = replace(self.settings, clock=clock, probe=cutter if mortal else None)

        async def life() -> None:
            await store.close()  # a copy of a memory that was open
            async with Harness.open(
                store, tasks=self.tasks, tools=self.tools, extensions=self.extensions, models=self.models,
                settings=settings, on_report=self.reports.append,
            ) as h:  # fmt: skip
                await self.story(h)

        try:
            loop.run(life(), limit=200_000)
        except BaseException as error:
            if after is not None:
                error.add_note(f"in the life behind {after.where}; outside: {self.ledger}")
            raise
        return cutter.deaths


@dataclass(frozen=True)
class Told:
    """What a model is told of one call."""

    name: str
    text: str
    error: bool
    codes: tuple[str | None, ...]
    message: Message


async def told(conversation: Conversation) -> list[Told]:
    """The results in a transcript, in the order they were written."""
    page = await conversation.entries(order="ascending", limit=1000)
    found: list[Told] = []
    for entry in page.items:
        if entry.kind == "pi.tool-result" and entry.model is not None and isinstance(entry.data, Mapping):
            said = [item for item in items(entry.data.get("diagnostics")) if isinstance(item, Mapping)]
            codes = tuple(str(item["code"]) if "code" in item else None for item in said)
            message = entry.model[0]
            shown = Told(str(message["toolName"]), text_of(message), message["isError"] is True, codes, message)
            found.append(shown)
    return found


async def kinds(conversation: Conversation) -> list[str]:
    """The kinds of a transcript's entries, without those of the prompt."""
    page = await conversation.entries(order="ascending", limit=1000)
    return [entry.kind for entry in page.items if entry.kind != "pi.system"]


def play(main: Coroutine[Any, Any, T]) -> T:
    """Run it in virtual time, in an order that repeats."""
    return loop.run(main, limit=200_000)


def opened(
    *models: Model,
    tools: Sequence[Tool] = (),
    extensions: Sequence[Extension] = (),
    store: MemoryStorage | None = None,
    settings: Settings | None = None,
    environment: EnvironmentSource | None = None,
    reports: list[BaseException] | None = None,
) -> Opening:
    """A harness in memory, within `play`; what it reports fails nothing."""
    chosen = replace(settings if settings is not None else Settings(), clock=LoopClock(START_MS))
    return Harness.open(
        store if store is not None else MemoryStorage(), tools=tools, extensions=extensions, models=models,
        settings=chosen, environment=environment, on_report=reports.append if reports is not None else None,
    )  # fmt: skip


async def answer_to(h: Harness, text: str) -> str:
    """What the root conversation answers; the reason where it does not."""
    settled = await (await (await h.root()).submit(text)).wait()
    return settled.text if isinstance(settled, Answered) else f"unanswered: {settled.reason}"


@dataclass(frozen=True)
class Left:
    """What a death left in the store: its tasks, and what `pi.live` says of the root conversation."""

    tasks: tuple[TaskRecord, ...]
    live: Mapping[str, Json]

    def calls(self, phase: str | None = None) -> list[TaskRecord]:
        """The tool calls that were live, in this phase."""
        found = [task for task in self.tasks if task.kind == "pi.tool" and task.live]
        return [task for task in found if phase is None or task.phase == phase]


def left(death: Death, conversation: ConversationId = ROOT) -> Left:
    """Look into what a death left behind."""

    async def look() -> Left:
        store = copy.deepcopy(death.store)
        await store.close()
        await store.open()
        page = await store.scan_tasks(TaskQuery(), limit=1000)
        record = await store.find_document(live.at(live.LIVE, conversation))
        found = await store.document(record.id) if record is not None else None
        return Left(tuple(page.items), found.value if found is not None else {})

    return play(look())
