"""Owns groups: takes everything that is staged to the storage as one transaction, and brings the answer back (C8).

One task of the session. It never decides what a commit holds and never tells anybody but the session what became
of one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from pidurable_nb.errors import SessionFailed, StorageError
from pidurable_nb.ids import Seq
from pidurable_nb.session.reads import as_storage_error
from pidurable_nb.session.staging import Staged
from pidurable_nb.store.storage import Storage

MOST: Final = 256
"""Commits in one group at most."""


class Keeper(Protocol):
    """Who hears what became of the groups: the session."""

    @property
    def failed(self) -> SessionFailed | None: ...

    def adopt(self, staged: Staged, seq: Seq) -> None:
        """One commit is stored: settle it and tell everybody, in order."""
        ...

    def poison(self, error: StorageError) -> SessionFailed:
        """The storage failed."""
        ...

    def crash(self, crash: BaseException) -> SessionFailed:
        """Something that is no error of the storage ended the writer."""
        ...


class Writer:
    """The queue of staged commits and the task that empties it."""

    __slots__ = (
        "_flight",
        "_kept",
        "_keeper",
        "_most",
        "_newest",
        "_queue",
        "_stopping",
        "_storage",
        "_task",
        "_wake",
    )

    def __init__(self, storage: Storage, keeper: Keeper, *, one_by_one: bool) -> None:
        self._storage = storage
        self._keeper = keeper
        self._most = 1 if one_by_one else MOST
        self._queue: deque[Staged] = deque()
        self._flight: list[Staged] = []
        self._newest: Staged | None = None
        self._wake: asyncio.Future[None] | None = None
        self._kept = True
        self._stopping = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name="pidurable_nb writer")

    def put(self, staged: Staged) -> None:
        """Take a staged commit into the queue."""
        self._queue.append(staged)
        self._newest = staged
        self._rouse()

    @property
    def newest(self) -> Staged | None:
        """The newest commit that is not stored yet: what the holder of the line can have read."""
        newest = self._newest
        return newest if newest is not None and not newest.settled else None

    def lose_queue(self, error: SessionFailed) -> None:
        """Nothing more is written: what no storage has seen is lost."""
        while self._queue:
            self._queue.popleft().lose(error)
        self._rouse()

    def lose_all(self, error: SessionFailed) -> None:
        """The same, and nobody will know about the group that is under way."""
        for staged in self._flight:
            if not staged.settled:
                staged.lose(error)
        self.lose_queue(error)

    async def stop(self) -> None:
        """Return when the queue is empty and the writer has ended."""
        self._stopping = True
        self._rouse()
        await asyncio.wait((self._task,))

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _run(self) -> None:
        try:
            while True:
                if self._queue:
                    await self._write()
                elif not self._kept and self._keeper.failed is None:
                    self._kept = True
                    await self._maintain()
                elif self._stopping:
                    return
                else:
                    self._wake = asyncio.get_running_loop().create_future()
                    await self._wake
                    self._wake = None
        except BaseException as crash:
            self._keeper.crash(crash)
            if isinstance(crash, (asyncio.CancelledError, KeyboardInterrupt, SystemExit)):
                raise

    async def _write(self) -> None:
        queue = self._queue
        if len(queue) <= self._most:
            group = self._flight = list(queue)
            queue.clear()
        else:
            group = self._flight = [queue.popleft() for _ in range(self._most)]
        try:
            seqs = await self._storage.commit([staged.commit for staged in group])
            if len(seqs) != len(group):
                raise StorageError(f"{len(group)} commits were given and {len(seqs)} answered", stored="unknown")
        except Exception as error:
            self._fail(group, as_storage_error(error))
            return
        self._kept = False
        for staged, seq in zip(group, seqs, strict=True):
            self._keeper.adopt(staged, seq)
        self._flight = []

    def _fail(self, group: list[Staged], error: StorageError) -> None:
        self._flight = []
        for staged in group:
            staged.lose(error)
        self._keeper.poison(error)

    async def _maintain(self) -> None:
        try:
            await self._storage.maintain()
        except Exception as error:
            self._keeper.poison(as_storage_error(error))
