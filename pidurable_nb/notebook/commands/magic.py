"""Owns the magic `%pi` and what `%config Pi` holds: a line in, a command run, errors as one line. Knows no command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from traitlets import Enum, Integer, TraitError, Unicode, validate

from pidurable_nb.agent.opening import Durability
from pidurable_nb.errors import PidurableError
from pidurable_nb.notebook.commands.command import Commands, HelpShown
from pidurable_nb.notebook.kernel.desk import Desk, Preferences, usage_of

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


@magics_class
class Pi(Magics):
    """`%pi` and `%%pi`: `%pi?` is the help, `%config Pi` the settings."""

    max_rows = Integer(200, help="How many rows a table shows; its data frame has them all.").tag(config=True)
    handle = Unicode("pi", help="The name that %pi open binds the open store to.").tag(config=True)
    durability = Enum(
        ["kill", "barrier", "power"], "barrier", help="What a store that is opened survives; see pidurable-nb doctor."
    ).tag(config=True)

    def __init__(self, shell: InteractiveShell, commands: Commands) -> None:
        super().__init__(shell)
        self.commands = commands
        self.desk = Desk(shell, self._preferences)

    def _preferences(self) -> Preferences:
        chosen: Mapping[str, Durability] = {"kill": "kill", "barrier": "barrier", "power": "power"}
        return Preferences(max_rows=self.max_rows, handle=self.handle, durability=chosen[self.durability])

    @validate("max_rows")
    def _some_rows(self, proposal: dict[str, int]) -> int:
        if proposal["value"] < 1:
            raise TraitError("Pi.max_rows counts from 1")
        return proposal["value"]

    @validate("handle")
    def _a_name(self, proposal: dict[str, str]) -> str:
        if not proposal["value"].isidentifier():
            raise TraitError(f"Pi.handle is a Python name, not {proposal['value']!r}")
        return proposal["value"]

    @no_var_expand
    @line_cell_magic
    def pi(self, line: str, cell: str | None = None) -> object:
        """Replaced by the help of the parser when the extension is loaded."""
        try:
            command, options = self.commands.parse(line, cell)
            return command.run(self.desk, options)
        except HelpShown:
            return None
        except PidurableError as error:
            raise usage_of(error) from error
