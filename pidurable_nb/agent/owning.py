"""Owns which event loop a harness may be used from: the one place that forwards a call to it. Never runs anything else.

A harness belongs to the loop that opened it. Its async methods may be awaited from any other loop, for example from a
notebook cell; commit blocks and watches only work on its own.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pidurable_nb.errors import WrongLoop

P = ParamSpec("P")
R = TypeVar("R")


class Loops(Protocol):
    """Something that belongs to a loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...


class Owned(Protocol):
    """A handle of a harness, or the harness itself."""

    @property
    def owning_harness(self) -> Loops: ...


O = TypeVar("O", bound=Owned)  # noqa: E741  # a letter that reads as what it is


def forwarded(
    method: Callable[Concatenate[O, P], Coroutine[None, None, R]],
) -> Callable[Concatenate[O, P], Coroutine[None, None, R]]:
    """An async method that runs on the harness's own loop, wherever it is awaited."""

    async def call(self: O, /, *args: P.args, **kwargs: P.kwargs) -> R:
        home = self.owning_harness.loop
        if asyncio.get_running_loop() is home:
            return await method(self, *args, **kwargs)
        return await _elsewhere(home, method(self, *args, **kwargs))

    forwarding: Callable[Concatenate[O, P], Coroutine[None, None, R]] = call
    return functools.update_wrapper(forwarding, method)


async def _elsewhere(home: asyncio.AbstractEventLoop, work: Coroutine[None, None, R]) -> R:
    if not home.is_running():
        work.close()
        raise WrongLoop("the harness's own event loop does not run any more; open the store again")
    result: Awaitable[R] = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, home))
    return await result


def owned_loop(harness: Loops, what: str, instead: str) -> None:
    """Raise WrongLoop when the running loop is not the harness's own."""
    if asyncio.get_running_loop() is not harness.loop:
        raise WrongLoop(f"{what} work only on the event loop that opened the harness; use {instead}")
