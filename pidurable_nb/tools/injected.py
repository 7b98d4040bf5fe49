"""Owns what a running tool call is to a tool: the marker base of injected parameters, and the part that this room uses.

Never implements it: the agent's `Call` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pidurable_nb.ids import Json
    from pidurable_nb.records.message import Diagnostic
    from pidurable_nb.tools.environment import Environment


class Injected:
    """A parameter whose annotation is a subclass of this is given by the harness and is not in the tool's schema.

    The methods are what tools of this package use of a call. After the call ended, each of them raises.
    """

    @property
    def environment(self) -> Environment | None:
        """Where the call reaches files and processes; None where the harness was given none."""
        raise NotImplementedError

    def progress(self, chunk: str | bytes) -> None:
        """More running output, as a program writes it; bounded by the tool's limits.

        It is the tool's content when the tool returns none.
        """
        raise NotImplementedError

    def diagnostic(self, diagnostic: Diagnostic) -> None:
        """A remark about the call, for the model and the reader; never part of the tool's data."""
        raise NotImplementedError

    async def details(self, value: Json) -> None:
        """Replace the running details, which are for renderers.

        Durability: the value, or a later one, is stored on return.
        """
        raise NotImplementedError
