"""Owns how one entry is shown whole: what it says, and the row that is stored of it. Never reads a store.

What a cell shows is bounded all the same, and says how to get the rest.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Final

from IPython.core.error import UsageError

from pidurable_nb.lab.scene.parts import sayable
from pidurable_nb.lab.scene.reading import entry_text
from pidurable_nb.notebook.views.markup import View, bdi, lines_of
from pidurable_nb.records.transcript import EntryRecord
from pidurable_nb.store.storage import StoredEntry

LONGEST: Final = 100_000
"""Characters that a cell shows of an entry."""


class EntryView(View):
    """One entry: its text as it was written, then its row as it is stored."""

    def __init__(self, kept: StoredEntry) -> None:
        self._kept = kept

    @property
    def label(self) -> str:
        return f"Entry {self._kept.entry.id}"

    def html(self) -> str:
        shown = "\n".join(html.escape(line, quote=True) for line in self._lines())
        return f'<h3>{bdi(self._name())}</h3><pre class="said"><bdi>{shown}</bdi></pre>'

    def text(self) -> str:
        return "\n".join([self._name(), "", *self._lines()])

    def _name(self) -> str:
        entry = self._kept.entry
        by = f", by task {entry.by_task}" if entry.by_task is not None else ""
        where = f"conversation {entry.conversation}, commit {self._kept.commit_seq}"
        return f"entry {entry.id}, {entry.kind[:80]}, {where}{by}"

    def _lines(self) -> list[str]:
        text = whole_text(self._kept.entry)
        lines = lines_of(text, LONGEST, most=LONGEST)
        rest = f"%pi entry {self._kept.entry.id} --out FILE writes all of it"
        return lines if len(text) <= LONGEST and "characters in all" not in lines[-1] else [*lines, rest]


def whole_text(entry: EntryRecord) -> str:
    """What an entry says, and behind it the row that is stored."""
    said = entry_text(entry, stored=False)
    stored = entry_text(entry, stored=True)
    return f"{said}\n\nas it is stored:\n{stored}" if said else stored


def write_out(entry: EntryRecord, path: Path) -> None:
    """All of an entry in a new file. Half a character, for which there is no UTF-8, stands as its escape.

    Raises: UsageError where a file is there already, or none can be made.
    """
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(sayable(whole_text(entry)) + "\n")
    except FileExistsError as error:
        raise UsageError(f"%pi entry: {path} is there already: name another file") from error
    except OSError as error:
        raise UsageError(f"%pi entry: {path} cannot be written: {error.strerror}") from error
