"""Calls that a call makes: their keys, their results, and what recovery makes of both (E1 to E3, E6, O2, O7)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from pidurable_nb import Answered, Call, Extension, Harness, Json, Output, tool
from pidurable_nb.agent.extending.hooking import HookApi, Hooks
from pidurable_nb.agent.round.nesting import address
from pidurable_nb.agent.stored import live
from pidurable_nb.errors import KeyShared, ToolError
from pidurable_nb.ids import ROOT, JsonObject
from pidurable_nb.models import CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.records import task as stored
from pidurable_nb.records.message import ToolCall, items, role_of, text_of
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.storage import ConversationQuery
from pidurable_nb.tools.tool import Replay, Tool
from tests.agent.trial import Cut, Told, Trial, answer_to, left, opened, play, told


@tool(replay="safe")
async def add(a: int, b: int) -> dict[str, Json]:
    """Add."""
    return {"sum": a + b}


@tool(replay="safe")
async def says(text: str) -> str:
    """Say."""
    return text


@tool(replay="safe")
async def fails() -> str:
    """Fail."""
    raise ToolError("broken")


def within(body: Callable[[Call], Awaitable[str]], *tools: Tool, replay: Replay = "safe") -> Told:
    """What the model is told of a call with this body, which can call those tools."""

    @tool(replay=replay)
    async def outer(call: Call) -> str:
        """Outer."""
        return await body(call)

    async def main() -> Told:
        async with opened(Scripted(CallTools(call("outer")), Say("done")), tools=[outer, *tools]) as h:
            assert await answer_to(h, "go") == "done"
            (found,) = await told(await h.root())
            for task in await h.tasks(kind="pi.tool"):
                assert await h.engine.session.document_record(address(task.id, "1")) is None  # it ended with its owner
            assert await h.engine.session.snapshot(live.LIVE, live.at(live.LIVE, ROOT)) == {}
            return found

    return play(main())


def test_a_nested_call_gives_the_json_that_the_tool_returned_or_its_text() -> None:
    async def body(call: Call) -> str:
        found = await call.run_tool("add", {"a": 1, "b": 2})
        assert found == {"sum": 3}
        assert await call.run_tool(says, {"text": "hi"}) == "hi"
        assert await call.run_tool("says", {"text": "ho"}, key="ho") == "ho"
        return "ok"

    assert within(body, add, says).text == "ok"


def test_a_nested_error_is_raised_in_the_calling_tool_with_its_text() -> None:
    async def body(call: Call) -> str:
        with pytest.raises(ToolError, match="broken"):
            await call.run_tool("fails", {})
        with pytest.raises(ToolError, match="not available"):
            await call.run_tool("nothing", {})
        with pytest.raises(ToolError, match="do not fit"):
            await call.run_tool("says", {"words": 1})
        await call.run_tool("fails", {}, key="last")
        return "never"

    found = within(body, fails, says)
    assert found.codes == ("tool_error",)
    assert "broken" in found.text


def test_e6_a_key_is_of_one_call_and_cannot_be_taken_for_another() -> None:
    async def body(call: Call) -> str:
        for key in ("", "a/b", "__proto__", "1", "27"):
            with pytest.raises(ValueError, match="nested call key"):
                await call.run_tool("says", {"text": "x"}, key=key)
        assert await call.run_tool("says", {"text": "x"}, key="k") == "x"
        assert await call.run_tool("says", {"text": "x"}, key="k") == "x"
        with pytest.raises(KeyShared, match="give each its own key"):
            await call.run_tool("says", {"text": "y"}, key="k")
        with pytest.raises(KeyShared):
            await call.run_tool("add", {"a": 1, "b": 1}, key="k")
        return "ok"

    assert within(body, add, says).text == "ok"


def test_a_nested_call_has_an_intent_hooks_a_slot_and_no_entry_and_its_usage_counts_once() -> None:
    asked: list[str] = []
    slots: list[JsonObject] = []
    intents: dict[int, bool] = {}

    @tool()
    async def thinks() -> Output:
        """Think."""
        return Output(content="t", usage={"input": 5, "totalTokens": 5})

    @tool()
    async def outer(call: Call) -> str:
        """Outer."""
        await asyncio.gather(call.run_tool("thinks", {}, key="a"), call.run_tool("thinks", {}, key="b"))
        return "ok"

    async def before_tool(call: ToolCall, api: HookApi) -> None:
        asked.append(call.id)

    async def main() -> None:
        model = Scripted(CallTools(call("outer")), Say("done"))
        extensions = [Extension("hooks", hooks=Hooks(before_tool=before_tool))]
        async with opened(model, tools=[outer, thinks], extensions=extensions) as h:

            def follow(changes: Changes) -> None:
                for change in changes.documents:
                    if change.record.kind == "pi.live" and change.value is not None:
                        slots.extend(slot for slot in items(change.value.get("nestedTools")) if isinstance(slot, dict))
                for id, each in changes.tasks.items():
                    if each.after.phase == "execute":
                        intents.setdefault(id, changes.barrier)

            h.engine.session.subscribe(follow)
            assert await answer_to(h, "go") == "done"
            root = await h.root()
            assert len(await told(root)) == 1
            assert (await root.usage()).tools["thinks"]["input"] == 10
            nested = [task for task in await h.tasks(kind="pi.tool") if "parent" in str(task.input)]
            (parent,) = [task for task in await h.tasks(kind="pi.tool") if task not in nested]
            assert {task.owner for task in nested} == {parent.id}
            assert all(task.abandon_on_restart for task in nested)

    play(main())
    assert asked == ["call_1", "call_1/a", "call_1/b"]
    assert list(intents.values()) == [True, True, True]
    assert {str(slot["status"]) for slot in slots} == {"pending", "running", "done"}
    done = next(slot for slot in slots if slot["status"] == "done")
    assert {"callId", "name", "taskId", "parentCallId", "parentTaskId", "arguments", "summary"} <= set(done)


def test_o2_a_call_that_ends_while_its_nested_ones_run_takes_them_with_it() -> None:
    for raises in (False, True):
        trace: list[str] = []

        @tool()
        async def slow(trace: list[str] | None = None) -> str:
            """Slow."""
            await asyncio.sleep(30)
            return "slow"

        @tool()
        async def outer(call: Call, raises: bool = raises) -> str:
            """Outer."""
            running = asyncio.ensure_future(call.run_tool("slow", {}))
            await asyncio.sleep(1)
            running.cancel()
            if raises:
                raise ToolError("enough")
            return "ok"

        async def main(raises: bool = raises, outer: Tool = outer, slow: Tool = slow) -> None:
            async with opened(Scripted(CallTools(call("outer")), Say("done")), tools=[outer, slow]) as h:
                assert await answer_to(h, "go") == "done"
                await h.wait_idle()
                outcomes = [type(task.outcome) for task in await h.tasks(kind="pi.tool")]
                assert outcomes == ([stored.Failed, stored.Aborted] if raises else [stored.Completed] * 2)
                assert await h.engine.session.snapshot(live.LIVE, live.at(live.LIVE, ROOT)) == {}

        play(main())
        assert trace == []


def test_o2_an_abort_ends_nested_calls_first() -> None:
    @tool()
    async def slow() -> str:
        """Slow."""
        await asyncio.sleep(30)
        return "slow"

    @tool()
    async def outer(call: Call) -> str:
        """Outer."""
        await call.run_tool("slow", {})
        return "ok"

    async def main() -> None:
        ends: list[int] = []
        async with opened(Scripted(CallTools(call("outer")), Say("done")), tools=[outer, slow]) as h:
            h.engine.session.subscribe(
                lambda changes: ends.extend(id for id, each in changes.tasks.items() if not each.after.live)
            )
            root = await h.root()
            asked = await root.submit("go")
            await asyncio.sleep(1)
            await root.abort()
            await asked.wait()
            generation, parent, nested = await h.tasks()
            assert ends == [nested.id, parent.id, generation.id]
            assert isinstance(nested.outcome, stored.Aborted)

    play(main())


# -- recovery ----------------------------------------------------------------------------------------------------------


def story(finds: list[Told]) -> Callable[[Harness], Awaitable[None]]:
    async def told_it(h: Harness) -> None:
        root = await h.root()
        settled = await (await root.submit("go", request_id="ask")).wait()
        assert isinstance(settled, Answered)
        await h.wait_idle()
        finds[:] = await told(root)
        assert await h.engine.session.snapshot(live.LIVE, live.at(live.LIVE, ROOT)) == {}
        live_tasks = await h.tasks(live=True)
        assert live_tasks == ()

    return told_it


def family(trial: Trial, outer_is: Replay, inner_is: Replay) -> list[Tool]:
    """A tool that makes three calls of another one, the last two at the same time."""

    @tool(replay=inner_is)
    async def inner(n: int) -> int:
        """Inner."""
        trial.did(f"inner {n}")
        await asyncio.sleep(1)
        return n

    @tool(replay=outer_is)
    async def outer(call: Call) -> str:
        """Outer."""
        trial.did("outer")
        found: list[Json] = []
        for asked in (
            [call.run_tool("inner", {"n": 1})],
            [call.run_tool("inner", {"n": 2}, key="two"), call.run_tool("inner", {"n": 3}, key="three")],
        ):
            got = await asyncio.gather(*asked, return_exceptions=True)
            found += [str(each) if isinstance(each, BaseException) else each for each in got]
        return repr(found)

    return [outer, inner]


@pytest.mark.parametrize("inner_is", ["safe", "unsafe"])
@pytest.mark.parametrize("outer_is", ["safe", "unsafe"])
def test_e2_e3_o7_nested_calls_hold_their_promises_wherever_they_die(outer_is: Replay, inner_is: Replay) -> None:
    finds: list[Told] = []
    trial = Trial(story(finds))
    trial.tools = family(trial, outer_is, inner_is)
    trial.models = [Scripted(CallTools(call("outer")), Say("done"))]
    results: Counter[str] = Counter()
    for died in trial.sweep(deaths=1):
        counts = Counter(trial.ledger)
        assert counts["outer"] <= (1 + died if outer_is == "safe" else 1)
        for n in (1, 2, 3):
            most = 1 + died if inner_is == outer_is == "safe" else 1
            assert counts[f"inner {n}"] <= most
        (found,) = finds
        if outer_is == "safe":
            assert found.codes == ()
            if inner_is == "safe":
                assert found.text == "[1, 2, 3]"
        else:
            assert found.codes in ((), ("interrupted",))
        results["cut off" if "cut off" in found.text else found.text] += 1
    assert results["[1, 2, 3]"] > 3
    assert (results["cut off"] > 0) == ("unsafe" in (outer_is, inner_is))


def test_m1_a_result_that_a_rerun_finds_is_not_made_again() -> None:
    finds: list[Told] = []
    trial = Trial(story(finds))
    trial.tools = family(trial, "safe", "unsafe")
    trial.models = [Scripted(CallTools(call("outer")), Say("done"))]
    after_first = [
        death for death in trial.live() if isinstance(death, Cut) and "inner 2" in death.ledger and left(death).calls()
    ]
    assert len(after_first) >= 3
    for death in after_first:
        trial.live(death)
        assert trial.ledger.count("inner 1") == 1
        assert finds[0].text.startswith("[1, ")


def test_o7_what_an_unsafe_call_left_is_given_up_before_anything_else_and_runs_no_phase() -> None:
    finds: list[Told] = []
    trial = Trial(story(finds))
    trial.tools = family(trial, "unsafe", "safe")
    trial.models = [Scripted(CallTools(call("outer")), Say("done"))]
    given_up = 0
    for death in trial.live():
        assert isinstance(death, Cut)
        nested = [task for task in left(death).calls() if task.owner is not None and "parent" in str(task.input)]
        if not nested:
            continue
        assert all(task.abandon_on_restart for task in nested)
        trial.live(death)
        assert trial.ledger == list(death.ledger)
        assert finds[0].codes == ("interrupted",)
        given_up += 1
    assert given_up > 5


def test_e6_a_rerun_that_asks_otherwise_is_told_so_and_does_not_get_another_calls_result() -> None:
    finds: list[Told] = []
    attempts: list[int] = []
    trial = Trial(story(finds))

    @tool(replay="safe")
    async def outer(call: Call) -> str:
        """Outer."""
        attempts.append(1)
        trial.did("outer")
        await call.run_tool("add", {"a": len(attempts), "b": 0})
        await asyncio.sleep(1)
        return "ok"

    trial.tools = [outer, add]
    trial.models = [Scripted(CallTools(call("outer")), Say("done"))]
    refused = 0
    for death in trial.live():
        if any("parent" in str(task.input) for task in left(death).tasks) and left(death).calls("execute"):
            trial.live(death)
            if len(finds[0].codes) and isinstance(death, Cut) and "outer" in death.ledger:
                assert finds[0].codes == ("tool_error",)
                assert "give each its own key" in finds[0].text
                refused += 1
    assert refused > 2


# -- conversations of a call -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replay", ["safe", "unsafe"])
def test_o1_a_calls_conversation_is_made_once_and_asked_once_wherever_it_dies(replay: Replay) -> None:
    finds: list[Told] = []
    made: list[int] = []
    users: list[int] = []

    async def client(h: Harness) -> None:
        await story(finds)(h)
        page = await h.engine.session.scan_conversations(ConversationQuery(), limit=100)
        made[:] = [record.id for record in page.items if record.id != ROOT]
        users[:] = []
        for id in made:
            entries = await (await h.conversation(id)).entries()
            users.append(sum(entry.kind == "pi.user" for entry in entries.items))

    trial = Trial(client)

    @tool(replay=replay)
    async def delegate(call: Call) -> str:
        """Delegate."""
        trial.did("delegate")
        child = await call.conversation(tools=[])
        other = await call.conversation("other", tools=[], instructions="Be other.")
        assert (await call.conversation(tools=[])).id == child.id
        texts: list[str] = []
        for each, purpose in ((child, "ask"), (other, "other")):
            asked = await each.submit("sub", request_id=call.key(purpose))
            settled = await asked.wait()
            texts.append(settled.text if isinstance(settled, Answered) else settled.reason)
        return " ".join(texts)

    def answer(request: ModelRequest) -> Say | CallTools:
        last = request.messages[-1]
        if role_of(last) == "user":
            return Say("from below") if text_of(last) == "sub" else CallTools(call("delegate"))
        return Say("done")

    trial.tools, trial.models = [delegate], [Scripted.by(answer)]
    for died in trial.sweep(deaths=1):
        (found,) = finds
        if replay == "safe":
            assert found.text == "from below from below"
            assert users == [1, 1]
            assert len(made) == 2
        else:
            assert found.codes in ((), ("interrupted",))
            assert len(made) <= 2
            assert all(count <= 1 for count in users)
        assert trial.ledger.count("delegate") <= (1 + died if replay == "safe" else 1)


def test_o6_the_conversation_of_a_cut_call_sends_no_request_more_and_ends_with_it() -> None:
    finds: list[Told] = []
    trial = Trial(story(finds))

    @tool()
    async def delegate(call: Call) -> str:
        """Delegate."""
        child = await call.conversation(tools=[])
        asked = await child.submit("sub", request_id=call.key("ask"))
        settled = await asked.wait()
        return settled.text if isinstance(settled, Answered) else settled.reason

    def answer(request: ModelRequest) -> Say | CallTools:
        last = request.messages[-1]
        if role_of(last) == "user" and text_of(last) == "sub":
            trial.did("asked below")
            return Say("from below", chunks=4, delay=timedelta(seconds=1))
        return CallTools(call("delegate")) if role_of(last) == "user" else Say("done")

    trial.tools, trial.models = [delegate], [Scripted.by(answer)]
    cut = 0
    for death in trial.live():
        assert isinstance(death, Cut)
        below = [task for task in left(death).tasks if task.live and task.conversation != ROOT]
        trial.live(death)
        if below:
            cut += 1
            assert trial.ledger == list(death.ledger)
            assert finds[0].codes == ("interrupted",)
    assert cut > 5
