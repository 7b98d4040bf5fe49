"""S2, S3, S4: what admission and boundaries do, row by row; modes, resets, stale heads, withdrawals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from pidurable_nb import AgentChange, Answered, Extension, Output, Settings, Unanswered, Written, tool
from pidurable_nb.agent.conversation import Conversation
from pidurable_nb.agent.extending.hooking import HookApi, Hooks
from pidurable_nb.agent.inbox.admission import WriteDraft
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.submission import Submission
from pidurable_nb.errors import ConversationBusy, StorageRequestError
from pidurable_nb.ids import EntryId, Json, JsonObject
from pidurable_nb.models import Attempts, Break, CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.records import transcript as stored
from pidurable_nb.records.message import Message, role_of, text_of
from pidurable_nb.session.changes import Changes
from tests.agent.conftest import inbox_of, live_of, sound, submissions_of

if TYPE_CHECKING:
    from tests.agent.conftest import Home

SECOND = timedelta(seconds=1)


@tool(replay="safe")
async def nap(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return f"slept {seconds}"


@tool(replay="safe")
async def finish(text: str | None = None) -> Output:
    """End the run, with a handoff or without."""
    return Output(content="over", terminate=True, handoff=text)


def echo(*, delay: timedelta = SECOND) -> Scripted:
    """Answers `heard: …` a second after it was asked; takes a nap first where it is told `nap`, two for `nap nap`."""

    def answer(request: ModelRequest) -> CallTools | Say:
        last = request.messages[-1]
        said = text_of(last)
        if role_of(last) == "user" and said.startswith("nap"):
            return CallTools(*(call("nap", seconds=10.0) for _ in said.split()))
        users = [text_of(m) for m in request.messages if role_of(m) == "user"]
        return Say(f"heard: {' + '.join(users[-2:])}", delay=delay)

    return Scripted.by(answer)


async def texts(where: Conversation) -> list[str]:
    """The transcript as words: who said what."""
    found: list[str] = []
    for entry in (await where.entries(limit=1000, order="ascending")).items:
        message = (entry.model or ({},))[0]
        if entry.kind != "pi.system":
            found.append(f"{entry.kind.removeprefix('pi.')}: {text_of(message)}".rstrip(": "))
    return found


def answered(found: object) -> str:
    assert isinstance(found, Answered), found
    return found.text


async def summary(where: Conversation, head: EntryId | None, text: str = "the summary") -> Submission[Written]:
    """What a compaction that is not waited for asks for."""
    model: JsonObject = {"role": "user", "content": text, "timestamp": 0}
    return await where._write(WriteDraft(kind="app.summary", model=(model,), head=head), None)


# --- Admission, row by row --------------------------------------------------------------------------------------------


def test_s2_an_input_to_an_idle_conversation_is_placed_with_its_run_in_one_commit(home: Home) -> None:
    async def main() -> None:
        async with home.agent(echo()) as h:
            root = await h.root()
            seen: list[Changes] = []
            h.engine.session.subscribe(seen.append)
            asked = await root.submit("hello")
            admission = seen[0]
            [task] = admission.tasks.values()
            [change] = admission.submissions.values()
            [entry] = admission.entries
            assert (task.after.kind, task.after.status, task.after.phase) == ("pi.generation", "running", "prepare")
            assert change.after.state == stored.Placed(entry=entry.id)
            assert (entry.kind, text_of((entry.model or ({},))[0])) == ("pi.user", "hello")
            [document] = admission.documents
            assert document.value == {"run": {"taskId": task.after.id, "inputs": [asked.id]}}
            assert answered(await asked.wait()) == "heard: hello"
            await h.wait_idle()
            assert await live_of(root) == {}
            await sound(h)

    home.run(main())


def test_s2_s3_a_write_to_an_idle_conversation_is_done_at_once_and_starts_nothing(home: Home) -> None:
    async def main() -> None:
        async with home.agent(echo()) as h:
            root = await h.root()
            written = await root.write("app.note", text="a note")
            assert isinstance(await written.wait(), Written)
            assert await h.tasks() == ()
            assert await live_of(root) == {}

    home.run(main())


def test_s2_s3_what_comes_while_a_run_is_active_is_queued_and_written_to_the_inbox_only(home: Home) -> None:
    async def main() -> None:
        async with home.agent(echo()) as h:
            root = await h.root()
            first = await root.submit("one")
            queued: Sequence[Submission[Answered] | Submission[Written]] = [
                await root.submit("two"),
                await root.submit("three", when_busy="steer"),
                await root.write("app.note", data=4),
            ]
            assert [await each.status() for each in queued] == ["queued"] * 3
            assert await inbox_of(root) == [
                {"id": queued[0].id, "mode": "followUp", "content": "two"},
                {"id": queued[1].id, "mode": "steer", "content": "three"},
                {"id": queued[2].id, "mode": "write", "entry": {"kind": "app.note", "data": 4}},
            ]
            assert await texts(root) == ["user: one"]
            assert answered(await first.wait()) == "heard: one"
            await h.wait_idle()
            assert await texts(root) == ["user: one", "assistant: heard: one", "app.note", "user: two", "user: three",
                                         "assistant: heard: two + three"]  # fmt: skip
            assert await inbox_of(root) == []
            await sound(h)

    home.run(main())


def test_s3_reject_stores_nothing_while_a_run_is_active_and_admits_when_none_is(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(echo()) as h:
            root = await h.root()
            first = await root.submit("one", request_id="a")
            with pytest.raises(ConversationBusy):
                await root.submit("two", when_busy="reject")
            again = await root.submit("one", when_busy="reject", request_id="a")
            assert (again.id, again.match) == (first.id, "same")
            assert len(await submissions_of(h)) == 1
            await h.wait_idle()
            assert answered(await (await root.submit("two", when_busy="reject")).wait()) == "heard: one + two"

    memory.run(main())


def test_s2_an_application_s_input_is_placed_under_its_own_kind_with_its_data_whenever_it_is_placed(
    home: Home,
) -> None:
    async def main() -> None:
        async with home.agent(echo()) as h:
            root = await h.root()
            data: Json = {"from": "timer"}
            first = await root.submit("tick", kind="app.tick", data=data)
            second = await root.submit("tock", kind="app.tock")
            await h.wait_idle()
            answered(await first.wait())
            answered(await second.wait())
            page = await root.entries(order="ascending")
            placed = [entry for entry in page.items if entry.kind.startswith("app.")]
            assert [(entry.kind, text_of((entry.model or ({},))[0])) for entry in placed] == [
                ("app.tick", "tick"), ("app.tock", "tock"),
            ]  # fmt: skip
            assert placed[0].data == data
            with pytest.raises(StorageRequestError):
                await root.submit("no", kind="pi.user")
            await sound(h)

    home.run(main())


def test_s2_blocks_are_stored_as_they_were_said_now_and_later(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(echo()) as h:
            root = await h.root()
            blocks: list[JsonObject] = [
                {"type": "text", "text": "look"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            ]  # fmt: skip
            for _ in range(2):
                await root.submit(blocks)
            await h.wait_idle()
            page = await root.entries(order="ascending")
            said = [list((e.model or ({},))[0]["content"]) for e in page.items if e.kind == "pi.user"]  # type: ignore[arg-type]
            assert said == [blocks, blocks]

    memory.run(main())


# --- Boundaries -------------------------------------------------------------------------------------------------------


MODES = ["one_at_a_time", "all"]


@pytest.mark.parametrize("follow_up", MODES)
@pytest.mark.parametrize("steering", MODES)
def test_s4_a_boundary_places_writes_first_then_inputs_by_their_modes_each_in_id_order(
    memory: Home, steering: str, follow_up: str
) -> None:
    async def main() -> None:
        settings = Settings(steering_mode=steering, follow_up_mode=follow_up)  # type: ignore[arg-type]
        async with memory.agent(echo(), tools=[nap], settings=settings) as h:
            root = await h.root()
            await root.submit("nap")
            await asyncio.sleep(1)  # the tool runs
            for n in (1, 2):
                await root.submit(f"f{n}")
                await root.write("app.note", text=f"w{n}")
                await root.submit(f"s{n}", when_busy="steer")
            await h.wait_idle()
            found = await texts(root)
            assert found[:3] == ["user: nap", "assistant", "tool-result: slept 10.0"]
            behind_tools = found[3 : found.index(next(t for t in found if "heard" in t))]
            steers = ["user: s1", "user: s2"][: 2 if steering == "all" else 1]
            assert behind_tools == ["app.note: w1", "app.note: w2", *steers]
            first_answer = 3 + len(behind_tools)
            rest = found[first_answer + 1 :]
            left = [*(["user: s2"] if steering != "all" else [])]
            follows = ["user: f1", "user: f2"][: 2 if follow_up == "all" else 1]
            together = sorted((*left, *follows), key=["user: f1", "user: s1", "user: f2", "user: s2"].index)
            assert rest[: len(together)] == together
            assert [text for text in found if text == "user: f2"] == ["user: f2"]
            for record in await submissions_of(h):
                assert record.status == "done"
            await sound(h)

    memory.run(main())


def test_s4_a_steer_joins_the_run_after_the_tool_round_and_both_inputs_get_its_answer(home: Home) -> None:
    async def main() -> None:
        async with home.agent(echo(), tools=[nap]) as h:
            root = await h.root()
            asked = await root.submit("nap")
            await asyncio.sleep(1)
            steered = await root.submit("faster", when_busy="steer")
            later = await root.submit("then this")
            await asyncio.sleep(9.5)
            run = (await live_of(root))["run"]
            assert isinstance(run, dict)
            assert run["inputs"] == [asked.id, steered.id]
            first, second = await asked.wait(), await steered.wait()
            assert isinstance(first, Answered)
            assert isinstance(second, Answered)
            assert first.answer == second.answer
            assert (first.text, first.entry != second.entry) == ("heard: nap + faster", True)
            assert answered(await later.wait()) == "heard: faster + then this"
            await sound(h)

    home.run(main())


def test_s4_a_reset_behind_a_tool_round_ends_the_run_and_acts_as_final(home: Home) -> None:
    async def main() -> None:
        async with home.agent(echo(), tools=[nap]) as h:
            root = await h.root()
            asked = await root.submit("nap")
            await asyncio.sleep(1)
            steered = await root.submit("steer", when_busy="steer")
            follow = await root.submit("follow")
            reset = await root.reset("a new start")
            await asyncio.sleep(10)
            assert isinstance(await reset.wait(), Written)
            settled = await asked.wait()
            assert isinstance(settled, Unanswered)
            assert (settled.reason, settled.entry is not None) == ("reset", True)
            assert answered(await steered.wait()) == answered(await follow.wait()) == "heard: steer + follow"
            await h.wait_idle()
            assert await texts(root) == [
                "user: nap", "assistant", "tool-result: slept 10.0", "reset: a new start", "user: steer",
                "user: follow", "assistant: heard: steer + follow",
            ]  # fmt: skip
            context = await root.context()
            assert [text_of(m) for m in context.messages if role_of(m) != "system"] == [
                "a new start", "steer", "follow", "heard: steer + follow",
            ]  # fmt: skip
            await sound(h)

    home.run(main())


def test_s4_a_reset_behind_an_answer_follows_it_and_the_input_is_answered(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(echo()) as h:
            root = await h.root()
            asked = await root.submit("one")
            await root.reset()
            assert answered(await asked.wait()) == "heard: one"
            await h.wait_idle()
            assert await texts(root) == ["user: one", "assistant: heard: one", "reset"]
            assert (await root.context()).messages == ()
            assert answered(await (await root.submit("two")).wait()) == "heard: two"
            await sound(h)

    memory.run(main())


@pytest.mark.parametrize("handoff", ["go on there", None])
def test_s4_a_round_that_ends_the_run_answers_with_the_call_and_acts_as_final(
    memory: Home, handoff: str | None
) -> None:
    async def main() -> None:
        ending = call("finish", text=handoff) if handoff is not None else call("finish")

        def answer(request: ModelRequest) -> CallTools | Say:
            return CallTools(ending) if text_of(request.messages[-1]) == "end" else Say("ok")

        model = Scripted.by(answer)
        async with memory.agent(model, tools=[finish]) as h:
            root = await h.root()
            asked = await root.submit("end")
            follow = await root.submit("more")
            first = await asked.wait()
            assert isinstance(first, Answered)
            assert first.message["stopReason"] == "toolUse"
            assert answered(await follow.wait()) == "ok"
            await h.wait_idle()
            cut = [f"reset: {handoff}"] if handoff is not None else []
            assert await texts(root) == [
                "user: end",
                "assistant",
                "tool-result: over",
                *cut,
                "user: more",
                "assistant: ok",
            ]
            await sound(h)

    memory.run(main())


# --- Stale heads ------------------------------------------------------------------------------------------------------


def test_s4_a_queued_head_before_the_active_range_is_stale_and_one_at_or_behind_it_is_placed(home: Home) -> None:
    async def main() -> None:
        async with home.agent(echo()) as h:
            root = await h.root()
            for n in range(4):
                await (await root.submit(f"q{n}")).wait()
            ids = [entry.id for entry in (await root.entries(order="ascending")).items if entry.kind == "pi.user"]
            await root.submit("busy")
            middle = await summary(root, ids[2], "cuts at 2")
            older = await summary(root, ids[1], "cuts at 1")
            same = await summary(root, ids[2], "cuts at 2 again")
            newer = await summary(root, ids[3], "cuts at 3")
            await h.wait_idle()
            assert [await each.status() for each in (middle, older, same, newer)] == [
                "done",
                "unanswered",
                "done",
                "done",
            ]
            assert await older.wait() == Unanswered(reason="stale")
            context = await root.context()
            assert text_of(context.messages[0]) == "cuts at 3"
            late = await summary(root, ids[2], "too late, and idle")
            assert await late.wait() == Unanswered(reason="stale")
            await sound(h)

    home.run(main())


def test_s4_a_head_that_was_placed_earlier_in_the_same_boundary_counts(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(echo()) as h:
            root = await h.root()
            for n in range(2):
                await (await root.submit(f"q{n}")).wait()
            newest = (await root.entries(limit=1)).items[0].id
            await root.submit("busy")
            reset = await root.reset()
            behind = await summary(root, newest)
            again = await root.reset("twice")
            await h.wait_idle()
            assert isinstance(await reset.wait(), Written)
            assert await behind.wait() == Unanswered(reason="stale")
            assert isinstance(await again.wait(), Written)
            assert [text_of(m) for m in (await root.context()).messages] == ["twice"]
            await sound(h)

    memory.run(main())


def test_s4_v1_a_handoff_cuts_before_the_boundary_so_a_queued_summary_of_older_entries_is_stale(memory: Home) -> None:
    async def main() -> None:
        model = Scripted.by(
            lambda request: CallTools(call("nap", seconds=5.0), call("finish", text="over to you"))
            if text_of(request.messages[-1]) == "end" else Say("ok")
        )  # fmt: skip
        async with memory.agent(model, tools=[finish, nap]) as h:
            root = await h.root()
            await (await root.submit("first")).wait()
            newest = (await root.entries(limit=1)).items[0].id
            await root.submit("end")
            await asyncio.sleep(1)
            behind = await summary(root, newest)
            await h.wait_idle()
            assert await behind.wait() == Unanswered(reason="stale")
            assert [text_of(m) for m in (await root.context()).messages] == ["over to you"]
            await sound(h)

    memory.run(main())


# --- What a failed run leaves -----------------------------------------------------------------------------------------


def moody() -> Scripted:
    """Fails whenever the newest text says so."""
    return Scripted.by(
        lambda request: Break("401 unauthorized", delay=SECOND)
        if "fail" in text_of(request.messages[-1]) else Say(f"heard: {text_of(request.messages[-1])}", delay=SECOND)
    )  # fmt: skip


def test_s4_a_failed_run_leaves_the_inbox_and_the_next_submission_runs_what_waited_first(home: Home) -> None:
    async def main() -> None:
        async with home.agent(moody()) as h:
            root = await h.root()
            asked = await root.submit("fail")
            waits = await root.submit("waits")
            note = await root.write("app.note", text="a note")
            settled = await asked.wait()
            assert isinstance(settled, Unanswered)
            assert (settled.reason, settled.detail) == ("model_error", "401 unauthorized")
            await h.wait_idle()
            assert [await each.status() for each in (waits, note)] == ["queued", "queued"]
            assert len(await inbox_of(root)) == 2
            await sound(h)
            seen: list[Changes] = []
            h.engine.session.subscribe(seen.append)
            new = await root.submit("new")
            assert [change.after.status for _, change in sorted(seen[0].submissions.items())] == [
                "placed",
                "done",
                "queued",
            ]
            assert len(seen[0].tasks) == 1
            assert await new.status() == "queued"
            assert answered(await waits.wait()) == "heard: waits"
            assert answered(await new.wait()) == "heard: new"
            assert isinstance(await note.wait(), Written)
            assert [t for t in await texts(root) if not t.startswith("assistant")] == [
                "user: fail", "app.note: a note", "user: waits", "user: new",
            ]  # fmt: skip
            await h.wait_idle()
            await sound(h)

    home.run(main())


def test_s4_a_steer_to_an_idle_conversation_with_a_waiting_inbox_is_a_steer(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(moody()) as h:
            root = await h.root()
            await root.submit("fail")
            waits = await root.submit("waits")
            await h.wait_idle()
            steer = await root.submit("with it", when_busy="steer")
            assert [await each.status() for each in (waits, steer)] == ["placed", "placed"]
            assert answered(await waits.wait()) == answered(await steer.wait()) == "heard: with it"
            await h.wait_idle()
            await sound(h)

    memory.run(main())


def test_s4_a_write_to_an_idle_conversation_with_a_waiting_inbox_brings_the_run_of_what_waited(home: Home) -> None:
    async def main() -> None:
        async with home.agent(moody()) as h:
            root = await h.root()
            await root.submit("fail")
            waits = await root.submit("waits")
            await h.wait_idle()
            written = await root.write("app.note", text="now")
            assert isinstance(await written.wait(), Written)
            assert answered(await waits.wait()) == "heard: waits"
            assert (await texts(root))[2:] == ["app.note: now", "user: waits", "assistant: heard: waits"]
            await h.wait_idle()
            await sound(h)

    home.run(main())


@pytest.mark.parametrize("how", ["fails", "is aborted by its task", "faults"])
def test_s4_after_failed_run_withdraw_gives_up_the_queue_and_keeps_writes(memory: Home, how: str) -> None:
    async def broken(messages: tuple[Message, ...], api: HookApi) -> None:
        await asyncio.sleep(1)
        raise asyncio.CancelledError  # no Exception: the task cannot go on

    async def main() -> None:
        hooks = Extension("broken", hooks=Hooks(before_request=broken)) if how == "faults" else Extension("calm")
        settings = Settings(after_failed_run="withdraw")
        async with memory.agent(moody(), extensions=[hooks], settings=settings) as h:
            root = await h.root()
            asked = await root.submit("fail" if how == "fails" else "hello")
            waits = [await root.submit(f"waits {n}", when_busy="steer" if n else "follow_up") for n in range(2)]
            note = await root.write("app.note", text="a note")
            if how == "is aborted by its task":
                [task] = await h.tasks(live=True)
                await h.abort(task.id)
            reasons = {"fails": "model_error", "is aborted by its task": "aborted", "faults": "faulted"}
            settled = await asked.wait()
            assert isinstance(settled, Unanswered)
            assert settled.reason == reasons[how]
            assert [await each.wait() for each in waits] == [Unanswered(reason="run_failed")] * 2
            await h.wait_idle()
            assert await note.status() == "queued"
            await sound(h)

    memory.run(main())


# --- Withdrawing ------------------------------------------------------------------------------------------------------


def test_s2_a_queued_submission_is_withdrawn_once_and_a_placed_or_settled_one_is_not(home: Home) -> None:
    async def main() -> None:
        async with home.agent(echo()) as h:
            root = await h.root()
            placed = await root.submit("one")
            queued: list[Submission[Answered] | Submission[Written]] = [
                await root.submit("two"), await root.submit("three", when_busy="steer"), await root.write("app.note"),
            ]  # fmt: skip
            assert await placed.abort() is False
            assert [await each.abort() for each in queued] == [True] * 3
            assert [await each.abort() for each in queued] == [False] * 3
            assert await inbox_of(root) == []
            answered(await placed.wait())
            assert await placed.abort() is False
            assert await placed.status() == "done"
            assert [await each.wait() for each in queued] == [Unanswered(reason="aborted")] * 3
            await h.wait_idle()
            await sound(h)

    home.run(main())


def test_s4_o2_aborting_a_conversation_withdraws_its_inputs_and_keeps_its_writes(home: Home) -> None:
    async def main() -> None:
        async with home.agent(echo(), tools=[nap]) as h:
            root = await h.root()
            asked = await root.submit("nap")
            await asyncio.sleep(1)
            queued = [await root.submit("two"), await root.submit("three", when_busy="steer")]
            note = await root.write("app.note", text="kept")
            await root.abort()
            settled = await asked.wait()
            assert isinstance(settled, Unanswered)
            assert settled.reason == "aborted"
            assert [await each.wait() for each in queued] == [Unanswered(reason="aborted")] * 2
            assert await note.status() == "queued"
            assert [item["id"] for item in await inbox_of(root)] == [note.id]
            await sound(h)
            assert answered(await (await root.submit("four")).wait()) == "heard: kept + four"
            assert isinstance(await note.wait(), Written)

    home.run(main())


def test_s4_aborting_a_conversation_withdraws_its_whole_queue_however_long_it_is(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(echo(), tools=[nap]) as h:
            root = await h.root()
            await root.submit("nap")
            queued = [await root.submit(f"{n}") for n in range(210)]  # more than one page
            await root.abort()
            assert {await each.status() for each in queued} == {"unanswered"}
            assert await inbox_of(root) == []
            await sound(h)

    memory.run(main())


def test_s5_what_waits_and_what_is_settled_is_the_same_behind_a_restart(home: Home) -> None:
    async def main() -> list[stored.SubmissionRecord]:
        async with home.agent(moody()) as h:
            root = await h.root()
            await root.submit("good")
            await h.wait_idle()
            await root.submit("fail")
            await root.submit("waits")
            await root.write("app.note")
            await h.wait_idle()
            return await submissions_of(h)

    before = home.run(main())
    assert [record.status for record in before] == ["done", "unanswered", "queued", "queued"]

    async def again() -> None:
        async with home.agent(moody()) as h:
            assert await submissions_of(h) == before
            await sound(h)
            done = await (await h.submission(before[0].id)).wait()
            assert answered(done) == "heard: good"
            assert (await h.submission(before[1].id)).id == before[1].id

    home.run(again())


def test_s4_a_fork_and_a_new_conversation_begin_with_an_empty_inbox(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(echo(), tools=[nap]) as h:
            root = await h.root()
            asked = await root.submit("nap")
            await root.submit("waits")
            found = (await asked.record()).state
            assert isinstance(found, stored.Placed)
            child = await root.fork(at=found.entry)
            assert (await inbox_of(child), await live_of(child)) == ([], {})
            assert answered(await (await child.submit("there")).wait()) == "heard: nap + there"
            other = await h.create(agent=AgentChange(instructions="x"))
            assert answered(await (await other.submit("elsewhere")).wait()) == "heard: elsewhere"
            await h.wait_idle()
            await sound(h)

    memory.run(main())


def test_s3_attempts_that_fail_and_are_repeated_keep_the_conversation_busy(memory: Home) -> None:
    async def main() -> None:
        model = Scripted(Attempts(Break("503 overloaded"), Say("at last")), Say("second"))
        async with memory.agent(model) as h:
            root = await h.root()
            asked = await root.submit("one")
            await asyncio.sleep(1)
            assert live.busy(await live_of(root))
            second = await root.submit("two")
            assert await second.status() == "queued"
            assert answered(await asked.wait()) == "at last"
            assert answered(await second.wait()) == "second"

    memory.run(main())
