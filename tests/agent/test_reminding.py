"""Reminders: each rings once, at its time or late, whatever died in between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone

import pytest

from pidurable_nb import Answered, Harness, ToolError
from pidurable_nb.agent.ready.reminding import REMINDER, due_time, reminding
from pidurable_nb.clock import as_ms
from pidurable_nb.models import Answer, CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.records.message import role_of, text_of
from pidurable_nb.records.task import Aborted, Completed
from tests.agent.conftest import START_MS, Death, Lives

START = datetime.fromtimestamp(START_MS / 1000, UTC)
HOUR = timedelta(hours=1)


def teacher(request: ModelRequest) -> Answer:
    last = request.messages[-1]
    match role_of(last), text_of(last):
        case "user", "in an hour":
            return CallTools(call("remind", text="tea", in_minutes=60))
        case "user", "at noon":
            return CallTools(call("remind", text="tea", at=(START + HOUR).isoformat()))
        case "toolResult", said:
            return Say(said)
        case "user", said:
            return Say(f"heard: {said}")
        case other:
            raise AssertionError(other)


def lives_of(ask: str, *, sleep: timedelta = 2 * HOUR, set_back: bool = False) -> Lives:
    async def story(h: Harness) -> None:
        answer = await (await (await h.root()).submit(ask, request_id="ask")).wait()
        assert isinstance(answer, Answered)
        await asyncio.sleep(sleep.total_seconds())
        due, stamp = await rang_once(h, answer.text)
        assert set_back or as_ms(due) <= stamp

    lives = Lives(story)
    lives.extensions, lives.models = [reminding()], [Scripted.by(teacher)]
    return lives


async def rang_once(h: Harness, said: str) -> tuple[datetime, int]:
    """When it was due, and when it rang."""
    assert await h.tasks(live=True) == ()
    page = await (await h.root()).entries(order="ascending")
    [rang] = [entry for entry in page.items if entry.kind == REMINDER]
    assert rang.model is not None
    assert text_of(rang.model[0]) == "Reminder: tea"
    assert isinstance(rang.data, Mapping)
    due = datetime.fromisoformat(str(rang.data["due"]))
    assert said == f"The reminder is set for {due.isoformat(timespec='milliseconds')}."
    answers = [message for entry in page.items for message in entry.model or () if role_of(message) == "assistant"]
    assert [text_of(message) for message in answers].count("heard: Reminder: tea") == 1
    [alarm] = await h.tasks(kind="reminding.alarm")
    assert alarm.outcome == Completed(result=None)
    return due, int(str(rang.model[0]["timestamp"]))


@pytest.mark.slow
def test_s1_t12_one_alarm_is_one_input_whichever_two_commits_the_process_dies_behind() -> None:
    deaths = list(lives_of("in an hour").sweep(deaths=2))
    assert deaths.count(1) > 10
    assert deaths.count(2) > 100


def test_s1_t12_one_alarm_is_one_input_whichever_commit_the_process_dies_behind() -> None:
    assert len(list(lives_of("in an hour").sweep(deaths=1))) > 10


def test_an_alarm_at_a_time_is_that_of_the_model_s_wherever_the_process_dies() -> None:
    lives = lives_of("at noon")
    assert len(list(lives.sweep(deaths=1))) > 10


def asleep(lives: Lives) -> Death:
    """What is left when the process dies while the alarm sleeps."""
    story = lives.story

    async def until_asleep(h: Harness) -> None:
        await (await (await h.root()).submit("in an hour", request_id="ask")).wait()
        [alarm] = await h.tasks(kind="reminding.alarm")
        assert (alarm.status, alarm.background) == ("sleeping", True)

    lives.story = until_asleep
    *_, last = lives.live()
    lives.story = story
    return last


def test_t12_an_alarm_that_was_due_while_nobody_ran_rings_at_once() -> None:
    lives = lives_of("in an hour", sleep=timedelta(seconds=1))
    lives.live(asleep(lives), later_ms=as_interval(9 * HOUR))


def test_m1_a_time_that_passed_while_the_call_was_cut_off_still_counts_as_it_was_taken() -> None:
    lives = lives_of("at noon")
    deaths = lives.live()
    taken = next(n for n, death in enumerate(deaths) if death.where.startswith("memo"))
    assert taken < len(deaths) - 5
    for death in deaths[taken:]:
        lives.live(death, later_ms=as_interval(9 * HOUR))


def test_t12_a_clock_that_is_set_back_delays_an_alarm_and_never_repeats_it() -> None:
    lives = lives_of("in an hour", sleep=5 * HOUR, set_back=True)
    last = asleep(lives)
    deaths = lives.live(last, later_ms=as_interval(-3 * HOUR))
    rang = [death for death in deaths if "ring" in death.where]
    assert rang
    assert all(death.at_ms >= START_MS + as_interval(HOUR) for death in rang)
    for death in rang:  # it rang, and is set back again
        lives.live(death, later_ms=as_interval(-3 * HOUR))


def test_s3_an_alarm_that_rings_while_a_run_is_active_is_answered_by_the_next_one() -> None:
    def busy(request: ModelRequest) -> Answer:
        last = request.messages[-1]
        if role_of(last) == "toolResult":
            return Say("set, and then thought about for long", delay=2 * HOUR)
        return teacher(request)

    async def story(h: Harness) -> None:
        answer = await (await (await h.root()).submit("in an hour")).wait()
        assert isinstance(answer, Answered)
        assert answer.text.startswith("set")
        await asyncio.sleep(1)
        page = await (await h.root()).entries(order="ascending")
        texts = [text_of(message) for entry in page.items for message in entry.model or () if text_of(message)]
        assert texts[-2:] == ["Reminder: tea", "heard: Reminder: tea"]
        assert texts[-3] == answer.text

    lives = Lives(story)
    lives.extensions, lives.models = [reminding()], [Scripted.by(busy)]
    lives.live()


def test_o3_an_alarm_survives_the_abort_of_its_conversation_and_ends_with_its_background() -> None:
    async def story(h: Harness) -> None:
        root = await h.root()
        await (await root.submit("in an hour")).wait()
        await root.abort()
        assert [alarm.live for alarm in await h.tasks(kind="reminding.alarm")] == [True]
        await root.abort(background=True)
        assert [alarm.outcome for alarm in await h.tasks(kind="reminding.alarm")] == [Aborted()]

    lives = lives_of("in an hour")
    lives.story = story
    lives.live()


@pytest.mark.parametrize(
    ("at", "in_minutes", "said"),
    [
        (None, None, "either"),
        ("2031-01-01T00:00:00Z", 5.0, "either"),
        ("tomorrow", None, "no time"),
        ("2031-01-01T00:00:00", None, "offset"),
        ("2025-01-01T00:00:00Z", None, "has passed"),
        (None, 1e12, "no time"),
        (None, 1e8, "ten years"),
    ],
)
def test_what_is_no_time_to_come_is_said_to_the_model(at: str | None, in_minutes: float | None, said: str) -> None:
    with pytest.raises(ToolError, match=said):
        due_time(START, at, in_minutes)


def test_a_time_is_taken_with_its_offset() -> None:
    assert due_time(START, (START + HOUR).astimezone(timezone(5 * HOUR)).isoformat(), None) == START + HOUR
    assert due_time(START, None, 0) == START
    assert due_time(START, None, 1.5) == START + timedelta(seconds=90)


def as_interval(interval: timedelta) -> int:
    return round(interval / timedelta(milliseconds=1))
