"""Owns an explanation as a page of plain text, 80 columns wide. Never colours it and never trusts what a store says.

The sentence comes first after the name of its subject; everything else is a fact that it rests on, set behind it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pidurable_nb.clock import as_datetime
from pidurable_nb.engine.decide import Outside
from pidurable_nb.lab.looking.explain import ASSUMED, Explanation
from pidurable_nb.store.visible import fitted, visible

WIDTH: Final = 80
SHOWN: Final = 100
"""Verdicts of each sort on a page; `--json` lists all."""
ROWS_SHOWN: Final = 8

OUTSIDE_WORDS: Final[Mapping[Outside, str]] = {
    "none": "- nothing",
    "again": "> can happen again",
    "unknown": "? unknown",
}
"""What this recovery causes in the world outside: a sign and a word for each."""


def to_text(explanation: Explanation) -> str:
    """The page: which store, when and with which code; what happens to each task and submission; what to type next."""
    lines = [
        visible(explanation.source.name),
        f"as of  {_time(explanation.now_ms)}, read from a copy",
        f"code   {_assumed(explanation)}",
        "",
        *_tasks(explanation),
        *_submissions(explanation),
        "power  a power cut may take commits, and barriers too with durability kill (E5)",
        "next   pidurable-nb inspect FILE, pidurable-nb why FILE --json",
    ]
    return "\n".join(fitted(line, WIDTH).rstrip() for line in lines)


def _assumed(explanation: Explanation) -> str:
    if explanation.assumed == ASSUMED:
        return "assumed installed, and tools declared as stored; --code MODULE asks it"
    return visible(explanation.assumed)


def _tasks(explanation: Explanation) -> Iterator[str]:
    if not explanation.tasks:
        yield "Nothing to recover: every task had ended."
        yield ""
    for verdict in explanation.tasks[:SHOWN]:
        was = verdict.facts.was
        state = was.status if was.phase is None else f"{was.status} in {visible(was.phase)}"
        head = f"task {was.id}   {verdict.name.upper()}   {visible(was.kind)}, {state}"
        yield from _verdict(head, verdict.outside, verdict.because, verdict.laws, verdict.reads)
    yield from _more(len(explanation.tasks), "tasks")


def _submissions(explanation: Explanation) -> Iterator[str]:
    for verdict in explanation.submissions[:SHOWN]:
        record = verdict.submission
        head = f"submission {record.id}   {verdict.name.upper()}   {record.type}, {record.status}"
        yield from _verdict(head, verdict.outside, verdict.because, verdict.laws, verdict.reads)
    yield from _more(len(explanation.submissions), "submissions")


def _verdict(head: str, outside: Outside, because: str, laws: Sequence[str], rows: Sequence[str]) -> Iterator[str]:
    yield head
    for line in textwrap.wrap(visible(because), WIDTH - 2):
        yield f"  {line}"
    read = " ".join(rows[:ROWS_SHOWN]) + (f" and {len(rows) - ROWS_SHOWN} more" if len(rows) > ROWS_SHOWN else "")
    yield f"  outside: {OUTSIDE_WORDS[outside]}   laws {' '.join(laws)}"
    yield f"  from {read}"
    yield ""


def _more(count: int, what: str) -> Iterator[str]:
    if count > SHOWN:
        yield f"and {count - SHOWN:,} more {what}: --json lists all"
        yield ""


def _time(ms: int) -> str:
    try:
        return as_datetime(ms).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):  # later than any calendar
        return f"{ms} ms"
