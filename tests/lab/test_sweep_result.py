"""What a sweep found as one file, what a stranger's file is refused for, what is left of a sweep that was stopped."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from pidurable_nb.lab.scenario import Facts, builtin
from pidurable_nb.lab.sweeping.file import FORMAT, SavedSweepRefused, source_of
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.stop import until_stopped
from pidurable_nb.lab.sweeping.sweep import Progress, sweep

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m"


def never(facts: Facts) -> list[str]:
    """An invariant that nothing meets."""
    return [HOSTILE]


@pytest.fixture(scope="module")
def found() -> SweepResult:
    """A sweep with stories for what is allowed and what is not."""
    return sweep(replace(builtin("two-orders"), invariants=never))


@pytest.fixture
def saved(found: SweepResult, tmp_path: Path) -> Path:
    path = tmp_path / "found.json"
    found.save(path)
    return path


# One file.


def test_all_of_a_sweep_is_in_one_file_that_another_person_can_load(found: SweepResult, saved: Path) -> None:
    loaded = SweepResult.load(saved)
    assert loaded == found
    assert loaded.to_json() == found.to_json()
    assert (loaded.picture(), loaded.text()) == (found.picture(), found.text())
    assert loaded.violations[0].text == HOSTILE
    assert saved.read_bytes().isascii()
    assert os.listdir(saved.parent) == ["found.json"]


def test_an_older_file_is_replaced_and_one_that_cannot_be_written_leaves_nothing(
    found: SweepResult, tmp_path: Path
) -> None:
    path = tmp_path / "found.json"
    path.write_text("older")
    found.save(str(path))
    assert SweepResult.load(str(path)) == found
    with pytest.raises(FileNotFoundError):
        found.save(tmp_path / "nowhere" / "found.json")
    with pytest.raises(IsADirectoryError):
        found.save(tmp_path)
    assert os.listdir(tmp_path) == ["found.json"]


def test_the_source_of_the_scenario_goes_with_it_and_is_never_run_on_loading(
    found: SweepResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
    (tmp_path / "swept_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("swept_module")
    (tmp_path / "ran").unlink()
    replace(found, scenario="swept_module:mine").save(tmp_path / "mine.json")
    del sys.modules["swept_module"]
    loaded = SweepResult.load(tmp_path / "mine.json")
    assert loaded.source == text
    assert "swept_module" not in sys.modules
    assert not (tmp_path / "ran").exists()
    loaded.save(tmp_path / "again.json")  # by somebody who does not have the module
    assert SweepResult.load(tmp_path / "again.json").source == text
    assert (source_of("ticker"), source_of("no_such_module:mine")) == (None, None)


# A stranger's file.


def at(*path: str | int, to: object) -> Callable[[dict[str, object]], None]:
    """Put something else in one place of the file."""

    def change(content: dict[str, object]) -> None:
        here: object = content
        for step in path[:-1]:
            here = cast("dict[str | int, object]", here)[step]
        cast("dict[str | int, object]", here)[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (at("format", to="pidurable_nb.sweep/9"), "'pidurable_nb.sweep/9'"),
        (at("extra", to=1), "the field 'extra' is none of a saved sweep"),
        (at("scenario", to=""), "scenario is no name"),
        (at("kinds", to=["freeze", "lightning"]), "'lightning' is no kind of crash; there are freeze, kill"),
        (at("kinds", to=[]), "kinds is"),
        (at("durability", to="some"), "'some' is no durability; there are kill"),
        (at("seed", to=True), "seed is True, not a count"),
        (at("points", to=-1), "points is -1, not a count"),
        (at("points", to=2**60), "not a count"),
        (at("seconds", to=-0.5), "-0.5 is no number of seconds"),
        (at("second", to=0), "second is 0"),
        (at("done", to=99), "99 of 2 pieces cannot be done"),
        (at("source", to=7), "source is no text"),
        (at("sqlite", to=None), "sqlite is no name"),
        (at("tally", "classes", to={"exploded": 1}), "'exploded' is no class"),
        (at("tally", "classes", to={"stuck": -1}), "classes of stuck is -1"),
        (at("tally", "images", to="many"), "is no tally"),
        (at("tally", "cells", 0, 0, to="nowhere"), "'nowhere' is not a point"),
        (at("tally", "cells", 0, 1, to="lightning"), "is no cell"),
        (at("tally", "witnesses", to={"stuck": ["freeze", "nowhere"]}), "'nowhere' is not a point"),
        (at("tally", "problems", 0, 0, to="rude"), "'rude' is no kind of problem"),
        (at("tally", "took", to={"ages": [1, 2.0]}), "'ages' has no rate"),
        (at("tally", "same", to=5), "5 of 0 cannot be the same"),
    ],
)
def test_what_is_not_a_sweep_is_refused_and_the_error_says_what_and_which(
    saved: Path, change: Callable[[dict[str, object]], None], says: str
) -> None:
    content = copy.deepcopy(json.loads(saved.read_text()))
    change(content)
    saved.write_text(json.dumps(content))
    with pytest.raises(SavedSweepRefused) as refused:
        SweepResult.load(saved)
    assert says in str(refused.value)
    assert "found.json" in str(refused.value)
    assert len(str(refused.value)) < 400 + len(str(saved))


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", "{", '{"format": 1}', "\x80\x04K\x01.", "[" * 100_000, "NaN", '{"format": NaN}',
        f'{{"format": "{FORMAT}", "format": "{FORMAT}"}}', f'{{"format": "{FORMAT}"}}', f'{{"format": "{HOSTILE}"}}',
        "9" * 10_000,
    ],
    ids=range(13),
)  # fmt: skip
def test_a_file_of_something_else_is_refused_in_one_inert_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SavedSweepRefused) as refused:
        SweepResult.load(path)
    assert str(refused.value).isprintable()


def test_a_file_without_a_field_a_pipe_and_a_folder_are_refused(saved: Path, tmp_path: Path) -> None:
    content = json.loads(saved.read_text())
    del content["tally"]
    saved.write_text(json.dumps(content))
    with pytest.raises(SavedSweepRefused, match="the field 'tally' is missing"):
        SweepResult.load(saved)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SavedSweepRefused, match="no regular file"):
        SweepResult.load(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        SweepResult.load(tmp_path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(1 << 40)  # of which nothing is on the disk
    with pytest.raises(SavedSweepRefused, match="larger than 64 MiB"):
        SweepResult.load(tmp_path / "large.json")


# Stopped.


def test_a_sweep_that_is_stopped_keeps_what_was_found() -> None:
    stop, told = threading.Event(), list[Progress]()

    def second(progress: Progress) -> None:
        told.append(progress)
        if progress.done == 2:
            stop.set()

    found = sweep(builtin("ticker"), stop=stop, on_progress=second)
    assert [progress.done for progress in told] == [1, 2]
    assert not found.complete
    assert (found.done, found.pieces) == (2, told[-1].of)
    assert found.images == told[-1].images == sum(found.classes.values()) > 0
    assert found.note == f"stopped after 2 of {found.pieces} pieces"
    assert f"stopped after 2 of {found.pieces} pieces" in found.text()


def test_an_interrupt_asks_the_work_to_stop_and_its_answer_is_kept_and_a_second_one_is_raised() -> None:
    seen: list[bool] = []

    def interrupted(stopping: bool) -> None:
        seen.append(stopping)
        if not stopping:
            raise KeyboardInterrupt

    assert until_stopped(lambda stop: stop.wait(30), watch=interrupted, every_s=0.01)
    assert seen[0] is False

    done = threading.Event()

    def again(stopping: bool) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        until_stopped(lambda stop: done.wait(30), watch=again, every_s=0.01)
    done.set()


def test_what_the_work_raises_is_raised_and_a_watcher_that_fails_stops_the_work() -> None:
    def fails(stop: threading.Event) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        until_stopped(fails)

    ended = threading.Event()

    def works(stop: threading.Event) -> None:
        stop.wait(30)
        ended.set()

    def broken(stopping: bool) -> None:
        raise OSError("the screen is gone")

    with pytest.raises(OSError, match="the screen is gone"):
        until_stopped(works, watch=broken, every_s=0.01)
    assert ended.wait(30)


# The command line.


HEARS_INTERRUPTS = """
import signal, sys
from pidurable_nb.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
"""The command as a terminal starts it: what a shell puts into the background is deaf to SIGINT, and so are its
children, of which this test may be one."""


def test_an_interrupt_of_the_command_prints_what_was_found_says_so_and_exits_1(tmp_path: Path) -> None:
    words = ["sweep", "checkout", "--json", "--processes", "1", "--save", str(tmp_path / "part.json")]
    process = subprocess.Popen(
        [sys.executable, "-c", HEARS_INTERRUPTS, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "checkout: freeze, 1 of" in process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, errors = process.communicate(timeout=100)
    found = json.loads(out)
    assert process.returncode == 1, errors
    assert "Traceback" not in errors
    assert found["note"].startswith("stopped after ")
    assert found["ok"] is True
    assert found["images"] > 0
    part = SweepResult.load(tmp_path / "part.json")
    assert part.to_json() == found
    assert part.done < part.pieces


def test_a_sweep_is_saved_by_the_command_and_a_file_that_cannot_be_is_wrong_usage(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pidurable_nb", "sweep", "sleeper"]
    done = subprocess.run([*words, "--save", tmp_path / "a.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = SweepResult.load(tmp_path / "a.json")
    assert (loaded.scenario, loaded.complete, loaded.source) == ("sleeper", True, None)
    for extra in (
        ["--save", tmp_path / "no" / "a.json"],
        ["--save", tmp_path],
        ["--save", "b", "--point", "x#1/y:open"],
    ):
        refused = subprocess.run([*words, *extra], capture_output=True, text=True, check=False)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
