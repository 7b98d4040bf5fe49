"""Owns how the facts of a position are told as rows: tasks with the way they took, submissions, what an entry says.

Says of a task's way only what rows prove or a walk saw. Never reads a file by itself, never decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from pidurable_nb.agent.stored import live
from pidurable_nb.engine.transition import FAULT_MEMO
from pidurable_nb.ids import ABSENT, ConversationId, Json, JsonObject, SubmissionId, TaskId
from pidurable_nb.lab.looking.inspect import outcome_word
from pidurable_nb.lab.scene.facts import Facts, entry_of, named_call
from pidurable_nb.lab.scene.parts import EntryState, LostMemo, Memo, Move, PhaseEdge, Sub, Task, cut, short, size
from pidurable_nb.records import task as stored
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.message import blocks_of, error_text, items, role_of, stop_reason
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import Answered, EntryRecord, SubmissionRecord, Unanswered

MOST_TASKS: Final = 200
MOST_SUBMISSIONS: Final = 100
SHORT: Final = 300
"""Characters of a value that stands in a row."""
_STATES: Final[Mapping[str, EntryState]] = {"aborted": "aborted", "error": "failed", "deferred": "deferred"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a walk besides its facts: the ways that tasks took, verdicts, and who wrote what.

    `lost` holds what a call gave that was never stored, by its task. `edges` are phases of the code, by kind.
    """

    moves: Mapping[TaskId, tuple[Move, ...]] = field(default_factory=dict)
    whole: frozenset[TaskId] = frozenset()
    verdicts: Mapping[TaskId, str] = field(default_factory=dict)
    done: Mapping[TaskId, str] = field(default_factory=dict)
    submissions: Mapping[SubmissionId, str] = field(default_factory=dict)
    policies: Mapping[TaskId, str] = field(default_factory=dict)
    memos: Mapping[TaskId, Mapping[str, tuple[Json, str]]] = field(default_factory=dict)
    new_memos: frozenset[tuple[TaskId, str]] = frozenset()
    lost_memos: Mapping[tuple[TaskId, str], tuple[LostMemo, ...]] = field(default_factory=dict)
    lost: Mapping[TaskId, str] = field(default_factory=dict)
    edges: Mapping[str, tuple[PhaseEdge, ...]] = field(default_factory=dict)
    limit: int = 5
    new: frozenset[str] = frozenset()


# --- Tasks ------------------------------------------------------------------------------------------------------------


def tasks_of(facts: Facts, known: Known, also: Iterable[TaskId] = ()) -> tuple[Task, ...]:
    """What lives, what is named, and the newest of the rest, in id order."""
    shown = {record.id for record in list(facts.live())[:MOST_TASKS]} | {id for id in also if id in facts.tasks}
    for record in facts.newest():
        if len(shown) >= MOST_TASKS:
            break
        shown.add(record.id)
    return tuple(task_of(facts, known, facts.tasks[id]) for id in sorted(shown))


def task_of(facts: Facts, known: Known, record: TaskRecord) -> Task:
    """One task, as it stands and with the way it took."""
    state, checkpoint = record.state, record.checkpoint
    outcome = record.outcome
    written = value_text(checkpoint) if checkpoint is not None else None
    path, whole = known.moves.get(record.id), record.id in known.whole
    return Task(
        id=record.id,
        kind=short(record.kind, SHORT),
        name=label_of(facts, record),
        conversation=record.conversation,
        owner=record.owner if record.owner is not None else _owner(facts, record.conversation),
        background=record.background,
        state=record.status,
        phase=short(record.phase, SHORT) if record.phase is not None else None,
        on=state.on[:200] if isinstance(state, stored.Waiting) else (),
        until_ms=state.until_ms if isinstance(state, stored.Sleeping) else None,
        restarts=record.restarts,
        limit=known.limit,
        outcome=outcome_word(record),
        reason=_reason(outcome),
        checkpoint=short(written, SHORT) if written is not None else None,
        aborting=record.abort_requested,
        verdict=known.verdicts.get(record.id),
        done=known.done.get(record.id),
        new=f"tasks/{record.id}" in known.new,
        path=path if path is not None else proven(record),
        whole=whole,
        edges=known.edges.get(record.kind, ()),
        memos=_memos(record, known),
        checkpoint_size=size(written, SHORT) if written is not None else 0,
    )


def _owner(facts: Facts, conversation: ConversationId) -> TaskId | None:
    record = facts.conversations.get(conversation)
    return record.owner.task if record is not None and record.owner is not None else None


def _memos(record: TaskRecord, known: Known) -> tuple[Memo, ...]:
    kept = known.memos.get(record.id, {})
    return tuple(
        Memo(
            name=short(name, SHORT),
            value=short(text, SHORT),
            by=kept[name][1] if name in kept else None,
            lost=known.lost_memos.get((record.id, name), ()),
            new=(record.id, name) in known.new_memos,
            gone=name not in record.memos,
            size=size(text, SHORT),
        )
        for name, text in islice(memo_texts(record, known), 50)
    )


def memo_texts(record: TaskRecord, known: Known) -> Iterator[tuple[str, str]]:
    """The memos of a task with their values, those that ended with it too where they were seen."""
    kept = known.memos.get(record.id, {})
    if not kept and not record.memos:
        return
    for name in dict.fromkeys((*kept, *record.memos)):
        if name != FAULT_MEMO:
            yield name, value_text(record.memos[name] if name in record.memos else kept[name][0])


def label_of(facts: Facts, record: TaskRecord) -> str:
    """What a task is called: the tool of a call, `answer` for a generation, else its kind."""
    if record.kind == "pi.tool":
        named = named_call(facts, record)
        return short(named[0], SHORT) if named is not None else "tool"
    return {"pi.generation": "answer", "pi.compaction": "summary"}.get(record.kind, short(record.kind, SHORT))


def standing(record: TaskRecord) -> str:
    """One word for where a task stands."""
    return outcome_word(record) or record.status


def _reason(outcome: stored.Outcome | None) -> str | None:
    match outcome:
        case stored.Failed(error=error) | stored.Faulted(error=error):
            return cut(error.message, 500)
        case stored.Aborted(reason=reason):
            return cut(reason, 500) if reason is not None else None
        case stored.Orphaned(reason=reason):
            return cut(reason, 500)
        case _:
            return None


def proven(record: TaskRecord) -> tuple[Move, ...]:
    """The way of a task as far as its row alone tells: whether it began, and each opening that found it running."""
    begun = Move(from_="pending", to="running")
    if record.started_at_ms is None:
        return ()
    path = [begun]
    for _ in range(min(record.restarts, 20)):
        path += [Move(from_="running", to="pending", crash=True), begun]
    match record.state:
        case stored.Pending():
            return tuple(path[:-1]) if record.restarts else (*path, Move(from_="running", to="pending"))
        case stored.Waiting() | stored.Sleeping() | stored.Completing():
            return (*path, Move(from_="running", to=record.status))
        case _:
            return tuple(path)


def moved(before: TaskRecord | None, after: TaskRecord, *, crashed: bool = False) -> tuple[Move, ...]:
    """The moves of one commit: through running where no single one leads there, since its code ran or was spared."""
    old, new = before.status if before is not None else "pending", after.status
    if old == new:
        same = before is None or before.checkpoint == after.checkpoint
        return () if same else (Move(from_=old, to=new),)
    direct = "running" in (old, new) or old == "completing" or isinstance(after.outcome, stored.Orphaned)
    if direct:
        return (Move(from_=old, to=new, crash=crashed and (old, new) == ("running", "pending")),)
    return (Move(from_=old, to="running"), Move(from_="running", to=new))


# --- Submissions ------------------------------------------------------------------------------------------------------


def submissions_of(facts: Facts, known: Known) -> tuple[Sub, ...]:
    """The open ones and the newest of the rest, in id order."""
    opened = [record.id for record in facts.opened()][:MOST_SUBMISSIONS]
    rest = sorted(facts.submissions.keys() - set(opened))
    shown = sorted((*opened, *rest[-max(MOST_SUBMISSIONS - len(opened), 0) :][: MOST_SUBMISSIONS - len(opened)]))
    return tuple(_submission(facts, known, facts.submissions[id]) for id in shown)


def _submission(facts: Facts, known: Known, record: SubmissionRecord) -> Sub:
    state = record.state
    entry = entry_of(record)
    mode, text = _waiting(facts, record)
    if entry is not None and (kept := facts.entry(entry)) is not None:
        text = said(kept.entry)
    return Sub(
        id=record.id,
        conversation=record.conversation,
        type=record.type,
        request_id=short(record.request_id, SHORT) if record.request_id is not None else None,
        mode=mode,
        text=cut(text, SHORT),
        status=record.status,
        reason=short(state.reason, SHORT) if isinstance(state, Unanswered) else None,
        verdict=known.submissions.get(record.id),
        entry=entry,
        answer=state.answer if isinstance(state, Answered) else None,
        new=f"submissions/{record.id}" in known.new,
    )


def _waiting(facts: Facts, record: SubmissionRecord) -> tuple[str | None, str]:
    """How a queued one waits, and what it asks, as its inbox says."""
    found = facts.document(record.conversation, live.INBOX.kind) if record.status == "queued" else None
    for item in items(found[1].get("items")) if found is not None else ():
        match item:
            case {"id": int(id), "mode": str(mode)} if id == record.id and isinstance(item, Mapping):
                content = item.get("content")
                text = content if isinstance(content, str) else value_text(content if content is not None else "")
                return {"followUp": "follow_up"}.get(mode, short(mode, SHORT)), text
            case _:
                pass
    return None, ""


# --- Entries in words -------------------------------------------------------------------------------------------------


def said(entry: EntryRecord) -> str:
    """What an entry says, without the calls that stand in it."""
    texts: list[str] = []
    for message in (entry.model or ())[:20]:
        for block in blocks_of(message)[:100]:
            match block:
                case {"type": "text", "text": str(text)}:
                    texts.append(text)
                case {"type": "thinking", "thinking": str(text)}:
                    texts.append(f"[thinking, {len(text):,} characters]")
                case {"type": "image"}:
                    texts.append("[image]")
                case _:
                    pass
        if role_of(message) == "assistant" and stop_reason(message) == "error":
            texts.append(error_text(message))
        for word, member in (("offers", "toolsAdded"), ("offers no more", "toolsRemoved")):
            names = [str(tool.get("name", "?")) for tool in items(message.get(member)) if isinstance(tool, Mapping)]
            texts += [f"{word} {', '.join(names)}"] if names else []
        if isinstance(sections := message.get("sections"), Mapping):
            texts += [f"{name}: {text if isinstance(text, str) else 'no more'}" for name, text in sections.items()]
    if texts:
        return "\n".join(texts)
    return "" if entry.data is ABSENT else value_text(entry.data)


def state_of(entry: EntryRecord) -> EntryState:
    """What became of an entry: whole, or cut, failed, deferred."""
    message = entry.model[0] if entry.model else None
    if message is None:
        return "whole"
    if entry.kind == "pi.tool-result":
        if any(item.get("code") == "interrupted" for item in diagnostics_of(entry)):
            return "interrupted"
        return "failed" if message.get("isError") is True else "whole"
    return _STATES.get(stop_reason(message), "whole") if role_of(message) == "assistant" else "whole"


def diagnostics_of(entry: EntryRecord) -> Iterator[JsonObject]:
    """The remarks beside a tool's result."""
    kept = entry.data.get("diagnostics") if entry.data is not ABSENT and isinstance(entry.data, Mapping) else None
    return (item for item in items(kept) if isinstance(item, Mapping))


def value_text(value: Json) -> str:
    """A stored value as text."""
    return dumps(value)
