"""What work costs, counted: transactions, hops, statements, bytes and decisions. Never measures a time."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

import pytest

from pidurable_nb import Document, Done, Harness, Input, Phase, Runtime, Sleeping
from pidurable_nb.engine import decide
from pidurable_nb.ids import Seq
from pidurable_nb.store.line import Line, Threaded
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import Commit, Opened

T = TypeVar("T")
CONTENT: Final = re.compile(r"SELECT id, \d+, '(?:base|delta)', \d+, '(.*)' FROM documents", re.DOTALL)
"""The content of a revision, in the statement that writes it."""


# -- counting ----------------------------------------------------------------------------------------------------------


class Counted(SqliteStorage):
    """The real storage, counting what it is asked for and what it asks of SQLite once it is open. It never folds its
    log meanwhile: that has a hop of its own, every thousand pages.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, durability="kill", wal_limit_pages=10**9)
        self.groups: list[int] = []
        """How many commits each transaction held."""
        self.statements: list[str] = []
        """Every statement with its values, as SQLite saw it."""

    async def open(self) -> Opened:
        opened = await super().open()
        await self._run(lambda line: line.set_trace_callback(self.statements.append))
        return opened

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        seqs = await super().commit(group)
        self.groups.append(len(group))
        return seqs

    def forget(self) -> None:
        """Count from here on."""
        self.groups.clear()
        self.statements.clear()

    def transactions(self) -> int:
        """How many write transactions SQLite was asked for."""
        return sum(statement == "BEGIN IMMEDIATE" for statement in self.statements)

    def written(self, table: str) -> list[str]:
        """The statements that write rows of `table`."""
        return [s for s in self.statements if s.startswith((f"INSERT INTO {table}", f"UPDATE {table}"))]


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts every piece of work that crosses to a storage's thread."""
    counted: Counter[str] = Counter()
    real = Threaded.run

    async def run(self: Threaded, do: Callable[[Line], T]) -> T:
        counted["hops"] += 1
        return await real(self, do)

    monkeypatch.setattr(Threaded, "run", run)
    return counted


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts verdicts by the kind of the task."""
    counted: Counter[str] = Counter()
    real = decide.decide_task

    def decide_task(was, *rest, **named):  # type: ignore[no-untyped-def]  # whatever it takes
        counted[was.kind] += 1
        return real(was, *rest, **named)

    monkeypatch.setattr(decide, "decide_task", decide_task)
    return counted


# -- the work that is counted ------------------------------------------------------------------------------------------


class Step(Phase[int], task="step"):
    n: int
    to: Input[int]

    async def run(self, rt: Runtime) -> Step | Done[int]:
        async with rt.commit() as tx:
            tx.append("app.note", text="x" * 480, data={"n": self.n})
            return tx.become(Done(self.n) if self.n >= self.to else Step(self.n + 1, self.to))


class Nap(Phase[str], task="nap"):
    async def run(self, rt: Runtime) -> Sleeping[Wake]:
        return Sleeping(until=rt.now() + timedelta(days=1), then=Wake())


class Wake(Phase[str]):
    async def run(self, rt: Runtime) -> Done[str]:
        return Done("awake")


class Remember(Phase[int], task="remember"):
    memos: Input[int]

    async def run(self, rt: Runtime) -> Done[int]:
        for n in range(self.memos):
            await rt.memo(f"memo-{n:03}", n)
        return Done(self.memos)


class Survive(Phase[int], task="survive"):
    """Never ends in a process that is to be killed when `LIFE.deadly` of them run; ends at once in any other."""

    async def run(self, rt: Runtime) -> Done[int]:
        LIFE.running += 1
        if LIFE.running == LIFE.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if LIFE.deadly:
            await asyncio.Event().wait()
        return Done(LIFE.running)


@dataclass
class Life:
    """This process: how many of its tasks run, and how many are too many."""

    running: int = 0
    deadly: int = 0


LIFE = Life()


class Lines(Document, kind="app.lines", scope="session"):
    content: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        self.content.append(text)


class Text(Document, kind="app.text", scope="conversation", history="rewindable", fork="as_of"):
    content: str = ""

    def add(self, text: str) -> None:
        self.content += text


TASKS: list[type[Phase[object]]] = [Step, Nap, Remember, Survive]


async def steps(h: Harness, tasks: int, each: int) -> None:
    """`tasks` tasks of `each` steps, all started by one commit, to their end."""
    async with h.commit() as tx:
        refs = [tx.spawn(Step(1, each)) for _ in range(tasks)]
    for ref in refs:
        await h.wait(ref)


async def until_asleep(h: Harness, tasks: int) -> None:
    async with h.commit() as tx:
        for _ in range(tasks):
            tx.spawn(Nap())
    while len(await h.tasks(status="sleeping", limit=tasks + 1)) < tasks:  # noqa: ASYNC110  # nothing else says so
        await asyncio.sleep(0.01)


# -- commits (C8) ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [1, 5])
def test_c8_200_concurrent_tasks_step_in_at_most_30_transactions(tmp_path: Path, each: int) -> None:
    async def main() -> None:
        storage = Counted(tmp_path / "store.sqlite")
        async with Harness.open(storage, tasks=TASKS) as h:
            await h.root()
            storage.forget()
            await steps(h, 200, each)
            assert sum(storage.groups) == 2 + 200 * each  # the commit that spawns them, their reservation, their steps
            assert storage.transactions() == len(storage.groups) <= 30

    asyncio.run(main())


def test_c8_a_serial_step_is_one_commit_one_transaction_and_one_hop(tmp_path: Path, hops: Counter[str]) -> None:
    async def main() -> None:
        storage = Counted(tmp_path / "store.sqlite")
        async with Harness.open(storage, tasks=TASKS) as h:
            await h.root()
            await steps(h, 1, 2)  # what only the first of a kind has to look up
            found = []
            for n in (10, 60):
                storage.forget()
                hops.clear()
                await steps(h, 1, n)
                found.append((sum(storage.groups), storage.transactions(), hops["hops"], len(storage.statements)))
            commits, transactions, crossed, statements = (more - few for few, more in zip(*found, strict=True))
            assert (commits, transactions, crossed) == (50, 50, 50)
            # BEGIN, the metadata, the entry's id, the entry, the task, COMMIT: and nothing is read.
            assert statements == 50 * 6

    asyncio.run(main())


# -- documents and memos -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("doc", [Lines, Text], ids=lambda doc: doc.__name__)
def test_1000_appends_of_1_kb_to_a_document_write_under_1_3_mb(tmp_path: Path, doc: type[Lines] | type[Text]) -> None:
    async def main() -> None:
        storage = Counted(tmp_path / "store.sqlite")
        async with Harness.open(storage) as h:
            await h.root()
            storage.forget()
            for _ in range(1000):
                async with h.commit() as tx:
                    (await tx.edit(doc)).add("x" * 1000)
            contents = [CONTENT.search(statement) for statement in storage.written("document_revisions")]
            written = sum(len(content[1]) for content in contents if content is not None)
            assert None not in contents
            assert (len(contents), written < 1_300_000) == (1000, True), f"{written:,} characters"

    asyncio.run(main())


def test_m1_a_memo_writes_the_task_record_once_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        storage = Counted(tmp_path / "store.sqlite")
        async with Harness.open(storage, tasks=TASKS) as h:
            root = await h.root()
            storage.forget()
            await h.wait(await root.start(Remember(300)))
            assert len(storage.groups) == 302  # started and reserved, 300 memos, the end
            memos = [s for s in storage.written("tasks") if '"memos":{' in s]
            assert len(memos) == 300
            # Memos live in the record, which the format replaces whole: the last writes 300 of them, and each
            # adds only itself. 24 is what one takes here: "memo-000":0, and a digit or two.
            grown = [len(after) - len(before) for before, after in itertools.pairwise(memos)]
            assert max(grown) <= 24
            assert len(memos[-1]) < 300 * 24 + 500
            assert not [s for s in storage.statements[20:-20] if s.startswith(("INSERT", "SELECT"))]

    asyncio.run(main())


# -- what is not touched -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_t12_a_step_touches_none_of_5000_sleepers(tmp_path: Path, hops: Counter[str], decisions: Counter[str]) -> None:
    async def main() -> None:
        storage = Counted(tmp_path / "store.sqlite")
        async with Harness.open(storage, tasks=TASKS) as h:
            await h.root()
            await steps(h, 1, 2)
            found = []
            for sleepers in (0, 5000):
                await until_asleep(h, sleepers)
                storage.forget()
                hops.clear()
                decisions.clear()
                await steps(h, 1, 20)
                found.append((dict(decisions), hops["hops"], len(storage.statements)))
            assert found[0] == found[1]
            assert found[1][0].keys() == {"step"}

    asyncio.run(main())


def fill(store: Path, entries: int) -> None:
    """As many more entries, put there by hand: who writes them does not matter to who opens the store."""
    record = {"conversationId": 1, "kind": "app.note", "data": "x" * 200}
    with closing(sqlite3.connect(store)) as db, db:
        ((next_id, seq),) = db.execute("SELECT CAST(next_id AS INTEGER), next_seq FROM durable_metadata").fetchall()
        ids = range(next_id, next_id + entries)
        db.executemany("INSERT INTO record_ids VALUES (?, 'entry')", ((id,) for id in ids))
        rows = ((id, seq, json.dumps({"id": id, **record}, separators=(",", ":"))) for id in ids)
        db.executemany("INSERT INTO entries VALUES (?, 1, NULL, ?, ?)", rows)
        db.execute("UPDATE durable_metadata SET next_id = ?, next_seq = next_seq + 1", (str(next_id + entries),))


@contextmanager
def watching_sqlite(monkeypatch: pytest.MonkeyPatch) -> Generator[Counter[str], None, None]:
    """Counts statements and the steps of SQLite's machine, on every connection that is made meanwhile."""
    counted: Counter[str] = Counter()
    real: Callable[..., sqlite3.Connection] = sqlite3.connect

    def connect(database: str, **named: object) -> sqlite3.Connection:
        made = real(database, **named)
        made.set_trace_callback(lambda statement: counted.update(["statements"]))
        made.set_progress_handler(lambda: counted.update(["steps"]), 1)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect)
        yield counted


@pytest.mark.slow
def test_opening_a_store_with_100000_entries_reads_only_what_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store.sqlite"

    async def make() -> None:
        async with Harness.open(store, tasks=TASKS) as h:
            await h.root()
            await until_asleep(h, 20)

    async def reopen() -> None:
        async with Harness.open(store, tasks=TASKS) as h:
            assert len(await h.tasks(live=True)) == 20

    asyncio.run(make())
    found = []
    for entries in (0, 100_000):
        fill(store, entries)
        with watching_sqlite(monkeypatch) as counted:
            asyncio.run(reopen())
        found.append(dict(counted))
    assert found[0] == found[1]
    assert found[0]["steps"] > 100


# -- recovery ----------------------------------------------------------------------------------------------------------


async def die(store: Path, tasks: int) -> None:
    """The life that is killed: all of them run when it happens."""
    LIFE.deadly = tasks
    async with Harness.open(store, tasks=TASKS) as h:
        await h.root()
        async with h.commit() as tx:
            for _ in range(tasks):
                tx.spawn(Survive())
        await h.wait_idle()


def test_t7_1000_unfinished_tasks_are_recovered_in_groups(
    tmp_path: Path, hops: Counter[str], decisions: Counter[str]
) -> None:
    store = tmp_path / "store.sqlite"
    done = subprocess.run([sys.executable, __file__, str(store), "1000"], check=False)
    assert done.returncode == -signal.SIGKILL

    async def main() -> None:
        storage = Counted(store)
        async with Harness.open(storage, tasks=TASKS) as h:
            await h.wait_idle()
            assert len(await h.tasks(status="terminal", limit=2000)) == 1000
        assert sum(storage.groups) == 2 + 1000  # pending again, reserved, and each its own end
        assert decisions["survive"] <= 3 * 1000
        statements, transactions = len(storage.statements), storage.transactions()
        assert transactions <= 30
        assert hops["hops"] <= 100
        assert statements <= 6_500

    asyncio.run(main())


if __name__ == "__main__":
    asyncio.run(die(Path(sys.argv[1]), int(sys.argv[2])))
