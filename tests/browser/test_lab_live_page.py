"""What a person sees of a store that lives: no steps, and why; in a real chromium."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.seat import Seat

ALIVE = """
const [scene] = scenes.splice(1);
Object.assign(scenes[0], {
  watched: "it is alive: watched, not walked", next: null, last: 0, how: "open, alive",
  timeline: scenes[0].timeline.filter(col => col.kind === "commit"), bars: [],
});
"""


def test_what_lives_has_no_steps_and_says_why(seat: Seat) -> None:
    seat.start(change=ALIVE)
    lab = seat.page.locator(".pi-lab").first
    expect(lab.locator(".eyebrow span").first).to_have_text("Live")
    for button in ("back", "next"):
        expect(lab.locator(f"[data-k={button}]")).to_be_disabled()
        expect(lab.locator(f"[data-k={button}]")).to_have_attribute("title", "it is alive: watched, not walked")
    expect(lab.locator(".nx")).to_have_text("it is alive: watched, not walked")
    expect(lab.locator(".head")).to_contain_text("watched; nothing here acts on it")
    expect(lab).to_contain_text("What is live, and what is next")
    expect(lab).not_to_contain_text("on a copy")
