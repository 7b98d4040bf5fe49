"""How the three built-in kinds refine a rerun, and which of their versions are known, before any of them can run."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from pidurable_nb.agent.stored.recovery import (
    KNOWN,
    AssumedCode,
    CurrentReplay,
    Replay,
    refine,
    register,
    stored_replay,
    was_safe,
)
from pidurable_nb.engine.phase import Done, Phase
from pidurable_nb.engine.registry import Blocked, BuiltIn, Fits, Registry
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.ids import ConversationId, Json, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord

STATES = ("pending", "running", "waiting", "sleeping")
StateName = Literal["pending", "running", "waiting", "sleeping"]


class Count(Phase[int], task="demo.count", version=2):
    n: int

    async def run(self, rt: Runtime) -> Done[int]:
        return Done(self.n)


def record(kind: str, phase: str, state: str = "running", version: int = 1, **checkpoint: Json) -> TaskRecord:
    point = {"phase": phase, **checkpoint}
    made: dict[str, stored.State] = {
        "pending": stored.Pending(checkpoint=point),
        "running": stored.Running(checkpoint=point),
        "waiting": stored.Waiting(checkpoint=point, on=(), fail_fast=False),
        "sleeping": stored.Sleeping(checkpoint=point, until_ms=0),
    }
    return TaskRecord(
        id=TaskId(7), conversation=ConversationId(1), kind=kind, version=version, input={}, state=made[state]
    )


def declares(replay: Replay | None) -> CurrentReplay:
    return lambda record: replay


@pytest.mark.parametrize("state", ["pending", "running"])
@pytest.mark.parametrize("current", ["safe", "unsafe", None])
@pytest.mark.parametrize("then", ["safe", "unsafe", "SAFE", True, None])
def test_e2_a_cut_call_is_replayed_only_when_it_was_and_is_safe(then: Json, current: Replay | None, state: str) -> None:
    call = record("pi.tool", "execute", state, 2, arguments={}, replay=then)
    expected = "replay" if then == "safe" and current == "safe" else "interrupt"
    assert refine(call, declares(current)) == expected


def test_e3_today_never_upgrades_a_policy_that_was_not_stored_as_safe() -> None:
    for call in (record("pi.tool", "execute", version=2), record("pi.tool", "execute", version=2, replay={})):
        assert stored_replay(call) == "unsafe"
        assert not was_safe(call)
        assert refine(call, declares("safe")) == "interrupt"


def test_e1_before_its_intent_a_call_has_no_policy_and_just_reruns() -> None:
    call = record("pi.tool", "call", version=2, replay="safe")
    assert stored_replay(call) is None
    assert refine(call, declares("safe")) is None


@pytest.mark.parametrize(("kind", "phase"), [("pi.generation", "request"), ("pi.compaction", "summarize")])
def test_g1_a_cut_request_is_sent_again(kind: str, phase: str) -> None:
    assert [refine(record(kind, phase, state), stored_replay) for state in STATES] == ["resend", "resend", None, None]


def test_t12_a_deferred_answer_is_asked_for_again() -> None:
    found = [refine(record("pi.generation", "poll", state), stored_replay) for state in STATES]
    assert found == ["poll", "poll", None, "poll"]


@pytest.mark.parametrize(
    ("kind", "phase"),
    [
        ("pi.generation", "prepare"),
        ("pi.generation", "retry"),
        ("pi.generation", "tools"),
        ("pi.generation", "execute"),
        ("pi.compaction", "select"),
        ("pi.compaction", "retry"),
        ("pi.compaction", "poll"),
        ("pi.tool", "request"),
        ("demo.tool", "execute"),
        ("pi.unknown", "request"),
    ],
)
def test_every_other_phase_is_a_plain_rerun_or_resume(kind: str, phase: str) -> None:
    assert {refine(record(kind, phase, state), declares("safe")) for state in STATES} == {None}


def test_nothing_is_refined_once_the_outcome_is_decided() -> None:
    over = replace(record("pi.tool", "execute"), state=stored.Completing(outcome=stored.Completed(result=None)))
    assert refine(over, declares("safe")) is None
    assert stored_replay(over) is None


def test_t8_a_tool_call_of_version_one_is_one_that_a_model_made() -> None:
    old = replace(record("pi.tool", "execute", replay="safe"), input={"assistant": 11, "callId": "call_1"})
    fit = AssumedCode().fit(old)
    assert isinstance(fit, BuiltIn)
    assert fit.migrated
    assert fit.version == 2
    assert fit.input == {"kind": "model", "assistant": 11, "callId": "call_1"}
    assert fit.checkpoint == old.checkpoint


def test_t8_built_in_kinds_that_are_newer_unknown_or_illegible_are_blocked() -> None:
    code = AssumedCode()
    for kind, known in KNOWN.items():
        newer = code.fit(record(kind, "call", version=known.version + 1))
        assert isinstance(newer, Blocked)
        assert (newer.reason, newer.needs) == ("task_too_old", f"{kind} {known.version + 1}")
        assert isinstance(code.fit(record(kind, "call", version=known.version)), BuiltIn)
    unknown = code.fit(record("pi.dream", "call"))
    assert isinstance(unknown, Blocked)
    assert unknown.reason == "missing_task"
    illegible = code.fit(replace(record("pi.tool", "call"), input=["no object"]))
    assert isinstance(illegible, Blocked)
    assert illegible.reason == "migration_failed"


def test_t8_without_code_every_task_of_the_users_counts_as_installed_as_stored() -> None:
    fit = AssumedCode().fit(record("demo.count", "anything", version=99))
    assert not isinstance(fit, Blocked)
    assert AssumedCode().refine(record("demo.count", "execute")) is None


def test_t8_with_code_that_code_answers_for_tasks_of_the_users() -> None:
    registry = Registry()
    registry.install(Count)
    code = AssumedCode(installed=registry)
    assert isinstance(code.fit(record("demo.count", "count", version=2, n=3)), Fits)
    newer = code.fit(record("demo.count", "count", version=3, n=3))
    missing = code.fit(record("demo.other", "count"))
    assert isinstance(newer, Blocked)
    assert isinstance(missing, Blocked)
    assert (newer.reason, missing.reason) == ("task_too_old", "missing_task")
    assert isinstance(code.fit(record("pi.generation", "request")), BuiltIn)


def test_a_registry_and_a_file_ask_the_same_functions() -> None:
    registry = Registry()
    register(registry, current_replay=declares("unsafe"), hooked=lambda record: record.kind == "pi.tool")
    code = AssumedCode(current_replay=declares("unsafe"), hooked=lambda record: record.kind == "pi.tool")
    calls = [
        record("pi.tool", "execute", version=2, replay="safe"),
        record("pi.tool", "execute", version=2, replay="unsafe"),
        record("pi.generation", "request"),
        record("pi.generation", "poll", "sleeping"),
        record("pi.compaction", "summarize"),
    ]
    for call in calls:
        assert registry.refine(call) == code.refine(call)
        assert registry.was_safe(call) == code.was_safe(call) == was_safe(call)
        assert registry.hooked(call) == code.hooked(call) == (call.kind == "pi.tool")
        assert registry.fit(call) == code.fit(call)
