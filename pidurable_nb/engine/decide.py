"""Owns the recovery decision: one verdict per live task, from what is stored, the code at hand, a policy and a time.

Pure. The scheduler acts on it, `why` prints it, the stepper predicts with it; nothing else chooses by a status what
happens to a task. The rows of the table are in `rows`; this module prepares what they read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pidurable_nb.engine import rows
from pidurable_nb.engine.registry import Blocked, Code, Fit
from pidurable_nb.engine.snapshot import LiveRun, View, ancestors, holds_failure
from pidurable_nb.engine.transition import KeptFault, Reopen, advance, kept_fault
from pidurable_nb.errors import IllegalTransition
from pidurable_nb.ids import TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord

Outside = Literal["none", "again", "unknown"]
SETTLES = frozenset({"finish", "orphan", "give_up", "interrupt", "abandon"})
"""O6: what ends, or is marked, without user code or a model; committed before anything is started."""
ENDS = SETTLES - {"abandon"}
"""The ones of them that end the task; `abandon` only marks it."""
STARTS = frozenset({"abort", "start", "replay", "resend", "poll", "resume", "rerun"})
"""What runs code of the task."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the host decided. `restart_limit` as in T9; `after_failed_run` says what a failed run does to its queue."""

    restart_limit: int = 5
    after_failed_run: Literal["keep", "withdraw"] = "keep"


@dataclass(frozen=True, slots=True)
class ImpliedMark:
    """An abort mark that follows from what is stored (O5, T4). `source` is the task that it follows from."""

    law: Literal["O5", "T4"]
    source: TaskId


class Facts:
    """What the rows of the table read about one task. Everything is read from the view, nothing is written.

    `was` is the record as stored, `task` the same after the opening that a file has before it (T7).
    """

    was: TaskRecord
    task: TaskRecord
    limit: int
    now_ms: float
    implied: ImpliedMark | None

    def __init__(
        self, was: TaskRecord, task: TaskRecord, view: View, code: Code, policy: Policy, now_ms: float,
        implied: ImpliedMark | None,
    ) -> None:  # fmt: skip
        self.was = was
        self.task = task
        self.view = view
        self.code = code
        self.limit = policy.restart_limit
        self.now_ms = now_ms
        self.implied = implied

    @property
    def state(self) -> stored.State:
        return self.task.state

    @property
    def abandoned(self) -> bool:
        """O7: found by a new opening, made by an unsafe tool for itself, and not marked in the store."""
        return is_abandoned(self.view, self.task)

    @property
    def marked(self) -> bool:
        return self.task.abort_requested or self.implied is not None

    @property
    def restarts(self) -> int:
        """As this opening counts it; a mark that is derived only now starts the count again (T9)."""
        return 0 if self.implied is not None and not self.task.abort_requested else self.task.restarts

    @cached_property
    def fit(self) -> Fit:
        return self.code.fit(self.task)

    @property
    def blocked(self) -> Blocked | None:
        fit = self.fit
        return fit if isinstance(fit, Blocked) else None

    @cached_property
    def below(self) -> tuple[TaskId, ...]:
        return self.view.below(self.task.id)

    @cached_property
    def alive(self) -> tuple[TaskId, ...]:
        """T4: the tasks it waits for that are still live."""
        state = self.task.state
        if not isinstance(state, stored.Waiting):
            return ()
        named = ((id, self.view.task(id)) for id in state.on)
        return tuple(id for id, record in named if record is not None and record.live)

    @property
    def fault(self) -> KeptFault | None:
        """T11: a fault that this very opening keeps."""
        fault = kept_fault(self.task)
        return fault if fault is not None and fault.opening == self.view.opening else None

    @cached_property
    def refined(self) -> Literal["replay", "interrupt", "resend", "poll"] | None:
        """What the task's kind makes of a rerun."""
        return self.code.refine(self.task)

    @property
    def live_run(self) -> LiveRun | None:
        return self.view.run(self.task.conversation)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens to one task."""

    task: TaskRecord
    name: rows.VerdictName
    facts: Facts
    row: rows.Row

    @property
    def id(self) -> TaskId:
        return self.task.id

    @property
    def held_by(self) -> tuple[TaskId, ...]:
        """The live owned work that it waits for before that happens."""
        return self.row.held_by(self.facts)

    @property
    def laws(self) -> tuple[str, ...]:
        """The law ids that led here, in order."""
        reopened = ("T7",) if self.facts.was is not self.facts.task else ()
        found = (*reopened, *self.row.laws(self.facts))
        return tuple(dict.fromkeys(found))

    @property
    def because(self) -> str:
        """One plain sentence, at most 90 characters."""
        return self.row.sentence(self.facts)

    @property
    def outside(self) -> Outside:
        """What this recovery causes outside: nothing, again, or unknown."""
        return self.row.outside(self.facts)

    @property
    def reads(self) -> tuple[str, ...]:
        """The rows of the store that decided, the task's own first."""
        found = (f"tasks/{self.id}", *self.row.reads(self.facts))
        return tuple(dict.fromkeys(found))

    @property
    def asked(self) -> tuple[tuple[str, bool], ...]:
        """The questions of the table up to the row that fits, with their answers: the trunk of the decision."""
        asked: list[tuple[str, bool]] = []
        for row in rows.TASK_ROWS:
            asked.append((row.question, row is self.row))
            if row is self.row:
                break
        return tuple(asked)

    @property
    def needs(self) -> str | None:
        """The code that is missing, as `kind version`; None where none is, or none is needed any more."""
        if self.task.checkpoint is None:
            return None
        return self.facts.blocked.needs if self.facts.blocked is not None else None


def decide_task(
    was: TaskRecord, view: View, code: Code, policy: Policy, now_ms: float, *, implied: ImpliedMark | None = None
) -> Verdict:
    """The first row of the table that fits a live task. Raises IllegalTransition for a terminal one."""
    task = advance(was, Reopen(), now_ms=round(now_ms)) if view.opening is None else was
    facts = Facts(was, task, view, code, policy, now_ms, implied)
    for row in rows.TASK_ROWS:
        if row.fits(facts):
            return Verdict(task, row.name, facts, row)
    raise IllegalTransition(f"task {was.id} is {was.status}; only a live task has a verdict")


def decide_tasks(view: View, code: Code, policy: Policy, now_ms: float) -> Mapping[TaskId, Verdict]:
    """A verdict for every live task, with the marks that follow applied first, to a fixpoint (O5, O6, T7).

    The marks that follow from what is stored come before those that follow from what is only certain, as they do when
    a harness opens. Marks are never taken back, so neither order nor repetition changes the answer.
    """
    implied: Mapping[TaskId, ImpliedMark] = {}
    certain: frozenset[TaskId] = frozenset()
    while True:
        verdicts = {
            record.id: decide_task(record, view, code, policy, now_ms, implied=implied.get(record.id))
            for record in view.live()
        }
        marks = {**implied_marks(view, verdicts_marked(verdicts), certain), **implied}
        if len(marks) > len(implied):
            implied = marks
            continue
        failing = certain | verdicts_failing(verdicts)
        if failing == certain:
            return verdicts
        certain = failing


def verdicts_marked(verdicts: Mapping[TaskId, Verdict]) -> frozenset[TaskId]:
    """The tasks that are marked, or will be before anything starts: stored, implied, or due by O7."""
    return frozenset(
        id for id, verdict in verdicts.items() if verdict.facts.marked or verdict.name in {"orphan", "abandon"}
    )


def verdicts_failing(verdicts: Mapping[TaskId, Verdict]) -> frozenset[TaskId]:
    """The tasks that are certain to end without completing, before anything starts (O6)."""
    return frozenset(id for id, verdict in verdicts.items() if _fails(verdict, verdicts))


def _fails(verdict: Verdict, verdicts: Mapping[TaskId, Verdict]) -> bool:
    """A cut call holds its outcome at once (T5); the others end when what they own has, which may first run code."""
    match verdict.name:
        case "interrupt":
            return True
        case "orphan" | "give_up":
            return all(verdicts[id].name in ENDS for id in verdict.held_by)
        case _:
            return False


def implied_marks(
    view: View,
    marked: frozenset[TaskId] = frozenset(),
    certain: Iterable[TaskId] = (),
    *,
    among: Iterable[TaskRecord] | None = None,
) -> Mapping[TaskId, ImpliedMark]:
    """The marks that are not stored and follow from what is: a cancelled live owner (O5), a failed sibling (T4).

    `marked` and `certain` are tasks that are cancelled, or end without completing, by decisions that precede.
    """
    failing = frozenset(certain)
    found: dict[TaskId, ImpliedMark] = {}
    known: dict[TaskId, TaskId | None] = {}
    records = tuple(view.live() if among is None else among)
    for record in records:
        if _may_follow(view, record):
            source = cancelled_above(view, record.id, marked, failing, known)
            if source is not None:
                found[record.id] = ImpliedMark("O5", source)
    for record in sorted(records, key=lambda record: record.id):
        state = record.state
        if isinstance(state, stored.Waiting) and state.fail_fast:
            _fail_siblings(view, state, failing, found)
    return found


def _fail_siblings(
    view: View, state: stored.Waiting, failing: frozenset[TaskId], found: dict[TaskId, ImpliedMark]
) -> None:
    """T4: the first failure marks every other live task of the wait. A stored one came before one that is certain."""
    members = [(id, view.task(id)) for id in state.on]
    failed = [id for id, record in members if record is not None and holds_failure(record)]
    failed += sorted(id for id, record in members if record is not None and id in failing)
    if not failed:
        return
    culprit = failed[0]
    for id, record in members:
        if id != culprit and record is not None and _may_follow(view, record):
            found.setdefault(id, ImpliedMark("T4", culprit))


def _may_follow(view: View, record: TaskRecord) -> bool:
    """Whether a mark may still follow: abandoned work gets the mark of O7 instead, which says `restart`."""
    return record.live and not record.abort_requested and not is_abandoned(view, record)


def is_abandoned(view: View, record: TaskRecord) -> bool:
    """O7: found by a new opening, made by an unsafe tool for itself, and not marked in the store."""
    return record.abandon_on_restart and view.fresh and not record.abort_requested


def cancelled_above(
    view: View,
    id: TaskId,
    marked: frozenset[TaskId] = frozenset(),
    failing: frozenset[TaskId] = frozenset(),
    known: dict[TaskId, TaskId | None] | None = None,
) -> TaskId | None:
    """O5: the nearest cancelled live owner, not looking past a background task that is not cancelled itself.

    `known` keeps the answers for everything on the way, so that many questions about one tree cost one walk.
    """
    if view.background(id):
        return None
    source: TaskId | None = None
    passed = [id]
    for above in ancestors(view, id):
        if is_cancelled(view, above, marked, failing):
            source = above
            break
        if view.background(above):
            break
        if known is not None and above in known:
            source = known[above]
            break
        passed.append(above)
    if known is not None:
        known.update(dict.fromkeys(passed, source))
    return source


def is_cancelled(
    view: View, id: TaskId, marked: frozenset[TaskId] = frozenset(), failing: frozenset[TaskId] = frozenset()
) -> bool:
    """O5: a live task with an abort mark, or with a held outcome other than completed. A terminal one never is."""
    record = view.task(id)
    if record is None or not record.live:
        return False
    return record.abort_requested or id in marked or id in failing or holds_failure(record)


def conversation_cancelled(view: View, owner: TaskId | None, marked: frozenset[TaskId] = frozenset()) -> TaskId | None:
    """S4, O5: the cancelled task that a conversation owned by `owner` is cancelled with."""
    if owner is None:
        return None
    if is_cancelled(view, owner, marked):
        return owner
    return None if view.background(owner) else cancelled_above(view, owner, marked)
