"""A sweep across machines: two workers of a real Dask cluster find what one process finds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from pidurable_nb.lab.scenario import UnknownScenario, find
from pidurable_nb.lab.sweeping.dask import done_far
from pidurable_nb.lab.sweeping.faults import fault_pieces
from pidurable_nb.lab.sweeping.hands import Hands
from pidurable_nb.lab.sweeping.images import image_pieces
from pidurable_nb.lab.sweeping.pieces import Piece, Sweeping
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.sweep import Progress, sweep
from pidurable_nb.lab.sweeping.work import work

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAP = """
from pidurable_nb import Done, Harness, Phase, Runtime
from pidurable_nb.lab.scenario import Scenario


class Nap(Phase[str], task="nap"):
    n: int

    async def run(self, rt: Runtime) -> "Done[str]":
        await rt.effect("snore", lambda: None)
        return Done("up")


async def begin(harness: Harness) -> None:
    root = await harness.root()
    await root.start(Nap(1))


NAP = Scenario(
    name="nap", title="as short as can be", module=__name__, tasks=lambda: [Nap], begin=begin, kill_point=None,
    policy={"snore": "at_least_once"},
)
"""


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of two worker processes, which can import `short_nap`, listening on the loopback address only."""
    folder: Path = tmp_path_factory.mktemp("dask")
    (folder / "short_nap.py").write_text(NAP)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)  # child processes begin with this path
        patch.chdir(folder)
        cluster = LocalCluster(  # type: ignore[no-untyped-call]  # it is not annotated
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", local_directory=str(folder),
            dashboard_address="127.0.0.1:0",  # none would be a port that somebody else may have, on every interface
        )  # fmt: skip
        with cluster, Client(cluster) as client:  # type: ignore[no-untyped-call]  # likewise
            yield client


def same(one: SweepResult, other: SweepResult) -> None:
    """All but times and rates."""
    for field in ("points", "images", "runs", "classes", "cells", "witnesses", "violations", "byte_identical", "note"):
        assert getattr(one, field) == getattr(other, field), field
    assert list(one.cells) == list(other.cells)  # the order too
    assert one.pieces == one.done == other.done


def test_the_result_is_the_same_wherever_the_work_is_done(workers: Client) -> None:
    scenario, told = find("short_nap:nap"), list[Progress]()
    far = sweep(scenario, kinds=("freeze", "kill"), client=workers, on_progress=told.append)
    here = sweep(scenario, kinds=("freeze", "kill"))
    same(far, here)
    assert far.ok, far.violations
    assert far.classes["effect_twice"] > 0
    assert [progress.done for progress in told] == list(range(1, far.pieces + 1))
    assert far.text() == here.text()


def test_second_crashes_are_the_same_too(workers: Client) -> None:
    scenario = find("short_nap:nap")
    same(sweep(scenario, second=True, client=workers), sweep(scenario, second=True))


def test_pieces_of_images_and_faults_count_the_same_there_too(workers: Client, tmp_path: Path) -> None:
    scenario, sweeping = find("short_nap:nap"), Sweeping()
    pieces: list[Piece] = [
        image_pieces(scenario, sweeping, "power", tmp_path / "power")[-1],
        fault_pieces(scenario, sweeping, tmp_path / "fault")[-1],
    ]
    there = list(done_far(workers, scenario, sweeping, pieces, threading.Event()))
    here = [work(Hands(scenario, tmp_path), sweeping, piece) for piece in pieces]
    for one, other in zip(there, here, strict=True):
        assert one.images > 0
        assert replace(one, took={}) == replace(other, took={})


def test_a_scenario_that_workers_cannot_import_is_refused_before_anything_is_sent(workers: Client) -> None:
    with pytest.raises(UnknownScenario, match="not_there"):
        sweep(replace(find("short_nap:nap"), module="not_there"), client=workers)
