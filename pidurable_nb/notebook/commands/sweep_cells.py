"""Owns what `%pi sweep` and `%pi witness` do: running or loading a sweep, and laying out a story of it.

Nothing that is open here is touched: every life of a sweep has a store and a ledger of its own. The laboratory comes
with the first sweep, and not with the extension.
"""

from __future__ import annotations

import os
import re
import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from IPython.core.error import UsageError

from pidurable_nb.lab.scenario import Scenario
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.sweep import Progress
from pidurable_nb.notebook.commands.lab import chosen
from pidurable_nb.notebook.kernel.asking import Screen
from pidurable_nb.notebook.kernel.deaths import CELL
from pidurable_nb.notebook.kernel.desk import Desk
from pidurable_nb.notebook.kernel.stepping import Walking
from pidurable_nb.notebook.kernel.sweeping import Story, Swept, Wanted, lay_out, run
from pidurable_nb.notebook.kernel.sweeps import ProgressView, SweepView, WitnessView
from pidurable_nb.notebook.views.markup import View

_MOST_PROCESSES: Final = 8
_BEHIND: Final = re.compile(r"\s--[a-z]")
"""Where options begin that stand behind the scenario."""


def sweep_cell(desk: Desk, options: Namespace) -> SweepView:
    """Sweep what the options name, or show what somebody saved. Raises UsageError, and what a sweep raises."""
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


def witness_cell(desk: Desk, options: Namespace) -> View:
    """Lay out a story of the sweep shown last. Raises UsageError, NoSuchStory, and more."""
    if desk.swept is None:
        raise UsageError("%pi witness: nothing was swept here yet; %pi sweep SCENARIO does, --load FILE shows one")
    return _laid_out(desk, desk.swept, desk.swept.story(options.which))
