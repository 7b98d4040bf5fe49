"""Each part of a lab as a view of its own: it alone is seen, and what it says and does is what it does in the whole."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # ships no annotations
from playwright.sync_api import expect

from tests.browser.seat import Seat

OWN = {
    "timeline": ".time .tl", "step": ".now .say", "transcript": ".conv .tr", "forks": ".conv .fk", "inbox": ".conv .ib",
    "tasks": ".task .tt", "memos": ".task .memos", "effects": ".layers .lt", "points": ".crash ul",
}  # fmt: skip
"""What is seen of each part, and of no other."""


def seen(seat: Seat) -> set[str]:
    """The parts of which something is seen."""
    return {part for part, selector in OWN.items() if seat.page.locator(selector).first.is_visible()}


@pytest.mark.parametrize("part", OWN)
def test_a_part_alone_is_all_that_is_seen(seat: Seat, part: str) -> None:
    seat.start(parts=[part])
    assert seen(seat) == {part}
    found = Axe().run(seat.page, context=".pi-lab", options={"resultTypes": ["violations"]})
    assert [rule["id"] for rule in found.response["violations"]] == []


def test_without_names_all_parts_are_seen_but_the_folded_picker(seat: Seat) -> None:
    seat.start()
    assert seen(seat) == OWN.keys() - {"points"}


def test_a_step_in_the_timeline_alone_is_a_step(seat: Seat) -> None:
    seat.start(parts=["timeline", "effects"])
    assert seen(seat) == {"timeline", "effects"}
    seat.page.locator("[data-k='next']").focus()
    seat.press("ArrowRight", "ArrowRight")
    expect(seat.page.locator("[data-k='range']")).to_have_value("2")
    assert seat.presses() == ["next", "next"]


def test_one_point_is_armed_and_run_in_the_picker_alone(seat: Seat) -> None:
    seat.start(parts=["points"])
    seat.page.get_by_role("button", name="Run").click()
    expect(seat.page.locator(".pi-lab")).to_be_visible()
    assert seat.presses() == ["run"]
