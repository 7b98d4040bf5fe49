"""Owns putting a scene together: where it came from, what its walk knows, and what is supposed of the world.

Never takes a step and never reads a file that it was not given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pidurable_nb.agent.opening import CODE
from pidurable_nb.agent.stored.recovery import TOOL
from pidurable_nb.engine.graph import NotReady, edges
from pidurable_nb.engine.phase import Phase
from pidurable_nb.engine.rows import number
from pidurable_nb.ids import Json, TaskId
from pidurable_nb.lab.looking.program import Program
from pidurable_nb.lab.outside.world import read_ledger
from pidurable_nb.lab.scene.diff import whole_row
from pidurable_nb.lab.scene.effects import Counted, Happened, Seen, effects_of
from pidurable_nb.lab.scene.facts import Facts
from pidurable_nb.lab.scene.graph import Drawing, Graph
from pidurable_nb.lab.scene.lives import Life, memos_in, moves_in
from pidurable_nb.lab.scene.losing import lost_in
from pidurable_nb.lab.scene.parts import Entries, Move, PhaseEdge, Task, short
from pidurable_nb.lab.scene.reading import NothingThere, Of, OfRow, there, whole
from pidurable_nb.lab.scene.rows import Known, label_of, moved, proven, submissions_of, task_of, tasks_of
from pidurable_nb.lab.scene.scene import Choice, Law, Option, Outside, PointRow, Scene, StepShown, TableRow, Totals
from pidurable_nb.lab.scene.step import next_words, shown
from pidurable_nb.lab.scene.taken import Taken
from pidurable_nb.lab.scene.timeline import Past, StepTaken, past_of_file, past_of_lives, timeline
from pidurable_nb.lab.scene.transcript import WINDOW, talks_of, window_of
from pidurable_nb.lab.scene.walk import Moment, Walking
from pidurable_nb.lab.scene.words import died_at, died_in, laws_of, many
from pidurable_nb.probe import Mark
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord

NOTHING: Final = "Nothing to recover: every task had ended."
NO_TASK: Final = "Nothing to recover: there is no task."
UNTOUCHED: Final = "Nothing is touched yet; opening the file the ordinary way would erase where it died."


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a scene came from: the lives before it, or a file, and what is known of both."""

    store: str
    scenario: str | None
    how: str | None
    verb: str
    title: str
    say: str
    past: Past
    happened: tuple[Happened, ...] = ()
    before: Mapping[str, int] | None = None
    ledger: Path | None = None
    moves: Mapping[TaskId, tuple[Move, ...]] = field(default_factory=dict)
    whole: frozenset[TaskId] = frozenset()
    memos: Mapping[TaskId, Mapping[str, str]] = field(default_factory=dict)
    lost: Mapping[TaskId, str] = field(default_factory=dict)
    lost_memos: tuple[tuple[str, Mark], ...] = ()
    dead: TaskId | None = None


def origin_of_lives(scenario: str, lives: Sequence[Life], walking: Walking, ledger: Path) -> Origin:
    """A scenario whose last life died."""
    last = lives[-1]
    place, facts = last.point.place, walking.here.facts
    record = facts.tasks.get(last.task) if last.task is not None else None
    what = _doing(last.inside, facts, record)
    moves, whole = moves_in(lives)
    return Origin(
        store=last.store.name,
        scenario=scenario,
        how=last.how,
        verb="killed" if last.kind == "kill" else "frozen",
        title=died_in(label_of(facts, record), record) if record is not None else str(place),
        say=died_at(last.point, what, asked=last.asked),
        past=past_of_lives(lives, walking.base),
        happened=tuple(
            Happened(name=one.name, task=one.task, kept=one.kept, here=False) for life in lives for one in life.effects
        ),
        ledger=ledger,
        moves=moves,
        whole=whole,
        memos=memos_in(lives),
        lost=_lost(lives, ledger),
        lost_memos=tuple((f"life {life.number}", mark) for life in lives for mark in life.lost),
        dead=last.task,
    )


def _nothing(facts: Facts) -> str:
    return NOTHING if facts.tasks else NO_TASK


def _doing(effect: str | None, facts: Facts, record: TaskRecord | None) -> str:
    """What a task does when it dies: the tool of a call, or the effect by its own name."""
    if record is not None and (record.kind == TOOL or effect is None):
        return short(label_of(facts, record), 60)
    return short(effect or "it", 60)


def _lost(lives: Sequence[Life], ledger: Path) -> Mapping[TaskId, str]:
    """What calls gave that nobody stored, as the ledger has it."""
    gave: dict[str, Json] = {line.effect: line.value for line in read_ledger(ledger) if line.edge == "after"}
    found: dict[TaskId, str] = {}
    for life in lives:
        for effect in life.effects:
            if effect.task is None or effect.ended is None or effect.kept:
                continue
            match gave.get(effect.name):
                case {"content": list(blocks)}:
                    texts = [block.get("text") for block in blocks if isinstance(block, Mapping)]
                    found[effect.task] = "\n".join(text for text in texts if isinstance(text, str))
                case _:
                    pass
    return found


def origin_of_file(name: str, walking: Walking, before: Mapping[str, int] | None) -> Origin:
    """A file that was found, from wherever."""
    running = [r for r in walking.here.facts.live() if isinstance(r.state, stored.Running)]
    live = sum(1 for _ in walking.here.facts.live())
    if running:
        how = f"not closed: {many(len(running), 'task')} stored as running"
        what = "task is" if len(running) == 1 else "tasks are"
        say = f"{number(len(running)).capitalize()} {what} stored as running: nobody closed this store."
    else:
        how = None
        what = "task goes" if live == 1 else "tasks go"
        say = (
            f"It was closed in order; {number(live)} {what} on when it is opened."
            if live
            else _nothing(walking.here.facts)
        )
    return Origin(
        store=name, scenario=None, how=how, verb="found", title=many(len(running) or live, "task"), say=say,
        past=past_of_file(walking.base, how), before=before,
    )  # fmt: skip


def edges_of(program: Program) -> Mapping[str, tuple[PhaseEdge, ...]]:
    """The state diagrams of the code at hand, by kind; those of the built-in kinds where there is any."""
    firsts: dict[str, type[Phase[object]]] = {} if program.empty else dict(CODE)
    for first in (*program.tasks, *(task for extension in program.extensions for task in extension.tasks)):
        if first._task is not None:
            firsts[first._task] = first
    found: dict[str, tuple[PhaseEdge, ...]] = {}
    for kind, first in firsts.items():
        arrows = edges(first)
        if not isinstance(arrows, NotReady):
            found[kind] = tuple(dict.fromkeys(PhaseEdge(from_=one.source, to=one.target) for one in arrows))
    return found


class Stage:
    """A walk and where it came from: gives the scene at each of its positions."""

    def __init__(self, walking: Walking, origin: Origin) -> None:
        self.walking = walking
        self._origin = origin
        self._lens: dict[TaskId, bool] = {}
        self._kept = self._kept_before()
        self._drawing = Drawing()

    def close(self) -> None:
        """Drop the walk. Idempotent."""
        self.walking.close()

    def suppose(self, happened: bool) -> None:
        """Suppose, of the effect that this step cut off, that it happened or not. Nothing runs."""
        taken = self.walking.here.taken
        if taken is not None and taken.step.task is not None:
            self._lens[taken.step.task] = happened

    def entries(self, conversation: int, start: int, count: int) -> Entries:
        """A window of a transcript at this position."""
        return window_of(self.walking.here.facts, self._known(), conversation, start, count)

    def text(self, of: Of) -> str:
        """A text that a scene shows cut, whole, at this position. Raises NothingThere."""
        if isinstance(of, OfRow):
            return self._row(of)
        return whole(self.walking.here.facts, self._known(), of)

    def graph(self) -> Graph:
        """All tasks of this position as a picture."""
        return self._drawing.of(self.walking.here.facts)

    def task(self, id: int) -> Task:
        """One task of this position. Raises NothingThere."""
        facts = self.walking.here.facts
        return task_of(facts, self._known(), there(facts, id))

    def _row(self, of: OfRow) -> str:
        moments = self.walking.moments
        taken = moments[of.position].taken if 0 <= of.position < len(moments) else None
        found = whole_row(taken.changes, taken.after, of.row) if taken is not None and of.row >= 0 else None
        if found is None:
            raise NothingThere(f"step {of.position} changed no such row")
        return found.before if of.side == "before" else found.after

    def scene(self, points: tuple[PointRow, ...]) -> Scene:
        """Everything at this position."""
        walking, origin, moment = self.walking, self._origin, self.walking.here
        facts, known = moment.facts, self._known()
        cols, bars = timeline(origin.past, self._columns(), walking.position)
        named = [moment.taken.step.task] if moment.taken is not None and moment.taken.step.task is not None else []
        return Scene(
            store=origin.store,
            scenario=origin.scenario,
            how=origin.how,
            position=walking.position,
            last=walking.last,
            next=next_words(moment.mark, facts, moment.rulings, again=walking.repeats_next()),
            words=_nothing(facts) if walking.position == 0 and walking.last == 0 and not moment.rulings else None,
            timeline=cols,
            bars=bars,
            conversations=talks_of(facts),
            entries=window_of(facts, known, self._conversation(moment), None, WINDOW),
            tasks=tasks_of(facts, known, named),
            submissions=submissions_of(facts, known),
            effects=effects_of(facts, self._seen(known)),
            step=self._step(moment),
            points=points,
            totals=Totals(
                tasks=len(facts.tasks), live=sum(1 for _ in facts.live()), submissions=len(facts.submissions),
                conversations=len(facts.conversations),
            ),
        )  # fmt: skip

    def _conversation(self, moment: Moment) -> int | None:
        """The conversation that the step is about, else one in which something lives, else the first."""
        facts = moment.facts
        task = moment.taken.step.task if moment.taken is not None else self._origin.dead
        record = facts.tasks.get(task) if task is not None else None
        record = record if record is not None else next(facts.live(), None)
        return record.conversation if record is not None else min(facts.conversations, default=None)

    # -- what is known -------------------------------------------------------------------------------------------------

    def _known(self) -> Known:
        walking, moment = self.walking, self.walking.here
        moves, whole = self._moves()
        memos, new = self._memos()
        running = {record.id for record in moment.facts.live() if isinstance(record.state, stored.Running)}
        at_start = walking.position == 0
        return Known(
            moves=moves,
            whole=whole,
            verdicts={id: r.name for id, r in moment.rulings.items() if at_start or id not in running},
            done=moment.done,
            submissions={id: name for id, (name, _) in moment.submissions.items()},
            policies=walking.policies(),
            memos=memos,
            new_memos=new,
            lost_memos=lost_in(
                (
                    *self._origin.lost_memos,
                    *((f"this recovery · step {t.step.n}", mark) for t in walking.taken() for mark in t.step.lost),
                )
            ),
            lost=self._origin.lost,
            edges=walking.edges,
            limit=walking.policy.restart_limit,
            new=frozenset(moment.taken.step.changed) if moment.taken is not None else frozenset(),
        )

    def _moves(self) -> tuple[Mapping[TaskId, tuple[Move, ...]], frozenset[TaskId]]:
        """The ways of tasks: of the lives before, where they lead to what is stored, then of the steps."""
        moves: dict[TaskId, tuple[Move, ...]] = {}
        whole: set[TaskId] = set()
        base = self.walking.moments[0].facts
        for taken in self.walking.taken():
            for id, record in taken.after.patches[-1].tasks.items():
                before = taken.before.tasks.get(id)
                if id not in moves:
                    told = self._told(base.tasks[id]) if id in base.tasks else ()
                    moves[id] = told if told is not None else proven(base.tasks[id])
                    if told is not None and (id not in base.tasks or id in self._origin.whole):
                        whole.add(id)
                moves[id] = (*moves[id], *moved(before, record, crashed=taken.opens))
        for id in self._origin.moves:
            if id not in moves and id in base.tasks and (told := self._told(base.tasks[id])) is not None:
                moves[id] = told
                whole |= {id} & self._origin.whole
        return moves, frozenset(whole)

    def _told(self, record: TaskRecord) -> tuple[Move, ...] | None:
        moves = self._origin.moves.get(record.id)
        return moves if moves is not None and (not moves or moves[-1].to == record.status) else None

    def _memos(self) -> tuple[Mapping[TaskId, Mapping[str, tuple[Json, str]]], frozenset[tuple[TaskId, str]]]:
        """Every memo that was seen, with who wrote it; and those that this very step wrote."""
        found = {id: dict(kept) for id, kept in self._kept.items()}
        new: set[tuple[TaskId, str]] = set()
        for taken in self.walking.taken():
            new.clear()
            for id, record in taken.after.patches[-1].tasks.items():
                for name, value in record.memos.items():
                    if name not in found.get(id, {}):
                        found.setdefault(id, {})[name] = (value, f"this recovery · commit {taken.step.seq}")
                        new.add((id, name))
        return found, frozenset(new)

    def _kept_before(self) -> Mapping[TaskId, Mapping[str, tuple[Json, str]]]:
        """The memos that the file holds, with who wrote them."""
        writers = self._origin.memos
        return {
            id: {name: (value, writers.get(id, {}).get(name, "an earlier life")) for name, value in kept.items()}
            for id, record in self.walking.base.tasks.items()
            if (kept := record.memos)
        }

    def _seen(self, known: Known) -> Seen:
        taken = self.walking.taken()
        here: list[Happened] = []
        for at, one in enumerate(taken):
            if one.step.effect is not None:
                kept = any(
                    later.step.task == one.step.task and later.step.seq is not None and later.step.effect is None
                    for later in taken[at + 1 :]
                )
                here.append(
                    Happened(
                        name=one.step.effect,
                        task=one.step.task,
                        kept=kept,
                        here=True,
                        again=one.again,
                        supposed=one.chosen != "run",
                    )
                )
        spared = {one.step.task for one in taken if one.since == 0 and one.repeats is not None}
        ledger = self._origin.ledger
        return Seen(
            happened=(*self._origin.happened, *here),
            ledger=read_ledger(ledger) if ledger is not None else None,
            before=self._origin.before,
            done=known.done,
            policies=known.policies,
            spared=frozenset(id for id in spared if id is not None),
            lens=self._lens,
            new=known.new,
            step_effect=taken[-1].step.effect if taken else None,
        )

    # -- the step ------------------------------------------------------------------------------------------------------

    def _columns(self) -> Sequence[StepTaken]:
        return [
            StepTaken(
                position=position, n=taken.step.seq, mark=taken.shown_mark, verb=taken.verb, title=taken.title,
                task=taken.step.task, submission=taken.settled[0] if taken.settled else None,
                effect=taken.step.effect if taken.asked else None,
            )
            for position, moment in enumerate(self.walking.moments)
            if (taken := moment.taken) is not None
        ]  # fmt: skip

    def _step(self, moment: Moment) -> StepShown:
        if moment.taken is None:
            return self._before(moment)
        step = shown(moment.taken, lens=self._lens_at(moment.taken))
        left = self._left(moment)
        if left is None:
            return step
        return replace(step, note=left if step.note is None else f"{step.note} {left}")

    def _left(self, moment: Moment) -> str | None:
        if moment.mark is not None:
            return None
        if self.walking.died:
            return "This life is over: the next opening counts it."
        if not moment.stopped:
            return "Nothing is left to do."
        needs = "; ".join(f"task {id} needs {short(need, 60)}" for id, need in moment.stopped[:5])
        return f"Nothing moves any further here: {needs}."

    def _before(self, moment: Moment) -> StepShown:
        origin, facts = self._origin, moment.facts
        outside: Outside = "none"
        for ruling in moment.rulings.values():
            outside = ruling.outside if ruling.outside == "unknown" or outside == "none" else outside
        table = [
            TableRow(task=r.task, submission=None, verdict=r.name, because=r.because, outside=r.outside)
            for r in moment.rulings.values()
        ]
        left = self._left(moment) if moment.rulings else None
        crashed = origin.how is not None
        return StepShown(
            n=0, group="at the crash" if crashed else "as it was left", verb=origin.verb,
            mark="crash" if crashed else "none", title=origin.title, say=origin.say,
            note=f"{UNTOUCHED} {left}" if left is not None else UNTOUCHED, outside=outside,
            laws=laws_of(("C2", "T7") if crashed else ("T7",)) if facts.tasks else tuple[Law, ...](),
            table=(*table[:200], *self._submission_rows(moment)), task=origin.dead,
        )  # fmt: skip

    def _submission_rows(self, moment: Moment) -> Sequence[TableRow]:
        return [
            TableRow(task=None, submission=id, verdict=name, because=because, outside="none")
            for id, (name, because) in list(moment.submissions.items())[:100]
        ]

    def _lens_at(self, taken: Taken) -> Choice | None:
        """At a call that is not run again: did it happen? The rows are the same either way."""
        if taken.step.verdict != "interrupt" or taken.step.task is None:
            return None
        task = taken.step.task
        truth = self._truth(task)
        supposed = self._lens.get(task, truth)
        rows = many(len(taken.step.changed), "row")
        only = " Only the ledger can." if truth is not None else ""
        then = f"Same {rows} either way: the store cannot tell.{only}"
        record = taken.after.tasks.get(task)
        name = short(label_of(taken.after, record), 60) if record is not None else "call"
        return Choice(
            question=f"Suppose that, outside, the {name}…", kind="lens",
            options=tuple(
                Option(
                    id=id, label=label, chosen=supposed is value, disabled=None, then=then,
                    detail="what the ledger says" if truth is value else "a supposition",
                )
                for id, label, value in (("happened", "happened", True), ("not", "did not happen", False))
            ),
        )  # fmt: skip

    def _truth(self, task: TaskId) -> bool | None:
        """Whether the ledger says that the effect of this task was done: answered, or applied by the outside."""
        if self._origin.ledger is None:
            return None
        names = {one.name for one in self._origin.happened if one.task == task}
        counted = Counted(read_ledger(self._origin.ledger))
        return any(counted.answered.get(name) or counted.applied.get(name) for name in names)
