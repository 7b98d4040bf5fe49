"""G1, G2 and the prompt: what becomes of every kind of answer, across kills, sleeps and aborts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from pidurable_nb import AgentChange, Answered, Extension, Harness, Settings, Unanswered, tool
from pidurable_nb.agent.conversation import Conversation
from pidurable_nb.agent.extending.extension import section
from pidurable_nb.agent.extending.hooking import Compacting, Decline, HookApi, Hooks
from pidurable_nb.agent.extending.settings import Compaction, Retry
from pidurable_nb.agent.generating.classifying import (
    LONGEST_MS,
    Answers,
    Calls,
    Defers,
    GivesUp,
    Overflows,
    TryAgain,
    classify,
)
from pidurable_nb.agent.stored import live
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.lab.dying import loop
from pidurable_nb.models import (
    Attempts,
    Break,
    CallTools,
    Defer,
    Finished,
    ModelEvent,
    ModelRef,
    ModelRequest,
    Say,
    Scripted,
    TextDelta,
    call,
)
from pidurable_nb.records import task as stored
from pidurable_nb.records.frozen import freeze
from pidurable_nb.records.message import Message, calls_of, role_of, stop_reason, text_of
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.memory import MemoryStorage
from tests.agent.conftest import START_MS, Lives, live_of, sound

if TYPE_CHECKING:
    from tests.agent.conftest import Home

SECOND = timedelta(seconds=1)
CALM = Settings(compaction=Compaction(enabled=False))


@tool(replay="safe")
async def look(at: str) -> str:
    """Look."""
    return f"{at} is there"


async def ask(h: Harness, text: str = "go") -> Answered:
    found = await (await (await h.root()).submit(text)).wait()
    assert isinstance(found, Answered), found
    return found


async def unanswered(h: Harness, text: str = "go") -> Unanswered:
    found = await (await (await h.root()).submit(text)).wait()
    assert isinstance(found, Unanswered), found
    return found


async def answers(where: Conversation) -> list[tuple[str, str]]:
    """Every answer, with how it ended."""
    page = await where.entries(limit=1000, order="ascending")
    found = [(entry.model or ({},))[0] for entry in page.items if entry.kind == "pi.assistant"]
    return [(str(message["stopReason"]), text_of(message)) for message in found]


# --- Without an answer ------------------------------------------------------------------------------------------------


def test_s2_without_a_model_the_input_is_unanswered_no_model_and_the_task_failed(home: Home) -> None:
    async def main() -> None:
        async with home.agent() as h:
            assert (await unanswered(h)).reason == "no_model"
            [task] = await h.tasks()
            assert isinstance(task.outcome, stored.Failed)
            assert task.outcome.error.detail == {"reason": "no_model"}
            await sound(h)

    home.run(main())


def test_s2_a_model_that_this_host_does_not_know_is_no_model_at_its_preparation_and_at_its_request(home: Home) -> None:
    async def main() -> None:
        async with home.agent(Scripted("hello")) as h:
            root = await h.root()
            await root.configure(AgentChange(model="other/model"))
            assert (await unanswered(h)).reason == "no_model"
            await sound(h)

    home.run(main())

    async def cut() -> None:
        h = await home.agent(Scripted(Say("hello", delay=SECOND), name="old"))
        root = await h.root()
        await root.configure(AgentChange(model="scripted/old"))
        await root.submit("cut", request_id="cut")
        await asyncio.sleep(0.5)
        [task] = await h.tasks(live=True)
        assert task.phase == "request"
        await h.aclose()

    home.run(cut())

    async def again() -> None:
        async with home.agent(Scripted("new")) as h:
            found = await (await (await h.root()).submit("cut", request_id="cut")).wait()
            assert isinstance(found, Unanswered)
            assert found.reason == "no_model"
            await sound(h)

    home.run(again())


class Broken:
    """A model whose code is broken in one of many ways."""

    ref = ModelRef("broken", "model")
    api = "broken"
    context_window = 0
    max_tokens = 0

    def __init__(self, how: str) -> None:
        self.how = how

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        match self.how:
            case "raises at once":
                raise RuntimeError("at once")
            case "gives no iterator":
                return 7  # type: ignore[return-value]
            case _:
                return self._stream()

    async def _stream(self) -> AsyncIterator[ModelEvent]:
        try:
            yield TextDelta(0, "so far")
            match self.how:
                case "raises later":
                    raise RuntimeError("later")
                case "raises what cannot say what it is":
                    raise Mute
                case "says nothing known":
                    yield "garbage"  # type: ignore[misc]
                case "ends in no known way":
                    yield Finished(stop_reason="banana")  # type: ignore[arg-type]
                case "defers without a handle":
                    yield Finished(stop_reason="deferred")
                case "ends pending":
                    yield Finished(stop_reason="pending")
                case "ends aborted":
                    yield Finished(stop_reason="aborted")
                case "raises when it is over":
                    yield Finished(stop_reason="stop")
                case "never finishes":
                    return
                case "counts in words":
                    yield Finished(stop_reason="stop", usage={"input": "many", "cost": [1]}, more={"x": 1})
                case _:
                    raise AssertionError(self.how)
        finally:
            if self.how == "raises when it is over":
                raise RuntimeError("in the end")


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


WRONG = [
    "raises at once", "gives no iterator", "raises later", "raises what cannot say what it is", "says nothing known",
    "ends in no known way", "defers without a handle", "ends pending", "ends aborted", "never finishes",
]  # fmt: skip


@pytest.mark.parametrize("how", WRONG)
def test_f3_s2_whatever_a_model_breaks_is_an_answer_that_failed_and_its_input_is_unanswered(
    memory: Home, how: str
) -> None:
    async def main() -> None:
        async with memory.agent(Broken(how), settings=replace(CALM, retry=Retry(retries=0))) as h:
            found = await unanswered(h)
            assert found.reason == "model_error"
            assert found.detail
            [(reason, text)] = await answers(await h.root())
            assert reason in ("error", "deferred", "aborted")
            assert text in ("so far", "")
            assert (await (await h.root()).context()).messages[-1]["role"] == "user"
            await h.wait_idle()
            await sound(h)

    memory.run(main())
    assert memory.reports == []


@pytest.mark.parametrize("how", ["raises when it is over", "counts in words"])
def test_f3_a_model_that_breaks_behind_its_answer_has_answered(memory: Home, how: str) -> None:
    async def main() -> None:
        async with memory.agent(Broken(how)) as h:
            assert (await ask(h)).text == "so far"
            await sound(h)

    memory.run(main())
    assert len(memory.reports) == (1 if how == "raises when it is over" else 0)


def test_f3_a_section_that_raises_is_reported_and_the_request_is_made_without_it(memory: Home) -> None:
    def wrong(_: object) -> str:
        raise RuntimeError("no section")

    async def main() -> None:
        sections = [section("wrong", wrong), section("number", lambda _: 7), section("good", lambda _: "good")]  # type: ignore[arg-type, return-value]
        model = Scripted("hello")
        async with memory.agent(model, extensions=[Extension("sections", sections=sections)]) as h:
            assert (await ask(h)).text == "hello"
            [system] = [message for message in model.requests[0].messages if role_of(message) == "system"]
            assert system["sections"] == {"good": "<good>\ngood\n</good>"}
            await sound(h)

    memory.run(main())
    assert len(memory.reports) == 2


def test_t11_s2_a_generation_that_faults_settles_its_input_and_keeps_what_was_said(memory: Home) -> None:
    async def wrong(message: Message, api: HookApi) -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        hooks = Extension("wrong", hooks=Hooks(after_response=wrong))
        model = Scripted.by(lambda _: Say("a long answer " * 10, chunks=10, delay=SECOND))
        async with memory.agent(model, extensions=[hooks]) as h:
            found = await unanswered(h)
            assert (found.reason, found.detail) == ("faulted", "CancelledError")
            [(reason, text)] = await answers(await h.root())
            assert (reason, "a long answer a long" in text) == ("aborted", True)
            await h.wait_idle()
            await sound(h)

    memory.run(main())
    assert len(memory.reports) == 1


def test_o4_s2_a_run_of_a_version_that_this_one_does_not_know_is_orphaned_by_an_abort_and_its_input_settled(
    home: Home,
) -> None:
    async def first() -> None:
        async with home.agent(Scripted("hello"), run=False) as h:
            root = await h.root()
            await root.submit("go", request_id="go")
            async with root.commit() as tx:
                [task] = await h.tasks()
                tx.rows.put_task(replace(task, version=99))

    home.run(first())

    async def second() -> None:
        async with home.agent(Scripted("hello")) as h:
            root = await h.root()
            asked = await root.submit("go", request_id="go")
            waits = await root.submit("waits")
            await asyncio.sleep(5)
            assert [verdict.name for verdict in await h.verdicts()] == ["blocked"]
            assert await asked.status() == "placed"
            await root.abort()
            found = await asked.wait()
            assert isinstance(found, Unanswered)
            assert found.reason == "task_too_old"
            assert await waits.status() == "unanswered"
            await sound(h)

    home.run(second())


# --- G2: errors that may go away --------------------------------------------------------------------------------------


def test_g2_errors_that_may_go_away_are_tried_again_after_doubled_delays_and_count_as_usage(home: Home) -> None:
    async def main() -> None:
        model = Scripted(Attempts(*[Break("503 overloaded", after="x")] * 3, Say("at last")))
        async with home.agent(model) as h:
            root = await h.root()
            asked = await root.submit("go")
            await asyncio.sleep(0.1)
            assert await live_of(root) == {
                "run": {"taskId": 9, "inputs": [8]},
                "generation": {"attempt": 1, "retry": {"at": START_MS + 2000, "error": "503 overloaded"}},
            }
            [task] = await h.tasks(live=True)
            assert isinstance(task.state, stored.Sleeping)
            assert (task.phase, task.state.until_ms) == ("retry", START_MS + 2000)
            found = await asked.wait()
            assert isinstance(found, Answered)
            assert found.message["timestamp"] == START_MS + 14_000  # 2 + 4 + 8 seconds
            assert await answers(root) == [("error", "x")] * 3 + [("stop", "at last")]
            assert [text_of(m) for m in (await root.context()).messages] == ["go", "at last"]
            assert [len(request.messages) for request in model.requests] == [1] * 4
            assert len({request.key for request in model.requests}) == 4
            usage = (await root.usage()).models["scripted/teacher"]
            assert usage["output"] == 3 + 2
            await sound(h)

    home.run(main())


def test_g2_after_the_last_retry_the_run_fails_with_the_provider_s_text(memory: Home) -> None:
    async def main() -> None:
        settings = Settings(retry=Retry(retries=2, delay=SECOND, most=SECOND))
        async with memory.agent(Scripted(Break("503 overloaded")), settings=settings) as h:
            found = await unanswered(h)
            assert (found.reason, found.detail) == ("model_error", "503 overloaded")
            assert len(await answers(await h.root())) == 3
            await sound(h)

    memory.run(main())


def test_g2_what_will_not_go_away_is_not_tried_again(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(Scripted(Break("401 unauthorized", after="so far"))) as h:
            assert (await unanswered(h)).detail == "401 unauthorized"
            assert await answers(await h.root()) == [("error", "so far")]

    memory.run(main())


def test_g2_t12_a_retry_sleeps_on_across_a_restart_and_changes_made_meanwhile_count(home: Home) -> None:
    async def first() -> None:
        model = Scripted(Break("503 overloaded"))
        settings = Settings(retry=Retry(delay=timedelta(hours=1), most=timedelta(hours=2)))
        async with home.agent(model, settings=settings) as h:
            await (await h.root()).submit("go", request_id="go")
            await asyncio.sleep(1)

    start = home.clock.start_ms
    home.run(first())

    async def second() -> None:
        model = Scripted("from here")
        async with home.agent(model) as h:
            root = await h.root()
            asked = await root.submit("go", request_id="go")
            assert (asked.match, await asked.status()) == ("same", "placed")
            await root.configure(AgentChange(instructions="be brief"))
            await asyncio.sleep(60)
            assert model.requests == []
            found = await asked.wait()
            assert isinstance(found, Answered)
            assert found.message["timestamp"] == start + 3_600_000
            assert "be brief" in str(model.requests[0].messages)
            await sound(h)

    home.run(second())


def test_g2_a_provider_that_asks_to_be_left_alone_is_up_to_the_policy_s_most(memory: Home) -> None:
    async def main() -> None:
        model = Scripted(
            Attempts(
                Break("429 slow down", retry_after=timedelta(seconds=30)),
                Break("429 slow down", retry_after=timedelta(hours=3)),
                Say("ok"),
            )
        )
        async with memory.agent(model) as h:
            found = await ask(h)
            assert found.message["timestamp"] == START_MS + 90_000

    memory.run(main())


def test_g2_wherever_the_process_dies_a_run_that_has_to_try_again_is_answered_once() -> None:
    def answer(request: ModelRequest) -> Attempts | Say:
        return Attempts(Break("503 overloaded", after=("a", "b"), delay=SECOND), Say("at last", delay=SECOND))

    async def story(h: Harness) -> None:
        root = await h.root()
        found = await (await root.submit("go", request_id="go")).wait()
        assert isinstance(found, Answered)
        assert found.text == "at last"
        await h.wait_idle()
        assert [reason for reason, _ in await answers(root)].count("stop") == 1
        await sound(h)

    lives = Lives(story)
    lives.models = [Scripted.by(answer)]
    assert list(lives.sweep(deaths=1)).count(1) > 5


# --- Answers that come later ------------------------------------------------------------------------------------------


def test_g2_a_deferred_answer_is_fetched_when_it_is_due_and_shows_when(home: Home) -> None:
    async def main() -> None:
        async with home.agent(Scripted(Defer(Say("later", chunks=2), timedelta(minutes=5)), clock=home.clock)) as h:
            root = await h.root()
            asked = await root.submit("go")
            await asyncio.sleep(1)
            assert (await live_of(root))["generation"] == {"attempt": 1, "deferred": {"pollAt": START_MS + 300_000}}
            [task] = await h.tasks(live=True)
            assert (task.phase, task.status) == ("poll", "sleeping")
            found = await asked.wait()
            assert isinstance(found, Answered)
            assert (found.text, found.message["timestamp"]) == ("later", START_MS + 300_000)
            await sound(h)

    home.run(main())


def test_g2_t12_a_deferred_answer_is_fetched_by_a_later_life(home: Home) -> None:
    async def first() -> None:
        async with home.agent(Scripted(Defer(Say("later"), timedelta(hours=5)), clock=home.clock)) as h:
            await (await h.root()).submit("go", request_id="go")
            await asyncio.sleep(1)

    home.run(first())

    async def second() -> None:
        model = Scripted("never asked", clock=home.clock)
        async with home.agent(model) as h:
            found = await (await (await h.root()).submit("go", request_id="go")).wait()
            assert isinstance(found, Answered)
            assert (found.text, model.requests) == ("later", [])
            await sound(h)

    home.run(second())


class Slow(Scripted):
    """Defers again and again, and says a wrong time to come back at."""

    def __init__(self, waits: list[Json]) -> None:
        super().__init__("unused")
        self.waits = waits
        self.fetched: list[int] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:  # type: ignore[override]
        yield Finished(stop_reason="deferred", handle={"pollAfterMs": self.waits[0]})

    async def fetch(self, handle: JsonObject) -> AsyncIterator[ModelEvent]:  # type: ignore[override]
        self.fetched.append(len(self.fetched))
        if len(self.fetched) < len(self.waits) and "last" not in handle:
            last: JsonObject = {"last": True} if len(self.fetched) == len(self.waits) - 1 else {}
            yield Finished(stop_reason="deferred", handle={"pollAfterMs": self.waits[len(self.fetched)], **last})
        else:
            for piece in ("do", "n", "e"):
                await asyncio.sleep(1)
                yield TextDelta(0, piece)
            yield Finished(stop_reason="stop")


def test_g2_wherever_the_process_dies_a_deferred_answer_is_stored_once() -> None:
    async def story(h: Harness) -> None:
        root = await h.root()
        found = await (await root.submit("go", request_id="go")).wait()
        assert isinstance(found, Answered)
        assert found.text == "done"
        await h.wait_idle()
        assert await answers(root) == [("stop", "done")]
        await sound(h)

    lives = Lives(story)
    lives.models = [Slow([30_000, 0])]
    assert list(lives.sweep(deaths=2)).count(2) > 20


def test_g2_a_still_deferred_answer_is_polled_strictly_later_whatever_its_provider_says(memory: Home) -> None:
    waits: list[Json] = [0, -5, 0.25, True, "soon", None, 1e300, 2_000]

    async def main() -> None:
        model = Slow(waits)
        async with memory.agent(model) as h:
            root = await h.root()
            polls: list[int] = []

            def follow(changes: Changes) -> None:
                states = [change.after.state for change in changes.tasks.values()]
                polls.extend(int(state.until_ms) for state in states if isinstance(state, stored.Sleeping))

            h.engine.session.subscribe(follow)
            asked = await root.submit("go")
            found = await asked.wait()
            assert isinstance(found, Answered)
            assert len(model.fetched) == len(waits)
            assert polls == sorted(set(polls))
            assert polls[-2] - polls[-3] == LONGEST_MS
            assert await answers(root) == [("stop", "done")]

    memory.run(main())


def test_v5_a_deferred_answer_that_arrives_is_shown_instead_of_its_time(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(Slow([1_000])) as h:
            root = await h.root()
            asked = await root.submit("go")
            await asyncio.sleep(3.5)
            generation = (await live_of(root))["generation"]
            assert isinstance(generation, dict)
            assert generation.keys() == {"attempt", "message"}
            await root.abort()
            assert isinstance(await asked.wait(), Unanswered)
            assert await answers(root) == [("aborted", "don")]
            await sound(h)

    memory.run(main())


def test_g2_o2_an_aborted_deferred_answer_is_cancelled_and_a_failure_of_that_is_reported(home: Home) -> None:
    class Refuses(Scripted):
        async def cancel(self, handle: JsonObject) -> None:
            await super().cancel(handle)
            raise RuntimeError("too late")

    async def main() -> None:
        model = Refuses(Defer(Say("later"), timedelta(hours=1)))
        async with home.agent(model) as h:
            root = await h.root()
            asked = await root.submit("go")
            await asyncio.sleep(1)
            await root.abort()
            found = await asked.wait()
            assert isinstance(found, Unanswered)
            assert found.reason == "aborted"
            assert len(model.cancelled) == 1
            assert await answers(root) == []
            await sound(h)

    home.run(main())
    assert [str(report) for report in home.reports] == ["too late"]


def test_g2_a_deferred_answer_whose_model_cannot_fetch_any_more_fails(home: Home) -> None:
    async def first() -> None:
        async with home.agent(Scripted(Defer(Say("later"), timedelta(hours=1)), clock=home.clock)) as h:
            await (await h.root()).submit("go", request_id="go")
            await asyncio.sleep(1)

    home.run(first())

    class Plain(Broken):
        ref = ModelRef("scripted", "teacher")

    async def second() -> None:
        async with home.agent(Plain("counts in words")) as h:
            found = await (await (await h.root()).submit("go", request_id="go")).wait()
            assert isinstance(found, Unanswered)
            assert found.reason == "model_error"
            await sound(h)

    home.run(second())


# --- B05, G1: an answer that is cut -----------------------------------------------------------------------------------


DELTAS = [f"<{n}>" for n in range(50)]


def long_answer() -> Scripted:
    """Fifty deltas, one every 50 ms."""
    return Scripted.by(lambda _: Say("".join(DELTAS), chunks=tuple(DELTAS), delay=timedelta(milliseconds=50)))


def test_g1_b05_an_aborted_answer_is_kept_once_as_far_as_it_was_shown_and_never_sent(home: Home) -> None:
    async def main() -> None:
        async with home.agent(long_answer()) as h:
            root = await h.root()
            asked = await root.submit("go")
            await asyncio.sleep(30 * 0.05)
            await root.abort()
            found = await asked.wait()
            assert isinstance(found, Unanswered)
            [(reason, text)] = await answers(root)
            assert (reason, text.count("<10>")) == ("aborted", 1)
            assert text == "".join(DELTAS[: text.count("<")])
            assert 26 <= text.count("<") <= 30
            assert "<10>" not in str((await root.context()).messages)
            assert (await ask(h, "again")).text == "".join(DELTAS)
            context = str((await root.context()).messages)
            assert context.count("<10>") == 1
            await sound(h)

    home.run(main())


def test_g1_b05_behind_a_kill_a_retried_answer_does_not_go_on_from_the_old_partial() -> None:
    parts: set[int] = set()
    moved: list[bool] = []

    def follow(changes: Changes) -> None:
        """The commit that keeps a partial takes it away from where it was shown: a second crash finds it once."""
        if any(stop_reason((entry.model or ({},))[0]) == "aborted" for entry in changes.entries):
            [value] = [change.value for change in changes.documents if change.record.kind == live.LIVE.kind]
            generation = (value or {}).get("generation")
            moved.append(isinstance(generation, dict) and "message" not in generation)

    async def story(h: Harness) -> None:
        h.engine.session.subscribe(follow)
        root = await h.root()
        found = await (await root.submit("go", request_id="go")).wait()
        assert isinstance(found, Answered)
        assert found.text == "".join(DELTAS)
        *cut, (reason, text) = await answers(root)
        assert (reason, text) == ("stop", "".join(DELTAS))
        for reason, text in cut:
            assert reason == "aborted"
            assert text == "".join(DELTAS[: text.count("<")])
            parts.add(text.count("<"))
        assert str((await root.context()).messages).count("<10>") == 1
        usage = (await root.usage()).models["scripted/teacher"]
        assert usage["output"] == found.message["usage"]["output"]  # type: ignore[index, call-overload]
        await sound(h)

    lives = Lives(story)
    lives.models = [long_answer()]
    assert list(lives.sweep(deaths=1)).count(1) > 20
    assert len(parts) > 15
    assert len(moved) > 15
    assert all(moved)


def test_g1_wherever_it_is_aborted_an_answer_leaves_one_aborted_entry_at_most() -> None:
    for at in range(0, 3000, 150):

        async def main(at: int = at) -> None:
            async with Harness.open(MemoryStorage(), models=[long_answer()]) as h:
                root = await h.root()
                asked = await root.submit("go")
                await asyncio.sleep(at / 1000)
                await root.abort()
                found = await asked.wait()
                kept = await answers(root)
                assert len(kept) == (1 if at >= 150 else len(kept))
                assert isinstance(found, Answered) == (kept != [] and kept[0][0] == "stop")
                await sound(h)

        loop.run(main(), limit=200_000)


# --- G2: a context that is too long -----------------------------------------------------------------------------------


def overflowing(*, until: int) -> Scripted:
    """Fails as too long while the request has more messages than this; summarizes when asked to."""

    def answer(request: ModelRequest) -> Break | Say:
        if "checkpoint" in str(request.messages[0]):
            return Say("the summary")
        shown = [m for m in request.messages if role_of(m) != "system"]
        return Break("400 prompt is too long: 9 tokens > 8") if len(shown) > until else Say("x" * 400)

    return Scripted.by(answer)


TIGHT = Settings(compaction=Compaction(keep_recent=100, reserve=0, background=0))


def test_g2_a_context_that_is_too_long_is_compacted_once_and_asked_again_without_counting_as_a_retry(
    home: Home,
) -> None:
    async def main() -> None:
        settings = replace(TIGHT, retry=Retry(retries=0))
        async with home.agent(overflowing(until=4), settings=settings) as h:
            root = await h.root()
            for n in range(2):
                await ask(h, f"q{n}")
            found = await ask(h, "q2")
            assert found.text == "x" * 400
            kinds = [entry.kind for entry in (await root.entries(order="ascending")).items]
            assert kinds[-5:] == ["pi.user", "pi.assistant", "pi.compaction", "pi.system", "pi.assistant"]
            assert text_of((await root.context()).messages[0]).endswith("<summary>\nthe summary\n</summary>")
            await sound(h)

    home.run(main())


def test_g2_a_second_overflow_fails_honestly(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(overflowing(until=0), settings=TIGHT) as h:
            root = await h.root()
            async with root.commit() as tx:
                for n in range(6):
                    tx.append("app.note", text=f"{n} " * 200)
            found = await unanswered(h, "q")
            assert (found.reason, found.detail) == ("model_error", "400 prompt is too long: 9 tokens > 8")
            kinds = [entry.kind for entry in (await root.entries(order="ascending")).items][6:]
            assert kinds == ["pi.user", "pi.assistant", "pi.compaction", "pi.system", "pi.assistant"]
            await sound(h)

    memory.run(main())


@pytest.mark.parametrize("why", ["nothing to compact", "declined", "off", "the summary fails"])
def test_g2_an_overflow_that_cannot_be_compacted_fails_with_its_own_text(memory: Home, why: str) -> None:
    async def decline(compacting: Compacting, api: HookApi) -> Decline:
        return Decline()

    def answer(request: ModelRequest) -> Break:
        return Break("401 no" if "checkpoint" in str(request.messages[0]) else "400 prompt is too long")

    async def main() -> None:
        hooks = Extension("declines", hooks=Hooks(before_compact=decline if why == "declined" else None))
        policy = replace(TIGHT.compaction, enabled=why != "off")
        async with memory.agent(
            Scripted.by(answer), extensions=[hooks], settings=Settings(compaction=policy, retry=Retry(retries=0))
        ) as h:
            root = await h.root()
            if why != "nothing to compact":
                async with root.commit() as tx:
                    for n in range(6):
                        tx.append("app.note", text=f"{n} " * 200)
            found = await unanswered(h, "q")
            assert (found.reason, found.detail) == ("model_error", "400 prompt is too long")
            await h.wait_idle()
            await sound(h)

    memory.run(main())


def test_g2_wherever_the_process_dies_an_overflow_is_compacted_once() -> None:
    async def story(h: Harness) -> None:
        root = await h.root()
        for n in range(3):
            found = await (await root.submit(f"q{n}", request_id=f"q{n}")).wait()
            assert isinstance(found, Answered)
        await h.wait_idle()
        kinds = [entry.kind for entry in (await root.entries(order="ascending")).items]
        assert kinds.count("pi.compaction") == 1
        await sound(h)

    lives = Lives(story)
    lives.models, lives.settings = [overflowing(until=4)], TIGHT
    assert list(lives.sweep(deaths=1)).count(1) > 12


# --- Hooks of the generation ------------------------------------------------------------------------------------------


def test_e4_before_request_changes_what_this_request_shows_and_nothing_that_is_stored(memory: Home) -> None:
    async def shout(messages: tuple[Message, ...], api: HookApi) -> list[Message]:
        return [{**m, "content": text_of(m).upper()} if role_of(m) == "user" else m for m in messages]

    async def main() -> None:
        model = Scripted.by(lambda request: Say(text_of(request.messages[-1])))
        async with memory.agent(model, extensions=[Extension("shout", hooks=Hooks(before_request=shout))]) as h:
            assert (await ask(h, "quiet")).text == "QUIET"
            assert [text_of(m) for m in (await (await h.root()).context()).messages] == ["quiet", "QUIET"]

    memory.run(main())


def test_e4_after_response_sees_every_answer_that_is_one(memory: Home) -> None:
    seen: list[tuple[str, str]] = []

    async def see(message: Message, api: HookApi) -> None:
        seen.append((str(message["stopReason"]), text_of(message)))

    async def main() -> None:
        model = Scripted(
            Attempts(Break("503 busy"), Defer(CallTools(call("look", at="a"), text="calling"), SECOND)), Say("done"),
            clock=memory.clock,
        )  # fmt: skip
        async with memory.agent(
            model, tools=[look], extensions=[Extension("see", hooks=Hooks(after_response=see))]
        ) as h:
            assert (await ask(h)).text == "done"

    memory.run(main())
    assert seen == [("error", ""), ("toolUse", "calling"), ("stop", "done")]


@pytest.mark.parametrize("waiting", [None, "follow_up", "reset", "write"])
def test_s4_on_yield_goes_on_with_the_inputs_open_unless_a_user_or_a_reset_is_next(
    memory: Home, waiting: str | None
) -> None:
    asked_times: list[str] = []

    async def again(message: Message, api: HookApi) -> str | None:
        asked_times.append(text_of(message))
        return "check it" if "checked" not in text_of(message) else None

    def answer(request: ModelRequest) -> Say:
        return Say("checked" if text_of(request.messages[-1]) == "check it" else "draft", delay=SECOND)

    async def main() -> None:
        hooks = Extension("review", hooks=Hooks(on_yield=again))
        async with memory.agent(Scripted.by(answer), extensions=[hooks]) as h:
            root = await h.root()
            asked = await root.submit("go")
            if waiting == "follow_up":
                await root.submit("next")
            elif waiting == "reset":
                await root.reset()
            elif waiting == "write":
                await root.write("app.note", text="note")
            found = await asked.wait()
            assert isinstance(found, Answered)
            goes_on = waiting in (None, "write")
            assert found.text == ("checked" if goes_on else "draft")
            texts = [text_of((e.model or ({},))[0]) for e in (await root.entries(order="ascending")).items]
            between = ["note"] if waiting == "write" else []
            if goes_on:
                assert texts == ["go", "draft", *between, "check it", "checked"]
            await h.wait_idle()
            await sound(h)

    memory.run(main())


# --- Prompt, models, settings -----------------------------------------------------------------------------------------


def systems(request: ModelRequest) -> list[Json]:
    return [message.get("sections") for message in request.messages if role_of(message) == "system"]


def test_v2_prompt_and_model_changes_between_turns_are_added_where_they_happen(home: Home) -> None:
    async def main() -> None:
        one, two = Scripted.by(lambda _: Say("one"), name="one"), Scripted.by(lambda _: Say("two"), name="two")
        async with home.agent(one, two) as h:
            root = await h.root()
            assert (await ask(h, "a")).text == "one"
            await root.configure(AgentChange(instructions="first"))
            assert (await ask(h, "b")).text == "one"
            await root.configure(AgentChange(instructions="second", model="scripted/two", thinking="high"))
            assert (await ask(h, "c")).text == "two"
            await root.configure(AgentChange(instructions=None))
            assert (await ask(h, "d")).text == "two"
            shown = [
                [text_of(m) or m.get("sections") for m in request.messages]
                for request in (*one.requests, *two.requests)
            ]

            def said(text: str | None) -> Json:
                return {"instructions": text and f"<instructions>\n{text}\n</instructions>"}

            assert shown[0] == ["a"]
            assert shown[3] == ["a", "one", "b", said("first"), "one", "c", said("second"), "two", "d", said(None)]
            assert (two.requests[0].thinking, one.requests[0].thinking) == ("high", "off")
            assert len({request.session_id for request in (*one.requests, *two.requests)}) == 1
            assert set((await root.usage()).models) == {"scripted/one", "scripted/two"}
            await sound(h)

    home.run(main())


def test_v1_behind_a_reset_the_next_request_has_the_whole_prompt_again(memory: Home) -> None:
    async def main() -> None:
        model = Scripted.by(lambda _: Say("ok"))
        async with memory.agent(model, tools=[look]) as h:
            root = await h.root()
            await root.configure(AgentChange(instructions="always"))
            await ask(h, "a")
            await root.reset()
            await ask(h, "b")
            [system] = [m for m in model.requests[-1].messages if role_of(m) == "system"]
            assert system["sections"] == {"instructions": "<instructions>\nalways\n</instructions>"}
            assert len(list(system["toolsAdded"])) == 1  # type: ignore[arg-type]
            assert [text_of(m) for m in model.requests[-1].messages if role_of(m) == "user"] == ["b"]

    memory.run(main())


def test_settings_that_are_a_function_are_asked_whenever_they_are_needed(memory: Home) -> None:
    settings = [Settings(request={"timeoutMs": 1}, retry=Retry(retries=0))]

    async def main() -> None:
        model = Scripted.by(lambda request: Attempts(Break("503 busy"), Say("ok")))
        async with memory.agent(model, settings=lambda: settings[0]) as h:
            assert (await unanswered(h, "a")).reason == "model_error"
            settings[0] = Settings(request={"timeoutMs": 2}, retry=Retry(retries=1))
            assert (await ask(h, "b")).text == "ok"
            assert [dict(request.options) for request in model.requests] == [{"timeoutMs": 1}, {"timeoutMs": 2}]

    memory.run(main())


def test_e6_g1_what_a_request_depends_on_is_fixed_with_it_and_sent_again_behind_a_crash(home: Home) -> None:
    first, second = Scripted(Say("x", delay=SECOND)), Scripted("answer")

    async def cut() -> None:
        h = await home.agent(first, settings=Settings(request={"timeoutMs": 1}))
        root = await h.root()
        await root.configure(AgentChange(thinking="low", instructions="old"))
        await root.submit("go", request_id="go")
        await asyncio.sleep(0.5)
        await root.configure(AgentChange(thinking="high", instructions="new"))
        await h.aclose()

    home.run(cut())

    async def again() -> None:
        async with home.agent(second, settings=Settings(request={"timeoutMs": 2})) as h:
            await (await (await h.root()).submit("go", request_id="go")).wait()

    home.run(again())
    [one], [two] = first.requests, second.requests
    assert one == two
    assert (two.thinking, dict(two.options)) == ("low", {"timeoutMs": 1})


def test_two_calls_with_one_id_are_two_calls(memory: Home) -> None:
    async def main() -> None:
        model = Scripted(CallTools(call("look", id="x", at="a"), call("look", id="x", at="b")), Say("ok"))
        async with memory.agent(model, tools=[look]) as h:
            assert (await ask(h)).text == "ok"
            context = (await (await h.root()).context()).messages
            assert [c.id for m in context if role_of(m) == "assistant" for c in calls_of(m)] == ["x", "x-2"]
            assert [text_of(m) for m in context if role_of(m) == "toolResult"] == ["a is there", "b is there"]
            await sound(h)

    memory.run(main())


# --- Classifying, alone -----------------------------------------------------------------------------------------------


def message(stop: str, **more: Json) -> Message:
    found = freeze({"role": "assistant", "content": [], "stopReason": stop, **more})
    assert not isinstance(found, str | int | float | None)
    return found  # type: ignore[return-value]


def test_g2_every_kind_of_answer_leads_to_one_thing() -> None:
    overflow = message("error", errorMessage="400 prompt is too long")
    busy = message("error", errorMessage="503 busy")
    called = message("toolUse", content=[{"type": "toolCall", "id": "a", "name": "b", "arguments": {}}])
    deferred: Message = {**message("deferred"), "deferred": MappingProxyType({"x": 1})}
    cases: list[tuple[Message, type[object]]] = [
        (message("stop"), Answers), (message("length"), Answers), (message("toolUse"), Answers), (called, Calls),
        (deferred, Defers), (message("deferred"), GivesUp), (overflow, Overflows),
        (busy, TryAgain), (message("error"), GivesUp), (message("aborted"), GivesUp), (message("banana"), GivesUp),
    ]  # fmt: skip
    for each, kind in cases:
        assert isinstance(classify(each, attempt=1, retry=Retry(), may_compact=True), kind), each
    assert isinstance(classify(overflow, attempt=1, retry=Retry(), may_compact=False), GivesUp)
    assert isinstance(classify(busy, attempt=4, retry=Retry(), may_compact=True), GivesUp)
    assert isinstance(classify(busy, attempt=1, retry=Retry(retries=0), may_compact=True), GivesUp)
