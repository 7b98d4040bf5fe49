"""Owns how foreign text is shown on a terminal: inert, on one line, every character that acts or hides made visible.

Never decides what is shown, and knows no markup: a page escapes by itself.
"""

from __future__ import annotations

import unicodedata

_ACTING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that move, hide or turn what stands around them: controls, bidirectional marks, separators."""


def visible(text: str) -> str:
    """`text` with every control, bidirectional, unassigned and half character written as a Python escape.

    A joiner inside an emoji is one of them: the parts are shown side by side.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(char) if unicodedata.category(char) in _ACTING else char for char in text)


def _escaped(char: str) -> str:
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    if short is not None:
        return short
    point = ord(char)
    if point <= 0xFF:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"


def columns(text: str) -> int:
    """How many terminal columns `text` takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fitted(text: str, width: int) -> str:
    """`text` cut to at most `width` columns; what was cut leaves an ellipsis."""
    if columns(text) <= width:
        return text
    kept, taken = [], 0
    for char in text:
        taken += _columns(char)
        if taken > width - 1:
            break
        kept.append(char)
    return "".join(kept) + "…"
