"""Owns what is known of a store that lives: a copy of its file at one moment, and every commit since then, in order.

From that it tells a scene in which there are no steps. Never reads the store that lives, never writes, runs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pidurable_nb.agent.stored.recovery import stored_replay
from pidurable_nb.engine.decide import Policy, decide_tasks
from pidurable_nb.engine.registry import Code
from pidurable_nb.engine.rows import number
from pidurable_nb.engine.submissions import decide_submissions
from pidurable_nb.ids import ConversationId, DocumentId, Json, JsonObject, SubmissionId, TaskId
from pidurable_nb.lab.scene.effects import Seen, effects_of
from pidurable_nb.lab.scene.facts import Base, Facts, Patch
from pidurable_nb.lab.scene.graph import Drawing, Graph
from pidurable_nb.lab.scene.parts import Entries, Move, PhaseEdge, Task, short
from pidurable_nb.lab.scene.reading import NothingThere, Of, OfRow, there, whole
from pidurable_nb.lab.scene.rows import Known, label_of, moved, proven, submissions_of, task_of, tasks_of
from pidurable_nb.lab.scene.scene import Scene, StepShown, TableRow, Totals
from pidurable_nb.lab.scene.timeline import past_after, past_of_file, timeline
from pidurable_nb.lab.scene.transcript import WINDOW, talks_of, window_of
from pidurable_nb.lab.scene.words import laws_of, many
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import DocumentRecord
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, SubmissionRecord
from pidurable_nb.session.changes import Changes, changed_rows
from pidurable_nb.store.storage import StoredEntry

ALIVE: Final = "open, alive"
EARLIER: Final = "before this view"
MOST_MOVES: Final = 100
"""Moves of one task that are kept: the newest."""
MOST_WAYS: Final = 1000
"""Ended tasks whose ways and memos are kept: the newest."""
MOST_ROWS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Who decides about the tasks of the open store, and by which clock's time."""

    code: Code
    policy: Policy
    opening: int
    now_ms: float
    edges: Mapping[str, tuple[PhaseEdge, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What stands around a scene: how the store is, why nothing steps, and a sentence that replaces everything.

    `looked` is the conversation that somebody looks at.
    """

    store: str
    how: str
    watched: str
    words: str | None = None
    looked: int | None = None


class Watching:
    """A store that is followed. `take` is told of every stored commit, in order; those in the copy do not count."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self.past = past_of_file(base, None)
        self._fresh: set[str] = set()
        self._moves: dict[TaskId, tuple[Move, ...]] = {}
        self._whole: set[TaskId] = set()
        self._memos: dict[TaskId, dict[str, tuple[Json, str]]] = {}
        self._new_memos: set[tuple[TaskId, str]] = set()
        self._policies: dict[TaskId, str] = {}
        self._shown: ConversationId | None = None
        self._known = Known()
        self._drawing = Drawing()
        self._begin(base)

    def _begin(self, base: Base) -> None:
        self.base = base
        self._tasks: dict[TaskId, TaskRecord] = {}
        self._submissions: dict[SubmissionId, SubmissionRecord] = {}
        self._conversations: dict[ConversationId, ConversationRecord] = {}
        self._entries: list[StoredEntry] = []
        self._documents: dict[DocumentId, tuple[DocumentRecord, JsonObject] | None] = {}
        self._facts: Facts | None = None
        for record in base.tasks.values():
            if record.live and record.id not in self._memos:
                self._memos[record.id] = {name: (value, EARLIER) for name, value in record.memos.items()}
            if record.live and (kept := stored_replay(record)) is not None:
                self._policies[record.id] = kept

    def rebase(self, base: Base, *, missed: bool) -> None:
        """Go on from a newer copy. `missed`: commits went by unheard, so ways and columns are those of the file."""
        if missed:
            self.past = past_of_file(base, None)
            self._moves.clear()
            self._whole.clear()
        self._begin(base)

    @property
    def kept(self) -> int:
        """How many entries since the copy are held in memory."""
        return len(self._entries)

    # -- one commit ----------------------------------------------------------------------------------------------------

    def take(self, changes: Changes) -> None:
        """A commit was stored."""
        seq = changes.seq
        if seq is None or seq < self.base.next_seq:
            return
        self._facts = None
        self._fresh.update(changed_rows(changes))
        for id, change in changes.tasks.items():
            known = self._tasks.get(id) or self.base.tasks.get(id)
            self._follow(known, change.after, seq)
            self._tasks[id] = change.after
        self._submissions.update((id, change.after) for id, change in changes.submissions.items())
        self._conversations.update((record.id, record) for record in changes.conversations)
        self._entries += [StoredEntry(entry=entry, commit_seq=seq) for entry in changes.entries]
        for document in changes.documents:
            record, value = document.record, document.value
            self._documents[record.id] = (record, value) if value is not None else None
        self.past = past_after(self.past, changes)

    def _follow(self, before: TaskRecord | None, after: TaskRecord, seq: int) -> None:
        """The way of a task, and its memos."""
        id = after.id
        if before is None:
            self._whole.add(id)
        way = self._moves.get(id)
        way = (*(way if way is not None else proven(before) if before is not None else ()), *moved(before, after))
        if len(way) > MOST_MOVES:
            way = way[-MOST_MOVES:]
            self._whole.discard(id)
        self._moves[id] = way
        memos = self._memos.setdefault(id, {})
        for name, value in after.memos.items():
            if name not in memos:
                memos[name] = (value, f"this life · commit {seq}")
                self._new_memos.add((id, name))
        if (kept := stored_replay(after)) is not None:
            self._policies[id] = kept
        if len(self._moves) > 2 * MOST_WAYS:
            self._forget()

    def _forget(self) -> None:
        """Leave the ways of those that ended long ago to their rows."""
        newest = set(sorted(self._moves)[-MOST_WAYS:])
        for id in [id for id in self._moves if id not in newest]:
            record = self._tasks.get(id) or self.base.tasks.get(id)
            if record is None or not record.live:
                self._whole.discard(id)
                self._policies.pop(id, None)
                del self._moves[id]
                self._memos.pop(id, None)

    # -- what is shown -------------------------------------------------------------------------------------------------

    def facts(self) -> Facts:
        """What is stored now, as far as it was heard."""
        if self._facts is None:
            patch = Patch(
                tasks=self._tasks, submissions=self._submissions, conversations=self._conversations,
                entries=tuple(self._entries), documents=self._documents,
            )  # fmt: skip
            self._facts = Facts(self.base, (patch,))
        return self._facts

    def entries(self, conversation: int, start: int, count: int) -> Entries:
        """A window of a transcript as it is now."""
        return window_of(self.facts(), Known(policies=self._policies), conversation, start, count)

    def text(self, of: Of) -> str:
        """A text that a scene shows cut, whole, as it is now. Raises NothingThere."""
        if isinstance(of, OfRow):
            raise NothingThere("there are no steps here, so none changed a row")
        return whole(self.facts(), Known(policies=self._policies, memos=self._memos), of)

    def graph(self) -> Graph:
        """All tasks as a picture, as they are now."""
        return self._drawing.of(self.facts())

    def task(self, id: int) -> Task:
        """One task as it is now, with the verdict that it had in the newest scene. Raises NothingThere."""
        facts = self.facts()
        return task_of(facts, self._known, there(facts, id))

    def scene(self, alive: Alive, shown: Shown) -> Scene:
        """Everything as it is now. What is new is what changed since the scene before."""
        facts = self.facts()
        table, known = self._decided(facts, alive)
        self._known = replace(known, new=frozenset(), new_memos=frozenset())
        self._fresh.clear()
        self._new_memos.clear()
        cols, bars = timeline(self.past, (), 0)
        live = list(facts.live())
        self._shown = self._conversation(facts, live, shown.looked)
        return Scene(
            store=shown.store,
            scenario=None,
            how=shown.how,
            position=0,
            last=0,
            next=None,
            words=shown.words,
            timeline=cols,
            bars=bars,
            conversations=talks_of(facts),
            entries=window_of(facts, known, self._shown, None, WINDOW),
            tasks=tasks_of(facts, known),
            submissions=submissions_of(facts, known),
            effects=effects_of(facts, Seen(happened=(), policies=self._policies, new=known.new)),
            step=_step(facts, live, table),
            points=(),
            totals=Totals(
                tasks=len(facts.tasks), live=len(live), submissions=len(facts.submissions),
                conversations=len(facts.conversations),
            ),
            watched=shown.watched,
        )  # fmt: skip

    def _conversation(self, facts: Facts, live: list[TaskRecord], looked: int | None) -> ConversationId | None:
        """The one that somebody looks at, else one in which something lives, else the one before, else the first."""
        if looked is not None and ConversationId(looked) in facts.conversations:
            return ConversationId(looked)
        if live:
            return live[0].conversation
        return self._shown if self._shown is not None else min(facts.conversations, default=None)

    def _decided(self, facts: Facts, alive: Alive) -> tuple[tuple[TableRow, ...], Known]:
        snapshot = replace(facts.snapshot(alive.opening), fresh=False)
        verdicts = decide_tasks(snapshot, alive.code, alive.policy, alive.now_ms)
        submissions = decide_submissions(snapshot, verdicts, alive.policy)
        rows: list[TableRow] = []
        said: dict[TaskId, str] = {}
        for id, verdict in sorted(verdicts.items()):
            record = facts.tasks[id]
            if isinstance(record.state, stored.Running):
                rows.append(_running(record))
                continue
            said[id] = verdict.name
            rows.append(
                TableRow(
                    task=id, submission=None, verdict=verdict.name, because=verdict.because, outside=verdict.outside
                )
            )
        asked = [
            TableRow(task=None, submission=id, verdict=one.name, because=one.because, outside="none")
            for id, one in submissions.items()
        ]
        known = Known(
            moves=self._moves, whole=frozenset(self._whole), verdicts=said,
            submissions={id: one.name for id, one in submissions.items()}, policies=self._policies, memos=self._memos,
            new_memos=frozenset(self._new_memos), edges=alive.edges, limit=alive.policy.restart_limit,
            new=frozenset(self._fresh),
        )  # fmt: skip
        return (*rows[:MOST_ROWS], *asked[: MOST_ROWS // 2]), known


def _running(record: TaskRecord) -> TableRow:
    phase = f" of {short(record.phase, 60)}" if record.phase else ""
    because = f"The code{phase} runs here."
    if record.abort_requested:
        because = f"The code{phase} runs here, and it is to be aborted."
    return TableRow(task=record.id, submission=None, verdict="runs", because=because, outside="none")


def _step(facts: Facts, live: list[TaskRecord], table: tuple[TableRow, ...]) -> StepShown:
    """What stands where the step stands: what lives."""
    counts = Counter(record.status for record in live)
    running = next((record for record in live if isinstance(record.state, stored.Running)), None)
    how = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    named = running if running is not None else next(iter(live), None)
    return StepShown(
        n=0, group="open here", verb="alive" if live else "idle", mark="none",
        title=f"task {named.id}, {short(label_of(facts, named), 60)}" if named is not None else "nothing lives",
        say=f"{number(len(live)).capitalize()} {'task lives' if len(live) == 1 else 'tasks live'}: {how}."
        if live else "No task lives; the next commit is shown as soon as it is stored.",
        note=f"Watched as it is stored; {many(len(facts.tasks) - len(live), 'task')} ended before.", outside="none",
        laws=laws_of(("C2",)), table=table, task=named.id if named is not None else None,
    )  # fmt: skip
