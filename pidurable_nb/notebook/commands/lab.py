"""Owns the subcommands that make something die: points, crash, kill, the lab, and the cell that becomes a scenario.

Never touches an open store: a run that is to die has a store and a ledger of its own.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import time
import weakref
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from IPython.core.error import UsageError

from pidurable_nb.agent.opening import Durability
from pidurable_nb.lab.code import Loaded
from pidurable_nb.lab.dying.point import BadPoint, Point
from pidurable_nb.lab.scenario import BUILT_IN, Scenario
from pidurable_nb.notebook.commands.command import Command
from pidurable_nb.notebook.commands.store import stores_at
from pidurable_nb.notebook.kernel.deaths import CELL, Died, freeze, kill, of_cell, points_of
from pidurable_nb.notebook.kernel.deathviews import DeathView, points_table
from pidurable_nb.notebook.kernel.desk import Desk
from pidurable_nb.notebook.kernel.scenarios import ScenarioView, module_of, source_of
from pidurable_nb.notebook.labview.part import PARTS
from pidurable_nb.notebook.views.tables import Table

if TYPE_CHECKING:
    from pidurable_nb.notebook.labview.view import LabView

_SCENARIO: Final = re.compile(r"[\w.-]+(:[\w.-]+)?")


# --- What is to run -------------------------------------------------------------------------------------------------


def chosen(desk: Desk, tail: str) -> tuple[Point | None, Scenario]:
    """A point, where one is named first, and what is to run: a scenario, or a phase of this notebook."""
    word, _, rest = tail.partition(" ")
    point: Point | None = None
    try:
        point = Point.parse(word)
    except BadPoint:
        if "#" in word:  # it was meant as a point
            raise
        rest = tail
    rest = rest.strip()
    if not rest:
        raise UsageError(f"%pi: name a scenario ({', '.join(names(desk))}), or a phase such as Tick(1, 5)")
    if rest in names(desk) or (_SCENARIO.fullmatch(rest) and rest not in desk.shell.user_ns):
        return point, desk.scenario(rest)
    return point, of_cell(desk.phase(rest), rest, lambda: list(desk.tasks().values()))


def names(desk: Desk) -> Sequence[str]:
    return [*desk.scenarios, *(name for name in BUILT_IN if name not in desk.scenarios)]


def _points_at(desk: Desk, fragment: str) -> Sequence[str]:
    """Points that were seen last, and where scenarios are killed unless told otherwise; then scenarios."""
    usual = [found for name in names(desk) if (found := desk.scenario(name).kill_point) is not None]
    return [*desk.points, *usual, *names(desk)]


# --- points, crash, kill --------------------------------------------------------------------------------------------


def _configure_points(parser: ArgumentParser) -> None:
    parser.add_argument("--files", action="store_true", help="those before every operation on the store's files too")


def _points(desk: Desk, options: Namespace) -> Table:
    _, scenario = chosen(desk, options.tail)
    passed = points_of(scenario, desk.folder(scenario.name), files=options.files)
    desk.points = [str(one.point) for one in passed]
    return points_table(scenario, passed, limit=desk.preferences.max_rows)


def _configure_crash(parser: ArgumentParser) -> None:
    parser.add_argument("--durability", choices=("kill", "barrier", "power"), help="default: %%config Pi.durability")
    parser.add_argument("--into", metavar="FOLDER", type=Path, help="keep store and ledger here, in a new folder")


def _crash(desk: Desk, options: Namespace) -> DeathView:
    point, scenario = chosen(desk, options.tail)
    if point is None:
        point = _usual(scenario)
    return _dead(desk, freeze(scenario, point, _folder(desk, scenario, options), _durability(desk, options)))


def _configure_kill(parser: ArgumentParser) -> None:
    _configure_crash(parser)
    parser.add_argument("--kernel", action="store_true", help="kill this kernel, for real, now")


def _kill(desk: Desk, options: Namespace) -> DeathView:
    if options.kernel:
        _kill_kernel()
    point, scenario = chosen(desk, options.tail)
    if scenario.name == CELL:
        raise UsageError(
            "%pi kill: no child process can import the code of a cell; %pi crash freezes it here, and "
            "%%pi scenario NAME at the head of its cell makes it a module"
        )
    if point is None and scenario.kill_point is not None:
        point = _usual(scenario)
    return _dead(desk, kill(scenario, point, _folder(desk, scenario, options), _durability(desk, options)))


def _usual(scenario: Scenario) -> Point:
    if scenario.kill_point is None:
        raise UsageError(f"%pi: at which point of {scenario.title}? %pi points lists them")
    return Point.parse(scenario.kill_point)


def _folder(desk: Desk, scenario: Scenario, options: Namespace) -> Path:
    if options.into is None:
        return desk.folder(scenario.name)
    folder: Path = options.into.expanduser()
    if folder.exists():
        raise UsageError(f"%pi: {folder} is there already; name a new folder")
    folder.mkdir(parents=True)
    return folder


def _durability(desk: Desk, options: Namespace) -> Durability:
    chosen: Durability = options.durability or desk.preferences.durability
    return chosen


def _dead(desk: Desk, died: Died) -> DeathView:
    desk.walk(None)
    desk.bury(died)
    desk.points = list(dict.fromkeys([*desk.points, *died.passed]))
    return DeathView(died)


def _kill_kernel() -> None:
    """The end of this process, with no chance to tidy up: what is on disk is all that the next kernel has."""
    print("SIGKILL to this kernel, now. Restart it, load the extension, and %pi open the store again.", flush=True)
    sys.stderr.flush()
    time.sleep(0.3)  # the line above leaves by another thread
    os.kill(os.getpid(), signal.SIGKILL)


# --- scenario -------------------------------------------------------------------------------------------------------


def _configure_scenario(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the scenario's name; its module is scenario_NAME.py, here")


def _scenario(desk: Desk, options: Namespace) -> ScenarioView:
    path = source_of(options.name, options.body or "", Path.cwd())
    module = _imported(path)
    scenario = module_of(module, options.name)
    desk.scenarios[options.name] = scenario
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    desk.shell.user_ns.update(public)
    return ScenarioView(scenario, path)


def _imported(path: Path) -> ModuleType:
    """The module as it was written just now."""
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    known = sys.modules.pop(path.stem, None)
    try:
        return importlib.import_module(path.stem)
    except BaseException:
        if known is not None:
            sys.modules[path.stem] = known
        raise


# --- lab ------------------------------------------------------------------------------------------------------------


def _configure_lab(parser: ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="STORE|SCENARIO",
        nargs="?",
        help="default: the store that is open here, as it lives; else the one that was looked at last",
    )
    parser.add_argument("--at", metavar="POINT", action="append", help="where a scenario dies; twice for two lives")
    parser.add_argument("--kill", action="store_true", help="kill a scenario by SIGKILL in a child; default: freeze it")
    parser.add_argument(
        "--only", metavar="PART", action="append", default=[], choices=PARTS,
        help=f"a part of the lab as a view of its own, several times for several: {', '.join(PARTS)}",
    )  # fmt: skip


def _lab(desk: Desk, options: Namespace) -> LabView:
    view = _kept(desk, _whole_lab(desk, options))
    return view.only(*options.only) if options.only else view


def _whole_lab(desk: Desk, options: Namespace) -> LabView:
    from pidurable_nb.lab.scene.source import ScenarioSource, StoreSource
    from pidurable_nb.notebook.labview.live import LiveSource
    from pidurable_nb.notebook.labview.view import LabView  # the widgets take half a second to import

    given: str | None = options.target
    if given is not None and not Path(given).expanduser().exists() and (given in names(desk) or ":" in given):
        scenario, kind = desk.scenario(given), "kill" if options.kill else "freeze"
        return LabView.making(lambda: ScenarioSource(scenario, points=options.at, kind=kind))
    if options.at or options.kill:
        raise UsageError("%pi lab: only a scenario can be made to die; a store file is looked at as it is")
    if given is None and desk.harness is not None and (desk.current is None or desk.is_open(desk.current)):
        opened = desk.need_open()
        return LabView.watching(lambda stir: LiveSource(desk.host, opened.harness, opened.path, stir))
    path = desk.path(given)
    died, program = desk.died(path), desk.program_for(path)
    code = Loaded(name="notebook", program=program, world=died.world() if died is not None else None)
    ledger, within = desk.ledger_of(path), died.outside() if died is not None else None
    return LabView.making(lambda: StoreSource(path, code=code, ledger=ledger), within)


def _kept(desk: Desk, view: LabView) -> LabView:
    """A lab has a thread and copies of its own; they end with the extension, at the latest with the kernel."""
    weakref.finalize(desk, view.close)
    return view


LAB_COMMANDS: Final = (
    Command(
        name="lab",
        help="walk a recovery on a copy: %%pi lab refund, %%pi lab app.sqlite; without a name, what is open here, live",
        configure=_configure_lab, run=_lab,
        completes={
            "target": lambda desk, fragment: [*names(desk), *stores_at(desk, fragment)],
            "at": lambda desk, fragment: desk.points,
            "only": lambda desk, fragment: PARTS,
        },
    ),
    Command(
        name="points", help="where a run may die: %%pi points ticker, %%pi points Tick(1, 5)",
        configure=_configure_points, run=_points,
        tail="SCENARIO or EXPRESSION", completes={"tail": lambda desk, fragment: names(desk)},
    ),
    Command(
        name="crash", help="freeze a run at a point, in this kernel: %%pi crash POINT Tick(1, 5)",
        configure=_configure_crash, run=_crash, tail="[POINT] SCENARIO or EXPRESSION", completes={"tail": _points_at},
    ),
    Command(
        name="kill", help="kill a run at a point, by SIGKILL in a child: %%pi kill [POINT] checkout; or this kernel",
        configure=_configure_kill, run=_kill, tail="[POINT] [SCENARIO]", completes={"tail": _points_at},
    ),
    Command(
        name="scenario", help="make this cell a scenario that can be killed", configure=_configure_scenario,
        run=_scenario, body=True,
    ),
)  # fmt: skip
