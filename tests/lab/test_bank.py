"""The bank: one key applies once, killed or not; and no bank outlives who opened it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from pidurable_nb.ids import TaskId
from pidurable_nb.lab.outside.bank import ADDRESS, BankError, BankServer, bank, statement
from pidurable_nb.lab.outside.world import NoWorld, World, applied, asked
from pidurable_nb.probe import Mark, TaskSubject

T = TypeVar("T")


@pytest.fixture(scope="module")
def server() -> Iterator[BankServer]:
    with BankServer() as opened:
        yield opened


def do(ledger: Path, name: str, what: Callable[[], T], key: str | None = None) -> T:
    mark = Mark(TaskSubject(TaskId(7), "payment", "capture"), "effect", "before", name=name, key=key)
    doing: Callable[[], T | Awaitable[T]] = what
    return asyncio.run(World(ledger).perform(mark, doing))


def take(ledger: Path, n: int, key: str) -> str | None:
    return do(ledger, f"capture {n}", lambda: bank.capture(n, bank.authorize(n), key), key)


def give_back(ledger: Path, capture_key: str, key: str) -> int:
    return do(ledger, f"refund of {capture_key}", lambda: bank.refund(capture_key, key), key)


@pytest.mark.usefixtures("server")
def test_e6_one_key_takes_once_and_is_answered_the_same(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    assert [take(ledger, 1, "k") for _ in range(3)] == ["charge-1"] * 3
    assert statement(ledger).captures == {"k": 1}
    assert statement(ledger).captured == 1100
    assert (asked(ledger), applied(ledger)) == ({"capture 1": 3}, {"capture 1": 1})


@pytest.mark.usefixtures("server")
def test_item_three_is_declined_whenever_it_is_asked(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    assert [take(ledger, 3, "k") for _ in range(2)] == [None, None]
    assert (statement(ledger).captured, applied(ledger)) == (0, {"capture 3": 0})


@pytest.mark.usefixtures("server")
def test_e6_without_a_key_who_asks_twice_is_paid_twice_and_the_books_say_so(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    receipts = [do(ledger, "refund", lambda: bank.pay_back("A-1", 500)) for _ in range(2)]
    assert receipts == ["R-A-1-1", "R-A-1-2"]
    assert do(ledger, "look", lambda: bank.paid_back("A-1")) == 1000
    assert do(ledger, "look", lambda: bank.paid_back("A-2")) == 0
    assert applied(ledger) == {"pay back A-1": 2}


@pytest.mark.usefixtures("server")
def test_a_refund_gives_back_what_its_key_took_once(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    take(ledger, 2, "k")
    assert [give_back(ledger, "k", "r") for _ in range(2)] == [1200, 1200]
    assert give_back(ledger, "k", "another refund of the same capture") == 0
    books = statement(ledger)
    assert (books.captured, books.refunded, books.refunds["r"]) == (1200, 1200, 1)
    assert applied(ledger)["refund of k"] == 2


@pytest.mark.usefixtures("server")
def test_a_refund_of_nothing_gives_nothing_and_bars_the_capture_for_good(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    assert give_back(ledger, "k", "r") == 0
    assert take(ledger, 1, "k") is None
    assert take(ledger, 1, "k") is None
    books = statement(ledger)
    assert (books.captured, books.refunded, books.refunds) == (0, 0, {"r": 1})


@pytest.mark.usefixtures("server")
def test_every_ledger_has_books_of_its_own(tmp_path: Path) -> None:
    assert take(tmp_path / "one", 1, "k") == "charge-1"
    assert give_back(tmp_path / "two", "k", "r") == 0
    assert statement(tmp_path / "one").refunded == 0


def test_killing_the_bank_loses_nothing(server: BankServer, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    take(ledger, 1, "k")
    before = server.pid
    server.reopen()
    assert server.pid != before
    assert take(ledger, 1, "k") == "charge-1"
    assert give_back(ledger, "k", "r") == 1100
    server.reopen()
    assert give_back(ledger, "k", "r") == 1100
    assert statement(ledger).refunds == {"r": 1}


def test_declines_are_configured(tmp_path: Path) -> None:
    with BankServer(declines=(1, 2)):
        assert [take(tmp_path / "ledger", n, f"k{n}") for n in (1, 2, 3)] == [None, None, "charge-3"]


@pytest.mark.usefixtures("server")
def test_it_is_reached_through_the_world_only(tmp_path: Path) -> None:
    with pytest.raises(NoWorld):
        bank.authorize(1)
    with pytest.raises(NoWorld):
        bank.refund("k", "r")
    assert not list(tmp_path.iterdir())


def test_no_bank_is_said_and_so_is_a_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    with pytest.raises(BankError, match="no bank is open"):
        take(tmp_path / "ledger", 1, "k")
    with BankServer() as opened:
        assert opened.pid is not None
        os.kill(opened.pid, signal.SIGKILL)
        with pytest.raises(BankError, match=r"does not answer.*same key"):
            for _ in range(1000):
                take(tmp_path / "ledger", 1, "k")
    assert ADDRESS not in os.environ
    with pytest.raises(BankError, match="this bank is closed"):
        _ = opened.address


@pytest.mark.usefixtures("server")
def test_a_request_that_makes_no_sense_is_refused_and_the_bank_stays_open(tmp_path: Path) -> None:
    with pytest.raises(BankError, match="the bank refused capture"):
        do(tmp_path / "ledger", "capture", lambda: bank.capture("one", "auth", "k"))  # type: ignore[arg-type]
    assert take(tmp_path / "ledger", 1, "k") == "charge-1"


def test_no_bank_outlives_who_opened_it() -> None:
    code = (
        "from pidurable_nb.lab.outside.bank import BankServer\n"
        "with BankServer() as b: print(b.pid, b.address, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, address = parent.stdout.readline().split()
        os.kill(parent.pid, signal.SIGKILL)
    while os.path.exists(f"/proc/{pid}/exe"):  # pytest's time limit is the limit
        time.sleep(0.01)
    assert not Path(address).parent.exists()
