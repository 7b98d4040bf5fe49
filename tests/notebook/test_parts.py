"""Parts of a lab as views of their own: in a page, saved, and in a terminal; and all of them are one lab."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from pidurable_nb.ids import JsonObject
from pidurable_nb.lab.scenario import around, builtin
from pidurable_nb.lab.scene.source import ScenarioSource
from pidurable_nb.notebook.labview.part import PARTS, NoSuchPart, Part
from pidurable_nb.notebook.labview.view import LabView

SAVED: dict[Part, str] = {
    "timeline": "<svg", "step": "What recovery will do", "transcript": "Transcript of conversation",
    "forks": "<h3>Conversations", "inbox": "<h3>Submissions", "tasks": "<h3>Tasks and memos",
    "memos": "<h3>Tasks and memos", "effects": "Did it happen once?", "points": "Where it can be made to die",
}  # fmt: skip
PLAIN: dict[Part, str] = {
    "timeline": "time ", "step": "will ", "transcript": "talk ", "forks": "forks ", "inbox": "subs ", "tasks": "tasks ",
    "memos": "tasks ", "effects": "once? ", "points": "points ",
}  # fmt: skip


@pytest.fixture(scope="module")
def lab() -> Iterator[LabView]:
    """A conversation with a fork, tasks, effects and an inbox."""
    scenario = builtin("support-desk")
    with around(scenario):
        view = LabView.making(lambda: ScenarioSource(scenario, points=["pi.generation#4/request:effect.before"]))
        yield view
        view.close()


@pytest.mark.parametrize("part", PARTS)
def test_the_saved_form_of_a_part_has_that_part_alone(lab: LabView, part: Part) -> None:
    saved = lab.only(part).html()
    assert SAVED[part] in saved
    assert [other for other, mark in SAVED.items() if mark != SAVED[part] and mark in saved] == []
    assert lab.scene.step.say.partition(",")[0] in saved, "the sentence stands over each"


@pytest.mark.parametrize("part", PARTS)
def test_the_plain_form_of_a_part_has_that_part_alone(lab: LabView, part: Part) -> None:
    lines = lab.only(part).text().splitlines()
    begun = {mark for mark in PLAIN.values() for line in lines if line.startswith(mark)}
    assert begun == {PLAIN[part]}
    assert all(len(line) <= 80 for line in lines)


def test_the_whole_has_every_part_but_the_folded_points(lab: LabView) -> None:
    html, text = lab.html(), lab.text()
    assert [part for part, mark in SAVED.items() if mark not in html] == ["points"]
    assert [part for part, mark in PLAIN.items() if f"\n{mark}" not in text] == ["points"]


def test_a_part_that_no_lab_has_is_refused_with_those_that_it_has(lab: LabView) -> None:
    with pytest.raises(NoSuchPart, match="it has timeline, step, transcript"):
        lab.only("clock")


def test_a_press_in_one_view_moves_all_views_of_that_lab(lab: LabView) -> None:
    line, effects = lab.only("timeline"), lab.only("effects", "step")
    said: queue.Queue[JsonObject] = queue.Queue()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line.widget, "send", said.put)
        assert list(effects.widget.parts) == ["effects", "step"]
        line.widget._handle_custom_msg({"do": "next", "id": 7}, [])
        while said.get(timeout=60).get("id") != 7:
            pass
    assert [view.widget.scene["position"] for view in (lab, line, effects)] == [1, 1, 1]
    assert lab.scene is line.scene is effects.scene
    assert lab.ask(lambda source: source.goto(0)).position == 0
