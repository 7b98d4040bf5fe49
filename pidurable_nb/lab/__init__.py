"""Owns the laboratory: looking into stores, crashing them on purpose, and saying why recovery does what it does.

    from pidurable_nb.lab import builtin, points, sweep

    print(sweep(builtin("refund"), kinds=("freeze", "power")).text())

Never knows Jupyter, and decides nothing that the engine decides. Importing it loads nothing; each name loads when it
is used. Exploration of orders is `pidurable_nb.lab.explore`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pidurable_nb import names_of

if TYPE_CHECKING:
    from pidurable_nb.lab.dying.crash_points import PointInfo, points
    from pidurable_nb.lab.dying.point import Point
    from pidurable_nb.lab.scenario import EffectPolicy, Facts, Scenario, builtin, builtins, outcomes_are, unanswered
    from pidurable_nb.lab.sweeping.replay import Replayed, replay
    from pidurable_nb.lab.sweeping.result import SweepResult, Violation
    from pidurable_nb.lab.sweeping.sweep import Progress, freeze_equals_kill, sweep
    from pidurable_nb.lab.sweeping.tally import Witness
    from pidurable_nb.lab.walking.stepper import Stepper

__all__ = [
    "EffectPolicy",
    "Facts",
    "Point",
    "PointInfo",
    "Progress",
    "Replayed",
    "Scenario",
    "Stepper",
    "SweepResult",
    "Violation",
    "Witness",
    "builtin",
    "builtins",
    "freeze_equals_kill",
    "outcomes_are",
    "points",
    "replay",
    "sweep",
    "unanswered",
]

_ROOMS = {
    "EffectPolicy": "pidurable_nb.lab.scenario",
    "Facts": "pidurable_nb.lab.scenario",
    "Point": "pidurable_nb.lab.dying.point",
    "PointInfo": "pidurable_nb.lab.dying.crash_points",
    "Progress": "pidurable_nb.lab.sweeping.sweep",
    "Replayed": "pidurable_nb.lab.sweeping.replay",
    "Scenario": "pidurable_nb.lab.scenario",
    "Stepper": "pidurable_nb.lab.walking.stepper",
    "SweepResult": "pidurable_nb.lab.sweeping.result",
    "Violation": "pidurable_nb.lab.sweeping.result",
    "Witness": "pidurable_nb.lab.sweeping.tally",
    "builtin": "pidurable_nb.lab.scenario",
    "builtins": "pidurable_nb.lab.scenario",
    "freeze_equals_kill": "pidurable_nb.lab.sweeping.sweep",
    "outcomes_are": "pidurable_nb.lab.scenario",
    "points": "pidurable_nb.lab.dying.crash_points",
    "replay": "pidurable_nb.lab.sweeping.replay",
    "sweep": "pidurable_nb.lab.sweeping.sweep",
    "unanswered": "pidurable_nb.lab.scenario",
}
"""Where each name lives."""

__getattr__, __dir__ = names_of(__name__, _ROOMS)
