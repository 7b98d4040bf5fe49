"""What recovery decides, row by row: the table of the decision, its order, its words, and the marks that follow."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pidurable_nb.agent.stored.recovery import AssumedCode
from pidurable_nb.engine import rows
from pidurable_nb.engine.decide import SETTLES, ImpliedMark, Policy, Verdict, decide_task, decide_tasks, implied_marks
from pidurable_nb.engine.registry import Code, Registry
from pidurable_nb.engine.snapshot import LiveRun, Snapshot, ancestors
from pidurable_nb.engine.submissions import SubmissionVerdict, SubmissionVerdictName, decide_submissions
from pidurable_nb.engine.transition import FAULT_MEMO, Mark, Reopen, advance, fault_memo
from pidurable_nb.errors import IllegalTransition
from pidurable_nb.ids import ConversationId, DocumentId, EntryId, Json, SubmissionId, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import Answered, Placed, Queued, SubmissionRecord

NOW = 1_796_047_500_000
"""14:05 on 30 November 2026, UTC."""
HERE = ConversationId(1)
BELOW = ConversationId(13)
LIVE = DocumentId(2)
INBOX = DocumentId(3)
POLICY = Policy()
ASSUMED = AssumedCode()
MISSING = AssumedCode(installed=Registry())
UNSAFE_NOW = AssumedCode(current_replay=lambda record: "unsafe")
HOOKED = AssumedCode(hooked=lambda record: True)
FAILED = stored.Failed(error=stored.TaskError(message="no"))
DONE = stored.Completed(result=None)


def job(id: int, state: stored.State, **fields: object) -> TaskRecord:
    """A task of the user's that began, unless said otherwise."""
    known: dict[str, object] = {"conversation": HERE, "kind": "demo.job", "version": 1, "input": {}, "started_at_ms": 1}
    return TaskRecord(id=TaskId(id), state=state, **(known | fields))  # type: ignore[arg-type]


def running(phase: str = "work", **more: Json) -> stored.Running:
    return stored.Running(checkpoint={"phase": phase, **more})


def pending(phase: str = "work", **more: Json) -> stored.Pending:
    return stored.Pending(checkpoint={"phase": phase, **more})


def waiting(*on: int, fail_fast: bool = False, phase: str = "collect") -> stored.Waiting:
    return stored.Waiting(checkpoint={"phase": phase}, on=tuple(TaskId(id) for id in on), fail_fast=fail_fast)


def sleeping(until_ms: float, phase: str = "nap") -> stored.Sleeping:
    return stored.Sleeping(checkpoint={"phase": phase}, until_ms=until_ms)


def tool(id: int, replay: str, **fields: object) -> TaskRecord:
    state = running("execute", arguments={}, replay=replay)
    return job(id, state, kind="pi.tool", version=2, input={"kind": "model", "assistant": 5, "callId": "c"}, **fields)


def generation(id: int, state: stored.State, **fields: object) -> TaskRecord:
    return job(id, state, kind="pi.generation", **fields)


def ended(id: int, outcome: stored.Outcome = DONE, **fields: object) -> TaskRecord:
    return job(id, stored.Terminal(outcome=outcome), **fields)


def submission(id: int, state: Queued | Placed | Answered, conversation: ConversationId = HERE) -> SubmissionRecord:
    return SubmissionRecord(id=SubmissionId(id), conversation=conversation, type="input", state=state)


def view(
    *tasks: TaskRecord,
    submissions: tuple[SubmissionRecord, ...] = (),
    run: LiveRun | None = None,
    owners: Mapping[ConversationId, TaskId | None] | None = None,
    opening: int | None = None,
) -> Snapshot:
    return Snapshot(
        tasks={record.id: record for record in tasks},
        owners={HERE: None} if owners is None else owners,
        submissions=submissions,
        runs={} if run is None else {HERE: run},
        inboxes={HERE: INBOX, BELOW: DocumentId(15)},
        opening=opening,
    )


def all_of(snapshot: Snapshot, code: Code = ASSUMED, policy: Policy = POLICY) -> Mapping[TaskId, Verdict]:
    return decide_tasks(snapshot, code, policy, NOW)


def names(snapshot: Snapshot, code: Code = ASSUMED, policy: Policy = POLICY) -> dict[int, str]:
    return {int(id): verdict.name for id, verdict in all_of(snapshot, code, policy).items()}


# --- The rows of the table --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A snapshot in which task or submission 7 gets the verdict, with what the verdict has to carry."""

    name: str
    snapshot: Snapshot
    laws: tuple[str, ...]
    outside: str
    because: str
    code: Code = ASSUMED


NAMED = LiveRun(document=LIVE, task=TaskId(9), tools={TaskId(7): "refund"}, partial=True)
NAMED_LOOKUP = LiveRun(document=LIVE, tools={TaskId(7): "lookup"})
RERUN_TWICE = "It runs again from its last checkpoint; what came after may happen twice."
RERUN_ASKED = "It runs again from its last checkpoint; nothing outside had been asked."


def kept(opening: int) -> TaskRecord:
    record = job(7, pending())
    return replace(
        record, memos={FAULT_MEMO: fault_memo(record, message="x", detail=None, phase="work", opening=opening)}
    )


CASES: tuple[Case, ...] = (
    Case("finish", view(job(7, stored.Completing(outcome=DONE))), ("T5",), "none",
         "Its outcome was already decided; the work it owned has ended, so it closes."),
    Case("finish", view(job(7, stored.Completing(outcome=DONE)), job(8, running(), owner=TaskId(7))), ("T5",), "none",
         "Its outcome is already decided; it closes when the work it owns has ended."),
    Case("orphan", view(job(7, running(), abort_requested=True)), ("T7", "T8", "O4"), "unknown",
         "It is to be aborted and its code is gone; it ends, and nothing of it is undone.", MISSING),
    Case("orphan", view(job(7, pending(), abandon_on_restart=True)), ("O7", "T8", "O4"), "unknown",
         "It is to be aborted and its code is gone; it ends, and nothing of it is undone.", MISSING),
    Case("orphan", view(replace(tool(7, "safe", abort_requested=True), version=9)), ("T7", "T8", "O4"), "unknown",
         "It is to be aborted and its code is too old; it ends, and nothing of it is undone."),
    Case("abandon", view(job(7, running(), abandon_on_restart=True)), ("T7", "O7"), "unknown",
         "It was started by an unsafe tool that died; it is not resumed, only ended."),
    Case("give_up", view(job(7, running(), abort_requested=True, restarts=4)), ("T7", "T9"), "none",
         "Its abort was cut off five times; it ends as faulted."),
    Case("abort", view(job(7, running(), abort_requested=True)), ("T7", "O2"), "again",
         "It is to be aborted; its abort handler runs once its own work has ended."),
    Case("abort", view(job(6, running(), abort_requested=True), job(7, running(), owner=TaskId(6))),
         ("T7", "O5", "O2"), "again",
         "Its owner was cancelled; its abort handler runs once its own work has ended."),
    Case("abort", view(job(5, waiting(6, 7, fail_fast=True)), ended(6, FAILED, owner=TaskId(5)),
                       job(7, running(), owner=TaskId(5))), ("T7", "T4", "O2"), "again",
         "A sibling failed; its abort handler runs once its own work has ended."),
    Case("abort", view(generation(7, running("request"), abort_requested=True)), ("T7", "O2"), "none",
         "It is to be aborted; its abort handler runs once its own work has ended."),
    Case("abort", view(generation(7, running("request"), abort_requested=True)), ("T7", "O2"), "again",
         "It is to be aborted; its abort handler runs once its own work has ended.", HOOKED),
    Case("wait", view(job(7, waiting(8, 9, 10)), job(8, running()), job(9, pending()), ended(10)), ("T4",), "none",
         "It waits for two tasks that are still alive."),
    Case("sleep", view(job(7, sleeping(NOW + 1))), ("T12",), "none", "It sleeps until 14:05; nothing runs before."),
    Case("sleep", view(job(7, sleeping(4_102_444_800_000))), ("T12",), "none",
         "It sleeps until 1 January 2100, 00:00; nothing runs before."),
    Case("sleep", view(job(7, sleeping(1e300))), ("T12",), "none",
         "It sleeps until a time that no calendar has; nothing runs before."),
    Case("blocked", view(job(7, running())), ("T7", "T8"), "none",
         "Its code is not installed; it stays as it is until it is.", MISSING),
    Case("blocked", view(replace(tool(7, "safe"), version=3)), ("T7", "T8"), "none",
         "Its code is older than what is stored; it stays as it is until newer code is there."),
    Case("blocked", view(replace(tool(7, "safe"), version=1, input="?")), ("T7", "T8"), "none",
         "Its code cannot read what is stored; it stays as it is until that is mended."),
    Case("parked", view(job(7, running(), restarts=4)), ("T7", "T9"), "none",
         "Five openings found it running without progress; it rests until retried."),
    Case("parked", view(job(7, pending(), restarts=5)), ("T9",), "none",
         "Five openings found it running without progress; it rests until retried."),
    Case("faulted", view(kept(3), opening=3), ("T11",), "none",
         "Its code raised an error; it rests until the code changes or it is retried."),
    Case("start", view(job(7, pending(), started_at_ms=None)), ("T2",), "none", "It never began; it begins now."),
    Case("replay", view(tool(7, "safe"), run=NAMED_LOOKUP), ("T7", "E1", "E2"), "again",
         "The lookup may run again: it is declared safe."),
    Case("interrupt", view(tool(7, "unsafe"), run=NAMED), ("T7", "E1", "E3"), "unknown",
         "The refund is not run again. It is unsafe, so the model is told it was cut off."),
    Case("interrupt", view(tool(7, "unsafe")), ("T7", "E1", "E3"), "unknown",
         "The tool is not run again. It is unsafe, so the model is told it was cut off."),
    Case("interrupt", view(tool(7, "safe"), run=NAMED), ("T7", "E1", "E3"), "unknown",
         "The refund is not run again: safe then, not now. The model is told it was cut off.", UNSAFE_NOW),
    Case("resend", view(generation(7, running("request")), run=NAMED), ("T7", "G1"), "again",
         "The request was cut; what was stored is kept as aborted, and it is sent again."),
    Case("resend", view(generation(7, running("request"))), ("T7", "G1"), "again",
         "The request was cut before any of its answer was stored; it is sent again."),
    Case("resend", view(job(7, running("summarize"), kind="pi.compaction")), ("T7", "G1"), "again",
         "The request for a summary was cut; it is sent again."),
    Case("poll", view(generation(7, sleeping(NOW, "poll"))), ("T12",), "none",
         "The provider may have finished meanwhile; it is asked for the same answer."),
    Case("poll", view(generation(7, running("poll"))), ("T7", "T12"), "none",
         "The provider may have finished meanwhile; it is asked for the same answer."),
    Case("resume", view(job(7, waiting(8, 9)), ended(8), ended(9, FAILED)), ("T4",), "none",
         "Everything it waited for has ended; it goes on."),
    Case("resume", view(job(7, sleeping(NOW))), ("T12",), "none", "The time it slept for has come; it goes on."),
    Case("resume", view(generation(7, sleeping(NOW, "retry"))), ("T12",), "none",
         "The time it slept for has come; it goes on."),
    Case("rerun", view(job(7, running())), ("T7", "T3", "M3"), "again", RERUN_TWICE),
    Case("rerun", view(job(7, running(), memos={"printed": True})), ("T7", "T3", "M3"), "again",
         "It runs again from its last checkpoint; only what a memo guards is left out."),
    Case("rerun", view(kept(2), opening=3), ("T3", "M3"), "again",
         "It runs again from its last checkpoint; only what a memo guards is left out."),
    Case("rerun", view(generation(7, running("prepare"))), ("T7", "T3", "M3"), "none", RERUN_ASKED),
    Case("rerun", view(job(7, running("call"), kind="pi.tool", version=2)), ("T7", "T3", "M3"), "again",
         "It runs again from its last checkpoint; a hook that ran may run again.", HOOKED),
)  # fmt: skip

RUN = LiveRun(document=LIVE, task=TaskId(9), inputs=(SubmissionId(7),))
RUNNER = generation(9, running("request"))
CANCELLED = view(
    tool(12, "unsafe"), submissions=(submission(7, Queued(), BELOW),), owners={HERE: None, BELOW: TaskId(12)}
)
SUBMISSIONS: tuple[Case, ...] = (
    Case("settle", view(RUNNER, submissions=(submission(7, Placed(entry=EntryId(5))),), run=RUN), ("S2",), "none",
         "Its run goes on; when that ends, the submission is settled with it."),
    Case("settle", view(submissions=(submission(7, Placed(entry=EntryId(5))),)), ("S2",), "none",
         "Its run has ended; the submission is settled as that ended."),
    Case("place", view(RUNNER, submissions=(submission(7, Queued()),), run=RUN), ("S2", "S4"), "none",
         "It waits behind the run and joins when that ends well."),
    Case("hold", view(submissions=(submission(7, Queued()),)), ("S2", "S4"), "none",
         "Nothing runs here; the next submission will place it."),
    Case("withdraw", CANCELLED, ("O5", "S4"), "none", "Its conversation was cancelled; it is withdrawn, unanswered."),
    Case("keep", view(submissions=(submission(7, Answered(entry=EntryId(5), answer=EntryId(6))),)), ("S5",), "none",
         "Settled before the crash; it does not change."),
)  # fmt: skip


def verdict_of(case: Case, policy: Policy = POLICY) -> Verdict | SubmissionVerdict:
    found = all_of(case.snapshot, case.code, policy)
    if case in SUBMISSIONS:
        return decide_submissions(case.snapshot, found, policy)[SubmissionId(7)]
    return found[TaskId(7)]


def label(case: Case) -> str:
    return f"{case.name}-{case.because[:30]}"


@pytest.mark.parametrize("case", [*CASES, *SUBMISSIONS], ids=label)
def test_every_row_carries_its_laws_its_sentence_and_its_consequence(case: Case) -> None:
    verdict = verdict_of(case)
    assert (verdict.name, verdict.laws, verdict.outside) == (case.name, case.laws, case.outside)
    assert verdict.because == case.because
    assert verdict.reads[0] == (f"submissions/{7}" if case in SUBMISSIONS else f"tasks/{7}")


@pytest.mark.parametrize("case", [*CASES, *SUBMISSIONS], ids=label)
def test_sentences_are_short_and_name_no_row_and_promise_nothing(case: Case) -> None:
    said = verdict_of(case).because
    assert len(said) <= 90
    assert said.endswith(".")
    if case.name != "sleep":
        assert not re.search(r"\d", said)
    for word in ("safely", "exactly once", "exactly-once"):
        assert word not in said.lower()


@pytest.mark.parametrize("replay", ["safe", "unsafe"])
@pytest.mark.parametrize("name", ["x" * 300, "a\u202eb", "\x1b[31m", "", "{}", "日本語" * 40])
@pytest.mark.parametrize("code", [ASSUMED, UNSAFE_NOW])
def test_a_sentence_holds_any_tool_name_and_shows_no_character_that_acts(replay: str, name: str, code: Code) -> None:
    run = LiveRun(document=LIVE, tools={TaskId(7): name})
    said = all_of(view(tool(7, replay), run=run), code)[TaskId(7)].because
    assert len(said) <= 90
    assert said.isprintable()


def test_all_twenty_two_verdicts_are_reached() -> None:
    tasks, submissions = set(get_args(rows.VerdictName)), set(get_args(SubmissionVerdictName))
    assert len(tasks | submissions) == 22
    assert {case.name for case in CASES} == tasks
    assert {case.name for case in SUBMISSIONS} == submissions
    assert {row.name for row in rows.TASK_ROWS} == tasks


def test_rows_stand_in_the_order_of_the_decision() -> None:
    assert [row.name for row in rows.TASK_ROWS] == [
        "finish", "orphan", "abandon", "give_up", "abort", "wait", "sleep", "blocked", "parked", "faulted", "start",
        "replay", "interrupt", "resend", "poll", "resume", "rerun",
    ]  # fmt: skip


def test_a_terminal_task_has_no_verdict() -> None:
    snapshot = view(ended(7))
    assert all_of(snapshot) == {}
    with pytest.raises(IllegalTransition):
        decide_task(ended(7), snapshot, ASSUMED, Policy(), NOW)


def test_the_trunk_lists_every_question_up_to_the_row_that_fits() -> None:
    asked = all_of(view(tool(7, "unsafe")))[TaskId(7)].asked
    assert [answer for _, answer in asked] == [False] * 12 + [True]
    assert asked[-1][0] == "Is it a tool call cut in execute?"


# --- First row wins ---------------------------------------------------------------------------------------------------

PAIRS: tuple[tuple[str, str, Snapshot, Code], ...] = (
    ("orphan", "abandon", view(job(7, running(), abandon_on_restart=True)), MISSING),
    ("orphan", "give_up", view(job(7, pending(), abort_requested=True, restarts=9)), MISSING),
    ("orphan", "abort", view(job(7, running(), abort_requested=True)), MISSING),
    ("orphan", "blocked", view(job(7, running(), abort_requested=True)), MISSING),
    ("orphan", "wait", view(job(7, waiting(8), abort_requested=True), job(8, running())), MISSING),
    ("abandon", "start", view(job(7, pending(), started_at_ms=None, abandon_on_restart=True)), ASSUMED),
    ("abandon", "sleep", view(job(7, sleeping(NOW + 1), abandon_on_restart=True)), ASSUMED),
    ("abandon", "interrupt", view(tool(7, "unsafe", abandon_on_restart=True)), ASSUMED),
    ("abandon", "parked", view(job(7, pending(), restarts=9, abandon_on_restart=True)), ASSUMED),
    ("give_up", "abort", view(job(7, pending(), abort_requested=True, restarts=5)), ASSUMED),
    ("give_up", "parked", view(job(7, pending(), abort_requested=True, restarts=5)), ASSUMED),
    ("abort", "wait", view(job(7, waiting(8), abort_requested=True), job(8, running())), ASSUMED),
    ("abort", "sleep", view(job(7, sleeping(NOW + 1), abort_requested=True)), ASSUMED),
    ("abort", "start", view(job(7, pending(), started_at_ms=None, abort_requested=True)), ASSUMED),
    ("abort", "interrupt", view(tool(7, "unsafe", abort_requested=True)), ASSUMED),
    ("abort", "resend", view(generation(7, running("request"), abort_requested=True)), ASSUMED),
    ("wait", "blocked", view(job(7, waiting(8)), job(8, running())), MISSING),
    ("wait", "parked", view(job(7, waiting(8), restarts=9), job(8, running())), ASSUMED),
    ("wait", "resume", view(job(7, waiting(8)), job(8, running())), ASSUMED),
    ("sleep", "blocked", view(job(7, sleeping(NOW + 1))), MISSING),
    ("sleep", "poll", view(generation(7, sleeping(NOW + 1, "poll"))), ASSUMED),
    ("sleep", "resume", view(job(7, sleeping(NOW + 1))), ASSUMED),
    ("blocked", "parked", view(job(7, pending(), restarts=9)), MISSING),
    ("blocked", "faulted", view(kept(3), opening=3), MISSING),
    ("blocked", "start", view(job(7, pending(), started_at_ms=None)), MISSING),
    ("blocked", "resume", view(job(7, sleeping(NOW))), MISSING),
    ("blocked", "interrupt", view(replace(tool(7, "unsafe"), version=3)), ASSUMED),
    ("parked", "faulted", view(replace(kept(3), restarts=5), opening=3), ASSUMED),
    ("parked", "interrupt", view(tool(7, "unsafe", restarts=4)), ASSUMED),
    ("parked", "rerun", view(job(7, running(), restarts=4)), ASSUMED),
    ("faulted", "rerun", view(kept(3), opening=3), ASSUMED),
    ("faulted", "start", view(replace(kept(3), started_at_ms=None), opening=3), ASSUMED),
    ("start", "resend", view(generation(7, pending("request"), started_at_ms=None)), ASSUMED),
    ("start", "interrupt", view(replace(tool(7, "unsafe"), state=pending("execute"), started_at_ms=None)), ASSUMED),
    ("start", "rerun", view(job(7, pending(), started_at_ms=None)), ASSUMED),
    ("replay", "rerun", view(tool(7, "safe")), ASSUMED),
    ("interrupt", "rerun", view(tool(7, "unsafe")), ASSUMED),
    ("resend", "rerun", view(generation(7, running("request"))), ASSUMED),
    ("poll", "resume", view(generation(7, sleeping(NOW, "poll"))), ASSUMED),
    ("poll", "rerun", view(generation(7, running("poll"))), ASSUMED),
)  # fmt: skip


@pytest.mark.parametrize(("first", "second", "snapshot", "code"), PAIRS, ids=[f"{a}-{b}" for a, b, _, _ in PAIRS])
def test_of_two_rows_that_fit_the_earlier_one_decides(first: str, second: str, snapshot: Snapshot, code: Code) -> None:
    verdict = all_of(snapshot, code)[TaskId(7)]
    fits = {row.name for row in rows.TASK_ROWS if row.fits(verdict.facts)}
    assert {first, second} <= fits
    assert verdict.name == first


def test_t5_a_decided_outcome_comes_before_every_mark() -> None:
    state = stored.Completing(outcome=FAILED)
    for fields in ({"abort_requested": True, "restarts": 9}, {"abandon_on_restart": True}):
        for code in (ASSUMED, MISSING):
            assert names(view(job(7, state, **fields)), code) == {7: "finish"}


def test_t2_a_task_that_was_reserved_once_does_not_start() -> None:
    assert names(view(job(7, pending(), started_at_ms=None, restarts=1))) == {7: "rerun"}
    assert names(view(job(7, pending(), started_at_ms=1))) == {7: "rerun"}


def test_t9_the_limit_is_the_hosts() -> None:
    snapshot = view(job(7, running(), restarts=1))
    assert names(snapshot, policy=Policy(restart_limit=2)) == {7: "parked"}
    assert names(snapshot, policy=Policy(restart_limit=3)) == {7: "rerun"}
    said = all_of(view(job(7, running())), policy=Policy(restart_limit=1))[TaskId(7)].because
    assert said == "One opening found it running without progress; it rests until retried."


def test_t11_a_fault_is_never_found_in_a_closed_file() -> None:
    assert names(view(kept(3))) == {7: "rerun"}
    assert names(view(replace(kept(3), restarts=4))) == {7: "parked"}
    assert names(view(kept(3), opening=4)) == {7: "rerun"}


def test_t12_a_sleep_ends_when_its_time_has_come() -> None:
    snapshot = view(job(7, sleeping(NOW + 0.5)))
    assert decide_tasks(snapshot, ASSUMED, Policy(), NOW)[TaskId(7)].name == "sleep"
    assert decide_tasks(snapshot, ASSUMED, Policy(), NOW + 0.5)[TaskId(7)].name == "resume"


# --- Marks that follow (O5, O6, T4) -----------------------------------------------------------------------------------


def subagent(replay: str, *more: TaskRecord) -> Snapshot:
    """A tool call that owns a conversation, in which a model request was cut."""
    child = generation(21, running("request"), conversation=BELOW)
    return view(tool(12, replay), child, *more, owners={HERE: None, BELOW: TaskId(12)})


def test_o6_the_child_of_an_interrupted_call_is_aborted_and_sends_nothing() -> None:
    verdicts = all_of(subagent("unsafe"))
    assert {id: verdict.name for id, verdict in verdicts.items()} == {12: "interrupt", 21: "abort"}
    assert verdicts[TaskId(21)].laws == ("T7", "O5", "O2")
    assert verdicts[TaskId(21)].reads == ("tasks/21", "tasks/12")
    assert verdicts[TaskId(21)].outside == "none"


def test_o6_the_child_of_a_replayed_call_goes_on() -> None:
    assert names(subagent("safe")) == {12: "replay", 21: "resend"}


def test_o6_a_tool_that_is_unsafe_by_now_cancels_its_child_too() -> None:
    assert names(subagent("safe"), UNSAFE_NOW) == {12: "interrupt", 21: "abort"}


def test_o6_marks_reach_through_every_level_below() -> None:
    snapshot = subagent(
        "unsafe",
        job(22, waiting(23), conversation=BELOW, owner=TaskId(21)),
        job(23, sleeping(NOW + 1), conversation=BELOW, owner=TaskId(22)),
    )
    assert names(snapshot) == {12: "interrupt", 21: "abort", 22: "abort", 23: "abort"}


def test_o6_a_fail_fast_sibling_of_a_certain_failure_is_aborted() -> None:
    snapshot = view(
        job(5, waiting(6, 7, fail_fast=True)),
        tool(6, "unsafe", owner=TaskId(5)),
        job(7, running(), owner=TaskId(5)),
    )
    verdicts = all_of(snapshot)
    assert {id: verdict.name for id, verdict in verdicts.items()} == {5: "wait", 6: "interrupt", 7: "abort"}
    assert verdicts[TaskId(7)].laws == ("T7", "T4", "O2")
    assert verdicts[TaskId(7)].reads == ("tasks/7", "tasks/6")


def test_t4_without_fail_fast_a_sibling_goes_on() -> None:
    snapshot = view(job(5, waiting(6, 7)), tool(6, "unsafe", owner=TaskId(5)), job(7, running(), owner=TaskId(5)))
    assert names(snapshot) == {5: "wait", 6: "interrupt", 7: "rerun"}


def test_t4_a_failure_that_is_held_marks_the_siblings() -> None:
    held = job(6, stored.Completing(outcome=FAILED), owner=TaskId(5))
    snapshot = view(job(5, waiting(6, 7, fail_fast=True)), held, job(7, running(), owner=TaskId(5)))
    assert names(snapshot) == {5: "wait", 6: "finish", 7: "abort"}


def test_t4_a_stored_failure_comes_before_one_that_is_only_certain() -> None:
    for on in ((6, 7), (7, 6)):
        snapshot = view(
            job(5, waiting(*on, fail_fast=True)), tool(6, "unsafe", owner=TaskId(5)), ended(7, FAILED, owner=TaskId(5))
        )
        assert names(snapshot) == {5: "wait", 6: "abort"}


def test_t4_a_mark_stays_when_it_makes_its_own_end_certain() -> None:
    for on in ((6, 7), (7, 6)):
        snapshot = view(
            job(5, waiting(*on, fail_fast=True)), job(6, running(), owner=TaskId(5)), ended(7, FAILED, owner=TaskId(5))
        )
        assert names(snapshot, MISSING) == {5: "wait", 6: "orphan"}


def test_t4_a_completed_member_marks_nobody() -> None:
    snapshot = view(
        job(5, waiting(6, 7, fail_fast=True)), ended(6, owner=TaskId(5)), job(7, running(), owner=TaskId(5))
    )
    assert names(snapshot) == {5: "wait", 7: "rerun"}


def test_o5_a_held_outcome_other_than_completed_cancels_what_is_below() -> None:
    for outcome, expected in ((FAILED, "abort"), (DONE, "rerun"), (stored.Aborted(), "abort")):
        snapshot = view(job(6, stored.Completing(outcome=outcome)), job(7, running(), owner=TaskId(6)))
        assert names(snapshot) == {6: "finish", 7: expected}


def test_o5_a_terminal_owner_never_cascades() -> None:
    snapshot = view(ended(6, FAILED, abort_requested=True), job(7, running(), owner=TaskId(6)))
    assert names(snapshot) == {7: "rerun"}


def test_o5_a_mark_passes_a_terminal_owner_on_its_way_down() -> None:
    snapshot = view(
        job(5, running(), abort_requested=True), ended(6, owner=TaskId(5)), job(7, running(), owner=TaskId(6))
    )
    assert names(snapshot) == {5: "abort", 7: "abort"}


def test_o3_background_is_a_boundary_for_marks() -> None:
    snapshot = view(
        job(5, running(), abort_requested=True),
        job(6, running(), conversation=BELOW, background=True),
        job(7, running(), conversation=BELOW, owner=TaskId(6)),
        owners={HERE: None, BELOW: TaskId(5)},
    )
    assert names(snapshot) == {5: "abort", 6: "rerun", 7: "rerun"}


def test_o3_a_cancelled_background_task_cancels_what_is_below_it() -> None:
    snapshot = view(
        job(5, running()),
        job(6, running(), conversation=BELOW, background=True, abort_requested=True),
        job(7, running(), conversation=BELOW, owner=TaskId(6)),
        owners={HERE: None, BELOW: TaskId(5)},
    )
    verdicts = all_of(snapshot)
    assert {id: verdict.name for id, verdict in verdicts.items()} == {5: "rerun", 6: "abort", 7: "abort"}
    assert verdicts[TaskId(6)].held_by == (7,)


def test_o3_background_work_does_not_hold_its_owner() -> None:
    snapshot = view(
        job(5, stored.Completing(outcome=DONE)),
        job(6, running(), conversation=BELOW, background=True),
        owners={HERE: None, BELOW: TaskId(5)},
    )
    assert all_of(snapshot)[TaskId(5)].held_by == ()


def test_o2_an_owner_is_held_by_everything_ordinary_below() -> None:
    snapshot = view(
        job(5, running(), abort_requested=True),
        job(6, running(), owner=TaskId(5)),
        ended(8, owner=TaskId(5)),
        job(9, running(), owner=TaskId(8)),
    )
    verdicts = all_of(snapshot)
    assert verdicts[TaskId(5)].held_by == (6, 9)
    assert verdicts[TaskId(9)].held_by == ()


def test_t9_a_mark_that_is_derived_starts_restarts_again() -> None:
    owner = job(6, running(), abort_requested=True)
    assert names(view(owner, job(7, running(), owner=TaskId(6), restarts=9))) == {6: "abort", 7: "abort"}
    marked = job(7, running(), owner=TaskId(6), restarts=9, abort_requested=True)
    assert names(view(owner, marked)) == {6: "abort", 7: "give_up"}


def test_o7_abandoned_work_cancels_what_is_below_it() -> None:
    snapshot = view(
        tool(6, "unsafe"),
        job(7, running(), owner=TaskId(6), abandon_on_restart=True),
        job(8, running(), owner=TaskId(7)),
        job(9, running(), owner=TaskId(7), abandon_on_restart=True),
    )
    assert names(snapshot) == {6: "interrupt", 7: "abandon", 8: "abort", 9: "abandon"}


def test_o7_abandon_comes_before_a_mark_of_its_owner() -> None:
    work = job(7, running(), owner=TaskId(6), abandon_on_restart=True)
    snapshot = view(job(6, running(), abort_requested=True), work)
    assert names(snapshot) == {6: "abort", 7: "abandon"}
    marked = decide_task(work, snapshot, ASSUMED, POLICY, NOW, implied=ImpliedMark("O5", TaskId(6)))
    assert [row.name for row in rows.TASK_ROWS if row.fits(marked.facts)][:2] == ["abandon", "abort"]
    assert (marked.name, marked.laws) == ("abandon", ("T7", "O7"))


def test_o7_only_a_new_opening_abandons() -> None:
    record = job(7, pending(), abandon_on_restart=True)
    assert names(view(record, opening=3)) == {7: "abandon"}
    assert names(replace(view(record, opening=3), fresh=False)) == {7: "rerun"}
    assert names(view(replace(record, abort_requested=True, abort_reason="restart"))) == {7: "abort"}


def test_o7_abandoned_work_without_code_is_orphaned_and_cancels_what_is_below() -> None:
    snapshot = view(
        job(7, running(), abandon_on_restart=True),
        job(8, running(), owner=TaskId(7)),
    )
    assert names(snapshot, MISSING) == {7: "orphan", 8: "orphan"}


# --- Submissions ------------------------------------------------------------------------------------------------------


def test_s4_a_queued_write_under_cancelled_work_is_kept() -> None:
    write = replace(submission(7, Queued(), BELOW), type="write")
    snapshot = replace(CANCELLED, submissions=(write,))
    assert decide_submissions(snapshot, all_of(snapshot), Policy())[SubmissionId(7)].name == "hold"


def test_o6_a_queued_input_below_a_call_that_is_interrupted_is_withdrawn() -> None:
    snapshot = replace(
        CANCELLED,
        tasks={**CANCELLED.tasks, TaskId(21): generation(21, running("request"), conversation=BELOW)},
        runs={BELOW: LiveRun(document=DocumentId(14), task=TaskId(21))},
    )
    found = decide_submissions(snapshot, all_of(snapshot), Policy())[SubmissionId(7)]
    assert (found.name, found.reads) == ("withdraw", ("submissions/7", "tasks/12"))
    assert decide_submissions(snapshot, all_of(snapshot, HOOKED), Policy())[SubmissionId(7)].name == "withdraw"


def test_s4_a_failed_run_leaves_its_queue_alone_unless_the_host_says_otherwise() -> None:
    run = generation(9, running("request"), abort_requested=True)
    snapshot = view(run, submissions=(submission(7, Queued()),), run=RUN)
    for policy, expected in ((Policy(), "place"), (Policy(after_failed_run="withdraw"), "withdraw")):
        assert decide_submissions(snapshot, all_of(snapshot, policy=policy), policy)[SubmissionId(7)].name == expected


def test_s2_a_run_that_has_ended_is_no_live_run() -> None:
    over = generation(9, stored.Terminal(outcome=DONE))
    snapshot = view(over, submissions=(submission(7, Queued()),), run=RUN)
    assert decide_submissions(snapshot, all_of(snapshot), Policy())[SubmissionId(7)].name == "hold"


# --- The rows that decide ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [row.name for row in rows.TASK_ROWS])
def test_without_its_row_of_the_table_no_verdict_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in CASES if case.name == name]
    before = [verdict_of(case) for case in cases]
    monkeypatch.setattr(rows, "TASK_ROWS", tuple(row for row in rows.TASK_ROWS if row.name != name))
    for case, was in zip(cases, before, strict=True):
        try:
            now = verdict_of(case)
        except IllegalTransition:
            continue  # no other row fits
        assert now.name != was.name
        assert now.because != was.because


def without(snapshot: Snapshot, row: str) -> Snapshot:
    """The snapshot of a store in which this row was never written; an ended task is blanked by not having ended."""
    table, _, number = row.partition("/")
    id = int(number)
    if table == "documents":
        runs = {key: run for key, run in snapshot.runs.items() if run.document != id}
        inboxes = {key: document for key, document in snapshot.inboxes.items() if document != id}
        return replace(snapshot, runs=runs, inboxes=inboxes)
    if table == "submissions":
        return replace(snapshot, submissions=tuple(s for s in snapshot.submissions if s.id != id))
    return replace(snapshot, tasks={key: record for key, record in snapshot.tasks.items() if key != id})


@pytest.mark.parametrize("case", [*CASES, *SUBMISSIONS], ids=label)
def test_every_row_that_a_verdict_names_has_decided_it(case: Case) -> None:
    was = verdict_of(case)
    for row in was.reads:
        blanked = replace(case, snapshot=without(case.snapshot, row))
        found = all_of(blanked.snapshot, case.code)
        if case in SUBMISSIONS:
            now = decide_submissions(blanked.snapshot, found, Policy()).get(SubmissionId(7))
            assert now is None or (now.name, now.because) != (was.name, was.because), row
        else:
            verdict = found.get(TaskId(7))
            assert verdict is None or (verdict.name, verdict.because) != (was.name, was.because), row


# --- For every store --------------------------------------------------------------------------------------------------

KINDS = ("demo.job", "pi.tool", "pi.generation", "pi.compaction", "other.job")
PHASES = ("work", "execute", "request", "poll", "retry", "summarize")


def store_of(seed: int) -> Snapshot:
    """Some store: a forest of tasks in every state, some of them in a conversation that a task owns."""
    dice = random.Random(seed)
    ids = [TaskId(10 + n) for n in range(dice.randint(1, 6))]
    conversation_owner = dice.choice([None, *ids[:2]])
    tasks: dict[TaskId, TaskRecord] = {}
    for n, id in enumerate(ids):
        owner = dice.choice([None, *ids[:n]])
        nested = conversation_owner is not None and id > conversation_owner and dice.random() < 0.5
        record = job(
            id,
            state_of(dice, ids[n + 1 :]),
            kind=dice.choice(KINDS),
            conversation=tasks[owner].conversation if owner is not None else BELOW if nested else HERE,
            owner=owner,
            background=owner is None and dice.random() < 0.3,
            abort_requested=dice.random() < 0.2,
            abandon_on_restart=dice.random() < 0.2,
            restarts=dice.choice([0, 0, 0, 1, 4, 5]),
        )
        never_began = isinstance(record.state, stored.Pending) and dice.random() < 0.5
        tasks[id] = replace(record, started_at_ms=None) if never_began else record
    return legal(Snapshot(tasks=tasks, owners={HERE: None, BELOW: conversation_owner}))


def state_of(dice: random.Random, later: list[TaskId]) -> stored.State:
    checkpoint = {"phase": dice.choice(PHASES), "replay": dice.choice(["safe", "unsafe"])}
    outcomes: list[stored.Outcome] = [DONE, FAILED, stored.Aborted()]
    outcome = dice.choice(outcomes)
    on = tuple(dice.sample(later, dice.randint(1, len(later)))) if later else ()
    states: list[stored.State] = [
        stored.Pending(checkpoint=checkpoint),
        stored.Running(checkpoint=checkpoint),
        stored.Waiting(checkpoint=checkpoint, on=on, fail_fast=dice.random() < 0.5),
        stored.Sleeping(checkpoint=checkpoint, until_ms=NOW + dice.choice([-1, 1])),
        stored.Completing(outcome=outcome),
        stored.Terminal(outcome=outcome),
    ]
    return dice.choice(states)


def legal(snapshot: Snapshot) -> Snapshot:
    """The store with the waits of T4 made legal: only owned tasks are awaited with `fail_fast`, nobody its owner."""
    tasks = dict(snapshot.tasks)
    for id, record in snapshot.tasks.items():
        if isinstance(record.state, stored.Waiting):
            on = tuple(named for named in record.state.on if named not in set(ancestors(snapshot, id)))
            owned = all(id in set(ancestors(snapshot, named)) for named in on)
            state = replace(record.state, on=on, fail_fast=record.state.fail_fast and owned)
            tasks[id] = replace(record, state=state)
    return replace(snapshot, tasks=tasks)


STORES = st.integers(0, 2**64).map(store_of)
CODES = st.sampled_from([ASSUMED, MISSING, UNSAFE_NOW])


def plain(verdict: Verdict) -> tuple[object, ...]:
    laws = tuple(law for law in verdict.laws if law != "T7")
    return verdict.name, laws, verdict.because, verdict.outside, verdict.reads, verdict.held_by


def opened(record: TaskRecord) -> TaskRecord:
    return advance(record, Reopen(), now_ms=NOW)


@given(snapshot=STORES, code=CODES)
def test_t7_a_killed_store_and_the_same_one_opened_get_the_same_verdicts(snapshot: Snapshot, code: Code) -> None:
    before = all_of(snapshot, code)
    after = all_of(replace(snapshot, tasks={id: opened(record) for id, record in snapshot.tasks.items()}), code)
    assert {id: plain(verdict) for id, verdict in before.items()} == {id: plain(v) for id, v in after.items()}


@given(snapshot=STORES, code=CODES)
def test_below_start_pending_and_running_are_never_told_apart(snapshot: Snapshot, code: Code) -> None:
    closed = {
        id: replace(record, state=stored.Pending(checkpoint=record.state.checkpoint))
        if isinstance(record.state, stored.Running)
        else record
        for id, record in snapshot.tasks.items()
    }
    policy = Policy(restart_limit=100)
    killed = decide_tasks(snapshot, code, policy, NOW)
    clean = decide_tasks(replace(snapshot, tasks=closed), code, policy, NOW)
    assert {id: plain(verdict) for id, verdict in killed.items()} == {id: plain(v) for id, v in clean.items()}


@given(snapshot=STORES, code=CODES, seed=st.integers())
def test_o6_no_verdict_depends_on_an_order(snapshot: Snapshot, code: Code, seed: int) -> None:
    shuffled = list(snapshot.tasks.items())
    random.Random(seed).shuffle(shuffled)
    again = all_of(replace(snapshot, tasks=dict(shuffled)), code)
    assert {id: (v.laws, *plain(v)) for id, v in all_of(snapshot, code).items()} == {
        id: (v.laws, *plain(v)) for id, v in again.items()
    }


@given(snapshot=STORES, code=CODES)
def test_every_live_task_of_any_store_gets_one_verdict_with_a_sentence(snapshot: Snapshot, code: Code) -> None:
    verdicts = all_of(snapshot, code)
    assert set(verdicts) == {record.id for record in snapshot.live()}
    for verdict in verdicts.values():
        assert len(verdict.because) <= 90
        assert verdict.laws
        assert verdict.asked[-1][1]


@given(snapshot=STORES, code=CODES)
@settings(max_examples=500)
def test_o6_settling_step_by_step_leads_to_what_was_predicted(snapshot: Snapshot, code: Code) -> None:
    predicted = names(snapshot, code)
    happened: dict[int, str] = {}
    tasks = {id: opened(record) for id, record in snapshot.tasks.items()}
    while True:
        now = replace(snapshot, tasks=tasks, opening=1)
        marks = implied_marks(now)
        if marks:
            tasks = tasks | {id: advance(tasks[id], Mark(), now_ms=NOW) for id in marks}
            continue
        verdicts = {record.id: decide_task(record, now, code, Policy(), NOW) for record in now.live()}
        settled = {
            id: after for id, verdict in verdicts.items() if (after := settle(verdict, verdicts, now)) is not None
        }
        if not settled:
            break
        for id in settled:
            happened.setdefault(id, verdicts[id].name)
        tasks = tasks | settled
    final = {int(id): happened.get(id, verdict.name) for id, verdict in verdicts.items()} | happened
    waited = {id for id, name in predicted.items() if name == "wait"}
    assert {id: name for id, name in final.items() if id not in waited} == {
        id: name for id, name in predicted.items() if id not in waited
    }
    assert {final[id] for id in waited} <= {"wait", "resume", "blocked", "parked"}


def settle(verdict: Verdict, verdicts: Mapping[TaskId, Verdict], now: Snapshot) -> TaskRecord | None:
    """What O6 makes of a task in one commit, after those that another one of the same commit would mark first."""
    record = verdict.task
    due = record.abandon_on_restart and not record.abort_requested
    if verdict.name not in SETTLES:
        return None
    if verdict.name == "abandon" or (verdict.name == "orphan" and due and verdict.held_by):
        return advance(record, Mark("restart"), now_ms=NOW)
    if verdict.name == "interrupt":
        failing = {id for id, other in verdicts.items() if other.name == "interrupt"}
        abandoned = frozenset(id for id, other in verdicts.items() if other.facts.abandoned and other.name != "finish")
        if record.id in implied_marks(now, abandoned, failing):
            return None
        state = stored.Completing if now.below(record.id) else stored.Terminal
        return replace(record, state=state(outcome=FAILED), restarts=0)
    if verdict.held_by:
        return None
    match verdict.name, record.state:
        case "finish", stored.Completing(outcome=outcome):
            return replace(record, state=stored.Terminal(outcome=outcome))
        case "orphan", _:
            return replace(record, state=stored.Terminal(outcome=stored.Orphaned(reason="missing_task")))
        case _:
            fault = stored.Faulted(error=stored.TaskError(message="cut off"))
            return replace(record, state=stored.Terminal(outcome=fault))
