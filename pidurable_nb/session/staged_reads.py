"""Owns reading the staged state: staged commits laid over what is stored (C8). Only the holder of the line may ask.

Every read looks at the overlay before it asks the storage. What is not in the overlay then is stored already or
not there, and nobody stages while the line is held, so a group that lands in between changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol, TypeVar

from pidurable_nb.ids import ConversationId, EntryId, SubmissionId, TaskId
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord, Placed, Queued, SubmissionRecord
from pidurable_nb.session.reads import StoredReads
from pidurable_nb.session.staging import Overlay
from pidurable_nb.store.storage import ConversationQuery, Order, Page, SubmissionQuery, TaskQuery


class Numbered(Protocol):
    """Any record."""

    @property
    def id(self) -> int: ...


R = TypeVar("R", bound=Numbered)


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a conversation sees: of each staged one the entries up to a bound, and of a stored one everything it sees.

    `bounds` has the staged conversations and the stored one; None: no bound. `stored` None: there is none.
    """

    bounds: dict[ConversationId, EntryId | None]
    stored: ConversationId | None

    def sees(self, entry: EntryRecord) -> bool:
        """True when a staged entry is visible."""
        if entry.conversation not in self.bounds:
            return False
        bound = self.bounds[entry.conversation]
        return bound is None or entry.id <= bound

    @property
    def bound(self) -> EntryId | None:
        """The last entry that is visible through the stored conversation."""
        return self.bounds[self.stored] if self.stored is not None else None


class StagedReads:
    """The staged state of a session."""

    __slots__ = ("_overlay", "_stored")

    def __init__(self, overlay: Overlay, stored: StoredReads) -> None:
        self._overlay = overlay
        self._stored = stored

    # -- by id ---------------------------------------------------------------------------------------------------

    async def conversation(self, id: ConversationId) -> ConversationRecord | None:
        return self._overlay.conversations.get(id) or await self._stored.conversation(id)

    async def entry(self, id: EntryId) -> EntryRecord | None:
        staged = self._overlay.entries.get(id)
        if staged is not None:
            return staged
        found = await self._stored.entry(id)
        return found.entry if found is not None else None

    async def task(self, id: TaskId) -> TaskRecord | None:
        return self._overlay.tasks.get(id) or await self._stored.task(id)

    async def submission(self, id: SubmissionId) -> SubmissionRecord | None:
        return self._overlay.submissions.get(id) or await self._stored.submission(id)

    async def submission_by_request(self, conversation: ConversationId, request_id: str) -> SubmissionRecord | None:
        for staged in self._overlay.submissions.values():
            if staged.request_id == request_id and staged.conversation == conversation:
                return staged
        return await self._stored.submission_by_request(conversation, request_id)

    # -- transcripts ---------------------------------------------------------------------------------------------

    def _lineage(self, conversation: ConversationId) -> Lineage:
        """Above the first stored conversation everything visible was stored before its fork was: storage knows it."""
        bounds: dict[ConversationId, EntryId | None] = {}
        here: ConversationId | None = conversation
        bound: EntryId | None = None
        while here is not None:
            bounds[here] = bound
            record = self._overlay.conversations.get(here)
            if record is None:
                return Lineage(bounds, here)
            if record.parent is None:
                return Lineage(bounds, None)
            here = record.parent.conversation
            bound = record.parent.at if bound is None else min(bound, record.parent.at)
        return Lineage(bounds, None)

    async def visible_entry(self, conversation: ConversationId, id: EntryId) -> EntryRecord | None:
        lineage = self._lineage(conversation)
        staged = self._overlay.entries.get(id)
        if staged is not None:
            return staged if lineage.sees(staged) else None
        if lineage.stored is None or (lineage.bound is not None and id > lineage.bound):
            return None
        found = await self._stored.visible_entry(lineage.stored, id)
        return found.entry if found is not None else None

    async def latest_head(self, conversation: ConversationId, *, until: EntryId | None = None) -> EntryRecord | None:
        lineage = self._lineage(conversation)
        heads = [entry for entry in self._visible(lineage) if entry.head is not None]
        newest = max((entry for entry in heads if until is None or entry.id <= until), key=_id, default=None)
        if newest is not None:
            return newest  # staged ids are minted after every stored one that is visible with them
        if lineage.stored is None:
            return None
        return await self._stored.latest_head(lineage.stored, until=_least(until, lineage.bound))

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
        lineage = self._lineage(conversation)
        fresh = [
            entry
            for entry in self._visible(lineage)
            if (first is None or entry.id >= first) and (last is None or entry.id <= last)
        ]
        hidden = set(self._overlay.entries)
        origin = lineage.stored
        if origin is None:
            return _cut(_ordered(fresh, after, order), limit, more=False)
        through, bound = origin, _least(last, lineage.bound)

        def fetch(size: int, cursor: int | None) -> Awaitable[Page[EntryRecord]]:
            return self._stored.scan_entries(through, limit=size, first=first, last=bound, after=cursor, order=order)

        return await _merged(fetch, hidden, fresh, limit, after, order)

    def _visible(self, lineage: Lineage) -> list[EntryRecord]:
        return [entry for entry in self._overlay.entries.values() if lineage.sees(entry)]

    # -- scans ---------------------------------------------------------------------------------------------------

    async def scan_conversations(
        self, query: ConversationQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[ConversationRecord]:
        staged = self._overlay.conversations
        fresh = [record for record in staged.values() if _owned(query, record)]

        def fetch(size: int, cursor: int | None) -> Awaitable[Page[ConversationRecord]]:
            return self._stored.scan_conversations(query, limit=size, after=cursor, order=order)

        return await _merged(fetch, set(staged), fresh, limit, after, order)

    async def scan_tasks(
        self, query: TaskQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[TaskRecord]:
        staged = self._overlay.tasks
        fresh = [record for record in staged.values() if _wanted_task(query, record)]

        def fetch(size: int, cursor: int | None) -> Awaitable[Page[TaskRecord]]:
            return self._stored.scan_tasks(query, limit=size, after=cursor, order=order)

        return await _merged(fetch, set(staged), fresh, limit, after, order)

    async def scan_submissions(
        self, query: SubmissionQuery, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Page[SubmissionRecord]:
        staged = self._overlay.submissions
        fresh = [record for record in staged.values() if _wanted_submission(query, record)]

        def fetch(size: int, cursor: int | None) -> Awaitable[Page[SubmissionRecord]]:
            return self._stored.scan_submissions(query, limit=size, after=cursor, order=order)

        return await _merged(fetch, set(staged), fresh, limit, after, order)


# -- merging -------------------------------------------------------------------------------------------------------

_id = attrgetter("id")


def _least(a: EntryId | None, b: EntryId | None) -> EntryId | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


def _ordered(fresh: Iterable[R], after: int | None, order: Order) -> list[R]:
    """The staged records behind the cursor, in order."""
    if order == "ascending":
        return sorted((record for record in fresh if after is None or record.id > after), key=_id)
    return sorted((record for record in fresh if after is None or record.id < after), key=_id, reverse=True)


def _cut(items: list[R], limit: int, *, more: bool) -> Page[R]:
    kept = tuple(items[:limit])
    return Page(kept, kept[-1].id if kept and (more or len(items) > limit) else None)


async def _merged(
    fetch: Callable[[int, int | None], Awaitable[Page[R]]],
    hidden: Collection[int],
    fresh: Iterable[R],
    limit: int,
    after: int | None,
    order: Order,
) -> Page[R]:
    """A page of stored records without the `hidden` ones, `fresh` ones laid between them. Full while there is more."""
    if not hidden:
        return await fetch(limit, after)
    rest = _ordered(fresh, after, order)
    items: list[R] = []
    cursor = after
    while True:
        page = await fetch(limit, cursor)
        reached = page.next
        here = [record for record in page.items if record.id not in hidden]
        if reached is None:
            here += rest
        elif order == "ascending":
            here += [record for record in rest if record.id <= reached]
            rest = [record for record in rest if record.id > reached]
        else:
            here += [record for record in rest if record.id >= reached]
            rest = [record for record in rest if record.id < reached]
        items += sorted(here, key=_id, reverse=order == "descending")
        if reached is None or len(items) >= limit:
            return _cut(items, limit, more=reached is not None)
        cursor = reached


def _owned(query: ConversationQuery, record: ConversationRecord) -> bool:
    owner = record.owner
    return (
        query.owner_conversation is None or (owner is not None and owner.conversation == query.owner_conversation)
    ) and (query.owner_task is None or (owner is not None and owner.task == query.owner_task))


def _wanted_task(query: TaskQuery, record: TaskRecord) -> bool:
    return (
        (query.conversation is None or record.conversation == query.conversation)
        and (query.kind is None or record.kind == query.kind)
        and (query.status is None or record.status == query.status)
        and (query.live is None or record.live == query.live)
        and (query.abort_requested is None or record.abort_requested == query.abort_requested)
        and (query.background is None or record.background == query.background)
    )


def _wanted_submission(query: SubmissionQuery, record: SubmissionRecord) -> bool:
    return (
        (query.conversation is None or record.conversation == query.conversation)
        and (query.status is None or record.status == query.status)
        and (query.open is None or isinstance(record.state, (Queued, Placed)) == query.open)
    )
