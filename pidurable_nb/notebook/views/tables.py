"""Owns tables: a data frame to work with that shows itself as a short, safe table. Never reads a store.

What is shown stops at some rows and says how many more there are; the frame has them all. Without pandas a table is
the same view, with its rows as a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

from pidurable_nb.ids import Json, TaskId
from pidurable_nb.lab.looking.inspect import outcome_word, task_facts
from pidurable_nb.notebook.views.comforts import Comfort, have, is_here
from pidurable_nb.notebook.views.markup import View, aligned, bdi, code, cut, esc, quiet, short, table, toned
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord

R = TypeVar("R")
MAX_ROWS = 200
"""How many rows a table shows unless `%config Pi.max_rows` says otherwise."""


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Table:
    """Facts to work with that show themselves as `view`: a data frame (`frames.Framed`), or `Listed` without pandas."""

    view: View

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.view._repr_mimebundle_()

    def __repr__(self) -> str:
        return self.view.plain()


class Listed(Table):
    """A table without pandas: `rows` is a list with a dict for each, by column."""

    def __init__(self, view: View, columns: Sequence[str], records: Sequence[Mapping[str, object]]) -> None:
        self.view = view
        self.columns = tuple(columns)
        self.rows = [{column: record.get(column) for column in columns} for record in records]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, repr=False)
class Rows(View, Generic[R]):
    """The first or last rows of a longer list. `html_row` gives markup cells, `text_row` foreign text."""

    title: str
    head: Sequence[str]
    records: Sequence[R]
    html_row: Callable[[R], Sequence[str]]
    text_row: Callable[[R], Sequence[str]]
    what: str
    limit: int = MAX_ROWS
    newest: bool = False
    empty: str = "None."
    widest: int = 44

    @property
    def label(self) -> str:
        return self.title

    @property
    def shown(self) -> Sequence[R]:
        """The records that are shown."""
        return self.records[-self.limit :] if self.newest else self.records[: self.limit]

    @property
    def rest(self) -> str:
        """What is left out, in one line; nothing when all is shown."""
        left = len(self.records) - len(self.shown)
        if not left:
            return ""
        return f"and {left:,} {'earlier' if self.newest else 'more'} {self.what}: {whole()}"

    def html(self) -> str:
        if not self.records:
            return f"<p>{quiet(esc(f'{self.title}: {self.empty}'))}</p>"
        body = table(self.head, [self.html_row(record) for record in self.shown])
        left = f"<p>{quiet(esc(self.rest))}</p>"
        if not self.rest:
            return f"<h3>{esc(self.title)}</h3>{body}"
        return f"<h3>{esc(self.title)}</h3>{left}{body}" if self.newest else f"<h3>{esc(self.title)}</h3>{body}{left}"

    def text(self) -> str:
        if not self.records:
            return f"{self.title}: {self.empty}"
        body = aligned(self.head, [self.text_row(record) for record in self.shown], widest=self.widest)
        parts = [self.rest, body] if self.newest else [body, self.rest]
        return "\n".join(part for part in parts if part)


def frame(view: View, columns: Sequence[str], records: Sequence[Mapping[str, object]]) -> Table:
    """The table of `records`, shown as `view`."""
    if not have(Comfort.FRAMES):
        return Listed(view, columns, records)
    from pidurable_nb.notebook.views.frames import framed  # pandas takes a while to load, and is not everywhere

    return framed(view, columns, records)


def whole() -> str:
    """Where the rows are that a table does not show."""
    return "the data frame has them all" if is_here(Comfort.FRAMES) else "its .rows have them all"


def moment(ms: float) -> datetime | None:
    """The time that is stored as `ms`, in UTC; None where no calendar reaches."""
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except (OverflowError, ValueError):
        return None


# --- Tasks ----------------------------------------------------------------------------------------------------------

TASK_COLUMNS = (
    "id", "conversation", "kind", "version", "owner", "status", "phase", "on", "until", "outcome", "memos", "restarts",
    "abort_requested", "background",
)  # fmt: skip


def tasks_table(tasks: Sequence[TaskRecord], *, limit: int = MAX_ROWS) -> Table:
    """Tasks as they are stored."""
    view = Rows(
        "Tasks", ("task", "kind", "status", "phase", "outcome", "owner", "memos", "restarts"), tasks,
        _task_cells, _task_words, "tasks", limit, empty="there is none.",
    )  # fmt: skip
    return frame(view, TASK_COLUMNS, [task_row(task) for task in tasks])


def task_row(task: TaskRecord) -> Mapping[str, object]:
    """One row of the data frame: the facts of `inspect`, with a moment that can be reckoned with."""
    until = task.state.until_ms if isinstance(task.state, stored.Sleeping) else None
    return {**task_facts(task), "until": None if until is None else moment(until)}


def _task_words(task: TaskRecord) -> Sequence[str]:
    on = f" on {' '.join(str(id) for id in task.state.on)}" if isinstance(task.state, stored.Waiting) else ""
    marked = ", to be aborted" if task.abort_requested and task.live else ""
    return (
        str(task.id), task.kind, task.status + on + marked, task.phase or "-", outcome_word(task) or "-",
        "-" if task.owner is None else str(task.owner), cut(" ".join(task.memos), 60) or "-", str(task.restarts),
    )  # fmt: skip


def _task_cells(task: TaskRecord) -> Sequence[str]:
    id, _, status, phase, outcome, owner, memos, restarts = _task_words(task)
    return (
        code(id), code(task.kind), bdi(status), code(phase), _outcome(outcome), esc(owner), code(memos), esc(restarts),
    )  # fmt: skip


def _outcome(word: str) -> str:
    if word == "-":
        return "-"
    return toned("com", word) if word == "completed" else toned("int", word)


# --- Memos ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memo:
    """One fact that a task decided and keeps (M1, M2)."""

    task: TaskId
    kind: str
    name: str
    value: Json


def memos_of(tasks: Sequence[TaskRecord]) -> Sequence[Memo]:
    """Every memo of these tasks. A memo ends with its task, so an ended one has none."""
    return [Memo(task.id, task.kind, name, value) for task in tasks for name, value in task.memos.items()]


def memos_table(memos: Sequence[Memo], *, limit: int = MAX_ROWS) -> Table:
    """Memos, each below the task that it belongs to."""
    view = Rows(
        "Memos", ("task", "kind", "memo", "value"), memos,
        lambda m: (code(m.task), code(m.kind), code(cut(m.name, 60)), code(short(m.value))),
        lambda m: (str(m.task), m.kind, cut(m.name, 60), short(m.value)),
        "memos", limit, empty="none is kept; a memo ends with its task.", widest=110,
    )  # fmt: skip
    rows = [{"task": m.task, "kind": m.kind, "memo": m.name, "value": m.value} for m in memos]
    return frame(view, ("task", "kind", "memo", "value"), rows)


# --- Forks ----------------------------------------------------------------------------------------------------------


def forks_facts(record: ConversationRecord, visible: int) -> Mapping[str, object]:
    """One row of the data frame of conversations."""
    return {
        "id": record.id,
        "parent": record.parent.conversation if record.parent is not None else None,
        "at": record.parent.at if record.parent is not None else None,
        "owner_task": record.owner.task if record.owner is not None else None,
        "visible": visible,
    }


FORK_COLUMNS = ("id", "parent", "at", "owner_task", "visible")
