"""Owns putting an answer together: events in, the stored assistant message out. Never asks a model, never stores.

However an answer is cut into deltas, the message is the same; and every message it gives can be stored (C7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, assert_never

from pidurable_nb.errors import NotJson
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.models import fields
from pidurable_nb.models.model import (
    ArgumentsDelta,
    CallStart,
    Finished,
    ModelEvent,
    ModelRef,
    TextDelta,
    ThinkingDelta,
)
from pidurable_nb.records.codec import BadRecord, loads
from pidurable_nb.records.message import Message, no_usage
from pidurable_nb.records.strict import detach, whole_characters

NEVER_ENDED: Final = "stream cut: the answer ended before the model said that it had finished"
NO_REASON: Final = "the model gave no reason"
_DEEPEST_HOLDER: Final = 8
"""Levels that the records and documents which hold arguments put above them, with room to spare."""
_COUNTS: Final = ("input", "output", "cacheRead", "cacheWrite")
_OPTIONAL: Final = ("cacheWrite1h", "reasoning")


@dataclass(frozen=True, slots=True)
class RedactedThinking(ThinkingDelta):
    """Thinking that the provider keeps to itself: `signature` is all there is, and has to be sent back as it came."""


class Assembly:
    """One answer while it arrives.

    `apply` takes the events in order; `partial` is the message so far, `message` the final one, and `failed` what
    arrived as the message of an answer that broke. Each gives a new value. `now_ms` is the message's timestamp.
    """

    __slots__ = ("_api", "_blocks", "_now_ms", "_ref", "finished")

    def __init__(self, ref: ModelRef, api: str, now_ms: int) -> None:
        self._ref = ref
        self._api = api
        self._now_ms = now_ms
        self._blocks: dict[int, _Text | _Thinking | _Call] = {}
        self.finished: Finished | None = None
        """How the answer ended; None while it has not."""

    def apply(self, event: ModelEvent) -> None:
        """Take the next event.

        Raises: ValueError for an event that no answer can hold there: after the end, or of another kind than its
        block. It is the model's fault, as if the model had raised it.
        """
        if self.finished is not None:
            raise ValueError(f"{self._ref} went on after it had finished: {event!r}")
        match event:
            case TextDelta(index, more):
                self._block(index, _Text).text.add(more)
            case ThinkingDelta():
                self._block(event.index, _Thinking).add(event)
            case CallStart(index, id, name):
                if index in self._blocks:
                    raise ValueError(f"{self._ref} began block {index} twice")
                self._blocks[index] = _Call(id, name)
            case ArgumentsDelta(index, more):
                if index not in self._blocks:
                    raise ValueError(f"{self._ref} sent arguments of block {index}, which is no tool call")
                self._block(index, _Call).arguments.add(more)
            case Finished():
                self.finished = event
            case _:
                assert_never(event)

    def _block(self, index: int, kind: type[_B]) -> _B:
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = kind()
        if not isinstance(block, kind):
            raise ValueError(f"{self._ref} sent {kind.what} into block {index}, which is {block.what}")
        return block

    @property
    def has_content(self) -> bool:
        """Whether anything arrived that a reader would miss."""
        return any(not block.is_empty for block in self._blocks.values())

    def partial(self) -> Message:
        """The answer so far, as `pi.live` shows it; arguments are what can be read of them (V5)."""
        return self._as_message("pending", no_usage(), final=False)

    def message(self) -> Message:
        """The final stored message. An answer that never finished is one that failed."""
        end = self.finished
        if end is None or end.stop_reason == "pending":
            return self.failed(NEVER_ENDED)
        message = self._as_message(end.stop_reason, full_usage(end.usage), final=True)
        if end.stop_reason == "error":
            message["errorMessage"] = end.error or NO_REASON
        elif end.error:
            message["errorMessage"] = end.error
        if end.handle is not None:
            message["deferred"] = end.handle
        return {**message, **{name: value for name, value in end.more.items() if name not in message}}

    def failed(self, text: str) -> Message:
        """What arrived, as a message that ended in this error."""
        usage = self.finished.usage if self.finished is not None else {}
        message = self._as_message("error", full_usage(usage), final=True)
        message["errorMessage"] = whole_characters(text) or NO_REASON
        return message

    def _as_message(self, stop_reason: str, usage: JsonObject, *, final: bool) -> dict[str, Json]:
        blocks = (block for _, block in sorted(self._blocks.items()) if not block.is_empty)
        return {
            "role": "assistant",
            "content": [block.json(final=final) for block in blocks],
            "api": self._api,
            "provider": self._ref.provider,
            "model": self._ref.model_id,
            "usage": usage,
            "stopReason": stop_reason,
            "timestamp": self._now_ms,
        }


def full_usage(usage: JsonObject) -> JsonObject:
    """A provider's usage with every field of the stored one; what it does not say is 0, the total the sum."""
    found: dict[str, Json] = {name: fields.count(usage, name) for name in _COUNTS}
    found["totalTokens"] = fields.count(usage, "totalTokens") or sum(fields.count(usage, name) for name in _COUNTS)
    found |= {name: fields.count(usage, name) for name in _OPTIONAL if name in usage}
    cost = fields.member(usage, "cost")
    costs: dict[str, int | float] = {name: fields.number(cost.get(name)) for name in _COUNTS}
    found["cost"] = {**costs, "total": fields.number(cost.get("total")) or sum(costs.values())}
    return found


class _Growing:
    """Text that grows. Two surrogates that meet where deltas do become the character that they spell."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[str] = []  # none is empty

    def add(self, more: str) -> None:
        if not more:
            return
        if self._parts and "\udc00" <= more[0] <= "\udfff" and "\ud800" <= self._parts[-1][-1] <= "\udbff":
            last = self._parts.pop()
            more = last[-1] + more
            if len(last) > 1:
                self._parts.append(last[:-1])
        self._parts.append(whole_characters(more))

    def __str__(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def __bool__(self) -> bool:
        return bool(self._parts)


class _Text:
    what = "text"
    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text = _Growing()

    @property
    def is_empty(self) -> bool:
        return not self.text

    def json(self, *, final: bool) -> JsonObject:
        return {"type": "text", "text": str(self.text)}


class _Thinking:
    what = "thinking"
    __slots__ = ("redacted", "signature", "text")

    def __init__(self) -> None:
        self.text = _Growing()
        self.signature: str | None = None
        self.redacted = False

    def add(self, event: ThinkingDelta) -> None:
        self.text.add(event.text)
        if event.signature is not None:
            self.signature = event.signature
        self.redacted = self.redacted or isinstance(event, RedactedThinking)

    @property
    def is_empty(self) -> bool:
        return not self.text and not self.signature

    def json(self, *, final: bool) -> JsonObject:
        found: dict[str, Json] = {"type": "thinking", "thinking": str(self.text)}
        if self.signature:
            found["thinkingSignature"] = self.signature
        if self.redacted:
            found["redacted"] = True
        return found


class _Call:
    what = "a tool call"
    is_empty = False
    __slots__ = ("arguments", "id", "name")

    def __init__(self, id: str = "", name: str = "") -> None:
        self.id = id
        self.name = name
        self.arguments = _Growing()

    def json(self, *, final: bool) -> JsonObject:
        found: dict[str, Json] = {"type": "toolCall", "id": self.id, "name": self.name, "arguments": {}}
        if not final:
            found["arguments"] = arguments_so_far(str(self.arguments))
            return found
        try:
            found["arguments"] = parsed_arguments(str(self.arguments))
        except ValueError as error:
            found["argumentsError"] = str(error)
        return found


_B = TypeVar("_B", _Text, _Thinking, _Call)


def parsed_arguments(text: str) -> JsonObject:
    """The arguments that the text is; none at all is `{}`.

    Raises: ValueError, saying what is wrong, for anything but one JSON object that can be stored.
    """
    if not text.strip():
        return {}
    try:
        value = detach(loads(text, "the arguments"), at="the arguments")
    except BadRecord as error:
        raise ValueError(str(error)) from error
    except NotJson as error:
        raise ValueError(f"the arguments cannot be stored: {error}") from error
    if not isinstance(value, Mapping):
        raise ValueError("the arguments are JSON, but no object")
    if not _fits_its_holders(value):
        raise ValueError("the arguments cannot be stored: they are nested too deep")
    return value


def arguments_so_far(text: str) -> JsonObject:
    """The object that can be read of arguments which are still arriving; `{}` where none can."""
    whole = text.encode("utf-8", "replace")  # half a surrogate pair may stand at the end
    try:
        import pydantic_core  # half-read JSON is rare, and it loads slowly

        value: object = pydantic_core.from_json(whole, allow_inf_nan=False, allow_partial="trailing-strings")
        found = detach(value)
    except (ValueError, NotJson):
        return {}
    return found if isinstance(found, Mapping) and _fits_its_holders(found) else {}


def _fits_its_holders(value: Json) -> bool:
    for _ in range(_DEEPEST_HOLDER):
        value = [value]
    try:
        detach(value)
    except NotJson:
        return False
    return True
