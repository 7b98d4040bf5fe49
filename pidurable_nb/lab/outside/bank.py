"""Owns the way to the bank: the server as a process of its own, and the client that phases call. Keeps nothing.

The bank stands for any outside that honours idempotency keys: asked twice with one key, it applies once and answers the
same. Its counter for paying back is an older one, without keys. The books are the ledger of the run, so that killing
the bank loses nothing; which ledger travels with each request, and one server serves many runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import JsonObject
from pidurable_nb.lab.outside import teller
from pidurable_nb.lab.outside.world import current_ledger, read_ledger

__all__ = ["ADDRESS", "Bank", "BankError", "BankServer", "Statement", "bank", "statement"]

ADDRESS: Final = "PIDURABLE_BANK"
"""The environment variable that holds the server's address, so that child processes reach the same bank."""

_ANSWER_S: Final = 10.0


class BankError(PidurableError):
    """The bank cannot be reached, or refused a request that makes no sense. Whether it was applied is not known."""


class BankServer:
    """A context in which a bank is open, in a process of its own that dies with this one.

    `declines` are the order items whose capture it declines. Inside, `bank` reaches it, from child processes too.
    Raises: BankError on entering, with the server's own words, when it cannot start.
    """

    def __init__(self, *, declines: Sequence[int] = (3,)) -> None:
        self._declines = tuple(declines)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._before: str | None = None

    @property
    def address(self) -> str:
        """The path of its socket."""
        if self._folder is None:
            raise BankError("this bank is closed; enter it with `with`")
        return str(Path(self._folder.name) / "bank")

    @property
    def pid(self) -> int | None:
        """The process id of the server."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        # Not under a deep temporary folder: the path of a socket has about a hundred bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="bank-", dir="/tmp" if os.path.isdir("/tmp") else None)
        self.reopen()
        self._before = os.environ.get(ADDRESS)
        os.environ[ADDRESS] = self.address
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is None:
            os.environ.pop(ADDRESS, None)
        else:
            os.environ[ADDRESS] = self._before
        self._end()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def reopen(self) -> None:
        """Kill the server and start another: the books say all that it knew."""
        self._end()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.address)
        # The file and not the module: a bank knows nothing of this package, and starts without loading it.
        command = [sys.executable, "-I", str(Path(teller.__file__)), self.address, *map(str, self._declines)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != teller.OPEN:
            words = process.stderr.read().decode(errors="replace").strip()
            self._end()
            raise BankError(f"the bank cannot open: {words or 'it said nothing'}")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


class Bank:
    """The client. Its methods block, and work inside `rt.effect(...)` of a run in the laboratory's World only.

    Raises: NoWorld elsewhere; BankError when no bank is open.
    """

    def authorize(self, n: int) -> str:
        """An authorisation for order item `n`. It moves no money and has no key: asked twice, it answers the same."""
        return str(self._ask({"op": "authorize", "n": n})["answer"])

    def capture(self, n: int, auth: str, key: str) -> str | None:
        """Take the price of item `n`: the number of the charge, or None when it is declined.

        One key takes once, and is answered the same whenever it is asked. A key that was barred takes nothing.
        """
        answer = self._ask({"op": "capture", "n": n, "auth": auth, "key": key})["answer"]
        return None if answer is None else str(answer)

    def refund(self, capture_key: str, key: str) -> int:
        """Give back what `capture_key` took, in cents, nothing if it took nothing; and bar it from taking later."""
        return int(str(self._ask({"op": "refund", "capture": capture_key, "key": key})["answer"]))

    def pay_back(self, order: str, cents: int) -> str:
        """Pay `cents` back for an order: the receipt. It has no key, so asked twice it pays twice."""
        return str(self._ask({"op": "pay_back", "order": order, "cents": cents})["answer"])

    def paid_back(self, order: str) -> int:
        """How many cents were paid back for an order. It only reads the books."""
        return int(str(self._ask({"op": "paid_back", "order": order})["answer"]))

    def _ask(self, request: JsonObject) -> JsonObject:
        ledger = current_ledger()
        address = os.environ.get(ADDRESS)
        if address is None:
            raise BankError("no bank is open; run this within BankServer()")
        message = json.dumps({**request, "ledger": str(ledger.absolute())}).encode() + b"\n"
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_ANSWER_S)
            try:
                line.connect(address)
                line.sendall(message)
                answer: JsonObject = json.loads(teller.read_line(line))
            except (OSError, ValueError) as error:
                raise BankError(f"the bank does not answer: {error}; ask again with the same key") from error
        if "error" in answer:
            raise BankError(f"the bank refused {request['op']}: {answer['error']}")
        return answer


bank: Final = Bank()
"""The bank that is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What the books of one run say, in cents, and how often each key was applied."""

    captured: int
    refunded: int
    captures: dict[str, int]
    refunds: dict[str, int]


def statement(ledger: Path) -> Statement:
    """The sums of one ledger."""
    sums = {"capture": 0, "refund": 0}
    times: dict[str, dict[str, int]] = {"capture": {}, "refund": {}}
    for line in read_ledger(ledger):
        op = line.effect.partition(" ")[0]
        if line.edge == "applied" and line.key is not None and op in sums and isinstance(line.value, int):
            sums[op] += line.value
            times[op][line.key] = times[op].get(line.key, 0) + 1
    return Statement(
        captured=sums["capture"], refunded=sums["refund"], captures=times["capture"], refunds=times["refund"]
    )
