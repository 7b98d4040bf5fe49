"""E6: what a provider is sent: the whole conversation in its form, key and options; and no secret ever comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.models import Finished, ModelRequest
from pidurable_nb.models.endpoint import MOST_ERROR_CHARS, Endpoint
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.message import calls_of

if TYPE_CHECKING:
    from tests.models.conftest import Asked, Dialect, Heard, Kit, Script

IMAGE: JsonObject = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
SCAN: JsonObject = {"name": "scan", "description": "Scan a host", "parameters": {"type": "object", "properties": {}}}
SCAN_2: JsonObject = {**SCAN, "description": "Scan it well"}
STOP: JsonObject = {"name": "stop", "description": "Stop", "parameters": {"type": "object"}}


def assistant(*blocks: JsonObject, reason: str = "stop", **more: Json) -> JsonObject:
    return {"role": "assistant", "content": blocks, "stopReason": reason, **more}


def conversation(dialect: Dialect) -> tuple[JsonObject, ...]:
    by = {"provider": dialect.name, "model": "m1"}
    return (
        {
            "role": "system",
            "content": "",
            "sections": {"a": "Be kind.", "b": "<b>\nold\n</b>", "c": "gone"},
            "toolsAdded": [SCAN, STOP],
        },
        {"role": "user", "content": "look"},
        assistant({"type": "text", "text": "half"}, reason="error", errorMessage="503"),
        assistant(
            {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"},
            {"type": "thinking", "thinking": "", "thinkingSignature": "data", "redacted": True},
            {"type": "thinking", "thinking": "unsigned"},
            {"type": "text", "text": "I look"},
            {"type": "toolCall", "id": "k1", "name": "scan", "arguments": {"host": "::1"}},
            {"type": "toolCall", "id": "k|2", "name": "stop", "arguments": {}, "argumentsError": "no JSON"},
            reason="toolUse",
            **by,
        ),
        {
            "role": "toolResult",
            "toolCallId": "k1",
            "content": [{"type": "text", "text": "22 open"}, IMAGE],
            "isError": False,
        },
        {"role": "toolResult", "toolCallId": "k|2", "content": [], "isError": True},
        {
            "role": "system",
            "content": "",
            "sections": {"b": "<b>\nnew\n</b>", "c": None, "d": "Last."},
            "toolsRemoved": [{"name": "stop"}, {"name": "scan"}],
            "toolsAdded": [SCAN_2],
        },
        assistant({"type": "thinking", "thinking": "x", "thinkingSignature": "foreign"}, {"type": "text", "text": ""}),
        {"role": "user", "content": [{"type": "text", "text": "and?"}, IMAGE]},
    )


def asked(kit: Kit, dialect: Dialect, request: ModelRequest, **settings: object) -> Asked:
    async def main() -> Asked:
        async with kit.serving(kit.body(dialect.answer("ok"))) as server:
            await kit.hear(dialect.model(server.url, **settings), request)
            return server.asked[0]

    return asyncio.run(main())


def test_a_conversation_in_the_form_of_openai(kit: Kit, openai: Dialect) -> None:
    sent = asked(kit, openai, ModelRequest(messages=conversation(openai), session_id="s1", max_tokens=99))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert sent.path == "/v1/chat/completions"
    assert sent.body == {
        "model": "m1",
        "messages": [
            {"role": "system", "content": "Be kind.\n\n<b>\nnew\n</b>\n\nLast."},
            {"role": "user", "content": "look"},
            {
                "role": "assistant",
                "content": "I look",
                "tool_calls": [
                    {"id": "k1", "type": "function", "function": {"name": "scan", "arguments": '{"host":"::1"}'}},
                    {"id": "k|2", "type": "function", "function": {"name": "stop", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "k1", "content": "22 open"},
            {"role": "tool", "tool_call_id": "k|2", "content": "Error: (no output)"},
            {"role": "user", "content": [{"type": "text", "text": "Images of the tool results above:"}, image]},
            {"role": "user", "content": [{"type": "text", "text": "and?"}, image]},
        ],
        "tools": [{"type": "function", "function": SCAN_2}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 99,
        "user": "s1",
    }
    assert sent.headers["authorization"] == f"Bearer {kit.KEY}"


def test_a_conversation_in_the_form_of_anthropic(kit: Kit, anthropic: Dialect) -> None:
    sent = asked(kit, anthropic, ModelRequest(messages=conversation(anthropic), session_id="s1", max_tokens=99))
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    cached = {"cache_control": {"type": "ephemeral"}}
    assert sent.path == "/v1/messages"
    assert sent.body == {
        "model": "m1",
        "system": [{"type": "text", "text": "Be kind.\n\n<b>\nnew\n</b>\n\nLast.", **cached}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "look"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "sig"},
                    {"type": "redacted_thinking", "data": "data"},
                    {"type": "text", "text": "I look"},
                    {"type": "tool_use", "id": "k1", "name": "scan", "input": {"host": "::1"}},
                    {"type": "tool_use", "id": "k_2", "name": "stop", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "k1",
                        "content": [{"type": "text", "text": "22 open"}, image],
                    },
                    {
                        "type": "tool_result",
                        "tool_use_id": "k_2",
                        "content": [{"type": "text", "text": "(no output)"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "and?"},
                    image | cached,
                ],
            },
        ],
        "tools": [{"name": "scan", "description": "Scan it well", "input_schema": SCAN["parameters"]}],
        "stream": True,
        "max_tokens": 99,
        "metadata": {"user_id": "s1"},
    }
    assert sent.headers["x-api-key"] == kit.KEY
    assert sent.headers["anthropic-version"] == "2023-06-01"


def test_the_cache_is_kept_as_the_host_says(kit: Kit, anthropic: Dialect) -> None:
    assert "cache_control" not in dumps(asked(kit, anthropic, kit.hello(cacheRetention="none")).body)
    assert '"cache_control":{"type":"ephemeral","ttl":"1h"}' in dumps(
        asked(kit, anthropic, kit.hello(cacheRetention="long")).body
    )


def test_thinking_is_an_effort_or_a_budget_within_the_length(kit: Kit, openai: Dialect, anthropic: Dialect) -> None:
    deep = replace(kit.hello(), thinking="max")
    low = replace(kit.hello(), thinking="minimal")
    assert asked(kit, openai, deep).body["reasoning_effort"] == "xhigh"
    assert "reasoning_effort" not in asked(kit, openai, kit.hello()).body
    assert asked(kit, anthropic, low).body["output_config"] == {"effort": "low"}
    assert asked(kit, anthropic, low).body["thinking"] == {"type": "adaptive"}
    assert "thinking" not in asked(kit, anthropic, kit.hello()).body
    budget = asked(kit, anthropic, deep, thinking_by="budget").body
    assert (budget["max_tokens"], budget["thinking"]) == (4096 + 32_768, {"type": "enabled", "budget_tokens": 32_768})
    bound = asked(kit, anthropic, deep, thinking_by="budget", max_tokens=8192).body
    assert (bound["max_tokens"], bound["thinking"]) == (8192, {"type": "enabled", "budget_tokens": 8192 - 1024})
    assert "thinking" not in asked(kit, anthropic, deep, thinking_by="budget", max_tokens=1500).body


def test_other_providers_know_only_the_old_name_of_the_length(kit: Kit, openai: Dialect) -> None:
    assert asked(kit, openai, kit.hello(), provider="local", max_tokens=5).body["max_tokens"] == 5
    assert not {"max_tokens", "max_completion_tokens", "tools", "user"} & set(asked(kit, openai, kit.hello()).body)


def test_the_hosts_headers_are_sent_and_null_takes_one_away(kit: Kit, dialect: Dialect) -> None:
    request = kit.hello(headers={"X-Trace": "t1", "X-Team": None, "Accept-Encoding": "gzip"})
    sent = asked(kit, dialect, request, headers={"x-team": "blue", "x-plan": "pro"})
    assert sent.headers["x-trace"] == "t1"
    assert sent.headers["x-plan"] == "pro"
    assert sent.headers["accept-encoding"] == "gzip"
    assert "x-team" not in sent.headers
    assert "idempotency-key" not in sent.headers


def test_a_query_in_the_address_stays(kit: Kit, dialect: Dialect) -> None:
    async def main() -> str:
        async with kit.serving(kit.body(dialect.answer("ok"))) as server:
            await kit.hear(dialect.model(server.url + "/?api-version=3"))
            return server.asked[0].path

    assert asyncio.run(main()) == dialect.path + "?api-version=3"


def test_lone_surrogates_and_any_text_can_be_sent(kit: Kit, dialect: Dialect) -> None:
    text = "a\ud800\u2028é😀\0"
    request = ModelRequest(messages=({"role": "user", "content": text},))
    assert text in texts(asked(kit, dialect, request).body["messages"])


def texts(value: object) -> list[str]:
    """Every string within a JSON value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in texts(item)]
    return [text for item in value for text in texts(item)] if isinstance(value, list) else []


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_key_is_read_from_the_environment_when_it_is_needed(
    kit: Kit, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with kit.serving(kit.body(dialect.answer("ok"))) as server:
            model = dialect.model(server.url, api_key=None, key_variable="TESTS_KEY")
            monkeypatch.delenv("TESTS_KEY", raising=False)
            missing = await kit.hear(model)
            assert missing.error == "no API key: set the environment variable TESTS_KEY, or give api_key="
            monkeypatch.setenv("TESTS_KEY", f" {kit.KEY}\n")
            assert (await kit.hear(model)).message["stopReason"] == "stop"
            monkeypatch.setenv("TESTS_KEY", f"{kit.KEY}\nX: y")
            broken = await kit.hear(model)
            assert broken.error.startswith("invalid API key")
            assert kit.KEY not in broken.error
            assert [asked.headers.get("authorization", asked.headers.get("x-api-key")) for asked in server.asked] == [
                f"Bearer {kit.KEY}" if dialect.name == "openai" else kit.KEY
            ]

    asyncio.run(main())


def test_a_server_that_needs_no_key_gets_none(kit: Kit, dialect: Dialect) -> None:
    sent = asked(kit, dialect, kit.hello(), api_key=None, key_variable=None)
    assert not {"authorization", "x-api-key"} & set(sent.headers)


def echoes(kit: Kit, dialect: Dialect, secret: str) -> dict[str, Script]:
    """Every way in which a server may tell a secret back."""
    begun = (
        dialect.answer("Hello").partition(b"Hello")[0]
        + b'Hello"'
        + (b"}}]}\n\n" if dialect.name == "openai" else b"}}\n\n")
    )
    return {
        "JSON body": kit.refusal("401 Unauthorized", f"Incorrect API key provided: {secret}."),
        "text body": kit.body(f"no {secret}!".encode(), "500 Oh", "text/plain"),
        "long body": kit.body(("x" * 490 + secret * 99).encode(), "500 Oh", "text/plain"),
        "reason phrase": kit.body(b"", f"400 Bad {secret}", "text/plain"),
        "other type": kit.body(secret.encode(), kind=f"text/{secret}"),
        "error event": kit.body(begun + f"event: error\ndata: {dialect.error('bad', secret)}\n\n".encode()),
        "no JSON": kit.body(begun + f"data: {{{'x' * 99}{secret}\n\n".encode()),
        "no object": kit.body(begun + f'data: ["{secret}"]\n\n'.encode()),
    }


@pytest.mark.parametrize(
    "way",
    ["JSON body", "text body", "long body", "reason phrase", "other type", "error event", "no JSON", "no object"],
)
@pytest.mark.parametrize("given", ["argument", "environment", "header", "option"])
def test_a_secret_is_in_no_text_that_comes_back(
    kit: Kit, dialect: Dialect, way: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = kit.KEY if given in ("argument", "environment") else "other-secret-9876543210"
    monkeypatch.setenv("TESTS_KEY", kit.KEY)
    settings: dict[str, object] = {}
    if given == "environment":
        settings = {"api_key": None, "key_variable": "TESTS_KEY"}
    elif given == "header":
        settings = {"headers": {"X-Gate": secret}}
    options: dict[str, Json] = {"headers": {"X-Gate": secret}} if given == "option" else {}

    async def main() -> tuple[Heard, str]:
        async with kit.serving(echoes(kit, dialect, secret)[way]) as server:
            model = dialect.model(server.url, **settings)
            return await kit.hear(model, kit.hello(**options)), repr(model)

    found, shown = asyncio.run(main())
    assert found.message["stopReason"] == "error"
    assert "[redacted]" in found.error or way == "long body"
    dump = " ".join((dumps(found.message), repr(found.finished), repr(found.events), shown))
    for length in (len(secret), 12):  # a part of it is a leak too
        for at in range(len(secret) - length + 1):
            assert secret[at : at + length] not in dump


def test_a_secret_is_blotted_out_before_the_text_is_cut() -> None:
    endpoint = Endpoint(
        "http://x/v1", api_key="abcdefgh", key_variable=None, headers=None, timeout=timedelta(minutes=1)
    )
    post = endpoint.post("/y", ModelRequest(messages=()), {}, lambda key: {"authorization": key})
    for at in range(MOST_ERROR_CHARS - 20, MOST_ERROR_CHARS + 1):
        cleaned = post.clean("." * at + "abcdefgh" + "." * 99)
        assert len(cleaned) == MOST_ERROR_CHARS
        assert set(cleaned) <= set(".[redacted]…")
        assert "abc" not in cleaned
    assert "abcdefgh" not in repr(post)


def test_a_model_shows_where_it_asks_and_no_more(kit: Kit, dialect: Dialect) -> None:
    model = dialect.model("https://user.example.com:8443/v1?key=abcdefghijkl", headers={"X-Gate": "hidden-word"})
    maker = type(model).__name__
    assert repr(model) == f"{maker}('m1', base_url='https://user.example.com:8443/v1', provider='{dialect.name}')"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"base_url": "ftp://example.com"}, "http or https"),
        ({"base_url": "example.com/v1"}, "http or https"),
        ({"base_url": "https://me:pass-word@example.com/v1"}, "in headers="),
        ({"headers": {"X-Gate": "se\ncret"}}, "'X-Gate'"),
        ({"headers": {"X Gate": "secret"}}, "'X Gate'"),
        ({"api_key": "sec\nret"}, "api_key"),
        ({"api_key": "  "}, "api_key"),
        ({"timeout": timedelta()}, "timeout"),
    ],
)
def test_what_cannot_be_sent_is_refused_without_showing_it(
    dialect: Dialect, settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError) as caught:
        dialect.model("https://example.com/v1", **settings)
    assert said in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("pass-word", "secret", "se\ncret", "sec\nret"))


@pytest.mark.parametrize("headers", [{"X-Gate": 7}, {"X-Gate": "a\r\nb"}, {"a b": "c"}])
def test_an_option_that_cannot_be_sent_ends_the_request(kit: Kit, dialect: Dialect, headers: JsonObject) -> None:
    async def main() -> tuple[Heard, int]:
        async with kit.serving(kit.body(dialect.answer("ok"))) as server:
            return await kit.hear(dialect.model(server.url), kit.hello(headers=headers)), len(server.asked)

    found, times = asyncio.run(main())
    assert found.error.startswith("invalid request: the ")
    assert times == 0


# -- what comes back in the dialects -----------------------------------------------------------------------------------


def answered(kit: Kit, dialect: Dialect, *events: Json) -> Heard:
    async def main() -> Heard:
        data = dialect.stream(map(kit.compact, events))
        async with kit.serving(kit.body(data)) as server:
            return await kit.hear(dialect.model(server.url))

    return asyncio.run(main())


def pieces(*calls: JsonObject, reason: str = "tool_calls") -> tuple[JsonObject, ...]:
    deltas: list[JsonObject] = [{"choices": [{"delta": {"tool_calls": [call]}}]} for call in calls]
    return (*deltas, {"choices": [{"delta": {}, "finish_reason": reason}]})


def test_calls_of_servers_that_only_imitate_openai(kit: Kit, openai: Dialect) -> None:
    no_index = pieces(
        {"id": "a", "function": {"name": "f", "arguments": '{"x"'}},
        {"function": {"arguments": ":1}"}},
        {"id": "b", "function": {"name": "g", "arguments": "{}"}},
        reason="stop",
    )
    no_id = pieces(
        {"index": 0, "function": {"name": "f", "arguments": '{"x":'}},
        {"index": 1, "id": "", "function": {"name": "g"}},
        {"index": 0, "function": {"arguments": "1}"}},
    )
    same_place = pieces(
        {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"index": 0, "id": "b", "function": {"name": "g", "arguments": ""}},
    )
    same_id = pieces(
        {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"index": 1, "id": "a", "function": {"name": "g", "arguments": "{}"}},
    )
    slow_name = pieces(
        {"index": 0, "id": "a", "function": {"name": "f"}},
        {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"index": 1, "id": "b", "function": {"name": None, "arguments": ""}},
        {"index": 1, "function": {"name": "g"}},
    )
    for events in (no_index, no_id, same_place, same_id, slow_name):
        message = answered(kit, openai, *events).message
        first, second = calls_of(message)
        assert (first.name, first.arguments, second.name, second.arguments) == ("f", {"x": 1}, "g", {})
        assert len({first.id, second.id, ""}) == 3
        assert message["stopReason"] == "toolUse"


def test_reasons_of_openai(kit: Kit, openai: Dialect) -> None:
    def ended(reason: str) -> Finished:
        return answered(kit, openai, {"choices": [{"delta": {"content": "x"}, "finish_reason": reason}]}).finished

    assert ended("length").stop_reason == "length"
    assert ended("tool_calls").stop_reason == "stop", "there is no call to make"
    assert ended("something new").stop_reason == "stop"
    assert ended("something new").more["rawStopReason"] == "something new"
    assert ended("content_filter").error == "refused: the provider stopped the answer: content_filter"
    assert ended("network_error").stop_reason == "error"
    nameless = answered(kit, openai, *pieces({"index": 0, "id": "a", "function": {"arguments": "{}"}}))
    assert nameless.error == "malformed stream: a tool call without a name"


def test_text_and_reasoning_in_turn_are_blocks_of_their_own(kit: Kit, openai: Dialect) -> None:
    deltas: list[JsonObject] = [
        {"reasoning": "a"},
        {"reasoning": "b"},
        {"content": "c"},
        {"reasoning": "d"},
        {"refusal": "e"},
    ]
    end: JsonObject = {"finish_reason": "stop"}
    found = answered(kit, openai, *({"choices": [{"delta": delta}]} for delta in deltas), {"choices": [end]})
    assert found.message["content"] == [
        {"type": "thinking", "thinking": "ab"},
        {"type": "text", "text": "c"},
        {"type": "thinking", "thinking": "d"},
        {"type": "text", "text": "e"},
    ]


def test_reasons_and_blocks_of_anthropic(kit: Kit, anthropic: Dialect) -> None:
    def ended(reason: str) -> Finished:
        return answered(kit, anthropic, {"type": "message_delta", "delta": {"stop_reason": reason}}).finished

    assert ended("max_tokens").stop_reason == "length"
    assert ended("model_context_window_exceeded").stop_reason == "length"
    assert ended("stop_sequence").stop_reason == "stop"
    assert ended("refusal").error == "refused: the provider stopped the answer: refusal"
    found = answered(
        kit,
        anthropic,
        {"type": "ping"},
        {"type": "message_start", "message": {"id": "r", "model": "m1-0501", "usage": {"input_tokens": 5}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "redacted_thinking", "data": "zzz"}},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "server_tool_use", "id": "s", "name": "w"},
        },
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        },
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use"},
            "usage": {"output_tokens": 3, "input_tokens": None},
        },
        {"type": "a new kind"},
    )
    assert found.message["content"] == [
        {"type": "thinking", "thinking": "", "thinkingSignature": "zzz", "redacted": True},
        {"type": "toolCall", "id": "t", "name": "f", "arguments": {"a": 1}},
    ]
    assert found.message["responseModel"] == "m1-0501"
    assert found.finished.usage["input"] == 5


def test_numbers_that_are_no_counts_are_nothing(kit: Kit, openai: Dialect) -> None:
    usage: JsonObject = {"prompt_tokens": -3, "completion_tokens": 10**30, "total_tokens": "many"}
    end: JsonObject = {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}], "usage": usage}
    spent = answered(kit, openai, end).message["usage"]
    assert isinstance(spent, Mapping)
    assert [spent[name] for name in ("input", "output", "totalTokens")] == [0, 0, 0]


def test_what_was_spent_before_an_error_is_told(kit: Kit, anthropic: Dialect) -> None:
    events = anthropic.events(("Hello",))[:3]
    found = asyncio.run(_cut(kit, anthropic, "".join(f"data: {event}\n\n" for event in events).encode()))
    assert found.message["stopReason"] == "error"
    assert found.finished.usage["input"] == 20


async def _cut(kit: Kit, dialect: Dialect, data: bytes) -> Heard:
    async with kit.serving(kit.body(data)) as server:
        return await kit.hear(dialect.model(server.url))
