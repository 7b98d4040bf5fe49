"""What a person sees in a real Notebook 7: the tour runs from its first cell to its Lab, and the Lab is stepped."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Error, Page, Request, expect

from pidurable_nb.notebook.server import labserver
from tests.browser.driving import RAN, READY, SHOW_LAB

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # a server, a browser and the whole tour

PATIENCE_S: Final = 75.0
SAID: Final = {
    "%pi kill ticker": "Killed by SIGKILL",
    "%pi why": "RERUN",
    "recovery = %pi recover": "and it printed [4, 5]",
    "%pi kill checkout": "everything was as predicted",
}
"""How a cell of the tour begins, and what stands below it."""
SHOW: Final = """async source => {
    const {content} = jupyterapp.shell.currentWidget;
    const at = content.widgets.findIndex(({model}) => model.sharedModel.source.startsWith(source));
    content.activeCellIndex = at;
    await content.scrollToItem(at, "start");
}"""
"""A cell that is far away from what is seen is not on the page."""


@dataclass(frozen=True)
class Server:
    """A running Notebook 7 with the tour in its folder."""

    base: str
    token: str

    def answers(self) -> bool:
        try:
            asked = f"{self.base}/api/status?token={self.token}"
            return httpx.get(asked, timeout=2, trust_env=False).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Notebook 7 in folders of its own: nothing of the user's is read or written."""
    own = tmp_path_factory.mktemp("notebook7")
    folders = {f"JUPYTER_{name}_DIR": own / name.lower() for name in ("CONFIG", "DATA", "RUNTIME")}
    for folder in folders.values():
        folder.mkdir()
    labserver.lay_out(own / "work")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    served = Server(f"http://127.0.0.1:{port}", secrets.token_urlsafe(24))
    options = {
        "ServerApp.ip": "127.0.0.1", "ServerApp.port": port, "ServerApp.port_retries": 0,
        "ServerApp.root_dir": str(own / "work"), "ServerApp.allow_root": True, "ServerApp.open_browser": False,
        "JupyterNotebookApp.expose_app_in_browser": True,
    }  # fmt: skip
    environment = {
        **os.environ, **{name: str(folder) for name, folder in folders.items()}, "IPYTHONDIR": str(own / "ipython"),
        "JUPYTERLAB_SETTINGS_DIR": str(own / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(own / "workspaces"),
        "JUPYTER_TOKEN": served.token, "JUPYTER_PREFER_ENV_PATH": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }  # fmt: skip
    with (own / "log").open("wb") as log:
        command = [sys.executable, "-m", "notebook", *(f"--{name}={value}" for name, value in options.items())]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    end = time.monotonic() + PATIENCE_S
    try:
        while not served.answers():
            assert process.poll() is None, f"Notebook ended:\n{(own / 'log').read_text()}"
            assert time.monotonic() < end, f"Notebook did not come up:\n{(own / 'log').read_text()}"
            time.sleep(0.1)
        yield served
    finally:
        process.terminate()
        process.wait(30)


def until(page: Page, what: str, asked: str, given: object = None) -> None:
    """Ask the page again and again: a notebook is ready much later than it looks."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            if page.evaluate(asked, given):
                return
        except Error as error:
            if "context was destroyed" not in str(error) and "navigation" not in str(error):
                raise
        page.wait_for_timeout(50)
    raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what}")


def test_the_tour_runs_in_notebook_7_and_its_lab_steps(browser: Browser, server: Server, shots: Path) -> None:
    context = browser.new_context(viewport={"width": 1500, "height": 1400})
    page, wrong = context.new_page(), list[str]()

    def requested(request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.hostname != "127.0.0.1":
            wrong.append(f"request: {request.url}")

    def raised(error: Error) -> None:
        places = re.findall(r"(?:http|blob)\S+", error.stack or "")
        if not places or any(not place.startswith(f"{server.base}/static/notebook/") for place in places):
            wrong.append(f"error: {error.stack}")  # one of Notebook's own code alone is not ours

    page.on("request", requested)
    page.on("pageerror", raised)
    page.goto(f"{server.base}/notebooks/{labserver.TOUR}?token={server.token}", wait_until="domcontentloaded")
    until(page, "the tour has a kernel", READY, labserver.TOUR)
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    until(page, "all cells ran", RAN)
    for source, fact in SAID.items():
        page.evaluate(SHOW, source)
        expect(page.get_by_text(fact).locator("visible=true").first).to_be_visible(timeout=PATIENCE_S * 1000)
    expect(page.locator("[data-mime-type='application/vnd.jupyter.stderr'], .jp-RenderedError")).to_have_count(0)
    page.evaluate(SHOW_LAB)
    lab = page.locator(".pi-lab")
    expect(lab).to_be_visible(timeout=PATIENCE_S * 1000)
    expect(page.locator(".pi-lab-saved")).to_be_hidden()
    expect(lab.locator(".eyebrow span").first).to_have_text("Before any step")
    lab.locator("[data-k='next']").focus()
    page.keyboard.press("ArrowRight")
    expect(lab.locator(".eyebrow span").first).to_contain_text("Step 1", timeout=PATIENCE_S * 1000)
    page.screenshot(path=shots / "notebook7-tour.png")
    context.close()
    assert wrong == []
