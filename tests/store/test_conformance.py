"""Every storage of the package keeps every promise of the protocol, also when it is reopened after every commit."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pidurable_nb.ids import ConversationId, Seq, TaskId
from pidurable_nb.records.document import Address, DocumentRecord
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.store.ancestry import Segment
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import CURRENT, At, Commit, CopyDocument, Order, Page, Storage, TaskQuery
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


# --- The suite itself: a storage that breaks a promise is found out by the check of that promise ----------------


class Piecemeal(MemoryStorage):
    """Stores the commits of a group one by one."""

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        return tuple([(await super(Piecemeal, self).commit([part]))[0] for part in group])


class Sharing(MemoryStorage):
    """Gives out what it was given."""

    async def task(self, id: TaskId) -> TaskRecord | None:
        return self._tasks.facts(id)


class Careless(MemoryStorage):
    """Forgets what it minted when it is closed."""

    async def close(self) -> None:
        self._next_id = max(self._types, default=1) + 1
        await super().close()


class Farsighted(MemoryStorage):
    """Shows a fork all of its parents."""

    def _segments(self, conversation: ConversationId) -> tuple[Segment, ...]:
        return tuple(Segment(part.conversation) for part in super()._segments(conversation))


class Repeating(MemoryStorage):
    """Starts a page with the last record of the page before."""

    async def scan_tasks(
        self, query: TaskQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[TaskRecord]:
        before = None if after is None else after - 1 if order == "ascending" else after + 1
        return await super().scan_tasks(query, limit=limit, after=before, order=order)


class Keyless(MemoryStorage):
    """Takes a singleton for the family member with the empty key."""

    async def find_document(self, address: Address, at: At = CURRENT) -> DocumentRecord | None:
        return await super().find_document(dataclasses.replace(address, key=address.key or None), at)


class Eager(MemoryStorage):
    """Applies the changes of a commit before its copies."""

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        seqs: list[Seq] = []
        for part in group:
            copies = tuple(write for write in part.writes if isinstance(write, CopyDocument))
            await super().commit([Commit(tuple(write for write in part.writes if write not in copies))])
            seqs += await super().commit([Commit(copies)])
        return tuple(seqs)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Piecemeal, "a_refused_commit_takes_its_whole_group_with_it"),
        (Sharing, "values_are_detached_from_their_writer_and_their_readers"),
        (Careless, "a_commit_also_keeps_the_ids_that_were_minted_and_not_written"),
        (Farsighted, "a_fork_sees_its_parent_up_to_the_fork_entry"),
        (Repeating, "tasks_are_found_by_each_of_their_facts"),
        (Keyless, "members_of_a_family_are_found_by_exactly_their_key"),
        (Eager, "a_copy_is_the_value_before_its_commit"),
    ],
)
def test_the_suite_finds_out_a_storage_that_breaks_a_promise(broken: type[MemoryStorage], promise: str) -> None:
    async def make() -> Storage:
        made = broken()
        await made.open()
        return made

    (check,) = [check for check in checks() if check.name == promise]
    with pytest.raises(AssertionError):
        asyncio.run(check.run(make))
