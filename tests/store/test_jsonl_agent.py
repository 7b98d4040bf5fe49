"""An agent lives in a JSONL folder: a turn with a tool, killed by SIGKILL at file operations of its store, goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
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

    left = int(sys.argv[2])

    def _live(self):
        Deadly.left -= 1
        return Deadly.left != 0

    def open(self, path, *, new):
        return super().open(path, new=new) if self._live() else self.die()

    def append(self, fd, data):
        if not self._live():
            os.write(fd, data[: len(data) // 2])
            self.die()
        return super().append(fd, data)

    def fsync(self, fd):
        return super().fsync(fd) if self._live() else self.die()

    def unlink(self, path):
        return super().unlink(path) if self._live() else self.die()

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


@tool(replay="safe")
async def lookup(host: str) -> str:
    """Look a host up."""
    return f"{host} is up"


async def main():
    model = Scripted(CallTools(call("lookup", host="::1")), Say("done: it is up"))
    storage = JsonlStorage(Path(sys.argv[1]), fsync=True, files=Deadly())
    async with Harness.open(storage, tools=[lookup], models=[model]) as harness:
        root = await harness.root(agent=AgentChange(model=model.ref))
        submission = await root.submit("is it up?", request_id="r1")
        answer = await submission.wait()
    print(Deadly.left, answer.text)

asyncio.run(main())
'''


@tool(replay="safe")
async def lookup(host: str) -> str:
    """Look a host up."""
    return f"{host} is up"


def lived(folder: Path, left: int) -> subprocess.CompletedProcess[str]:
    """One life of the program, killed in front of its operation number `left`."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(left)], capture_output=True, text=True, check=False
    )


async def answered(folder: Path) -> tuple[str, list[str]]:
    """Open the folder, ask under the same request id, and give the answer with the kinds of all entries."""
    model = Scripted(CallTools(call("lookup", host="::1")), Say("done: it is up"))
    async with Harness.open(JsonlStorage(folder), tools=[lookup], models=[model]) as harness:
        root = await harness.root(agent=AgentChange(model=model.ref))
        submission = await root.submit("is it up?", request_id="r1")
        answer = await asyncio.wait_for(submission.wait(), 60)
        assert isinstance(answer, Answered)
        return answer.text, [entry.kind for entry in (await root.entries()).items]


def test_s1_an_agent_that_is_killed_at_any_operation_of_its_store_goes_on_in_it(tmp_path: Path) -> None:
    whole = lived(tmp_path / "whole", 1_000_000)
    assert whole.returncode == 0, whole.stderr
    left, _, text = whole.stdout.strip().partition(" ")
    operations = 1_000_000 - int(left)
    assert text == "done: it is up"
    undisturbed = asyncio.run(answered(tmp_path / "whole"))
    assert undisturbed[0] == text
    points = sorted({1, 2, *range(3, operations, operations // 9)})
    for point in points:
        folder = tmp_path / str(point)
        died = lived(folder, point)
        assert died.returncode == -signal.SIGKILL, (point, died.stdout, died.stderr)
        assert asyncio.run(answered(folder)) == undisturbed, point
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
        assert met.value.stored == "no"
        await harness.closed
        assert (await answered(tmp_path))[0] == "done: it is up"

    asyncio.run(main())
