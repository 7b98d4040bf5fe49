"""Owns what somebody asked for, as they see it: its status, waiting for its end, taking it back. Keeps no state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pidurable_nb.agent.inbox.admission import Match
from pidurable_nb.agent.inbox.withdrawing import withdraw
from pidurable_nb.agent.owning import forwarded
from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import EntryId, SubmissionId
from pidurable_nb.probe import SubmissionSubject
from pidurable_nb.records import transcript as stored
from pidurable_nb.records.message import Message, text_of
from pidurable_nb.records.transcript import SubmissionRecord, SubmissionStatus, Unanswered, Written

if TYPE_CHECKING:
    from pidurable_nb.agent.harness import Harness

R_co = TypeVar("R_co", covariant=True, bound="Answered | Written")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An input that was answered: the text, the whole message, and the ids of the two entries."""

    text: str
    entry: EntryId
    answer: EntryId
    message: Message


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
            case stored.Queued() | stored.Placed():
                raise StorageRequestError(f"submission {self.id} is not settled")
            case stored.Answered():
                found: Answered | Written | Unanswered = await self._answered(state)
            case _:
                found = state
        settled: R_co | Unanswered = found  # type: ignore[assignment]  # a write is Written, an input Answered
        return settled

    async def _answered(self, state: stored.Answered) -> Answered:
        entry = await self._harness.engine.session.entry(state.answer)
        message: Message = entry.entry.model[0] if entry is not None and entry.entry.model else {}
        return Answered(text=text_of(message), entry=state.entry, answer=state.answer, message=message)

    @forwarded
    async def abort(self) -> bool:
        """Withdraw it while it is queued; False when it was placed or settled already (S2)."""
        engine = self._harness.engine
        async with engine.session.block(SubmissionSubject(self.id), laws=("S2",), text="withdrawn") as tx:
            found = await tx.submission(self.id)
            if found is None:
                raise StorageRequestError(f"submission {self.id} does not exist")
            return await withdraw(tx, found)
