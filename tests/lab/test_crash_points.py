"""The list of crash points: every place has a stable name, its task and phase, the laws at stake, and its commit."""

from __future__ import annotations

import asyncio

import pytest

from pidurable_nb.lab.dying.crash_points import PointInfo, points
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.scenario import builtin


@pytest.fixture(scope="module")
def ticker() -> tuple[PointInfo, ...]:
    return points(builtin("ticker"))


def test_every_point_of_a_life_is_listed_once_and_its_name_is_read_back(ticker: tuple[PointInfo, ...]) -> None:
    names = [str(info) for info in ticker]
    assert len(set(names)) == len(names) > 200
    assert [Point.parse(name) for name in names] == [info.point for info in ticker]
    assert {info.point.what for info in ticker} == {
        "reserve", "phase", "memo", "commit", "effect", "publish",
        "vfs.write", "vfs.sync", "vfs.truncate", "vfs.delete",
    }  # fmt: skip


def test_a_point_of_a_task_names_task_phase_law_and_commit(ticker: tuple[PointInfo, ...]) -> None:
    by_name = {str(info): info for info in ticker}
    before, after = by_name["ticker#1/tick:memo.before@2"], by_name["ticker#1/tick:memo.after@2"]
    assert (before.task, before.phase, before.id) == ("ticker#1", "tick", 7)
    assert before.laws == ("M1", "M2")
    assert before.commit == after.commit is not None
    effect = by_name["ticker#1/tick:effect.after@2"]
    assert (effect.about, effect.commit, effect.laws) == ("print tick 2", None, ("M3", "E6"))
    reserve = by_name["ticker#1/tick:reserve.before"]
    assert reserve.laws == ("T2",)
    assert "It never began" in reserve.about
    assert all(info.laws for info in ticker)


def test_a_file_operation_names_the_commit_that_is_being_stored(ticker: tuple[PointInfo, ...]) -> None:
    operations = [info for info in ticker if info.point.what[:4] == "vfs."]
    assert all((info.task, info.phase, info.id) == (None, None, None) for info in operations)
    stored = [info.commit for info in operations if info.commit is not None]
    assert stored == sorted(stored)
    assert {info.commit for info in ticker if info.commit is not None} == set(range(1, max(stored) + 1)) == set(stored)
    assert operations[0].commit is None  # the file is being made
    assert next(info for info in operations if info.point.what == "vfs.sync").laws == ("E5",)


def test_points_are_the_same_again_and_without_the_files(ticker: tuple[PointInfo, ...]) -> None:
    again = points(builtin("ticker"), files=False)
    assert again == tuple(info for info in ticker if info.point.what[:4] != "vfs.")


def test_a_model_chunk_and_a_tool_are_points_of_an_agent_and_a_running_loop_is_no_hindrance() -> None:
    async def listed() -> tuple[PointInfo, ...]:
        return points(builtin("refund"), files=False)

    found = asyncio.run(listed())
    assert "chunk" in {info.point.what for info in found}
    tool = next(info for info in found if info.task == "pi.tool#1" and info.point.what == "effect")
    assert (tool.phase, tool.laws) == ("execute", ("E1", "E2", "E3"))
    row = tool.to_json()
    assert list(row) == ["point", "task", "id", "phase", "what", "edge", "laws", "commit", "about"]
