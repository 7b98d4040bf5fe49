"""Owns reading `main.jsonl` at an opening: which lines count, where it ends, and whether what is behind is a torn tail
or damage. Never changes a byte.

A kill leaves a beginning of what was written, so a torn tail is a line without an end. A power cut may take any part of
what was not synced; so, where lines are synced, everything from the first bad line on is a torn tail, if it is
behind what a later line, or an earlier one, says was on disk. Anything else is damage, and an acknowledged commit would
be lost without a word if it were cut off.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pidurable_nb.errors import DamagedStore, NewerFormat, NotAStore
from pidurable_nb.records.codec import BadRecord
from pidurable_nb.store.copying import named
from pidurable_nb.store.jsonl_lines import FORMAT, MainLine, Mark, Marker, Opening, begun, main_line, ours, unsealed

MOST_BEGUN: Final = 4096
"""The most bytes that a store which was never made to the end can have left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MainFile:
    """What `main.jsonl` says. `good` is how many bytes of it count, `torn` how many behind them do not."""

    opening: Opening | None
    markers: tuple[Marker, ...]
    good: int
    torn: int


@dataclass(frozen=True, slots=True)
class _Good:
    lines: list[MainLine]
    end: int
    """Where the first bad line begins, or the end of the file."""

    @property
    def synced(self) -> int:
        return max((line.synced for line in self.lines), default=0)

    @property
    def fsync(self) -> bool:
        """How the last of these lines was brought to the disk."""
        openings = [line for line in self.lines if isinstance(line, Opening)]
        return bool(openings) and openings[-1].fsync


def read_main(path: Path, data: bytes) -> MainFile:
    """What counts in the content of `main.jsonl`.

    Raises: DamagedStore, NewerFormat, NotAStore.
    """
    good = _scan(path, data, 0)
    if good.end < len(data):
        _check_tail(path, data, good)
    if good.lines:
        _check_order(path, good.lines)
    openings = [line for line in good.lines if isinstance(line, Opening)]
    return MainFile(
        opening=openings[-1] if openings else None,
        markers=tuple([line for line in good.lines if isinstance(line, Marker)]),
        good=good.end,
        torn=len(data) - good.end,
    )


def _scan(path: Path, data: bytes, start: int) -> _Good:
    lines: list[MainLine] = []
    while start < len(data):
        end = data.find(b"\n", start)
        body = None if end < 0 else unsealed(data[start:end])
        if body is None:
            break
        try:
            line = main_line(body)
        except BadRecord as bad:
            raise _unknown(path, start, bad, lines) from bad
        if isinstance(line, Opening) and line.format > FORMAT:
            raise NewerFormat(
                f"{named(path)} has format {line.format}, and this version knows {FORMAT}; upgrade pidurable_nb",
                path=path,
            )
        lines.append(line)
        start = end + 1
    return _Good(lines, start)


def _unknown(path: Path, start: int, bad: BadRecord, before: list[MainLine]) -> DamagedStore:
    last = max((line.seq for line in before if isinstance(line, Marker)), default=0)
    return DamagedStore(
        f"{named(path)} has at byte {start}, behind commit {last}, a whole line that says nothing known ({bad}); "
        "restore a copy of the folder, or open it with the version that wrote it",
        path=path,
    )


def _check_tail(path: Path, data: bytes, good: _Good) -> None:
    """Raise unless what is behind the good lines is a torn tail."""
    bad = good.end
    behind = _behind(data, bad)
    if not good.lines:
        if len(data) <= MOST_BEGUN and begun(data):
            return
        if not ours(data) and not behind.lines:
            raise NotAStore(f"{named(path)} is no main.jsonl of a store; name the folder of a store", path=path)
    synced = max(good.synced, behind.synced)
    # A whole line with another byte where its newline belongs was written to its end, and changed since.
    torn = good.fsync or (b"\n" not in data[bad:] and unsealed(data[bad:-1]) is None)
    if good.lines and torn and bad >= synced:
        return
    last = max((line.seq for line in good.lines if isinstance(line, Marker)), default=0)
    why = f"{synced} bytes of it were on disk" if bad < synced else "it was written to its end"
    raise DamagedStore(
        f"{named(path)} is damaged at byte {bad}, behind commit {last}: this is no torn tail, because {why}; "
        "restore a copy of the folder",
        path=path,
    )


def _behind(data: bytes, bad: int) -> _Good:
    """The good lines behind a bad one, which say how far the file was on disk."""
    found: list[MainLine] = []
    for line in data[bad:].split(b"\n")[1:]:
        body = unsealed(line)
        if body is not None:
            with suppress(BadRecord):
                found.append(main_line(body))
    return _Good(found, len(data))


def _check_order(path: Path, lines: list[MainLine]) -> None:
    """Raise unless the lines are those of one store, each behind the one before."""
    first = lines[0]
    if not isinstance(first, Opening):
        raise DamagedStore(f"{named(path)} has lost its beginning; restore a copy of the folder", path=path)
    seq = token = 0
    for line in lines:
        match line:
            case Opening() if line.token != token + 1 or line.origin != first.origin:
                raise DamagedStore(
                    f"{named(path)} has an opening behind commit {seq} that is not the one after {token}: two writers, "
                    "or two stores in one; restore a copy of the folder",
                    path=path,
                )
            case Opening():
                token = line.token
            case Marker() if line.seq != seq + 1:
                raise DamagedStore(
                    f"{named(path)} has commit {line.seq} behind commit {seq}; restore a copy of the folder", path=path
                )
            case Marker():
                seq = line.seq
            case Mark():
                pass
