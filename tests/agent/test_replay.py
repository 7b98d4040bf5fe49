"""What a call that runs again finds: its keys, its memos, its tasks; and that a real SIGKILL agrees (E2, E6, M1)."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from pidurable_nb import Answered, Call, Done, Harness, Input, Json, Phase, Runtime, tool
from pidurable_nb.agent.stored import live
from pidurable_nb.errors import SessionFailed, StorageError
from pidurable_nb.ids import ROOT, Seq
from pidurable_nb.models import CallTools, Say, Scripted, call
from pidurable_nb.records.message import Diagnostic
from pidurable_nb.records.transcript import Unanswered
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import Commit
from pidurable_nb.tools.tool import Replay
from tests.agent.trial import Cut, Told, Trial, left, opened, play, told


def asks(finds: list[Told]) -> Callable[[Harness], Awaitable[None]]:
    async def story(h: Harness) -> None:
        root = await h.root()
        settled = await (await root.submit("go", request_id="ask")).wait()
        assert isinstance(settled, Answered)
        assert settled.text == "done"
        await h.wait_idle()
        finds[:] = await told(root)
        assert await h.engine.session.snapshot(live.LIVE, live.at(live.LIVE, ROOT)) == {}

    return story


class Count(Phase[int], task="demo.count"):
    n: Input[int]

    async def run(self, rt: Runtime) -> Done[int]:
        await asyncio.sleep(1)
        return Done(self.n + 1)


def test_e6_the_key_of_a_call_is_the_same_in_every_rerun_and_another_for_every_call() -> None:
    finds: list[Told] = []
    trial = Trial(asks(finds))

    @tool(replay="safe")
    async def pay(amount: int, call: Call) -> str:
        """Pay."""
        trial.did(f"{amount} {call.key('charge')}")
        await asyncio.sleep(1)
        trial.did(f"{amount} {call.key('charge')}")
        return "paid"

    trial.tools = [pay]
    trial.models = [Scripted(CallTools(call("pay", amount=1), call("pay", amount=2)), Say("done"))]
    every: set[str] = set()
    for death in trial.live():
        assert isinstance(death, Cut)
        trial.live(death)
        lines = set(trial.ledger)
        if death.ledger:
            every |= lines
            assert len(lines) == 2
    assert len(every) == 2  # one origin, one call, one key: in every life behind every death
    first, second = sorted(every)
    assert first.split()[1] != second.split()[1]


def test_m1_what_a_call_remembered_is_there_in_its_rerun_and_decides_once() -> None:
    finds: list[Told] = []
    trial = Trial(asks(finds))

    @tool(replay="safe")
    async def draw(call: Call) -> str:
        """Draw."""
        seen = await call.recall("app.card", int)
        card = await call.memo("app.card", trial.lives)
        trial.did(f"{seen} {card}")
        await asyncio.sleep(1)
        return f"card {card}"

    trial.tools, trial.models = [draw], [Scripted(CallTools(call("draw")), Say("done"))]
    first = trial.lives + 1
    found = 0
    for death in trial.live():
        kept = [task.memos.get("app.card") for task in left(death).calls("execute")]
        trial.live(death)
        if kept == [first]:
            found += 1
            assert finds[0].text == f"card {first}"
            assert trial.ledger[-1] == f"{first} {first}"
    assert found >= 2


@pytest.mark.parametrize("replay", ["safe", "unsafe"])
def test_o1_a_task_that_a_call_started_is_started_once_and_found_by_a_rerun(replay: Replay) -> None:
    finds: list[Told] = []
    started: list[int] = []

    async def story(h: Harness) -> None:
        await asks(finds)(h)
        started.append(len(await h.tasks(kind="demo.count")))

    trial = Trial(story)

    @tool(replay=replay)
    async def counts(call: Call) -> str:
        """Count."""
        ref = await call.spawn(Count(6), name="count")
        return f"{await call.wait(ref)}"

    trial.tools, trial.tasks = [counts], [Count]
    trial.models = [Scripted(CallTools(call("counts")), Say("done"))]
    for _ in trial.sweep(deaths=2 if replay == "safe" else 1):
        assert started[-1] == 1 or (replay == "unsafe" and started[-1] == 0)
        if replay == "safe" or finds[0].codes == ():
            assert finds[0].text == "7"
    assert len(started) >= 10


def test_v5_the_output_details_and_remarks_that_were_stored_are_in_the_result_of_a_cut_call() -> None:
    finds: list[Told] = []
    trial = Trial(asks(finds))

    @tool()
    async def prints(call: Call) -> str:
        """Print."""
        for n in range(3000):
            call.progress(f"line {n}\n")
        call.diagnostic(Diagnostic(severity="info", message="spilled to /tmp/x"))
        await call.details({"pid": 7})
        trial.did("reported")
        await asyncio.sleep(1)
        return "ok"

    trial.tools, trial.models = [prints], [Scripted(CallTools(call("prints")), Say("done"))]
    dying = [
        death for death in trial.live() if left(death).calls("execute") and isinstance(death, Cut) and death.ledger
    ]
    assert dying
    for death in dying:
        trial.live(death)
        (found,) = finds
        assert found.codes == (None, "truncated", "interrupted")
        assert found.text.startswith("line 0\nline 1\n")
        assert found.text.partition("<harness>")[0].count("\n") == 2000
        assert "1,000 lines" in found.text
        assert "spilled" in found.text
        assert found.message["details"] == {"pid": 7}
        assert "durationMs" not in found.message


# -- a real kill -------------------------------------------------------------------------------------------------------

SCRIPT: Final = """
import asyncio, os, signal, sys
from pathlib import Path
from pidurable_nb import Call, Harness, tool
from pidurable_nb.models import CallTools, Say, Scripted, call

store, ledger, replay, where = sys.argv[1:]

@tool(replay=replay)
async def pay(amount: int, call: Call) -> str:
    "Pay."
    with open(ledger, "a") as out:
        print("begin", call.key("charge"), file=out, flush=True)
    call.progress("on its way\\n")
    await call.details({"at": 1})
    if where == "inside" and len(Path(ledger).read_text().splitlines()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with open(ledger, "a") as out:
        print("paid", call.key("charge"), file=out, flush=True)
    return "paid"

async def main() -> None:
    model = Scripted(CallTools(call("pay", amount=5)), Say("done"))
    async with Harness.open(store, tools=[pay], models=[model], durability="kill") as h:
        if where == "stored":
            def follow(changes):
                if any(each.after.kind == "pi.tool" and not each.after.live for each in changes.tasks.values()):
                    os.kill(os.getpid(), signal.SIGKILL)
            h.engine.session.subscribe(follow)
        root = await h.root()
        await (await root.submit("go", request_id="ask")).wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["inside", "stored"])
@pytest.mark.parametrize("replay", ["safe", "unsafe"])
def test_e2_e3_a_process_that_is_killed_in_a_call_or_behind_its_result_is_recovered(
    replay: Replay, where: str, tmp_path: Path
) -> None:
    store, ledger = tmp_path / "store.sqlite", tmp_path / "ledger"
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(store), str(ledger), replay, where], timeout=100, check=False
    )
    assert ran.returncode == -signal.SIGKILL
    before = ledger.read_text().splitlines()
    assert len(before) == (1 if where == "inside" else 2)

    @tool(replay=replay)
    async def pay(amount: int, call: Call) -> str:
        """Pay."""
        with ledger.open("a") as out:
            print("begin", call.key("charge"), file=out)
            print("paid", call.key("charge"), file=out)
        return f"paid {amount}"

    async def main() -> tuple[list[Told], Json]:
        model = Scripted(CallTools(call("pay", amount=5)), Say("done"))
        storage = SqliteStorage(store, durability="kill", inline=True)
        async with Harness.open(storage, tools=[pay], models=[model]) as h:
            root = await h.root()
            again = await root.submit("go", request_id="ask")
            assert again.match == "same"
            settled = await again.wait()
            assert isinstance(settled, Answered)
            assert settled.text == "done"
            return await told(root), await h.engine.session.snapshot(live.LIVE, live.at(live.LIVE, ROOT))

    found, state = play(main())
    assert state == {}
    after = ledger.read_text().splitlines()[len(before) :]
    key = before[0].split()[1]
    (result,) = found
    if where == "stored":
        assert after == []
        assert result.text == "paid"
    elif replay == "safe":
        assert after == [f"begin {key}", f"paid {key}"]
        assert result.text == "paid 5"
    else:
        assert after == []
        assert result.codes == ("interrupted",)
        assert result.text.startswith("on its way\n")
        assert json.loads(json.dumps(result.message["details"])) == {"at": 1}


# -- a storage that fails ----------------------------------------------------------------------------------------------


class Failing(MemoryStorage):
    """A memory whose n-th commit fails, after it was stored or before."""

    fails_at = 0
    was_stored = False
    commits = 0

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        self.commits += 1
        if self.commits == self.fails_at:
            if self.was_stored:
                await super().commit(group)
            raise StorageError("the disk is gone", stored="unknown" if self.was_stored else "no")
        return await super().commit(group)


@pytest.mark.parametrize("was_stored", [False, True], ids=["lost", "stored"])
@pytest.mark.parametrize("replay", ["safe", "unsafe"])
def test_b12_a_storage_that_fails_at_any_commit_ends_the_harness_and_the_next_opening_finishes(
    replay: Replay, was_stored: bool
) -> None:
    ledger: list[str] = []

    @tool(replay=replay)
    async def pay(n: int, call: Call) -> str:
        """Pay."""
        ledger.append(f"begin {n}")
        call.progress("half\n")
        await call.details(n)
        return f"paid {n}"

    async def live_once(store: MemoryStorage) -> list[Told] | None:
        model = Scripted(CallTools(call("pay", n=1), call("pay", n=2), text="x"), Say("done"))
        try:
            async with opened(model, tools=[pay], store=store) as h:
                root = await h.root()
                settled = await (await root.submit("go", request_id="ask")).wait()
                assert isinstance(settled, Answered)
                await h.wait_idle()
                return await told(root)
        except (SessionFailed, StorageError):
            return None

    failed = 0
    for fails_at in range(1, 100):
        del ledger[:]
        store = Failing()
        store.fails_at, store.was_stored = fails_at, was_stored
        first = play(live_once(store))
        if first is not None:
            break
        failed += 1
        store.fails_at = 0
        found = play(live_once(store))
        assert found is not None
        assert sorted(str(each.message["toolCallId"]) for each in found) == ["call_1", "call_2"]
        for n in (1, 2):
            assert ledger.count(f"begin {n}") <= (2 if replay == "safe" else 1)
        assert all(each.codes == () or (replay == "unsafe" and each.codes == ("interrupted",)) for each in found)
    assert failed >= 7


# -- a tool that kills its process -------------------------------------------------------------------------------------


def test_t9_a_call_that_kills_every_process_is_parked_and_an_abort_gives_it_its_result() -> None:
    finds: list[Told] = []
    trial = Trial(asks(finds))

    @tool(replay="safe")
    async def poison() -> str:
        """Poison."""
        trial.did("begin")
        await asyncio.sleep(1)
        return "survived"

    trial.tools, trial.models = [poison], [Scripted(CallTools(call("poison")), Say("done"))]

    def dies(after: Cut | None) -> Cut:
        before = len(after.ledger) if after is not None else 0
        found = [death for death in trial.live(after) if isinstance(death, Cut) and len(death.ledger) > before]
        return found[0]

    death = dies(None)
    for restarts in range(1, 5):
        death = dies(death)
        assert death.ledger == ("begin",) * (restarts + 1)
        assert left(death).calls("execute")[0].restarts == restarts

    async def parked(h: Harness) -> None:
        root = await h.root()
        asked = await root.submit("go", request_id="ask")
        await asyncio.sleep(60)
        (verdict,) = [found for found in await h.verdicts() if found.task.kind == "pi.tool"]
        assert verdict.name == "parked"
        await root.abort()
        assert isinstance(await asked.wait(), Unanswered)
        (found,) = await told(root)
        assert found.codes == ("aborted",)

    trial.story = parked
    trial.live(death)
    assert trial.ledger == ["begin"] * 5
