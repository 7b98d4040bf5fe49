"""Owns what a failed answer's text says about trying again. Never looks at anything but the stored message.

It has to come to the same judgement after a restart, so it reads what is stored: providers begin an error with its HTTP
status where there is one, as in `429 Too Many Requests: slow down`.
"""

from __future__ import annotations

import re
from typing import Final

from pidurable_nb.records.message import Message, error_text, stop_reason

_STATUS: Final = re.compile(r"\s*(\d{3})\b")
_PASSING: Final = frozenset({408, 409, 425, 429}) | (frozenset(range(500, 600)) - {501, 505})
"""Statuses of errors that may go away; every other status from 300 on stays."""
_TOO_LARGE: Final = 413


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_PER_TIME: Final = _any_of(r"per[ _-]?(second|minute|min\b)")
"""Words of a limit that the next minute lifts, whatever else the text says about quotas."""
_PACE: Final = _any_of(_PER_TIME.pattern, r"rate[ _-]?limit", r"throttl", r"too many requests")
_SPENT: Final = _any_of(
    r"quota", r"billing", r"credit balance", r"out of credit", r"insufficient (credit|balance|fund)",
    r"payment required", r"(usage|spend(ing)?|budget) limit",
)  # fmt: skip
_REFUSED: Final = _any_of(
    r"unauthori[sz]ed", r"authentication", r"(invalid|incorrect|no|missing) (api|access)[ _-]?key", r"forbidden",
    r"permission[ _]?(denied|error)", r"invalid[ _]request", r"not[ _]found", r"certificate", r"content[ _]?filter",
    r"^refus",
)  # fmt: skip
_MAY_PASS: Final = _any_of(
    r"overload", r"(server|internal|upstream|gateway|network|connection|transport|socket|stream|protocol)[ _]error",
    r"\b(500|502|503|504|52\d)\b", r"bad gateway", r"(temporarily|service|currently|is) unavailable", r"at capacity",
    r"tim(e|ed)[ -]?out", r"\btry(ing)? again\b", r"retry", r"deadline exceeded", r"resource[ _]exhausted",
    r"connection (failed|lost|reset|refused|closed|aborted|timed)", r"\bECONN", r"broken pipe", r"hang ?up",
    r"(stream|answer|response) (was )?(cut|ended|closed|interrupted|terminated|truncated|stalled)",
    r"malformed stream", r"api_error", r"fetch failed", r"peer closed", r"name resolution",
    r"incomplete (read|chunked)", r"premature",
)  # fmt: skip
_OVERFLOW: Final = _any_of(
    r"context[ _](length|window|size|limit)[ _](is |was |has been )?exceed", r"exceed\w* .{0,40}context",
    r"maximum context", r"context[ _]?window.{0,40}(exceed|too|full)", r"(greater|longer|larger) than the context",
    r"(prompt|input|request|conversation|messages?)( \w+)? (is|are|was|were) too (long|large)", r"prompt too long",
    r"(input|prompt) (token count|length|tokens?)\b.{0,60}exceed", r"maximum (prompt|input) length",
    r"too many (input |prompt )?tokens", r"exceed\w* .{0,30}token limit",
    r"(token|context) limit (was |is )?exceed", r"reduce the (length|size) of", r"request[ _](entity[ _])?too[ _]large",
    r"(payload|content) too large",
)  # fmt: skip


def is_overflow(message: Message) -> bool:
    """Whether the answer failed because the request is longer than the model can read (G2)."""
    if stop_reason(message) != "error":
        return False
    text = error_text(message)
    status = _status_in(text)
    if status == _TOO_LARGE:
        return True
    if status is not None and status not in (400, 422, 500):
        return False
    return _OVERFLOW.search(text) is not None and _PACE.search(text) is None


def retryable(message: Message) -> bool:
    """Whether the answer failed for a reason that may go away by itself: load, pace, time, a connection (G2).

    Not: who asks (401, 403), what is asked (400), money (quota, billing), a request that is too long. A text that
    says none of it is not tried again.
    """
    if stop_reason(message) != "error" or is_overflow(message):
        return False
    text = error_text(message)
    if _SPENT.search(text) is not None and _PER_TIME.search(text) is None:
        return False
    status = _status_in(text)
    if status is not None:
        return status in _PASSING
    if _REFUSED.search(text) is not None:
        return False
    return _PACE.search(text) is not None or _MAY_PASS.search(text) is not None


def _status_in(text: str) -> int | None:
    """The HTTP status that the text begins with."""
    found = _STATUS.match(text)
    return int(found[1]) if found is not None and 300 <= int(found[1]) < 600 else None
