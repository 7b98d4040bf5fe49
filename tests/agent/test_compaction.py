"""K1: compactions by hand, beside a run, before a request; where their summaries go; what dies in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from pidurable_nb import Answered, Extension, Harness, Settings, TaskRef, Unanswered, Written
from pidurable_nb.agent.conversation import Conversation
from pidurable_nb.agent.extending.hooking import Compacting, Decline, HookApi, Hooks, Summary
from pidurable_nb.agent.extending.settings import Compaction, Retry
from pidurable_nb.ids import EntryId, Json, JsonObject
from pidurable_nb.models import Answer, Attempts, Break, CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.records import task as stored
from pidurable_nb.records.message import role_of, text_of
from pidurable_nb.records.transcript import EntryRecord
from tests.agent.conftest import Lives, inbox_of, live_of, sound, submissions_of

if TYPE_CHECKING:
    from tests.agent.conftest import Home

SECOND = timedelta(seconds=1)
LONG = "word " * 80  # 100 tokens
BY_HAND = Settings(compaction=Compaction(keep_recent=150, reserve=1000, background=0))


def is_summary(request: ModelRequest) -> bool:
    return "You write checkpoints" in str(request.messages[0])


def teacher(summary: Answer = "what was said", *, context_window: int = 0) -> Scripted:
    """Answers at length, a second after it was asked; gives this summary when it is asked for one."""

    def answer(request: ModelRequest) -> Answer:
        return summary if is_summary(request) else Say(LONG, delay=SECOND)

    return Scripted.by(answer, context_window=context_window)


async def talk(h: Harness, turns: int, text: str = LONG) -> list[EntryId]:
    """So many turns; the entries of their inputs."""
    root = await h.root()
    found: list[EntryId] = []
    for _ in range(turns):
        settled = await (await root.submit(text)).wait()
        assert isinstance(settled, Answered), settled
        found.append(settled.entry)
    return found


async def compactions(where: Conversation) -> list[EntryRecord]:
    page = await where.entries(limit=1000, order="ascending")
    return [entry for entry in page.items if entry.kind == "pi.compaction"]


async def result(h: Harness, ref: TaskRef[Json]) -> JsonObject:
    found = await h.wait(ref)
    assert not isinstance(found, str | int | float | None)
    return found  # type: ignore[return-value]


async def nothing_lives(h: Harness) -> None:
    """Return when not even background work lives."""
    async with h.moving() as moved:
        while await h.tasks(live=True):
            await moved()


def wrapped(text: str) -> str:
    return (
        "The conversation history before this point was compacted into the following summary:\n\n"
        f"<summary>\n{text}\n</summary>"
    )


# --- By hand ----------------------------------------------------------------------------------------------------------


def test_k1_a_compaction_by_hand_puts_a_summary_before_the_first_kept_entry_and_deletes_nothing(home: Home) -> None:
    async def main() -> None:
        model = teacher()
        async with home.agent(model, settings=BY_HAND) as h:
            root = await h.root()
            asked = await talk(h, 3)
            before = (await root.entries(limit=1000)).items
            spent = (await root.usage()).models["scripted/teacher"]["input"]
            ref = await root.compact("mind the names")
            found = await result(h, ref)
            written = await (await h.submission(int(str(found["submissionId"])))).wait()
            assert isinstance(written, Written)
            [entry] = await compactions(root)
            assert (entry.id, entry.head, entry.data) == (written.entry, asked[2], {"reason": "manual"})
            assert (entry.model or ({},))[0]["content"] == [{"type": "text", "text": wrapped("what was said")}]
            record = await (await h.submission(int(str(found["submissionId"])))).record()
            assert record.request_id == f"compaction:{ref.id}"
            context = await root.context()
            assert [text_of(m)[:20] for m in context.messages] == [wrapped("")[:20], LONG[:20], LONG[:20]]
            assert {e.id for e in before} < {e.id for e in (await root.entries(limit=1000)).items}
            assert await live_of(root) == {}
            request = model.requests[-1]
            assert request.max_tokens == 800
            assert request.options["cacheRetention"] == "none"
            said = text_of(request.messages[1])
            assert said.startswith(f"<conversation>\n[User]: {LONG}")
            assert said.endswith("Additional focus: mind the names")
            assert said.count("[User]: ") == said.count("[Assistant]: ") == 2
            after = (await root.usage()).models["scripted/teacher"]["input"]
            assert isinstance(after, int)
            assert isinstance(spent, int)
            assert after > spent
            await talk(h, 1)
            [system] = [m for m in model.requests[-1].messages if role_of(m) == "system"]
            assert system["sections"] == {}
            await sound(h)

    home.run(main())


def test_k1_an_earlier_summary_is_summarized_again_with_what_came_behind_it(memory: Home) -> None:
    async def main() -> None:
        model = teacher()
        async with memory.agent(model, settings=BY_HAND) as h:
            root = await h.root()
            for _ in range(2):
                await talk(h, 3)
                await result(h, await root.compact())
            said = text_of(model.requests[-1].messages[1])
            assert said.count("what was said") == 1
            assert len(await compactions(root)) == 2
            assert len((await root.context()).messages) < 6

    memory.run(main())


def test_k1_with_nothing_to_compact_it_ends_with_nothing_and_asks_nobody(memory: Home) -> None:
    async def main() -> None:
        model = teacher()
        async with memory.agent(model, settings=BY_HAND) as h:
            root = await h.root()
            assert await result(h, await root.compact()) == {}
            await talk(h, 1, "short")
            assert await result(h, await root.compact()) == {}
            assert await compactions(root) == []
            assert not any(map(is_summary, model.requests))
            await sound(h)

    memory.run(main())


def test_k1_while_it_summarizes_the_conversation_works_on_and_the_summary_waits_for_a_boundary(home: Home) -> None:
    async def main() -> None:
        async with home.agent(teacher(Say("slow", delay=5 * SECOND)), settings=BY_HAND) as h:
            root = await h.root()
            await talk(h, 3)
            ref = await root.compact()
            assert (await live_of(root))["compactions"] == [
                {"taskId": ref.id, "reason": "manual", "blocking": False, "attempt": 1},
            ]
            await asyncio.sleep(4.5)
            asked = await root.submit(LONG)
            await asyncio.sleep(0.8)  # the summary is there, the answer is not
            found = await result(h, ref)
            summary = await h.submission(int(str(found["submissionId"])))
            assert await summary.status() == "queued"
            assert [item["mode"] for item in await inbox_of(root)] == ["write"]
            assert isinstance(await asked.wait(), Answered)
            assert isinstance(await summary.wait(), Written)
            kinds = [entry.kind for entry in (await root.entries(limit=1000, order="ascending")).items]
            assert kinds[-3:] == ["pi.user", "pi.assistant", "pi.compaction"]
            await sound(h)

    home.run(main())


def test_s4_k1_a_summary_that_cuts_before_what_a_newer_one_cut_is_stale(memory: Home) -> None:
    async def main() -> None:
        slow = [True]
        model = Scripted.by(
            lambda request: (Say("first", delay=60 * SECOND) if slow.pop() else Say("second")) if is_summary(request)
            else Say(LONG, delay=SECOND)
        )  # fmt: skip
        async with memory.agent(model, settings=BY_HAND) as h:
            root = await h.root()
            await talk(h, 3)
            older = await root.compact()
            await asyncio.sleep(1)
            slow.append(False)
            await talk(h, 3)
            newer = await root.compact()
            found = await result(h, newer)
            assert isinstance(await (await h.submission(int(str(found["submissionId"])))).wait(), Written)
            late = await result(h, older)
            assert await (await h.submission(int(str(late["submissionId"])))).wait() == Unanswered(reason="stale")
            assert len(await compactions(root)) == 1
            assert len([record for record in await submissions_of(h) if record.type == "write"]) == 2
            await sound(h)

    memory.run(main())


def test_s4_k1_a_summary_in_an_idle_conversation_runs_what_waits_there_behind_it(memory: Home) -> None:
    async def main() -> None:
        def answer(request: ModelRequest) -> Answer:
            if is_summary(request):
                return Say("so far")
            return Break("401 no", delay=SECOND) if text_of(request.messages[-1]) == "fail" else Say(LONG)

        async with memory.agent(Scripted.by(answer), settings=BY_HAND) as h:
            root = await h.root()
            await talk(h, 3)
            await root.submit("fail")
            waits = await root.submit("waits")
            await h.wait_idle()
            assert await waits.status() == "queued"
            found = await result(h, await root.compact())
            assert isinstance(await (await h.submission(int(str(found["submissionId"])))).wait(), Written)
            assert isinstance(await waits.wait(), Answered)
            kinds = [entry.kind for entry in (await root.entries(limit=1000, order="ascending")).items]
            assert kinds[-4:] == ["pi.compaction", "pi.user", "pi.system", "pi.assistant"]
            await h.wait_idle()
            await sound(h)

    memory.run(main())


@pytest.mark.parametrize("decision", ["declines", "brings the summary", "raises"])
def test_e4_k1_before_compact_decides_before_a_model_is_asked(memory: Home, decision: str) -> None:
    seen: list[Compacting] = []

    async def decide(compacting: Compacting, api: HookApi) -> Decline | Summary:
        seen.append(compacting)
        if decision == "raises":
            raise RuntimeError("not now")
        return Decline() if decision == "declines" else Summary("by hand")

    async def main() -> None:
        model = teacher()
        extension = Extension("decides", hooks=Hooks(before_compact=decide))
        async with memory.agent(model, extensions=[extension], settings=BY_HAND) as h:
            root = await h.root()
            asked = await talk(h, 3)
            found = await result(h, await root.compact("focus"))
            [compacting] = seen
            assert (compacting.reason, compacting.instructions, compacting.first_kept) == ("manual", "focus", asked[2])
            assert [entry.kind for entry in compacting.entries] == ["pi.user", "pi.assistant"] * 2
            assert len(compacting.messages) == 4
            placed = [text_of((entry.model or ({},))[0]) for entry in await compactions(root)]
            expected = {"declines": [], "brings the summary": ["by hand"], "raises": ["what was said"]}[decision]
            assert placed == [wrapped(text) for text in expected]
            assert (found == {}) == (decision == "declines")
            assert any(map(is_summary, model.requests)) == (decision == "raises")
            await sound(h)

    memory.run(main())
    assert len(memory.reports) == (1 if decision == "raises" else 0)


# --- Without a summary ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("summary", "error"),
    [
        (Say("cut", stop="length"), "the summary was cut off at its length"),
        (Say("  "), "the model gave no summary"),
        (CallTools(call("look")), "the model gave no summary"),
        (Break("401 unauthorized"), "401 unauthorized"),
        (Break("400 prompt is too long"), "400 prompt is too long"),
    ],
)
def test_k1_what_is_no_summary_fails_the_compaction_is_shown_and_costs(
    memory: Home, summary: Answer, error: str
) -> None:
    async def main() -> None:
        async with memory.agent(teacher(summary), settings=BY_HAND) as h:
            root = await h.root()
            await talk(h, 3)
            spent = (await root.usage()).models["scripted/teacher"]["totalTokens"]
            ref = await root.compact()
            await h.wait_idle()
            task = await h.task(ref)
            failure = stored.TaskError(message=error, detail={"reason": "model_error"})
            assert task.outcome == stored.Failed(error=failure)
            state = await live_of(root)
            assert state == {"compactionFailure": {"taskId": ref.id, "reason": "manual", "error": error}}
            assert await compactions(root) == []
            if not isinstance(summary, Break):
                assert (await root.usage()).models["scripted/teacher"]["totalTokens"] != spent
            assert isinstance(await (await root.submit("on")).wait(), Answered)
            again = await root.compact()
            assert "compactionFailure" not in await live_of(root)
            await h.wait_idle()
            assert again.id != ref.id

    memory.run(main())


def test_k1_s2_a_compaction_without_a_model_fails_and_the_conversation_stays(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(settings=BY_HAND) as h:
            root = await h.root()
            ref = await root.compact()
            await h.wait_idle()
            task = await h.task(ref)
            assert isinstance(task.outcome, stored.Failed)
            assert task.outcome.error.detail == {"reason": "no_model"}

    memory.run(main())


def test_g2_k1_a_summary_that_fails_for_a_while_is_asked_for_again_and_every_attempt_costs(home: Home) -> None:
    async def main() -> None:
        attempts = Attempts(Break("503 busy", after="x" * 40), Break("503 busy", after="x" * 40), Say("at last"))
        model = teacher(attempts)
        async with home.agent(model, settings=BY_HAND) as h:
            root = await h.root()
            await talk(h, 3)
            before = (await root.usage()).models["scripted/teacher"]["output"]
            now = home.clock.now_ms()
            ref = await root.compact()
            await asyncio.sleep(3)
            assert (await live_of(root))["compactions"] == [
                {"taskId": ref.id, "reason": "manual", "blocking": False, "attempt": 2,
                 "retry": {"at": now + 6000, "error": "503 busy"}},
            ]  # fmt: skip
            task = await h.task(ref)
            assert (task.phase, task.status) == ("retry", "sleeping")
            await result(h, ref)
            after = (await root.usage()).models["scripted/teacher"]["output"]
            assert isinstance(before, int)
            assert after == before + 10 + 10 + 2
            requests = [request for request in model.requests if is_summary(request)]
            assert len({text_of(request.messages[1]) for request in requests}) == 1
            await sound(h)

    home.run(main())


def test_g2_k1_after_the_last_retry_it_fails(memory: Home) -> None:
    async def main() -> None:
        settings = replace(BY_HAND, retry=Retry(retries=1))
        async with memory.agent(teacher(Break("503 busy")), settings=settings) as h:
            root = await h.root()
            await talk(h, 3)
            ref = await root.compact()
            await h.wait_idle()
            assert isinstance((await h.task(ref)).outcome, stored.Failed)

    memory.run(main())


# --- By themselves ----------------------------------------------------------------------------------------------------


WINDOW = Settings(compaction=Compaction(keep_recent=150, reserve=100, background=0))


def test_k1_above_the_threshold_a_generation_waits_for_its_compaction_and_then_asks(home: Home) -> None:
    async def main() -> None:
        model = teacher(Say("shorter", delay=SECOND), context_window=750)
        async with home.agent(model, settings=WINDOW) as h:
            root = await h.root()
            await talk(h, 3)
            assert await compactions(root) == []
            asked = await root.submit(LONG)
            await asyncio.sleep(0.5)
            state = await live_of(root)
            [compaction] = await h.tasks(kind="pi.compaction", live=True)
            [generation] = await h.tasks(kind="pi.generation", live=True)
            assert state["compactions"] == [
                {"taskId": compaction.id, "reason": "threshold", "blocking": True, "attempt": 1},
            ]
            assert (compaction.owner, compaction.background) == (generation.id, False)
            assert isinstance(generation.state, stored.Waiting)
            assert generation.checkpoint == {
                "phase": "prepare", "attempt": 1, "compacted": compaction.id, "threshold": True
            }  # fmt: skip
            assert isinstance(await asked.wait(), Answered)
            [entry] = await compactions(root)
            ended = await h.task(compaction.id)
            assert ended.outcome == stored.Completed(result={"entryId": entry.id})
            assert (entry.by_task, entry.data) == (compaction.id, {"reason": "threshold"})
            assert [record.type for record in await submissions_of(h)] == ["input"] * 4
            assert text_of(model.requests[-1].messages[1]).startswith(wrapped("shorter")) or text_of(
                model.requests[-1].messages[0]
            ).startswith(wrapped("shorter"))
            await sound(h)

    home.run(main())


@pytest.mark.parametrize("why", ["fails", "is declined", "is aborted"])
def test_k1_whatever_becomes_of_a_blocking_compaction_the_request_is_made(memory: Home, why: str) -> None:
    async def decide(compacting: Compacting, api: HookApi) -> Decline | None:
        return Decline() if why == "is declined" else None

    async def main() -> None:
        summary: Answer = Break("401 no") if why == "fails" else Say("x", delay=60 * SECOND)
        extension = Extension("decides", hooks=Hooks(before_compact=decide))
        async with memory.agent(teacher(summary, context_window=750), extensions=[extension], settings=WINDOW) as h:
            root = await h.root()
            await talk(h, 3)
            asked = await root.submit(LONG)
            await asyncio.sleep(0.5)
            if why == "is aborted":
                [compaction] = await h.tasks(kind="pi.compaction", live=True)
                await h.abort(compaction.id)
            assert isinstance(await asked.wait(), Answered)
            assert await compactions(root) == []
            assert len(await h.tasks(kind="pi.compaction")) == 1
            await sound(h)

    memory.run(main())


def test_o2_k1_aborting_a_conversation_ends_its_blocking_compaction_first(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(teacher(Say("x", delay=60 * SECOND), context_window=750), settings=WINDOW) as h:
            root = await h.root()
            await talk(h, 3)
            asked = await root.submit(LONG)
            await asyncio.sleep(0.5)
            await root.abort()
            found = await asked.wait()
            assert isinstance(found, Unanswered)
            assert found.reason == "aborted"
            [compaction] = await h.tasks(kind="pi.compaction")
            assert compaction.outcome == stored.Aborted()
            assert await live_of(root) == {}
            await sound(h)

    memory.run(main())


def test_k1_o3_below_the_threshold_a_compaction_runs_in_the_background_and_outlives_an_abort(home: Home) -> None:
    async def main() -> None:
        settings = Settings(compaction=Compaction(keep_recent=150, reserve=100, background=300))
        model = teacher(Say("in the background", delay=60 * SECOND), context_window=1000)
        async with home.agent(model, settings=settings) as h:
            root = await h.root()
            await talk(h, 3)
            assert await h.tasks(kind="pi.compaction") == ()
            await talk(h, 1)
            [compaction] = await h.tasks(kind="pi.compaction", live=True)
            assert (compaction.owner, compaction.background) == (None, True)
            await h.wait_idle()
            await root.wait_idle()  # background work does not keep it busy
            asked = await root.submit("more")
            await asyncio.sleep(0.1)
            assert len(await h.tasks(kind="pi.compaction")) == 1  # one at a time
            await root.abort()
            assert isinstance(await asked.wait(), Unanswered)
            assert [task.id for task in await h.tasks(live=True)] == [compaction.id]
            found = await result(h, TaskRef(compaction.id))
            assert isinstance(await (await h.submission(int(str(found["submissionId"])))).wait(), Written)
            [entry] = await compactions(root)
            assert entry.data == {"reason": "threshold"}
            await sound(h)

    home.run(main())


def test_o3_k1_aborting_a_conversation_with_its_background_ends_that_compaction_too(memory: Home) -> None:
    async def main() -> None:
        settings = Settings(compaction=Compaction(keep_recent=150, reserve=100, background=300))
        model = teacher(Say("in the background", delay=60 * SECOND), context_window=1000)
        async with memory.agent(model, settings=settings) as h:
            root = await h.root()
            await talk(h, 4)
            await root.abort(background=True)
            [compaction] = await h.tasks(kind="pi.compaction")
            assert compaction.outcome == stored.Aborted()
            assert await live_of(root) == {}
            await sound(h)

    memory.run(main())


def test_k1_nothing_compacts_by_itself_where_the_policy_is_off_or_the_window_unknown(memory: Home) -> None:
    async def main() -> None:
        off = replace(WINDOW, compaction=replace(WINDOW.compaction, enabled=False))
        settings = [off]
        known, unknown = teacher(context_window=100), teacher(context_window=0)
        async with memory.agent(known, settings=lambda: settings[0]) as h:
            await talk(h, 4)
            h.use(unknown)
            settings[0] = WINDOW
            await talk(h, 4)
            assert await h.tasks(kind="pi.compaction") == ()

    memory.run(main())


# --- Restarts ---------------------------------------------------------------------------------------------------------


def test_k1_g1_the_same_summary_is_asked_for_again_by_a_later_life(home: Home) -> None:
    first, second = teacher(Say("never", delay=600 * SECOND)), teacher("later")

    async def cut() -> None:
        h = await home.agent(first, settings=BY_HAND)
        root = await h.root()
        await talk(h, 3)
        await root.compact("focus")
        await asyncio.sleep(1)
        [task] = await h.tasks(live=True)
        assert task.phase == "summarize"
        await talk(h, 1)
        await h.aclose()

    home.run(cut())

    async def again() -> None:
        async with home.agent(second, settings=WINDOW) as h:
            root = await h.root()
            await nothing_lives(h)
            [entry] = await compactions(root)
            assert text_of((entry.model or ({},))[0]) == wrapped("later")
            one = next(request for request in first.requests if is_summary(request))
            [two] = second.requests
            assert two.messages[1]["content"] == one.messages[1]["content"]
            assert (two.max_tokens, two.key, two.options) == (one.max_tokens, one.key, one.options)
            await sound(h)

    home.run(again())


@pytest.mark.parametrize("kind", ["manual", "blocking", "background"])
def test_k1_wherever_the_process_dies_one_summary_is_placed(kind: str) -> None:
    policies = {
        "manual": (BY_HAND, 0),
        "blocking": (WINDOW, 750),
        "background": (Settings(compaction=Compaction(keep_recent=150, reserve=100, background=300)), 1000),
    }
    settings, window = policies[kind]

    async def story(h: Harness) -> None:
        root = await h.root()
        for n in range(4):
            if n == 3 and kind == "manual" and not await h.tasks(kind="pi.compaction"):
                await root.compact()
            found = await (await root.submit(LONG, request_id=f"{n}")).wait()
            assert isinstance(found, Answered)
        await nothing_lives(h)
        assert len(await compactions(root)) == 1
        assert len(await h.tasks(kind="pi.compaction")) == 1
        assert await live_of(root) == {}
        await sound(h)

    lives = Lives(story)
    summary = Attempts(Break("503 busy", delay=SECOND), Say("once", delay=SECOND))
    lives.models = [teacher(summary, context_window=window)]
    lives.settings = settings
    assert list(lives.sweep(deaths=1)).count(1) > 12


def test_t11_k1_a_compaction_that_faults_leaves_the_conversation_and_says_so(memory: Home) -> None:
    async def wrong(compacting: Compacting, api: HookApi) -> Decline:
        raise asyncio.CancelledError

    async def main() -> None:
        extension = Extension("wrong", hooks=Hooks(before_compact=wrong))
        async with memory.agent(teacher(), extensions=[extension], settings=BY_HAND) as h:
            root = await h.root()
            await talk(h, 3)
            ref = await root.compact()
            await h.wait_idle()
            assert isinstance((await h.task(ref)).outcome, stored.Faulted)
            state = await live_of(root)
            assert state == {"compactionFailure": {"taskId": ref.id, "reason": "manual", "error": "CancelledError"}}
            await talk(h, 1)

    memory.run(main())
    assert len(memory.reports) == 1
