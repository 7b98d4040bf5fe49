"""Owns the facts of a store at one position of a walk: what its file held, and what the steps so far changed.

The file is read once, from a copy that is the caller's own; a later position is the same facts with the rows of its
steps over them. Never decides, never takes a step, and never shows anything.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from pidurable_nb.agent.stored import live
from pidurable_nb.engine.snapshot import LiveRun, Snapshot
from pidurable_nb.ids import ConversationId, DocumentId, EntryId, JsonObject, Seq, SubmissionId, TaskId
from pidurable_nb.lab.walking.stepper import RowChange, Stepper
from pidurable_nb.records import codec
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import ConversationScope, DocumentRecord
from pidurable_nb.records.message import UNSENT, calls_of, items, stop_reason
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import (
    Answered,
    ConversationRecord,
    EntryRecord,
    Placed,
    Queued,
    SubmissionRecord,
    Unanswered,
    Written,
)
from pidurable_nb.store.ancestry import segments
from pidurable_nb.store.storage import StoredEntry
from pidurable_nb.store.stranger import StoreFile

KEPT: Final = 2000
"""Entries that are kept in memory once they were read."""


class Base:
    """What a file holds: its records in memory, but for the entries, of which only the order is; `file` stays open."""

    def __init__(self, file: StoreFile) -> None:
        self.file = file
        self.next_seq: Seq = file.next_seq
        self.tasks: dict[TaskId, TaskRecord] = {record.id: record for record in file.tasks()}
        self.submissions: dict[SubmissionId, SubmissionRecord] = {record.id: record for record in file.submissions()}
        self.conversations: dict[ConversationId, ConversationRecord] = {r.id: r for r in file.conversations()}
        self.documents: dict[DocumentId, DocumentRecord] = {record.id: record for record in file.documents()}
        self.order: dict[ConversationId, list[EntryId]] = {}
        self.heads: dict[ConversationId, list[EntryId]] = {}
        self.results: dict[TaskId, EntryId] = {}
        self.answers: Counter[tuple[str, bool]] = Counter()
        # A long store has thousands of tasks and submissions, and a step touches a few of them: what is asked at every
        # step, which live and which call or entry they belong to, is worked out once, and followed from there.
        self.live = frozenset(id for id, record in self.tasks.items() if record.live)
        self.opened = frozenset(id for id, record in self.submissions.items() if is_open(record))
        self.calls = dict(called(self.tasks.values()))
        self.placed = dict(placed(self.submissions.values()))
        for entry in file.entries():
            self.order.setdefault(entry.conversation, []).append(entry.id)
            self.answers.update(answers_in(entry))
            if entry.head is not None:
                self.heads.setdefault(entry.conversation, []).append(entry.id)
            if entry.kind == "pi.tool-result" and entry.by_task is not None:
                self.results[entry.by_task] = entry.id
        self.entry = lru_cache(maxsize=KEPT)(file.entry)
        self.value = lru_cache(maxsize=200)(self._value)

    def _value(self, id: DocumentId) -> JsonObject | None:
        found = self.file.document_value(id)
        return found[1] if found is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """What one step wrote, as records. A document is None where it was retired."""

    tasks: Mapping[TaskId, TaskRecord] = field(default_factory=dict)
    submissions: Mapping[SubmissionId, SubmissionRecord] = field(default_factory=dict)
    conversations: Mapping[ConversationId, ConversationRecord] = field(default_factory=dict)
    entries: tuple[StoredEntry, ...] = ()
    documents: Mapping[DocumentId, tuple[DocumentRecord, JsonObject] | None] = field(default_factory=dict)


def patch_of(changes: Iterable[RowChange], stepper: Stepper) -> Patch:
    """The records of the rows that the last step changed. What a row's text does not say, the walked copy does."""
    tasks: dict[TaskId, TaskRecord] = {}
    submissions: dict[SubmissionId, SubmissionRecord] = {}
    conversations: dict[ConversationId, ConversationRecord] = {}
    entries: list[StoredEntry] = []
    documents: dict[DocumentId, tuple[DocumentRecord, JsonObject] | None] = {}
    for change in changes:
        table, _, number = change.row.partition("/")
        text = change.after
        if table == "documents":
            documents[DocumentId(int(number))] = _document(stepper, DocumentId(int(number)))
        elif text is None:
            continue  # only documents come to an end
        elif table == "tasks":
            tasks[TaskId(int(number))] = codec.decode_task(text)
        elif table == "submissions":
            submissions[SubmissionId(int(number))] = codec.decode_submission(text)
        elif table == "conversations":
            conversations[ConversationId(int(number))] = codec.decode_conversation(text)
        elif (entry := _entry(stepper, EntryId(int(number)))) is not None:
            entries.append(entry)
    entries.sort(key=lambda kept: kept.entry.id)
    return Patch(
        tasks=tasks, submissions=submissions, conversations=conversations, entries=tuple(entries), documents=documents
    )


def _entry(stepper: Stepper, id: EntryId) -> StoredEntry | None:
    return stepper.read(lambda storage: storage.entry(id))


def _document(stepper: Stepper, id: DocumentId) -> tuple[DocumentRecord, JsonObject] | None:
    found = stepper.read(lambda storage: storage.document(id))
    return (found.record, found.value) if found is not None else None


class Facts:
    """What is stored at one position. Immutable: `after` gives the facts of the next one."""

    def __init__(self, base: Base, patches: Sequence[Patch] = ()) -> None:
        self.base = base
        self.patches = tuple(patches)
        self.tasks: dict[TaskId, TaskRecord] = dict(base.tasks)
        self.submissions: dict[SubmissionId, SubmissionRecord] = dict(base.submissions)
        self.conversations: dict[ConversationId, ConversationRecord] = dict(base.conversations)
        self._documents: dict[DocumentId, tuple[DocumentRecord, JsonObject] | None] = {}
        self._entries: dict[EntryId, StoredEntry] = {}
        self._new: dict[ConversationId, list[EntryId]] = {}
        self.results: dict[TaskId, EntryId] = dict(base.results)
        self.answers: Counter[tuple[str, bool]] = Counter(base.answers)
        self._calls: dict[tuple[int, str], TaskId] = {}
        self._placed: dict[EntryId, SubmissionId] = {}
        for patch in self.patches:
            self.tasks.update(patch.tasks)
            self._calls.update(called(patch.tasks.values()))
            self._placed.update(placed(patch.submissions.values()))
            self.submissions.update(patch.submissions)
            self.conversations.update(patch.conversations)
            self._documents.update(patch.documents)
            for kept in patch.entries:
                self._add(kept)
        changed = {id for patch in self.patches for id in patch.tasks}
        asked = {id for patch in self.patches for id in patch.submissions}
        self._live = tuple(sorted({*(base.live - changed), *(id for id in changed if self.tasks[id].live)}))
        self._open = tuple(sorted({*(base.opened - asked), *(id for id in asked if is_open(self.submissions[id]))}))
        self._by_kind: dict[tuple[ConversationId, str], DocumentId] = {
            (record.scope.conversation, record.kind): record.id
            for record in self.documents()
            if isinstance(record.scope, ConversationScope) and record.key is None
        }

    def _add(self, kept: StoredEntry) -> None:
        entry = kept.entry
        self._entries[entry.id] = kept
        self._new.setdefault(entry.conversation, []).append(entry.id)
        self.answers.update(answers_in(entry))
        if entry.kind == "pi.tool-result" and entry.by_task is not None:
            self.results[entry.by_task] = entry.id

    def after(self, patch: Patch) -> Facts:
        """The facts behind one more step."""
        return Facts(self.base, (*self.patches, patch))

    # -- records -------------------------------------------------------------------------------------------------------

    def live(self) -> Iterator[TaskRecord]:
        """The tasks that have not ended, in id order."""
        return (self.tasks[id] for id in self._live)

    def newest(self) -> Iterator[TaskRecord]:
        """Every task, newest first."""
        return (self.tasks[id] for id in sorted(self.tasks, reverse=True))

    def opened(self) -> Iterator[SubmissionRecord]:
        """The submissions that are queued or placed, in id order."""
        return (self.submissions[id] for id in self._open)

    def task_of_call(self, assistant: EntryId, call: str) -> TaskRecord | None:
        """The task of a call that an answer asked for."""
        id = self._calls.get((assistant, call), self.base.calls.get((assistant, call)))
        return self.tasks.get(id) if id is not None else None

    def submission_at(self, entry: EntryId) -> SubmissionId | None:
        """The submission that was placed as this entry."""
        return self._placed.get(entry, self.base.placed.get(entry))

    def entry(self, id: EntryId) -> StoredEntry | None:
        """An entry with the number of its commit."""
        return self._entries.get(id) or self.base.entry(id)

    def documents(self) -> Iterator[DocumentRecord]:
        """The documents that are alive, in id order."""
        for id, record in self.base.documents.items():
            if record.retired_at is None and self._documents.get(id, record) is not None:
                yield record
        for id, found in self._documents.items():
            if found is not None and id not in self.base.documents:
                yield found[0]

    def document(self, conversation: ConversationId, kind: str) -> tuple[DocumentId, JsonObject] | None:
        """The document of this kind that a conversation has, and its value."""
        id = self._by_kind.get((conversation, kind))
        if id is None:
            return None
        found = self._documents.get(id)
        value = found[1] if found is not None else self.base.value(id)
        return (id, value) if value is not None else None

    # -- transcripts ---------------------------------------------------------------------------------------------------

    def visible(self, conversation: ConversationId) -> list[tuple[ConversationId, int, int]]:
        """What a conversation sees (V3), oldest first: of which conversation, how many, and where they begin."""
        record = self.conversations.get(conversation)
        found: list[tuple[ConversationId, int, int]] = []
        total = 0
        for part in reversed(segments(record, self.conversations.get) if record is not None else ()):
            own, new = self.base.order.get(part.conversation, []), self._new.get(part.conversation, [])
            count = len(own) + len(new)
            if part.cap is not None:
                count = bisect_right(own, part.cap) + bisect_right(new, part.cap)
            found.append((part.conversation, count, total))
            total += count
        return found

    def total(self, conversation: ConversationId) -> int:
        """How many entries a conversation sees."""
        return sum(count for _, count, _ in self.visible(conversation))

    def window(self, conversation: ConversationId, start: int, count: int) -> Iterator[StoredEntry]:
        """The entries from `start`, at most `count`, of what a conversation sees."""
        for part, many, begins in self.visible(conversation):
            own, new = self.base.order.get(part, []), self._new.get(part, [])
            for at in range(max(start - begins, 0), min(start + count - begins, many)):
                kept = self.entry(own[at] if at < len(own) else new[at - len(own)])
                if kept is not None:
                    yield kept

    def begins(self, conversation: ConversationId) -> int:
        """The entry that the model reads from: where the newest head points (V1); 0 where there is none."""
        for part, many, _ in reversed(self.visible(conversation)):
            ids = [*self.base.heads.get(part, []), *(id for id in self._new.get(part, []) if self._has_head(id))]
            own, new = self.base.order.get(part, []), self._new.get(part, [])
            last = (own[many - 1] if many <= len(own) else new[many - 1 - len(own)]) if many else 0
            for id in reversed(ids):
                if id <= last and (kept := self.entry(id)) is not None and kept.entry.head is not None:
                    return kept.entry.head
        return 0

    def _has_head(self, id: EntryId) -> bool:
        return self._entries[id].entry.head is not None

    # -- what a decision reads -----------------------------------------------------------------------------------------

    def run(self, conversation: ConversationId) -> LiveRun | None:
        """What a conversation is busy with."""
        found = self.document(conversation, live.LIVE.kind)
        return live.live_run(*found) if found is not None else None

    def snapshot(self, opening: int | None) -> Snapshot:
        """What a decision may read about these facts."""
        tasks = {record.id: record for record in self.live()}
        for record in tuple(tasks.values()):
            for id in record.state.on if isinstance(record.state, stored.Waiting) else ():
                self._also(tasks, id)
        owners: dict[ConversationId, TaskId | None] = {}
        for conversation in self.conversations.values():
            owners[conversation.id] = conversation.owner.task if conversation.owner is not None else None
        for record in tuple(tasks.values()):
            above = record.owner if record.owner is not None else owners.get(record.conversation)
            while above is not None and above not in tasks and self._also(tasks, above):
                owner = tasks[above]
                above = owner.owner if owner.owner is not None else owners.get(owner.conversation)
        opened = tuple(self.opened())
        busy = {record.conversation for record in tasks.values()} | {record.conversation for record in opened}
        runs = {id: run for id in busy if (run := self.run(id)) is not None}
        inboxes = {id: self._by_kind[id, live.INBOX.kind] for id in busy if (id, live.INBOX.kind) in self._by_kind}
        return Snapshot(tasks=tasks, owners=owners, submissions=opened, runs=runs, inboxes=inboxes, opening=opening)

    def _also(self, tasks: dict[TaskId, TaskRecord], id: TaskId) -> bool:
        record = self.tasks.get(id)
        if record is not None:
            tasks.setdefault(id, record)
        return record is not None


def is_open(record: SubmissionRecord) -> bool:
    """Whether a submission is not settled."""
    return isinstance(record.state, Queued | Placed)


def entry_of(record: SubmissionRecord) -> EntryId | None:
    """The entry that a submission was placed as."""
    match record.state:
        case Placed(entry=entry) | Answered(entry=entry) | Written(entry=entry):
            return entry
        case Unanswered(entry=entry):
            return entry
        case _:
            return None


def placed(records: Iterable[SubmissionRecord]) -> Iterator[tuple[EntryId, SubmissionId]]:
    """Which entry is whose."""
    return ((entry, record.id) for record in records if (entry := entry_of(record)) is not None)


def called(records: Iterable[TaskRecord]) -> Iterator[tuple[tuple[int, str], TaskId]]:
    """Which task is whose: the answer that asked for it, and the id of the call there."""
    for record in records:
        match record.input:
            case {"assistant": int(assistant), "callId": str(call)}:
                yield (assistant, call), record.id
            case _:
                pass


def answers_in(entry: EntryRecord) -> Iterator[tuple[str, bool]]:
    """The model of each answer in an entry, and whether it was a whole one."""
    for message in entry.model or () if entry.kind == "pi.assistant" else ():
        match message:
            case {"provider": str(provider), "model": str(model)}:
                yield f"{provider}/{model}", stop_reason(message) not in UNSENT
            case _:
                pass


# --- Calls ------------------------------------------------------------------------------------------------------------


def slots(value: JsonObject | None) -> Iterator[JsonObject]:
    """The calls that a conversation's run shows, nested ones behind."""
    for member in live.SLOTS:
        for slot in items(value.get(member)) if value is not None else ():
            if isinstance(slot, Mapping):
                yield slot


def call_of(facts: Facts, task: TaskRecord) -> tuple[EntryRecord, str] | None:
    """The answer that asked for this tool task, and the id of the call in it; None for a nested one."""
    match task.input:
        case {"assistant": int(assistant), "callId": str(call)}:
            kept = facts.entry(EntryId(assistant))
            return (kept.entry, call) if kept is not None else None
        case _:
            return None


def named_call(facts: Facts, task: TaskRecord) -> tuple[str, JsonObject] | None:
    """The tool of a call's task and its arguments: those that were stored with its intent, else the model's."""
    given = task.checkpoint.get("arguments") if task.checkpoint is not None else None
    found = call_of(facts, task)
    if found is not None:
        entry, id = found
        for message in entry.model or ():
            for call in calls_of(message):
                if call.id == id:
                    return call.name, given if isinstance(given, Mapping) else call.arguments
    match task.input:
        case {"call": {"name": str(name), "arguments": Mapping() as arguments}}:
            return name, given if isinstance(given, Mapping) else arguments
        case _:
            return None
