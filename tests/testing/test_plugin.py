"""The pytest plugin, as its users meet it: whole runs of pytest in processes of their own, with real sweeps."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
MINE = """
from pidurable_nb import Done, Harness, Phase, Runtime
from pidurable_nb.lab.scenario import Scenario, outcomes_are


class Right(Phase[str], task="right"):
    async def run(self, rt: Runtime) -> Done[str]:
        if await rt.recall("paid", bool) is None:
            await rt.memo("paid", True, barrier=True)
            await rt.effect("pay Ada", lambda: print("Ada is paid"))
        return Done("paid")


class Wrong(Phase[str], task="wrong"):
    async def run(self, rt: Runtime) -> Done[str]:
        if await rt.recall("paid", bool) is None:
            await rt.effect("pay Ada", lambda: print("Ada is paid"))
            await rt.memo("paid", True)  # too late
        return Done("paid")


def stumble(facts):
    raise ValueError("stumbled")  # a mistake in the test's own code


def scenario(name, first, *, outcome="completed", invariants=None):
    async def begin(harness: Harness) -> None:
        if first is None:
            raise RuntimeError("nobody is home")
        await (await harness.root()).start(first())

    return Scenario(
        name=name, title="Ada is paid once at most", module=__name__, tasks=lambda: [first] if first else [],
        begin=begin, kill_point=None, policy={"pay *": "at_most_once"},
        invariants=invariants or (lambda facts: outcomes_are(facts, right=outcome) if first is Right else ()),
    )


RIGHT, WRONG = scenario("right", Right), scenario("wrong", Wrong)
NEVER_RIGHT, NOBODY = scenario("never-right", Right, outcome="aborted"), scenario("nobody", None)
STUMBLING = scenario("stumbling", Right, invariants=stumble)
"""
"""A module of a user's: a scenario that is right, one with the memo behind its effect, and two that cannot be swept."""

BETWEEN = ["wrong#1/wrong:effect.after", "wrong#1/wrong:memo.before"]
"""Where Ada is paid and no row says so."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs keep what they compile: a plugin's package is rewritten by pytest, and that once is enough."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def mine(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, compiled: Path) -> pytest.Pytester:
    """A folder of a user's with `mine.py`, where every warning is an error."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(compiled))
    pytester.makeini("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    pytester.makepyfile(mine=MINE)
    return pytester


def ran(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *words)


def ended(result: pytest.RunResult, how: str) -> list[str]:
    """The points of the tests that ended like that, in their order; the run was a `-v` one."""
    return re.findall(rf"^test_\S+::test_\w+\[(\S+)\] {how}", result.stdout.str(), re.MULTILINE)


# The marker.


def test_m3_a_scenario_that_acts_before_it_remembers_fails_exactly_where_it_can_die_in_between(
    mine: pytest.Pytester,
) -> None:
    mine.makepyfile(
        """
        import pytest

        @pytest.mark.crash_points("mine:wrong")
        def test_ada_is_paid_once(crash_point):
            crash_point.check()
        """
    )
    result = ran(mine, "-v")
    passed = ended(result, "PASSED")
    assert ended(result, "FAILED") == BETWEEN
    assert passed[0] == "conversation#1:commit.before"  # in the order of the scenario's life
    assert passed.index("wrong#1/wrong:effect.before") < passed.index("wrong#1/wrong:memo.after")
    result.assert_outcomes(failed=2, passed=len(passed))
    text = result.stdout.str()
    result.stdout.fnmatch_lines(
        [
            ">       crash_point.check()",
            "E       AssertionError: mine:wrong: pay Ada happened 2 times; its memo comes first (M3)",
            "E       effect_twice: freeze at wrong#1/wrong:effect.after",
            "E       Life 1",
            "E       * wrong#1/wrong:effect.before *pay Ada",
            "E       *frozen at wrong#1/wrong:effect.after",
            "E       Life 2, foretold: task * rerun",
            "E       * 2!wrong#1/wrong:reserve.before *RERUN *T3*",
            "E       *ended by itself",
            "E         asked 2   pay Ada",
        ]
    )
    assert "pidurable_nb/testing" not in text  # no frame of the plugin's
    assert "pidurable_nb/lab" not in text


@pytest.mark.slow
def test_what_a_failure_prints_repeats_it_from_the_shell_and_in_python(mine: pytest.Pytester) -> None:
    mine.makepyfile(
        """
        import pytest
        from pidurable_nb.testing import CrashPoint

        @pytest.mark.crash_points("mine:wrong", seed=7)
        def test_ada_is_paid_once(crash_point: CrashPoint):
            crash_point.check()
        """
    )
    text = ran(mine, "-k", "effect.after").stdout.str()
    [command] = re.findall(r"^E +python -m (pidurable_nb sweep .*)$", text, re.MULTILINE)
    told = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)], cwd=mine.path, capture_output=True, text=True, check=False
    )
    assert told.returncode == 1
    assert "VIOLATION  effect_twice: pay Ada happened 2 times" in told.stdout
    lines = re.findall(r"^E +(from pidurable_nb.testing import .*|check_crash\(.*)$", text, re.MULTILINE)
    assert len(lines) == 2
    raised = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(lines)],
        cwd=mine.path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert raised.returncode == 1
    assert "AssertionError: mine:wrong: pay Ada happened 2 times; its memo comes first (M3)" in raised.stderr
    assert "seed 7" in raised.stderr


@pytest.mark.slow
def test_m3_kinds_are_tests_of_their_own_and_a_kill_is_a_real_one(mine: pytest.Pytester) -> None:
    mine.makepyfile(
        """
        import pytest

        import mine

        @pytest.mark.crash_points("mine:right", kinds=("freeze", "kill"))
        def test_right(crash_point):
            assert crash_point.check().images == 1

        @pytest.mark.crash_points(mine.WRONG, kinds=("kill",))
        class TestWrong:
            def test_wrong(self, crash_point):
                crash_point.check()

            def test_another(self):
                pass
        """
    )
    result = ran(mine, "-v", "-k", "effect or another")
    at = "right#1/right:effect"
    several = [f"{at}.before-freeze", f"{at}.before-kill", f"{at}.after-freeze", f"{at}.after-kill"]
    assert ended(result, "PASSED") == [*several, "wrong#1/wrong:effect.before"]
    assert ended(result, "FAILED") == ["wrong#1/wrong:effect.after"]
    result.assert_outcomes(passed=6, failed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["E *killed by SIGKILL at wrong#1/wrong:effect.after", "E *--kind kill*"])


@pytest.mark.slow
def test_a_second_crash_in_the_recovery_is_part_of_the_story(mine: pytest.Pytester) -> None:
    mine.makepyfile(
        """
        import pytest

        @pytest.mark.crash_points("mine:wrong", second=True)
        def test_ada_is_paid_once(crash_point):
            crash_point.check()
        """
    )
    result = ran(mine, "-k", "reserve.before")
    result.stdout.fnmatch_lines(
        [
            "E       effect_twice: freeze at wrong#1/wrong:reserve.before, 2!wrong#1/wrong:effect.after",
            "E       Life 3, foretold: *",
            "E *check_crash('mine:wrong', 'wrong#1/wrong:reserve.before', '2!wrong#1/wrong:effect.after')",
        ]
    )


@pytest.mark.slow
def test_xdist_workers_find_the_same_points(mine: pytest.Pytester) -> None:
    mine.makepyfile(
        """
        import pytest

        @pytest.mark.crash_points("mine:right", kinds=("freeze", "kill"))
        def test_right(crash_point):
            crash_point.check()
        """
    )
    result = ran(mine, "-n", "2", "-k", "effect or memo", "--crash-seed", "3")
    result.assert_outcomes(passed=8)


REFUSALS = {
    '"mine:right", kinds="burn"': "kinds cannot be 'burn'; write one of freeze, kill",
    '"mine:right", kinds=("kill", "power")': "sweep them with the fixture crash_sweep",
    '"mine:right", kind="kill"': "crash_points() got an unexpected keyword argument 'kind'",
    '"mine:right", durability="never"': "durability cannot be 'never'; write one of",
    '"mine:right", seed=0': "seed cannot be 0; write 1, 2, …",
    '"mine:right", second="yes"': "second cannot be 'yes'; write True or False",
    '"mine:left"': "module 'mine' holds no scenario called 'left'; there is right, wrong, never-right,",
    '"yours:right"': "module 'yours' cannot be imported",
    "17": "17 is no scenario; give a Scenario, or the name of one as 'module:name'",
    '"mine:nobody"': "does not come out right where nothing crashes: life 1 ended with RuntimeError: nobody is home",
    '"mine:never-right"': "does not come out right where nothing crashes: right 7 is completed, not aborted",
    '"mine:stumbling"': "ValueError: stumbled (",
}


def test_a_marker_that_cannot_be_met_is_one_sentence_at_collection(mine: pytest.Pytester) -> None:
    for number, arguments in enumerate(REFUSALS):
        mine.makepyfile(
            **{
                f"test_{number}": f"""
                import pytest

                @pytest.mark.crash_points({arguments})
                def test_it(crash_point):
                    crash_point.check()
                """
            }
        )
    mine.makepyfile(
        test_forgotten="""
        import pytest

        @pytest.mark.crash_points("mine:right")
        def test_it():
            pass
        """
    )
    result = ran(mine)
    text = result.stdout.str()
    for number, sentence in enumerate(REFUSALS.values()):
        assert re.search(rf"^test_{number}.py::test_it: @pytest.mark.crash_points.*{re.escape(sentence)}", text, re.M)
    assert "is for a test that takes crash_point, which this one does not" in text
    [line] = re.findall(r"stumbled \(.*mine.py:(\d+)\)", text)
    assert 'raise ValueError("stumbled")' in (mine.path / "mine.py").read_text().splitlines()[int(line) - 1]
    assert "plugin.py" not in text
    assert "Traceback" not in text
    result.assert_outcomes(errors=len(REFUSALS) + 1)


# The fixture, and what is about it.


def test_a_sweep_in_a_test_is_what_was_found_or_a_failure_that_tells_it(mine: pytest.Pytester) -> None:
    mine.makepyfile(
        test_a="""
        import mine
        from pidurable_nb.testing import CrashSweep

        def test_right(crash_sweep: CrashSweep):
            found = crash_sweep(mine.RIGHT)
            assert found.seed == 5
            assert found.classes == {"as_promised": found.points}

        def test_wrong(crash_sweep: CrashSweep):
            crash_sweep("mine:wrong", seed=6)

        def test_nobody(crash_sweep: CrashSweep):
            crash_sweep("mine:left")

        def test_kinds(crash_sweep: CrashSweep):
            crash_sweep("mine:right", kinds=("freeze", "burn"))

        def test_stumbling(crash_sweep: CrashSweep):
            crash_sweep("mine:stumbling")

        def test_unmarked(crash_point):
            pass
        """
    )
    result = ran(mine, "--crash-seed", "5", "--deselect", "test_a.py::test_stumbling")
    result.assert_outcomes(passed=1, failed=3, errors=1, deselected=1)
    text = result.stdout.str()
    result.stdout.fnmatch_lines(
        [
            "crash_point is given by @pytest.mark.crash_points('module:name')",
            '>       crash_sweep("mine:wrong", seed=6)',
            "E       AssertionError: mine:wrong: pay Ada happened 2 times; its memo comes first (M3)",
            "E       * as_promised, * effect_twice; durability barrier, seed 6",
            '>       crash_sweep("mine:left")',
            "E       *UnknownScenario: module 'mine' holds no scenario called 'left'*",
            "E       *WrongSetting: kinds cannot be 'burn'; write one of freeze, kill, power, fault",
        ]
    )
    assert "pidurable_nb/testing" not in text
    assert "pidurable_nb/lab" not in text
    own = ran(mine, "test_a.py::test_stumbling")
    own.stdout.fnmatch_lines(['>   *raise ValueError("stumbled")*', "mine.py:*: ValueError"])


@pytest.mark.slow
def test_a_sweep_in_children_finds_modules_of_the_root_folder(mine: pytest.Pytester) -> None:
    mine.mkpydir("tests")
    (mine.path / "tests" / "test_it.py").write_text(
        "def test_right(crash_sweep):\n"
        "    found = crash_sweep('mine:right')\n"
        "    assert found.ok\n"
    )  # fmt: skip
    mine.makeini("[pytest]\naddopts = --import-mode=importlib\nfilterwarnings = error\n")
    ran(mine, "--crash-processes", "2").assert_outcomes(passed=1)


def test_options_are_numbers(mine: pytest.Pytester) -> None:
    result = ran(mine, "--crash-seed", "0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--crash-seed: '0' is no number; write 1, 2, …"])


def test_it_costs_a_run_that_does_not_use_it_nothing_and_can_be_switched_off(mine: pytest.Pytester) -> None:
    mine.makepyfile(
        """
        import sys

        def test_idle():
            there = sorted(name for name in sys.modules if name.partition(".")[0] == "pidurable_nb")
            assert there == ["pidurable_nb", "pidurable_nb.testing", "pidurable_nb.testing.plugin"]
        """
    )
    result = ran(mine, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.crash_points(scenario, *"])
    ran(mine).assert_outcomes(passed=1)
    off = ran(mine, "-p", "no:pidurable_nb", "--markers")
    assert off.ret == pytest.ExitCode.OK
    assert "crash_points" not in off.stdout.str()


def test_the_plugin_loads_pytest_and_nothing_else() -> None:
    program = (
        "import pytest, sys; before = set(sys.modules)\n"
        "import pidurable_nb.testing.plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pidurable_nb", "pidurable_nb.testing", "pidurable_nb.testing.plugin"]


@pytest.mark.slow
def test_the_page_about_it_is_true(mine: pytest.Pytester) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    [page] = [block for block in blocks if "crash_points" in block]
    [task] = [block for block in blocks if "class Tick" in block]
    mine.makepyfile(test_page=task.partition("async def main")[0] + page)
    result = ran(mine, "-v", "-k", "sweep or memo")
    assert ended(result, "PASSED")[0] == "ticker#1/tick:memo.before"
    outcomes = result.parseoutcomes()
    result.assert_outcomes(passed=outcomes["passed"], deselected=outcomes["deselected"])
