"""G1, E6: a scripted model reads its place in the script from the request, so a crash changes none of its answers."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from pidurable_nb.clock import LoopClock
from pidurable_nb.ids import JsonObject
from pidurable_nb.lab.dying import loop
from pidurable_nb.models import (
    Attempts,
    Break,
    CallTools,
    Defer,
    DeferringModel,
    Finished,
    Model,
    ModelEvent,
    ModelRequest,
    PlannedCall,
    Raise,
    Say,
    Scripted,
    TextDelta,
    call,
)
from pidurable_nb.models.assembly import Assembly
from pidurable_nb.models.classify import retryable
from pidurable_nb.records.codec import dumps, loads
from pidurable_nb.records.message import Message, calls_of, text_of, user_message

T = TypeVar("T")
NOW_MS = 1_750_000_000_000
SECOND = timedelta(seconds=1)


def run(main: Coroutine[Any, Any, T]) -> T:
    return loop.run(main)


async def events_of(model: Scripted, messages: Sequence[Message], session_id: str | None = None) -> list[ModelEvent]:
    return [event async for event in model.stream(ModelRequest(messages=tuple(messages), session_id=session_id))]


def message_of(model: Scripted, events: Sequence[ModelEvent]) -> Message:
    assembly = Assembly(model.ref, model.api, NOW_MS)
    for event in events:
        assembly.apply(event)
    return assembly.message()


async def ask(model: Scripted, messages: Sequence[Message], session_id: str | None = None) -> Message:
    return message_of(model, await events_of(model, messages, session_id))


HI = user_message("hi", NOW_MS)


def result(id: str) -> JsonObject:
    return {"role": "toolResult", "toolCallId": id, "content": [{"type": "text", "text": "4"}], "isError": False}


def test_g1_the_place_in_the_script_is_in_the_request() -> None:
    async def main() -> None:
        def fresh() -> Scripted:
            return Scripted("Hello", CallTools(call("add", a=1, b=3), call("look"), text="I try"), Say("4"))

        messages: list[Message] = [HI]
        for _ in range(3):
            answers = [await ask(fresh(), messages) for _ in range(2)]  # another process each time
            same = fresh()
            answers += [await ask(same, messages) for _ in range(2)]  # and one that is asked twice
            assert all(answer == answers[0] for answer in answers)
            messages += [answers[0], *(result(each.id) for each in calls_of(answers[0])), HI]
        assert [text_of(message) for message in messages if message["role"] == "assistant"] == ["Hello", "I try", "4"]

    run(main())


def test_answers_that_are_never_sent_do_not_count() -> None:
    unsent: list[Message] = [
        {"role": "assistant", "content": [], "stopReason": reason} for reason in ("error", "aborted", "deferred")
    ]
    assert text_of(run(ask(Scripted("first", "second"), [HI, *unsent]))) == "first"


def test_a_script_that_is_over_says_so() -> None:
    async def main() -> Message:
        model = Scripted("only")
        return await ask(model, [HI, await ask(model, [HI]), HI])

    message = run(main())
    assert message["errorMessage"] == "the script of scripted/teacher ends after 1 answers, and this asks for one more"
    assert not retryable(message)


def test_a_script_without_an_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one answer"):
        Scripted()
    with pytest.raises(ValueError, match="calls nothing"):
        CallTools()
    with pytest.raises(ValueError, match="has no answer"):
        Attempts()


def test_a_function_answers_from_the_request() -> None:
    def echo(request: ModelRequest) -> Say:
        return Say(text_of(request.messages[-1]).upper())

    model = Scripted.by(echo, name="echo")
    assert text_of(run(ask(model, [HI]))) == "HI"
    assert repr(model) == "Scripted.by(echo, name='echo')"


def test_calls_have_ids_that_a_resend_gives_again_and_no_other_call_has() -> None:
    async def main() -> list[str]:
        model = Scripted.by(lambda request: CallTools(call("a"), call("b", id="mine"), call("c")))
        messages: list[Message] = [HI]
        for _ in range(3):
            messages.append(await ask(model, messages))
        kept = [HI, messages[-1]]  # a compaction dropped what was before
        messages.append(await ask(model, kept))
        return [each.id for message in messages for each in calls_of(message)]

    numbers = [int(id[5:]) for id in run(main()) if id != "mine"]
    assert numbers[:6] == [1, 3, 4, 6, 7, 9]
    assert len(set(numbers)) == len(numbers)


def test_text_arrives_in_the_pieces_that_were_asked_for() -> None:
    def texts(answer: Say) -> list[str]:
        return [event.text for event in run(events_of(Scripted(answer), [HI])) if isinstance(event, TextDelta)]

    assert texts(Say("one two")) == ["one two"]
    assert texts(Say("")) == []
    assert texts(Say("abc", chunks=9)) == ["a", "b", "c"]
    assert texts(Say("abc", chunks=("ab", "", "c"))) == ["ab", "c"]
    for n in range(1, 12):
        pieces = texts(Say("Hello, world", chunks=n))
        assert len(pieces) == n
        assert "".join(pieces) == "Hello, world"
    with pytest.raises(ValueError, match="together they are 'ab'"):
        Say("abc", chunks=("a", "b"))
    with pytest.raises(ValueError, match="chunks=0"):
        Say("abc", chunks=0)


def test_delays_pass_on_a_virtual_clock_without_waiting() -> None:
    async def main() -> list[float]:
        model = Scripted(Say("Hello", chunks=3, thinking="hm", delay=timedelta(days=1)))
        now = asyncio.get_running_loop().time
        return [now() async for _ in model.stream(ModelRequest(messages=(HI,)))]

    assert run(main()) == [86400 * n for n in (1, 2, 3, 4, 4)]


def test_usage_is_the_same_every_time_and_can_be_given() -> None:
    system: JsonObject = {"role": "system", "content": "", "sections": {"a": "x" * 40, "b": None}}
    said = run(ask(Scripted(Say("y" * 7)), [system, user_message("z" * 9, NOW_MS)]))["usage"]
    assert said == run(ask(Scripted(Say("y" * 7)), [system, user_message("z" * 9, 5)]))["usage"]
    assert isinstance(said, dict)
    assert (said["input"], said["output"], said["totalTokens"]) == (13, 2, 15)
    given = run(ask(Scripted(Say("y", usage={"input": 5, "output": 0})), [HI]))["usage"]
    assert isinstance(given, dict)
    assert given["totalTokens"] == 5


def test_arguments_may_be_anything_a_model_could_send() -> None:
    message = run(ask(Scripted(CallTools(PlannedCall("f", '{"a": tru'), PlannedCall("g", {"id": 7}))), [HI]))
    broken, whole = calls_of(message)
    assert broken.error is not None
    assert (whole.arguments, whole.error) == ({"id": 7}, None)
    assert message["stopReason"] == "toolUse"


def test_breaking_gives_what_came_before_and_how_long_to_wait() -> None:
    async def main() -> tuple[Message, Finished]:
        model = Scripted(Break("503 overloaded", after=("So ", "far"), retry_after=SECOND))
        events = await events_of(model, [HI])
        assert isinstance(events[-1], Finished)
        return message_of(model, events), events[-1]

    message, finished = run(main())
    assert (text_of(message), message["stopReason"], message["errorMessage"]) == ("So far", "error", "503 overloaded")
    assert finished.retry_after_ms == 1000
    assert retryable(message)


def test_a_model_may_raise() -> None:
    with pytest.raises(OSError, match="no cable"):
        run(ask(Scripted(Raise(OSError("no cable"))), [HI]))


def test_attempts_are_counted_for_each_place_and_begin_again_with_the_process() -> None:
    async def main() -> list[str]:
        model = Scripted(Attempts(Break("503 a"), Break("503 b"), "done"), "next")
        first = [await ask(model, [HI], "s1") for _ in range(4)]
        other = await ask(model, [HI], "s2")
        after = await ask(model, [HI, first[-1], HI], "s1")
        restarted = await ask(pickle.loads(pickle.dumps(Scripted(Attempts(Break("503 a"), "done")))), [HI])
        return [str(m.get("errorMessage", text_of(m))) for m in (*first, other, after, restarted)]

    assert run(main()) == ["503 a", "503 b", "done", "done", "503 a", "next", "503 a"]


@pytest.mark.parametrize(
    "then",
    [
        "Hello",
        Say("Hello", chunks=2, thinking="hm", delay=SECOND, stop="length"),
        CallTools(call("add", a=1), PlannedCall("f", "{"), text="x"),
        Break("503 busy", after="He", retry_after=SECOND),
        Break("no"),
    ],
)
def test_a_deferred_answer_is_whole_in_its_handle(then: str | Say | CallTools | Break) -> None:
    async def main() -> None:
        clock = LoopClock()
        direct = await ask(Scripted(then), [HI])
        (asked,) = await events_of(Scripted(Defer(then, after=3 * SECOND), clock=clock), [HI])
        assert isinstance(asked, Finished)
        assert asked.stop_reason == "deferred"
        assert asked.handle is not None
        assert asked.handle["pollAfterMs"] == 3000
        handle = loads(dumps(asked.handle))  # through a store, into another process
        assert isinstance(handle, dict)
        model = Scripted("anything", clock=clock)
        await asyncio.sleep(2)
        (again,) = [event async for event in model.fetch(handle)]
        assert isinstance(again, Finished)
        assert again.stop_reason == "deferred"
        assert again.handle == {**handle, "pollAfterMs": 1000}
        await asyncio.sleep(1)
        for _ in range(2):
            fetched = message_of(model, [event async for event in model.fetch(again.handle or {})])
            assert fetched == direct

    run(main())


def test_a_foreign_handle_and_a_deferred_deferral_are_refused() -> None:
    async def main() -> Message:
        model = Scripted("x")
        await model.cancel({"id": 1})
        assert model.cancelled == [{"id": 1}]
        return message_of(model, [event async for event in model.fetch({"id": 1})])

    assert "never gave the handle" in str(run(main())["errorMessage"])
    with pytest.raises(TypeError, match="gives Say"):
        Defer(Raise(OSError()), SECOND)  # type: ignore[arg-type]


def test_a_script_is_shown_as_it_is_written() -> None:
    model = Scripted(
        "Hello",
        Say("Hi", chunks=2),
        CallTools(call("search", query="tides"), call("x", id="k", n=1), PlannedCall("y", {"id": 7}), text="Look"),
        Attempts(Break("503", after="So"), Defer("later", SECOND)),
        name="ada",
        context_window=100,
    )
    assert repr(model) == (
        "Scripted('Hello', Say('Hi', chunks=2), CallTools(call('search', query='tides'), call('x', id='k', n=1), "
        "PlannedCall('y', arguments={'id': 7}), text='Look'), Attempts(Break('503', after='So'), "
        "Defer('later', datetime.timedelta(seconds=1))), name='ada', context_window=100)"
    )
    assert repr(pickle.loads(pickle.dumps(model))) == repr(model)


def test_cancelling_ends_an_answer_at_once() -> None:
    async def main() -> float:
        model = Scripted(Say("Hello", chunks=5, delay=SECOND))
        asking = asyncio.create_task(ask(model, [HI]))
        await asyncio.sleep(2.5)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return asyncio.get_running_loop().time()

    assert run(main()) == 2.5


def test_a_scripted_model_is_a_deferring_model_and_keeps_what_it_was_asked() -> None:
    scripted = Scripted("x", context_window=9, max_tokens=5, provider="lab")
    model: Model = scripted
    assert isinstance(model, DeferringModel)
    assert (str(model.ref), model.api, model.context_window, model.max_tokens) == ("lab/teacher", "scripted", 9, 5)
    run(ask(scripted, [HI]))
    assert [request.messages for request in scripted.requests] == [(HI,)]
