"""Owns what an opening finds in the folder of a JSONL store: its tables, the files that belong to them, and what a
crash left behind. Never changes a byte; what is to be removed is only listed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pidurable_nb.errors import DamagedStore, NotAStore, StoreRefused
from pidurable_nb.ids import Json, Seq
from pidurable_nb.records import reading as r
from pidurable_nb.records.codec import BadRecord, dumps, task_of
from pidurable_nb.records.reading import Object
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.store.copying import named
from pidurable_nb.store.jsonl_files import read_whole
from pidurable_nb.store.jsonl_lines import Marker, Opening, Ref, RowKind, checksum, sidecar_line
from pidurable_nb.store.jsonl_main import MainFile, read_main
from pidurable_nb.store.jsonl_tables import Tables, document_file, task_file
from pidurable_nb.store.memory_documents import Revision

MAIN: Final = "main.jsonl"
TEMPORARY: Final = ".tmp"

_SIDECAR: Final = re.compile(r"(doc|task)-([0-9]{1,16})\.jsonl(\.tmp)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A sidecar: how many bytes of it are confirmed, and how many of these, at its end, are needed."""

    size: int
    live: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A folder as it was read. `cuts` are sidecars with an unconfirmed tail, `removals` files that nothing needs."""

    tables: Tables
    opening: Opening | None
    main: MainFile | None
    sidecars: Mapping[str, Extent]
    cuts: tuple[str, ...]
    removals: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth telling whoever opens the store."""
        said: list[str] = []
        if self.opening is None:
            said.append("made anew")
        elif self.main is not None and self.main.torn:
            said.append(f"{self.main.torn} bytes of a torn tail removed behind commit {self.tables.next_seq - 1}")
        if self.cuts:
            said.append(f"unconfirmed records removed from {len(self.cuts)} sidecars")
        return tuple(said)


def recover(folder: Path) -> Found:
    """Read the folder. Raises: DamagedStore, NotAStore, NewerFormat, HostileStore, StoreRefused."""
    path = folder / MAIN
    names = _sidecars(folder)
    data = read_whole(path)
    main = None if data is None else read_main(path, data)
    if main is None or main.opening is None:
        if names:
            what = "is missing" if main is None else "is empty"
            raise DamagedStore(
                f"{named(path)} {what} and {names[0]} is there; put it back, or restore a copy of the folder", path=path
            )
        tables = Tables()
        tables.start(next_seq=1, next_id=2)
        return Found(tables=tables, opening=None, main=main, sidecars={}, cuts=(), removals=())
    story = _Story()
    try:
        for marker in main.markers:
            story.tell(marker)
    except BadRecord as bad:
        raise _no_record(path, bad) from bad
    return _loaded(folder, main, story, names)


def _no_record(path: Path, bad: BadRecord) -> DamagedStore:
    return DamagedStore(f"{named(path)} holds what is no record ({bad}); restore a copy of the folder", path=path)


def _sidecars(folder: Path) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except NotADirectoryError as error:
        raise NotAStore(f"{named(folder)} is a file; name the folder of a store", path=folder) from error
    except OSError as error:
        why = f"{named(folder)} cannot be read: {error.strerror}; name another place"
        raise StoreRefused(why, path=folder) from error
    return [name for name in names if _SIDECAR.fullmatch(name)]


class _Story:
    """What the commits say one after the other: the newest rows, and which lines of which sidecar are still needed."""

    def __init__(self) -> None:
        self.rows: dict[tuple[RowKind, int], tuple[Seq, Json]] = {}
        self.needed: dict[str, list[tuple[Seq, Ref]]] = {}

    def tell(self, marker: Marker) -> None:
        """One commit more. Raises: BadRecord."""
        for ref in marker.refs:
            kind, id = _owner(ref.file)
            if ref.whole:
                self.needed[ref.file] = []
            if kind == "task":
                self.rows.pop(("task", id), None)
            self.needed.setdefault(ref.file, []).append((marker.seq, ref))
        for kind, value in marker.rows:
            id = r.whole(kind, value, _id)
            first = self.rows[kind, id][0] if (kind, id) in self.rows else marker.seq
            self.rows[kind, id] = (first, value)
            if kind == "task":
                self.needed.pop(task_file(id), None)
            elif kind == "document" and r.whole(kind, value, _gone):
                self.needed.pop(document_file(id), None)


def _owner(file: str) -> tuple[str, int]:
    """Whose sidecar has this name. Raises: BadRecord."""
    found = _SIDECAR.fullmatch(file)
    if found is None or found[3]:
        raise BadRecord(f"{file[:60]!r} is no sidecar", record="line", field="sidecars")
    return found[1], int(found[2])


def _id(row: Object) -> int:
    return r.integer(row, "id")


def _gone(document: Object) -> bool:
    """Retired, and without a history to keep."""
    return "retiredAt" in document and document.get("history") != "rewindable"


def _loaded(folder: Path, main: MainFile, story: _Story, names: Sequence[str]) -> Found:
    tables, sidecars = Tables(), dict[str, Extent]()
    tasks, revisions = dict[int, TaskRecord](), dict[int, tuple[Revision, ...]]()
    cuts: list[str] = []
    at = folder / MAIN
    try:
        for name, needed in story.needed.items():
            at = folder / name
            lines, extent, whole = _needed_lines(at, needed)
            sidecars[name] = extent
            if whole != extent.size:
                cuts.append(name)
            kind, id = _owner(name)
            if kind == "task":
                tasks[id] = task_of(sidecar_line(lines[-1]).get("task"))
            else:
                revisions[id] = tuple([_revision(line) for line in lines])
        at = folder / MAIN
        for (row, id), (_, value) in story.rows.items():
            if row == "document" and not r.whole(row, value, _gone):
                _check_base(folder, id, revisions)
        tables.load(story.rows, tasks, revisions)
    except BadRecord as bad:
        raise _no_record(at, bad) from bad
    tables.start(
        next_seq=main.markers[-1].seq + 1 if main.markers else 1,
        next_id=max((marker.next_id for marker in main.markers), default=2),
    )
    return Found(
        tables=tables,
        opening=main.opening,
        main=main,
        sidecars=sidecars,
        cuts=tuple(cuts),
        removals=tuple([name for name in names if name not in sidecars]),
    )


def _needed_lines(path: Path, needed: Sequence[tuple[Seq, Ref]]) -> tuple[list[bytes], Extent, int]:
    """The confirmed lines that are still needed, where they are, and how long the file is.

    They stand one behind the other: in front of them may be lines that a later one made unnecessary, behind them what
    no commit confirmed. Raises: DamagedStore.
    """
    data = read_whole(path)
    if data is None:
        raise DamagedStore(
            f"{named(path)} is missing, and commit {needed[0][0]} needs it; put it back, or restore a copy of the "
            "folder",
            path=path,
        )
    lines: list[bytes] = []
    start = 0
    for seq, ref in needed:
        found = _line_at(data, start, ref)
        while not lines and not found and (end := data.find(b"\n", start)) >= 0:
            start = end + 1
            found = _line_at(data, start, ref)
        if not found:
            raise DamagedStore(
                f"{named(path)} lacks a record of commit {seq} ({ref.length} bytes with checksum {ref.sum}), or it is "
                "damaged there; restore a copy of the folder",
                path=path,
            )
        lines.append(found)
        start += ref.length
    return lines, Extent(size=start, live=sum(ref.length for _, ref in needed)), len(data)


def _line_at(data: bytes, start: int, ref: Ref) -> bytes:
    line = data[start : start + ref.length]
    return line if len(line) == ref.length and line.endswith(b"\n") and checksum(line) == ref.sum else b""


def _revision(line: bytes) -> Revision:
    return r.whole("sidecar", sidecar_line(line), _revision_of)


def _revision_of(obj: Object) -> Revision:
    return Revision(
        Seq(r.integer(obj, "seq")),
        "base" if r.word(obj, "kind", ("base", "delta")) == "base" else "delta",
        r.integer(obj, "version", least=0),
        dumps(r.anything(obj, "content")),
    )


def _check_base(folder: Path, id: int, revisions: Mapping[int, tuple[Revision, ...]]) -> None:
    kept = revisions.get(id, ())
    if not kept or kept[0].kind != "base":
        path = folder / document_file(id)
        raise DamagedStore(
            f"document {id} has no whole value to begin with in {named(path)}; restore a copy of the folder", path=path
        )
