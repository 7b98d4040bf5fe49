"""The command line: one JSON object, three exit codes, one line of refusal, and never a traceback."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import pidurable_nb
from pidurable_nb.cli import main
from pidurable_nb.cli.table import TABLE
from pidurable_nb.lab.looking.inspect import inspect_store

STORES = Path(__file__).resolve().parents[2] / "fixtures" / "stores"


def shell(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pidurable_nb", *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        check=False,
    )


def traces(folder: Path) -> dict[str, object]:
    seen: dict[str, object] = {".": os.stat(folder).st_mtime_ns}
    for path in sorted(folder.iterdir()):
        if path.is_file():
            found = path.stat()
            seen[path.name] = (found.st_size, found.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
    return seen


def script(sql: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.executescript(sql)

    return change


def test_inspect_prints_one_json_object_and_nothing_else() -> None:
    done = shell("inspect", STORES / "tool-unsafe.sqlite", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == inspect_store(STORES / "tool-unsafe.sqlite")
    assert done.stdout.isascii()


@pytest.mark.parametrize(
    "path", sorted(STORES.glob("**/*.sqlite")), ids=lambda path: path.parent.name + "-" + path.stem
)
def test_inspect_leaves_every_store_and_its_folder_as_they_are(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = traces(path.parent)
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["integrity"] == "ok"
    assert traces(path.parent) == before


def test_inspect_prints_a_page_for_people() -> None:
    done = shell("inspect", STORES / "tool-unsafe.sqlite")
    assert (done.returncode, done.stderr) == (0, "")
    assert "12 pi.tool            running    execute, owner 9" in done.stdout


def test_output_survives_a_terminal_that_knows_only_ascii() -> None:
    done = shell("inspect", STORES / "fork.sqlite", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"demo.notes/k\xe9y" in done.stdout


def test_broken_index_is_exit_code_1_with_everything_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Path(shutil.copy(STORES / "big.sqlite", tmp_path))
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        ((page, sql),) = db.execute("SELECT rootpage, sql FROM sqlite_master WHERE name = 'tasks_by_status'").fetchall()
        db.execute("PRAGMA writable_schema=ON")
        db.execute("DELETE FROM sqlite_master WHERE name = 'tasks_by_status'")
        db.execute("PRAGMA writable_schema=RESET")
        db.execute("DELETE FROM tasks WHERE id = (SELECT min(id) FROM tasks)")
        db.execute("PRAGMA writable_schema=ON")
        db.execute("INSERT INTO sqlite_master VALUES ('index', 'tasks_by_status', 'tasks', ?, ?)", (page, sql))
    assert main(["inspect", str(store), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert "tasks_by_status" in said["integrity"]
    assert said["counts"]["tasks"] == len(said["tasks"]) == 499


def replaced(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def written(text: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_text(text)

    return change


REFUSALS: list[tuple[str, str, Callable[[Path], None]]] = [
    ("missing", "not_a_store", lambda path: path.unlink()),
    ("directory", "not_a_store", replaced(Path.mkdir)),
    ("empty", "not_a_store", lambda path: os.truncate(path, 0)),
    ("text", "not_a_store", written("{}\n" * 2000)),
    ("fifo", "not_a_store", replaced(os.mkfifo)),
    ("another database", "not_a_store", script("DROP TABLE durable_schema")),
    ("newer", "newer_format", script("UPDATE durable_schema SET version = 3")),
    ("truncated", "damaged", lambda path: os.truncate(path, 50_000)),
    ("cut record", "damaged", script("UPDATE tasks SET record = '{}'")),
    ("view", "hostile", script("CREATE VIEW v AS SELECT 1")),
    ("trigger", "hostile", script("CREATE TRIGGER t AFTER INSERT ON tasks BEGIN SELECT 1; END")),
    ("generated column", "hostile", script("ALTER TABLE tasks ADD COLUMN g INTEGER AS (id)")),
    ("symlinked wal", "hostile", lambda path: Path(f"{path}-wal").symlink_to(path)),
]


@pytest.mark.parametrize(("kind", "spoil"), [it[1:] for it in REFUSALS], ids=[it[0] for it in REFUSALS])
def test_refused_store_is_one_line_exit_code_1_and_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, spoil: Callable[[Path], None]
) -> None:
    store = Path(shutil.copy(STORES / "tool-unsafe.sqlite", tmp_path))
    spoil(store)
    before = traces(tmp_path)
    assert main(["inspect", str(store), "--json"]) == 1
    told = capsys.readouterr()
    error = json.loads(told.out)
    assert list(error) == ["error"]
    assert error["error"]["kind"] == kind
    assert str(store) in error["error"]["message"]
    assert told.err == ""
    assert main(["inspect", str(store)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"pidurable-nb: {error['error']['message']}\n"
    assert traces(tmp_path) == before


def test_refusal_in_a_shell_has_no_traceback(tmp_path: Path) -> None:
    done = shell("inspect", tmp_path, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["error"]["kind"] == "not_a_store"


@pytest.mark.parametrize("words", [[], ["nonsense"], ["inspect"], ["inspect", "a", "b"], ["inspect", "--no", "a"]])
def test_wrong_usage_is_exit_code_2_and_at_most_two_lines(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert 1 <= len(told.err.splitlines()) <= 2
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "usage"


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pidurable-nb {pidurable_nb.__version__}\n"


def test_help_lists_every_subcommand_and_each_has_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    for it in TABLE:
        assert re.search(rf"^ +{it.name} ", listed, re.MULTILINE), it.name
        assert main([it.name, "--help"]) == 0
        assert "--json" in capsys.readouterr().out


def test_reader_that_leaves_early_is_no_error() -> None:
    command = [sys.executable, "-m", "pidurable_nb", "inspect", str(STORES / "big.sqlite"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""


def test_subcommands_do_not_import_each_other() -> None:
    program = "import sys; from pidurable_nb.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program, "inspect", STORES / "ticker.sqlite"], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "pidurable_nb.cli.inspect" in loaded
    assert "pidurable_nb.cli.doctor" not in loaded


def test_e5_doctor_says_what_works_and_what_each_durability_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert code == (0 if said["ok"] else 1)
    assert said["sqlite_version"] == sqlite3.sqlite_version
    assert said["checks"]["sqlite"]["ok"] is True
    assert list(said["durability"]) == ["kill", "barrier", "power"]
    assert "E5 does not hold" in said["durability"]["kill"]
    assert main(["doctor"]) == code
    page = capsys.readouterr().out
    assert max(len(line) for line in page.splitlines()) <= 100


@pytest.mark.parametrize(
    "name", ["a b?mode=rwc#c%20d.sqlite", "-wal", "ü\n\x1b[2J.sqlite", os.fsdecode(b"\xff.sqlite")]
)
def test_file_names_are_only_names(tmp_path: Path, name: str) -> None:
    shutil.copy(STORES / "ticker.sqlite", tmp_path / name)
    before = traces(tmp_path)
    done = shell("inspect", tmp_path / name, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["next_id"] == 8
    done = shell("inspect", tmp_path / name)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    done = shell("inspect", tmp_path / name / "below", "--json")
    assert json.loads(done.stdout)["error"]["kind"] == "not_a_store"
    assert traces(tmp_path) == before
