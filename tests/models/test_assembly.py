"""V5, C7: an answer put together is the same however it was cut, and can always be stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidurable_nb.ids import MAX_INTEGER, Json, JsonObject
from pidurable_nb.models import (
    ArgumentsDelta,
    CallStart,
    Finished,
    ModelEvent,
    ModelRef,
    TextDelta,
    ThinkingDelta,
)
from pidurable_nb.models.assembly import Assembly, RedactedThinking
from pidurable_nb.models.classify import retryable
from pidurable_nb.records.codec import dumps, loads
from pidurable_nb.records.message import blocks_of, calls_of, text_of
from pidurable_nb.records.strict import detach, whole_characters

REF = ModelRef("p", "m")
NOW_MS = 1_750_000_000_000
ZERO: dict[str, Json] = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0}
FREE: dict[str, Json] = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}
NASTY = "a\ud83d\ude00b\ud83d\ud83d\ude00\ude00é\ud83d"


def assembled(events: Iterable[ModelEvent]) -> Assembly:
    assembly = Assembly(REF, "api", NOW_MS)
    for event in events:
        assembly.apply(event)
    return assembly


def end(**more: Json) -> Finished:
    return Finished(stop_reason="stop", more=more)


def cuts(text: str) -> st.SearchStrategy[Sequence[str]]:
    """The text in pieces, empty ones too."""
    return st.lists(st.integers(0, len(text)), max_size=8).map(
        lambda places: [text[a:b] for a, b in zip([0, *sorted(places)], [*sorted(places), len(text)], strict=True)]
    )


@given(st.text(st.characters(codec=None), max_size=30).flatmap(lambda text: st.tuples(st.just(text), cuts(text))))
def test_borders_between_deltas_never_change_text_or_thinking(case: tuple[str, Sequence[str]]) -> None:
    text, pieces = case
    events: list[ModelEvent] = [TextDelta(0, piece) for piece in pieces]
    events += [ThinkingDelta(1, piece) for piece in pieces]
    message = assembled([*events, end()]).message()
    whole = whole_characters(text)
    assert text_of(message) == whole
    assert message == assembled([TextDelta(0, text), ThinkingDelta(1, text), end()]).message()


def test_surrogates_are_joined_at_every_border_and_in_every_partial() -> None:
    whole = whole_characters(NASTY)
    for at in range(len(NASTY) + 1):
        for size in range(1, 4):
            assembly = Assembly(REF, "api", NOW_MS)
            pieces = [NASTY[:at], *(NASTY[n : n + size] for n in range(at, len(NASTY), size))]
            sent = ""
            for piece in pieces:
                assembly.apply(TextDelta(0, piece))
                sent += piece
                assert text_of(assembly.partial()) == whole_characters(sent)
            assert text_of(assembly.partial()) == whole


def test_a_message_has_every_stored_field() -> None:
    assembly = assembled(
        [
            ThinkingDelta(0, "hm"),
            ThinkingDelta(0, signature="sig"),
            RedactedThinking(1, "", "data"),
            TextDelta(2, "Hello"),
            TextDelta(3, ""),
            CallStart(4, "c1", "scan"),
            ArgumentsDelta(4, '{"a":'),
            ArgumentsDelta(4, "1}"),
            Finished(
                stop_reason="toolUse",
                usage={"input": 3, "output": 4, "cacheWrite1h": 2, "cost": {"input": 0.5, "output": 0.25}},
                more={"responseId": "r", "role": "never"},
            ),
        ]
    )
    assert assembly.message() == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"},
            {"type": "thinking", "thinking": "", "thinkingSignature": "data", "redacted": True},
            {"type": "text", "text": "Hello"},
            {"type": "toolCall", "id": "c1", "name": "scan", "arguments": {"a": 1}},
        ],
        "api": "api",
        "provider": "p",
        "model": "m",
        "usage": {
            **ZERO,
            "input": 3,
            "output": 4,
            "totalTokens": 7,
            "cacheWrite1h": 2,
            "cost": {**FREE, "input": 0.5, "output": 0.25, "total": 0.75},
        },
        "stopReason": "toolUse",
        "timestamp": NOW_MS,
        "responseId": "r",
    }


def test_blocks_stand_by_their_index_whenever_they_come() -> None:
    events: list[ModelEvent] = [TextDelta(2, "b"), ThinkingDelta(0, "a"), CallStart(7, "c", "f"), TextDelta(2, "!")]
    kinds = [block["type"] for block in blocks_of(assembled(events).partial())]
    assert kinds == ["thinking", "text", "toolCall"]


def test_v5_a_partial_is_pending_and_shows_arguments_as_far_as_they_go() -> None:
    text = '{"path": "/tmp/é\\n", "lines": [1, 2.5, {"a": null}], "ok": true}'
    assembly = assembled([CallStart(0, "c", "f")])
    seen: list[JsonObject] = []
    for letter in text:
        assembly.apply(ArgumentsDelta(0, letter))
        message = assembly.partial()
        assert message["stopReason"] == "pending"
        assert "argumentsError" not in blocks_of(message)[0]
        (call,) = calls_of(message)
        seen.append(call.arguments)
    assert {"path": "/tm"} in seen
    assert {"path": "/tmp/é\n", "lines": [1, 2.5]} in seen
    assert seen[0] == {}
    assert seen[-1] == loads(text)


def test_whether_anything_came_is_told() -> None:
    assert not assembled([]).has_content
    assert not assembled([TextDelta(0, ""), ThinkingDelta(1, "")]).has_content
    for event in (TextDelta(0, "a"), ThinkingDelta(0, "a"), ThinkingDelta(0, signature="s"), CallStart(0, "c", "f")):
        assert assembled([event]).has_content


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": tru', "not JSON"),
        ("[1]", "no object"),
        ('"text"', "no object"),
        ("null", "no object"),
        ("NaN", "NaN"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": 1e999}', "finite"),
        (f'{{"a": {MAX_INTEGER + 1}}}', "2^53-1"),
        ('{"a":' * 195 + "1" + "}" * 195, "too deep"),
        ('{"a":' * 199 + "1" + "}" * 199, "too deep"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "levels"),
    ],
)
def test_c7_arguments_that_are_no_storable_object_are_empty_and_say_why(text: str, said: str) -> None:
    assembly = assembled([CallStart(0, "c", "f"), ArgumentsDelta(0, text)])
    assert detach(assembly.partial())
    assembly.apply(Finished(stop_reason="toolUse"))
    (call,) = calls_of(assembly.message())
    assert call.arguments == {}
    assert call.error is not None
    assert said in call.error


@pytest.mark.parametrize("text", ["", "  \n", "{}", " {} "])
def test_no_arguments_are_an_empty_object(text: str) -> None:
    (call,) = calls_of(assembled([CallStart(0, "c", "f"), ArgumentsDelta(0, text), end()]).message())
    assert (call.arguments, call.error) == ({}, None)


def test_c7_arguments_as_deep_as_they_may_be_fit_wherever_they_are_stored() -> None:
    def holders(arguments: JsonObject) -> Json:
        return {"tools": [{"generation": {"message": {"content": [{"arguments": arguments}]}}}]}

    kept = []
    for depth in range(150, 205):
        text = '{"a":' * depth + "1" + "}" * depth
        (call,) = calls_of(assembled([CallStart(0, "c", "f"), ArgumentsDelta(0, text), end()]).message())
        if call.error is None:
            assert loads(dumps(detach(holders(call.arguments)))) == holders(call.arguments)
            kept.append(depth)
    assert kept == list(range(150, 193))


@given(st.text(st.sampled_from('{}[]",:\\u0aé1-e.tn \ud83d\ude00'), max_size=40))
def test_c7_whatever_the_arguments_are_the_message_can_be_stored(text: str) -> None:
    assembly = assembled([CallStart(0, "c", "f"), ArgumentsDelta(0, text)])
    assert loads(dumps(detach(assembly.partial())))
    assembly.apply(end())
    assert loads(dumps(detach(assembly.message())))


def test_an_answer_that_never_finished_is_an_error_that_may_pass() -> None:
    ends: tuple[list[ModelEvent], ...] = ([], [Finished(stop_reason="pending")])
    for rest in ends:
        assembly = assembled([TextDelta(0, "Hel"), *rest])
        message = assembly.message()
        assert (text_of(message), message["stopReason"]) == ("Hel", "error")
        assert retryable(message)


def test_an_error_says_why_and_a_deferred_answer_keeps_its_handle() -> None:
    assert assembled([Finished(stop_reason="error", error="503 busy")]).message()["errorMessage"] == "503 busy"
    assert assembled([Finished(stop_reason="error")]).message()["errorMessage"] == "the model gave no reason"
    deferred = assembled([Finished(stop_reason="deferred", handle={"id": "h"})]).message()
    assert (deferred["stopReason"], deferred["deferred"]) == ("deferred", {"id": "h"})
    assert "errorMessage" not in deferred


def test_what_broke_off_keeps_what_came_and_what_it_cost() -> None:
    assembly = assembled([TextDelta(0, "Hel"), CallStart(1, "c", "f"), ArgumentsDelta(1, '{"a')])
    message = assembly.failed("the phone rang")
    assert (message["stopReason"], message["errorMessage"]) == ("error", "the phone rang")
    assert message["usage"] == {**ZERO, "cost": FREE}
    assert calls_of(message)[0].error is not None
    assert text_of(assembly.partial()) == "Hel", "nothing of the assembly changed"


@pytest.mark.parametrize(
    "events",
    [
        [TextDelta(0, "a"), ThinkingDelta(0, "b")],
        [ThinkingDelta(0, "a"), TextDelta(0, "b")],
        [CallStart(0, "c", "f"), TextDelta(0, "b")],
        [CallStart(0, "c", "f"), CallStart(0, "c", "f")],
        [TextDelta(0, "a"), ArgumentsDelta(0, "{}")],
        [ArgumentsDelta(0, "{}")],
        [Finished(stop_reason="stop"), TextDelta(0, "a")],
        [Finished(stop_reason="stop"), Finished(stop_reason="stop")],
    ],
)
def test_events_that_no_answer_can_hold_are_refused(events: Sequence[ModelEvent]) -> None:
    with pytest.raises(ValueError, match="p/m"):
        assembled(events)


def test_a_partial_does_not_change_with_what_comes_after() -> None:
    assembly = assembled([TextDelta(0, "a")])
    partial = assembly.partial()
    assembly.apply(TextDelta(0, "b"))
    assert text_of(partial) == "a"
    assert text_of(assembly.partial()) == "ab"
