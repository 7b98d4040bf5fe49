"""Owns where the work of a sweep is done: in this process, or in children of a fork server, of which some are killed.

Never chooses a point and never counts. One pair of hands does one thing at a time.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeVar

from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.lab.dying.forkserver import Ended, ForkServer
from pidurable_nb.lab.dying.identity import Compared, digest_of, files_in, freeze_at
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import CHILD, LIFE_S, asked_of_child
from pidurable_nb.lab.judging.invariants import Expected
from pidurable_nb.lab.scenario import Scenario, around
from pidurable_nb.lab.sweeping.lives import Death, Image, place
from pidurable_nb.lab.sweeping.points import Which
from pidurable_nb.lab.sweeping.units import (
    Found,
    compared_of,
    death_of,
    deaths,
    expected_json,
    found_of,
    image_json,
    recoveries,
)

__all__ = ["Crew", "Hands", "NotKilled", "crew"]

T = TypeVar("T")
R = TypeVar("R")

_MODULES: Final = ("pidurable_nb.lab.sweeping.work", "pidurable_nb.store.sqlite")
"""What a fork server has to have imported, besides the module of the scenario."""

_WARM: Final = "pidurable_nb.lab.sweeping.units:warm"
_WORK_S: Final = 600.0
_MEMORY: Final = Path("/dev/shm")
_ROOM: Final = 1 << 30


class NotKilled(PidurableError):
    """A life that was to die by SIGKILL ended otherwise; the message has its last words."""


def _workshop() -> tempfile.TemporaryDirectory[str]:
    """A folder for stores that live for a moment; in memory where there is room, since no kill takes a page cache."""
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM
    return tempfile.TemporaryDirectory(prefix="pidurable-sweep-", dir=_MEMORY if roomy else None)


@dataclass(frozen=True, slots=True)
class Hands:
    """Does the pieces of a sweep, in folders below `folder`.

    With a server, lives can be killed; with `away`, everything else is done in its children too. Without either the
    work is done here, and then the scenario need not be one that another process can import.
    """

    scenario: Scenario
    folder: Path
    server: ForkServer | None = None
    away: bool = False

    def freeze(self, image: Image, points: Sequence[Point]) -> list[Death]:
        """Freeze a life from `image` at each of the points."""
        return self._deaths(image, points, [])

    def judge(self, image: Image, points: Sequence[Point], killed: Sequence[Path]) -> list[Death]:
        """The deaths of lives from `image` that were killed at these points, and lie in these folders."""
        return self._deaths(image, points, killed)

    def killed(self, image: Image, point: Point) -> Path:
        """The folder of a life from `image` that was killed at `point`. Raises: NotKilled."""
        here = self.new()
        store, ledger = place(image, here)
        plan = replace(image.plan, at=point, kind="kill")
        ended = self._run(CHILD, asked_of_child(self.scenario, store, ledger, plan), LIFE_S)
        if ended.signal != signal.SIGKILL or ended.timed_out:
            raise NotKilled(f"{self.scenario.name} was to be killed at {point}: {_words(ended)}")
        return here

    def killed_files(self, image: Image, point: Point) -> str:
        """A digest of the database and the log that a life left which was killed at `point`. Raises: NotKilled."""
        here = self.killed(image, point)
        digest = digest_of(files_in(here))
        shutil.rmtree(here)
        return digest

    def recover(self, images: Sequence[Image], which: Which, awaited: Sequence[Expected]) -> list[Found]:
        """Recover from each of the images."""
        if not self.away:
            return recoveries(self.scenario, images, which, awaited, self.new())
        effects = [expected_json(each) for each in awaited]
        work: JsonObject = {"images": [image_json(each) for each in images], "which": which, "awaited": effects}
        return [found_of(each) for each in self._pieces(work)]

    def compare(self, image: Image, points: Sequence[Point]) -> list[Compared]:
        """Freeze a first life before each of these file operations, and compare with the log of operations."""
        if not self.away:
            return list(freeze_at(self.scenario, image.plan, points, self.new()))
        work: JsonObject = {"image": image_json(image), "frozen": [str(point) for point in points]}
        return [compared_of(each) for each in self._pieces(work)]

    def _deaths(self, image: Image, points: Sequence[Point], killed: Sequence[Path]) -> list[Death]:
        if not points:
            return []
        if not self.away:
            return deaths(self.scenario, image, points, killed, self.new())
        names: list[Json] = [str(point) for point in points]
        folders: list[Json] = [str(path) for path in killed]
        work: JsonObject = {"image": image_json(image), "points": names, "killed": folders}
        return [death_of(each) for each in self._pieces(work)]

    def _pieces(self, work: JsonObject) -> list[Json]:
        found = self.ask("pidurable_nb.lab.sweeping.units:there", work)
        assert isinstance(found, list)
        return found

    def ask(self, target: str, work: JsonObject) -> Json:
        """What a child answers that does this work for the scenario, in a new folder. Raises: PidurableError."""
        here = self.new()
        answer = here.with_suffix(".json")
        argument: JsonObject = {**self._named(), "answer": str(answer), "folder": str(here), "work": work}
        ended = self._run(target, argument, _WORK_S)
        if ended.exit_code != 0:
            raise PidurableError(f"a piece of the sweep of {self.scenario.name} failed: {_words(ended)}")
        found: Json = json.loads(answer.read_text())
        answer.unlink()
        return found

    def _named(self) -> JsonObject:
        return {"scenario": f"{self.scenario.module}:{self.scenario.name}"}

    def _run(self, target: str, argument: JsonObject, timeout_s: float) -> Ended:
        if self.server is None:
            raise PidurableError("these hands have no fork server, and so cannot kill")
        return self.server.run(target, argument, timeout_s=timeout_s)

    def new(self) -> Path:
        """A folder that is not there yet."""
        return self.folder / str(next(_numbers))


_numbers = itertools.count(1)


def _words(ended: Ended) -> str:
    if ended.timed_out:
        return "it took too long"
    if ended.signal is not None:
        return f"it was ended by signal {ended.signal}"
    said = ended.error.strip().splitlines()
    return f"it ended with exit code {ended.exit_code}: {said[-1] if said else 'it said nothing'}"


class Crew:
    """Several hands. With one pair everything is done in the caller's own thread."""

    def __init__(self, hands: Sequence[Hands]) -> None:
        self.hands = tuple(hands)

    def __len__(self) -> int:
        return len(self.hands)

    @property
    def first(self) -> Hands:
        """One of them."""
        return self.hands[0]

    def share(self, items: Sequence[T], work: Callable[[Hands, T], R]) -> Iterator[R]:
        """Have all items worked on by whoever has free hands; answers come in the order of the items."""
        if len(self.hands) == 1:
            yield from (work(self.hands[0], item) for item in items)
            return
        free: SimpleQueue[Hands] = SimpleQueue()
        for hands in self.hands:
            free.put(hands)

        def one(item: T) -> R:
            hands = free.get()
            try:
                return work(hands, item)
            finally:
                free.put(hands)

        with ThreadPoolExecutor(len(self.hands), thread_name_prefix="pidurable_nb sweep") as pool:
            waiting = [pool.submit(one, item) for item in items]
            try:
                for each in waiting:
                    yield each.result()
            finally:
                for each in waiting:
                    each.cancel()


@contextmanager
def crew(scenario: Scenario, *, processes: int, kill: bool) -> Generator[Crew]:
    """Hands for a scenario, with its bank open, and fork servers where lives are killed or processes share the work."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(_workshop()))
        stack.enter_context(around(scenario))
        hands: list[Hands] = []
        for _ in range(max(1, processes)):
            server: ForkServer | None = None
            if kill or processes > 1:
                server = stack.enter_context(ForkServer([*_MODULES, scenario.module], warm=[_WARM]))
            hands.append(Hands(scenario, folder, server=server, away=processes > 1))
        yield Crew(hands)
