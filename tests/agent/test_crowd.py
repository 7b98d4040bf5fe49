"""Many clients at once, and a death now and then: whatever they ask, in whatever order, ends in a stated condition."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from pidurable_nb import Harness, Output, Settings, tool
from pidurable_nb.agent.conversation import Conversation
from pidurable_nb.agent.extending.extension import Extension
from pidurable_nb.agent.extending.hooking import HookApi, Hooks
from pidurable_nb.agent.extending.settings import Compaction, Retry
from pidurable_nb.agent.inbox.boundary import QueueMode
from pidurable_nb.clock import LoopClock
from pidurable_nb.errors import ConversationBusy
from pidurable_nb.lab.dying import loop
from pidurable_nb.models import Answer, Attempts, Break, CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.records.message import Message, ToolCall, role_of, text_of
from pidurable_nb.store.memory import MemoryStorage
from tests.agent.conftest import START_MS, Copier, Death, sound, submissions_of

MODES: tuple[QueueMode, ...] = ("one_at_a_time", "all")
WORDS = ("talk", "look", "look look", "step step step", "fail", "busy", "end", "hand over", "both", "gone")


@tool(replay="safe")
async def look(n: int) -> str:
    """Look."""
    await asyncio.sleep(0.3 + n % 3)
    return f"looked {n}"


@tool(replay="unsafe", mode="sequential")
async def step(n: int) -> str:
    """One after the other."""
    await asyncio.sleep(0.5)
    if n % 4 == 3:
        raise RuntimeError("stumbled")
    return f"stepped {n}"


@tool(replay="safe")
async def end(text: str | None = None) -> Output:
    """End the run."""
    return Output(content="over", terminate=True, handoff=text)


def teacher() -> Scripted:
    """Does what the newest word says."""

    def answer(request: ModelRequest) -> Answer:
        if "You write checkpoints" in str(request.messages[0]):
            return Attempts(Break("503 busy"), Say("so far", delay=timedelta(seconds=2)))
        last = request.messages[-1]
        said = text_of(last) if role_of(last) == "user" else ""
        n = len(request.messages)
        match said.split():
            case ["fail"]:
                return Break("401 unauthorized", after=("a", "b"), delay=timedelta(milliseconds=150))
            case ["busy"]:
                return Attempts(Break("503 busy", after="x"), Say("not busy any more"))
            case ["end"]:
                return CallTools(call("end"))
            case ["hand", "over"]:
                return CallTools(call("look", n=n), call("end", text="from here"))
            case ["both"]:
                return CallTools(call("look", n=n), call("step", n=n + 1), text="both")
            case ["gone"]:
                return CallTools(call("unknown"), call("look", n="seven"))
            case [name, *more] if name in ("look", "step"):
                return CallTools(*(call(name, n=n + i) for i in range(1 + len(more))))
            case _:
                return Say("word " * 60, chunks=5, delay=timedelta(milliseconds=120))

    return Scripted.by(answer)


async def _call(call: ToolCall, api: HookApi) -> None: ...
async def _go_on(message: Message, api: HookApi) -> str | None:
    return "talk" if len(text_of(message)) == 17 else None


HOOKS = Extension("hooks", hooks=Hooks(before_tool=_call, on_yield=_go_on))


class Crowd:
    """What a crowd does is drawn from a seed, and so are its deaths."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        draw = self.random.choice
        self.settings = Settings(
            after_failed_run=draw(("keep", "withdraw")),
            steering_mode=draw(MODES),
            follow_up_mode=draw(MODES),
            tool_execution=draw(("parallel", "parallel", "sequential")),
            retry=Retry(retries=draw((0, 2)), delay=timedelta(seconds=1)),
            compaction=Compaction(enabled=draw((True, False)), keep_recent=120, reserve=100, background=draw((0, 200))),
        )
        self.window = draw((0, 900))
        self.extensions = draw(([], [HOOKS]))
        self.reports: list[BaseException] = []

    async def client(self, where: Conversation) -> None:
        draw = self.random
        for _ in range(draw.randint(1, 6)):
            await asyncio.sleep(draw.choice((0, 0, 0.05, 0.3, 1, 4)))
            match draw.choice(("submit",) * 6 + ("write", "write", "reset", "abort", "compact", "withdraw", "mark")):
                case "submit":
                    when = draw.choice(("follow_up", "follow_up", "steer", "reject"))
                    with suppress(ConversationBusy):
                        await where.submit(draw.choice(WORDS), when_busy=when, request_id=draw.choice((None, "a", "b")))  # type: ignore[arg-type]
                case "write":
                    await where.write("app.note", text="note")
                case "reset":
                    await where.reset(draw.choice((None, "anew")))
                case "abort":
                    await where.abort(background=draw.random() < 0.5)
                case "compact":
                    await where.compact()
                case "withdraw":
                    found = await submissions_of(where.owning_harness)
                    if found:
                        await (await where.owning_harness.submission(draw.choice(found).id)).abort()
                case _:
                    tasks = await where.owning_harness.tasks(live=True)
                    if tasks:
                        await where.owning_harness.abort(draw.choice(tasks).id)

    def live(self, after: Death | None) -> list[Death]:
        """One life to its end, of a new store or behind a death. Returns the deaths that it could have died."""
        store = after.store if after is not None else MemoryStorage()
        clock = LoopClock(after.at_ms + 1000 if after is not None else START_MS)
        copier = Copier(store, clock)

        async def life() -> None:
            await store.close()
            async with Harness.open(
                store, models=[teacher_of(self.window)], tools=[look, step, end], extensions=self.extensions,
                settings=replace(self.settings, clock=clock, probe=copier), on_report=self.reports.append,
            ) as h:  # fmt: skip
                root = await h.root()
                async with root.commit() as tx:
                    at = tx.append("app.first")
                there = [root, await root.fork(at=at)]
                await asyncio.gather(
                    *[self.client(self.random.choice(there)) for _ in range(self.random.randint(1, 5))]
                )
                async with h.moving() as moved:
                    while await h.tasks(live=True):
                        await moved()
                await sound(h)

        loop.run(life(), limit=400_000, seed=self.random.randrange(1 << 30))
        return copier.deaths


def teacher_of(window: int) -> Scripted:
    found = teacher()
    found.context_window = window
    return found


def crowd(seed: int) -> None:
    """Three lives of a crowd."""
    found = Crowd(seed)
    last: Death | None = None
    try:
        for _ in range(3):
            deaths = found.live(last)
            last = found.random.choice(deaths)
    except BaseException as error:
        error.add_note(f"seed {seed}, behind {last.where if last is not None else 'nothing'}; {found.settings}")
        raise
    assert found.reports == [], seed


@pytest.mark.parametrize("seed", range(25))
def test_b16_s2_t2_a_crowd_s_submissions_all_end_in_a_stated_condition(seed: int) -> None:
    crowd(seed)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(4))
def test_b16_s2_t2_many_crowds_submissions_all_end_in_a_stated_condition(part: int) -> None:
    for seed in range(100 + part * 20, 120 + part * 20):
        crowd(seed)
