"""Owns running the lives of a scenario until they die, and what is known of them afterwards.

A life dies by freezing, in this process, or by SIGKILL, in a child of the fork server; both on the deterministic loop,
so that a point is reached again. Never recovers one and never shows it.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pidurable_nb.errors import NotAStore
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.dying.crash import CrashKind, Passed, read_journal
from pidurable_nb.lab.dying.forkserver import ForkServer
from pidurable_nb.lab.dying.heard import Heard
from pidurable_nb.lab.dying.lane import in_thread
from pidurable_nb.lab.dying.point import Point, TaskPlace
from pidurable_nb.lab.dying.run import CHILD, LIFE_S, DidNotDie, Plan, asked_of_child, carry, run_here
from pidurable_nb.lab.outside.world import copy_ledger, read_ledger
from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.scene.parts import Move
from pidurable_nb.lab.scene.rows import moved
from pidurable_nb.probe import Mark
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.store.stranger import StoreFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A commit of a life: its number, who made it, and what it changed, where anybody listened."""

    seq: int
    task: TaskId | None
    by: str
    changes: Heard | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """An effect of a life. `begun` and `ended` count the commits before it began and ended; None: it never ended.

    `kept`: its task made a commit behind it.
    """

    name: str
    task: TaskId | None
    begun: int
    ended: int | None
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A life that died at `point`: in `task`, and in the effect `inside`, where it was in any.

    `asked`: it died before an effect, which was begun all the same: the effect itself is what ended the process.
    `store` is the file as it was then. `lost` are the memos that came second in it.
    """

    number: int
    kind: CrashKind
    point: Point
    store: Path
    ended_ms: int
    task: TaskId | None
    inside: str | None
    commits: tuple[Committed, ...]
    effects: tuple[Performed, ...]
    lost: tuple[Mark, ...] = ()
    asked: bool = False

    @property
    def how(self) -> str:
        """How it died, and where."""
        return f"{'killed by SIGKILL' if self.kind == 'kill' else 'frozen'} at {self.point}"


def live(scenario: Scenario, plans: Sequence[Point], folder: Path, server: ForkServer | None) -> tuple[Life, ...]:
    """Run one life after the other in `folder`, each until its point: it is killed in a child of `server`, or frozen.

    The ledger is `ledger.jsonl` there.

    `N/effects.jsonl` is what the ledger was when life N died.

    Raises: DidNotDie, ForkServerError, and what the scenario itself raises.
    """
    ledger = folder / "ledger.jsonl"
    lives: list[Life] = []
    plan = Plan(kind="freeze" if server is None else "kill")
    for number, point in enumerate(plans, 1):
        here = folder / str(number)
        here.mkdir()
        store = here / f"{scenario.name}.sqlite"
        if lives:
            carry(lives[-1].store, here)
        plan = replace(plan, number=number, at=replace(point, life=number), journal=here / "journal.jsonl")
        if server is None:
            lives.append(_frozen(scenario, store, ledger, plan))
        else:
            lives.append(_killed(scenario, store, ledger, plan, server))
        copy_ledger(ledger, here / "effects.jsonl")
        plan = plan.then(lives[-1].ended_ms)
    return tuple(lives)


def _frozen(scenario: Scenario, store: Path, ledger: Path, plan: Plan) -> Life:
    began = _next_seq(store)
    lived = in_thread(lambda: run_here(scenario, store, ledger, plan, image=store.parent / "dead"))
    if lived.image is None or lived.crashed is None:
        raise DidNotDie(f"{plan.at} was not reached{_why(lived.error)}; choose a point that its life passes")
    effects = {
        at: passed.mark.name or ""
        for at, passed in enumerate(lived.passed)
        if passed.mark is not None and passed.point.what == "effect"
    }
    heard = [commit for each in lived.published if (commit := Heard.of(each)) is not None]
    asked = _asked(ledger, plan.number, lived.points, effects)
    told = _Told(lived.image, lived.points, effects, began, heard, asked=asked)
    return Life(
        number=plan.number, kind="freeze", point=lived.crashed, store=lived.image, ended_ms=lived.passed[-1].at_ms,
        task=told.task, inside=told.inside, commits=tuple(told.commits), effects=tuple(told.effects), lost=lived.lost,
        asked=asked,
    )  # fmt: skip


def _killed(scenario: Scenario, store: Path, ledger: Path, plan: Plan, server: ForkServer) -> Life:
    began = _next_seq(store)
    ended = server.run(CHILD, asked_of_child(scenario, store, ledger, plan), timeout_s=LIFE_S)
    assert plan.journal is not None
    journal = read_journal(plan.journal)
    if ended.signal != signal.SIGKILL or ended.timed_out or journal.ended_ms is None:
        said = ended.error.strip().rpartition("\n")[2]
        raise DidNotDie(f"{plan.at} was not reached{_why(said)}; choose a point that its life passes")
    asked = _asked(ledger, plan.number, journal.points, journal.effects)
    told = _Told(store, journal.points, journal.effects, began, journal.heard, asked=asked)
    return Life(
        number=plan.number, kind="kill", point=journal.points[-1], store=store, ended_ms=journal.ended_ms,
        task=told.task, inside=told.inside, commits=tuple(told.commits), effects=tuple(told.effects), lost=journal.lost,
        asked=asked,
    )  # fmt: skip


def _asked(ledger: Path, life: int, points: Sequence[Point], names: Mapping[int, str]) -> bool:
    """Whether the effect before which a life died was begun: the ledger has as many beginnings as there are points."""
    if not points or points[-1].what != "effect" or points[-1].edge == "after":
        return False
    name = names.get(len(points) - 1)
    passed = sum(1 for at, one in names.items() if one == name and points[at].edge == "before")
    lines = (line for line in read_ledger(ledger) if line.life == life and line.edge == "before")
    return sum(line.effect == name for line in lines) == passed


class _Told:
    """What the points of a life tell: its commits and effects, in order. `names` are those of effects, by point."""

    def __init__(
        self,
        store: Path,
        points: Sequence[Point],
        names: Mapping[int, str],
        began: int,
        heard: Sequence[Heard],
        *,
        asked: bool,
    ) -> None:
        self.commits: list[Committed] = []
        self.effects: list[Performed] = []
        self._began = began
        self._heard = {commit.seq: commit for commit in heard}
        self._tasks = _by_kind(store)
        self._open: dict[Point, int] = {}
        self.task = self._task(points[-1]) if points else None
        self.inside = names.get(len(points) - 1) if points and points[-1].what == "effect" else None
        for at, point in enumerate(points):
            if point.what == "publish" and point.edge == "before":
                self._commit(point)
            elif point.what == "effect" and point.edge == "before" and at in names:
                if at + 1 == len(points) and not asked:
                    continue  # it died before anybody was asked
                self._open[replace(point, edge="after")] = len(self.effects)
                begun = Performed(
                    name=names[at], task=self._task(point), begun=len(self.commits), ended=None, kept=False
                )
                self.effects.append(begun)
            elif point in self._open:
                ended = self._open[point]
                self.inside = self.effects[ended].name if at + 1 == len(points) else self.inside
                self.effects[ended] = replace(self.effects[ended], ended=len(self.commits))

    def _commit(self, point: Point) -> None:
        seq, task = self._began + len(self.commits), self._task(point)
        self.commits.append(Committed(seq=seq, task=task, by=str(point.place), changes=self._heard.get(seq)))
        for at, effect in enumerate(self.effects):
            if effect.ended is not None and effect.task == task:
                self.effects[at] = replace(effect, kept=True)

    def _task(self, point: Point) -> TaskId | None:
        place = point.place
        if not isinstance(place, TaskPlace):
            return None
        ids = self._tasks.get(place.kind, [])
        return ids[place.ordinal - 1] if place.ordinal <= len(ids) else None


def _by_kind(store: Path) -> Mapping[str, list[TaskId]]:
    """The tasks of a store by kind, in the order in which points count them."""
    found: dict[str, list[TaskId]] = {}
    with suppress(NotAStore), StoreFile.open(store) as file:
        for record in file.tasks():
            found.setdefault(record.kind, []).append(record.id)
    return found


def _next_seq(store: Path) -> int:
    if not store.exists():
        return 1
    with StoreFile.open(store) as file:
        return file.next_seq


def _why(said: object) -> str:
    return f": {said}" if said else ""


def points_of(
    scenario: Scenario, folder: Path, dead: Life | None = None, ledger: Path | None = None
) -> Sequence[Passed]:
    """Every point of an undisturbed life: the first, or the one behind a life that died. Runs in `folder`."""
    store = folder / f"{scenario.name}.sqlite"
    plan = Plan()
    if dead is not None:
        carry(dead.store, folder)
        plan = replace(plan, number=dead.number).then(dead.ended_ms)
    copied = copy_ledger(ledger, folder / "ledger.jsonl") if ledger is not None else folder / "ledger.jsonl"
    return in_thread(lambda: run_here(scenario, store, copied, plan)).passed


# --- What the commits tell --------------------------------------------------------------------------------------------


def moves_in(lives: Sequence[Life]) -> tuple[Mapping[TaskId, tuple[Move, ...]], frozenset[TaskId]]:
    """The ways that tasks took in these lives, as their commits say; and the tasks of which every commit is known."""
    moves: dict[TaskId, tuple[Move, ...]] = {}
    broken: set[TaskId] = set()
    last: dict[TaskId, TaskRecord] = {}
    for life in lives:
        for commit in life.commits:
            for id, change in commit.changes.tasks.items() if commit.changes is not None else ():
                before = change.before if change.before is not None else last.get(id)
                opened = _reopened(last.get(id), before)
                if before is not None and not opened and (id not in last or last[id].state != before.state):
                    broken.add(id)  # a commit in between went by unheard
                moves[id] = (*moves.get(id, ()), *opened, *moved(before, change.after))
                last[id] = change.after
    if any(commit.changes is None for life in lives[:1] for commit in life.commits):
        return {}, frozenset()
    return moves, frozenset(moves) - broken


def _reopened(last: TaskRecord | None, before: TaskRecord | None) -> tuple[Move, ...]:
    """What an opening did between: its commit comes before anybody listens (T7)."""
    if last is None or before is None or (last.status, before.status) != ("running", "pending"):
        return ()
    return (Move(from_="running", to="pending", crash=True),)


def memos_in(lives: Sequence[Life]) -> Mapping[TaskId, Mapping[str, str]]:
    """Who wrote each memo: the life and the commit, where the commit is known."""
    found: dict[TaskId, dict[str, str]] = {}
    for life in lives:
        for commit in life.commits:
            for id, change in commit.changes.tasks.items() if commit.changes is not None else ():
                for name in change.after.memos:
                    found.setdefault(id, {}).setdefault(name, f"life {life.number} · commit {commit.seq}")
    return found
