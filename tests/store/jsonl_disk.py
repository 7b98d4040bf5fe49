"""A model of a disk for the crash tests of the JSONL storage: what its file operations were, and what a kill or a power
cut may leave of them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pidurable_nb.store.jsonl_files import RealFiles

SECTOR = 512
Image = dict[str, bytes]
"""What stands in the folder: content by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One file operation. `at` is where an append began, or how long a cut file is; `to` the new name."""

    kind: Literal["create", "append", "truncate", "fsync", "rename", "unlink", "fsync_dir"]
    name: str = ""
    inode: int = 0
    at: int = 0
    data: bytes = b""
    to: str = ""

    def torn(self, length: int) -> Op:
        """The same append, cut off."""
        return Op(kind="append", name=self.name, inode=self.inode, at=self.at, data=self.data[:length])


@dataclass(slots=True)
class Disk:
    """Names and contents."""

    names: dict[str, int] = field(default_factory=dict)
    contents: dict[int, bytearray] = field(default_factory=dict)

    @classmethod
    def of(cls, image: Mapping[str, bytes]) -> Disk:
        """A disk that holds an image."""
        return cls(
            {name: inode for inode, name in enumerate(image)},
            {inode: bytearray(content) for inode, content in enumerate(image.values())},
        )

    def apply(self, op: Op) -> None:
        """Do what the operation does."""
        match op.kind:
            case "create":
                self.names[op.name] = op.inode
                self.contents.setdefault(op.inode, bytearray())
            case "append":
                self.write(op.inode, op.at, op.data)
            case "truncate":
                del self.contents[op.inode][op.at :]
            case "rename":
                if op.name in self.names:
                    self.names[op.to] = self.names.pop(op.name)
            case "unlink":
                self.names.pop(op.name, None)
            case "fsync" | "fsync_dir":
                pass

    def write(self, inode: int, at: int, data: bytes) -> None:
        """Write anywhere; a gap is zeros."""
        content = self.contents.setdefault(inode, bytearray())
        content.extend(b"\0" * (at - len(content)))
        content[at : at + len(data)] = data

    def image(self) -> Image:
        """What stands there."""
        return {name: bytes(self.contents[inode]) for name, inode in self.names.items()}


class Recorder(RealFiles):
    """Does the operations and writes them down. Syncing only writes down: here nothing is lost but in the model."""

    def __init__(self, image: Mapping[str, bytes] | None = None) -> None:
        self.ops: list[Op] = []
        self._names = {name: inode for inode, name in enumerate(image or {})}
        self._sizes = {inode: len(content) for inode, content in enumerate((image or {}).values())}
        self._inodes: dict[int, tuple[str, int]] = {}
        self._next = len(self._names)

    def note(self, op: Op) -> None:
        """Write it down."""
        self.ops.append(op)

    def open(self, path: Path, *, new: bool) -> int:
        """As the system does."""
        fd = super().open(path, new=new)
        if new:
            self._names[path.name] = self._next
            self._sizes[self._next] = 0
            self.note(Op(kind="create", name=path.name, inode=self._next))
            self._next += 1
        self._inodes[fd] = (path.name, self._names[path.name])
        return fd

    def append(self, fd: int, data: bytes) -> int:
        """As the system does."""
        name, inode = self._inodes[fd]
        done = super().append(fd, data)
        self.note(Op(kind="append", name=name, inode=inode, at=self._sizes[inode], data=data[:done]))
        self._sizes[inode] += done
        return done

    def truncate(self, fd: int, length: int) -> None:
        """As the system does."""
        name, inode = self._inodes[fd]
        super().truncate(fd, length)
        self.note(Op(kind="truncate", name=name, inode=inode, at=length))
        self._sizes[inode] = length

    def fsync(self, fd: int) -> None:
        """Only written down."""
        name, inode = self._inodes[fd]
        self.note(Op(kind="fsync", name=name, inode=inode))

    def rename(self, old: Path, new: Path) -> None:
        """As the system does."""
        super().rename(old, new)
        self._names[new.name] = self._names.pop(old.name)
        self.note(Op(kind="rename", name=old.name, to=new.name))

    def unlink(self, path: Path) -> None:
        """As the system does."""
        super().unlink(path)
        del self._names[path.name]
        self.note(Op(kind="unlink", name=path.name))

    def fsync_dir(self, folder: Path) -> None:
        """Only written down."""
        self.note(Op(kind="fsync_dir"))


@dataclass(frozen=True, slots=True)
class Cut:
    """An image, how many operations are in it, and whether the next one is in it too, cut off."""

    image: Image
    done: int
    torn: int | None = None

    def __str__(self) -> str:
        return f"after {self.done} operations" + ("" if self.torn is None else f" and {self.torn} bytes of the next")


def torn_lengths(length: int, *, short: int = 64, samples: int = 9) -> list[int]:
    """Every length a short write can be cut to, some of a long one."""
    if length <= short:
        return list(range(1, length))
    return sorted({1, length // 2, length - 2, length - 1, *(length * n // samples for n in range(1, samples))})


def kill_images(ops: list[Op], start: Mapping[str, bytes], *, most_torn: int = 64) -> Iterator[Cut]:
    """What a kill leaves: after every operation, and with every length of a torn write."""
    disk = Disk.of(start)
    yield Cut(disk.image(), 0)
    for done, op in enumerate(ops):
        if op.kind == "append":
            for length in torn_lengths(len(op.data), short=most_torn):
                disk.apply(op.torn(length))
                yield Cut(disk.image(), done, length)
                del disk.contents[op.inode][op.at :]
        disk.apply(op)
        yield Cut(disk.image(), done + 1)


class Volatile:
    """What of the operations is surely on disk, and what a power cut may take."""

    def __init__(self, start: Mapping[str, bytes]) -> None:
        self.disk = Disk.of(start)
        self.pending: list[Op] = []

    def apply(self, op: Op) -> None:
        """One operation more; a sync makes what it covers sure."""
        match op.kind:
            case "fsync":
                self._settle(lambda pending: pending.kind in ("append", "truncate") and pending.inode == op.inode)
            case "fsync_dir":
                self._settle(lambda pending: pending.kind in ("create", "rename", "unlink"))
            case _:
                self.pending.append(op)

    def _settle(self, covered: Callable[[Op], bool]) -> None:
        for op in self.pending:
            if covered(op):
                self.disk.apply(op)
        self.pending = [op for op in self.pending if not covered(op)]

    def image(self, keeps: Callable[[], bool]) -> Image:
        """Each sector of what was written, each cut and each change of a name survives by itself, or does not."""
        disk = Disk(dict(self.disk.names), {inode: bytearray(data) for inode, data in self.disk.contents.items()})
        for op in self.pending:
            if op.kind == "append":
                self._write(disk, op, keeps)
            elif keeps():
                disk.apply(op)
        return {name: bytes(disk.contents.get(inode, b"")) for name, inode in disk.names.items()}

    @staticmethod
    def _write(disk: Disk, op: Op, keeps: Callable[[], bool]) -> None:
        start, end = op.at, op.at + len(op.data)
        while start < end:
            stop = min(end, start - start % SECTOR + SECTOR)
            if keeps():
                disk.write(op.inode, start, op.data[start - op.at : stop - op.at])
            start = stop
        if keeps():  # the size may be on disk before what is in it
            disk.write(op.inode, end, b"")


def power_images(ops: list[Op], start: Mapping[str, bytes], *, seed: int, each: int) -> Iterator[Cut]:
    """What a power cut leaves: after every operation nothing, everything or any part of what was not synced."""
    draw = random.Random(seed)
    volatile = Volatile(start)
    for done, op in enumerate(ops):
        volatile.apply(op)
        if not volatile.pending:
            yield Cut(volatile.image(lambda: True), done + 1)
            continue
        yield Cut(volatile.image(lambda: False), done + 1)
        yield Cut(volatile.image(lambda: True), done + 1)
        for _ in range(each):
            yield Cut(volatile.image(_some(draw, draw.choice((0.2, 0.5, 0.8)))), done + 1)


def _some(draw: random.Random, share: float) -> Callable[[], bool]:
    return lambda: draw.random() < share


def put(image: Mapping[str, bytes], folder: Path) -> Path:
    """Make the folder hold exactly this image."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in image.items():
        (folder / name).write_bytes(content)
    return folder
