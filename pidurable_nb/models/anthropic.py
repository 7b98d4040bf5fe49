"""Owns asking Anthropic's messages endpoint. Never retries on its own account, never keeps a key.

How a request is written is from Anthropic's API reference. Thinking is sent back only with the signature that came
with it, and only to the model that signed it; a tool call that it led to is refused without it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, Literal

from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.models import fields
from pidurable_nb.models.assembly import RedactedThinking
from pidurable_nb.models.endpoint import DEFAULT_SILENCE, Endpoint, Post, ProviderFailed
from pidurable_nb.models.model import (
    ArgumentsDelta,
    CallStart,
    Finished,
    ModelEvent,
    ModelRef,
    ModelRequest,
    TextDelta,
    Thinking,
    ThinkingDelta,
)
from pidurable_nb.models.prompt import NO_OUTPUT, prompt_of
from pidurable_nb.models.streaming import ServerEvent, answer, described
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.message import Message, StopReason, blocks_of, role_of

UNKNOWN_MAX_TOKENS: Final = 4096
"""How long an answer may be when nobody said: the endpoint insists on a number that every model takes."""
_VERSION: Final = "2023-06-01"
_SHORTEST_BUDGET: Final = 1024
_BUDGETS: Final[Mapping[Thinking, int]] = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 32_768,
}
_STOPS: Final[Mapping[str, StopReason]] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "toolUse",
}
_FOREIGN: Final = re.compile("[^a-zA-Z0-9_-]")


class Anthropic:
    """A model behind Anthropic's messages endpoint, streaming.

    The key is `api_key`, or the environment variable `key_variable` at the time of each request; `key_variable=None`
    for a server that needs none. `timeout` is the longest silence. `thinking_by="budget"` is for models before 4.6,
    which think up to a number of tokens; later ones are given an effort. A request's options `timeoutMs`, `maxRetries`
    (0 unless given), `maxRetryDelayMs`, `headers` and `cacheRetention` (`none`, `short`, `long`) are honoured; its key
    is sent as `Idempotency-Key`, its session as `metadata.user_id`.

    Durability: none; nothing of an answer is kept here. Raises: ValueError for an address or header that is none;
    whatever happens to a request is its `Finished`. Laws: E6.
    """

    def __init__(
        self,
        model_id: str,
        *,
        base_url: str = "https://api.anthropic.com/v1",
        api_key: str | None = None,
        key_variable: str | None = "ANTHROPIC_API_KEY",
        provider: str = "anthropic",
        context_window: int = 0,
        max_tokens: int = 0,
        timeout: timedelta = DEFAULT_SILENCE,
        headers: Mapping[str, str] | None = None,
        thinking_by: Literal["effort", "budget"] = "effort",
    ) -> None:
        self.ref = ModelRef(provider, model_id)
        self.api = "anthropic-messages"
        self.context_window = context_window
        self.max_tokens = max_tokens
        self._thinking_by = thinking_by
        self._endpoint = Endpoint(
            base_url, api_key=api_key, key_variable=key_variable, headers=headers, timeout=timeout
        )

    def __repr__(self) -> str:
        return f"Anthropic({self.ref.model_id!r}, base_url={self._endpoint!r}, provider={self.ref.provider!r})"

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """The answer, piece by piece. Closing the iteration closes the connection."""
        return answer(partial(self._post, request), partial(_Reading, self.ref.model_id))

    def _post(self, request: ModelRequest) -> Post:
        return self._endpoint.post("/messages", request, self._body(request), _authorization)

    def _body(self, request: ModelRequest) -> JsonObject:
        prompt = prompt_of(request.messages)
        cache = _cache_control(request.options)
        messages = _messages(prompt.messages, self.ref)
        if cache is not None and messages:
            messages[-1] = _with_cache(messages[-1], cache)
        body: dict[str, Json] = {"model": self.ref.model_id, "messages": messages, "stream": True}
        if prompt.text:
            body["system"] = [
                {"type": "text", "text": prompt.text} | ({} if cache is None else {"cache_control": cache})
            ]
        if prompt.tools:
            body["tools"] = [_tool(tool) for tool in prompt.tools]
        if request.session_id:
            body["metadata"] = {"user_id": request.session_id}
        return body | self._lengths(request)

    def _lengths(self, request: ModelRequest) -> dict[str, Json]:
        """How long the answer may be, and how much of that is for thinking."""
        wanted = request.max_tokens or self.max_tokens or UNKNOWN_MAX_TOKENS
        if request.thinking == "off":
            return {"max_tokens": wanted}
        if self._thinking_by == "effort":
            effort = "low" if request.thinking == "minimal" else request.thinking
            return {"max_tokens": wanted, "thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}
        total = wanted + _BUDGETS[request.thinking]
        if self.max_tokens:
            total = min(total, self.max_tokens)
        budget = min(_BUDGETS[request.thinking], total - _SHORTEST_BUDGET)
        if budget < _SHORTEST_BUDGET:
            return {"max_tokens": wanted}
        return {"max_tokens": total, "thinking": {"type": "enabled", "budget_tokens": budget}}


def _authorization(key: str) -> Mapping[str, str]:
    return {"x-api-key": key, "anthropic-version": _VERSION}


def _tool(tool: JsonObject) -> JsonObject:
    return {
        "name": fields.text(tool, "name"),
        "description": fields.text(tool, "description"),
        "input_schema": fields.member(tool, "parameters") or {"type": "object"},
    }


# -- what is sent ------------------------------------------------------------------------------------------------------


def _cache_control(options: JsonObject) -> JsonObject | None:
    retention = fields.text(options, "cacheRetention")
    if retention == "none":
        return None
    return {"type": "ephemeral", "ttl": "1h"} if retention == "long" else {"type": "ephemeral"}


def _with_cache(message: JsonObject, cache: JsonObject) -> JsonObject:
    """The last message, so that everything up to it is read from the cache next time. Thinking cannot be marked."""
    *before, last = fields.objects(message, "content")
    if fields.text(last, "type") in ("thinking", "redacted_thinking"):
        return message
    return {**message, "content": [*before, {**last, "cache_control": cache}]}


def _messages(messages: Sequence[Message], ref: ModelRef) -> list[JsonObject]:
    """The messages in Anthropic's form: turns of user and assistant, tool results within the user's."""
    turns: list[tuple[str, list[Json]]] = []
    for message in messages:
        role = "assistant" if role_of(message) == "assistant" else "user"
        blocks: list[Json] = list(_blocks(message, ref))
        if not blocks:
            continue
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    return [{"role": role, "content": content} for role, content in turns]


def _blocks(message: Message, ref: ModelRef) -> Iterator[JsonObject]:
    if role_of(message) == "toolResult":
        yield _tool_result(message)
        return
    signed_here = message.get("provider") == ref.provider and message.get("model") == ref.model_id
    for block in blocks_of(message):
        match fields.text(block, "type"):
            case "text" if fields.text(block, "text").strip():  # an empty one is refused
                yield {"type": "text", "text": fields.text(block, "text")}
            case "image":
                yield _image(block)
            case "thinking" if signed_here and fields.text(block, "thinkingSignature"):
                yield _thinking(block)
            case "toolCall":
                yield _tool_use(block)
            case _:
                pass


def _thinking(block: JsonObject) -> JsonObject:
    signature = fields.text(block, "thinkingSignature")
    if block.get("redacted") is True:
        return {"type": "redacted_thinking", "data": signature}
    return {"type": "thinking", "thinking": fields.text(block, "thinking"), "signature": signature}


def _tool_use(block: JsonObject) -> JsonObject:
    name, arguments = fields.text(block, "name"), fields.member(block, "arguments")
    return {"type": "tool_use", "id": _id(block, "id"), "name": name, "input": arguments}


def _tool_result(message: Message) -> JsonObject:
    content: list[Json] = []
    for block in blocks_of(message):
        if block.get("type") == "image":
            content.append(_image(block))
        elif (text := fields.text(block, "text")).strip():
            content.append({"type": "text", "text": text})
    found: dict[str, Json] = {
        "type": "tool_result",
        "tool_use_id": _id(message, "toolCallId"),
        "content": content or [{"type": "text", "text": NO_OUTPUT}],
    }
    if message.get("isError") is True:
        found["is_error"] = True
    return found


def _image(block: JsonObject) -> JsonObject:
    source = {"type": "base64", "media_type": fields.text(block, "mimeType"), "data": fields.text(block, "data")}
    return {"type": "image", "source": source}


def _id(value: JsonObject, name: str) -> str:
    """An id that the endpoint takes: another provider's may hold other characters, in the call and its result alike."""
    return _FOREIGN.sub("_", fields.text(value, name))


# -- what comes back ---------------------------------------------------------------------------------------------------


class _Reading:
    """One answer in events."""

    def __init__(self, model_id: str) -> None:
        self.ended = False
        self._model_id = model_id
        self._spent: dict[str, Json] = {}
        self._reason = ""
        self._calls: set[int] = set()
        self._more: dict[str, Json] = {}

    @property
    def usage(self) -> JsonObject:
        return _usage(self._spent)

    def read(self, event: ServerEvent) -> Iterable[ModelEvent]:
        """What an event adds; kinds that are not known add nothing."""
        value = event.json()
        match fields.text(value, "type"):
            case "error":
                raise ProviderFailed(described(value.get("error")) or f"server error: {event.data}")
            case "message_start":
                self._begin(fields.member(value, "message"))
            case "content_block_start":
                yield from self._block(_index(value), fields.member(value, "content_block"))
            case "content_block_delta":
                yield from self._delta(_index(value), fields.member(value, "delta"))
            case "message_delta":
                self._reason = fields.text(fields.member(value, "delta"), "stop_reason") or self._reason
                self._spend(value)
            case "message_stop":
                self.ended = True
            case _:
                pass

    def _begin(self, message: JsonObject) -> None:
        if id := fields.text(message, "id"):
            self._more["responseId"] = id
        model = fields.text(message, "model")
        if model and model != self._model_id:
            self._more["responseModel"] = model
        self._spend(message)

    def _spend(self, value: JsonObject) -> None:
        """Take the newest numbers: they are totals, and a later event may repeat only some of them."""
        usage = fields.member(value, "usage")
        self._spent |= {name: count for name, count in usage.items() if count is not None}

    def _block(self, index: int, block: JsonObject) -> Iterator[ModelEvent]:
        match fields.text(block, "type"):
            case "text":
                yield TextDelta(index, fields.text(block, "text"))
            case "thinking":
                yield ThinkingDelta(index, fields.text(block, "thinking"), fields.text(block, "signature") or None)
            case "redacted_thinking":
                yield RedactedThinking(index, "", fields.text(block, "data"))
            case "tool_use":
                self._calls.add(index)
                yield CallStart(index, fields.text(block, "id"), fields.text(block, "name"))
                if arguments := fields.member(block, "input"):
                    yield ArgumentsDelta(index, dumps(arguments))
            case _:
                pass

    def _delta(self, index: int, delta: JsonObject) -> Iterator[ModelEvent]:
        match fields.text(delta, "type"):
            case "text_delta":
                yield TextDelta(index, fields.text(delta, "text"))
            case "thinking_delta":
                yield ThinkingDelta(index, fields.text(delta, "thinking"))
            case "signature_delta":
                yield ThinkingDelta(index, "", fields.text(delta, "signature"))
            case "input_json_delta" if index in self._calls:  # also sent for tools that run at the provider
                yield ArgumentsDelta(index, fields.text(delta, "partial_json"))
            case _:
                pass

    @property
    def finished(self) -> Finished | None:
        """The end, as soon as there is a stop reason."""
        if not self._reason:
            return None
        more = {**self._more, "rawStopReason": self._reason}
        if self._reason == "refusal":
            error = "refused: the provider stopped the answer: refusal"
            return Finished(stop_reason="error", usage=self.usage, error=error, more=more)
        stop: StopReason = _STOPS.get(self._reason, "stop")
        if stop in ("stop", "toolUse"):
            stop = "toolUse" if self._calls else "stop"
        return Finished(stop_reason=stop, usage=self.usage, more=more)


def _index(value: JsonObject) -> int:
    index = value.get("index")
    if not isinstance(index, int):
        raise ProviderFailed(f"malformed stream: a content block without an index: {dumps(value)}")
    return index


def _usage(usage: JsonObject) -> JsonObject:
    found: dict[str, Json] = {
        "input": fields.count(usage, "input_tokens"),
        "output": fields.count(usage, "output_tokens"),
        "cacheRead": fields.count(usage, "cache_read_input_tokens"),
        "cacheWrite": fields.count(usage, "cache_creation_input_tokens"),
    }
    if hour := fields.count(fields.member(usage, "cache_creation"), "ephemeral_1h_input_tokens"):
        found["cacheWrite1h"] = hour
    return found
