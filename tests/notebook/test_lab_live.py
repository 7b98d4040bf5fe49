"""A Lab of a store that lives: what is stored is shown, not too often; nothing is lost, and nothing acts on it."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from pidurable_nb import Done, Harness, Phase, Runtime
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.ids import JsonObject
from pidurable_nb.lab.scene.parts import Entry
from pidurable_nb.lab.scene.reading import PAGE, NothingThere, Of, OfEntry, OfRow, OfTask
from pidurable_nb.lab.scene.scene import Scene
from pidurable_nb.lab.scene.source import CannotDo, SceneSource
from pidurable_nb.models import Say, Scripted
from pidurable_nb.models.model import ModelEvent, ModelRequest, TextDelta
from pidurable_nb.notebook.kernel.host import Host
from pidurable_nb.notebook.labview import live
from pidurable_nb.notebook.labview.live import LiveSource
from pidurable_nb.notebook.labview.pace import EVERY_S, Pace
from pidurable_nb.notebook.labview.plain import plain
from pidurable_nb.notebook.labview.static_form import static_form
from pidurable_nb.notebook.labview.view import LabView
from pidurable_nb.notebook.labview.worker import Worker
from pidurable_nb.records.document import DocumentRecord
from pidurable_nb.records.message import text_of
from pidurable_nb.session.changes import Changes

PIECES = ("one, ", "two, ", "three, ", "four, ", "five, ", "six")
ANSWER = "".join(PIECES)


class Shell(Protocol):
    def run(self, source: str) -> object: ...


class Client(Protocol):
    def execute(self, code: str) -> str: ...
    def get_iopub_msg(self, *, timeout: float) -> dict[str, dict[str, object]]: ...


class Kernel(Protocol):
    client: Client

    def run(self, source: str) -> object: ...


class Gated(Scripted):
    """Says its answer piece by piece, each when it is let."""

    def __init__(self) -> None:
        super().__init__(Say(ANSWER, chunks=PIECES))
        self.gate = asyncio.Semaphore(0)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        async for event in super().stream(request):
            if isinstance(event, TextDelta):
                await self.gate.acquire()
            yield event


class Count(Phase[str], task="count"):
    """Remembers each number, and has a commit for each."""

    to: int

    async def run(self, rt: Runtime) -> Done[str]:
        for n in range(self.to):
            await rt.memo(f"n{n}", n + 1)
        return Done("counted")


class Wait(Phase[str], task="wait"):
    async def run(self, rt: Runtime) -> Done[str]:
        await asyncio.Event().wait()
        return Done("never")


class Now:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


class Screen:
    """What a worker shows and says, in order."""

    def __init__(self) -> None:
        self.scenes: list[Scene] = []
        self.said: queue.SimpleQueue[JsonObject] = queue.SimpleQueue()
        self.threads: set[str] = set()
        self._changed = threading.Condition()

    def show(self, scene: Scene) -> None:
        with self._changed:
            self.scenes.append(scene)
            self.threads.add(threading.current_thread().name)
            self._changed.notify_all()

    def until(self, fits: Callable[[Scene], bool]) -> Scene:
        """The newest scene, as soon as it fits."""
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.scenes) and fits(self.scenes[-1]), 60), self.scenes[-1:]
            return self.scenes[-1]


class Store:
    """An open store on a host of its own, and the labs that watch it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.host = Host()
        self.model = Gated()
        self.workers: list[Worker] = []
        settings = Settings(progress_every=timedelta(milliseconds=1))

        async def opening() -> Harness:
            return await Harness.open(path, tasks=[Count, Wait], models=[self.model], settings=settings)

        self.harness = self.host.call(opening())
        self.root = self.host.call(self.harness.root())

    def watch(self, pace: Pace | None = None) -> tuple[Worker, Screen]:
        pace, screen = pace if pace is not None else Pace(every_s=0.0), Screen()
        worker = Worker(
            lambda: LiveSource(self.host, self.harness, self.path, pace.stir), nullcontext(), show=screen.show,
            say=screen.said.put, pace=pace,
        )  # fmt: skip
        self.workers.append(worker)
        worker.call(lambda source: screen.show(source.scene()))
        return worker, screen

    def count(self, to: int) -> None:
        async def run() -> None:
            assert await self.harness.wait(await self.root.start(Count(to))) == "counted"

        self.host.call(run())

    def let(self, pieces: int = 1) -> None:
        async def release() -> None:
            for _ in range(pieces):
                self.model.gate.release()

        self.host.call(release())

    def commits(self) -> list[Changes]:
        """What is published from now on."""
        found: list[Changes] = []

        async def listen() -> None:
            self.harness.engine.session.subscribe(found.append)

        self.host.call(listen())
        return found

    def close(self) -> None:
        self.host.call(self.harness.aclose())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "app.sqlite")
    yield made
    for worker in made.workers:
        worker.close()
    made.close()
    made.host.shut()


def partial_of(scene: Scene) -> str | None:
    """The text of the answer that arrives."""
    return next((row.text for row in scene.entries.rows if row.state == "partial"), None)


def says(text: str) -> Callable[[Scene], bool]:
    """Whether exactly this is shown of the answer that arrives."""
    return lambda scene: partial_of(scene) == text


def read(source: SceneSource, of: Of) -> str:
    """The beginning of a text."""
    return source.text(of, 0, PAGE).text


def stored_partials(commits: list[Changes]) -> set[str]:
    found: set[str] = set()
    for changes in commits:
        for change in changes.documents:
            record: DocumentRecord = change.record
            if record.kind == "pi.live" and change.value is not None:
                match change.value.get("generation"):
                    case {"message": dict() as message}:
                        found.add(text_of(message))
                    case _:
                        pass
    return found


# --- The pace ---------------------------------------------------------------------------------------------------------


def test_a_thousand_news_in_two_seconds_are_fifty_pictures_and_the_last_shows_the_last() -> None:
    now, rang, shown = Now(), list[None](), list[int]()
    pace = Pace(now=now)
    pace.rings(lambda: rang.append(None))
    assert pace.due_s() is None
    for n in range(1000):
        pace.stir()
        now.at = n * 0.002
        if pace.due_s() == 0:
            with pace.picture():
                shown.append(n)
    assert 45 <= len(shown) <= 51
    assert len(rang) <= len(shown) + 1, "the bell rings once for many news"
    now.at += EVERY_S
    if shown[-1] != 999:
        assert pace.due_s() == 0
        with pace.picture():
            shown.append(999)
    assert pace.due_s() is None, "nothing is left to show, so nobody looks"


def test_news_that_comes_while_a_picture_is_made_is_shown_by_the_next() -> None:
    now = Now()
    pace = Pace(now=now)
    pace.stir()
    with pace.picture():
        pace.stir()
    assert pace.due_s() == pytest.approx(EVERY_S)


def test_a_picture_that_takes_long_leaves_the_time_to_the_work() -> None:
    now = Now()
    pace = Pace(now=now, share=0.25)
    pace.stir()
    with pace.picture():
        now.at += 1.0
        pace.stir()
    assert pace.due_s() == pytest.approx(3.0)


# --- What is shown ----------------------------------------------------------------------------------------------------


def test_v4_v5_an_answer_is_shown_as_it_is_stored_and_never_what_is_not(store: Store) -> None:
    commits = store.commits()
    _, screen = store.watch()
    asked = store.host.call(store.root.submit("count to six", request_id="r1"))
    for n in range(1, len(PIECES)):
        store.let()
        screen.until(says("".join(PIECES[:n])))
    store.let()
    store.host.call(asked.wait())
    store.host.call(store.harness.wait_idle())
    end = screen.until(lambda scene: scene.totals.live == 0 and any(r.role == "assistant" for r in scene.entries.rows))
    assert [partial_of(end), end.entries.rows[-1].text, end.entries.rows[-1].state] == [None, ANSWER, "whole"]
    shown = {text for scene in screen.scenes if (text := partial_of(scene)) is not None}
    assert {"".join(PIECES[:n]) for n in range(1, len(PIECES))} <= shown
    assert shown <= stored_partials(commits) | {""}
    assert [(sub.request_id, sub.status) for sub in end.submissions] == [("r1", "done")]
    assert screen.threads <= {"pidurable-lab", threading.current_thread().name}


def test_the_scene_says_what_lives_and_that_it_is_not_walked(store: Store) -> None:
    store.count(3)
    ref = store.host.call(store.root.start(Wait()))
    _, screen = store.watch()
    scene = screen.until(lambda scene: any(t.id == ref.id and t.state == "running" for t in scene.tasks))
    assert (scene.how, scene.position, scene.last, scene.next, scene.words) == ("open, alive", 0, 0, None, None)
    assert scene.watched is not None
    assert str(store.path) in scene.watched
    assert [(row.task, row.verdict) for row in scene.step.table or ()] == [(ref.id, "runs")]
    assert scene.step.say == "One task lives: 1 running."
    assert not scene.points
    text, markup = plain(scene), static_form(scene)
    assert "watched" in text
    assert text.splitlines()[-1] == "show   %pi lab"
    assert "What is live" in markup
    assert "copy." not in markup


def test_m1_every_memo_of_a_task_that_is_watched_has_its_commit_and_its_way_is_whole(store: Store) -> None:
    _, screen = store.watch()
    store.count(5)
    end = screen.until(lambda scene: any(task.outcome == "completed" for task in scene.tasks))
    (task,) = end.tasks
    assert [memo.value for memo in task.memos] == ["1", "2", "3", "4", "5"]
    assert all(memo.gone and memo.by is not None and memo.by.startswith("this life · commit ") for memo in task.memos)
    assert (task.whole, [move.to for move in task.path][-1]) == (True, "terminal")
    assert [col.n for col in end.timeline] == sorted(col.n or 0 for col in end.timeline)


def test_a_text_is_read_as_it_is_stored_now_while_it_arrives_and_after(store: Store) -> None:
    worker, screen = store.watch()
    asked = store.host.call(store.root.submit("count to six", request_id="r1"))
    store.let(2)
    arrives = screen.until(says("".join(PIECES[:2]))).entries.rows[-1]
    of = OfEntry(entry=arrives.id)
    assert worker.call(lambda source: source.text(of, 0, PAGE)).text == "".join(PIECES[:2])
    store.let(len(PIECES) - 2)
    store.host.call(asked.wait())
    store.host.call(store.harness.wait_idle())
    with pytest.raises(NothingThere, match="no answer arrives"):
        worker.call(lambda source: source.text(of, 0, PAGE))
    whole = screen.until(lambda scene: scene.entries.rows[-1].text == ANSWER).entries.rows[-1]
    assert worker.call(lambda source: source.text(OfEntry(entry=whole.id), 5, 3)).text == ANSWER[5:8]
    assert worker.call(lambda source: source.find(OfEntry(entry=whole.id), "three", 0)) == ANSWER.index("three")
    store.count(3)
    task = screen.until(lambda scene: any(task.outcome == "completed" and task.memos for task in scene.tasks)).tasks[-1]
    memo = OfTask(task=task.id, memo="n2")
    assert worker.call(lambda source: source.text(memo, 0, PAGE)).text == "3", "it is gone with its task, and was seen"
    nothing: tuple[Of, ...] = (OfEntry(entry=10**6), OfRow(position=0, row=0, side="after"))
    for other in nothing:
        with pytest.raises(NothingThere):
            worker.call(partial(read, of=other))


# --- Not too often, and nothing lost ----------------------------------------------------------------------------------


def test_two_hundred_commits_while_time_stands_still_are_one_picture_and_then_one_more(store: Store) -> None:
    now = Now()
    _, screen = store.watch(Pace(now=now, share=1.0))
    begun = len(screen.scenes)
    store.count(200)
    screen.until(lambda scene: len(screen.scenes) > begun)
    assert len(screen.scenes) <= begun + 1
    now.at += 2 * EVERY_S
    end = screen.until(lambda scene: any(task.outcome == "completed" for task in scene.tasks))
    assert len(screen.scenes) <= begun + 2
    assert end.timeline[-1].n is not None
    store.count(1)  # and it goes on: as soon as time does
    now.at += 2 * EVERY_S
    screen.until(lambda scene: scene.totals.tasks == 2)
    assert len(screen.scenes) <= begun + 3


def test_when_nothing_happens_nothing_is_shown_and_nobody_looks(store: Store) -> None:
    pace = Pace(every_s=0.0)
    _, screen = store.watch(pace)
    store.count(3)
    screen.until(lambda scene: any(task.outcome == "completed" for task in scene.tasks) and pace.due_s() is None)
    before = len(screen.scenes)
    time.sleep(0.3)
    assert len(screen.scenes) == before


def test_a_kernel_that_is_busy_with_a_cell_delays_nothing_and_loses_nothing(store: Store) -> None:
    _, screen = store.watch()
    done = threading.Event()

    async def run() -> None:
        assert await store.harness.wait(await store.root.start(Count(40))) == "counted"
        done.set()

    store.host.submit(run())
    assert done.wait(60)  # this thread, the kernel's, does nothing else all the while
    end = screen.until(lambda scene: any(task.outcome == "completed" for task in scene.tasks))
    assert len(end.tasks[0].memos) == 40


def test_a_view_that_is_far_behind_reads_the_file_again_and_ends_with_the_newest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_BEHIND", 5)
    monkeypatch.setattr(live, "KEPT", 3)
    now = Now()
    worker, screen = store.watch(Pace(now=now))
    for _ in range(3):
        store.count(20)
        now.at += EVERY_S

    async def write() -> None:
        for n in range(20):
            async with store.harness.commit() as tx:
                tx.append("app.note", text=f"note {n}")

    store.host.call(write())
    now.at += EVERY_S
    deadline = time.monotonic() + 60
    while (end := screen.scenes[-1]).entries.total < 20:
        assert time.monotonic() < deadline
        now.at += 1000
        time.sleep(0.01)
    assert [row.kind for row in end.entries.rows] == ["app.note"] * 20
    assert [task.outcome for task in end.tasks] == ["completed"] * 3
    window = worker.call(lambda source: source.entries(1, 0, 5))
    assert (window.start, window.total, len(window.rows)) == (0, 20, 5)


def test_the_facts_that_were_followed_are_those_of_the_file(store: Store) -> None:
    """Whatever was heard commit by commit is what a view that begins now reads."""
    _, screen = store.watch()
    store.count(4)
    asked = store.host.call(store.root.submit("hello", request_id="r"))
    store.let(20)
    store.host.call(asked.wait())
    store.host.call(store.harness.wait_idle())
    followed = screen.until(lambda scene: scene.totals.live == 0 and len(scene.entries.rows) >= 2)
    _, other = store.watch()
    fresh = other.scenes[-1]

    def facts(scene: Scene) -> object:
        rows: list[Entry] = list(scene.entries.rows)
        return (
            [(r.id, r.kind, r.state, r.text, r.commit, r.task, r.submission) for r in rows], scene.totals,
            [(t.id, t.kind, t.state, t.outcome, t.checkpoint) for t in scene.tasks],
            [(s.id, s.status, s.entry, s.answer, s.text) for s in scene.submissions], scene.conversations,
        )  # fmt: skip

    assert facts(followed) == facts(fresh)


# --- The end ----------------------------------------------------------------------------------------------------------


def test_closing_the_store_says_so_and_what_was_shown_stays(store: Store) -> None:
    worker, screen = store.watch()
    store.count(2)
    store.close()
    end = screen.until(lambda scene: scene.words is not None)
    assert end.words is not None
    assert "was closed" in end.words
    assert end.how == "closed"
    assert [task.outcome for task in end.tasks] == ["completed"]
    assert worker.call(lambda source: source.entries(1, 0, 5)).total == 0


def test_nothing_steps_and_the_refusal_says_what_does(store: Store) -> None:
    worker, screen = store.watch()
    for id, do in enumerate(("next", "back", "finish")):
        worker.hear({"do": do, "id": id})
        while "error" not in (answer := screen.said.get(timeout=60)):
            continue
        assert answer["id"] == id
        assert "there are no steps here" in str(answer["error"])
    with pytest.raises(CannotDo):
        worker.call(lambda source: source.run(["x"], "kill"))


def test_a_lab_that_is_closed_hears_nothing_and_the_store_lives_on(store: Store) -> None:
    worker, screen = store.watch()
    worker.close()
    shown = len(screen.scenes)
    store.count(3)
    assert len(screen.scenes) == shown
    assert not store.harness.closed.done()


# --- The command ------------------------------------------------------------------------------------------------------


def test_pi_lab_without_a_name_watches_what_is_open_and_with_one_walks_a_copy(
    shell: Shell, tick: str, tmp_path: Path
) -> None:
    shell.run(tick)
    path = tmp_path / "app.sqlite"
    shell.run(f"%pi new {path}")
    view = shell.run("%pi lab")
    assert isinstance(view, LabView)
    assert view.scene.how == "open, alive"
    walked = shell.run(f"%pi lab {path}")
    assert isinstance(walked, LabView)
    assert walked.scene.watched is None
    walked.close()
    shell.run("%pi close")
    deadline = time.monotonic() + 60
    while view.scene.words is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    view.close()


def test_pi_lab_after_a_crash_walks_what_died_though_another_store_is_open(shell: Shell, tmp_path: Path) -> None:
    shell.run(f"%pi new {tmp_path / 'app.sqlite'}")
    shell.run("%pi crash refund")
    view = shell.run("%pi lab")
    assert isinstance(view, LabView)
    assert view.scene.watched is None
    view.close()


BLOCKS = """
ref = await (await pi.root()).start(Tick(1, 5))
import time
while not any(task.outcome == "completed" for task in lab.scene.tasks):
    time.sleep(0.01)
"""
"""A cell that gives the kernel's loop nothing to do anything with, until its lab has shown the end of the task."""


def test_a_real_kernel_sends_scenes_while_its_cell_blocks(kernel: Kernel, tick: str) -> None:
    kernel.run("%load_ext pidurable_nb")
    kernel.run(tick)
    kernel.run("%pi new app.sqlite")
    kernel.run("lab = %pi lab\nlab")
    asked = kernel.client.execute(BLOCKS)
    sent: list[object] = []
    while True:
        message = kernel.client.get_iopub_msg(timeout=60)
        content = message["content"]
        if message["header"]["msg_type"] == "comm_msg":
            match content:
                case {"data": {"method": "update", "state": {"scene": scene}}}:
                    sent.append(scene)
                case _:
                    pass
        ended = message["parent_header"].get("msg_id") == asked and content.get("execution_state") == "idle"
        if ended:
            break
    match sent[-1]:
        case {"tasks": [{"outcome": outcome}], "how": how}:
            assert (outcome, how) == ("completed", "open, alive")
        case other:
            raise AssertionError(other)
