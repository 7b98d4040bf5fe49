"""What the tests of the tool room share: a call that remembers what a tool said."""

from __future__ import annotations

import pytest

from pidurable_nb.ids import Json
from pidurable_nb.records.message import Diagnostic
from pidurable_nb.tools import Environment, Injected, OutputLimits, RetainedOutput


class Call(Injected):
    """The interface of a call, kept in memory."""

    def __init__(self, environment: Environment | None = None) -> None:
        self._environment = environment
        self.kept = RetainedOutput(OutputLimits(retain="tail"))
        self.diagnostics: list[Diagnostic] = []
        self.shown: list[Json] = []

    @property
    def environment(self) -> Environment | None:
        return self._environment

    def progress(self, chunk: str | bytes) -> None:
        self.kept.add(chunk)

    def diagnostic(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.append(diagnostic)

    async def details(self, value: Json) -> None:
        self.shown.append(value)

    @property
    def said(self) -> list[str | None]:
        """The codes of its diagnostics."""
        return [diagnostic.code for diagnostic in self.diagnostics]


@pytest.fixture
def new_call() -> type[Call]:
    """Makes calls."""
    return Call
