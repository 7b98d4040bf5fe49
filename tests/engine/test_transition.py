"""T1, T9, T11: every pair of a stored state and an event, against a table that is spelled out here and nowhere else."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidurable_nb.engine.transition import (
    FAULT_MEMO,
    Checkpoint,
    Close,
    Drain,
    Event,
    Finish,
    Free,
    HandOver,
    KeepFault,
    Mark,
    Orphan,
    Reopen,
    Reserve,
    Sleep,
    Wait,
    advance,
    checkpoint_digest,
    differs,
    fault_memo,
    kept_fault,
)
from pidurable_nb.errors import IllegalTransition
from pidurable_nb.ids import ConversationId, Json, JsonObject, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.codec import decode_task, encode_task
from pidurable_nb.records.task import TaskRecord

NOW = 1_750_000_000_000
HERE: Final[JsonObject] = {"phase": "here", "n": 1}
THERE: Final[JsonObject] = {"phase": "there", "n": 2}
DONE: Final = stored.Completed(result=7)
FAILED: Final = stored.Failed(error=stored.TaskError(message="no"))
ON: Final = (TaskId(11), TaskId(12))

STATES: Final[Mapping[str, stored.State]] = {
    "pending": stored.Pending(checkpoint=HERE),
    "running": stored.Running(checkpoint=HERE),
    "waiting": stored.Waiting(checkpoint=HERE, on=ON, fail_fast=False),
    "sleeping": stored.Sleeping(checkpoint=HERE, until_ms=NOW + 5),
    "completing": stored.Completing(outcome=FAILED),
    "terminal": stored.Terminal(outcome=FAILED),
}
EVENTS: Final[Mapping[str, Event]] = {
    "reserve": Reserve(),
    "reserve, not free": Reserve(free=False),
    "checkpoint": Checkpoint(THERE),
    "wait": Wait(THERE, ON, True),
    "sleep": Sleep(THERE, NOW + 9),
    "finish": Finish(DONE, drained=True),
    "finish, work below": Finish(DONE, drained=False),
    "drain": Drain(),
    "reopen": Reopen(),
    "close": Close(),
    "hand over": HandOver(),
    "keep fault": KeepFault({"any": "memo"}),
    "free": Free(),
    "orphan": Orphan("missing_task"),
    "mark": Mark(),
}
LEGAL: Final[Mapping[tuple[str, str], str]] = {
    ("pending", "reserve"): "running",
    ("waiting", "reserve"): "running",
    ("sleeping", "reserve"): "running",
    ("pending", "reserve, not free"): "running",
    ("running", "checkpoint"): "running",
    ("running", "wait"): "waiting",
    ("running", "sleep"): "sleeping",
    ("running", "finish"): "terminal",
    ("running", "finish, work below"): "completing",
    ("completing", "drain"): "terminal",
    ("running", "reopen"): "pending",
    ("pending", "reopen"): "pending",
    ("waiting", "reopen"): "waiting",
    ("sleeping", "reopen"): "sleeping",
    ("completing", "reopen"): "completing",
    ("terminal", "reopen"): "terminal",
    ("running", "close"): "pending",
    ("running", "hand over"): "pending",
    ("running", "keep fault"): "pending",
    ("pending", "free"): "pending",
    ("pending", "orphan"): "terminal",
    ("waiting", "orphan"): "terminal",
    ("sleeping", "orphan"): "terminal",
    ("pending", "mark"): "pending",
    ("running", "mark"): "running",
    ("waiting", "mark"): "waiting",
    ("sleeping", "mark"): "sleeping",
    ("completing", "mark"): "completing",
}
"""(status, event) to the status that follows; whatever is not here is refused. From DESIGN section 4, T1."""

MARKED: Final[Mapping[tuple[str, str], str]] = {
    ("waiting", "reserve, not free"): "running",
    ("sleeping", "reserve, not free"): "running",
}
"""What an abort mark makes legal besides."""


def task(state: stored.State, **fields: object) -> TaskRecord:
    known: dict[str, object] = {
        "conversation": ConversationId(1), "kind": "demo", "version": 1, "input": {"in": 1}, "started_at_ms": 5,
        "memos": {"decided": True}, "restarts": 3 if not isinstance(state, stored.Completing | stored.Terminal) else 0,
    }  # fmt: skip
    return TaskRecord(id=TaskId(7), state=state, **(known | fields))  # type: ignore[arg-type]


def kept(*, opening: int = 4, checkpoint: JsonObject = HERE, restarts: int = 3) -> TaskRecord:
    """A task that a fault keeps."""
    running = task(stored.Running(checkpoint=checkpoint), restarts=restarts)
    memo = fault_memo(running, message="boom", detail=None, phase="here", opening=opening)
    return advance(running, KeepFault(memo), now_ms=NOW)


def test_t1_every_event_and_every_state_is_in_this_table() -> None:
    assert {type(event) for event in EVENTS.values()} == set(get_args(Event))
    assert {type(state) for state in STATES.values()} == set(get_args(stored.State))


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize(("status", "event"), list(itertools.product(STATES, EVENTS)))
def test_t1_every_pair_is_legal_exactly_where_the_law_says(status: str, event: str, marked: bool) -> None:
    record = task(STATES[status], abort_requested=marked)
    expected = LEGAL.get((status, event)) or (MARKED.get((status, event)) if marked else None)
    if expected is None:
        with pytest.raises(IllegalTransition, match=f"task 7 is {status}") as refused:
            advance(record, EVENTS[event], now_ms=NOW)
        assert "T1" in str(refused.value)
        return
    after = advance(record, EVENTS[event], now_ms=NOW)
    assert after.status == expected
    assert (after.id, after.conversation, after.kind, after.version, after.input) == (7, 1, "demo", 1, {"in": 1})
    assert after.owner == record.owner
    assert after.started_at_ms == 5
    assert decode_task(encode_task(after)) == after


@pytest.mark.parametrize("status", ["pending", "running", "waiting", "sleeping"])
def test_t1_what_is_no_progress_keeps_checkpoint_and_memos(status: str) -> None:
    for event in ("reserve", "reopen", "close", "hand over", "keep fault", "free", "mark"):
        if (status, event) in LEGAL:
            after = advance(task(STATES[status]), EVENTS[event], now_ms=NOW)
            assert after.checkpoint == HERE
            assert after.memos["decided"] is True


def test_t2_the_first_reservation_stamps_the_start_and_no_later_one_does() -> None:
    first = advance(task(STATES["pending"], started_at_ms=None), Reserve(), now_ms=NOW)
    assert first.started_at_ms == NOW
    again = advance(advance(first, Close(), now_ms=NOW + 1), Reserve(), now_ms=NOW + 2)
    assert again.started_at_ms == NOW


def test_t3_a_checkpoint_is_replaced_whole() -> None:
    assert advance(task(STATES["running"]), Checkpoint({"phase": "x"}), now_ms=NOW).checkpoint == {"phase": "x"}


def test_t4_a_wait_says_for_whom_and_how() -> None:
    after = advance(task(STATES["running"]), Wait(THERE, ON, True), now_ms=NOW)
    assert after.state == stored.Waiting(checkpoint=THERE, on=ON, fail_fast=True)


def test_t12_a_sleep_keeps_one_absolute_time() -> None:
    after = advance(task(STATES["running"]), Sleep(THERE, NOW + 9), now_ms=NOW)
    assert after.state == stored.Sleeping(checkpoint=THERE, until_ms=NOW + 9)


@pytest.mark.parametrize("event", ["finish", "finish, work below"])
def test_t5_t6_m2_memos_restarts_and_checkpoint_end_with_the_outcome(event: str) -> None:
    after = advance(task(STATES["running"]), EVENTS[event], now_ms=NOW)
    assert (after.memos, after.restarts, after.checkpoint) == ({}, 0, None)
    assert after.outcome == DONE
    assert after.ended_at_ms == (NOW if event == "finish" else None)


def test_t5_draining_changes_nothing_but_the_word_and_the_time() -> None:
    before = task(STATES["completing"], memos={}, restarts=0)
    after = advance(before, Drain(), now_ms=NOW)
    assert after == replace(before, state=stored.Terminal(outcome=FAILED), ended_at_ms=NOW)


def test_o4_an_orphan_keeps_its_reason() -> None:
    after = advance(task(STATES["waiting"]), Orphan("task_too_old"), now_ms=NOW)
    assert after.outcome == stored.Orphaned(reason="task_too_old")
    assert (after.memos, after.restarts, after.ended_at_ms) == ({}, 0, NOW)


@pytest.mark.parametrize("status", STATES)
def test_t7_reopening_counts_what_ran_and_nothing_else(status: str) -> None:
    before = task(STATES[status])
    after = advance(before, Reopen(), now_ms=NOW)
    if status == "running":
        assert after == replace(before, state=stored.Pending(checkpoint=HERE), restarts=4)
    else:
        assert after is before


def test_t7_a_clean_close_does_not_count() -> None:
    assert advance(task(STATES["running"]), Close(), now_ms=NOW).restarts == 3


@pytest.mark.parametrize("status", ["pending", "running", "waiting", "sleeping"])
def test_t9_an_abort_mark_starts_the_count_again(status: str) -> None:
    after = advance(task(STATES[status]), Mark(), now_ms=NOW)
    assert (after.abort_requested, after.abort_reason, after.restarts) == (True, None, 0)
    assert after.state == STATES[status]


def test_o7_the_first_mark_keeps_its_reason_and_a_second_changes_nothing() -> None:
    first = advance(task(STATES["pending"]), Mark("restart"), now_ms=NOW)
    assert first.abort_reason == "restart"
    counted = replace(first, restarts=2)
    assert advance(counted, Mark(), now_ms=NOW) is counted


@pytest.mark.parametrize("event", ["wait", "sleep", "checkpoint", "finish"])
def test_t9_what_the_task_itself_commits_is_progress(event: str) -> None:
    assert advance(task(STATES["running"]), EVENTS[event], now_ms=NOW).restarts == 0


def test_t9_an_equal_checkpoint_is_no_progress_and_one_that_python_takes_for_equal_is() -> None:
    before = task(stored.Running(checkpoint={"phase": "here", "n": 1, "of": [1, {"a": None}]}))
    equal: JsonObject = {"of": [1, {"a": None}], "n": 1, "phase": "here"}
    assert advance(before, Checkpoint(equal), now_ms=NOW).restarts == 3
    for other in (True, 1.0, 2):
        assert advance(before, Checkpoint({**equal, "n": other}), now_ms=NOW).restarts == 0
    assert advance(before, Checkpoint({**equal, "of": [1, {}]}), now_ms=NOW).restarts == 0


VALUES = st.sampled_from([0, 1, "", "1", None, [], [1], {}, {"a": 1}])
CHECKPOINTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=2)


@given(old=CHECKPOINTS, new=CHECKPOINTS)
def test_t9_progress_is_a_difference_of_status_or_checkpoint(old: JsonObject, new: JsonObject) -> None:
    before = stored.Running(checkpoint=old)
    assert differs(before, stored.Running(checkpoint=new)) == (old != new)
    assert differs(before, stored.Waiting(checkpoint=old, on=(), fail_fast=False))
    assert differs(before, stored.Sleeping(checkpoint=old, until_ms=0))
    assert differs(before, stored.Terminal(outcome=DONE))


# --- Kept faults (T11) ------------------------------------------------------------------------------------------------


def test_t11_a_kept_fault_says_what_where_and_by_whom() -> None:
    fault = kept_fault(kept())
    assert fault is not None
    assert (fault.message, fault.detail, fault.phase, fault.opening, fault.count) == ("boom", None, "here", 4, 1)
    assert kept().memos["decided"] is True
    assert kept().restarts == 3


@pytest.mark.parametrize("status", [name for name in STATES if name != "pending"])
def test_t11_the_memo_is_stale_in_every_other_status(status: str) -> None:
    assert kept_fault(replace(kept(), state=STATES[status])) is None


def test_t11_the_memo_is_stale_at_another_checkpoint_and_not_for_another_order_of_keys() -> None:
    assert kept_fault(replace(kept(), state=stored.Pending(checkpoint=THERE))) is None
    assert kept_fault(replace(kept(), state=stored.Pending(checkpoint={"n": 1, "phase": "here"}))) is not None


@pytest.mark.parametrize(
    "memo",
    [
        None, 7, "boom", [], {}, {"error": "boom"}, {"error": {"message": 3}, "phase": "here", "digest": "x"},
        {"error": {"message": "x"}, "phase": 3, "digest": checkpoint_digest(HERE), "opening": 1, "count": 1},
        {"error": {"message": "x"}, "phase": "here", "digest": checkpoint_digest(HERE), "count": 1},
        {"error": {"message": "x"}, "phase": "here", "digest": checkpoint_digest(HERE), "opening": "1", "count": 1},
    ],
)  # fmt: skip
def test_t11_a_memo_of_another_shape_is_no_fault(memo: Json) -> None:
    strange = task(STATES["pending"], memos={FAULT_MEMO: memo})
    assert kept_fault(strange) is None
    assert advance(strange, Reserve(), now_ms=NOW).status == "running"
    assert advance(strange, Reopen(), now_ms=NOW) is strange


def test_t11_the_next_fault_of_the_same_checkpoint_is_counted_and_of_another_begins_again() -> None:
    record = kept()
    for n in (2, 3):
        running = advance(record, Reserve(), now_ms=NOW)
        memo = fault_memo(running, message="boom", detail=None, phase="here", opening=4)
        record = advance(running, KeepFault(memo), now_ms=NOW)
        fault = kept_fault(record)
        assert fault is not None
        assert fault.count == n
    elsewhere = replace(record, state=stored.Running(checkpoint=THERE))
    memo = fault_memo(elsewhere, message="boom", detail=None, phase="there", opening=4)
    fault = kept_fault(advance(elsewhere, KeepFault(memo), now_ms=NOW))
    assert fault is not None
    assert fault.count == 1


def test_t9_t11_a_new_opening_counts_a_kept_fault_and_changes_nothing_else() -> None:
    before = kept()
    assert advance(before, Reopen(), now_ms=NOW) == replace(before, restarts=4)


@pytest.mark.parametrize("event", [Close(), HandOver()])
def test_t9_a_task_that_ran_again_after_its_fault_is_not_counted_as_kept(event: Event) -> None:
    ran = advance(kept(), Reserve(), now_ms=NOW)
    rested = advance(ran, event, now_ms=NOW)
    assert kept_fault(rested) is None
    assert advance(rested, Reopen(), now_ms=NOW) is rested
    crashed = advance(ran, Reopen(), now_ms=NOW)
    assert crashed.restarts == 4
    assert advance(crashed, Reopen(), now_ms=NOW) is crashed


@pytest.mark.parametrize("event", [Free(), Mark()])
def test_t11_whatever_frees_a_kept_task_takes_its_memo_and_its_count(event: Event) -> None:
    freed = advance(kept(), event, now_ms=NOW)
    assert (freed.restarts, freed.memos) == (0, {"decided": True})


def test_t11_progress_takes_the_memo_and_no_progress_does_not() -> None:
    running = advance(kept(), Reserve(), now_ms=NOW)
    assert FAULT_MEMO in advance(running, Checkpoint(HERE), now_ms=NOW).memos
    for event in (Checkpoint(THERE), Wait(HERE, ON, False), Sleep(HERE, NOW)):
        assert advance(running, event, now_ms=NOW).memos == {"decided": True}


@given(text=st.text(st.characters(exclude_categories=())))
def test_t11_any_checkpoint_has_a_digest(text: str) -> None:
    assert checkpoint_digest({text: [text, {text: 1}]}) == checkpoint_digest({text: [text, {text: 1}]})
