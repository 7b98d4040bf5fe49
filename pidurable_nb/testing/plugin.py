"""Owns what pytest sees: the marker `crash_points`, the fixtures `crash_point` and `crash_sweep`, and two options.

pytest loads it in every run of whoever has the package installed; so it imports pytest and nothing else, and the
laboratory comes with the first test that uses it. `-p no:pidurable_nb` switches it off. Never runs a life itself.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pidurable_nb.testing.crash_point import Bench, Course, Courses, CrashPoint
    from pidurable_nb.testing.swept import CrashSweep

_MARKER = "crash_points"
_SAYS = (
    "crash_points(scenario, *, kinds=('freeze',), durability='barrier', second=False, points='commits', seed=...): "
    "one test for each point of the scenario's first life and each way to die there; the test takes `crash_point`, "
    "and its check() crashes, recovers, and tells what broke. The scenario is an object or 'module:name'."
)
_COURSES: pytest.StashKey[Courses] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two options for sweeps that do not say it themselves."""
    group = parser.getgroup("pidurable_nb", "crashing scenarios")
    group.addoption(
        "--crash-seed", metavar="N", type=_count, default=1, help="decides the order of what is ready; default: 1"
    )
    group.addoption(
        "--crash-processes", metavar="N", type=_count, default=1,
        help="child processes that a crash_sweep works in; default: 1, which works in the test's own",
    )  # fmt: skip


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number; write 1, 2, …")
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    """The marker is one that pytest knows."""
    config.addinivalue_line("markers", _SAYS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each point of the scenario's first life, in its order, so that every worker finds the same ones."""
    mark = metafunc.definition.get_closest_marker(_MARKER)
    if mark is None:
        return
    takes = "crash_point" in metafunc.fixturenames
    own = [each for each in metafunc.definition.own_markers if each.name == _MARKER]
    if not takes and not own:
        return  # the mark of a class or module is for those of its tests that take it
    name = f"{metafunc.definition.nodeid}: @pytest.mark.{_MARKER}"
    if not takes:
        raise pytest.Collector.CollectError(f"{name} is for a test that takes crash_point, which this one does not")
    if len(own) > 1:
        raise pytest.Collector.CollectError(f"{name} stands there {len(own)} times; one scenario to a test")
    places = _course(metafunc.config, mark, name).places()
    metafunc.parametrize("crash_point", [place for _, place in places], ids=[id for id, _ in places], indirect=True)


def _course(config: pytest.Config, mark: pytest.Mark, name: str) -> Course:
    """The course that the marker asks for, lived once in a run. Raises: CollectError, one sentence."""
    from pidurable_nb.errors import PidurableError
    from pidurable_nb.testing.crash_point import Courses, crash_points
    from pidurable_nb.testing.swept import importable

    courses = config.stash.setdefault(_COURSES, Courses())
    try:
        with importable(config.rootpath):
            return courses.of(crash_points(*mark.args, **{"seed": _number(config, "crash_seed"), **mark.kwargs}))
    except PidurableError as error:
        raise pytest.Collector.CollectError(f"{name}: {error}") from None
    except Exception as error:  # whatever an argument that does not fit, or a module of the user's, may raise
        raise pytest.Collector.CollectError(f"{name}: {type(error).__name__}: {error}{_where(error)}") from None


def _where(error: Exception) -> str:
    """The newest line of the user's own that the error went through, if there is one."""
    ours = str(Path(__file__).parents[1])
    lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    theirs = [f" ({file}:{line})" for file, line in lines if not file.startswith(("<", ours))]
    return theirs[-1] if theirs else ""


@pytest.fixture(name="_crash_bench", scope="module")
def crash_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """What the crashes of a module share: folders, a bank, fork servers. Gone with the module."""
    from pidurable_nb.testing.crash_point import Bench

    bench = Bench(request.config.rootpath)
    yield bench
    bench.close()


@pytest.fixture
def crash_point(request: pytest.FixtureRequest, _crash_bench: Bench) -> CrashPoint:
    """One crash of a test that is marked `crash_points`: `check()` crashes there, recovers, and tells what broke."""
    from pidurable_nb.testing.crash_point import CrashPoint, Place

    place = getattr(request, "param", None)
    if not isinstance(place, Place):
        pytest.fail(f"crash_point is given by @pytest.mark.{_MARKER}('module:name')", pytrace=False)
    return CrashPoint(place, _crash_bench)


@pytest.fixture
def crash_sweep(request: pytest.FixtureRequest) -> CrashSweep:
    """Call it with a scenario: it crashes everywhere, recovers, returns what was found, or tells what broke."""
    from pidurable_nb.testing.swept import CrashSweep

    config = request.config
    return CrashSweep(
        seed=_number(config, "crash_seed"), processes=_number(config, "crash_processes"), root=config.rootpath
    )


def _number(config: pytest.Config, option: str) -> int:
    value = config.getoption(option)
    assert isinstance(value, int)
    return value
