"""The tour runs from an empty folder to its last cell, and its cells show what its text promises."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TOUR = Path(__file__).parents[2] / "notebooks" / "00_tour.ipynb"


def read() -> nbformat.NotebookNode:
    notebook: nbformat.NotebookNode = nbformat.read(TOUR, as_version=4)  # type: ignore[no-untyped-call]  # untyped
    return notebook


def run() -> nbformat.NotebookNode:
    """The tour with its outputs, run in the current folder."""
    notebook = read()
    client = NotebookClient(
        notebook, timeout=60, kernel_name="python3", store_widget_state=False,
        resources={"metadata": {"path": os.getcwd()}},
    )  # fmt: skip
    client.execute()
    return notebook


def test_the_tour_is_short_saved_without_outputs_and_kills_no_kernel() -> None:
    notebook = read()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert 5 <= len(cells) <= 11
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    assert not any("--kernel" in cell.source for cell in cells)
    assert not any(word in TOUR.read_text() for word in ("http:", "https:", str(Path.home())))


@pytest.mark.slow
def test_the_tour_runs_twice_in_one_folder_and_shows_what_it_says() -> None:
    run()
    notebook = run()
    shown = [text_of(cell) for cell in notebook.cells if cell.cell_type == "code"]
    lab, _, ran, task, _, killed, why, step, recovered, orders, checkout = shown
    assert "tick 5" in ran
    assert "[completed]  <- here, terminal" in task
    assert "Killed by SIGKILL" in killed
    assert "tick 1 / tick 2 / tick 3" in killed
    assert "RERUN" in why
    assert "T7 T3 M3" in why
    assert "state.checkpoint.n: 3 → 4" in step
    assert "and it printed [4, 5]" in recovered
    assert "everything was as predicted" in recovered
    assert "print tick 3: asked 1 in all, 0 of them in this recovery" in recovered
    assert "mail Ada: asked 2 in all" in orders
    assert "everything was as predicted" in checkout
    assert "refund 1: asked 1 in all, 1 of them in this recovery, applied 1" in checkout
    assert "refund.sqlite   killed by SIGKILL at pi.tool#1/execute:effect.after" in lab
    size = len(nbformat.writes(notebook))  # type: ignore[no-untyped-call]  # untyped
    assert size < 200_000


def text_of(cell: nbformat.NotebookNode) -> str:
    """What a cell printed and showed, as plain text."""
    parts = []
    for output in cell.outputs:
        assert output.output_type != "error", output
        parts.append(output.text if output.output_type == "stream" else output.data.get("text/plain", ""))
    return "\n".join(parts)
