"""Owns exploration: every order of a scenario's steps and any number of crashes, or as many seeded orders as wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pidurable_nb import names_of

if TYPE_CHECKING:
    from pidurable_nb.lab.explore.orders import (
        Explored,
        Found,
        NoSuchChoice,
        Seeded,
        Told,
        TooManyTasks,
        Unsound,
        closure,
        replay,
        seeds,
    )

__all__ = [
    "Explored",
    "Found",
    "NoSuchChoice",
    "Seeded",
    "Told",
    "TooManyTasks",
    "Unsound",
    "closure",
    "replay",
    "seeds",
]

__getattr__, __dir__ = names_of(__name__, dict.fromkeys(__all__, "pidurable_nb.lab.explore.orders"))
