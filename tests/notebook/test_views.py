"""The static forms: the facts are in them, in both, and nothing foreign acts."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Protocol

import pandas as pd
import pytest

from pidurable_nb.engine.graph import Edge
from pidurable_nb.ids import ConversationId, EntryId, TaskId
from pidurable_nb.lab.walking.stepper import RowChange
from pidurable_nb.notebook.views import markup, svg
from pidurable_nb.notebook.views.conversations import transcript_table
from pidurable_nb.notebook.views.graphs import Standing, ownership, state_machine
from pidurable_nb.notebook.views.steps import row_lines
from pidurable_nb.notebook.views.tables import memos_of, memos_table, tasks_table
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import EntryRecord

FIXTURES = Path(__file__).parents[2] / "fixtures" / "stores"
COMMANDS = (
    "%pi status", "%pi tasks STORE", "%pi task STORE", "%pi memos STORE", "%pi transcript STORE", "%pi forks STORE",
    "%pi tree STORE --all", "%pi submissions STORE", "%pi inbox STORE", "%pi usage STORE",
    "%pi why STORE", "%pi why STORE --here --all", "%pi step STORE", "%pi recover STORE",
)  # fmt: skip
TAGS = {
    "style", "section", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "p", "h2", "h3", "b", "br", "bdi",
    "code", "pre", "span", "details", "summary", "svg", "g", "title", "polygon", "ellipse", "path", "text", "circle",
    "polyline",
}  # fmt: skip
ATTRIBUTES = {
    "class", "aria-label", "scope", "style", "xmlns", "viewbox", "width", "role", "id", "transform", "fill", "stroke",
    "points", "cx", "cy", "rx", "ry", "d", "x", "y", "text-anchor", "font-family", "font-size", "xml:space", "r",
    "stroke-dasharray", "stroke-width", "font-weight",
}  # fmt: skip


class Shell(Protocol):
    def run(self, source: str) -> object: ...
    def show(self, value: object) -> dict[str, str]: ...


class Reader(HTMLParser):
    """Collects what a browser would build, and refuses what none of our views writes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert name in ATTRIBUTES, name
            assert name != "style" or (value or "").startswith("color:var(--pi-"), value

    def handle_data(self, data: str) -> None:
        self.words += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def forms(shell: Shell, value: object) -> tuple[str, str]:
    """The rich form and the plain one, as a notebook stores them."""
    data = shell.show(value)
    rich = data.get("text/html") or data["image/svg+xml"]
    return rich, data["text/plain"]


# --- a hostile store ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_a_hostile_store_is_shown_and_nothing_in_it_acts(shell: Shell, hostile: Path, command: str) -> None:
    value = shell.run(command.replace("STORE", str(hostile)))
    rich, plain = forms(shell, value)
    reader = Reader()
    reader.feed(rich)
    for form in (reader.words, plain):
        assert not any(char in form for char in "\u202e\x1b\x07")
    assert "<script" not in rich
    assert "<img" not in rich


def test_foreign_text_is_visible_in_full(shell: Shell, hostile: Path) -> None:
    rich, plain = forms(shell, shell.run(f"%pi memos {hostile}"))
    reader = Reader()
    reader.feed(rich)
    for form in (reader.words, plain):
        assert "<script>alert(1)</script>" in form
        assert "\\u202e" in form
        assert "\\x1b" in form


@pytest.mark.parametrize("name", ["ticker", "checkout-running", "tool-unsafe", "subagent", "fork", "inbox"])
def test_stores_of_the_peer_are_shown(shell: Shell, name: str) -> None:
    store = FIXTURES / f"{name}.sqlite"
    before = store.read_bytes()
    for command in (
        "%pi tasks",
        "%pi memos",
        "%pi transcript",
        "%pi forks",
        "%pi submissions",
        "%pi inbox",
        "%pi usage",
        "%pi why",
    ):
        rich, plain = forms(shell, shell.run(f"{command} {store}"))
        Reader().feed(rich)
        assert plain
    assert store.read_bytes() == before


def test_why_says_the_sentence_first_and_the_laws_after_it(shell: Shell) -> None:
    rich, plain = forms(shell, shell.run(f"%pi why {FIXTURES / 'tool-unsafe.sqlite'} 12"))
    sentence = "The transfer is not run again. It is unsafe, so the model is told it was cut off."
    assert f"<h2>{sentence}</h2>" in rich
    for fact in ("interrupt", "E1 E3", "tasks/12", "unknown", "Is it a tool call cut in execute?"):
        assert fact in rich
        assert fact in plain.replace("INTERRUPT", "interrupt")


# --- tables -----------------------------------------------------------------------------------------------------------


def entries(count: int) -> list[EntryRecord]:
    return [
        EntryRecord(
            id=EntryId(n),
            conversation=ConversationId(1),
            kind="note",
            model=({"role": "user", "content": f"line {n}"},),
        )
        for n in range(1, count + 1)
    ]


def test_a_transcript_shows_the_newest_200_and_says_how_many_came_before() -> None:
    table = transcript_table(ConversationId(1), entries(1234))
    data = table._repr_mimebundle_()
    for form in data.values():
        assert "and 1,034 earlier entries" in form
        assert "line 1234" in form
        assert "line 1034" not in form
    assert isinstance(table, pd.DataFrame)
    assert len(table) == 1234


def task(id: int, state: stored.State, **more: object) -> TaskRecord:
    return TaskRecord(
        id=TaskId(id),
        conversation=ConversationId(1),
        kind="k",
        version=1,
        input={},
        state=state,
        **more,  # type: ignore[arg-type]
    )


def test_a_long_value_is_cut_with_its_size() -> None:
    record = task(1, stored.Running(checkpoint={"phase": "p"}), memos={"m": "x" * 5000})
    text = memos_table(memos_of([record]))._repr_mimebundle_()
    for form in text.values():
        assert "(5,002 characters)" in form
        assert len(form) < 4000


def test_an_outcome_has_a_colour_a_shape_and_a_word() -> None:
    error = stored.TaskError(message="no")
    table = tasks_table(
        [
            task(1, stored.Terminal(outcome=stored.Completed(result=1))),
            task(2, stored.Terminal(outcome=stored.Failed(error=error))),
        ]
    )
    rich = table._repr_mimebundle_()["text/html"]
    assert "var(--pi-com,#0b5cad)" in rich
    assert "■ completed" in rich
    assert "var(--pi-int,#b3261e)" in rich
    assert "◆ failed" in rich


def test_an_empty_table_says_so() -> None:
    assert "there is none" in tasks_table([])._repr_mimebundle_()["text/html"]
    assert "none is kept" in memos_table([])._repr_mimebundle_()["text/plain"]


# --- figures ----------------------------------------------------------------------------------------------------------

ARROWS = (
    Edge("tick", "tick", "checkpoint"),
    Edge("tick", "rest", "sleep"),
    Edge("tick", "done", "done"),
    Edge("rest", "failed", "failed"),
)


def test_a_state_machine_is_drawn_with_the_state_it_stands_in_lit() -> None:
    figure = state_machine("ticker", ARROWS, "tick", Standing(phase="rest", status="sleeping"))
    picture = figure.svg()
    assert picture is not None
    root = ElementTree.fromstring(picture)
    assert root.get("role") == "img"
    assert root.get("aria-label") == "States of ticker"
    space = "{http://www.w3.org/2000/svg}"
    lit = [
        g
        for g in root.iter(f"{space}g")
        if (path := g.find(f"{space}path")) is not None and path.get("fill") == "#0b5cad"
    ]
    assert ["".join(g.itertext()).split() for g in lit] == [["rest", "rest", "●", "sleeping"]]
    titles = {title.text for title in root.iter(f"{space}title")}
    assert {"tick → tick", "tick → rest", "tick → completed"} <= titles
    assert "[rest]  <- here, sleeping" in figure.text()


def test_an_outcome_is_lit_where_the_task_ended() -> None:
    figure = state_machine("ticker", ARROWS, "tick", Standing(phase=None, status="terminal", outcome="faulted"))
    assert "● terminal" in (figure.svg() or "")
    assert "[faulted]  <- here, terminal" in figure.text()


def test_a_large_tree_folds_what_has_ended() -> None:
    ended = [task(n, stored.Terminal(outcome=stored.Completed(result=None))) for n in range(2, 100)]
    figure = ownership([task(1, stored.Running(checkpoint={"phase": "p"})), *ended])
    assert "98 ended tasks are left out" in figure.text()
    assert 'id="node3"' not in (figure.svg() or "")


def test_names_that_mean_something_to_the_layout_are_only_names(attack: str) -> None:
    for name in (attack, "<b>x</b>", 'a"b', "a\\nb", "p:q", "a;b", "\\N", "n0 -> n1"):
        figure = state_machine(name, (Edge(name, name, "checkpoint"),), name, Standing(phase=name, status="running"))
        ElementTree.fromstring(figure.svg() or "")


def test_without_a_layout_engine_the_text_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(dot: str) -> str:
        raise svg.NoLayout("none")

    monkeypatch.setattr(svg, "_in_process", nothing)
    monkeypatch.setenv("PATH", "/nowhere")
    figure = state_machine("ticker", ARROWS, "tick")
    assert figure._repr_mimebundle_() == {"text/plain": figure.text()}
    assert "tick  -&gt;" in figure.html()


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_changed_row_says_which_fields_changed() -> None:
    change = RowChange(row="tasks/7", before='{"a":1,"b":{"c":2},"d":0}', after='{"a":1,"b":{"c":3},"e":[1]}')
    assert row_lines(change) == [
        "~ tasks/7  b.c: 2 → 3",
        "~ tasks/7  d: 0 is gone",
        "~ tasks/7  e: [1] is new",
    ]
    assert row_lines(RowChange(row="entries/3", before=None, after='{"id":3}')) == ['+ entries/3  {"id":3}']
    assert row_lines(RowChange(row="documents/3", before='{"id":3}', after=None)) == ['- documents/3  {"id":3}']


def test_every_tone_has_a_colour_a_shape_and_reads_on_both_grounds() -> None:
    assert markup.COLOURS.keys() == markup.SIGNS.keys()

    def luminance(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        high, low = sorted((luminance(one), luminance(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for light, dark in markup.COLOURS.values():
        assert contrast(light, "#ffffff") >= 4.5
        assert contrast(dark, "#15171b") >= 4.5
