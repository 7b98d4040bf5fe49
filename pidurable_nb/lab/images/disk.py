"""Owns the model of a disk under SQLite: what is safe, what is only pending, and what files become of a choice of both.

The model: a file's content is safe as far as it was synced. Of what came later any subset may be there, in any order
across files, and a write may be there in parts. Names are apart from contents: a file that was created or deleted is so
only once its directory was synced. Files are kept in blocks that states share, so that a state costs what it changes.
Never opens a file, and never knows what is in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pidurable_nb.lab.dying.vfs import FileOp

__all__ = [
    "BLOCK", "SECTOR", "Blocks", "Disk", "Item", "Link", "Piece", "Resize", "State", "Unlink", "blocks_of", "chosen",
]  # fmt: skip

BLOCK: Final = 4096
"""A page of the kernel: a kill cuts a write between two of them."""
SECTOR: Final = 512
"""A power cut cuts a write between two of these."""

Blocks: TypeAlias = tuple[bytes, ...]
"""The content of a file: blocks of 4096 bytes, the last one shorter. States share those that they have in common."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a write, all of them or a part; `inode` is the file's number, whatever its name."""

    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    """A file gets this length: cut off, or grown with zeros."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Link:
    """A name stands for a new file."""

    inode: int
    name: str


@dataclass(frozen=True, slots=True)
class Unlink:
    """A name stands for nothing any more; `inode` is the file that it stood for."""

    inode: int
    name: str


Item: TypeAlias = Piece | Resize | Link | Unlink


class State:
    """Names and contents at one moment; a copy shares what it does not change."""

    __slots__ = ("_contents", "_names", "_own")

    def __init__(self, names: Mapping[str, int], contents: Mapping[int, list[bytes]]) -> None:
        self._names = dict(names)
        self._contents = dict(contents)
        self._own: set[int] = set()

    def copy(self) -> State:
        """The same, to be changed apart from this one. From here on neither changes the other's lists."""
        self._own.clear()
        return State(self._names, self._contents)

    def apply(self, item: Item) -> None:
        """Let it happen."""
        match item:
            case Piece(inode=inode, offset=offset, data=data):
                _write(self._blocks(inode), offset, data)
            case Resize(inode=inode, size=size):
                _resize(self._blocks(inode), size)
            case Link(inode=inode, name=name):
                self._names[name] = inode
            case Unlink(name=name):
                self._names.pop(name, None)

    def size(self, inode: int) -> int:
        """The length of a file in bytes."""
        return _size(self._contents.get(inode, []))

    def files(self) -> dict[str, Blocks]:
        """The files that have a name and are not empty: SQLite makes no difference between an empty one and none."""
        found = {name: tuple(self._contents.get(inode, ())) for name, inode in sorted(self._names.items())}
        return {name: blocks for name, blocks in found.items() if blocks}

    def _blocks(self, inode: int) -> list[bytes]:
        if inode not in self._own:
            self._contents[inode] = list(self._contents.get(inode, ()))
            self._own.add(inode)
        return self._contents[inode]


@dataclass(slots=True)
class Disk:
    """A disk after some operations. `now` is what the running system sees, `pending` what a power cut may take."""

    now: State = field(default_factory=lambda: State({}, {}))
    safe: State = field(default_factory=lambda: State({}, {}))
    pending: list[Item] = field(default_factory=list)
    syncs: int = 0
    """How often something became safe: until it grows, `pending` only does."""
    _inodes: dict[str, int] = field(default_factory=dict)
    _made: int = 0

    @classmethod
    def holding(cls, files: Mapping[str, Blocks]) -> Disk:
        """A disk on which these files are safe, and nothing is pending."""
        numbers = {name: number for number, name in enumerate(files, start=1)}
        contents = {numbers[name]: list(blocks) for name, blocks in files.items()}
        return cls(
            now=State(numbers, contents), safe=State(numbers, contents), _inodes=dict(numbers), _made=len(numbers)
        )

    def items(self, op: FileOp) -> tuple[Item, ...]:
        """What the operation changes; nothing where it is a sync. Raises: ValueError when its data was not recorded."""
        match op.op:
            case "write":
                if op.data is None or op.offset is None:
                    raise ValueError(f"operation {op.n} on {op.file} was not recorded: its data is not known")
                return (*self._existing(op.file), Piece(self._inodes[op.file], op.offset, op.data))
            case "truncate":
                return (*self._existing(op.file), Resize(self._inodes[op.file], op.size or 0))
            case "delete":
                inode = self._inodes.pop(op.file, None)
                return () if inode is None else (Unlink(inode, op.file),)
            case "sync":
                return ()

    def apply(self, op: FileOp) -> None:
        """Let the operation happen."""
        for item in self.items(op):
            self.now.apply(item)
            self.pending.append(item)
        if op.op == "sync" and op.file in self._inodes:
            self._save({self._inodes[op.file]})
        if op.directory is not None:
            self._save_directory(op.directory)

    def _existing(self, name: str) -> tuple[Item, ...]:
        return () if name in self._inodes else (self._link(name),)

    def _link(self, name: str) -> Link:
        self._made += 1
        self._inodes[name] = self._made
        return Link(self._made, name)

    def _save(self, inodes: set[int]) -> None:
        """The contents of these files are safe."""
        self._settle([isinstance(item, Piece | Resize) and item.inode in inodes for item in self.pending])

    def _save_directory(self, names: Sequence[str]) -> None:
        """The names are safe, and so are deletions. A file that was only opened so far is there, and empty."""
        for name in names:
            for item in self._existing(name):
                self.now.apply(item)
                self.pending.append(item)
        gone = {item.inode for item in self.pending if isinstance(item, Unlink)}
        self._settle([isinstance(item, Link | Unlink) for item in self.pending])
        self.pending = [item for item in self.pending if item.inode not in gone]

    def _settle(self, safe: Sequence[bool]) -> None:
        kept: list[Item] = []
        for item, settles in zip(self.pending, safe, strict=True):
            if settles:
                self.safe.apply(item)
            else:
                kept.append(item)
        self.pending = kept
        self.syncs += 1


def blocks_of(data: bytes) -> Blocks:
    """The content of a file in blocks."""
    return tuple(data[at : at + BLOCK] for at in range(0, len(data), BLOCK))


def chosen(base: State, items: Iterable[Item]) -> dict[str, Blocks]:
    """The files when only these of the pending items have happened to `base`."""
    state = base.copy()
    for item in items:
        state.apply(item)
    return state.files()


def _size(blocks: Sequence[bytes]) -> int:
    return (len(blocks) - 1) * BLOCK + len(blocks[-1]) if blocks else 0


def _resize(blocks: list[bytes], size: int) -> None:
    have = _size(blocks)
    if size > have:
        _write(blocks, have, bytes(size - have))
        return
    full, rest = divmod(size, BLOCK)
    last = blocks[full][:rest] if rest else b""
    del blocks[full:]
    if last:
        blocks.append(last)


def _write(blocks: list[bytes], offset: int, data: bytes) -> None:
    have = _size(blocks)
    if offset > have:
        data, offset = bytes(offset - have) + data, have
    at, within = divmod(offset, BLOCK)
    done = 0
    while done < len(data):
        piece = data[done : done + BLOCK - within]
        old = blocks[at] if at < len(blocks) else b""
        whole = old[:within] + piece + old[within + len(piece) :]
        if at < len(blocks):
            if whole != old:  # a block that stays the same stays the same object
                blocks[at] = whole
        else:
            blocks.append(whole)
        done += len(piece)
        at, within = at + 1, 0
