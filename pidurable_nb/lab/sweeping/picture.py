"""Owns the picture of a sweep: its matrix as an SVG that stands by itself, and as plain text of 80 columns.

Colour only says what became of something, and never alone: each class has a shape and a word too. Colours stand in the
picture, on a light ground of its own, so that it survives being saved. Foreign text is made visible and escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pidurable_nb.lab.sweeping.matrix import KIND_WORDS, WORDS, Matrix, Outcomes, Row, matrix
from pidurable_nb.lab.sweeping.tally import OutcomeClass
from pidurable_nb.store.visible import columns, fitted, visible

if TYPE_CHECKING:
    from pidurable_nb.lab.sweeping.result import SweepResult

__all__ = ["SIGNS", "picture_svg", "picture_text"]

_INK: Final = "#16191d"
_QUIET: Final = "#4b5159"
_NONE: Final = "#868d96"
_HAIRLINE: Final = "#dfe2e6"

_COLOURS: Final[Mapping[OutcomeClass, str]] = {
    "as_promised": "#0b5cad",
    "lost_within_bound": "#646b74",
    "effect_twice": "#8f5200",
    "lost_acknowledged": "#b3261e",
    "stuck": "#6d3bb3",
    "corrupt": "#b3261e",
    "broken": "#b3261e",
}
"""Committed, not committed, happens again, unknown; the others are what must not be."""

_SHAPES: Final[Mapping[OutcomeClass, str]] = {
    "as_promised": '<rect x="-5" y="-5" width="10" height="10" fill="{c}"/>',
    "lost_within_bound": '<rect x="-5" y="-5" width="10" height="10" fill="none" stroke="{c}" stroke-width="1.6" '
    'stroke-dasharray="3 2"/>',
    "effect_twice": '<path d="M4.6 -2A5 5 0 1 0 5 1" fill="none" stroke="{c}" stroke-width="1.8"/>'
    '<path d="M6 -6V-1H1Z" fill="{c}"/>',
    "lost_acknowledged": '<rect x="-5" y="-5" width="10" height="10" fill="none" stroke="{c}" stroke-width="1.6" '
    'stroke-dasharray="3 2"/><path d="M-7 0H7" stroke="{c}" stroke-width="1.8"/>',
    "stuck": '<path d="M0 -7L7 0L0 7L-7 0Z" fill="none" stroke="{c}" stroke-width="1.4"/>'
    '<text x="0" y="3.5" font-size="9" font-weight="700" text-anchor="middle" fill="{c}">?</text>',
    "corrupt": '<path d="M-5 -5L5 5M5 -5L-5 5" stroke="{c}" stroke-width="2.4"/>',
    "broken": '<path d="M0 -7L7 0L0 7L-7 0Z" fill="{c}"/>',
}

SIGNS: Final[Mapping[OutcomeClass, str]] = {
    "as_promised": ".",
    "lost_within_bound": "_",
    "effect_twice": "~",
    "lost_acknowledged": "!",
    "stuck": "?",
    "corrupt": "X",
    "broken": "#",
}
"""The sign of each class in plain text."""

_ROW: Final = 20
_SIDE: Final = 16
_COLUMN: Final = 124
_LETTER: Final = 7.2
_LONGEST: Final = 64
_WIDTH: Final = 80
_CELL: Final = 12

_MONO: Final = "ui-monospace,Menlo,Consolas,monospace"
_SANS: Final = "system-ui,sans-serif"


# Drawn.


def picture_svg(found: SweepResult) -> str:
    """The matrix as one `<svg>` element: rows are points, columns are kinds, each place has the worst that was met."""
    shown = matrix(found)
    label = max([len(_label(row)) for row in shown.rows] + [24])
    left = _SIDE + round(label * _LETTER) + 16
    legend: list[tuple[OutcomeClass, int]] = [(kind, count) for kind, count in found.counts.items() if count]
    width = max(left + _COLUMN * len(shown.kinds), 480) + _SIDE
    top = 68
    bottom = top + _ROW * len(shown.rows)
    height = bottom + 18 * (2 + len(legend)) + (18 if _left_out(shown) else 0)
    title = f"What became of {found.images:,} crashes of {_clean(found.scenario)}"
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    font = f'font-family="{_SANS}" font-size="12" fill="{_INK}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{html.escape(title)}" {font}>',
        f"<title>{html.escape(title)}</title><desc>{html.escape(_description(found, shown))}</desc>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(_SIDE, 24, title, size=15, weight=650),
        _text(_SIDE, 43, _under(found, shown), fill=_QUIET),
        *(_text(left + _COLUMN * n, top - 8, KIND_WORDS[kind], weight=650) for n, kind in enumerate(shown.kinds)),
        *(part for n, row in enumerate(shown.rows) for part in _row(row, shown, top + _ROW * n, left, width)),
        *_below(shown, legend, bottom + 22, width),
        "</svg>",
    ]
    return "".join(parts)


def _row(row: Row, shown: Matrix, y: int, left: int, width: int) -> Iterator[str]:
    yield f'<path d="M{_SIDE} {y}H{width - _SIDE}" stroke="{_HAIRLINE}"/>'
    yield _text(_SIDE, y + 14, _label(row), family=_MONO)
    for n, kind in enumerate(shown.kinds):
        cell = row.cells.get(kind)
        x = left + _COLUMN * n
        if cell is None:
            yield _text(x, y + 14, "-", fill=_NONE)
            continue
        said = f"{_label(row)}, {KIND_WORDS[kind]}: {cell.words}"
        at = f"translate({x + 7} {y + 10})"
        yield f'<g><title>{html.escape(said)}</title><g transform="{at}">{_shape(cell.worst)}</g>'
        yield _text(x + 22, y + 14, _numbers(cell), fill=_INK) + "</g>"


def _below(shown: Matrix, legend: list[tuple[OutcomeClass, int]], y: int, width: int) -> Iterator[str]:
    yield f'<path d="M{_SIDE} {y - 22}H{width - _SIDE}" stroke="{_HAIRLINE}"/>'
    if _left_out(shown):
        yield _text(_SIDE, y, _left_out(shown), fill=_QUIET)
        y += 18
    for kind, count in legend:
        yield f'<g transform="translate({_SIDE + 7} {y - 4})">{_shape(kind)}</g>'
        yield _text(_SIDE + 22, y, f"{WORDS[kind]}: {count:,}")
        y += 18


def _shape(kind: OutcomeClass) -> str:
    return _SHAPES[kind].format(c=_COLOURS[kind])


def _text(
    x: int, y: int, text: str, *, fill: str = _INK, size: int = 12, weight: int = 400, family: str | None = None
) -> str:
    font = f' font-family="{family}"' if family is not None else ""
    look = f'font-size="{size}" font-weight="{weight}" fill="{fill}"{font}'
    return f'<text x="{x}" y="{y}" {look}>{html.escape(text)}</text>'


# Written.


def picture_text(found: SweepResult) -> str:
    """The matrix as lines of at most 80 columns, in ASCII."""
    return "\n".join(_lines(found))


def _lines(found: SweepResult) -> Iterator[str]:
    shown = matrix(found)
    room = _WIDTH - 1 - _CELL * len(shown.kinds)
    yield _middle(f"{_clean(found.scenario)}: {_under(found, shown)}", _WIDTH)
    yield ("point".ljust(room) + " " + "".join(KIND_WORDS[kind].ljust(_CELL) for kind in shown.kinds)).rstrip()
    for row in shown.rows:
        cells = [row.cells.get(kind) for kind in shown.kinds]
        signs = ["-" if cell is None else f"{SIGNS[cell.worst]} {_numbers(cell)}" for cell in cells]
        named = _middle(_clean(row.name), room).ljust(room)
        yield f"{named} {''.join(sign.ljust(_CELL) for sign in signs)}".rstrip()
        if row.points > 1:
            yield _middle(f"  {_clean(row.rest)}", _WIDTH)
    if _left_out(shown):
        yield _left_out(shown)
    yield ""
    for kind, count in found.counts.items():
        if count:
            yield f"{SIGNS[kind]} {WORDS[kind]}: {count}"


# What both say.


def _clean(text: str) -> str:
    """Foreign text in ASCII, no character of which acts."""
    return visible(text).encode("ascii", "backslashreplace").decode("ascii")


def _label(row: Row) -> str:
    more = f" (+{row.points - 1})" if row.points > 1 else ""
    return f"{_middle(visible(row.name), _LONGEST)}{more}"


def _middle(text: str, width: int) -> str:
    """What is too long is cut in its middle: points of one task differ at their ends."""
    if columns(text) <= width:
        return text
    if not text.isascii():
        return fitted(text, width)
    tail = (width - 2) * 2 // 3
    return f"{text[: width - 2 - tail]}..{text[-tail:]}"


def _numbers(cell: Outcomes) -> str:
    """How often the worst was met, of how often a crash was tried; one number where that is always."""
    worst = cell.counts[cell.worst]
    return f"{worst:,}" if worst == cell.total else f"{worst:,} of {cell.total:,}"


def _under(found: SweepResult, shown: Matrix) -> str:
    stopped = "" if found.complete else f", stopped after {found.done} of {found.pieces} pieces"
    grouped = ", neighbours that came out alike in one row" if shown.grouped else ""
    how = f"durability {found.durability}, seed {found.seed}, SQLite {_clean(found.sqlite)}"
    return f"{shown.points:,} points{grouped}; {how}{stopped}"


def _left_out(shown: Matrix) -> str:
    return f"and {shown.left_out:,} more points: the data frame has them all" if shown.left_out else ""


def _description(found: SweepResult, shown: Matrix) -> str:
    """The picture in sentences, for who does not see it."""
    counts = ", ".join(f"{count:,} {WORDS[kind]}" for kind, count in found.counts.items() if count) or "nothing yet"
    kinds = ", ".join(KIND_WORDS[kind] for kind in shown.kinds)
    worst = [row for row in shown.rows if any(cell.worst != "as_promised" for cell in row.cells.values())]
    where = "; ".join(
        f"{_label(row)}: " + ", ".join(f"{KIND_WORDS[kind]}, {cell.words}" for kind, cell in row.cells.items())
        for row in worst[:10]
    )
    rest = f"; and {len(worst) - 10} more rows" if len(worst) > 10 else ""
    return f"{_under(found, shown)}. Ways to die: {kinds}. {counts}." + (
        f" Not as promised: {where}{rest}." if where else ""
    )
