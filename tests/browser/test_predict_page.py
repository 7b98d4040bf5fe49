"""The page of a prediction in a real browser, with a kernel that is a few lines of script."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # ships no annotations
from playwright.sync_api import Browser, Page, expect

from pidurable_nb.notebook.study import forms
from pidurable_nb.notebook.study.forms import Asked

STUDY: Final = Path(forms.__file__).parent
QUESTION: Final = Asked(
    key="predict/N1/screen", notebook="N1", id="screen", seed=None,
    question="The answer was on the screen. Is it stored?", choices=("yes", "no", "half of it"), beliefs=("W5",),
)  # fmt: skip
MODEL: Final = """
window.kernel = { alive: true, sent: [], refuse: null };
window.model = {
  state: null, listeners: {},
  get(name) { return this[name]; },
  on(event, call) { (this.listeners[event] ??= []).push(call); },
  off(event, call) { this.listeners[event] = (this.listeners[event] ?? []).filter((one) => one !== call); },
  emit(event, ...given) { for (const call of this.listeners[event] ?? []) call(...given); },
  put(state) { this.state = state; this.emit("change:state"); },
  send(message) {
    kernel.sent.push(message);
    if (!kernel.alive || kernel.slow) return;
    const { error } = kernel.refuse ?? {};
    queueMicrotask(() => this.emit("msg:custom", error ? { id: message.id, error } : { id: message.id, ok: true }));
  },
};
"""


def state(choice: int | None = None, sure: float = 0.8, happened: str | None = None, asked: Asked = QUESTION) -> object:
    """What the kernel says of the prediction."""
    if choice is None:
        return forms.page_of(asked, None, forms.said(asked, None))
    answer = asked.answered(choice, sure)
    found = answer if happened is None else replace(answer, happened=happened, because="Its commit had not returned.")
    return forms.page_of(asked, found, forms.said(asked, found, answer, new=True))


def put_on(browser: Browser, shown: object, *, dark: bool = False) -> Page:
    """The prediction on a page of its own. Whatever goes wrong on the page is listed in `window.wrong`."""
    page = browser.new_page(color_scheme="dark" if dark else "light", viewport={"width": 760, "height": 700})
    page.set_content('<!doctype html><html lang="en"><head><title>t</title></head><body><main></main></body></html>')
    page.add_style_tag(path=STUDY / "predict.css")
    script = base64.b64encode((STUDY / "predict.js").read_bytes()).decode()
    page.evaluate(MODEL)
    page.evaluate(
        """async ([script, state]) => {
            window.wrong = [];
            addEventListener("error", (event) => wrong.push(String(event.message)));
            addEventListener("unhandledrejection", (event) => wrong.push(String(event.reason)));
            model.state = state;
            const bytes = Uint8Array.from(atob(script), (c) => c.charCodeAt(0));
            const url = URL.createObjectURL(new Blob([bytes], { type: "text/javascript" }));
            const module = await import(url);
            window.module = module.default;
            window.close_page = module.default.render({ model, el: document.querySelector("main") });
        }""",
        [script, shown],
    )
    return page


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    made = put_on(browser, state())
    yield made
    assert made.evaluate("wrong") == []
    made.close()


def locks(page: Page) -> list[dict[str, object]]:
    found: list[dict[str, object]] = page.evaluate("kernel.sent.filter((one) => one.do === 'lock')")
    return found


def test_nothing_is_locked_before_a_choice_and_one_click_locks_it(page: Page) -> None:
    button = page.get_by_role("button")
    expect(button).to_be_disabled()
    expect(button).to_have_text("Lock: choose first")
    page.get_by_role("radio", name="no").check()
    page.get_by_role("slider", name="How sure?").fill("85")
    expect(button).to_have_text("Lock answer 2 at 85 %")
    page.evaluate("kernel.slow = true")
    button.dblclick(force=True)  # the second press finds it busy
    expect(page.get_by_role("status")).to_have_text("Waiting for the kernel.")
    assert [(one["choice"], one["confidence"]) for one in locks(page)] == [(2, 85)]
    page.evaluate("state => model.put(state)", state(2, 0.85))
    page.evaluate("model.emit('msg:custom', { id: kernel.sent.at(-1).id, ok: true })")
    expect(page.get_by_role("status")).to_have_text("Locked: no, at 85 %. It is stored, and stays as it is.")
    expect(page.get_by_role("button")).to_have_count(0)
    expect(page.get_by_role("slider")).to_have_count(0)
    expect(page.locator("label", has_text="predicted, at 85 %")).to_contain_text("no")
    for radio in page.get_by_role("radio").all():
        expect(radio).to_be_disabled()


def test_everything_works_from_the_keyboard_and_keeps_its_keys(page: Page) -> None:
    page.evaluate("window.leaked = []; addEventListener('keydown', (event) => leaked.push(event.key))")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.type") == "radio"
    page.keyboard.press("2")
    expect(page.get_by_role("radio", name="no")).to_be_checked()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("radio", name="half of it")).to_be_checked()
    page.keyboard.press("Tab")
    slider = page.get_by_role("slider")
    expect(slider).to_be_focused()
    expect(slider).to_have_attribute("aria-valuetext", "70 %, rather sure")
    page.keyboard.press("End")
    expect(slider).to_have_attribute("aria-valuetext", "100 %, certain")
    page.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "50 %, a guess")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert [(one["choice"], one["confidence"]) for one in locks(page)] == [(3, 55)]
    page.evaluate("state => model.put(state)", state(3, 0.55))
    expect(page.get_by_role("status")).to_be_focused()  # the button is gone; the sentence says what became of it
    assert set(page.evaluate("leaked")) <= {"Tab"}


def test_an_answer_of_the_kernel_takes_no_slider_from_a_hand(page: Page) -> None:
    page.evaluate("window.held = document.querySelector('input[type=range]'); held.focus()")
    page.evaluate("held.value = 95; held.dispatchEvent(new Event('input', { bubbles: true }))")
    page.evaluate("new Promise((done) => setTimeout(done, 50))")
    assert page.evaluate("document.querySelector('input[type=range]') === held")
    expect(page.locator(".told")).to_have_text("95 %, sure")


def test_what_happened_is_on_the_page_only_after_the_reveal(page: Page) -> None:
    page.evaluate("state => model.put(state)", state(1, 0.9))
    assert page.locator("dl").count() == 0
    page.evaluate("state => model.put(state)", state(1, 0.9, "no"))
    assert page.locator("dl").inner_text().split("\n") == ["predicted", "yes, at 90 %", "happened", "no ◆ differs"]
    expect(page.locator(".outcome")).to_contain_text("Its commit had not returned.")
    expect(page.locator("label", has_text="happened")).to_contain_text("no")
    page.evaluate("state => model.put(state)", state(2, 0.9, "no"))
    expect(page.locator("dl")).to_contain_text("■ agrees")


def test_a_refusal_is_said_and_the_answer_can_be_locked_again(page: Page) -> None:
    page.evaluate("kernel.refuse = { error: 'your answers are kept elsewhere; close it there' }")
    page.get_by_role("radio", name="no").check()
    page.get_by_role("button").click()
    expect(page.get_by_role("status")).to_have_text("your answers are kept elsewhere; close it there")
    expect(page.get_by_role("radio", name="no")).to_be_checked()
    expect(page.get_by_role("button")).to_be_enabled()
    page.evaluate("kernel.refuse = null")
    page.get_by_role("button").click()
    assert len(locks(page)) == 2


def test_a_kernel_that_is_gone_is_said_and_the_facts_stay(browser: Browser) -> None:
    page = put_on(browser, state())
    page.evaluate("kernel.alive = false")
    page.get_by_role("radio", name="no").check()
    page.get_by_role("button").click()
    expect(page.get_by_role("status")).to_have_text("Waiting for the kernel.")
    expect(page.get_by_role("status")).to_contain_text("it was restarted: then run %load_ext", timeout=20_000)
    expect(page.get_by_role("radio", name="no")).to_be_checked()
    for control in [*page.get_by_role("radio").all(), page.get_by_role("slider"), page.get_by_role("button")]:
        expect(control).to_be_disabled()
    # It was only busy: its late answer brings everything back.
    page.evaluate("model.emit('msg:custom', { id: kernel.sent.at(-1).id, ok: true })")
    expect(page.get_by_role("button")).to_be_enabled()
    expect(page.get_by_role("status")).to_contain_text("Choose what happens")
    page.close()


def test_a_model_that_cannot_send_any_more_is_a_kernel_that_is_gone(browser: Browser) -> None:
    page = put_on(browser, state())
    page.get_by_role("radio", name="no").check()
    page.evaluate("void (model.send = () => { throw new Error('comm is closed'); })")
    page.get_by_role("button").click()
    expect(page.get_by_role("status")).to_contain_text("The kernel does not answer.")
    page.close()


def test_hostile_text_is_text(browser: Browser) -> None:
    attack = "<img src=x onerror=\"wrong.push('ran')\"><script>wrong.push('ran')</script>\u202e\x1b[31m&amp;"
    asked = Asked(
        key="predict/N1/a", notebook="N1", id="a", seed=None, question=attack, choices=(attack, attack + "2"),
        beliefs=(),
    )  # fmt: skip
    page = put_on(browser, state(1, 0.9, attack + "2", asked=asked))
    assert page.locator("img, script").count() == 0
    assert "<img src=x" in page.locator(".question").inner_text()
    assert "\u202e" not in page.locator("main").inner_text()
    assert page.evaluate("wrong") == []
    page.close()


def test_two_displays_of_one_widget_do_not_share_their_radio_buttons(page: Page) -> None:
    page.evaluate("void module.render({ model, el: document.body.appendChild(document.createElement('aside')) })")
    page.locator("main").get_by_role("radio", name="no").check()
    page.locator("aside").get_by_role("radio", name="yes").check()
    expect(page.locator("main").get_by_role("radio", name="no")).to_be_checked()


def test_a_display_that_is_closed_leaves_nothing_behind(page: Page) -> None:
    page.evaluate("close_page()")
    assert page.locator("main").inner_html() == ""
    assert page.evaluate("Object.values(model.listeners).flat().length") == 0


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("shown", [state(), state(1, 0.9), state(1, 0.9, "no"), state(2, 0.9, "no")])
def test_a_screen_reader_and_a_weak_eye_find_nothing_missing(browser: Browser, shown: object, dark: bool) -> None:
    page = put_on(browser, shown, dark=dark)
    page.add_style_tag(content="body { margin: 0; background: Canvas; color-scheme: light dark; }")
    found = Axe().run(page).response["violations"]
    wrong = [one["id"] + ": " + node["html"] for one in found for node in one["nodes"] if one["id"] not in ALLOWED]
    assert wrong == []
    page.close()


ALLOWED: Final = frozenset({"page-has-heading-one"})
"""The test's own page has no heading."""
