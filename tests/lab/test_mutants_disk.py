"""Mistakes that a lying disk, a fault or a second owner has to bring to light: each put in on purpose, each found."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from pidurable_nb.errors import AnotherWriter, StorageError, Stored, StoreOwned
from pidurable_nb.lab.dying.crash import CrashPlan
from pidurable_nb.lab.dying.identity import STORE
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import LEDGER, Lived, Plan, run_here
from pidurable_nb.lab.images.recording import Recording, record
from pidurable_nb.lab.scenario import builtin
from pidurable_nb.lab.sweeping import states as sweep_states
from pidurable_nb.lab.sweeping.points import SweepKind, Which
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.sweep import Progress, sweep
from pidurable_nb.session.writer import Writer
from pidurable_nb.store import line, ownership
from pidurable_nb.store.line import Line
from pidurable_nb.store.ownership import Holder
from pidurable_nb.store.sqlite import Durability, SqliteStorage

pytestmark = pytest.mark.mutants


def kinds(found: SweepResult) -> set[str]:
    return {violation.kind for violation in found.violations}


def until_found(
    name: str, kind: SweepKind, *, durability: Durability = "barrier", points: Which = "commits"
) -> SweepResult:
    """A sweep that stops at its first violations."""
    stop = threading.Event()

    def look(progress: Progress) -> None:
        if progress.problems:
            stop.set()

    return sweep(builtin(name), kinds=(kind,), durability=durability, points=points, stop=stop, on_progress=look)


# The controls. (That of a sweep before every file operation is in test_sweep.py.)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_a_mutant_a_sweep_of_power_cuts_finds_nothing() -> None:
    found = sweep(builtin("ticker"), kinds=("power",), durability="kill", processes=2)
    assert found.ok, found.violations
    assert found.images > 1000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_a_mutant_a_sweep_of_faults_finds_nothing() -> None:
    found = sweep(builtin("ticker"), kinds=("fault",), processes=2)
    assert found.ok, found.violations
    assert found.images > 500


def test_without_a_mutant_nobody_opens_a_store_that_has_an_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, let_in, lived = besieged(tmp_path, monkeypatch)
    assert len(refused) > 50
    assert let_in == []
    assert lived.error is None


# Lost syncs.


LostSync = Literal["log", "database", "header"]


def lose(monkeypatch: pytest.MonkeyPatch, which: LostSync) -> None:
    """A disk that says of one sync of each folding of the log that it was done."""

    def on_that_disk(*what: object, **how: object) -> Recording:
        recording: Recording = record(*what, **how)  # type: ignore[arg-type]
        for n in lost_syncs(recording, which):
            recording = recording.without(n)
        return recording

    monkeypatch.setattr(sweep_states, "record", on_that_disk)


def lost_syncs(recording: Recording, which: LostSync) -> Iterator[int]:
    of_database = {op.n for op in recording.ops if op.op == "sync" and op.file == recording.store}
    for fold in recording.folds():
        at = next(at for at, n in enumerate(fold) if n in of_database)
        yield from {"log": fold[:at], "database": fold[at : at + 1], "header": fold[at + 1 :]}[which]


@pytest.mark.mutants("lost sync of the log before it is folded")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_c2_a_log_that_is_folded_and_is_not_safe_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, "log")
    assert "corrupt" in kinds(until_found("ticker", "power", durability="kill"))


@pytest.mark.mutants("lost sync of the database when the log was folded")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_c2_a_database_that_is_not_safe_when_its_log_is_begun_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, "database")
    assert kinds(until_found("ticker", "power", durability="kill")) & {"corrupt", "lost_acknowledged"}


@pytest.mark.mutants("lost sync of the header of a new log")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_c2_a_new_log_whose_header_is_not_safe_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, "header")
    assert kinds(until_found("ticker", "power", durability="kill")) & {"corrupt", "lost_acknowledged"}


# Locks, and errors.


@pytest.mark.mutants("stale lock ignored")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_f3_a_dead_owner_whose_lock_says_that_the_store_is_being_made_and_is_ignored_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ownership, "_read_holder", lambda _fd: Holder())
    found = until_found("ticker", "freeze", points="files")
    assert "corrupt" in kinds(found)
    assert any("cannot be opened in life 2" in violation.text for violation in found.violations)


def swallow_errors_of_folding(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = Line.checkpoint

    def fold_or_not(self: Line, mode: Literal["PASSIVE", "RESTART", "TRUNCATE"]) -> tuple[bool, int, int]:
        try:
            return fold(self, mode)
        except StorageError:
            return True, 0, 0

    monkeypatch.setattr(Line, "checkpoint", fold_or_not)


@pytest.mark.mutants("swallowed checkpoint error")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_f1_an_error_of_folding_that_nobody_hears_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    swallow_errors_of_folding(monkeypatch)
    found = until_found("ticker", "fault")
    assert any("the fault was swallowed" in violation.text for violation in found.violations)


@pytest.mark.mutants("every storage error says that nothing is stored")
def test_f4_an_uncertain_error_that_is_told_as_certain_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def certain(error: sqlite3.Error, *, in_transaction_after: bool, phase: line.Phase) -> Stored:
        return "no"

    monkeypatch.setattr(line, "classify", certain)
    found = until_found("ticker", "fault")
    assert any("which is not so (F4)" in violation.text for violation in found.violations)


@pytest.mark.mutants("session that goes on behind a failed folding")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_f1_a_session_that_goes_on_behind_an_error_of_the_storage_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def maintain(self: Writer) -> None:
        with contextlib.suppress(StorageError):
            await self._storage.maintain()

    monkeypatch.setattr(Writer, "_maintain", maintain)
    found = until_found("ticker", "fault")
    assert any("the session went on" in violation.text for violation in found.violations)


# A second life while the first one lives.


def besieged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Point], list[Point], Lived]:
    """Live, and have somebody else try to open the store at every point: where it was refused, and where it was not."""
    refused: list[Point] = []
    let_in: list[Point] = []
    arrived = CrashPlan._arrived

    def intrude(self: CrashPlan, point: Point) -> None:
        arrived(self, point)
        if let_in or not (folder / STORE).exists():
            return
        opening = SqliteStorage(folder / STORE, inline=True).open()
        try:
            opening.send(None)  # inline: it never suspends
        except StoreOwned:
            refused.append(point)
        except StopIteration:
            let_in.append(point)

    monkeypatch.setattr(CrashPlan, "_arrived", intrude)
    lived = run_here(builtin("ticker"), folder / STORE, folder / LEDGER, Plan())
    return refused, let_in, lived


@pytest.mark.mutants("lock that is held and not respected")
def test_f5_a_second_owner_beside_a_living_one_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    respectless = types.SimpleNamespace(flock=lambda *_asked: None, LOCK_EX=0, LOCK_NB=0)
    monkeypatch.setattr(ownership, "fcntl", respectless)
    _, let_in, lived = besieged(tmp_path, monkeypatch)
    assert let_in
    assert isinstance(lived.error, AnotherWriter)  # F5: and what lets it in by mistake is stopped by the token
