"""Owns the subcommands about a sweep: what may be said of one, and its names. What they do is `sweep_cells`'."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pidurable_nb.lab.dying.point import BadPoint
from pidurable_nb.notebook.commands.command import Command
from pidurable_nb.notebook.commands.lab import names
from pidurable_nb.notebook.kernel.desk import Desk
from pidurable_nb.notebook.views.markup import View

if TYPE_CHECKING:
    from pidurable_nb.lab.sweeping.points import SweepKind


def _configure_sweep(parser: ArgumentParser) -> None:
    parser.set_defaults(parser=parser)
    parser.add_argument(
        "--kind", metavar="KINDS", type=_kinds, default=("freeze",),
        help="some of freeze, kill, power, fault, by commas; default: freeze",
    )  # fmt: skip
    parser.add_argument("--durability", choices=("kill", "barrier", "power"), help="default: %%config Pi.durability")
    parser.add_argument("--second", action="store_true", help="crash every recovery again, at every point of it")
    parser.add_argument("--seed", metavar="N", type=_count, default=1, help="decides the order of what is ready")
    parser.add_argument(
        "--processes", metavar="N", type=_count, help="work in so many children; 1 works in this kernel"
    )
    parser.add_argument("--stop", action="store_true", help="stop at the first violation")
    parser.add_argument("--save", metavar="FILE", type=Path, help="write all that was found to one file")
    parser.add_argument("--load", metavar="FILE", type=Path, help="show a sweep that somebody saved, and run nothing")


def _kinds(text: str) -> tuple[SweepKind, ...]:
    from pidurable_nb.lab.sweeping.points import kinds_of

    try:
        return kinds_of(text)
    except BadPoint as error:
        raise ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no number; write 1, 2, …")
    return int(text)


def _sweep(desk: Desk, options: Namespace) -> View:
    from pidurable_nb.notebook.commands.sweep_cells import sweep_cell  # the laboratory loads with the first sweep

    return sweep_cell(desk, options)


def _configure_witness(parser: ArgumentParser) -> None:
    parser.add_argument("which", metavar="N", help="the number of a story of the sweep shown last, or its class")


def _witness(desk: Desk, options: Namespace) -> View:
    from pidurable_nb.notebook.commands.sweep_cells import witness_cell

    return witness_cell(desk, options)


def _stories_at(desk: Desk, fragment: str) -> Sequence[str]:
    if desk.swept is None:
        return ()
    stories = desk.swept.stories
    return [*(str(n) for n in range(1, len(stories) + 1)), *(each.kind for each in stories)]


SWEEP_COMMANDS: Final = (
    Command(
        name="sweep", help="crash a scenario at every point, and count what came of it: %%pi sweep refund --kind kill",
        configure=_configure_sweep, run=_sweep, tail="[SCENARIO or EXPRESSION]",
        completes={"tail": lambda desk, fragment: names(desk)},
    ),
    Command(
        name="witness", help="lay out a story of the sweep shown last, for %%pi why and %%pi step",
        configure=_configure_witness, run=_witness, completes={"which": _stories_at},
    ),
)  # fmt: skip
