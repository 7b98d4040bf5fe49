"""An agent lives in a JSONL folder: a turn with a tool, killed by SIGKILL at file operations of its store, goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pidurable_nb import AgentChange, Harness, tool
from pidurable_nb.agent.submission import Answered
from pidurable_nb.errors import SessionFailed, StorageError
from pidurable_nb.models import CallTools, Say, Scripted, call
from pidurable_nb.store.jsonl import JsonlStorage
from pidurable_nb.store.jsonl_files import RealFiles

PROGRAM = '''
import asyncio, os, signal, sys
from pathlib import Path

from pidurable_nb import AgentChange, Harness, tool
from pidurable_nb.models import CallTools, Say, Scripted, call
from pidurable_nb.store.jsonl import JsonlStorage
from pidurable_nb.store.jsonl_files import RealFiles


class Deadly(RealFiles):
    """Kills the process in front of its n-th operation; an append is cut off half way."""

    def __init__(self, left):
        self.left = left

    def live(self):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path, *, new):
        self.live()
        return super().open(path, new=new)

    def append(self, fd, data):
        if self.left == 1:
            os.write(fd, data[: len(data) // 2])
        self.live()
        return super().append(fd, data)

    def fsync(self, fd):
        self.live()
        super().fsync(fd)

    def fsync_dir(self, folder):
        self.live()
        super().fsync_dir(folder)

    def unlink(self, path):
        self.live()
        super().unlink(path)


@tool(replay="safe")
async def lookup(host: str) -> str:
    """Look a host up."""
    return f"{host} is up"


async def main(folder, left):
    model = Scripted(CallTools(call("lookup", host="::1")), Say("done: it is up"))
    files = Deadly(left)
    async with Harness.open(JsonlStorage(folder, fsync=True, files=files), tools=[lookup], models=[model]) as harness:
        root = await harness.root(agent=AgentChange(model=model.ref))
        submission = await root.submit("is it up?", request_id="r1")
        await submission.wait()
    return left - files.left


def life(folder, left):
    """One life in a process of its own: how it ended, and how many operations it did."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, str(asyncio.run(main(folder, left))).encode())
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    said = os.read(read, 20)
    os.close(read)
    return os.waitstatus_to_exitcode(status), int(said or 0)


folder = Path(sys.argv[1])
code, operations = life(folder / "whole", 1_000_000)
assert code == 0 and operations > 30, (code, operations)
for left in sorted({1, 2, *range(3, operations, max(1, operations // 30))}):
    assert life(folder / str(left), left)[0] == -signal.SIGKILL, left
'''


@tool(replay="safe")
async def lookup(host: str) -> str:
    """Look a host up."""
    return f"{host} is up"


async def answered(folder: Path) -> tuple[str, list[str]]:
    """Open the folder, ask under the same request id, and give the answer with the kinds of all entries."""
    model = Scripted(CallTools(call("lookup", host="::1")), Say("done: it is up"))
    async with Harness.open(JsonlStorage(folder), tools=[lookup], models=[model]) as harness:
        root = await harness.root(agent=AgentChange(model=model.ref))
        submission = await root.submit("is it up?", request_id="r1")
        answer = await asyncio.wait_for(submission.wait(), 60)
        assert isinstance(answer, Answered)
        return answer.text, [entry.kind for entry in (await root.entries()).items]


def test_s1_an_agent_that_is_killed_at_an_operation_of_its_store_goes_on_in_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True)
    undisturbed = asyncio.run(answered(tmp_path / "whole"))
    assert undisturbed[0] == "done: it is up"
    deaths = [folder for folder in tmp_path.iterdir() if folder.name != "whole"]
    assert len(deaths) >= 25
    for folder in deaths:
        assert asyncio.run(answered(folder)) == undisturbed, folder.name
        assert not [path.name for path in folder.iterdir() if path.suffix in (".tmp", ".lock")]


class Full(RealFiles):
    """A disk that is full from some moment on."""

    full = False

    def append(self, fd: int, data: bytes) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().append(fd, data)


def test_f1_a_full_disk_ends_the_harness_and_the_folder_opens_again(tmp_path: Path) -> None:
    async def main() -> None:
        files = Full()
        model = Scripted(CallTools(call("lookup", host="::1")), Say("done: it is up"))
        harness = await Harness.open(JsonlStorage(tmp_path, files=files), tools=[lookup], models=[model])
        root = await harness.root(agent=AgentChange(model=model.ref))
        files.full = True
        with pytest.raises((StorageError, SessionFailed)) as met:
            await root.submit("is it up?", request_id="r1")
        assert isinstance(met.value, StorageError | SessionFailed)
        assert met.value.stored == "no"
        await harness.closed
        assert (await answered(tmp_path))[0] == "done: it is up"

    asyncio.run(main())
