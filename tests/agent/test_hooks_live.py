"""Hooks where they really run: in a call, around it, when it is aborted, and how often after a crash (E4, B01)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from pidurable_nb import Answered, Call, Extension, Harness, Output, tool
from pidurable_nb.agent.extending.hooking import HookApi, Hooks, Replace
from pidurable_nb.errors import ToolError
from pidurable_nb.ids import EntryId
from pidurable_nb.models import CallTools, Say, Scripted, call
from pidurable_nb.records import task as stored
from pidurable_nb.records.message import Diagnostic, ToolCall
from pidurable_nb.records.transcript import Unanswered
from pidurable_nb.tools import OutputLimits
from pidurable_nb.tools.tool import Replay, Tool
from tests.agent.conftest import Death
from tests.agent.trial import Cut, Told, Trial, answer_to, kinds, left, opened, play, told


@tool(replay="safe")
async def look(at: str) -> str:
    """Look."""
    if at == "raise":
        raise ToolError("blind")
    return f"saw {at}"


def seen(*hooks: Hooks, at: str = "x", tools: Tool = look) -> tuple[Told, list[BaseException]]:
    """What the model is told of `look`, with these hooks in this order, and what was reported."""
    reports: list[BaseException] = []

    async def main() -> Told:
        model = Scripted(CallTools(call("look", at=at)), Say("done"))
        extensions = [Extension(f"e{n}", hooks=each) for n, each in enumerate(hooks)]
        async with opened(model, tools=[tools], extensions=extensions, reports=reports) as h:
            assert await answer_to(h, "go") == "done"
            (found,) = await told(await h.root())
            return found

    return play(main()), reports


def test_e4_before_tool_is_a_chain_and_the_tool_gets_what_the_last_one_left() -> None:
    def more(text: str) -> Hooks:
        async def before_tool(call: ToolCall, api: HookApi) -> Replace:
            return Replace({"at": f"{call.arguments['at']}{text}"})

        return Hooks(before_tool=before_tool)

    found, reports = seen(more("1"), more("2"))
    assert found.text == "saw x12"
    assert reports == []


def test_e4_after_tool_is_a_chain_over_results_and_raises_alike_and_what_it_raises_is_skipped() -> None:
    shown: list[tuple[bool, tuple[str | None, ...]]] = []

    async def redact(call: ToolCall, result: Output, api: HookApi) -> Output:
        shown.append((result.is_error, tuple(said.code for said in result.diagnostics)))
        return replace(result, content="hidden", diagnostics=())

    async def raises(call: ToolCall, result: Output, api: HookApi) -> Output:
        raise ValueError("hook broke")

    for at, error, codes in (("x", False, ()), ("raise", True, ("tool_error",))):
        del shown[:]
        found, reports = seen(Hooks(after_tool=raises), Hooks(after_tool=redact), at=at)
        assert shown == [(error, codes)]
        assert (found.text, found.error, found.codes) == ("hidden", error, ())
        assert "durationMs" in found.message
        assert [str(report) for report in reports] == ["hook broke"]


def test_e4_a_hook_cannot_change_a_result_in_place() -> None:
    async def meddles(call: ToolCall, result: Output, api: HookApi) -> None:
        assert result.content is not None
        block = result.content[0]
        assert isinstance(block, dict)
        block["text"] = "changed"

    found, reports = seen(Hooks(after_tool=meddles))
    assert found.text == "saw x"
    assert [type(report) for report in reports] == [TypeError]


def test_v5_what_a_hook_puts_in_place_of_a_result_is_bounded_like_it() -> None:
    @tool(name="look", limits=OutputLimits(max_lines=2))
    async def bounded(at: str) -> str:
        """Look."""
        return "1\n2\n"

    async def longer(call: ToolCall, result: Output, api: HookApi) -> Output:
        return replace(result, content="1\n2\n3\n")

    found, _ = seen(Hooks(after_tool=longer), tools=bounded)
    assert found.text == "1\n2\n<harness>\n[warn] output truncated: 1 lines, 2 bytes dropped\n</harness>"
    assert found.codes == ("truncated",)


def test_e4_a_hook_that_answers_nonsense_blocks_before_and_is_skipped_after() -> None:
    async def nonsense(*anything: object) -> object:
        return {"at": "y"}

    found, reports = seen(Hooks(before_tool=nonsense))  # type: ignore[arg-type]
    assert found.codes == ("blocked",)
    found, reports = seen(Hooks(after_tool=nonsense))  # type: ignore[arg-type]
    assert found.text == "saw x"
    assert len(reports) == 1


def test_after_tools_sees_every_result_in_call_order_before_the_round_goes_on() -> None:
    rounds: list[tuple[EntryId, tuple[EntryId, ...]]] = []

    async def after_tools(assistant: EntryId, results: tuple[EntryId, ...], api: HookApi) -> None:
        rounds.append((assistant, results))

    async def main() -> None:
        model = Scripted(CallTools(call("look", at="a"), call("gone"), call("look", at="b")), Say("done"))
        extension = Extension("watch", hooks=Hooks(after_tools=after_tools))
        async with opened(model, tools=[look], extensions=[extension]) as h:
            assert await answer_to(h, "go") == "done"
            root = await h.root()
            ((assistant, results),) = rounds
            page = await root.entries(order="ascending")
            by_id = {entry.id: entry for entry in page.items}
            assert by_id[assistant].kind == "pi.assistant"
            ids = [message["toolCallId"] for id in results for message in by_id[id].model or ()]
            assert ids == ["call_1", "call_2", "call_3"]

    play(main())


# -- aborted -----------------------------------------------------------------------------------------------------------


@tool()
async def hangs(call: Call) -> str:
    """Hang."""
    call.progress("half\n")
    call.diagnostic(Diagnostic(severity="info", message="spilled"))
    await call.details({"at": 1})
    await asyncio.sleep(1000)
    return "never"


def aborted(hooks: Hooks) -> tuple[Told, list[BaseException]]:
    reports: list[BaseException] = []

    async def main() -> Told:
        extensions = [Extension("hooks", hooks=hooks)]
        async with opened(
            Scripted(CallTools(call("hangs")), Say("on")), tools=[hangs], extensions=extensions, reports=reports
        ) as h:
            root = await h.root()
            asked = await root.submit("go")
            await asyncio.sleep(1)
            await root.abort()
            settled = await asked.wait()
            assert isinstance(settled, Unanswered)
            (found,) = await told(root)
            (task,) = await h.tasks(kind="pi.tool")
            assert isinstance(task.outcome, stored.Aborted)
            assert isinstance(task.outcome.result, dict)
            assert set(task.outcome.result) == {"kind", "entryId"}
            assert await answer_to(h, "go on") == "on"
            return found

    return play(main()), reports


def test_o2_an_aborted_call_has_a_result_with_what_was_stored_of_it() -> None:
    found, _ = aborted(Hooks())
    assert found.text == "half\n<harness>\n[info] spilled\n[error] hangs was aborted\n</harness>"
    assert found.codes == (None, "aborted")
    assert found.error
    assert found.message["details"] == {"at": 1}
    assert "durationMs" not in found.message


def test_o2_on_abort_replaces_the_result_and_its_controls_are_ignored() -> None:
    async def on_abort(call: ToolCall, result: Output, api: HookApi) -> Output:
        assert [said.code for said in result.diagnostics] == [None, "aborted"]
        return Output(content="stopped cleanly", is_error=True, terminate=True, add_tools=("x",))

    found, reports = aborted(Hooks(on_abort=on_abort))
    assert found.text == "stopped cleanly"
    assert reports == []


def test_e4_what_on_abort_raises_is_reported_and_the_call_is_aborted_all_the_same() -> None:
    async def on_abort(call: ToolCall, result: Output, api: HookApi) -> Output:
        raise ValueError("hook broke")

    found, reports = aborted(Hooks(on_abort=on_abort))
    assert found.codes == (None, "aborted")
    assert [str(report) for report in reports] == ["hook broke"]


# -- crashes -----------------------------------------------------------------------------------------------------------


def has_result(death: Death) -> bool:
    return any(task.kind == "pi.tool" and not task.live for task in left(death).tasks)


def asks(
    finds: list[Told], *, abort: bool = False, ends: type[Answered | Unanswered] = Answered
) -> Callable[[Harness], Awaitable[None]]:
    async def story(h: Harness) -> None:
        root = await h.root()
        asked = await root.submit("go", request_id="ask")
        if abort:
            await asyncio.sleep(2)
            await root.abort()
        settled = await asked.wait()
        assert isinstance(settled, ends)
        await h.wait_idle()
        finds[:] = await told(root)
        assert (await kinds(root)).count("pi.tool-result") == len(finds) <= 1

    return story


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("replay", ["safe", "unsafe"])
def test_b01_a_hook_does_not_run_again_once_the_result_that_it_made_is_stored(replay: Replay, raises: bool) -> None:
    finds: list[Told] = []
    trial = Trial(asks(finds))

    @tool(replay=replay)
    async def act() -> str:
        """Act."""
        trial.did("acted")
        if raises:
            raise ToolError("no")
        return "acted"

    async def after_tool(call: ToolCall, result: Output, api: HookApi) -> Output:
        trial.did("handled")
        return replace(result, content="handled")

    trial.tools, trial.models = [act], [Scripted(CallTools(call("act")), Say("done"))]
    trial.extensions = [Extension("handler", hooks=Hooks(after_tool=after_tool))]
    before = after = 0
    for death in trial.live():
        assert isinstance(death, Cut)
        trial.live(death)
        (found,) = finds
        handled = trial.ledger.count("handled") - death.ledger.count("handled")
        acted = trial.ledger.count("acted") - death.ledger.count("acted")
        if has_result(death):
            after += 1
            assert (handled, acted) == (0, 0)
            assert found.text.startswith("handled")
        elif "acted" in death.ledger:
            before += 1
            assert (handled, acted) == ((1, 1) if replay == "safe" else (0, 0))
            assert found.codes[-1:] == (("interrupted",) if replay == "unsafe" else ("tool_error",) if raises else ())
    assert before >= 2
    assert after >= 2


def test_b01_on_abort_does_not_run_again_once_the_aborted_result_is_stored() -> None:
    finds: list[Told] = []
    trial = Trial(asks(finds, abort=True, ends=Unanswered))

    @tool()
    async def act() -> str:
        """Act."""
        trial.did("acted")
        await asyncio.sleep(1000)
        return "never"

    async def on_abort(call: ToolCall, result: Output, api: HookApi) -> None:
        trial.did("handled")

    trial.tools, trial.models = [act], [Scripted(CallTools(call("act")), Say("done"))]
    trial.extensions = [Extension("handler", hooks=Hooks(on_abort=on_abort))]
    marked = after = 0
    deaths = trial.live()
    trial.story = asks(finds, ends=Unanswered)  # nobody aborts again
    for death in deaths:
        assert isinstance(death, Cut)
        if not any(task.abort_requested for task in left(death).tasks):
            continue
        trial.live(death)
        handled = trial.ledger.count("handled") - death.ledger.count("handled")
        assert trial.ledger.count("acted") == 1
        if has_result(death):
            after += 1
            assert handled == 0
        else:
            marked += 1
            assert handled == 1
    assert marked >= 2
    assert after >= 1


def test_m1_a_hook_keeps_its_decision_in_a_memo_of_the_call() -> None:
    finds: list[Told] = []
    trial = Trial(asks(finds))

    async def before_tool(call: ToolCall, api: HookApi) -> Replace:
        chosen = await api.memo("guard.at", f"place {trial.lives}")
        return Replace({"at": chosen})

    trial.tools, trial.models = [look], [Scripted(CallTools(call("look", at="x")), Say("done"))]
    trial.extensions = [Extension("guard", hooks=Hooks(before_tool=before_tool))]
    remembered = 0
    first = trial.lives + 1
    for death in trial.live():
        trial.live(death)
        memos = [task.memos.get("guard.at") for task in left(death).tasks if task.kind == "pi.tool"]
        if any(memos):
            remembered += 1
            assert finds[0].text == f"saw place {first}"
    assert remembered > 1
