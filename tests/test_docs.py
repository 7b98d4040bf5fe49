"""What is written is run: docstring examples, and the Python blocks of the pages at the top of the repository."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = [
    path.relative_to(ROOT).as_posix().removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for path in sorted((ROOT / "pidurable_nb").rglob("*.py"))
    if path.name != "__main__.py"
]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)  # an example may leave a store behind
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0, "what differs is printed above"


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md"])
def test_python_blocks_of_a_page_run_in_order_as_one_program(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks: list[str] = []
    for block in FENCE.finditer(text):
        line = text.count("\n", 0, block.start(1))
        blocks.append("\n" * (line - "".join(blocks).count("\n")) + block[1])  # errors name the page's own lines
    program = tmp_path / page.lower().replace(".md", "_page.py")
    program.write_text("".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
