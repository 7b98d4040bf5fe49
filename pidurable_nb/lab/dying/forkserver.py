"""Owns a small warm process without threads that forks one child per request, and says how each child ended.

A kernel must never fork itself: it has threads, sockets and the lock of a store. So a fresh process imports the modules
once and forks from there, some fifty times faster than a cold start. A child runs one function and is expected to die;
what is reported is what `waitpid` saw. The server ends with its parent, and no child outlives its request.

Never decides where a child dies: the child kills itself at its own point, or its time runs out.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, NoReturn, Self

from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import Json, JsonObject

_LENGTH = struct.Struct(">Q")
_PR_SET_PDEATHSIG = 1
_START_S = 60.0
_GRACE_S = 30.0
"""How much longer than a child's time the server may take to answer before it counts as stuck."""


class ForkServerError(PidurableError):
    """The fork server cannot start, or ended by itself: nothing is known about the child; start another server."""


class UnknownTarget(PidurableError):
    """The server finds no such `module:function`: add the module's directory to `extra_path`, or mend the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child ended, as `waitpid` saw it: by a signal or with an exit code, one of them None.

    `output` and `error` are all it wrote to its two streams. `timed_out` tells the signal of the server from its own.
    """

    signal: int | None
    exit_code: int | None
    output: str
    error: str
    timed_out: bool = False


class ForkServer:
    """A context in which `run` forks a child from a warm process that has imported `modules`.

    The server sees this process's `sys.path`, behind `extra_path`. A module that is not named is imported by each child
    anew, so it may change between two runs; a named one may not. `warm` are functions, as `module:function`, that the
    server calls once: what they leave in memory, every child begins with. Neither they nor `modules` may start threads.
    Raises: `ForkServerError` on entering, with the server's own words, when a module cannot be imported.
    """

    def __init__(self, modules: Sequence[str], *, warm: Sequence[str] = (), extra_path: Sequence[Path] = ()) -> None:
        self._modules = list(modules)
        self._warm = list(warm)
        self._extra_path = [str(path) for path in extra_path]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._words: IO[bytes] | None = None
        self._ready = False

    @property
    def pid(self) -> int | None:
        """The process id of the running server."""
        return None if self._process is None else self._process.pid

    def begin(self) -> None:
        """Start the server, not waiting until it is ready: entering or the first `run` does. Whoever begins closes."""
        with self._lock:
            self._start()

    def __enter__(self) -> Self:
        with self._lock:
            if self._process is None or self._ready:
                self._start()
            self._await()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, target: str, argument: Json, *, timeout_s: float) -> Ended:
        """Run `module:function(argument)` in a child of its own and say how it ended; one at a time.

        A function that returns gives exit code 0, one that raises 1 with its traceback in `error`, `SystemExit` its own
        code. Threads and `atexit` of the child do not delay its end. After `timeout_s` the child, and whatever it
        started, is killed.
        Raises: `UnknownTarget`; `ForkServerError` when the server is not running or broke.
        """
        request: JsonObject = {"target": target, "argument": argument, "timeout_s": timeout_s}
        with self._lock:
            if self._process is not None and not self._ready:
                self._await()
            reply = self._exchange(request, timeout_s + _GRACE_S)
        match reply:
            case {"unknown": str(reason)}:
                raise UnknownTarget(f"{target}: {reason}")
            case {"signal": number, "exit_code": code, "output": str(output), "error": str(error), "timed_out": cut}:
                return Ended(
                    signal=number if isinstance(number, int) else None,
                    exit_code=code if isinstance(code, int) else None,
                    output=output,
                    error=error,
                    timed_out=cut is True,
                )
            case _:
                raise ForkServerError(f"the fork server answered {reply!r} to {target}")

    def close(self) -> None:
        """End the server, and the child it may be waiting for."""
        if self._socket is not None:
            self._socket.close()  # the server reads the end of its requests and exits
            self._socket = None
        if self._process is not None:
            try:
                self._process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._words is not None:
            self._words.close()
            self._words = None
        self._ready = False

    def _start(self) -> None:
        if self._process is not None:
            raise ForkServerError("this fork server is already running")
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[3])
        path = [entry or os.getcwd() for entry in sys.path]
        # Not `-m`: the module would exist twice, as itself and as __main__.
        code = f"import sys; sys.path[:0] = [{root!r}]; from {__name__} import serve; serve({theirs.fileno()})"
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt typed at the terminal is for the parent
            )
        self._socket = ours
        greeting = {"modules": self._modules, "warm": self._warm, "path": [*self._extra_path, *path]}
        with contextlib.suppress(OSError):  # whoever waits for the answer hears why
            _send(ours, json.dumps(greeting).encode())

    def _await(self) -> None:
        """Wait for the answer to the greeting."""
        reply = self._exchange(None, _START_S)
        if reply != {"ready": True}:
            self.close()
            raise ForkServerError(f"the fork server cannot start: {reply.get('refused')}")
        self._ready = True

    def _exchange(self, request: JsonObject | None, timeout_s: float) -> JsonObject:
        """Send a request, or none where one is on its way, and read the answer to it."""
        if self._socket is None:
            raise ForkServerError("this fork server is not running; enter it with `with`")
        try:
            self._socket.settimeout(timeout_s)
            if request is not None:
                _send(self._socket, json.dumps(request).encode())
            reply = _receive(self._socket)
        except OSError as error:
            reason = f"{error}; {self._last_words()}"
            self.close()
            raise ForkServerError(f"the fork server ended or is stuck: {reason}") from error
        except BaseException:
            self.close()  # an answer that nobody read would be taken for the next one
            raise
        if reply is None:
            reason = self._last_words()
            self.close()
            raise ForkServerError(f"the fork server ended by itself: {reason}")
        return reply

    def _last_words(self) -> str:
        if self._words is None:
            return "it said nothing"
        self._words.seek(0)
        return self._words.read().decode(errors="replace").strip() or "it said nothing"


# The protocol: eight bytes of length, then a JSON object, both ways.


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(message)) + message)


def _receive(connection: socket.socket) -> JsonObject | None:
    """The next message, or None when the other side is gone."""
    head = _read_exactly(connection, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    body = _read_exactly(connection, length)
    if body is None:
        return None
    message: JsonObject = json.loads(body)
    return message


def _read_exactly(connection: socket.socket, size: int) -> bytes | None:
    content = bytearray()
    while len(content) < size:
        part = connection.recv(min(size - len(content), 1 << 20))
        if not part:
            return None
        content += part
    return bytes(content)


# The server's side.


def serve(descriptor: int) -> None:
    """Be the server at the other end of this socket until that end closes."""
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    greeting = _receive(connection)
    if greeting is None:
        return
    refusal = _warm_up(greeting)
    _reply(connection, {"refused": refusal} if refusal else {"ready": True})
    if refusal:
        return
    deaths = _watch_children()
    gc.collect()
    gc.freeze()  # what is shared stays shared: collections in a child need not touch it
    while (request := _receive(connection)) is not None:
        match request:
            case {"target": str(target), "argument": argument, "timeout_s": float() | int() as timeout_s}:
                reply = _serve_one(connection, deaths, target, argument, timeout_s)
            case _:
                return
        if reply is None:
            return
        _reply(connection, reply)


def _warm_up(greeting: JsonObject) -> str | None:
    """Import and call what the greeting names; the reason when that is not possible."""
    modules, path = greeting.get("modules"), greeting.get("path")
    if not isinstance(modules, list) or not isinstance(path, list):
        return f"it was greeted with {greeting!r}"
    sys.path[:] = [entry for entry in path if isinstance(entry, str)]
    for name in modules:
        try:
            importlib.import_module(str(name))
        except BaseException:
            return f"module {name} cannot be imported\n{traceback.format_exc()}"
        if threading.active_count() > 1:
            return f"module {name} started a thread, and a process with threads must not fork"
    warm = greeting.get("warm")
    for name in warm if isinstance(warm, list) else ():
        function = _resolve(str(name))
        if isinstance(function, str):
            return function
        try:
            function(None)
        except BaseException:
            return f"{name} failed\n{traceback.format_exc()}"
        if threading.active_count() > 1:
            return f"{name} started a thread, and a process with threads must not fork"
    return None


def _reply(connection: socket.socket, reply: JsonObject) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _send(connection, json.dumps(reply).encode())


def _watch_children() -> int:
    """A descriptor that becomes readable when a child ends."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.signal(signal.SIGCHLD, _heard)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def _heard(_number: int, _frame: FrameType | None) -> None:
    """Having a handler at all is what makes the signal reach the wakeup descriptor."""


def _serve_one(
    connection: socket.socket, deaths: int, target: str, argument: Json, timeout_s: float
) -> JsonObject | None:
    """Fork, wait, and describe the end; None when the parent is gone."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error, tempfile.TemporaryFile() as refusal:
        server = os.getpid()
        child = os.fork()
        if child == 0:
            _be_child(connection, server, (output, error, refusal), target, argument)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(child, child)
        came = _await_end(connection, deaths, child, timeout_s)
        # The group goes while its leader is not yet reaped, so that the number still means this group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if came == "parent gone":
            return None
        unknown = _content(refusal)
        if unknown:
            return {"unknown": unknown}
        signalled = os.WIFSIGNALED(status)
        return {
            "signal": os.WTERMSIG(status) if signalled else None,
            "exit_code": None if signalled else os.WEXITSTATUS(status),
            "output": _content(output),
            "error": _content(error),
            "timed_out": signalled and came == "late",
        }


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _await_end(connection: socket.socket, deaths: int, child: int, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    watched: list[socket.socket | int] = [connection, deaths]
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            return "late"
        ready, _, _ = select.select(watched, [], [], left)
        if connection in ready:  # nobody asks while waiting for an answer: this is the end of the requests
            return "parent gone"
        if deaths in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(deaths, 4096)
    return "ended"


# The child's side.


def _be_child(
    connection: socket.socket,
    server: int,
    files: tuple[IO[bytes], IO[bytes], IO[bytes]],
    target: str,
    argument: Json,
) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        _die_with(server)
        connection.close()
        output, error, refusal = files
        os.dup2(output.fileno(), 1)
        os.dup2(error.fileno(), 2)
        sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
        sys.dont_write_bytecode = True  # a file rewritten within its timestamp's second would run as it was before
        importlib.invalidate_caches()
        function = _resolve(target)
        if isinstance(function, str):
            refusal.write(function.encode())
            refusal.flush()
        else:
            function(argument)
            code = 0
    except SystemExit as request:
        code = _exit_code(request)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _unbuffered(descriptor: int) -> io.TextIOWrapper:
    """A stream whose text is out before the next statement runs: a SIGKILL would take a buffer along."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


def _die_with(server: int) -> None:
    """Let the system kill this process when the server dies, which may just have happened."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != server:
        os._exit(1)


def _resolve(target: str) -> Callable[[Json], object] | str:
    """The function that `module:function` names, or why there is none."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        return "a target is written module:function"
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:
        return f"module {module_name} cannot be imported: {type(error).__name__}: {error}"
    function: Callable[[Json], object] | None = getattr(module, name, None)
    if not callable(function):
        return f"module {module_name} has no function {name}"
    return function


def _exit_code(request: SystemExit) -> int:
    """What an interpreter would make of it."""
    match request.code:
        case None:
            return 0
        case int() as code:
            return code & 0xFF
        case words:
            sys.stderr.write(f"{words}\n")
            return 1
