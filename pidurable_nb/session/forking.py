"""Owns what a fork takes along: each document of the parent by its policy (V3). Never changes the parent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import ConversationId, DocumentId, EntryId
from pidurable_nb.records.document import Address, ConversationScope, DocumentRecord
from pidurable_nb.session.drafts import NOT_YET, Copy
from pidurable_nb.session.reads import StoredReads
from pidurable_nb.session.shelf import Incarnation, Shelf, View
from pidurable_nb.session.staging import Overlay
from pidurable_nb.store.storage import CURRENT, Base, CopyDocument, CreateDocument, StoredEntry


class Forking:
    """How a session forks. Used by the holder of the line only."""

    __slots__ = ("_flush", "_overlay", "_reads", "_shelf")

    def __init__(
        self, reads: StoredReads, overlay: Overlay, shelf: Shelf, flush: Callable[[], Awaitable[None]]
    ) -> None:
        self._reads = reads
        self._overlay = overlay
        self._shelf = shelf
        self._flush = flush

    async def stored_entry(self, parent: ConversationId, at: EntryId) -> StoredEntry:
        """The entry to fork at, with its commit's number: waits until it is stored, since it has none before.

        Raises: StorageRequestError when `at` is not visible from `parent`; SessionFailed when it was lost.
        """
        if at in self._overlay.entries or parent in self._overlay.conversations:
            await self._flush()  # the writer needs no line, so waiting for it while holding the line is safe
        found = await self._reads.visible_entry(parent, at)
        if found is None:
            raise StorageRequestError(
                f"entry {at} is not visible from conversation {parent}; fork at an entry of its transcript"
            )
        return found

    async def copies(
        self, parent: ConversationId, at: StoredEntry, child: ConversationId, mint: Callable[[], int]
    ) -> list[Copy]:
        """The documents that the child starts with. `initial` ones are made when it first edits them."""
        owner = ConversationScope(at.entry.conversation)
        found = [
            await self._as_of(record, at, child, mint)
            for record in await self._reads.documents(owner, at.commit_seq)
            if record.fork == "as_of"
        ]
        for address in await self._current(parent):
            copy = await self._at_the_fork(address, child, mint)
            if copy is not None:
                found.append(copy)
        return found

    async def _as_of(
        self, record: DocumentRecord, at: StoredEntry, child: ConversationId, mint: Callable[[], int]
    ) -> Copy:
        source = await self._reads.document(record.id, at.commit_seq)
        if source is None:
            raise StorageRequestError(f"document {record.id} ({record.kind}) has no value at commit {at.commit_seq}")
        made = _incarnation(record, child, mint)
        view = View(made, source.version, source.value, 0)
        return Copy(made, view, CopyDocument(made.record, record.id, at.commit_seq))

    async def _current(self, parent: ConversationId) -> list[Address]:
        """The addresses of the parent's `current` documents, staged ones included, in the order of their ids."""
        scope = ConversationScope(parent)
        staged = self._shelf.unstored(scope)  # before the storage is asked
        records = [record for record in await self._reads.documents(scope) if record.address not in staged]
        records += [view.incarnation.record for view in staged.values() if view is not None]
        return [record.address for record in sorted(records, key=lambda record: record.id) if record.fork == "current"]

    async def _at_the_fork(self, address: Address, child: ConversationId, mint: Callable[[], int]) -> Copy | None:
        place = await self._shelf.load(address)
        source = place.staged
        if source is None:
            return None
        record = source.incarnation.record
        made = _incarnation(record, child, mint)
        view = View(made, source.version, source.value, 0)
        if place.unstored:  # a value that the storage may not have yet is handed over whole
            return Copy(made, view, CreateDocument(made.record, Base(source.version, source.value)))
        return Copy(made, view, CopyDocument(made.record, record.id, CURRENT))


def _incarnation(source: DocumentRecord, child: ConversationId, mint: Callable[[], int]) -> Incarnation:
    return Incarnation(
        replace(
            source,
            id=DocumentId(mint()),
            scope=ConversationScope(child),
            created_at=NOT_YET,
            retired_at=None,
        )
    )
