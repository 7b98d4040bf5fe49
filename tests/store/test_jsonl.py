"""The folder of a JSONL store: what stands in it, in which order it is written, what a bad disk means, whose it is."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from pidurable_nb.errors import (
    AnotherWriter,
    DamagedStore,
    HostileStore,
    NewerFormat,
    NotAStore,
    StorageError,
    Stored,
    StoreOwned,
    StoreRefused,
)
from pidurable_nb.ids import ROOT, Seq, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.store.delta import Put
from pidurable_nb.store.jsonl import JsonlStorage
from pidurable_nb.store.jsonl_files import RealFiles, classify
from pidurable_nb.store.jsonl_lines import sealed
from pidurable_nb.store.jsonl_sidecars import MOST_ENDED, MOST_WASTE
from pidurable_nb.store.storage import Base, Commit, CreateDocument, PutTask, RetireDocument
from pidurable_nb.testing.storage_checks import (
    change,
    commit,
    conversation,
    create,
    document,
    note,
    rebase,
    start,
    task,
    value_of,
)
from tests.store.jsonl_disk import Op, Recorder

DONE = stored.Terminal(outcome=stored.Completed(result="done"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def said(folder: Path) -> list[dict[str, object]]:
    """What the lines of `main.jsonl` say, without their checksums."""
    return [json.loads(line)["line"] for line in (folder / "main.jsonl").read_text().splitlines()]


async def opened(folder: Path, *, fsync: bool = False, files: RealFiles | None = None) -> JsonlStorage:
    storage = JsonlStorage(folder, inline=True, fsync=fsync, files=files)
    await storage.open()
    return storage


# --- What stands in the folder ----------------------------------------------------------------------------------------


def test_every_commit_is_one_line_and_live_tasks_and_documents_have_files(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path / "s")
        await start(storage)
        work, doc = TaskId(storage.mint()), document(storage.mint())
        await storage.commit([Commit((PutTask(task(work)),)), Commit(())])
        await create(storage, doc, {"n": 0})
        await change(storage, doc.id, Put(("n",), 1))
        assert names(tmp_path / "s") == [f"doc-{doc.id}.jsonl", "main.jsonl", "main.jsonl.lock", f"task-{work}.jsonl"]
        assert [line.get("seq") for line in said(tmp_path / "s")] == [None, 1, 2, 3, 4, 5]
        assert [line["seq"] for line in lines(tmp_path / "s" / f"doc-{doc.id}.jsonl")] == [4, 5]
        await commit(storage, PutTask(task(work, state=DONE)), RetireDocument(doc.id))
        await storage.close()
        assert names(tmp_path / "s") == ["main.jsonl"]
        again = await opened(tmp_path / "s")
        assert await again.task(work) == task(work, state=DONE)
        assert await again.find_document(doc.address, Seq(5)) is not None
        await again.close()

    asyncio.run(main())


def test_a_history_is_kept_and_only_the_newest_value_of_what_has_none(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path)
        await start(storage)
        latest, whole = document(storage.mint()), document(storage.mint(), key="h", history="rewindable")
        made = await create(storage, whole, {"n": 0})
        await create(storage, latest, {"n": 0})
        long = "x" * 4000
        for n in range(40):
            await rebase(storage, latest.id, {"n": n, "long": long})
            await rebase(storage, whole.id, {"n": n, "long": long})
            await storage.maintain()
            assert (tmp_path / f"doc-{latest.id}.jsonl").stat().st_size < MOST_WASTE + 3 * 4100
        await commit(storage, RetireDocument(whole.id))
        await storage.close()
        assert (tmp_path / f"doc-{latest.id}.jsonl").stat().st_size < 4100
        assert (tmp_path / f"doc-{whole.id}.jsonl").stat().st_size > 40 * 4000
        again = await opened(tmp_path)
        assert await value_of(again, whole.id, made) == {"n": 0}
        assert await value_of(again, latest.id) == {"n": 39, "long": long}
        await change(again, latest.id, Put(("n",), 40))
        assert await value_of(again, latest.id) == {"n": 40, "long": long}
        await again.close()

    asyncio.run(main())


def test_what_nothing_needs_is_removed_by_housekeeping(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path)
        await start(storage)
        works = [TaskId(storage.mint()) for _ in range(MOST_ENDED + 2)]
        for work in works:
            await commit(storage, PutTask(task(work)))
            await commit(storage, PutTask(task(work, state=DONE)))
            await storage.maintain()
            assert len(names(tmp_path)) <= MOST_ENDED + 2
        assert len(names(tmp_path)) < MOST_ENDED
        await commit(storage, PutTask(task(works[0])))  # a storage asks no questions: the tasks live again
        await commit(storage, PutTask(task(works[-1])))
        await storage.close()
        again = await opened(tmp_path)
        assert [await again.task(work) for work in (works[0], works[-1])] == [task(works[0]), task(works[-1])]
        await again.close()

    asyncio.run(main())


def test_an_opening_tells_what_it_cut_off(tmp_path: Path) -> None:
    async def main() -> None:
        storage = JsonlStorage(tmp_path, inline=True)
        assert (await storage.open()).notes == ("made anew",)
        await start(storage)
        doc = document(storage.mint())
        await create(storage, doc, {})
        await storage.close()
        with open(tmp_path / "main.jsonl", "ab") as file:
            file.write(b'{"sum":"00')
        with open(tmp_path / f"doc-{doc.id}.jsonl", "ab") as file:
            file.write(b'{"seq":3')
        opened = await storage.open()
        assert opened.notes == (
            "10 bytes of a torn tail removed behind commit 2",
            "unconfirmed records removed from 1 sidecars",
        )
        await storage.close()
        assert (await storage.open()).notes == ()
        await storage.close()

    asyncio.run(main())


# --- The order of the file operations ---------------------------------------------------------------------------------


def shape(ops: Sequence[Op]) -> list[str]:
    """Operations in short: `append doc`, `sync main`."""
    words = {"fsync": "sync", "fsync_dir": "sync folder"}
    return [f"{words.get(op.kind, op.kind)} {op.name.split('-')[0].split('.')[0]}".strip() for op in ops]


async def ops(files: Recorder, doing: Awaitable[object]) -> list[str]:
    """The operations of one call."""
    before = len(files.ops)
    await doing
    return shape(files.ops[before:])


def test_e5_a_barrier_syncs_sidecars_then_the_line_and_an_ordinary_commit_only_sidecars(tmp_path: Path) -> None:
    async def main() -> None:
        for fsync in (False, True):
            files = Recorder()
            storage = await opened(tmp_path / str(fsync), fsync=fsync, files=files)
            assert storage.barrier == ("synced" if fsync else "ordinary")
            await start(storage)
            doc = document(storage.mint())

            made = await ops(files, create(storage, doc, {"n": 0}))
            changed = await ops(files, change(storage, doc.id, Put(("n",), 1)))
            barrier = await ops(files, storage.commit([Commit((), True)]))
            plain = await ops(files, storage.commit([Commit(()), Commit(())]))
            if fsync:
                assert made == ["create doc", "append doc", "sync doc", "sync folder", "append main"]
                assert changed == ["append doc", "sync doc", "append main"]
                assert barrier == ["append main", "sync main", "append main"]  # the last notes how far it is synced
            else:
                assert made == ["create doc", "append doc", "append main"]
                assert changed == ["append doc", "append main"]
                assert barrier == ["append main"]
            assert plain == ["append main"]  # one write for the group
            await commit(storage, RetireDocument(doc.id))
            closing = await ops(files, storage.close())
            if fsync:  # the line that allows the removal is on disk before it
                assert closing == ["sync main", "append main", "unlink doc", "sync folder"]
            else:
                assert closing == ["unlink doc"]

    asyncio.run(main())


def test_e5_damage_before_the_synced_length_is_no_torn_tail(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path / "s", fsync=True)
        await start(storage)
        await commit(storage, barrier=True)
        await note(storage)
        await note(storage)
        main = (tmp_path / "s" / "main.jsonl").read_bytes()
        synced = max(int(str(line["synced"])) for line in said(tmp_path / "s"))
        assert 0 < synced < len(main)
        for at in range(0, len(main), 5):
            shutil.rmtree(tmp_path / "cut", ignore_errors=True)
            (tmp_path / "cut").mkdir()
            (tmp_path / "cut" / "main.jsonl").write_bytes(main[:at] + bytes([main[at] ^ 4]) + main[at + 1 :])
            if at < synced:
                with pytest.raises(DamagedStore, match=rf"{synced} bytes of it were on disk"):
                    await opened(tmp_path / "cut")
                continue
            again = JsonlStorage(tmp_path / "cut", inline=True)
            assert 3 <= (await again.open()).next_seq <= 5
            await again.close()
        await storage.close()

    asyncio.run(main())


# --- A failing disk ---------------------------------------------------------------------------------------------------


class Failing(RealFiles):
    """Fails the next operation of a kind on a file whose name begins so; an append writes a part first."""

    def __init__(self) -> None:
        self.next: tuple[str, str, int] | None = None
        self.part = 10
        self.truncates = True
        self._names: dict[int, str] = {}

    def _meet(self, kind: str, name: str) -> None:
        if self.next is not None and self.next[0] == kind and name.startswith(self.next[1]):
            code, self.next = self.next[2], None
            raise OSError(code, os.strerror(code))

    def open(self, path: Path, *, new: bool) -> int:
        self._meet("open", path.name)
        fd = super().open(path, new=new)
        self._names[fd] = path.name
        return fd

    def append(self, fd: int, data: bytes) -> int:
        if self.next is not None and self.next[0] == "append" and self._names[fd].startswith(self.next[1]):
            if self.part:
                part, self.part = data[: self.part], 0
                return super().append(fd, part)
            self._meet("append", self._names[fd])
        return super().append(fd, data)

    def truncate(self, fd: int, length: int) -> None:
        if not self.truncates:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(fd, length)

    def fsync(self, fd: int) -> None:
        self._meet("fsync", self._names[fd])
        super().fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._meet("rename", new.name)
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._meet("unlink", path.name)
        super().unlink(path)


FAULTS: list[tuple[str, str, int, Stored]] = [
    ("open", "doc", errno.EMFILE, "no"),
    ("append", "doc", errno.ENOSPC, "no"),
    ("append", "doc", errno.EIO, "no"),
    ("fsync", "doc", errno.EIO, "no"),
    ("append", "main", errno.ENOSPC, "no"),
    ("append", "main", errno.EDQUOT, "no"),
    ("append", "main", errno.EFBIG, "unknown"),
    ("append", "main", errno.EIO, "unknown"),
    ("fsync", "main", errno.EIO, "unknown"),
]


@pytest.mark.parametrize(("kind", "file", "code", "known"), FAULTS)
@pytest.mark.parametrize("part", [0, 10, -1])
def test_f4_a_fault_of_the_disk_has_its_class_and_ends_the_storage(
    tmp_path: Path, kind: str, file: str, code: int, known: Stored, part: int
) -> None:
    async def main() -> None:
        files = Failing()
        storage = await opened(tmp_path, fsync=True, files=files)
        await start(storage)
        files.next, files.part = (kind, file, code), part
        doc = document(storage.mint())
        with pytest.raises(StorageError) as met:
            await storage.commit([Commit((CreateDocument(doc, Base(1, {})),), barrier=True)])
        assert met.value.stored == known
        assert isinstance(met.value.__cause__, OSError)
        assert await storage.document(doc.id) is None  # nothing of it is published
        with pytest.raises(StorageError, match="failed earlier") as after:
            await note(storage)
        assert after.value.stored == "no"
        await storage.close()
        again = await opened(tmp_path)
        if known == "no":
            assert await again.document(doc.id) is None
        await note(again)
        await again.close()

    asyncio.run(main())


def test_f4_a_full_disk_whose_line_cannot_be_taken_back_is_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        files = Failing()
        storage = await opened(tmp_path, files=files)
        await start(storage)
        files.next, files.truncates = ("append", "main", errno.ENOSPC), False
        with pytest.raises(StorageError) as met:
            await note(storage)
        assert met.value.stored == "unknown"
        await storage.close()

    asyncio.run(main())


def test_f4_the_class_follows_from_where_the_error_was_met() -> None:
    full, broken = OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")
    assert [
        classify(broken, at="sidecar", taken_back=False),
        classify(MemoryError(), at="sidecar", taken_back=False),
    ] == [
        "no",
        "no",
    ]
    assert [classify(full, at="main", taken_back=done) for done in (True, False)] == ["no", "unknown"]
    assert [classify(broken, at="main", taken_back=done) for done in (True, False)] == ["unknown", "unknown"]
    assert [classify(each, at="sync", taken_back=False) for each in (full, broken)] == ["unknown", "unknown"]


@pytest.mark.parametrize(("kind", "file"), [("fsync", "main"), ("unlink", "doc"), ("rename", "doc"), ("append", "doc")])
def test_f1_housekeeping_that_fails_says_so_and_loses_nothing(tmp_path: Path, kind: str, file: str) -> None:
    async def main() -> None:
        files = Failing()
        storage = await opened(tmp_path, fsync=True, files=files)
        await start(storage)
        ended, doc = document(storage.mint(), key="ended"), document(storage.mint())
        await create(storage, ended, {})
        await create(storage, doc, {"n": 0, "long": "x" * 5000})
        await rebase(storage, doc.id, {"n": 1})
        await commit(storage, RetireDocument(ended.id))
        files.next = (kind, file, errno.EIO)
        with pytest.raises(StorageError, match="everything that was acknowledged is stored"):
            await storage.close()
        if kind == "fsync":
            assert f"doc-{ended.id}.jsonl" in names(tmp_path)  # put off: its end is not on disk for sure
        again = await opened(tmp_path)
        assert await value_of(again, doc.id) == {"n": 1}
        assert await again.document(ended.id) is None
        await again.close()
        assert names(tmp_path) == [f"doc-{doc.id}.jsonl", "main.jsonl"]

    asyncio.run(main())


# --- Whose folder it is -----------------------------------------------------------------------------------------------


def test_f5_a_second_opener_is_refused_with_the_owner_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(tmp_path / "s")

    async def main() -> None:
        first = await opened(tmp_path / "s")
        with pytest.raises(StoreOwned) as refused:
            await JsonlStorage(tmp_path / "other").open()
        assert refused.value.pid == os.getpid()
        await start(first)  # undisturbed
        await first.close()
        second = await opened(tmp_path / "other")
        assert await second.conversation(ROOT) is not None
        await second.close()

    asyncio.run(main())


CHILD = """
import asyncio, sys
from pathlib import Path
from pidurable_nb.store.jsonl import JsonlStorage
from pidurable_nb.testing.storage_checks import start

async def main():
    storage = JsonlStorage(Path(sys.argv[1]))
    await storage.open()
    await start(storage)
    print("open", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_f5_death_by_sigkill_frees_the_folder_at_once(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"

        async def main() -> None:
            with pytest.raises(StoreOwned) as refused:
                await JsonlStorage(tmp_path).open()
            assert refused.value.pid == owner.pid
            owner.send_signal(signal.SIGKILL)
            owner.wait()
            storage = JsonlStorage(tmp_path)
            assert (await storage.open()).opening == 2
            assert await storage.conversation(ROOT) == conversation(1)
            await storage.close()

        asyncio.run(main())


def appended(folder: Path) -> None:
    with open(folder / "main.jsonl", "ab") as file:
        file.write(sealed('{"synced":0}'))


def replaced(folder: Path) -> None:
    shutil.copy(folder / "main.jsonl", folder / "copy")
    os.replace(folder / "copy", folder / "main.jsonl")


@pytest.mark.parametrize(
    "touch",
    [
        appended,
        replaced,
        lambda folder: (folder / "main.jsonl").unlink(),
        lambda folder: (folder / "main.jsonl.lock").unlink(),
        lambda folder: os.truncate(folder / "main.jsonl", 5),
        lambda folder: (folder / "doc-2.jsonl").unlink(),
        lambda folder: (folder / "doc-2.jsonl").write_bytes(b""),
    ],
)
def test_f5_somebody_who_touches_the_files_is_detected_and_not_touched(
    tmp_path: Path, touch: Callable[[Path], object]
) -> None:
    async def main() -> None:
        storage = await opened(tmp_path)
        doc = document(storage.mint())
        await create(storage, doc, {"n": 0})
        touch(tmp_path)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".lock"}
        with pytest.raises(AnotherWriter) as met:
            await change(storage, doc.id, Put(("n",), 1))
        assert met.value.stored == "no"
        assert await value_of(storage, doc.id) == {"n": 0}
        await storage.close()
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".lock"} == before

    asyncio.run(main())


def test_f5_a_forked_child_may_not_write(tmp_path: Path) -> None:
    script = """
import asyncio, os, sys
from pathlib import Path
from pidurable_nb.errors import AnotherWriter
from pidurable_nb.store.jsonl import JsonlStorage
from pidurable_nb.testing.storage_checks import note, start

async def main():
    storage = JsonlStorage(Path(sys.argv[1]), inline=True)
    await storage.open()
    await start(storage)
    pid = os.fork()
    try:
        await note(storage)
    except AnotherWriter as error:
        await storage.close()
        os._exit(0 if pid == 0 and error.stored == "no" else 1)
    if pid == 0:
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    await note(storage)
    assert (Path(sys.argv[1]) / "main.jsonl.lock").exists()
    await storage.close()

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)


def test_f5_a_copy_has_a_name_of_its_own_and_the_same_origin(tmp_path: Path) -> None:
    async def main() -> None:
        storage = JsonlStorage(tmp_path / "s", inline=True)
        first = await storage.open()
        await start(storage)
        await storage.close()
        shutil.copytree(tmp_path / "s", tmp_path / "copy")
        copy = await JsonlStorage(tmp_path / "copy", inline=True).open()
        assert copy.store_id != first.store_id
        assert (copy.origin, copy.opening) == (first.origin, 2)
        assert copy.notes == ("a copy: it has a new store id and keeps its origin",)

    asyncio.run(main())


def test_f5_an_opening_that_is_cancelled_gives_the_folder_back(tmp_path: Path) -> None:
    async def main() -> None:
        for delay in (0, 0, 0.001, 0.003):
            first = JsonlStorage(tmp_path / "s")
            opening = asyncio.ensure_future(first.open())
            await asyncio.sleep(delay)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            if not opening.cancelled():
                await first.close()
            for _ in range(500):
                storage = JsonlStorage(tmp_path / "s")
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


def test_f4_a_commit_whose_caller_was_cancelled_is_stored_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        storage = JsonlStorage(tmp_path)
        await storage.open()
        asked = asyncio.ensure_future(start(storage))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert await storage.conversation(ROOT) is not None
        await note(storage)
        await storage.close()

    asyncio.run(main())


# --- What is no store -------------------------------------------------------------------------------------------------


def test_what_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    async def refused(folder: Path, kind: type[Exception]) -> None:
        before = names(folder) if folder.is_dir() else []
        with pytest.raises(kind):
            await JsonlStorage(folder, inline=True).open()
        assert (names(folder) if folder.is_dir() else []) == before

    async def main() -> None:
        for name, content, kind in [
            ("foreign", b"one line\nof another kind\n", NotAStore),
            ("short", b"hello", NotAStore),
            ("unknown", sealed('{"much":"later"}'), DamagedStore),
            ("mark", sealed('{"synced":0}'), DamagedStore),
            (
                "newer",
                sealed(
                    '{"open":{"format":99,"storeId":"a","origin":"b","opening":1,"token":1,"file":"1","fsync":false},'
                    '"synced":0}'
                ),
                NewerFormat,
            ),
        ]:
            folder = tmp_path / name
            folder.mkdir()
            (folder / "main.jsonl").write_bytes(content)
            await refused(folder, kind)
            assert (folder / "main.jsonl").read_bytes() == content
        (tmp_path / "file").write_bytes(b"")
        await refused(tmp_path / "file", StoreRefused)
        (tmp_path / "link").mkdir()
        (tmp_path / "link" / "main.jsonl").symlink_to(tmp_path / "foreign" / "main.jsonl")
        await refused(tmp_path / "link", StoreRefused)
        (tmp_path / "pipe").mkdir()
        os.mkfifo(tmp_path / "pipe" / "main.jsonl")
        await refused(tmp_path / "pipe", HostileStore)
        (tmp_path / "lost").mkdir()
        (tmp_path / "lost" / "doc-7.jsonl").write_bytes(b"")
        await refused(tmp_path / "lost", DamagedStore)

    asyncio.run(main())


def test_a_line_that_names_another_file_is_damage_and_reads_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        storage = await opened(tmp_path / "s")
        await storage.close()
        ref = '{"file":"../secret","length":1,"sum":"0000000000000000","whole":false}'
        with open(tmp_path / "s" / "main.jsonl", "ab") as file:
            file.write(sealed('{"seq":1,"nextId":2,"rows":[],"sidecars":[' + ref + '],"synced":0}'))
        with pytest.raises(DamagedStore, match="no sidecar"):
            await opened(tmp_path / "s")

    asyncio.run(main())
