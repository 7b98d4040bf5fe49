"""Owns naming a scenario on the command line. Never runs one."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError

from pidurable_nb.lab.scenario import Scenario, UnknownScenario, find


def named_scenario(text: str) -> Scenario:
    """The scenario of that name. A module is looked for in the working folder first, as `python -m` does.

    Raises ArgumentTypeError, which becomes wrong usage.
    """
    here = os.getcwd()
    if ":" in text and not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    try:
        return find(text)
    except UnknownScenario as error:
        raise ArgumentTypeError(str(error)) from error
