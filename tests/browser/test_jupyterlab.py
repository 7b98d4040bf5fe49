"""What a person sees and presses in a real JupyterLab: the tour from its first cell to the last step of its Lab.

Everything that a page claims is compared with what Python says in the same kernel. Times are printed, never asserted.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # ships no annotations
from playwright.sync_api import Browser, Error, Locator, Page, Request, expect

from pidurable_nb.notebook import labserver

pytestmark = pytest.mark.slow

PATIENCE_S: Final = 60.0
LARGEST: Final = 500_000
ARMED: Final = "pi.tool#1/execute:commit.after"
"""Behind the commit that holds the result of the refund: another place than the one that the tour dies at."""
FORKED: Final = "pi.generation#4/request:effect.before"
LAST_VIEW: Final = "[view for view in Out.values() if type(view).__name__ == 'LabView'][-1]"
KEYS_OF_JUPYTER: Final = ("ArrowDown", "ArrowUp", "j", "k", "a", "b", "x", "c", "v", "d", "d", "m", "y", "Enter")
"""In command mode each of these selects, makes, changes or deletes a cell."""

READY: Final = """path => {
    const panel = window.jupyterapp?.shell?.currentWidget, session = panel?.sessionContext;
    return Boolean(panel?.context?.path === path && panel.context.isReady && panel.isVisible && session?.isReady
        && session.session?.kernel?.status === "idle" && panel.content.widgets.length);
}"""
RESTORED: Final = "async () => { await window.jupyterapp?.restored; return Boolean(window.jupyterapp); }"
OPENED: Final = """path => {
    const panel = window.jupyterapp?.shell?.currentWidget;
    return Boolean(panel?.context?.path === path && panel.context.isReady && panel.isVisible);
}"""
NO_KERNEL: Final = {"shouldStart": False, "canStart": False, "autoStartDefault": False}
NO_SESSION: Final = re.compile(
    r"reading 'kernel'\)\n *at \w+ \(http://127[.]0[.]0[.]1:\d+/lab/extensions/@jupyter-widgets/"
)
"""What the widgets' own extension throws wherever a notebook is opened without a kernel, whoever made its outputs."""
ERRORS: Final = """() => jupyterapp.shell.currentWidget.content.widgets
    .flatMap(({model}) => model.outputs?.toJSON() ?? []).filter(({output_type}) => output_type === "error")"""
"""A cell that failed ends the others that were to run."""
RAN: Final = """() => {
    const panel = jupyterapp.shell.currentWidget;
    const cells = panel.content.widgets.filter(cell => cell.model.type === "code");
    const errors = (ERRORS)();
    return panel.sessionContext.session?.kernel?.status === "idle" && (errors.length
        || cells.every(({model}) => model.executionCount !== null && model.executionState !== "running"));
}""".replace("ERRORS", ERRORS)
PYTHON: Final = """async code => {
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const future = kernel.requestExecute({code, store_history: false});
    let said = "";
    future.onIOPub = ({header, content}) => {
        if (header.msg_type === "stream" && content.name === "stdout") said += content.text;
        if (header.msg_type === "error") said += content.traceback.join("\\n");
    };
    await future.done;
    return said;
}"""
CELLS: Final = """() => {
    const {content} = jupyterapp.shell.currentWidget;
    return [content.activeCellIndex, content.widgets.map(({model}) => [model.type, model.sharedModel.source])];
}"""
SHOW_LAST: Final = """async () => {
    const {content} = jupyterapp.shell.currentWidget;
    const last = content.widgets.findLastIndex(cell => cell.model.type === "code");
    content.activeCellIndex = last;
    await content.scrollToItem(last, "start");
}"""
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
WATCH: Final = """([lab, selector]) => {
    const root = document.querySelectorAll(".pi-lab")[lab], said = () => root.querySelector(selector).textContent;
    const before = said();
    let began = null;
    const press = () => { began ??= performance.now(); };
    for (const kind of ["keydown", "pointerdown"]) addEventListener(kind, press, {capture: true, once: true});
    window.changed = new Promise(done => {
        const look = () => (said() === before ? requestAnimationFrame(look) : done(performance.now() - (began ?? 0)));
        look();
    });
}"""


# --- Driving --------------------------------------------------------------------------------------------------------


@dataclass
class Desk:
    """A page of JupyterLab, and what it did that it may not do."""

    page: Page
    server: labserver.Lab
    wrong: list[str] = field(default_factory=list)

    def until(self, what: str, asked: str, given: object = None) -> None:
        """Ask the page again and again: a notebook is ready much later than it looks."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                if self.page.evaluate(asked, given):
                    return
            except Error as error:
                if "context was destroyed" not in str(error) and "navigation" not in str(error):
                    raise
            self.page.wait_for_timeout(50)
        raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what}")

    def command(self, name: str, **given: object) -> None:
        """What a menu does."""
        self.page.evaluate("([name, given]) => jupyterapp.commands.execute(name, given)", [name, given])

    def open(self, name: str, *, kernel: bool = True) -> None:
        """A notebook, in a fresh workspace; with a kernel of its own, or without any."""
        place = f"lab/tree/{name}" if kernel else "lab"
        self.page.goto(f"{self.server.base}/{place}?reset&token={self.server.token}", wait_until="domcontentloaded")
        if not kernel:
            self.until("JupyterLab is there", RESTORED)
            self.command("docmanager:open", path=name, factory="Notebook", kernelPreference=NO_KERNEL)
        self.until(f"{name} is open", READY if kernel else OPENED, name)

    def end_kernels(self) -> None:
        header = labserver.authorization(self.server)
        with httpx.Client(base_url=self.server.base, headers=header, trust_env=False) as owner:
            for session in owner.get("/api/sessions").json():
                owner.delete(f"/api/sessions/{session['id']}").raise_for_status()

    def run_all(self) -> None:
        self.page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
        self.until("all cells ran", RAN)
        assert self.page.evaluate(ERRORS) == []

    def python(self, source: str) -> object:
        """The value of an expression in the kernel of this notebook, as JSON."""
        said: str = self.page.evaluate(PYTHON, f"import json as _json\nprint(_json.dumps({source}))")
        try:
            return json.loads(said)
        except ValueError:
            raise AssertionError(f"{source}\n{said}") from None

    def numbers(self, source: str) -> list[int]:
        found = self.python(source)
        assert isinstance(found, list)
        return [int(one) for one in found]

    def cells(self) -> object:
        """The active cell, and what every cell is."""
        return self.page.evaluate(CELLS)

    def saved(self, name: str) -> nbformat.NotebookNode:
        """Save, and read what is on disk then."""
        self.page.evaluate("() => jupyterapp.shell.currentWidget.context.save()")
        notebook: nbformat.NotebookNode = nbformat.read(self.server.folder / name, as_version=4)  # type: ignore[no-untyped-call]
        return notebook

    def dark(self, dark: bool) -> None:
        self.command("apputils:change-theme", theme=f"JupyterLab {'Dark' if dark else 'Light'}")
        self.until("the theme", "dark => document.body.dataset.jpThemeLight === String(!dark)", dark)

    def lab(self, n: int = 0) -> Lab:
        return Lab(self, n)


@dataclass(frozen=True)
class Lab:
    """The n-th lab on the page."""

    desk: Desk
    n: int

    @property
    def root(self) -> Locator:
        return self.desk.page.locator(".pi-lab").nth(self.n)

    def at(self, selector: str) -> Locator:
        return self.root.locator(selector)

    def key(self, name: str) -> Locator:
        return self.root.locator(f"[data-k='{name}']")

    def text(self, selector: str) -> str:
        return self.at(selector).first.inner_text()

    def moved(self, press: Callable[[], None], selector: str = ".eyebrow span") -> float:
        """Press, wait until that text is another one, and say how many milliseconds after the press it was."""
        self.desk.page.evaluate(WATCH, [self.n, selector])
        press()
        took: float = self.desk.page.evaluate("window.changed")
        return took

    def step(self) -> float:
        return self.moved(lambda: self.desk.page.keyboard.press("ArrowRight"))

    def jump(self, position: int) -> float:
        """A click on the slider, where that step is."""
        box = self.key("range").bounding_box()
        assert box is not None
        most = int(self.key("range").get_attribute("max") or 0)
        x = box["x"] + 7 + (box["width"] - 14) * position / most
        return self.moved(lambda: self.desk.page.mouse.click(x, box["y"] + box["height"] / 2))

    def said(self) -> dict[str, str]:
        """What stands there about this step."""
        claims = {"place": self.text(".eyebrow span"), "say": self.text(".say"), "verb": self.text(".verd .v").strip()}
        if self.at(".pvr").count():
            claims["predicted"] = self.at(".pvr dd").nth(0).inner_text()
            claims["happened"] = self.at(".pvr dd").nth(1).inner_text()
        return claims

    def really(self) -> dict[str, str]:
        """How often each effect was asked for, in the words of the page."""
        rows = self.at(".lt tbody tr").all()
        return {row.locator("th").inner_text(): row.locator("td.num").inner_text().strip() for row in rows}


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


# --- What the tests share -------------------------------------------------------------------------------------------


def notebook_of(*sources: str) -> nbformat.NotebookNode:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]  # type: ignore[no-untyped-call]
    made: nbformat.NotebookNode = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    return made


TWO: Final = (
    "%load_ext pidurable_nb",
    "refund = %pi lab refund\nrefund",
    f"desk = %pi lab support-desk --at {FORKED}\ndesk",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[labserver.Lab]:
    """Our JupyterLab, in folders of its own: nothing of the user's is read or written."""
    own = tmp_path_factory.mktemp("jupyter")
    names = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR", "LAB_SETTINGS_DIR", "LAB_WORKSPACES_DIR")
    folders = {name: own / name.lower() for name in names}
    for folder in folders.values():
        folder.mkdir()
    config = {"LabApp": {"expose_app_in_browser": True}}
    (folders["CONFIG_DIR"] / "jupyter_lab_config.json").write_text(json.dumps(config))
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in folders.items():
            patch.setenv(f"JUPYTER{'' if name.startswith('LAB') else '_'}{name}", str(folder))
        patch.setenv("IPYTHONDIR", str(own / "ipython"))
        patch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        with labserver.lab(own / "work") as running:
            nbformat.write(notebook_of(*TWO), running.folder / "two.ipynb")  # type: ignore[no-untyped-call]
            expect.set_options(timeout=PATIENCE_S * 1000)
            yield running
            expect.set_options(timeout=5000)


@pytest.fixture
def desk(browser: Browser, server: labserver.Lab) -> Iterator[Desk]:
    """A page of JupyterLab. An error in it, or a request that leaves this machine, fails the test."""
    context = browser.new_context(viewport={"width": 1500, "height": 1400})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_S * 1000)
    desk = Desk(page, server)

    def requested(request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.hostname != "127.0.0.1":
            desk.wrong.append(f"request: {request.url}")

    page.on("request", requested)
    page.on("pageerror", lambda error: desk.wrong.append(f"error: {error.stack or error}"))
    yield desk
    context.close()
    desk.end_kernels()
    assert desk.wrong == []


# --- The tests ------------------------------------------------------------------------------------------------------


def test_the_tour_ends_in_a_lab_that_says_at_every_step_what_python_says(desk: Desk, shots: Path) -> None:
    desk.open(labserver.TOUR)
    desk.run_all()
    desk.page.evaluate(SHOW_LAST)
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
    print(f"\nsteps {min(took):.0f} to {max(took):.0f} ms, jumps {jumped:.0f} and {back:.0f} ms")
    lab.root.screenshot(path=shots / "jupyterlab-tour.png")
    size = len(nbformat.writes(desk.saved(labserver.TOUR)).encode())  # type: ignore[no-untyped-call]
    print(f"the tour with its outputs: {size:,} bytes")
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


def test_two_labs_of_a_notebook_do_not_mix_and_keep_their_keys(desk: Desk, shots: Path) -> None:
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
    entries = desk.numbers(f"[one.id for one in desk._worker.call(lambda source: source.entries({fork}, 0, 60)).rows]")
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
    print(f"\nsteps {took[0]:.0f} and {took[1]:.0f} ms; first paint {desk.page.evaluate(PAINT):.0f} ms")
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
