"""What a person sees and presses in a real JupyterLab: the tour, run to its end, and its Lab to the last step.

Everything that a page claims is compared with what Python says in the same kernel. Times are printed, never asserted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # ships no annotations
from playwright.sync_api import Browser, Page, expect

from pidurable_nb.notebook.server import labserver
from tests.browser.driving import PYTHON, SHOW_LAB, Desk, Lab, desk_in, jupyterlab, notebook_of

pytestmark = pytest.mark.slow

LARGEST: Final = 500_000
ARMED: Final = "pi.tool#1/execute:commit.after"
"""Behind the commit that holds the result of the refund: another place than the one that the tour dies at."""
FORKED: Final = "pi.generation#4/request:effect.before"
LAST_VIEW: Final = "[view for view in Out.values() if type(view).__name__ == 'LabView'][-1]"
KEYS_OF_JUPYTER: Final = ("ArrowDown", "ArrowUp", "j", "k", "a", "b", "x", "c", "v", "d", "d", "m", "y", "Enter")
"""In command mode each of these selects, makes, changes or deletes a cell."""
NO_SESSION: Final = re.compile(
    r"reading 'kernel'\)\n *at \w+ \(http://127[.]0[.]0[.]1:\d+/lab/extensions/@jupyter-widgets/"
)
"""What the widgets' own extension throws wherever a notebook is opened without a kernel, whoever made its outputs."""
BLOCK: Final = """() => {
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    kernel.requestExecute({code: "import time; time.sleep(5)", store_history: false});
}"""
"""A cell that runs for longer than a kernel may be silent that is there."""
PAINT: Final = """async () => {
    const {content} = jupyterapp.shell.currentWidget, before = document.querySelectorAll(".pi-lab").length;
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    await jupyterapp.commands.execute("notebook:insert-cell-below");
    content.activeCell.model.sharedModel.setSource("refund");
    const began = performance.now();
    jupyterapp.commands.execute("notebook:run-cell");
    while (document.querySelectorAll(".pi-lab").length === before) await new Promise(requestAnimationFrame);
    const took = performance.now() - began;
    await jupyterapp.commands.execute("notebook:delete-cell");
    return took;
}"""
"""Milliseconds from running a cell to the lab that it shows; the scenario has died long before."""
TWO: Final = (
    "%load_ext pidurable_nb",
    "refund = %pi lab refund\nrefund",
    f"desk = %pi lab support-desk --at {FORKED}\ndesk",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[labserver.Lab]:
    """JupyterLab with the tour, and a notebook with two labs."""
    with jupyterlab(tmp_path_factory.mktemp("jupyter")) as running:
        nbformat.write(notebook_of(*TWO), running.folder / "two.ipynb")  # type: ignore[no-untyped-call]
        yield running


@pytest.fixture
def desk(browser: Browser, server: labserver.Lab) -> Iterator[Desk]:
    """A page of it."""
    with desk_in(browser, server) as desk:
        yield desk


def claims_of(scene: object) -> dict[str, str]:
    """What a page is to say of a scene that Python gave."""
    assert isinstance(scene, Mapping)
    step, position, last = scene["step"], scene["position"], scene["last"]
    of = "" if last is None else f" of {last}"
    claims = {"place": f"Step {position}{of}" if position else "Before any step", "say": step["say"]}
    claims["verb"] = step["verb"]
    if step["predicted"] is not None or step["happened"] is not None:
        claims |= {"predicted": step["predicted"] or "–", "happened": step["happened"] or "–"}
    return claims


def serious(page: Page) -> list[object]:
    """What axe-core finds in our own elements, serious or worse."""
    found = Axe().run(page, context=".pi-lab", options={"resultTypes": ["violations"]})
    return [
        (rule["id"], [node["html"][:160] for node in rule["nodes"][:3]])
        for rule in found.response["violations"]
        if rule["impact"] in ("serious", "critical")
    ]


def test_the_tour_begins_with_a_lab_that_says_at_every_step_what_python_says(
    desk: Desk, shots: Path, measured: Callable[[str], None]
) -> None:
    desk.open(labserver.TOUR)
    desk.run_all()
    desk.page.evaluate(SHOW_LAB)
    lab = desk.lab()
    expect(lab.root).to_be_visible()
    assert lab.said() == claims_of(desk.python(f"{LAST_VIEW}.scene.to_json()"))
    dies_elsewhere(lab)
    lab.key("next").focus()
    before, took, said = desk.cells(), list[float](), [lab.said()]
    while lab.key("next").is_enabled():
        took.append(lab.step())
        said.append(lab.said())
        assert said[-1] == claims_of(desk.python(f"{LAST_VIEW}.scene.to_json()"))
        assert lab.at(".pvr .ok").inner_text().strip() == "agrees"
    assert desk.cells() == before, "the keys of the lab are not keys of Jupyter"
    assert lab.text(".nx") == "nothing is left to recover"
    compare_with_a_recovery_by_hand(desk, lab, steps=len(said) - 1)
    jumped = lab.jump(2)
    assert lab.said() == {**said[2], "place": f"Step 2 of {len(said) - 1}"}
    back = lab.jump(0)
    assert lab.said() == said[0]
    measured(f"JupyterLab: steps {min(took):.0f} to {max(took):.0f} ms, jumps {jumped:.0f} and {back:.0f} ms")
    lab.root.screenshot(path=shots / "jupyterlab-tour.png")
    size = len(nbformat.writes(desk.saved(labserver.TOUR)).encode())  # type: ignore[no-untyped-call]
    measured(f"the tour with its outputs: {size:,} bytes")
    assert size < LARGEST


def dies_elsewhere(lab: Lab) -> None:
    """Arm another point by its checkbox, and run."""
    lab.key("crash").click()
    picker = lab.at(".crash")
    row = picker.locator("li", has=lab.desk.page.get_by_text(ARMED, exact=True))
    row.get_by_role("checkbox").check()
    expect(lab.key("crash")).to_have_text("Crash points, 1 armed")
    lab.moved(picker.get_by_role("button", name="Run").click, ".head")
    expect(lab.at(".head")).to_contain_text(f"killed by SIGKILL at {ARMED}")
    assert lab.text(".eyebrow span") == "Before any step"
    lab.key("crash").click()


def compare_with_a_recovery_by_hand(desk: Desk, lab: Lab, *, steps: int) -> None:
    """The same crash once more, by magics of the same kernel: as many steps, and each effect asked for as often."""
    desk.page.evaluate(PYTHON, f"died = %pi kill {ARMED} refund\nby_hand = %pi recover")
    assert desk.python("len(by_hand)") == steps
    asked = desk.python("{n: by_hand.effects.get(n, 0) + by_hand.effects_before.get(n, 0)"
                        " for n in {*by_hand.effects, *by_hand.effects_before}}")  # fmt: skip
    assert isinstance(asked, dict)
    really = {name: words for name, words in lab.really().items() if words.startswith("asked")}
    assert {name: words.partition(",")[0] for name, words in really.items()} == {
        name: f"asked {times}" for name, times in asked.items()
    }
    assert really['refund(order="A-1017", cents=4200)'] == "asked 1, applied 1", "the customer is paid once"


def test_two_labs_of_a_notebook_do_not_mix_and_keep_their_keys(
    desk: Desk, shots: Path, measured: Callable[[str], None]
) -> None:
    desk.open("two.ipynb")
    desk.run_all()
    refund, support = desk.lab(0), desk.lab(1)
    expect(support.root).to_be_visible()
    before = refund.said()
    (fork,) = desk.numbers("[one.id for one in desk.scene.conversations if one.parent]")
    support.key(f"v{fork}").click()
    expect(support.at(".conv h3").first).to_contain_text(f"Conversation {fork}")
    expect(support.at(".conv h3").first).to_contain_text("fork of 1 at entry")
    expect(support.at(".tr li.ph")).to_have_count(0)
    entries = desk.numbers(f"[one.id for one in desk.ask(lambda source: source.entries({fork}, 0, 60)).rows]")
    shown = [int(text) for text in support.at(".tr .id").all_inner_texts()]
    assert shown == entries[-len(shown) :], "the transcript is that of the fork"
    support.key("next").focus()
    took = [support.step(), support.step()]
    assert support.said() == claims_of(desk.python("desk.scene.to_json()"))
    assert support.text(".conv h3").startswith(f"Conversation {fork}"), "the choice of a conversation stays"
    assert refund.said() == before
    cells = desk.cells()
    for key in KEYS_OF_JUPYTER:
        support.key("back").focus()
        desk.page.keyboard.press(key)
    assert desk.cells() == cells, "no key in a lab makes, moves or deletes a cell"
    assert desk.numbers("[refund.scene.position]") == [0]
    measured(f"support-desk: steps {took[0]:.0f} and {took[1]:.0f} ms; first paint {desk.page.evaluate(PAINT):.0f} ms")
    grounds = []
    for dark in (True, False):
        desk.dark(dark)
        assert serious(desk.page) == [], dark
        grounds.append(refund.root.evaluate("root => getComputedStyle(root).backgroundColor"))
        desk.page.screenshot(path=shots / f"jupyterlab-{'dark' if dark else 'light'}.png")
    assert grounds[1] == "rgb(255, 255, 255)"
    assert all(int(part) < 64 for part in re.findall(r"\d+", grounds[0])), grounds[0]


def test_after_a_restart_a_lab_says_so_and_reopened_without_a_kernel_its_saved_form_stands(desk: Desk) -> None:
    desk.open("two.ipynb")
    desk.run_all()
    lab = desk.lab()
    expect(lab.root).to_be_visible()
    expect(desk.page.locator(".pi-lab-saved").first).to_be_hidden()
    lab.key("next").focus()
    lab.step()
    tasks = lab.text(".tt")
    desk.page.evaluate("async () => { await jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }")
    lab.key("next").focus()
    desk.page.keyboard.press("ArrowRight")
    expect(lab.at(".say")).to_have_text("The kernel was restarted. Run %pi lab refund again.")
    for control in ("back", "next", "play", "range"):
        expect(lab.key(control)).to_be_disabled()
    assert lab.text(".tt") == tasks, "the facts stay"
    size = len(nbformat.writes(desk.saved("two.ipynb")).encode())  # type: ignore[no-untyped-call]
    assert size < LARGEST
    for kernel in (True, False):
        if not kernel:
            desk.page.goto("about:blank")
            desk.end_kernels()
        desk.open("two.ipynb", kernel=kernel)
        saved = desk.page.locator(".pi-lab-saved")
        expect(saved).to_have_count(2)
        expect(saved.first).to_be_visible()
        expect(saved.first).to_contain_text("The process dies after refund was done, and before the store hears of it.")
        expect(saved.first).to_contain_text("Saved view. To step it yourself")
        for word in ("Error displaying widget", "Loading widget"):
            expect(desk.page.get_by_text(word).locator("visible=true")).to_have_count(0)
    desk.wrong[:] = [one for one in desk.wrong if not NO_SESSION.search(one)]


def test_a_kernel_that_runs_a_cell_loses_no_press_and_is_not_called_restarted(desk: Desk) -> None:
    desk.open("two.ipynb")
    desk.run_all()
    lab = desk.lab()
    expect(lab.root).to_be_visible()
    lab.key("next").focus()
    desk.page.evaluate(BLOCK)
    for _ in range(3):
        desk.page.keyboard.press("ArrowRight")
    # With subshells they are heard at once, without them behind the cell: what they say is the same.
    expect(lab.at(".eyebrow span").first).to_have_text(re.compile(r"Step 3\b"))
    expect(lab.key("next")).to_have_text("Next")
    assert lab.said() == claims_of(desk.python("refund.scene.to_json()"))
    assert desk.numbers("[refund.scene.position]") == [3]
