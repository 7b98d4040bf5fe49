"""The plain form of the Lab view, of every built-in scenario at every position: its width, and what is cut in it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

import pytest

from pidurable_nb.ids import Json
from pidurable_nb.lab.scenario import BUILT_IN, builtin
from pidurable_nb.lab.scene.scene import Scene
from pidurable_nb.lab.scene.source import ScenarioSource
from pidurable_nb.notebook.labview import plain as form
from pidurable_nb.notebook.labview import words
from pidurable_nb.notebook.labview.plain import plain

OURS = " ".join(
    node.value
    for module in (form, words)
    for node in ast.walk(ast.parse(inspect.getsource(module)))
    if isinstance(node, ast.Constant) and isinstance(node.value, str)
)
"""Where the form's own words come from: the texts in its code."""
TAIL = ".,;:()"


def texts_of(value: Json) -> Iterator[str]:
    """Every text in a scene."""
    if isinstance(value, str):
        yield form._text(value)
    elif isinstance(value, dict):
        for one in value.values():
            yield from texts_of(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from texts_of(one)
    else:
        yield str(value)


def words_of(text: str) -> set[str]:
    """The words of a text, as they stand in it and without what ends a sentence or a cell."""
    return {one for word in text.split() for one in (word, word.strip(TAIL)) if one}


def cut_words(scene: Scene) -> list[str]:
    """The words of the form that are the beginning of a longer one, and nothing says so."""
    whole = set[str]().union(*map(words_of, texts_of(scene.to_json())), words_of(OURS), words_of(OURS.lower()))
    longer = sorted(whole)
    found = []
    for line in plain(scene).split("\n"):
        for word in line.split():
            bare = word.strip(TAIL)
            if not bare or word.endswith("..") or not bare.isalpha() or whole & {word, bare, bare.lower()}:
                continue
            if any(one.startswith(bare) for one in longer):
                found.append(f"{word}: {line}")
    return found


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_no_line_is_over_eighty_columns_and_no_word_is_cut_in_silence(name: str) -> None:
    with ScenarioSource(builtin(name)) as source:
        while True:
            scene = source.scene()
            text = plain(scene)
            assert text.isascii()
            assert max(map(len, text.split("\n"))) <= form.WIDTH
            assert cut_words(scene) == []
            assert not re.search(r"(?m)\w\.(?= {2,}\S)", text)  # one dot behind a word in a cell is no ellipsis
            if scene.last == scene.position:
                return
            source.next()


def test_a_word_that_is_cut_in_silence_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "_cut", lambda text, width: form._text(text)[:width])
    with ScenarioSource(builtin("overnight")) as source:
        assert [found.partition(":")[0] for found in cut_words(source.scene())] == ["web"]  # of `web-2`, in a log
