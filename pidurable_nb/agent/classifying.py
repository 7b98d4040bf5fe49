"""Owns what an answer leads to (G2): a pure decision from the message, the attempt and the host's policies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from pidurable_nb.agent.settings import Retry
from pidurable_nb.ids import JsonObject
from pidurable_nb.models.classify import is_overflow, retryable
from pidurable_nb.records.message import Message, calls_of, error_text, stop_reason

POLL_AFTER_MS: Final = 5_000
"""When a deferred answer is asked for where the provider does not say."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The final answer of the run."""


@dataclass(frozen=True, slots=True)
class Calls:
    """A round of tool calls."""


@dataclass(frozen=True, slots=True)
class Defers:
    """The answer comes later; it is fetched with the handle."""

    handle: JsonObject
    after: timedelta


@dataclass(frozen=True, slots=True)
class Overflows:
    """The context was too long; compacting it once may help. `text` is the provider's."""

    text: str


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The error may go away."""

    after: timedelta
    text: str


@dataclass(frozen=True, slots=True)
class GivesUp:
    """The run fails with this text."""

    text: str


Meaning: TypeAlias = Answers | Calls | Defers | Overflows | TryAgain | GivesUp


def classify(
    message: Message, *, attempt: int, retry: Retry, may_compact: bool, retry_after_ms: int | None = None
) -> Meaning:
    """What the answer leads to. `attempt` counts from 1; `may_compact`: nothing was compacted for it, and could be."""
    match stop_reason(message):
        case "stop" | "length":
            return Answers()
        case "toolUse":
            return Calls() if calls_of(message) else Answers()
        case "deferred":
            handle = message.get("deferred")
            if not isinstance(handle, dict):
                return GivesUp("the model deferred its answer and gave nothing to fetch it with")
            wait = handle.get("pollAfterMs")
            return Defers(handle, timedelta(milliseconds=wait if isinstance(wait, int | float) else POLL_AFTER_MS))
        case "error" if is_overflow(message):
            return Overflows(error_text(message)) if may_compact else GivesUp(error_text(message))
        case "error" if retryable(message) and attempt <= retry.retries:
            asked = timedelta(milliseconds=retry_after_ms or 0)
            return TryAgain(
                min(max(retry.delay_after(attempt), asked), max(retry.most, retry.delay)), error_text(message)
            )
        case _:
            return GivesUp(error_text(message))
