"""Owns what a page may ask to read: the messages about texts, checked field by field. Never answers one.

A message comes from a page and is as foreign as any text: what does not fit raises `BadMessage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from pidurable_nb.errors import PidurableError
from pidurable_nb.lab.scene.reading import CallPart, Of, OfCall, OfEntry, OfRow, OfTask, Side

W = TypeVar("W", bound=str)
MOST_SOUGHT: Final = 1_000
"""Characters that somebody may look for."""
_CALL_PARTS: Final[tuple[CallPart, ...]] = ("arguments", "output", "lost")
_SIDES: Final[tuple[Side, ...]] = ("before", "after")


class BadMessage(PidurableError, ValueError):
    """A message that no page of this version sends; the text says which part of it."""


def number_of(message: Mapping[object, object], name: str) -> int:
    """A whole number of a message."""
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadMessage(f"{name}: a whole number is needed, not {value!r:.60}")
    return value


def word_of(value: object, name: str) -> str:
    """A text of a message."""
    if not isinstance(value, str):
        raise BadMessage(f"{name}: a text is needed, not {value!r:.60}")
    return value


def sought_in(message: Mapping[object, object]) -> str:
    """What a message looks for."""
    what = word_of(message.get("what"), "what")
    if not 0 < len(what) <= MOST_SOUGHT:
        raise BadMessage(f"what: 1 to {MOST_SOUGHT:,} characters are needed, not {len(what):,}")
    return what


def text_in(message: Mapping[object, object]) -> Of:
    """Which text a message is about.

    `of` is one of `{entry}`, `{entry, part: "stored"}`, `{call: {entry, id, part}}`, `{task, part: "checkpoint"}`,
    `{task, part: {memo: name}}` and `{row: {position, row, side}}`.
    """
    of = message.get("of")
    if not isinstance(of, Mapping):
        raise BadMessage(f"of: an entry, a call, a task or a row is needed, not {of!r:.60}")
    match of:
        case {"call": Mapping() as call}:
            return OfCall(
                entry=number_of(call, "entry"),
                id=word_of(call.get("id"), "id"),
                part=_one_of(call.get("part"), "part", _CALL_PARTS),
            )
        case {"row": Mapping() as row}:
            return OfRow(
                position=number_of(row, "position"),
                row=number_of(row, "row"),
                side=_one_of(row.get("side"), "side", _SIDES),
            )
        case {"task": _, "part": Mapping() as part}:
            return OfTask(task=number_of(of, "task"), memo=word_of(part.get("memo"), "memo"))
        case {"task": _}:
            _one_of(of.get("part"), "part", ("checkpoint",))
            return OfTask(task=number_of(of, "task"))
        case _:
            stored = _one_of(of.get("part", "text"), "part", ("text", "stored")) == "stored"
            return OfEntry(entry=number_of(of, "entry"), stored=stored)


def _one_of(value: object, name: str, words: tuple[W, ...]) -> W:
    for word in words:
        if value == word:
            return word
    raise BadMessage(f"{name}: one of {', '.join(words)} is needed, not {value!r:.60}")
