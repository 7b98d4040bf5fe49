"""Owns the plain form of the Lab view: a scene in 80 columns of text, with signs of ASCII and foreign text made inert.

For a terminal, a screen reader and a diff: the sentence first, commands last. Never renders markup.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from pidurable_nb.lab.scene.parts import Col, Task
from pidurable_nb.lab.scene.scene import Outside, Scene, StepShown
from pidurable_nb.notebook.labview.words import (
    AGREEMENTS,
    OUTSIDE,
    again,
    counted,
    crash_of,
    crash_row,
    headline,
    layers_of,
    role_of,
    state_of,
    sub_of,
    where,
)
from pidurable_nb.store.visible import columns, fitted, visible

WIDTH: Final = 80
MOST: Final = 12
"""Rows of one list."""
_SIGNS: Final[Mapping[Outside, str]] = {"none": "-", "again": ">", "unknown": "?"}
_ASCII: Final = str.maketrans(
    {"→": "->", "·": ",", "–": "-", "…": "...", "’": "'", "“": '"', "”": '"', "−": "-", "✕": "X"}
)


def plain(scene: Scene) -> str:
    """The scene as text: no line is wider than 80 columns, and no character in it acts."""
    step = scene.step
    blocks = [list(_head(scene)), _wrapped(headline(scene), " ")]
    if not scene.words:
        blocks += [list(_outcome(step)), list(_choice(step)), list(_why(step)), list(_table(step)), list(_rows(step))]
    blocks += [list(_time(scene)), list(_said(scene)), list(_facts(scene)), list(_once(scene)), list(_next(scene))]
    return "\n".join(line for block in blocks if block for line in [*block, ""]).rstrip()


def _text(text: str) -> str:
    """Foreign text on one line, our own typography as ASCII."""
    return visible(text.replace(" · ", ", ").translate(_ASCII))


def _line(text: str) -> str:
    """One line, no wider than the page."""
    return fitted(_text(text), WIDTH - 2).replace("…", "..").rstrip()


def _wrapped(text: str, indent: str, *, most: int = 6) -> list[str]:
    shown = textwrap.wrap(
        _text(text), WIDTH - 1, initial_indent=indent, subsequent_indent=indent, max_lines=most, placeholder=" ..."
    )
    return [fitted(line, WIDTH - 1).replace("…", "..") for line in shown]


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
    shown = fitted(_text(text), width).replace("…", ".")
    return shown + " " * (width - columns(shown))


# --- The step ---------------------------------------------------------------------------------------------------------


def _head(scene: Scene) -> Iterator[str]:
    step = scene.step
    walked = "watched" if scene.watched is not None else "walking a copy"
    yield _line(f"{scene.store}   {scene.how or ''}; {walked}".replace("   ;", "  "))
    if not scene.words:
        outside = f"outside: {_SIGNS[step.outside]} {OUTSIDE[step.outside]}"
        yield _line(f"{_cell(where(scene), 18)}{_cell(f'{step.verb.upper()}   {step.title}', 34)} {outside}")


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
        lines.append(f"{one.sign}  {_cell(one.row, 20)} {fitted(_text(one.before), 22)}{arrow}{one.after}")
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
    parts = [f"{_text(bar.label)}{' (cut)' if bar.cut else ''}" for bar in scene.bars[-6:]]
    return f"effects: {', '.join(parts)}"


def _said(scene: Scene) -> Iterator[str]:
    names = {task.id: task.name for task in scene.tasks}
    rows, crash = scene.entries.rows, crash_of(scene)
    line = crash_row(scene, rows)
    lines = []
    for n, entry in enumerate(rows):
        if n == line:
            lines.append("X  killed here")
        name = str(entry.id) if entry.id >= 0 else "live"
        calls = ", ".join(f"{call.name}({call.arguments})" for call in entry.calls[:3])
        text = " ".join(part for part in (entry.text, f"calls {calls}" if calls else "") if part)
        lines.append(f"{_cell(name, 6)} {_cell(role_of(entry, names), 22)} {text}")
    if line == len(rows) and rows and crash is not None:
        lines.append("X  killed here")
    before = max(scene.entries.total - len(rows), 0) + max(len(lines) - MOST, 0)
    shown = lines[-MOST:]
    yield from _labelled("talk", [*([f"{before:,} before"] if before else []), *shown])


def _facts(scene: Scene) -> Iterator[str]:
    shown = {id for id in (scene.step.task,) if id is not None}
    lines = []
    for task in sorted(scene.tasks, key=lambda one: (one.state == "terminal", one.id not in shown, one.id)):
        mark = ">" if task.id in shown else " "
        will = f"will {task.verdict}" if task.verdict else f"{task.done}, done" if task.done else ""
        lines.append(
            f"{mark}{_cell(str(task.id), 6)} {_cell(task.name or task.kind, 16)} {_cell(state_of(task), 22)} {will}"
        )
        lines += _more(task)
    yield from _labelled("tasks", _some(lines, len(lines) + scene.totals.tasks - len(scene.tasks), most=2 * MOST))
    subs = [
        f"{_cell(str(sub.id), 6)} {_cell(sub.request_id or sub.type, 16)} {sub_of(sub)}" for sub in scene.submissions
    ]
    yield from _labelled("subs", _some(subs, scene.totals.submissions))


def _more(task: Task) -> Iterator[str]:
    if task.path:
        moves = "".join(f" {'X' if move.crash else '->'} {move.to}" for move in task.path[-6:])
        yield f"        {task.path[-6:][0].from_}{moves}"
    for memo in task.memos[:3]:
        yield f"        memo {fitted(_text(memo.name), 24)} = {memo.value}"


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
    yield _line(f"show   {again(scene)}")
