"""Owns replacing exact pieces of a text: all of them or none, each found exactly once. Never reads or writes a file.

Line endings are not part of a match: a file with CRLF is searched as if it had newlines only, and what is put in gets
the endings of what it replaces. A byte order mark stays. Bytes that are no UTF-8 stay as they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pidurable_nb.errors import ToolError

_MARK: Final = "\ufeff"
_PLACES: Final = 10
"""How many line numbers an error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One replacement. `old_text` stands exactly once in the file."""

    old_text: str
    new_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an edit applies, as positions in the text, and what comes there."""

    edit: int
    start: int
    end: int
    text: str


def edited(data: bytes, edits: Sequence[Edit], *, path: str) -> tuple[bytes, int]:
    """The new content, and the line of the first change. All edits are searched in the text as it was.

    Raises: ToolError, saying which edit, how often its text was found and where, for one that is not found, found more
    than once, changes nothing, or overlaps another; nothing is changed then.
    """
    text = data.decode("utf-8", "surrogateescape")
    mark = _MARK if text.startswith(_MARK) else ""
    lines = _Lines(text.removeprefix(mark))
    if not edits:
        raise ToolError(f"{path}: no edits were given")
    places = sorted((_place(lines, n, edit, path) for n, edit in enumerate(edits)), key=lambda place: place.start)
    for before, after in pairwise(places):
        if after.start < before.end:
            raise ToolError(
                f"{path}: edits[{before.edit}] and edits[{after.edit}] overlap; make them one. Nothing was changed"
            )
    parts: list[str] = [mark]
    at = 0
    for place in places:
        parts += (lines.original[at : place.start], place.text)
        at = place.end
    parts.append(lines.original[at:])
    new = "".join(parts).encode("utf-8", "surrogateescape")
    return new, lines.original.count("\n", 0, places[0].start) + 1


class _Lines:
    """A text, and the same with newlines only, with the way back from positions in that."""

    def __init__(self, original: str) -> None:
        self.original = original
        self.plain = original.replace("\r\n", "\n")
        self._pairs: list[int] = []
        for n, found in enumerate(_find_all(original, "\r\n")):
            self._pairs.append(found - n)
        first = original.find("\n")
        self._ending = "\r\n" if first > 0 and original[first - 1] == "\r" else "\n"

    def back(self, position: int) -> int:
        """The position in the original."""
        return position + bisect_left(self._pairs, position)

    def with_endings(self, text: str, replaced: str) -> str:
        """`text` with the line endings of what it replaces, or else the first of the file."""
        ending = self._ending if "\n" not in replaced else "\r\n" if "\r\n" in replaced else "\n"
        plain = text.replace("\r\n", "\n")
        return plain if ending == "\n" else plain.replace("\n", ending)


def _place(lines: _Lines, n: int, edit: Edit, path: str) -> Place:
    old = edit.old_text.replace("\r\n", "\n")
    if not old:
        raise ToolError(f"{path}: edits[{n}].old_text is empty; give the text to replace. Nothing was changed")
    if old == edit.new_text.replace("\r\n", "\n"):
        raise ToolError(f"{path}: edits[{n}] replaces a text by itself; leave it out. Nothing was changed")
    found = list(_find_all(lines.plain, old))
    if not found:
        raise ToolError(
            f"{path}: edits[{n}].old_text was found 0 times; it has to stand in the file exactly, spaces included. "
            "Nothing was changed"
        )
    if len(found) > 1:
        at = ", ".join(str(lines.plain.count("\n", 0, start) + 1) for start in found[:_PLACES])
        more = ", …" if len(found) > _PLACES else ""
        raise ToolError(
            f"{path}: edits[{n}].old_text was found {len(found):,} times (lines {at}{more}); "
            "give more of what stands around the one you mean. Nothing was changed"
        )
    start, end = lines.back(found[0]), lines.back(found[0] + len(old))
    text = lines.with_endings(edit.new_text, lines.original[start:end])
    return Place(edit=n, start=start, end=end, text=text)


def _find_all(text: str, part: str) -> Iterator[int]:
    """Every place, those that overlap included: `aa` stands twice in `aaa`."""
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)
