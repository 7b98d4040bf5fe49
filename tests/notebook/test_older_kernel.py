"""The oldest kernel that is promised, ipykernel 6.29: the very tests of the newest one, and the way from crash to step.

It lives in an environment of its own, which finds all other packages in the one that runs the tests.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.notebook import test_kernel, test_labview

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # the first one waits for pip

OLDEST: Final = "6.29"
OLD: Final = (f"ipykernel~={OLDEST}.0", "nest-asyncio")
"""What the older kernel needs and a newer one does not have."""


class Ran(Protocol):
    text: str
    data: list[dict[str, str]]


class Kernel(Protocol):
    def run(self, source: str) -> Ran: ...


@pytest.fixture(scope="session")
def older_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the older kernel in front of the packages of this one."""
    folder = tmp_path_factory.mktemp("older") / "env"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", *OLD]
    installed = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    ours = sysconfig.get_path("purelib")
    (own / "behind.pth").write_text(f"import site; site.addsitedir({ours!r})\n")  # editable installs there count too
    return Path(python)


@pytest.fixture
def kernel(kernel_of: Callable[[Path], Kernel], older_python: Path) -> Kernel:
    """The older kernel, for every test in this file."""
    return kernel_of(older_python)


# The tests of the newest kernel once more, with the `kernel` above.
test_a_blocking_cell_does_not_stop_durable_work = test_kernel.test_a_blocking_cell_does_not_stop_durable_work
test_a_cell_asks_streams_is_interrupted_and_asks_once = (
    test_kernel.test_a_cell_asks_streams_is_interrupted_and_asks_once
)
test_a_killed_kernel_is_followed_by_one_that_goes_on_at_the_same_step = (
    test_kernel.test_a_killed_kernel_is_followed_by_one_that_goes_on_at_the_same_step
)
test_a_scenario_is_killed_from_a_kernel_and_frozen_in_it = (
    test_kernel.test_a_scenario_is_killed_from_a_kernel_and_frozen_in_it
)
test_a_shut_down_closes_in_order_so_that_nothing_counts_as_a_crash = (
    test_kernel.test_a_shut_down_closes_in_order_so_that_nothing_counts_as_a_crash
)
test_an_interrupt_stops_a_waiting_magic_and_the_work_goes_on = (
    test_kernel.test_an_interrupt_stops_a_waiting_magic_and_the_work_goes_on
)
test_what_a_task_prints_appears_below_the_cell_that_waits_for_it = (
    test_kernel.test_what_a_task_prints_appears_below_the_cell_that_waits_for_it
)
test_a_real_kernel_answers_the_page = test_labview.test_a_real_kernel_answers_the_page


def test_the_oldest_kernel_goes_from_a_crash_to_its_recovery(kernel: Kernel) -> None:
    version = kernel.run("import ipykernel, sys\nprint(ipykernel.__version__, sys.prefix != sys.base_prefix)").text
    assert version.startswith(f"{OLDEST}."), version
    kernel.run("%load_ext pidurable_nb")
    assert "Frozen" in kernel.run("%pi crash ticker").data[0]["text/plain"]
    assert "RERUN" in kernel.run("%pi why").data[0]["text/plain"]
    assert "RECONCILE" in kernel.run("%pi step").data[0]["text/plain"]
    assert kernel.run("x = %pi step 4").text == ""
    assert kernel.run("x = %pi step").text == "tick 4\n", "below this cell, though the walk began in another"
    recovered = kernel.run("%pi recover")
    assert recovered.text == "tick 4\ntick 5\n"
    assert "everything was as predicted" in recovered.data[0]["text/plain"]
    swept = kernel.run("x = %pi sweep --processes 1 two-orders\nx")
    assert "happened twice" in swept.data[-1]["text/plain"]
