"""Owns what an execution environment is to a tool: files and processes at one place. Never is one.

An environment is trusted and confines nothing. Its files and processes may be on another machine, so nothing here is
a file descriptor or a process id. Failures of files and of starting a process are `OSError`, as everywhere in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from pidurable_nb.tools.output import OutputLimits

Stream = Literal["stdout", "stderr"]
Kind = Literal["file", "directory", "other"]
OnOutput: TypeAlias = Callable[[bytes, Stream], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """What is at a path, symbolic links followed. `size` is in bytes; `version` differs once the file was changed."""

    kind: Kind
    size: int
    modified: datetime
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One name in a directory."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command ended.

    `exit_code` is negative for a signal, as `-9`. `spilled` is the path of a file in the environment with everything
    it wrote, in order of arrival; `spill_error` says why there is none although there should be.
    """

    exit_code: int
    timed_out: bool = False
    spilled: str | None = None
    spill_error: str | None = None


@runtime_checkable
class Environment(Protocol):
    """A place with files and processes. A relative path is below `cwd`; `~` is the home of whoever it works as.

    Cancelling an operation stops it, and when the cancellation arrives at the caller it has stopped.
    """

    @property
    def cwd(self) -> str:
        """The absolute path of the working directory."""
        ...

    @property
    def id(self) -> str:
        """Environments with one id see the same files at the same paths."""
        ...

    async def canonical(self, path: str) -> str:
        """The absolute path with symbolic links followed, whether or not something is there."""
        ...

    async def read_bytes(self, path: str, *, start: int = 0, limit: int | None = None) -> bytes:
        """At most `limit` bytes of a regular file from the offset `start` on. Raises: OSError."""
        ...

    async def stat(self, path: str) -> Stat | None:
        """What is there; None for nothing. Raises: OSError."""
        ...

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Replace the file, or make it and the directories above it. Readers see all of the old or all of the new.

        Raises: OSError; the file is as it was.
        """
        ...

    async def list(self, path: str) -> tuple[Listed, ...]:
        """What is in a directory, by name. Raises: OSError."""
        ...

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
        """Run a command to its end: text by the environment's shell, a sequence without any.

        `on_output` gets each piece as it arrives; what it raises stops the command and is raised here. `env` is added
        to the environment's own variables. After `timeout`, and on cancellation, the command and every process of its
        group are ended. Processes that it leaves in the background go on, but nothing that they still write is read.
        Output beyond `spill_over` goes to a file as well, complete.

        Raises: OSError when it cannot be started.
        """
        ...
