"""Owns the one figure of the saved Lab view: commits, kills, effects and steps on a line, as an SVG.

Colours stand in the SVG itself, on a white ground, and each has a shape and a word, so that the figure says the same in
a dark or style-less reader. Never says what a step did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pidurable_nb.lab.scene.parts import Bar, Col
from pidurable_nb.lab.scene.scene import Scene
from pidurable_nb.notebook.labview.words import crash_of, nth, verb_of
from pidurable_nb.notebook.views.markup import COLOURS, esc
from pidurable_nb.store.visible import fitted, visible

WIDTH: Final = 1060
MOST_COLUMNS: Final = 26
MOST_LANES: Final = 4
_MOST_BARS: Final = 24
_NEAR: Final = 3
"""Columns around the crash and the step that never fold."""
_WIDEST: Final = 64.0
_INK, _SAID, _QUIET, _LINE = "#16191d", "#4b5159", "#646b74", "#868d96"
_COM, _INT, _AGAIN, _LOST = (COLOURS[tone][0] for tone in ("com", "int", "again", "lost"))
LEGEND: Final = (
    "■ committed · ▫ dashed: never committed · ○ step without a commit · ◆ interrupted · □ step not run yet · "
    "● effect, from start to end · ✕ kill · framed square: barrier"
)
_MARK_Y: Final = 29.0
_CHAR: Final = 6.0
"""About the width of a character."""


@dataclass(frozen=True, slots=True)
class Span:
    """Columns that stand in one place, `first` to `last`; more than one is a block."""

    first: int
    last: int


def spans(scene: Scene, most: int = MOST_COLUMNS) -> list[Span]:
    """The columns in their places; the longest runs become blocks until `most` are left, but nothing near the crash."""
    columns, crash = scene.timeline, crash_of(scene)
    kept = {n for n, col in enumerate(columns) if col.kind in ("kill", "lost", "fold")}
    middles = [crash[0]] if crash is not None else []
    middles += [n for n, col in enumerate(columns) if col.position == scene.position]
    kept |= {n + d for n in middles for d in range(-_NEAR, _NEAR + 1)}
    found = [Span(n, n) for n in range(len(columns))]
    while len(found) > most:
        runs = list(_runs(found, kept, columns))
        if not runs:
            break
        start, end = max(runs, key=lambda run: run[1] - run[0])
        found[start:end] = [Span(found[start].first, found[end - 1].last)]
    return found


def _runs(found: list[Span], kept: set[int], columns: tuple[Col, ...]) -> Iterator[tuple[int, int]]:
    """Runs of single columns of one kind that may fold, as places in `found`."""
    start: int | None = None
    for n, span in enumerate([*found, None]):
        free = span is not None and span.first == span.last and span.first not in kept
        if start is not None and (
            not free or span is None or columns[found[start].first].kind != columns[span.first].kind
        ):
            if n - start > 1:
                yield start, n
            start = None
        if free and start is None:
            start = n


class _Places:
    """Where a column, or a place between two, stands on the line."""

    def __init__(self, found: list[Span]) -> None:
        self.found = found
        self.wide = min(_WIDEST, (WIDTH - 8) / max(1, len(found)))

    def middle(self, n: int) -> float:
        """The middle of the n-th place."""
        return (n + 0.5) * self.wide

    def x(self, place: float) -> float:
        """A place among the columns, where the first reaches from 1 to 2."""
        for n, span in enumerate(self.found):
            if place < span.last + 2:
                return (n + min(1.0, max(0.0, (place - 1 - span.first) / (span.last - span.first + 1)))) * self.wide
        return len(self.found) * self.wide


def figure(scene: Scene) -> str:
    """The timeline as one `<svg>`, or nothing where nothing is known of it."""
    if not scene.timeline:
        return ""
    places = _Places(spans(scene))
    bars = [bar for bar in scene.bars if bar.lane <= MOST_LANES][:_MOST_BARS]
    lanes = max((bar.lane for bar in bars), default=0)
    steps_y = 62 + lanes * 26 + 8
    height = steps_y + 24
    parts = [f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>', *_lives(scene, places)]
    for n, span in enumerate(places.found):
        parts += _column(scene, places, n, span, height, steps_y)
    for bar in bars:
        parts += _bar(scene, places, bar, _until(bars, bar))
    said = esc(_description(scene))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="100%" role="img" '
        f'aria-label="{said}" font-family="system-ui,sans-serif" font-size="11"><title>Timeline</title>'
        f"<desc>{said}</desc>{''.join(parts)}</svg>"
    )


def _description(scene: Scene) -> str:
    commits = sum(1 for col in scene.timeline if col.kind == "commit")
    kills = sum(1 for col in scene.timeline if col.kind == "kill")
    steps = sum(1 for col in scene.timeline if col.kind == "step" and col.mark != "future")
    cut_short = sum(1 for bar in scene.bars if bar.cut)
    return (
        f"Timeline of commits and effects: {commits} commits, {kills} kills, {len(scene.bars)} effects of which "
        f"{cut_short} were cut, {steps} steps of recovery."
    )


def _text(x: float, y: float, text: str, *, fill: str = _SAID, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.0f}" fill="{fill}" text-anchor="{anchor}"{more}>{esc(text)}</text>'


def _lives(scene: Scene, places: _Places) -> Iterator[str]:
    crash, life, start = crash_of(scene), 1, 4.0
    for n, span in enumerate(places.found):
        if scene.timeline[span.first].kind == "kill":
            yield _text(start, 14, f"{nth(life)} life", fill=_QUIET, anchor="start")
            life, start = life + 1, places.middle(n) + 31
    if crash is not None:
        yield _text(start, 14, "recovery, on a copy", fill=_QUIET, anchor="start")


def _column(scene: Scene, places: _Places, n: int, span: Span, height: int, steps_y: int) -> Iterator[str]:
    col, x = scene.timeline[span.first], places.middle(n)
    crash = crash_of(scene)
    if col.kind == "kill":
        last = crash is not None and crash[0] == span.first
        colour, heavy = (_INT, ' font-weight="700"') if last else (_LINE, "")
        yield (
            f'<path d="M{x:.1f} 18V{height - 24 if last else steps_y - 18}" stroke="{colour}" '
            f'stroke-width="{2 if last else 1.5}" stroke-dasharray="5 4"/>'
        )
        yield _text(x, 14, "✕ kill", fill=colour if last else _QUIET, more=heavy)
        return
    yield _mark(col, x, block=span.last > span.first)
    if places.wide >= 18 or span.last > span.first:
        yield _text(x, 48, _number(scene, span), more=' font-family="monospace"')
    if col.kind == "step" and span.last == span.first and col.position is not None and places.wide >= 18:
        here = col.position == scene.position
        yield _text(x, steps_y + 4, str(col.position), fill=_INK, more=' font-weight="700"' if here else "")
        if places.wide >= 34:
            colour = {"interrupted": _INT, "again": _AGAIN}.get(col.mark, _SAID)
            verb = verb_of(col)
            yield _text(x, steps_y + 18, verb if len(verb) <= 10 else "", fill=colour, more=' font-size="10"')


def _number(scene: Scene, span: Span) -> str:
    first, last = scene.timeline[span.first], scene.timeline[span.last]
    if span.last > span.first:
        return f"{first.n or first.position or ''}–{last.n or last.position or ''}"
    if first.kind == "lost":
        return "never"
    return first.label if first.n is not None or first.kind == "fold" else ""


def _mark(col: Col, x: float, *, block: bool) -> str:
    left, top = x - 5, _MARK_Y - 5
    if block or col.kind == "fold":
        return "".join(
            f'<rect x="{x - 13 + d * 5:.1f}" y="{top:.0f}" width="3" height="10" fill="{_COM}"/>' for d in range(5)
        )
    if col.kind == "lost":
        return (
            f'<rect x="{left:.1f}" y="{top:.0f}" width="10" height="10" fill="#fff" stroke="{_LOST}" '
            f'stroke-width="1.5" stroke-dasharray="2.4 1.6"/>'
        )
    if col.mark == "future":
        return (
            f'<rect x="{left:.1f}" y="{top:.0f}" width="10" height="10" fill="#fff" stroke="{_LINE}" '
            'stroke-width="1.5"/>'
        )
    if col.mark == "interrupted":
        return f'<path d="M{x:.1f} {_MARK_Y - 7:.0f}l7 7-7 7-7-7z" fill="{_INT}"/>'
    if col.n is None:
        stroke = _AGAIN if col.mark == "again" else _SAID
        return f'<circle cx="{x:.1f}" cy="{_MARK_Y:.0f}" r="4.5" fill="#fff" stroke="{stroke}" stroke-width="1.75"/>'
    frame = (
        f'<rect x="{left - 2.5:.1f}" y="{top - 2.5:.1f}" width="15" height="15" fill="none" stroke="{_COM}" '
        'stroke-width="1.5"/>'
    )
    return f'<rect x="{left:.1f}" y="{top:.0f}" width="10" height="10" fill="{_COM}"/>' + (frame if col.barrier else "")


def _until(bars: list[Bar], bar: Bar) -> float:
    """Where the next effect of the same lane begins."""
    return min((one.from_ for one in bars if one.lane == bar.lane and one.from_ > bar.from_), default=float("inf"))


def _bar(scene: Scene, places: _Places, bar: Bar, until: float) -> Iterator[str]:
    y, left, right = 36 + bar.lane * 26, places.x(bar.from_), max(places.x(bar.from_) + 4, places.x(bar.to))
    crash = crash_of(scene)
    again = crash is not None and bar.from_ > crash[0] + 1
    twice = again and any(
        one.label == bar.label and one.from_ < bar.from_ and one.task == bar.task for one in scene.bars
    )
    colour, word = (_AGAIN, "again: ") if twice else (_SAID, "")
    dots = [left, *([] if bar.cut else [right]), *([places.x(bar.applied)] if bar.applied is not None else [])]
    yield f'<path d="M{left:.1f} {y}H{right:.1f}" stroke="{colour}" stroke-width="2"/>'
    for x in dots:
        yield f'<circle cx="{x:.1f}" cy="{y}" r="3.5" fill="{colour}"/>'
    room = int((min(places.x(until), WIDTH) - left) / _CHAR)
    yield _text(left, y + 14, fitted(word + visible(bar.label), max(3, min(room, 40))), fill=colour, anchor="start")
