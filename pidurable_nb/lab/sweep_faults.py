"""Owns what faults say: every operation of a first life failed once, and what the store said and kept then."""

from __future__ import annotations

from pathlib import Path

from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.sweep_pieces import Faults, Sweeping
from pidurable_nb.lab.sweep_tally import Tally


def fault_pieces(scenario: Scenario, sweeping: Sweeping, folder: Path) -> tuple[Faults, ...]:
    """Every operation of a first life with every fault that it can meet, cut into pieces. `folder` is made."""
    return ()


def count_faults(scenario: Scenario, sweeping: Sweeping, piece: Faults, folder: Path) -> Tally:
    """What became of the lives that met these faults. `folder` is made."""
    return Tally()
