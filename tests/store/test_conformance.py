"""Every storage of the package keeps every promise of the protocol, also when it is reopened after every commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pidurable_nb.ids import Seq
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import Commit, Storage
from pidurable_nb.testing.storage_conformance import Check, Reopening, checks, each_check

Factory = Callable[[Path], Storage]


def memory(folder: Path) -> Storage:
    return MemoryStorage()


def reopened_memory(folder: Path) -> Storage:
    kept = MemoryStorage()
    return Reopening(lambda: kept)


def sqlite(folder: Path) -> Storage:
    return SqliteStorage(folder / "store.sqlite")


def inline_sqlite(folder: Path) -> Storage:
    return SqliteStorage(folder / "store.sqlite", inline=True)


def reopened_sqlite(folder: Path) -> Storage:
    return Reopening(lambda: SqliteStorage(folder / "store.sqlite", inline=True))


STORAGES = [memory, reopened_memory, sqlite, inline_sqlite, reopened_sqlite]


@pytest.mark.parametrize("storage", STORAGES)
@each_check()
def test_c1_storages_keep_their_promises(check: Check, storage: Factory, tmp_path: Path) -> None:
    async def make() -> Storage:
        made = storage(tmp_path)
        await made.open()
        return made

    asyncio.run(check.run(make))


def test_the_suite_names_every_promise_once_and_can_leave_reopening_out() -> None:
    names = [check.name for check in checks()]
    assert len(names) >= 60
    assert len(set(names)) == len(names)
    assert not any(check.reopens for check in checks(reopens=False))
    assert len(checks(reopens=False)) < len(names)


class Forgetful(MemoryStorage):
    """Stores no row of a group and says nothing."""

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        return await super().commit([Commit(()) for _ in group])


def test_the_suite_notices_a_storage_that_breaks_its_promises() -> None:
    async def make() -> Storage:
        made = Forgetful()
        await made.open()
        return made

    broken = 0
    for check in checks():
        try:
            asyncio.run(check.run(make))
        except Exception:
            broken += 1
    assert broken >= len(checks()) - 8
