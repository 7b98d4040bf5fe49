"""What holds for every test run: no test is skipped in silence, and no run passes that ran nothing.

Owns the list of skips that are allowed, each with its reason, and hypothesis' settings. Never skips anything itself.
"""

from __future__ import annotations

import os
from typing import Final

import hypothesis
import pytest

# Node id prefix -> why these tests may be skipped or expected to fail.
ALLOWED_SKIPS: Final[dict[str, str]] = {}
# The same, for runs that were not asked to install the peer (`make test PEERS=1`; CI always is).
ALLOWED_WITHOUT_PEERS: Final[dict[str, str]] = {
    "tests/peers/": "the peer is optional: `make test PEERS=1` installs and runs it",
}

# Whole rooms that take real kernels, servers, another implementation, or every storage in turn: `make check` leaves
# them to `make test`, and stays under three minutes.
SLOW_PARTS: Final = (
    "tests/browser/", "tests/notebook/", "tests/peers/", "tests/store/test_conformance.py",
    "tests/store/test_jsonl_crash.py",
)  # fmt: skip

# No deadline: a busy machine is not a failure. In CI the same examples every time: a red run can be run again.
hypothesis.settings.register_profile("house", deadline=None, derandomize=os.environ.get("CI") == "true")
hypothesis.settings.load_profile("house")


class SkipGuard:
    """Ends a run with exit status 1 when a test was skipped or xfailed that stands on no list, or when none ran."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.ran = 0

    def _note(self, nodeid: str, reason: str) -> None:
        with_peers = os.environ.get("PEERS") == "1" or os.environ.get("CI") == "true"
        allowed = ALLOWED_SKIPS if with_peers else ALLOWED_SKIPS | ALLOWED_WITHOUT_PEERS
        if not nodeid.startswith(tuple(allowed)):
            self.refused.append(f"{nodeid}: {reason}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._note(report.nodeid, getattr(report, "wasxfail", "") or reason_of(report))
        elif report.when == "call":
            self.ran += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:  # pytest.skip or importorskip at the top of a module
            self._note(report.nodeid, reason_of(report))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        idle = self.ran == 0 and not session.config.getoption("collectonly")
        if exitstatus == pytest.ExitCode.OK and (self.refused or idle):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refused:
            terminalreporter.section("skipped without leave (tests/conftest.py: ALLOWED_SKIPS)", red=True)
            for line in self.refused:
                terminalreporter.line(line)
        elif self.ran == 0 and not terminalreporter.config.getoption("collectonly"):
            terminalreporter.section("no test ran", red=True)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason a skip was given with; the report keeps it as the last of (path, line, reason)."""
    return str(report.longrepr[-1]) if isinstance(report.longrepr, tuple) else str(report.longrepr)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow rooms as slow."""
    for item in items:
        if item.nodeid.startswith(SLOW_PARTS):
            item.add_marker(pytest.mark.slow)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipGuard(), "skip-guard")
