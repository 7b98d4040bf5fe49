"""The thread that owns the loop: calls, interrupts, contexts, and its end."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pidurable_nb.lab.outside.world import SimulatedCrash
from pidurable_nb.notebook.kernel.host import Host, HostEnded


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.shut()


async def echo(value: object) -> object:
    await asyncio.sleep(0)
    return value


def test_a_call_gives_the_result_and_runs_on_one_other_thread(host: Host) -> None:
    async def where() -> int:
        return threading.get_ident()

    first, second = host.call(where()), host.call(where())
    assert first == second != threading.get_ident()


def test_a_call_raises_what_the_work_raised(host: Host) -> None:
    async def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        host.call(fail())


def test_a_simulated_crash_reaches_the_caller_and_the_loop_lives(host: Host) -> None:
    async def crash() -> None:
        raise SimulatedCrash("here")

    with pytest.raises(SimulatedCrash):
        host.call(crash())
    assert host.call(echo(1)) == 1


def test_system_exit_ends_its_task_and_not_the_loop(host: Host) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        host.call(leave(), timeout_s=10)
    assert host.call(echo(2), timeout_s=10) == 2


def test_an_interrupt_cancels_the_work_and_is_raised_again(host: Host) -> None:
    seen: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    def interrupt() -> None:
        time.sleep(0.2)
        signal.raise_signal(
            signal.SIGINT
        ) if threading.current_thread() is threading.main_thread() else signal.pthread_kill(
            threading.main_thread().ident or 0, signal.SIGINT
        )

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        host.call(long())
    assert seen == ["cancelled"]
    assert host.call(echo(3)) == 3


def test_following_shows_the_newest_on_the_thread_that_asked_and_gives_the_result(host: Host) -> None:
    shown: list[tuple[int, int]] = []

    async def count(tell: Callable[[int], None]) -> str:
        for n in range(1000):
            tell(n)
        return "counted"

    assert host.follow(count, lambda n: shown.append((n, threading.get_ident())), 60.0) == "counted"
    assert [n for n, _ in shown] == sorted({n for n, _ in shown})
    assert len(shown) < 100
    assert {thread for _, thread in shown} == {threading.get_ident()}


def test_following_raises_what_the_work_raised_and_what_showing_raised(host: Host) -> None:
    async def fail(tell: Callable[[int], None]) -> None:
        tell(1)
        raise LookupError("gone")

    def refuse(n: int) -> None:
        raise ValueError(n)

    with pytest.raises(LookupError, match="gone"):
        host.follow(fail, lambda n: None, 0.01)
    with pytest.raises(ValueError, match="1"):
        host.follow(fail, refuse, 0.01)


def test_an_interrupt_ends_the_following_and_the_loop_lives(host: Host) -> None:
    ended: list[str] = []

    async def long(tell: Callable[[int], None]) -> None:
        tell(1)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("ended")

    def interrupt(n: int) -> None:
        threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident or 0, signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        host.follow(long, interrupt, 60.0)
    assert ended == ["ended"]
    assert host.call(echo(4)) == 4


def test_a_call_that_takes_too_long_is_cancelled(host: Host) -> None:
    with pytest.raises(TimeoutError):
        host.call(asyncio.sleep(60), timeout_s=0.1)


def test_a_call_from_the_thread_itself_is_refused_and_does_not_hang(host: Host) -> None:
    async def again() -> object:
        return host.call(echo(1))

    with pytest.raises(RuntimeError, match="await instead"):
        host.call(again(), timeout_s=10)


def test_carry_is_awaited_on_another_loop(host: Host) -> None:
    async def main() -> object:
        return await host.carry(echo("carried"))

    assert asyncio.run(main()) == "carried"


def test_work_does_not_inherit_the_context_of_the_cell_that_asked(host: Host) -> None:
    cell: contextvars.ContextVar[str] = contextvars.ContextVar("cell", default="no cell")
    cell.set("the cell that opened the store")

    async def seen() -> str:
        return cell.get()

    assert host.call(seen()) == "no cell"


def test_shutting_cancels_what_runs_and_refuses_what_comes(host: Host) -> None:
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("ended")

    host.submit(long())
    host.call(echo(1))
    host.shut()
    host.shut()
    assert ended == ["ended"]
    assert not host.alive
    with pytest.raises(HostEnded):
        host.call(echo(1))
