"""The deterministic loop: one seed, one run; time that stands; and an end that nobody hears."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import threading
from collections.abc import AsyncIterator

import pytest

from pidurable_nb.lab.dying.loop import Deadlock, DeterministicLoop, Runaway, run


class Crash(BaseException):
    """Stands for a simulated crash."""


async def story(heard: list[str]) -> None:
    """Three actors that meet at an event, a queue, timers and a lock."""
    gong = asyncio.Event()
    queue: asyncio.Queue[int] = asyncio.Queue()
    lock = asyncio.Lock()

    async def actor(n: int) -> None:
        await asyncio.sleep(0.001 * (n % 2))
        await gong.wait()
        for turn in range(3):
            async with lock:
                heard.append(f"{n}.{turn}")
                await asyncio.sleep(0)
            await queue.put(n)

    async with asyncio.TaskGroup() as group:
        for n in range(4):
            group.create_task(actor(n))
        await asyncio.sleep(0.01)
        gong.set()
        async with asyncio.timeout(60):
            heard += [f"got {await queue.get()}" for _ in range(12)]


def told(seed: int | None) -> list[str]:
    heard: list[str] = []
    run(story(heard), seed=seed)
    return heard


def test_one_seed_is_one_run() -> None:
    for seed in range(50):
        assert told(seed) == told(seed)


def test_seeds_differ_and_every_run_is_complete() -> None:
    stories = [told(seed) for seed in range(20)]
    assert len({tuple(each) for each in stories}) > 10
    assert {tuple(sorted(each)) for each in stories} == {tuple(sorted(stories[0]))}


def test_without_a_seed_it_is_first_in_first_out_as_asyncio_is() -> None:
    heard: list[str] = []
    asyncio.run(story(heard))
    assert told(None) == heard


def test_t12_time_is_virtual_and_stands_while_anything_is_ready() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        for _ in range(1000):
            await asyncio.sleep(0)
        times.append(loop.time())
        await asyncio.sleep(86_400)
        return [*times, loop.time()]

    assert run(main()) == [0.0, 0.0, 86_400.0]


def test_a_deadlock_names_the_tasks_and_their_places() -> None:
    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        await asyncio.create_task(hang(), name="the hanging one")

    with pytest.raises(Deadlock, match=r"the hanging one at .*hang, line \d+") as caught:
        run(main())
    assert len(caught.value.pending) == 2


def test_a_runaway_is_stopped_at_its_limit() -> None:
    async def spin() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(Runaway, match="1001 steps"):
        run(spin(), limit=1000)


def test_until_idle_returns_without_letting_time_pass() -> None:
    loop = DeterministicLoop()
    heard: list[float] = []

    async def sleeper() -> None:
        for _ in range(3):
            heard.append(loop.time())
            await asyncio.sleep(60)

    task = loop.create_task(sleeper())
    loop.run_until_idle()
    assert heard == [0.0]
    assert loop.next_timer() == 60.0
    assert loop.advance()
    loop.run_until_idle()
    assert heard == [0.0, 60.0]
    while loop.advance():
        loop.run_until_idle()
    assert task.done()
    assert not loop.advance()
    loop.close()


def test_a_cancelled_timer_does_not_move_time() -> None:
    loop = DeterministicLoop()
    loop.call_later(5, print, "never").cancel()
    assert loop.next_timer() is None
    assert not loop.advance()
    loop.close()


def test_halt_is_the_last_step_and_abandoning_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    loop = DeterministicLoop(1)
    heard: list[str] = []

    async def bystander(n: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            heard.append(f"finally {n}")

    async def victim() -> None:
        await asyncio.sleep(1)
        loop.halt(Crash())
        raise Crash

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            heard.append("generator closed")

    async def counter() -> None:
        async for _ in numbers():
            await asyncio.sleep(60)

    async def main() -> None:
        await asyncio.gather(victim(), bystander(1), bystander(2), counter())

    async def never_started() -> None:
        raise AssertionError

    async def starts_another() -> None:
        await asyncio.sleep(1)
        unborn.append(asyncio.create_task(never_started()))

    unborn: list[asyncio.Task[None]] = [loop.create_task(starts_another())]
    with pytest.raises(Crash):
        loop.run_until_complete(main())
    assert heard == []
    loop.abandon()
    assert heard == ["finally 1", "finally 2", "generator closed"]
    loop.abandon()
    gc.collect()
    assert not caplog.records


def test_abandoned_code_that_refuses_to_end_is_kept_and_never_heard_of_again() -> None:
    loop = DeterministicLoop()

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(1)
            except BaseException:
                await asyncio.sleep(1)

    async def slow() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            await asyncio.sleep(1)

    tasks = [loop.create_task(stubborn()), loop.create_task(slow())]
    loop.run_until_idle()
    loop.abandon()
    del tasks
    gc.collect()


def test_run_abandons_after_a_crash_and_cancels_after_an_error() -> None:
    heard: list[str] = []

    async def bystander() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            heard.append("cancelled")
            raise
        except GeneratorExit:
            heard.append("dropped")
            raise

    async def main(error: BaseException) -> None:
        task = asyncio.create_task(bystander())
        await asyncio.sleep(0)
        assert not task.done()
        raise error

    with pytest.raises(LookupError):
        run(main(LookupError()))
    with pytest.raises(Crash):
        run(main(Crash()))
    assert heard == ["cancelled", "dropped"]


def test_inline_executor_keeps_everything_in_one_thread() -> None:
    async def main() -> tuple[int, int]:
        other = await asyncio.to_thread(threading.get_ident)
        return other, threading.get_ident()

    here, there = run(main())
    assert here == there


def test_another_thread_is_refused() -> None:
    refused: list[BaseException] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def intrude() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except RuntimeError as error:
                refused.append(error)

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()

    run(main())
    assert "chance" in str(refused[0])


def test_it_runs_in_any_thread_beside_a_running_loop() -> None:
    async def kernel() -> list[str]:
        heard: list[str] = []
        thread = threading.Thread(target=lambda: heard.extend(told(7)))
        thread.start()
        await asyncio.sleep(0)
        thread.join()
        return heard

    assert asyncio.run(kernel()) == told(7)


def test_the_global_random_numbers_are_left_alone() -> None:
    random.seed(1)
    before = random.getstate()
    told(3)
    assert random.getstate() == before
