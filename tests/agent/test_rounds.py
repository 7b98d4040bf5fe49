"""Rounds of tool calls: side by side and one by one, what their results ask for, what a crash makes of them (S4)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Literal

import pytest

from pidurable_nb import AgentChange, Answered, Call, Extension, Harness, Output, tool
from pidurable_nb.agent.extending.hooking import HookApi, Hooks
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.agent.stored import live
from pidurable_nb.errors import ToolError
from pidurable_nb.ids import ROOT, EntryId
from pidurable_nb.lab.dying import loop
from pidurable_nb.models import CallTools, ModelRequest, PlannedCall, Say, Scripted, call
from pidurable_nb.models.model import ArgumentsDelta, CallStart, Finished, ModelEvent, ModelRef, TextDelta
from pidurable_nb.records.message import calls_of, items, role_of, text_of
from pidurable_nb.records.transcript import Unanswered
from pidurable_nb.tools.tool import Tool
from tests.agent.conftest import Interrupter, sound
from tests.agent.trial import Told, Trial, answer_to, kinds, opened, play, told


def recording(trace: list[str], *, mode: str | None = None) -> Tool:
    @tool(replay="safe", mode="sequential" if mode == "sequential" else None)
    async def job(n: int) -> str:
        """Work."""
        trace.append(f"begin {n}")
        await asyncio.sleep(4 - n)
        trace.append(f"end {n}")
        return f"result {n}"

    return job


THREE = CallTools(call("job", n=1), call("job", n=2), call("job", n=3))


def test_a_round_runs_side_by_side_and_the_model_gets_results_in_call_order() -> None:
    async def main() -> None:
        trace: list[str] = []
        model = Scripted(THREE, Say("done"))
        async with opened(model, tools=[recording(trace)]) as h:
            assert await answer_to(h, "go") == "done"
            assert trace[:3] == ["begin 1", "begin 2", "begin 3"]
            assert trace[3:] == ["end 3", "end 2", "end 1"]
            results = [text_of(m) for m in model.requests[1].messages if role_of(m) == "toolResult"]
            assert results == ["result 1", "result 2", "result 3"]

    play(main())


@pytest.mark.parametrize("how", ["settings", "mode"])
def test_a_sequential_round_runs_one_by_one(how: str) -> None:
    async def main() -> None:
        trace: list[str] = []
        settings = Settings(tool_execution="sequential") if how == "settings" else Settings()

        @tool(replay="safe", mode="sequential" if how == "mode" else None)
        async def alone() -> str:
            """Alone."""
            trace.append("alone")
            return "alone"

        model = Scripted(CallTools(*THREE.calls, call("alone")), Say("done"))
        async with opened(model, tools=[recording(trace), alone], settings=settings) as h:
            assert await answer_to(h, "go") == "done"
            assert trace == [f"{what} {n}" for n in (1, 2, 3) for what in ("begin", "end")] + ["alone"]
            results = [text_of(m) for m in model.requests[1].messages if role_of(m) == "toolResult"]
            assert results == ["result 1", "result 2", "result 3", "alone"]

    play(main())


def test_a_tool_that_was_not_offered_does_not_make_a_round_sequential() -> None:
    async def main() -> None:
        trace: list[str] = []

        @tool(mode="sequential")
        async def hidden() -> str:
            """Hidden."""
            return "hidden"

        model = Scripted(CallTools(*THREE.calls, call("hidden")), Say("done"))
        async with opened(model, tools=[recording(trace), hidden]) as h:
            await h.root(agent=AgentChange(model_tools=["job"]))
            assert await answer_to(h, "go") == "done"
            assert trace[:3] == ["begin 1", "begin 2", "begin 3"]
            assert [each.codes for each in await told(await h.root())].count(("tool_unavailable",)) == 1

    play(main())


def test_s4_an_aborted_sequential_round_leaves_a_result_for_every_call() -> None:
    async def main() -> None:
        trace: list[str] = []
        model = Scripted(THREE, Say("again"))
        async with opened(model, tools=[recording(trace, mode="sequential")]) as h:
            root = await h.root()
            asked = await root.submit("go")
            await asyncio.sleep(3.5)
            await root.abort()
            settled = await asked.wait()
            assert isinstance(settled, Unanswered)
            assert settled.reason == "aborted"
            found = await told(root)
            assert [each.codes for each in found] == [(), ("aborted",), ("aborted",)]
            assert [each.message["toolCallId"] for each in found] == ["call_1", "call_2", "call_3"]
            assert trace == ["begin 1", "end 1", "begin 2"]
            assert await h.engine.session.snapshot(live.LIVE, live.at(live.LIVE, ROOT)) == {}
            assert await answer_to(h, "more") == "again"
            results = [text_of(m) for m in model.requests[-1].messages if role_of(m) == "toolResult"]
            assert len(results) == 3

    play(main())


def test_calls_with_one_id_are_told_apart_and_the_model_gets_every_result() -> None:
    async def main() -> None:
        trace: list[str] = []
        same = [PlannedCall("job", {"n": n}, "x") for n in (1, 2, 3)]
        model = Scripted(CallTools(*same), CallTools(*same), Say("done"))
        async with opened(model, tools=[recording(trace)]) as h:
            root = await h.root()
            assert await answer_to(h, "go") == "done"
            assert sorted(trace) == sorted(f"{what} {n}" for n in (1, 2, 3) for what in ("begin", "end") * 2)
            for request, rounds in ((model.requests[1], 1), (model.requests[2], 2)):
                called = [call.id for m in request.messages if role_of(m) == "assistant" for call in calls_of(m)]
                given = [m["toolCallId"] for m in request.messages if role_of(m) == "toolResult"]
                texts = [text_of(m) for m in request.messages if role_of(m) == "toolResult"]
                assert called == given
                assert texts == ["result 1", "result 2", "result 3"] * rounds
            assert len(await told(root)) == 6

    play(main())


def test_a_round_with_no_task_at_all_goes_on() -> None:
    async def main() -> None:
        model = Scripted(CallTools(call("a"), call("b")), CallTools(call("a")), Say("done"))
        async with opened(model) as h:
            assert await answer_to(h, "go") == "done"
            assert [each.codes for each in await told(await h.root())] == [("tool_unavailable",)] * 3
            assert await h.tasks(kind="pi.tool") == ()

    play(main())


# -- what results ask for ----------------------------------------------------------------------------------------------


def asking(**outputs: Output) -> list[Tool]:
    """A tool for every output."""

    def made(name: str, output: Output) -> Tool:
        @tool(name=name, replay="safe")
        async def asks() -> Output:
            """Ask."""
            return output

        return asks

    return [made(name, output) for name, output in outputs.items()]


@pytest.mark.parametrize("sequential", [False, True])
def test_terminate_ends_the_run_only_when_every_result_asks_for_it(sequential: bool) -> None:
    ends, plain = Output(content="bye", terminate=True), Output(content="hm")
    settings = Settings(tool_execution="sequential" if sequential else "parallel")
    for names, terminates in (
        (["ends"], True), (["ends", "ends"], True), (["ends", "plain"], False), (["plain", "ends"], False),
        (["ends", "missing"], False),
    ):  # fmt: skip

        async def main(names: Sequence[str] = names, terminates: bool = terminates) -> None:
            model = Scripted(CallTools(*map(call, names), text="calling"), Say("done"))
            async with opened(model, tools=asking(ends=ends, plain=plain), settings=settings) as h:
                assert await answer_to(h, "go") == ("calling" if terminates else "done")
                assert len(model.requests) == (1 if terminates else 2)
                await h.wait_idle()

        play(main())


@pytest.mark.parametrize("sequential", [False, True])
def test_v1_the_last_handoff_of_a_round_ends_the_run_and_the_next_begins_with_its_text(sequential: bool) -> None:
    tools = asking(one=Output(handoff="first"), two=Output(handoff="second"), plain=Output(content="hm"))

    async def main() -> None:
        settings = Settings(tool_execution="sequential" if sequential else "parallel")

        def answer(request: ModelRequest) -> Say | CallTools:
            said = text_of(request.messages[-1])
            return Say("fresh") if said == "next" else CallTools(call("one"), call("two"), call("plain"), text="bye")

        model = Scripted.by(answer)
        async with opened(model, tools=tools, settings=settings) as h:
            root = await h.root()
            assert await answer_to(h, "go") == "bye"
            assert await answer_to(h, "next") == "fresh"
            texts = [text_of(m) for m in model.requests[-1].messages if role_of(m) == "user"]
            assert texts == ["second", "next"]
            assert (await kinds(root)).count("pi.reset") == 1

    play(main())


def offered(request: ModelRequest) -> list[str]:
    added = [each for message in request.messages for each in items(message.get("toolsAdded"))]
    return [str(each["name"]) for each in added if isinstance(each, dict)]


@pytest.mark.parametrize("sequential", [False, True])
def test_added_tools_are_offered_from_the_next_request_on(sequential: bool) -> None:
    tools = asking(
        more=Output(content="ok", add_tools=("extra",)), extra=Output(content="x"), plain=Output(content="p")
    )

    async def main() -> None:
        settings = Settings(tool_execution="sequential" if sequential else "parallel")
        model = Scripted(CallTools(call("more"), call("plain")), CallTools(call("extra")), Say("done"))
        async with opened(model, tools=tools, settings=settings) as h:
            root = await h.root(agent=AgentChange(tools=["more", "plain"]))
            assert await answer_to(h, "go") == "done"
            assert "extra" not in offered(model.requests[0])
            assert "extra" in offered(model.requests[1])
            assert [each.codes for each in await told(root)] == [(), (), ()]
            state = await h.engine.session.snapshot(live.AGENT, live.at(live.AGENT, ROOT))
            assert state is not None
            assert items(state["tools"]) == ["more", "plain", "extra"]

    play(main())


@pytest.mark.parametrize("what", ["terminate", "handoff", "add"])
def test_c8_what_results_ask_for_counts_when_they_are_stored_together_in_any_order(what: str) -> None:
    outputs = {
        "terminate": Output(content="t", terminate=True), "handoff": Output(handoff="begin anew"),
        "add": Output(content="a", add_tools=("extra",)),
    }  # fmt: skip
    tools = [*asking(asks=outputs[what], plain=Output(content="p"), extra=Output(content="x")), recording([])]
    others = [call("asks")] * 2 if what == "terminate" else [call("plain"), call("plain")]

    async def main() -> None:
        model = Scripted(CallTools(call("asks"), *others, text="calling"), Say("done"))
        async with opened(model, tools=tools) as h:
            root = await h.root(agent=AgentChange(tools=["asks", "plain"]))
            assert await answer_to(h, "go") == ("done" if what == "add" else "calling")
            assert (await kinds(root)).count("pi.reset") == (1 if what == "handoff" else 0)
            if what == "add":
                assert "extra" in offered(model.requests[1])

    for seed in range(40):
        loop.run(main(), seed=seed, limit=200_000)


# -- cut rounds --------------------------------------------------------------------------------------------------------


def asks(text: str, answer: str, finds: list[Told]) -> Callable[[Harness], Awaitable[None]]:
    async def story(h: Harness) -> None:
        root = await h.root()
        settled = await (await root.submit(text, request_id="ask")).wait()
        assert isinstance(settled, Answered)
        assert settled.text == answer
        await h.wait_idle()
        finds[:] = await told(root)

    return story


@pytest.mark.parametrize("hooked", [False, True], ids=["fused", "hooked"])
def test_b03_a_crash_between_answer_and_tools_never_leaves_an_input_without_an_answer(hooked: bool) -> None:
    finds: list[Told] = []
    seen: list[tuple[EntryId, tuple[EntryId, ...]]] = []
    trial = Trial(asks("go", "done", finds))
    trial.models, trial.tools = (
        [Scripted(CallTools(call("job", n=1), call("nope"), call("job", n=3)), Say("done"))],
        [recording(trial.ledger)],
    )

    async def after_tools(assistant: EntryId, results: tuple[EntryId, ...], api: HookApi) -> None:
        seen.append((assistant, results))

    trial.extensions = [Extension("watch", hooks=Hooks(after_tools=after_tools))] if hooked else []
    for died in trial.sweep(deaths=1):
        assert len(finds) == 3
        assert sorted(each.codes for each in finds) == [(), (), ("tool_unavailable",)]
        assert trial.ledger.count("begin 1") <= 1 + died
    assert all(len(results) == 3 for _, results in seen)
    assert len(seen) > 5 or not hooked


def test_b03_what_after_tools_raises_is_reported_and_the_run_goes_on() -> None:
    async def after_tools(assistant: EntryId, results: tuple[EntryId, ...], api: HookApi) -> None:
        raise ToolError("the observer fell over")

    async def main() -> None:
        reports: list[BaseException] = []
        extension = Extension("watch", hooks=Hooks(after_tools=after_tools), tools=[recording([])])
        async with opened(Scripted(THREE, Say("done")), extensions=[extension], reports=reports) as h:
            assert await answer_to(h, "go") == "done"
        assert [str(report) for report in reports] == ["the observer fell over"]

    play(main())


@pytest.mark.parametrize("what", ["terminate", "handoff", "add"])
@pytest.mark.parametrize("sequential", [False, True], ids=["parallel", "sequential"])
def test_s4_what_a_round_asks_for_happens_once_wherever_it_dies(what: str, sequential: bool) -> None:
    outputs = {
        "terminate": Output(content="t", terminate=True), "handoff": Output(handoff="begin anew"),
        "add": Output(content="a", add_tools=("extra",)),
    }  # fmt: skip
    found: list[list[str]] = []

    async def story(h: Harness) -> None:
        root = await h.root(agent=AgentChange(tools=["asks", "job"]))
        asked = await root.submit("go", request_id="ask")
        settled = await asked.wait()
        assert isinstance(settled, Answered)
        assert settled.text == ("done" if what == "add" else "calling")
        await h.wait_idle()
        found[:] = [await kinds(root)]
        state = await h.engine.session.snapshot(live.AGENT, live.at(live.AGENT, ROOT)) or {}
        assert items(state["tools"]) == ["asks", "job", *(["extra"] if what == "add" else [])]

    trial = Trial(story)
    trial.settings = Settings(tool_execution="sequential" if sequential else "parallel")
    trial.tools = [*asking(asks=outputs[what], extra=Output(content="x")), recording(trial.ledger)]
    other = call("job", n=3) if what != "terminate" else call("asks")
    trial.models = [Scripted(CallTools(call("asks"), other, text="calling"), Say("done"))]
    for _ in trial.sweep(deaths=1):
        (entries,) = found
        assert entries.count("pi.tool-result") == 2
        assert entries.count("pi.reset") == (1 if what == "handoff" else 0)
        assert entries.count("pi.user") == 1


# -- answers that are no good ------------------------------------------------------------------------------------------


class Odd:
    """A model that calls in odd ways, and then says that it is done."""

    ref = ModelRef("odd", "odd")
    api = "odd"
    context_window = 0
    max_tokens = 0

    def __init__(self, *events: ModelEvent) -> None:
        self.events = events

    async def stream(self, request: ModelRequest):  # type: ignore[no-untyped-def]
        if any(role_of(message) == "assistant" for message in request.messages):
            yield TextDelta(0, "done")
            yield Finished(stop_reason="stop", usage={})
            return
        for event in self.events:
            yield event
        yield Finished(stop_reason="toolUse", usage={})


ODD: list[tuple[str, list[ModelEvent], list[tuple[str, ...]] | None]] = [
    ("nothing", [CallStart(0, "", "")], [("tool_unavailable",)]),
    ("no name", [CallStart(0, "a", "")], [("tool_unavailable",)]),
    ("no id", [CallStart(0, "", "job"), ArgumentsDelta(0, '{"n": 3}')], [()]),
    ("odd id", [CallStart(0, "a\n\x00\ud800", "job"), ArgumentsDelta(0, '{"n": 3}')], [()]),
    ("odd names", [CallStart(0, "a", "job\x00"), CallStart(1, "a", "j" * 10_000)], [("tool_unavailable",)] * 2),
    ("deep text", [CallStart(0, "a", "job"), ArgumentsDelta(0, "[" * 100_000)], [("invalid_arguments",)]),
    (
        "deep", [CallStart(0, "a", "job"), ArgumentsDelta(0, '{"n":' * 300 + "1" + "}" * 300)],
        [("invalid_arguments",)],
    ),
    ("infinite", [CallStart(0, "a", "job"), ArgumentsDelta(0, '{"n": 1e999}')], [("invalid_arguments",)]),
    ("large", [CallStart(0, "a", "job"), ArgumentsDelta(0, '{"n": 9007199254740993}')], [("invalid_arguments",)]),
    ("twice", [CallStart(0, "a", "job"), ArgumentsDelta(0, '{"n": 3, "n": 2}')], None),
    ("no call", [], []),
]  # fmt: skip


@pytest.mark.parametrize(("events", "codes"), [each[1:] for each in ODD], ids=[each[0] for each in ODD])
def test_a_model_that_calls_in_odd_ways_gets_results_and_the_conversation_goes_on(
    events: list[ModelEvent], codes: list[tuple[str, ...]] | None
) -> None:
    async def main() -> None:
        async with opened(Odd(*events), tools=[recording([])]) as h:
            root = await h.root()
            settled = await (await root.submit("go")).wait()
            assert isinstance(settled, Answered)
            assert settled.text == ("done" if events else "")
            if codes is not None:
                assert [each.codes for each in await told(root)] == codes
            assert await answer_to(h, "again") == "done"

    play(main())


def test_c7_ten_megabytes_of_arguments_are_stored_with_the_intent_and_reach_the_tool() -> None:
    text = "x" * 10_000_000

    @tool()
    async def takes(text: str) -> int:
        """Take."""
        return len(text)

    async def main() -> None:
        async with opened(Scripted(CallTools(call("takes", text=text)), Say("done")), tools=[takes]) as h:
            assert await answer_to(h, "go") == "done"
            (found,) = await told(await h.root())
            assert found.text == "10000000"

    play(main())


# -- at any moment -----------------------------------------------------------------------------------------------------


def busy_tools(trace: list[str]) -> list[Tool]:
    """A slow tool, one that calls it twice, and one that raises."""

    @tool(replay="safe")
    async def slow(n: int, call: Call) -> str:
        """Slow."""
        trace.append(f"begin {n}")
        call.progress("working\n")
        await asyncio.sleep(n)
        trace.append(f"end {n}")
        return f"slow {n}"

    @tool()
    async def outer(call: Call) -> str:
        """Outer."""
        await asyncio.gather(*(call.run_tool("slow", {"n": n}, key=f"n{n}") for n in (1, 2)))
        return "outer"

    @tool()
    async def raises() -> str:
        """Raise."""
        raise ToolError("no")

    return [slow, outer, raises]


BUSY = CallTools(call("slow", n=1), call("outer"), call("raises"), call("missing"), text="calling")


async def disturbed(h: Harness, model: Scripted, probe: Interrupter, at: int) -> str | None:
    """How a round ends that is disturbed there: every call has one result, nothing lives, the next input is answered.

    None when it had ended before.
    """
    root = await h.root()
    probe.passed, probe.at = 0, at
    asked = await root.submit("go")
    settled = await asked.wait()
    await h.wait_idle()
    probe.at = -1
    if probe.acting is None:
        return None
    await probe.acting
    await sound(h)
    assert await h.tasks(live=True) == ()
    found = await told(root)
    assert len({str(each.message["toolCallId"]) for each in found}) == len(found)
    assert await answer_to(h, "next") == "answered"
    called = [each.id for m in model.requests[-1].messages for each in calls_of(m)]
    given = [m["toolCallId"] for m in model.requests[-1].messages if role_of(m) == "toolResult"]
    assert called == given
    return "done" if isinstance(settled, Answered) else settled.reason


def at_any_moment(
    act: Callable[[Harness], Awaitable[None]], *, extensions: Sequence[Extension], settings: Settings
) -> Counter[str]:
    """How the round ends, disturbed at each place in turn that it passes."""
    ends: Counter[str] = Counter()

    async def main(at: int) -> str | None:
        harness: list[Harness] = []

        async def acting() -> None:
            await act(harness[0])

        model, probe = scripted(), Interrupter(-1, acting)
        async with opened(model, extensions=extensions, settings=replace(settings, probe=probe)) as h:
            harness.append(h)
            return await disturbed(h, model, probe, at)

    at = 0
    while (end := play(main(at))) is not None:
        ends[end] += 1
        at += 1
    return ends


def scripted() -> Scripted:
    def answer(request: ModelRequest) -> Say | CallTools:
        last = request.messages[-1]
        return BUSY if role_of(last) == "user" and text_of(last) == "go" else Say("answered")

    return Scripted.by(answer)


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["parallel", "sequential"])
def test_o2_an_abort_at_any_moment_leaves_nothing_that_runs_and_a_result_for_every_call(
    execution: Literal["parallel", "sequential"],
) -> None:
    async def act(h: Harness) -> None:
        await (await h.root()).abort()

    tools = Extension("busy", tools=busy_tools([]))
    ends = at_any_moment(act, extensions=[tools], settings=Settings(tool_execution=execution))
    assert ends["aborted"] > 20
    assert set(ends) <= {"aborted", "done"}


@pytest.mark.slow
def test_t8_a_tool_that_is_uninstalled_and_comes_back_at_any_moment_leaves_a_result_for_every_call() -> None:
    tools = Extension("busy", tools=busy_tools([]))

    async def act(h: Harness) -> None:
        h.uninstall("busy")
        await asyncio.sleep(0.5)
        h.install(tools)

    ends = at_any_moment(act, extensions=[tools], settings=Settings())
    assert ends["done"] > 20
    assert set(ends) == {"done"}
