"""Owns the plain form of the Lab view: a scene in 80 columns of text, with signs of ASCII and foreign text made inert.

For a terminal, a screen reader and a diff: the sentence first, commands last. Never renders markup.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from pidurable_nb.lab.scene.parts import Col, Task
from pidurable_nb.lab.scene.scene import Outside, Scene, StepShown
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
    size_of,
    state_of,
    sub_of,
    where,
)
from pidurable_nb.store.visible import columns, fitted, visible

WIDTH: Final = 80
MOST: Final = 12
"""Rows of one list."""
LAST: Final = 5
"""Moves of a task, and effects, that stand on one line: the newest."""
CUT: Final = 80
"""Characters of a text that is surely longer than its line."""
_SIGNS: Final[Mapping[Outside, str]] = {"none": "-", "again": ">", "unknown": "?"}
_ASCII: Final = str.maketrans(
    {"→": "->", "·": ",", "–": "-", "…": "...", "’": "'", "“": '"', "”": '"', "−": "-", "✕": "X"}
)


def plain(scene: Scene, parts: Collection[Part] = ()) -> str:
    """The scene as text, or some parts of it: no line is wider than 80 columns, and no character in it acts."""
    step = scene.step
    blocks = [list(_head(scene)), _wrapped(headline(scene), " ")]
    if not scene.words and wants(parts, "step"):
        blocks += [list(_outcome(step)), list(_choice(step)), list(_why(step)), list(_table(step)), list(_rows(step))]
    blocks += [list(_time(scene))] if wants(parts, "timeline") else []
    blocks += [list(_said(scene))] if wants(parts, "transcript") else []
    blocks += [list(_forks(scene))] if "forks" in parts or (not parts and len(scene.conversations) > 1) else []
    blocks += [list(_tasks(scene))] if wants(parts, "tasks", "memos") else []
    blocks += [list(_subs(scene))] if wants(parts, "inbox") else []
    blocks += [list(_once(scene))] if wants(parts, "effects") else []
    blocks += [list(_points(scene))] if "points" in parts else []
    blocks += [list(_next(scene))]
    return "\n".join(line for block in blocks if block for line in [*block, ""]).rstrip()


def _text(text: str) -> str:
    """Foreign text on one line, our own typography as ASCII."""
    return visible(text.replace(" · ", ", ").translate(_ASCII))


def _cut(text: str, width: int) -> str:
    """Text in at most `width` columns; what was cut leaves two dots, which end no sentence."""
    shown = _text(text)
    return shown if columns(shown) <= width else fitted(shown, width - 1).removesuffix("…") + ".."


def _line(text: str) -> str:
    """One line, no wider than the page."""
    return _cut(text, WIDTH - 1).rstrip()


def _wrapped(text: str, indent: str, *, most: int = 6) -> list[str]:
    shown = textwrap.wrap(
        _text(text), WIDTH - 1, initial_indent=indent, subsequent_indent=indent, max_lines=most, placeholder=" ..."
    )
    return [_cut(line, WIDTH - 1) for line in shown]


def _labelled(label: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines under a word that stands left of the first one."""
    for n, line in enumerate(lines):
        yield _line(f"{label if n == 0 else '':<7}{line}")


def _some(lines: Sequence[str], total: int = 0, most: int = MOST) -> list[str]:
    """As many lines as there is room for, and how many more there are."""
    rest = max(len(lines), total) - min(len(lines), most)
    return [*lines[:most], *([f"and {rest:,} more"] if rest > 0 else [])]


def _cell(text: str, width: int) -> str:
    """Text in exactly `width` columns."""
    shown = _cut(text, width)
    return shown + " " * (width - columns(shown))


# --- The step ---------------------------------------------------------------------------------------------------------


def _head(scene: Scene) -> Iterator[str]:
    step = scene.step
    walked = "watched" if scene.watched is not None else "walking a copy"
    yield _line(f"{scene.store}   {scene.how or ''}; {walked}".replace("   ;", "  "))
    if not scene.words:
        outside = f"outside: {_SIGNS[step.outside]} {OUTSIDE[step.outside]}"
        yield _line(f"{_cell(where(scene), 18)}{_cell(f'{step.verb.upper()}   {step.title}', 32)} {outside}")


def _outcome(step: StepShown) -> Iterator[str]:
    if step.note:
        yield from _wrapped(step.note, "  ")
    if step.predicted is not None or step.happened is not None:
        yield _line(f"  predicted  {step.predicted or '-'}")
        agreement = AGREEMENTS[step.agreement] if step.agreement else ""
        yield _line(f"  happened   {_cell(step.happened or '-', 42)} {agreement}")


def _choice(step: StepShown) -> Iterator[str]:
    if step.choice is None:
        return
    yield _line(f"choice {step.choice.question}")
    for one in step.choice.options[:8]:
        said = f"not possible: {one.disabled}" if one.disabled else one.then if one.chosen else one.detail
        yield _line(f"       ({'x' if one.chosen else ' '}) {_cell(one.label, 22)} {said}")


def _why(step: StepShown) -> Iterator[str]:
    lines = []
    if step.ladder is not None:
        if step.ladder.skipped:
            lines.append(f"{len(step.ladder.skipped)} earlier rows: no")
        for rung in step.ladder.rungs[:MOST]:
            way_out = f"  ({rung.exit})" if rung.exit else ""
            lines += [f"{_cell(rung.question, 42)} {rung.answer}{way_out}", f"  {rung.read}"]
        lines.append(f"=> {_cell(step.ladder.end, 40)} {' '.join(law.id for law in step.laws)}")
    elif step.laws:
        lines.append(" ".join(law.id for law in step.laws))
    yield from _labelled("why", lines)


def _table(step: StepShown) -> Iterator[str]:
    lines = []
    for row in step.table or ():
        name = str(row.task) if row.task is not None else f"sub {row.submission}"
        lines.append(f"{_cell(name, 8)} {_SIGNS[row.outside]} {_cell(row.verdict, 10)} {row.because}")
    yield from _labelled("will", _some(lines, most=20))


def _rows(step: StepShown) -> Iterator[str]:
    lines = []
    for one in step.diff:
        arrow = " -> " if one.before and one.after else ""
        lines.append(f"{one.sign}  {_cell(one.row, 20)} {_cut(one.before, 22)}{arrow}{one.after}")
    yield from _labelled("rows", _some(lines))


# --- The facts --------------------------------------------------------------------------------------------------------


def _time(scene: Scene) -> Iterator[str]:
    """The timeline as words: commits by number, X a kill, [ ] a barrier, > < the step, .. what did not happen yet."""
    crash = crash_of(scene)
    words = []
    for n, col in enumerate(scene.timeline):
        word = _column(col)
        if col.position and col.position == scene.position:
            word = f">{word}<"
        words.append("X |" if crash is not None and n == crash[0] else word)
    if len(words) > 40:
        words = ["..", *words[-40:]]
    lines = textwrap.wrap(" ".join(words), WIDTH - 9)
    yield from _labelled("time", [*lines[:4], *([f"{_bars(scene)}"] if scene.bars else [])])


def _column(col: Col) -> str:
    if col.kind == "kill":
        return "X"
    if col.kind == "lost":
        return ".."
    if col.mark == "future":
        return "_"
    word = str(col.n) if col.n is not None else _text(col.label) if col.kind == "fold" else "o"
    return f"[{word}]" if col.barrier else word


def _bars(scene: Scene) -> str:
    parts = [f"{_text(bar.label)}{' (cut)' if bar.cut else ''}" for bar in scene.bars[-LAST:]]
    return f"effects: {'.. ' if len(scene.bars) > LAST else ''}{', '.join(parts)}"


def _said(scene: Scene) -> Iterator[str]:
    names = {task.id: task.name for task in scene.tasks}
    rows, crash = scene.entries.rows, crash_of(scene)
    line = crash_row(scene, rows)
    lines = []
    for n, entry in enumerate(rows):
        if n == line:
            lines.append("X  killed here")
        name = str(entry.id) if entry.id >= 0 else "live"
        called = [f"{call.name}({call.arguments})" for call in entry.calls[:3]]
        calls = ", ".join([*called, *([f"and {len(entry.calls) - 3} more"] if len(entry.calls) > 3 else [])])
        size = f"({size_of(entry):,} characters)" if size_of(entry) > CUT else ""
        text = " ".join(part for part in (size, entry.text, f"calls {calls}" if calls else "") if part)
        lines.append(f"{_cell(name, 6)} {_cell(role_of(entry, names), 22)} {text}")
    if line == len(rows) and rows and crash is not None:
        lines.append("X  killed here")
    before = max(scene.entries.total - len(rows), 0) + max(len(lines) - MOST, 0)
    shown = lines[-MOST:]
    yield from _labelled("talk", [*([f"{before:,} before"] if before else []), *shown])


def _tasks(scene: Scene) -> Iterator[str]:
    shown = {id for id in (scene.step.task,) if id is not None}
    lines = []
    for task in sorted(scene.tasks, key=lambda one: (one.state == "terminal", one.id not in shown, one.id)):
        mark = ">" if task.id in shown else " "
        will = f"will {task.verdict}" if task.verdict else f"{task.done}, done" if task.done else ""
        lines.append(
            f"{mark}{_cell(str(task.id), 6)} {_cell(task.name or task.kind, 16)} {_cell(state_of(task), 24)} {will}"
        )
        lines += _more(task)
    yield from _labelled("tasks", _some(lines, len(lines) + scene.totals.tasks - len(scene.tasks), most=2 * MOST))


def _subs(scene: Scene) -> Iterator[str]:
    subs = [
        f"{_cell(str(sub.id), 6)} {_cell(sub.request_id or sub.type, 16)} {sub_of(sub)}" for sub in scene.submissions
    ]
    yield from _labelled("subs", _some(subs, scene.totals.submissions))


def _forks(scene: Scene) -> Iterator[str]:
    """The conversations, and what forks have of the documents."""
    lines = []
    for talk in scene.conversations:
        fork = f"fork of {talk.parent.conversation} behind {talk.parent.at}" if talk.parent is not None else "root"
        lines.append(f"{_cell(str(talk.id), 6)} {_cell(fork, 30)} {talk.total:,} entries")
        if talk.parent is not None:
            has = [f"{one.kind} {fork_word(one, talk.parent)}" for one in talk.policies if one.fork is not None]
            lines += [f"       {line}" for line in _wrapped(", ".join(has), "", most=3)] if has else []
    yield from _labelled("forks", _some(lines, most=2 * MOST))


def _points(scene: Scene) -> Iterator[str]:
    """Where the scenario can be made to die."""
    lines = [f"{'x' if one.armed else ' '} {_cell(one.point, 44)} {one.text}" for one in scene.points]
    yield from _labelled("points", _some(lines, most=200))


def _more(task: Task) -> Iterator[str]:
    if task.path:
        shown = task.path[-LAST:]
        moves = "".join(f" {'X' if move.crash else '->'} {move.to}" for move in shown)
        yield f"        {'.. ' if len(task.path) > LAST else ''}{shown[0].from_}{moves}"
    for memo in task.memos[:3]:
        yield f"        memo {_cut(memo.name, 24)} = {memo.value}"
    if len(task.memos) > 3:
        yield f"        and {len(task.memos) - 3} more memos"


def _once(scene: Scene) -> Iterator[str]:
    if not scene.effects:
        return
    lines = [f"{_cell('effect', 18)} {_cell('acted', 14)} {_cell('really', 20)} the store says"]
    for effect in scene.effects:
        acted = ", ".join(name for name, layer in layers_of(effect) if layer is not None and layer.mark == "acted")
        sign = "? " if effect.store.mark == "unknown" else ""
        lines.append(
            f"{_cell(effect.label, 18)} {_cell(acted or '-', 14)} {_cell(counted(effect), 20)} "
            f"{sign}{effect.store.text}"
        )
    yield from _labelled("once?", _some(lines, most=MOST + 1))


def _next(scene: Scene) -> Iterator[str]:
    if scene.next is not None and not scene.words:
        yield _line(f"next   {scene.next}")
    elif scene.watched is not None and not scene.words:
        yield _line(f"next   none: {scene.watched}")
    if is_cut(scene, CUT):
        yield _line(f"whole  {read_whole(scene)}")
    yield _line(f"show   {again(scene)}")
