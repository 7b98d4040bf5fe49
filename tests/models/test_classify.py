"""G2: from its stored text alone, a failed answer is one that may pass, one that is too long, or neither."""

from __future__ import annotations

import pytest

from pidurable_nb.ids import JsonObject
from pidurable_nb.models.classify import is_overflow, retryable

MAY_PASS = [
    "429 rate limited: slow down",
    "429 Too Many Requests",
    "429: RESOURCE_EXHAUSTED: Quota exceeded for metric requests per minute",
    "500 Internal Server Error",
    "502 Bad Gateway",
    "503 Service Unavailable: no capacity",
    "504 Gateway Timeout",
    "529 overloaded_error: Overloaded",
    "408 Request Timeout",
    "overloaded_error: Overloaded",
    "api_error: Internal server error",
    "rate_limit_exceeded: Rate limit reached for requests",
    "timeout: api.example.com said nothing for 300 s",
    "Request timed out.",
    "connection failed: api.example.com: [Errno 111] Connection refused",
    "connection failed: x: [Errno -3] Temporary failure in name resolution",
    "stream cut: the connection to x broke: ReadError",
    "malformed stream: an event: not JSON",
    "Connection error.",
    "read ECONNRESET",
    "socket hang up",
    "The server had an error while processing your request. Please try again.",
    "terminated: the response was cut",
    "429 request too large on tokens per minute (TPM): Limit 30000",
    "ThrottlingException: Too many tokens, please wait before trying again.",
]
STAYS = [
    "401 Unauthorized: invalid x-api-key",
    "403 Forbidden: try again",
    "400 Bad Request: the server is overloaded with nonsense",
    "404 Not Found: no such model",
    "501 Not Implemented",
    "402 Payment Required",
    "429 Too Many Requests: insufficient_quota: You exceeded your current quota, check your plan and billing details",
    "400 Your credit balance is too low to access the API",
    "billing_error: pay first",
    "You've hit your usage limit. Try again in 5 hours.",
    "authentication_error: invalid api key",
    "invalid_request_error: messages.1: try again with a user message",
    "no API key: set the environment variable OPENAI_API_KEY, or give api_key=",
    "invalid API key in api_key: it is empty",
    "connection failed: x: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
    "refused: the provider stopped the answer: content_filter",
    "the script of scripted/teacher ends after 2 answers, and this asks for one more",
    "something that nobody has seen before",
    "the model gave no reason",
]
TOO_LONG = [
    "400 Bad Request: prompt is too long: 213462 tokens > 200000 maximum",
    "400 input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "413 Payload Too Large",
    "request_too_large: Request exceeds the maximum size",
    "400 context_length_exceeded: This model's maximum context length is 8192 tokens. However, you requested 9000",
    "Your input exceeds the context window of this model",
    "400: The input token count (1196265) exceeds the maximum number of tokens allowed (1048575)",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens",
    "400 Please reduce the length of the messages or completion",
    "500 the request exceeds the available context size, try increasing it",
    "tokens to keep from the initial prompt is greater than the context length",
    "ValidationException: Input is too long for requested model.",
    "prompt token count of 128001 exceeds the limit of 128000",
    "invalid params, context window exceeds limit",
    "Your request exceeded model token limit: 262144 (requested: 300000)",
    "context length exceeded",
]


def failed(text: str, reason: str = "error") -> JsonObject:
    return {"role": "assistant", "content": [], "stopReason": reason, "errorMessage": text}


@pytest.mark.parametrize("text", MAY_PASS)
def test_g2_what_may_pass_is_tried_again(text: str) -> None:
    assert (retryable(failed(text)), is_overflow(failed(text))) == (True, False)


@pytest.mark.parametrize("text", STAYS)
def test_g2_what_stays_is_not_tried_again(text: str) -> None:
    assert (retryable(failed(text)), is_overflow(failed(text))) == (False, False)


@pytest.mark.parametrize("text", TOO_LONG)
def test_g2_what_is_too_long_is_an_overflow_and_nothing_else(text: str) -> None:
    assert (retryable(failed(text)), is_overflow(failed(text))) == (False, True)


@pytest.mark.parametrize("reason", ["stop", "length", "toolUse", "aborted", "deferred", "pending"])
def test_only_errors_are_judged(reason: str) -> None:
    for text in (MAY_PASS[0], TOO_LONG[0]):
        assert (retryable(failed(text, reason)), is_overflow(failed(text, reason))) == (False, False)


def test_an_error_without_a_text_stays() -> None:
    message: JsonObject = {"role": "assistant", "content": [], "stopReason": "error"}
    assert (retryable(message), is_overflow(message)) == (False, False)
