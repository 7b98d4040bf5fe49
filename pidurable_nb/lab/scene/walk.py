"""Owns one recovery that is walked for a scene: the stepper, what is known at each position, and the world of the copy.

Going back restores the copy and, with it, the ledger of its world; what was seen of later steps is kept for drawing
until another way is taken. Never touches the store that it was given, and words nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

from pidurable_nb.agent.stored.recovery import AssumedCode, stored_replay
from pidurable_nb.engine.decide import Policy, Verdict, decide_tasks
from pidurable_nb.engine.registry import Code, Registry
from pidurable_nb.engine.submissions import decide_submissions
from pidurable_nb.ids import Json, SubmissionId, TaskId
from pidurable_nb.lab.looking.program import Program
from pidurable_nb.lab.outside.world import World, read_ledger
from pidurable_nb.lab.scene.facts import Base, Facts, patch_of
from pidurable_nb.lab.scene.parts import PhaseEdge
from pidurable_nb.lab.scene.ruling import Ruling, ruling_of
from pidurable_nb.lab.scene.taken import MARK, Chosen, Counts, Taken
from pidurable_nb.lab.walking.stepper import Stepper
from pidurable_nb.lab.walking.walk import Choice, Perform, Step, just_run
from pidurable_nb.probe import Mark, TaskSubject
from pidurable_nb.store.copying import copy_store
from pidurable_nb.store.stranger import StoreFile

V = TypeVar("V")
OPENING: Final = 1 << 40
"""Stands for the number of an opening that is under way: no fault that is stored was kept by it."""
UNCUT: Final = timedelta(days=1)
"""What arrives is not stored in between (V5): no step ends there, and going back leaves out none of it."""
ASK: Final = "ask "


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is known at one position. `taken` is the step that led there, `mark` where the walk stands.

    `done` are the verdicts acted on so far; `repeats` the reservations behind which no commit came yet, with how many
    effects were asked since.
    """

    facts: Facts
    rulings: Mapping[TaskId, Ruling]
    submissions: Mapping[SubmissionId, tuple[str, str]]
    mark: Mark | None
    taken: Taken | None = None
    ledger: bytes | None = None
    done: Mapping[TaskId, str] = field(default_factory=dict)
    repeats: Mapping[TaskId, tuple[Ruling, int]] = field(default_factory=dict)
    stopped: tuple[tuple[TaskId, str], ...] = ()


class Walking:
    """A recovery of a copy of `store`, one position at a time. `earlier` are the effects of earlier lives, by task.

    With a `ledger`, a file of the caller's own, effects go to a world that counts there; else to `perform`, and
    `before` says how often others were asked before, where somebody counted.
    """

    def __init__(
        self,
        store: Path,
        *,
        program: Program,
        edges: Mapping[str, tuple[PhaseEdge, ...]],
        now_ms: int | None,
        ledger: Path | None = None,
        life: int = 2,
        perform: Perform = just_run,
        earlier: frozenset[tuple[TaskId | None, str]] = frozenset(),
        before: Mapping[str, int] | None = None,
    ) -> None:
        self.edges = edges
        self.position = 0
        self.last: int | None = None
        self._program = program
        self._ledger = ledger
        self._life = life
        self._other = perform
        self._earlier = earlier
        self._before = before
        self._world = World(ledger, life) if ledger is not None else None
        self._hand: tuple[Json] | None = None
        self._answers: dict[int, tuple[Json]] = {}
        self._replaying = False
        self._folder = tempfile.TemporaryDirectory(prefix="pidurable_nb-scene-", ignore_cleanup_errors=True)
        self._file = StoreFile.of_copy(copy_store(store, Path(self._folder.name)))
        self.base = Base(self._file)
        self._code: Code = AssumedCode(installed=Registry()) if program.empty else program.code_for(self._file)
        self._stepper = Stepper(
            store, tasks=program.tasks, tools=program.tools, extensions=program.extensions, models=program.models,
            settings=replace(program.settings, progress_every=UNCUT), now_ms=now_ms, perform=self._perform,
        )  # fmt: skip
        self.moments: list[Moment] = [self._first()]
        self._at_end()

    @property
    def policy(self) -> Policy:
        """What the host decided."""
        return self._program.settings.engine.policy

    @property
    def here(self) -> Moment:
        """What is known at this position."""
        return self.moments[self.position]

    @property
    def died(self) -> bool:
        """Whether this recovery crashed its own process."""
        return self._stepper.died

    def close(self) -> None:
        """Drop the walk and its copies. Idempotent."""
        self._stepper.close()
        self._file.close()
        self._folder.cleanup()

    # -- moving --------------------------------------------------------------------------------------------------------

    def next(self) -> bool:
        """Take one step, the one that is known where there is one. False at the end."""
        known = self.moments[self.position + 1] if self.position + 1 < len(self.moments) else None
        if known is None or known.taken is None:
            return self._take("run", "run")
        again: Choice = "run" if known.taken.died else "auto"
        return self._take(again, known.taken.chosen, known)

    def back_to(self, position: int) -> None:
        """Go back to an earlier position; the copy and the ledger are as they were."""
        if position >= self.position:
            return
        self._replaying = True
        self._stepper.back_to(position)
        self._replaying = False
        self.position = position
        self._restore(self.here.ledger)

    def choose(self, chosen: Chosen) -> None:
        """Take the last step, an effect, once more in this way; what came behind it is discarded."""
        taken = self.here.taken
        if taken is None or taken.chosen == chosen:
            return
        answer = self.recorded(self.position, taken)
        self.back_to(self.position - 1)
        self._forget()
        if chosen == "record":
            assert answer is not None
            self._hand = answer
        self._take("run" if chosen in ("run", "record") else chosen, chosen)
        self._hand = None

    def _forget(self) -> None:
        """What is known of later steps was of another way."""
        del self.moments[self.position + 1 :]
        self._answers = {at: answer for at, answer in self._answers.items() if at <= self.position + 1}
        self.last = None

    def recorded(self, position: int, taken: Taken) -> tuple[Json] | None:
        """The answer that is kept of an effect: of this walk, or of an earlier life by the ledger."""
        if position in self._answers:
            return self._answers[position]
        name, found = taken.step.effect, None
        if self._ledger is not None and name is not None:
            before = self.moments[position - 1].ledger
            count = before.count(b"\n") if before is not None else 0
            for line in read_ledger(self._ledger)[:count]:
                plain = not isinstance(line.value, Mapping) or name.startswith(ASK) or _of_tool(taken)
                if line.effect == name and line.edge == "after" and line.error is None and plain:
                    found = (line.value,)
        return found

    # -- one step ------------------------------------------------------------------------------------------------------

    def _take(self, choice: Choice, chosen: Chosen, known: Moment | None = None) -> bool:
        before, mark = self.here, self._stepper.next_mark
        step = self._stepper.next(choice) if mark is not None else None
        if step is None:
            self.last = self.position
            self.moments[self.position] = replace(before, mark=None, stopped=self._stepper.stopped())
            return False
        if known is not None and known.ledger is not None:
            self._restore(known.ledger)
        changes = self._stepper.changes(step)
        facts = before.facts.after(patch_of(changes, self._stepper))
        taken = self._taken(step, mark, before, facts, chosen)
        moment = self._moment(facts, replace(taken, changes=changes), before)
        if known is not None and not _same(known.taken, moment.taken):
            self._forget()
        self.position += 1
        self.moments[self.position : self.position + 1] = [moment]
        self._at_end()
        return True

    def _taken(self, step: Step, mark: Mark | None, before: Moment, facts: Facts, chosen: Chosen) -> Taken:
        task, first = step.task, self.moments[0].rulings
        counts = self._counts(step, before, chosen)
        repeats = before.repeats.get(task) if task is not None else None
        ends = step.effect is None and step.verdict is None and (mark is None or mark.what == "commit")
        again = step.effect is not None and self._was_asked(task, step.effect, repeats)
        taken = Taken(
            step=step,
            mark=mark,
            before=before.facts,
            after=facts,
            changes=(),
            ruled=before.rulings.get(task) if task is not None else None,
            first=first.get(task) if task is not None else None,
            seen=task in before.done,
            marked=any(one.step.task == task and one.step.verdict == MARK for one in self.taken()),
            chosen=chosen if step.effect is not None else "run",
            counts=counts,
            again=again,
            repeats=repeats[0] if repeats is not None and ends else None,
            since=repeats[1] if repeats is not None and ends else None,
            edges=self.edges,
            died=self._stepper.died,
            counted=self._ledger is not None or self._before is not None,
        )
        if step.effect is None:
            return taken
        here = self.position + 1 in self._answers
        kept = self.recorded(self.position + 1, taken) is not None
        return replace(taken, recorded="of this walk" if here else "the ledger kept one" if kept else None)

    def _moment(self, facts: Facts, taken: Taken, before: Moment) -> Moment:
        step, task = taken.step, taken.step.task
        done = dict(before.done)
        if task is not None and step.verdict not in (None, MARK):
            done[task] = step.verdict or ""
        done.update(dict.fromkeys(step.carried, "resume"))
        repeats = dict(before.repeats)
        if task is not None and step.kind == "reserve" and taken.ruled is not None and taken.ruled.outside == "again":
            repeats[task] = (taken.ruled, 0)
        elif task is not None and task in repeats and step.effect is not None:
            repeats[task] = (repeats[task][0], repeats[task][1] + 1)
        elif task is not None and task in repeats and taken.since is not None:
            del repeats[task]
        rulings, submissions = self._decided(facts)
        return Moment(
            facts=facts, rulings=rulings, submissions=submissions, mark=self._stepper.next_mark, taken=taken,
            ledger=self._ledger.read_bytes() if self._ledger is not None else None, done=done, repeats=repeats,
        )  # fmt: skip

    def _first(self) -> Moment:
        facts = Facts(self.base)
        verdicts = self._stepper.verdicts
        submissions = decide_submissions(self._stepper.snapshot, verdicts, self.policy)
        return Moment(
            facts=facts,
            rulings={id: ruling_of(verdict) for id, verdict in verdicts.items()},
            submissions={id: (verdict.name, verdict.because) for id, verdict in submissions.items()},
            mark=self._stepper.next_mark,
            ledger=self._ledger.read_bytes() if self._ledger is not None else None,
        )

    def _decided(self, facts: Facts) -> tuple[dict[TaskId, Ruling], dict[SubmissionId, tuple[str, str]]]:
        """What would become of everything that is live now. While a harness opens, its table is what is stored."""
        snapshot = facts.snapshot(OPENING)
        decided = self._stepper.decided()
        verdicts: Mapping[TaskId, Verdict]
        if decided is not None:
            verdicts = {verdict.id: verdict for verdict in decided}
        else:
            verdicts = decide_tasks(snapshot, self._code, self.policy, self._stepper.now_ms)
        submissions = decide_submissions(snapshot, verdicts, self.policy)
        rulings = {id: ruling_of(verdict) for id, verdict in verdicts.items()}
        return rulings, {id: (verdict.name, verdict.because) for id, verdict in submissions.items()}

    def _at_end(self) -> None:
        if self.here.mark is None:
            self.last = self.position
            self.moments[self.position] = replace(self.here, stopped=self._stepper.stopped())

    # -- the outside ---------------------------------------------------------------------------------------------------

    async def _perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> object:
        """The outside of the copy; or an answer that is handed in instead."""
        if self._hand is not None:
            (answer,), self._hand = self._hand, None
            return answer
        at = self.position + 1
        value = await (self._world.perform(mark, do) if self._world is not None else self._other(mark, do))
        if not self._replaying:
            self._answers[at] = (value,)  # type: ignore[assignment]  # recordable, as an effect's answer has to be
        return value

    def _restore(self, ledger: bytes | None) -> None:
        """The world as it was: who was asked there keeps nothing but the ledger."""
        if self._ledger is not None and ledger is not None:
            self._ledger.write_bytes(ledger)
            if self._world is not None and self._world.is_shut:
                self._world = World(self._ledger, self._life)

    def _counts(self, step: Step, before: Moment, chosen: Chosen) -> Counts:
        if step.effect is None:
            return Counts()
        if self._ledger is not None and before.ledger is not None:
            lines, old = read_ledger(self._ledger), before.ledger.count(b"\n")
            times = [at for at, line in enumerate(lines) if line.edge == "before" and line.effect == step.effect]
            return Counts(before=sum(1 for at in times if at < old), after=len(times))
        count = (self._before or {}).get(step.effect, 0)
        count += sum(1 for one in self.taken() if one.step.effect == step.effect and one.chosen == "run")
        return Counts(before=count, after=count + (chosen == "run" and step.asked))

    def _was_asked(self, task: TaskId | None, effect: str, repeats: tuple[Ruling, int] | None) -> bool:
        """Whether an earlier life, or this one, may have asked for the very same."""
        if (task, effect) in self._earlier:
            return True
        if any(one.step.task == task and one.step.effect == effect and one.chosen == "run" for one in self.taken()):
            return True
        if self._ledger is not None or repeats is None:
            return False
        return self._before is None or effect in self._before

    def repeats_next(self) -> bool:
        """Whether the next step is an effect that may have been asked for before."""
        mark = self.here.mark
        if mark is None or mark.what != "effect" or not isinstance(mark.subject, TaskSubject):
            return False
        return self._was_asked(mark.subject.id, mark.name or "", self.here.repeats.get(mark.subject.id))

    def taken(self) -> Sequence[Taken]:
        """The steps up to this position."""
        return [moment.taken for moment in self.moments[: self.position + 1] if moment.taken is not None]

    def policies(self) -> Mapping[TaskId, str]:
        """The replay policies that intents were stored with, as far as they were seen here."""
        found: dict[TaskId, str] = {}
        for moment in (self.moments[0], *self.moments[1 : self.position + 1]):
            records = moment.facts.live() if moment.taken is None else moment.facts.patches[-1].tasks.values()
            found.update({record.id: kept for record in records if (kept := stored_replay(record)) is not None})
        return found


def _of_tool(taken: Taken) -> bool:
    record = taken.after.tasks.get(taken.step.task) if taken.step.task is not None else None
    return record is not None and record.kind == "pi.tool"


def _same(one: Taken | None, other: Taken | None) -> bool:
    """Whether two passes over a step did the same."""
    if one is None or other is None:
        return one is other
    a, b = one.step, other.step
    return (a.kind, a.task, a.verdict, a.effect, a.changed) == (b.kind, b.task, b.verdict, b.effect, b.changed)
