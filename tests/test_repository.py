"""What the repository promises about itself: its commands, what an import loads, how big and typed modules are."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pidurable_nb

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pidurable_nb"
MODULES = sorted(PACKAGE.rglob("*.py"))
# What a session without a notebook pays for nothing, or may not even have.
HEAVY = {"IPython", "ipywidgets", "anywidget", "jupyterlab", "ipykernel", "pandas", "pydantic", "httpx"}
JUPYTER = {"IPython", "ipywidgets", "anywidget", "jupyterlab", "ipykernel", "jupyter_client", "pandas", "graphviz"}


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run_python(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=False)


def committed_files() -> list[Path]:
    """Everything committed, and everything that a commit of all would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = (ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name)
    return [path for path in paths if path.is_file()]


def test_tests_import_the_package_of_this_checkout() -> None:
    assert Path(pidurable_nb.__file__).resolve().parent == PACKAGE, "an old install is in the way: make clean"


def test_readme_names_its_two_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make lab" in readme
    assert "make test" in readme


def test_root_import_loads_nothing_heavy() -> None:
    done = run_python("import sys, pidurable_nb; print(*sorted(set(sys.argv[1:]) & set(sys.modules)))", *HEAVY)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_every_core_module_imports_without_jupyter() -> None:
    core = [
        named(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in MODULES
        if "notebook" not in path.relative_to(PACKAGE).parts and path.name != "__main__.py"
    ]
    program = (
        "import importlib, sys\n"
        "barred, modules = (argument.split() for argument in sys.argv[1:])\n"
        "sys.modules.update(dict.fromkeys(barred))  # None: as if it were not installed\n"
        "for name in modules: importlib.import_module(name)\n"
    )
    done = run_python(program, " ".join(JUPYTER), " ".join(core))
    assert done.returncode == 0, done.stderr


def test_no_committed_text_names_a_registry_host_or_a_path_of_one_machine() -> None:
    hosts = ["pypi" + r"\.org", "python" + "hosted", "npm" + "js", "conda" + r"\.anaconda"]
    paths = [r"(?<![\w.~-])/" + top for top in ("work" + "/", "root" + "/", "opt/" + "pypi")]
    forbidden = re.compile("|".join(hosts + paths))
    found = []
    for path in committed_files():
        content = path.read_bytes()
        if b"\0" in content:  # a store or a picture
            continue
        text = content.decode("utf-8", errors="replace")
        found += [
            f"{named(path)}:{n}: {line.strip()[:120]}"
            for n, line in enumerate(text.splitlines(), start=1)
            if forbidden.search(line)
        ]
    assert not found, "\n".join(found)


def annotations_of(node: ast.AST) -> Iterator[ast.expr]:
    for field in ("annotation", "returns"):
        value = getattr(node, field, None)
        if isinstance(value, ast.expr):
            yield value


def count_any(tree: ast.AST) -> int:
    """Uses of `Any`, quoted annotations included, imports of it not."""
    plain = sum(
        (isinstance(node, ast.Name) and node.id == "Any") or (isinstance(node, ast.Attribute) and node.attr == "Any")
        for node in ast.walk(tree)
    )
    quoted = sum(
        len(re.findall(r"\bAny\b", part.value))
        for node in ast.walk(tree)
        for annotation in annotations_of(node)
        for part in ast.walk(annotation)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )
    return plain + quoted


def count_casts(tree: ast.AST) -> int:
    return sum(
        isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == "cast")
            or (isinstance(node.func, ast.Attribute) and ast.unparse(node.func) in {"typing.cast", "t.cast"})
        )
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize(("count", "under"), [(count_any, 5), (count_casts, 2)], ids=["Any", "cast"])
def test_untyped_escapes_are_rare(count: Callable[[ast.AST], int], under: int) -> None:
    texts = {named(path): path.read_text(encoding="utf-8") for path in MODULES}
    lines = sum(text.count("\n") for text in texts.values())
    counts = {name: n for name, text in texts.items() if (n := count(ast.parse(text)))}
    assert sum(counts.values()) * 1000 < under * lines or not counts, counts


def test_escapes_are_counted_where_they_hide() -> None:
    tree = ast.parse("import typing\nfrom typing import Any, cast\nx: 'list[Any]' = typing.cast(Any, cast(int, 1))\n")
    assert (count_any(tree), count_casts(tree)) == (2, 2)


def test_modules_are_at_most_450_lines() -> None:
    lengths = {named(path): path.read_text(encoding="utf-8").count("\n") for path in MODULES}
    assert {name: n for name, n in lengths.items() if n > 450} == {}, "ask what second thing the module owns"


def test_every_module_says_what_it_owns() -> None:
    assert [named(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []


def test_root_has_at_most_40_names_and_each_exists() -> None:
    names = pidurable_nb.__all__
    assert len(set(names)) == len(names) <= 40
    assert [name for name in names if not hasattr(pidurable_nb, name)] == []


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("def test_a(): pass", 0, "1 passed"),
        ("import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no reason')", 1, "test_b: Skipped: no reason"),
        ("import pytest\ndef test_a(): pass\n@pytest.mark.xfail\ndef test_b(): assert 0", 1, "skipped without leave"),
        ("import pytest\npytest.importorskip('no_such_module_at_all')\ndef test_a(): pass", 5, "no_such_module_at_all"),
        ("", 5, "no test ran"),
    ],
    ids=["clean", "skip", "xfail", "module skip", "nothing ran"],
)
def test_a_run_that_skipped_or_ran_nothing_fails_and_says_which(
    tmp_path: Path, body: str, status: int, said: str
) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(body)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    done = subprocess.run([*command, "."], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout
