"""Owns asking any endpoint that speaks OpenAI's chat completions. Never retries on its own account, never keeps a key.

How a request is written is from OpenAI's API reference; where servers that imitate it differ (a call without an id, a
name that comes in pieces, reasoning under two names), every reading that makes sense is taken.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import uuid4

from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.models import fields
from pidurable_nb.models.endpoint import DEFAULT_SILENCE, Endpoint, Post, ProviderFailed
from pidurable_nb.models.model import (
    ArgumentsDelta,
    CallStart,
    Finished,
    ModelEvent,
    ModelRef,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
)
from pidurable_nb.models.prompt import NO_OUTPUT, prompt_of
from pidurable_nb.models.streaming import ServerEvent, answer, described
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.message import Message, StopReason, blocks_of, calls_of, role_of, text_of

_STOPS: Final[Mapping[str, StopReason]] = {
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "toolUse",
    "function_call": "toolUse",
}
_REFUSALS: Final = frozenset({"content_filter", "safety", "refusal"})
_BREAKDOWNS: Final = frozenset({"error", "network_error"})
_REASONING: Final = ("reasoning_content", "reasoning")
_ATTACHED: Final = "(see attached image)"


class OpenAI:
    """A model behind an endpoint that speaks OpenAI's chat completions, streaming.

    The key is `api_key`, or the environment variable `key_variable` at the time of each request; `key_variable=None`
    for a server that needs none. `timeout` is the longest silence. `provider` is the name on disk. A request's options
    `timeoutMs`, `maxRetries` (0 unless given), `maxRetryDelayMs` and `headers` are honoured; its key is sent as
    `Idempotency-Key`, its session as `user`.

    Durability: none; nothing of an answer is kept here. Raises: ValueError for an address or header that is none;
    whatever happens to a request is its `Finished`. Laws: E6.
    """

    def __init__(
        self,
        model_id: str,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        key_variable: str | None = "OPENAI_API_KEY",
        provider: str = "openai",
        context_window: int = 0,
        max_tokens: int = 0,
        timeout: timedelta = DEFAULT_SILENCE,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.ref = ModelRef(provider, model_id)
        self.api = "openai-completions"
        self.context_window = context_window
        self.max_tokens = max_tokens
        self._endpoint = Endpoint(
            base_url, api_key=api_key, key_variable=key_variable, headers=headers, timeout=timeout
        )

    def __repr__(self) -> str:
        return f"OpenAI({self.ref.model_id!r}, base_url={self._endpoint!r}, provider={self.ref.provider!r})"

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """The answer, piece by piece. Closing the iteration closes the connection."""
        return answer(partial(self._post, request), partial(_Reading, self.ref.model_id))

    def _post(self, request: ModelRequest) -> Post:
        return self._endpoint.post("/chat/completions", request, self._body(request), _authorization)

    def _body(self, request: ModelRequest) -> JsonObject:
        prompt = prompt_of(request.messages)
        messages = list(_messages(prompt.messages))
        if prompt.text:
            messages.insert(0, {"role": "system", "content": prompt.text})
        body: dict[str, Json] = {
            "model": self.ref.model_id,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if prompt.tools:
            body["tools"] = [{"type": "function", "function": _function(tool)} for tool in prompt.tools]
        if limit := request.max_tokens or self.max_tokens:
            # OpenAI's newer models refuse the old name, most imitations know no other.
            body["max_completion_tokens" if self.ref.provider == "openai" else "max_tokens"] = limit
        if request.thinking != "off":
            body["reasoning_effort"] = "xhigh" if request.thinking == "max" else request.thinking
        if request.session_id:
            body["user"] = request.session_id
        return body


def _authorization(key: str) -> Mapping[str, str]:
    return {"authorization": f"Bearer {key}"}


def _function(tool: JsonObject) -> JsonObject:
    return {name: tool[name] for name in ("name", "description", "parameters") if name in tool}


# -- what is sent ------------------------------------------------------------------------------------------------------


def _messages(messages: Sequence[Message]) -> Iterator[JsonObject]:
    """The messages in OpenAI's form. Images of tool results follow the results: a tool message holds only text."""
    images: list[JsonObject] = []
    for message in messages:
        role = role_of(message)
        if images and role != "toolResult":
            yield _attached(images)
            images = []
        if role == "user":
            yield {"role": "user", "content": _user_content(message)}
        elif role == "assistant":
            yield from _assistant(message)
        elif role == "toolResult":
            shown = _images(message)
            images += shown
            yield _tool_result(message, _ATTACHED if shown else NO_OUTPUT)
    if images:
        yield _attached(images)


def _user_content(message: Message) -> Json:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts: list[Json] = []
    for block in blocks_of(message):
        if block.get("type") == "text":
            parts.append({"type": "text", "text": fields.text(block, "text")})
        elif block.get("type") == "image":
            parts.append(_image(block))
    return parts


def _assistant(message: Message) -> Iterator[JsonObject]:
    """Text and calls; thinking stays here, since no endpoint of this kind signs it."""
    text, calls = text_of(message), calls_of(message)
    if not text and not calls:
        return
    found: dict[str, Json] = {"role": "assistant", "content": text or None}
    if calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dumps(call.arguments)}}
            for call in calls
        ]
    yield found


def _tool_result(message: Message, otherwise: str) -> JsonObject:
    """A result; that it is an error has no field there, so the text says it."""
    text = "\n".join(fields.text(block, "text") for block in blocks_of(message) if block.get("type") == "text")
    mark = "Error: " if message.get("isError") is True else ""
    return {"role": "tool", "tool_call_id": fields.text(message, "toolCallId"), "content": mark + (text or otherwise)}


def _images(message: Message) -> list[JsonObject]:
    return [_image(block) for block in blocks_of(message) if block.get("type") == "image"]


def _image(block: JsonObject) -> JsonObject:
    url = f"data:{fields.text(block, 'mimeType')};base64,{fields.text(block, 'data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _attached(images: Sequence[JsonObject]) -> JsonObject:
    return {"role": "user", "content": [{"type": "text", "text": "Images of the tool results above:"}, *images]}


# -- what comes back ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Call:
    """A call while it arrives. It begins with its first arguments: until then its name may still grow."""

    index: int
    id: str = ""
    name: str = ""
    begun: bool = False


class _Reading:
    """One answer in chunks."""

    def __init__(self, model_id: str) -> None:
        self.ended = False
        self.usage: JsonObject = {}
        self._model_id = model_id
        self._blocks = 0
        self._open: tuple[type[TextDelta] | type[ThinkingDelta], int] | None = None
        self._calls: list[_Call] = []
        self._by_place: dict[int, _Call] = {}
        self._ids: set[str] = set()
        self._reason = ""
        self._more: dict[str, Json] = {}

    def read(self, event: ServerEvent) -> Iterable[ModelEvent]:
        """What a chunk adds."""
        if event.data.strip() == "[DONE]":
            self.ended = True
            return
        chunk = event.json()
        if chunk.get("error"):
            raise ProviderFailed(described(chunk.get("error")) or f"server error: {event.data}")
        if id := fields.text(chunk, "id"):
            self._more["responseId"] = id
        model = fields.text(chunk, "model")
        if model and model != self._model_id:
            self._more["responseModel"] = model
        if usage := fields.member(chunk, "usage"):
            self.usage = _usage(usage)
        for choice in fields.objects(chunk, "choices")[:1]:
            yield from self._delta(fields.member(choice, "delta"))
            if reason := fields.text(choice, "finish_reason"):
                self._reason = reason
                for call in self._calls:
                    yield from self._begin(call)

    def _delta(self, delta: JsonObject) -> Iterator[ModelEvent]:
        thought = next((text for name in _REASONING if (text := fields.text(delta, name))), "")
        if thought:
            yield ThinkingDelta(self._block(ThinkingDelta), thought)
        for name in ("content", "refusal"):
            if text := fields.text(delta, name):
                yield TextDelta(self._block(TextDelta), text)
        for piece in fields.objects(delta, "tool_calls"):
            yield from self._call(piece)

    def _block(self, kind: type[TextDelta] | type[ThinkingDelta]) -> int:
        """The block that takes this delta: the last one when it is of that kind, else a new one."""
        if self._open is None or self._open[0] is not kind:
            self._open = (kind, self._new_block())
        return self._open[1]

    def _new_block(self) -> int:
        self._blocks += 1
        return self._blocks - 1

    def _call(self, piece: JsonObject) -> Iterator[ModelEvent]:
        call = self._call_of(piece)
        function = fields.member(piece, "function")
        name, arguments = fields.text(function, "name"), fields.text(function, "arguments")
        if not call.begun and name != call.name:  # some repeat the whole name
            call.name += name
        if arguments:
            yield from self._begin(call)
            yield ArgumentsDelta(call.index, arguments)

    def _begin(self, call: _Call) -> Iterator[ModelEvent]:
        if call.begun:
            return
        if not call.name:
            raise ProviderFailed("malformed stream: a tool call without a name")
        call.begun = True
        # A result has to be able to name its call: one without an id, or with another's, gets its own.
        id = call.id if call.id and call.id not in self._ids else f"call_{uuid4().hex}"
        self._ids.add(id)
        yield CallStart(call.index, id, call.name)

    def _call_of(self, piece: JsonObject) -> _Call:
        """The call that a piece belongs to: by its place, by its id where that is new, else the last one."""
        place, id = piece.get("index"), fields.text(piece, "id")
        if isinstance(place, int):
            found = self._by_place.get(place)
        else:
            found = next((call for call in self._calls if call.id == id), None) if id else self._last()
        if found is None or (id and found.id and id != found.id):
            self._open = None
            found = _Call(self._new_block())
            self._calls.append(found)
        if isinstance(place, int):
            self._by_place[place] = found
        found.id = found.id or id
        return found

    def _last(self) -> _Call | None:
        return self._calls[-1] if self._calls else None

    @property
    def finished(self) -> Finished | None:
        """The end, as soon as there is a finish reason; later chunks still add the usage."""
        if not self._reason:
            return None
        self._more["rawStopReason"] = self._reason
        error = self._error()
        stop: StopReason = _STOPS.get(self._reason, "stop")
        if stop in ("stop", "toolUse"):
            stop = "toolUse" if self._calls else "stop"
        return Finished(
            stop_reason="error" if error else stop, usage=self.usage, error=error or None, more=dict(self._more)
        )

    def _error(self) -> str:
        if self._reason in _REFUSALS:
            return f"refused: the provider stopped the answer: {self._reason}"
        if self._reason in _BREAKDOWNS:
            return f"server error: the provider stopped the answer: {self._reason}"
        return ""


def _usage(usage: JsonObject) -> JsonObject:
    """What was spent. Tokens from the cache are among the prompt's there, and apart here."""
    cached = fields.count(fields.member(usage, "prompt_tokens_details"), "cached_tokens")
    found: dict[str, Json] = {
        "input": max(0, fields.count(usage, "prompt_tokens") - cached),
        "output": fields.count(usage, "completion_tokens"),
        "cacheRead": cached,
        "totalTokens": fields.count(usage, "total_tokens"),
    }
    if reasoning := fields.count(fields.member(usage, "completion_tokens_details"), "reasoning_tokens"):
        found["reasoning"] = reasoning
    return found
