"""Owns the names of the places where a run may die, `[LIFE!]SUBJECT:WHAT[.EDGE][@N]`, and naming the marks of a run.

A name survives another choice of ids: tasks, conversations and submissions are counted in creation order within their
kind, and what happens to one of them is counted within its life. Never decides what happens at a point.

    ticker#1/tick:effect.after@3       the third effect of the first ticker, done and not yet remembered
    2!payment#4/capture:commit.before  in the second life, before the fourth payment's commit
    pi.generation#1/request:chunk@2    the second piece of the model's first answer has arrived
    session:vfs.sync@7                 the seventh sync of the store's files
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import ROOT
from pidurable_nb.lab.dying.vfs import FileOp
from pidurable_nb.lab.dying.vfs import Kind as FileOpKind
from pidurable_nb.probe import (
    ConversationSubject,
    Edge,
    Mark,
    SessionSubject,
    SubmissionSubject,
    TaskSubject,
    What,
)
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.storage import ConversationQuery, Storage, SubmissionQuery, TaskQuery

__all__ = ["BadPoint", "Namer", "Numbered", "Place", "Point", "StorePlace", "TaskPlace"]

PointWhat: TypeAlias = Literal[
    "reserve", "phase", "memo", "commit", "effect", "publish", "open", "chunk",
    "vfs.write", "vfs.sync", "vfs.truncate", "vfs.delete",
]  # fmt: skip

_WHATS: Final[tuple[PointWhat, ...]] = get_args(PointWhat)
_BY_NAME: Final[dict[str, PointWhat]] = {what: what for what in _WHATS}
_EDGELESS: Final[frozenset[PointWhat]] = frozenset(what for what in _WHATS if what == "chunk" or what[:4] == "vfs.")

_OF_MARK: Final[dict[What, PointWhat]] = {
    "reserve": "reserve",
    "phase": "phase",
    "memo": "memo",
    "commit": "commit",
    "effect": "effect",
    "publish": "publish",
    "open": "open",
    "chunk": "chunk",
    "reconcile": "commit",  # what settles without user code is a commit of the subject that it settles
    "outcome": "commit",
}
_OF_FILE_OP: Final[dict[FileOpKind, PointWhat]] = {
    "write": "vfs.write",
    "sync": "vfs.sync",
    "truncate": "vfs.truncate",
    "delete": "vfs.delete",
}

_SHAPE: Final = re.compile(
    r"(?:(?P<life>\d+)!)?(?P<subject>[^!:@]+):(?P<what>[a-z]+(?:\.[a-z]+)?)(?:\.(?P<edge>[a-z]+))?(?:@(?P<n>\d+))?"
)
_TASK: Final = re.compile(r"(?P<kind>[^#/]+)#(?P<ordinal>\d+)/(?P<phase>[^#/]+)")
_NUMBERED: Final = re.compile(r"(?P<kind>submission|conversation)#(?P<ordinal>\d+)")

_PAGE: Final = 1000
_NO_PHASE: Final = "-"
"""Stands for the phase of a task that has none left: it is completing."""


class BadPoint(PidurableError, ValueError):
    """Text that is not the name of a point; the message says which part, and what is written there."""


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """A task by its kind and its number within that kind, at a phase (`abort` in its abort handler, `` in none)."""

    kind: str
    ordinal: int
    phase: str

    def __str__(self) -> str:
        return f"{_escaped(self.kind)}#{self.ordinal}/{_escaped(self.phase) or _NO_PHASE}"


@dataclass(frozen=True, slots=True)
class Numbered:
    """A conversation or a submission by its number within its kind."""

    kind: Literal["submission", "conversation"]
    ordinal: int

    def __str__(self) -> str:
        return f"{self.kind}#{self.ordinal}"


@dataclass(frozen=True, slots=True)
class StorePlace:
    """The store as a whole."""

    def __str__(self) -> str:
        return "session"


Place: TypeAlias = TaskPlace | Numbered | StorePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A place in a run: the `n`-th time, in this life, that this happens to this subject.

    `str(point)` is its name and `Point.parse(name)` gives it back. Raises: BadPoint for what the grammar does not have.
    """

    place: Place
    what: PointWhat
    edge: Edge | None = None
    n: int = 1
    life: int = 1

    def __post_init__(self) -> None:
        if self.life < 1 or self.n < 1 or getattr(self.place, "ordinal", 1) < 1:
            raise BadPoint(f"point {self}: lives, ordinals and occurrences count from 1")
        if (self.edge is None) != (self.what in _EDGELESS):
            one = "has no edge" if self.what in _EDGELESS else "needs .before or .after"
            raise BadPoint(f"point {self}: {self.what} {one}")
        if self.what[:4] == "vfs." and not isinstance(self.place, StorePlace):
            raise BadPoint(f"point {self}: files belong to the store as a whole; write session:{self.what}")

    def __str__(self) -> str:
        life = f"{self.life}!" if self.life != 1 else ""
        edge = f".{self.edge}" if self.edge is not None else ""
        n = f"@{self.n}" if self.n != 1 else ""
        return f"{life}{self.place}:{self.what}{edge}{n}"

    @classmethod
    def parse(cls, text: str) -> Point:
        """The point of that name. Raises: BadPoint, saying which part is wrong."""
        shape = _SHAPE.fullmatch(text)
        if shape is None:
            raise BadPoint(
                f"{text!r} is not a point; write [LIFE!]SUBJECT:WHAT[.EDGE][@N], as in ticker#1/tick:effect.after"
            )
        words, edge = shape["what"], shape["edge"]
        if words not in _WHATS and edge is None:
            words, _, edge = words.rpartition(".")
        what = _BY_NAME.get(words)
        if what is None:
            raise BadPoint(f"{text!r}: nothing is called {shape['what']!r}; there are {', '.join(_WHATS)}")
        if edge not in (None, "before", "after"):
            raise BadPoint(f"{text!r}: an edge is before or after, not {edge!r}")
        known_edge: Edge | None = "before" if edge == "before" else "after" if edge == "after" else None
        place = _place(shape["subject"], text)
        return cls(place=place, what=what, edge=known_edge, n=int(shape["n"] or 1), life=int(shape["life"] or 1))


def _place(subject: str, text: str) -> Place:
    if subject == "session":
        return StorePlace()
    numbered = _NUMBERED.fullmatch(subject)
    if numbered is not None:
        kind: Literal["submission", "conversation"] = (
            "submission" if numbered["kind"] == "submission" else "conversation"
        )
        return Numbered(kind, int(numbered["ordinal"]))
    task = _TASK.fullmatch(subject)
    if task is not None:
        phase = "" if task["phase"] == _NO_PHASE else _unescaped(task["phase"])
        return TaskPlace(_unescaped(task["kind"]), int(task["ordinal"]), phase)
    raise BadPoint(f"{text!r}: a subject is TASK#N/PHASE, submission#N, conversation#N or session, not {subject!r}")


def _escaped(name: str) -> str:
    """The name of a task or a phase, which may be any text, without what the grammar needs for itself."""
    if name == _NO_PHASE:
        return f"%{ord(_NO_PHASE):x};"
    return re.sub(r"[%!:@#/\s]", lambda found: f"%{ord(found[0]):x};", name)


def _unescaped(text: str) -> str:
    return re.sub(r"%([0-9a-f]{1,6});", lambda found: chr(int(found[1], 16)), text)


class Namer:
    """Names the marks and the file operations of one life of a store.

    It has to know every task, conversation and submission from its creation on, or it could not count them: `learn`
    reads those of earlier lives as the store is opened, `follow` is a listener of the session.
    """

    def __init__(self, life: int = 1) -> None:
        self.life = life
        self._ids: dict[str, list[int]] = {"conversation": [int(ROOT)]}
        self._seen: Counter[tuple[Place, PointWhat, Edge | None]] = Counter()

    async def learn(self, storage: Storage) -> None:
        """Count what an open storage holds already."""
        after: int | None = None
        while True:
            tasks = await storage.scan_tasks(TaskQuery(), limit=_PAGE, after=after)
            for record in tasks.items:
                self._add(f"task {record.kind}", (record.id,))
            if (after := tasks.next) is None:
                break
        while True:
            conversations = await storage.scan_conversations(ConversationQuery(), limit=_PAGE, after=after)
            self._add("conversation", (record.id for record in conversations.items))
            if (after := conversations.next) is None:
                break
        while True:
            submissions = await storage.scan_submissions(SubmissionQuery(), limit=_PAGE, after=after)
            self._add("submission", (record.id for record in submissions.items))
            if (after := submissions.next) is None:
                break

    def follow(self, changes: Changes) -> None:
        """Count what a commit created; a listener of the session."""
        for id, change in changes.tasks.items():
            self._add(f"task {change.after.kind}", (id,))
        self._add("conversation", (record.id for record in changes.conversations))
        self._add("submission", changes.submissions)

    def place(self, mark: Mark) -> Place:
        """Where a mark is."""
        match mark.subject:
            case TaskSubject(id=id, kind=kind, phase=phase):
                return TaskPlace(kind, self._ordinal(f"task {kind}", id), phase)
            case ConversationSubject(id=conversation):
                return Numbered("conversation", self._ordinal("conversation", conversation))
            case SubmissionSubject(id=submission):
                return Numbered("submission", self._ordinal("submission", submission))
            case SessionSubject():
                return StorePlace()

    def name(self, mark: Mark) -> Point:
        """The point that a mark stands for. Counts it: ask once for each mark, in order."""
        what = _OF_MARK[mark.what]
        return self._count(self.place(mark), what, None if what in _EDGELESS else mark.edge)

    def name_file_op(self, op: FileOp) -> Point:
        """The point before a file operation. Counts it: ask once for each, in order."""
        return self._count(StorePlace(), _OF_FILE_OP[op.op], None)

    def _count(self, place: Place, what: PointWhat, edge: Edge | None) -> Point:
        self._seen[place, what, edge] += 1
        return Point(place=place, what=what, edge=edge, n=self._seen[place, what, edge], life=self.life)

    def _ordinal(self, kind: str, id: int) -> int:
        self._add(kind, (id,))
        return bisect_left(self._ids[kind], id) + 1

    def _add(self, kind: str, ids: Iterable[int]) -> None:
        known = self._ids.setdefault(kind, [])
        for id in ids:
            if not known or known[-1] < id:
                known.append(id)
            elif known[bisect_left(known, id)] != id:
                insort(known, id)
