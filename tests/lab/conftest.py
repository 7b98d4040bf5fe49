"""Counts the mutants that were tried and those that were found, for the last lines of `pytest -m mutants`."""

from __future__ import annotations

from collections.abc import Generator

import pytest

_FOUND = pytest.StashKey[dict[str, bool]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    marker = item.get_closest_marker("mutants")
    if report.when == "call" and marker is not None and marker.args:
        item.config.stash.setdefault(_FOUND, {})[str(marker.args[0])] = report.passed
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    tried = config.stash.get(_FOUND, {})
    if tried:
        terminalreporter.section("mutants")
        terminalreporter.write_line(f"{sum(tried.values())} of {len(tried)} mutants found")
        for name in (name for name, found in tried.items() if not found):
            terminalreporter.write_line(f"not found: {name}")
