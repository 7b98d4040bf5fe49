"""Owns the small records that a scene is made of: columns, conversations, entries, tasks, submissions, effects.

Plain and frozen; every text in them is foreign and raw. Never reads a store and renders nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Final, Literal, TypeAlias

from pidurable_nb.ids import Json, JsonObject

LONGEST: Final = 2000
"""Characters of one text; what is longer is cut, and says its size."""
_HALF: Final = re.compile("[\ud800-\udfff]")
_PLAIN: Final = frozenset((bool, int, float, type(None)))
_NAMES: Final[dict[type, tuple[tuple[str, str], ...]]] = {}

ColKind: TypeAlias = Literal["fold", "commit", "kill", "lost", "step"]
Mark: TypeAlias = Literal["commit", "interrupted", "again", "none", "crash", "future"]
Role: TypeAlias = Literal["user", "assistant", "tool", "head", "system", "other"]
EntryState: TypeAlias = Literal["whole", "aborted", "failed", "interrupted", "deferred", "partial"]
LayerMark: TypeAlias = Literal["acted", "waits", "missing", "off"]
StoreMark: TypeAlias = Literal["committed", "lost", "unknown", "none"]


# --- Time -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Col:
    """A column of the timeline. `position` is the step that it stands for, where it stands for one."""

    n: int | None
    kind: ColKind
    label: str
    detail: str
    task: int | None = None
    submission: int | None = None
    position: int | None = None
    mark: Mark = "commit"
    barrier: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """An effect from its beginning to its end. Column k reaches from k to k + 1, so k + 0.5 is its middle.

    `cut`: the process died in it. `applied` is where the outside applied it, as far as is known.
    """

    lane: int
    from_: float
    to: float
    label: str
    cut: bool
    applied: float | None
    task: int | None
    detail: str


# --- Facts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What becomes of a document of a conversation at a fork."""

    kind: str
    scope: str
    fork: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedAt:
    """The entry that a fork leaves its parent behind."""

    conversation: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation; `total` counts the entries that it sees."""

    id: int
    parent: ForkedAt | None
    total: int
    policies: tuple[Policy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSizes:
    """How long the texts of a call are, where they are cut; else 0."""

    arguments: int = 0
    output: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """A tool call of an answer. `output` is what is stored of it; `lost` what was given and never stored."""

    id: str
    name: str
    arguments: str
    policy: str | None
    task: int | None
    status: str
    output: str
    lost: str
    sizes: CallSizes = field(default_factory=CallSizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of a transcript. `old`: behind the head, not sent to the model. A partial has a negative id.

    `size` is how long its text is where that is cut, else 0.
    """

    id: int
    conversation: int
    role: Role
    kind: str
    state: EntryState
    text: str
    old: bool
    new: bool
    task: int | None
    submission: int | None
    forks: tuple[int, ...]
    commit: int | None
    calls: tuple[CallRow, ...]
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """A window of what a conversation sees: the rows from `start`, of `total`."""

    conversation: int | None
    start: int
    total: int
    rows: tuple[Entry, ...]

    def to_json(self) -> JsonObject:
        """As the page gets it."""
        return as_json(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A transition between two states that a task took; `crash`: its process died there."""

    from_: str
    to: str
    crash: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEdge:
    """An arrow between two phases, or to an outcome, as the code says."""

    from_: str
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostMemo:
    """A value that came second."""

    value: str
    by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memo:
    """A memo of a task; `gone`: it ended with its task, and is shown from the record. `size`: as of an entry."""

    name: str
    value: str
    by: str | None
    lost: tuple[LostMemo, ...] = ()
    new: bool = False
    gone: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task. `verdict` is what recovery will do with it, `done` what it did. `whole`: `path` holds every move."""

    id: int
    kind: str
    name: str
    conversation: int
    owner: int | None
    background: bool
    state: str
    phase: str | None
    on: tuple[int, ...]
    until_ms: float | None
    restarts: int
    limit: int
    outcome: str | None
    reason: str | None
    checkpoint: str | None
    aborting: bool
    verdict: str | None
    done: str | None
    new: bool
    path: tuple[Move, ...]
    whole: bool
    edges: tuple[PhaseEdge, ...]
    memos: tuple[Memo, ...]
    checkpoint_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sub:
    """A submission."""

    id: int
    conversation: int
    type: str
    request_id: str | None
    mode: str | None
    text: str
    status: str
    reason: str | None
    verdict: str | None
    entry: int | None
    answer: int | None
    new: bool


# --- Did it happen once? ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one layer does for an effect: it acted, waits to, is missing, or holds nothing."""

    mark: LayerMark
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The five layers; None where a layer is not in play."""

    checkpoint: Layer | None = None
    memo: Layer | None = None
    replay: Layer | None = None
    request: Layer | None = None
    key: Layer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSays:
    """What the store knows of an effect."""

    mark: StoreMark
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """An effect with what is known of it. `asked` None: nobody counted. `outside`: the outside's own names for it."""

    id: str
    task: int | None
    submission: int | None
    label: str
    again: bool
    new: bool
    layers: Layers
    asked: int | None
    applied: int | None
    word: str
    store: StoreSays
    supposed: bool = False
    outside: tuple[str, ...] = ()


# --- Text and JSON --------------------------------------------------------------------------------------------------


def cut(text: str, most: int = LONGEST) -> str:
    """`text`, or its beginning with its size where it is longer than `most`."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def size(text: str, most: int = LONGEST) -> int:
    """How long `text` is where it is longer than `most` and therefore cut; else 0."""
    return len(text) if len(text) > most else 0


def short(text: str, most: int) -> str:
    """`text` in at most `most` characters; what was cut leaves an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def sayable(text: str) -> str:
    """`text` as every encoder takes it: half a character stands as its escape, in the form in which a page shows it."""
    if text.isascii():
        return text
    return _HALF.sub(lambda found: f"\\u{{{ord(found[0]):X}}}", text)


def as_json(record: object) -> JsonObject:
    """A record of a scene as the page gets it: names without the underscore that Python needs."""
    return _object(record, {})


def _object(record: object, seen: dict[int, Json]) -> JsonObject:
    found: dict[str, Json] = {}
    for name, shown in _names(type(record)):
        value = getattr(record, name)
        # A scene of a long store has tens of thousands of values at every step, and most of them are plain.
        found[shown] = value if type(value) in _PLAIN else _json(value, seen)
    return found


def _json(value: object, seen: dict[int, Json]) -> Json:
    """`seen` are the tuples that were told already: hundreds of tasks share the phases of their code."""
    if isinstance(value, str):
        return sayable(value)
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, tuple):
        if (known := seen.get(id(value))) is None:
            known = seen[id(value)] = [_json(item, seen) for item in value]
        return known
    return _object(value, seen)


def _names(kind: type) -> tuple[tuple[str, str], ...]:
    """The fields of a record, each with its name on the page."""
    known = _NAMES.get(kind)
    if known is None:
        assert is_dataclass(kind), f"a scene holds a {kind.__name__}"
        known = _NAMES[kind] = tuple((each.name, each.name.rstrip("_")) for each in fields(kind))
    return known
