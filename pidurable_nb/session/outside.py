"""Owns what is read outside a block: stored state only, never a staged commit (C2, C8, V4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import ConversationId, EntryId, JsonObject, SubmissionId, TaskId
from pidurable_nb.records.document import Address, ConversationScope, DocumentRecord
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, SubmissionRecord
from pidurable_nb.session.definition import Definition, todays
from pidurable_nb.session.reads import StoredReads
from pidurable_nb.session.shelf import Shelf
from pidurable_nb.session.watch import Ended, Frame, Watch, Watches
from pidurable_nb.store.storage import (
    ConversationQuery,
    Order,
    Page,
    StoredEntry,
    SubmissionQuery,
    TaskQuery,
)


class Outside:
    """The reads of a session. All raise SessionClosed, SessionFailed, and the StorageError that they meet (F1)."""

    __slots__ = ("_shelf", "_stored", "_watches")

    def __init__(self, stored: StoredReads) -> None:
        self._stored = stored
        self._shelf = Shelf(stored)
        self._watches = Watches()

    def admit(self) -> None:
        """Raises SessionFailed or SessionClosed when nothing may start any more."""
        raise NotImplementedError

    def report(self, error: BaseException) -> None:
        """Tell who opened the session."""
        raise NotImplementedError

    async def conversation(self, id: ConversationId) -> ConversationRecord | None:
        """The conversation."""
        self.admit()
        return await self._stored.conversation(id)

    async def scan_conversations(
        self, query: ConversationQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[ConversationRecord]:
        """A page of conversations."""
        self.admit()
        return await self._stored.scan_conversations(query, limit=limit, after=after, order=order)

    async def entry(self, id: EntryId) -> StoredEntry | None:
        """The entry, in whatever conversation."""
        self.admit()
        return await self._stored.entry(id)

    async def visible_entry(self, conversation: ConversationId, id: EntryId) -> StoredEntry | None:
        """The entry when it is visible from `conversation` through its forks."""
        self.admit()
        return await self._stored.visible_entry(conversation, id)

    async def latest_head(self, conversation: ConversationId, *, until: EntryId | None = None) -> EntryRecord | None:
        """The newest visible entry with a head, at or before `until`."""
        self.admit()
        return await self._stored.latest_head(conversation, until=until)

    async def scan_entries(
        self,
        conversation: ConversationId,
        *,
        limit: int,
        first: EntryId | None = None,
        last: EntryId | None = None,
        after: int | None = None,
        order: Order = "descending",
    ) -> Page[EntryRecord]:
        """A page of the visible entries. Raises: StorageRequestError for an unknown conversation (F2)."""
        self.admit()
        return await self._stored.scan_entries(
            conversation, limit=limit, first=first, last=last, after=after, order=order
        )

    async def task(self, id: TaskId) -> TaskRecord | None:
        """The task."""
        self.admit()
        return await self._stored.task(id)

    async def scan_tasks(
        self, query: TaskQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[TaskRecord]:
        """A page of tasks."""
        self.admit()
        return await self._stored.scan_tasks(query, limit=limit, after=after, order=order)

    async def submission(self, id: SubmissionId) -> SubmissionRecord | None:
        """The submission."""
        self.admit()
        return await self._stored.submission(id)

    async def submission_by_request(self, conversation: ConversationId, request_id: str) -> SubmissionRecord | None:
        """The submission that was admitted with that request id (S1)."""
        self.admit()
        return await self._stored.submission_by_request(conversation, request_id)

    async def scan_submissions(
        self, query: SubmissionQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[SubmissionRecord]:
        """A page of submissions."""
        self.admit()
        return await self._stored.scan_submissions(query, limit=limit, after=after, order=order)

    # -- documents -------------------------------------------------------------------------------------------------

    async def snapshot(self, definition: Definition, address: Address) -> JsonObject | None:
        """The stored value at today's version, None when there is no document. Not to be changed.

        Raises: DocumentRefused when it is newer than the definition, or older and cannot be migrated.
        """
        self.admit()
        definition.check(address)
        view = (await self._shelf.load(address)).stored
        return todays(definition, view.value, view.version) if view is not None else None

    async def know_bare(self, tasks: Sequence[TaskId]) -> None:
        """Ask once which of these tasks have documents, so that ending the others asks nothing."""
        self.admit()
        self._shelf.bare.update(set(tasks) - await self._stored.documented(tasks))

    async def document_record(self, address: Address) -> DocumentRecord | None:
        """The stored incarnation at an address, None when there is none. Says nothing about its value's version."""
        self.admit()
        view = (await self._shelf.load(address)).stored
        return view.incarnation.record if view is not None else None

    async def snapshot_as_of(self, definition: Definition, address: Address, entry: EntryId) -> JsonObject | None:
        """The value at the end of the commit that wrote `entry`; None when the document was not alive then (V3).

        An entry that the conversation inherits answers for an `as_of` document from the conversation that owns it.

        Raises: StorageRequestError when `entry` is not visible from the document's conversation, or no history is
        kept (F2); DocumentRefused as `snapshot`.
        """
        self.admit()
        definition.check(address)
        scope = address.scope
        if not isinstance(scope, ConversationScope) or definition.history != "rewindable":
            raise StorageRequestError(
                f"{definition.kind} keeps no history; define it for a conversation with history='rewindable'"
            )
        found = await self._stored.visible_entry(scope.conversation, entry)
        if found is None:
            raise StorageRequestError(f"entry {entry} is not visible from {scope}; name an entry of its transcript")
        if definition.fork == "as_of":
            address = Address(address.kind, ConversationScope(found.entry.conversation), address.key)
        record = await self._stored.find_document(address, found.commit_seq)
        if record is None:
            return None
        stored = await self._stored.document(record.id, found.commit_seq)
        return todays(definition, stored.value, stored.version) if stored is not None else None

    def on_end(self, heard: Callable[[Ended], None]) -> Callable[[], None]:
        """Call `heard` when the session ends, closed or failed; returns what ends that. Must not wait, or raise."""
        return self._watches.tell(heard)

    async def watch(
        self, definition: Definition, address: Address, *, listener: Callable[[Frame], None] | None = None
    ) -> Watch | None:
        """Follow a document from its stored value on; None when there is no document.

        With `listener`, every frame is given to it as it is published; one that raises ends the watch and is reported.
        Raises: DocumentRefused as `snapshot`.
        """
        value = await self.snapshot(definition, address)
        if value is None:
            return None
        self.admit()  # the session may have ended while the document was loaded
        watch = Watch(definition, address, value, listener=listener, close=self._watches.remove, report=self.report)
        self._watches.add(watch)
        return watch
