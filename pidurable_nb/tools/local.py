"""Owns the environment that is this machine: its files and its processes, as the user who runs the kernel. POSIX only.

Never confines: what a command may do is what that user may do.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shutil
import stat as modes
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from pidurable_nb.tools.command import Command, Member, Start, end_left, undisturbed
from pidurable_nb.tools.environment import Kind, Listed, OnOutput, Ran, Stat, Stream
from pidurable_nb.tools.output import OutputLimits

T = TypeVar("T")

_GRACE: Final = timedelta(seconds=2)


class LocalEnvironment:
    """Files and processes of this machine, below the directory `cwd`; an `Environment`.

    `env` is added to the variables of this process. A command that is to end has `grace` to do so. The complete
    output of commands is kept in `spill_directory`; without one, in a private temporary directory that `close()`
    removes. Belongs to the loop that first runs a command. `async with` closes it.
    """

    def __init__(
        self,
        cwd: str | Path = ".",
        *,
        env: Mapping[str, str] | None = None,
        grace: timedelta = _GRACE,
        spill_directory: str | Path | None = None,
    ) -> None:
        self._cwd = os.path.abspath(cwd)
        self._env = dict(env or {})
        self._grace_seconds = grace.total_seconds()
        self._spill_directory = None if spill_directory is None else os.path.abspath(spill_directory)
        self._private: str | None = None
        self._running: set[Command] = set()
        self._left: dict[int, frozenset[Member]] = {}
        self._closed = False

    @property
    def cwd(self) -> str:
        return self._cwd

    @property
    def id(self) -> str:
        return "local"

    def __repr__(self) -> str:
        return f"LocalEnvironment({self._cwd!r})"

    async def __aenter__(self) -> LocalEnvironment:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every command that runs, and what commands left in the background. Nothing can be run afterwards."""
        self._closed = True
        async with asyncio.TaskGroup() as ending:
            for command in tuple(self._running):
                ending.create_task(command.stop())
            for group, members in self._left.items():
                ending.create_task(end_left(group, members, self._grace_seconds))
        self._left.clear()
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)
            self._private = None

    # -- files -----------------------------------------------------------------------------------------------------

    async def canonical(self, path: str) -> str:
        return await _in_thread(lambda: os.path.realpath(self._at(path)))

    async def read_bytes(self, path: str, *, start: int = 0, limit: int | None = None) -> bytes:
        return await _in_thread(lambda: _read(self._at(path), start, limit))

    async def stat(self, path: str) -> Stat | None:
        return await _in_thread(lambda: _stat(self._at(path)))

    async def write_bytes(self, path: str, data: bytes) -> None:
        await _in_thread(lambda: _replace(os.path.realpath(self._at(path)), data))

    async def list(self, path: str) -> tuple[Listed, ...]:
        return await _in_thread(lambda: _list(self._at(path)))

    def _at(self, path: str) -> str:
        try:
            if b"\0" in os.fsencode(path):
                raise OSError(errno.EINVAL, "a path cannot hold a null character", path)
        except UnicodeEncodeError as error:
            raise OSError(errno.EINVAL, "a path cannot hold half a character", path) from error
        return os.path.join(self._cwd, os.path.expanduser(path))

    # -- processes -------------------------------------------------------------------------------------------------

    async def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: timedelta | None = None,  # noqa: ASYNC109 - the command is what has the time limit, not the caller
        on_output: OnOutput | None = None,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        spill_over: OutputLimits | None = None,
    ) -> Ran:
        if self._closed:
            raise RuntimeError(f"{self!r} is closed and runs nothing any more; make another one")
        start = Start(
            argv=(_shell(), "-c", command) if isinstance(command, str) else tuple(command),
            cwd=self._cwd if cwd is None else self._at(cwd),
            env={**os.environ, **self._env, **(env or {})},
            stdin=stdin,
            grace_seconds=self._grace_seconds,
        )
        spill = _Spill(spill_over, self._spilling) if spill_over is not None else None

        def receive(data: bytes, stream: Stream) -> None:
            if spill is not None:
                spill.add(data)
            if on_output is not None:
                on_output(data, stream)

        running = Command(start, receive)
        self._running.add(running)
        try:
            code, timed_out = await running.run(None if timeout is None else timeout.total_seconds())
        finally:
            self._running.discard(running)
            if running.left:
                self._left[running.group] = running.left
            if spill is not None:
                spill.close()
        return Ran(
            exit_code=code,
            timed_out=timed_out,
            spilled=None if spill is None else spill.path,
            spill_error=None if spill is None else spill.error,
        )

    def _spilling(self) -> str:
        """The directory of complete outputs, made when it is needed."""
        if self._spill_directory is not None:
            os.makedirs(self._spill_directory, mode=0o700, exist_ok=True)
            return self._spill_directory
        if self._private is None:
            self._private = tempfile.mkdtemp(prefix="pidurable-")
        return self._private


class _Spill:
    """The complete output of one command: in memory while it is small, then in a file."""

    def __init__(self, limits: OutputLimits, directory: Callable[[], str]) -> None:
        self._limits = limits
        self._directory = directory
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._newlines = 0
        self._file: BinaryIO | None = None
        self.path: str | None = None
        self.error: str | None = None

    def add(self, data: bytes) -> None:
        if self.error is not None:
            return
        self._bytes += len(data)
        self._newlines += data.count(b"\n")
        self._pieces.append(data)
        lines = self._newlines + (not data.endswith(b"\n"))
        if self._file is not None or self._bytes > self._limits.max_bytes or lines > self._limits.max_lines:
            self._write()

    def close(self) -> None:
        """Nothing follows."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._fail(error)

    def _write(self) -> None:
        try:
            if self._file is None:
                handle, self.path = tempfile.mkstemp(prefix="output-", suffix=".log", dir=self._directory())
                self._file = open(handle, "wb")  # noqa: SIM115 - open as long as the command runs
            self._file.writelines(self._pieces)
        except OSError as error:
            self._fail(error)
        self._pieces.clear()

    def _fail(self, error: OSError) -> None:
        """A full disk ends the file, and neither the command nor its output."""
        self.error = str(error)
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)
            self.path = None


async def _in_thread(work: Callable[[], T]) -> T:
    """A file operation; one that was begun has ended when its cancellation arrives."""
    return await undisturbed(asyncio.to_thread(work))


def _read(path: str, start: int, limit: int | None) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO that nobody writes to must not block
    try:
        mode = os.fstat(handle).st_mode
        if not modes.S_ISREG(mode):
            raise _no_file(path, mode)
        with open(handle, "rb", closefd=False) as file:
            file.seek(start)
            return file.read(-1 if limit is None else limit)
    finally:
        os.close(handle)


def _replace(path: str, data: bytes) -> None:
    try:
        mode: int | None = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
        os.makedirs(os.path.dirname(path), exist_ok=True)
    if mode is not None:
        if not modes.S_ISREG(mode):
            raise _no_file(path, mode)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    new = os.path.join(os.path.dirname(path), f".{secrets.token_hex(8)}.tmp")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, modes.S_IMODE(mode))
            file.write(data)
            file.flush()
            os.fsync(handle)  # a name that points to nothing yet is what a power cut would leave
        os.replace(new, path)
    except BaseException:
        Path(new).unlink(missing_ok=True)
        raise


def _stat(path: str) -> Stat | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Stat(
        kind=_kind(found.st_mode),
        size=found.st_size,
        modified=datetime.fromtimestamp(found.st_mtime, UTC),
        version=f"{found.st_dev}-{found.st_ino}-{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}",
    )


def _list(path: str) -> tuple[Listed, ...]:
    with os.scandir(path) as entries:
        return tuple(
            Listed(
                name=entry.name,
                kind="directory" if entry.is_dir() else "file" if entry.is_file() else "other",
            )
            for entry in sorted(entries, key=lambda entry: entry.name)
        )


def _kind(mode: int) -> Kind:
    return "file" if modes.S_ISREG(mode) else "directory" if modes.S_ISDIR(mode) else "other"


def _no_file(path: str, mode: int) -> OSError:
    if modes.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return OSError(errno.EINVAL, "not a regular file", path)


def _shell() -> str:
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
