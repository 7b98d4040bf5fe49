"""Owns which subcommands there are, in the order in which help lists them. Never imports one before it is asked for."""

from __future__ import annotations

from typing import Final

from pidurable_nb.cli.subcommand import Listed, Subcommand


def _demo() -> Subcommand:
    from pidurable_nb.cli.demo import DEMO

    return DEMO


def _inspect() -> Subcommand:
    from pidurable_nb.cli.inspect import INSPECT

    return INSPECT


def _why() -> Subcommand:
    from pidurable_nb.cli.why import WHY

    return WHY


def _recover() -> Subcommand:
    from pidurable_nb.cli.recover import RECOVER

    return RECOVER


def _sweep() -> Subcommand:
    from pidurable_nb.cli.sweep import SWEEP

    return SWEEP


def _explore() -> Subcommand:
    from pidurable_nb.cli.explore import EXPLORE

    return EXPLORE


def _lab() -> Subcommand:
    from pidurable_nb.cli.lab import LAB

    return LAB


def _doctor() -> Subcommand:
    from pidurable_nb.cli.doctor import DOCTOR

    return DOCTOR


TABLE: Final[tuple[Listed, ...]] = (
    Listed(name="demo", help="kills the built-in scenarios for real, recovers them, and reports", load=_demo),
    Listed(name="lab", help="opens JupyterLab on a copy of the tour", load=_lab),
    Listed(name="inspect", help="what is in a store", load=_inspect),
    Listed(name="why", help="what recovery will do with a store, and by which law", load=_why),
    Listed(name="recover", help="recovers a copy of a store, step by step", load=_recover),
    Listed(name="sweep", help="crashes a scenario at every point, and counts what became of it", load=_sweep),
    Listed(name="explore", help="runs a scenario in every order, with any number of crashes", load=_explore),
    Listed(name="doctor", help="what works on this machine, and what each durability keeps", load=_doctor),
)
