"""The Lab view without a browser: its messages, its saved form, its plain text, and that nothing in them acts."""

from __future__ import annotations

import dataclasses
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from html.parser import HTMLParser
from pathlib import Path
from typing import Protocol

import pytest

from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.lab.scenario import find
from pidurable_nb.lab.scene.graph import Graph
from pidurable_nb.lab.scene.parts import Entries, Task
from pidurable_nb.lab.scene.reading import NothingThere, Of, OfCall, OfEntry, OfRow, OfTask, Passage
from pidurable_nb.lab.scene.scene import PointRow, Scene
from pidurable_nb.lab.scene.source import ScenarioSource
from pidurable_nb.notebook.labview.figure import MOST_COLUMNS, spans
from pidurable_nb.notebook.labview.plain import plain
from pidurable_nb.notebook.labview.static_form import LONGEST, static_form
from pidurable_nb.notebook.labview.view import LabView
from pidurable_nb.notebook.labview.worker import Worker
from pidurable_nb.store.visible import columns

WORDS = {"role", "state", "kind", "mark", "outside", "agreement", "sign", "fork"}
"""Fields that hold one of a few words, not text."""
MARKUP = {
    "section", "style", "p", "h2", "h3", "b", "br", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code",
    "bdi", "span", "svg", "title", "desc", "rect", "text", "path", "circle",
}  # fmt: skip
ACTING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")


class Shell(Protocol):
    def run(self, source: str) -> object: ...
    def show(self, value: object) -> dict[str, str]: ...
    def complete(self, line: str) -> list[str]: ...


class Session(Protocol):
    def msg(self, msg_type: str, content: dict[str, object]) -> dict[str, object]: ...


class Channel(Protocol):
    def send(self, msg: dict[str, object]) -> None: ...


class Client(Protocol):
    session: Session
    shell_channel: Channel

    def get_iopub_msg(self, *, timeout: float) -> dict[str, dict[str, object]]: ...


class Ran(Protocol):
    data: list[dict[str, object]]


class Kernel(Protocol):
    client: Client

    def run(self, source: str) -> Ran: ...


@pytest.fixture(scope="module")
def scenes() -> Iterator[Sequence[Scene]]:
    """The refund, frozen behind its effect, at every position of its recovery."""
    with ScenarioSource(find("refund")) as source:
        found = [source.scene()]
        while found[-1].next is not None:
            found.append(source.next())
        yield found


def poisoned(value: object, text: str) -> object:
    """The same record with `text` for every text in it."""
    if isinstance(value, tuple):
        return tuple(text if isinstance(one, str) else poisoned(one, text) for one in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return type(value)(
        **{
            name: text if isinstance(one, str) and name not in WORDS else poisoned(one, text)
            for name, one in fields.items()
        }
    )


class Seen(HTMLParser):
    """What a browser would make of markup: its elements, attributes and texts, and whether they are balanced."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.open: list[str] = []
        self.said = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        if tag not in ("br", "rect", "path", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += data


# --- The saved form -------------------------------------------------------------------------------------------------


def test_the_saved_form_says_the_sentence_the_figure_and_the_facts_at_every_position(scenes: Sequence[Scene]) -> None:
    assert len(scenes) > 5
    for scene in scenes:
        seen = Seen(static_form(scene))
        assert seen.open == []
        assert seen.tags <= MARKUP
        assert {"svg", "h2"} <= seen.tags
        assert scene.step.say in seen.said
        assert "killed here" in seen.said
        assert all(f"submission {sub.id}" in seen.said for sub in scene.submissions)
        assert seen.said.count("really") == len(scene.effects)
        if scene.step.table is None:
            assert "Recovery, step by step" in seen.said
        else:
            assert all(row.because in seen.said for row in scene.step.table)


def test_the_saved_form_is_inert_whatever_a_store_says(scenes: Sequence[Scene], attack: str) -> None:
    for scene in scenes:
        hostile = poisoned(scene, attack)
        assert isinstance(hostile, Scene)
        markup = static_form(hostile)
        seen = Seen(markup)
        assert seen.tags <= MARKUP
        assert not [name for name in seen.names if name.startswith("on") or name in ("src", "href")]
        assert not ACTING.search(markup)
        assert "<script>alert(1)</script>" in seen.said, "it is shown, as text"


def test_the_saved_form_is_bounded_however_large_a_scene_is(scenes: Sequence[Scene], attack: str) -> None:
    scene = scenes[2]
    rows = tuple(dataclasses.replace(scene.entries.rows[-1], id=n, text=attack * 200) for n in range(60))
    large = dataclasses.replace(
        scene,
        entries=dataclasses.replace(scene.entries, rows=rows, total=10_000, start=9_940),
        tasks=scene.tasks * 100,
        effects=scene.effects * 100,
        submissions=scene.submissions * 100,
        timeline=(*scene.timeline[:3] * 200, *scene.timeline),
        step=dataclasses.replace(scene.step, diff=scene.step.diff * 100, laws=scene.step.laws * 3),
    )
    markup = static_form(large)
    assert len(markup.encode()) <= LONGEST
    assert "the newest of 10,000 entries" in markup
    assert len(spans(large)) <= MOST_COLUMNS, "a long past is folded"
    assert plain(large).count("\n") < 150


def test_folding_keeps_the_crash_and_the_step_in_single_columns(scenes: Sequence[Scene]) -> None:
    scene = dataclasses.replace(scenes[3], timeline=(*scenes[3].timeline[:2] * 100, *scenes[3].timeline))
    single = {span.first for span in spans(scene) if span.first == span.last}
    kept = [n for n, col in enumerate(scene.timeline) if col.kind in ("kill", "lost") or col.position == 3]
    assert set(kept) <= single
    covered = [n for span in spans(scene) for n in range(span.first, span.last + 1)]
    assert covered == list(range(len(scene.timeline)))


# --- The plain text -------------------------------------------------------------------------------------------------


def test_the_plain_text_is_eighty_columns_of_ascii(scenes: Sequence[Scene]) -> None:
    for scene in scenes:
        text = plain(scene)
        assert text.isascii(), [line for line in text.splitlines() if not line.isascii()]
        assert max(columns(line) for line in text.splitlines()) <= 80
        assert scene.step.say.split()[0] in text
        assert text.splitlines()[-1] == "show   %pi lab refund"


def test_the_plain_text_is_inert_and_eighty_columns_whatever_a_store_says(scenes: Sequence[Scene], attack: str) -> None:
    for text in (attack, "漢字" * 60, "\U0001f469\u200d\U0001f4bb" * 30):
        for scene in scenes:
            hostile = poisoned(scene, text)
            assert isinstance(hostile, Scene)
            lines = plain(hostile).split("\n")
            assert max(columns(line) for line in lines) <= 80
            assert not ACTING.search("".join(lines))


def test_words_replace_everything_but_the_facts(scenes: Sequence[Scene]) -> None:
    scene = dataclasses.replace(scenes[0], words="Nothing to recover: every task had ended.", next=None)
    for said in (plain(scene), Seen(static_form(scene)).said):
        assert "Nothing to recover: every task had ended." in said
        assert "ticket-77" in said


# --- Messages -------------------------------------------------------------------------------------------------------


class Slow:
    """A source whose steps wait until they are let go."""

    def __init__(self, scenes: Sequence[Scene]) -> None:
        self.scenes = scenes
        self.position = 0
        self.began = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.threads: set[str] = set()
        self.did: list[str] = []
        self.closed = False

    def _do(self, what: str, position: int | None = None) -> Scene:
        self.threads.add(threading.current_thread().name)
        self.did.append(what)
        if position is not None:
            self.began.release()
            assert self.go.acquire(timeout=30)
            self.position = position
        return self.scenes[self.position]

    def scene(self) -> Scene:
        return self._do("scene")

    def next(self) -> Scene:
        return self._do("next", self.position + 1)

    def back(self) -> Scene:
        return self._do("back", self.position - 1)

    def goto(self, position: int) -> Scene:
        return self._do(f"goto {position}", position)

    def finish(self) -> Scene:
        raise PidurableError("the disk is\n full")

    def choose(self, option: str) -> Scene:
        raise KeyError(option)

    def entries(self, conversation: int, start: int, count: int) -> Entries:
        self.did.append(f"entries {conversation} {start} {count}")
        return Entries(conversation=conversation, start=start, total=0, rows=())

    def text(self, of: Of, start: int, count: int) -> Passage:
        self.did.append(f"text {of} {start} {count}")
        return Passage(start=start, total=9, text="\ud83d half")

    def find(self, of: Of, what: str, start: int) -> int | None:
        self.did.append(f"find {of} {what} {start}")
        return None

    def graph(self) -> Graph:
        raise NothingThere("no picture here")

    def task(self, id: int) -> Task:
        raise NothingThere(f"there is no task {id} at this position")

    def points(self) -> tuple[PointRow, ...]:
        return ()

    def run(self, points: Sequence[str], kind: str) -> Scene:
        return self._do(f"run {' '.join(points)} {kind}", 0)

    def close(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.closed = True


class Desk:
    """A worker, and what it said in order."""

    def __init__(self, source: Slow) -> None:
        self.said: queue.Queue[JsonObject] = queue.Queue()
        self.shown: list[int] = []
        self.worker = Worker(
            lambda: source, nullcontext(), show=lambda scene: self.shown.append(scene.position), say=self.said.put
        )

    def answer(self) -> JsonObject:
        """The next thing that is said to a question."""
        while True:
            message = self.said.get(timeout=30)
            if "busy" not in message:
                return message


@pytest.fixture
def slow(scenes: Sequence[Scene]) -> Slow:
    return Slow(scenes)


@pytest.fixture
def desk(slow: Slow) -> Iterator[Desk]:
    made = Desk(slow)
    yield made
    slow.go.release(100)
    made.worker.close()
    assert slow.closed
    assert slow.threads == {"pidurable-lab"}


def test_presses_queue_and_each_is_answered_by_its_number(desk: Desk, slow: Slow) -> None:
    for id, do in enumerate(("next", "next", "back")):
        desk.worker.hear({"do": do, "id": id})
    desk.worker.hear({"do": "goto", "position": 4, "id": 3})
    slow.go.release(4)
    assert [desk.answer() for _ in range(4)] == [{"id": id, "ok": True} for id in range(4)]
    assert slow.did == ["next", "next", "back", "goto 4"]
    assert desk.shown == [1, 2, 1, 4]


def test_a_greeting_is_answered_while_a_step_runs(desk: Desk, slow: Slow) -> None:
    desk.worker.hear({"do": "next", "id": 1})
    assert slow.began.acquire(timeout=30)
    assert desk.said.get(timeout=30) == {"busy": True}
    desk.worker.hear({"do": "hello", "id": 2})
    assert desk.said.get(timeout=30) == {"id": 2, "ok": True}
    slow.go.release()
    assert desk.said.get(timeout=30) == {"id": 1, "ok": True}
    assert desk.said.get(timeout=30) == {"busy": False}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"do": "finish"}, "the disk is full"),
        ({"do": "choose", "option": "run"}, "KeyError: 'run'"),
        ({"do": "choose"}, "option: a text is needed, not None"),
        ({"do": "goto", "position": "4"}, "position: a whole number is needed, not '4'"),
        ({"do": "goto", "position": True}, "position: a whole number is needed, not True"),
        ({"do": "run", "points": [], "kind": "kill"}, "points: 1 to 9 names of points are needed, not []"),
        ({"do": "run", "points": [1], "kind": "kill"}, "points: a text is needed, not 1"),
        ({"do": "rm -rf"}, "do: 'rm -rf' is nothing that a lab does"),
        ({}, "do: None is nothing that a lab does"),
    ],
)
def test_an_error_is_one_line_for_its_question_and_the_lab_goes_on(
    desk: Desk, slow: Slow, message: Mapping[str, object], words: str
) -> None:
    desk.worker.hear({**message, "id": 7})
    assert desk.answer() == {"id": 7, "error": words}
    slow.go.release()
    desk.worker.hear({"do": "next", "id": 8})
    assert desk.answer() == {"id": 8, "ok": True}


def test_windows_are_asked_for_within_bounds_and_junk_is_dropped(desk: Desk, slow: Slow) -> None:
    for junk in (None, 1, "next", ["next"]):
        desk.worker.hear(junk)
    desk.worker.hear({"do": "entries", "conversation": 1, "start": -5, "count": 10**9, "id": 1})
    assert desk.answer() == {"id": 1, "entries": {"conversation": 1, "start": 0, "total": 0, "rows": []}}
    assert slow.did == ["entries 1 0 500"]


@pytest.mark.parametrize(
    ("of", "meant"),
    [
        ({"entry": 7}, OfEntry(entry=7)),
        ({"entry": -7, "part": "stored"}, OfEntry(entry=-7, stored=True)),
        ({"call": {"entry": 7, "id": "c", "part": "lost"}}, OfCall(entry=7, id="c", part="lost")),
        ({"task": 9, "part": "checkpoint"}, OfTask(task=9)),
        ({"task": 9, "part": {"memo": "m"}}, OfTask(task=9, memo="m")),
        ({"row": {"position": 2, "row": 0, "side": "after"}}, OfRow(position=2, row=0, side="after")),
    ],
)
def test_a_text_is_asked_for_by_its_name_and_half_a_character_comes_escaped(
    desk: Desk, slow: Slow, of: Json, meant: Of
) -> None:
    desk.worker.hear({"do": "text", "of": of, "start": 3, "count": 5, "id": 1})
    desk.worker.hear({"do": "find", "of": of, "what": "x", "from": 4, "id": 2})
    page: JsonObject = {"start": 3, "total": 9, "text": '"\\ud83d half"', "escaped": True}
    assert [desk.said.get(timeout=30) for _ in range(2)] == [{"id": 1, "text": page}, {"id": 2, "found": None}]
    assert slow.did == [f"text {meant} 3 5", f"find {meant} x 4"]
    assert desk.shown == [], "reading shows no scene"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({}, "of: an entry, a call, a task or a row is needed, not None"),
        ({"of": "entry"}, "of: an entry, a call, a task or a row is needed, not 'entry'"),
        ({"of": {}}, "entry: a whole number is needed, not None"),
        ({"of": {"entry": "7"}}, "entry: a whole number is needed, not '7'"),
        ({"of": {"entry": True}}, "entry: a whole number is needed, not True"),
        ({"of": {"entry": 7, "part": "all"}}, "part: one of text, stored is needed, not 'all'"),
        ({"of": {"call": {"entry": 7}}}, "id: a text is needed, not None"),
        (
            {"of": {"call": {"entry": 7, "id": "c", "part": []}}},
            "part: one of arguments, output, lost is needed, not []",
        ),
        ({"of": {"task": 7}}, "part: one of checkpoint is needed, not None"),
        ({"of": {"task": 7, "part": {"memo": 1}}}, "memo: a text is needed, not 1"),
        ({"of": {"row": {"position": 1, "row": 1}}}, "side: one of before, after is needed, not None"),
        ({"of": {"entry": 7}, "start": None}, "start: a whole number is needed, not None"),
        ({"of": {"entry": 7}, "count": 1.5}, "count: a whole number is needed, not 1.5"),
        ({"do": "find", "of": {"entry": 7}}, "what: a text is needed, not None"),
        ({"do": "find", "of": {"entry": 7}, "what": ""}, "what: 1 to 1,000 characters are needed, not 0"),
        ({"do": "find", "of": {"entry": 7}, "what": "x" * 1001}, "what: 1 to 1,000 characters are needed, not 1,001"),
        ({"do": "find", "of": {"entry": 7}, "what": "x"}, "from: a whole number is needed, not None"),
    ],
)
def test_a_question_about_a_text_that_does_not_fit_is_answered_in_one_line(
    desk: Desk, slow: Slow, message: Mapping[str, object], words: str
) -> None:
    desk.worker.hear({"do": "text", "start": 0, "count": 1, **message, "id": 7})
    assert desk.answer() == {"id": 7, "error": words}
    assert slow.did == []


def test_a_closed_lab_says_so(slow: Slow) -> None:
    desk = Desk(slow)
    desk.worker.close()
    desk.worker.close()
    desk.worker.hear({"do": "next", "id": 1})
    assert desk.answer() == {"id": 1, "error": "this lab was closed: run %pi lab again"}


def test_what_cannot_be_made_is_raised_to_whoever_began_the_lab() -> None:
    def make() -> ScenarioSource:
        raise PidurableError("no such point")

    with pytest.raises(PidurableError, match="no such point"):
        LabView.making(make)


# --- In a notebook --------------------------------------------------------------------------------------------------


def test_a_lab_is_saved_with_a_widget_markup_and_text(shell: Shell) -> None:
    view = shell.run("%pi lab refund")
    assert isinstance(view, LabView)
    shown = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in shown
    assert 'aria-label="Lab: refund.sqlite"' in str(shown["text/html"])
    assert "<h3>What recovery will do, read without opening</h3>" in str(shown["text/html"])
    assert str(shown["text/plain"]).startswith("refund.sqlite   frozen at pi.tool#1/execute:effect.after")
    assert shell.complete("%pi lab refun") == ["refund"]


def test_a_lab_of_a_store_walks_a_copy(shell: Shell, hostile: Path) -> None:
    before = hostile.read_bytes()
    view = shell.run(f"%pi lab {hostile}")
    assert isinstance(view, LabView)
    assert view.scene.scenario is None
    seen = Seen(view.html())
    assert seen.tags <= MARKUP
    view.close()
    assert hostile.read_bytes() == before


def test_a_lab_of_what_died_here_has_its_code_and_its_outside(shell: Shell) -> None:
    shell.run("%pi crash refund")
    view = shell.run("%pi lab")
    assert isinstance(view, LabView)
    assert view.scene.step.table
    assert view.scene.effects
    view.close()


def test_a_real_kernel_answers_the_page(kernel: Kernel) -> None:
    kernel.run("%load_ext pidurable_nb")
    ran = kernel.run("%pi lab refund")
    assert [{form for form, shown in output.items() if shown} for output in ran.data] == [
        {"application/vnd.jupyter.widget-view+json"},
        {"text/html", "text/plain"},
    ], "the saved form is an output of its own: a page without this kernel shows it"
    view = ran.data[0]["application/vnd.jupyter.widget-view+json"]
    assert isinstance(view, dict)

    def ask(**content: Json) -> None:
        data = {"method": "custom", "content": content}
        message = kernel.client.session.msg("comm_msg", {"comm_id": view["model_id"], "data": data})
        kernel.client.shell_channel.send(message)

    def until(found: Callable[[Mapping[str, object]], bool]) -> Mapping[str, object]:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            content = kernel.client.get_iopub_msg(timeout=60)["content"]
            data = content.get("data")
            if content.get("comm_id") == view["model_id"] and isinstance(data, dict) and found(data):
                return data
        raise AssertionError("the kernel did not answer")

    ask(do="hello", id=1)
    until(lambda data: data.get("content") == {"id": 1, "ok": True})
    ask(do="next", id=2)
    ask(do="finish", id=3)
    position = [until(lambda data: "scene" in str(data.get("state", ""))) for _ in range(2)]
    states = [data["state"] for data in position]
    assert all(isinstance(state, dict) for state in states)
    until(lambda data: data.get("content") == {"id": 3, "ok": True})
    ask(do="entries", conversation=1, start=0, count=2, id=4)
    until(lambda data: isinstance(data.get("content"), dict) and "entries" in str(data["content"]))
    ask(do="text", of={"entry": 7}, start=3, count=5, id=5)
    until(lambda data: data.get("content") == {"id": 5, "text": {"start": 3, "total": 53, "text": "order"}})
    ask(do="find", of={"entry": 7}, what="broken", **{"from": 0}, id=6)
    until(lambda data: data.get("content") == {"id": 6, "found": 24})
    ask(do="text", of={"entry": 700}, start=0, count=5, id=7)
    until(lambda data: data.get("content") == {"id": 7, "error": "there is no entry 700 at this position"})
    kernel.run("%unload_ext pidurable_nb")
