"""The pictures of the README are those of today's product: what was on them is what it still says."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest

from pidurable_nb.lab.scenario import around, builtin
from pidurable_nb.lab.scene.source import ScenarioSource
from pidurable_nb.lab.sweeping.sweep import sweep

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "notebooks" / "images"
AGAIN = "the pictures are older than the product: run `make pictures`, and look at them"


def test_every_picture_is_shown_and_every_picture_that_is_shown_is_there() -> None:
    shown = set(re.findall(r"notebooks/images/([\w.-]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert shown == {path.name for path in IMAGES.iterdir()} - {"pictures.json"}
    assert all((IMAGES / name).stat().st_size < 600_000 for name in shown)


def test_the_lab_says_today_what_its_picture_says() -> None:
    pictured = json.loads((IMAGES / "pictures.json").read_text(encoding="utf-8"))["lab"]
    scenario = builtin("refund")
    with around(scenario), ScenarioSource(scenario) as source:
        step = source.next().step
        while step.verb != pictured["verb"]:
            step = source.next().step
        said = {"say": step.say, "verb": step.verb, "predicted": step.predicted, "happened": step.happened}
    assert {**pictured, **said} == pictured, AGAIN
    assert pictured["place"] == f"Step {step.n}", AGAIN


@pytest.mark.slow
def test_the_picture_of_a_sweep_is_what_that_sweep_draws() -> None:
    drawn = sweep(builtin("two-orders")).picture()
    kept = (IMAGES / "sweep.svg").read_text(encoding="utf-8")
    assert re.sub(r"SQLite \d+\.\d+\.\d+", f"SQLite {sqlite3.sqlite_version}", kept) == drawn, AGAIN
