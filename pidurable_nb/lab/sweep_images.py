"""Owns what derived images say: each opened and checked, and every different state among them recovered from once."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.sweep_pieces import Images, Sweeping
from pidurable_nb.lab.sweep_tally import Tally


def image_pieces(
    scenario: Scenario, sweeping: Sweeping, kind: Literal["kill", "power"], folder: Path
) -> tuple[Images, ...]:
    """The operations of a first life, cut into ranges. `folder` is made."""
    return ()


def count_images(scenario: Scenario, sweeping: Sweeping, piece: Images, folder: Path) -> Tally:
    """What became of the images of a range. `folder` is made."""
    return Tally()
