"""Owns the tables about conversations: transcript, submissions, inbox, usage. Never reads a store."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pidurable_nb.agent.usage import Usage
from pidurable_nb.ids import ABSENT, ConversationId, Json, JsonObject, SubmissionId
from pidurable_nb.notebook.views.markup import Tone, bdi, code, cut, esc, lines_of, short, toned
from pidurable_nb.notebook.views.messages import said, saying
from pidurable_nb.notebook.views.tables import MAX_ROWS, Rows, Table, frame
from pidurable_nb.records.message import items, role_of, stop_reason
from pidurable_nb.records.transcript import Answered, EntryRecord, Placed, SubmissionRecord, Unanswered, Written

# --- Transcript -----------------------------------------------------------------------------------------------------


def transcript_table(conversation: ConversationId, entries: Sequence[EntryRecord], *, limit: int = MAX_ROWS) -> Table:
    """What a conversation sees, oldest first, forks followed (V3)."""
    view = Rows(
        f"Transcript of conversation {conversation}", ("entry", "kind", "says", "by task"), entries,
        lambda e: (code(e.id), code(e.kind), _marked(e) + _shown(e), esc(e.by_task or "-")),
        lambda e: (str(e.id), e.kind, cut("".join((*_mark_words(e), said(e))), 76), str(e.by_task or "-")),
        "entries", limit, newest=True, empty="nothing was written.", widest=110,
    )  # fmt: skip
    columns = ("id", "conversation", "kind", "text", "data", "head", "by_task")
    return frame(view, columns, [_entry_facts(entry) for entry in entries])


def _entry_facts(entry: EntryRecord) -> Mapping[str, object]:
    return {
        "id": entry.id,
        "conversation": entry.conversation,
        "kind": entry.kind,
        "text": said(entry),
        "data": None if entry.data is ABSENT else entry.data,
        "head": entry.head,
        "by_task": entry.by_task,
    }


def _marks(entry: EntryRecord) -> Iterable[tuple[Tone, str]]:
    """What has to be known of an entry before its text: where it moves the model's view, and what it is no part of."""
    if entry.head is not None:
        yield "com", "the model begins here" if entry.head == entry.id else f"the model begins at {entry.head}"
    if entry.edits:
        yield "com", f"changes what the model sees of {' '.join(str(edit.target) for edit in entry.edits[:5])}"
    for message in entry.model or ():
        match role_of(message), stop_reason(message):
            case "assistant", "aborted":
                yield "int", "cut off"
            case "assistant", "error":
                yield "int", "failed"
            case "assistant", "length":
                yield "lost", "ended at the limit of its length"
            case "assistant", "deferred":
                yield "lost", "deferred"
            case "toolResult", _ if message.get("isError") is True:
                yield "int", "error"
            case _:
                pass


def _marked(entry: EntryRecord) -> str:
    return "".join(f"{toned(tone, word)} " for tone, word in _marks(entry))


def _shown(entry: EntryRecord) -> str:
    """The beginning of what it says, line for line."""
    return "<br>".join(f"<bdi>{html.escape(line)}</bdi>" for line in lines_of(said(entry), 240, most=6))


def _mark_words(entry: EntryRecord) -> Iterable[str]:
    return (f"[{word}] " for _, word in _marks(entry))


# --- Submissions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """A submission, and what it says where that is stored still."""

    record: SubmissionRecord
    text: str


def submissions_table(requests: Sequence[Request], *, limit: int = MAX_ROWS) -> Table:
    """What somebody asked for, and what became of it (S2)."""
    view = Rows(
        "Submissions", ("submission", "conversation", "type", "status", "says", "outcome", "request"), requests,
        _request_cells, _request_words, "submissions", limit, newest=True, empty="nobody asked for anything.",
    )  # fmt: skip
    columns = ("id", "conversation", "type", "status", "request_id", "entry", "answer", "reason", "text")
    return frame(view, columns, [_request_facts(request) for request in requests])


def _request_facts(request: Request) -> Mapping[str, object]:
    record = request.record
    state = record.state
    return {
        "id": record.id,
        "conversation": record.conversation,
        "type": record.type,
        "status": record.status,
        "request_id": record.request_id,
        "entry": getattr(state, "entry", None),
        "answer": state.answer if isinstance(state, Answered) else None,
        "reason": state.reason if isinstance(state, Unanswered) else None,
        "text": request.text,
    }


def _request_words(request: Request) -> Sequence[str]:
    record = request.record
    return (
        str(record.id), str(record.conversation), record.type, record.status, cut(request.text, 60) or "-",
        _outcome(record) or "-", cut(record.request_id or "-", 40),
    )  # fmt: skip


def _request_cells(request: Request) -> Sequence[str]:
    id, conversation, type, status, text, outcome, key = _request_words(request)
    tone: Tone = "com" if status == "done" else "int" if status == "unanswered" else "lost"
    return (
        code(id), esc(conversation), esc(type), toned(tone, status), bdi(text), bdi(outcome), code(key),
    )  # fmt: skip


def _outcome(record: SubmissionRecord) -> str:
    match record.state:
        case Answered(entry=entry, answer=answer):
            return f"entry {entry}, answer {answer}"
        case Placed(entry=entry) | Written(entry=entry):
            return f"entry {entry}"
        case Unanswered(reason=reason):
            return cut(reason)
        case _:
            return ""


# --- Inbox ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that waits in the inbox of a conversation: `mode` is steer, followUp or write."""

    conversation: ConversationId
    id: SubmissionId
    mode: str
    text: str


_MODES: Final[Mapping[str, str]] = {
    "steer": "joins behind the current tool round",
    "followUp": "starts the next run",
    "write": "is written at the next boundary",
}


def inbox_of(conversation: ConversationId, document: JsonObject | None) -> list[Waiting]:
    """What a value of `pi.inbox` says."""
    found: list[Waiting] = []
    for item in items(document.get("items") if document is not None else None):
        if not isinstance(item, Mapping) or not isinstance(id := item.get("id"), int):
            continue
        entry, mode = item.get("entry"), item.get("mode")
        says = "\n".join(saying(item))
        if not says and isinstance(entry, Mapping):
            messages = (message for message in items(entry.get("model")) if isinstance(message, Mapping))
            says = "\n".join(text for message in messages for text in saying(message)) or (
                short(entry["data"], 200) if "data" in entry else ""
            )
        found.append(Waiting(conversation, SubmissionId(id), mode if isinstance(mode, str) else "?", says))
    return found


def inbox_table(waiting: Sequence[Waiting], *, limit: int = MAX_ROWS) -> Table:
    """What waits, in the order in which it was asked for (S4)."""
    view = Rows(
        "Inbox", ("submission", "conversation", "mode", "says", "when"), waiting,
        _waiting_cells, lambda w: (str(w.id), str(w.conversation), w.mode, cut(w.text, 60), _when(w)),
        "items", limit, empty="nothing waits.",
    )  # fmt: skip
    rows = [{"id": w.id, "conversation": w.conversation, "mode": w.mode, "text": w.text} for w in waiting]
    return frame(view, ("id", "conversation", "mode", "text"), rows)


def _waiting_cells(waiting: Waiting) -> Sequence[str]:
    mode, text = cut(waiting.mode), cut(waiting.text, 120)
    return code(waiting.id), esc(waiting.conversation), bdi(mode), bdi(text), esc(_when(waiting))


def _when(waiting: Waiting) -> str:
    return _MODES.get(waiting.mode, "-")


# --- Usage ----------------------------------------------------------------------------------------------------------

COUNTS: Final = ("input", "output", "cacheRead", "cacheWrite", "totalTokens")


@dataclass(frozen=True, slots=True)
class Spent:
    """What one model or tool has spent, as it is stored."""

    who: Literal["model", "tool"]
    name: str
    usage: JsonObject

    def count(self, name: str) -> int:
        """A count of tokens."""
        return int(_number(self.usage.get(name)))

    @property
    def cost(self) -> float:
        """In the currency of the model's prices."""
        cost = self.usage.get("cost")
        return float(_number(cost.get("total"))) if isinstance(cost, Mapping) else 0.0


def usage_table(usage: Usage, *, limit: int = MAX_ROWS) -> Table:
    """What models and tools have spent."""
    spent = [Spent("model", name, used) for name, used in usage.models.items()]
    spent += [Spent("tool", name, used) for name, used in usage.tools.items()]
    view = Rows(
        "Usage", ("by", "", "in", "out", "cache read", "cache written", "tokens", "cost"), spent,
        lambda s: (code(cut(s.name)), *(esc(word) for word in _spent_words(s)[1:])), _spent_words, "names", limit,
        empty="nothing was spent.",
    )  # fmt: skip
    rows = [{"by": s.who, "name": s.name, **{name: s.count(name) for name in COUNTS}, "cost": s.cost} for s in spent]
    return frame(view, ("by", "name", *COUNTS, "cost"), rows)


def _spent_words(spent: Spent) -> Sequence[str]:
    cost = f"{spent.cost:,.4f}" if spent.cost else "-"
    return (cut(spent.name), spent.who, *(f"{spent.count(name):,}" for name in COUNTS), cost)


def _number(value: Json) -> int | float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
