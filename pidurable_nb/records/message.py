"""Owns the shapes of messages as they are stored, and small questions about them. Never derives a context.

A message is JSON: fields that are not known here are a provider's, and travel along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pidurable_nb.ids import Json, JsonObject

Message: TypeAlias = JsonObject
StopReason = Literal["stop", "length", "toolUse", "error", "aborted", "deferred", "pending"]
"""`pending` stands only in a partial, which is in `pi.live` and never an entry."""
Severity = Literal["info", "warn", "error"]

UNSENT: Final = frozenset({"error", "aborted", "deferred"})
"""Answers with these stop reasons never reach a later request (V2)."""
_COUNTS: Final = ("input", "output", "cacheRead", "cacheWrite", "totalTokens")
_OPTIONAL: Final = ("cacheWrite1h", "reasoning")
_COSTS: Final = ("input", "output", "cacheRead", "cacheWrite", "total")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that an assistant asked for. `error` says why its arguments are no JSON object, where they are none."""

    id: str
    name: str
    arguments: JsonObject
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """A remark about a tool call for the model and the reader; never part of the tool's data. Raises TypeError."""

    severity: Severity
    message: str
    code: str | None = None

    def __post_init__(self) -> None:
        if self.severity not in ("info", "warn", "error"):
            raise TypeError(f'Diagnostic(severity={self.severity!r}): it is "info", "warn" or "error"')
        texts: tuple[object, ...] = (self.message, self.code if self.code is not None else "")
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"Diagnostic(message={self.message!r}, code={self.code!r}): both are text")

    def json(self) -> JsonObject:
        """As it is stored."""
        found: dict[str, Json] = {"severity": self.severity}
        if self.code is not None:
            found["code"] = self.code
        found["message"] = self.message
        return found


def user_message(content: str | Sequence[JsonObject], now_ms: int) -> Message:
    """A user's message; its content is text, or blocks of text and images."""
    return {"role": "user", "content": content if isinstance(content, str) else list(content), "timestamp": now_ms}


def role_of(message: Message) -> str:
    """The stored role; empty where there is none."""
    role = message.get("role")
    return role if isinstance(role, str) else ""


def stop_reason(message: Message) -> str:
    """The stored stop reason; empty where there is none."""
    reason = message.get("stopReason")
    return reason if isinstance(reason, str) else ""


def blocks_of(message: Message) -> tuple[JsonObject, ...]:
    """The content as blocks; text alone is one block."""
    content = message.get("content")
    if isinstance(content, str):
        return ({"type": "text", "text": content},) if content else ()
    return tuple([block for block in items(content) if type(block) is dict or isinstance(block, Mapping)])


def text_of(message: Message) -> str:
    """The text of its text blocks, joined."""
    return "".join(text for block in blocks_of(message) if (text := _text_in(block)) is not None)


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    """The tool calls of an assistant's message, in order."""
    if isinstance(message.get("content"), str):
        return ()
    return tuple(_calls(message))


def _calls(message: Message) -> Iterator[ToolCall]:
    for block in blocks_of(message):
        id, name = block.get("id"), block.get("name")
        if block.get("type") == "toolCall" and isinstance(id, str) and isinstance(name, str):
            arguments, error = block.get("arguments"), block.get("argumentsError")
            if isinstance(arguments, Mapping):
                yield ToolCall(id=id, name=name, arguments=arguments, error=error if isinstance(error, str) else None)
            else:
                yield ToolCall(id=id, name=name, arguments={}, error="the arguments are no JSON object")


def error_text(message: Message) -> str:
    """What an answer that failed says about it."""
    text = message.get("errorMessage")
    return text if isinstance(text, str) and text else "the model gave no answer and no reason"


def usage_of(message: Message) -> JsonObject:
    """What it cost; all zero where it does not say."""
    usage = message.get("usage")
    return usage if isinstance(usage, Mapping) else no_usage()


def no_usage() -> JsonObject:
    """Nothing spent."""
    return {**dict.fromkeys(_COUNTS, 0), "cost": dict.fromkeys(_COSTS, 0)}


def added(one: JsonObject, other: JsonObject) -> JsonObject:
    """The sum of two usages."""
    total: dict[str, Json] = {name: _number(one.get(name)) + _number(other.get(name)) for name in _COUNTS}
    for name in _OPTIONAL:
        if name in one or name in other:
            total[name] = _number(one.get(name)) + _number(other.get(name))
    costs, more = one.get("cost"), other.get("cost")
    costs = costs if isinstance(costs, Mapping) else {}
    more = more if isinstance(more, Mapping) else {}
    total["cost"] = {name: _number(costs.get(name)) + _number(more.get(name)) for name in _COSTS}
    return total


def harness_block(diagnostics: Sequence[Json]) -> JsonObject:
    """The last block of a tool result that has diagnostics: what the model reads of them."""
    lines = [f"[{item.get('severity')}] {item.get('message')}" for item in diagnostics if isinstance(item, Mapping)]
    return {"type": "text", "text": "\n".join(("<harness>", *lines, "</harness>"))}


def items(value: Json) -> Sequence[Json]:
    """The members of an array; none where it is something else."""
    if type(value) is list or type(value) is tuple:  # what a stored array is: asking an abstract class takes longer
        return value
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _text_in(block: JsonObject) -> str | None:
    text = block.get("text")
    return text if block.get("type") == "text" and isinstance(text, str) else None


def _number(value: Json) -> int | float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
