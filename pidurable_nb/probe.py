"""Owns the one protocol through which the core says where it is, and the records it says it with.

Never decides anything: a recorder, a crash plan, a stepper and a timeline are probes; without a probe the core says
nothing and pays nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, TypeVar

from pidurable_nb.ids import ConversationId, Seq, SubmissionId, TaskId

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class TaskSubject:
    """A task, at a phase. `phase` is the stored name; `abort` while its abort handler runs."""

    id: TaskId
    kind: str
    phase: str


@dataclass(frozen=True, slots=True)
class ConversationSubject:
    """A conversation that something is written to."""

    id: ConversationId


@dataclass(frozen=True, slots=True)
class SubmissionSubject:
    """A submission that is admitted, placed, settled or withdrawn."""

    id: SubmissionId


@dataclass(frozen=True, slots=True)
class SessionSubject:
    """The store as a whole."""


Subject: TypeAlias = TaskSubject | ConversationSubject | SubmissionSubject | SessionSubject
What: TypeAlias = Literal[
    "reserve", "phase", "memo", "lost", "commit", "effect", "chunk", "publish", "open", "reconcile", "outcome"
]  # fmt: skip
"""`lost` is noted when a memo came second and its value was another one (M1): nothing is stored then."""
Edge: TypeAlias = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class Mark:
    """The core is at this place.

    `name` is the effect's, the memo's, or the verdict that is acted on; `seq` the commit's, once it has one; `rows`
    are those that a published commit changed, as `tasks/12`; `text` of a lost memo is the value that came
    second, as JSON.
    """

    subject: Subject
    what: What
    edge: Edge
    name: str | None = None
    key: str | None = None
    seq: Seq | None = None
    laws: tuple[str, ...] = ()
    text: str = ""
    rows: tuple[str, ...] = ()


class Probe(Protocol):
    """What the core calls. Every method may raise a simulated crash, which is a BaseException."""

    @property
    def one_by_one(self) -> bool:
        """True when every commit is to be a group of its own, and reservations are not made several at a time."""
        ...

    async def reach(self, mark: Mark) -> None:
        """The core is at `mark` and goes on when this returns."""
        ...

    def note(self, mark: Mark) -> None:
        """As `reach`, at a place that cannot wait: publication."""
        ...

    async def perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        """An effect is due. Run `do`, or answer for it."""
        ...
