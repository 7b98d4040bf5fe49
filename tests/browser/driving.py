"""Driving a real JupyterLab in a browser: its server in folders of its own, a notebook, a lab in it.

Owns how to wait for what only looks ready, and nothing that is expected of it. Times are milliseconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import nbformat
import pytest
from playwright.sync_api import Browser, Error, Locator, Page, Request, expect

from pidurable_nb.notebook.server import labserver

PATIENCE_S: Final = 60.0
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
SHOW_LAB: Final = """async () => {
    const {content} = jupyterapp.shell.currentWidget;
    const found = content.widgets.findIndex(({model}) => model.sharedModel.source.includes("%pi lab "));
    content.activeCellIndex = found;
    await content.scrollToItem(found, "start");
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


def notebook_of(*sources: str) -> nbformat.NotebookNode:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]  # type: ignore[no-untyped-call]
    made: nbformat.NotebookNode = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    return made


@contextmanager
def jupyterlab(own: Path) -> Generator[labserver.Lab, None, None]:
    """Our JupyterLab on the tour, in folders below `own`: nothing of the user's is read or written."""
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
            expect.set_options(timeout=PATIENCE_S * 1000)
            yield running
            expect.set_options(timeout=5000)


@contextmanager
def desk_in(
    browser: Browser, server: labserver.Lab, *, width: int = 1500, height: int = 1400, scale: float = 1
) -> Generator[Desk, None, None]:
    """A page of JupyterLab. An error in it, or a request that leaves this machine, fails at the end."""
    context = browser.new_context(viewport={"width": width, "height": height}, device_scale_factor=scale)
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
