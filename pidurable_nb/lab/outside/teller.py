"""Owns the bank's side of the counter: one process that answers one request after another, out of the books.

It runs as a file, knows nothing of the package and keeps nothing in memory: each answer is read from the ledger that
the request names, and what it applies is appended there before it is answered. It ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from typing import NotRequired, TypedDict

OPEN = b"open\n"
"""What the server says when it can be asked."""

PATIENCE_S = 5.0
"""How long one customer may keep the others waiting for the rest of a request."""


class Line(TypedDict):
    """A line of the books: that a key was asked for, applied (`value` in cents) or refused; `bars` another key."""

    effect: str
    edge: str
    key: str
    value: NotRequired[int]
    error: NotRequired[str]
    bars: NotRequired[str]
    by: NotRequired[str]


def price(n: int) -> int:
    """What order item `n` costs, in cents."""
    return 1000 + 100 * n


def read_line(connection: socket.socket) -> bytes:
    """One message, without its end. Raises ConnectionError when the other side is gone before it."""
    content = b""
    while not content.endswith(b"\n"):
        part = connection.recv(65536)
        if not part:
            raise ConnectionError("the other side is gone")
        content += part
    return content[:-1]


def read_book(ledger: str) -> list[Line]:
    """The lines of the bank itself. A last line that was cut off was never answered."""
    with open(ledger, "rb") as file:
        lines: list[Line] = [json.loads(text) for text in file.read().split(b"\n")[:-1]]
    return [line for line in lines if line.get("by") == "bank"]


def enter(ledger: str, line: Line) -> None:
    """Append one line to the books, in one write."""
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps({**line, "by": "bank"}).encode() + b"\n")
    finally:
        os.close(descriptor)


def settled(book: list[Line], key: str) -> Line | None:
    """What was decided for this key, if it was."""
    return next((line for line in book if line["key"] == key and line["edge"] in ("applied", "refused")), None)


def capture(ledger: str, n: int, auth: str, key: str, declines: frozenset[int]) -> str | None:
    """Once per key: take the price, or refuse."""
    effect = f"capture {n}"
    enter(ledger, {"effect": effect, "edge": "asked", "key": key})
    book = read_book(ledger)
    before = settled(book, key)
    if before is not None:
        return f"charge-{n}" if before["edge"] == "applied" else None
    barred = any(line["edge"] == "applied" and line.get("bars") == key for line in book)
    if barred or n in declines or auth != f"auth-{n}":
        enter(ledger, {"effect": effect, "edge": "refused", "key": key, "error": "barred" if barred else "declined"})
        return None
    enter(ledger, {"effect": effect, "edge": "applied", "key": key, "value": price(n)})
    return f"charge-{n}"


def refund(ledger: str, capture_key: str, key: str) -> int:
    """Once per key: give back what the capture took, which may be nothing, and bar it."""
    book = read_book(ledger)
    taken = next((line for line in book if line["key"] == capture_key and line["edge"] == "applied"), None)
    effect = "refund" if taken is None else "refund " + taken["effect"].partition(" ")[2]
    enter(ledger, {"effect": effect, "edge": "asked", "key": key})
    before = settled(book, key)
    if before is not None:
        return before.get("value", 0)
    given = any(line["edge"] == "applied" and line.get("bars") == capture_key for line in book)
    amount = 0 if taken is None or given else taken.get("value", 0)
    enter(ledger, {"effect": effect, "edge": "applied", "key": key, "value": amount, "bars": capture_key})
    return amount


def pay_back(ledger: str, order: str, cents: int) -> str:
    """Pay, and write down that it was paid. Here are no keys: who asks twice is paid twice."""
    effect = f"pay back {order}"
    receipt = f"R-{order}-{sum(line['effect'] == effect for line in read_book(ledger)) + 1}"
    enter(ledger, {"effect": effect, "edge": "applied", "key": receipt, "value": cents})
    return receipt


def paid_back(ledger: str, order: str) -> int:
    """How many cents the books say were paid back for an order."""
    return sum(line.get("value", 0) for line in read_book(ledger) if line["effect"] == f"pay back {order}")


def answer(request: dict[str, object], declines: frozenset[int]) -> dict[str, object]:
    """The answer to one request."""
    match request:
        case {"op": "authorize", "n": int(n)}:
            return {"answer": f"auth-{n}"}
        case {"op": "capture", "ledger": str(ledger), "n": int(n), "auth": str(auth), "key": str(key)}:
            return {"answer": capture(ledger, n, auth, key, declines)}
        case {"op": "refund", "ledger": str(ledger), "capture": str(capture_key), "key": str(key)}:
            return {"answer": refund(ledger, capture_key, key)}
        case {"op": "pay_back", "ledger": str(ledger), "order": str(order), "cents": int(cents)}:
            return {"answer": pay_back(ledger, order, cents)}
        case {"op": "paid_back", "ledger": str(ledger), "order": str(order)}:
            return {"answer": paid_back(ledger, order)}
        case _:
            return {"error": f"it does not know {request!r}"}


def serve(address: str, declines: frozenset[int]) -> None:
    """Answer until standard input ends, which is when whoever opened the bank is gone; then tidy up after it."""
    with socket.socket(socket.AF_UNIX) as counter:
        counter.bind(address)
        counter.listen(64)
        sys.stdout.buffer.write(OPEN)
        sys.stdout.buffer.flush()
        while True:
            ready, _, _ = select.select([counter, sys.stdin], [], [])
            if sys.stdin in ready:
                os.unlink(address)
                os.rmdir(os.path.dirname(address))
                return
            customer, _ = counter.accept()
            with customer:
                customer.settimeout(PATIENCE_S)
                try:
                    reply = answer(json.loads(read_line(customer)), declines)
                except OSError:
                    continue  # gone before the request was complete: nothing happened
                except Exception as error:
                    reply = {"error": f"{type(error).__name__}: {error}"}
                try:
                    customer.sendall(json.dumps(reply).encode() + b"\n")
                except OSError:
                    continue  # gone before the answer: it is in the books, and asking again brings it


if __name__ == "__main__":
    serve(sys.argv[1], frozenset(map(int, sys.argv[2:])))
