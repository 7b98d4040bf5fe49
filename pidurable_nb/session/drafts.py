"""Owns the documents of one block: drafts, copies for forks, retirements, and what becomes of them at its end.

Never stages and never writes; it says what to write. A draft is a plain copy; what changed is seen by comparing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pidurable_nb.errors import DocumentRefused
from pidurable_nb.ids import ConversationId, DocumentId, Json, JsonObject, Seq
from pidurable_nb.records.document import Address, ConversationScope, DocumentRecord, Scope
from pidurable_nb.session.changes import DocumentChange
from pidurable_nb.session.definition import Definition, as_object, todays
from pidurable_nb.session.shelf import Incarnation, Shelf, Turn, View
from pidurable_nb.store.delta import Op
from pidurable_nb.store.diff import diff
from pidurable_nb.store.storage import (
    Base,
    ChangeDocument,
    CopyDocument,
    CreateDocument,
    Delta,
    RetireDocument,
    Write,
)

NOT_YET = Seq(0)
"""`created_at` of what is not stored yet."""


class Mask(Protocol):
    """Something typed over a draft."""

    def take_off(self) -> object:
        """The value that the draft gets. The mask is revoked."""
        ...

    def revoke(self) -> None:
        """Make the mask unusable."""
        ...


@dataclass(frozen=True, slots=True)
class Copy:
    """What a fork puts into the child, unless the block goes on to edit it."""

    incarnation: Incarnation
    view: View
    write: CopyDocument | CreateDocument


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one document of the block comes to."""

    write: Write
    change: DocumentChange
    turn: Turn


class Draft:
    """One document in the making. `view` is what it starts from, None for a new one; `shown`: given out as JSON."""

    __slots__ = ("address", "base", "definition", "incarnation", "mask", "open", "ops", "shown", "value", "view")

    def __init__(
        self, definition: Definition, address: Address, view: View | None, base: JsonObject, incarnation: Incarnation
    ) -> None:
        self.definition = definition
        self.address = address
        self.view = view
        self.base = base
        self.incarnation = incarnation
        self.value: dict[str, Json] = as_object(base, definition.kind)
        self.mask: Mask | None = None
        self.open = True
        self.shown = False
        self.ops: tuple[Op, ...] = ()

    def seal(self) -> None:
        """Take the value out of its author's hands and see what changed. Raises: NotJson (C7)."""
        if not self.open:
            return
        self.open = self.shown = False
        mask, self.mask = self.mask, None
        self.value = as_object(self.value if mask is None else mask.take_off(), self.definition.kind)
        self.ops = diff(self.base, self.value)

    @property
    def changed(self) -> bool:
        """True when the sealed draft says anything new: what it holds, or the version it holds it in."""
        return self.view is None or bool(self.ops) or self.view.version != self.definition.version


class Desk:
    """The documents of one block."""

    __slots__ = ("_copies", "_drafts", "_forked", "_mint", "_retired", "_shelf")

    def __init__(self, shelf: Shelf, mint: Callable[[], int]) -> None:
        self._shelf = shelf
        self._mint = mint
        self._drafts: dict[Address, Draft] = {}
        self._copies: dict[Address, Copy] = {}
        self._retired: dict[Address, View] = {}
        self._forked: set[ConversationId] = set()

    # -- in the block ---------------------------------------------------------------------------------------------

    async def edit(self, definition: Definition, address: Address, seed: Json) -> Draft:
        """The draft of a document, created when there is none."""
        definition.check(address)
        draft = self._drafts.get(address)
        if draft is None:
            view = await self._view(address)
            draft = self._drafts.get(address)  # two edits at a time are one draft
        else:
            view = draft.view
        if draft is None:
            draft = self._drafts[address] = self._new(definition, address, view, seed)
        elif draft.definition is not definition:
            raise DocumentRefused(f"{address.kind} in {address.scope}: edited as two definitions in one block")
        draft.open = True
        return draft

    def _new(self, definition: Definition, address: Address, view: View | None, seed: Json) -> Draft:
        if view is not None:
            base = todays(definition, view.value, view.version)
            return Draft(definition, address, view, base, view.incarnation)
        incarnation = Incarnation(self._record(definition, address))
        return Draft(definition, address, None, as_object(definition.initial(seed), definition.kind), incarnation)

    def _record(self, definition: Definition, address: Address) -> DocumentRecord:
        kept = definition.scope == "conversation"
        return DocumentRecord(
            id=DocumentId(self._mint()),
            kind=definition.kind,
            scope=address.scope,
            key=address.key,
            created_at=NOT_YET,
            history=definition.history if kept else None,
            fork=definition.fork if kept else None,
        )

    async def _view(self, address: Address) -> View | None:
        """What is at the address as this block leaves it, drafts aside."""
        if address in self._copies:
            return self._copies[address].view
        if address in self._retired:
            return None
        view = (await self._shelf.load(address)).staged
        return None if address in self._retired else view

    async def read(self, definition: Definition, address: Address) -> JsonObject | None:
        """The staged value; a draft is nobody's before its block ends."""
        definition.check(address)
        view = await self._view(address)
        return todays(definition, view.value, view.version) if view is not None else None

    async def retire(self, address: Address) -> None:
        """End the document, if there is one. A document of this very block was never there."""
        draft = self._drafts.get(address)
        if draft is not None and draft.mask is not None:
            draft.mask.revoke()
            draft.mask = None
        view = await self._view(address)
        self._drafts.pop(address, None)
        if address in self._copies:
            del self._copies[address]
        elif view is not None:
            self._retired[address] = view

    def copy(self, copy: Copy) -> None:
        """Put a fork's copy into the child."""
        self._copies[copy.incarnation.record.address] = copy

    def forked(self, parent: ConversationId) -> None:
        """Remember that this block forks `parent`."""
        self._forked.add(parent)

    def made_in(self, scope: Scope) -> Iterator[DocumentRecord]:
        """What this block creates in a scope."""
        for address, copy in self._copies.items():
            if address.scope == scope:
                yield copy.incarnation.record
        for address, draft in self._drafts.items():
            if draft.view is None and address.scope == scope:
                yield draft.incarnation.record

    def retires(self, id: DocumentId) -> bool:
        """True when this block ends that incarnation."""
        return any(view.incarnation.record.id == id for view in self._retired.values())

    # -- at its end ------------------------------------------------------------------------------------------------

    def seal(self) -> bool:
        """Take every open draft back; True when anything is to be written."""
        for draft in self._drafts.values():
            draft.seal()
        return bool(self._retired or self._copies) or any(draft.changed for draft in self._drafts.values())

    def drop(self) -> None:
        """Revoke everything: the block is rolled back."""
        for draft in self._drafts.values():
            mask, draft.mask = draft.mask, None
            if mask is not None:
                mask.revoke()
        self._drafts.clear()

    def outcomes(self) -> list[Outcome]:
        """What to write. Retirements come first, so that an address is free for its next incarnation."""
        self._refuse_ambiguous_forks()
        found = [_retirement(address, view) for address, view in self._retired.items()]
        found += [_copied(address, copy) for address, copy in self._copies.items() if not self._edits(address)]
        found += [_drafted(draft, draft.address in self._copies) for draft in self._drafts.values() if draft.changed]
        return found

    def _edits(self, address: Address) -> bool:
        draft = self._drafts.get(address)
        return draft is not None and draft.changed

    def _refuse_ambiguous_forks(self) -> None:
        for address in (*self._retired, *(address for address, draft in self._drafts.items() if draft.changed)):
            scope = address.scope
            if not isinstance(scope, ConversationScope) or scope.conversation not in self._forked:
                continue
            if self._policy(address) == "current":
                raise DocumentRefused(
                    f"{address.kind} in {scope}: written and forked with fork='current' in one commit; "
                    "write it in a commit before or after (V3)"
                )

    def _policy(self, address: Address) -> str | None:
        draft = self._drafts.get(address)
        if draft is not None:
            return draft.incarnation.record.fork
        return self._retired[address].incarnation.record.fork


def _retirement(address: Address, view: View) -> Outcome:
    record = view.incarnation.record
    change = DocumentChange(record, None, (), view.version, False)
    return Outcome(RetireDocument(record.id), change, Turn(address, view.incarnation, None, False))


def _copied(address: Address, copy: Copy) -> Outcome:
    change = DocumentChange(copy.incarnation.record, copy.view.value, (), copy.view.version, True)
    return Outcome(copy.write, change, Turn(address, copy.incarnation, copy.view, True))


def _drafted(draft: Draft, copied: bool) -> Outcome:
    record, version, value = draft.incarnation.record, draft.definition.version, draft.value
    if draft.view is None or copied:
        change = DocumentChange(record, value, (), version, True)
        turn = Turn(draft.address, draft.incarnation, View(draft.incarnation, version, value, 0), True)
        return Outcome(CreateDocument(record, Base(version, value)), change, turn)
    view = draft.view
    stepped = view.version != version  # a delta has the version of the revision before it
    whole = stepped or draft.definition.base_when(value, draft.ops, view.deltas)
    content = Base(version, value) if whole else Delta(version, draft.ops)
    after = View(draft.incarnation, version, value, 0 if whole else view.deltas + 1)
    turn = Turn(draft.address, draft.incarnation, after, False)
    change = DocumentChange(record, value, draft.ops, version, False)
    return Outcome(ChangeDocument(record.id, content), change, turn)
