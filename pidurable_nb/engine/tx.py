"""Owns the public transaction: typed writes that land whole or not at all. Never decides what a write means.

`Tx` is what any commit block gives; `TaskTx` is the block of a running task and also says what the task becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pidurable_nb.clock import as_ms
from pidurable_nb.engine.definition import TaskDefinition
from pidurable_nb.engine.graph import NotReady
from pidurable_nb.engine.phase import Aborted, Done, Failed, Phase, Sleeping, State, TaskRef, Waiting
from pidurable_nb.engine.transition import Checkpoint, Event, Finish, Sleep, Wait, advance, differs
from pidurable_nb.errors import IllegalTransition, OwnerGone, StorageRequestError, UnknownPhase
from pidurable_nb.ids import ABSENT, Absent, ConversationId, EntryId, Json, JsonObject, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import Address, ConversationScope, Scope, SessionScope, TaskScope
from pidurable_nb.records.transcript import ConversationRecord, Edit, EntryRecord, Owner
from pidurable_nb.session.documents import Document, definition_of
from pidurable_nb.session.transaction import Transaction

if TYPE_CHECKING:
    from pidurable_nb.engine.engine import Engine
    from pidurable_nb.engine.runtime import Runtime

R = TypeVar("R")
D = TypeVar("D", bound=Document)

S = TypeVar("S", bound=State)


class Tx:
    """Writes of one block. Everything raises BlockEnded once the block is over.

    Tables are read before they are written (C5); documents may be read and edited at any time.
    """

    _abandons = False

    def __init__(self, inner: Transaction, engine: Engine) -> None:
        self._inner = inner
        self._engine = engine

    @property
    def rows(self) -> Transaction:
        """The transaction below, for the rooms that own the kinds `pi.…`; the laws of tasks hold for it as well."""
        return self._inner

    # -- tables --------------------------------------------------------------------------------------------------------

    def append(
        self,
        kind: str,
        *,
        text: str | None = None,
        data: Json | Absent = ABSENT,
        model: Sequence[JsonObject] | None = None,
        conversation: ConversationId | None = None,
        edits: Sequence[Edit] = (),
    ) -> EntryId:
        """A new entry of the block's conversation. `text` becomes one user message.

        Raises StorageRequestError for the reserved kinds `pi.…`, NotJson for what cannot be stored.
        """
        if kind.startswith("pi."):
            raise StorageRequestError(f"entry kind {kind!r}: kinds that start with 'pi.' are the harness's")
        return self._inner.append(
            kind, text=text, data=data, model=tuple(model) if model is not None else None, conversation=conversation,
            edits=tuple(edits),
        )  # fmt: skip

    def spawn(
        self, phase: Phase[R], *, background: bool = False, conversation: ConversationId | None = None
    ) -> TaskRef[R]:
        """A new task that begins at `phase`, owned by the conversation (O1). Raises UnknownPhase when not installed."""
        return self._spawn(phase, owner=None, background=background, conversation=conversation)

    def _spawn(
        self, phase: Phase[R], *, owner: TaskId | None, background: bool, conversation: ConversationId | None
    ) -> TaskRef[R]:
        definition = self._engine.startable(phase)
        input, checkpoint = definition.start(phase)
        here = conversation if conversation is not None else self._inner.conversation_id
        if here is None:
            raise StorageRequestError("this block belongs to no conversation; name one: spawn(..., conversation=…)")
        record = stored.TaskRecord(
            id=TaskId(self._inner.mint()),
            conversation=here,
            kind=definition.name,
            version=definition.version,
            input=input,
            state=stored.Pending(checkpoint=checkpoint),
            owner=None if background else owner,
            background=background,
            abandon_on_restart=self._abandons and owner is not None and not background,
        )
        self._inner.put_task(record)
        return TaskRef(record.id)

    async def create_conversation(self) -> ConversationId:
        """A new ownerless conversation, with the documents that every conversation has (O1)."""
        return await self._create_conversation(None)

    async def _create_conversation(self, owner: Owner | None) -> ConversationId:
        record = ConversationRecord(id=ConversationId(self._inner.mint()), owner=owner)
        self._inner.put_conversation(record)
        await self._engine.household.created(self._inner, record)
        return record.id

    async def fork(self, parent: ConversationId, *, at: EntryId) -> ConversationId:
        """A new ownerless conversation that sees `parent` through the entry `at` (V3).

        Raises StorageRequestError when the entry is not visible there.
        """
        id = await self._inner.fork(parent, at, owner=None)
        record = next(record for record in self._inner.written_conversations if record.id == id)
        await self._engine.household.created(self._inner, record)
        return id

    async def conversation(self, id: ConversationId) -> ConversationRecord | None:
        """The conversation as the block sees it (C5, C8)."""
        return await self._inner.conversation(id)

    async def entry(self, id: EntryId) -> EntryRecord | None:
        """The entry as the block sees it (C5, C8)."""
        return await self._inner.entry(id)

    async def task(self, ref: TaskRef[object]) -> stored.TaskRecord | None:
        """The task as the block sees it (C5, C8)."""
        return await self._inner.task(ref.id)

    # -- documents -----------------------------------------------------------------------------------------------------

    async def edit(self, doc: type[D], *, of: ConversationId | None = None, key: str | None = None) -> D:
        """A draft of the document, made from its defaults where there is none; its difference lands with the block.

        The draft is revoked at the end of the block: every access raises BlockEnded afterwards.
        """
        return await self._inner.edit_as(doc, self._address(doc, of, key))

    async def read(self, doc: type[D], *, of: ConversationId | None = None, key: str | None = None) -> D:
        """The value that the block found, without what its own draft has changed."""
        return await self._inner.read_as(doc, self._address(doc, of, key)) or doc()

    async def retire(self, doc: type[Document], *, of: ConversationId | None = None, key: str | None = None) -> None:
        """The document ends with this block; nothing happens when there is none."""
        await self._inner.retire(definition_of(doc), self._address(doc, of, key))

    def _address(self, doc: type[Document], of: ConversationId | None, key: str | None) -> Address:
        definition = definition_of(doc)
        return Address(definition.kind, self._scope(definition.scope, of), key)

    def _scope(self, scope: str, of: ConversationId | None) -> Scope:
        if scope == "session":
            return SessionScope()
        if scope == "task":
            raise StorageRequestError("a document of a task is edited in a block of that task: rt.commit()")
        here = of if of is not None else self._inner.conversation_id
        if here is None:
            raise StorageRequestError("this block belongs to no conversation; name one: edit(..., of=…)")
        return ConversationScope(here)


@dataclass(frozen=True, slots=True)
class Landed:
    """What a block made of its task, and whether that was progress (T9)."""

    state: State
    progress: bool


class TaskTx(Tx):
    """The block of a running task. What it spawns is owned by the task (O1)."""

    def __init__(self, inner: Transaction, engine: Engine, runtime: Runtime, record: stored.TaskRecord) -> None:
        super().__init__(inner, engine)
        self._rt = runtime
        self._record = record
        self._abandons = runtime.abandons
        self._to: tuple[State, stored.TaskRecord] | None = None

    def spawn(
        self, phase: Phase[R], *, background: bool = False, conversation: ConversationId | None = None
    ) -> TaskRef[R]:
        """A new task that this one owns, or with `background` one that its conversation owns (O1, O3)."""
        elsewhere = conversation is not None and conversation != self._record.conversation
        return self._spawn(
            phase, owner=None if elsewhere else self._record.id, background=background, conversation=conversation
        )

    async def create_conversation(self, *, owned: bool = True, owner: TaskRef[object] | None = None) -> ConversationId:
        """A new conversation that this task owns, or another task, or with `owned=False` nobody (O1).

        It begins with a copy of the agent of its owner's conversation. `owner` may be a task of this very block.
        Raises OwnerGone for one that has ended.
        """
        above: stored.TaskRecord | None = self._record
        if owner is not None:
            above = self._inner.peek_task(owner.id) or self._engine.table.live_task(owner.id)
        if above is None:
            raise OwnerGone(f"a conversation cannot be owned by task {owner}, which has ended or never was (O2)")
        edge = Owner(conversation=above.conversation, task=above.id) if owned else None
        return await self._create_conversation(edge)

    def become(self, to: S) -> S:
        """What the task is when the block has landed: a phase, a wait, a sleep, or its outcome (T3).

        Raises IllegalTransition for a successor that `run` does not declare, a changed input, a second `become`.
        """
        if self._to is not None:
            raise IllegalTransition(f"task {self._record.id}: this block already becomes {self._to[0]!r}")
        self._to = (to, advance(self._record, self._event(to), now_ms=self._inner.now_ms()))
        return to

    def land(self) -> Landed | None:
        """The block ends: write what the task becomes."""
        if self._to is None:
            return None
        state, after = self._to
        self._inner.put_task(after, before=self._record)
        return Landed(state, self.progress)

    @property
    def progress(self) -> bool:
        """T9: whether what the task becomes differs from what it is."""
        return self._to is not None and differs(self._record.state, self._to[1].state)

    def _scope(self, scope: str, of: ConversationId | None) -> Scope:
        return TaskScope(self._record.id) if scope == "task" else super()._scope(scope, of)

    def _event(self, to: State) -> Event:
        definition = self._rt.definition
        self._rt.check_declared(to)
        match to:
            case Waiting(on=on, then=then, fail_fast=fail_fast):
                return Wait(self._checkpoint(definition, then), tuple(ref.id for ref in on), fail_fast)
            case Sleeping(until=until, then=then):
                try:
                    due = as_ms(until)
                except ValueError as naive:
                    raise IllegalTransition(f"task {self._record.id} cannot sleep: {naive}") from naive
                return Sleep(self._checkpoint(definition, then), due)
            case Done() | Failed() | Aborted():
                return Finish(definition.encode_outcome(to), drained=True)
            case Phase():
                return Checkpoint(self._checkpoint(definition, to))

    def _checkpoint(self, definition: TaskDefinition, phase: Phase[object]) -> JsonObject:
        definition.check_input(phase, self._record.input)
        return definition.checkpoint(phase)


def startable(definition: TaskDefinition | NotReady | None, phase: Phase[object]) -> TaskDefinition:
    """The definition when a task can begin at `phase`. Raises UnknownPhase, saying what is missing."""
    name = type(phase).__name__
    if definition is None:
        raise UnknownPhase(f"{name} begins no installed task; install its first phase: Harness.open(..., tasks=[…])")
    if isinstance(definition, NotReady):
        raise UnknownPhase(f"{name}: the task is not ready, {definition.missing} is not defined yet; define it first")
    return definition
