"""Owns naming a scenario on the command line. Never runs one."""

from __future__ import annotations

from argparse import ArgumentTypeError

from pidurable_nb.lab.scenario import Scenario, UnknownScenario, find


def named_scenario(text: str) -> Scenario:
    """The scenario of that name. Raises ArgumentTypeError, which becomes wrong usage."""
    try:
        return find(text)
    except UnknownScenario as error:
        raise ArgumentTypeError(str(error)) from error
