"""Owns the four tools of a coding agent: `read`, `write`, `edit` and `bash`. Never touches a file or a process itself.

They know only the environment of their call, so one set of tools serves every conversation, directory and sandbox.
`write` and `edit` of one file take turns within the process; that is no lock against `bash` or other processes.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import signal
from collections.abc import Generator, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Final

from pidurable_nb.errors import ToolError
from pidurable_nb.ids import Json
from pidurable_nb.records.message import Diagnostic
from pidurable_nb.tools.bounds import RetainedOutput
from pidurable_nb.tools.editing import Edit, edited
from pidurable_nb.tools.environment import Environment, Ran, Stat, Stream
from pidurable_nb.tools.injected import Injected
from pidurable_nb.tools.output import Output, OutputLimits
from pidurable_nb.tools.tool import Tool, tool
from pidurable_nb.tools.turns import Turns

_HEAD: Final = OutputLimits(retain="head")
_TAIL: Final = OutputLimits(retain="tail")
_CHUNK: Final = 1 << 18
_SNIFFED: Final = 8192
"""How much of a file is looked at to tell text from anything else."""
_MOST_EDITED: Final = 64 << 20
_MARK: Final = b"\xef\xbb\xbf"

_turns: Final = Turns()


def coding_tools() -> tuple[Tool, ...]:
    """`read`, `write`, `edit` and `bash`, working in the environment of each call."""
    return (
        tool(replay="safe", limits=_HEAD)(read),
        tool()(write),
        tool(prepare_arguments=_repaired)(edit),
        tool(limits=_TAIL)(bash),
    )


async def read(
    path: Annotated[str, "the file, absolute or below the working directory"],
    call: Injected,
    offset: Annotated[int, "the first line to read, counted from 1"] = 1,
    limit: Annotated[int | None, "how many lines to read at most"] = None,
) -> Output:
    """Read a text file. Long files are cut after 2,000 lines or 50 KiB; read on with offset."""
    environment = _environment(call, "read")
    if offset < 1 or (limit is not None and limit < 1):
        raise ToolError(f"offset={offset}, limit={limit}: lines are counted from 1, and at least one is read")
    for _ in range(2):
        with _file_errors(path):
            before = await _text_file(environment, path)
            reading = _Reading(offset, limit)
            at = 0
            while data := await environment.read_bytes(path, start=at, limit=_CHUNK):
                reading.add(data)
                at += len(data)
            if await environment.stat(path) == before:
                return reading.output(path)
    raise ToolError(f"{path}: it changes while it is read; read it again, or stop what writes to it")


async def write(
    path: Annotated[str, "the file, absolute or below the working directory"],
    content: Annotated[str, "everything that the file is to hold"],
    call: Injected,
) -> str:
    """Write a text file: a new one, with the directories above it, or in place of the one that is there."""
    environment = _environment(call, "write")
    data = content.encode()
    with _file_errors(path):
        async with _turns.turn((environment.id, await environment.canonical(path))):
            there = await environment.stat(path) is not None
            await environment.write_bytes(path, data)
    return f"{'replaced' if there else 'created'} {path}: {len(data):,} bytes"


async def edit(
    path: Annotated[str, "the file, absolute or below the working directory"],
    edits: Annotated[list[Edit], "replacements: each old_text stands exactly once in the file, and none overlap"],
    call: Injected,
) -> str:
    """Replace pieces of a text file, all of them or none. Every old_text is matched exactly, in the file as it was."""
    environment = _environment(call, "edit")
    with _file_errors(path):
        async with _turns.turn((environment.id, await environment.canonical(path))):
            found = await _text_file(environment, path)
            if found.size > _MOST_EDITED:
                raise ToolError(f"{path}: {found.size:,} bytes are too many to edit; change it with bash")
            data, line = edited(await environment.read_bytes(path), edits, path=path)
            await environment.write_bytes(path, data)
    return f"made {len(edits)} edit{'s' if len(edits) > 1 else ''} in {path}, the first in line {line:,}"


async def bash(
    command: Annotated[str, "what the shell runs, in the working directory"],
    call: Injected,
    timeout_seconds: Annotated[float | None, "end the command after this long; none by default"] = None,
) -> None:
    """Run a shell command and see what it writes. Long output is cut to its last 2,000 lines or 50 KiB."""
    environment = _environment(call, "bash")
    if timeout_seconds is not None and not 0 < timeout_seconds <= 1e6:
        raise ToolError(f"timeout_seconds={timeout_seconds}: it is more than 0, and a million at most")
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}

    def receive(data: bytes, stream: Stream) -> None:  # a character of one stream may be cut by a piece of the other
        if text := decoders[stream].decode(data):
            call.progress(text)

    timeout = None if timeout_seconds is None else timedelta(seconds=timeout_seconds)
    try:
        ran = await environment.run(command, timeout=timeout, on_output=receive, spill_over=_TAIL)
    except OSError as error:
        raise ToolError(f"the command could not be started: {error}") from error
    for decoder in decoders.values():
        if text := decoder.decode(b"", final=True):
            call.progress(text)
    _report(ran, call)
    if ran.timed_out:
        raise ToolError(f"the command was ended after {timeout_seconds:g} seconds (exit code {ran.exit_code})")
    if ran.exit_code:
        raise ToolError(f"the command ended with exit code {ran.exit_code}{_signal_name(ran.exit_code)}")


def _report(ran: Ran, call: Injected) -> None:
    if ran.spilled is not None:
        call.diagnostic(Diagnostic(severity="info", code="spilled", message=f"complete output: {ran.spilled}"))
    if ran.spill_error is not None:
        message = f"the complete output could not be kept: {ran.spill_error}"
        call.diagnostic(Diagnostic(severity="warn", code="spill_failed", message=message))


class _Reading:
    """One pass over a file: its lines are counted, those asked for are kept as far as the limits go."""

    def __init__(self, offset: int, limit: int | None) -> None:
        self._first = offset - 1  # newlines before what is asked for
        self._last = None if limit is None else self._first + limit
        self._newlines = 0
        self._open_line = False
        self._kept = RetainedOutput(_HEAD)
        self._begun = False

    def add(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            data = data.removeprefix(_MARK)
        if not data:
            return
        before = self._newlines
        self._newlines += data.count(b"\n")
        self._open_line = not data.endswith(b"\n")
        if self._newlines < self._first or (self._last is not None and before >= self._last):
            return
        start = _after(data, self._first - before)
        end = len(data) if self._last is None or self._newlines < self._last else _after(data, self._last - before)
        self._kept.add(data[start:end])

    def output(self, path: str) -> Output:
        total = self._newlines + self._open_line
        if self._first > 0 and self._first >= total:
            raise ToolError(f"{path}: it has {total:,} lines; there is no line {self._first + 1:,}")
        self._kept.end()
        text = self._kept.exact
        return Output(content=text, diagnostics=tuple(self._remarks(text, total)))

    def _remarks(self, text: str, total: int) -> Iterator[Diagnostic]:
        cut = self._kept.diagnostic
        following = self._first + self._kept.lines + 1
        if cut is not None and not text.endswith("\n"):
            message = f"{cut.message}; line {self._first + 1:,} alone is too long, its rest can be seen with bash"
            yield Diagnostic(severity=cut.severity, code=cut.code, message=message)
        elif cut is not None:
            yield Diagnostic(
                severity=cut.severity, code=cut.code, message=f"{cut.message}; read on with offset={following}"
            )
        elif following <= total:
            message = f"the file has {total:,} lines; read on with offset={following}"
            yield Diagnostic(severity="info", code="more", message=message)
        if total == 0:
            yield Diagnostic(severity="info", code="empty", message="the file is empty")
        if "\ufffd" in text:
            yield Diagnostic(severity="warn", code="encoding", message="bytes that are no UTF-8 are shown as U+FFFD")


def _after(data: bytes, newlines: int) -> int:
    """Where the line begins that stands after so many newlines."""
    at = 0
    for _ in range(newlines):
        at = data.index(b"\n", at) + 1
    return at


async def _text_file(environment: Environment, path: str) -> Stat:
    """What is known about a file of text. Raises: ToolError for anything else."""
    found = await environment.stat(path)
    if found is None:
        raise ToolError(f"{path}: there is no such file; relative paths are below {environment.cwd}")
    if found.kind == "directory":
        raise ToolError(f"{path}: it is a directory; see what is in it with bash")
    if found.kind != "file":
        raise ToolError(f"{path}: it is no regular file")
    if b"\0" in await environment.read_bytes(path, limit=_SNIFFED):
        raise ToolError(f"{path}: it is a binary file of {found.size:,} bytes, not text")
    return found


def _environment(call: Injected, name: str) -> Environment:
    environment = call.environment
    if environment is None:
        raise ToolError(
            f"{name} has no files and processes to work with; pass Harness.open(..., environment=LocalEnvironment(...))"
        )
    return environment


@contextlib.contextmanager
def _file_errors(path: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror or error}") from error


def _signal_name(code: int) -> str:
    """What a shell or the system says about a signal: -9 here, 137 from a shell."""
    number = -code if code < 0 else code - 128
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""


def _repaired(arguments: Json) -> Json:
    """Edits as models also send them: as JSON text, or one that is in no list."""
    if not isinstance(arguments, Mapping):
        return arguments
    edits = arguments.get("edits")
    if isinstance(edits, str):
        try:
            edits = json.loads(edits)
        except ValueError:  # the validation says what is wrong with it
            return arguments
    return {**arguments, "edits": [edits] if isinstance(edits, Mapping) else edits} if edits is not None else arguments
