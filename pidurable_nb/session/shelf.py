"""Owns the documents in memory: a bounded cache of loaded values, each as stored and as staged. Never knows what a
document means, and never writes one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pidurable_nb.ids import JsonObject, Seq, TaskId
from pidurable_nb.records.document import Address, DocumentRecord, Scope, TaskScope
from pidurable_nb.session.reads import StoredReads

KEPT: Final = 512
"""How many addresses are remembered, beside those that staged commits changed."""


class Incarnation:
    """One life of a document. Its record is completed when the commit that made it is stored."""

    __slots__ = ("record",)

    def __init__(self, record: DocumentRecord) -> None:
        self.record = record


@dataclass(frozen=True, slots=True)
class View:
    """The value of a document at some moment, as written: `version` is that of its writer."""

    incarnation: Incarnation
    version: int
    value: JsonObject
    deltas: int


class Place:
    """What is at one address: nothing, or a document. `unstored` counts staged commits that changed it."""

    __slots__ = ("address", "staged", "stored", "unstored")

    def __init__(self, address: Address, view: View | None) -> None:
        self.address = address
        self.stored = view
        self.staged = view
        self.unstored = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """What one commit does at one place, to one incarnation. `view` None: it is retired. `made`: it is new."""

    address: Address
    incarnation: Incarnation
    view: View | None
    made: bool


class Shelf:
    """The places of a session. Loading needs no line: nobody changes a place that was not loaded."""

    __slots__ = ("_kept", "_loading", "_places", "_reads", "_task_documents", "_unstored", "bare")

    def __init__(self, reads: StoredReads, kept: int = KEPT) -> None:
        self._reads = reads
        self._kept = kept
        self._places: dict[Address, Place] = {}
        self._loading: dict[Address, list[asyncio.Future[None]]] = {}
        self._unstored: dict[Address, Place] = {}
        self._task_documents: dict[TaskId, dict[Address, None]] = {}
        self.bare: set[TaskId] = set()
        """Tasks of an earlier session that had no document when this one opened."""

    def peek(self, address: Address) -> Place | None:
        """The place when it is loaded. Makes it the newest to forget."""
        place = self._places.pop(address, None)
        if place is not None:
            self._places[address] = place
        return place

    async def load(self, address: Address) -> Place:
        """The place, read from the storage if need be: once, however many ask at a time."""
        while True:
            place = self.peek(address)
            if place is not None:
                return place
            others = self._loading.get(address)
            if others is None:
                await self._read(address)
                continue
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            others.append(told)
            await told

    async def _read(self, address: Address) -> None:
        waiting = self._loading[address] = []
        try:
            view = await self._view(address)
            if address not in self._places:  # a fork may have put a copy there meanwhile
                self._places[address] = Place(address, view)
                self._forget()
        finally:
            del self._loading[address]
            for told in waiting:
                if not told.done():
                    told.set_result(None)

    async def _view(self, address: Address) -> View | None:
        record = await self._reads.find_document(address)
        if record is None:
            return None
        found = await self._reads.document(record.id)
        if found is None:
            return None
        return View(Incarnation(found.record), found.version, found.value, found.deltas_since_base)

    def _forget(self) -> None:
        excess = len(self._places) - self._kept - len(self._unstored)
        if excess <= 0:
            return
        old = [address for address, place in self._places.items() if not place.unstored]
        for address in old[: excess + self._kept // 8]:  # a few more, so that not every load has to look
            del self._places[address]

    # -- staged commits ------------------------------------------------------------------------------------------

    def stage(self, turn: Turn) -> None:
        """A staged commit made `turn` of its place: later blocks see it, nobody else does."""
        place = self._places.get(turn.address)
        if place is None:  # only a fork's copy: what is created otherwise was loaded first
            place = self._places[turn.address] = Place(turn.address, None)
        place.staged = turn.view
        place.unstored += 1
        self._unstored[turn.address] = place
        scope = turn.address.scope
        if isinstance(scope, TaskScope):
            self._follow(scope.task, turn)

    def store(self, turn: Turn, seq: Seq) -> None:
        """The commit that made `turn` is stored as `seq`."""
        incarnation = turn.incarnation
        if turn.made:
            incarnation.record = replace(incarnation.record, created_at=seq)
        if turn.view is None:
            incarnation.record = replace(incarnation.record, retired_at=seq)
        place = self._unstored[turn.address]
        place.stored = turn.view
        place.unstored -= 1
        if not place.unstored:
            del self._unstored[turn.address]
            self._forget()

    def _follow(self, task: TaskId, turn: Turn) -> None:
        if turn.view is not None:
            self._task_documents.setdefault(task, {})[turn.address] = None
            return
        known = self._task_documents.get(task)
        if known is not None:
            known.pop(turn.address, None)
            if not known:
                del self._task_documents[task]

    def unstored(self, scope: Scope) -> Mapping[Address, View | None]:
        """What staged commits made of the places of a scope."""
        return {address: place.staged for address, place in self._unstored.items() if address.scope == scope}

    def made_for(self, task: TaskId) -> tuple[Address, ...]:
        """The documents of a task that this session created and that are not retired."""
        return tuple(self._task_documents.get(task, ()))
