"""Owns the lives, revisions and copies of documents in memory. Never stamps a sequence number by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from pidurable_nb.errors import StorageError, StorageRequestError
from pidurable_nb.ids import DocumentId, JsonObject, Seq
from pidurable_nb.records import codec
from pidurable_nb.records.document import Address, DocumentRecord, Scope, StoredDocument
from pidurable_nb.store import delta
from pidurable_nb.store.memory_tables import Table, Undo, behind, insert, put
from pidurable_nb.store.storage import (
    At,
    Base,
    ChangeDocument,
    CopyDocument,
    CreateDocument,
    Delta,
    Page,
    RetireDocument,
    Write,
)

Name = tuple[str, Scope, str | None]
"""An address as it is looked up: strings in their stored form, so that two spellings of one text are one."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A stored revision: the text of a whole value or of a batch of operations."""

    seq: Seq
    kind: Literal["base", "delta"]
    version: int
    text: str


class Documents:
    """All document records and their revisions."""

    def __init__(self) -> None:
        self.table: Table[DocumentRecord] = Table(codec.encode_document, codec.decode_document)
        self.revisions: dict[int, tuple[Revision, ...]] = {}
        self._lives: dict[Name, tuple[int, ...]] = {}
        self._in_scope: dict[Scope, list[int]] = {}

    # Writing: one commit's document writes, after its other rows.

    def write(self, writes: tuple[Write, ...], seq: Seq, undo: Undo) -> None:
        """Apply the document writes of one commit in order; copies see what was stored before it.

        Raises: StorageError, stored "no", for a write that does not fit.
        """
        copies = {id(write): self._source(write) for write in writes if isinstance(write, CopyDocument)}
        for write in writes:
            match write:
                case CreateDocument():
                    self._create(write.record, write.base, seq, undo)
                case CopyDocument():
                    self._create(write.record, copies[id(write)], seq, undo)
                case ChangeDocument():
                    self._change(self._current(write.id, "change"), write.content, seq, undo)
                case RetireDocument():
                    self._retire(self._current(write.id, "retire"), seq, undo)
                case _:
                    pass

    def _create(self, given: DocumentRecord, base: Base, seq: Seq, undo: Undo) -> None:
        record = replace(given, created_at=seq, retired_at=None)
        self.table.put(record.id, record, undo)
        put(self.revisions, record.id, (_revision(base, seq),), undo)
        name = _name(record.address)
        put(self._lives, name, (*self._lives.get(name, ()), record.id), undo)
        insert(self._in_scope.setdefault(record.scope, []), record.id, undo)

    def _change(self, record: DocumentRecord, content: Base | Delta, seq: Seq, undo: Undo) -> None:
        kept = self.revisions[record.id]
        newest = kept[-1]
        if newest.seq == seq:
            raise StorageError(f"document {record.id} has two revisions in one commit", stored="no")
        if isinstance(content, Delta) and content.version != newest.version:
            raise StorageError(
                f"document {record.id}: a delta of version {content.version} on a value of version {newest.version}; "
                "a version step needs a whole value",
                stored="no",
            )
        if isinstance(content, Base) and not record.rewindable:
            kept = ()
        put(self.revisions, record.id, (*kept, _revision(content, seq)), undo)

    def _retire(self, record: DocumentRecord, seq: Seq, undo: Undo) -> None:
        self.table.put(record.id, replace(record, retired_at=seq), undo)
        if not record.rewindable:
            put(self.revisions, record.id, (), undo)

    def _current(self, id: DocumentId, what: str) -> DocumentRecord:
        record = self.table.facts(id)
        if record is None or record.retired_at is not None:
            state = "unknown" if record is None else "retired"
            raise StorageError(f"cannot {what} document {id}: it is {state}", stored="no")
        return record

    def _source(self, write: CopyDocument) -> Base:
        try:
            source = self.read(write.source, write.at)
        except StorageRequestError as error:
            raise StorageError(f"cannot copy to document {write.record.id}: {error}", stored="no") from error
        if source is None:
            raise StorageError(
                f"cannot copy to document {write.record.id}: document {write.source} is not alive at {write.at}",
                stored="no",
            )
        return Base(source.version, source.value)

    # Reading.

    def find(self, address: Address, at: At) -> DocumentRecord | None:
        """The incarnation at that address, alive at `at`; the newest, should there be several."""
        for id in reversed(self._lives.get(_name(address), ())):
            if _alive(self.table.rows[id].facts, at):
                return self.table.read(id)
        return None

    def read(self, id: DocumentId, at: At) -> StoredDocument | None:
        """The value of one incarnation, None when it is unknown or not alive at `at`.

        Raises: StorageRequestError where no history is kept.
        """
        record = self.table.facts(id)
        if record is None:
            return None
        if at != "current" and not record.rewindable:
            raise StorageRequestError(
                f"document {id} ({record.kind}) keeps no history; only its current value is known"
            )
        if not _alive(record, at):
            return None
        kept = [revision for revision in self.revisions[id] if at == "current" or revision.seq <= at]
        start = max(place for place, revision in enumerate(kept) if revision.kind == "base")
        tail = kept[start + 1 :]
        return StoredDocument(
            record=codec.decode_document(self.table.rows[id].text),
            version=kept[start].version,
            value=_materialised(id, kept[start], tail),
            deltas_since_base=len(tail),
        )

    def scan(self, scope: Scope, *, limit: int, kind: str | None, at: At, after: int | None) -> Page[DocumentRecord]:
        """The incarnations alive at `at` in exactly this scope."""
        named = None if kind is None else codec.indexed(kind)

        def wanted(record: DocumentRecord) -> bool:
            return _alive(record, at) and (named is None or codec.indexed(record.kind) == named)

        ids = behind(self._in_scope.get(scope, []), after, "ascending")
        return self.table.page((id for id in ids if wanted(self.table.rows[id].facts)), limit)


def _name(address: Address) -> Name:
    key = None if address.key is None else codec.indexed(address.key)
    return codec.indexed(address.kind), address.scope, key


def _alive(record: DocumentRecord, at: At) -> bool:
    return record.retired_at is None if at == "current" else record.alive_at(at)


def _revision(content: Base | Delta, seq: Seq) -> Revision:
    match content:
        case Base(version, value):
            return Revision(seq, "base", version, codec.dumps(value))
        case Delta(version, ops):
            return Revision(seq, "delta", version, codec.dumps(delta.encode(ops)))
        case _:
            assert_never(content)


def _materialised(id: DocumentId, base: Revision, tail: list[Revision]) -> JsonObject:
    try:
        value = codec.loads(base.text)
        for revision in tail:
            value = delta.apply(value, delta.parse(codec.loads(revision.text)))
    except delta.BadDelta as error:
        raise StorageError(f"document {id} cannot be read: {error}", stored="unknown") from error
    if not isinstance(value, Mapping):
        raise StorageError(f"document {id} cannot be read: its value is no object", stored="unknown")
    return value
