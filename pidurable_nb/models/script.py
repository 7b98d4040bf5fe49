"""Owns what a scripted answer can be: small values that read like what the model does. Never plays one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from datetime import timedelta
from typing import Literal, TypeAlias

from pidurable_nb.ids import Json, JsonObject

NOW = timedelta()


@dataclass(frozen=True, slots=True, repr=False)
class Say:
    """Says `text`, and the answer is over.

    `chunks`: how it arrives; so many pieces of about one length, or these pieces, whose sum is the text. Unless given,
    at once. `delay` is waited before each piece. `thinking` comes first. `usage` is a stored usage; unless given, it is
    estimated. `stop="length"` says that the text was cut off.
    """

    text: str
    _: KW_ONLY
    chunks: int | tuple[str, ...] | None = None
    thinking: str | None = None
    delay: timedelta = NOW
    usage: JsonObject | None = None
    stop: Literal["stop", "length"] = "stop"

    def __post_init__(self) -> None:
        _check_chunks(self.text, self.chunks)

    def __repr__(self) -> str:
        return _as_written(self)


@dataclass(frozen=True, slots=True, repr=False)
class PlannedCall:
    """A tool call of a script; `call` makes one. Text as `arguments` is sent as it is, JSON or not.

    The id, unless given, is `call_N`, one more than the highest in the request.
    """

    name: str
    arguments: JsonObject | str = field(default_factory=dict[str, Json])
    id: str | None = None

    def __repr__(self) -> str:
        plain = isinstance(self.arguments, Mapping) and all(
            name.isidentifier() and name != "id" for name in self.arguments
        )
        if not plain or isinstance(self.arguments, str):
            return _as_written(self)
        named = [f"{name}={value!r}" for name, value in self.arguments.items()]
        given = [] if self.id is None else [f"id={self.id!r}"]
        return f"call({', '.join([repr(self.name), *given, *named])})"


def call(name: str, /, *, id: str | None = None, **arguments: Json) -> PlannedCall:
    """A call of the tool `name`: `call("search", query="tides")`.

    An argument that is itself called `id` is written `PlannedCall("search", {"id": 7})`.

    >>> call("search", query="tides")
    call('search', query='tides')
    """
    return PlannedCall(name, arguments, id)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class CallTools:
    """Calls these tools in one round, after `text` and `thinking`; `delay` is waited before each piece."""

    calls: tuple[PlannedCall, ...]
    text: str = ""
    thinking: str | None = None
    delay: timedelta = NOW
    usage: JsonObject | None = None

    def __init__(
        self,
        *calls: PlannedCall,
        text: str = "",
        thinking: str | None = None,
        delay: timedelta = NOW,
        usage: JsonObject | None = None,
    ) -> None:
        if not calls:
            raise ValueError("CallTools() calls nothing; write CallTools(call('name', ...)), or Say(...)")
        for name, value in (
            ("calls", calls), ("text", text), ("thinking", thinking), ("delay", delay), ("usage", usage),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return _as_written(self, spread="calls")


@dataclass(frozen=True, slots=True, repr=False)
class Break:
    """Streams `after`, then fails with `error`, as a provider would: `Break("503 overloaded")` is tried again.

    `retry_after` is how long the provider asks to be left alone.
    """

    error: str
    _: KW_ONLY
    after: str | tuple[str, ...] = ()
    retry_after: timedelta | None = None
    delay: timedelta = NOW

    def __repr__(self) -> str:
        return _as_written(self)


Playable: TypeAlias = str | Say | CallTools | Break
"""An answer that arrives in pieces."""


@dataclass(frozen=True, slots=True, repr=False)
class Raise:
    """The model itself breaks: the iteration raises `exception`."""

    exception: Exception

    def __repr__(self) -> str:
        return _as_written(self)


@dataclass(frozen=True, slots=True, repr=False)
class Defer:
    """Answers later: now with a handle, which holds the whole answer, and gives it once `after` has passed.

    Nothing but the handle is needed, so it can be fetched after a restart.
    """

    then: Playable
    after: timedelta

    def __post_init__(self) -> None:
        if not isinstance(self.then, Playable):
            raise TypeError(f"Defer(...) gives Say, CallTools, Break or text later, not {self.then!r}")

    def __repr__(self) -> str:
        return _as_written(self)


Once: TypeAlias = Playable | Raise | Defer
"""What one try can come to."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Attempts:
    """The first answer at the first try, the second at the next, and so on; the last one stays.

    Tries are counted in memory, for each session and number of answers so far: a restart begins again with the first.
    """

    answers: tuple[Once, ...]

    def __init__(self, *answers: Once) -> None:
        if not answers:
            raise ValueError("Attempts() has no answer; write Attempts(Break('503 overloaded'), Say('...'))")
        object.__setattr__(self, "answers", answers)

    def __repr__(self) -> str:
        return _as_written(self, spread="answers")


Answer: TypeAlias = Once | Attempts
"""What a scripted model can do when it is asked. A text alone is said."""


def pieces(text: str, chunks: int | tuple[str, ...] | None) -> tuple[str, ...]:
    """The text as it arrives; none of the pieces is empty."""
    if isinstance(chunks, tuple):
        return tuple(piece for piece in chunks if piece)
    n = min(chunks or 1, len(text))
    return tuple(text[len(text) * i // n : len(text) * (i + 1) // n] for i in range(n))


def _check_chunks(text: str, chunks: int | tuple[str, ...] | None) -> None:
    if isinstance(chunks, tuple) and "".join(chunks) != text:
        raise ValueError(f"chunks={chunks!r}: together they are {''.join(chunks)!r}, not {text!r}")
    if isinstance(chunks, int) and chunks < 1:
        raise ValueError(f"chunks={chunks}: an answer arrives in at least one piece")


_Written: TypeAlias = Say | PlannedCall | CallTools | Break | Raise | Defer | Attempts


def _as_written(value: _Written, *, spread: str = "") -> str:
    """The call that makes the value, without what is as it would be anyway."""
    written: list[str] = []
    for each in fields(value):
        found: object = getattr(value, each.name)
        usual: object = each.default if each.default_factory is MISSING else each.default_factory()
        if each.name == spread:
            written += [repr(item) for item in getattr(value, spread)]
        elif each.default is MISSING and each.default_factory is MISSING:
            written.append(repr(found))
        elif found != usual:
            written.append(f"{each.name}={found!r}")
    return f"{type(value).__name__}({', '.join(written)})"
