"""Owns what a model is to the harness: one small protocol, what is asked of it, and what it says while it answers.

Never classifies an answer and never retries: providers report, the generation decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records.message import Message, StopReason

Thinking = Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True, slots=True)
class ModelRef:
    """The name of a model. On disk `{"provider", "modelId"}`."""

    provider: str
    model_id: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What a model is asked.

    `messages` are in the stored form, system messages at their positions included: replaying these gives prompt and
    tools. `key` is the same when a crash makes the harness send the request again (E6). `options` are the host's.
    """

    messages: tuple[Message, ...]
    thinking: Thinking = "off"
    session_id: str | None = None
    key: str | None = None
    max_tokens: int | None = None
    options: JsonObject = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the block `index`, which begins with its first delta."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """More thinking of the block `index`. `signature` closes it, where the provider signs it."""

    index: int
    text: str = ""
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class CallStart:
    """The block `index` is a tool call."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the JSON text of the arguments of the tool call `index`."""

    index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end of an answer; nothing comes after it.

    `error` says why for `stop_reason="error"`; `handle` is what a deferred answer is fetched with; `more` are further
    fields of the stored message. `retry_after_ms` is how long the provider asks to be left alone.
    """

    stop_reason: StopReason
    usage: JsonObject = field(default_factory=dict[str, Json])
    error: str | None = None
    handle: JsonObject | None = None
    retry_after_ms: int | None = None
    more: Mapping[str, Json] = field(default_factory=dict[str, Json])


ModelEvent: TypeAlias = TextDelta | ThinkingDelta | CallStart | ArgumentsDelta | Finished


class Model(Protocol):
    """Something that answers. `context_window` and `max_tokens` are in tokens, 0 when unknown."""

    @property
    def ref(self) -> ModelRef: ...
    @property
    def api(self) -> str:
        """The stored `api` of its answers."""
        ...

    @property
    def context_window(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The answer, piece by piece; the last event is Finished.

        A provider's error is `Finished(stop_reason="error")`, not an exception; one that is raised is taken as such.
        Cancelling the iteration ends the request.
        """
        ...


@runtime_checkable
class DeferringModel(Model, Protocol):
    """A model that may answer later: `Finished(stop_reason="deferred", handle=...)`, then `fetch`."""

    def fetch(self, handle: JsonObject) -> AsyncIterator[ModelEvent]:
        """What became of the answer: as `stream`, or `deferred` again."""
        ...

    async def cancel(self, handle: JsonObject) -> None:
        """Nobody will fetch the answer any more."""
        ...
