"""Owns the timeline of a scene: its columns from the first commit to the last step, and the effects over them as bars.

Of lives that were run here every commit is known; of a file those that its rows name. Never reads a file by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pidurable_nb.lab.dying.heard import Heard
from pidurable_nb.lab.scene.facts import Base
from pidurable_nb.lab.scene.lives import Committed, Life
from pidurable_nb.lab.scene.parts import Bar, Col, Mark, short
from pidurable_nb.session.changes import Changes

UNFOLDED: Final = 40
"""More commits than this are folded, but for the newest."""
KEPT: Final = 30
LANES: Final = 3
READ: Final = 200
"""Entries of a file whose commits are asked for: the newest."""
_LABEL: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTaken:
    """What the timeline shows of one step."""

    position: int
    n: int | None
    mark: Mark
    verb: str
    title: str
    task: int | None
    submission: int | None
    effect: str | None
    barrier: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The columns before any step, and the bars over them."""

    cols: tuple[Col, ...] = ()
    bars: tuple[Bar, ...] = ()


# --- The past ---------------------------------------------------------------------------------------------------------


def past_of_lives(lives: Sequence[Life], base: Base) -> Past:
    """The lives one behind the other, each with its commits, its lost work and its end.

    `base` is the file that they left: its entries name the commits that nobody listened to.
    """
    rows, _ = _entries_by_commit(base)
    cols: list[Col] = []
    bars: list[Bar] = []
    for life in lives:
        first = len(cols) + 1
        cols += [_commit(commit, rows.get(commit.seq, [])) for commit in life.commits]
        lost = [effect for effect in life.effects if effect.ended is not None and not effect.kept]
        at_lost: dict[int, int] = {}
        for effect in lost:
            at_lost[id(effect)] = len(cols) + 1
            label = short(effect.name, _LABEL)
            cols.append(
                Col(
                    n=None,
                    kind="lost",
                    label="–",
                    detail=f"What {label} gave: never committed",
                    task=effect.task,
                    mark="none",
                )
            )
        cols.append(Col(n=None, kind="kill", label="kill", detail=f"Life {life.number}, {life.how}", mark="crash"))
        end = len(cols) + 0.5
        free: list[float] = []
        for effect in life.effects:
            begin = first + effect.begun - 0.5
            cut = effect.ended is None or not effect.kept
            to = end if cut or effect.ended is None else max(first + effect.ended + 0.4, begin + 0.3)
            word = "cut" if effect.ended is None else "answered, and nothing of it stored" if cut else "answered"
            bars.append(
                Bar(
                    lane=_lane(free, begin, to), from_=begin, to=to, label=short(effect.name, _LABEL), cut=cut,
                    applied=at_lost[id(effect)] + 0.5 if id(effect) in at_lost else None, task=effect.task,
                    detail=f"{short(effect.name, _LABEL)}, life {life.number}: {word}",
                )
            )  # fmt: skip
    return _folded(Past(cols=tuple(cols), bars=tuple(bars)))


def _lane(free: list[float], begin: float, to: float) -> int:
    """The first lane that is free from `begin` on; the last one where none is."""
    for at, until in enumerate(free):
        if until <= begin:
            free[at] = to
            return at + 1
    if len(free) < LANES:
        free.append(to)
        return len(free)
    return LANES


def _commit(commit: Committed, entries: Sequence[str]) -> Col:
    changes = commit.changes
    detail = f"Commit {commit.seq}, by {short(commit.by, _LABEL)}" + (f": {', '.join(entries[:5])}" if entries else "")
    if changes is not None:
        detail = f"Commit {commit.seq}: {_told(changes)}"
    submission = next(iter(changes.submissions), None) if changes is not None else None
    task = commit.task if commit.task is not None or changes is None else next(iter(changes.tasks), None)
    barrier = changes.barrier if changes is not None else False
    return Col(
        n=commit.seq, kind="commit", label=str(commit.seq), detail=detail, task=task, submission=submission,
        barrier=barrier,
    )  # fmt: skip


def _told(changes: Heard) -> str:
    parts = [f"entry {id}" for id in changes.entries[:5]]
    parts += [
        f"task {id} {change.before.status if change.before is not None else 'new'} to {change.after.status}"
        for id, change in list(changes.tasks.items())[:5]
    ]
    parts += [f"submission {id} {status}" for id, status in list(changes.submissions.items())[:5]]
    parts += [short(kind, _LABEL) for kind in changes.documents[:5]]
    return ", ".join(parts) or "no row"


def _entries_by_commit(base: Base) -> tuple[dict[int, list[str]], dict[int, int]]:
    """What the newest entries say of commits: what was written in each, and by which task."""
    found: dict[int, list[str]] = {}
    tasks: dict[int, int] = {}
    newest = sorted((id for ids in base.order.values() for id in ids), reverse=True)[:READ]
    for id in reversed(newest):
        if (kept := base.entry(id)) is not None:
            found.setdefault(kept.commit_seq, []).append(f"entry {id}, {short(kept.entry.kind, 40)}")
            if kept.entry.by_task is not None:
                tasks.setdefault(kept.commit_seq, kept.entry.by_task)
    return found, tasks


def past_of_file(base: Base, crashed: str | None) -> Past:
    """The commits that a file's rows name, and where it stopped, for one that was not closed."""
    found, tasks = _entries_by_commit(base)
    entries = sum(len(ids) for ids in base.order.values())
    oldest = min(found, default=0)
    for record in base.documents.values():
        seq = record.created_at
        if seq >= oldest or not entries:
            found.setdefault(seq, []).append(f"{short(record.kind, 40)} begins")
    last = base.next_seq - 1
    if last > 0:
        found.setdefault(last, []).append("the last commit")
    seqs = sorted(found)
    cols = [
        Col(
            n=seq, kind="commit", label=str(seq), detail=f"Commit {seq}: {', '.join(found[seq][:6])}",
            task=tasks.get(seq),
        )
        for seq in seqs
    ]  # fmt: skip
    if cols and seqs[0] > 1 and entries > READ:
        cols.insert(0, _fold(1, seqs[0] - 1))
    if crashed is not None:
        cols.append(Col(n=None, kind="kill", label="stop", detail=crashed, mark="crash"))
    return _folded(Past(cols=tuple(cols)))


def past_after(past: Past, changes: Changes) -> Past:
    """The past with one more commit, of which everything is known; the oldest are folded as they become many."""
    heard = Heard.of(changes)
    if heard is None:
        return past  # it is not stored
    commit = Committed(seq=heard.seq, task=None, by="", changes=heard)
    return _folded(Past(cols=(*past.cols, _commit(commit, ())), bars=past.bars))


def _folded(past: Past) -> Past:
    """Fold the oldest commits where there are many; bars over them are left out, and the others move along."""
    commits = [at for at, col in enumerate(past.cols) if col.kind == "commit"]
    if len(commits) <= UNFOLDED:
        return past
    upto = commits[len(commits) - KEPT]
    head, tail = past.cols[:upto], past.cols[upto:]
    kills = tuple(col for col in head if col.kind == "kill")
    numbers = [col.n for col in head if col.n is not None]
    folded = any(col.kind == "fold" for col in head)
    fold = _fold(1 if folded else min(numbers, default=1), max(numbers, default=1))
    cols = (fold, *kills, *tail)
    moved = len(cols) - len(past.cols)
    bars = tuple(
        Bar(
            lane=bar.lane, from_=max(bar.from_ + moved, 1.5), to=bar.to + moved, label=bar.label, cut=bar.cut,
            applied=bar.applied + moved if bar.applied is not None else None, task=bar.task, detail=bar.detail,
        )
        for bar in past.bars
        if bar.to + moved > len(cols) - len(tail) + 1
    )  # fmt: skip
    return Past(cols=cols, bars=bars)


def _fold(first: int, last: int) -> Col:
    label = f"{first}–{last}" if last > first else str(first)
    return Col(n=None, kind="fold", label=label, detail=f"Commits {label}, folded")


# --- The recovery -----------------------------------------------------------------------------------------------------


def timeline(past: Past, steps: Sequence[StepTaken], position: int) -> tuple[tuple[Col, ...], tuple[Bar, ...]]:
    """The past, then a column for every step that is known; those behind `position` are in the future."""
    cols, bars = list(past.cols), list(past.bars)
    for step in steps:
        future = step.position > position
        cols.append(
            Col(
                n=step.n, kind="step", label=str(step.n) if step.n is not None else "·",
                detail=f"Step {step.position}: {step.verb}, {step.title}", task=step.task, submission=step.submission,
                position=step.position, mark="future" if future else step.mark, barrier=step.barrier,
            )
        )  # fmt: skip
        if step.effect is not None and not future:
            middle = len(cols) + 0.5
            label = short(step.effect, _LABEL)
            bars.append(
                Bar(
                    lane=1, from_=middle, to=middle + 0.8, label=label, cut=False, applied=None, task=step.task,
                    detail=f"{label}, in this recovery",
                )
            )  # fmt: skip
    return tuple(cols), tuple(bars)
