"""E6, F3: an answer over HTTP is whole however it is cut up, and whatever goes wrong is its end, not an exception."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from pidurable_nb.ids import MAX_INTEGER
from pidurable_nb.models import Finished, Model, TextDelta
from pidurable_nb.models.classify import is_overflow, retryable
from pidurable_nb.models.streaming import MOST_EVENT_BYTES
from pidurable_nb.records.message import calls_of, text_of

if TYPE_CHECKING:
    from tests.models.conftest import Dialect, Heard, Kit, Script, Wire

WORDS = ("Grüß 😀", " 東京", "! ok")
TEXT = "".join(WORDS)
SHORT = ("é😀",)


async def heard(kit: Kit, dialect: Dialect, *scripts: Script, **options: int) -> Heard:
    async with kit.serving(*scripts) as server:
        return await kit.hear(dialect.model(server.url), kit.hello(**options))


def test_an_answer_arrives_with_its_usage_and_its_reason(kit: Kit, dialect: Dialect) -> None:
    found = asyncio.run(heard(kit, dialect, kit.body(dialect.answer(*WORDS))))
    assert text_of(found.message) == TEXT
    assert found.message["stopReason"] == "stop"
    assert found.message["responseId"] == "r1"
    assert found.message["usage"] == (
        {"input": 20, "output": 7, "cacheRead": 10, "cacheWrite": 0, "totalTokens": 37, "reasoning": 2}
        if dialect.name == "openai"
        else {"input": 20, "output": 7, "cacheRead": 10, "cacheWrite": 3, "totalTokens": 40}
    ) | {"cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}}
    assert [event for event in found.events if isinstance(event, TextDelta) and event.text in WORDS]


def test_thinking_text_and_calls_arrive_in_their_order(kit: Kit, dialect: Dialect) -> None:
    calls = (kit.Call("c1", "scan", ('{"ho', 'st":"é"}')), kit.Call("c2", "stop", ()))
    events = dialect.events(("Let me see",), "hm", calls)
    message = asyncio.run(heard(kit, dialect, kit.body(dialect.stream(events)))).message
    signed = {"thinkingSignature": "sig"} if dialect.name == "anthropic" else {}
    assert message["content"] == [
        {"type": "thinking", "thinking": "hm", **signed},
        {"type": "text", "text": "Let me see"},
        {"type": "toolCall", "id": "c1", "name": "scan", "arguments": {"host": "é"}},
        {"type": "toolCall", "id": "c2", "name": "stop", "arguments": {}},
    ]
    assert message["stopReason"] == "toolUse"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_a_border_between_packets_at_every_byte_changes_nothing(kit: Kit, dialect: Dialect, end: str) -> None:
    words = WORDS if end == "\n" else SHORT
    data = dialect.answer(*words, end=end)

    async def main() -> None:
        scripts = [kit.chunks(data[:at], data[at:]) for at in range(len(data))]
        async with kit.serving(*scripts, kit.chunks(*(data[at : at + 1] for at in range(len(data))))) as server:
            model = dialect.model(server.url)
            whole = (await kit.hear(model)).message
            assert text_of(whole) == "".join(words)
            for at in range(1, len(data) + 1):
                assert (await kit.hear(model)).message == whole, at

    asyncio.run(main())


def test_a_connection_that_ends_at_every_byte_gives_what_came_and_says_so(kit: Kit, dialect: Dialect) -> None:
    data = dialect.answer(*WORDS)

    async def main() -> list[Heard]:
        async with kit.serving(*(kit.body(data[:at]) for at in range(len(data) + 1))) as server:
            return [await kit.hear(dialect.model(server.url)) for _ in range(len(data) + 1)]

    answers = asyncio.run(main())
    ends = [str(answer.message["stopReason"]) for answer in answers]
    first = ends.index("stop")
    assert first > len(data) // 2
    assert set(ends[:first]) == {"error"}
    assert set(ends[first:]) == {"stop"}, "after the reason to stop only the usage can be lost"
    for answer in answers:
        assert TEXT.startswith(text_of(answer.message))
        assert answer.message["stopReason"] == "stop" or retryable(answer.message)
    assert text_of(answers[first].message) == TEXT


@pytest.mark.parametrize("how", ["reset", "unfinished chunk"])
def test_a_broken_connection_is_an_error_that_may_pass(kit: Kit, dialect: Dialect, how: str) -> None:
    data = dialect.answer(*WORDS)

    async def cut(wire: Wire) -> None:
        await wire.head(transfer_encoding="chunked")
        await wire.chunk(data[: len(data) // 2])
        if how == "reset":
            await asyncio.sleep(0.01)  # so that the client reads before the reset throws the bytes away
            wire.reset()

    found = asyncio.run(heard(kit, dialect, cut))
    assert found.error.startswith("stream cut")
    assert retryable(found.message)
    assert TEXT.startswith(text_of(found.message))


@pytest.mark.parametrize("place", ["before the head", "within an event"])
def test_silence_is_a_timeout(kit: Kit, dialect: Dialect, place: str) -> None:
    async def stall(wire: Wire) -> None:
        if place == "within an event":
            await wire.head()
            await wire.send(dialect.answer(*WORDS)[:20])
        await wire.gone()

    found = asyncio.run(heard(kit, dialect, stall, timeoutMs=50))
    assert found.error.startswith("timeout")
    assert "0.05 s" in found.error
    assert retryable(found.message)


def test_nobody_there_is_an_error_that_may_pass(kit: Kit, dialect: Dialect) -> None:
    async def main() -> Heard:
        async with kit.serving() as server:
            url = server.url
        return await kit.hear(dialect.model(url))

    found = asyncio.run(main())
    assert found.error.startswith("connection failed: 127.0.0.1")
    assert retryable(found.message)


def test_comments_unknown_fields_and_a_byte_order_mark_are_passed_over(kit: Kit, dialect: Dialect) -> None:
    noise = b": keep alive\n\nretry: soon\nid: 1\n\nwhat is this\n\n"
    data = b"\xef\xbb\xbf" + noise + dialect.answer(*WORDS).replace(b"\n\n", b"\n\n" + noise)
    found = asyncio.run(heard(kit, dialect, kit.body(data)))
    assert text_of(found.message) == TEXT
    assert found.message["stopReason"] == "stop"


def test_characters_that_some_call_line_ends_are_text(kit: Kit, dialect: Dialect) -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf"
    found = asyncio.run(heard(kit, dialect, kit.body(dialect.answer(text))))
    assert text_of(found.message) == text


def test_a_pair_of_surrogates_in_two_events_is_one_character(kit: Kit, dialect: Dialect) -> None:
    data = dialect.answer("smile: high", "low").replace(b"high", rb"\ud83d").replace(b"low", rb"\ude00")
    assert text_of(asyncio.run(heard(kit, dialect, kit.body(data))).message) == "smile: 😀"


def test_a_very_long_line_is_read(kit: Kit, dialect: Dialect) -> None:
    text = "é" * 2_000_000
    assert text_of(asyncio.run(heard(kit, dialect, kit.body(dialect.answer(text)))).message) == text


def test_a_line_that_never_ends_is_given_up(kit: Kit, dialect: Dialect) -> None:
    async def endless(wire: Wire) -> None:
        await wire.head()
        await wire.send(b"data: ")
        while True:
            await wire.send(b"x" * 1_000_000)

    found = asyncio.run(heard(kit, dialect, endless))
    assert str(MOST_EVENT_BYTES) in found.error


@pytest.mark.parametrize("data", ['{"a": tru', "[1]", '"text"', "{}}", "\ufffd", '{"a":1,"a":2}'])
def test_an_event_that_is_no_object_is_an_error_with_what_came_before(kit: Kit, dialect: Dialect, data: str) -> None:
    begun = dialect.answer(*WORDS).split(b"\n\n")[:3]
    broken = b"\n\n".join([*begun, f"data: {data}\n\n".encode()])
    found = asyncio.run(heard(kit, dialect, kit.body(broken)))
    assert found.error.startswith("malformed stream")
    assert retryable(found.message)
    assert text_of(found.message).startswith(WORDS[0])


def test_an_answer_that_is_no_event_stream_is_an_error_that_shows_it(kit: Kit, dialect: Dialect) -> None:
    page = b"<html><body>Please sign in</body></html>"
    found = asyncio.run(heard(kit, dialect, kit.body(page, kind="text/html")))
    assert "text/html" in found.error
    assert "Please sign in" in found.error


@pytest.mark.parametrize(
    ("kind", "may_pass"), [("overloaded_error", True), ("rate_limit_error", True), ("invalid_request_error", False)]
)
def test_an_error_within_the_stream_is_the_end(kit: Kit, dialect: Dialect, kind: str, may_pass: bool) -> None:
    begun = dialect.stream(dialect.events(WORDS)[:2]).replace(b"data: [DONE]\n\n", b"")
    data = begun + f"event: error\ndata: {dialect.error(kind, 'Sorry')}\n\n".encode()
    found = asyncio.run(heard(kit, dialect, kit.body(data + dialect.answer("never read"))))
    assert found.error == f"{kind}: Sorry"
    assert retryable(found.message) is may_pass
    assert "never read" not in text_of(found.message)


@pytest.mark.parametrize(
    ("status", "message", "may_pass", "overflow"),
    [
        ("429 Too Many Requests", "slow down", True, False),
        ("500 Internal Server Error", "oh", True, False),
        ("529 ", "Overloaded", True, False),
        ("503 Service Unavailable", "busy", True, False),
        ("401 Unauthorized", "who are you", False, False),
        ("403 Forbidden", "try again", False, False),
        ("400 Bad Request", "messages: wrong, try again", False, False),
        ("400 Bad Request", "prompt is too long: 210000 tokens > 200000 maximum", False, True),
        ("413 Payload Too Large", "no", False, True),
        ("404 Not Found", "no such model", False, False),
        ("307 Temporary Redirect", "over there", False, False),
        ("429 Too Many Requests", "You exceeded your current quota, check your billing", False, False),
    ],
)
def test_a_status_is_kept_in_the_text_and_judged_by_it(
    kit: Kit, dialect: Dialect, status: str, message: str, may_pass: bool, overflow: bool
) -> None:
    found = asyncio.run(heard(kit, dialect, kit.refusal(status, message, location="http://127.0.0.1:1/")))
    assert found.error == f"{status.strip()}: some_error: {message}"
    assert (retryable(found.message), is_overflow(found.message)) == (may_pass, overflow)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry_after": "7"}, 7000),
        ({"retry_after": "1.5"}, 1500),
        ({"retry_after": "0"}, 0),
        ({"retry_after": "9", "retry_after_ms": "250"}, 250),
        ({"retry_after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30_000),
        ({"retry_after": "Wed, 21 Oct 2020 07:28:00 GMT"}, 0),
        ({"retry_after": "1e300"}, MAX_INTEGER),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "-5"}, None),
        ({"retry_after": "inf"}, None),
        ({}, None),
    ],
)
def test_how_long_to_wait_is_read_from_seconds_and_dates(
    kit: Kit, dialect: Dialect, headers: dict[str, str], expected: int | None
) -> None:
    found = asyncio.run(heard(kit, dialect, kit.refusal("429 Too Many Requests", "slow down", **headers)))
    assert found.finished.retry_after_ms == expected


def test_a_huge_body_of_an_error_is_cut(kit: Kit, dialect: Dialect) -> None:
    async def flood(wire: Wire) -> None:
        await wire.head("500 Internal Server Error", "text/html")
        while True:
            await wire.send(b"<p>very sorry</p>\n" * 1000)

    found = asyncio.run(heard(kit, dialect, flood))
    assert found.error.startswith("500 Internal Server Error: <p>very sorry</p>")
    assert len(found.error) <= 500


def test_the_body_of_an_error_that_does_not_end_is_what_came(kit: Kit, dialect: Dialect) -> None:
    async def stall(wire: Wire) -> None:
        await wire.head("503 Service Unavailable", "text/plain", content_length="100")
        await wire.send(b"half of the sto")
        await wire.gone()

    found = asyncio.run(heard(kit, dialect, stall, timeoutMs=50))
    assert found.error == "503 Service Unavailable: half of the sto"


@pytest.mark.parametrize("how", ["cancel", "close", "drop"])
def test_ending_the_iteration_closes_the_connection(kit: Kit, dialect: Dialect, how: str) -> None:
    async def main() -> None:
        closed = asyncio.Event()

        async def begin(wire: Wire) -> None:
            await wire.head()
            await wire.send(b"\n\n".join(dialect.answer(*WORDS).split(b"\n\n")[:3]) + b"\n\n")
            await wire.gone()
            closed.set()

        async with kit.serving(begin) as server:
            begun = asyncio.Event()

            async def listen() -> None:
                if how == "drop":
                    async for event in dialect.model(server.url).stream(kit.hello()):
                        if isinstance(event, TextDelta) and event.text == WORDS[0]:
                            begun.set()
                            return
                async with aclosing(dialect.model(server.url).stream(kit.hello())) as events:
                    async for event in events:
                        if isinstance(event, TextDelta) and event.text == WORDS[0]:
                            begun.set()
                            if how == "close":
                                return

            listening = asyncio.create_task(listen())
            await begun.wait()
            if how == "cancel":
                await asyncio.sleep(0)
                listening.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await listening
            else:
                await listening
            await closed.wait()

    asyncio.run(main())


def test_the_connection_is_closed_before_the_end_is_given(kit: Kit, dialect: Dialect) -> None:
    async def main() -> None:
        closed = asyncio.Event()

        async def linger(wire: Wire) -> None:
            await wire.head()
            await wire.send(dialect.answer(*WORDS))
            await wire.gone()
            closed.set()

        async with kit.serving(linger) as server:
            events = dialect.model(server.url).stream(kit.hello())
            async for event in events:
                if isinstance(event, Finished):
                    break
            await closed.wait()
            await events.aclose()

    asyncio.run(main())


def test_a_request_is_not_repeated_unless_the_host_says_so(kit: Kit, dialect: Dialect) -> None:
    async def main() -> int:
        scripts = kit.refusal("503 Service Unavailable", "busy", retry_after="0"), kit.body(dialect.answer(*WORDS))
        async with kit.serving(*scripts) as server:
            assert (await kit.hear(dialect.model(server.url))).message["stopReason"] == "error"
            return len(server.asked)

    assert asyncio.run(main()) == 1


def test_e6_a_repeated_request_carries_the_same_key(kit: Kit, dialect: Dialect) -> None:
    async def main() -> None:
        busy = kit.refusal("503 Service Unavailable", "busy", retry_after="0")
        async with kit.serving(busy, busy, kit.body(dialect.answer(*WORDS))) as server:
            request = kit.hello(maxRetries=2)
            keyed = type(request)(messages=request.messages, options=request.options, key="ask-1")
            found = await kit.hear(dialect.model(server.url), keyed)
            assert text_of(found.message) == TEXT
            assert [asked.headers["idempotency-key"] for asked in server.asked] == ["ask-1"] * 3

    asyncio.run(main())


@pytest.mark.parametrize("why", ["it stays", "it takes too long", "it had begun", "often enough"])
def test_a_request_is_not_repeated_in_vain(kit: Kit, dialect: Dialect, why: str) -> None:
    begun = dialect.answer(*WORDS).split(b"\n\n")[:3]
    scripts = {
        "it stays": kit.refusal("400 Bad Request", "wrong", retry_after="0"),
        "it takes too long": kit.refusal("503 Service Unavailable", "busy", retry_after="61"),
        "it had begun": kit.body(b"\n\n".join([*begun, b""])),
        "often enough": kit.refusal("503 Service Unavailable", "busy", retry_after="0"),
    }

    async def main() -> int:
        async with kit.serving(scripts[why]) as server:
            found = await kit.hear(dialect.model(server.url), kit.hello(maxRetries=3))
            assert found.message["stopReason"] == "error"
            return len(server.asked)

    assert asyncio.run(main()) == (4 if why == "often enough" else 1)


def test_calls_and_their_arguments_are_what_was_sent_at_every_border(kit: Kit, dialect: Dialect) -> None:
    text = '{"path":"/tmp/é","lines":[1,2.5,null,true],"s":"a\\"b\\u00e9"}'

    async def main() -> None:
        for at in range(len(text) + 1):
            events = dialect.events((), "", (kit.Call("c1", "edit", (text[:at], text[at:])),))
            async with kit.serving(kit.body(dialect.stream(events))) as server:
                (call,) = calls_of((await kit.hear(dialect.model(server.url))).message)
            assert call.error is None
            assert call.arguments == {"path": "/tmp/é", "lines": [1, 2.5, None, True], "s": 'a"bé'}

    asyncio.run(main())


def test_providers_are_models(kit: Kit, dialect: Dialect) -> None:
    model: Model = dialect.model("http://127.0.0.1:1/v1", context_window=9, max_tokens=5, timeout=timedelta(seconds=1))
    assert (model.context_window, model.max_tokens, str(model.ref)) == (9, 5, f"{dialect.name}/m1")
