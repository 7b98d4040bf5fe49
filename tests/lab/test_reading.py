"""Texts that a scene shows cut, read whole: page by page, found in, at every position, of real stores."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pidurable_nb import Done, Harness, Phase, Runtime
from pidurable_nb.ids import EntryId
from pidurable_nb.lab.scenario import builtin
from pidurable_nb.lab.scene.parts import LONGEST, sayable
from pidurable_nb.lab.scene.reading import (
    PAGE,
    CallPart,
    NothingThere,
    Of,
    OfCall,
    OfEntry,
    OfRow,
    OfTask,
    Passage,
    Side,
    found_in,
    passage,
)
from pidurable_nb.lab.scene.rows import said
from pidurable_nb.lab.scene.scene import Scene
from pidurable_nb.lab.scene.source import ScenarioSource, SceneSource, StoreSource
from pidurable_nb.records.codec import encode_entry
from pidurable_nb.store.stranger import StoreFile

STORES = Path(__file__).parents[2] / "fixtures" / "stores"
NAMES = sorted(path.stem for path in STORES.glob("*.sqlite"))
NOW_MS = 1_800_000_000_000
MEGABYTES = 5 * 1024 * 1024
ODD = "half \ud83d and \udc00, whole \U0001f600, tab\t, line\n, nul \x00, \u202e"
"""Everything that is counted wrongly where somebody counts in other units."""
PARTS: tuple[CallPart, ...] = ("arguments", "output", "lost")
SIDES: tuple[Side, ...] = ("before", "after")


class Long(Phase[str], task="long"):
    note: str

    async def run(self, rt: Runtime) -> Done[str]:
        await rt.memo("kept", ODD * 1000)
        await rt.memo("n" * 400, "of a long name" * 100)
        async with rt.commit() as tx:
            tx.append("app.long", text=ODD * 200_000)
            tx.append("app.data", data={"rows": [ODD] * 500})
        await asyncio.Event().wait()
        return Done("never")


@pytest.fixture(scope="module")
def long_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an entry of more than 5 MB, one of data, a long checkpoint and long memos; its task runs."""
    path = tmp_path_factory.mktemp("long") / "long.sqlite"

    async def main() -> None:
        async with Harness.open(path, tasks=[Long]) as harness:
            root = await harness.root()
            await root.start(Long("a note\n" * 10_000))
            while len((await root.entries()).items) < 2:  # noqa: ASYNC110 - the task that writes them cannot tell
                await asyncio.sleep(0.01)

    asyncio.run(main())
    return path


def all_of(source: SceneSource, of: Of, count: int) -> str:
    """A text put together from its pages."""
    pages, start = list[str](), 0
    while True:
        page = source.text(of, start, count)
        assert page.start == start
        assert len(page.text) <= min(count, PAGE)
        pages.append(page.text)
        start += len(page.text)
        if start >= page.total:
            return "".join(pages)


def texts_of(scene: Scene) -> Iterator[tuple[Of, str, int]]:
    """Every text of a scene that may be cut: what asks for it, what is shown, and its size where it is cut."""
    for row in scene.entries.rows:
        yield OfEntry(entry=row.id), row.text, row.size
        for call in row.calls:
            shown = {"arguments": call.arguments, "output": call.output, "lost": call.lost}
            for part in PARTS:
                yield OfCall(entry=row.id, id=call.id, part=part), shown[part], getattr(call.sizes, part)
    for task in scene.tasks:
        if task.checkpoint is not None:
            yield OfTask(task=task.id), task.checkpoint, task.checkpoint_size
        for memo in task.memos:
            yield OfTask(task=task.id, memo=memo.name), memo.value, memo.size
    for n, line in enumerate(scene.step.diff):
        for side, shown_side, size in zip(
            SIDES, (line.before, line.after), (line.before_size, line.after_size), strict=True
        ):
            yield OfRow(position=scene.position, row=n, side=side), shown_side, size


def agree(source: SceneSource, scene: Scene) -> int:
    """Assert that every text of a scene is the beginning of what is read; how many of them are cut."""
    cut = 0
    for of, shown, size in texts_of(scene):
        total = source.text(of, 0, 0).total
        if size:
            cut += 1
            assert total == size
            begin = shown.partition("…")[0] if "…" in shown else shown
            assert source.text(of, 0, PAGE).text.startswith(begin[:PAGE])
            assert len(begin) < size
        else:
            assert source.text(of, 0, PAGE).text == shown, of
    return cut


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_is_what_is_shown_and_its_size_in_any_store_at_every_position(name: str) -> None:
    with StoreSource(STORES / f"{name}.sqlite", now_ms=NOW_MS) as source:
        scene = source.scene()
        agree(source, scene)
        while scene.last != scene.position:
            scene = source.next()
            agree(source, scene)
        with StoreFile.open(STORES / f"{name}.sqlite") as file:
            for entry in file.entries():
                assert all_of(source, OfEntry(entry=entry.id), 997) == said(entry)
                stored = source.text(OfEntry(entry=entry.id, stored=True), 0, PAGE)
                if stored.total <= PAGE:
                    assert json.loads(stored.text) == json.loads(encode_entry(entry))


@pytest.mark.parametrize("name", ["refund", "checkout", "support-desk", "ticker"])
def test_calls_memos_and_rows_of_a_scenario_are_read_at_every_position(name: str) -> None:
    with ScenarioSource(builtin(name)) as source:
        scene = source.scene()
        while scene.last != scene.position:
            agree(source, scene)
            scene = source.next()
        agree(source, scene)
        lost = [call for row in source.goto(0).entries.rows for call in row.calls if call.lost]
        assert bool(lost) == (name in ("refund", "support-desk"))


def test_pages_of_any_size_put_together_are_the_whole_of_it(long_store: Path) -> None:
    with StoreSource(long_store, now_ms=NOW_MS) as source:
        scene = source.scene()
        data = next(row for row in scene.entries.rows if row.kind == "app.data")
        task = scene.tasks[0]
        assert agree(source, scene) >= 4, "an entry, data, a checkpoint and two memos are cut"
        for of in (OfEntry(entry=data.id), OfTask(task=task.id), OfTask(task=task.id, memo="kept")):
            whole = all_of(source, of, PAGE)
            assert len(whole) > LONGEST
            for count in (1, 2, 3, 7, 80, 1000, PAGE - 1, PAGE, PAGE + 1, 10**9):
                if len(whole) // count < 2_000:
                    assert all_of(source, of, count) == whole
        assert json.loads(all_of(source, OfTask(task=task.id, memo="kept"), PAGE)) == ODD * 1000
        assert json.loads(all_of(source, OfEntry(entry=data.id), PAGE)) == {"rows": [ODD] * 500}
        long_name = next(memo.name for memo in task.memos if memo.name.startswith("nnn"))
        assert len(long_name) < 400
        assert json.loads(all_of(source, OfTask(task=task.id, memo=long_name), 999)) == "of a long name" * 100


def test_five_megabytes_come_whole_and_are_cut_in_the_scene(long_store: Path) -> None:
    whole = ODD * 200_000
    assert len(whole) > MEGABYTES
    with StoreSource(long_store, now_ms=NOW_MS) as source:
        scene = source.scene()
        assert len(json.dumps(scene.to_json())) < 100_000
        row = next(row for row in scene.entries.rows if row.kind == "app.long")
        assert (row.size, len(row.text)) == (len(whole), LONGEST + len(f"… ({len(whole):,} characters)"))
        of = OfEntry(entry=row.id)
        assert all_of(source, of, PAGE) == whole
        for start in (0, 5, 6, PAGE, len(whole) // 2, len(whole) - 1, len(whole), len(whole) + 99, -5):
            page = source.text(of, start, 10)
            begin = min(max(start, 0), len(whole))
            assert page == Passage(start=begin, total=len(whole), text=whole[begin : begin + 10])
        assert source.text(of, 0, -1).text == ""
        at, places = source.find(of, "nul \x00", len(whole) - 2 * len(ODD)), list[int]()
        while at is not None:
            places.append(at)
            at = source.find(of, "nul \x00", at + 1)
        assert [whole[place : place + 5] for place in places] == ["nul \x00"] * len(places)
        assert len(places) == 2
        assert source.find(of, "\ud83d", 0) == 5
        assert source.find(of, "not in there", 0) is None
        stored = source.text(OfEntry(entry=row.id, stored=True), 0, PAGE)
        assert stored.total > len(whole), "the row, as JSON"
        assert stored.text.startswith("{\n")


@pytest.mark.parametrize(("text", "what"), [("aaaa", "aa"), ("", "a"), (ODD * 3, "half"), ("\U0001f600x", "x")])
def test_every_place_is_found_once_from_anywhere(text: str, what: str) -> None:
    places = [n for n in range(len(text)) if text.startswith(what, n)]
    for start in range(-2, len(text) + 2):
        assert found_in(text, what, start) == next((place for place in places if place >= start), None)


def test_half_a_character_survives_the_way_to_the_page() -> None:
    for text in (ODD, "\ud800", "plain", ""):
        told = json.loads(json.dumps(passage(text, 0, PAGE).to_json()).encode("utf-8"))
        assert (json.loads(told["text"]) if told.get("escaped") else told["text"]) == text
        assert json.dumps(told, ensure_ascii=False).encode("utf-8"), "any encoder takes it"
    assert sayable("a\ud83db") == "a\\u{D83D}b"


def test_a_scene_with_half_a_character_can_be_sent_by_any_encoder(long_store: Path) -> None:
    with StoreSource(long_store, now_ms=NOW_MS) as source:
        said = json.dumps(source.scene().to_json(), ensure_ascii=False).encode("utf-8")
    assert b"half \\\\u{D83D} and" in said


@pytest.mark.parametrize(
    "of",
    [
        OfEntry(entry=10**6), OfEntry(entry=10**40), OfEntry(entry=-1), OfEntry(entry=0), OfEntry(entry=-(10**40)),
        OfCall(entry=11, id="nobody", part="output"), OfCall(entry=10**6, id="x", part="lost"),
        OfTask(task=10**6), OfTask(task=12, memo="no such"), OfTask(task=-1, memo=""),
        OfRow(position=10**6, row=0, side="before"), OfRow(position=0, row=0, side="after"),
        OfRow(position=-1, row=0, side="after"), OfRow(position=1, row=10**6, side="after"),
        OfRow(position=1, row=-1, side="before"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_said_in_one_line(of: Of) -> None:
    with StoreSource(STORES / "tool-unsafe.sqlite", now_ms=NOW_MS) as source:
        source.next()
        with pytest.raises(NothingThere) as refused:
            source.text(of, 0, 10)
        assert "\n" not in str(refused.value)
        with pytest.raises(NothingThere):
            source.find(of, "x", 0)


def test_an_answer_that_was_cut_is_read_as_far_as_it_was_stored() -> None:
    read = 0
    for name in NAMES:
        with StoreSource(STORES / f"{name}.sqlite", now_ms=NOW_MS) as source:
            for row in source.scene().entries.rows:
                if row.id < 0:
                    assert source.text(OfEntry(entry=row.id), 0, PAGE).text == row.text
                    read += 1
    assert read >= 1


def test_an_entry_of_a_later_step_is_not_there_before_it() -> None:
    with ScenarioSource(builtin("refund")) as source:
        last = source.finish().entries.rows[-1]
        assert source.text(OfEntry(entry=EntryId(last.id)), 0, PAGE).text == last.text
        source.goto(0)
        with pytest.raises(NothingThere, match=f"no entry {last.id} at this position"):
            source.text(OfEntry(entry=last.id), 0, PAGE)
