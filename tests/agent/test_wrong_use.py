"""Wrong use of tools, and tools that go wrong: a clear error or a bounded result, and the conversation answers on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Call, Done, Extension, Harness, Input, Json, Output, Phase, Runtime, tool
from pidurable_nb.agent.extending.hooking import HookApi, Hooks, Replace
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.agent.stored import live
from pidurable_nb.errors import StorageError, ToolError, ToolRefused
from pidurable_nb.ids import ROOT, JsonObject
from pidurable_nb.models import CallTools, Say, Scripted, call
from pidurable_nb.records import task as stored
from pidurable_nb.records.message import Diagnostic, ToolCall
from pidurable_nb.records.transcript import Unanswered
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.tools import Environment
from pidurable_nb.tools.tool import Tool
from tests.agent.trial import Told, answer_to, opened, play, told

Body = Callable[[Call], Awaitable[object]]


def of(body: Body, *, environment: Environment | None = None) -> Told:
    """What the model is told of a tool with this body; the conversation answers that input and the next one."""

    @tool()
    async def acts(call: Call) -> object:
        """Act."""
        return await body(call)

    async def main() -> Told:
        model = Scripted(CallTools(call("acts")), Say("done"), Say("still here"))
        async with opened(model, tools=[acts], environment=environment) as h:
            assert await answer_to(h, "go") == "done"
            assert await answer_to(h, "and now?") == "still here"
            (found,) = await told(await h.root())
            assert await h.engine.session.snapshot(live.LIVE, live.at(live.LIVE, ROOT)) == {}
            return found

    return play(main())


# -- where a tool is defined -------------------------------------------------------------------------------------------


def test_a_tool_without_annotations_parentheses_docstring_or_async_is_refused_where_it_is_defined() -> None:
    with pytest.raises(ToolRefused, match="host"):

        @tool()
        async def lookup(host) -> str:  # type: ignore[no-untyped-def]
            """Look up."""
            return "x"

    with pytest.raises(ToolRefused, match="parentheses"):

        @tool  # type: ignore[arg-type]
        async def bare() -> str:
            """Bare."""
            return "x"

    with pytest.raises(ToolRefused, match="docstring"):

        @tool()
        async def silent() -> str:
            return "x"

    with pytest.raises(ToolRefused, match="not async"):

        @tool()  # type: ignore[arg-type]
        def plain() -> str:
            """Plain."""
            return "x"


def test_two_tools_of_one_name_in_one_extension_are_refused_when_it_is_opened() -> None:
    def named(text: str) -> Tool:
        @tool(name="same")
        async def same() -> str:
            """Same."""
            return text

        return same

    async def main() -> None:
        with pytest.raises(Exception, match="same"):
            async with opened(Scripted("x"), tools=[named("1"), named("2")]):
                pass

    play(main())


# -- what a tool returns -----------------------------------------------------------------------------------------------

CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "value",
    [object(), b"bytes", {1: 2}, {"x": float("nan")}, 2**60, Decimal(1), {1, 2}, CYCLE, print, iter([1])],
    ids=["object", "bytes", "int keys", "nan", "large", "decimal", "set", "cycle", "function", "iterator"],
)
def test_c7_a_value_that_cannot_be_stored_is_an_error_of_the_call_that_names_the_tool(value: object) -> None:
    async def body(call: Call) -> object:
        return value

    found = of(body)
    assert found.codes == ("tool_error",)
    assert "acts" in found.text


@pytest.mark.parametrize(
    "output",
    [
        Output(details={"x": object()}),  # type: ignore[dict-item]
        Output(usage={"input": float("inf")}),
        Output(content=[{"text": "no type"}]),
        Output(content=[{"type": "text"}]),
        Output(content=[1]),  # type: ignore[list-item]
        Output(content=b"bytes"),  # type: ignore[arg-type]
        Output(add_tools=(1,)),  # type: ignore[arg-type]
        Output(handoff=1),  # type: ignore[arg-type]
        Output(diagnostics=("text",)),  # type: ignore[arg-type]
        Output(content=3),  # type: ignore[arg-type]
    ],
    ids=["details", "usage", "type", "text", "block", "bytes", "add", "handoff", "said", "number"],
)
def test_c7_an_output_that_cannot_be_stored_is_an_error_of_the_call(output: Output) -> None:
    async def body(call: Call) -> object:
        return output

    found = of(body)
    assert found.codes == ("tool_error",)


def test_c7_what_cannot_be_reported_is_refused_at_the_call_that_reports_it() -> None:
    async def body(call: Call) -> str:
        with pytest.raises(Exception, match="details"):
            await call.details({"x": float("nan")})
        with pytest.raises(Exception, match="None is not a value"):
            await call.memo("app.x", None)  # type: ignore[type-var]
        for wrong in (3, None, ["x"]):
            with pytest.raises(TypeError):
                call.progress(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a diagnostic is"):
            call.diagnostic("text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="both are text"):
            Diagnostic(severity="info", message=3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="severity"):
            Diagnostic(severity="fatal", message="x")  # type: ignore[arg-type]
        return "ok"

    assert of(body).text == "ok"


def deep(levels: int) -> Json:
    value: Json = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [100, 192, 193, 197, 198, 199, 200, 201, 5000])
def test_c7_values_that_are_nested_too_deep_for_what_holds_them_are_errors_of_the_call(levels: int) -> None:
    async def details(call: Call) -> str:
        await call.details(deep(levels))
        return "ok"

    async def of_output(call: Call) -> object:
        return Output(content="ok", details=deep(levels))

    async def block(call: Call) -> object:
        return Output(content=[{"type": "odd", "value": deep(levels)}])

    async def before_tool(call: ToolCall, api: HookApi) -> Replace:
        return Replace({"x": deep(levels)})

    async def after_tool(call: ToolCall, result: Output, api: HookApi) -> Output:
        return Output(content="ok", details=deep(levels))

    @tool(replay="safe")
    async def takes(x: Json) -> str:
        """Take."""
        return "ok"

    for body in (details, of_output, block):
        codes = of(body).codes
        assert codes in ((), ("tool_error",))
        assert (codes == ()) == (levels <= 190) or 190 < levels <= 192

    async def main(hooks: Hooks, codes: set[tuple[str | None, ...]]) -> None:
        model = Scripted(CallTools(call("takes", x=1)), Say("done"))
        async with opened(model, tools=[takes], extensions=[Extension("deep", hooks=hooks)]) as h:
            assert await answer_to(h, "go") == "done"
            (found,) = await told(await h.root())
            assert found.codes in codes

    play(main(Hooks(before_tool=before_tool), {()} if levels < 190 else {(), ("invalid_arguments",), ("blocked",)}))
    play(main(Hooks(after_tool=after_tool), {()}))


def test_c7_a_nested_call_with_what_is_too_deep_is_an_error_and_so_is_a_result() -> None:
    levels = 195

    @tool(replay="safe")
    async def inner(x: Json, levels: int) -> Json:
        """Inner."""
        return deep(levels)

    @tool()
    async def outer(call: Call) -> str:
        """Outer."""
        with pytest.raises(Exception, match="deeper"):
            await call.run_tool("inner", {"x": deep(levels), "levels": 1})
        with pytest.raises(ToolError, match="deeper"):
            await call.run_tool("inner", {"x": 1, "levels": levels})
        assert await call.run_tool("inner", {"x": 1, "levels": 2}) == [[1]]
        return "ok"

    async def main() -> None:
        async with opened(Scripted(CallTools(call("outer")), Say("done")), tools=[outer, inner]) as h:
            assert await answer_to(h, "go") == "done"
            (found,) = await told(await h.root())
            assert found.text == "ok"

    play(main())


def test_e4_errors_that_cannot_even_say_what_they_are_and_very_long_ones_are_results() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    async def mute(call: Call) -> None:
        raise Mute

    async def long(call: Call) -> None:
        raise ValueError("x" * 10_000_000)

    async def odd(call: Call) -> None:
        raise ValueError("\ud800 \x00 \x1b[31m")

    async def group(call: Call) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(mute(call))
            tasks.create_task(long(call))

    assert "acts raised Mute" in of(mute).text
    assert len(of(long).text) < 3000
    assert of(odd).codes == ("tool_error",)
    assert of(group).codes == ("tool_error",)


def test_c3_a_tool_that_waits_inside_a_commit_block_loses_that_block_only() -> None:
    async def body(call: Call) -> str:
        with pytest.raises(Exception, match="C3"):
            async with call.commit() as tx:
                tx.append("app.note", text="never")
                await asyncio.sleep(1)
        with pytest.raises(Exception, match=r"C5|read"):
            async with call.commit() as tx:
                tx.append("app.note", text="never")
                await tx.conversation(ROOT)
        return "ok"

    assert of(body).text == "ok"


# -- tools that do not end ---------------------------------------------------------------------------------------------


async def aborts(h: Harness) -> None:
    root = await h.root()
    asked = await root.submit("go")
    await asyncio.sleep(1)
    await root.abort()
    settled = await asked.wait()
    assert isinstance(settled, Unanswered)
    assert settled.reason == "aborted"
    (found,) = await told(root)
    assert found.codes == ("aborted",)
    assert await answer_to(h, "and now?") == "still here"


def test_o2_abort_ends_a_tool_that_never_returns() -> None:
    @tool()
    async def hangs() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return "never"

    async def main() -> None:
        async with opened(Scripted(CallTools(call("hangs")), Say("still here")), tools=[hangs]) as h:
            await aborts(h)

    play(main())


def test_t13_abort_ends_a_tool_that_swallows_its_cancellation_and_it_can_write_nothing_any_more() -> None:
    swallowed: list[str] = []

    @tool()
    async def clings(call: Call) -> str:
        """Cling."""
        while len(swallowed) < 8:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                swallowed.append("cancelled")
                try:
                    await call.memo("app.late", 1)
                except Exception as error:
                    swallowed.append(type(error).__name__)
        return "never"

    async def main() -> None:
        reports: list[BaseException] = []
        model = Scripted(CallTools(call("clings")), Say("still here"))
        async with opened(model, tools=[clings], reports=reports) as h:
            await aborts(h)
            assert swallowed == ["cancelled", "InvocationEnded"] * 3
            assert any(isinstance(report, TimeoutError) and "left behind" in str(report) for report in reports)
            (task,) = await h.tasks(kind="pi.tool")
            assert isinstance(task.outcome, stored.Aborted)
            await asyncio.sleep(2000)  # it goes on by itself, and reaches nothing

    play(main())


def test_t13_legitimate_work_in_a_finally_has_its_time_before_a_tool_is_cancelled_again() -> None:
    ended: list[str] = []

    @tool()
    async def cleans() -> str:
        """Clean up."""
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(5)
            ended.append("cleaned")
        return "never"

    async def main() -> None:
        async with opened(Scripted(CallTools(call("cleans")), Say("still here")), tools=[cleans]) as h:
            await aborts(h)

    play(main())
    assert ended == ["cleaned"]


def test_e4_a_tool_that_cancels_itself_or_its_siblings_ends_with_an_error() -> None:
    async def body(call: Call) -> str:
        inner = asyncio.ensure_future(asyncio.sleep(1000))
        inner.cancel()
        await inner
        return "never"

    assert of(body).codes == ("tool_error",)


def test_t13_work_that_a_tool_leaves_behind_reaches_nothing_and_harms_nothing() -> None:
    late: list[str] = []

    async def body(call: Call) -> str:
        async def straggler() -> None:
            await asyncio.sleep(0.5)
            try:
                call.progress("late")
            except Exception as error:
                late.append(type(error).__name__)

        late_task = asyncio.ensure_future(straggler())
        assert not late_task.done()
        return "ok"

    async def main() -> None:
        @tool()
        async def acts(call: Call) -> str:
            """Act."""
            return await body(call)

        async with opened(Scripted(CallTools(call("acts")), Say("done")), tools=[acts]) as h:
            assert await answer_to(h, "go") == "done"
            await asyncio.sleep(1)

    play(main())
    assert late == ["InvocationEnded"]


def test_f3_a_store_of_the_tools_own_that_fails_or_is_closed_is_an_error_of_the_call_only() -> None:
    async def closed(call: Call) -> str:
        async with opened(Scripted("x"), settings=Settings()) as other:
            root = await other.root()
        await root.submit("too late")
        return "never"

    async def failed(call: Call) -> str:
        raise StorageError("my own disk", stored="unknown")

    assert of(closed).codes == ("tool_error",)
    assert of(failed).codes == ("tool_error",)


def test_a_nested_call_takes_an_object() -> None:
    async def body(call: Call) -> str:
        with pytest.raises(TypeError, match="JSON object"):
            await call.run_tool("acts", [1])  # type: ignore[arg-type]
        return "ok"

    assert of(body).text == "ok"


# -- an environment that goes wrong ------------------------------------------------------------------------------------


def test_an_environment_that_is_no_good_is_an_error_of_the_call() -> None:
    async def body(call: Call) -> str:
        if call.environment is None:
            raise ToolError("no environment")
        return "x"

    found = of(body)
    assert found.codes == ("tool_error",)
    assert "no environment" in found.text


def test_o2_an_abort_while_a_hook_thinks_or_an_environment_is_built_ends_the_call() -> None:
    async def slow_hook(call: ToolCall, api: HookApi) -> None:
        await asyncio.sleep(1000)

    async def slow_environment(conversation: int, cwd: str | None) -> None:
        await asyncio.sleep(1000)

    @tool()
    async def acts() -> str:
        """Act."""
        return "acted"

    async def main(hooked: bool) -> None:
        extensions = [Extension("slow", hooks=Hooks(before_tool=slow_hook))] if hooked else []
        model = Scripted(CallTools(call("acts")), Say("still here"))
        asked: list[int] = []

        async def environment(conversation: int, cwd: str | None) -> None:
            asked.append(conversation)
            if len(asked) == 2:  # the first is for the prompt
                await slow_environment(conversation, cwd)

        async with opened(model, tools=[acts], extensions=extensions, environment=None if hooked else environment) as h:
            await aborts(h)

    play(main(True))
    play(main(False))


# -- storage and code in the way ---------------------------------------------------------------------------------------


class Child(Phase[str], task="demo.child"):
    n: Input[int]

    async def run(self, rt: Runtime) -> Done[str]:
        raise ValueError("the child broke")


def test_t11_a_task_of_a_call_that_faults_is_an_error_the_tool_can_handle() -> None:
    async def main() -> None:
        @tool()
        async def acts(call: Call) -> str:
            """Act."""
            async with call.commit() as tx:
                ref = tx.spawn(Child(1))
            try:
                return await call.wait(ref)
            except Exception as error:
                return type(error).__name__

        async with opened(Scripted(CallTools(call("acts")), Say("done")), tools=[acts]) as h:
            h.install(Child)
            assert await answer_to(h, "go") == "done"
            (found,) = await told(await h.root())
            assert found.text == "TaskFaulted"

    play(main())


def test_a_task_that_is_not_installed_is_an_error_of_the_call() -> None:
    async def body(call: Call) -> str:
        async with call.commit() as tx:
            tx.spawn(Child(1))
        return "never"

    found = of(body)
    assert found.codes == ("tool_error",)
    assert "Child" in found.text


# -- odd text (B19) ----------------------------------------------------------------------------------------------------

ODD = {
    "surrogate": "a\ud800b", "nul": "a\x00b", "bom": "\ufeffa\ufeffb", "rtl": "\u202eabc\u05d0\u05d1",
    "ansi": "\x1b[31mred\x1b[0m", "emoji": "\U0001f4b8\U0001f469\u200d\U0001f52c", "pair": "\ud83d\ude00",
    "c1": "a\x85b\u2028c\u2029d", "newlines": "a\r\nb\rc\n",
}  # fmt: skip


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_b19_odd_text_is_the_same_before_and_after_a_reopening(text: str, tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    seen: list[list[JsonObject]] = []

    @tool()
    async def odd(call: Call) -> Output:
        """Odd."""
        call.progress(text)
        call.diagnostic(Diagnostic(severity="info", message=text))
        await call.details({text: text})
        assert await call.memo("app.odd", text) is not None
        await asyncio.sleep(1)
        return Output()

    @tool()
    async def explicit() -> str:
        """Explicit."""
        return text

    def model() -> Scripted:
        return Scripted(CallTools(call("odd"), call("explicit")), Say(text or "x"))

    async def main(first: bool) -> None:
        storage = SqliteStorage(path, durability="kill", inline=True)
        async with Harness.open(storage, tools=[odd, explicit], models=[model()]) as h:
            root = await h.root()
            if first:
                await (await root.submit(text, request_id="odd" + text)).wait()
            else:
                again = await root.submit(text, request_id="odd" + text)
                assert again.match == "same"
            page = await root.entries(order="ascending", limit=100)
            seen.append([message for entry in page.items for message in entry.model or ()])
            context = await root.context()
            assert len(context.messages) >= 4

    play(main(True))
    play(main(False))
    assert seen[0] == seen[1]
    results = {str(message["toolName"]): message for message in seen[0] if message["role"] == "toolResult"}
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    kept = "".join(c for c in joined if c in "\t\n" or not (ord(c) < 32 or 127 <= ord(c) < 160))
    content: Any = results["odd"]["content"]
    assert content[0]["text"] == kept
    assert results["odd"]["details"] == {joined: joined}
    shown: Any = results["explicit"]["content"]
    assert shown[0]["text"] == joined


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_b19_odd_text_reaches_a_tool_as_it_was_sent_and_half_a_character_is_refused(text: str) -> None:
    @tool()
    async def takes(given: str) -> list[int]:
        """Take."""
        return [ord(each) for each in given]

    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")

    async def main() -> None:
        async with opened(Scripted(CallTools(call("takes", given=text)), Say("done")), tools=[takes]) as h:
            assert await answer_to(h, "go") == "done"
            (found,) = await told(await h.root())
            if any(0xD800 <= ord(each) < 0xE000 for each in joined):
                assert found.codes == ("invalid_arguments",)
            else:
                assert json.loads(found.text) == [ord(each) for each in joined]

    play(main())


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_b19_the_border_of_chunks_never_changes_the_text(size: int) -> None:
    text = "a\U0001f4b8é\u05d0\ufeff\n" * 50

    async def as_bytes(call: Call) -> None:
        data = text.encode()
        for start in range(0, len(data), size):
            call.progress(data[start : start + size])

    async def as_text(call: Call) -> None:
        units = [char for char in text for char in (split(char) if ord(char) > 0xFFFF else [char])]
        for start in range(0, len(units), size):
            call.progress("".join(units[start : start + size]))

    def split(char: str) -> list[str]:
        data = char.encode("utf-16-le")
        return [data[:2].decode("utf-16-le", "surrogatepass"), data[2:].decode("utf-16-le", "surrogatepass")]

    assert of(as_bytes).text == text
    assert of(as_text).text == text


def test_b19_bytes_that_are_no_text_are_replaced_and_the_answer_is_stored() -> None:
    async def body(call: Call) -> None:
        call.progress(b"\xff\xfe\x00ok\xf0\x9f")

    found = of(body)
    assert found.text.replace("\ufffd", "?").startswith("??ok")
    assert not found.error
