"""Faults in a sweep: every operation of a first life fails once, and no life behind it is left with anything wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.scenario import builtin
from pidurable_nb.lab.sweeping.failing import FAULTS, Place
from pidurable_nb.lab.sweeping.faults import CHUNK, Faulty, count_faults, fault_pieces, fault_story
from pidurable_nb.lab.sweeping.hands import crew
from pidurable_nb.lab.sweeping.pieces import Faults, Sweeping, piece_of
from pidurable_nb.lab.sweeping.points import Where
from pidurable_nb.lab.sweeping.replay import NeverPassed, replay
from pidurable_nb.lab.sweeping.result import replay_command
from pidurable_nb.lab.sweeping.sweep import sweep
from pidurable_nb.lab.sweeping.tally import Tally, Witness
from pidurable_nb.lab.sweeping.work import work

SOME = tuple(
    map(
        Place.parse,
        (
            "eio@delete:1", "eio@sync:3", "full@write:40", "busy@lock:7", "busy@lock:24", "short@write:100",
            "eio@write:101", "full@write:101", "eio@sync:9", "eio@truncate:2", "eio@sync:18", "eio@delete:2",
        ),
    )
)  # fmt: skip
"""In the opening of a ticker, in its commits, in the folding of its log, and in its closing."""


def test_every_operation_is_in_one_piece_with_every_fault_that_it_can_meet(tmp_path: Path) -> None:
    ticker = builtin("ticker")
    pieces = fault_pieces(ticker, Sweeping(), tmp_path / "cut")
    assert not (tmp_path / "cut").exists()
    assert {len(piece.places) for piece in pieces[:-1]} == {CHUNK}
    places = [place for piece in pieces for place in piece.places]
    assert tuple(places) == Faulty(ticker, tmp_path / "again").places()
    assert len(set(places)) == len(places) > 500
    assert {place.fault for place in places} == set(FAULTS)
    assert {place.op for place in places} == {"write", "sync", "truncate", "delete", "lock"}
    assert [piece_of(piece.to_json()) for piece in pieces] == list(pieces)


def test_f4_faults_of_an_opening_of_commits_of_folding_and_of_closing_are_counted_where_they_came(
    tmp_path: Path,
) -> None:
    tally = count_faults(builtin("ticker"), Sweeping(), Faults(SOME), tmp_path / "work")
    assert tally.problems == {}
    assert tally.classes == {"as_promised": len(SOME)}
    assert tally.images == tally.took["fault"].count == len(SOME)
    assert len(SOME) < tally.runs < 2 * len(SOME)  # a store that was left by two faults is recovered from once
    assert {kind for _, kind in tally.cells} == {"fault"}
    assert sum(counts["as_promised"] for counts in tally.cells.values()) == len(SOME)
    rows = {point for point, _ in tally.cells}
    assert "" in rows  # before any point
    assert {Point.parse(row).place.__class__.__name__ for row in rows - {""}} >= {"TaskPlace"}
    assert not (tmp_path / "work").exists()


def test_m3_an_effect_that_a_fault_has_happen_twice_is_counted_with_its_story(tmp_path: Path) -> None:
    """The mail is sent, then the commit that remembers it fails."""
    orders = builtin("two-orders")
    faulty = Faulty(orders, tmp_path / "whole")
    sent = next(here for here in faulty.whole.course if str(here.point).endswith("effect.after"))
    writes = [op.n for op in faulty.whole.ops if op.op == "write"]
    place = Place("eio", "write", next(at for at, n in enumerate(writes, start=1) if n > sent.after_op))
    tally = count_faults(orders, Sweeping(), Faults((place,)), tmp_path / "work")
    assert tally.problems == {}
    assert tally.classes == {"effect_twice": 1}
    witness = tally.witnesses["effect_twice"]
    assert witness == Witness((place,), "fault")
    [(point, kind)] = tally.cells
    assert (point, kind) == ("act-first#1/actFirst:memo.before", "fault")  # the newest before it
    command = replay_command("two-orders", witness, seed=1, durability="barrier")
    assert command == f"pidurable-nb sweep two-orders --kind fault --point {place} --seed 1"
    told = replay(orders, witness.crashes, how="fault")
    assert told.ok, told.problems
    assert max(told.asked.values()) == 2


def test_a_piece_comes_to_the_same_in_another_process(tmp_path: Path) -> None:
    ticker, piece = builtin("ticker"), Faults(SOME[3:7])
    here = count_faults(ticker, Sweeping(), piece, tmp_path / "here")
    with crew(ticker, processes=2, kill=False) as workers:
        there = work(workers.first, Sweeping(), piece)
    assert replace(there, took={}) == replace(here, took={})
    assert Tally.of_json(here.to_json()) == here


def test_a_place_that_is_not_come_by_is_a_problem_and_no_story(tmp_path: Path) -> None:
    never = Place.parse("eio@write:9999")
    tally = count_faults(builtin("ticker"), Sweeping(), Faults((never,)), tmp_path / "work")
    assert [(problem.kind, "does not repeat itself" in problem.text) for problem in tally.problems] == [
        ("broken", True)
    ]
    with pytest.raises(NeverPassed, match="no write 9999"):
        replay(builtin("ticker"), [never], how="fault")


# One story.


def test_f4_a_story_of_a_fault_says_what_the_storage_said_and_goes_on_to_the_end() -> None:
    told = replay(builtin("refund"), [Place.parse("eio@sync:9")], how="fault")
    assert told.ok, told.problems
    first, *others = told.lives
    assert others
    assert first.died == Place.parse("eio@sync:9")
    assert first.said is not None
    assert "whether it is stored is unknown" in first.said
    assert [life.said for life in others] == [None] * len(others)
    assert first.to_json()["said"] == first.said
    assert others[-1].died is None


def test_a_fault_that_nobody_was_told_of_ends_no_life() -> None:
    told = replay(builtin("ticker"), [Place.parse("busy@lock:20")], how="fault")
    assert told.ok, told.problems
    assert [life.died for life in told.lives] == [None, None]
    assert "nobody was told" in (told.lives[0].said or "")


def test_a_crash_of_the_recovery_follows_a_fault_of_the_first_life() -> None:
    crashes: list[Where] = [Place.parse("eio@sync:9"), Point.parse("2!ticker#1/tick:commit.after")]
    told = replay(builtin("ticker"), crashes, how="fault")
    assert told.ok, told.problems
    assert [life.died for life in told.lives] == [*crashes, None]


def test_one_life_meets_one_fault(tmp_path: Path) -> None:
    two = [Place.parse("eio@sync:9"), Place.parse("eio@sync:10")]
    with pytest.raises(NeverPassed, match="first life"):
        replay(builtin("ticker"), two, how="fault")


def test_one_seed_tells_one_story_of_a_fault(tmp_path: Path) -> None:
    ticker, place = builtin("ticker"), Place.parse("short@write:100")
    runs = [
        fault_story(ticker, place, durability="barrier", seed=3, folder=tmp_path / name)[0] for name in ("one", "other")
    ]
    assert runs[0].recording.ops == runs[1].recording.ops
    assert str(runs[0]) == str(runs[1])


def test_the_command_line_tells_the_story_of_a_fault() -> None:
    words = ["sweep", "refund", "--kind", "fault", "--point", "eio@sync:3"]
    told = subprocess.run([sys.executable, "-m", "pidurable_nb", *words], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "eio@sync:3 failed behind" in told.stdout
    assert "died at eio@sync:3" in told.stdout
    assert "nothing happened that is not allowed" in told.stdout


# All of them.


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["ticker", "refund", "checkout", "restart-storm"])
def test_f1_f4_every_operation_fails_once_in_every_way_and_nothing_is_stranded_after_a_clean_reopening(
    name: str,
) -> None:
    found = sweep(builtin(name), kinds=("fault",), processes=min(os.cpu_count() or 1, 4))
    assert found.ok, found.violations
    assert found.images == sum(found.classes.values()) == found.rates["fault"].count > 400
    assert set(found.classes) <= {"as_promised", "effect_twice"}
    print(
        f"{name}: {found.images} faults, {dict(found.classes)}, {found.rates['fault'].rate:.0f} a second of one process"
    )
