"""Journals of lives: a line for each thing, the same of a life that was frozen and of one that SIGKILL ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from pidurable_nb.lab.dying.crash import read_journal
from pidurable_nb.lab.dying.heard import Heard
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import CHILD, Plan, asked_of_child, fork_server, run_here
from pidurable_nb.lab.scenario import around, builtin
from pidurable_nb.records.codec import BadRecord


@pytest.mark.parametrize("name", ["ticker", "checkout", "overnight", "approval"])
def test_a_killed_life_and_a_frozen_one_write_the_same_journal_and_it_tells_what_the_recorder_kept(
    name: str, tmp_path: Path
) -> None:
    scenario = builtin(name)
    assert scenario.kill_point is not None
    at, here, there = Point.parse(scenario.kill_point), tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with around(scenario), fork_server() as server:
        plan = Plan(at=at, kind="freeze", journal=here / "journal")
        lived = run_here(scenario, here / "s.sqlite", here / "ledger", plan, image=here / "dead")
        plan = Plan(at=at, kind="kill", journal=there / "journal")
        ended = server.run(CHILD, asked_of_child(scenario, there / "s.sqlite", there / "ledger", plan), timeout_s=60)
    assert ended.signal == 9
    assert (here / "journal").read_bytes() == (there / "journal").read_bytes()
    journal = read_journal(there / "journal")
    assert journal.points == lived.points
    assert journal.acts == lived.acts
    assert journal.lost == lived.lost
    assert journal.effects == {
        n: one.mark.name for n, one in enumerate(lived.passed) if one.mark is not None and one.point.what == "effect"
    }
    heard = [Heard.of(changes) for changes in lived.published]
    assert len(heard) > 2
    for told, kept in zip(journal.heard, heard, strict=True):
        assert kept is not None
        assert told.to_json() == kept.to_json()
        assert list(told.tasks.values()) == list(kept.tasks.values())


def test_a_line_that_the_kill_cut_off_does_not_count_and_a_foreign_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert read_journal(path).ended_ms is None
    whole = '{"point":"session:open.before","ms":5}\n'
    path.write_text(whole + '{"lost":"pick","task":7,"ki')
    assert read_journal(path).ended_ms == 5
    assert read_journal(path).lost == ()
    for foreign in ('{"lost":"pick"}', "[1]", '{"commit":"one"}', "no json", '{"commit":1,"tasks":[]}'):
        path.write_text(f"{whole}{foreign}\n")
        with pytest.raises(BadRecord):
            read_journal(path)
