"""Owns the subcommand about the learner's own answers: `%pi study`. Never asks a question and never grades."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError

from pidurable_nb.notebook.commands.command import Command
from pidurable_nb.notebook.kernel.desk import Desk
from pidurable_nb.notebook.study.report import study_table
from pidurable_nb.notebook.study.study import Study
from pidurable_nb.notebook.views.markup import cut

if TYPE_CHECKING:
    from pathlib import Path

    from pidurable_nb.notebook.views.tables import Table

_asked: Final[WeakKeyDictionary[Desk, Path]] = WeakKeyDictionary()
"""Where somebody typed --reset once, and for which store."""


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("notebook", metavar="NOTEBOOK", nargs="?", help="only the answers of this one, such as N1")
    parser.add_argument("--reset", action="store_true", help="remove every answer; asks to be typed twice")
    parser.add_argument("--yes", action="store_true", help="with --reset: do not ask")


def _study(desk: Desk, options: Namespace) -> Table | None:
    study = Study(desk.host)
    if options.reset:
        _reset(desk, study, options)
        return None
    _asked.pop(desk, None)
    answers = list(study.answers().values())
    if options.notebook is not None:
        answers = [answer for answer in answers if answer.notebook == options.notebook]
    return study_table(answers, study.path, limit=desk.preferences.max_rows)


def _reset(desk: Desk, study: Study, options: Namespace) -> None:
    where = cut(str(study.path), 200)
    if options.notebook is not None:
        raise UsageError("%pi study: --reset removes the answers of all notebooks; leave the name out")
    if not options.yes and _asked.get(desk) != study.path:
        count = len(study.answers())
        _asked[desk] = study.path
        print(f"{where}: every answer in it ({count}) would be removed. Type %pi study --reset again to do it.")
        return
    _asked.pop(desk, None)
    removed = study.reset()
    print(f"removed: {where}" if removed else f"there was nothing to remove: {where}")


STUDY_COMMANDS: Final = (
    Command(name="study", help="your predictions, and how they compare", configure=_configure, run=_study),
)
