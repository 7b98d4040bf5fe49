"""What the tests of models share: an HTTP server on loopback that does exactly what a test says, byte by byte, and the
two dialects that providers speak.

Nothing is mocked: requests go through sockets, and a cut is a connection that really breaks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

import pytest

from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.models import Anthropic, Finished, ModelEvent, ModelRequest, OpenAI
from pidurable_nb.models.assembly import Assembly
from pidurable_nb.records.message import user_message

KEY = "sk-ant-oh-so-secret-0123456789abcdef"
NOW_MS = 1_750_000_000_000
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@dataclass(frozen=True)
class Asked:
    """A request as the server got it; header names are in small letters."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Json]


class Wire:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def head(self, status: str = "200 OK", kind: str = "text/event-stream", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", "connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        """A piece that reaches the client by itself: HTTP chunks are never joined."""
        if data:
            await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def last_chunk(self) -> None:
        await self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        self._writer.transport.abort()

    async def gone(self) -> None:
        """Return when the client has closed its end."""
        with suppress(ConnectionError):
            while await self._reader.read(65536):
                pass


Script = Callable[[Wire], Awaitable[None]]


@dataclass
class Server:
    """A server whose n-th connection follows the n-th script; the last one stays."""

    url: str
    scripts: Sequence[Script]
    asked: list[Asked] = field(default_factory=list)
    over: int = 0
    """How many connections are over, seen from here."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.asked.append(await _read(reader))
            script = self.scripts[min(len(self.asked), len(self.scripts)) - 1]
            await script(Wire(reader, writer))
        except ConnectionError:
            pass
        finally:
            self.over += 1
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Asked:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = json.loads(await reader.readexactly(int(headers["content-length"])))
    return Asked(first.split(" ")[1], headers, body)


@asynccontextmanager
async def serving(*scripts: Script) -> AsyncGenerator[Server, None]:
    """A server on loopback, with these scripts."""
    server = Server("", scripts)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listening:
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        yield server


def body(data: bytes, status: str = "200 OK", kind: str = "text/event-stream", **headers: str) -> Script:
    """Answers with this body, and closes."""

    async def script(wire: Wire) -> None:
        await wire.head(status, kind, **headers)
        await wire.send(data)

    return script


def chunks(*pieces: bytes) -> Script:
    """Answers with a stream in these pieces, and closes."""

    async def script(wire: Wire) -> None:
        await wire.head(transfer_encoding="chunked")
        for piece in pieces:
            await wire.chunk(piece)
        await wire.last_chunk()

    return script


def refusal(status: str, error: str, **headers: str) -> Script:
    """Answers with an error in the usual form."""
    text = json.dumps({"error": {"type": "some_error", "message": error}})
    return body(text.encode(), status, "application/json", **headers)


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    pieces: tuple[str, ...]


class Dialect:
    """How a provider says things."""

    name: Literal["openai", "anthropic"]
    path: str

    def model(self, url: str, **settings: object) -> OpenAI | Anthropic:
        """A model at the server, with the key of the tests."""
        options: dict[str, object] = {"base_url": url, "api_key": KEY} | settings
        if self.name == "openai":
            return OpenAI("m1", **options)  # type: ignore[arg-type]
        return Anthropic("m1", **options)  # type: ignore[arg-type]

    def events(self, texts: Iterable[str] = (), thinking: str = "", calls: Sequence[Call] = ()) -> list[str]:
        """The events of a whole answer: JSON texts."""
        raise NotImplementedError

    def error(self, kind: str, message: str) -> str:
        """The event that says that the answer failed."""
        raise NotImplementedError

    def stream(self, events: Iterable[str], end: str = "\n") -> bytes:
        """The events as they go over the wire."""
        lines: list[str] = []
        for event in events:
            name = json.loads(event).get("type") if self.name == "anthropic" else None
            lines += [f"event: {name}"] if name else []
            lines += [f"data: {event}", ""]
        if self.name == "openai":
            lines += ["data: [DONE]", ""]
        return "".join(line + end for line in lines).encode("utf-8", "surrogatepass")

    def answer(self, *texts: str, end: str = "\n") -> bytes:
        """The stream of an answer of text."""
        return self.stream(self.events(texts), end)


class OpenAIDialect(Dialect):
    name = "openai"
    path = "/v1/chat/completions"

    def events(self, texts: Iterable[str] = (), thinking: str = "", calls: Sequence[Call] = ()) -> list[str]:
        deltas: list[Json] = [{"reasoning_content": thinking}] if thinking else []
        deltas += [{"content": text} for text in texts]
        for n, call in enumerate(calls):
            function: Json = {"name": call.name, "arguments": ""}
            start: Json = {"index": n, "id": call.id, "type": "function", "function": function}
            deltas.append({"tool_calls": [start]})
            deltas += [{"tool_calls": [{"index": n, "function": {"arguments": piece}}]} for piece in call.pieces]
        usage: Json = {
            "prompt_tokens": 30,
            "completion_tokens": 7,
            "total_tokens": 37,
            "prompt_tokens_details": {"cached_tokens": 10},
            "completion_tokens_details": {"reasoning_tokens": 2},
        }
        found: list[Json] = [{"id": "r1", "model": "m1", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        found.append({"choices": [{"delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]})
        found.append({"choices": [], "usage": usage})
        return [compact(event) for event in found]

    def error(self, kind: str, message: str) -> str:
        return compact({"error": {"code": kind, "message": message}})


class AnthropicDialect(Dialect):
    name = "anthropic"
    path = "/v1/messages"

    def events(self, texts: Iterable[str] = (), thinking: str = "", calls: Sequence[Call] = ()) -> list[str]:
        blocks: list[tuple[Json, list[Json]]] = []
        if thinking:
            deltas: list[Json] = [{"type": "thinking_delta", "thinking": thinking}]
            blocks.append(({"type": "thinking"}, [*deltas, {"type": "signature_delta", "signature": "sig"}]))
        if said := [*texts]:
            blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": text} for text in said]))
        for call in calls:
            pieces: list[Json] = [{"type": "input_json_delta", "partial_json": piece} for piece in call.pieces]
            blocks.append(({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, pieces))
        usage = {
            "input_tokens": 20,
            "cache_read_input_tokens": 10,
            "cache_creation_input_tokens": 3,
            "output_tokens": 1,
        }
        found: list[Json] = [{"type": "message_start", "message": {"id": "r1", "model": "m1", "usage": usage}}]
        for n, (block, deltas) in enumerate(blocks):
            found.append({"type": "content_block_start", "index": n, "content_block": block})
            found += [{"type": "content_block_delta", "index": n, "delta": delta} for delta in deltas]
            found.append({"type": "content_block_stop", "index": n})
        reason = "tool_use" if calls else "end_turn"
        found.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7}})
        return [compact(event) for event in [*found, {"type": "message_stop"}]]

    def error(self, kind: str, message: str) -> str:
        return compact({"type": "error", "error": {"type": kind, "message": message}})


def compact(value: Json) -> str:
    """JSON text as providers send it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def hello(**options: Json) -> ModelRequest:
    """A short request with these options of the host."""
    return ModelRequest(messages=(user_message("hi", NOW_MS),), options=options)


@dataclass(frozen=True)
class Heard:
    """An answer that is over."""

    message: JsonObject
    finished: Finished
    events: tuple[ModelEvent, ...]

    @property
    def error(self) -> str:
        return str(self.message.get("errorMessage", ""))


async def hear(model: OpenAI | Anthropic, request: ModelRequest | None = None) -> Heard:
    """The whole answer, put together."""
    assembly = Assembly(model.ref, model.api, NOW_MS)
    events: list[ModelEvent] = []
    async for event in model.stream(request or hello()):
        assembly.apply(event)
        events.append(event)
    assert assembly.finished is not None
    return Heard(assembly.message(), assembly.finished, tuple(events))


class Kit:
    """The functions of this module, for tests that cannot import it."""

    KEY = KEY
    NOW_MS = NOW_MS
    Call = Call
    serving = staticmethod(serving)
    body = staticmethod(body)
    chunks = staticmethod(chunks)
    refusal = staticmethod(refusal)
    hear = staticmethod(hear)
    hello = staticmethod(hello)
    compact = staticmethod(compact)


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> Kit:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    return Kit()


@pytest.fixture
def openai() -> Dialect:
    return OpenAIDialect()


@pytest.fixture
def anthropic() -> Dialect:
    return AnthropicDialect()


@pytest.fixture(params=["openai", "anthropic"])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    """Both providers, one after the other."""
    return OpenAIDialect() if request.param == "openai" else AnthropicDialect()
