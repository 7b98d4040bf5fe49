"""Owns `pidurable-nb lab`: JupyterLab on a copy of the tour, or one run of the tour through it. Changes no settings."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import time
import webbrowser
from argparse import ArgumentParser, Namespace
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Final

from pidurable_nb.cli.subcommand import Result, Subcommand
from pidurable_nb.ids import JsonObject

FOLDER: Final = "pidurable_nb-lab"
CHECK_S: Final = 50.0


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--folder", type=Path, help=f"where the copy of the tour and its stores go; default: ~/{FOLDER}"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address and open nothing")
    parser.add_argument(
        "--check", action="store_true", help="run the tour once through the server, in a folder of its own, and end"
    )


def _run(options: Namespace) -> Result:
    from pidurable_nb.notebook.server.labserver import check_installed  # Jupyter is optional: its absence is one line

    check_installed()
    with _terminated_as_interrupted():
        if not options.check:
            return _open(options.folder or Path.home() / FOLDER, browser=not options.no_browser)
        if options.folder is not None:
            return _check(options.folder)
        with tempfile.TemporaryDirectory(prefix="pidurable-check-", ignore_cleanup_errors=True) as folder:
            return _check(Path(folder))


def _open(folder: Path, *, browser: bool) -> Result:
    from pidurable_nb.notebook.server.labserver import LabFailed, find_tour, has_display, lab

    began = time.monotonic()
    with lab(folder.expanduser().resolve()) as running:
        _say(f"JupyterLab on {running.tour}")
        _say(f"  {running.url}")
        if running.tour.read_bytes() != find_tour().read_bytes():
            _say("That copy is yours, and differs from the tour as it was shipped; remove it for a fresh one.")
        _say("Ctrl-C ends it.")
        if browser and has_display():
            webbrowser.open(running.url)
        with contextlib.suppress(KeyboardInterrupt):
            if running.process.wait() != 0:
                raise LabFailed(f"JupyterLab ended by itself, with status {running.process.returncode}")
    seconds = round(time.monotonic() - began, 1)
    json: JsonObject = {"ok": True, "url": running.url, "folder": str(running.folder), "seconds": seconds}
    return Result(json=json, text=lambda: f"ended; your notebook is {running.tour}")


def _check(folder: Path) -> Result:
    from pidurable_nb.notebook.server.labcheck import run_through
    from pidurable_nb.notebook.server.labserver import lab

    began = time.monotonic()
    with lab(folder.expanduser().resolve()) as running:
        _say(f"JupyterLab answers at {running.base}")
        checked = run_through(running, timeout_s=CHECK_S, progress=_say)
    seconds = round(time.monotonic() - began, 1)
    ok = checked.failure is None
    json: JsonObject = {"ok": ok, "cells": checked.cells, "failure": checked.failure, "seconds": seconds}
    said = f"the tour ran: {checked.cells} cells" if ok else f"the tour failed in {checked.failure}"
    return Result(json=json, text=lambda: f"{said}, {seconds} s", ok=ok)


@contextlib.contextmanager
def _terminated_as_interrupted() -> Generator[None]:
    """A polite end by a signal ends the server too, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: nobody sends it a signal
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


LAB = Subcommand(configure=_configure, run=_run)
