"""Owns the probes of a life: one that writes down every point it passes, and one that ends the life at one of them.

Never decides what happens after the crash, and never touches a task.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar, get_args

from pidurable_nb.clock import Clock
from pidurable_nb.engine.rows import VerdictName
from pidurable_nb.ids import Json, JsonObject, TaskId
from pidurable_nb.lab.dying.heard import Heard, lost_json, lost_of
from pidurable_nb.lab.dying.point import Namer, Point
from pidurable_nb.lab.dying.vfs import FileOp
from pidurable_nb.lab.outside.world import SimulatedCrash, World, append
from pidurable_nb.probe import Mark, TaskSubject
from pidurable_nb.records import task as stored
from pidurable_nb.records.codec import BadRecord, loads
from pidurable_nb.session.changes import Changes

__all__ = ["MARK", "Act", "CrashKind", "CrashPlan", "Journal", "Passed", "Recorder", "carried", "read_journal"]

V = TypeVar("V")
CrashKind = Literal["freeze", "kill"]
"""`freeze`: nothing reaches files or outside any more, and the process lives. `kill`: a real SIGKILL of the process."""
CRASH_KINDS: Final[Mapping[str, CrashKind]] = {each: each for each in get_args(CrashKind)}

Act: TypeAlias = tuple[TaskId | None, str]
"""A verdict that a life acted on, or `mark`, and the task that it was about; None where there was more than one."""
MARK: Final = "mark"
"""What is done to a task that is marked for abort: no verdict, it leads to one."""

_ACTS: Final = frozenset({"reserve", "reconcile"})
_VERDICTS: Final[frozenset[str]] = frozenset(get_args(VerdictName))


@dataclass(frozen=True, slots=True)
class Passed:
    """A point that a run passed at a time of its clock; `mark` is None for an operation on the store's files."""

    point: Point
    mark: Mark | None
    at_ms: int

    @property
    def verdict(self) -> str | None:
        """The verdict that the engine acts on here, where it does. A mark for abort is not one: it leads to one."""
        mark = self.mark
        if mark is None or mark.edge != "before" or mark.what not in _ACTS:
            return None
        return mark.name if mark.name in _VERDICTS else None

    @property
    def act(self) -> Act | None:
        """What the engine does here with which task, where it acts on a verdict or marks for abort."""
        mark = self.mark
        if mark is None or mark.edge != "before":
            return None
        marks = mark.what == "reconcile" and mark.name == MARK
        if mark.name is None or not (marks or self.verdict is not None):
            return None
        return (mark.subject.id if isinstance(mark.subject, TaskSubject) else None), mark.name

    def to_json(self) -> dict[str, Json]:
        """A line of a journal; with the name of the effect at one."""
        line: dict[str, Json] = {"point": str(self.point), "ms": self.at_ms}
        if self.mark is not None and self.point.what == "effect":
            line["effect"] = self.mark.name
        return line


def carried(changes: Changes) -> tuple[TaskId, ...]:
    """The waiting tasks that this commit freed and ended along with the last work that they waited for (T2, T4).

    A generation is one: its last tool's result ends it, and the next one begins, in one commit.
    """
    return tuple(
        id
        for id, change in changes.tasks.items()
        if change.before is not None and isinstance(change.before.state, stored.Waiting) and not change.after.live
    )


def _act_json(act: Act) -> JsonObject:
    """A line of a journal."""
    task, verdict = act
    return {"task": task, "verdict": verdict}


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What a life told of itself before it ended: where it was, when, and on which verdicts it acted, in order.

    `effects` are the names of effects, by the place of their points; `heard` is what its commits changed, from when
    they were followed; `lost` are the memos that came second in it.
    `ended_ms` is None for a life that passed no point.
    """

    points: tuple[Point, ...] = ()
    effects: Mapping[int, str] = field(default_factory=dict)
    acts: tuple[Act, ...] = ()
    heard: tuple[Heard, ...] = ()
    lost: tuple[Mark, ...] = ()
    ended_ms: int | None = None


def read_journal(path: Path) -> Journal:
    """The journal of a life; an empty one where there is none. A last line that a kill cut off does not count."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return Journal()
    points: list[Point] = []
    effects: dict[int, str] = {}
    acts: list[Act] = []
    heard: list[Heard] = []
    lost: list[Mark] = []
    ended_ms: int | None = None
    for text in lines:
        line = loads(text.decode("utf-8", "surrogatepass"), path.name)
        match line:
            case {"point": str(point), "ms": int(at_ms)}:
                if isinstance(line, Mapping) and isinstance(name := line.get("effect"), str):
                    effects[len(points)] = name
                points.append(Point.parse(point))
                ended_ms = at_ms
            case {"verdict": str(verdict), "task": int() | None as task}:
                acts.append((TaskId(task) if task is not None else None, verdict))
            case _ if (commit := Heard.of_json(line)) is not None:
                heard.append(commit)
            case _ if (mark := lost_of(line)) is not None:
                lost.append(mark)
            case other:
                raise BadRecord(f"{path.name}: {other!r} is no line of a journal")
    return Journal(
        points=tuple(points), effects=effects, acts=tuple(acts), heard=tuple(heard), lost=tuple(lost),
        ended_ms=ended_ms,
    )  # fmt: skip


class Recorder:
    """A probe that names and keeps every point of a life, and lets effects go to its World.

    Every commit is a group of its own. With a `journal` each point, each commit that is published and each memo that
    came second are also appended to that file as they come, so that a life that is killed has told of them. With
    `files`, operations on the store's files are points too.
    """

    one_by_one = True

    def __init__(
        self, world: World, namer: Namer, clock: Clock, *, journal: Path | None = None, files: bool = False
    ) -> None:
        self.world = world
        self.namer = namer
        self._clock = clock
        self.passed: list[Passed] = []
        self.published: list[Changes] = []
        """What every published commit changed, for those that `follow` was told of."""
        self.lost: list[Mark] = []
        """The memos that came second with another value (M1): no points, since nothing of them is stored."""
        self.acts: list[Act] = []
        """The verdicts that this life acted on, in order, those that one commit carried out with another included."""
        self._journal = journal
        self._files = files

    def follow(self, changes: Changes) -> None:
        """Keep what was published, and count what it created; a listener of the session."""
        self.published.append(changes)
        self.namer.follow(changes)
        if self._journal is not None and (commit := Heard.of(changes)) is not None:
            append(self._journal, commit.to_json())
        for task in carried(changes):
            self._act((task, "resume"))

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
        if mark.what == "lost":
            self.lost.append(mark)
            if self._journal is not None:
                append(self._journal, lost_json(mark))
        else:
            self._pass(self.namer.name(mark), mark)

    def _pass(self, point: Point, mark: Mark | None) -> None:
        passed = Passed(point, mark, self._clock.now_ms())
        self.passed.append(passed)
        if self._journal is not None:
            append(self._journal, passed.to_json())
        if passed.act is not None:
            self._act(passed.act)
        self._arrived(point)

    def _act(self, act: Act) -> None:
        self.acts.append(act)
        if self._journal is not None:
            append(self._journal, _act_json(act))

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
