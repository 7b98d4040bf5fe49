"""Owns the rows that a step changed, told one change a line: what stood there, and what stands there now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from pidurable_nb.engine.transition import FAULT_MEMO
from pidurable_nb.ids import DocumentId, Json
from pidurable_nb.lab.looking.inspect import outcome_word
from pidurable_nb.lab.looking.rows import json_of
from pidurable_nb.lab.scene.facts import Facts
from pidurable_nb.lab.scene.parts import short, size
from pidurable_nb.lab.scene.rows import said
from pidurable_nb.lab.scene.scene import DiffRow
from pidurable_nb.lab.walking.stepper import RowChange
from pidurable_nb.records import codec
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import Answered, SubmissionRecord, Unanswered, Written

MOST: Final = 60
"""Lines of one step."""
_FIELDS: Final = 4
_TEXT: Final = 80


def diff_of(changes: Iterable[RowChange], facts: Facts) -> tuple[DiffRow, ...]:
    """The changes of a step, line by line. `facts` are those behind it."""
    found: list[DiffRow] = []
    for change in changes:
        found += _lines(change, facts)
        if len(found) > MOST:
            left = f"and {len(found) - MOST} more at least"
            return (*map(_cut, found[:MOST]), DiffRow(sign="~", row="more", before="", after=left))
    return tuple(map(_cut, found))


def whole_row(changes: Iterable[RowChange], facts: Facts, row: int) -> DiffRow | None:
    """The line with that number, its texts whole; None where there is none."""
    return next(islice((line for change in changes for line in _lines(change, facts)), row, row + 1), None)


def _cut(row: DiffRow) -> DiffRow:
    before, after = short(row.before, _TEXT), short(row.after, _TEXT)
    return replace(
        row, before=before, after=after, before_size=size(row.before, _TEXT), after_size=size(row.after, _TEXT)
    )


def _lines(change: RowChange, facts: Facts) -> Iterator[DiffRow]:
    table, _, number = change.row.partition("/")
    before, after = change.before, change.after
    if before == after:
        return
    match table:
        case "tasks" if after is not None:
            yield from _task(codec.decode_task(before) if before is not None else None, codec.decode_task(after))
        case "submissions" if after is not None:
            old = _submission(codec.decode_submission(before)) if before is not None else ""
            sign = "~" if before is not None else "+"
            yield DiffRow(
                sign="~" if sign == "~" else "+", row=f"submission {number}", before=old,
                after=_submission(codec.decode_submission(after)),
            )  # fmt: skip
        case "entries" if after is not None:
            entry = codec.decode_entry(after)
            text = f"{short(entry.kind, 40)} · “{said(entry)}”"
            yield DiffRow(sign="+", row=f"entry {number}", before="", after=text)
        case "conversations":
            yield DiffRow(sign="+", row=f"conversation {number}", before="", after="begins")
        case _:
            yield from _document(int(number), before, after, facts)


def _task(before: TaskRecord | None, after: TaskRecord) -> Iterator[DiffRow]:
    name = f"task {after.id}"
    if before is None:
        yield DiffRow(sign="+", row=name, before="", after=f"{short(after.kind, 60)} · {_standing(after)}")
    elif _standing(before) != _standing(after):
        yield DiffRow(sign="~", row=name, before=_standing(before), after=_standing(after))
    old, new = (before.checkpoint if before is not None else None), after.checkpoint
    if old is not None and new is None:
        yield DiffRow(sign="-", row=f"{name} checkpoint", before=dumps(old), after="")
    elif old is not None and new is not None and old != new:
        yield DiffRow(sign="~", row=f"{name} checkpoint", before=dumps(old), after=dumps(new))
    memos = before.memos if before is not None else {}
    for memo, value in after.memos.items():
        if memo not in memos:
            row = f"{name} {'fault' if memo == FAULT_MEMO else f'memo {short(memo, 60)}'}"
            yield DiffRow(sign="+", row=row, before="", after=dumps(value))
    for memo, value in memos.items():
        if memo not in after.memos:
            row = f"{name} {'fault' if memo == FAULT_MEMO else f'memo {short(memo, 60)}'}"
            yield DiffRow(sign="-", row=row, before=dumps(value), after="")


def _standing(record: TaskRecord) -> str:
    """`terminal · failed`, or `pending · execute · restarts 1`."""
    parts = [record.status, outcome_word(record) or short(record.phase or "", 60)]
    parts += [f"restarts {record.restarts}"] if record.restarts else []
    parts += ["abort requested"] if record.abort_requested and record.live else []
    return " · ".join(part for part in parts if part)


def _submission(record: SubmissionRecord) -> str:
    match record.state:
        case Answered(answer=answer):
            return f"done, answer {answer}"
        case Written(entry=entry):
            return f"done, entry {entry}"
        case Unanswered(reason=reason):
            return f"unanswered, {short(reason, 60)}"
        case _:
            return record.status


def _document(number: int, before: str | None, after: str | None, facts: Facts) -> Iterator[DiffRow]:
    name = next((short(d.kind, 60) for d in facts.documents() if d.id == DocumentId(number)), f"document {number}")
    if before is None or after is None:
        yield DiffRow(
            sign="+" if before is None else "-", row=name, before=before or "",
            after=after or "",
        )  # fmt: skip
        return
    fields = list(_changed(json_of(before), json_of(after), name))
    yield from fields[:_FIELDS]
    if len(fields) > _FIELDS:
        yield DiffRow(sign="~", row=name, before="", after=f"and {len(fields) - _FIELDS} more fields")


def _changed(before: Json, after: Json, at: str) -> Iterator[DiffRow]:
    """The fields that differ, by their path."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys([*before, *after]):
            path = short(f"{at}.{name}", _TEXT)
            if name not in before:
                yield DiffRow(sign="+", row=path, before="", after=dumps(after[name]))
            elif name not in after:
                yield DiffRow(sign="-", row=path, before=dumps(before[name]), after="")
            else:
                yield from _changed(before[name], after[name], path)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at_index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _changed(old, new, f"{at}[{at_index}]")
    elif before != after or type(before) is not type(after):
        yield DiffRow(sign="~", row=at, before=dumps(before), after=dumps(after))
