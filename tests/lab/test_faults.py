"""Faults of the disk: every operation of a small scenario fails once, and nothing that was said about it is wrong."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pidurable_nb import Done, Harness, Input, Phase, Runtime
from pidurable_nb.errors import StorageError
from pidurable_nb.lab.dying.identity import STORE
from pidurable_nb.lab.dying.vfs import RecordingVfs, replay
from pidurable_nb.lab.images.image_check import Checker
from pidurable_nb.lab.images.images import image
from pidurable_nb.lab.images.recording import Recording, record
from pidurable_nb.lab.scenario import Facts, Scenario, outcomes_are
from pidurable_nb.lab.sweeping.failing import (
    FAULTS,
    Fault,
    FaultGate,
    FaultRun,
    Place,
    expected_stored,
    places,
    run_fault,
    wrong,
)
from pidurable_nb.lab.sweeping.faults import Faulty
from pidurable_nb.store.storage import PutEntry, Storage
from pidurable_nb.testing.storage_checks import commit, entry, start

WAL_LIMIT = 12


class Count(Phase[str], task="counter", version=1):
    """Counts, and remembers each number at once."""

    n: int
    to: Input[int]

    async def run(self, rt: Runtime) -> Count | Done[str]:
        await rt.memo(f"said-{self.n}", True, barrier=True)
        async with rt.commit() as tx:
            tx.append("app.number", text=f"{self.n}")
            return tx.become(Done("counted") if self.n == self.to else Count(self.n + 1, self.to))


async def begin(harness: Harness) -> None:
    root = await harness.root()
    await root.start(Count(1, 2))


def counted(facts: Facts) -> Iterator[str]:
    yield from outcomes_are(facts, counter="completed")
    numbers = [entry for entry in facts.entries if entry.kind == "app.number"]
    if len(numbers) != 2:
        yield f"{len(numbers)} numbers were written, not 2 (C1)"


COUNTER = Scenario(
    name="counter",
    title="counts to two",
    module=__name__,
    tasks=lambda: [Count],
    begin=begin,
    invariants=counted,
    kill_point=None,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The counter without a fault."""
    return record(COUNTER, tmp_path_factory.mktemp("whole"), wal_limit_pages=WAL_LIMIT)


def all_right(whole: Recording, chosen: Sequence[Place], folder: Path, *, stays: bool = False) -> list[FaultRun]:
    """Let each of these faults happen, and fail with every sentence about what is wrong then."""
    faulty = Faulty(COUNTER, folder, wal_limit_pages=WAL_LIMIT)
    assert faulty.whole.ops == whole.ops
    met = [faulty.meet(place, stays=stays) for place in chosen]
    assert [(str(each.run.place), each.problems) for each in met if each.problems] == []
    assert all(each.run.happened for each in met)
    return [each.run for each in met]


def said(runs: Sequence[FaultRun]) -> Counter[tuple[str, str, str | None]]:
    failures = [(run.place.fault, run.recording.failure) for run in runs]
    return Counter((fault, failure.doing, failure.stored) for fault, failure in failures if failure is not None)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault", FAULTS)
def test_f4_every_operation_fails_once_and_no_error_is_certain_that_is_not(
    whole: Recording, fault: Fault, tmp_path: Path
) -> None:
    chosen = list(places(whole, (fault,)))
    assert len(chosen) > 30
    found = said(all_right(whole, chosen, tmp_path))
    commits = {stored for (_, doing, stored) in found if doing == "commit"}
    assert commits == ({"unknown"} if fault == "eio" else {"no"})
    print(f"{fault}: {len(chosen)} runs, {dict(found)}")


@pytest.mark.parametrize("fault", FAULTS)
def test_f4_some_operations_of_each_kind_fail_and_the_next_life_finishes_everything(
    whole: Recording, fault: Fault, tmp_path: Path
) -> None:
    every = list(places(whole, (fault,)))
    chosen = [place for place in every if place.op in ("truncate", "delete")][:2]
    chosen += [place for place in every if place.op == "sync"][::7]
    chosen += [place for place in every if place.op in ("write", "lock")][::41]
    found = said(all_right(whole, chosen, tmp_path))
    assert {stored for (_, doing, stored) in found if doing == "commit"} <= ({"unknown"} if fault == "eio" else {"no"})


@pytest.mark.parametrize("fault", ["eio", "full"])
def test_f1_a_disk_that_stays_broken_ends_the_session_and_the_next_life_finishes_everything(
    whole: Recording, fault: Fault, tmp_path: Path
) -> None:
    writes = [place for place in places(whole, (fault,)) if place.op == "write"]
    runs = all_right(whole, writes[70::29], tmp_path, stays=True)
    assert all(run.recording.failure is not None for run in runs)


def test_f4_a_commit_whose_sync_failed_may_come_to_life_and_is_unknown(whole: Recording, tmp_path: Path) -> None:
    """SQLite says that it rolled back; a kill brings the commit back."""
    told = next(told for told in whole.told if told.barrier)
    syncs = [op.n for op in whole.ops if op.op == "sync"]
    run = run_fault(COUNTER, tmp_path, Place("eio", "sync", syncs.index(told.after_op) + 1), wal_limit_pages=WAL_LIMIT)
    failure = run.recording.failure
    assert failure is not None
    assert (failure.doing, failure.stored) == ("commit", "unknown")
    with Checker(run.recording, fits=whole.contents().fits) as checker:
        left = checker.check(image(run.recording, f"kill@{told.after_op - 1}"))
    assert left.newest == told.newest
    assert left.outcome == "as_promised"
    sure = StorageError("certain", stored="no")
    lied = replace(run, recording=replace(run.recording, failure=replace(failure, error=sure)))
    found = [problem.text for problem in wrong(lied, whole)]
    assert any("which is not so (F4)" in text for text in found)
    assert any("had not been begun" in text for text in found)


def test_f4_a_commit_that_is_not_stored_is_found_missing_when_an_acknowledgement_lied(
    whole: Recording, tmp_path: Path
) -> None:
    """A negative control of the judge: an acknowledgement that never was is a loss."""
    run = run_fault(COUNTER, tmp_path, Place("full", "write", 80), wal_limit_pages=WAL_LIMIT)
    failure = run.recording.failure
    assert failure is not None
    assert failure.stored == "no"
    told = run.recording.told[-1]
    lie = replace(told, begun_after=failure.begun_after, after_op=failure.after_op - 1, newest=told.newest + 1)
    lied = replace(run, recording=replace(run.recording, told=(*run.recording.told, lie)))
    assert list(wrong(run, whole)) == []
    assert "lost_acknowledged" in {problem.kind for problem in wrong(lied, whole)}


def test_a_short_write_leaves_its_first_half_in_the_file_and_the_record_says_so(tmp_path: Path) -> None:
    gate = FaultGate(Place("short", "write", 4))
    vfs = RecordingVfs(gate=gate.gate)
    connection = sqlite3.connect(vfs.uri(tmp_path / STORE), uri=True, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        for n in range(9):
            connection.execute(f"CREATE TABLE t{n} (k)")
    assert gate.met is not None
    assert gate.met.size is not None
    [cut] = [op for op in vfs.ops if op.n == gate.met.n]
    assert cut.size == len(cut.data or b"") == gate.met.size // 2
    for path in tmp_path.iterdir():
        if not path.name.endswith("-shm"):
            assert path.read_bytes() == replay(vfs.ops).get(path.name, b"")
    connection.close()
    assert vfs.close()


def test_a_busy_lock_is_met_by_the_one_who_asks_and_nothing_reaches_the_files(tmp_path: Path) -> None:
    refuse = False
    vfs = RecordingVfs(lock_gate=lambda slot: sqlite3.SQLITE_BUSY if refuse and slot == 0 else None)
    connection = sqlite3.connect(vfs.uri(tmp_path / STORE), uri=True, isolation_level=None, timeout=0)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t (k)")
    before, refuse = vfs.count, True
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        connection.execute("BEGIN IMMEDIATE")
    assert vfs.count == before
    refuse = False
    connection.execute("INSERT INTO t VALUES (1)")
    connection.close()
    assert vfs.close()


def test_the_first_sync_of_a_log_and_a_delete_that_asks_make_names_safe(tmp_path: Path) -> None:
    vfs = RecordingVfs()
    connection = sqlite3.connect(vfs.uri(tmp_path / STORE), uri=True, isolation_level=None)
    connection.execute("PRAGMA synchronous=EXTRA")
    connection.execute("CREATE TABLE t (k)")
    journal, log = f"{STORE}-journal", f"{STORE}-wal"
    deleted = [op for op in vfs.ops if op.op == "delete"]
    assert [op.directory for op in deleted] == [(STORE,)]
    connection.execute("PRAGMA journal_mode=WAL")
    for _ in range(3):
        connection.execute("INSERT INTO t VALUES (1)")
    safe = [(op.file, op.directory) for op in vfs.ops if op.op == "sync" and op.directory is not None]
    assert safe[0] == (journal, (STORE, journal))
    assert [file for file, _ in safe].count(log) == 1
    assert (log, (STORE, log)) in safe
    connection.close()
    assert vfs.close()


def test_work_that_is_no_scenario_is_recorded_and_goes_on_behind_a_full_disk(tmp_path: Path) -> None:
    """F4: a smaller commit behind one for which there was no space may be stored."""
    stored: list[int] = []

    async def work(storage: Storage) -> None:
        await storage.open()
        await start(storage)
        for text in ("a", "b" * 50_000, "c"):
            with contextlib.suppress(StorageError):
                stored.append(await commit(storage, PutEntry(entry(storage.mint(), data=text))))
        await storage.close()

    (tmp_path / "whole").mkdir()
    whole = record(work, tmp_path / "whole")
    assert stored == [2, 3, 4]
    big = next(told for told in whole.told if told.newest == 3)
    writes = [op.n for op in whole.ops if op.op == "write"]
    place = Place("full", "write", next(at for at, n in enumerate(writes, start=1) if n > big.begun_after + 6))
    stored.clear()
    (tmp_path / "full").mkdir()
    run = run_fault(work, tmp_path / "full", place)
    assert stored == [2, 3]
    assert run.recording.failure is not None
    assert run.recording.failure.stored == "no"
    assert [told.newest for told in run.recording.told] == [0, 1, 2, 3]
    with Checker(run.recording) as checker:
        left = checker.check(image(run.recording, f"kill@{run.recording.last}"))
    assert (left.newest, left.outcome) == (3, "as_promised")


@pytest.mark.parametrize("name", ["eio@sync:3", "full@write:12", "short@write:1", "busy@lock:7"])
def test_a_place_has_a_name_that_gives_it_back(name: str) -> None:
    assert str(Place.parse(name)) == name


@pytest.mark.parametrize("name", ["", "eio", "eio@sync", "eio@sync:0", "eio@read:1", "flood@write:1", "eio@write:x"])
def test_another_name_is_refused_with_what_one_looks_like(name: str) -> None:
    with pytest.raises(ValueError, match="eio@sync:3"):
        Place.parse(name)


@pytest.mark.parametrize(
    ("place", "doing", "log", "stored"),
    [
        ("busy@lock:1", "commit", True, {"no"}),
        ("full@write:1", "commit", True, {"no"}),
        ("short@write:1", "commit", True, {"no"}),
        ("full@write:1", "maintain", False, {"unknown"}),
        ("eio@write:1", "commit", True, {"unknown"}),
        ("eio@sync:1", "commit", True, {"unknown"}),
        ("eio@truncate:1", "close", True, {"unknown"}),
    ],
)
def test_f4_what_is_known_of_a_fault(place: str, doing: str, log: bool, stored: set[str]) -> None:
    assert expected_stored(Place.parse(place), doing, log=log) == stored


def test_a_run_has_a_place_for_every_operation_and_every_fault_that_it_can_meet(whole: Recording) -> None:
    found = Counter((place.fault, place.op) for place in places(whole, FAULTS))
    kinds = Counter(op.op for op in whole.ops)
    assert {op: found["eio", op] for op in kinds} == kinds
    assert found["full", "write"] == kinds["write"]
    assert found["busy", "lock"] == whole.locks > 20
    assert ("full", "sync") not in found
