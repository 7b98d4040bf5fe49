"""A seeded writer of valid commits for the crash tests of the JSONL storage, what a store shows after each of them, and
the check that a reopened store shows exactly that."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import ROOT, ConversationId, DocumentId, EntryId, Seq, SubmissionId, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import ConversationScope, DocumentRecord, History, Scope, SessionScope, TaskScope
from pidurable_nb.records.transcript import Parent, Placed
from pidurable_nb.store.delta import Put
from pidurable_nb.store.jsonl import JsonlStorage
from pidurable_nb.store.jsonl_tables import highest_id
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.storage import (
    CURRENT,
    Base,
    ChangeDocument,
    Commit,
    ConversationQuery,
    CopyDocument,
    CreateDocument,
    Delta,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    RetireDocument,
    Storage,
    SubmissionQuery,
    TaskQuery,
    Write,
)
from pidurable_nb.testing.storage_checks import conversation, document, entry, submission, task
from tests.store.jsonl_disk import Image, Op, Recorder, put


class Author:
    """Writes commits that are always valid. Values are often as long as the one before, as they are in life."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._next = 2
        self._count = 0
        self._conversations = [ROOT]
        self._entries: list[EntryId] = []
        self._tasks: list[TaskId] = []
        self._submissions: list[SubmissionId] = []
        self._documents: dict[DocumentId, DocumentRecord] = {}
        self._touched: set[int] = set()

    def group(self) -> list[Commit]:
        """The next group: one commit, sometimes more."""
        return [self.commit() for _ in range(self._draw.choice((1, 1, 1, 2, 3)))]

    def commit(self) -> Commit:
        """The next commit."""
        self._touched = set()
        if self._count == 0:
            self._count = 1
            return Commit((PutConversation(conversation(ROOT)),))
        writes = [write for _ in range(self._draw.choice((0, 1, 2, 2, 3, 4))) for write in self._write()]
        return Commit(tuple(writes), barrier=self._draw.random() < 0.15)

    def _write(self) -> Sequence[Write]:
        self._count += 1
        acts = (self._entry, self._task, self._task, self._document, self._change, self._change, self._retire)
        return self._draw.choice((*acts, self._copy, self._submission, self._conversation))()

    def _id(self) -> int:
        self._next += 1 + (self._draw.random() < 0.1)
        return self._next

    def _value(self) -> dict[str, int | str]:
        return {"n": self._count % 90 + 10, "pad": "é" * self._draw.choice((0, 3, 3, 3, 400))}

    def _entry(self) -> Sequence[Write]:
        record = entry(self._id(), self._draw.choice(self._conversations), data=self._value())
        if record.conversation == ROOT:
            self._entries.append(record.id)
        return [PutEntry(record)]

    def _task(self) -> Sequence[Write]:
        if not self._tasks or self._draw.random() < 0.3:
            id = TaskId(self._id())
            self._tasks.append(id)
            self._touched.add(id)
            return [PutTask(task(id, input=self._value()))]
        id = self._draw.choice(self._tasks)
        if self._draw.random() < 0.35:
            self._tasks.remove(id)
            done = stored.Terminal(outcome=stored.Completed(result=self._value()))
            return [PutTask(task(id, state=done))]
        return [PutTask(task(id, input=self._value()))]

    def _submission(self) -> Sequence[Write]:
        if self._submissions and self._entries and self._draw.random() < 0.5:
            placed = Placed(entry=self._draw.choice(self._entries))
            return [PutSubmission(submission(self._submissions.pop(), state=placed))]
        id = SubmissionId(self._id())
        self._submissions.append(id)
        return [PutSubmission(submission(id, request_id=f"r{id}"))]

    def _conversation(self) -> Sequence[Write]:
        if not self._entries or len(self._conversations) > 3:
            return self._entry()
        id = ConversationId(self._id())
        self._conversations.append(id)
        parent = Parent(conversation=ROOT, at=self._draw.choice(self._entries))
        return [PutConversation(conversation(id, parent=parent))]

    def _new_document(self, *, inside: bool = False) -> DocumentRecord:
        id = self._id()
        scopes: list[Scope] = [ConversationScope(ROOT), ConversationScope(ROOT)]
        if not inside:
            scopes += [SessionScope(), *(TaskScope(each) for each in self._tasks)]
        history: History = self._draw.choice(("latest", "rewindable"))
        record = document(id, key=str(id), scope=self._draw.choice(scopes), history=history)
        self._documents[record.id] = record
        self._touched.add(id)
        return record

    def _document(self) -> Sequence[Write]:
        record = self._new_document()
        writes: list[Write] = [CreateDocument(record, Base(1, self._value()))]
        if self._draw.random() < 0.05:
            del self._documents[record.id]
            writes.append(RetireDocument(record.id))
        return writes

    def _untouched(self, *, inside: bool = False) -> list[DocumentId]:
        return [
            id
            for id, record in self._documents.items()
            if id not in self._touched and (not inside or isinstance(record.scope, ConversationScope))
        ]

    def _change(self) -> Sequence[Write]:
        ids = self._untouched()
        if not ids:
            return self._document()
        id = self._draw.choice(ids)
        self._touched.add(id)
        if self._draw.random() < 0.5:
            return [ChangeDocument(id, Base(1, self._value()))]
        return [ChangeDocument(id, Delta(1, (Put(("n",), self._count % 90 + 10),)))]

    def _retire(self) -> Sequence[Write]:
        ids = self._untouched()
        if not ids or self._draw.random() < 0.4:
            return self._change()
        id = self._draw.choice(ids)
        self._touched.add(id)
        del self._documents[id]
        writes: list[Write] = [RetireDocument(id)]
        if self._draw.random() < 0.3:
            writes.insert(0, ChangeDocument(id, Delta(1, (Put(("n",), 11),))))
        return writes

    def _copy(self) -> Sequence[Write]:
        ids = self._untouched(inside=True)
        if not ids:
            return self._document()
        source = self._draw.choice(ids)
        self._touched.add(source)
        record = self._documents[source]
        copy = self._new_document(inside=True)
        copy = self._documents[copy.id] = replace(copy, history=record.history)
        return [CopyDocument(copy, source, CURRENT)]


async def picture(storage: Storage, last: int) -> str:
    """Everything that a store shows after `last` commits, as text that two equal stores share."""
    shown: list[object] = []
    conversations = (await storage.scan_conversations(ConversationQuery(), limit=1000)).items
    scopes: list[Scope] = [SessionScope()]
    for each in conversations:
        shown.append(each)
        scopes.append(ConversationScope(each.id))
        lines = (await storage.scan_entries(each.id, limit=1000)).items
        shown += [await storage.entry(line.id) for line in lines]
    tasks = (await storage.scan_tasks(TaskQuery(), limit=1000)).items
    scopes += [TaskScope(each.id) for each in tasks]
    shown += [tasks, (await storage.scan_submissions(SubmissionQuery(), limit=1000)).items]
    for scope in scopes:
        for record in (await storage.scan_documents(scope, limit=1000)).items:
            shown.append(await storage.document(record.id))
    for seq in sorted({last // 2, last - 1}):
        for scope in scopes:
            for record in (await storage.scan_documents(scope, limit=1000, at=Seq(seq))).items:
                past = await storage.document(record.id, Seq(seq)) if record.rewindable else None
                shown.append((record, past))
    return repr(shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A run: its operations, what a store shows after each commit, and when each was begun, acknowledged and synced.

    The three are pairs of (how many operations there were, how many commits).
    """

    ops: list[Op]
    pictures: list[str]
    next_ids: list[int]
    begun: list[tuple[int, int]]
    acknowledged: list[tuple[int, int]]
    synced: list[tuple[int, int]]

    def bounds(self, done: int, *, power: bool) -> tuple[int, int]:
        """The fewest and the most commits that a store may show after `done` operations."""
        sure = self.synced if power else self.acknowledged
        low = max((count for ops, count in sure if ops <= done), default=0)
        return low, max((count for ops, count in self.begun if ops <= done), default=0)


async def tell(folder: Path, *, seed: int, groups: int, fsync: bool) -> Told:
    """Run an author's groups on a recorded store, with housekeeping and openings between them."""
    author, draw, files = Author(seed), random.Random(seed), Recorder()
    memory, storage = MemoryStorage(), JsonlStorage(folder, fsync=fsync, inline=True, files=files)
    await memory.open()
    await storage.open()
    pictures, next_ids = [await picture(memory, 0)], [2]
    begun, acknowledged, synced = [(0, 0)], [(0, 0)], [(0, 0)]
    for _ in range(groups):
        group = author.group()
        count = len(pictures) - 1 + len(group)
        begun.append((len(files.ops), count))
        await storage.commit(group)
        acknowledged.append((len(files.ops), count))
        if fsync and any(commit.barrier for commit in group):
            synced.append((len(files.ops), count))
        for commit in group:
            await memory.commit([commit])
            pictures.append(await picture(memory, len(pictures)))
            next_ids.append(max(next_ids[-1], highest_id([commit]) + 1))
        if draw.random() < 0.5:
            await storage.maintain()
        if draw.random() < 0.08:
            await storage.close()
            await storage.open()
    await storage.close()
    await memory.close()
    return Told(
        ops=files.ops,
        pictures=pictures,
        next_ids=next_ids,
        begun=begun,
        acknowledged=acknowledged,
        synced=synced,
    )


async def wrong_with(image: Image, told: Told, bounds: tuple[int, int], folder: Path, *, go_on: bool = True) -> str:
    """What is wrong with the store that an image holds: nothing, or one sentence.

    It is opened and looked at; to go on, one commit is added, and it is opened and looked at once more.
    """
    put(image, folder)
    try:
        return await _looked_at(told, bounds, folder, go_on=go_on)
    except (PidurableError, OSError) as error:
        return f"{type(error).__name__}: {error}"


async def _looked_at(told: Told, bounds: tuple[int, int], folder: Path, *, go_on: bool) -> str:
    low, high = bounds
    storage = JsonlStorage(folder, inline=True)
    opened = await storage.open()
    try:
        count = opened.next_seq - 1
        if not low <= count <= high:
            return f"{count} commits, where {low} to {high} belong"
        if await picture(storage, count) != told.pictures[count]:
            return f"after {count} commits it shows something else"
        probe = EntryId(storage.mint())
        if probe < told.next_ids[count]:
            return f"id {probe} is minted again"
        if not go_on:
            return ""
        await storage.commit([Commit((PutEntry(entry(probe, ConversationId(2**40), data="probe")),))])
    finally:
        await storage.close()
    await storage.open()
    try:
        found = await storage.entry(probe)
        if found is None or found.commit_seq != count + 1:
            return "a commit behind the recovery was lost"
        if await picture(storage, count) != told.pictures[count]:
            return f"opened again, it shows something else than {count} commits"
    finally:
        await storage.close()
    return ""
