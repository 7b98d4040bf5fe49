"""Owns how anything becomes markup: escaping, cutting, colours, and the two forms that every view has.

Foreign text is escaped, isolated and stripped of every character that acts; colour never stands alone. Never knows
what is shown.
"""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

from pidurable_nb.ids import Json
from pidurable_nb.records.codec import dumps
from pidurable_nb.store.visible import columns, fitted, visible

LONGEST: Final = 80
"""Values longer than this are cut, with their size."""
MOST_LINES: Final = 1000
"""And texts of more lines."""
TAB: Final = 4

Tone = Literal["com", "lost", "again", "unk", "int", "quiet"]
COLOURS: Final[Mapping[Tone, tuple[str, str]]] = {
    "com": ("#0b5cad", "#6cb2ff"),
    "lost": ("#646b74", "#959ca6"),
    "again": ("#8f5200", "#f0a93b"),
    "unk": ("#6d3bb3", "#c3a1ff"),
    "int": ("#b3261e", "#ff8a80"),
    "quiet": ("#4b5159", "#aab0b8"),
}
"""What became of something, on a light and on a dark ground: committed, not committed, happens again, unknown,
interrupted; and what is said aside."""
SIGNS: Final[Mapping[Tone, str]] = {"com": "■", "lost": "□", "again": "↻", "unk": "◇", "int": "◆", "quiet": "○"}
"""The shape that says the same as the colour."""

_US: Final = ".pinb.pinb.pinb"
"""Three classes, because Jupyter's rules for tables in outputs have two."""
_DARK: Final = "--pi-ink:#f1f3f5;--pi-line:#33383f;" + "".join(
    f"--pi-{tone}:{dark};" for tone, (_, dark) in COLOURS.items()
)
_RULES: Final[Mapping[str, str]] = {
    "": "color:var(--pi-ink,#16191d);font:13px/1.45 var(--jp-ui-font-family,system-ui,sans-serif);max-width:1100px;"
    "text-align:left",
    " h2": "font-size:20px;line-height:27px;margin:4px 0 6px;font-weight:650",
    " h3": "font-size:12px;margin:14px 0 4px;color:var(--pi-quiet,#4b5159)",
    " p": "margin:0 0 6px",
    " table": "border-collapse:collapse;margin:6px 0;font-size:12px;table-layout:auto;color:inherit",
    " tr": "background:none",
    " th": "font-weight:inherit",
    " :is(th,td)": "vertical-align:top;text-align:left;padding:4px 14px 4px 0;background:none;white-space:normal;"
    "border-bottom:1px solid var(--pi-line,#dfe2e6)",
    " thead th": "color:var(--pi-lost,#646b74);font-weight:400",
    " :is(code,pre)": "font:11.5px/1.45 var(--jp-code-font-family,ui-monospace,Menlo,Consolas,monospace);"
    "background:none;color:inherit;padding:0;margin:0;white-space:pre-wrap",
    " pre.said": "font-size:12.5px;margin:6px 0",
    " details": "margin:0 0 6px",
    " summary": "cursor:pointer",
    " ul": "margin:0;padding-left:18px",
    " li": "margin:2px 0",
    " svg": "max-width:100%;height:auto",
}
_STYLE: Final = "".join(
    [
        "<style>",
        *(f"{_US}{what}{{{rule}}}" for what, rule in _RULES.items()),
        f"body[data-jp-theme-light=false] {_US}{{{_DARK}}}",
        f"@media(prefers-color-scheme:dark){{body:not([data-jp-theme-light]) {_US}{{background:#15171b;{_DARK}}}}}",
        "</style>",
    ]
)


class View(ABC):
    """Something to look at. It stands by itself: markup and plain text say the same facts, no kernel is needed."""

    @abstractmethod
    def html(self) -> str:
        """The facts as markup, without a frame."""

    @abstractmethod
    def text(self) -> str:
        """The same facts as plain text."""

    @property
    def label(self) -> str:
        """What a screen reader calls it."""
        return type(self).__name__

    def plain(self) -> str:
        """The plain text as it is shown: no character in it acts, wherever it came from."""
        return "\n".join(visible(line) for line in self.text().split("\n"))

    def __repr__(self) -> str:
        return self.plain()

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        return {"text/html": framed(self.html(), self.label), "text/plain": self.plain()}


def framed(body: str, label: str) -> str:
    """`body` with the style that it needs, cut off from the page around it."""
    return f'{_STYLE}<section class="pinb" aria-label="{attribute(label)}">{body}</section>'


# --- Foreign text ---------------------------------------------------------------------------------------------------


def esc(text: object) -> str:
    """Foreign text as markup: inert, on one line, nothing that acts or hides."""
    return html.escape(visible(str(text)), quote=True)


def attribute(text: object) -> str:
    """Foreign text inside a quoted attribute."""
    return esc(text)


def bdi(text: object) -> str:
    """Foreign text as markup that cannot turn what stands around it."""
    return f"<bdi>{esc(text)}</bdi>"


def cut(text: str, longest: int = LONGEST, *, size: int = 0) -> str:
    """Foreign text made visible; what is too long is cut and says how long it was: `size`, where it was cut before."""
    if not size and len(text) <= longest and len(shown := visible(text)) <= longest:
        return shown
    return f"{fitted(visible(text[:longest]), longest)} ({size or len(text):,} characters)"


def short(value: Json, longest: int = LONGEST) -> str:
    """A JSON value on one line, cut with its size."""
    return cut(dumps(value), longest)


def lines_of(text: str, longest: int, most: int = MOST_LINES) -> list[str]:
    """Foreign text of several lines, each made visible; what is too long is cut, and the last line says its size."""
    given = text[:longest].replace("\r\n", "\n").split("\n")
    whole, left, lines = len(text) <= longest and len(given) <= most, longest, list[str]()
    for line in given[:most]:
        shown = visible(line.expandtabs(TAB))
        lines.append(shown[:left])
        whole, left = whole and len(shown) <= left, left - len(shown)
        if left < 0:
            break
    return lines if whole else [*lines, f"… ({len(text):,} characters in all)"]


def prose(text: str, longest: int) -> str:
    """Foreign text of several lines as markup, line for line and space for space."""
    shown = "\n".join(html.escape(line, quote=True) for line in lines_of(text, longest))
    return f'<pre class="said"><bdi>{shown}</bdi></pre>'


def code(text: object) -> str:
    """Foreign text in the code font."""
    return f"<code>{bdi(text)}</code>"


# --- Parts ----------------------------------------------------------------------------------------------------------


def toned(tone: Tone, text: object, *, sign: bool = True) -> str:
    """A word in the colour of what it says, with its shape. `text` is escaped."""
    light, _ = COLOURS[tone]
    mark = f"{SIGNS[tone]} " if sign else ""
    return f'<b style="color:var(--pi-{tone},{light})">{mark}{esc(text)}</b>'


def quiet(markup: str) -> str:
    """Something said aside; already markup."""
    return f'<span style="color:var(--pi-quiet,#4b5159)">{markup}</span>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of markup cells under plain words; the first cell of a row names it."""
    top = "".join(f'<th scope="col">{esc(word)}</th>' for word in head)
    body = "".join(
        "<tr>"
        + "".join(f'<th scope="row">{c}</th>' if n == 0 else f"<td>{c}</td>" for n, c in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def items(markup: Iterable[str]) -> str:
    """A list of markup lines."""
    return "<ul>" + "".join(f"<li>{line}</li>" for line in markup) + "</ul>"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, widest: int = 44) -> str:
    """The same table as plain text, in columns; cells are foreign text and come out visible."""
    shown = [[fitted(visible(cell), widest) for cell in row] for row in [head, *rows]]
    widths = [max(columns(row[n]) for row in shown) for n in range(len(head))]
    lines = [
        "  ".join(cell + " " * (width - columns(cell)) for cell, width in zip(row, widths, strict=True))
        for row in shown
    ]
    return "\n".join(line.rstrip() for line in lines)


def more(shown: int, total: int, what: str, rest: str) -> str:
    """How many are left out, and what shows them; nothing when none is."""
    return f"and {total - shown:,} more {what}: {rest}" if total > shown else ""
