"""Owns what users of the package test their own work with. Never imported by the product.

Importing it loads nothing, pytest neither: each name brings its room with it when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pidurable_nb import names_of

if TYPE_CHECKING:
    from pidurable_nb.testing.crash_point import CrashPoint
    from pidurable_nb.testing.storage_conformance import Check, Make, Reopening, checks, each_check
    from pidurable_nb.testing.swept import CrashSweep, assert_sweep, check_crash, sweep_scenario

__all__ = [
    "Check",
    "CrashPoint",
    "CrashSweep",
    "Make",
    "Reopening",
    "assert_sweep",
    "check_crash",
    "checks",
    "each_check",
    "sweep_scenario",
]

_ROOMS = {
    "Check": "pidurable_nb.testing.storage_conformance",
    "CrashPoint": "pidurable_nb.testing.crash_point",
    "CrashSweep": "pidurable_nb.testing.swept",
    "Make": "pidurable_nb.testing.storage_conformance",
    "Reopening": "pidurable_nb.testing.storage_conformance",
    "assert_sweep": "pidurable_nb.testing.swept",
    "check_crash": "pidurable_nb.testing.swept",
    "checks": "pidurable_nb.testing.storage_conformance",
    "each_check": "pidurable_nb.testing.storage_conformance",
    "sweep_scenario": "pidurable_nb.testing.swept",
}

__getattr__, __dir__ = names_of(__name__, _ROOMS)
