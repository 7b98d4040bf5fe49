"""Sweeps as assertions, in any test runner: what they return, what they raise, and that nothing is left."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pidurable_nb import Done, Harness, Phase, Runtime
from pidurable_nb.lab.dying.forkserver import ForkServerError
from pidurable_nb.lab.scenario import Scenario, UnknownScenario
from pidurable_nb.lab.sweeping.replay import NeverPassed
from pidurable_nb.lab.sweeping.sweep import sweep
from pidurable_nb.testing import assert_sweep, check_crash, sweep_scenario
from pidurable_nb.testing.crash_point import Bench, Courses, CrashPoint, crash_points


class Late(Phase[str], task="late"):
    """Acts before it remembers."""

    async def run(self, rt: Runtime) -> Done[str]:
        if await rt.recall("paid", bool) is None:
            await rt.effect("pay \x1b[2J Ada", lambda: None)
            await rt.memo("paid", True)
        return Done("paid")


async def begin(harness: Harness) -> None:
    await (await harness.root()).start(Late())


def late() -> Scenario:
    """A scenario that nobody finds by its name."""
    return Scenario(
        name="late", title="it acts before it remembers", module=__name__, tasks=lambda: [Late], begin=begin,
        kill_point=None, policy={"pay *": "at_most_once"},
    )  # fmt: skip


def test_m3_a_sweep_of_an_object_that_nobody_can_import_fails_with_its_story() -> None:
    with pytest.raises(AssertionError) as caught:
        sweep_scenario(late())
    text = str(caught.value)
    first = text.splitlines()[0]
    assert first.endswith(":late: pay \\x1b[2J Ada happened 2 times; its memo comes first (M3)")
    assert "frozen at late#1/late:effect.after" in text
    assert "asked 2   pay \\x1b[2J Ada" in text
    assert "\x1b" not in text  # a name from a store acts on nobody's terminal


def test_a_result_says_what_broke_even_where_its_story_cannot_be_told() -> None:
    found = sweep(late())
    with pytest.raises(AssertionError) as caught:
        assert_sweep(found)
    text = str(caught.value)
    assert "effect_twice: freeze at late#1/late:effect.after" in text
    assert "Its story cannot be told: UnknownScenario" in text
    assert "2 effect_twice; durability barrier, seed 1" in text


def test_a_kill_of_what_no_new_process_can_import_is_refused_in_one_sentence() -> None:
    with pytest.raises(ForkServerError) as caught:
        sweep_scenario(replace(late(), module="nowhere"), kinds=("kill",))
    assert str(caught.value) == (
        "the fork server cannot start: module nowhere cannot be imported: ModuleNotFoundError: No module named "
        "'nowhere'; a kill, and more than one process, take a scenario in a module that a new process can import; "
        "freeze takes any"
    )


def test_a_sweep_that_was_stopped_is_no_proof() -> None:
    stop = threading.Event()
    stop.set()
    found = sweep(late(), stop=stop)
    assert found.ok
    with pytest.raises(AssertionError, match="the sweep did not come to its end: stopped after 0 of"):
        assert_sweep(found)


def test_an_interrupt_ends_the_run_and_not_only_the_sweep() -> None:
    begun: list[Harness] = []

    async def interrupted(harness: Harness) -> None:
        begun.append(harness)
        if len(begun) > 3:
            raise KeyboardInterrupt
        await begin(harness)

    with pytest.raises(KeyboardInterrupt):
        sweep_scenario(replace(late(), begin=interrupted))
    assert len(begun) == 4
    with pytest.raises(KeyboardInterrupt):
        sweep_scenario(replace(late(), begin=interrupted))  # before anything was found


def test_inside_an_event_loop_it_says_where_to_go_and_goes_there() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="sweep in a plain test function, or in await"):
            check_crash("sleeper", "conversation#1:commit.after")
        told = await asyncio.to_thread(check_crash, "sleeper", "conversation#1:commit.after")
        assert told.ok

    asyncio.run(main())


def test_what_is_right_comes_back() -> None:
    found = sweep_scenario("sleeper", kinds="freeze")
    assert found.classes == {"as_promised": found.points}
    assert_sweep(found)


def test_one_crash_stays_as_a_test_of_its_own() -> None:
    told = check_crash("two-orders", "act-first#1/actFirst:effect.after")
    assert told.asked["mail Ada"] == 2
    with pytest.raises(AssertionError) as caught:
        check_crash(late(), "late#1/late:memo.before")
    assert "freeze at late#1/late:memo.before; durability barrier, seed 1" in str(caught.value)
    with pytest.raises(NeverPassed):
        check_crash("sleeper", "nobody#1/night:effect.after")
    with pytest.raises(UnknownScenario):
        check_crash("nobody", "conversation#1:commit.after")


def test_a_bench_leaves_neither_folder_nor_process() -> None:
    courses, bench = Courses(), Bench(Path.cwd())
    course = courses.of(crash_points("sleeper", kinds=("kill",)))
    assert courses.of(crash_points("sleeper", second=True)).points is course.points  # one life for both
    _, place = course.places()[0]
    point = CrashPoint(place, bench)
    assert repr(point) == f"<kill sleeper at {point}>"
    assert point.check().ok
    hands = bench.hands(course.asked.scenario, kill=True)
    assert hands.folder.is_dir()
    assert list(hands.folder.iterdir()) == []
    assert hands.server is not None
    server = hands.server
    assert server.pid is not None
    bench.close()
    assert not hands.folder.exists()
    assert server.pid is None


def test_every_name_loads_where_pytest_is_not_installed() -> None:
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "import pidurable_nb.testing as t\n"
        "assert [name for name in sys.modules if name.startswith('pidurable_nb.')] == ['pidurable_nb.testing']\n"
        "assert all(getattr(t, name) for name in t.__all__)\n"
        "assert len(t.checks()) > 20\n"
        "assert t.sweep_scenario('sleeper').ok\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
