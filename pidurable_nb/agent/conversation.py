"""Owns a conversation as its users see it: entries, writes, tasks, forks. Never runs a model and keeps no state."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from pidurable_nb.agent.extending.configuring import AgentChange, configure
from pidurable_nb.agent.extending.resolution import Agent
from pidurable_nb.agent.generating import compacting
from pidurable_nb.agent.inbox.admission import InputDraft, WhenBusy, WriteDraft, admit_input, admit_write
from pidurable_nb.agent.owning import forwarded, owned_loop
from pidurable_nb.agent.request.context import Context
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.submission import Answered, Submission
from pidurable_nb.agent.usage import Usage, usage_of
from pidurable_nb.agent.watching.events import EventWatch, watch_events
from pidurable_nb.agent.watching.view import ViewWatch, watch_conversation
from pidurable_nb.engine.phase import Phase, TaskRef
from pidurable_nb.engine.tx import Tx
from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import ABSENT, ROOT, Absent, ConversationId, EntryId, Json, JsonObject
from pidurable_nb.probe import ConversationSubject
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, Written
from pidurable_nb.store.storage import Order, Page

if TYPE_CHECKING:
    from pidurable_nb.agent.harness import Harness

R = TypeVar("R")


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
        _check_kind(kind)
        return await self._write(WriteDraft(kind=kind, text=text, data=data), request_id)

    async def _write(self, draft: WriteDraft, request_id: str | None) -> Submission[Written]:
        harness = self._harness
        engine = harness.engine
        await engine.kin.know(self.id)
        with engine.runs.launching() as launch:
            async with engine.session.block(
                ConversationSubject(self.id), barrier=request_id is not None, conversation=self.id, laws=("S1",)
            ) as tx:
                admitted = await admit_write(
                    tx, launch, self.id, draft, request_id=request_id, modes=harness.settings.queues
                )
        return Submission(harness, admitted.id, admitted.match)

    @forwarded
    async def submit(
        self,
        content: str | Sequence[JsonObject],
        *,
        request_id: str | None = None,
        when_busy: WhenBusy = "follow_up",
        kind: str | None = None,
        data: Json | Absent = ABSENT,
    ) -> Submission[Answered]:
        """Say something that is to be answered: text, or blocks of text and images.

        Where a run is active it waits for the next one (`follow_up`), joins after the current tool round (`steer`), or
        is refused (`reject`) (S3). `kind` and `data` place it as an application's entry instead of `pi.user`.

        Durability: admitted on return; with a `request_id` once, across restarts and races, behind a barrier (S1, E5).
        Raises ConversationBusy, RequestConflict when the request id was admitted for a write, NotJson, and
        StorageRequestError for content that is neither text nor blocks.
        """
        if kind is not None:
            _check_kind(kind)
        harness = self._harness
        engine = harness.engine
        await engine.kin.know(self.id)
        draft = InputDraft(content=content, kind=kind, data=data)
        with engine.runs.launching() as launch:
            async with engine.session.block(
                ConversationSubject(self.id), barrier=request_id is not None, conversation=self.id, laws=("S1",)
            ) as tx:
                admitted = await admit_input(
                    tx, launch, self.id, draft, request_id=request_id, when_busy=when_busy,
                    modes=harness.settings.queues,
                )  # fmt: skip
        return Submission(harness, admitted.id, admitted.match)

    @forwarded
    async def reset(self, handoff: str | None = None) -> Submission[Written]:
        """Let the model begin anew from here on, with the `handoff` text; nothing is deleted (V1).

        In a run it takes effect at the next boundary, and ends that run (S4). Durability: admitted on return.
        """
        return await self._write(WriteDraft(kind="pi.reset", text=handoff, head="self"), None)

    @forwarded
    async def compact(self, instructions: str | None = None) -> TaskRef[Json]:
        """Summarize what is old, beside whatever runs (K1). Its summary is placed like a write, when it is done.

        Durability: the task is stored on return.
        """
        engine = self._harness.engine
        await engine.kin.know(self.id)
        with engine.runs.launching() as launch:
            async with engine.session.block(ConversationSubject(self.id), conversation=self.id, laws=("K1",)) as tx:
                return await compacting.start(tx, launch, self.id, "manual", instructions=instructions)

    @forwarded
    async def configure(self, change: AgentChange) -> None:
        """Choose model, tools, extensions or instructions of this conversation. It takes effect at the next request.

        Durability: stored on return.
        """
        async with self.commit() as tx:
            await configure(tx.rows, self.id, change)

    @forwarded
    async def agent(self) -> Agent:
        """What the conversation works with, resolved now."""
        return await self._harness.shop.agent(self.id)

    @forwarded
    async def context(self, *, at: EntryId | None = None) -> Context:
        """What the model sees, now or as of a visible entry (V2). Raises StorageRequestError for another one."""
        return await self._harness.shop.contexts.at(self.id, at)

    @forwarded
    async def usage(self) -> Usage:
        """What this conversation itself has spent."""
        return await usage_of(self._harness.engine.session, self.id)

    async def watch(self) -> ViewWatch:
        """The conversation as it is stored, and every later state of it: entries, live state, inbox (V4).

        Raises WrongLoop elsewhere than on the loop that opened the harness.
        """
        owned_loop(self._harness, "watches", "pi.call(function)")
        return await watch_conversation(self._harness.engine.session, self.id)

    async def events(self) -> EventWatch:
        """What happens here from now on, as events, each behind the commit that made it true; a snapshot first (V4).

        Raises WrongLoop elsewhere than on the loop that opened the harness.
        """
        owned_loop(self._harness, "watches", "pi.call(function)")
        return await watch_events(self._harness.engine.session, self.id)

    @forwarded
    async def abort(self, *, background: bool = False) -> None:
        """End what runs here: queued inputs are withdrawn, writes stay, and everything owned is aborted first (O2).

        With `background`, work that runs in the background of it too (O3). Returns when all of it has ended.
        """
        engine = self._harness.engine
        await engine.kin.know(self.id)
        await engine.abort_conversation(self.id, background=background)
        await self._idle(background=background)

    @forwarded
    async def busy(self) -> bool:
        """Whether a run is active here, as stored (S3)."""
        return live.busy(await self._harness.shop.live(self.id))

    @forwarded
    async def wait_idle(self) -> None:
        """Return when nothing lives here but background work (O3). A blocked, parked or faulted task is live."""
        await self._harness.engine.kin.know(self.id)
        await self._idle(background=False)

    async def _idle(self, *, background: bool) -> None:
        table, session = self._harness.engine.table, self._harness.engine.session
        while True:
            async with self._harness.moving() as moved:
                while table.of_conversation(self.id, background=background):
                    await moved()
            await session.settled()  # the table is ahead of what is stored (C2)
            if not table.of_conversation(self.id, background=background):
                return

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
    async def fork(self, *, at: EntryId, agent: AgentChange | None = None, barrier: bool = False) -> Conversation:
        """A new conversation that sees this one through the entry `at` (V3); `agent` is what it does otherwise.

        Durability: stored on return. Raises StorageRequestError when the entry is not visible here.
        """
        async with self.commit(barrier=barrier) as tx:
            child = await tx.fork(self.id, at=at)
            if agent is not None:
                await configure(tx.rows, child, agent)
        return Conversation(self._harness, child)


def _check_kind(kind: str) -> None:
    if not kind or kind.startswith("pi."):
        raise StorageRequestError(f"entry kind {kind!r}: it is not empty, and those that start with 'pi.' are reserved")
