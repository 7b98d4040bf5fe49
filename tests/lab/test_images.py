"""Crash images: they are what a crash leaves, every durability keeps its promise in them, and a broken one shows.

Under the disk model of `lab.disk`, for the work recorded here.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pidurable_nb import Done, Harness, Input, Phase, Runtime
from pidurable_nb.lab.dying.identity import STORE
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import LEDGER, Plan, run_here
from pidurable_nb.lab.dying.vfs import FileOp, RecordingVfs, Short, replay, seed_prng
from pidurable_nb.lab.images.image_check import Checker, Finding, Outcome, check, lay_out
from pidurable_nb.lab.images.images import Effort, Image, NoSuchImage, image, kill_images, power_images
from pidurable_nb.lab.images.promises import Told
from pidurable_nb.lab.images.recording import Here, Recording, record
from pidurable_nb.lab.scenario import Scenario, builtin, facts_of, violations
from pidurable_nb.store.plain import Content, content
from pidurable_nb.store.sqlite import Durability

WAL_LIMIT = 60
DURABILITIES: tuple[Durability, ...] = ("kill", "barrier", "power")
BAD: tuple[Outcome, ...] = ("lost_acknowledged", "corrupt")


class Page(Phase[str], task="scribe", version=1):
    """Writes pages of several lengths; before every seventh is a barrier."""

    n: int
    to: Input[int]

    async def run(self, rt: Runtime) -> Page | Done[str]:
        if self.n % 7 == 3:
            await rt.memo(f"seventh-{self.n}", True, barrier=True)
        async with rt.commit() as tx:
            tx.append("app.page", text=f"{self.n:04}" * (5, 40, 300, 1500)[self.n % 4])
            if self.n == self.to:
                return tx.become(Done("written"))
            return tx.become(Page(self.n + 1, self.to))


def scribes(*, many: int, pages: int) -> Scenario:
    async def begin(harness: Harness) -> None:
        root = await harness.root()
        for _ in range(many):
            await root.start(Page(1, pages))

    return Scenario(
        name="scribes", title="pages and pages", module=__name__, tasks=lambda: [Page], begin=begin, kill_point=None
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Durability], Recording]:
    """Some hundred commits with many folds of the log, once for each durability."""
    known: dict[Durability, Recording] = {}

    def get(durability: Durability) -> Recording:
        if durability not in known:
            folder = tmp_path_factory.mktemp(durability)
            work = scribes(many=2, pages=85)
            known[durability] = record(work, folder, durability=durability, wal_limit_pages=WAL_LIMIT)
        return known[durability]

    return get


def outcomes(recording: Recording, images: Iterable[Image]) -> Counter[Outcome]:
    """What became of the images; a violation fails with its sentence."""
    found: Counter[Outcome] = Counter()
    with Checker(recording) as checker:
        for each in images:
            finding = checker.check(each)
            assert finding.outcome not in BAD, finding
            found[finding.outcome] += 1
    return found


def spread(recording: Recording, step: int) -> set[int]:
    """Every so many operations, and the neighbourhood of three folds."""
    chosen = {op.n for op in recording.ops[::step]}
    folds = recording.folds()
    for fold in (folds[0], folds[len(folds) // 2], folds[-1]):
        chosen |= {n for sync in fold for n in (sync - 1, sync, sync + 1)}
    return chosen


# What is recorded.


def test_a_recording_holds_commits_barriers_and_many_folds_of_the_log(
    recorded: Callable[[Durability], Recording],
) -> None:
    for durability in DURABILITIES:
        recording = recorded(durability)
        assert len(recording.told) > 190
        assert sum(told.barrier for told in recording.told) > 20
        assert len([fold for fold in recording.folds() if len(fold) >= 2]) > 10
        assert [told.newest for told in recording.told] == list(range(len(recording.told)))
        assert all(before.after_op <= after.begun_after for before, after in pairwise(recording.told))


def test_one_seed_gives_one_recording_to_the_byte_and_another_seed_another(tmp_path: Path) -> None:
    found = []
    for name, seed in (("one", 5), ("same", 5), ("other", 6)):
        folder = tmp_path / name
        folder.mkdir()
        found.append(record(scribes(many=3, pages=4), folder, seed=seed, wal_limit_pages=20))
        assert replay(found[-1].ops)[STORE] == (folder / STORE).read_bytes()
    one, same, other = found
    assert one == same
    assert one.ops != other.ops


def test_a_recording_begins_with_nothing(tmp_path: Path) -> None:
    record(scribes(many=1, pages=1), tmp_path)
    with pytest.raises(ValueError, match="exists"):
        record(scribes(many=1, pages=1), tmp_path)


# Kills.


class Frozen(Exception):
    """From here on nothing reaches the files."""


def left_by(folder: Path, n: int, cut: int | None) -> dict[str, bytes]:
    """What is on disk when nothing reaches it from operation `n` on, but for the first `cut` bytes of that."""

    def gate(op: FileOp) -> Short | None:
        if op.n == n and cut is not None:
            return Short(cut, sqlite3.SQLITE_IOERR_WRITE)
        if op.n >= n:
            raise Frozen
        return None

    folder.mkdir()
    record(scribes(many=2, pages=12), folder, wal_limit_pages=30, gate=gate)
    paths = [folder / f"{STORE}{end}" for end in ("", "-wal", "-journal")]
    found = {path.name: path.read_bytes() for path in paths if path.exists()}
    return {name: data for name, data in found.items() if data}


def test_kill_images_are_what_a_freeze_leaves_to_the_byte_and_torn_ones_what_a_cut_write_leaves(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    recording = record(scribes(many=2, pages=12), tmp_path / "whole", wal_limit_pages=30)
    assert len([fold for fold in recording.folds() if len(fold) == 3]) >= 3
    for op in recording.ops[5::67]:
        made = image(recording, f"kill@{op.n - 1}")
        assert left_by(tmp_path / f"{op.n}", op.n, None) == made.files
        assert made.files == {name: data for name, data in replay(recording.ops[: op.n - 1]).items() if data}
    torn = [each for each in kill_images(recording) if "+" in each.name]
    assert len(torn) > 50
    for each in torn[3::61]:
        n, _, cut = each.name.removeprefix("kill@").partition("+")
        assert left_by(tmp_path / each.name, int(n), int(cut)) == each.files


@pytest.mark.parametrize("durability", DURABILITIES)
def test_c2_a_kill_loses_nothing_acknowledged_under_any_durability(
    recorded: Callable[[Durability], Recording], durability: Durability
) -> None:
    recording = recorded(durability)
    found = outcomes(recording, kill_images(recording, behind=spread(recording, 40)))
    assert set(found) == {"as_promised"}
    assert found["as_promised"] > 80


def test_the_same_bytes_are_one_image_and_behind_another_effect_another(tmp_path: Path) -> None:
    recording = replace(record(scribes(many=1, pages=3), tmp_path), course=(), ledger=bytes(50))
    names = {each.name for each in kill_images(recording)}
    sync = next(op.n for op in recording.ops if op.op == "sync" and f"kill@{op.n}" not in names)
    effect = Here(after_op=sync, point=Point.parse("scribe#1/page:effect.after"), at_ms=0, ledger_bytes=50)
    acted = {each.name for each in kill_images(replace(recording, course=(effect,)))}
    assert acted - names == {f"kill@{sync}"}
    assert image(recording, f"kill@{sync}").key == image(recording, f"kill@{sync - 1}").key


# Power cuts.


def test_e5_a_power_cut_loses_no_acknowledged_commit_under_durability_power(
    recorded: Callable[[Durability], Recording],
) -> None:
    recording = recorded("power")
    found = outcomes(recording, power_images(recording, behind=spread(recording, 60), effort=Effort(per_op=8)))
    assert set(found) == {"as_promised"}
    assert found["as_promised"] > 200


def test_e5_a_power_cut_loses_no_barrier_under_durability_barrier(
    recorded: Callable[[Durability], Recording],
) -> None:
    recording = recorded("barrier")
    found = outcomes(recording, power_images(recording, behind=spread(recording, 60), effort=Effort(per_op=8)))
    assert found["lost_within_bound"] > 30
    assert found["as_promised"] > 60


def test_e5_a_power_cut_under_durability_kill_loses_what_came_behind_the_last_sync_of_the_log_and_no_more(
    recorded: Callable[[Durability], Recording],
) -> None:
    recording = recorded("kill")
    found = outcomes(recording, power_images(recording, behind=spread(recording, 60), effort=Effort(per_op=8)))
    assert found["lost_within_bound"] > 60


def test_images_of_a_power_cut_repeat_with_their_seed_and_are_made_again_from_their_names(
    recorded: Callable[[Durability], Recording],
) -> None:
    recording = recorded("kill")
    behind = {op.n for op in recording.ops[::401]}

    def made(seed: int) -> list[Image]:
        return list(power_images(recording, seed=seed, behind=behind))

    one, other = made(3), made(4)
    assert [(each.name, each.key) for each in one] == [(each.name, each.key) for each in made(3)]
    assert [(each.name, each.key) for each in one] != [(each.name, each.key) for each in other]
    words = {each.name.partition("/")[2].partition(":")[0] for each in one}
    assert words >= {"keep", "drop", "from", "random", "shred", "head", "tail"}
    for each in one[::5]:
        assert image(recording, each.name, seed=3) == each
    assert len({(each.key, each.acknowledged, each.told, each.most) for each in one}) == len(one)


@pytest.mark.parametrize(
    "name", ["", "kill@-1", "kill@5+", "kill@9999999", "kill@12+17", "power@40", "power@40/keep:900000",
             "power@40/subset:zz", "power@40/from:-1", "power@40/nothing:1", "power@40/head:1", "flood@3"],
)  # fmt: skip
def test_a_name_that_stands_for_no_image_is_refused(recorded: Callable[[Durability], Recording], name: str) -> None:
    with pytest.raises(NoSuchImage):
        image(recorded("kill"), name)


def test_a_small_number_of_pending_operations_has_all_its_subsets_taken(
    recorded: Callable[[Durability], Recording],
) -> None:
    recording = recorded("power")
    [log, database, *_] = recording.folds()[3]
    first = next(op.n for op in recording.ops if op.n > log)
    assert database - first > 3
    names = [each.name for each in power_images(recording, behind={first + 2}, effort=Effort(per_op=100))]
    assert {f"power@{first + 2}/subset:{mask:x}" for mask in range(8)} <= set(names)


# A checker must find its own mutants.


def found_in(recording: Recording, behind: Iterable[int], effort: Effort) -> Iterator[Finding]:
    with Checker(recording) as checker:
        for each in power_images(recording, behind=set(behind), effort=effort):
            finding = checker.check(each)
            if finding.outcome in BAD:
                yield finding


@pytest.mark.parametrize("sync", [0, 1, 2], ids=["log", "database", "header"])
def test_a_dropped_sync_of_a_fold_or_of_a_new_log_is_detected(
    recorded: Callable[[Durability], Recording], sync: int
) -> None:
    recording = recorded("kill")
    whole = [fold for fold in recording.folds() if len(fold) == 3]
    assert len(whole) >= 3
    for at in (len(whole) // 3, len(whole) // 2, len(whole) - 2):
        dropped, end = whole[at][sync], whole[at + 1][0]
        behind = [op.n for op in recording.ops if dropped <= op.n < end]
        effort = Effort(per_op=40, samples=8)
        assert next(found_in(recording.without(dropped), behind, effort), None) is not None, whole[at]


def test_a_dropped_sync_of_a_commit_is_detected_under_power_and_of_a_barrier_under_barrier(
    recorded: Callable[[Durability], Recording],
) -> None:
    for durability in ("power", "barrier"):
        recording = recorded(durability)
        told = [told for told in recording.told if told.barrier][5]
        mutant = recording.without(told.after_op)
        assert {op.n for op in recording.ops} - {op.n for op in mutant.ops} == {told.after_op}
        finding = next(found_in(mutant, [told.after_op - 1, told.after_op + 1], Effort()), None)
        assert finding is not None
        assert finding.outcome == "lost_acknowledged"


def test_a_commit_in_two_pieces_is_detected(tmp_path: Path) -> None:
    """C1: the rows of a commit whose number is not there yet, or the other way round, are those of no commit."""
    recording = raw(tmp_path, "FULL", commits=12, in_one=False)
    with Checker(recording, reader=pages, fits=fits) as checker:
        found = [checker.check(each) for each in kill_images(recording)]
    assert any(finding.outcome == "corrupt" and "rows" in finding.text for finding in found)


# SQLite without the storage, at settings that the storage never uses.


def pages(connection: sqlite3.Connection) -> Content:
    """What `raw` wrote: numbered pages, and how many there are to be."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'page'").fetchone():
        return Content(0, frozenset())
    found = connection.execute("SELECT * FROM page").fetchall()
    return Content(connection.execute("SELECT count FROM book").fetchone()[0], frozenset(found))


def fits(found: Content) -> bool:
    numbers = sorted(int(str(row[0])) for row in found.rows)
    return numbers == list(range(1, found.newest + 1))


def raw(folder: Path, synchronous: str, *, commits: int, in_one: bool = True) -> Recording:
    """A book that grows in a plain database; automatic folds every eight pages."""
    vfs = RecordingVfs()
    seed_prng(7)
    connection = sqlite3.connect(vfs.uri(folder / STORE), uri=True, isolation_level=None)
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA wal_autocheckpoint=8")
    connection.executescript(
        "BEGIN; CREATE TABLE page (n INTEGER PRIMARY KEY, text TEXT, mark REAL); CREATE INDEX marks ON page (mark);"
        "CREATE TABLE book (count INTEGER); INSERT INTO book VALUES (0); COMMIT"
    )
    told = [Told(begun_after=0, after_op=vfs.count, newest=0, barrier=False)]
    for n in range(1, commits + 1):
        begun = vfs.count
        if in_one:
            connection.execute("BEGIN")
        connection.execute("INSERT INTO page VALUES (?, ?, ?)", (n, "x" * (20, 300, 3000, 9000)[n % 4], n * 7 % 11))
        if n > 3:
            connection.execute("UPDATE page SET mark = ? WHERE n = ?", (n / 2, 1 + n * 5 % (n - 1)))
        connection.execute("UPDATE book SET count = ?", (n,))
        if in_one:
            connection.execute("COMMIT")
        told.append(Told(begun_after=begun, after_op=vfs.count, newest=n, barrier=True))
    connection.close()
    seed_prng(None)
    assert vfs.close()
    return Recording(store=STORE, durability="power", ops=tuple(vfs.ops), told=tuple(told))


def test_without_syncs_corruption_and_losses_are_found_and_with_them_neither(tmp_path: Path) -> None:
    found: dict[str, Counter[Outcome]] = {}
    for synchronous in ("OFF", "FULL"):
        folder = tmp_path / synchronous
        folder.mkdir()
        recording = raw(folder, synchronous, commits=11)
        assert any(op.op == "sync" for op in recording.ops) == (synchronous == "FULL")
        with Checker(recording, reader=pages, fits=fits) as checker:
            images = power_images(recording, effort=Effort(per_op=6))
            found[synchronous] = Counter(checker.check(each).outcome for each in images)
    assert set(found["FULL"]) == {"as_promised"}
    assert found["OFF"]["corrupt"] > 5
    assert found["OFF"]["lost_acknowledged"] > 60


# Going on from an image.


def beaten(durability: Durability, folder: Path) -> tuple[int, list[str]]:
    """How many images of power cuts the ticker went on from, and which promises were broken then."""
    ticker, sentences, lives = builtin("ticker"), list[str](), 0
    (folder / "whole").mkdir(parents=True)
    recording = record(ticker, folder / "whole", durability=durability, wal_limit_pages=40)
    made = recording.told[0].after_op
    making = [op.n for op in recording.ops if op.n <= made]
    behind = {op.n for op in recording.ops if op.n > made and op.file.endswith("-wal")}
    assert any(op.file.endswith("-journal") and op.n in making[:9] for op in recording.ops)
    for each in power_images(
        recording, behind=[*making[:9], *sorted(behind)[20::5]], effort=Effort(per_op=2, window=2)
    ):
        store = lay_out(each, recording, folder / each.name)
        plan = Plan(number=2, start_ms=recording.outside(each.after_op)[1] + 1000, durability=durability)
        lived = run_here(ticker, store, store.with_name(LEDGER), plan)
        assert lived.error is None
        sentences += [f"{each.name} {text}" for text in violations(ticker, facts_of(store, store.with_name(LEDGER)))]
        lives += 1
    return lives, sentences


def test_m3_behind_a_power_cut_nothing_is_printed_twice_where_the_memo_is_a_barrier_and_it_is_where_it_is_none(
    tmp_path: Path,
) -> None:
    lives, sentences = beaten("barrier", tmp_path / "barrier")
    assert lives > 20
    assert sentences == []
    lives, sentences = beaten("kill", tmp_path / "kill")
    assert lives > 20
    assert any("happened 2 times" in text for text in sentences)


def test_a_recording_knows_where_its_scenario_was_and_what_had_happened_outside(tmp_path: Path) -> None:
    recording = record(builtin("ticker"), tmp_path)
    assert recording.here(0) is None
    assert recording.ledger_at(0) == b""
    lines = [recording.ledger_at(n).count(b"\n") for n in range(recording.last + 1)]
    assert lines == sorted(lines)
    assert recording.ledger_at(recording.last) == recording.ledger == (tmp_path / LEDGER).read_bytes()
    assert recording.ledger.count(b"\n") == 10
    names = {str(here.point) for here in recording.course}
    assert "ticker#1/tick:effect.after@3" in names


# Looking.


def test_a_checker_opens_no_bytes_twice_and_reads_no_pages_twice(recorded: Callable[[Durability], Recording]) -> None:
    recording = recorded("barrier")
    images = list(kill_images(recording, behind={op.n for op in recording.ops[::60]}))
    with Checker(recording) as checker:
        first = [checker.check(each) for each in images]
        opened, read = checker.opened, checker.read
        assert [checker.check(each) for each in images] == first
        assert (checker.checked, checker.opened, checker.read) == (2 * len(images), opened, read)
        assert read < opened <= len(images)
        folder = checker._scratch.folder
        assert folder.exists()
    assert not folder.exists()


def test_a_single_image_is_checked_as_among_many(recorded: Callable[[Durability], Recording]) -> None:
    recording = recorded("barrier")
    for each in list(power_images(recording, behind={recording.last // 2}))[::4]:
        with Checker(recording) as checker:
            assert check(each, recording) == checker.check(each)


def test_what_is_behind_the_newest_that_was_begun_is_corrupt(recorded: Callable[[Durability], Recording]) -> None:
    recording = recorded("barrier")
    late = image(recording, f"kill@{recording.last}")
    early = Image(
        name=late.name, kind="kill", after_op=3, acknowledged=0, told=0, most=5, blocks=late.blocks, key=late.key
    )
    assert check(late, recording).outcome == "as_promised"
    assert check(early, recording).outcome == "corrupt"


def test_what_a_reader_saw_after_a_commit_is_put_together_again(tmp_path: Path) -> None:
    recording = record(scribes(many=2, pages=20), tmp_path, wal_limit_pages=40)
    contents = recording.contents()
    with sqlite3.connect(tmp_path / STORE) as connection:
        last = content(connection)
    connection.close()
    assert last.newest == recording.told[-1].newest
    assert contents.at(last.newest) == last.rows
    assert contents.at(last.newest + 1) is None
    rows: frozenset[tuple[object, ...]] = frozenset()
    for told in recording.told:
        rows = (rows - told.removed) | told.added
        assert contents.at(told.newest) == rows


# All of it.


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_e5_twenty_thousand_images_keep_what_their_durability_promises(
    recorded: Callable[[Durability], Recording],
) -> None:
    total = 0
    for durability in DURABILITIES:
        recording = recorded(durability)
        for kind, images in (
            ("kill", kill_images(recording, behind={op.n for op in recording.ops[::3]})),
            ("power", power_images(recording, effort=Effort(per_op=3))),
        ):
            begun, counts = time.monotonic(), Counter[Outcome]()
            with Checker(recording) as checker:
                for each in images:
                    finding = checker.check(each)
                    assert finding.outcome not in BAD, finding
                    counts[finding.outcome] += 1
            seconds = time.monotonic() - begun
            total += checker.checked
            print(
                f"durability {durability}, {kind}: {checker.checked} images of {len(recording.ops)} operations, "
                f"{dict(counts)}; {checker.checked / seconds:.0f}/s ({checker.opened / seconds:.0f} opened, "
                f"{checker.read} read to the end); SQLite {sqlite3.sqlite_version}, seed 1"
            )
    assert total >= 20_000
