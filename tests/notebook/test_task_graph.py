"""The picture of all tasks without a browser: where boxes stand, where lines run, and a real store of a thousand."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import queue
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Protocol
from xml.etree import ElementTree

import pytest

from pidurable_nb import Done, Failed, Harness, Input, Phase, Runtime, Sleeping, Waiting
from pidurable_nb.ids import ConversationId, Json, JsonObject, TaskId
from pidurable_nb.lab.scene import graph as drawn
from pidurable_nb.lab.scene.forest import CELL_X, CELL_Y, HEIGHT, WIDTH, Forest, lay_out
from pidurable_nb.lab.scene.graph import Graph, graph_of
from pidurable_nb.lab.scene.parts import Task
from pidurable_nb.lab.scene.source import StoreSource
from pidurable_nb.notebook.labview.view import LabView
from pidurable_nb.notebook.views.task_tree import TaskTree
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, Owner

Owned = Sequence[tuple[int, int | None]]
FLAT: Owned = [(1, None), *((n, 1) for n in range(2, 1001))]
CHAIN: Owned = [(n, n - 1 if n > 1 else None) for n in range(1, 201)]
FAN: Owned = [(n, (n - 2) // 5 + 1 if n > 1 else None) for n in range(1, 1001)]
ALONE: Owned = [(n, None) for n in range(1, 1001)]
COMB: Owned = [(n, max(1, n - 1 - n % 2) if n > 1 else None) for n in range(1, 1001)]
SHAPES = {"flat": FLAT, "chain": CHAIN, "fan": FAN, "alone": ALONE, "comb": COMB, "none": [], "one": [(7, None)]}
NUMBERS = re.compile(r"-?\d+")


class Shell(Protocol):
    def run(self, source: str) -> object: ...
    def show(self, value: object) -> dict[str, str]: ...


# --- Where boxes stand ----------------------------------------------------------------------------------------------


def cells(forest: Forest) -> Mapping[tuple[int, int], list[int]]:
    """Which boxes touch which part of a grid whose cells are as large as a box with its gap."""
    found: dict[tuple[int, int], list[int]] = {}
    for id, (x, y) in forest.places.items():
        for column in {x // CELL_X, (x + WIDTH) // CELL_X}:
            for row in {y // CELL_Y, (y + HEIGHT) // CELL_Y}:
                found.setdefault((column, row), []).append(id)
    return found


def sound(owned: Owned, most: int | None = None) -> Forest:
    """The layout of a forest, in which no box overlaps another, none leaves the picture, and no line crosses one."""
    forest = lay_out(owned, most)
    assert set(forest.places) == {id for id, _ in owned}
    grid = cells(forest)
    for ids in grid.values():
        for n, one in enumerate(ids):
            for other in ids[n + 1 :]:
                (x, y), (u, v) = forest.places[one], forest.places[other]
                assert abs(x - u) >= WIDTH or abs(y - v) >= HEIGHT, (one, other)
    for x, y in forest.places.values():
        assert 0 <= x <= forest.width - WIDTH
        assert 0 <= y <= forest.height - HEIGHT
    for id in forest.owners:
        for path in (forest.line(id), forest.dashed(forest.owners[id], id).partition("l")[0].rpartition("M")[0]):
            crosses_no_box(forest, grid, path)
    return forest


def crosses_no_box(forest: Forest, grid: Mapping[tuple[int, int], list[int]], path: str) -> None:
    """A path of right angles runs outside every box; it may touch their edges."""
    begin, *turns = re.findall(r"[MHV][^MHV]+", path)
    x, y = (int(number) for number in NUMBERS.findall(begin))
    for turn in turns:
        to_x, to_y = (int(turn[1:]), y) if turn[0] == "H" else (x, int(turn[1:]))
        left, right, top, bottom = min(x, to_x), max(x, to_x), min(y, to_y), max(y, to_y)
        for column in range(left // CELL_X, right // CELL_X + 1):
            for row in range(top // CELL_Y, bottom // CELL_Y + 1):
                for id in grid.get((column, row), ()):
                    u, v = forest.places[id]
                    inside = u < right and left < u + WIDTH and v < bottom and top < v + HEIGHT
                    within = u < x < u + WIDTH and v < bottom and top < v + HEIGHT if left == right else inside
                    level = v < y < v + HEIGHT and u < right and left < u + WIDTH if top == bottom else within
                    assert not level, (path, id)
        x, y = to_x, to_y


@pytest.mark.parametrize("most", [None, 1040])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_two_boxes_overlap_and_no_line_crosses_one(shape: str, most: int | None) -> None:
    began = time.perf_counter()
    lay_out(SHAPES[shape], most)
    print(f"{shape}: {len(SHAPES[shape])} boxes in {(time.perf_counter() - began) * 1000:.1f} ms")
    forest = sound(SHAPES[shape], most)
    if most is not None and shape in ("flat", "chain", "alone", "fan"):
        assert forest.width <= most


@pytest.mark.parametrize("seed", range(40))
def test_forests_of_any_shape_are_laid_out_soundly(seed: int) -> None:
    dice = random.Random(seed)
    size = dice.randint(2, 300)
    reach = dice.choice([1, 3, 20, 300])
    owned = [
        (n, dice.randint(max(1, n - reach), n - 1) if n > 1 and dice.random() > 0.1 else None) for n in range(1, size)
    ]
    dice.shuffle(owned)
    sound(owned, dice.choice([None, 700]))


def test_owners_that_go_round_in_a_circle_or_are_not_there_do_no_harm() -> None:
    forest = sound([(1, 3), (2, 1), (3, 2), (4, 4), (5, 99), (6, 5), (7, 3)])
    assert set(forest.owners) < {1, 2, 3, 6, 7}
    assert len(forest.owners) == 4
    deep = [(n, n + 1) for n in range(1, 5000)]
    assert len(sound([*deep, (5000, 1)]).owners) == 4999


def test_the_same_forest_is_the_same_picture() -> None:
    assert lay_out(FAN) == lay_out(FAN)


# --- What is drawn --------------------------------------------------------------------------------------------------


def task(id: int, state: stored.State, owner: int | None = None, kind: str = "k", conversation: int = 1) -> TaskRecord:
    return TaskRecord(
        id=TaskId(id), conversation=ConversationId(conversation), kind=kind, version=1, input={}, state=state,
        owner=TaskId(owner) if owner is not None else None,
    )  # fmt: skip


POINT = {"phase": "p"}
RUNNING = stored.Running(checkpoint=POINT)
ENDED = stored.Terminal(outcome=stored.Completed(result=None))


def waiting(*on: int) -> stored.Waiting:
    return stored.Waiting(checkpoint=POINT, on=tuple(TaskId(id) for id in on), fail_fast=False)


def picture(records: Sequence[TaskRecord], conversations: Sequence[ConversationRecord] = ()) -> Graph:
    return graph_of(records, {one.id: one for one in conversations}, lambda one: one.kind)


def test_every_line_has_both_ends_and_says_what_it_is() -> None:
    sub = ConversationRecord(id=ConversationId(9), owner=Owner(conversation=ConversationId(1), task=TaskId(1)))
    found = picture(
        [
            task(1, waiting(2, 3, 4, 77)), task(2, RUNNING, 1), task(3, ENDED, 1), task(4, waiting(2)),
            task(5, RUNNING, conversation=9), task(6, RUNNING, 88),
        ],
        [sub],
    )  # fmt: skip
    ids = {node.id for node in found.nodes}
    assert ids == {1, 2, 3, 4, 5, 6}
    assert all({edge.from_, edge.to} <= ids for edge in found.edges)
    lines = {(edge.from_, edge.to, edge.kind) for edge in found.edges}
    assert lines == {
        (1, 2, "owns"), (1, 3, "owns"), (1, 5, "owns"), (1, 2, "waits"), (1, 4, "waits"), (4, 2, "waits"),
    }, "a task that has ended is waited for by nobody; through its conversation a task owns others"  # fmt: skip
    assert all(re.fullmatch(r"[MLHVCl0-9 -]+", edge.d) for edge in found.edges)
    assert (found.total, found.edges_left) == (6, 0)


def test_a_picture_is_bounded_and_says_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "MOST_DRAWN", 50)
    monkeypatch.setattr(drawn, "MOST_WAITS", 5)
    everybody = range(2, 12)
    found = picture([task(1, waiting(*everybody)), *(task(n, RUNNING if n < 12 else ENDED, 1) for n in range(2, 200))])
    assert [node.id for node in found.nodes] == [*range(1, 12), *range(161, 200)], "what lives, and the newest"
    assert found.total == 199
    assert found.edges_left == 5


def test_a_picture_is_json_with_raw_texts(attack: str) -> None:
    found = picture([task(1, RUNNING, kind=attack[:50]), task(2, ENDED, 1, kind="x" * 500)]).to_json()
    nodes = found["nodes"]
    assert isinstance(nodes, list)
    assert isinstance(nodes[0], dict)
    assert isinstance(nodes[1], dict)
    assert nodes[0]["name"] == attack[:50], "whoever shows it escapes it"
    assert nodes[1]["name"] == "x" * 59 + "…"
    edges = found["edges"]
    assert isinstance(edges, list)
    assert isinstance(edges[0], dict)
    assert list(edges[0]) == ["from", "to", "kind", "d"]


# --- The saved picture ----------------------------------------------------------------------------------------------


def many(owned: Owned, kind: str = "nightly-report") -> list[TaskRecord]:
    error = stored.TaskError(message="no")
    outcomes: Sequence[stored.State] = (
        RUNNING, stored.Terminal(outcome=stored.Failed(error=error)), ENDED, ENDED,
        stored.Terminal(outcome=stored.Orphaned(reason="no_code")),
    )  # fmt: skip
    return [task(id, outcomes[id % 5], owner, kind) for id, owner in owned]


@pytest.mark.parametrize("shape", ["flat", "chain", "fan", "alone"])
def test_a_saved_picture_of_a_thousand_tasks_is_small_and_says_how_many(shape: str) -> None:
    began = time.perf_counter()
    tree = TaskTree(many(SHAPES[shape]), (), every=True, limit=200)
    markup = tree.svg()
    print(f"{shape}: {len(markup):,} characters in {(time.perf_counter() - began) * 1000:.0f} ms")
    assert len(markup) <= 300_000
    root = ElementTree.fromstring(markup)
    texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    size = len(SHAPES[shape])
    assert texts[0].startswith(f"{size:,} tasks: {2 * size // 5} completed, {size // 5} failed, ")
    assert sum(1 for text in texts if text == "running") == size // 5
    assert "nightly-report" + "▸ 5 nightly-repo…" in texts, "cut, and whole where somebody points at it"
    assert len(tree.text().splitlines()) == 1 + 200 + (size > 200)
    assert markup in tree._repr_mimebundle_()["text/html"]


def test_without_all_what_has_ended_is_left_out_and_counted() -> None:
    tree = TaskTree(many(FLAT), (), every=False, limit=200)
    assert len(tree.graph.nodes) == 200
    assert tree.text().splitlines()[1] == "800 ended ones are left out: %pi tree --all draws them."
    assert "800 ended ones are left out" in tree.svg()


def test_hostile_names_are_inert_in_the_saved_picture(attack: str) -> None:
    tree = TaskTree(many(FLAT, attack), (), every=True, limit=200)
    root = ElementTree.fromstring(tree.svg())
    assert {element.tag.rpartition("}")[2] for element in root.iter()} == {"svg", "path", "text", "g", "title"}
    assert "\u202e" not in tree.svg() + tree.plain()
    assert "\x1b" not in tree.svg() + tree.plain()
    assert any("<script>" in "".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}title"))


# --- A real store ---------------------------------------------------------------------------------------------------


class Boss(Phase[int], task="boss"):
    """Owns 999 tasks, and waits for all of them."""

    async def run(self, rt: Runtime) -> Waiting[Counting]:
        async with rt.commit() as tx:
            work = [tx.spawn(Worked(n)) for n in range(999)]
            return tx.become(Waiting(on=tuple(work), then=Counting(), fail_fast=False))


class Counting(Phase[int]):
    async def run(self, rt: Runtime) -> Done[int]:
        return Done(999)


class Worked(Phase[int], task="worked"):
    n: Input[int]

    async def run(self, rt: Runtime) -> Sleeping[Waking] | Done[int] | Failed:
        if self.n % 50 == 0:
            return Sleeping(until=rt.now() + timedelta(days=1), then=Waking())
        return Failed("no") if self.n % 10 == 0 else Done(self.n)


class Waking(Phase[int]):
    async def run(self, rt: Runtime) -> Done[int]:
        return Done(1)


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 1,000 tasks, made by the harness: one waits for the 20 that sleep; the others have ended."""
    path = tmp_path_factory.mktemp("thousand") / "thousand.sqlite"

    async def main() -> None:
        async with Harness.open(path, tasks=[Boss, Worked], durability="kill") as harness:
            root = await harness.root()
            await root.start(Boss())
            while len(await harness.tasks()) < 1000 or len(await harness.tasks(live=True)) > 21:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(main())
    return path


class Page:
    """A lab, and what it says to its page."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: queue.Queue[JsonObject] = queue.Queue()
        self.threads: set[str] = set()
        self.view = LabView.making(lambda: StoreSource(path))
        monkeypatch.setattr(self.view.widget, "send", self._hear)

    def _hear(self, message: JsonObject) -> None:
        self.threads.add(threading.current_thread().name)
        self.said.put(message)

    def ask(self, **message: Json) -> JsonObject:
        """Ask as the page does; the answer to that question, before which nothing else is said."""
        self.view.widget._handle_custom_msg({**message, "id": 7}, [])
        answer = self.said.get(timeout=60)
        assert answer["id"] == 7
        return answer


@pytest.fixture
def page(thousand: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    made = Page(thousand, monkeypatch)
    yield made
    made.view.close()


def rows(found: Json) -> list[Mapping[str, Json]]:
    assert isinstance(found, list)
    return [one for one in found if isinstance(one, Mapping)]


def test_a_lab_answers_its_page_with_the_picture_of_a_thousand_tasks(page: Page) -> None:
    began = time.perf_counter()
    first = page.ask(do="graph")
    between = time.perf_counter()
    answer = page.ask(do="graph")
    times = f"{(between - began) * 1000:.0f} ms, again in {(time.perf_counter() - between) * 1000:.0f} ms"
    print(f"1,000 tasks in {times}, {len(json.dumps(answer)):,} characters")
    assert answer == first
    assert page.threads == {"pidurable-lab"}, "never on the kernel's main thread"
    picture = answer["graph"]
    assert isinstance(picture, Mapping)
    nodes, edges = rows(picture["nodes"]), rows(picture["edges"])
    assert picture["total"] == len(nodes) == len({str(node["id"]) for node in nodes}) == 1000
    kinds = [edge["kind"] for edge in edges]
    assert (kinds.count("owns"), kinds.count("waits")) == (999, 20)
    ends = Counter(str(node["outcome"]) for node in nodes if node["state"] == "terminal")
    assert ends == {"completed": 899, "failed": 80}
    places = {(node["x"], node["y"]) for node in nodes}
    assert len(places) == 1000


def test_a_task_that_the_scene_does_not_list_is_answered_by_itself(page: Page) -> None:
    listed = {task.id for task in page.view.scene.tasks}
    nodes = rows(picture["nodes"]) if isinstance(picture := page.ask(do="graph")["graph"], Mapping) else []
    missing = [int(str(node["id"])) for node in nodes if node["id"] not in listed]
    assert len(missing) == 1000 - len(listed) > 0
    for id in (missing[0], missing[-1]):
        told = page.ask(do="task", task=id)["task"]
        assert isinstance(told, Mapping)
        assert (told["id"], told["kind"], told["state"]) == (id, "worked", "terminal")
        assert set(told) == {field.name for field in dataclasses.fields(Task)}, "as a scene has it"
    assert page.ask(do="task", task=10**9)["error"] == f"there is no task {10**9} at this position"
    assert "a whole number is needed" in str(page.ask(do="task", task="7")["error"])


def test_the_saved_picture_of_a_real_store(shell: Shell, thousand: Path) -> None:
    began = time.perf_counter()
    whole = shell.show(shell.run(f"%pi tree {thousand} --all"))
    print(f"%pi tree --all: {time.perf_counter() - began:.2f} s, {len(whole['text/html']):,} characters")
    assert len(whole["text/html"]) <= 300_000
    assert "1,000 tasks: 899 completed, 80 failed, 20 sleeping, 1 waiting." in whole["text/html"]
    assert "and 800 more" in whole["text/plain"]
    folded = shell.show(shell.run(f"%pi tree {thousand}"))
    assert "979 ended ones are left out: %pi tree --all draws them." in folded["text/plain"]
    assert len(folded["text/html"]) < 10_000
    assert "waiting" in folded["text/plain"]


def test_a_small_tree_is_the_figure_that_a_task_has(shell: Shell, tick: str, tmp_path: Path) -> None:
    shell.run(tick)
    shell.run(f"%pi new {tmp_path / 'small.sqlite'}\n%pi start --wait Tick(1, 2)")
    shown = shell.show(shell.run("%pi tree"))
    assert "conversation 1" in shown["text/html"]
    assert "ticker  completed" in shown["text/plain"]


def test_a_store_that_is_open_and_alive_is_drawn_as_it_is_now(shell: Shell, thousand: Path) -> None:
    shell.run(f"%pi open {thousand} --copy --paused")
    view = shell.run("%pi lab")
    assert isinstance(view, LabView)
    said: queue.Queue[JsonObject] = queue.Queue()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view.widget, "send", said.put)
        for message in ({"do": "graph"}, {"do": "task", "task": 500}):
            view.widget._handle_custom_msg({**message, "id": 7}, [])
            answer = said.get(timeout=60)
            while "busy" in answer:
                answer = said.get(timeout=60)
            if message["do"] == "graph":
                assert isinstance(answer["graph"], Mapping)
                assert answer["graph"]["total"] == 1000
            else:
                assert isinstance(answer["task"], Mapping)
                assert (answer["task"]["id"], answer["task"]["outcome"]) == (500, "completed")
        view.close()
