"""The model of a disk: what a sync makes safe, what a choice leaves, and names apart from contents."""

from __future__ import annotations

import random

import pytest

from pidurable_nb.lab.dying.vfs import FileOp, replay
from pidurable_nb.lab.images.disk import BLOCK, Blocks, Disk, Item, Link, Piece, Resize, Unlink, chosen


def joined(files: dict[str, Blocks]) -> dict[str, bytes]:
    return {name: b"".join(blocks) for name, blocks in files.items()}


def write(n: int, file: str, offset: int, data: bytes) -> FileOp:
    return FileOp(n=n, op="write", file=file, offset=offset, data=data, size=len(data))


def sync(n: int, file: str, *names: str) -> FileOp:
    return FileOp(n=n, op="sync", file=file, directory=names or None)


def applied(*ops: FileOp) -> Disk:
    disk = Disk()
    for op in ops:
        disk.apply(op)
    return disk


def left(disk: Disk, *items: Item) -> dict[str, bytes]:
    return joined(chosen(disk.safe, items))


def test_what_the_system_sees_is_what_replay_says_for_any_operations() -> None:
    rng = random.Random(4)
    for _ in range(60):
        ops: list[FileOp] = []
        disk = Disk()
        for n in range(1, 40):
            file = rng.choice("ab")
            match rng.choice(("write", "write", "write", "truncate", "delete", "sync")):
                case "write":
                    ops.append(write(n, file, rng.randrange(3 * BLOCK), rng.randbytes(rng.choice((1, 24, 4096, 9000)))))
                case "truncate":
                    ops.append(FileOp(n=n, op="truncate", file=file, size=rng.choice((0, 1, 4096, 5000, 20_000))))
                case "delete":
                    ops.append(FileOp(n=n, op="delete", file=file))
                case _:
                    ops.append(sync(n, file))
            disk = applied(*ops)
            expected = {name: data for name, data in replay(ops).items() if data}
            assert joined(disk.now.files()) == expected
            assert left(disk, *disk.pending) == expected
        assert all(len(block) == BLOCK for blocks in disk.now.files().values() for block in blocks[:-1])


def test_a_sync_makes_contents_safe_and_a_name_only_with_its_directory() -> None:
    disk = applied(write(1, "log", 0, b"one"), sync(2, "log"), write(3, "log", 3, b"two"))
    assert left(disk) == {}
    assert left(disk, Link(1, "log")) == {"log": b"one"}
    assert disk.pending == [Link(1, "log"), Piece(1, 3, b"two")]
    disk.apply(sync(4, "other", "log"))
    assert left(disk) == {"log": b"one"}
    disk.apply(sync(5, "log"))
    assert left(disk) == {"log": b"onetwo"}
    assert disk.pending == []


def test_a_directory_that_was_synced_holds_a_file_that_was_only_opened() -> None:
    disk = applied(
        write(1, "journal", 0, b"j"), sync(2, "journal", "database", "journal"), write(3, "database", 0, b"d")
    )
    assert disk.pending == [Piece(2, 0, b"d")]
    assert left(disk, *disk.pending) == {"database": b"d", "journal": b"j"}


def test_a_deleted_file_is_there_until_its_directory_was_synced_and_a_new_one_of_its_name_is_another() -> None:
    disk = applied(
        write(1, "log", 0, b"old"),
        sync(2, "log", "log"),
        FileOp(n=3, op="delete", file="log"),
        write(4, "log", 0, b"n"),
    )
    gone, link, piece = disk.pending
    assert (gone, link) == (Unlink(1, "log"), Link(2, "log"))
    assert left(disk) == {"log": b"old"}
    assert left(disk, piece) == {"log": b"old"}
    assert left(disk, gone) == {}
    assert left(disk, gone, link, piece) == left(disk, link, piece) == {"log": b"n"}
    disk.apply(FileOp(n=5, op="delete", file="log", directory=()))
    assert disk.pending == []
    assert left(disk) == {}


def test_states_share_the_blocks_that_they_have_in_common() -> None:
    disk = applied(write(1, "a", 0, bytes(10 * BLOCK)))
    before = disk.now.copy()
    disk.apply(write(2, "a", 5 * BLOCK, b"x"))
    old, new = before.files()["a"], disk.now.files()["a"]
    assert [at for at in range(10) if old[at] is not new[at]] == [5]
    state = before.copy()
    state.apply(Resize(1, BLOCK + 1))
    assert (state.size(1), before.size(1), disk.now.size(1)) == (BLOCK + 1, 10 * BLOCK, 10 * BLOCK)


def test_an_operation_whose_data_was_not_recorded_is_refused() -> None:
    with pytest.raises(ValueError, match="operation 7"):
        applied(FileOp(n=7, op="write", file="a", offset=0, size=3))
