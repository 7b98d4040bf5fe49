"""Owns what a model sees of a conversation, derived from its entries (V1, V2, V3), and keeps it while entries arrive.

Never writes, and never sees what is not stored. The order of messages is `ordering`'s.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pidurable_nb.agent.request.ordering import Ordering
from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import ConversationId, EntryId
from pidurable_nb.records.message import UNSENT, Message, role_of, stop_reason
from pidurable_nb.records.transcript import Edit, EntryRecord
from pidurable_nb.session.changes import Changes
from pidurable_nb.session.session import Session

PAGE: Final = 1_000
"""How many entries one read asks for: few hops, and no commit waits long behind one."""
MOST_KEPT: Final = 8
"""How many conversations are kept in memory; the one that was read longest ago goes first."""
MOST_UNREAD: Final = 10_000
"""A conversation that grew by more than this since it was last read is not kept: nobody reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a model sees of a transcript, as of its newest entry or an older one.

    `entries` are the active ones: the head marker first, where there is one, then every entry from its head on that
    has no head of its own. `contributions` are the messages of each after edits, without answers that are never sent;
    both stand in the order of commits. `messages` are the contributions in the order in which they are sent.
    """

    head: EntryRecord | None
    entries: tuple[EntryRecord, ...]
    contributions: tuple[tuple[Message, ...], ...]
    messages: tuple[Message, ...]


def derive(entries: Sequence[EntryRecord], head: EntryRecord | None) -> Context:
    """The context of an active range. Pure.

    `entries` are all visible ones from `head.head`, or from the start, through the cutoff, oldest first; `head` is the
    newest of them that has a head, and may be among them or not. Laws: V1, V2.
    """
    return _Active(head, entries).context()


class Contexts:
    """The contexts of a session's conversations. Reads raise SessionClosed and SessionFailed, also from memory.

    The newest context of a few conversations is kept. An entry that arrives is added at the next read, without asking
    the storage; an edit or a head derives the range again from memory, which is linear. Each read after a change hands
    out tuples of its own, so no context changes under who holds it: copying the references takes some 0.1 ms per
    10,000 entries. The messages in them are shared, and not to be changed.
    """

    def __init__(self, session: Session, *, most: int = MOST_KEPT) -> None:
        self._session = session
        self._most = most
        self._kept: dict[ConversationId, _Kept] = {}  # the one that was read longest ago stands first
        self._loading: list[tuple[ConversationId, list[EntryRecord]]] = []
        session.subscribe(self._follow)

    async def at(self, conversation: ConversationId, cutoff: EntryId | None = None) -> Context:
        """The context as of `cutoff`, which it includes, or as of the newest stored entry.

        Raises: StorageRequestError for an unknown conversation, and when `cutoff` is not visible from it (F2).
        Laws: V1, V2, V3, V4.
        """
        self._session.admit()
        active = await self._newest(conversation)
        if cutoff is None:
            return active.context()
        past = active.until(cutoff)
        return past if past is not None else await self._past(conversation, cutoff)

    def forget(self, conversation: ConversationId) -> None:
        """Keep it no longer; the next read asks the storage."""
        self._kept.pop(conversation, None)

    # -- what is kept ----------------------------------------------------------------------------------------------

    def _follow(self, changes: Changes) -> None:
        for entry in changes.entries:
            kept = self._kept.get(entry.conversation)
            if kept is not None:
                kept.unread.append(entry)
                if len(kept.unread) > MOST_UNREAD:
                    self.forget(entry.conversation)
            for conversation, arrived in self._loading:
                if conversation == entry.conversation:
                    arrived.append(entry)

    async def _newest(self, conversation: ConversationId) -> _Active:
        while True:
            kept = self._kept.pop(conversation, None) or await self._load(conversation)
            if kept.caught_up():  # else a new head lies before what was read
                self._kept[conversation] = kept
                while len(self._kept) > self._most:
                    del self._kept[next(iter(self._kept))]
                return kept.active

    async def _load(self, conversation: ConversationId) -> _Kept:
        """Everything through the entry that is the newest now, which never changes, and what arrives meanwhile."""
        arrived: list[EntryRecord] = []
        loading = (conversation, arrived)
        self._loading.append(loading)
        try:
            tail = await self._session.scan_entries(conversation, limit=1)
            newest = tail.items[0].id if tail.items else EntryId(0)
            head, entries = await self._range(conversation, newest)
        finally:
            self._loading = [other for other in self._loading if other is not loading]
        return _Kept(_Active(head, entries), arrived)

    # -- what is read ----------------------------------------------------------------------------------------------

    async def _past(self, conversation: ConversationId, cutoff: EntryId) -> Context:
        if await self._session.visible_entry(conversation, cutoff) is None:
            raise StorageRequestError(
                f"entry {cutoff} is not visible from conversation {conversation}; name an entry of its transcript"
            )
        head, entries = await self._range(conversation, cutoff)
        return derive(entries, head)

    async def _range(self, conversation: ConversationId, last: EntryId) -> tuple[EntryRecord | None, list[EntryRecord]]:
        """The newest head through `last`, and every visible entry from where it points."""
        head = await self._session.latest_head(conversation, until=last)
        first = head.head if head is not None else None
        found: list[EntryRecord] = []
        after: int | None = None
        while True:
            page = await self._session.scan_entries(
                conversation, limit=PAGE, first=first, last=last, after=after, order="ascending"
            )
            found += page.items
            if page.next is None:
                return head, found
            after = page.next


class _Active:
    """An active range while it grows. Adding an entry without edits or head costs the same however many there are."""

    __slots__ = ("_context", "_contributions", "_edits", "_entries", "_ordering", "_range", "head", "newest")

    def __init__(self, head: EntryRecord | None, entries: Sequence[EntryRecord]) -> None:
        self.head = head
        self._range = list(entries)
        if head is not None and not _holds(self._range, head.id):
            self._range = sorted((*entries, head), key=_id)
        self.newest = self._range[-1].id if self._range else EntryId(0)
        self._derive()

    def _derive(self) -> None:
        head = self.head
        self._context: Context | None = None
        self._edits: dict[EntryId, Edit] = {edit.target: edit for entry in self._range for edit in entry.edits}
        self._entries: list[EntryRecord] = []
        self._contributions: list[tuple[Message, ...]] = []
        self._ordering = Ordering(front=True)
        if head is not None:
            self._append(head)
        for entry in self._range:
            if head is None or entry.head is None:
                self._append(entry)

    def _append(self, entry: EntryRecord) -> None:
        edit = self._edits.get(entry.id)
        messages = (entry.model if edit is None else edit.messages) or ()
        if any(map(_unsent, messages)):
            messages = tuple(message for message in messages if not _unsent(message))
        self._entries.append(entry)
        self._contributions.append(messages)
        self._ordering.add(messages)

    def add(self, entry: EntryRecord) -> bool:
        """Take the next visible entry. False when it moves the head to before the range: read that again."""
        since = self.head.head if self.head is not None else None
        if entry.head is not None and since is not None and entry.head < since:
            return False
        self.newest = entry.id
        if entry.head is not None:
            self.head = entry
            self._range = [*self._range[bisect_left(self._range, entry.head, key=_id) :], entry]
            self._derive()
        elif since is None or entry.id >= since:
            self._range.append(entry)
            if entry.edits:
                self._derive()
            else:
                self._append(entry)
                self._context = None
        return True

    def context(self) -> Context:
        """The context through the newest entry."""
        if self._context is None:
            self._context = Context(
                head=self.head,
                entries=tuple(self._entries),
                contributions=tuple(self._contributions),
                messages=self._ordering.messages(),
            )
        return self._context

    def until(self, cutoff: EntryId) -> Context | None:
        """The context as of an entry of the range; None when that has another head, or is not in the range."""
        if (self.head is not None and cutoff < self.head.id) or not _holds(self._range, cutoff):
            return None
        if cutoff == self.newest:
            return self.context()
        return derive(self._range[: bisect_left(self._range, cutoff, key=_id) + 1], self.head)


@dataclass(slots=True)
class _Kept:
    """An active range, and what arrived since it was last read."""

    active: _Active
    unread: list[EntryRecord]

    def caught_up(self) -> bool:
        """Take in what arrived. False when the range has to be read again."""
        unread, self.unread = self.unread, []
        new = [entry for entry in unread if entry.id > self.active.newest]  # the others were read with the range
        return all(map(self.active.add, new))


def _id(entry: EntryRecord) -> EntryId:
    return entry.id


def _holds(entries: Sequence[EntryRecord], id: EntryId) -> bool:
    index = bisect_left(entries, id, key=_id)
    return index < len(entries) and entries[index].id == id


def _unsent(message: Message) -> bool:
    return "stopReason" in message and role_of(message) == "assistant" and stop_reason(message) in UNSENT
