"""Owns what a block may read and write, and in which order (C5). Never decides what a record means.

A transaction collects; nothing leaves it before its block has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

from pidurable_nb.errors import DocumentRefused
from pidurable_nb.ids import ABSENT, Absent, ConversationId, EntryId, Json, JsonObject, SubmissionId, TaskId
from pidurable_nb.probe import Subject
from pidurable_nb.records.document import Address, DocumentRecord, Scope, TaskScope
from pidurable_nb.records.strict import detach
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, Edit, EntryRecord, Owner, Parent, SubmissionRecord
from pidurable_nb.session.changes import Changes, SubmissionChange, TaskChange
from pidurable_nb.session.definition import Definition
from pidurable_nb.session.documents import D, TypedDraft, decoded, definition_of
from pidurable_nb.session.drafts import Desk, Draft
from pidurable_nb.session.shelf import Turn
from pidurable_nb.session.staging import Staged
from pidurable_nb.session.table_reads import Ground, TableReads
from pidurable_nb.store.storage import (
    Commit,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    Write,
)

T = TypeVar("T")

NO_TASKS: Mapping[TaskId, TaskChange] = {}
NO_WRITTEN: Mapping[TaskId, TaskRecord] = {}
NO_SUBMISSIONS: Mapping[SubmissionId, SubmissionChange] = {}


class Transaction(TableReads):
    """Reads and writes of one block. Raises BlockEnded when it is used after it.

    Reads see what earlier blocks staged (C3). A table read after the first table write raises ReadAfterWrite;
    documents stay readable (C5). Values are detached where they enter; NotJson names the path of what is not JSON (C7).
    """

    __slots__ = (
        "_conversations",
        "_desk",
        "_entries",
        "_submissions",
        "by_task",
        "conversation_id",
        "subject",
    )

    def __init__(
        self,
        ground: Ground,
        subject: Subject,
        conversation: ConversationId | None,
        by_task: TaskId | None,
    ) -> None:
        super().__init__(ground)
        self.subject = subject
        self.conversation_id = conversation
        self.by_task = by_task
        self._desk: Desk | None = None
        self._conversations: dict[ConversationId, ConversationRecord] = {}
        self._entries: list[EntryRecord] = []
        self._submissions: dict[SubmissionId, SubmissionChange] = {}

    @property
    def written_tasks(self) -> Mapping[TaskId, TaskRecord]:
        """The tasks that this block has written so far, as they are to be stored. For the engine: not under C5."""
        return {id: change.after for id, change in self._tasks.items()} if self._tasks else NO_WRITTEN

    @property
    def written_conversations(self) -> tuple[ConversationRecord, ...]:
        """The conversations that this block has made so far. For the engine: not under C5."""
        return tuple(self._conversations.values())

    async def peek_submission(self, id: SubmissionId) -> SubmissionRecord | None:
        """The submission as this block leaves it. For who settles it along with other writes: not under C5."""
        self._check()
        change = self._submissions.get(id)
        return change.after if change is not None else await self._read(self._ground.staged.submission(id))

    # -- writes of tables ----------------------------------------------------------------------------------------

    def _write(self) -> None:
        self._check()
        self._written = True

    def mint(self) -> int:
        """The next unused id (C6). An id that is minted and not committed may be minted again after a restart."""
        self._check()
        return self._ground.stored.mint()

    def append(
        self,
        kind: str,
        *,
        text: str | None = None,
        data: Json | Absent = ABSENT,
        model: Sequence[JsonObject] | None = None,
        head: EntryId | Literal["self"] | None = None,
        edits: Sequence[Edit] = (),
        conversation: ConversationId | None = None,
    ) -> EntryId:
        """Append an entry. `text` stands for one user message; `head="self"` is the entry itself.

        Raises: NotJson (C7); ValueError for an empty kind, for text and model together, or without a conversation.
        """
        self._check()
        where = conversation if conversation is not None else self.conversation_id
        if where is None:
            raise ValueError(f"append({kind!r}): this block has no conversation of its own; name one")
        if not kind:
            raise ValueError("append: an entry needs a kind, such as 'app.note'")
        if text is not None and model is not None:
            raise ValueError(f"append({kind!r}): text is one user message; give either text or model")
        messages: Sequence[JsonObject] | None = model
        if text is not None:
            messages = ({"role": "user", "content": text, "timestamp": self.now_ms()},)
        detached = tuple(_message(m, f"$.model[{i}]") for i, m in enumerate(messages)) if messages is not None else None
        value = ABSENT if data is ABSENT else detach(data, at="$.data")
        marks = tuple(_edit(edit, i) for i, edit in enumerate(edits))
        id = EntryId(self.mint())
        self._entries.append(
            EntryRecord(
                id=id,
                conversation=where,
                kind=kind,
                model=detached,
                data=value,
                head=id if head == "self" else head,
                edits=marks,
                by_task=self.by_task,
            )
        )
        self._written = True
        return id

    def put_task(self, record: TaskRecord, *, before: TaskRecord | None = None) -> None:
        """Write a task whole (T3). `before` is what it replaces, where the overlay does not know it."""
        self._write()
        written = self._tasks.get(record.id)
        if written is not None:
            before = written.before
        elif before is None:
            before = self._ground.overlay.tasks.get(record.id)
        self._tasks[record.id] = TaskChange(before, record)

    def put_submission(self, record: SubmissionRecord, *, before: SubmissionRecord | None = None) -> None:
        """Write a submission whole (S5). `before` is what it replaces, where the overlay does not know it."""
        self._write()
        written = self._submissions.get(record.id)
        if written is not None:
            before = written.before
        elif before is None:
            before = self._ground.overlay.submissions.get(record.id)
        self._submissions[record.id] = SubmissionChange(before, record)

    def put_conversation(self, record: ConversationRecord) -> None:
        """Write a new conversation."""
        self._write()
        self._conversations[record.id] = record

    async def fork(self, parent: ConversationId, at: EntryId, *, owner: Owner | None = None) -> ConversationId:
        """A new conversation that sees `parent` through the entry `at`, with its documents by their policies (V3).

        Legal after a write. Waits for the commit that wrote `at`, if it is only staged.
        Raises: StorageRequestError when `at` is not visible from `parent`. The block's end raises DocumentRefused when
        it also wrote a `current` document of the parent.
        """
        self._check()
        forking, desk = self._ground.forking, self._own_desk()
        entry = await self._read(forking.stored_entry(parent, at))
        self._check()
        child = ConversationId(self.mint())
        copies = await self._read(forking.copies(parent, entry, child, self.mint))
        self._write()
        self._conversations[child] = ConversationRecord(
            id=child, parent=Parent(conversation=parent, at=at), owner=owner
        )
        desk.forked(parent)
        for copy in copies:
            desk.copy(copy)
        return child

    # -- documents -------------------------------------------------------------------------------------------------

    def _own_desk(self) -> Desk:
        desk = self._desk
        if desk is None:
            desk = self._desk = Desk(self._ground.shelf, self._ground.stored.mint)
        return desk

    async def _draft(self, definition: Definition, address: Address, seed: Json) -> Draft:
        self._check()
        draft = await self._read(self._own_desk().edit(definition, address, seed))
        self._check()
        return draft

    async def edit(self, definition: Definition, address: Address, *, seed: Json = None) -> dict[str, Json]:
        """The document as a plain object to change; created from `seed` when there is none.

        What it says at the block's end is stored, whole or as what changed. A reference kept beyond is disconnected.
        Raises: DocumentRefused when the stored value is newer, or older and cannot be migrated.
        """
        draft = await self._draft(definition, address, seed)
        if draft.mask is not None:
            raise DocumentRefused(f"{address.kind} in {address.scope}: already edited as a class in this block")
        draft.shown = True
        return draft.value

    async def edit_as(self, document: type[D], address: Address) -> D:
        """The document as an instance of its class; every use after the block raises BlockEnded.

        Raises: DocumentRefused as `edit`, and when the stored value does not fit the class.
        """
        draft = await self._draft(definition_of(document), address, None)
        mask = draft.mask
        if isinstance(mask, TypedDraft) and isinstance(mask.instance, document):
            return mask.instance
        if draft.shown:
            raise DocumentRefused(f"{address.kind} in {address.scope}: already edited as JSON in this block")
        instance = decoded(document, draft.value)
        draft.mask = TypedDraft(instance)
        return instance

    async def read(self, definition: Definition, address: Address) -> JsonObject | None:
        """The staged value, None when there is no document. A draft is nobody's before its block ends."""
        self._check()
        return await self._read(self._own_desk().read(definition, address))

    async def read_as(self, document: type[D], address: Address) -> D | None:
        """The same as an instance of its class."""
        value = await self.read(definition_of(document), address)
        return decoded(document, value) if value is not None else None

    async def retire(self, definition: Definition, address: Address) -> None:
        """End the document, if there is one; the next edit starts a new incarnation."""
        definition.check(address)
        await self._retire(address)

    async def _retire(self, address: Address) -> None:
        self._check()
        await self._read(self._own_desk().retire(address))

    async def documents(self, scope: Scope) -> tuple[DocumentRecord, ...]:
        """The documents of exactly this scope as this block leaves them, in id order."""
        self._check()
        return tuple(sorted(await self._read(self._documents(scope)), key=lambda record: record.id))

    async def _documents(self, scope: Scope) -> list[DocumentRecord]:
        staged = self._ground.shelf.unstored(scope)  # before the storage is asked
        found = [record for record in await self._ground.stored.documents(scope) if record.address not in staged]
        found += [view.incarnation.record for view in staged.values() if view is not None]
        desk = self._desk
        if desk is None:
            return found
        return [record for record in found if not desk.retires(record.id)] + list(desk.made_in(scope))

    async def retire_task_documents(self, task: TaskId) -> None:
        """End every document of a task. Costs no read for a task that this session created, or knows to be bare."""
        self._check()
        scope, shelf = TaskScope(task), self._ground.shelf
        if self._ground.stored.new(task) or task in shelf.bare:
            mine = [record.address for record in self._desk.made_in(scope)] if self._desk is not None else []
            addresses = dict.fromkeys((*shelf.made_for(task), *mine))
        else:
            addresses = dict.fromkeys(record.address for record in await self.documents(scope))
        for address in addresses:
            await self._retire(address)

    # -- for the block ---------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Everything works from now on; False when it once did already."""
        if self._open is not None:
            return False
        self._open = True
        return True

    def seal(self) -> bool:
        """Take all drafts back; True when there is anything to commit."""
        changed = self._desk.seal() if self._desk is not None else False
        return changed or self._written

    def end(self) -> None:
        """Nothing works from now on."""
        self._open = False
        if self._desk is not None:
            self._desk.drop()

    def staged(self, barrier: bool) -> Staged:
        """What to store. Called once, after `seal`."""
        outcomes = self._desk.outcomes() if self._desk is not None else ()
        writes: list[Write] = [PutConversation(record) for record in self._conversations.values()]
        writes += [PutEntry(record) for record in self._entries]
        writes += [PutTask(change.after) for change in self._tasks.values()]
        writes += [PutSubmission(change.after) for change in self._submissions.values()]
        turns: tuple[Turn, ...] = ()
        if outcomes:
            writes += [outcome.write for outcome in outcomes]
            turns = tuple([outcome.turn for outcome in outcomes])
        changes = Changes(
            None,
            barrier,
            self._tasks or NO_TASKS,
            tuple(self._conversations.values()),
            tuple(self._entries),
            self._submissions or NO_SUBMISSIONS,
            tuple([outcome.change for outcome in outcomes]),
        )
        return Staged(Commit(tuple(writes), barrier), changes, turns, self.subject)


def _message(message: JsonObject, at: str) -> JsonObject:
    copy = detach(message, at=at)
    if not isinstance(copy, dict):
        raise ValueError(f"{at}: a message is an object, not {type(message).__name__}")
    return copy


def _edit(edit: Edit, index: int) -> Edit:
    if edit.messages is None:
        return edit
    messages = tuple(_message(m, f"$.edits[{index}].messages[{i}]") for i, m in enumerate(edit.messages))
    return Edit(target=edit.target, messages=messages)
