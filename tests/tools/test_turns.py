"""Turns: one at a time by key, in order, across loops, and nothing is kept of a key that nobody uses."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pidurable_nb.tools.turns import Turns


def test_turns_are_taken_in_order_and_other_keys_do_not_wait() -> None:
    async def main() -> None:
        turns = Turns()
        told: list[str] = []

        async def work(name: str, key: str) -> None:
            async with turns.turn(key):
                told.append(f"{name} in")
                await asyncio.sleep(0.01)
                told.append(f"{name} out")

        async with turns.turn("a"):
            waiting = [asyncio.ensure_future(work(name, "a")) for name in ("1", "2", "3")]
            await work("other", "b")
            assert told == ["other in", "other out"]
        await asyncio.gather(*waiting)
        assert told[2:] == ["1 in", "1 out", "2 in", "2 out", "3 in", "3 out"]
        assert len(turns) == 0

    asyncio.run(main())


@pytest.mark.parametrize("leaving", range(4))
@pytest.mark.parametrize("steps", range(6))
def test_who_is_cancelled_leaves_the_queue(leaving: int, steps: int) -> None:
    async def main() -> None:
        turns = Turns()
        told: list[int] = []

        async def work(n: int) -> None:
            async with turns.turn("a"):
                await asyncio.sleep(0)
                told.append(n)

        working = [asyncio.ensure_future(work(n)) for n in range(4)]
        for _ in range(steps):
            await asyncio.sleep(0)
        cancelled = working[leaving].cancel()
        await asyncio.gather(*working, return_exceptions=True)
        assert told == [n for n in range(4) if n != leaving or not working[leaving].cancelled()]
        assert cancelled or leaving in told
        assert len(turns) == 0

    asyncio.run(main())


def test_an_error_inside_gives_the_turn_on() -> None:
    async def main() -> None:
        turns = Turns()
        with pytest.raises(KeyError):
            async with turns.turn("a"):
                raise KeyError("mine")
        async with turns.turn("a"):
            assert len(turns) == 1
        assert len(turns) == 0

    asyncio.run(main())


def test_loops_of_several_threads_take_turns_with_one_another() -> None:
    turns = Turns()
    inside = 0
    most = 0
    count = 0

    async def main() -> None:
        nonlocal inside, most, count
        for _ in range(50):
            async with turns.turn("a"):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                count += 1
                inside -= 1

    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, count, len(turns)) == (1, 200, 0)
