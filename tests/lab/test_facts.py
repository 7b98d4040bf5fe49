"""What facts know without looking through a whole store: the same as whoever looks through it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pidurable_nb.ids import EntryId
from pidurable_nb.lab.code import load_code
from pidurable_nb.lab.scenario import builtin
from pidurable_nb.lab.scene.facts import Facts, entry_of, is_open
from pidurable_nb.lab.scene.parts import PhaseEdge, as_json
from pidurable_nb.lab.scene.source import ScenarioSource, StoreSource

FIXTURES = Path(__file__).parents[2] / "fixtures"
NAMES = sorted(path.stem for path in (FIXTURES / "stores").glob("*.sqlite"))


def looked_through(facts: Facts) -> None:
    """Assert that every short way leads where the long way leads."""
    tasks, submissions = facts.tasks, facts.submissions
    assert list(facts.live()) == [tasks[id] for id in sorted(tasks) if tasks[id].live]
    assert list(facts.newest()) == [tasks[id] for id in sorted(tasks, reverse=True)]
    assert list(facts.opened()) == [submissions[id] for id in sorted(submissions) if is_open(submissions[id])]
    calls = {
        (task.input["assistant"], task.input["callId"]): task
        for task in tasks.values()
        if isinstance(task.input, Mapping) and "assistant" in task.input and "callId" in task.input
    }
    for (assistant, call), task in calls.items():
        assert isinstance(assistant, int)
        assert facts.task_of_call(EntryId(assistant), str(call)) == task
    assert facts.task_of_call(EntryId(10**6), "nobody") is None
    placed = {entry: s.id for s in submissions.values() if (entry := entry_of(s)) is not None}
    for conversation in facts.conversations:
        for kept in facts.window(conversation, 0, 10_000):
            assert facts.submission_at(kept.entry.id) == placed.get(kept.entry.id)


@pytest.mark.parametrize("name", NAMES)
def test_short_ways_through_any_store_lead_where_long_ones_lead_at_every_position(name: str) -> None:
    code = load_code(str(FIXTURES / "code" / "demo_tasks.py"))
    with StoreSource(FIXTURES / "stores" / f"{name}.sqlite", code=code, now_ms=1_800_000_000_000) as source:
        walking = source._stage.walking
        looked_through(walking.here.facts)
        while walking.next():
            looked_through(walking.here.facts)


@pytest.mark.parametrize("name", ["refund", "checkout", "support-desk"])
def test_short_ways_through_a_scenario_lead_where_long_ones_lead_at_every_position(name: str) -> None:
    with ScenarioSource(builtin(name)) as source:
        walking = source._stage.walking
        looked_through(walking.here.facts)
        while walking.next():
            looked_through(walking.here.facts)
        walking.back_to(1)
        looked_through(walking.here.facts)


def test_what_records_share_is_told_once_and_reads_the_same() -> None:
    with ScenarioSource(builtin("refund")) as source:
        scene = source.finish()
        told = scene.to_json()
        tasks = told["tasks"]
        assert isinstance(tasks, list)
        for task, row in zip(scene.tasks, tasks, strict=True):
            assert isinstance(row, dict)
            assert row["edges"] == [{"from": edge.from_, "to": edge.to} for edge in task.edges]
            assert row == as_json(task)
        assert any(task.edges for task in scene.tasks)
    assert as_json(PhaseEdge(from_="a\ud83d", to="b")) == {"from": "a\\u{D83D}", "to": "b"}
