"""Owns having the pieces of a sweep done by a Dask cluster. Never imports Dask: a client is whatever submits work.

Any machine of the cluster can do any piece: it has to be able to import this package and the module of the scenario.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from pidurable_nb.ids import Json
from pidurable_nb.lab.scenario import Scenario, find
from pidurable_nb.lab.sweeping.pieces import Piece, Sweeping
from pidurable_nb.lab.sweeping.tally import Tally
from pidurable_nb.lab.sweeping.work import far

__all__ = ["Client", "Future", "done_far"]


class Future(Protocol):
    """A piece that somebody does."""

    def result(self) -> Json:
        """What came of it, when it has. Raises: what it raised."""
        ...

    def cancel(self) -> object:
        """Have it not done, where it was not begun."""
        ...


class Client(Protocol):
    """What a sweep asks of `distributed.Client`."""

    def submit(self, function: Callable[..., Json], /, *args: Json, pure: bool) -> Future:
        """Have some worker call the function."""
        ...


def done_far(
    client: Client, scenario: Scenario, sweeping: Sweeping, pieces: Sequence[Piece], stop: threading.Event
) -> Iterator[Tally]:
    """The tallies of all pieces, in their order, until `stop` is set.

    Raises: UnknownScenario for one that a worker could not import, before anything is sent; what a piece raises.
    """
    name = f"{scenario.module}:{scenario.name}"
    find(name)
    waiting = [client.submit(far, name, sweeping.to_json(), piece.to_json(), pure=False) for piece in pieces]
    try:
        for each in waiting:
            if stop.is_set():
                return
            yield Tally.of_json(each.result())
    finally:
        for each in waiting:
            each.cancel()
