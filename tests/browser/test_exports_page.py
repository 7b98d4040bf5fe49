"""An exported notebook in a browser without a network: every view is there to read, and none asks for anything."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, Request

from tests.notebook.every_view import EVERY_VIEW, every_view_run, exported, missing

pytestmark = pytest.mark.slow


def test_an_exported_page_is_whole_offline(browser: Browser, tmp_path: Path, shots: Path) -> None:
    (tmp_path / "work").mkdir()
    file, frame = tmp_path / "export.html", tmp_path / "frame.html"
    file.write_text(exported(every_view_run(tmp_path / "work")), encoding="utf-8")
    empty = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]  # untyped
    frame.write_text(exported(empty), encoding="utf-8")
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 1200})
    asked = {opened: list[str]() for opened in (frame, file)}
    page = context.new_page()
    for opened, seen in asked.items():

        def requested(request: Request, seen: list[str] = seen) -> None:
            seen.append(request.url)

        page.on("request", requested)
        page.goto(opened.as_uri(), wait_until="load")
        page.remove_listener("request", requested)
        assert seen.pop(0) == opened.as_uri()
    assert asked[file] == asked[frame], "nothing but what nbconvert itself asks for"
    left_out = {}
    for shown, cell in zip(EVERY_VIEW, page.locator(".jp-CodeCell").all(), strict=True):
        below = cell.locator(".jp-OutputArea")
        left_out[shown.cell] = missing(shown, " ".join(below.inner_text().split()) if below.count() else "")
    assert {cell: facts for cell, facts in left_out.items() if facts} == {}
    page.screenshot(path=shots / "exported.png", full_page=True)
    context.close()
