"""A sweep finds what it is for: mistakes, each put in on purpose, and each found; and without them nothing.

The mistakes are made here, by patching, and are in no code of the product. Those of disks and of owners are in
`test_mutants_disk.py`. `pytest -m mutants` runs all, and counts them.
"""

from __future__ import annotations

import re
import types
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final
from weakref import WeakKeyDictionary

import pytest

from pidurable_nb.agent.calls import calling, tool_task
from pidurable_nb.agent.calls.calling import settle_call
from pidurable_nb.agent.calls.executing import execute
from pidurable_nb.agent.extending.workshop import Workshop
from pidurable_nb.agent.household import shop_of
from pidurable_nb.agent.inbox import admission, runs
from pidurable_nb.agent.round import rounds
from pidurable_nb.agent.round.results import Ending
from pidurable_nb.agent.round.rounds import PlannedCall
from pidurable_nb.agent.stored import recovery
from pidurable_nb.agent.stored.stored_call import stored_call
from pidurable_nb.engine import decide, scheduler
from pidurable_nb.engine.decide import ImpliedMark
from pidurable_nb.engine.launching import Launching
from pidurable_nb.engine.phase import Done, Failed
from pidurable_nb.engine.registry import Refined
from pidurable_nb.engine.runtime import Runtime, TaskBlock
from pidurable_nb.engine.snapshot import View
from pidurable_nb.ids import ConversationId, EntryId, Json, Seq, TaskId
from pidurable_nb.lab.scenario import builtin
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.sweep import sweep
from pidurable_nb.records.message import ToolCall
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.session.writer import Writer

pytestmark = pytest.mark.mutants

TWELVE: Final = frozenset(
    {
        "lost sync of the log before it is folded", "lost sync of the database when the log was folded",
        "lost sync of the header of a new log", "effect before intent", "split commit", "memo after effect",
        "rerun of an unsafe tool", "dropped request-id check", "publication before commit",
        "abort marks not derived again", "stale lock ignored", "swallowed checkpoint error",
    }
)  # fmt: skip
"""The mistakes that a sweep has to find, whatever else it finds."""


def kinds(found: SweepResult) -> set[str]:
    return {violation.kind for violation in found.violations}


# The controls.


def test_without_a_mutant_a_sweep_of_ticker_finds_nothing() -> None:
    found = sweep(builtin("ticker"))
    assert found.ok, found.violations


@pytest.mark.slow
@pytest.mark.parametrize("name", ["checkout", "refund", "approval"])
def test_without_a_mutant_a_sweep_finds_nothing(name: str) -> None:
    found = sweep(builtin(name))
    assert found.ok, found.violations


# The mutants.


def act_before_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool runs before it is on disk that it will."""
    put = rounds._put_call

    def put_at_its_beginning(
        tx: Transaction, launch: Launching, rt: Runtime, shop: Workshop, planned: PlannedCall, assistant: EntryId
    ) -> TaskRecord:
        return put(tx, launch, rt, shop, replace(planned, tool=None), assistant)

    async def act_at_once(self: tool_task.Begin, rt: Runtime) -> Done[Json] | Failed:
        shop, stored = shop_of(rt), await stored_call(rt)
        agent = await shop.agent(rt.conversation)
        decided = await self._decide(rt, agent, stored.call)
        if isinstance(decided, Ending):
            return await settle_call(rt, shop, agent, stored, decided)
        tool, arguments = decided
        ending = await execute(rt, shop, stored, tool, arguments, agent.cwd)
        return await settle_call(rt, shop, agent, stored, ending)

    monkeypatch.setattr(rounds, "_put_call", put_at_its_beginning)
    monkeypatch.setattr(tool_task.Begin, "run", act_at_once)


@pytest.mark.mutants("effect before intent")
def test_e1_a_tool_that_runs_before_its_intent_is_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    act_before_intent(monkeypatch)
    found = sweep(builtin("refund"))
    assert {"effect_twice", "broken"} <= kinds(found)
    assert any("the customer was paid 2 times" in violation.text for violation in found.violations)


def repeat_unsafe_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool call that was cut off is made again, whatever its author said."""
    refine = recovery.refine

    def replayed(record: TaskRecord, current_replay: recovery.CurrentReplay) -> Refined | None:
        refined = refine(record, current_replay)
        return "replay" if refined == "interrupt" else refined

    monkeypatch.setattr(recovery, "refine", replayed)
    monkeypatch.setattr(tool_task.Execute, "_replayed", lambda _self, tool: tool)


@pytest.mark.mutants("rerun of an unsafe tool")
def test_e3_an_unsafe_tool_that_is_run_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    repeat_unsafe_tools(monkeypatch)
    found = sweep(builtin("refund"))
    assert {"effect_twice", "broken"} <= kinds(found)
    assert any("the customer was paid 2 times" in violation.text for violation in found.violations)


def remember_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memos are written when the effect behind them has been performed."""
    late: WeakKeyDictionary[Runtime, list[Callable[[], Awaitable[object]]]] = WeakKeyDictionary()
    memo, effect = Runtime.memo, Runtime.effect

    async def memo_later(self: Runtime, name: str, value: bool, *, barrier: bool = False) -> bool:
        late.setdefault(self, []).append(lambda: memo(self, name, value, barrier=barrier))
        return value

    async def effect_first(self: Runtime, name: str, do: Callable[[], str], *, key: str | None = None) -> str:
        got = await effect(self, name, do, key=key)
        for remember in late.pop(self, []):
            await remember()
        return got

    monkeypatch.setattr(Runtime, "memo", memo_later)
    monkeypatch.setattr(Runtime, "effect", effect_first)


@pytest.mark.mutants("memo after effect")
def test_m3_a_memo_behind_its_effect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    remember_afterwards(monkeypatch)
    found = sweep(builtin("ticker"))
    assert "effect_twice" in kinds(found)
    assert found.classes["effect_twice"] > 0
    witness = next(each for each in found.violations if each.kind == "effect_twice").witness
    assert ":effect.after" in str(witness.crashes[0])


def split_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a block writes lands in one commit, and what the task becomes in another one behind it."""
    leave = TaskBlock.__aexit__
    halves: list[TaskBlock] = []  # kept, or another block would be taken for one of them

    async def leave_twice(
        self: TaskBlock, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        becomes = self._tx._to
        if error is not None or becomes is None or any(half is self for half in halves):
            await leave(self, kind, error, trace)
            return
        self._tx._to = None
        await leave(self, None, None, None)
        second = self._rt.commit()
        halves.append(second)
        async with second as tx:
            tx._to = becomes

    monkeypatch.setattr(TaskBlock, "__aexit__", leave_twice)


@pytest.mark.mutants("split commit")
@pytest.mark.slow
def test_c1_children_and_checkpoint_in_two_commits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    split_commits(monkeypatch)
    found = sweep(builtin("checkout"))
    assert kinds(found) & {"broken", "stuck"}
    assert any("checkout#1/checkout:" in str(violation.witness.crashes[0]) for violation in found.violations)


def publish_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody hears of a commit, callers too, and then it is stored."""

    async def tell_then_write(self: Writer) -> None:
        staged = self._queue.popleft()
        self._flight = [staged]
        stands: int = getattr(self._storage, "_next_seq")  # noqa: B009 - no part of the protocol
        self._keeper.adopt(staged, Seq(stands))
        await self._storage.commit([staged.commit])
        self._kept = False
        self._flight = []

    monkeypatch.setattr(Writer, "_write", tell_then_write)


@pytest.mark.mutants("publication before commit")
def test_c2_publication_before_the_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    publish_first(monkeypatch)
    found = sweep(builtin("ticker"))
    assert "lost_acknowledged" in kinds(found)
    assert found.classes["lost_acknowledged"] > 0
    witness = next(each for each in found.violations if each.kind == "lost_acknowledged").witness
    assert ":publish." in str(witness.crashes[0])


def forget_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failure implies is marked by the life that saw it happen, and never derived again from what is stored."""
    found_failed: WeakKeyDictionary[View, set[TaskId]] = WeakKeyDictionary()

    def only_new(view: View, among: Iterable[TaskRecord]) -> Mapping[TaskId, ImpliedMark]:
        due = decide.implied_marks(view, among=among)
        old = found_failed.setdefault(view, set())
        if view.fresh:
            old.update(mark.source for mark in due.values())
        return {id: mark for id, mark in due.items() if mark.source not in old}

    names = {**vars(decide), "implied_marks": only_new}
    monkeypatch.setattr(scheduler, "decide", types.SimpleNamespace(**names))


@pytest.mark.mutants("abort marks not derived again")
@pytest.mark.slow
def test_o5_o6_abort_marks_that_are_not_derived_again_at_an_opening_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_marks(monkeypatch)
    found = sweep(builtin("checkout"))
    assert "mispredicted" in kinds(found)
    assert any("predicted to abort" in violation.text for violation in found.violations)


# More of them.


@pytest.mark.mutants("a tool declared safe that is not")
def test_e3_a_tool_that_is_declared_safe_and_is_not_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    refund = builtin("refund")
    careless = replace(refund, tools=lambda: [replace(tool, replay="safe") for tool in refund.tools()])
    found = sweep(careless)
    assert {"effect_twice", "broken"} <= kinds(found)
    assert any("the customer was paid 2 times" in violation.text for violation in found.violations)


@pytest.mark.mutants("dropped request-id check")
def test_s1_a_request_that_is_admitted_anew_by_each_life_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing_known(*_asked: object) -> None:
        return None

    monkeypatch.setattr(admission, "_known", nothing_known)
    found = sweep(builtin("approval"))
    assert kinds(found) & {"stuck", "corrupt", "broken"}


@pytest.mark.mutants("run that forgets its inputs")
def test_s2_a_run_that_forgets_its_inputs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_answer(*_inputs: object) -> None:
        return None

    monkeypatch.setattr(runs, "answer", no_answer)
    found = sweep(builtin("approval"))
    assert any("are placed, and its run owes [] an answer (S2)" in violation.text for violation in found.violations)


@pytest.mark.mutants("result that is not written")
def test_v2_a_result_that_is_not_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(tx: Transaction, conversation: ConversationId, call: ToolCall, ending: Ending) -> EntryId:
        return tx.append("note", conversation=conversation)

    monkeypatch.setattr(calling, "append_result", elsewhere)
    found = sweep(builtin("approval"))
    assert any("has no result, and nothing runs (V2)" in violation.text for violation in found.violations)


# The count.


def test_the_twelve_are_put_in_each_once() -> None:
    """That they are found is said by their own tests, and counted in the last lines of `pytest -m mutants`."""
    files = sorted(Path(__file__).parent.glob("test_mutants*.py"))
    put_in = [
        name for file in files for name in re.findall(r'^@pytest\.mark\.mutants\("(.+)"\)$', file.read_text(), re.M)
    ]
    assert len(set(put_in)) == len(put_in)
    assert set(put_in) >= TWELVE
    assert len(TWELVE) == 12
