"""A sweep finds what it is for: mistakes, each put in on purpose, and each found; and without them nothing."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from weakref import WeakKeyDictionary

import pytest

from pidurable_nb.agent import admission, calling, runs
from pidurable_nb.agent.results import Ending
from pidurable_nb.engine import decide, scheduler
from pidurable_nb.engine.decide import ImpliedMark
from pidurable_nb.engine.runtime import Runtime, TaskBlock
from pidurable_nb.engine.snapshot import View
from pidurable_nb.ids import ConversationId, EntryId, Seq, TaskId
from pidurable_nb.lab.scenario import builtin
from pidurable_nb.lab.sweep import sweep
from pidurable_nb.lab.sweep_result import SweepResult
from pidurable_nb.records.message import ToolCall
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.session.transaction import Transaction
from pidurable_nb.session.writer import Writer


def kinds(found: SweepResult) -> set[str]:
    return {violation.kind for violation in found.violations}


# The control.


def test_without_a_mutant_a_sweep_of_ticker_finds_nothing() -> None:
    found = sweep(builtin("ticker"))
    assert found.ok, found.violations


@pytest.mark.slow
def test_without_a_mutant_a_sweep_of_checkout_finds_nothing() -> None:
    found = sweep(builtin("checkout"))
    assert found.ok, found.violations


# The mutants.


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


@pytest.mark.slow
def test_o5_o6_abort_marks_that_are_not_derived_again_at_an_opening_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_marks(monkeypatch)
    found = sweep(builtin("checkout"))
    assert "mispredicted" in kinds(found)
    assert any("predicted to abort" in violation.text for violation in found.violations)


# Of agents.


def test_e3_a_tool_that_is_declared_safe_and_is_not_is_found() -> None:
    refund = builtin("refund")
    careless = replace(refund, tools=lambda: [replace(tool, replay="safe") for tool in refund.tools()])
    found = sweep(careless)
    assert {"effect_twice", "broken"} <= kinds(found)
    assert any("the customer was paid 2 times" in violation.text for violation in found.violations)


def test_s1_a_request_that_is_admitted_anew_by_each_life_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing_known(*_asked: object) -> None:
        return None

    monkeypatch.setattr(admission, "_known", nothing_known)
    found = sweep(builtin("approval"))
    assert kinds(found) & {"stuck", "corrupt", "broken"}


def test_s2_a_run_that_forgets_its_inputs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_answer(*_inputs: object) -> None:
        return None

    monkeypatch.setattr(runs, "answer", no_answer)
    found = sweep(builtin("approval"))
    assert any("are placed, and its run owes [] an answer (S2)" in violation.text for violation in found.violations)


def test_v2_a_result_that_is_not_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(tx: Transaction, conversation: ConversationId, call: ToolCall, ending: Ending) -> EntryId:
        return tx.append("note", conversation=conversation)

    monkeypatch.setattr(calling, "append_result", elsewhere)
    found = sweep(builtin("approval"))
    assert any("has no result, and nothing runs (V2)" in violation.text for violation in found.violations)
