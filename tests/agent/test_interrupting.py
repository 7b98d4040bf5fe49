"""What becomes of tool calls that a crash cuts off: what runs again, with what, and what the model is told (E1 to E3).

Every sweep kills before and after each commit and each effect, and again in each recovery.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from pidurable_nb import Answered, Call, Extension, Harness, tool
from pidurable_nb.agent.extending.extension import wrap_tool
from pidurable_nb.agent.extending.hooking import HookApi, Hooks, Replace
from pidurable_nb.models import Answer, CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.records.message import ToolCall, role_of, text_of
from pidurable_nb.tools.tool import Replay, Tool
from tests.agent.conftest import Death
from tests.agent.trial import Cut, Told, Trial, kinds, left, told

Story = Callable[[Harness], Awaitable[None]]


def asks(text: str, *, answer: str = "done", finds: list[Told] | None = None) -> Story:
    """A client that asks the same thing in every life, and wants the one answer."""

    async def story(h: Harness) -> None:
        root = await h.root()
        settled = await (await root.submit(text, request_id="ask")).wait()
        assert isinstance(settled, Answered)
        assert settled.text == answer
        await h.wait_idle()
        found = await kinds(root)
        assert Counter(found)["pi.user"] == 1
        assert found[-1] == "pi.assistant"
        if finds is not None:
            finds[:] = await told(root)

    return story


def paying(trial: Trial, replay: Replay) -> Tool:
    @tool(replay=replay)
    async def pay(amount: int, call: Call) -> str:
        """Pay."""
        trial.did(f"begin {amount}")
        call.progress("on its way\n")
        await asyncio.sleep(1)  # the output so far is stored meanwhile
        trial.did(f"paid {amount}")
        return f"paid {amount}"

    return pay


def guarded(trial: Trial) -> Extension:
    """A hook is asked about every call, so answer and intent are two commits."""

    async def before_tool(call: ToolCall, api: HookApi) -> None:
        trial.did("asked")

    return Extension("guard", hooks=Hooks(before_tool=before_tool))


def ledger_of(death: Death) -> tuple[str, ...]:
    return death.ledger if isinstance(death, Cut) else ()


DEATHS = pytest.mark.parametrize("deaths", [1, pytest.param(2, marks=pytest.mark.slow)], ids=["once", "twice"])


@DEATHS
@pytest.mark.parametrize("hooked", [False, True], ids=["fused", "hooked"])
def test_e3_an_unsafe_call_is_never_begun_twice_wherever_it_dies(hooked: bool, deaths: int) -> None:
    finds: list[Told] = []
    trial = Trial(asks("pay", finds=finds))
    trial.tools, trial.models = [paying(trial, "unsafe")], [Scripted(CallTools(call("pay", amount=5)), Say("done"))]
    trial.extensions = [guarded(trial)] if hooked else []
    outcomes: Counter[tuple[str | None, ...]] = Counter()
    for _ in trial.sweep(deaths=deaths):
        assert trial.ledger.count("begin 5") <= 1
        assert [each.name for each in finds] == ["pay"]
        assert finds[0].codes in ((), ("interrupted",))
        assert finds[0].error == bool(finds[0].codes)
        if finds[0].codes == ():
            assert "paid 5" in trial.ledger
        outcomes[finds[0].codes] += 1
    assert set(outcomes) == {(), ("interrupted",)}
    assert trial.lives > (50 if deaths > 1 else 7)


@DEATHS
@pytest.mark.parametrize("hooked", [False, True], ids=["fused", "hooked"])
def test_e2_a_safe_call_runs_again_until_its_result_is_stored_and_not_once_more(hooked: bool, deaths: int) -> None:
    finds: list[Told] = []
    trial = Trial(asks("pay", finds=finds))
    trial.tools, trial.models = [paying(trial, "safe")], [Scripted(CallTools(call("pay", amount=5)), Say("done"))]
    trial.extensions = [guarded(trial)] if hooked else []
    for died in trial.sweep(deaths=deaths):
        assert finds[0].text == "paid 5"
        assert finds[0].codes == ()
        assert 1 <= trial.ledger.count("begin 5") <= 1 + died
        assert len(finds) == 1


def test_e2_before_tool_does_not_run_again_once_the_intent_is_stored_and_its_arguments_are_passed() -> None:
    lives: list[int] = []
    finds: list[Told] = []
    trial = Trial(asks("pay", finds=finds))

    async def before_tool(asked: ToolCall, api: HookApi) -> Replace:
        lives.append(1)
        trial.did(f"asked {len(lives)}")
        return Replace({"amount": len(lives)})

    trial.extensions = [Extension("guard", hooks=Hooks(before_tool=before_tool))]
    trial.tools, trial.models = [paying(trial, "safe")], [Scripted(CallTools(call("pay", amount=5)), Say("done"))]
    again = 0
    for death in trial.live():
        assert isinstance(death, Cut)
        trial.live(death)
        begun = [line for line in death.ledger if line.startswith("begin")]
        if begun:
            again += 1
            assert [line for line in trial.ledger if line.startswith("asked")] == [
                line for line in death.ledger if line.startswith("asked")
            ]
            assert {line for line in trial.ledger if line.startswith("begin")} == set(begun)
    assert again > 3


def wrapped_as(replay: Replay) -> Extension:
    return Extension("wrap", wraps=[wrap_tool("pay", lambda made: replace(made, replay=replay))])


def gone(trial: Trial) -> None:
    trial.tools = ()


def now(replay: Replay) -> Callable[[Trial], None]:
    def change(trial: Trial) -> None:
        trial.tools = [paying(trial, replay)]

    return change


def wraps(replay: Replay) -> Callable[[Trial], None]:
    def change(trial: Trial) -> None:
        trial.extensions = [wrapped_as(replay)]

    return change


@pytest.mark.parametrize(
    ("then", "change", "runs"),
    [
        ("safe", now("safe"), True),
        ("safe", now("unsafe"), False),
        ("unsafe", now("safe"), False),
        ("unsafe", now("unsafe"), False),
        ("safe", gone, False),
        ("unsafe", gone, False),
        ("safe", wraps("unsafe"), False),
        ("unsafe", wraps("safe"), False),
        ("safe", wraps("safe"), True),
    ],
    ids=["ss", "su", "us", "uu", "s gone", "u gone", "s wrapped u", "u wrapped s", "s wrapped s"],
)
def test_e2_only_what_was_safe_and_is_safe_runs_again(
    then: Replay, change: Callable[[Trial], None], runs: bool
) -> None:
    finds: list[Told] = []
    trial = Trial(asks("pay", finds=finds))
    trial.models = [Scripted(CallTools(call("pay", amount=5)), Say("done"))]
    trial.tools = [paying(trial, then)]
    dying = [death for death in trial.live() if left(death).calls("execute") and "begin 5" in ledger_of(death)]
    assert len(dying) >= 2
    change(trial)
    shown: set[str] = set()
    for death in dying:
        trial.live(death)
        assert trial.ledger.count("begin 5") == (2 if runs else 1)
        assert finds[0].codes == (() if runs else ("interrupted",))
        assert finds[0].error == (not runs)
        shown.add(finds[0].text.split("\n")[0])
    assert shown == ({"paid 5"} if runs else {"on its way", "<harness>"})


def test_e2_stored_arguments_that_a_changed_tool_does_not_take_are_an_error_and_it_does_not_run() -> None:
    finds: list[Told] = []
    trial = Trial(asks("pay", finds=finds))
    trial.models = [Scripted(CallTools(call("pay", amount=5)), Say("done"))]
    trial.tools = [paying(trial, "safe")]
    dying = [death for death in trial.live() if left(death).calls("execute") and "begin 5" in ledger_of(death)]

    @tool(name="pay", replay="safe")
    async def changed(cents: int) -> str:
        """Pay."""
        trial.did("changed")
        return "paid"

    trial.tools = [changed]
    for death in dying:
        trial.live(death)
        assert finds[0].codes == ("invalid_arguments",)
        assert "changed" not in trial.ledger
    assert dying


def working(trial: Trial, replay: Replay) -> Tool:
    @tool(replay=replay)
    async def job(n: int) -> str:
        """Work."""
        trial.did(f"begin {n}")
        await asyncio.sleep(n)
        trial.did(f"end {n}")
        return f"result {n}"

    return job


@pytest.mark.parametrize("now", ["safe", "unsafe"])
@pytest.mark.parametrize("then", ["safe", "unsafe"])
def test_b06_finished_siblings_never_run_again_and_the_third_as_its_policies_say(then: Replay, now: Replay) -> None:
    finds: list[Told] = []
    requests: list[list[str]] = []
    trial = Trial(asks("work", finds=finds))

    def answer(request: ModelRequest) -> Answer:
        results = [text_of(message) for message in request.messages if role_of(message) == "toolResult"]
        if not results:
            return CallTools(call("job", n=1), call("job", n=2), call("job", n=3))
        requests.append(results)
        return Say("done")

    trial.tools, trial.models = [working(trial, then)], [Scripted.by(answer)]
    dying = [death for death in trial.live() if len(left(death).calls()) == 1 and "end 2" in ledger_of(death)]
    assert len(dying) >= 2
    trial.tools = [working(trial, now)]
    runs = then == now == "safe"
    for death in dying:
        del requests[:]
        trial.live(death)
        began = Counter(line for line in trial.ledger if line.startswith("begin"))
        assert began == {"begin 1": 1, "begin 2": 1, "begin 3": 2 if runs else 1}
        assert [each.codes for each in finds] == [(), (), () if runs else ("interrupted",)]
        (results,) = requests
        assert results[:2] == ["result 1", "result 2"]
        assert ("result 3" in results[2]) == runs
        assert len(results) == 3


@pytest.mark.parametrize("sequential", [False, True], ids=["parallel", "sequential"])
@pytest.mark.parametrize("replay", ["safe", "unsafe"])
def test_e2_e3_a_round_of_three_holds_its_promises_wherever_it_dies(replay: Replay, sequential: bool) -> None:
    finds: list[Told] = []
    trial = Trial(asks("work", finds=finds))

    @tool(replay=replay, mode="sequential" if sequential else None)
    async def job(n: int) -> str:
        """Work."""
        trial.did(f"begin {n}")
        return f"result {n}"

    calls = CallTools(call("job", n=1), call("job", n=2), call("job", n=3))
    trial.tools, trial.models = [job], [Scripted(calls, Say("done"))]
    for died in trial.sweep(deaths=1):
        counts = Counter(trial.ledger)
        assert len(finds) == 3
        for n in (1, 2, 3):
            (found,) = [each for each in finds if each.message["toolCallId"] == f"call_{n}"]
            assert counts[f"begin {n}"] <= (1 + died if replay == "safe" else 1)
            assert found.codes in ([()] if replay == "safe" else [(), ("interrupted",)])
            assert found.codes == ("interrupted",) or counts[f"begin {n}"] >= 1
