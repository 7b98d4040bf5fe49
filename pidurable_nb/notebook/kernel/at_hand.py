"""Owns which desk a plain function in a cell works with: that of the extension that was loaded last.

Never loads the extension and never opens anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from IPython.core.error import UsageError

if TYPE_CHECKING:
    from pidurable_nb.notebook.kernel.desk import Desk

_desks: Final[list[Desk]] = []
"""One per shell that has the extension, the newest last; a kernel has one."""


def take(desk: Desk) -> None:
    """The extension was loaded."""
    _desks.append(desk)


def drop(desk: Desk) -> None:
    """The extension was unloaded. Idempotent."""
    if desk in _desks:
        _desks.remove(desk)


def desk_at_hand(what: str) -> Desk:
    """The desk that `what` works with. Raises UsageError where the extension is not loaded."""
    if not _desks:
        raise UsageError(f"{what}: run %load_ext pidurable_nb first")
    return _desks[-1]
