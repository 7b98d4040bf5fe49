"""A store that was cut off while it was made is made to the end by the next opening, wherever it was cut."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pidurable_nb.errors import DamagedStore, NotAStore
from pidurable_nb.lab.images.image_check import lay_out
from pidurable_nb.lab.images.images import Effort, image, kill_images, power_images
from pidurable_nb.lab.images.recording import Recording, record
from pidurable_nb.store.carrying import JOURNAL_MAGIC
from pidurable_nb.store.opening import look
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import Opened, Storage
from pidurable_nb.store.stranger import StoreFile


def made(folder: Path) -> Recording:
    """Everything that reaches the files while a store is made and closed."""

    async def make(storage: Storage) -> None:
        await storage.open()
        await storage.close()

    folder.mkdir()
    return record(make, folder)


def opened(store: Path) -> Opened:
    async def main() -> Opened:
        storage = SqliteStorage(store)
        found = await storage.open()
        await storage.close()
        return found

    return asyncio.run(main())


def torn(folder: Path) -> Path:
    """A store whose only page lost its first half to a power cut, beside the journal that says that none was there."""
    recording = made(folder / "whole")
    page = next(op.n for op in recording.ops if op.op == "write" and op.file == recording.store)
    store = lay_out(image(recording, f"power@{page}/tail:0+2560"), recording, folder / "torn")
    assert not store.read_bytes()[:16].strip(b"\0")
    assert store.with_name("store.sqlite-journal").read_bytes().startswith(JOURNAL_MAGIC)
    return store


def test_f3_a_store_whose_first_page_is_torn_beside_its_journal_is_made_to_the_end(tmp_path: Path) -> None:
    store = torn(tmp_path)
    assert opened(store).opening == 1
    assert opened(store).opening == 2
    assert sorted(path.name for path in store.parent.iterdir()) == ["store.sqlite"]
    with StoreFile.open(store) as file:
        assert file.integrity == "ok"


def test_every_crash_of_a_first_opening_leaves_what_the_next_one_makes_a_store_of(tmp_path: Path) -> None:
    recording = made(tmp_path / "whole")
    images = [*kill_images(recording), *power_images(recording, effort=Effort(per_op=12))]
    journals = 0
    for each in images:
        store = lay_out(each, recording, tmp_path / each.name)
        journals += f"{store.name}-journal" in each.files
        assert look(store) == (store.name in each.files)
        assert opened(store).opening in (1, 2), each.name
    assert journals > 10
    assert len(images) > 150


def test_a_store_that_is_half_made_is_not_looked_at_by_a_stranger_and_stays_as_it_is(tmp_path: Path) -> None:
    store = torn(tmp_path)
    before = {path.name: path.read_bytes() for path in store.parent.iterdir()}
    with pytest.raises((NotAStore, DamagedStore)):
        StoreFile.open(store)
    assert {path.name: path.read_bytes() for path in store.parent.iterdir()} == before


@pytest.mark.parametrize(
    "journal",
    [
        b"", b"a journal of somebody who writes one\n", JOURNAL_MAGIC, JOURNAL_MAGIC + bytes(20),
        JOURNAL_MAGIC + bytes(11) + b"\2" + bytes(2) + b"\2\0" + bytes(2) + b"\x10\0" + bytes(99),
    ],
)  # fmt: skip
def test_a_file_of_somebody_else_is_refused_and_its_journal_is_no_reason_to_touch_it(
    journal: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"no database, but notes\n" * 20)
    beside = tmp_path / "notes.txt-journal"
    beside.write_bytes(journal)
    with pytest.raises(NotAStore):
        opened(path)
    assert path.read_bytes() == b"no database, but notes\n" * 20
    assert beside.read_bytes() == journal
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes.txt", "notes.txt-journal"]


def test_a_database_of_more_pages_is_looked_at_whatever_the_journal_beside_it_says(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE other (a)")
        connection.commit()
    before = path.read_bytes()
    journal = tmp_path / "other.sqlite-journal"
    journal.write_bytes(JOURNAL_MAGIC + bytes(14) + b"\2\0" + bytes(2) + b"\x10\0" + bytes(500))
    with pytest.raises(NotAStore):
        opened(path)
    assert path.read_bytes() == before
    assert journal.exists()
