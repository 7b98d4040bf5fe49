"""Owns what an answer leads to (G2): a pure decision from the message, the attempt and the host's policies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from pidurable_nb.agent.extending.settings import Retry
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.models.classify import is_overflow, retryable
from pidurable_nb.records.message import Message, calls_of, error_text, stop_reason

POLL_AFTER_MS: Final = 5_000
"""When a deferred answer is asked for where the provider does not say."""
LONGEST_MS: Final = 86_400_000
"""No provider is left alone for longer than a day, whatever it asks for."""


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
            if not isinstance(handle, Mapping):
                return GivesUp("the model deferred its answer and gave nothing to fetch it with")
            return Defers(handle, _wait(handle.get("pollAfterMs"), POLL_AFTER_MS))
        case "error" if is_overflow(message):
            return Overflows(error_text(message)) if may_compact else GivesUp(error_text(message))
        case "error" if retryable(message) and attempt <= retry.retries:
            asked = _wait(retry_after_ms, 0)
            return TryAgain(
                min(max(retry.delay_after(attempt), asked), max(retry.most, retry.delay)), error_text(message)
            )
        case _:
            return GivesUp(error_text(message))


def _wait(asked: Json, otherwise: int) -> timedelta:
    """How long a provider is left alone: as it asks, a moment at least, so that the next time is strictly later."""
    legible = isinstance(asked, int | float) and not isinstance(asked, bool) and math.isfinite(asked)
    ms = asked if legible and isinstance(asked, int | float) else otherwise
    return timedelta(milliseconds=min(max(math.ceil(ms), 1), LONGEST_MS))
