"""Owns what `%pi open` binds to a name: the open harness, to await in a cell, and `call` for work on its own loop."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pidurable_nb.agent.harness import Harness
from pidurable_nb.notebook.kernel.host import Host

if TYPE_CHECKING:
    from pidurable_nb.notebook.study.predict import Question

P = ParamSpec("P")
T = TypeVar("T")


class Opened:
    """An open store. Everything that a `Harness` has is here: `root = await pi.root()`, `await pi.wait(task)`.

    Cells run on the kernel's loop and the harness on its own. Awaiting its methods works from any cell; a commit block
    works only on its own loop, where `call` runs a function.
    """

    def __init__(
        self, host: Host, harness: Harness, path: Path, *, durability: str, copied_from: Path | None = None
    ) -> None:
        self._host = host
        self.harness = harness
        self.path = path
        self.durability = durability
        self.copied_from = copied_from

    @property
    def open(self) -> bool:
        """Whether it is open still."""
        return not self.harness.closed.done()

    @property
    def predict(self) -> Callable[..., Question]:
        """`pidurable_nb.study.predict`: a question that is answered once, before the cell that runs."""
        from pidurable_nb.notebook.study.predict import predict

        return predict

    def call(self, function: Callable[P, Awaitable[T] | T], *arguments: P.args, **named: P.kwargs) -> T:
        """What `function` returns, run on the harness's own loop and awaited there: the place for commit blocks.

        An interrupt cancels it. Raises whatever it raises.
        """

        async def run() -> T:
            got = function(*arguments, **named)
            if inspect.isawaitable(got):
                value: T = await got
                return value
            return got

        return self._host.call(run())

    def __getattr__(self, name: str) -> object:
        return getattr(self.harness, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.harness)})

    def __repr__(self) -> str:
        state = "open" if self.open else "closed"
        copied = f", a copy of {self.copied_from}" if self.copied_from is not None else ""
        return f"<{state} store {self.path}{copied}>"
