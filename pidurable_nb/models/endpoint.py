"""Owns where a provider is asked and as whom: address, headers, the key. Never sends, and never shows a key.

A key is looked up when a request is made, stands in no `repr`, and is blotted out of every text that comes back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import httpx

from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.models import fields
from pidurable_nb.models.model import ModelRequest
from pidurable_nb.records.codec import dumps

MOST_ERROR_CHARS: Final = 500
"""How long the text of an error can be: enough to read, too little to fill a store."""
DEFAULT_SILENCE: Final = timedelta(minutes=5)
DEFAULT_LONGEST_DELAY_MS: Final = 60_000
_BLOT: Final = "[redacted]"
_SHORTEST_SECRET: Final = 8
"""Shorter header and query values are words, not secrets; the key itself is always blotted out."""
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class ProviderFailed(Exception):
    """Why there is no answer, on its way to the Finished that says so. Never leaves a provider."""

    def __init__(self, text: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.retry_after_ms = retry_after_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One request, ready to be sent. `silence` is how long the provider may say nothing at all."""

    url: str = field(repr=False)
    host: str
    headers: Mapping[str, str] = field(repr=False)
    content: bytes = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    silence: timedelta
    retries: int
    longest_delay_ms: int

    def clean(self, text: str) -> str:
        """The text without secrets, on one line, no longer than an error may be. Blots before it cuts."""
        for secret in self.secrets:
            text = text.replace(secret, _BLOT)
        text = " ".join(text.split())
        return text if len(text) <= MOST_ERROR_CHARS else text[: MOST_ERROR_CHARS - 1] + "…"


class Endpoint:
    """A provider's address, and how the host wants it asked.

    `api_key` or the environment variable `key_variable` gives the key; `key_variable=None` means that none is needed.
    Raises: ValueError for an address or a header that cannot be one.
    """

    __slots__ = ("_headers", "_key", "_timeout", "_url", "_variable")

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None,
        key_variable: str | None,
        headers: Mapping[str, str] | None,
        timeout: timedelta,
    ) -> None:
        url = httpx.URL(base_url)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("base_url: write an http or https address, such as https://api.example.com/v1")
        if url.userinfo:
            raise ValueError("base_url holds a user name or a password; give these in headers=")
        if timeout <= timedelta():
            raise ValueError(f"timeout={timeout!r}: it is the longest silence, so it must be longer than nothing")
        self._url = url
        self._key = None if api_key is None else _usable_key(api_key, "api_key")
        self._variable = key_variable
        self._headers = {name.lower(): _usable_header(name, value) for name, value in (headers or {}).items()}
        self._timeout = timeout

    def __repr__(self) -> str:
        return repr(f"{self._url.scheme}://{self._url.netloc.decode('ascii')}{self._url.path}")

    def post(
        self, path: str, request: ModelRequest, body: JsonObject, authorize: Callable[[str], Mapping[str, str]]
    ) -> Post:
        """The request for `path` below the address. Raises: ProviderFailed when the key or an option is unusable."""
        try:
            key = self._key or self._key_from_environment()
            given = _option_headers(request.options)
        except ValueError as error:
            raise ProviderFailed(str(error)) from error
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "accept-encoding": "identity",  # a compressing proxy holds events back
            **(authorize(key) if key else {}),
            **({"idempotency-key": request.key} if request.key else {}),
            **self._headers,
        }
        for name, value in given.items():
            headers.pop(name, None)
            if value is not None:
                headers[name] = value
        options = request.options
        silence_ms = fields.count(options, "timeoutMs")
        delay = options.get("maxRetryDelayMs")
        return Post(
            url=str(self._url.copy_with(path=self._url.path.rstrip("/") + path)),
            host=self._url.netloc.decode("ascii"),
            headers=headers,
            content=dumps(body).encode(),
            secrets=self._secrets(key, given),
            silence=timedelta(milliseconds=silence_ms) if silence_ms else self._timeout,
            retries=fields.count(options, "maxRetries"),
            longest_delay_ms=DEFAULT_LONGEST_DELAY_MS if delay is None else fields.count(options, "maxRetryDelayMs"),
        )

    def _key_from_environment(self) -> str:
        if self._variable is None:
            return ""
        found = os.environ.get(self._variable, "").strip()
        if not found:
            raise ValueError(f"no API key: set the environment variable {self._variable}, or give api_key=")
        return _usable_key(found, f"the environment variable {self._variable}")

    def _secrets(self, key: str, given: Mapping[str, str | None]) -> tuple[str, ...]:
        values = [*self._headers.values(), *given.values(), *self._url.params.values()]
        found = {value for value in values if value and len(value) >= _SHORTEST_SECRET}
        return tuple(sorted(found | ({key} if key else set()), key=len, reverse=True))


def _usable_key(key: str, where: str) -> str:
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ValueError(f"invalid API key in {where}: it is empty, or has characters that no header can carry")
    return key


def _usable_header(name: str, value: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"invalid request: the header name {name!r} cannot be sent")
    if not value.isascii() or not (value.isprintable() or not value):
        raise ValueError(f"invalid request: the value of the header {name!r} cannot be sent")
    return value


def _option_headers(options: JsonObject) -> Mapping[str, str | None]:
    """Headers that the host gives with this request; null takes one away."""
    found: dict[str, str | None] = {}
    for name, value in fields.member(options, "headers").items():
        found[name.lower()] = None if value is None else _usable_header(name, _header_text(name, value))
    return found


def _header_text(name: str, value: Json) -> str:
    if not isinstance(value, str):
        raise ValueError(f"invalid request: the header {name!r} is {type(value).__name__}, not text")
    return value
