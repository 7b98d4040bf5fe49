"""Reading a long text in the Lab view: opened where it is cut, a page at a time, found in, closed; inert and small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # ships no annotations
from playwright.sync_api import Locator, expect

from tests.browser.seat import Seat, Seats

MOST = 5_242_880


ENTRY = 20
"""The newest entry of the scene at the crash."""


def begin(seat: Seat, text: str, **options: object) -> Locator:
    """A lab whose newest entry says this, cut as the kernel cuts it; gives the button that reads it."""
    change = f"""for (const scene of scenes) for (const row of scene.entries.rows) if (row.id === {ENTRY})
        Object.assign(row, {{text: 'long '.repeat(400) + '… ({len(text):,} characters)', size: {len(text)}}});"""
    seat.start(change=change, **options)
    seat.page.evaluate(f"text => {{ lab.kernels[0].texts['{{\"entry\":{ENTRY}}}'] = [...text]; }}", text)
    return seat.page.get_by_role("button", name=f"{len(text):,} characters, read")


def section(seat: Seat) -> Locator:
    return seat.page.get_by_role("region", name=f"Entry {ENTRY}")


def page_of(seat: Seat) -> str:
    found = seat.page.locator(".reader pre").text_content()
    assert found is not None
    return found


def lines(count: int) -> str:
    return "".join(f"line {n:07}\n" for n in range(count))


def test_a_long_text_is_read_a_page_at_a_time_and_the_pages_are_the_whole_of_it(seat: Seat) -> None:
    text = lines(3_000)
    begin(seat, text).click()
    expect(section(seat)).to_be_visible()
    assert seat.focused() == "read-text", "what is read has the focus, so keys scroll it"
    where = section(seat).locator(".rh span").first
    expect(where).to_have_text("characters 1 to 16,000 of 39,000")
    assert section(seat).get_by_role("button", name="Earlier").is_disabled()
    pages = [page_of(seat)]
    for place in ("characters 16,001 to 32,000 of 39,000", "characters 32,001 to 39,000 of 39,000"):
        section(seat).get_by_role("button", name="Later").click()
        expect(where).to_have_text(place)
        pages.append(page_of(seat))
    assert "".join(pages) == text
    assert section(seat).get_by_role("button", name="Later").is_disabled()
    assert seat.focused() == "read-text", "Later is dead at the end, so the focus goes to the text"
    section(seat).get_by_role("button", name="Start").click()
    expect(where).to_have_text("characters 1 to 16,000 of 39,000")
    section(seat).get_by_role("button", name="End").click()
    expect(where).to_have_text("characters 32,001 to 39,000 of 39,000")
    section(seat).get_by_role("button", name="Earlier").click()
    expect(where).to_have_text("characters 16,001 to 32,000 of 39,000")


def test_keys_scroll_the_text_and_reach_neither_the_lab_nor_the_notebook(seat: Seat) -> None:
    seat.page.evaluate("document.addEventListener('keydown', event => { (window.leaked ??= []).push(event.key); })")
    begin(seat, lines(2_000)).click()
    expect(section(seat)).to_be_visible()
    seat.page.wait_for_function("document.querySelector('.reader pre').scrollHeight > 1000")
    seat.press("ArrowDown", "PageDown", "ArrowRight", "p", "1")
    seat.page.wait_for_function("document.querySelector('.reader pre').scrollTop > 100")
    assert seat.page.evaluate("window.leaked") is None
    assert [message["do"] for message in seat.sent() if message["do"] != "entries"] == ["text"]


@pytest.mark.parametrize("way", ["Escape", "Close"])
def test_closing_gives_the_focus_back_to_the_button(seat: Seat, way: str) -> None:
    button = begin(seat, lines(2_000))
    button.focus()
    seat.press("Enter")
    expect(section(seat)).to_be_visible()
    seat.page.evaluate("lab.kernels[0].put(lab.kernels[0].scene())")  # rows may be drawn again meanwhile
    seat.page.evaluate("new Promise(done => setTimeout(done, 80))")
    if way == "Escape":
        seat.press("Escape")
    else:
        section(seat).get_by_role("button", name="Close").click()
    expect(section(seat)).to_be_hidden()
    expect(button).to_be_focused()
    assert seat.page.locator(".reader pre").text_content() == ""


def test_find_goes_to_the_next_place_on_any_page_and_from_the_start_again(seat: Seat) -> None:
    text = "needle " + "x" * 15_996 + "needle" + "\U0001f600" * 30_000 + " needle."
    begin(seat, text).click()
    field = section(seat).get_by_role("textbox", name="Find")
    field.fill("needle")
    mark, said = section(seat).locator("mark"), section(seat).locator(".rh span").last
    for at in (0, 7 + 15_996, 7 + 15_996 + 6 + 30_000 + 1):
        field.press("Enter")
        expect(said).to_have_text(f"at character {at + 1:,}")
        expect(mark).to_have_text("needle")
        expect(mark).to_be_in_viewport()
    field.press("Enter")
    expect(said).to_have_text("no further one; again searches from the start")
    field.press("Enter")
    expect(said).to_have_text("at character 1")
    field.fill("haystack")
    field.press("Enter")
    expect(said).to_have_text("it is not there")
    assert seat.focused() == "read-field"


def test_five_megabytes_are_a_handful_of_nodes(seat: Seat) -> None:
    button = begin(seat, "a" * (MOST - 4) + "end.")
    before = seat.page.evaluate("document.querySelectorAll('*').length")
    button.click()
    where = section(seat).locator(".rh span").first
    expect(where).to_have_text("characters 1 to 16,000 of 5,242,880")
    section(seat).get_by_role("button", name="End").click()
    expect(where).to_have_text("characters 5,232,001 to 5,242,880 of 5,242,880")
    assert page_of(seat).endswith("aend.")
    assert seat.page.evaluate("document.querySelectorAll('*').length") <= before + 3
    assert seat.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it wraps"
    asked = [message for message in seat.sent() if message["do"] == "text"]
    assert [(message["start"], message["count"]) for message in asked] == [(0, 16_000), (5_232_000, 16_000)]


def test_hostile_text_is_inert_and_visible_in_the_reader(seat: Seat) -> None:
    seat.start(
        change="""const hostile = lab.poison('x');
            scenes.forEach((scene, n) => { scenes[n] = lab.poison(scene); });
            for (const scene of scenes) for (const row of scene.entries.rows) {
                row.size = 9999;
                for (const call of row.calls) call.sizes = {arguments: 9999, output: 9999, lost: 9999};
            }
            for (const {tasks} of scenes) for (const {memos} of tasks) for (const memo of memos) memo.size = 9999;"""
    )
    seat.page.evaluate(
        """() => {
            const kernel = lab.kernels[0], hostile = lab.poison("x");
            kernel.texts = new Proxy({}, {get: () => `${hostile}\\n${hostile}`});
        }"""
    )
    seen = set()
    for button in seat.page.locator(".rd").all():
        if not button.is_visible():
            continue
        button.click()
        expect(seat.page.locator(".reader")).to_be_visible()
        expect(seat.page.locator(".reader pre")).to_contain_text("<script>alert(1)</script>")
        assert "\n" in page_of(seat), "its own lines stay"
        found = seat.page.evaluate("lab.inspect(0)")
        assert found == {"elements": 0, "handlers": 0, "acting": 0, "loose": [], "shown": True}
        seen.add(seat.text(".reader h3").split(":")[0][:6])
        seat.press("Escape")
    assert seen >= {"Entry "}
    seat.page.evaluate("lab.kernels[0].texts = {}")
    seat.page.locator(".rd").first.click()
    expect(seat.page.locator(".reader .rh span").first).to_have_text("there is no such text at this position")
    expect(seat.page.locator(".failed")).to_have_count(0)


def test_half_a_character_comes_through(seat: Seat) -> None:
    begin(seat, lines(2_000))
    seat.page.evaluate(
        r"""() => {
            lab.kernels[0].read = () => ({text: {start: 0, total: 3, text: '"a\\ud83db"', escaped: true}});
        }"""
    )
    seat.page.get_by_role("button", name="characters, read").click()
    expect(section(seat).locator("pre")).to_have_text("a\\u{D83D}b")
    expect(section(seat).locator(".rh span").first).to_have_text("characters 1 to 3 of 3")


def test_a_step_shows_the_text_as_it_is_there(seat: Seat) -> None:
    begin(seat, "before the step. " * 2_000).click()
    expect(section(seat).locator("pre")).to_contain_text("before the step.")
    seat.page.evaluate(f"lab.kernels[0].texts['{{\"entry\":{ENTRY}}}'] = [...'behind the step']")
    seat.page.locator("[data-k=next]").click()
    expect(section(seat).locator("pre")).to_have_text("behind the step")
    seat.page.evaluate("lab.kernels[0].texts = {}")
    seat.page.locator("[data-k=next]").click()
    expect(section(seat).locator(".rh span").first).to_have_text("there is no such text at this position")
    seat.page.evaluate(
        "() => { const [kernel] = lab.kernels; kernel.put({...kernel.scene(), store: 'another.sqlite', position: 0}); }"
    )
    expect(seat.page.locator(".reader")).to_be_hidden()


def test_every_cut_text_of_a_task_and_of_a_step_is_read_by_its_own_name(seat: Seat) -> None:
    seat.start(
        change="""for (const scene of scenes) {
            const task = scene.tasks.find(({id}) => id === 21);
            Object.assign(task, {checkpoint: 'c'.repeat(300), checkpoint_size: 5000});
            task.memos = [{name: 'half', value: 'm'.repeat(300), by: null, lost: [], new: false, size: 6000}];
            const before = 'b'.repeat(79) + '…';
            scene.step.diff = [{sign: '~', row: 'task 21', before, after: 'short', before_size: 7000}];
            for (const row of scene.entries.rows) for (const call of row.calls) call.sizes = {arguments: 8000};
        }"""
    )
    seat.page.locator("[data-k=t21]").click()
    for size, of, name in (
        (5000, {"task": 21, "part": "checkpoint"}, "Task 21: checkpoint"),
        (6000, {"task": 21, "part": {"memo": "half"}}, "Task 21: memo half"),
    ):
        seat.page.get_by_role("button", name=f"{size:,} characters, read").click()
        expect(seat.page.get_by_role("region", name=name)).to_be_visible()
        assert seat.sent()[-1]["of"] == of
        seat.press("Escape")
    seat.page.locator("[data-k=next]").click()
    seat.page.get_by_role("button", name="7,000 characters, read").click()
    expect(seat.page.get_by_role("region", name="Step 1, row 1: before")).to_be_visible()
    assert seat.sent()[-1]["of"] == {"row": {"position": 1, "row": 0, "side": "before"}}
    seat.press("Escape")
    seat.page.locator(".tr details:not([open]) summary").first.click()
    seat.page.get_by_role("button", name="8,000 characters, read").first.click()
    assert '"part": "arguments"' in json.dumps(seat.sent()[-1]["of"])


def test_an_entry_that_was_picked_can_be_read_as_it_is_stored(seat: Seat) -> None:
    seat.start()
    seat.page.locator(f"[data-k=e{ENTRY}]").click()
    seat.page.locator(".tr li", has=seat.page.locator(f"[data-k=e{ENTRY}]")).get_by_role(
        "button", name="read as it is stored"
    ).click()
    assert seat.sent()[-1]["of"] == {"entry": ENTRY, "part": "stored"}
    seat.press("Escape", "Escape")
    expect(seat.page.get_by_role("button", name="read as it is stored")).to_have_count(0)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (560, True)])
def test_the_reader_breaks_no_accessibility_rule(seats: Seats, shots: Path, width: int, dark: bool) -> None:
    seat = seats(width=width, dark=dark, still=True)
    seat.page.evaluate("dark => { document.body.dataset.jpThemeLight = String(!dark); }", dark)
    begin(seat, "The needle is here.\n" + lines(3_000)).click()
    expect(section(seat)).to_be_visible()
    field = section(seat).get_by_role("textbox", name="Find")
    field.fill("needle")
    field.press("Enter")
    expect(section(seat).locator("mark")).to_have_text("needle")
    found = Axe().run(seat.page, context=".pi-lab", options={"resultTypes": ["violations"]})
    wrong = [
        (rule["id"], rule["impact"], [node["html"][:160] for node in rule["nodes"][:3]])
        for rule in found.response["violations"]
    ]
    assert wrong == [], (width, dark)
    seat.page.locator(".pi-lab").screenshot(path=shots / f"reader-{width}-{'dark' if dark else 'light'}.png")
    assert seat.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
