"""Freeze equals kill: what a frozen life leaves is what a killed one leaves, to the byte, at every file operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from pidurable_nb.lab.dying.identity import STORE, digest_of, file_points, files_in, freeze_at
from pidurable_nb.lab.dying.run import LEDGER, Plan, run_here
from pidurable_nb.lab.dying.vfs import replay
from pidurable_nb.lab.outside.bank import BankServer
from pidurable_nb.lab.scenario import builtin
from pidurable_nb.lab.sweeping.sweep import freeze_equals_kill

PLAN = Plan(seed=1, same_bytes=True, record_files=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_freeze_equals_kill_and_the_log_prefix_before_every_file_operation_of_checkout() -> None:
    found = freeze_equals_kill(builtin("checkout"), processes=2)
    assert found.different == ()
    assert found.same == found.of
    assert found.of > 200
    assert str(found) == f"{found.of} of {found.of}"


def test_two_runs_of_one_seed_write_the_same_bytes_and_those_are_what_was_recorded(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    with BankServer():
        for folder in folders:
            folder.mkdir()
            whole = run_here(builtin("checkout"), folder / STORE, folder / LEDGER, PLAN)
            assert digest_of(replay(whole.ops)) == digest_of(files_in(folder))
    one, other = (files_in(folder) for folder in folders)
    assert one == other


def test_every_operation_changes_what_a_crash_leaves_or_syncs_it(tmp_path: Path) -> None:
    """The comparison is not one of a file with itself: hundreds of different states are told apart."""
    points = file_points(builtin("sleeper"), PLAN, tmp_path / "whole")
    compared = list(freeze_at(builtin("sleeper"), PLAN, points[::5], tmp_path / "frozen"))
    assert len(points) > 100
    assert len({each.prefix for each in compared}) > len(compared) // 2
    assert [each.frozen for each in compared] == [each.prefix for each in compared]


def test_a_life_that_ends_in_order_is_not_what_a_kill_leaves(tmp_path: Path) -> None:
    """A negative control: letting the code go on after the crash point is seen in the bytes."""
    [last] = file_points(builtin("ticker"), PLAN, tmp_path / "whole")[100:101]
    [frozen] = freeze_at(builtin("ticker"), PLAN, [last], tmp_path / "frozen")
    (tmp_path / "life").mkdir()
    run_here(builtin("ticker"), tmp_path / "life" / STORE, tmp_path / "life" / LEDGER, PLAN)
    assert frozen.frozen != digest_of(files_in(tmp_path / "life"))
