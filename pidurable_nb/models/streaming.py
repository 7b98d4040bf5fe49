"""Owns one request over HTTP and the server-sent events of its answer, to the Finished that ends it whatever happens.

Never knows a provider's vocabulary, never raises for what a provider or the network did, and leaves nothing open: the
connection is closed before the last event is given.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from math import isfinite
from typing import Final, Protocol

import httpx
from httpx_sse import EventSource

from pidurable_nb.ids import MAX_INTEGER, Json, JsonObject
from pidurable_nb.models import fields
from pidurable_nb.models.assembly import NEVER_ENDED
from pidurable_nb.models.classify import retryable
from pidurable_nb.models.endpoint import Post, ProviderFailed
from pidurable_nb.models.model import Finished, ModelEvent
from pidurable_nb.records.codec import BadRecord, loads

MOST_EVENT_BYTES: Final = 16 * 1024 * 1024
"""How many bytes may come without an event being complete: a server that never ends a line must not fill the memory."""
MOST_BODY_BYTES: Final = 64 * 1024
"""How much of the body of an error is looked at."""
_LONGEST_BODY_S: Final = 10.0
_FIRST_DELAY_MS: Final = 500


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """An event of the stream, which has data."""

    name: str
    data: str

    def json(self) -> JsonObject:
        """Its data. Raises: ProviderFailed when that is no JSON object."""
        try:
            value = loads(self.data, "an event")
        except BadRecord as error:
            raise ProviderFailed(f"malformed stream: {error}: {self.data}") from error
        if not isinstance(value, Mapping):
            raise ProviderFailed(f"malformed stream: an event is no JSON object: {self.data}")
        return value


class Reading(Protocol):
    """What a provider's events come to."""

    @property
    def ended(self) -> bool:
        """Whether nothing that follows is of interest."""
        ...

    @property
    def finished(self) -> Finished | None:
        """The end of the answer, as soon as the provider said why it stopped."""
        ...

    @property
    def usage(self) -> JsonObject:
        """What was spent so far."""
        ...

    def read(self, event: ServerEvent) -> Iterable[ModelEvent]:
        """What the event says. Raises: ProviderFailed when it is an error, or makes no sense."""
        ...


async def answer(prepare: Callable[[], Post], begin: Callable[[], Reading]) -> AsyncGenerator[ModelEvent, None]:
    """Ask, and give what is answered; the last event is a Finished, of an error where that is what happened.

    It asks again, up to the request's `maxRetries`, only where nothing was answered yet and the error may go away.
    """
    try:
        post = prepare()
    except ProviderFailed as error:
        yield Finished(stop_reason="error", error=error.text)
        return
    tries = 0
    while True:
        tries += 1
        reading, failure, begun = begin(), ProviderFailed(NEVER_ENDED), False
        try:
            async with aclosing(_server_events(post)) as events:
                async for event in events:
                    for said in reading.read(event):
                        begun = True
                        yield said
                    if reading.ended:
                        break
        except Exception as error:
            failure = _failure(error, post)
        if (end := reading.finished) is not None:
            yield replace(end, error=None if end.error is None else post.clean(end.error))
            return
        end = Finished(
            stop_reason="error",
            usage=reading.usage,
            error=post.clean(failure.text),
            retry_after_ms=failure.retry_after_ms,
        )
        delay_ms = _delay_ms(end, tries)
        if begun or tries > post.retries or delay_ms > post.longest_delay_ms or not _may_pass(end):
            yield end
            return
        await asyncio.sleep(delay_ms / 1000)


def described(error: Json) -> str:
    """An error object of a provider as one line, its code first: a number there is an HTTP status."""
    if not isinstance(error, Mapping):
        return error if isinstance(error, str) else ""
    message = fields.text(error, "message")
    code, kind = error.get("code"), fields.text(error, "type")
    names = [str(code)] if isinstance(code, int | str) and code else []
    names += [kind] if kind and kind not in names else []
    return ": ".join([*names, message] if message else names)


def _may_pass(end: Finished) -> bool:
    return retryable({"stopReason": "error", "errorMessage": end.error})


def _delay_ms(end: Finished, tries: int) -> int:
    return end.retry_after_ms if end.retry_after_ms is not None else _FIRST_DELAY_MS * 2 ** (tries - 1)


async def _server_events(post: Post) -> AsyncGenerator[ServerEvent, None]:
    async with httpx.AsyncClient(timeout=post.silence.total_seconds(), verify=_trusted()) as client:
        async with client.stream("POST", post.url, headers=post.headers, content=post.content) as response:
            if not response.is_success:
                raise await _refusal(response)
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "text/event-stream":
                said = _said(await _start_of_body(response))
                raise ProviderFailed(f"malformed stream: the answer is {kind or 'untyped'}, no event stream: {said}")
            assert isinstance(response.stream, httpx.AsyncByteStream)
            bounded = response.stream = _Bounded(response.stream)
            response.encoding = "utf-8-sig"  # events are always UTF-8, and may begin with a byte order mark
            async with aclosing(EventSource(response).aiter_sse()) as events:
                async for event in events:
                    bounded.incomplete = 0
                    if event.data:
                        yield ServerEvent(event.event, event.data)


class _Bounded(httpx.AsyncByteStream):
    """A body that ends in an error when too much comes without completing an event."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream
        self.incomplete = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self.incomplete += len(chunk)
            if self.incomplete > MOST_EVENT_BYTES:
                raise ProviderFailed(f"malformed stream: an event of more than {MOST_EVENT_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


@cache
def _trusted() -> ssl.SSLContext:
    """The machine's certificates, read once: that takes longer than many a request."""
    return httpx.create_ssl_context()


async def _refusal(response: httpx.Response) -> ProviderFailed:
    said = _said(await _start_of_body(response))
    status = f"{response.status_code} {response.reason_phrase}".strip()
    return ProviderFailed(f"{status}: {said}" if said else status, retry_after_ms=retry_after_ms(response.headers))


async def _start_of_body(response: httpx.Response) -> str:
    """The first part of a body; what has come of it when the rest does not come."""
    body = bytearray()
    try:
        async with asyncio.timeout(_LONGEST_BODY_S):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) >= MOST_BODY_BYTES:
                    break
    except (httpx.HTTPError, TimeoutError):
        pass
    return body[:MOST_BODY_BYTES].decode("utf-8", errors="replace")


def _said(body: str) -> str:
    """What the body of an error says, in the usual shapes; else the body."""
    try:
        value = loads(body, "the body")
    except BadRecord:
        return body
    if not isinstance(value, Mapping):
        return body
    return described(value.get("error")) or fields.text(value, "message") or fields.text(value, "detail") or body


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """How long the provider asks to be left alone: seconds, or a date by the clock of its own `Date`; None if not."""
    exact, given = headers.get("retry-after-ms"), headers.get("retry-after")
    for text, scale in ((exact, 1), (given, 1000)):
        try:
            found = float(text or "") * scale
        except ValueError:
            continue
        if isfinite(found) and found >= 0:
            return min(round(found), MAX_INTEGER)
    until = _date(given)
    if until is None:
        return None
    now = _date(headers.get("date")) or datetime.now(UTC)
    return max(0, round((until - now).total_seconds() * 1000))


def _date(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        found = parsedate_to_datetime(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _failure(error: Exception, post: Post) -> ProviderFailed:
    """What happened, in words that `classify` and a reader understand."""
    said = str(error) or type(error).__name__
    match error:
        case ProviderFailed():
            return error
        case httpx.LocalProtocolError():  # its text may quote a header
            return ProviderFailed(f"invalid request: it cannot be sent to {post.host} over HTTP")
        case httpx.UnsupportedProtocol():
            return ProviderFailed(f"invalid request: {said}")
        case httpx.TimeoutException():
            return ProviderFailed(f"timeout: {post.host} said nothing for {post.silence.total_seconds():g} s")
        case httpx.ConnectError() | httpx.ProxyError():
            return ProviderFailed(f"connection failed: {post.host}: {said}")
        case httpx.TransportError():
            return ProviderFailed(f"stream cut: the connection to {post.host} broke: {said}")
        case _:
            return ProviderFailed(f"malformed stream: {type(error).__name__}: {said}")
