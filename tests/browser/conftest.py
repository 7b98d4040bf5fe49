"""What the tests of a page share: one chromium for the run, a server on loopback, and a page that watches itself.

Owns finding the browser. Never skips where there is none: what people see is as much a promise as the rest.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Playwright, Request, sync_playwright

from tests.browser.seat import Seat, Seats

ROOT: Final = Path(__file__).resolve().parents[2]
PLACES: Final = {
    "/page/": ROOT / "tests/browser/page",
    "/scenes/": ROOT / "fixtures/scenes",
    "/": ROOT / "pidurable_nb/notebook/labview/page",
}
"""What the server shows, by the beginning of a path."""
FLAGS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


FIGURES: Final = list[str]()
"""What was measured on the way. Nothing is asserted of it: it is printed at the end, to be looked at."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was measured, whether anybody asked for output or not."""
    if FIGURES:
        terminalreporter.section("measured in a browser, not asserted")
        for figure in FIGURES:
            terminalreporter.line(figure)


@pytest.fixture
def measured() -> Callable[[str], None]:
    """Note a figure for the end of the run."""
    return FIGURES.append


def chromium_of(playwright: Playwright) -> str:
    """The browser to use: playwright's own, else the system's. Fails where there is none."""
    own = Path(playwright.chromium.executable_path)
    if own.exists():
        return str(own)
    found = next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
    assert found is not None, (
        "no chromium is here: run `make test`, which installs one, or `playwright install chromium`"
    )
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One chromium for all tests of this run, with a profile of its own."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium_of(playwright), args=list(FLAGS))
        yield running
        running.close()


class Files(SimpleHTTPRequestHandler):
    """Answers with the files of `PLACES`, and says nothing on standard error."""

    protocol_version = "HTTP/1.1"

    def translate_path(self, path: str) -> str:
        asked = urlsplit(path).path
        if asked == "/":
            asked = "/page/index.html"
        start = next(start for start in PLACES if asked.startswith(start))
        return str(PLACES[start] / Path(asked.removeprefix(start)).name)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the page is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(ROOT)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def opened(
    browser: Browser, address: str, *, width: int = 1280, dark: bool = False, still: bool = False, forced: bool = False
) -> Seat:
    """A page of its own, that notes errors, dialogs and every request that leaves this machine."""
    context = browser.new_context(
        viewport={"width": width, "height": 1200},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce" if still else "no-preference",
        forced_colors="active" if forced else "none",
    )
    page = context.new_page()
    seat = Seat(page)

    def requested(request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.hostname != "127.0.0.1":
            seat.wrong.append(f"request: {request.url}")

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            seat.wrong.append(f"console: {message.text}")

    def asked(dialog: Dialog) -> None:
        seat.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("pageerror", lambda error: seat.wrong.append(f"error: {error}"))
    page.on("dialog", asked)
    page.on("request", requested)
    page.on("console", said)
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    return seat


@pytest.fixture
def seats(browser: Browser, address: str) -> Iterator[Seats]:
    """Pages without a lab, by width, theme, motion and forced colours. Whatever one does wrong fails the test."""
    taken = []

    def take(*, width: int = 1280, dark: bool = False, still: bool = False, forced: bool = False) -> Seat:
        taken.append(opened(browser, address, width=width, dark=dark, still=still, forced=forced))
        return taken[-1]

    yield take
    for one in taken:
        one.page.context.close()
    assert [wrong for one in taken for wrong in one.wrong] == []


@pytest.fixture
def seat(seats: Seats) -> Seat:
    """A light page without a lab, 1280 wide."""
    return seats()


@pytest.fixture
def shots() -> Path:
    """Where pictures of what the tests saw are kept, to be looked at: `build/shots`."""
    folder = ROOT / "build" / "shots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
