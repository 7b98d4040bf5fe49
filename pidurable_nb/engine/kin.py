"""Owns bringing into memory what the table of live tasks has to know of a store: what lives, and who owns it (O1).

Reads only. Owners that have ended are known as long as something lives below them, so that a chain goes on above them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pidurable_nb.engine.household import Household
from pidurable_nb.engine.table import TaskTable, missing_from_waits
from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import ConversationId, TaskId
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord
from pidurable_nb.session.session import Session
from pidurable_nb.store.storage import TaskQuery

PAGE = 500
NO_TASKS: Mapping[TaskId, TaskRecord] = {}


class Kin:
    """Reads owners into the table of one engine."""

    def __init__(self, session: Session, table: TaskTable, household: Household) -> None:
        self._session = session
        self._table = table
        self._household = household

    async def load(self) -> Mapping[TaskId, TaskRecord]:
        """Every live task, into the table, with everything above it and the ended ones that a wait names."""
        found: dict[TaskId, TaskRecord] = {}
        after: int | None = None
        while True:
            page = await self._session.scan_tasks(TaskQuery(live=True), limit=PAGE, after=after)
            found.update((record.id, record) for record in page.items)
            if page.next is None:
                break
            after = page.next
        await self._session.know_bare(tuple(found))
        for conversation in {record.conversation: None for record in found.values()}:
            await self.know(conversation)
            await self.know_owners(conversation, found)
        for record in found.values():
            await self._know_chain(record.owner, found)
        for id in sorted(found):  # owners are older than what they own
            self._table.put(found[id])
        for id in sorted(missing_from_waits(self._table, found)):
            ended = await self._session.task(id)
            if ended is not None:
                self._table.learn_ended(ended)
        return found

    async def know(self, conversation: ConversationId) -> None:
        """Bring into memory who owns a conversation, and the conversations above it.

        Raises StorageRequestError when there is none.
        """
        below: dict[ConversationId, ConversationRecord] = {}
        here: ConversationId | None = conversation
        while here is not None and here not in below and not self._table.conversation_known(here):
            record = await self._session.conversation(here)
            if record is None:
                raise StorageRequestError(f"conversation {here} does not exist")
            below[here] = record
            here = record.owner.conversation if record.owner is not None else None
        for record in reversed(below.values()):
            self._table.learn_conversation(record)
            run = await self._household.live_run(self._session, record.id)
            if run is not None:
                self._table.set_run(record.id, run)

    async def know_owners(self, conversation: ConversationId, found: Mapping[TaskId, TaskRecord] = NO_TASKS) -> None:
        """Bring into memory the owners above a known conversation, where new work is to be put.

        The edges of ended tasks are forgotten with the last work below them. `found` are live tasks that follow.
        """
        await self._know_chain(self._table.conversation_owner(conversation), found)

    async def _know_chain(self, owner: TaskId | None, found: Mapping[TaskId, TaskRecord]) -> None:
        seen: set[TaskId] = set()
        while owner is not None and owner not in seen:
            if not self._table.edge_known(owner):
                record = found.get(owner) or await self._session.task(owner)
                if record is None:
                    return
                self._table.learn_edge(record)
            seen.add(owner)
            owner = self._table.parent(owner)
