"""What a person sees and presses in a real JupyterLab: the tour from its first cell to the last step of its Lab.

Everything that a page claims is compared with what Python says in the same kernel. Times are printed, never asserted.
"""

from __future__ import annotations

import json
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

PATIENCE_S: Final = 75.0
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
RAN: Final = """() => {
    const panel = jupyterapp.shell.currentWidget;
    const cells = panel.content.widgets.filter(cell => cell.model.type === "code");
    return panel.sessionContext.session?.kernel?.status === "idle"
        && cells.every(({model}) => model.executionCount !== null && model.executionState !== "running");
}"""
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

    def open(self, name: str) -> None:
        """A notebook with its kernel, in a fresh workspace."""
        address = f"{self.server.base}/lab/tree/{name}?reset&token={self.server.token}"
        self.page.goto(address, wait_until="domcontentloaded")
        self.until(f"{name} has a kernel", READY, name)

    def run_all(self) -> None:
        self.page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
        self.until("all cells ran", RAN)

    def python(self, source: str) -> object:
        """The value of an expression in the kernel of this notebook, as JSON."""
        said: str = self.page.evaluate(PYTHON, f"import json as _json\nprint(_json.dumps({source}))")
        try:
            return json.loads(said)
        except ValueError:
            raise AssertionError(f"{source}\n{said}") from None

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
            yield running


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
    page.on("pageerror", lambda error: desk.wrong.append(f"error: {error}"))
    yield desk
    context.close()
    with httpx.Client(base_url=server.base, headers=labserver.authorization(server), trust_env=False) as owner:
        for session in owner.get("/api/sessions").json():
            owner.delete(f"/api/sessions/{session['id']}").raise_for_status()
    assert desk.wrong == []


# --- The tests ------------------------------------------------------------------------------------------------------


def test_x(desk: Desk, shots: Path) -> None:
    desk.open("two.ipynb")
    desk.run_all()
    expect(desk.page.locator(".pi-lab")).to_have_count(2, timeout=PATIENCE_S * 1000)
    lab = desk.lab(0)
    lab.key("next").focus()
    print(lab.step(), lab.said())
    desk.saved("two.ipynb")
    desk.page.evaluate("async () => { await jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }")
    desk.page.wait_for_timeout(2500)
    print("restart:", lab.said(), lab.key("next").is_disabled())
    if not lab.key("next").is_disabled():
        lab.key("next").focus()
        desk.page.keyboard.press("ArrowRight")
    desk.page.wait_for_timeout(5000)
    print("restart:", lab.said(), lab.key("next").is_disabled())
    desk.page.screenshot(path=shots / "restart.png")
    desk.page.evaluate("() => jupyterapp.shell.currentWidget.context.save()")
    desk.open("two.ipynb")
    desk.page.wait_for_timeout(4000)
    print("reopened with a kernel:", [o.inner_text()[:100] for o in desk.page.locator(".jp-OutputArea-output").all()])
    desk.page.screenshot(path=shots / "reopened.png")
    desk.page.evaluate("async () => { await jupyterapp.shell.currentWidget.sessionContext.shutdown(); }")
    desk.page.goto(f"{desk.server.base}/lab?reset", wait_until="domcontentloaded")
    desk.until("app", "() => Boolean(window.jupyterapp?.shell?.isEmpty !== undefined)")
    desk.page.wait_for_timeout(3000)
    desk.page.evaluate("""async () => { await jupyterapp.commands.execute('docmanager:open', {path: 'two.ipynb', factory: 'Notebook', kernelPreference: {shouldStart: false, autoStartDefault: false, canStart: false}}); }""")
    desk.page.wait_for_timeout(4000)
    print("no kernel:", [o.inner_text()[:100] for o in desk.page.locator(".jp-OutputArea-output").all()])
    desk.page.screenshot(path=shots / "nokernel.png")
    print(desk.wrong)
