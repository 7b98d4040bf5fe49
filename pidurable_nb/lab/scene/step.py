"""Owns how one step is told: its sentence, what was predicted and what happened, why, its rows, and its choice.

Never takes a step, and never decides: what it says comes from the step and from what was known right before it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pidurable_nb.engine import rows
from pidurable_nb.ids import TaskId
from pidurable_nb.lab.scene.compare import compared, reopens
from pidurable_nb.lab.scene.diff import diff_of
from pidurable_nb.lab.scene.facts import Facts
from pidurable_nb.lab.scene.parts import short
from pidurable_nb.lab.scene.rows import label_of
from pidurable_nb.lab.scene.ruling import Ruling, ids, ladder_of
from pidurable_nb.lab.scene.scene import Choice, Ladder, Option, Rung, StepShown
from pidurable_nb.lab.scene.taken import MARK, Taken
from pidurable_nb.lab.scene.words import laws_of, ordinal_rows, sentence
from pidurable_nb.probe import Mark as Place
from pidurable_nb.probe import TaskSubject
from pidurable_nb.records import task as stored


def shown(taken: Taken, *, lens: Choice | None = None) -> StepShown:
    """The step as it is told."""
    step = taken.step
    comparison = compared(taken)
    acts = step.verdict is not None and taken.ruled is not None and taken.ruled.name == step.verdict
    laws = (*step.laws, *(("E6",) if step.verdict == "interrupt" else ()), *(("S2",) if taken.settled else ()))
    settles = ("O6",) if step.kind == "reconcile" and step.verdict not in (None, MARK) else ()
    return StepShown(
        n=step.n,
        group=taken.group,
        verb=taken.verb,
        mark=taken.shown_mark,
        title=taken.title,
        say=_say(taken),
        note=_note(taken),
        outside=taken.outside,
        laws=laws_of((*laws, *settles)),
        predicted=comparison.predicted,
        happened=comparison.happened,
        agreement=comparison.agreement,
        ladder=_opening(taken) if taken.opens else ladder_of(taken.ruled) if acts and taken.ruled is not None else None,
        diff=diff_of(taken.changes, taken.after),
        commit=step.seq,
        choice=_choice(taken) if step.effect is not None else lens,
        task=step.task,
        submission=taken.settled[0] if taken.settled else None,
    )


def _say(taken: Taken) -> str:
    step = taken.step
    if taken.opens:
        return "Opening runs no task code: what was running becomes pending, with one restart counted."
    if step.effect is not None:
        return _effect_sentence(taken, step.effect)
    if taken.fault is not None:
        live = taken.after.tasks[step.task].live if step.task is not None else False
        rests = "it rests until the code changes or it is retried."
        return f"Its code raised an error; {rests if live else 'it ends as faulted.'}"
    if taken.settled and step.verdict is None:
        answered = all(r.status == "done" for id, r in taken.after.submissions.items() if id in taken.settled)
        one, has = ("submission is", "Its") if len(taken.settled) == 1 else ("submissions are", "Their")
        if answered:
            return f"{has} run has ended; the {one} done, with that answer."
        return f"{has} run has ended without an answer; the {one} settled so."
    return short(step.text, rows.LONGEST)


def _effect_sentence(taken: Taken, effect: str) -> str:
    if taken.died:
        return sentence("The process dies in it once more: {}.", effect)
    match taken.chosen:
        case "record":
            return sentence("It is not asked; the answer that was kept is handed in: {}.", effect)
        case "happened":
            return sentence("We suppose that it happened, and go on with no answer: {}.", effect)
        case "not":
            return sentence("We suppose that it never happened; the call raises: {}.", effect)
        case _:
            if taken.again and not taken.counted:
                return sentence("The outside is asked, as an earlier life may have: {}.", effect)
            if taken.again:
                return sentence("The outside is asked again: {}.", effect)
            if taken.counts.before:
                return sentence("The outside is asked; this is new, and no repeat: {}.", effect)
            return sentence("The outside is asked for the first time: {}.", effect)


def _note(taken: Taken) -> str | None:
    if taken.fault is not None:
        return short(taken.fault, 500)
    if taken.step.verdict == MARK:
        return "A mark runs no code: the abort handler comes later, bottom up."
    if taken.since == 0 and taken.repeats is not None:
        return "It could have happened again; what was stored before the crash kept it from that."
    return None


def _opening(taken: Taken) -> Ladder:
    """T7 as a decision: which tasks were stored as running."""
    running = [record.id for record in taken.before.live() if isinstance(record.state, stored.Running)]
    return Ladder(
        skipped=(),
        rungs=(
            Rung(
                question="Which tasks are stored as running?", answer=ids(running) or "none",
                read="tasks.status = running", exit="any other status → unchanged",
            ),
        ),
        end="pending, restarts + 1",
    )  # fmt: skip


# --- The choice -------------------------------------------------------------------------------------------------------


def _choice(taken: Taken) -> Choice:
    """What can be done at an effect. What is impossible stays, with its reason."""
    asks = (taken.step.effect or "").startswith("ask ")
    scope = "in all" if taken.counted else "in this recovery"
    could = f"Asked {taken.counts.before + 1} {scope}."
    spared = f"Asked {taken.counts.before} {scope}. Recovery by itself runs it."
    options = (
        Option(
            id="run", label="Run it", detail="a scripted model" if asks else "on the copy’s world",
            chosen=taken.chosen == "run", disabled=None, then=could,
        ),
        Option(
            id="record", label="Answer from record", detail=taken.recorded or "none recorded",
            chosen=taken.chosen == "record", then=spared,
            disabled=None if taken.recorded is not None else "no answer of it is kept",
        ),
        Option(
            id="happened", label="Assume it happened", detail="no answer", chosen=taken.chosen == "happened",
            disabled="no answer of a model to hand in" if asks else None, then=spared,
        ),
        Option(
            id="not", label="Assume it did not", detail="the request fails" if asks else "the call raises",
            chosen=taken.chosen == "not", disabled=None, then=spared,
        ),
    )  # fmt: skip
    return Choice(question="At this effect", kind="effect", options=options)


# --- What comes next --------------------------------------------------------------------------------------------------


def next_words(mark: Place | None, facts: Facts, rulings: Mapping[TaskId, Ruling], *, again: bool) -> str | None:
    """What Next will do, in a few words; None at the end. `again`: an effect that may have been asked for before."""
    if mark is None:
        return None
    subject = mark.subject
    task = facts.tasks.get(subject.id) if isinstance(subject, TaskSubject) else None
    name = short(label_of(facts, task), 60) if task is not None else "the session"
    match mark.what:
        case "open":
            running = sum(1 for record in facts.live() if reopens(record))
            return f"open the copy: {ordinal_rows(running)}"
        case "reconcile" if "T11" in mark.laws:
            return f"keep the fault of {name}"
        case "reconcile" if mark.name == MARK:
            return f"mark {name} for abort"
        case "reconcile":
            return f"{short(mark.name or 'settle', 40)} {name}, before anything starts"
        case "reserve":
            ruling = rulings.get(task.id) if task is not None else None
            twice = ", which may happen again outside" if ruling is not None and ruling.outside == "again" else ""
            return f"{short(mark.name or 'start', 40)} {name}{twice}"
        case "effect":
            return f"ask the outside{' again' if again else ''}: {short(mark.name or '', 120)}"
        case "memo":
            return f"store memo {short(mark.name or '', 60)} of {name}"
        case _:
            return f"commit what {name} did so far"
