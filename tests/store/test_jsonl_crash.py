"""Whatever a kill or a power cut leaves of a JSONL store, it opens as a beginning of what was committed.

The disk is a model (`jsonl_disk`): under it and for these runs, and nothing more. Every image is a real folder that is
really opened.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from pidurable_nb.errors import PidurableError
from pidurable_nb.store import jsonl_holding, jsonl_journal, jsonl_main, jsonl_recovery, jsonl_sidecars
from pidurable_nb.store.jsonl import JsonlStorage
from pidurable_nb.store.jsonl_journal import Journal
from pidurable_nb.store.jsonl_main import MainFile, read_main
from pidurable_nb.store.jsonl_sidecars import Sidecars
from pidurable_nb.store.jsonl_tables import Addition, Prepared
from tests.store.jsonl_disk import Cut, Recorder, kill_images, power_images, put
from tests.store.jsonl_story import Told, tell, wrong_with


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Space is reclaimed early and descriptors are few, so that short runs do everything."""
    monkeypatch.setattr(jsonl_sidecars, "MOST_ENDED", 2)
    monkeypatch.setattr(jsonl_sidecars, "MOST_WASTE", 300)
    monkeypatch.setattr(jsonl_sidecars, "SMALL_WASTE", 100)
    monkeypatch.setattr(jsonl_sidecars, "MOST_OPEN", 3)


async def sweep(
    cuts: Iterable[Cut], told: Told, folder: Path, *, power: bool = False, most: int = 10
) -> tuple[int, list[str]]:
    """How many images were looked at, and what was wrong with which, up to the first `most`."""
    count, wrong = 0, list[str]()
    for cut in cuts:
        count += 1
        bounds = told.bounds(cut.done, power=power)
        problem = await wrong_with(cut.image, told, bounds, folder, go_on=count % 3 == 0)
        if problem:
            wrong.append(f"{cut}: {problem}")
            if len(wrong) >= most:
                break
    return count, wrong


def swept(
    tmp_path: Path, *, seed: int, fsync: bool = False, power: bool = False, groups: int = 12, most: int = 10
) -> tuple[int, list[str]]:
    """Record a run and sweep what a kill, or a power cut, leaves of it."""

    async def main() -> tuple[int, list[str]]:
        told = await tell(tmp_path / "run", seed=seed, groups=groups, fsync=fsync)
        cuts = power_images(told.ops, {}, seed=seed, each=4) if power else kill_images(told.ops, {})
        return await sweep(cuts, told, tmp_path / "image", power=power, most=most)

    return asyncio.run(main())


# --- Kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "fsync"), [(1, False), (2, True), (3, False), (4, True)])
def test_c1_every_kill_leaves_a_beginning_of_what_was_committed(tmp_path: Path, seed: int, fsync: bool) -> None:
    count, wrong = swept(tmp_path, seed=seed, fsync=fsync)
    assert wrong == []
    assert count >= 500  # the four together: more than 2,000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 28))
def test_c1_every_kill_of_many_runs_leaves_a_beginning_of_what_was_committed(tmp_path: Path, seed: int) -> None:
    count, wrong = swept(tmp_path, seed=seed, fsync=seed % 3 == 0, groups=13)
    assert wrong == []
    assert count >= 400  # the eighteen together: more than 10,000


async def recovery_of(cut: Cut, folder: Path, *, fsync: bool) -> Recorder:
    """What an opening does to an image."""
    files = Recorder(cut.image)
    storage = JsonlStorage(put(cut.image, folder), inline=True, fsync=fsync, files=files)
    await storage.open()
    await storage.close()
    return files


@pytest.mark.parametrize("power", [False, True])
def test_c1_a_recovery_that_is_cut_off_itself_loses_nothing(tmp_path: Path, power: bool) -> None:
    async def main() -> tuple[int, list[str]]:
        told = await tell(tmp_path / "run", seed=5, groups=12, fsync=power)
        firsts = power_images(told.ops, {}, seed=5, each=2) if power else kill_images(told.ops, {})
        count, wrong = 0, list[str]()
        for first in list(firsts)[::29]:
            low, high = told.bounds(first.done, power=power)
            files = await recovery_of(first, tmp_path / "first", fsync=power)
            again = (
                power_images(files.ops, first.image, seed=1, each=1) if power else kill_images(files.ops, first.image)
            )
            for second in again:
                count += 1
                problem = await wrong_with(second.image, told, (low, high), tmp_path / "second")
                wrong += [f"{first}, then {second}: {problem}"] if problem else []
        return count, wrong

    count, wrong = asyncio.run(main())
    assert wrong == []
    assert count >= 200


# --- Power cuts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [6, 7])
def test_e5_a_power_cut_takes_newest_commits_and_never_a_barrier(tmp_path: Path, seed: int) -> None:
    count, wrong = swept(tmp_path, seed=seed, fsync=True, power=True)
    assert wrong == []
    assert count >= 350


def test_e5_a_store_that_was_not_synced_is_synced_by_the_opening_that_says_so(tmp_path: Path) -> None:
    async def main() -> tuple[int, list[str]]:
        folder = tmp_path / "run"
        before = await tell(folder, seed=8, groups=8, fsync=False)
        files = Recorder({path.name: path.read_bytes() for path in folder.iterdir()})
        storage = JsonlStorage(folder, inline=True, fsync=True, files=files)
        await storage.open()
        signed = next(place for place, op in enumerate(files.ops) if op.kind == "append")
        synced = {op.name for op in files.ops[:signed] if op.kind == "fsync"}
        assert synced == {path.name for path in folder.iterdir() if path.suffix == ".jsonl"}
        assert files.ops[signed - 1].kind == "fsync_dir"
        await storage.close()
        cuts = list(kill_images(files.ops, put_back(before)))
        count = len(before.pictures) - 1
        told = dataclasses.replace(before, begun=[(0, count)], acknowledged=[(0, count)])
        return await sweep(cuts, told, tmp_path / "image")

    count, wrong = asyncio.run(main())
    assert wrong == []
    assert count > 3


def put_back(told: Told) -> dict[str, bytes]:
    """What stands in the folder at the end of a run."""
    *_, last = kill_images(told.ops, {}, most_torn=0)
    return last.image


# --- Mutants: a storage that does one thing wrong is found out --------------------------------------------------------


class Late(Journal):
    """Writes the sidecars behind the line that names them."""

    def append(self, group: Sequence[Prepared], *, barrier: bool) -> None:
        additions = [addition for prepared in group for addition in prepared.additions]
        self._write(b"".join([self._line(prepared) for prepared in group]))
        self._sidecars.append(additions)
        if barrier and self._fsync:
            self._sync()
        self._sidecars.confirm(additions, [name for prepared in group for name in prepared.ended])


class Deaf(Journal):
    """Says that it synced."""

    def _sync(self) -> None:
        self._synced = self._size


class Hasty(Sidecars):
    """Does not sync sidecars before the line that names them."""

    def append(self, additions: Iterable[Addition]) -> None:
        self._fsync = False
        super().append(additions)
        self._fsync = True


class Greedy(Journal):
    """Reclaims space before the lines that allow it are on disk."""

    def maintain(self, *, closing: bool = False) -> None:
        removals, rewrites = self._sidecars.due(closing=closing)
        self._sidecars.reclaim(removals, rewrites)


def found_out(tmp_path: Path, *, fsync: bool = False, power: bool = False) -> list[str]:
    """The first image of the first few runs in which something is wrong."""
    for seed in range(1, 6):
        _, wrong = swept(tmp_path / str(seed), seed=seed, fsync=fsync, power=power, groups=10, most=1)
        if wrong:
            return wrong
    return []


def test_a_sidecar_that_is_written_late_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_holding, "Journal", Late)
    assert "DamagedStore" in found_out(tmp_path)[0]


def test_a_torn_tail_that_is_glued_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def glued(path: Path, data: bytes) -> MainFile:
        main = read_main(path, data)
        return dataclasses.replace(main, good=main.good + main.torn, torn=0)

    monkeypatch.setattr(jsonl_recovery, "read_main", glued)
    assert "damaged" in found_out(tmp_path)[0]


class Any(str):
    """A checksum that fits everything."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True


def test_a_checksum_that_nobody_compares_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_recovery, "checksum", lambda data: Any())
    assert "something else" in found_out(tmp_path)[0]


def test_a_line_whose_checksum_nobody_compares_is_found_out_by_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl_main, "unsealed", lambda line: line[33:-1] if line.startswith(b'{"sum"') else None)
    assert found_out(tmp_path, fsync=True, power=True)


@pytest.mark.parametrize("mutant", [Deaf, Greedy])
def test_a_journal_that_does_not_sync_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: type[Journal]
) -> None:
    monkeypatch.setattr(jsonl_holding, "Journal", mutant)
    assert found_out(tmp_path, fsync=True, power=True)


def test_sidecars_that_are_not_synced_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_journal, "Sidecars", Hasty)
    assert found_out(tmp_path, fsync=True, power=True)


def test_names_that_are_not_synced_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "fsync_dir", lambda files, folder: None)
    assert found_out(tmp_path, fsync=True, power=True)


# --- Damage -----------------------------------------------------------------------------------------------------------


def flips(image: dict[str, bytes], step: int) -> Iterator[tuple[str, int, dict[str, bytes]]]:
    """The image with one byte changed, at every `step`-th place of every file."""
    for name, content in image.items():
        for at in range(0, len(content), step):
            changed = bytes([content[at] ^ 0x01])
            yield name, at, {**image, name: content[:at] + changed + content[at + 1 :]}


@pytest.mark.parametrize("fsync", [False, True])
def test_a_flipped_byte_is_damage_and_never_another_store(tmp_path: Path, fsync: bool) -> None:
    async def main() -> None:
        told = await tell(tmp_path / "run", seed=9, groups=8, fsync=fsync)
        image, count = put_back(told), len(told.pictures) - 1
        refused = 0
        for name, at, changed in flips(image, 13):
            problem = await wrong_with(changed, told, (count, count), tmp_path / "image")
            assert not problem or problem.startswith("DamagedStore"), (name, at, problem)
            # What stays unseen is where nothing is read any more: in front of a newer whole value, and the note at the
            # end of a synced store, how far it is synced, which is written behind the last sync.
            last = image[name].rstrip().rfind(b"\n") if fsync else len(image[name])
            assert problem or name != "main.jsonl" or at > last, (name, at)
            refused += bool(problem)
            if problem:
                before = {path.name: path.read_bytes() for path in (tmp_path / "image").iterdir()}
                assert before == changed  # a refusal changes nothing
        assert refused > 100

    asyncio.run(main())


@pytest.mark.parametrize("fsync", [False, True])
def test_a_sidecar_that_is_needed_and_missing_is_named(tmp_path: Path, fsync: bool) -> None:
    async def main() -> None:
        told = await tell(tmp_path / "run", seed=9, groups=8, fsync=fsync)
        image = put_back(told)
        assert len(image) > 2
        for name in image:
            left = {other: content for other, content in image.items() if other != name}
            with pytest.raises(PidurableError, match=name.replace(".", r"\.")):
                await JsonlStorage(put(left, tmp_path / "image"), inline=True).open()

    asyncio.run(main())
