"""Owns the view of one conversation: its active transcript and its built-in documents, commit by commit (V4).

Never interprets either, and never writes: what a model is shown is derived elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Final, TypeAlias, overload

from pidurable_nb.agent.stored import live
from pidurable_nb.agent.watching.following import Following, follow
from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import ConversationId, JsonObject, Seq
from pidurable_nb.probe import ConversationSubject, Subject
from pidurable_nb.records.document import ConversationScope
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord
from pidurable_nb.session.changes import Changes
from pidurable_nb.session.definition import Definition, todays
from pidurable_nb.session.session import Session
from pidurable_nb.session.transaction import Transaction

PAGE = 500
NOT_SEEN: Final = Seq(0)

DOCUMENTS: Final[Mapping[str, Definition]] = {
    definition.kind: definition for definition in (live.AGENT, live.LIVE, live.INBOX, live.PROVIDER, live.USAGE)
}
"""The documents of a view. Those of applications are watched one by one."""

_id = attrgetter("id")


class ActiveEntries(Sequence[EntryRecord]):
    """The active transcript: the newest head, when there is one, then the entries without a head from its target on.

    Immutable, and cheap to grow: all that grew from each other share one list, of which each knows how much is its own,
    so appending costs the new entries and a new head costs what it keeps. A slice is a tuple.
    """

    __slots__ = ("_count", "_shared", "head")

    def __init__(self, head: EntryRecord | None, kept: Iterable[EntryRecord]) -> None:
        self.head = head
        self._shared = list(kept)
        self._count = len(self._shared)

    def appended(self, entry: EntryRecord) -> ActiveEntries:
        """With one entry more. A head keeps what is here from its target on; what was cut before stays cut."""
        if entry.head is not None:
            start = bisect_left(self._shared, entry.head, hi=self._count, key=_id)
            return ActiveEntries(entry, self._shared[start : self._count])
        grown = ActiveEntries(self.head, ())
        mine = self._count == len(self._shared)  # else another one grew from here already
        grown._shared = self._shared if mine else self._shared[: self._count]
        grown._shared.append(entry)
        grown._count = self._count + 1
        return grown

    def __len__(self) -> int:
        return self._count + (self.head is not None)

    def __iter__(self) -> Iterator[EntryRecord]:
        if self.head is not None:
            yield self.head
        yield from islice(self._shared, self._count)

    @overload
    def __getitem__(self, index: int) -> EntryRecord: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[EntryRecord, ...]: ...

    def __getitem__(self, index: int | slice) -> EntryRecord | tuple[EntryRecord, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        at = index if index >= 0 else index + len(self)
        if not 0 <= at < len(self):
            raise IndexError(f"entry {index} of {len(self)}")
        if self.head is None:
            return self._shared[at]
        return self._shared[at - 1] if at else self.head

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActiveEntries) and len(self) == len(other) and all(map(_equal, self, other))

    def __hash__(self) -> int:
        return hash((len(self), self[-1].id if len(self) else None))

    def __repr__(self) -> str:
        return f"ActiveEntries({self.head!r}, {self._shared[: self._count]!r})"


def _equal(one: EntryRecord, other: EntryRecord) -> bool:
    return one is other or one == other


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationView:
    """One conversation as it is stored: the active transcript (V1), and its documents by kind; absent ones are absent.

    Its parts are shared with the views before and after it, and must not be changed. `seq` is the commit that made it
    so, 0 for one that was read from the store; it says nothing about the content, and equality ignores it.
    """

    conversation: ConversationRecord
    entries: ActiveEntries
    docs: Mapping[str, JsonObject]
    seq: Seq = field(default=NOT_SEEN, compare=False)


def view_after(before: ConversationView, changes: Changes) -> ConversationView:
    """The view after a commit; the same object when the commit does not touch the conversation.

    Costs what the commit changed. A head that reaches further back than the view shows what the view holds only: the
    harness writes none, and reading the store again shows the rest.
    Raises: DocumentRefused when newer code wrote one of the documents.
    """
    here = before.conversation.id
    entries = before.entries
    for entry in changes.entries:
        if entry.conversation == here:
            entries = entries.appended(entry)
    docs = _docs_after(before.docs, changes, ConversationScope(here))
    if entries is before.entries and docs is before.docs:
        return before
    seq = changes.seq if changes.seq is not None else before.seq
    return ConversationView(conversation=before.conversation, entries=entries, docs=docs, seq=seq)


def _docs_after(
    before: Mapping[str, JsonObject], changes: Changes, scope: ConversationScope
) -> Mapping[str, JsonObject]:
    docs: dict[str, JsonObject] | None = None
    for change in changes.documents:
        record = change.record
        definition = DOCUMENTS.get(record.kind)
        if definition is None or record.key is not None or record.scope != scope:
            continue
        if docs is None:
            docs = dict(before)
        if change.value is None:
            docs.pop(record.kind, None)
        else:
            docs[record.kind] = todays(definition, change.value, change.version)
    return docs if docs is not None else before


async def read_view(tx: Transaction, conversation: ConversationId) -> ConversationView:
    """The view as a block sees it (C8). Raises: StorageRequestError when there is no such conversation."""
    record = await tx.conversation(conversation)
    if record is None:
        raise StorageRequestError(f"conversation {conversation} does not exist; there is nothing to watch")
    head = await tx.latest_head(conversation)
    first = head.head if head is not None else None
    kept: list[EntryRecord] = []
    after: int | None = None
    while True:
        page = await tx.scan_entries(conversation, limit=PAGE, first=first, after=after, order="ascending")
        kept += [entry for entry in page.items if entry.head is None]
        after = page.next
        if after is None:
            break
    docs: dict[str, JsonObject] = {}
    for kind, definition in DOCUMENTS.items():
        value = await tx.read(definition, live.at(definition, conversation))
        if value is not None:
            docs[kind] = value
    return ConversationView(conversation=record, entries=ActiveEntries(head, kept), docs=docs)


ViewWatch: TypeAlias = Following[ConversationView, ConversationView]
"""The views of one conversation: `value` is the newest; iterating gives one for every later commit that touches it."""


class ConversationProjection:
    """A conversation, to be followed as views."""

    def __init__(self, conversation: ConversationId) -> None:
        self._conversation = conversation

    @property
    def subject(self) -> Subject:
        return ConversationSubject(self._conversation)

    async def read(self, tx: Transaction) -> ConversationView:
        return await read_view(tx, self._conversation)

    def advance(self, value: ConversationView, changes: Changes) -> tuple[ConversationView, ConversationView | None]:
        after = view_after(value, changes)
        return after, None if after is value else after

    def whole(self, value: ConversationView) -> ConversationView:
        return value


async def watch_conversation(session: Session, conversation: ConversationId) -> ViewWatch:
    """Follow one conversation from its stored view on (V4). A fork follows its own commits: its past is fixed.

    Raises: StorageRequestError when there is no such conversation; SessionClosed; SessionFailed.
    """
    return await follow(session, ConversationProjection(conversation))
