"""Owns the subcommands about a recovery: why, recover, step, back. They work on copies; the store stays as it is."""

from __future__ import annotations

import contextlib
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from IPython.core.error import UsageError

from pidurable_nb.cli.why import at_ms
from pidurable_nb.lab.code import load_code
from pidurable_nb.lab.looking.explain import explain
from pidurable_nb.lab.walking.recover import effects_before
from pidurable_nb.notebook.commands.command import Command
from pidurable_nb.notebook.commands.store import add_target, stores_at, target, tasks_at
from pidurable_nb.notebook.kernel.desk import Desk
from pidurable_nb.notebook.kernel.keeping import keep, place_for
from pidurable_nb.notebook.kernel.stepping import Walking
from pidurable_nb.notebook.views.markup import View
from pidurable_nb.notebook.views.steps import RecoveryView
from pidurable_nb.notebook.views.verdicts import WhyView, of_submission, of_task

CHOICES: Final = ("run", "record", "happened", "not")


def _configure_code(parser: ArgumentParser) -> None:
    parser.add_argument("--code", metavar="MODULE", help="an importable module or a .py file that holds the tasks")
    parser.add_argument("--at", metavar="TIME", type=at_ms, help="as of this time: milliseconds, or ISO 8601")


# --- why ------------------------------------------------------------------------------------------------------------


def _configure_why(parser: ArgumentParser) -> None:
    add_target(parser, "task")
    _configure_code(parser)
    parser.add_argument("--here", action="store_true", help="ask the code of this notebook, and assume nothing")
    parser.add_argument("--all", action="store_true", help="settled submissions too")


def _why(desk: Desk, options: Namespace) -> WhyView:
    store, id = target(options)
    path = desk.path(store)
    plain = options.code is None and options.at is None and not options.here and not options.all
    if plain and desk.harness is not None and desk.is_open(path):
        verdicts = desk.host.call(desk.harness.verdicts())
        said = [of_task(verdict) for verdict in verdicts]
        view = WhyView(said, source=path.name, assumed="as installed", how="open here; this is what happens to it now")
        return _one(view, id)
    with desk.looking(path) as file:
        if options.code is not None:
            loaded = load_code(options.code)
            found = explain(
                file, code=loaded.code_for(file), assumed=f"module {loaded.name}", now_ms=options.at, all=options.all
            )
        elif options.here:
            here = desk.program_for(path).code_for(file)
            found = explain(file, code=here, assumed="of this notebook", now_ms=options.at, all=options.all)
        else:
            found = explain(file, now_ms=options.at, all=options.all)
    said = [*(of_task(verdict) for verdict in found.tasks), *(of_submission(one) for one in found.submissions)]
    return _one(WhyView(said, source=path.name, assumed=_assumed(found.assumed)), id)


def _assumed(assumed: str) -> str:
    return "assumed installed, as stored" if assumed == "code installed" else assumed


def _one(view: WhyView, id: int | None) -> WhyView:
    if id is None:
        return view
    found = view.about(id)
    if not len(found):
        raise UsageError(f"%pi why: nothing live has the number {id}; %pi tasks lists what there is")
    return found


# --- recover, step, back --------------------------------------------------------------------------------------------


RECOVER: Final = (
    "Recover a copy to the end, and show every step. The store stays as it is, to the byte. What comes back is a "
    "sequence of steps; its .store is the recovered copy, which lives until the extension is unloaded, or the FILE of "
    "--into, which stays; its .ledger counts the effects of a scenario that died here, those of the recovery included."
)


def _configure_recover(parser: ArgumentParser) -> None:
    parser.description = RECOVER
    add_target(parser, "task")
    _configure_code(parser)
    parser.add_argument("--until", metavar="N", type=int, help="take so many steps only")
    parser.add_argument(
        "--into", metavar="FILE", type=Path, help="write the recovered copy to this new file; never the store itself"
    )
    parser.add_argument("--replace", action="store_true", help="with --into: the store that is there may go")
    parser.add_argument("--ledger", metavar="FILE", type=Path, help="count the effects of earlier lives from this file")


def _recover(desk: Desk, options: Namespace) -> RecoveryView:
    store, _ = target(options)
    path = desk.path(store)
    ledger = options.ledger or desk.ledger_of(path)
    if options.replace and options.into is None:
        raise UsageError("%pi recover: --replace goes with --into FILE, the store that may be replaced")
    into = place_for(desk, path, options.into, replace=options.replace) if options.into is not None else None
    with _died_with(desk, path), contextlib.closing(_walk(desk, path, options)) as walking:
        while options.until is None or walking.at < options.until:
            if walking.next("run") is None:
                break
        before = effects_before(ledger) if ledger is not None else None
        kept = keep(desk, walking, into, replace=options.replace)
        return walking.whole(before, store=kept, kept=into is not None)


def _configure_step(parser: ArgumentParser) -> None:
    add_target(parser, "step")
    _configure_code(parser)
    parser.add_argument(
        "--choice", choices=CHOICES, default="run", help="at an effect: run it, answer from the record, or assume"
    )


def _step(desk: Desk, options: Namespace) -> View | None:
    """Go on with the walk through the store at hand, or begin one. A number says to which step."""
    store, number = target(options)
    path = desk.path(store)
    walking = desk.walking
    if walking is None or walking.store != path or options.code is not None or options.at is not None:
        walking = _walk(desk, path, options)
        desk.walk(walking)
    wanted = walking.at + 1 if number is None else number
    with _died_with(desk, path):
        while walking.at > wanted:
            walking.back()
        while walking.at < wanted:
            if walking.next(options.choice) is None:
                print(f"the recovery is over after {walking.at} steps; next: {walking.upcoming}")
                break
    return _last(walking)


def _last(walking: Walking) -> View | None:
    if walking.at == 0:
        print(f"where it died, before the first step; next: {walking.upcoming}")
    return walking.last()


def _back(desk: Desk, options: Namespace) -> View | None:
    walking = desk.walking
    if walking is None:
        raise UsageError("%pi back: no recovery is being walked; %pi step begins one")
    with _died_with(desk, walking.store):
        walking.back()
    return _last(walking)


def _walk(desk: Desk, path: Path, options: Namespace) -> Walking:
    died = desk.died(path)
    program = load_code(options.code).program if options.code is not None else desk.program_for(path)
    return Walking(path, program=program, now_ms=options.at, world=died.world() if died is not None else None)


def _died_with(desk: Desk, path: Path) -> contextlib.AbstractContextManager[object]:
    died = desk.died(path)
    return died.outside() if died is not None else contextlib.nullcontext()


WHY_COMMANDS: Final = (
    Command(
        name="why", help="what happens to each live task of a store, and by which law", configure=_configure_why,
        run=_why, completes={"target": tasks_at},
    ),
    Command(
        name="recover", help="recover a copy to the end; --into FILE keeps it", configure=_configure_recover,
        run=_recover, completes={"target": stores_at},
    ),
    Command(
        name="step", help="take the next step of a recovery, on a copy", configure=_configure_step, run=_step,
        completes={"target": stores_at},
    ),
    Command(name="back", help="undo the last step", run=_back),
)  # fmt: skip
