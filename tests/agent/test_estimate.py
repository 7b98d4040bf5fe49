"""Guessing the size of messages and contexts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pidurable_nb.agent.request.context import Context, derive
from pidurable_nb.agent.request.estimate import IMAGE_TOKENS, context_tokens, estimate_tokens, used_tokens
from pidurable_nb.ids import ROOT, EntryId, Json, JsonObject
from pidurable_nb.records.transcript import Edit, EntryRecord


def user(text: str) -> JsonObject:
    return {"role": "user", "content": text, "timestamp": 1}


def answer(text: str = "", *, stop: str = "stop", **usage: Json) -> JsonObject:
    content: list[Json] = [{"type": "text", "text": text}]
    return {"role": "assistant", "content": content, "usage": usage, "stopReason": stop, "timestamp": 1}


def context_of(*messages: JsonObject, head: int | None = None, edits: Sequence[Edit] = ()) -> Context:
    """One entry a message from id 1 on; the `head`-th is a head of itself that keeps everything before it."""
    entries = [
        EntryRecord(
            id=EntryId(1 + at),
            conversation=ROOT,
            kind="app.any",
            model=(message,),
            head=EntryId(1) if at + 1 == head else None,
            edits=tuple(edits) if at + 1 == len(messages) else (),
        )
        for at, message in enumerate(messages)
    ]
    return derive(entries, entries[head - 1] if head is not None else None)


IMAGE: JsonObject = {"type": "image", "data": "A" * 100_000, "mimeType": "image/png"}
CALL: JsonObject = {"type": "toolCall", "id": "x", "name": "scan", "arguments": {"host": "::1"}}


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (user(""), 0),
        (user("abcd"), 1),
        (user("abcde"), 2),
        ({"role": "user", "content": [{"type": "text", "text": "abcd"}, IMAGE]}, 1 + IMAGE_TOKENS),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": "abcdefgh"}, CALL]}, 7),
        ({"role": "toolResult", "toolCallId": "x", "content": [{"type": "text", "text": "abcd"}, IMAGE]}, 1201),
        ({"role": "system", "content": "", "sections": {"a": "abcdefgh", "b": None}}, 2),
        ({"role": "system", "content": "abcd", "toolsAdded": [{"name": "s"}]}, 4),
        ({"role": "system", "content": "", "toolsRemoved": [{"name": "s"}]}, 0),
        ({"role": "assistant", "content": [{"type": "new", "text": "abcd"}, {"type": "text", "text": 7}]}, 0),
    ],
)
def test_k1_four_characters_are_a_token_and_an_image_has_one_price(message: JsonObject, tokens: int) -> None:
    assert estimate_tokens(message) == tokens


def test_k1_a_provider_that_gives_no_total_is_added_up() -> None:
    assert used_tokens(answer(totalTokens=12, input=1)) == 12
    assert used_tokens(answer(input=1, output=2, cacheRead=4, cacheWrite=8, reasoning=100)) == 15
    assert used_tokens(answer()) == used_tokens(user("hi")) == 0


def test_k1_the_newest_answer_that_counted_is_believed_and_what_follows_is_estimated() -> None:
    context = context_of(user("a" * 4000), answer("b", totalTokens=70), user("cccc"), answer("dddd"), user("e" * 8))
    assert context_tokens(context, []) == 70 + 1 + 1 + 2
    assert context_tokens(context, [{"role": "system", "content": "", "sections": {"a": "ffff"}}]) == 75


def test_k1_without_such_an_answer_everything_is_estimated() -> None:
    assert context_tokens(context_of(user("aaaa"), answer("bbbb")), [user("cccc")]) == 3
    assert context_tokens(context_of(user("aaaa"), answer("bbbb", stop="error", totalTokens=70)), []) == 1
    assert context_tokens(derive([], None), []) == 0


def test_k1_an_answer_from_before_the_head_does_not_count() -> None:
    kept = (user("aaaa"), answer("bbbb", totalTokens=9000))
    assert context_tokens(context_of(*kept, user("summary!"), head=3), []) == 2 + 1 + 1
    assert context_tokens(context_of(*kept, user("summary!"), answer("", totalTokens=50), user("c"), head=3), []) == 51


def test_k1_an_answer_that_was_edited_away_does_not_count() -> None:
    messages = (user("aaaa"), answer("b", totalTokens=70), user("cccc"))
    assert context_tokens(context_of(*messages, edits=[Edit(target=EntryId(2))]), []) == 2


def test_k1_a_result_that_moved_before_its_answer_is_not_counted_twice() -> None:
    asks: JsonObject = {"role": "assistant", "content": [CALL], "usage": {}, "stopReason": "toolUse"}
    result: JsonObject = {"role": "toolResult", "toolCallId": "x", "content": [{"type": "text", "text": "a" * 400}]}
    counts = answer("b", totalTokens=300)
    assert context_tokens(context_of(asks, user("wait"), result, counts, user("cccc")), []) == 301
