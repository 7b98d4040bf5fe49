"""Who may write to a store, and what is noticed when somebody else did: real files, real processes, real kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pidurable_nb.errors import AnotherWriter, StorageError, StoreOwned, StoreRefused
from pidurable_nb.store.ownership import StoreLock, lock_path
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import Commit, PutConversation
from pidurable_nb.testing.storage_checks import conversation, note, start

CHILD = """
import asyncio, sys
from pathlib import Path
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.testing.storage_checks import start

async def main():
    storage = SqliteStorage(Path(sys.argv[1]))
    await storage.open()
    await start(storage)
    print("open", flush=True)
    {then}

asyncio.run(main())
"""


def child(path: Path, then: str) -> subprocess.Popen[str]:
    """Another process that opens the store, writes the root conversation, says so and goes on with `then`."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(then=then), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def rows(path: Path) -> int:
    """How many conversations and entries a store holds."""
    with sqlite3.connect(path) as db:
        found: int = db.execute("SELECT count(*) FROM record_ids").fetchone()[0]
    db.close()
    return found


# --- The lock ---------------------------------------------------------------------------------------------------


def test_f5_a_second_opener_in_the_same_process_is_refused_with_the_owner(tmp_path: Path) -> None:
    async def main() -> None:
        first, second = SqliteStorage(tmp_path / "s.sqlite"), SqliteStorage(tmp_path / "s.sqlite")
        await first.open()
        with pytest.raises(StoreOwned) as refused:
            await second.open()
        assert refused.value.pid == os.getpid()
        assert refused.value.host == os.uname().nodename
        assert refused.value.since is not None
        assert str(os.getpid()) in str(refused.value)
        assert "\n" not in str(refused.value)
        await start(first)  # undisturbed
        await first.close()
        await second.open()
        assert await second.conversation(conversation(1).id) is not None
        await second.close()

    asyncio.run(main())


def test_f5_a_name_that_links_to_the_store_is_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(tmp_path / "s.sqlite")

    async def main() -> None:
        first = SqliteStorage(tmp_path / "s.sqlite")
        await first.open()
        with pytest.raises(StoreOwned):
            await SqliteStorage(tmp_path / "other").open()
        await first.close()

    asyncio.run(main())


def test_f5_another_process_is_named_and_its_death_by_sigkill_frees_the_store_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    owner = child(path, "await asyncio.sleep(600)")

    async def main() -> None:
        with pytest.raises(StoreOwned) as refused:
            await SqliteStorage(path).open()
        assert refused.value.pid == owner.pid
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert lock_path(path).exists()  # a dead owner cannot take it away, and nobody minds
        storage = SqliteStorage(path)
        opened = await storage.open()
        assert opened.opening == 2
        assert await storage.conversation(conversation(1).id) is not None
        await storage.close()

    asyncio.run(main())
    assert owner.stdout is not None
    owner.stdout.close()


def test_f5_a_clean_close_leaves_the_database_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        storage = SqliteStorage(tmp_path / "s.sqlite")
        await storage.open()
        await start(storage)
        await storage.close()
        await storage.close()

    asyncio.run(main())
    assert [path.name for path in tmp_path.iterdir()] == ["s.sqlite"]


def test_f5_the_lock_file_of_a_dead_owner_may_say_anything(tmp_path: Path) -> None:
    for text in (b"", b"{", b"[" * 5000, b'{"pid": "x", "host": 7, "fresh": 1}', b"\xff\xfe"):
        lock_path(tmp_path / "s.sqlite").write_bytes(text)
        lock = StoreLock(tmp_path / "s.sqlite")
        assert lock.before.pid is None
        assert not lock.before.fresh
        lock.release()


def test_f5_never_two_owners_while_lock_files_come_and_go(tmp_path: Path) -> None:
    owners: list[int] = []
    seen: list[int] = []

    def compete() -> None:
        for _ in range(150):
            try:
                lock = StoreLock(tmp_path / "s.sqlite")
            except StoreRefused:
                continue
            owners.append(1)
            seen.append(len(owners))
            time.sleep(0)
            owners.pop()
            lock.release()

    threads = [threading.Thread(target=compete) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {1}


def test_f5_a_lock_that_cannot_be_made_is_a_refusal(tmp_path: Path) -> None:
    lock_path(tmp_path / "s.sqlite").mkdir()
    with pytest.raises(StoreRefused, match="cannot be locked"):
        asyncio.run(SqliteStorage(tmp_path / "s.sqlite").open())
    assert [path.name for path in tmp_path.iterdir()] == ["s.sqlite.lock"]


def test_f5_an_opening_that_is_cancelled_gives_the_store_back(tmp_path: Path) -> None:
    async def main() -> None:
        for delay in (0, 0, 0, 0.001, 0.005):
            first = SqliteStorage(tmp_path / "s.sqlite")
            opening = asyncio.ensure_future(first.open())
            await asyncio.sleep(delay)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            if not opening.cancelled():
                await first.close()  # it was quicker than the cancellation: the store is open, and its opener's
            for _ in range(500):  # what was in flight is let go of when it is done
                storage = SqliteStorage(tmp_path / "s.sqlite")
                try:
                    await storage.open()
                except StoreOwned:
                    await asyncio.sleep(0.01)
                else:
                    await storage.close()
                    break
            else:
                raise AssertionError("the lock stayed taken")

    asyncio.run(main())


# --- Files that were exchanged ----------------------------------------------------------------------------------


async def refuses_and_closes(storage: SqliteStorage) -> None:
    """The next commit fails, proven not stored."""
    with pytest.raises(AnotherWriter) as lost:
        await note(storage)
    assert lost.value.stored == "no"
    assert storage.path.name in str(lost.value)
    await storage.close()


def test_f5_an_unlinked_log_is_noticed_and_what_it_held_is_saved_on_close(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    async def main() -> None:
        storage = SqliteStorage(path)
        await storage.open()
        await start(storage)
        await note(storage)
        (tmp_path / "s.sqlite-wal").unlink()
        await refuses_and_closes(storage)

    asyncio.run(main())
    assert rows(path) == 2


def test_f5_a_log_that_was_exchanged_is_noticed_and_nothing_is_folded(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    async def main() -> None:
        storage = SqliteStorage(path)
        await storage.open()
        await start(storage)
        log = tmp_path / "s.sqlite-wal"
        log.rename(tmp_path / "kept")
        log.write_bytes(b"")
        before = path.read_bytes()
        await refuses_and_closes(storage)
        assert path.read_bytes() == before

    asyncio.run(main())


def test_f5_a_replaced_database_is_noticed_and_the_new_one_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    async def main() -> None:
        other = SqliteStorage(tmp_path / "other.sqlite")
        await other.open()
        await other.close()
        storage = SqliteStorage(path)
        await storage.open()
        await start(storage)
        os.replace(tmp_path / "other.sqlite", path)
        before = path.read_bytes()
        await refuses_and_closes(storage)
        assert path.read_bytes() == before

    asyncio.run(main())


def test_f5_a_removed_lock_file_ends_the_owner_before_another_one_begins(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    async def main() -> None:
        storage = SqliteStorage(path)
        await storage.open()
        await start(storage)
        lock_path(path).unlink()
        with pytest.raises(AnotherWriter, match="lock was removed"):
            await storage.commit([Commit(())])
        with pytest.raises(AnotherWriter):
            await note(storage)
        await storage.close()

    asyncio.run(main())


def test_f5_a_forked_child_may_not_write(tmp_path: Path) -> None:
    script = """
import asyncio, os, sys
from pathlib import Path
from pidurable_nb.errors import AnotherWriter
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.testing.storage_checks import note, start

async def main():
    storage = SqliteStorage(Path(sys.argv[1]), inline=True)
    await storage.open()
    await start(storage)
    pid = os.fork()
    try:
        await note(storage)
    except AnotherWriter as error:
        os._exit(0 if pid == 0 and error.stored == "no" else 1)
    if pid == 0:
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    await storage.close()

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s.sqlite")], check=True)
    assert rows(tmp_path / "s.sqlite") == 2


# --- Writers that do not know the lock --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE durable_metadata SET next_seq = next_seq + 1",
        "UPDATE pidurable_store SET token = token + 1",
        "UPDATE pidurable_store SET store_id = 'another'",
        "DELETE FROM pidurable_store",
        "DELETE FROM durable_metadata",
    ],
)
def test_f5_a_writer_without_the_lock_is_detected_by_the_next_commit(tmp_path: Path, change: str) -> None:
    path = tmp_path / "s.sqlite"

    async def main() -> None:
        storage = SqliteStorage(path)
        await storage.open()
        await start(storage)
        foreign = sqlite3.connect(path, isolation_level=None)
        foreign.execute(change)
        foreign.close()
        with pytest.raises(AnotherWriter) as met:
            await note(storage)
        assert met.value.stored == "no"
        assert "somebody else wrote" in str(met.value)
        await storage.close()

    asyncio.run(main())
    assert rows(path) == 1


def test_f4_a_store_that_somebody_keeps_locked_is_busy_before_the_commit(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    async def main() -> None:
        storage = SqliteStorage(path, busy_timeout_ms=20)
        await storage.open()
        await start(storage)
        foreign = sqlite3.connect(path, isolation_level=None)
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError) as busy:
            await note(storage)
        assert busy.value.stored == "no"
        foreign.execute("ROLLBACK")
        foreign.close()
        await note(storage)
        await storage.close()

    asyncio.run(main())


def test_f5_the_process_never_opens_the_database_file_itself(tmp_path: Path) -> None:
    # Closing any descriptor of the file would drop the locks that SQLite holds on it.
    script = """
import asyncio, os, sys
from pathlib import Path
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.testing.storage_checks import note, start

path = Path(sys.argv[1])
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)

async def main():
    for _ in range(2):
        storage = SqliteStorage(path)
        await storage.open()
        if _ == 0:
            await start(storage)
        await note(storage)
        await storage.maintain()
        await storage.close()

asyncio.run(main())
assert str(path) + ".lock" in opened
assert str(path) not in opened, opened
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s.sqlite")], check=True)


def test_f5_the_owner_is_named_in_the_lock_file(tmp_path: Path) -> None:
    async def main() -> None:
        storage = SqliteStorage(tmp_path / "s.sqlite")
        await storage.open()
        said = json.loads(lock_path(tmp_path / "s.sqlite").read_text())
        assert said["pid"] == os.getpid()
        assert said["fresh"] is False
        await storage.commit([Commit((PutConversation(conversation(1)),))])
        await storage.close()

    asyncio.run(main())
