"""A run from its input to its answer: its commits by name, and a death, a steer or an abort at every moment of it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, cast

import pytest

from pidurable_nb import AgentChange, Answered, Extension, Harness, Settings, Unanswered, Written, tool
from pidurable_nb.agent.conversation import Conversation
from pidurable_nb.agent.extending.extension import section
from pidurable_nb.agent.extending.hooking import HookApi, Hooks
from pidurable_nb.agent.submission import Submission
from pidurable_nb.clock import LoopClock
from pidurable_nb.errors import SessionFailed, StorageError
from pidurable_nb.ids import EntryId, JsonObject
from pidurable_nb.lab.dying import loop
from pidurable_nb.models import Answer, CallTools, Defer, ModelRequest, Say, Scripted, call
from pidurable_nb.records import task as stored
from pidurable_nb.records.message import Message, ToolCall, role_of, text_of, usage_of
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.storage import Storage
from tests.agent.conftest import Interrupter, Lives, sound, submissions_of
from tests.agent.test_failure import Hiccup, Mode

if TYPE_CHECKING:
    from tests.agent.conftest import Home

SECOND = timedelta(seconds=1)


@tool(replay="safe")
async def look(at: str) -> str:
    """Look."""
    await asyncio.sleep(1)
    return f"{at} is there"


@tool(replay="safe", mode="sequential")
async def step(at: str) -> str:
    """One after the other."""
    await asyncio.sleep(1)
    return f"stepped to {at}"


def teacher(*calls: str, tool: str = "look") -> Scripted:
    """Calls the tool for each, in one round, for the word `go`; answers what it heard since its last answer."""

    def answer(request: ModelRequest) -> Answer:
        last = request.messages[-1]
        if role_of(last) == "user" and text_of(last) == "go":
            return CallTools(*(call(tool, at=at) for at in calls), delay=SECOND)
        said: list[str] = []
        for message in reversed(request.messages):
            if role_of(message) == "assistant" and message["stopReason"] == "stop":
                break
            if role_of(message) == "user":
                said.insert(0, text_of(message))
        return Say(f"heard: {' + '.join(said)}", chunks=3, delay=SECOND)

    return Scripted.by(answer)


async def transcript(where: Conversation) -> list[str]:
    found: list[str] = []
    for entry in (await where.entries(limit=1000, order="ascending")).items:
        message = (entry.model or ({},))[0]
        if entry.kind != "pi.system":
            reason = message.get("stopReason")
            kind = entry.kind.removeprefix("pi.") + (f"({reason})" if reason not in (None, "stop") else "")
            found.append(f"{kind}: {text_of(message)}".rstrip(": "))
    return found


# --- The commits of a turn --------------------------------------------------------------------------------------------


def named(changes: Changes) -> str:
    """A commit, as what it does: the entries it writes, and what becomes of its tasks."""
    kinds = [entry.kind.removeprefix("pi.") for entry in changes.entries]
    tasks: list[str] = []
    for _, change in sorted(changes.tasks.items()):
        after = change.after
        state = (
            after.phase if isinstance(after.state, stored.Running) else f"{after.status} {after.phase or ''}".strip()
        )
        tasks.append(f"{after.kind.removeprefix('pi.')} {state}")
    return f"{' '.join(kinds) or '-'} | {', '.join(tasks)}"


def commits_of(
    home: Home, *, calls: Sequence[str] = ("a",), extension: Extension | None = None, waiting: bool = False
) -> list[str]:
    """The commits of a turn that calls, without those that show progress."""
    found: list[str] = []

    async def main() -> None:
        extensions = [extension] if extension is not None else []
        async with home.agent(teacher(*calls), tools=[look], extensions=extensions) as h:
            root = await h.root()
            h.engine.session.subscribe(lambda changes: found.append(named(changes)) if changes.tasks else None)
            asked = await root.submit("go")
            await asyncio.sleep(1.5)  # the tool runs
            if waiting:
                await root.submit("steered", when_busy="steer")
            assert isinstance(await asked.wait(), Answered)
            await sound(h)

    home.run(main())
    return found


FIVE = [
    "user | generation prepare",
    "system | generation request",
    "assistant | generation waiting tools, tool execute",
    "tool-result | generation terminal, tool terminal, generation request",
    "assistant | generation terminal",
]
"""Admission, request, answer with the tool's intent, result with the next request, answer."""
SPLIT_INTENT = [
    *FIVE[:2],
    "assistant | generation waiting tools, tool call",
    "- | tool execute",
    *FIVE[3:],
]
SPLIT_RESULT = [
    *FIVE[:3],
    "tool-result | tool terminal",
    "- | generation tools",
    "- | generation terminal, generation prepare",
    "- | generation request",
    *FIVE[4:],
]


def test_c2_t2_a_turn_with_one_tool_is_five_commits(memory: Home) -> None:
    assert commits_of(memory) == FIVE


def test_c2_a_turn_without_a_tool_is_three_commits(memory: Home) -> None:
    found: list[str] = []

    async def main() -> None:
        async with memory.agent(teacher()) as h:
            root = await h.root()
            h.engine.session.subscribe(lambda changes: found.append(named(changes)) if changes.tasks else None)
            await (await root.submit("hello")).wait()

    memory.run(main())
    assert found == ["user | generation prepare", "- | generation request", "assistant | generation terminal"]


async def _same(call: ToolCall, api: HookApi) -> None: ...
async def _seen(assistant: EntryId, results: tuple[EntryId, ...], api: HookApi) -> None: ...
async def _said(message: Message, api: HookApi) -> None: ...
async def _kept(messages: tuple[Message, ...], api: HookApi) -> None: ...
async def _result(call: ToolCall, result: object, api: HookApi) -> None: ...


def test_e1_a_before_tool_hook_is_asked_between_answer_and_intent_and_splits_them(memory: Home) -> None:
    assert commits_of(memory, extension=Extension("hooks", hooks=Hooks(before_tool=_same))) == SPLIT_INTENT


@pytest.mark.parametrize(
    "hooks",
    [Hooks(before_request=_kept), Hooks(after_response=_said), Hooks(on_yield=_said), Hooks(after_tool=_result)],
    ids=["before_request", "after_response", "on_yield", "after_tool"],
)
def test_c2_no_other_hook_of_a_turn_splits_a_commit(memory: Home, hooks: Hooks) -> None:
    assert commits_of(memory, extension=Extension("hooks", hooks=hooks)) == FIVE


def test_c2_an_after_tools_hook_is_asked_between_result_and_next_request_and_splits_them(memory: Home) -> None:
    assert commits_of(memory, extension=Extension("hooks", hooks=Hooks(after_tools=_seen))) == SPLIT_RESULT


def test_c2_a_waiting_inbox_splits_result_and_next_request(memory: Home) -> None:
    found = commits_of(memory, waiting=True)
    assert found == [*SPLIT_RESULT[:5], "user | generation terminal, generation prepare", *SPLIT_RESULT[6:]]


def test_c2_a_prompt_that_changes_splits_result_and_next_request(memory: Home) -> None:
    times: list[int] = []

    def clock(_: object) -> str:
        times.append(1)
        return f"rendered {len(times)} times"

    found = commits_of(memory, extension=Extension("clock", sections=[section("clock", clock)]))
    assert found == [*SPLIT_RESULT[:6], "system | generation request", SPLIT_RESULT[7]]


def test_c2_only_the_last_of_parallel_siblings_carries_the_next_request(memory: Home) -> None:
    found = commits_of(memory, calls=("a", "b"))
    assert found[2] == "assistant | generation waiting tools, tool execute, tool execute"
    assert (
        found[3:]
        in (
            ["tool-result | tool terminal", FIVE[3], FIVE[4]],  # one ends before the other
            [
                "tool-result | tool terminal",
                "tool-result | tool terminal",
                *SPLIT_RESULT[4:],
            ],  # both see each other live
        )
    )


# --- A death behind every commit --------------------------------------------------------------------------------------


def run_of(
    model: Callable[[], Scripted],
    *,
    expect: str,
    extension: Extension | None = None,
    settings: Settings | None = None,
    more: Callable[[Conversation], Awaitable[None]] | None = None,
) -> Lives:
    """Asks `go` in every life, and expects this answer, once."""

    async def story(h: Harness) -> None:
        root = await h.root()
        asked = await root.submit("go", request_id="go")
        if more is not None:
            await more(root)
        found = await asked.wait()
        await h.wait_idle()
        assert isinstance(found, Answered), found
        assert found.text == expect
        heard = [text for text in await transcript(root) if text == f"assistant: {expect}"]
        assert len(heard) == 1
        await sound(h)

    lives = Lives(story)
    lives.models, lives.tools = [model()], [look, step]
    lives.extensions = [extension] if extension is not None else []
    lives.settings = settings or Settings()
    return lives


SPLITTING = Extension(
    "splitting", hooks=Hooks(before_tool=_same, after_tools=_seen, before_request=_kept, on_yield=_said)
)


@pytest.mark.parametrize("hooks", [None, SPLITTING], ids=["fused", "split"])
@pytest.mark.parametrize(
    ("calls", "name"), [((), "look"), (("a",), "look"), (("a", "b"), "look"), (("a", "b"), "step")],
    ids=["no tool", "one tool", "parallel", "sequential"],
)  # fmt: skip
def test_s2_b03_t2_a_run_is_answered_once_whichever_commit_the_process_dies_behind(
    calls: tuple[str, ...], name: str, hooks: Extension | None
) -> None:
    lives = run_of(lambda: teacher(*calls, tool=name) if calls else Scripted.by(lambda _: Say("heard: go")),
                   expect="heard: go", extension=hooks)  # fmt: skip
    assert list(lives.sweep(deaths=1)).count(1) >= 4 + len(calls)


@pytest.mark.slow
@pytest.mark.parametrize("hooks", [None, SPLITTING], ids=["fused", "split"])
def test_s2_b03_t2_a_run_is_answered_once_whichever_two_commits_the_process_dies_behind(
    hooks: Extension | None,
) -> None:
    for name in ("look", "step"):
        lives = run_of(lambda name=name: teacher("a", "b", tool=name), expect="heard: go", extension=hooks)  # type: ignore[misc]
        assert list(lives.sweep(deaths=2)).count(2) > 50


def test_b16_s4_steer_follow_up_and_write_of_every_life_are_placed_once_whichever_commit_the_process_dies_behind() -> (
    None
):
    async def more(root: Conversation) -> None:
        await asyncio.sleep(1.5)
        await root.submit("faster", when_busy="steer", request_id="steer")
        await root.submit("and then", request_id="follow")
        await root.write("app.note", data="n", request_id="note")

    async def story(h: Harness) -> None:
        root = await h.root()
        await root.submit("go", request_id="go")
        await more(root)
        await h.wait_idle()
        found = await transcript(root)
        for text in ("user: go", "user: faster", "user: and then", "app.note"):
            assert found.count(text) == 1, found
        assert [record.status for record in await submissions_of(h)] == ["done"] * 4
        await sound(h)

    for calls in (("a",), ("a", "b")):
        lives = Lives(story)
        lives.models, lives.tools = [teacher(*calls)], [look]
        assert list(lives.sweep(deaths=1)).count(1) > 10


# --- Something asked at every moment ----------------------------------------------------------------------------------


Act = Literal["steer", "follow_up", "write", "reset", "abort", "abort task", "compact", "configure"]


async def _act(h: Harness, act: Act, made: list[Submission[Answered] | Submission[Written]]) -> None:
    root = await h.conversation(1)
    match act:
        case "steer" | "follow_up":
            made.append(await root.submit("more", when_busy=act))
        case "write":
            made.append(await root.write("app.note", text="note"))
        case "reset":
            made.append(await root.reset("anew"))
        case "abort":
            await root.abort()
        case "abort task":
            for task in await h.tasks(kind="pi.generation", live=True):
                await h.abort(task.id)
        case "compact":
            await root.compact()
        case "configure":
            await root.configure(AgentChange(instructions="be brief"))


def moments(act: Act, *, tool: str, extension: Extension | None, at: int) -> int:
    """One run of two tools, with this done at its `at`-th moment. Returns how many moments it has."""
    made: list[Submission[Answered] | Submission[Written]] = []
    harness: list[Harness] = []

    async def doing() -> None:
        await _act(harness[0], act, made)

    probe = Interrupter(-1, doing)
    lives: list[str] = []
    passed: list[int] = []

    async def story(h: Harness) -> None:
        harness.append(h)
        root = await h.root()
        probe.passed, probe.at = 0, at
        asked = await root.submit("go")
        queued = await root.submit("then", request_id="then")
        await asked.wait()
        await h.wait_idle()
        if probe.acting is not None:
            await probe.acting
        count, probe.at = probe.passed, -1
        await h.wait_idle()
        await sound(h)
        lives.extend(await transcript(root))
        passed.append(count)
        settled = await asked.wait()
        states = [await each.status() for each in (queued, *made)]
        if isinstance(settled, Answered):
            assert "queued" not in states or act in ("abort", "abort task"), states
            assert lives.count("user: more") == (1 if act in ("steer", "follow_up") and made else 0)
        else:
            assert settled.reason in ("reset", "aborted"), settled
        assert lives.count("app.note: note") == sum([await each.status() == "done" for each in made if act == "write"])

    async def life() -> None:
        extensions = [extension] if extension is not None else []
        async with Harness.open(
            MemoryStorage(), models=[teacher("a", "b", tool=tool)], tools=[look, step], extensions=extensions,
            settings=Settings(clock=LoopClock(), probe=probe), on_report=reports.append,
        ) as h:  # fmt: skip
            await story(h)

    reports: list[BaseException] = []
    try:
        loop.run(life(), limit=200_000)
    except BaseException as error:
        error.add_note(f"{act} at moment {at}; {lives}")
        raise
    assert reports == []
    return passed[0]


@pytest.mark.parametrize("act", ["steer", "follow_up", "write", "reset", "abort"])
def test_b16_s2_s4_what_is_asked_at_any_moment_of_a_run_ends_in_a_stated_condition(act: Act) -> None:
    at = 0
    while at < moments(act, tool="look", extension=None, at=at):
        at += 1
    assert at > 50


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("hooks", [None, SPLITTING], ids=["fused", "split"])
@pytest.mark.parametrize("tool", ["look", "step"])
@pytest.mark.parametrize("act", ["steer", "follow_up", "write", "reset", "abort", "abort task", "compact", "configure"])
def test_b16_s2_s4_whatever_is_asked_at_any_moment_of_any_run_ends_in_a_stated_condition(
    act: Act, tool: str, hooks: Extension | None
) -> None:
    at = 0
    while at < moments(act, tool=tool, extension=hooks, at=at):
        at += 1
    assert at > 50


# --- F1, B12: any storage call fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["not done", "done and not said"])
def test_f1_b12_whichever_storage_call_fails_the_next_life_answers_once(mode: Mode) -> None:
    def life(store: Storage, reports: list[BaseException]) -> None:
        async def main() -> None:
            async with Harness.open(
                store, models=[teacher("a")], tools=[look], settings=Settings(clock=LoopClock()),
                on_report=reports.append,
            ) as h:  # fmt: skip
                root = await h.root()
                asked = await root.submit("go", request_id="go")
                await root.submit("then", request_id="then")
                found = await asked.wait()
                assert isinstance(found, Answered)
                await h.wait_idle()
                assert [record.status for record in await submissions_of(h)] == ["done", "done"]
                told = await transcript(root)
                assert told.count("user: go") == told.count("assistant: heard: go") == 1
                await sound(h)

        loop.run(main(), limit=200_000)

    counted = Hiccup(MemoryStorage(), None)
    life(cast("Storage", counted), [])
    for fail_at in range(1, len(counted.calls) + 1):
        store, reports = MemoryStorage(), list[BaseException]()
        failing = Hiccup(store, fail_at, mode)
        try:
            with suppress(SessionFailed, StorageError):
                life(cast("Storage", failing), reports)
            loop.run(store.close())
            life(store, [])
        except BaseException as error:
            error.add_note(f"call {fail_at}, {counted.calls[fail_at - 1]}, failed")
            raise
        ends = [report for report in reports if isinstance(report, SessionFailed)]
        assert len(ends) == (failing.error is not None and fail_at > 1 and counted.calls[fail_at - 1] != "close")


# --- Idle and spent ---------------------------------------------------------------------------------------------------


def test_o3_wait_idle_of_a_conversation_waits_for_its_whole_queue_and_for_no_other_conversation(home: Home) -> None:
    async def main() -> None:
        slow = Scripted(Say("slow", delay=600 * SECOND), name="slow")
        async with home.agent(teacher("a"), slow, tools=[look]) as h:
            root, other = await h.root(), await h.create(agent=AgentChange(model=slow.ref))
            await other.submit("hello")
            asked = [await root.submit(text) for text in ("go", "then", "and then")]
            assert await root.busy()
            await root.wait_idle()
            assert [await each.status() for each in asked] == ["done"] * 3
            assert await root.busy() is False
            assert await other.busy()
            waiting = asyncio.ensure_future(h.wait_idle())
            await asyncio.sleep(1)
            assert not waiting.done()
            await other.abort()
            await waiting
            await sound(h)

    home.run(main())


def test_s2_a_conversation_whose_harness_is_paused_is_not_idle(memory: Home) -> None:
    async def main() -> None:
        async with memory.agent(teacher(), run=False) as h:
            root = await h.root()
            asked = await root.submit("hello")
            waiting = asyncio.ensure_future(root.wait_idle())
            await asyncio.sleep(10)
            assert not waiting.done()
            [verdict] = await h.verdicts()
            assert verdict.name == "start"
            h.resume()
            await waiting
            assert await asked.status() == "done"

    memory.run(main())


def test_usage_is_what_the_answers_say_in_each_conversation_and_the_sum_of_all(home: Home) -> None:
    async def main() -> None:
        one, two = teacher("a"), Scripted.by(lambda _: Say("two" * 40), name="two")
        async with home.agent(one, two, tools=[look]) as h:
            root = await h.root()
            other = await h.create(agent=AgentChange(model=two.ref))
            for where in (root, other, root):
                await (await where.submit("go")).wait()
            child = await root.fork(at=(await root.entries(limit=1)).items[0].id)
            assert (await child.usage()).models == {}
            await h.wait_idle()
            total = 0
            for where, model in ((root, "scripted/teacher"), (other, "scripted/two")):
                page = await where.entries(limit=1000)
                messages = [m for entry in page.items for m in entry.model or () if role_of(m) == "assistant"]
                tokens = [int(str(usage_of(m)["totalTokens"])) for m in messages]
                usage = await where.usage()
                assert {model: sum(tokens)} == {name: each["totalTokens"] for name, each in usage.models.items()}
                total += sum(tokens)
            spent = (await h.usage()).models
            assert sum(each["totalTokens"] for each in spent.values()) == total > 0  # type: ignore[misc]

    home.run(main())


# --- Outcomes that the engine writes ----------------------------------------------------------------------------------


def test_t9_s2_a_run_whose_abort_is_cut_off_again_and_again_is_given_up_and_its_input_settled() -> None:
    class Hangs(Scripted):
        async def cancel(self, handle: JsonObject) -> None:
            await asyncio.sleep(1_000_000)

    store = MemoryStorage()
    states: list[object] = []
    reached: list[str] = []

    async def life(n: int, store: MemoryStorage) -> MemoryStorage:
        await store.close()
        h = await Harness.open(
            store, models=[Hangs(Defer(Say("later"), 3600 * SECOND))],
            settings=Settings(clock=LoopClock(), restart_limit=3),
        )  # fmt: skip
        root = await h.root()
        asked = await root.submit("go", request_id="go")
        await asyncio.sleep(5)
        if n == 0:
            for task in await h.tasks(live=True):
                await h.abort(task.id)
            await asyncio.sleep(5)
        reached.append((await asked.record()).status)
        if reached[-1] != "placed":
            states.append(await asked.wait())
            await sound(h)
        killed = copy.deepcopy(store)
        await h.aclose()
        return killed

    for n in range(5):
        store = loop.run(life(n, store))
    assert reached == ["placed", "placed", "placed", "unanswered", "unanswered"]
    found = states[0]
    assert isinstance(found, Unanswered)
    assert (found.reason, found.detail) == ("faulted", "its abort handler was cut off 3 times")


def test_b03_e4_an_after_tools_hook_that_raises_is_reported_and_the_run_goes_on(memory: Home) -> None:
    async def wrong(assistant: EntryId, results: tuple[EntryId, ...], api: HookApi) -> None:
        raise RuntimeError("not now")

    async def main() -> None:
        extension = Extension("wrong", hooks=Hooks(after_tools=wrong))
        async with memory.agent(teacher("a"), tools=[look], extensions=[extension]) as h:
            assert isinstance(await (await (await h.root()).submit("go")).wait(), Answered)
            await sound(h)

    memory.run(main())
    assert [str(report) for report in memory.reports] == ["not now"]
