"""One entry whole: in a cell as far as a cell bears it, and all of it in a file."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Protocol

import pytest
from IPython.core.error import UsageError

from pidurable_nb import Done, Harness, Phase, Runtime
from pidurable_nb.notebook.labview.view import LabView
from pidurable_nb.notebook.views.entries import LONGEST
from pidurable_nb.store.stranger import StoreFile

FIXTURES = Path(__file__).parents[2] / "fixtures" / "stores"
TEXT = "line one\n\ttabbed \u202e <b>bold</b> half \ud83d\n" + "much more of it\n" * 400_000
ACTING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")


class Shell(Protocol):
    def run(self, source: str) -> object: ...
    def show(self, value: object) -> dict[str, str]: ...


class Writes(Phase[str], task="writes"):
    text: str

    async def run(self, rt: Runtime) -> Done[str]:
        async with rt.commit() as tx:
            tx.append("app.note", text=self.text)
            return tx.become(Done("written"))


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, int]:
    """A store with one long entry, and its number."""
    path = tmp_path / "long.sqlite"

    async def main() -> None:
        async with Harness.open(path, tasks=[Writes]) as harness:
            root = await harness.root()
            await harness.wait(await root.start(Writes(TEXT)))

    asyncio.run(main())
    with StoreFile.open(path) as file:
        return path, next(iter(file.entries())).id


def test_a_cell_shows_the_beginning_of_a_long_entry_and_how_to_get_the_rest(
    shell: Shell, store: tuple[Path, int]
) -> None:
    path, id = store
    shown = shell.show(shell.run(f"%pi entry {path} {id}"))
    for form in (shown["text/html"], shown["text/plain"]):
        assert len(form) < LONGEST + 10_000
        assert "much more of it" in form
        assert "characters in all)" in form
        assert f"%pi entry {id} --out FILE writes all of it" in form
        assert not ACTING.search(form)
    assert "&lt;b&gt;bold&lt;/b&gt;" in shown["text/html"]


def test_a_file_gets_all_of_an_entry_and_is_never_written_over(
    shell: Shell, store: tuple[Path, int], tmp_path: Path
) -> None:
    path, id = store
    out = tmp_path / "entry.txt"
    assert shell.run(f"%pi entry {path} {id} --out {out}") is None
    written = out.read_bytes().decode("utf-8")
    said, _, stored = written.partition("\n\nas it is stored:\n")
    assert said == TEXT.replace("\ud83d", "\\u{D83D}")
    assert json.loads(stored.replace("\\u{D83D}", "?"))["id"] == id
    out.write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        shell.run(f"%pi entry {path} {id} --out {out}")
    assert out.read_text() == "mine"
    with pytest.raises(UsageError, match="cannot be written"):
        shell.run(f"%pi entry {path} {id} --out {tmp_path / 'no' / 'folder.txt'}")


def test_an_entry_has_to_be_named_and_to_be_there(shell: Shell) -> None:
    store = FIXTURES / "tool-unsafe.sqlite"
    with pytest.raises(UsageError, match="which one"):
        shell.run(f"%pi entry {store}")
    for id in (10**6, 10**40):
        with pytest.raises(UsageError, match=f"there is no entry {id} in tool-unsafe.sqlite"):
            shell.run(f"%pi entry {store} {id}")


def test_every_entry_of_a_hostile_store_is_inert(shell: Shell, hostile: Path) -> None:
    with StoreFile.open(hostile) as file:
        ids = [entry.id for entry in file.entries()]
    assert ids
    for id in ids:
        shown = shell.show(shell.run(f"%pi entry {hostile} {id}"))
        for form in (shown["text/html"], shown["text/plain"]):
            assert not ACTING.search(form)
        assert "<script" not in shown["text/html"].replace("<style", "")
        assert "<script>alert(1)</script>" in shown["text/plain"]


def test_the_saved_forms_of_a_lab_say_how_long_a_text_is_and_what_shows_it(
    shell: Shell, store: tuple[Path, int]
) -> None:
    path, _ = store
    view = shell.run(f"%pi lab {path}")
    assert isinstance(view, LabView)
    shown = shell.show(view)
    for form in (shown["text/html"], shown["text/plain"]):
        assert f"({len(TEXT):,} characters)" in form
        assert "%pi entry long.sqlite ID" in form
    view.close()
