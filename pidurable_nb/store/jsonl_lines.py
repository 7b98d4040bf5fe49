"""Owns the lines of a JSONL store: their text, their checksums, and what each says. Never reads or writes a file.

A line of `main.jsonl` carries the checksum of its own text; the checksum and length of a sidecar's line stand in the
line of the commit that wrote it, so that a record counts only where its commit does. `synced` is how many bytes of
`main.jsonl` were on disk when the line was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal, TypeAlias, get_args

from pidurable_nb.ids import Json, Seq
from pidurable_nb.records import reading as r
from pidurable_nb.records.codec import BadRecord, dumps, loads
from pidurable_nb.records.reading import Object

FORMAT: Final = 1
"""The newest format of `main.jsonl` that this module writes and reads."""

RowKind = Literal["conversation", "entry", "task", "submission", "document"]
_ROW_KINDS: Final[dict[str, RowKind]] = {kind: kind for kind in get_args(RowKind)}

_HEAD: Final = b'{"sum":"'
_MIDDLE: Final = b'","line":'
_BODY_AT: Final = len(_HEAD) + 16 + len(_MIDDLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The store was opened for writing. `token` fences (F5), `file` tells a copy, `fsync` how the lines behind it are
    brought to the disk."""

    format: int
    store_id: str
    origin: str
    opening: int
    token: int
    file: str
    fsync: bool
    synced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """A line of a sidecar that a commit wrote. `whole`: the lines before it are not needed any more."""

    file: str
    length: int
    sum: str
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One commit. `rows` are records, each whole; `refs` what it wrote to sidecars."""

    seq: Seq
    next_id: int
    rows: tuple[tuple[RowKind, Json], ...]
    refs: tuple[Ref, ...]
    synced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Only how far `main.jsonl` is on disk."""

    synced: int


MainLine: TypeAlias = Opening | Marker | Mark


def checksum(data: bytes) -> str:
    """Sixteen hexadecimal digits."""
    return blake2b(data, digest_size=8).hexdigest()


# --- Writing --------------------------------------------------------------------------------------------------------


def sealed(body: str) -> bytes:
    """A line of `main.jsonl`."""
    data = body.encode()
    return b"".join((_sealed_head(data), data, b"}\n"))


def opening_line(line: Opening) -> bytes:
    """The line of an opening."""
    said: Object = {
        "format": line.format,
        "storeId": line.store_id,
        "origin": line.origin,
        "opening": line.opening,
        "token": line.token,
        "file": line.file,
        "fsync": line.fsync,
    }
    return sealed(dumps({"open": said, "synced": line.synced}))


def mark_line(line: Mark) -> bytes:
    """The line of a mark."""
    return sealed(dumps({"synced": line.synced}))


def marker_line(
    *, seq: Seq, next_id: int, rows: Sequence[tuple[RowKind, str]], refs: Sequence[Ref], synced: int
) -> bytes:
    """The line of a commit, from the stored texts of its records."""
    shown = ",".join([f'{{"{kind}":{text}}}' for kind, text in rows])
    listed = dumps(
        [{"file": ref.file, "length": ref.length, "sum": ref.sum, "whole": ref.whole} for ref in refs],
    )
    return sealed(f'{{"seq":{seq},"nextId":{next_id},"rows":[{shown}],"sidecars":{listed},"synced":{synced}}}')


def revision_line(*, seq: Seq, kind: Literal["base", "delta"], version: int, text: str) -> bytes:
    """The line of a document's revision."""
    return f'{{"seq":{seq},"kind":"{kind}","version":{version},"content":{text}}}\n'.encode()


def task_line(*, seq: Seq, text: str) -> bytes:
    """The line of a live task's replacement."""
    return f'{{"seq":{seq},"task":{text}}}\n'.encode()


# --- Reading --------------------------------------------------------------------------------------------------------


def unsealed(line: bytes) -> bytes | None:
    """The text of a line of `main.jsonl`, given without its newline; None when it is not what was written."""
    if not line.endswith(b"}"):
        return None
    body = line[_BODY_AT:-1]
    return body if line[:_BODY_AT] == _sealed_head(body) else None


def _sealed_head(body: bytes) -> bytes:
    return b"".join((_HEAD, checksum(body).encode(), _MIDDLE))


def begun(data: bytes) -> bool:
    """Whether `data` can be all that is left of the first line of a store that was being made."""
    left = data.rstrip(b"\0")
    start = _HEAD[: len(left)]
    return left[: len(start)] == start and b"\n" not in left


def ours(data: bytes) -> bool:
    """Whether `data` begins as every `main.jsonl` does."""
    return data.startswith(_HEAD)


def main_line(body: bytes) -> MainLine:
    """What a line says. Raises: BadRecord."""
    return r.whole("line", loads(body.decode("utf-8", "replace"), "line"), _main_line)


def _main_line(obj: Object) -> MainLine:
    synced = r.integer(obj, "synced", least=0)
    if "open" in obj:
        return _opening(r.an_object(obj, "open"), synced)
    if "seq" not in obj:
        return Mark(synced=synced)
    return Marker(
        seq=Seq(r.integer(obj, "seq")),
        next_id=r.integer(obj, "nextId"),
        rows=tuple([_row(row) for row in r.objects(obj, "rows")]),
        refs=tuple([_ref(ref) for ref in r.objects(obj, "sidecars")]),
        synced=synced,
    )


def _opening(said: Object, synced: int) -> Opening:
    return Opening(
        format=r.integer(said, "format"),
        store_id=r.name(said, "storeId"),
        origin=r.name(said, "origin"),
        opening=r.integer(said, "opening"),
        token=r.integer(said, "token"),
        file=r.text(said, "file"),
        fsync=r.flag(said, "fsync"),
        synced=synced,
    )


def _row(row: Object) -> tuple[RowKind, Json]:
    if len(row) == 1:
        ((kind, value),) = row.items()
        if kind in _ROW_KINDS:
            return _ROW_KINDS[kind], value
    raise r.Unfit("rows", "a row of no kind that is known")


def _ref(ref: Object) -> Ref:
    return Ref(
        file=r.name(ref, "file"),
        length=r.integer(ref, "length"),
        sum=r.name(ref, "sum"),
        whole=r.flag(ref, "whole"),
    )


def sidecar_line(line: bytes) -> Object:
    """What a line of a sidecar holds. Raises: BadRecord."""
    value = loads(line.decode("utf-8", "replace"), "sidecar")
    if not isinstance(value, dict):
        raise BadRecord("no object", record="sidecar")
    return value
