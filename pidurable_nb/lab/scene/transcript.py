"""Owns how transcripts are told: the conversations, and a window of what one of them sees.

Never reads a file by itself, and never derives what a model is sent: only what stands behind the head is marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pidurable_nb.agent.stored import live
from pidurable_nb.ids import ConversationId, EntryId
from pidurable_nb.lab.scene.facts import Facts, slots
from pidurable_nb.lab.scene.parts import (
    CallRow,
    CallSizes,
    Entries,
    Entry,
    ForkedAt,
    Policy,
    Role,
    Talk,
    cut,
    short,
    size,
)
from pidurable_nb.lab.scene.rows import SHORT, Known, said, standing, state_of, value_text
from pidurable_nb.records.document import ConversationScope
from pidurable_nb.records.message import ToolCall, calls_of, role_of, text_of
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import EntryRecord

WINDOW: Final = 60
"""Entries of a window, unless more are asked for."""
MOST_CONVERSATIONS: Final = 200
MOST_ARGUMENTS: Final = 500
"""Characters of the arguments of one call."""
_ROLES: Final[Mapping[str, Role]] = {
    "pi.user": "user", "pi.assistant": "assistant", "pi.tool-result": "tool", "pi.reset": "head",
    "pi.compaction": "head", "pi.system": "system",
}  # fmt: skip


def talks_of(facts: Facts) -> tuple[Talk, ...]:
    """The conversations, with what becomes of their documents at a fork; the newest where there are very many."""
    policies: dict[ConversationId, list[Policy]] = {}
    for record in facts.documents():
        if isinstance(record.scope, ConversationScope) and record.key is None:
            held = Policy(kind=record.kind, scope=record.history or "latest", fork=record.fork)
            policies.setdefault(record.scope.conversation, []).append(held)
    shown = sorted(facts.conversations)
    root, rest = shown[:1], shown[1:]
    return tuple(
        Talk(
            id=id,
            parent=ForkedAt(conversation=parent.conversation, at=parent.at) if parent is not None else None,
            total=facts.total(id),
            policies=tuple(policies.get(id, ())[:20]),
        )
        for id in (*root, *rest[-MOST_CONVERSATIONS:])
        for parent in [facts.conversations[id].parent]
    )


def window_of(facts: Facts, known: Known, conversation: int | None, start: int | None, count: int = WINDOW) -> Entries:
    """A window of a transcript: from `start`, or the newest. What arrives at the moment stands behind the last one."""
    if conversation is None or ConversationId(conversation) not in facts.conversations:
        return Entries(conversation=None, start=0, total=0, rows=())
    here = ConversationId(conversation)
    total = facts.total(here)
    begin = max(total - count, 0) if start is None else min(max(start, 0), total)
    found = tuple(facts.window(here, begin, max(count, 0)))
    reader = Reader(facts, known, here)
    rows = [reader.row(kept.entry, kept.commit_seq) for kept in found]
    if begin + len(found) >= total and (partial := reader.partial()) is not None:
        rows.append(partial)
    return Entries(conversation=here, start=begin, total=total, rows=tuple(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTexts:
    """What a call says, whole: what it was given, what is stored of its answer, and what was given and never stored."""

    arguments: str
    output: str
    lost: str


class Reader:
    """Tells the entries of one conversation."""

    def __init__(self, facts: Facts, known: Known, conversation: ConversationId) -> None:
        self._facts = facts
        self._known = known
        self._conversation = conversation
        self._begins = facts.begins(conversation)
        self._forks: dict[EntryId, list[int]] = {}
        for record in facts.conversations.values():
            if record.parent is not None:
                self._forks.setdefault(record.parent.at, []).append(record.id)

    def row(self, entry: EntryRecord, seq: int) -> Entry:
        message = entry.model[0] if entry.model else None
        role = _ROLES.get(entry.kind)
        other: Role = "user" if message is not None and role_of(message) == "user" else "other"
        text = said(entry)
        return Entry(
            id=entry.id,
            conversation=entry.conversation,
            role=role if role is not None else other,
            kind=short(entry.kind, SHORT),
            state=state_of(entry),
            text=cut(text),
            old=entry.id < self._begins,
            new=f"entries/{entry.id}" in self._known.new,
            task=entry.by_task,
            submission=self._facts.submission_at(entry.id),
            forks=tuple(self._forks.get(entry.id, ())),
            commit=seq,
            calls=tuple(self._call(entry, call) for call in calls_of(message)[:100])
            if message is not None and entry.kind == "pi.assistant"
            else (),
            size=size(text),
        )

    def partial(self) -> Entry | None:
        """What is stored of an answer that arrives, or was cut."""
        found = self._facts.document(self._conversation, live.LIVE.kind)
        match found:
            case (id, {"generation": {"message": Mapping() as message}}):
                run, text = self._facts.run(self._conversation), text_of(message)
                return Entry(
                    id=-id, conversation=self._conversation, role="assistant", kind="pi.live", state="partial",
                    text=cut(text), size=size(text), old=False, new=f"documents/{id}" in self._known.new,
                    task=run.task if run is not None else None, submission=None, forks=(), commit=None, calls=(),
                )  # fmt: skip
            case _:
                return None

    def _call(self, entry: EntryRecord, call: ToolCall) -> CallRow:
        known, texts = self._known, self.texts(entry, call)
        task = self._facts.task_of_call(entry.id, call.id)
        return CallRow(
            id=short(call.id, SHORT),
            name=short(call.name, SHORT),
            arguments=cut(texts.arguments, MOST_ARGUMENTS),
            policy=known.policies.get(task.id) if task is not None else None,
            task=task.id if task is not None else None,
            status=standing(task) if task is not None else "never begun",
            output=cut(texts.output),
            lost=cut(texts.lost),
            sizes=CallSizes(
                arguments=size(texts.arguments, MOST_ARGUMENTS), output=size(texts.output), lost=size(texts.lost)
            ),
        )

    def texts(self, entry: EntryRecord, call: ToolCall) -> CallTexts:
        """What a call of that entry says, whole."""
        task = self._facts.task_of_call(entry.id, call.id)
        result = self._facts.results.get(task.id) if task is not None else None
        kept = self._facts.entry(result) if result is not None else None
        return CallTexts(
            arguments=", ".join(f"{name}: {value_text(value)}" for name, value in call.arguments.items()),
            output=said(kept.entry) if kept is not None else self._shown(task),
            lost=self._known.lost.get(task.id, "") if task is not None and not _whole(kept) else "",
        )

    def _shown(self, task: TaskRecord | None) -> str:
        """The output so far, as `pi.live` shows it."""
        found = self._facts.document(self._conversation, live.LIVE.kind)
        for slot in slots(found[1] if found is not None else None):
            output = slot.get("output")
            if task is not None and slot.get("taskId") == task.id and isinstance(output, str):
                return output
        return ""


def _whole(result: object) -> bool:
    """Whether a stored result is the tool's own, and not the word that it was cut off."""
    entry = getattr(result, "entry", None)
    return isinstance(entry, EntryRecord) and state_of(entry) != "interrupted"
