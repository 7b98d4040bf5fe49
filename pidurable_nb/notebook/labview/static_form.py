"""Owns the saved form of the Lab view: a scene as markup that needs no kernel, no script and no style of its own.

The sentence first, then one figure, one table, and the facts as lists; never more than `LONGEST` bytes. Every text of a
scene is foreign, and escaped here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pidurable_nb.lab.scene.parts import Effect, Entry, StoreMark, Talk, Task
from pidurable_nb.lab.scene.scene import Outside, PointRow, Scene, StepShown
from pidurable_nb.notebook.labview.figure import LEGEND, figure
from pidurable_nb.notebook.labview.part import Part, wants
from pidurable_nb.notebook.labview.words import (
    AGREEMENTS,
    OUTSIDE,
    again,
    counted,
    crash_of,
    crash_row,
    fork_word,
    headline,
    is_cut,
    layers_of,
    read_whole,
    role_of,
    state_of,
    sub_of,
    where,
)
from pidurable_nb.notebook.views.markup import Tone, bdi, code, cut, esc, items, quiet, table, toned

LONGEST: Final = 56_000
"""Bytes of the whole; a notebook holds many views."""
_TONES: Final[dict[Outside, Tone]] = {"none": "quiet", "again": "again", "unknown": "unk"}
_SAYS: Final[dict[StoreMark, Tone]] = {"committed": "com", "lost": "lost", "unknown": "unk", "none": "quiet"}


@dataclass(frozen=True, slots=True)
class Room:
    """How much there is room for: rows of a list, and characters of one text."""

    rows: int
    text: int


ROOMS: Final = (Room(60, 240), Room(40, 160), Room(24, 100), Room(12, 60), Room(5, 40))
"""Tried from the roomiest on."""


def static_form(scene: Scene, parts: Collection[Part] = ()) -> str:
    """The scene as markup, or some parts of it, in at most `LONGEST` bytes: what does not fit is counted instead."""
    for room in ROOMS:
        shown = _form(scene, room, parts)
        if len(shown.encode()) <= LONGEST:
            return shown
    return _head(scene) + _again(scene, ROOMS[-1])


def _form(scene: Scene, room: Room, parts: Collection[Part]) -> str:
    shown = [_head(scene)]
    if wants(parts, "timeline"):
        shown += [figure(scene), f"<p>{quiet(LEGEND)}</p>" if scene.timeline else ""]
    if wants(parts, "step"):
        shown.append(_forecast(scene, room) if scene.step.table is not None else _steps(scene, room))
        shown.append("" if scene.words else _step(scene.step, room))
    if wants(parts, "effects"):
        shown.append(_listed("Did it happen once?", [_effect(one, room) for one in scene.effects], room))
    if wants(parts, "transcript"):
        shown.append(_listed(_transcript_name(scene), list(_entries(scene, room)), room, newest=True))
    if "forks" in parts or (not parts and len(scene.conversations) > 1):
        shown.append(_listed("Conversations", [_talk(one, room) for one in scene.conversations], room))
    if wants(parts, "tasks", "memos"):
        total = scene.totals.tasks
        shown.append(_listed("Tasks and memos", [_task(one, room) for one in scene.tasks], room, total=total))
    if wants(parts, "inbox"):
        shown.append(_listed("Submissions", list(_subs(scene, room)), room, total=scene.totals.submissions))
    if "points" in parts:
        shown.append(_listed("Where it can be made to die", [_point(one, room) for one in scene.points], room))
    return "".join([*shown, _again(scene, room)])


def _again(scene: Scene, room: Room) -> str:
    command = f"{code('%load_ext pidurable_nb')}{quiet(', then ')}{code(cut(again(scene), 200))}"
    offer = "Saved view. To watch it yourself: " if scene.watched else "Saved view. To step it yourself: "
    whole = f" {quiet('What is cut, whole: ')}{code(cut(read_whole(scene), 200))}" if is_cut(scene, room.text) else ""
    return f"<p>{quiet(esc(offer))}{command}{quiet('.')}{whole}</p>"


def _listed(name: str, markup: Sequence[str], room: Room, *, newest: bool = False, total: int = 0) -> str:
    """A list under its name, as long as there is room; what is left out is counted."""
    if not markup:
        return ""
    shown = markup[-room.rows :] if newest else markup[: room.rows]
    rest = max(len(markup), total) - len(shown)
    left = [quiet(f"and {rest:,} {'before' if newest else 'more'}")] if rest > 0 else []
    return f"<h3>{esc(name)}</h3>" + items([*left, *shown] if newest else [*shown, *left])


# --- The step ---------------------------------------------------------------------------------------------------------


def _head(scene: Scene) -> str:
    step = scene.step
    how = f": {bdi(cut(scene.how, 160))}" if scene.how else ""
    walked = "Watched as it was then." if scene.watched is not None else "Recovery walked on a copy."
    first = f"<p>{quiet(f'<b>{bdi(cut(scene.store, 120))}</b>{how}. {walked}')}</p>"
    place = f"{quiet(esc(where(scene)))} <b>{code(cut(step.verb, 40))}</b> {bdi(cut(step.title, 80))}"
    outside = toned(_TONES[step.outside], f"outside: {OUTSIDE[step.outside]}")
    verdict = "" if scene.words else f"<p>{place} · {outside}</p>"
    note = f"<p>{bdi(cut(step.note, 400))}</p>" if step.note and not scene.words else ""
    return f"{first}<h2>{bdi(cut(headline(scene), 300))}</h2>{verdict}{note}"


def _forecast(scene: Scene, room: Room) -> str:
    rows = scene.step.table or ()
    cells = [
        (
            code(str(row.task) if row.task is not None else f"sub {row.submission}"),
            f"<b>{code(cut(row.verdict, 40))}</b>",
            bdi(cut(row.because, room.text)),
            toned(_TONES[row.outside], {"none": "nothing", "again": "again", "unknown": "unknown"}[row.outside]),
        )
        for row in rows[: room.rows]
    ]
    rest = len(rows) - len(cells)
    left = f"<p>{quiet(f'and {rest:,} more')}</p>" if rest else ""
    word = "What recovery will do, read without opening" if scene.watched is None else "What is live, and what is next"
    name = f"<h3>{word}</h3>"
    return f"{name}{table(('task', 'verdict', 'because', 'outside'), cells)}{left}" if cells else ""


def _steps(scene: Scene, room: Room) -> str:
    """The steps that are known, one a row; the one that is shown stands out."""
    steps = [col for col in scene.timeline if col.position]
    near = [col for col in steps if abs((col.position or 0) - scene.position) <= room.rows // 2]
    rows = []
    for col in near:
        here = col.position == scene.position
        what = bdi(cut(col.detail.partition(": ")[2], room.text))
        done = "not run yet" if col.mark == "future" else f"commit {col.n}" if col.n is not None else "no commit"
        rows.append((str(col.position), f"<b>{what}</b>" if here else what, esc(done)))
    rest = len(steps) - len(near)
    left = f"<p>{quiet(f'and {rest:,} more steps')}</p>" if rest else ""
    return f"<h3>Recovery, step by step</h3>{table(('step', 'what', 'stored'), rows)}{left}" if rows else ""


def _step(step: StepShown, room: Room) -> str:
    """Why the step was taken, and what it changed."""
    parts = []
    if step.predicted is not None or step.happened is not None:
        facts = [f"{quiet('predicted')} {bdi(cut(step.predicted or '–', room.text))}"]
        facts.append(f"{quiet('happened')} {bdi(cut(step.happened or '–', room.text))}{_agreement(step)}")
        parts.append(items(facts))
    if step.ladder is not None:
        why = [quiet(f"{len(step.ladder.skipped)} earlier rows: no")] if step.ladder.skipped else []
        why += [
            f"{bdi(cut(rung.question, room.text))} <b>{bdi(cut(rung.answer, 60))}</b> "
            + quiet(code(cut(rung.read, room.text)))
            + (f" {quiet('(' + bdi(cut(rung.exit, 60)) + ')')}" if rung.exit else "")
            for rung in step.ladder.rungs[: room.rows]
        ]
        parts.append(f"<h3>Why</h3>{items([*why, f'<b>{code(cut(step.ladder.end, 120))}</b>'])}")
    if step.laws:
        parts.append(items(f"<b>{code(law.id)}</b> {bdi(cut(law.text, 240))}" for law in step.laws))
    if step.choice is not None:
        options = [
            f"{'●' if one.chosen else '○'} {bdi(cut(one.label, 60))} "
            + quiet(bdi(cut(one.disabled or (one.then if one.chosen else one.detail), room.text)))
            for one in step.choice.options[:8]
        ]
        parts.append(f"<h3>{bdi(cut(step.choice.question, 120))}</h3>{items(options)}")
    if step.diff:
        parts.append(
            _listed(
                "Rows changed",
                [code(cut(_diff(one.sign, one.row, one.before, one.after), room.text)) for one in step.diff],
                room,
            )
        )
    return "".join(parts)


def _diff(sign: str, row: str, before: str, after: str) -> str:
    return f"{sign} {row}: {before}{' → ' if before and after else ''}{after}"


def _agreement(step: StepShown) -> str:
    if step.agreement is None:
        return ""
    word = AGREEMENTS[step.agreement]
    return f" {toned('int', word)}" if step.agreement == "differs" else f" <b>✓ {esc(word)}</b>"


# --- The facts --------------------------------------------------------------------------------------------------------


def _effect(effect: Effect, room: Room) -> str:
    twice = effect.again and (effect.asked or 0) > 1
    asked = toned("again", counted(effect)) if twice else esc(counted(effect))
    store = toned(_SAYS[effect.store.mark], f"the store says {cut(effect.store.text, 80)}")
    acted = [f"{name} ({cut(layer.text, 60)})" for name, layer in layers_of(effect) if layer and layer.mark == "acted"]
    missing = [
        f"{name} ({cut(layer.text, 60)})" for name, layer in layers_of(effect) if layer and layer.mark == "missing"
    ]
    said = f". Acted: {bdi(', '.join(acted))}" if acted else ""
    lacks = f". Missing: {bdi(', '.join(missing))}" if missing else ""
    return f"<b>{bdi(cut(effect.label, 60))}</b>: really {asked}; {store}{said}{lacks}."


def _transcript_name(scene: Scene) -> str:
    entries = scene.entries
    rest = f", the newest of {entries.total:,} entries" if entries.total > len(entries.rows) else ""
    return f"Transcript of conversation {entries.conversation}{rest}"


def _entries(scene: Scene, room: Room) -> Iterator[str]:
    names = {task.id: task.name for task in scene.tasks}
    rows, crash = scene.entries.rows, crash_of(scene)
    line = crash_row(scene, rows)
    after = f", after commit {crash[1]}" if crash is not None and crash[1] is not None else ""
    for n, entry in enumerate(rows):
        if n == line:
            yield toned("int", f"✕ killed here{after}", sign=False)
        yield _entry(entry, names, room)
    if line == len(rows) and rows:
        yield toned("int", f"✕ killed here{after}", sign=False)


def _entry(entry: Entry, names: dict[int, str], room: Room) -> str:
    role = bdi(cut(role_of(entry, names), 80))
    if entry.state in ("interrupted", "failed"):
        role = toned("int", cut(role_of(entry, names), 80))
    said = bdi(cut(entry.text, room.text, size=entry.size))
    forks = f" {quiet('(forked here to ' + ', '.join(str(id) for id in entry.forks[:5]) + ')')}" if entry.forks else ""
    calls = "; ".join(
        f"{cut(call.name, 40)}({cut(call.arguments, room.text, size=call.sizes.arguments)})"
        + (f", {call.policy}" if call.policy else "")
        for call in entry.calls[:6]
    )
    name = "" if entry.id < 0 else f"{entry.id} "
    return f"{name}{role}: {said}{forks}" + (f" {quiet('Calls ' + code(calls))}" if calls else "")


def _task(task: Task, room: Room) -> str:
    path = task.path[-12:]
    moves = (cut(path[0].from_, 40) if path else "") + "".join(
        f" {'✕' if move.crash else '→'} {cut(move.to, 40)}" for move in path
    )
    facts = [state_of(task), f"phase {cut(task.phase, 40)}" if task.phase else ""]
    facts += [f"restarts {task.restarts}" if task.restarts else "", f"verdict {task.verdict}" if task.verdict else ""]
    owner = f", owned by {task.owner}" if task.owner is not None else ""
    name = f"{code(str(task.id))} {bdi(cut(task.kind, 60))} {bdi(cut(task.name, 60)) if task.name != task.kind else ''}"
    memos = "".join(
        f"; memo {code(cut(memo.name, 40))} = {code(cut(memo.value, 80, size=memo.size))}"
        + (f", {bdi(cut(memo.by, 60))}" if memo.by else "")
        + "".join(
            f"; {code(cut(lost.value, 60))} lost{', ' + bdi(cut(lost.by, 40)) if lost.by else ''}"
            for lost in memo.lost[:4]
        )
        for memo in task.memos[: room.rows // 4]
    )
    return f"{name}{owner}: {bdi(moves)}; <b>{bdi(cut(', '.join(one for one in facts if one), 120))}</b>{memos}"


def _subs(scene: Scene, room: Room) -> Iterator[str]:
    for sub in scene.submissions:
        name = f", {cut(sub.request_id, 60)}" if sub.request_id else ""
        verdict = f", verdict {sub.verdict}" if sub.verdict else ""
        said = quiet(bdi(cut(sub.text, room.text)))
        yield f"submission {sub.id}{bdi(name)}: <b>{bdi(sub_of(sub))}</b>{esc(verdict)} {said}"


def _talk(talk: Talk, room: Room) -> str:
    """A conversation, and what became of its documents where it is a fork."""
    name = f"<b>conversation {talk.id}</b>, {talk.total:,} entries"
    if talk.parent is None:
        return name
    policies = ", ".join(f"{one.kind} {fork_word(one, talk.parent)}" for one in talk.policies if one.fork is not None)
    documents = f" {quiet(bdi(cut(policies, 2 * room.text)))}" if policies else ""
    return f"{name}: fork of {talk.parent.conversation} behind entry {talk.parent.at}; no task is copied{documents}"


def _point(point: PointRow, room: Room) -> str:
    armed = f" <b>{esc('armed')}</b>" if point.armed else ""
    return f"{code(cut(point.point, 120))} {bdi(cut(point.text, room.text))}{armed}"
