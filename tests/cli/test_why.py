"""`pidurable-nb why`: the verdicts as JSON and as a page, the time, the code, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pidurable_nb.cli import main

STORES = Path(__file__).resolve().parents[2] / "fixtures" / "stores"


def shell(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pidurable_nb", "why", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=cwd, check=False)


def why(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, str]:
    assert main(["why", *map(str, words), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return {f"{found['subject']} {found['id']}": found["verdict"] for found in json.loads(out)["verdicts"]}


def test_why_prints_one_json_object_and_nothing_else() -> None:
    done = shell(STORES / "tool-unsafe.sqlite", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert shown["assumed"] == "code installed"
    assert [(found["id"], found["verdict"]) for found in shown["verdicts"]] == [
        (9, "wait"),
        (12, "interrupt"),
        (8, "settle"),
    ]


def test_why_prints_a_page_for_people() -> None:
    done = shell(STORES / "tool-safe.sqlite")
    assert (done.returncode, done.stderr) == (0, "")
    assert "The transfer may run again: it is declared safe." in done.stdout
    assert "outside: > can happen again" in done.stdout


@pytest.mark.parametrize("path", sorted(STORES.glob("**/*.sqlite")), ids=lambda path: path.parent.name + path.stem)
def test_why_leaves_every_store_and_its_folder_as_they_are(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def traces() -> list[object]:
        files = [file for file in sorted(path.parent.iterdir()) if file.is_file()]
        seen = [(file.name, file.stat().st_mtime_ns, hashlib.sha256(file.read_bytes()).digest()) for file in files]
        return [os.stat(path.parent).st_mtime_ns, *seen]

    before = traces()
    why(capsys, path, "--all")
    assert traces() == before


@pytest.mark.parametrize(
    ("at", "verdict"),
    [
        ("4102444799999", "sleep"),
        ("4102444800000", "resume"),
        ("2099-12-31T23:59:59Z", "sleep"),
        ("2100-01-01T00:00:00+00:00", "resume"),
        ("2100-01-01T01:00:00+02:00", "sleep"),
        ("0", "sleep"),
        ("1e13", "resume"),
    ],
)
def test_t12_the_time_may_be_milliseconds_or_iso_8601(
    at: str, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why(capsys, STORES / "fork.sqlite", "--at", at) == {"task 57": verdict}


@pytest.mark.parametrize("at", ["noon", "2100-01-01T00:00:00", "nan", "inf", "", "2100-13-01T00:00:00Z"])
def test_a_time_that_is_none_is_wrong_usage(at: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(STORES / "fork.sqlite"), "--at", at, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "usage"


def test_s5_all_includes_what_is_settled(capsys: pytest.CaptureFixture[str]) -> None:
    path = STORES / "inbox.recovered.sqlite"
    assert why(capsys, path) == {}
    assert set(why(capsys, path, "--all").values()) == {"keep"}


def test_t8_code_is_asked_for_and_named(tmp_path: Path) -> None:
    (tmp_path / "empty_code.py").write_text("print('loading')\n")
    done = shell(STORES / "ticker.sqlite", "--code", "empty_code", "--json", cwd=tmp_path)
    assert done.returncode == 0
    shown = json.loads(done.stdout)
    assert shown["assumed"] == "module empty_code"
    assert [found["verdict"] for found in shown["verdicts"]] == ["blocked"]
    assert "loading" in done.stderr


def test_code_that_cannot_be_loaded_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n")
    done = shell(STORES / "ticker.sqlite", "--code", path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "ZeroDivisionError" in done.stderr


def test_what_is_no_store_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(STORES / "verdicts.json"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "not_a_store"
