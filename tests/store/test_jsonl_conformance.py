"""The JSONL storage keeps every promise of the protocol, also when it is reopened after every commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from pidurable_nb.store.jsonl import JsonlStorage
from pidurable_nb.store.storage import Storage
from pidurable_nb.testing.storage_conformance import Check, Reopening, each_check

Factory = Callable[[Path], Storage]


def threaded(folder: Path) -> Storage:
    return JsonlStorage(folder / "store")


def inline(folder: Path) -> Storage:
    return JsonlStorage(folder / "store", inline=True)


def synced(folder: Path) -> Storage:
    return JsonlStorage(folder / "store", fsync=True, inline=True)


def reopened(folder: Path) -> Storage:
    return Reopening(lambda: JsonlStorage(folder / "store", inline=True))


def synced_and_reopened(folder: Path) -> Storage:
    return Reopening(lambda: JsonlStorage(folder / "store", fsync=True, inline=True))


@pytest.mark.slow
@pytest.mark.parametrize("storage", [threaded, inline, synced, reopened, synced_and_reopened])
@each_check()
def test_c1_jsonl_keeps_the_promises_of_a_storage(check: Check, storage: Factory, tmp_path: Path) -> None:
    async def make() -> Storage:
        made = storage(tmp_path)
        await made.open()
        return made

    asyncio.run(check.run(make))
