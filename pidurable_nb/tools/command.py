"""Owns one child process of this machine: its group, its two pipes, and its certain end. Never knows what it is for.

The process leads a session of its own, so that its group can be ended as a whole. The pipes are ours and not asyncio's:
a grandchild that keeps them open holds up nobody, because they are closed when the process has ended and what it wrote
has been read. POSIX only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypeVar

from pidurable_nb.tools.environment import OnOutput, Stream

T = TypeVar("T")

_CHUNK: Final = 65536
_LAST_WORDS_SECONDS: Final = 0.1
"""How long pipes that others hold open are still read after the process ended."""
_FULL_PIPE: Final = 1 << 20
"""The most that a pipe holds."""
_POLL_SECONDS: Final = 0.02

Member = tuple[int, str]
"""A process and when it started: a number alone is given again."""


async def undisturbed(work: Coroutine[object, object, T]) -> T:
    """Finish `work` although the caller is cancelled; then pass the cancellation on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # looked at: the cancellation is what the caller asked for
        raise cancelled
    return task.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What to start, and where."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes | None
    grace_seconds: float


class Command:
    """A child process from its start to its end."""

    __slots__ = ("_failed", "_on_output", "_pipes", "_process", "_quiet", "_start", "_stopped", "left")

    def __init__(self, start: Start, on_output: OnOutput) -> None:
        self._start = start
        self._on_output = on_output
        self._process: Process | None = None
        self._pipes: dict[int, Stream] = {}
        self._quiet = asyncio.Event()  # both pipes are at their end
        self._failed: Exception | None = None
        self._stopped = False
        self.left: frozenset[Member] = frozenset()
        """Who of its group went on when the process had ended by itself."""

    @property
    def group(self) -> int:
        """The number of the process group."""
        assert self._process is not None
        return self._process.pid

    async def run(self, timeout_seconds: float | None) -> tuple[int, bool]:
        """Start it; the exit code, and whether time ran out. Whatever ends this, the process has ended then.

        Raises: OSError when it cannot be started; what the receiver of the output raised.
        """
        timed_out = False
        try:
            await undisturbed(self._spawn())
            assert self._process is not None
            if self._stopped:
                await undisturbed(self.stop())
            try:
                async with asyncio.timeout(timeout_seconds):
                    code = await self._process.wait()
            except TimeoutError:
                timed_out = True
                code = await undisturbed(self.stop())
            else:
                self.left = _members(self.group)
            await self._last_words()
        finally:
            if self._process is not None and self._process.returncode is None:
                await undisturbed(self.stop())
            self._close()
        if self._failed is not None:
            raise self._failed
        return code, timed_out

    async def stop(self) -> int:
        """End the group: it is asked, and after the grace it is not asked. The exit code, once the process has one."""
        self._stopped = True
        if self._process is None:  # it ends as soon as it has begun
            return 0
        await end_group(self.group, self._start.grace_seconds)
        return await self._process.wait()

    async def _spawn(self) -> None:
        written: list[int] = []
        streams: tuple[Stream, ...] = ("stdout", "stderr")
        try:
            for stream in streams:
                read, write = os.pipe()
                written.append(write)
                self._pipes[read] = stream
                os.set_blocking(read, False)
            with contextlib.ExitStack() as stack:
                stdin: int | IO[bytes] = DEVNULL
                if self._start.stdin is not None:  # a file: nobody has to keep feeding a pipe
                    stdin = stack.enter_context(tempfile.TemporaryFile())
                    stdin.write(self._start.stdin)
                    stdin.seek(0)
                self._process = await asyncio.create_subprocess_exec(
                    *self._start.argv,
                    cwd=self._start.cwd,
                    env=self._start.env,
                    stdin=stdin,
                    stdout=written[0],
                    stderr=written[1],
                    start_new_session=True,
                )
        finally:
            for write in written:
                os.close(write)
        for pipe in self._pipes:
            asyncio.get_running_loop().add_reader(pipe, self._read, pipe)

    async def _last_words(self) -> None:
        """Read all that the process wrote before it ended; whoever else holds the pipes has a moment more."""
        for pipe in tuple(self._pipes):
            for _ in range(_FULL_PIPE // _CHUNK):
                if not self._read(pipe):
                    break
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self._quiet.wait()

    def _read(self, pipe: int) -> bool:
        """Whether there may be more at once."""
        try:
            data = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._close_pipe(pipe)
        elif self._failed is None:
            try:
                self._on_output(data, self._pipes[pipe])
            except Exception as error:  # nobody listens any more
                self._failed = error
                _signal(self.group, signal.SIGKILL)
        return bool(data)

    def _close(self) -> None:
        for pipe in tuple(self._pipes):
            self._close_pipe(pipe)

    def _close_pipe(self, pipe: int) -> None:
        asyncio.get_running_loop().remove_reader(pipe)
        os.close(pipe)
        del self._pipes[pipe]
        if not self._pipes:
            self._quiet.set()


async def end_group(group: int, grace_seconds: float) -> None:
    """Ask every process of a group to end, and end those that have not after the grace."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_seconds
    alive = _signal(group, signal.SIGTERM)
    while alive and loop.time() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
        alive = _signal(group, 0)
    if alive:
        _signal(group, signal.SIGKILL)


async def end_left(group: int, left: frozenset[Member], grace_seconds: float) -> None:
    """End what a command left in the background, if that is still who lives in the group."""
    if left & _members(group):
        await end_group(group, grace_seconds)


def _signal(group: int, number: int) -> bool:
    """Whether the group has a process that may be signalled."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _members(group: int) -> frozenset[Member]:
    """The processes of a group that are alive, where the system tells: none elsewhere than on Linux."""
    if not _signal(group, 0):
        return frozenset()
    found: set[Member] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(encoding="utf-8", errors="replace")
        except OSError:  # it ended meanwhile
            continue
        state, _, its_group, *rest = text.rpartition(")")[2].split()
        if its_group == str(group) and state not in ("Z", "X"):
            found.add((int(stat.parent.name), rest[16]))
    return frozenset(found)
