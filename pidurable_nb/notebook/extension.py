"""Owns loading and unloading: what `%load_ext pidurable_nb` puts into a shell, and that nothing of it stays.

Never imported by anything but the package's two forwarding functions.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from traitlets import TraitError

from pidurable_nb.notebook.commands.agent import AGENT_COMMANDS
from pidurable_nb.notebook.commands.command import Commands
from pidurable_nb.notebook.commands.completion import Matcher, matcher_of
from pidurable_nb.notebook.commands.lab import LAB_COMMANDS
from pidurable_nb.notebook.commands.magic import Pi
from pidurable_nb.notebook.commands.store import STORE_COMMANDS
from pidurable_nb.notebook.commands.study import STUDY_COMMANDS
from pidurable_nb.notebook.commands.sweep import SWEEP_COMMANDS
from pidurable_nb.notebook.commands.tree import TREE_COMMANDS
from pidurable_nb.notebook.commands.why import WHY_COMMANDS
from pidurable_nb.notebook.kernel import at_hand
from pidurable_nb.notebook.views import svg

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


@dataclass(frozen=True, slots=True)
class _Loaded:
    magics: Pi
    matcher: Matcher
    hooks: Mapping[str, Callable[[object], None]]


_loaded: dict[int, _Loaded] = {}
"""By the identity of the shell: one kernel has one, a test may have several."""


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Put `%pi` into the shell. Loading twice changes nothing."""
    if id(shell) in _loaded:
        return
    commands = Commands(
        [
            *STORE_COMMANDS,
            *TREE_COMMANDS,
            *AGENT_COMMANDS,
            *LAB_COMMANDS,
            *SWEEP_COMMANDS,
            *WHY_COMMANDS,
            *STUDY_COMMANDS,
        ]
    )
    magics = _magics(shell, commands)
    Pi.pi.__doc__ = commands.help()
    shell.register_magics(magics)
    matcher = matcher_of(commands, magics.desk)
    shell.Completer.custom_matchers.append(matcher)

    def before_cell(info: object) -> None:
        named: object = getattr(info, "cell_id", None)
        magics.desk.cell_id = named if isinstance(named, str) and named else None

    def after_cell(result: object) -> None:
        magics.desk.after_cell()

    hooks = {"pre_run_cell": before_cell, "post_run_cell": after_cell}
    for event, hook in hooks.items():
        shell.events.register(event, hook)
    _loaded[id(shell)] = _Loaded(magics, matcher, hooks)
    at_hand.take(magics.desk)
    atexit.register(magics.desk.shut)  # a shutdown, a restart and exit() close in order; a kill does not, and need not
    svg.warm_up()


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take everything out of the shell again; the open store is closed in order."""
    loaded = _loaded.pop(id(shell), None)
    if loaded is None:
        return
    for event, hook in loaded.hooks.items():
        shell.events.unregister(event, hook)
    if loaded.matcher in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(loaded.matcher)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("pi", None)
    shell.magics_manager.registry.pop(Pi.__name__, None)
    _forget(shell)
    atexit.unregister(loaded.magics.desk.shut)
    at_hand.drop(loaded.magics.desk)
    loaded.magics.desk.shut()


def _magics(shell: InteractiveShell, commands: Commands) -> Pi:
    """The magics; a value of `Pi` that was configured and does not fit is said, dropped, and in nobody's way."""
    try:
        return Pi(shell, commands)
    except TraitError as error:
        print(f"%pi: {error}; the settings of Pi are back at their defaults", file=sys.stderr)
        _forget(shell)
        shell.config.pop("Pi", None)
        return Pi(shell, commands)


def _forget(shell: InteractiveShell) -> None:
    """`%config` does not offer our settings any more."""
    shell.configurables = [one for one in shell.configurables if not _ours(one)]


def _ours(configurable: object) -> bool:
    return isinstance(configurable, Pi)
