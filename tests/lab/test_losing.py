"""Memos that came second: what a walk and a life that died see of them, and that nobody else says anything."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from pidurable_nb import Done, Harness, Phase, Runtime
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.code import Loaded
from pidurable_nb.lab.looking.program import Program
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.scene.losing import MOST, lost_in
from pidurable_nb.lab.scene.parts import Memo
from pidurable_nb.lab.scene.scene import Scene
from pidurable_nb.lab.scene.source import ScenarioSource, StoreSource
from pidurable_nb.probe import Mark, SessionSubject, TaskSubject
from pidurable_nb.store.copying import copy_store

V = TypeVar("V")
NOW_MS = 1_800_000_000_000
FRESH = itertools.count(1)
"""What every attempt finds anew, as a clock or a random number."""


class Choose(Phase[str], task="chooser"):
    """Keeps the first value of one memo, and the same value of another one, before it goes outside."""

    async def run(self, rt: Runtime) -> Done[str]:
        kept = await rt.memo("pick", f"value {next(FRESH)}")
        await rt.memo("same", True)
        await rt.effect(f"use {kept}", lambda: "used")
        return Done(kept)


async def begin(harness: Harness) -> None:
    root = await harness.root()
    await root.start(Choose())


CHOICE = Scenario(
    name="choice", title="a choice", module="__main__", tasks=lambda: (Choose,), begin=begin, kill_point=None
)
DIED = "chooser#1/choose:effect.after"


def memo(scene: Scene, name: str) -> Memo:
    return next(memo for task in scene.tasks for memo in task.memos if memo.name == name)


def test_m1_a_walk_shows_the_value_that_came_second_and_who_brought_it() -> None:
    with ScenarioSource(CHOICE, points=[DIED]) as source:
        start = memo(source.scene(), "pick")
        assert start.lost == ()
        end = memo(source.finish(), "pick")
        assert end.value == start.value
        (lost,) = end.lost
        assert lost.value.startswith('"value ')
        assert lost.value != end.value
        assert lost.by is not None
        assert lost.by.startswith("this recovery · step ")
        assert memo(source.scene(), "same").lost == ()  # the same value again is nobody's loss
        assert memo(source.goto(0), "pick").lost == ()


def test_m1_every_life_and_the_recovery_lose_their_own_and_the_first_value_stays() -> None:
    with ScenarioSource(CHOICE, points=[DIED, DIED]) as source:
        start = memo(source.scene(), "pick")
        assert [lost.by for lost in start.lost] == ["life 2"]
        end = memo(source.finish(), "pick")
    assert end.value == start.value
    assert end.lost[0].by == "life 2"
    assert len({end.value, *(lost.value for lost in end.lost)}) == 3


RACE = """
import asyncio
from pidurable_nb import Done, Phase
from pidurable_nb.lab.scenario import Scenario

class Choose(Phase[str], task="chooser"):
    async def run(self, rt) -> Done[str]:
        at = rt.now().isoformat()
        kept, _ = await asyncio.gather(rt.memo("pick", f"one, {at}"), rt.memo("pick", f"\\udc80 other\\n, {at}"))
        await rt.effect("use it", lambda: "used")
        return Done(kept)

async def begin(harness):
    await (await harness.root()).start(Choose())

RACE = Scenario(name="race", title="a race", module=__name__, tasks=lambda: (Choose,), begin=begin, kill_point=None)
"""
"""Two attempts race in every life, and every life has another time to offer."""


@pytest.mark.parametrize("point", ["effect.before", "effect.after", "commit.before"])
@pytest.mark.parametrize("lives", [1, 2])
def test_m1_a_real_sigkill_takes_no_loser_a_killed_life_tells_those_of_a_frozen_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, lives: int
) -> None:
    (tmp_path / "race_for_a_memo.py").write_text(RACE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "race_for_a_memo", raising=False)
    race = importlib.import_module("race_for_a_memo").RACE
    told = []
    for kind in ("freeze", "kill"):
        with ScenarioSource(race, points=[f"chooser#1/choose:{point}"] * lives, kind=kind) as source:
            start, end = source.scene(), source.finish()
            assert start.how is not None
            assert ("SIGKILL" in start.how) == (kind == "kill")
            told.append((memo(start, "pick"), memo(end, "pick")))
    assert told[0] == told[1]
    first, last = told[0]
    assert [lost.by for lost in first.lost] == ["life 1", "life 2", "life 2"][: 2 * lives - 1]
    assert len(last.lost) == 2 * lives + 1
    assert last.value == first.value
    assert "other" in first.lost[0].value


def stuck() -> type[Phase[str]]:
    """The chooser as it was once: it remembers, and waits."""

    class Choose(Phase[str], task="chooser"):
        async def run(self, rt: Runtime) -> Done[str]:
            await rt.memo("pick", "the first")
            await asyncio.Event().wait()
            return Done("never")

    return Choose


def test_m1_of_a_file_nothing_is_said_before_somebody_loses(tmp_path: Path) -> None:
    first = stuck()

    async def main() -> Path:
        async with Harness.open(tmp_path / "a.sqlite", tasks=[first]) as harness:
            root = await harness.root()
            ref = await root.start(first())
            while not (await harness.task(ref)).memos:  # noqa: ASYNC110 - the store says when
                await asyncio.sleep(0.005)
            return copy_store(tmp_path / "a.sqlite", tmp_path / "died")

    died = asyncio.run(main())
    code = Loaded(name="test", program=Program(tasks=(Choose,)))
    with StoreSource(died, code=code, now_ms=NOW_MS) as source:
        assert memo(source.scene(), "pick").lost == ()
        end = memo(source.finish(), "pick")
    assert end.value == '"the first"'
    assert len(end.lost) == 1


class Heard:
    """A probe that keeps what it is told of, and does nothing else."""

    one_by_one = False

    def __init__(self) -> None:
        self.notes: list[Mark] = []

    async def reach(self, mark: Mark) -> None:
        pass

    def note(self, mark: Mark) -> None:
        self.notes.append(mark)

    async def perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        got = do()
        if inspect.isawaitable(got):
            value: V = await got
            return value
        return got


class Twice(Phase[str], task="twice"):
    async def run(self, rt: Runtime) -> Done[str]:
        first = await rt.memo("pick", {"n": 1})
        second = await rt.memo("pick", {"n": 2})
        again = await rt.memo("pick", {"n": 1})
        assert first == second == again
        return Done("kept")


@pytest.mark.parametrize("heard", [True, False])
def test_m1_only_a_probe_is_told_what_lost_and_nothing_of_it_is_stored(tmp_path: Path, heard: bool) -> None:
    probe = Heard()

    async def main() -> None:
        settings = Settings(probe=probe) if heard else Settings()
        async with Harness.open(tmp_path / "a.sqlite", tasks=[Twice], settings=settings) as harness:
            root = await harness.root()
            assert await harness.wait(await root.start(Twice())) == "kept"

    asyncio.run(main())
    lost: Sequence[Mark] = [mark for mark in probe.notes if mark.what == "lost"]
    assert [(mark.name, mark.text, mark.laws) for mark in lost] == ([("pick", '{"n":2}', ("M1",))] if heard else [])


def test_the_losers_of_one_memo_are_bounded_and_cut() -> None:
    subject = TaskSubject(TaskId(1), "k", "p")
    found = lost_in([(f"try {n}", Mark(subject, "lost", "after", "m", text="x" * 1000)) for n in range(MOST + 5)])
    ((_, losers),) = found.items()
    assert len(losers) == MOST
    assert losers[-1].by == f"try {MOST + 4}"
    assert all(len(one.value) <= 300 for one in losers)
    assert lost_in([("nobody", Mark(SessionSubject(), "lost", "after", "m"))]) == {}
