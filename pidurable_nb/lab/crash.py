"""Owns the probes of a life: one that writes down every point it passes, and one that ends the life at one of them.

Never decides what happens after the crash, and never touches a task.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeVar

from pidurable_nb.clock import Clock
from pidurable_nb.ids import Json
from pidurable_nb.lab.points import Namer, Point
from pidurable_nb.lab.vfs import FileOp
from pidurable_nb.lab.world import SimulatedCrash, World, append
from pidurable_nb.probe import Mark, TaskSubject

__all__ = ["CrashKind", "CrashPlan", "Passed", "Recorder"]

V = TypeVar("V")
CrashKind = Literal["freeze", "kill"]
"""`freeze`: nothing reaches files or outside any more, and this process lives. `kill`: a real SIGKILL of this process."""

_ACTS: Final = frozenset({"reserve", "reconcile"})


@dataclass(frozen=True, slots=True)
class Passed:
    """A point that a run passed at a time of its clock; `mark` is None for an operation on the store's files."""

    point: Point
    mark: Mark | None
    at_ms: int

    @property
    def verdict(self) -> str | None:
        """The verdict that the engine acts on here, where it does."""
        mark = self.mark
        return mark.name if mark is not None and mark.what in _ACTS and mark.edge == "before" else None

    def to_json(self) -> dict[str, Json]:
        """A line of a journal."""
        line: dict[str, Json] = {"point": str(self.point), "ms": self.at_ms}
        if self.verdict is not None:
            line["verdict"] = self.verdict
        if self.mark is not None and isinstance(self.mark.subject, TaskSubject):
            line["task"] = self.mark.subject.id
        return line


class Recorder:
    """A probe that names and keeps every point of a life, and lets effects go to its World.

    Every commit is a group of its own. With a `journal` each point is also appended to that file as it is reached, so
    that a life that is killed has told where it was. With `files`, operations on the store's files are points too.
    """

    one_by_one = True

    def __init__(
        self, world: World, namer: Namer, clock: Clock, *, journal: Path | None = None, files: bool = False
    ) -> None:
        self.world = world
        self.namer = namer
        self._clock = clock
        self.passed: list[Passed] = []
        self._journal = journal
        self._files = files

    async def reach(self, mark: Mark) -> None:
        """Pass the point. Raises: SimulatedCrash when this life is over."""
        self._at(mark)

    def note(self, mark: Mark) -> None:
        """Pass the point. Raises: SimulatedCrash when this life is over."""
        self._at(mark)

    async def perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        """Pass the point, let the World perform the effect, and pass the one behind it."""
        self._at(mark)
        value = await self.world.perform(mark, do)
        self._at(replace(mark, edge="after"))
        return value

    @property
    def watches_files(self) -> bool:
        """Whether it wants to be the gate of the store's VFS."""
        return self._files

    def gate(self, op: FileOp) -> int | None:
        """The gate of the store's VFS: pass the point before the operation."""
        if self._files and not self.world.is_shut:
            self._pass(self.namer.name_file_op(op), None)
        return None

    def _at(self, mark: Mark) -> None:
        if self.world.is_shut:
            raise SimulatedCrash(f"life {self.world.life} is over")
        self._pass(self.namer.name(mark), mark)

    def _pass(self, point: Point, mark: Mark | None) -> None:
        passed = Passed(point, mark, self._clock.now_ms())
        self.passed.append(passed)
        if self._journal is not None:
            append(self._journal, passed.to_json())
        self._arrived(point)

    def _arrived(self, point: Point) -> None:
        """A place for plans."""


class CrashPlan(Recorder):
    """A recorder that ends the life when it reaches `at`, or when code crashes its own process.

    `freeze` is what a crash of that kind calls first; it shuts the VFS and the World, and may halt the loop. A crash
    before a file operation ends the life inside of SQLite, where nothing can be raised: the operation is refused.
    """

    def __init__(
        self,
        world: World,
        namer: Namer,
        clock: Clock,
        *,
        at: Point | None,
        kind: CrashKind,
        freeze: Callable[[SimulatedCrash], None],
        journal: Path | None = None,
        files: bool = False,
    ) -> None:
        super().__init__(
            world, namer, clock, journal=journal, files=files or (at is not None and at.what[:4] == "vfs.")
        )
        self.crashed: Point | None = None
        """Where the life ended, once it has."""
        self._at_point = at
        self._kind: CrashKind = kind
        self._freeze = freeze
        world.crash = self._crash_here

    def _arrived(self, point: Point) -> None:
        if point == self._at_point:
            crash = self._crash(point)
            if self.world.is_shut and point.what[:4] != "vfs.":
                raise crash

    def _crash_here(self) -> None:
        """Code crashes its own process: at the last point that it passed."""
        raise self._crash(self.passed[-1].point)

    def _crash(self, point: Point) -> SimulatedCrash:
        self.crashed = point
        if self._kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()  # until it arrives
        crash = SimulatedCrash(f"simulated crash at {point}")
        self._freeze(crash)
        return crash
