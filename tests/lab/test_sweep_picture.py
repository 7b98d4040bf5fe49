"""The picture of a sweep: colour, shape and word for each class, nothing foreign that acts, room for many points."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from pidurable_nb.lab.dying.point import Point, TaskPlace
from pidurable_nb.lab.judging.invariants import Problem
from pidurable_nb.lab.sweeping.frame import COLUMNS
from pidurable_nb.lab.sweeping.matrix import MOST_ROWS, WORDS, matrix
from pidurable_nb.lab.sweeping.points import SweepKind
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.tally import CLASSES, Tally, Witness

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(1)</script>&\"'\u202e\x1b[31m\n"


def place(n: int, kind: str = "ticker") -> Point:
    return Point(place=TaskPlace(kind, 1, "tick"), what="memo", edge="before", n=n)


def result(tally: Tally, *kinds: SweepKind, scenario: str = "ticker", pieces: int = 1) -> SweepResult:
    return SweepResult(
        scenario=scenario, kinds=kinds, durability="barrier", seed=1, second=False, points=len(tally.cells),
        tally=tally, done=1, pieces=pieces, seconds=1.0,
    )  # fmt: skip


def counted(
    *problems: Problem, n: int = 1, how: SweepKind = "freeze", twice: bool = False, lost: bool = False
) -> Tally:
    tally = Tally()
    tally.count(problems, twice=twice, lost=lost, witness=Witness((place(n),), how), point=place(n))
    return tally


@pytest.fixture
def every() -> SweepResult:
    """A sweep that met every class there is, one a point, and came before the first point once."""
    tally = counted()
    tally.add(counted(n=2, lost=True))
    tally.add(counted(n=3, twice=True))
    tally.add(counted(Problem("lost_acknowledged", "a"), n=4))
    tally.add(counted(Problem("stuck", "b"), n=5))
    tally.add(counted(Problem("corrupt", "c"), n=6))
    tally.add(counted(Problem("broken", "d"), n=7))
    tally.count([], twice=False, witness=Witness((place(1),), "kill"), point=None)
    return result(tally, "freeze", "kill")


def test_every_class_has_a_colour_a_shape_and_a_word(every: SweepResult) -> None:
    drawn = ET.fromstring(every.picture())
    assert drawn.tag == f"{SVG}svg"
    shapes = {
        ET.tostring(group[0]) for group in drawn.iter(f"{SVG}g") if group.get("transform") is not None
    }  # the first part of each mark, colour included
    assert len(shapes) == 7
    words = " ".join(text.text or "" for text in drawn.iter(f"{SVG}text"))
    assert all(f"{word}: " in words for word in WORDS.values())
    assert "style" not in every.picture()  # it survives where styles are taken out
    assert drawn.find(f"{SVG}rect[@fill='#ffffff']") is not None  # and a dark page


def test_who_does_not_see_it_is_told(every: SweepResult) -> None:
    drawn = ET.fromstring(every.picture())
    assert drawn.get("role") == "img"
    title, described = drawn.find(f"{SVG}title"), drawn.find(f"{SVG}desc")
    assert title is not None
    assert title.text == drawn.get("aria-label") == "What became of 8 crashes of ticker"
    assert described is not None
    assert "ticker#1/tick:memo.before@6: frozen, 1 corrupt" in (described.text or "")
    places = [found.text or "" for found in drawn.findall(f"{SVG}g/{SVG}title")]
    assert "ticker#1/tick:memo.before@3, frozen: 1 happened twice" in places
    assert "before the first point, killed: 1 as promised" in places


def test_the_plain_form_says_the_same_in_80_columns_of_ascii(every: SweepResult) -> None:
    text = every.text()
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 80
    assert [line.split()[-2:] for line in text.splitlines() if line.startswith("ticker#1/tick:memo.before@3")] == [
        ["1", "-"]
    ]
    for kind, word in WORDS.items():
        assert f"{word}: {every.counts[kind]}" in text
    assert text.splitlines()[2].startswith("before the first point")


def test_foreign_text_is_text_in_both_forms() -> None:
    tally = Tally()
    nasty = Point(place=TaskPlace(HOSTILE, 1, HOSTILE), what="memo", edge="before")
    tally.count([Problem("broken", HOSTILE)], twice=False, witness=Witness((nasty,), "freeze"), point=nasty)
    found = result(tally, "freeze", scenario=f"mine:{HOSTILE}")
    drawn = ET.fromstring(found.picture())
    assert {each.tag.removeprefix(SVG) for each in drawn.iter()} <= {
        "svg", "title", "desc", "rect", "text", "path", "g",
    }  # fmt: skip
    for form in (found.picture(), found.text()):
        assert "\x1b" not in form
        assert "\u202e" not in form
    assert found.text().isascii()


def test_of_many_points_neighbours_that_came_out_alike_share_a_row_that_says_how_many() -> None:
    tally = Tally()
    for n in range(1, 101):
        tally.add(counted(n=n, twice=n in (50, 51)))
    found = result(tally, "freeze")
    shown = matrix(found)
    assert [(row.points, row.cells["freeze"].worst) for row in shown.rows] == [
        (49, "as_promised"), (2, "effect_twice"), (49, "as_promised"),
    ]  # fmt: skip
    assert shown.points == 100
    assert "ticker#1/tick:memo.before@52 (+48)" in found.picture()
    assert "and 48 more, to ticker#1/tick:memo.before@100" in found.text()
    few = Tally()
    for n in range(1, 61):
        few.add(counted(n=n))
    assert len(matrix(result(few, "freeze")).rows) == 60


def test_of_too_many_rows_the_rest_is_counted() -> None:
    tally = Tally()
    for n in range(1, 301):
        tally.add(counted(n=n, twice=n % 2 == 0))
    found = result(tally, "freeze")
    assert len(matrix(found).rows) == MOST_ROWS
    for form in (found.picture(), found.text()):
        assert "and 100 more points: the data frame has them all" in form


def test_a_place_shows_the_worst_and_how_often_of_how_many() -> None:
    tally = counted()
    for _ in range(3):
        tally.add(counted(twice=True))
    found = result(tally, "freeze", pieces=9)
    assert "~ 3 of 4" in found.text()
    assert "stopped after 1 of 9 pieces" in found.text().replace("\n", " ")
    assert ">3 of 4<" in found.picture()


def test_the_frame_has_a_row_for_each_place_of_the_matrix(every: SweepResult) -> None:
    frame = every.frame()
    assert tuple(frame.columns) == COLUMNS
    assert len(frame) == len(every.cells)
    assert frame.images.sum() == every.images
    for kind in (*CLASSES, "broken"):
        assert frame[kind].sum() == every.counts.get(kind, 0)
    row = frame[frame.point == "ticker#1/tick:memo.before@3"].iloc[0]
    assert (row.kind, row.task, row.phase, row.what) == ("freeze", "ticker#1", "tick", "memo.before")
    assert (row.worst, row.witness) == ("effect_twice", "ticker#1/tick:memo.before@3")
    assert frame[frame.point == ""].iloc[0].worst == "as_promised"
