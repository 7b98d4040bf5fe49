"""Owns the pages that are more than one table: a task, the forks, what is open here. Never reads a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pidurable_nb.ids import Json
from pidurable_nb.lab.looking.inspect import outcome_word
from pidurable_nb.notebook.views.graphs import Figure, word_of
from pidurable_nb.notebook.views.markup import View, bdi, code, cut, esc, items, quiet, short, toned
from pidurable_nb.notebook.views.tables import Rows, memos_of
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.store.visible import visible

R = TypeVar("R")


class TaskView(View):
    """One task: where it stands, what it was asked, what it remembers, and who owns it. `record` is what is stored."""

    def __init__(self, record: TaskRecord, *, machine: Figure | None, tree: Figure | None, without: str = "") -> None:
        self.record = record
        self._machine = machine
        self._tree = tree
        self._without = without

    @property
    def label(self) -> str:
        return f"Task {self.record.id}, {visible(self.record.kind)}"

    def facts(self) -> Sequence[tuple[str, str]]:
        """What is stored, as (word, foreign text)."""
        task = self.record
        found = [("input", short(task.input))]
        if task.checkpoint is not None:
            found.append(("checkpoint", short(task.checkpoint)))
        if isinstance(task.state, stored.Waiting):
            how = "fail fast" if task.state.fail_fast else "all settled"
            found.append(("waits for", f"{' '.join(str(id) for id in task.state.on)} ({how})"))
        if task.outcome is not None:
            found.append(("outcome", short(_outcome(task.outcome))))
        found += [(f"memo {cut(memo.name, 40)}", short(memo.value)) for memo in memos_of([task])]
        if task.restarts:
            found.append(("restarts", str(task.restarts)))
        marks = [word for word, on in _marks(task) if on]
        if marks:
            found.append(("marked", ", ".join(marks)))
        return found

    def html(self) -> str:
        task = self.record
        word = word_of(task)
        state = toned("int", word) if outcome_word(task) not in (None, "completed") else toned("com", word)
        owner = f", owned by task {task.owner}" if task.owner is not None else f", in conversation {task.conversation}"
        head = f"<p>{code(f'task {task.id}')} {bdi(cut(task.kind))} {task.version}{owner}: {state}</p>"
        machine = self._machine.html() if self._machine is not None else f"<p>{quiet(esc(self._without))}</p>"
        facts = items(f"{quiet(esc(word))} {code(value)}" for word, value in self.facts())
        tree = f"<h3>Who owns what</h3>{self._tree.html()}" if self._tree is not None else ""
        return head + machine + facts + tree

    def text(self) -> str:
        task = self.record
        owner = f"owned by task {task.owner}" if task.owner is not None else f"in conversation {task.conversation}"
        lines = [f"task {task.id}   {cut(task.kind)} {task.version}, {owner}: {word_of(task)}"]
        lines += [f"  {word}: {value}" for word, value in self.facts()]
        lines += ["", *(self._machine.text().splitlines() if self._machine is not None else [self._without])]
        if self._tree is not None:
            lines += ["", *self._tree.text().splitlines()]
        return "\n".join(lines)


def _marks(task: TaskRecord) -> Iterable[tuple[str, bool]]:
    return (
        ("to be aborted", task.abort_requested),
        ("background", task.background),
        ("abandoned by a restart", task.abandon_on_restart),
    )


def _outcome(outcome: stored.Outcome) -> Json:
    match outcome:
        case stored.Completed(result=result):
            return {"completed": result}
        case stored.Failed(error=error) | stored.Faulted(error=error):
            word = "failed" if isinstance(outcome, stored.Failed) else "faulted"
            return {word: error.message, **({} if error.detail is None else {"detail": error.detail})}
        case stored.Aborted(reason=reason):
            return {"aborted": reason}
        case stored.Orphaned(reason=reason):
            return {"orphaned": reason}


class ForksView(View, Generic[R]):
    """Conversations as a graph, with their numbers below it."""

    def __init__(self, figure: Figure, rows: Rows[R]) -> None:
        self._figure = figure
        self._rows = rows

    @property
    def label(self) -> str:
        return "Forks"

    def html(self) -> str:
        return self._figure.html() + self._rows.html()

    def text(self) -> str:
        return self._rows.text()


@dataclass(frozen=True, repr=False)
class StatusView(View):
    """What is open here: the store, its live work, and which code it has."""

    path: str | None
    copied_from: str | None
    durability: str | None
    tasks: Sequence[TaskRecord]
    code: Sequence[tuple[str, str]]
    looked: str | None
    handle: str
    offers: Sequence[str] = ()

    @property
    def label(self) -> str:
        return "Status"

    def lines(self) -> Sequence[str]:
        """The facts, as foreign text."""
        if self.path is None:
            found = ["nothing is open here: %pi open STORE (a kernel that was restarted has nothing open)"]
        else:
            copied = f", a copy of {cut(self.copied_from)}" if self.copied_from is not None else ""
            found = [f"open: {cut(self.path, 200)}{copied}, as {self.handle}, durability {self.durability}"]
            counts = Counter(task.status for task in self.tasks)
            live = ", ".join(f"{n} {word}" for word, n in counts.most_common() if word != "terminal") or "nothing"
            found.append(f"live: {live}; ended: {counts['terminal']}")
            found += [f"code: {cut(name, 60)}, {cut(state, 200)}" for name, state in self.code]
            found += [cut(line, 200) for line in self.offers]
        if self.looked is not None and self.looked != self.path:
            found.append(f"looked at last: {cut(self.looked, 200)}")
        return found

    def html(self) -> str:
        return items(esc(line) for line in self.lines())

    def text(self) -> str:
        return "\n".join(self.lines())
