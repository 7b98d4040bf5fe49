"""Whatever a kill or a power cut leaves of a JSONL store, it opens as a beginning of what was committed.

The disk is a model (`jsonl_disk`): under it and for these runs, nothing more. Every image is a real folder that is
really opened.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pidurable_nb.store import jsonl_holding, jsonl_journal, jsonl_main, jsonl_recovery, jsonl_sidecars
from pidurable_nb.store.jsonl import JsonlStorage
from pidurable_nb.store.jsonl_journal import Journal
from pidurable_nb.store.jsonl_main import MainFile
from pidurable_nb.store.jsonl_sidecars import Sidecars
from tests.store.jsonl_disk import Cut, Recorder, kill_images, power_images, put
from tests.store.jsonl_story import Told, tell, wrong_with


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Space is reclaimed early, so that short runs do it often."""
    monkeypatch.setattr(jsonl_sidecars, "MOST_ENDED", 2)
    monkeypatch.setattr(jsonl_sidecars, "MOST_WASTE", 300)
    monkeypatch.setattr(jsonl_sidecars, "SMALL_WASTE", 100)
    monkeypatch.setattr(jsonl_sidecars, "MOST_OPEN", 3)


async def sweep(cuts: Iterator[Cut], told: Told, folder: Path, *, power: bool = False) -> tuple[int, list[str]]:
    """How many images were looked at, and what was wrong with which."""
    count, wrong = 0, list[str]()
    for cut in cuts:
        count += 1
        problem = await wrong_with(cut.image, told, told.bounds(cut.done, power=power), folder)
        if problem:
            wrong.append(f"{cut}: {problem}")
            if len(wrong) >= 20:
                break
    return count, wrong


def swept_kills(tmp_path: Path, *, seed: int, groups: int, fsync: bool = False) -> tuple[int, list[str]]:
    async def main() -> tuple[int, list[str]]:
        told = await tell(tmp_path / "run", seed=seed, groups=groups, fsync=fsync)
        return await sweep(kill_images(told.ops, {}), told, tmp_path / "image")

    return asyncio.run(main())


@pytest.mark.parametrize(("seed", "fsync"), [(1, False), (2, True)])
def test_c1_every_kill_leaves_a_beginning_of_what_was_committed(tmp_path: Path, seed: int, fsync: bool) -> None:
    count, wrong = swept_kills(tmp_path, seed=seed, groups=40, fsync=fsync)
    assert wrong == []
    assert count >= 1000


