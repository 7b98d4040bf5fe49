"""What both type checkers accept, and which mistakes both report: the cases in tests/typing_cases."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "typing_cases"
FILES = sorted(path.relative_to(ROOT).as_posix() for path in CASES.rglob("*.py"))


WANTS: dict[str, Literal["both", "any", "none"]] = {"both": "both", "any": "any", "none": "none"}


@dataclass(frozen=True)
class Case:
    """One marked line of a case file: which checkers are to report it."""

    file: str
    line: int
    want: Literal["both", "any", "none"]
    what: str

    def __str__(self) -> str:
        return f"{Path(self.file).stem}-{self.what.replace(' ', '-')}"


def planted() -> list[Case]:
    found: list[Case] = []
    for file in FILES:
        for number, line in enumerate((ROOT / file).read_text(encoding="utf-8").splitlines(), start=1):
            marked = re.search(r"# want: (both|any|none)  (.+)$", line)
            if marked:
                found.append(Case(file, number, WANTS[marked[1]], marked[2]))
    return found


Report = dict[tuple[str, int], str]


@pytest.fixture(scope="module")
def mypy() -> Report:
    """What mypy says, by file and line."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", *FILES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = re.finditer(r"^(\S+?\.py):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return {(found[1], int(found[2])): found[3] for found in lines}


@pytest.fixture(scope="module")
def pyright(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """What pyright says, by file and line. It reads copies: the project's settings keep it out of must_fail/."""
    copies = tmp_path_factory.mktemp("cases")
    named = {copies / file.replace("/", "__"): file for file in FILES}
    for copy, file in named.items():
        shutil.copyfile(ROOT / file, copy)
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, named)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    said: Report = {}
    for found in json.loads(done.stdout)["generalDiagnostics"]:
        if found["severity"] == "error":
            said[named[Path(found["file"])], found["range"]["start"]["line"] + 1] = found["message"]
    return said


def test_the_case_files_are_found() -> None:
    assert len([case for case in planted() if case.want == "both"]) >= 30
    assert any("must_pass" in file for file in FILES)


@pytest.mark.parametrize("case", planted(), ids=str)
def test_a_planted_mistake_is_reported_where_it_is_wanted(case: Case, mypy: Report, pyright: Report) -> None:
    place = (case.file, case.line)
    said = (mypy.get(place), pyright.get(place))
    if case.want == "both":
        assert None not in said, f"mypy, pyright: {said}"
    elif case.want == "any":
        assert said != (None, None)
    else:
        assert said == (None, None), "a checker sees it now: say `want: both`"


def test_nothing_but_the_planted_mistakes_is_reported(mypy: Report, pyright: Report) -> None:
    wanted = {(case.file, case.line) for case in planted() if case.want != "none"}
    strange = {
        f"{checker} {file}:{line}: {text}"
        for checker, said in (("mypy", mypy), ("pyright", pyright))
        for (file, line), text in said.items()
        if file in FILES and (file, line) not in wanted
    }
    assert strange == set()
