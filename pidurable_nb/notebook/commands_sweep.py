"""Owns the subcommands about a sweep: running or loading one, and laying out a story of it.

Nothing that is open here is touched: every life of a sweep has a store and a ledger of its own.
"""

from __future__ import annotations

import os
import re
import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

from IPython.core.error import UsageError

from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.sweeping.points import SweepKind
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.sweep import Progress
from pidurable_nb.notebook.asking import Screen
from pidurable_nb.notebook.command import Command
from pidurable_nb.notebook.commands_lab import chosen, names
from pidurable_nb.notebook.deaths import CELL
from pidurable_nb.notebook.desk import Desk
from pidurable_nb.notebook.markup import View
from pidurable_nb.notebook.stepping import Walking
from pidurable_nb.notebook.sweeping import Story, Swept, Wanted, lay_out, run
from pidurable_nb.notebook.sweeps import ProgressView, SweepView, WitnessView

_KINDS: Final[dict[str, SweepKind]] = {kind: kind for kind in get_args(SweepKind)}
_MOST_PROCESSES: Final = 8
_BEHIND: Final = re.compile(r"\s--[a-z]")
"""Where options begin that stand behind the scenario."""


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
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in _KINDS:
            raise ArgumentTypeError(f"a sweep cannot crash by {word!r}; write some of {','.join(_KINDS)}")
    return tuple(dict.fromkeys(_KINDS[word] for word in words))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no number; write 1, 2, …")
    return int(text)


def _sweep(desk: Desk, options: Namespace) -> SweepView:
    tail = _options_behind(options)
    if options.load is not None:
        if tail:
            raise UsageError("%pi sweep: --load shows what was saved; name no scenario with it")
        return _shown(desk, Swept(result=_loaded(options.load.expanduser()), scenario=None))
    _, scenario = chosen(desk, tail)
    wanted = _wanted(desk, scenario, options)
    save: Path | None = options.save.expanduser() if options.save is not None else None
    if save is not None and (save.is_dir() or not save.parent.is_dir()):
        raise UsageError(f"%pi sweep: {save} cannot be written; name a file in a folder that is there")
    screen = Screen(desk.shell)

    def tell(progress: Progress, stopping: bool) -> None:
        screen.show(ProgressView(progress, stopping=stopping))

    found = run(scenario, wanted, tell)
    if save is not None:
        found.save(save)
    return _shown(desk, Swept(result=found, scenario=scenario))


def _options_behind(options: Namespace) -> str:
    """The scenario, without the options that stand behind it; they count as those before it do."""
    tail: str = options.tail
    begins = _BEHIND.search(tail)
    if begins is None:
        return tail
    parser: ArgumentParser = options.parser
    try:
        parser.parse_args(shlex.split(tail[begins.start() :]), options)
    except ValueError as error:
        raise UsageError(f"%pi sweep: {error}; close the quotation") from error
    return tail[: begins.start()].strip()


def _loaded(path: Path) -> SweepResult:
    try:
        return SweepResult.load(path)
    except OSError as error:
        raise UsageError(f"%pi sweep: {path} cannot be read: {error.strerror}") from error


def _wanted(desk: Desk, scenario: Scenario, options: Namespace) -> Wanted:
    here = scenario.name == CELL
    if here and "kill" in options.kind:
        raise UsageError(
            "%pi sweep: no child process can import the code of a cell; freeze, power and fault work here, and "
            "%%pi scenario NAME at the head of its cell makes it a module"
        )
    if here and (options.processes or 1) > 1:
        raise UsageError("%pi sweep: no child process can import the code of a cell; leave --processes out")
    processes = 1 if here else options.processes or min(os.cpu_count() or 1, _MOST_PROCESSES)
    return Wanted(
        kinds=options.kind,
        durability=options.durability or desk.preferences.durability,
        second=options.second,
        seed=options.seed,
        processes=processes,
        stop=options.stop,
    )


def _shown(desk: Desk, swept: Swept) -> SweepView:
    desk.swept = swept
    return SweepView(swept, lambda of, story: _laid_out(desk, of, story))


def _laid_out(desk: Desk, swept: Swept, story: Story) -> WitnessView:
    """Lay the story out, and begin the walk through its recovery; its store is the one at hand from now on."""
    died, now_ms = lay_out(swept, story, desk.scenarios, desk.folder("story"))
    desk.bury(died)
    with died.outside():
        desk.walk(Walking(died.store, program=desk.program_for(died.store), now_ms=now_ms, world=died.world()))
    return WitnessView(story, died)


def _configure_witness(parser: ArgumentParser) -> None:
    parser.add_argument("which", metavar="N", help="the number of a story of the sweep shown last, or its class")


def _witness(desk: Desk, options: Namespace) -> View:
    if desk.swept is None:
        raise UsageError("%pi witness: nothing was swept here yet; %pi sweep SCENARIO does, --load FILE shows one")
    return _laid_out(desk, desk.swept, desk.swept.story(options.which))


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
