"""Owns what is in a store as a page of plain text, 80 columns wide. Never colours it and never trusts it.

Everything that came from the store is shown by `visible`: it cannot move the cursor, turn the line or start a new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from pidurable_nb.lab.looking.inspect import Held, Inspection, Talk, outcome_word
from pidurable_nb.records import task as stored
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import Answered, Placed, SubmissionRecord, Unanswered, Written
from pidurable_nb.store.visible import columns, fitted, visible

WIDTH = 80
MARGIN = 7
"""Labels stand in the first columns, facts behind them."""
TASKS_SHOWN = 60
LINES_SHOWN = 20


def inspection_text(seen: Inspection) -> str:
    """The page: the file, its tasks, submissions, conversations and documents, then what to type next."""
    lines = [
        f"{visible(seen.source.name)}   format {seen.format}, integrity {visible(seen.integrity)}, read from a copy",
        *_block("holds", _holds(seen)),
        "",
        *_block("tasks", _tasks(seen)),
        *_block("subs", _submissions(seen.submissions)),
        "",
        *_block("talk", _shown([_talk(talk) for talk in seen.talks], "conversations")),
        *_block("docs", _documents(seen.documents)),
        "",
        *_block("next", ["pidurable-nb why FILE, pidurable-nb inspect FILE --json"]),
    ]
    return "\n".join(fitted(line, WIDTH).rstrip() for line in lines)


def _block(label: str, facts: Iterable[str]) -> Iterator[str]:
    for fact in facts:
        yield f"{label:<{MARGIN}}{fact}"
        label = ""


def _holds(seen: Inspection) -> Iterator[str]:
    counts = seen.counts
    yield ", ".join(
        [
            _several(counts.conversations, "conversation"),
            _several(counts.entries, "entry", "entries"),
            _several(counts.tasks, "task"),
            _several(counts.submissions, "submission"),
        ]
    )
    yield f"{_several(counts.documents, 'document')} in {_several(counts.document_revisions, 'revision')}"
    if seen.entries_by_kind:
        yield f"entries: {_tally(Counter(seen.entries_by_kind))}"
    yield f"next id {seen.next_id}, next commit {seen.next_seq}"


def _tasks(seen: Inspection) -> Iterator[str]:
    live = [task for task in seen.tasks if task.live]
    if not live:
        yield "Nothing to recover: " + ("every task had ended." if seen.tasks else "there is no task.")
    shown = seen.tasks if len(seen.tasks) <= TASKS_SHOWN else live
    yield from _shown([_task(task) for task in _by_owner(shown)], "tasks")
    if len(shown) < len(seen.tasks):
        ended = Counter(word for task in seen.tasks if not task.live and (word := outcome_word(task)))
        yield f"ended and not listed: {_tally(ended)}"


def _by_owner(tasks: Sequence[TaskRecord]) -> Iterator[TaskRecord]:
    """Owned tasks behind their owner, as the tree reads; owners that are not there count as none."""
    there = {task.id for task in tasks}
    below: dict[int | None, list[TaskRecord]] = {}
    for task in tasks:
        below.setdefault(task.owner if task.owner in there and task.owner != task.id else None, []).append(task)
    waiting, placed = list(reversed(below.get(None, []))), set[int]()
    while waiting:
        task = waiting.pop()
        placed.add(task.id)
        yield task
        waiting += [child for child in reversed(below.get(task.id, [])) if child.id not in placed]
    yield from (task for task in tasks if task.id not in placed)


def _task(task: TaskRecord) -> str:
    facts = [_state(task)]
    if task.owner is not None:
        facts.append(f"owner {task.owner}")
    if task.restarts:
        facts.append(f"restarts {task.restarts}")
    if task.abort_requested:
        facts.append("to be aborted")
    if task.background:
        facts.append("background")
    if task.memos:
        facts.append("memos " + " ".join(visible(name) for name in task.memos))
    return f"{task.id:>5} {_cell(task.kind, 18)} {_cell(task.status, 10)} {', '.join(facts)}"


def _state(task: TaskRecord) -> str:
    phase = visible(task.phase or "no phase")
    match task.state:
        case stored.Waiting():
            return f"{phase}, on {' '.join(str(id) for id in task.state.on) or 'nothing'}"
        case stored.Sleeping():
            return f"{phase}, until {_time(task.state.until_ms)}"
        case stored.Completing() | stored.Terminal():
            return outcome_word(task) or ""
        case _:
            return phase


def _time(ms: float) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # later than any calendar
        return f"{ms:g} ms"


def _submissions(submissions: Sequence[SubmissionRecord]) -> Iterator[str]:
    if not submissions:
        yield "None."
    still_open = [submission for submission in submissions if submission.status in ("queued", "placed")]
    shown = submissions if len(submissions) <= LINES_SHOWN else still_open
    yield from _shown([_submission(submission) for submission in shown], "submissions")
    if len(shown) < len(submissions):
        yield f"settled and not listed: {len(submissions) - len(still_open):,}"


def _submission(submission: SubmissionRecord) -> str:
    match submission.state:
        case Answered(entry=entry, answer=answer):
            fact = f"entry {entry}, answer {answer}"
        case Placed(entry=entry) | Written(entry=entry):
            fact = f"entry {entry}"
        case Unanswered(reason=reason):
            fact = visible(reason)
        case _:
            fact = ""
    if submission.request_id is not None:
        fact = ", ".join(filter(None, [fact, f"request {visible(submission.request_id)}"]))
    return f"{submission.id:>5} {_cell(submission.type, 18)} {_cell(submission.status, 10)} {fact}"


def _talk(talk: Talk) -> str:
    record = talk.record
    place = f"fork of {record.parent.conversation} behind {record.parent.at}, " if record.parent else ""
    owner = f"owned by task {record.owner.task}, " if record.owner else ""
    own = [visible(line) for line in talk.transcript]
    shown = " ".join(own if len(own) <= 4 else [*own[:2], "...", *own[-2:]])
    seen = f"{talk.visible:,} visible" if talk.visible == len(own) else f"{len(own):,} own, {talk.visible:,} visible"
    return f"{record.id:>5} {place}{owner}{seen}{': ' if shown else ''}{shown}"


def _documents(documents: Sequence[Held]) -> Iterator[str]:
    scope = ""
    for held in documents[:LINES_SHOWN]:
        if str(held.record.scope) != scope:
            scope = str(held.record.scope)
            yield scope
        yield _document(held)
    if len(documents) > LINES_SHOWN:
        yield f"and {len(documents) - LINES_SHOWN:,} more documents: --json lists all"


def _document(held: Held) -> str:
    record = held.record
    name = f"{record.kind}/{record.key}" if record.key is not None else record.kind
    version = "retired" if record.retired_at is not None else f"v{held.version}"
    head = f"{record.id:>5} {_cell(name, 20)} {version:<3} "
    if held.value is None:
        return head + "-"
    text = dumps(held.value)
    room = WIDTH - MARGIN - columns(head)
    value = visible(text[:WIDTH])
    if len(text) > WIDTH or columns(value) > room:
        size = f" ({len(text):,} characters)"
        return head + fitted(value, room - len(size)) + size
    return head + value


def _shown(lines: Sequence[str], what: str) -> Iterator[str]:
    """At most so many lines, and how many are left out."""
    yield from lines[:LINES_SHOWN]
    if len(lines) > LINES_SHOWN:
        yield f"and {len(lines) - LINES_SHOWN:,} more {what}: --json lists all"


def _cell(text: str, width: int) -> str:
    shown = fitted(visible(text), width)
    return shown + " " * (width - columns(shown))


def _several(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _tally(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {visible(word)}" for word, count in counts.most_common())
