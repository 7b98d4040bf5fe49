"""What a tool call is to its model, its reader and the tool itself: results, their codes, what a call may do."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pidurable_nb import AgentChange, Call, Done, Extension, Harness, Input, Json, Output, Phase, Runtime, tool
from pidurable_nb.agent.extending.hooking import Block, HookApi, Hooks, Replace
from pidurable_nb.agent.stored import live
from pidurable_nb.errors import InvocationEnded, ToolError
from pidurable_nb.ids import ROOT, JsonObject
from pidurable_nb.models import CallTools, PlannedCall, Say, Scripted, call
from pidurable_nb.records import task as stored
from pidurable_nb.records.message import Diagnostic, ToolCall, items
from pidurable_nb.session.changes import Changes
from pidurable_nb.session.documents import Document
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.tools import Environment, OutputLimits
from pidurable_nb.tools.tool import Replay, Tool
from tests.agent.trial import Told, answer_to, opened, play, told


def one(tool: Tool, *planned: PlannedCall, hooks: Hooks | None = None, environment: Environment | None = None) -> Told:
    """What the model is told of its call of the tool; it answers afterwards in any case."""
    calls = planned or (call(tool.name),)
    extensions = [Extension("hooks", hooks=hooks)] if hooks is not None else []

    async def main() -> Told:
        model = Scripted(CallTools(*calls), Say("done"))
        async with opened(model, tools=[tool], extensions=extensions, environment=environment) as h:
            assert await answer_to(h, "go") == "done"
            (found,) = await told(await h.root())
            return found

    return play(main())


@tool(replay="safe")
async def lookup(host: str, port: int = 80) -> dict[str, Json]:
    """Look up."""
    return {"host": host, "port": port}


# -- results -----------------------------------------------------------------------------------------------------------


def test_e4_a_result_is_text_json_or_output_and_has_the_time_that_it_took() -> None:
    @tool()
    async def slow() -> str:
        """Slow."""
        await asyncio.sleep(0.25)
        return "slept"

    assert one(slow).text == "slept"
    assert one(slow).message["durationMs"] == 250
    assert one(slow).message["content"] == [{"type": "text", "text": "slept"}]
    assert one(lookup, call("lookup", host="::1")).text == '{\n  "host": "::1",\n  "port": 80\n}'


def test_e4_a_raise_is_an_error_result_with_the_output_so_far_and_the_task_fails() -> None:
    @tool()
    async def fails(call: Call) -> str:
        """Fails."""
        call.progress("half\n")
        call.diagnostic(Diagnostic(severity="info", message="spilled"))
        await call.details({"at": 3})
        raise ValueError("no such host")

    async def main() -> None:
        async with opened(Scripted(CallTools(call("fails")), Say("done")), tools=[fails]) as h:
            assert await answer_to(h, "go") == "done"
            (found,) = await told(await h.root())
            assert found.error
            assert found.codes == (None, "tool_error")
            assert found.text == "half\n<harness>\n[info] spilled\n[error] no such host\n</harness>"
            assert found.message["details"] == {"at": 3}
            assert found.message["durationMs"] == 100
            (task,) = await h.tasks(kind="pi.tool")
            assert isinstance(task.outcome, stored.Failed)
            assert isinstance(task.outcome.result, dict)
            assert set(task.outcome.result) == {"kind", "entryId"}

    play(main())


def test_e4_a_tool_error_says_what_its_author_wrote_and_an_error_without_words_its_kind() -> None:
    @tool()
    async def refuses() -> str:
        """Refuses."""
        raise ToolError("not on Sundays")

    @tool()
    async def mute() -> str:
        """Raises without words."""
        raise KeyError

    assert one(refuses).text == "<harness>\n[error] not on Sundays\n</harness>"
    assert one(mute).text == "<harness>\n[error] mute raised KeyError\n</harness>"


def test_e4_an_error_result_that_is_returned_completes() -> None:
    @tool()
    async def says_no() -> Output:
        """Says no."""
        return Output(content="no", is_error=True, diagnostics=(Diagnostic(severity="warn", message="hm", code="x"),))

    found = one(says_no)
    assert (found.error, found.text, found.codes) == (True, "no<harness>\n[warn] hm\n</harness>", ("x",))
    assert "durationMs" in found.message


def test_e4_a_cancellation_that_nobody_asked_for_is_the_tools_own_error() -> None:
    @tool()
    async def waits() -> str:
        """Waits for what is cancelled."""
        other = asyncio.ensure_future(asyncio.sleep(10))
        asyncio.get_running_loop().call_later(0.01, other.cancel)
        await other
        return "never"

    found = one(waits)
    assert found.codes == ("tool_error",)
    assert "cancelled" in found.text


def test_arguments_that_do_not_fit_are_an_error_that_names_every_field_and_the_tool_does_not_run() -> None:
    found = one(lookup, call("lookup", port="many", depth=2))
    assert found.codes == ("invalid_arguments",)
    assert "host" in found.text
    assert "port" in found.text
    assert "depth" in found.text
    assert "durationMs" not in found.message


@pytest.mark.parametrize("arguments", ["{", "[1]", "null", '"x"', "{'host': 1}", "NaN", '{"host": NaN}'])
def test_arguments_that_are_no_object_are_an_error_and_the_model_goes_on(arguments: str) -> None:
    assert one(lookup, PlannedCall("lookup", arguments)).codes == ("invalid_arguments",)


def test_arguments_are_repaired_before_they_are_checked_and_a_repair_that_raises_is_an_error() -> None:
    @tool(
        prepare_arguments=lambda given: {"hosts": str(given["hosts"]).split(",")} if isinstance(given, dict) else given
    )
    async def ping(hosts: list[str]) -> str:
        """Ping."""
        return " ".join(hosts)

    assert one(ping, call("ping", hosts="a,b")).text == "a b"
    broken = one(ping, call("ping"))
    assert broken.codes == ("invalid_arguments",)
    assert "KeyError" in broken.text


def hook(answer: Replace | Block | None | Exception) -> Hooks:
    async def before_tool(call: ToolCall, api: HookApi) -> Replace | Block | None:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Hooks(before_tool=before_tool)


def test_e4_before_tool_replaces_blocks_and_blocks_with_what_it_raises() -> None:
    asked = call("lookup", host="a")
    assert one(lookup, asked, hooks=hook(Replace({"host": "b"}))).message["isError"] is False
    assert '"b"' in one(lookup, asked, hooks=hook(Replace({"host": "b"}))).text
    assert one(lookup, asked, hooks=hook(Replace({"hosts": "b"}))).codes == ("invalid_arguments",)
    assert one(lookup, asked, hooks=hook(Block("read-only"))).text == "<harness>\n[error] read-only\n</harness>"
    assert one(lookup, asked, hooks=hook(Block("read-only"))).codes == ("blocked",)
    assert one(lookup, asked, hooks=hook(ValueError("oops"))).codes == ("blocked",)
    assert "oops" in one(lookup, asked, hooks=hook(ValueError("oops"))).text


def test_usage_of_a_tool_is_on_its_result_and_in_the_sum_of_the_conversation() -> None:
    usage: JsonObject = {"input": 3, "output": 4, "totalTokens": 7, "cost": {"total": 0.5}}

    @tool()
    async def thinks() -> Output:
        """Thinks."""
        return Output(content="t", usage=usage)

    async def main() -> None:
        model = Scripted(CallTools(call("thinks"), call("thinks")), Say("done"))
        async with opened(model, tools=[thinks]) as h:
            root = await h.root()
            assert await answer_to(h, "go") == "done"
            for found in await told(root):
                assert found.message["usage"] == usage
            spent = (await root.usage()).tools["thinks"]
            assert (spent["input"], spent["output"], spent["totalTokens"]) == (6, 8, 14)

    play(main())


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retain", ["head", "tail"])
def test_v5_running_output_is_bounded_to_whole_lines_and_says_what_was_dropped(retain: str) -> None:
    @tool(limits=OutputLimits(retain="head" if retain == "head" else "tail"))
    async def prints(call: Call) -> None:
        """Prints."""
        for n in range(10_000):
            call.progress(f"line {n}\n")

    found = one(prints)
    kept, _, said = found.text.partition("<harness>")
    lines = kept.splitlines()
    first = 0 if retain == "head" else 8000
    assert lines == [f"line {n}" for n in range(first, first + 2000)]
    assert kept.endswith("\n")
    assert "[warn] output truncated: 8,000 lines" in said
    assert found.codes == ("truncated",)
    assert not found.error


def test_v5_two_hundred_megabytes_of_output_leave_fifty_kibibytes() -> None:
    @tool()
    async def prints(call: Call) -> None:
        """Prints."""
        block = ("x" * 99 + "\n") * 10_000
        for _ in range(200):
            call.progress(block)
            await asyncio.sleep(0)

    found = one(prints)
    kept, _, said = found.text.partition("<harness>")
    assert 51_000 < len(kept) <= 51_200
    assert set(kept.splitlines()) == {"x" * 99}
    assert f"{200_000_000 - len(kept):,} bytes dropped" in said


def test_v5_content_of_a_result_is_bounded_like_its_output_and_other_blocks_stay() -> None:
    image: JsonObject = {"type": "image", "data": "x" * 60_000, "mimeType": "image/png"}

    @tool()
    async def returns() -> Output:
        """Returns much."""
        return Output(content=[{"type": "text", "text": "a\n" * 3000}, image])

    found = one(returns)
    content = items(found.message["content"])
    assert content[0] == {"type": "text", "text": "a\n" * 2000}
    assert content[1] == image
    assert found.codes == ("truncated",)


# -- offered and available ---------------------------------------------------------------------------------------------


def test_v2_a_call_of_a_tool_that_was_not_offered_has_its_error_at_once_and_no_task() -> None:
    async def main() -> None:
        model = Scripted(CallTools(call("nmap", host="x")), Say("done"))
        async with opened(model, tools=[lookup]) as h:
            assert await answer_to(h, "go") == "done"
            (found,) = await told(await h.root())
            assert found.codes == ("tool_unavailable",)
            assert "durationMs" not in found.message
            assert await h.tasks(kind="pi.tool") == ()

    play(main())


def test_a_tool_that_was_filtered_or_uninstalled_after_it_was_offered_is_unavailable() -> None:
    for remove in ("filter", "uninstall"):

        async def main(remove: str = remove) -> None:
            model = Scripted(CallTools(call("lookup", host="x"), text="", delay=timedelta(seconds=1)), Say("done"))
            async with opened(model, extensions=[Extension("net", tools=[lookup])]) as h:
                root = await h.root()
                asked = await root.submit("go")
                await asyncio.sleep(0.5)
                if remove == "filter":
                    await root.configure(AgentChange(tools=[]))
                else:
                    h.uninstall("net")
                await asked.wait()
                (found,) = await told(root)
                assert found.codes == ("tool_unavailable",)
                (task,) = await h.tasks(kind="pi.tool")
                assert isinstance(task.outcome, stored.Completed)

        play(main())


def test_a_reload_between_intent_and_execution_changes_nothing_for_the_call() -> None:
    @tool(name="lookup")
    async def other(host: str) -> str:
        """Another."""
        return "the new one"

    async def main() -> None:
        model = Scripted(CallTools(call("lookup", host="x")), CallTools(call("lookup", host="x")), Say("done"))
        async with opened(model, extensions=[Extension("net", tools=[lookup])]) as h:

            def reload(changes: Changes) -> None:
                if any(change.after.phase == "execute" for change in changes.tasks.values()):
                    h.install(Extension("net", tools=[other]))

            h.engine.session.subscribe(reload)
            assert await answer_to(h, "go") == "done"
            first, second = await told(await h.root())
            assert '"host"' in first.text
            assert second.text == "the new one"

    play(main())


# -- barriers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hooked", [False, True], ids=["fused", "hooked"])
@pytest.mark.parametrize("replay", ["safe", "unsafe"])
def test_e1_e5_the_intent_is_stored_before_the_effect_and_is_a_barrier_exactly_when_unsafe(
    replay: Replay, hooked: bool
) -> None:
    seen: list[tuple[str, bool]] = []

    @tool(replay=replay)
    async def act(n: int) -> str:
        """Act."""
        seen.append(("effect", False))
        return "acted"

    async def main() -> None:
        extensions = [Extension("hooks", hooks=hook(None))] if hooked else []
        model = Scripted(CallTools(call("act", n=1)), Say("done"))
        async with opened(model, tools=[act], extensions=extensions) as h:

            def follow(changes: Changes) -> None:
                phases = [change.after.phase for change in changes.tasks.values() if change.after.kind == "pi.tool"]
                if "execute" in phases:
                    (intent,) = [each.after for each in changes.tasks.values() if each.after.phase == "execute"]
                    checkpoint = intent.checkpoint or {}
                    assert (checkpoint["arguments"], checkpoint["replay"]) == ({"n": 1}, replay)
                    seen.append(("intent", changes.barrier))
                else:
                    assert not changes.barrier

            h.engine.session.subscribe(follow)
            assert await answer_to(h, "go") == "done"

    play(main())
    assert seen == [("intent", replay == "unsafe"), ("effect", False)]


def test_e5_an_unsafe_call_that_comes_later_in_a_sequential_round_makes_no_barrier_of_the_answer() -> None:
    barriers: list[tuple[str | None, ...]] = []

    @tool(replay="safe", mode="sequential")
    async def first() -> str:
        """First."""
        return "1"

    @tool(replay="unsafe")
    async def second() -> str:
        """Second."""
        return "2"

    async def main() -> None:
        model = Scripted(CallTools(call("first"), call("second")), Say("done"))
        async with opened(model, tools=[first, second]) as h:

            def follow(changes: Changes) -> None:
                if changes.barrier:
                    barriers.append(tuple(change.after.phase for change in changes.tasks.values()))

            h.engine.session.subscribe(follow)
            assert await answer_to(h, "go") == "done"

    play(main())
    assert barriers == [("execute",)]


# -- what a call may do ------------------------------------------------------------------------------------------------


def test_v5_progress_is_in_the_slot_while_the_tool_runs_and_gone_with_its_result() -> None:
    async def main() -> None:
        shown: list[JsonObject] = []

        @tool()
        async def works(call: Call) -> str:
            """Works."""
            call.progress("one\n")
            call.diagnostic(Diagnostic(severity="info", message="hm"))
            await call.details({"step": 1})
            call.progress("two\n")
            await asyncio.sleep(1)
            return "ok"

        async with opened(Scripted(CallTools(call("works")), Say("done")), tools=[works]) as h:

            def follow(changes: Changes) -> None:
                for change in changes.documents:
                    if change.record.kind == "pi.live" and change.value is not None:
                        shown.extend(slot for slot in items(change.value.get("tools")) if isinstance(slot, dict))

            h.engine.session.subscribe(follow)
            assert await answer_to(h, "go") == "done"
            assert await h.engine.session.snapshot(live.LIVE, live.at(live.LIVE, ROOT)) == {}
        outputs = list(dict.fromkeys(str(slot.get("output")) for slot in shown))
        assert outputs == ["None", "one\n", "one\ntwo\n"]
        assert {"details", "diagnostics"} <= set(shown[1])

    play(main())


def test_v5_details_return_when_they_are_stored_and_a_later_value_waits_for_its_own_commit() -> None:
    async def main() -> None:
        async def stored_details(h: Harness) -> Json:
            state = await h.engine.session.snapshot(live.LIVE, live.at(live.LIVE, ROOT)) or {}
            slots = [slot for slot in items(state.get("tools")) if isinstance(slot, dict)]
            return slots[0].get("details") if slots else None

        holder: list[Harness] = []

        @tool()
        async def works(call: Call) -> str:
            """Works."""

            async def report(n: int) -> None:
                await asyncio.sleep(n / 1000)
                await call.details({"step": n})
                kept = await stored_details(holder[0])
                assert isinstance(kept, dict)
                step = kept["step"]
                assert isinstance(step, int)
                assert step >= n

            await asyncio.gather(*(report(n) for n in range(300)))
            return "ok"

        class Slow(MemoryStorage):
            async def commit(self, group):  # type: ignore[no-untyped-def]
                await asyncio.sleep(0.003)
                return await super().commit(group)

        async with opened(Scripted(CallTools(call("works")), Say("done")), tools=[works], store=Slow()) as h:
            holder.append(h)
            assert await answer_to(h, "go") == "done"
            (found,) = await told(await h.root())
            assert found.text == "ok"

    play(main())


def test_v5_large_progress_is_stored_less_often_details_count_too() -> None:
    commits: dict[str, int] = {}

    def of(size: int, name: str) -> None:
        async def main() -> None:
            @tool()
            async def works(call: Call) -> str:
                """Works."""
                for n in range(50):
                    await call.details({"n": n, "x": "x" * size})
                    await asyncio.sleep(0.05)
                return "ok"

            store = MemoryStorage()
            async with opened(Scripted(CallTools(call("works")), Say("done")), tools=[works], store=store) as h:
                began = asyncio.get_running_loop().time()
                assert await answer_to(h, "go") == "done"
                commits[name] = round(asyncio.get_running_loop().time() - began)

        play(main())

    of(10, "small")
    of(102_400, "large")
    assert commits["large"] > 5 * commits["small"]


def test_e6_keys_are_distinct_for_every_purpose_and_every_call() -> None:
    keys: list[str] = []

    @tool()
    async def pays(call: Call, n: int = 0) -> str:
        """Pays."""
        keys.extend([call.key("charge"), call.key("refund"), call.key("charge")])
        return "ok"

    async def main() -> None:
        model = Scripted(CallTools(call("pays"), call("pays")), CallTools(call("pays")), Say("done"))
        async with opened(model, tools=[pays]) as h:
            assert await answer_to(h, "go") == "done"

    play(main())
    charges, refunds, again = keys[0::3], keys[1::3], keys[2::3]
    assert charges == again
    assert len({*charges, *refunds}) == 6


def test_m1_the_harness_keeps_memo_names_for_itself_and_a_tool_is_told() -> None:
    @tool()
    async def memos(call: Call) -> str:
        """Memos."""
        assert await call.memo("app.n", 1) == 1
        assert await call.memo("app.n", 2) == 1
        assert await call.recall("app.n", int) == 1
        for name in ("pi.tool.conversation", "pi.x", "pidurable.fault"):
            with pytest.raises(Exception, match="names that start with"):
                await call.memo(name, 1)
            with pytest.raises(Exception, match="names that start with"):
                await call.recall(name, int)
        return "ok"

    assert one(memos).text == "ok"


class Notes(Document, kind="app.notes", scope="conversation", version=1):
    count: int = 0


class Private(Document, kind="app.private", scope="task", version=1):
    count: int = 0


class Add(Phase[int], task="demo.add"):
    n: Input[int]

    async def run(self, rt: Runtime) -> Done[int]:
        return Done(self.n + 1)


def test_o1_a_commit_of_a_call_owns_what_it_makes_and_cannot_end_the_call() -> None:
    @tool()
    async def works(call: Call) -> str:
        """Works."""
        async with call.commit() as tx:
            notes = await tx.edit(Notes)
            notes.count += 1
            private = await tx.edit(Private)
            private.count = 7
            child = await tx.create_conversation()
            ref = tx.spawn(Add(1))
        assert await call.wait(ref) == 2
        assert (await call.read(Notes)).count == 1
        assert (await call.read(Private)).count == 7
        with pytest.raises(Exception, match="a tool cannot become"):
            async with call.commit() as tx:
                tx.become(Done(1))
        with pytest.raises(ZeroDivisionError):
            async with call.commit() as tx:
                (await tx.edit(Notes)).count = 99
                _ = 1 / 0
        assert (await call.read(Notes)).count == 1
        return f"{child} {ref.id}"

    async def main() -> None:
        async with opened(Scripted(CallTools(call("works")), Say("done")), tools=[works]) as h:
            h.install(Add)
            assert await answer_to(h, "go") == "done"
            (found,) = await told(await h.root())
            child, ref = map(int, found.text.split())
            (task,) = await h.tasks(kind="pi.tool")
            assert (await h.task(ref)).owner == task.id
            record = await (await h.conversation(child)).record()
            assert record.owner is not None
            assert record.owner.task == task.id

    play(main())


def test_t13_nothing_of_a_call_works_once_the_tool_has_returned() -> None:
    kept: list[Call] = []
    refused: list[str] = []

    @tool()
    async def leaks(call: Call) -> str:
        """Leaks."""
        kept.append(call)
        return "ok"

    async def after_tool(asked: ToolCall, result: Output, api: HookApi) -> None:
        call = kept[0]
        with pytest.raises(InvocationEnded):
            call.progress("late")
        with pytest.raises(InvocationEnded):
            call.diagnostic(Diagnostic(severity="info", message="late"))
        for late in (
            call.details(1), call.memo("x", 1), call.recall("x", int), call.read(Notes), call.conversation(),
            call.run_tool("leaks", {}), call.agent(), call.spawn(Add(1)),
        ):  # fmt: skip
            with pytest.raises(InvocationEnded):
                await late
        with pytest.raises(InvocationEnded):
            call.commit()
        refused.append("all")

    assert one(leaks, hooks=Hooks(after_tool=after_tool)).text == "ok"
    assert refused == ["all"]
    with pytest.raises(InvocationEnded):
        kept[0].progress("later")


def test_o2_a_call_that_failed_aborts_what_it_owns_and_one_that_completed_waits_for_it() -> None:
    class Slow(Phase[str], task="demo.slow"):
        async def run(self, rt: Runtime) -> Done[str]:
            await asyncio.sleep(30)
            return Done("slept")

    for fails in (False, True):

        @tool()
        async def starts(call: Call, fails: bool = fails) -> str:
            """Starts."""
            async with call.commit() as tx:
                tx.spawn(Slow())
            if fails:
                raise ToolError("no")
            return "ok"

        async def main(fails: bool = fails, starts: Tool = starts) -> None:
            async with opened(Scripted(CallTools(call("starts")), Say("done")), tools=[starts]) as h:
                h.install(Slow)
                began = asyncio.get_running_loop().time()
                assert await answer_to(h, "go") == "done"
                assert (asyncio.get_running_loop().time() - began >= 30) == (not fails)
                (task,) = await h.tasks(kind="demo.slow")
                assert isinstance(task.outcome, stored.Aborted if fails else stored.Completed)

        play(main())


# -- environments ------------------------------------------------------------------------------------------------------


@tool(replay="safe")
async def where(call: Call) -> str:
    """Where."""
    return repr(call.environment)


def test_an_environment_is_built_for_every_call_and_one_that_raises_is_an_error_of_the_call() -> None:
    async def main() -> None:
        asked: list[tuple[int, str | None]] = []

        def environment(conversation: int, cwd: str | None) -> None:
            asked.append((conversation, cwd))
            if len(asked) > 3:
                raise OSError("the sandbox is gone")

        model = Scripted(CallTools(call("where")), CallTools(call("where")), Say("done"))
        async with opened(model, tools=[where], environment=environment) as h:
            await h.root(agent=AgentChange(cwd="/srv"))
            assert await answer_to(h, "go") == "done"
            first, second = await told(await h.root())
            assert first.text == "None"
            assert second.codes == ("tool_error",)
            assert "the sandbox is gone" in second.text
            assert "durationMs" not in second.message
            assert set(asked) == {(1, "/srv")}

    play(main())


def test_e6_c6_the_same_ids_with_other_arguments_are_another_key() -> None:
    # A power cut may take a call back, and mint its ids again for another one.
    def keyed(cents: int) -> tuple[int, str]:
        keys: list[tuple[int, str]] = []

        @tool()
        async def pay(cents: int, call: Call) -> None:
            """Pay."""
            keys.append((call.task_id, call.key("pay")))

        async def main() -> None:
            model = Scripted(CallTools(call("pay", cents=cents)), Say("paid"))
            async with Harness.open(MemoryStorage(origin="one"), tools=[pay], models=[model]) as h:
                await (await (await h.root()).submit("pay")).wait()

        play(main())
        return keys[0]

    (first, one), (second, other), again = keyed(1), keyed(2), keyed(1)
    assert first == second
    assert one != other
    assert again == (first, one)
