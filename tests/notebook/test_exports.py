"""Where no page is live: an export by nbconvert, a saved notebook and a terminal say the same as one that is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import nbformat
import pytest

from tests.notebook.every_view import EVERY_VIEW, every_view_run, exported, missing

pytestmark = pytest.mark.slow

LARGEST: Final = 500_000
LIVE: Final = "application/vnd.jupyter.widget-view+json"
LOADS: Final = ("src", "srcset", "href", "xlink:href", "data", "poster", "action", "background")
UNSEEN: Final = ("style", "script", "head", "title")
TERMINAL: Final = """
import json, sys
from IPython.terminal.interactiveshell import TerminalInteractiveShell
from traitlets.config import Config

config = Config()
config.HistoryManager.enabled = False
config.TerminalInteractiveShell.simple_prompt = True
shell = TerminalInteractiveShell.instance(config=config)
for cell in json.load(sys.stdin):
    result = shell.run_cell(cell)
    print("\\0", end="", flush=True)
    result.raise_error()
"""
"""A terminal's IPython that gets its cells one by one, and ends as one that was left by `exit`."""


@dataclass
class Page(HTMLParser):
    """What a page says, and what it would load."""

    source: str
    said: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    _within: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.source)
        self.close()

    @property
    def text(self) -> str:
        return " ".join("".join(self.said).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [
            f"{tag} {name}={value[:200]}"
            for name, value in attrs
            if name in LOADS and value and not value.startswith(("#", "data:"))
        ]
        self._within += [tag] if tag in UNSEEN else []
        self.said.append(" " if tag in ("td", "th", "tr", "p", "div", "li", "ol", "ul", "pre", "text", "dd") else "")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._within:
            self._within.remove(tag)

    def handle_data(self, data: str) -> None:
        if not self._within:
            self.said.append(data)
        elif "style" in self._within:
            self.loads += [
                f"style {found}" for found in re.findall(r"url\((?!['\"]?data:).{0,80}|@import.{0,80}", data)
            ]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    """A notebook with every kind of view, run once."""
    return every_view_run(tmp_path_factory.mktemp("exports"))


def cells_of(page: str) -> list[str]:
    """The markup of each code cell of an exported page."""
    return re.split(r'<div class="[^"]*\bjp-CodeCell\b', page)[1:]


def test_an_exported_page_says_what_every_view_says(notebook: nbformat.NotebookNode) -> None:
    cells = cells_of(exported(notebook))
    assert len(cells) == len(EVERY_VIEW)
    left_out = {}
    for shown, cell in zip(EVERY_VIEW, cells, strict=True):
        below = cell.partition("jp-Cell-outputWrapper")[2].partition(">")[2]
        left_out[shown.cell] = missing(shown, Page(below).text)
    assert {cell: facts for cell, facts in left_out.items() if facts} == {}


def test_an_exported_page_loads_nothing_for_what_is_ours(notebook: nbformat.NotebookNode) -> None:
    empty = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]  # untyped
    frame = Page(exported(empty)).loads  # what nbconvert itself loads for mathematics
    assert Page(exported(notebook)).loads == frame
    for output in (output for cell in notebook.cells for output in cell.outputs):
        for form in ("text/html", "image/svg+xml"):
            markup = output.get("data", {}).get(form, "")
            assert Page(markup).loads == []
            assert "<script" not in markup


def test_a_saved_notebook_is_small_and_keeps_a_form_of_every_view_that_needs_no_kernel(
    notebook: nbformat.NotebookNode,
) -> None:
    written: str = nbformat.writes(notebook)  # type: ignore[no-untyped-call]  # untyped
    assert len(written.encode()) < LARGEST
    assert "widgets" not in notebook.metadata
    live = 0
    for shown, cell in zip(EVERY_VIEW, notebook.cells, strict=True):
        saved = []
        for output in cell.outputs:
            assert output.output_type != "error"
            data: Mapping[str, str] = output.get("data", {"text/plain": output.get("text", "")})
            live += LIVE in data
            assert LIVE not in data or not data["text/plain"], "a page without the kernel shows no other form of it"
            saved.append(data.get("text/plain", ""))
        assert missing(shown, "\n".join(saved)) == [], shown.cell
    assert live == 2, "the lab and the prediction have a live form beside it"


def test_a_terminal_says_the_same_facts_in_plain_text_and_is_left_in_order(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", TERMINAL], input=json.dumps([shown.cell for shown in EVERY_VIEW[:-1]]), text=True,
        capture_output=True, timeout=110, check=False,
        env={**os.environ, "PIDURABLE_NB_STUDY": str(tmp_path / "study.sqlite"), "TERM": "dumb", "NO_COLOR": "1"},
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, ""), f"{ran.stdout[-2000:]}\n{ran.stderr}"
    *said, left = ran.stdout.split("\0")
    assert left.strip() == "", "an open store, a walk and a lab are closed without a word"
    for shown, text in zip(EVERY_VIEW, said, strict=False):
        assert missing(shown, " ".join(text.split()) + text) == [], f"{shown.cell}\n{text}"
        assert "<div" not in text
        assert "<svg" not in text
