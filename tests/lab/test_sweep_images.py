"""Sweeps over derived images: what is derived is what lives leave, one recovery stands for all images of its state, and
every durability keeps its promise in them.

Under the disk model of `lab.disk`, for the scenarios that are named here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pidurable_nb.lab.dying.identity import digest_of, files_in
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import EPOCH_MS, LEDGER
from pidurable_nb.lab.images.image_check import Checker
from pidurable_nb.lab.images.images import Effort, Image, NoSuchImage, image, kill_images, power_images
from pidurable_nb.lab.images.recording import Recording
from pidurable_nb.lab.judging.invariants import Problem, expected
from pidurable_nb.lab.outside.bank import BankServer
from pidurable_nb.lab.scenario import Facts, Scenario, builtin
from pidurable_nb.lab.sweeping.images import count_images, image_pieces, lay_out_story
from pidurable_nb.lab.sweeping.lives import Image as Left
from pidurable_nb.lab.sweeping.lives import Recovered, live, recover
from pidurable_nb.lab.sweeping.pieces import Images, Sweeping
from pidurable_nb.lab.sweeping.points import ImageName
from pidurable_nb.lab.sweeping.states import SECOND, ImageKind, images_of, laid_out, recorded, sorted_out
from pidurable_nb.lab.sweeping.tally import Tally, Witness
from pidurable_nb.store.sqlite import Durability

DURABILITIES: tuple[Durability, ...] = ("kill", "barrier", "power")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where that is possible, as the folders of a sweep are: the disk that counts here is a model."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="images-", dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def bank() -> Iterator[None]:
    with BankServer():
        yield


def sweeping(scenario: Scenario, folder: Path, durability: Durability = "barrier", *, second: bool = False) -> Sweeping:
    """A sweep that knows what the scenario does where nothing crashes."""
    found = Sweeping(durability=durability, second=second)
    whole = recover(scenario, found.nothing, folder / "nothing-crashes")
    assert not whole.problems
    return replace(found, awaited=expected(whole.lives[0][1]))


def counted(scenario: Scenario, how: Sweeping, kind: ImageKind, folder: Path) -> Tally:
    """All pieces of one kind, added up."""
    tally = Tally()
    for n, piece in enumerate(image_pieces(scenario, how, kind, folder / f"{kind}-cut")):
        tally.add(count_images(scenario, how, piece, folder / f"{kind}-{n}"))
    return tally


# A life that begins with a store.


def second_life(name: str, crash: str, folder: Path, durability: Durability = "barrier") -> tuple[Left, Recording]:
    left = lay_out_story(builtin(name), [ImageName(crash)], seed=1, durability=durability, folder=folder / "first")
    return left, recorded(builtin(name), left, "kill", folder / "second")


@pytest.mark.parametrize(("name", "crash"), [("ticker", "kill@130"), ("refund", "kill@171"), ("overnight", "kill@301")])
def test_images_of_a_recorded_recovery_are_what_that_life_leaves_when_it_is_frozen(
    tmp_path: Path, name: str, crash: str
) -> None:
    left, recording = second_life(name, crash, tmp_path)
    files = replace(left, plan=replace(left.plan, record_files=True))
    whole, _ = live(builtin(name), files, tmp_path / "whole")
    assert whole.ops == recording.ops
    points = [passed.point for passed in whole.passed if passed.mark is None]
    assert len(points) == len(recording.ops) > 60
    assert {point.life for point in points} == {2}
    for point, op in list(zip(points, recording.ops, strict=True))[:: len(points) // 5]:
        lived, dead = live(builtin(name), files, tmp_path / f"{op.n}", at=point)
        assert lived.crashed == point
        assert dead.folder is not None
        made = image(recording, f"kill@{op.n - 1}")
        assert digest_of(files_in(dead.folder)) == digest_of(made.files)
        assert (dead.folder / LEDGER).read_bytes() == recording.ledger_at(op.n - 1)


def test_a_recorded_recovery_knows_what_it_began_with_and_what_it_did(tmp_path: Path) -> None:
    left, recording = second_life("ticker", "kill@130", tmp_path)
    assert left.folder is not None
    before = (left.folder / LEDGER).read_bytes()
    begins = recording.begins
    assert (begins.life, begins.start_ms) == (2, EPOCH_MS + 1000)
    assert {name: b"".join(blocks) for name, blocks in begins.files.items()} == files_in(left.folder)
    assert begins.content.newest > 3
    assert recording.ledger_at(0) == begins.ledger == before
    assert recording.ledger.startswith(before)
    assert len(recording.ledger) > len(before) > 0
    assert recording.contents().at(begins.content.newest) == begins.content.rows
    assert {each.point.life for each in recording.passed} == {2}
    assert any(verdict == "rerun" for _, verdict in recording.acts)
    assert recording.published


@pytest.mark.parametrize("durability", DURABILITIES)
def test_c2_a_second_crash_takes_nothing_that_was_there_when_the_life_began(
    tmp_path: Path, durability: Durability
) -> None:
    left = lay_out_story(
        builtin("ticker"), [ImageName("kill@130")], seed=1, durability=durability, folder=tmp_path / "first"
    )
    recording = recorded(builtin("ticker"), left, "power", tmp_path / "second")
    assert len(recording.folds()) > 1
    floor = recording.begins.content.newest
    found: Counter[str] = Counter()
    with Checker(recording) as checker:
        for each in power_images(recording, effort=Effort(per_op=3)):
            finding = checker.check(each)
            assert finding.newest is not None
            assert finding.newest >= each.acknowledged >= floor
            found[finding.outcome] += 1
        nothing = replace(image(recording, "kill@1"), blocks={}, key=b"")
        assert checker.check(nothing).outcome == "corrupt"
    assert set(found) <= {"as_promised", "lost_within_bound"}


# One recovery stands for all images of a state.


def came_of(scenario: Scenario, how: Sweeping, recording: Recording, each: Image, folder: Path) -> Recovered:
    """What comes of this very image."""
    return recover(scenario, laid_out(recording, each, how.nothing, folder), folder / "lives", awaited=how.awaited)


def story(came: Recovered) -> tuple[tuple[Problem, ...], bool, list[list[tuple[Point, int]]]]:
    """Everything that can be told of a recovery."""
    return came.problems, came.twice, [[(each.point, each.at_ms) for each in passed] for _, passed in came.lives]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "kind", "step"), [
    ("ticker", "kill", 1), ("refund", "kill", 1), ("ticker", "power", 40), ("refund", "power", 70),
    ("restart-storm", "power", 240),
])  # fmt: skip
def test_what_is_recovered_once_for_a_state_comes_of_every_image_of_it(
    tmp_path: Path, name: str, kind: ImageKind, step: int
) -> None:
    scenario = builtin(name)
    how = sweeping(scenario, tmp_path)
    recording = recorded(scenario, how.nothing, kind, tmp_path / "life")
    images = list(images_of(recording, kind, seed=how.seed))[::step]
    found, tally = sorted_out(recording, images), Tally()
    assert not found.ruined
    assert found.count == len(images) > len(found.states) > 4
    by_name = {each.name: each for each in images}
    for n, state in enumerate(found.states):
        all_of_it = story(came_of(scenario, how, recording, state.image, tmp_path / f"{n}"))
        for m, seen in enumerate(state.seen):
            alone = came_of(scenario, how, recording, by_name[seen.name.name], tmp_path / f"{n}-{m}")
            assert story(alone) == all_of_it, seen
            witness = Witness((seen.name,), kind)
            tally.count(alone.problems, twice=alone.twice, witness=witness, point=seen.point, lost=seen.lost)
    if step == 1:  # these are all: the sweep itself says the same
        once = counted(scenario, how, kind, tmp_path)
        assert (once.images, once.classes, once.problems) == (tally.images, tally.classes, tally.problems)
        assert once.cells == tally.cells
        assert once.runs < once.images / 4


# How the work is cut.


def test_pieces_cover_every_operation_once_and_no_image_is_in_two_of_them(tmp_path: Path) -> None:
    scenario, how = builtin("support-desk"), Sweeping()
    recording = recorded(scenario, how.nothing, "power", tmp_path / "life")
    pieces = image_pieces(scenario, how, "power", tmp_path / "cut")
    assert [n for piece in pieces for n in range(piece.first, piece.last + 1)] == list(range(recording.last + 1))
    assert len(pieces) > 4
    found = [
        (each.key, each.acknowledged, each.told, each.most, *recording.outside(each.after_op))
        for piece in pieces
        for each in images_of(recording, "power", seed=1, effort=SECOND, behind=range(piece.first, piece.last + 1))
    ]
    assert len(found) == len(set(found)) > 700


def test_a_tally_of_images_is_the_same_in_another_process(tmp_path: Path) -> None:
    scenario, how = builtin("ticker"), Sweeping(second=True)
    here = count_images(scenario, how, Images("kill", 120, 124), tmp_path / "here")
    code = (
        "import json; from pathlib import Path; from pidurable_nb.lab.scenario import builtin;"
        "from pidurable_nb.lab.sweeping.images import count_images;"
        "from pidurable_nb.lab.sweeping.pieces import Images, Sweeping;"
        "found = count_images(builtin('ticker'), Sweeping(second=True), Images('kill', 120, 124), Path('there'));"
        "print(json.dumps(found.to_json()))"
    )
    away = dict(os.environ, PYTHONHASHSEED="77", PYTHONPATH=str(Path(__file__).parents[2]))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=away, capture_output=True, check=True)
    there = Tally.of_json(json.loads(done.stdout))
    assert replace(there, took={}) == replace(here, took={})
    assert here.images > 100
    assert {kind for _, kind in here.cells} == {"kill"}


def test_a_key_of_an_image_is_the_same_in_another_process(tmp_path: Path) -> None:
    recording = recorded(builtin("ticker"), Sweeping().nothing, "kill", tmp_path / "life")
    here = [each.key.hex() for each in kill_images(recording)]
    code = (
        "from pathlib import Path; from pidurable_nb.lab.scenario import builtin;"
        "from pidurable_nb.lab.images.images import kill_images; from pidurable_nb.lab.images.recording import record;"
        "Path('there').mkdir(); found = record(builtin('ticker'), Path('there'));"
        "print(*(each.key.hex() for each in kill_images(found)))"
    )
    away = dict(os.environ, PYTHONHASHSEED="77", PYTHONPATH=str(Path(__file__).parents[2]))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=away, capture_output=True, check=True)
    assert done.stdout.decode().split() == here


# What a sweep finds.


def test_m3_c2_no_kill_behind_any_operation_and_no_second_one_in_its_recovery_breaks_a_promise(tmp_path: Path) -> None:
    scenario = builtin("sleeper")
    how = sweeping(scenario, tmp_path, second=True)
    piece = image_pieces(scenario, how, "kill", tmp_path / "cut")[-1]
    found = count_images(scenario, how, piece, tmp_path / "piece")
    assert not found.problems
    assert found.classes == {"as_promised": found.images}
    assert found.images > 300
    assert found.took["images"].count == found.images
    assert sum(count for cell in found.cells.values() for count in cell.values()) == found.images
    assert {kind for _, kind in found.cells} == {"kill"}
    assert len(found.cells) > 3


@pytest.mark.timeout(300)
def test_e5_a_power_cut_pays_a_refund_twice_with_durability_kill_which_is_told_and_no_violation(
    tmp_path: Path,
) -> None:
    scenario = builtin("refund")
    how = sweeping(scenario, tmp_path, "kill")
    found = counted(scenario, how, "power", tmp_path)
    assert not found.problems
    assert found.classes["effect_twice"] > 50
    assert found.classes["lost_within_bound"] > 50
    assert not found.classes["corrupt"]
    assert not found.classes["lost_acknowledged"]
    [crash] = found.witnesses["effect_twice"].crashes
    assert isinstance(crash, ImageName)
    left = lay_out_story(scenario, [crash], seed=1, durability="kill", folder=tmp_path / "story")
    came = recover(scenario, left, tmp_path / "again", awaited=how.awaited)
    assert came.twice
    assert "the customer was paid 2 times" in {problem.text for problem in came.problems}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("durability", ["barrier", "power"])
def test_e5_s1_a_power_cut_pays_no_refund_twice_and_loses_no_request_with_any_better_durability(
    tmp_path: Path, durability: Durability
) -> None:
    scenario = builtin("refund")
    found = counted(scenario, sweeping(scenario, tmp_path, durability), "power", tmp_path)
    assert not found.problems
    assert found.images > 3000
    assert set(found.classes) <= {"as_promised", "lost_within_bound", "effect_twice"}
    assert (found.classes["lost_within_bound"] > 0) == (durability == "barrier")
    assert not found.classes["effect_twice"]


def test_s1_a_lost_request_id_is_found_where_the_disk_ignored_the_sync_of_its_commit(tmp_path: Path) -> None:
    for durability in ("barrier", "power", "kill"):
        recording = recorded(builtin("refund"), Sweeping(durability=durability).nothing, "power", tmp_path / durability)
        [told] = [each for each in recording.told if any("ticket-77" in str(row) for row in each.added)][:1]
        mutant = recording.without(told.after_op)
        images = list(power_images(mutant, behind={told.after_op - 1, told.after_op + 1}, effort=Effort()))
        texts = {problem.text for seen in sorted_out(mutant, images).ruined for problem in seen.problems}
        assert any('"ticket-77"' in text for text in texts) == (durability != "kill")


# Stories.


def strict(facts: Facts) -> list[str]:
    """An invariant that nothing meets once a second life looked up what was paid."""
    asked = [effect for effect in facts.asked if effect.startswith("paid_back")]
    return ["the second life looked"] if asked and facts.asked[asked[0]] > 1 else []


def test_a_violation_that_takes_two_crashes_has_a_witness_of_two_names_and_is_laid_out_again(tmp_path: Path) -> None:
    scenario = replace(builtin("refund"), invariants=strict)
    how = sweeping(scenario, tmp_path, second=True)
    found = count_images(scenario, how, Images("kill", 168, 174), tmp_path / "piece")
    [(problem, witness)] = found.problems.items()
    assert problem == Problem("broken", "the second life looked")
    first, second = witness.crashes
    assert isinstance(first, ImageName)
    assert isinstance(second, ImageName)
    assert (first.life, second.life) == (1, 2)
    assert str(second).startswith("2!kill@")
    left = lay_out_story(scenario, [first, second], seed=1, durability="barrier", folder=tmp_path / "story")
    assert left.plan.number == 3
    came = recover(scenario, left, tmp_path / "again", awaited=how.awaited)
    assert came.problems == (problem,)
    once = lay_out_story(scenario, [first], seed=1, durability="barrier", folder=tmp_path / "once")
    assert not recover(scenario, once, tmp_path / "alone", awaited=how.awaited).problems


def test_a_story_goes_through_lives_that_end_themselves_to_the_image_that_was_asked_for(tmp_path: Path) -> None:
    storm = builtin("restart-storm")
    left = lay_out_story(storm, [ImageName("kill@9", 3)], seed=1, durability="barrier", folder=tmp_path / "story")
    assert left.plan.number == 4
    assert not recover(storm, left, tmp_path / "lives").problems


@pytest.mark.parametrize(
    ("names", "match"),
    [
        ([ImageName("kill@3", 2)], "no life 2 follows"),
        ([ImageName("kill@40"), ImageName("kill@50")], "has crashed already"),
        ([ImageName("kill@99999")], "no image of this recording"),
        ([ImageName("kill@40"), ImageName("power@9/keep:999", 2)], "were pending"),
    ],
)
def test_a_story_that_cannot_be_is_refused(tmp_path: Path, names: list[ImageName], match: str) -> None:
    with pytest.raises(NoSuchImage, match=match):
        lay_out_story(builtin("ticker"), names, seed=1, durability="barrier", folder=tmp_path)
