"""x"""

from __future__ import annotations

from typing import Final

from pidurable_nb.notebook.command import Command

LAB_COMMANDS: Final[tuple[Command, ...]] = ()
