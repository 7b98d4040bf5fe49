"""Agent events: what every commit means, in an order to rely on, so that a screen that applies them shows the store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pidurable_nb import Harness, Json
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.watching import agent_event as event
from pidurable_nb.agent.watching.agent_event import AgentEvent, Snapshot
from pidurable_nb.agent.watching.events import Batch, EventWatch, watch_events
from pidurable_nb.agent.watching.live_state import snapshot_of
from pidurable_nb.agent.watching.message_change import (
    BlockReplaced,
    BlockStart,
    MessageChange,
    OutputGrew,
    OutputSet,
    TextDelta,
    ThinkingDelta,
    WholeMessage,
    message_changes,
    output_change,
)
from pidurable_nb.agent.watching.view import ActiveEntries, ConversationView, read_view
from pidurable_nb.errors import StorageRequestError
from pidurable_nb.ids import ABSENT, ROOT, ConversationId, EntryId, JsonObject, SubmissionId, TaskId
from pidurable_nb.probe import ConversationSubject
from pidurable_nb.records import task as stored
from pidurable_nb.records.message import no_usage
from pidurable_nb.records.strict import same
from pidurable_nb.records.task import State, TaskRecord
from pidurable_nb.records.transcript import Answered, Placed, Queued, SubmissionRecord
from pidurable_nb.session.transaction import Transaction

if TYPE_CHECKING:
    from tests.agent.conftest import Home

Draft = dict[str, Json]
Write = Callable[[Transaction, Draft], None]
NONE: Mapping[str, JsonObject] = {}


class Stage:
    """A conversation whose rows the tests write as the agent would: documents, entries, tasks and submissions."""

    def __init__(self, h: Harness) -> None:
        self.session = h.engine.session

    async def commit(
        self, write: Write, documents: Mapping[str, JsonObject] = NONE, *, of: ConversationId = ROOT
    ) -> None:
        """One commit: `write` gets `pi.live` to change, and the named documents take these values."""
        async with self.session.block(ConversationSubject(of), conversation=of) as tx:
            draft = await tx.edit(live.LIVE, live.at(live.LIVE, of))
            for name, value in documents.items():
                definition = {"inbox": live.INBOX, "usage": live.USAGE, "agent": live.AGENT}[name]
                (await tx.edit(definition, live.at(definition, of))).update(value)
            write(tx, draft)

    async def view(self) -> ConversationView:
        async with self.session.block(ConversationSubject(ROOT), conversation=ROOT) as tx:
            return await read_view(tx, ROOT)

    async def watch(self) -> EventWatch:
        """Events from here on; the snapshot is taken."""
        watch = await watch_events(self.session, ROOT)
        assert [type(each) for each in await anext(watch)] == [Snapshot]
        return watch


def task(id: int, kind: str, state: State, *, owner: int | None = None) -> TaskRecord:
    return TaskRecord(
        id=TaskId(id), conversation=ROOT, kind=kind, version=1, input={}, state=state,
        owner=TaskId(owner) if owner is not None else None,
    )  # fmt: skip


def at_phase(phase: str, **members: Json) -> stored.Pending:
    return stored.Pending(checkpoint={"phase": phase, **members})


def ended(outcome: stored.Outcome | None = None) -> stored.Terminal:
    return stored.Terminal(outcome=outcome if outcome is not None else stored.Completed(result=None))


def answer(*content: JsonObject, stop: str = "pending", output: int = 0) -> JsonObject:
    return {
        "role": "assistant", "content": list(content), "api": "x", "provider": "p", "model": "m", "stopReason": stop,
        "usage": {**no_usage(), "output": output}, "timestamp": 1,
    }  # fmt: skip


def text(value: str) -> JsonObject:
    return {"type": "text", "text": value}


def call(id: str, **arguments: Json) -> JsonObject:
    return {"type": "toolCall", "id": id, "name": "scan", "arguments": arguments}


def result(id: str) -> JsonObject:
    return {"role": "toolResult", "toolCallId": id, "toolName": "scan", "content": [], "isError": False, "timestamp": 1}


def types(batch: Sequence[AgentEvent]) -> list[str]:
    return [each.type for each in batch]


async def rest(watch: EventWatch) -> list[Batch]:
    return [batch async for batch in watch]


def nothing(tx: Transaction, draft: Draft) -> None:
    """Only the documents."""


def setting(**members: Json) -> Write:
    def write(tx: Transaction, draft: Draft) -> None:
        draft.update(members)

    return write


# --- Runs, turns and messages -----------------------------------------------------------------------------------------


def test_a_run_from_its_input_to_its_answer_is_told_commit_by_commit(home: Home) -> None:
    async def main() -> None:
        async with home.open(run=False) as h:
            await h.root()
            stage = Stage(h)
            watch = await stage.watch()
            ids: list[int] = []

            def admit(tx: Transaction, draft: Draft) -> None:
                entry, submission, generation = tx.append("pi.user", text="hello"), tx.mint(), tx.mint()
                ids.extend((entry, submission, generation))
                tx.put_submission(
                    SubmissionRecord(
                        id=SubmissionId(submission), conversation=ROOT, type="input", state=Placed(entry=entry)
                    )
                )
                tx.put_task(task(generation, "pi.generation", at_phase("prepare", attempt=1)))
                draft["run"] = {"taskId": generation, "inputs": [submission]}

            await stage.commit(admit)
            entry, submission, generation = ids
            batch = await anext(watch)
            assert types(batch) == ["message_start", "message_end", "submission", "run_start", "turn_start"]
            assert batch[3] == event.RunStart(inputs=(SubmissionId(submission),))
            await stage.commit(setting(generation={"attempt": 1}))
            await stage.commit(setting(generation={"attempt": 1, "message": answer(text("Hel"))}))
            await stage.commit(setting(generation={"attempt": 1, "message": answer(text("Hello."), output=3)}))
            assert await anext(watch) == (event.MessageStart(answer(text("Hel"))),)
            grown = event.MessageUpdate(usage={**no_usage(), "output": 3}, changes=(TextDelta(0, "lo."),))
            assert await anext(watch) == (grown,)
            final = answer(text("Hello. Hi."), stop="stop")

            def place(tx: Transaction, draft: Draft) -> None:
                placed = tx.append("pi.assistant", model=(final,))
                del draft["generation"], draft["run"]
                tx.put_task(task(generation, "pi.generation", ended()))
                state = Answered(entry=EntryId(entry), answer=placed)
                tx.put_submission(
                    SubmissionRecord(id=SubmissionId(submission), conversation=ROOT, type="input", state=state)
                )

            await stage.commit(place, {"usage": {"models": {"p/m": {**no_usage(), "output": 3}}}})
            batch = await anext(watch)
            assert types(batch) == ["message_end", "turn_end", "run_end", "submission", "usage_changed"]
            assert isinstance(batch[0], event.MessageEnd)
            assert batch[0].entry.model == (final,)
            assert batch[2] == event.RunEnd(inputs=(SubmissionId(submission),))
            watch.stop()
            assert await rest(watch) == []

    home.run(main())


def test_a_run_goes_on_when_a_task_hands_it_over_or_a_steer_joins_and_another_one_follows_in_one_commit(
    memory: Home,
) -> None:
    async def main() -> None:
        async with memory.open(run=False) as h:
            await h.root()
            stage = Stage(h)
            await stage.commit(setting(run={"taskId": 90, "inputs": [80]}))
            watch = await stage.watch()
            await stage.commit(setting(run={"taskId": 91, "inputs": [80, 81]}))
            assert len(watch._frames) == 0
            await stage.commit(setting(run={"taskId": 92, "inputs": [82]}))
            runs = (SubmissionId(80), SubmissionId(81)), (SubmissionId(82),)
            assert await anext(watch) == (event.RunEnd(inputs=runs[0]), event.RunStart(inputs=runs[1]))
            watch.stop()

    memory.run(main())


def test_t5_a_turn_ends_once_when_its_outcome_is_held_and_a_successor_starts_behind_it(memory: Home) -> None:
    async def main() -> None:
        async with memory.open(run=False) as h:
            await h.root()
            stage = Stage(h)
            watch = await stage.watch()
            first, work, second = (h.engine.session._storage.mint() for _ in range(3))

            def start(tx: Transaction, draft: Draft) -> None:
                tx.put_task(task(first, "pi.generation", at_phase("prepare")))
                tx.put_task(task(work, "app.work", at_phase("work"), owner=first))

            def end(tx: Transaction, draft: Draft) -> None:
                tx.put_task(task(first, "pi.generation", ended()))  # held: it owns live work
                tx.put_task(task(second, "pi.generation", at_phase("prepare")))

            def drain(tx: Transaction, draft: Draft) -> None:
                tx.put_task(
                    task(work, "app.work", ended(stored.Faulted(error=stored.TaskError(message="broke"))), owner=first)
                )

            await stage.commit(start)
            assert types(await anext(watch)) == ["turn_start"]
            await stage.commit(end)
            assert h.engine.table.live_task(TaskId(first)) is not None
            assert types(await anext(watch)) == ["turn_end", "turn_start"]
            await stage.commit(drain)
            assert await anext(watch) == (event.TaskFailure(task=TaskId(work), kind="app.work", message="broke"),)
            await asyncio.sleep(1)
            assert h.engine.table.live_task(TaskId(first)) is None
            assert len(watch._frames) == 0
            watch.stop()

    memory.run(main())


def test_g1_a_cut_answer_ends_with_its_entry_and_the_next_attempt_starts_anew(memory: Home) -> None:
    async def main() -> None:
        async with memory.open(run=False) as h:
            await h.root()
            stage = Stage(h)
            await stage.commit(setting(generation={"attempt": 1, "message": answer(text("Hel"))}))
            watch = await watch_events(stage.session, ROOT)
            (snapshot,) = await anext(watch)
            assert isinstance(snapshot, Snapshot)
            assert snapshot.generation == event.GenerationInFlight(attempt=1, message=answer(text("Hel")))

            def cut(tx: Transaction, draft: Draft) -> None:
                tx.append("pi.assistant", model=(answer(text("Hel"), stop="aborted"),))
                draft["generation"] = {"attempt": 2}

            await stage.commit(cut)
            assert types(await anext(watch)) == ["message_end"]
            await stage.commit(setting(generation={"attempt": 2, "message": answer(text("Hi"))}))
            assert types(await anext(watch)) == ["message_start"]
            await stage.commit(setting(generation={"attempt": 3, "message": answer(text("Ho"))}))
            assert types(await anext(watch)) == ["message_start"]
            watch.stop()

    memory.run(main())


def test_g2_back_offs_and_polls_come_and_go(memory: Home) -> None:
    async def main() -> None:
        async with memory.open(run=False) as h:
            await h.root()
            stage = Stage(h)
            watch = await stage.watch()
            generations: tuple[JsonObject, ...] = (
                {"attempt": 1},
                {"attempt": 1, "retry": {"at": 5000, "error": "429"}},
                {"attempt": 2},
                {"attempt": 2, "deferred": {"pollAt": 7000}},
                {"attempt": 2, "deferred": {"pollAt": 7000, "more": 1}},
                {"attempt": 2, "deferred": {"pollAt": 8000}},
            )
            for generation in generations:
                await stage.commit(setting(generation=generation))
            watch.stop()
            assert await rest(watch) == [
                (event.AutoRetryStart(attempt=1, at_ms=5000, error="429"),),
                (event.AutoRetryEnd(1),),
                (event.DeferredPoll(7000),),
                (event.DeferredPoll(8000),),
            ]
            late = await watch_events(stage.session, ROOT)
            (snapshot,) = await anext(late)
            assert isinstance(snapshot, Snapshot)
            assert snapshot.generation == event.GenerationInFlight(attempt=2, poll_at_ms=8000)

    memory.run(main())


# --- Tools ------------------------------------------------------------------------------------------------------------


def slot(id: str, status: str, **members: Json) -> JsonObject:
    return {"callId": id, "name": "scan", "status": status, **members}


def test_e1_a_tool_is_told_from_its_intent_to_its_result(home: Home) -> None:
    async def main() -> None:
        async with home.open(run=False) as h:
            await h.root()
            stage = Stage(h)
            watch = await stage.watch()
            id = h.engine.session._storage.mint()

            def ask(tx: Transaction, draft: Draft) -> None:
                tx.append("pi.assistant", model=(answer(call("a", host="asked"), call("b", host="b"), stop="toolUse"),))
                tx.put_task(task(id, "pi.tool", at_phase("call")))
                draft["tools"] = [slot("a", "pending", taskId=id), slot("b", "pending")]

            def intend(tx: Transaction, draft: Draft) -> None:
                tx.put_task(task(id, "pi.tool", at_phase("execute", arguments={"host": "checked"}, replay="unsafe")))
                draft["tools"] = [slot("a", "running", taskId=id), slot("b", "running")]

            await stage.commit(ask)
            assert types(await anext(watch)) == ["message_start", "message_end"]
            await stage.commit(intend)
            assert await anext(watch) == (
                event.ToolExecutionStart(call_id="a", tool="scan", arguments={"host": "checked"}),
                event.ToolExecutionStart(call_id="b", tool="scan", arguments={"host": "b"}),
            )
            finding: JsonObject = {"severity": "info", "message": "slow"}
            long = "port 80 is open and answers\n" * 9
            for members in (
                {"output": "port 22", "details": {"n": 1}},
                {"output": "port 22" + long, "details": {"n": 1}},
                {"output": "22" + long + "443", "details": {"n": 1}, "diagnostics": [finding]},
                {"output": "other", "details": {"n": 1}, "diagnostics": [finding]},
                {},
            ):
                await stage.commit(setting(tools=[slot("a", "running", taskId=id, **members), slot("b", "running")]))
            updates = [await anext(watch) for _ in range(5)]
            assert [
                replace(each, tool="", call_id="") for (each,) in updates if isinstance(each, event.ToolExecutionUpdate)
            ] == [
                event.ToolExecutionUpdate(call_id="", tool="", output=OutputGrew(0, "port 22"), details={"n": 1}),
                event.ToolExecutionUpdate(call_id="", tool="", output=OutputGrew(0, long)),
                event.ToolExecutionUpdate(call_id="", tool="", output=OutputGrew(5, "443"), diagnostics=(finding,)),
                event.ToolExecutionUpdate(call_id="", tool="", output=OutputSet("other")),
                event.ToolExecutionUpdate(call_id="", tool="", output=OutputSet(""), details=None, diagnostics=()),
            ]

            def end(tx: Transaction, draft: Draft) -> None:
                tx.append("app.note", data="before")
                entry = tx.append("pi.tool-result", model=(result("a"),), data={"diagnostics": []})
                tx.put_task(task(id, "pi.tool", ended()))
                draft["tools"] = [slot("a", "done", taskId=id, entry=entry), slot("b", "done")]

            await stage.commit(end)
            batch = await anext(watch)
            assert types(batch) == [
                "entry_appended", "tool_execution_end", "message_start", "message_end", "tool_execution_end",
            ]  # fmt: skip
            done, faulted = batch[1], batch[4]
            assert isinstance(done, event.ToolExecutionEnd)
            assert isinstance(faulted, event.ToolExecutionEnd)
            assert (done.call_id, done.entry is not None) == ("a", True)
            assert (faulted.call_id, faulted.entry) == ("b", None)
            watch.stop()

    home.run(main())


def test_a_call_that_never_ran_only_ends_and_one_whose_run_ended_ends_with_what_was_written_for_it(
    memory: Home,
) -> None:
    async def main() -> None:
        async with memory.open(run=False) as h:
            await h.root()
            stage = Stage(h)
            watch = await stage.watch()

            def refuse(tx: Transaction, draft: Draft) -> None:
                entry = tx.append("pi.tool-result", model=(result("a"),))
                draft["tools"] = [slot("a", "done", entry=entry), slot("b", "pending"), slot("c", "running")]

            def abort(tx: Transaction, draft: Draft) -> None:
                tx.append("pi.tool-result", model=(result("b"),))
                del draft["tools"]

            await stage.commit(refuse)
            assert types(await anext(watch)) == [
                "tool_execution_start", "tool_execution_end", "message_start", "message_end",
            ]  # fmt: skip
            await stage.commit(abort)
            batch = await anext(watch)
            assert types(batch) == ["tool_execution_end", "message_start", "message_end", "tool_execution_end"]
            assert [each.call_id for each in batch if isinstance(each, event.ToolExecutionEnd)] == ["b", "c"]
            await stage.commit(setting(tools=[slot("a", "done", entry=7)]))
            await anext(watch)
            await stage.commit(setting(tools=[slot("a", "running")]))  # the provider uses the id again
            assert types(await anext(watch)) == ["tool_execution_start"]
            await stage.commit(setting(tools=[slot("a", "done", entry=9)]))
            assert types(await anext(watch)) == ["tool_execution_end"]
            watch.stop()

    memory.run(main())


# --- Documents, submissions, compactions and the order of it all ------------------------------------------------------


def test_documents_and_submissions_are_told_when_they_change(memory: Home) -> None:
    async def main() -> None:
        async with memory.open(run=False) as h:
            await h.root()
            other = (await h.create()).id
            stage = Stage(h)
            watch = await stage.watch()
            a, b = (SubmissionId(h.engine.session._storage.mint()) for _ in range(2))

            def admit(tx: Transaction, draft: Draft) -> None:
                for id in (b, a):
                    tx.put_submission(SubmissionRecord(id=id, conversation=ROOT, type="input", state=Queued()))

            items: list[Json] = [
                {"id": a, "mode": "steer", "content": "x"},
                {"id": b, "mode": "followUp", "content": "y"},
            ]
            await stage.commit(admit, {"inbox": {"items": items}, "agent": {"cwd": "/"}})
            batch = await anext(watch)
            assert types(batch) == ["submission", "submission", "inbox_update", "agent_changed"]
            assert [each.record.id for each in batch if isinstance(each, event.SubmissionChanged)] == [a, b]
            assert batch[2] == event.InboxUpdate(
                (event.InboxItem(id=a, mode="steer"), event.InboxItem(id=b, mode="followUp"))
            )
            assert batch[3] == event.AgentChanged({"cwd": "/"})
            async with stage.session.block(ConversationSubject(ROOT)) as tx:
                for definition in (live.AGENT, live.INBOX, live.USAGE, live.PROVIDER, live.LIVE):
                    await tx.retire(definition, live.at(definition, ROOT))
            assert await anext(watch) == (
                event.InboxUpdate(()), event.AgentChanged({}), event.UsageChanged({"models": {}, "tools": {}}),
            )  # fmt: skip
            await stage.commit(setting(run={"taskId": 1, "inputs": []}), {"agent": {"cwd": "/other"}}, of=other)
            await stage.commit(setting(unknown=1))
            assert len(watch._frames) == 0
            watch.stop()

    memory.run(main())


def test_one_commit_that_does_everything_tells_it_in_the_promised_order(memory: Home) -> None:
    async def main() -> None:
        async with memory.open(run=False) as h:
            await h.root()
            stage = Stage(h)
            old, new, broken, submission = (h.engine.session._storage.mint() for _ in range(4))

            def before(tx: Transaction, draft: Draft) -> None:
                tx.put_task(task(old, "pi.generation", at_phase("prepare")))
                tx.put_task(task(broken, "app.work", at_phase("work")))
                draft["run"] = {"taskId": old, "inputs": [70]}
                draft["tools"] = [slot("a", "running"), slot("b", "running"), slot("c", "pending")]
                draft["generation"] = {"attempt": 1, "message": answer(text("H"))}
                draft["compactions"] = [{"taskId": 60, "reason": "manual", "blocking": False, "attempt": 1}]

            def after(tx: Transaction, draft: Draft) -> None:
                draft["generation"] = {"attempt": 1, "message": answer(text("Hi")), "retry": {"at": 1, "error": "e"}}
                tx.append("app.note", data=1)
                tx.append("pi.tool-result", model=(result("b"),))
                draft["tools"] = [slot("a", "running", output="o"), slot("b", "done"), slot("c", "running")]
                draft["run"] = {"taskId": new, "inputs": [71]}
                draft["compactions"] = [{"taskId": 61, "reason": "threshold", "blocking": True, "attempt": 1}]
                tx.put_task(task(old, "pi.generation", ended()))
                tx.put_task(task(broken, "app.work", ended(stored.Orphaned(reason="missing_task"))))
                tx.put_task(task(new, "pi.generation", at_phase("prepare")))
                tx.put_submission(
                    SubmissionRecord(id=SubmissionId(submission), conversation=ROOT, type="input", state=Queued())
                )

            await stage.commit(before)
            watch = await stage.watch()
            documents: dict[str, JsonObject] = {
                "usage": {"tools": {"t": {}}},
                "inbox": {"items": [{"id": submission, "mode": "steer"}]},
                "agent": {"cwd": "/"},
            }
            await stage.commit(after, documents)
            batch = await anext(watch)
            assert types(batch) == [
                "tool_execution_start", "message_update", "tool_execution_update", "auto_retry_start",
                "entry_appended", "tool_execution_end", "message_start", "message_end",
                "compaction_end", "task_failed", "turn_end", "run_end", "submission",
                "inbox_update", "agent_changed", "usage_changed",
                "compaction_start", "run_start", "turn_start",
            ]  # fmt: skip
            assert batch[8] == event.CompactionEnd(task=TaskId(60), reason="manual")
            assert batch[9] == event.TaskFailure(task=TaskId(broken), kind="app.work", message="missing_task")
            assert batch[16] == event.CompactionStart(task=TaskId(61), reason="threshold", blocking=True)
            watch.stop()

    memory.run(main())


# --- Snapshots, slow observers and ends -------------------------------------------------------------------------------


def test_v4_more_than_a_hundred_batches_become_one_snapshot_of_the_newest_state(memory: Home) -> None:
    async def main() -> None:
        async with memory.open(run=False) as h:
            await h.root()
            stage = Stage(h)
            watch = await stage.watch()
            for n in range(101):
                await stage.commit(nothing, {"agent": {"cwd": str(n)}})
            await stage.commit(nothing, {"agent": {"cwd": "last"}})
            watch.stop()
            snapshot, after = await rest(watch)
            assert types(snapshot) == ["snapshot"]
            assert isinstance(snapshot[0], Snapshot)
            assert snapshot[0].agent == {"cwd": "100"}
            assert after == (event.AgentChanged({"cwd": "last"}),)

    memory.run(main())


def test_v4_an_event_stream_ends_with_its_session_and_needs_a_conversation(home: Home) -> None:
    async def main() -> None:
        h = await home.open()
        await h.root()
        watch = await watch_events(h.engine.session, ROOT)
        reading = asyncio.create_task(rest(watch))
        with pytest.raises(StorageRequestError, match="77"):
            await watch_events(h.engine.session, ConversationId(77))
        await h.aclose()
        assert [types(batch) for batch in await reading] == [["snapshot"]]
        assert watch.ended == "session_closed"

    home.run(main())


# --- How messages and outputs grow ------------------------------------------------------------------------------------


def test_message_changes_are_as_small_as_they_can_be() -> None:
    thinking: JsonObject = {"type": "thinking", "thinking": "h"}
    base = answer(text("a"), thinking, call("k", n=1))
    assert message_changes(base, base) == ()
    assert message_changes(base, answer(text("ab"), {**thinking, "thinking": "hm"}, call("k", n=1), output=9)) == (
        TextDelta(0, "b"), ThinkingDelta(1, "m"),
    )  # fmt: skip
    signed = {**thinking, "thinking": "hm", "thinkingSignature": "s"}
    changed = answer(text("b"), signed, call("k", n=2), text("new"))
    assert message_changes(base, changed) == (
        BlockReplaced(0, text("b")),
        BlockReplaced(1, signed),
        BlockReplaced(2, call("k", n=2)),
        BlockStart(3, text("new")),
    )
    for other in (
        answer(text("a")),
        {**base, "responseId": "r"},
        answer(text("a"), thinking, call("k", n=1), stop="stop"),
    ):
        assert message_changes(base, other) == (WholeMessage(other),)


def shown_output(before: str, change: object) -> str:
    match change:
        case OutputGrew(trim_start=trim, append=added):
            return before[trim:] + added
        case OutputSet(text=value):
            return value
        case _:
            return before


def test_an_output_window_moves_by_trims_and_appends_and_always_ends_up_right() -> None:
    chance = random.Random(7)
    letters = ["a", "b", "ab" * 40, "é", "🙂", "\ud83d", "\ude42", "\n"]
    shown, window, grew = "", "", 0
    for _ in range(2000):
        window += "".join(chance.choices(letters, k=chance.randint(0, 30)))
        window = window[-chance.randint(200, 400) :] if chance.random() < 0.8 else window[:50]
        change = output_change(shown, window)
        grew += isinstance(change, OutputGrew)
        assert (change is None) == (shown == window)
        shown = shown_output(shown, change)
        assert shown == window
    assert grew > 1000


# --- A screen that knows only events ----------------------------------------------------------------------------------


class Screen:
    """What somebody shows who hears nothing but events."""

    def __init__(self) -> None:
        self.entries = ActiveEntries(None, ())
        self.run: tuple[SubmissionId, ...] | None = None
        self.partial: JsonObject | None = None
        self.retry: tuple[float, str] | None = None
        self.running: dict[str, dict[str, object]] = {}
        self.compactions: set[TaskId] = set()
        self.inbox: tuple[event.InboxItem, ...] = ()
        self.agent: JsonObject = {}
        self.usage: JsonObject = {}
        self.turns = 0
        self.open: JsonObject | None = None
        """The message that began and has not ended."""

    def apply(self, batch: Batch) -> None:
        for each in batch:
            self._apply(each)

    def _apply(self, each: AgentEvent) -> None:
        match each:
            case Snapshot():
                self._reset(each)
            case event.RunStart(inputs=inputs):
                assert self.run is None
                self.run = inputs
            case event.RunEnd():
                assert self.run is not None
                self.run = None
            case event.MessageStart(message=message):
                assert self.open is None, "a message began before the last one ended"
                self.open = message
                self.partial = message if message.get("stopReason") == "pending" else None
            case event.MessageUpdate(usage=usage, changes=changes):
                assert self.partial is not None
                self.partial = self.open = {**_changed(self.partial, changes), "usage": usage}
            case event.MessageEnd(entry=entry):
                assert self.open is not None
                self.open = self.partial = None
                self.entries = self.entries.appended(entry)
            case event.EntryAppended(entry=entry):
                assert self.open is None
                self.entries = self.entries.appended(entry)
            case event.ToolExecutionStart(call_id=id):
                assert id not in self.running
                self.running[id] = {"output": "", "details": None, "diagnostics": ()}
            case event.ToolExecutionUpdate(call_id=id, output=output, details=details, diagnostics=diagnostics):
                known = self.running[id]
                known["output"] = shown_output(str(known["output"]), output)
                known["details"] = known["details"] if details is ABSENT else details
                known["diagnostics"] = known["diagnostics"] if diagnostics is None else diagnostics
            case event.ToolExecutionEnd(call_id=id):
                self.running.pop(id, None)
            case event.AutoRetryStart(at_ms=at, error=error):
                self.retry = (at, error)
            case event.AutoRetryEnd():
                assert self.retry is not None
                self.retry = None
            case event.InboxUpdate(items=items):
                self.inbox = items
            case event.AgentChanged(agent=agent):
                self.agent = agent
            case event.UsageChanged(usage=usage):
                self.usage = usage
            case event.CompactionStart(task=id):
                self.compactions.add(id)
            case event.CompactionEnd(task=id):
                self.compactions.remove(id)
            case event.TurnStart():
                self.turns += 1
            case event.TurnEnd():
                self.turns -= 1
            case _:
                pass

    def _reset(self, each: Snapshot) -> None:
        assert isinstance(each.entries, ActiveEntries)
        generation = each.generation
        self.entries, self.run, self.inbox, self.agent, self.usage = (
            each.entries, each.run, each.inbox, each.agent, each.usage,
        )  # fmt: skip
        self.partial = self.open = generation.message if generation is not None else None
        self.retry = (generation.retry.at_ms, generation.retry.error) if generation and generation.retry else None
        self.running = _running(each)
        self.compactions = _compactions(each)

    def check(self, snapshot: Snapshot) -> None:
        """It shows what is stored."""
        there = Screen()
        there._reset(snapshot)
        assert self.entries == there.entries
        assert (self.run or ())[:1] == (there.run or ())[:1]
        assert same(self.partial, there.partial)
        assert (self.retry, self.inbox, self.agent) == (there.retry, there.inbox, there.agent)
        assert (self.running, self.compactions) == (there.running, there.compactions)
        assert same(self.usage, there.usage)


def _running(snapshot: Snapshot) -> dict[str, dict[str, object]]:
    return {
        str(each["callId"]): {
            "output": each.get("output", ""),
            "details": each.get("details"),
            "diagnostics": tuple(each["diagnostics"]) if isinstance(each.get("diagnostics"), list) else (),  # type: ignore[arg-type]
        }
        for each in snapshot.tools
        if each["status"] == "running"
    }


def _compactions(snapshot: Snapshot) -> set[TaskId]:
    return {TaskId(int(str(each["taskId"]))) for each in snapshot.compactions}


def _changed(message: JsonObject, changes: Sequence[MessageChange]) -> JsonObject:
    content = message["content"]
    blocks = list(content) if isinstance(content, Sequence) else []
    for change in changes:
        match change:
            case WholeMessage(message=whole):
                return whole
            case BlockStart(index=index, block=block):
                assert index == len(blocks)
                blocks.append(block)
            case BlockReplaced(index=index, block=block):
                blocks[index] = block
            case TextDelta(index=index, delta=delta) | ThinkingDelta(index=index, delta=delta):
                old = blocks[index]
                assert isinstance(old, Mapping)
                member = str(old["type"])
                blocks[index] = {**old, member: str(old[member]) + delta}
    return {**message, "content": blocks}


class Walk:
    """A conversation that lives at random, every commit in a shape that the agent writes."""

    def __init__(self, h: Harness, chance: random.Random) -> None:
        self._mint = h.engine.session._storage.mint
        self._chance = chance
        self._generation = 0
        self._attempt = 0
        self._submission = 0
        self._entry = EntryId(0)

    async def step(self, stage: Stage) -> None:
        view = await stage.view()
        value = view.docs["pi.live"]
        busy, chance = "run" in value, self._chance
        generation = value.get("generation")
        if not busy:
            moves: list[Write] = [self._start, self._note, self._compact]
        elif isinstance(generation, Mapping):
            more = (
                [self._stream, self._stream, self._stream, self._answer] if "message" in generation else [self._begin]
            )
            moves = [*more, self._retry, self._note]
        else:
            moves = [self._tools, self._tools, self._tools, self._finish, self._ask]
        documents: dict[str, JsonObject] = {}
        if chance.random() < 0.2:
            documents["agent"] = {"cwd": str(chance.random())}
        if chance.random() < 0.2:
            waiting: list[Json] = [{"id": n, "mode": "steer", "content": ""} for n in range(chance.randint(0, 3))]
            documents["inbox"] = {"items": waiting}
        self._kept = [each.id for each in view.entries if each.head is None]
        await stage.commit(chance.choice(moves), documents)

    def _start(self, tx: Transaction, draft: Draft) -> None:
        self._entry = tx.append("pi.user", text="go")
        self._submission, self._generation, self._attempt = tx.mint(), tx.mint(), 1
        state = Placed(entry=self._entry)
        tx.put_submission(
            SubmissionRecord(id=SubmissionId(self._submission), conversation=ROOT, type="input", state=state)
        )
        tx.put_task(task(self._generation, "pi.generation", at_phase("prepare")))
        draft["run"] = {"taskId": self._generation, "inputs": [self._submission]}
        draft["generation"] = {"attempt": 1}

    def _begin(self, tx: Transaction, draft: Draft) -> None:
        draft["generation"] = {"attempt": self._attempt, "message": answer(text("H"))}

    def _stream(self, tx: Transaction, draft: Draft) -> None:
        generation = draft["generation"]
        assert isinstance(generation, dict)
        message = generation["message"]
        assert isinstance(message, dict)
        content = message["content"]
        assert isinstance(content, list)
        chance = self._chance
        match chance.randint(0, 6):
            case 0:
                content.append(text("new"))
            case 1:
                content.append({"type": "thinking", "thinking": ""})
            case 2:
                content.append(call(f"c{self._mint()}", n=chance.random()))
            case 3 if chance.random() < 0.3:
                message["responseId"] = str(chance.random())
            case 4 if chance.random() < 0.3:
                content.pop()
            case _ if content:
                block = content[chance.randrange(len(content))]
                assert isinstance(block, dict)
                member = str(block["type"])
                if member in block:
                    block[member] = str(block[member]) + chance.choice(["", "more", "🙂"])
                else:
                    block["arguments"] = {"n": chance.random()}
            case _:
                pass
        message["usage"] = {**no_usage(), "output": chance.randint(0, 9)}

    def _retry(self, tx: Transaction, draft: Draft) -> None:
        generation = draft["generation"]
        assert isinstance(generation, dict)
        if "retry" in generation:
            self._attempt += 1
            draft["generation"] = {"attempt": self._attempt}
            return
        self._place(tx, draft, "error")
        draft["generation"] = {"attempt": self._attempt, "retry": {"at": self._chance.randint(1, 99), "error": "e"}}

    def _place(self, tx: Transaction, draft: Draft, stop: str) -> None:
        generation = draft.pop("generation")
        message = generation.get("message") if isinstance(generation, Mapping) else None
        if isinstance(message, Mapping):
            tx.append("pi.assistant", model=({**message, "stopReason": stop},))

    def _answer(self, tx: Transaction, draft: Draft) -> None:
        self._place(tx, draft, "toolUse")
        self._ask(tx, draft)

    def _ask(self, tx: Transaction, draft: Draft) -> None:
        draft["tools"] = [slot(f"c{self._mint()}", "pending") for _ in range(self._chance.randint(0, 3))]
        if self._chance.random() < 0.5:
            draft["compactions"] = [{"taskId": self._mint(), "reason": "threshold", "blocking": False, "attempt": 1}]
        else:
            draft.pop("compactions", None)

    def _tools(self, tx: Transaction, draft: Draft) -> None:
        slots = draft.get("tools")
        if not isinstance(slots, list):
            return
        chance = self._chance
        for each in slots:
            assert isinstance(each, dict)
            if each["status"] == "pending" and chance.random() < 0.5:
                each["status"] = "running"
            elif each["status"] == "running" and chance.random() < 0.3:
                for member in ("output", "details", "diagnostics"):
                    each.pop(member, None)
                each["status"] = "done"
                if chance.random() < 0.8:
                    each["entry"] = tx.append("pi.tool-result", model=(result(str(each["callId"])),))
            elif each["status"] == "running":
                output = str(each.get("output", "")) + chance.choice(["", "line 1\n", "🙂"])
                each["output"] = output[-20:]
                if chance.random() < 0.2:
                    each["details"] = chance.random()
                if chance.random() < 0.2:
                    each.pop("details", None)
                if chance.random() < 0.2:
                    each["diagnostics"] = [{"severity": "info", "message": str(chance.random())}]

    def _finish(self, tx: Transaction, draft: Draft) -> None:
        """The run ends, and another one follows at once, or none."""
        for member in ("run", "tools", "generation"):
            draft.pop(member, None)
        placed = tx.append("pi.assistant", model=(answer(text("done"), stop="stop"),))
        state = Answered(entry=self._entry, answer=placed)
        tx.put_submission(
            SubmissionRecord(id=SubmissionId(self._submission), conversation=ROOT, type="input", state=state)
        )
        tx.put_task(task(self._generation, "pi.generation", ended()))
        if self._chance.random() < 0.4:
            self._start(tx, draft)

    def _note(self, tx: Transaction, draft: Draft) -> None:
        generation = draft.get("generation")
        if not (isinstance(generation, Mapping) and "message" in generation):  # as a busy conversation would
            tx.append("app.note", data=self._chance.random())

    def _compact(self, tx: Transaction, draft: Draft) -> None:
        if self._kept:
            tx.append("pi.compaction", text="in short", head=self._chance.choice(self._kept))


@pytest.mark.parametrize("seed", range(30))
def test_v4_a_screen_that_applies_every_event_shows_what_is_stored(memory: Home, seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        async with memory.open(run=False) as h:
            await h.root()
            stage, walk = Stage(h), Walk(h, chance)
            screens = [(Screen(), await watch_events(stage.session, ROOT))]
            for n in range(80):
                await walk.step(stage)
                if n % 25 == 24:
                    screens.append((Screen(), await watch_events(stage.session, ROOT)))
                snapshot = snapshot_of(await stage.view())
                for screen, watch in screens:
                    while watch._frames:
                        screen.apply(await anext(watch))
                    screen.check(snapshot)
            assert screens[0][0].turns == (1 if snapshot_of(await stage.view()).run is not None else 0)

    memory.run(main())


@pytest.mark.parametrize("seed", range(8))
def test_v4_a_screen_that_is_far_behind_converges(memory: Home, seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        async with memory.open(run=False) as h:
            await h.root()
            stage, walk = Stage(h), Walk(h, chance)
            watch, screen = await watch_events(stage.session, ROOT), Screen()
            for _ in range(400):
                await walk.step(stage)
                if chance.random() < 0.1:
                    for _ in range(min(len(watch._frames), chance.randint(0, 15))):
                        screen.apply(await anext(watch))
            watch.stop()
            for batch in await rest(watch):
                screen.apply(batch)
            screen.check(snapshot_of(await stage.view()))

    memory.run(main(), limit=2_000_000)
