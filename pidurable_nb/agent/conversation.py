"""Owns a conversation as its users see it: entries, writes, tasks, forks. Never runs a model and keeps no state."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from pidurable_nb.agent.inbox import Match, WriteDraft, admit_write, withdraw
from pidurable_nb.agent.owning import forwarded, owned_loop
from pidurable_nb.engine.phase import Phase, TaskRef
from pidurable_nb.engine.tx import Tx
from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import ABSENT, ROOT, Absent, ConversationId, EntryId, Json, SubmissionId
from pidurable_nb.probe import ConversationSubject, SubmissionSubject
from pidurable_nb.records.transcript import (
    Answered,
    ConversationRecord,
    EntryRecord,
    Placed,
    Queued,
    SubmissionRecord,
    SubmissionStatus,
    Unanswered,
    Written,
)
from pidurable_nb.store.storage import Order, Page

if TYPE_CHECKING:
    from pidurable_nb.agent.harness import Harness

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True, bound="Answered | Written")


class CommitBlock:
    """`async with conversation.commit() as tx`: what happens inside lands whole or not at all (C1)."""

    __slots__ = ("_barrier", "_block", "_conversation", "_harness")

    def __init__(self, harness: Harness, conversation: ConversationId | None, *, barrier: bool) -> None:
        self._harness = harness
        self._conversation = conversation
        self._barrier = barrier

    async def __aenter__(self) -> Tx:
        owned_loop(self._harness, "commit blocks", "pi.call(function), or a phase of a task")
        engine = self._harness.engine
        where = self._conversation
        if where is not None:
            if where == ROOT and not engine.table.conversation_known(ROOT):
                await self._harness.root()  # made by asking for it
            await engine.kin.know(where)
        subject = ConversationSubject(where if where is not None else ROOT)
        self._block = engine.session.block(subject, barrier=self._barrier, conversation=where)
        return Tx(await self._block.__aenter__(), engine)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._block.__aexit__(kind, error, trace)


class Conversation:
    """A transcript, by its id. Handles hold nothing: compare them by `id`."""

    def __init__(self, harness: Harness, id: ConversationId) -> None:
        self._harness = harness
        self.id = id

    @property
    def owning_harness(self) -> Harness:
        """The harness that this handle belongs to."""
        return self._harness

    def __repr__(self) -> str:
        return f"<conversation {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Conversation) and other.id == self.id and other._harness is self._harness

    def __hash__(self) -> int:
        return hash(self.id)

    def commit(self, *, barrier: bool = False) -> CommitBlock:
        """A block of writes to this conversation.

        Durability: stored when the block has ended; with `barrier`, and a durability above "kill", synced too (E5).
        """
        return CommitBlock(self._harness, self.id, barrier=barrier)

    @forwarded
    async def start(self, phase: Phase[R], *, background: bool = False, barrier: bool = False) -> TaskRef[R]:
        """A new task that begins at `phase`. Raises UnknownPhase when its code is not installed or not ready.

        Durability: stored on return; with `barrier` synced too, which keys of its effects may need (section 3, E5).
        """
        async with self.commit(barrier=barrier) as tx:
            return tx.spawn(phase, background=background)

    @forwarded
    async def write(
        self,
        kind: str,
        *,
        text: str | None = None,
        data: Json | Absent = ABSENT,
        request_id: str | None = None,
    ) -> Submission[Written]:
        """Ask for an entry to be written: at once when nothing runs here, else at the next boundary (S2, S4).

        Durability: admitted on return; with a `request_id` once, across restarts and races, behind a barrier (S1, E5).
        Raises RequestConflict when the request id was admitted for another type.
        """
        if kind.startswith("pi."):
            raise StorageRequestError(f"entry kind {kind!r}: kinds that start with 'pi.' are the harness's")
        engine = self._harness.engine
        await engine.kin.know(self.id)
        draft = WriteDraft(kind=kind, text=text, data=data)
        subject = ConversationSubject(self.id)
        barrier = request_id is not None
        async with engine.session.block(subject, barrier=barrier, conversation=self.id, laws=("S1",)) as tx:
            admission = await admit_write(tx, self.id, draft, request_id)
        return Submission(self._harness, admission.id, admission.match)

    @forwarded
    async def record(self) -> ConversationRecord:
        """The stored record: parent and owner. Raises StorageRequestError when there is none."""
        found = await self._harness.engine.session.conversation(self.id)
        if found is None:
            raise StorageRequestError(f"conversation {self.id} does not exist")
        return found

    @forwarded
    async def entries(
        self,
        *,
        limit: int = 100,
        after: int | None = None,
        first: EntryId | None = None,
        last: EntryId | None = None,
        order: Order = "descending",
    ) -> Page[EntryRecord]:
        """A page of the transcript, forks followed (V1, V3); `after` is the `next` of the page before."""
        session = self._harness.engine.session
        return await session.scan_entries(self.id, limit=limit, first=first, last=last, after=after, order=order)

    @forwarded
    async def fork(self, *, at: EntryId, barrier: bool = False) -> Conversation:
        """A new conversation that sees this one through the entry `at` (V3).

        Durability: stored on return. Raises StorageRequestError when the entry is not visible here.
        """
        async with self.commit(barrier=barrier) as tx:
            child = await tx.fork(self.id, at=at)
        return Conversation(self._harness, child)


class Submission(Generic[R_co]):
    """Something that was asked for. `match` says whether it was admitted now, or how it compares to what was (S1)."""

    def __init__(self, harness: Harness, id: SubmissionId, match: Match = "unknown") -> None:
        self._harness = harness
        self.id = id
        self.match: Match = match

    @property
    def owning_harness(self) -> Harness:
        """The harness that this handle belongs to."""
        return self._harness

    def __repr__(self) -> str:
        return f"<submission {self.id}>"

    @forwarded
    async def record(self) -> SubmissionRecord:
        """The stored record. Raises StorageRequestError when there is none."""
        found = await self._harness.engine.session.submission(self.id)
        if found is None:
            raise StorageRequestError(f"submission {self.id} does not exist")
        return found

    @forwarded
    async def status(self) -> SubmissionStatus:
        """The stored word: queued, placed, done or unanswered (S2)."""
        return (await self.record()).status

    @forwarded
    async def wait(self) -> R_co | Unanswered:
        """How it was settled, when it is (S5). Cancelling the wait withdraws nothing."""
        state = (await self._harness.settled(self.id)).state
        match state:
            case Queued() | Placed():
                raise StorageRequestError(f"submission {self.id} is not settled")
            case _:
                settled: R_co | Unanswered = state  # type: ignore[assignment]  # a write is Written, an input Answered
                return settled

    @forwarded
    async def abort(self) -> bool:
        """Withdraw it while it is queued; False when it was placed or settled already (S2)."""
        engine = self._harness.engine
        async with engine.session.block(SubmissionSubject(self.id), laws=("S2",), text="withdrawn") as tx:
            found = await tx.submission(self.id)
            if found is None:
                raise StorageRequestError(f"submission {self.id} does not exist")
            return await withdraw(tx, found)
