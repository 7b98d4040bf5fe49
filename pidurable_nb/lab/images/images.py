"""Owns deriving from one recording what a crash behind each of its operations may leave. Nothing is run again.

A *kill* leaves what the system had been told, with the last write perhaps cut between two pages. A *power cut* leaves
what `disk` calls safe, and any choice of what is pending. Few pending operations are gone through systematically, of
many a sample is drawn. Never opens a store: `image_check` says what is in one.

    kill@120            behind operation 120
    kill@120+4096       operation 120 was cut off behind its first 4096 bytes
    power@120/keep:7    behind operation 120, of what was pending the first 7
    power@120/random:2  a sample, which the seed decides
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from pidurable_nb.errors import PidurableError
from pidurable_nb.lab.dying.vfs import FileOp
from pidurable_nb.lab.images.disk import BLOCK, SECTOR, Blocks, Disk, Item, Link, Piece, Resize, State, Unlink
from pidurable_nb.lab.images.promises import Promise
from pidurable_nb.lab.images.recording import Recording

__all__ = ["Effort", "Image", "NoSuchImage", "image", "kill_images", "power_images"]

ImageKind = Literal["kill", "power"]


class NoSuchImage(PidurableError, ValueError):
    """A name that stands for no image of this recording; the message says which part does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The files that one crash leaves, and what they have to hold.

    `name` makes it again from the recording and the seed. It is one behind operation `after_op`. `acknowledged` is the
    newest commit that has to be there under the recording's durability, `told` the newest that anybody was told of,
    `most` the newest that can be there at all. Images with one `key` are the same to the byte, in any process.
    """

    name: str
    kind: ImageKind
    after_op: int
    acknowledged: int
    told: int
    most: int
    blocks: Mapping[str, Blocks]
    key: bytes

    @property
    def files(self) -> dict[str, bytes]:
        """Each file that is not empty, whole."""
        return {name: b"".join(blocks) for name, blocks in self.blocks.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How many images of a power cut are made.

    Up to `small` pending operations have all their subsets taken. Of more, each of the newest `window` is left out, and
    is the last one kept; every other way to choose gives `samples`, and a torn write `cuts` places. Of all these at
    most `per_op` are drawn behind one operation.
    """

    per_op: int = 24
    small: int = 4
    window: int = 6
    samples: int = 3
    cuts: int = 2


# Kills.


def kill_images(recording: Recording, *, behind: Collection[int] | None = None) -> Iterator[Image]:
    """What a kill leaves behind every operation, and in the midst of every write that fills more than one page.

    `behind` narrows it to these operations. Of the same bytes that have the same to hold, behind the same effects,
    there is one image. Lazy: each costs what its operation changes.
    """
    return _different(recording, _kills(recording, behind))


def _different(recording: Recording, images: Iterable[Image]) -> Iterator[Image]:
    """The images without those of which one had the same bytes, the same to hold, the same ledger and the same time."""
    seen: set[tuple[bytes, int, int, int, int, int]] = set()
    for each in images:
        size, at_ms = recording.outside(each.after_op)
        known = each.key, each.acknowledged, each.told, each.most, size, at_ms
        if known not in seen:
            seen.add(known)
            yield each


def _kills(recording: Recording, behind: Collection[int] | None) -> Iterator[Image]:
    promises, disk, press = recording.promises(), recording.disk(), _Press()
    before, so_far = 0, promises.kill(0)
    for op, until in recording.moments():
        n, promise = 0 if op is None else op.n, promises.kill(until)
        wanted = behind is None or n in behind
        if op is not None and wanted:
            for cut in _page_cuts(op):
                torn = replace(so_far, most=max(so_far.most, promise.most))
                yield press.made(f"kill@{n}+{cut}", "kill", before, torn, _torn_kill(disk, op, cut))
        if op is not None:
            disk.apply(op)
        before, so_far = n, promise
        if wanted:
            yield press.made(f"kill@{n}", "kill", n, promise, disk.now.files())


def _page_cuts(op: FileOp) -> range:
    """Where a kill may cut the write, in bytes from its beginning."""
    if op.op != "write" or op.offset is None or op.data is None:
        return range(0)
    return range(BLOCK - op.offset % BLOCK, len(op.data), BLOCK)


def _torn_kill(disk: Disk, op: FileOp, cut: int) -> dict[str, Blocks]:
    state = disk.now.copy()
    for item in disk.items(op):
        state.apply(Piece(item.inode, item.offset, item.data[:cut]) if isinstance(item, Piece) else item)
    return state.files()


# Power cuts.


def power_images(
    recording: Recording, *, seed: int = 1, effort: Effort | None = None, behind: Collection[int] | None = None
) -> Iterator[Image]:
    """What a power cut may leave behind every operation, or behind these. Of the same bytes that have the same to hold,
    behind the same effects, there is one image.

    Lazy, and determined by recording, seed and effort.
    """
    return _different(recording, _cuts(recording, seed, effort if effort is not None else Effort(), behind))


def _cuts(recording: Recording, seed: int, effort: Effort, behind: Collection[int] | None) -> Iterator[Image]:
    promises, disk, press = recording.promises(), recording.disk(), _Press()
    trunk = _Trunk(disk)
    for op, until in recording.moments():
        n = 0 if op is None else op.n
        if op is not None:
            disk.apply(op)
        if behind is not None and n not in behind:
            continue
        promise = promises.power(until)
        for choice in _choices(disk, effort, random.Random(f"{seed}/{n}")):
            files = trunk.files(choice, f"{seed}/{n}/{choice}")
            yield press.made(f"power@{n}/{choice}", "power", n, promise, files)


def _choices(disk: Disk, effort: Effort, rng: random.Random) -> list[str]:
    """The names of choices that are to be made of what is pending now."""
    count = len(disk.pending)
    found: list[str] = []
    if count <= effort.small:
        found += [f"subset:{mask:x}" for mask in range(1 << count)]
    else:
        window = range(count - effort.window if count > effort.window else 0, count)
        found += [f"keep:{kept}" for kept in (0, *(at for at in window if at), count)]
        found += [f"drop:{at}" for at in window]
        found += [f"from:{at}" for at in (1, 2, 3)]
        for _ in range(effort.samples):
            found += [f"keep:{rng.randrange(count)}", f"from:{rng.randrange(count)}"]
        inodes = sorted({item.inode for item in disk.pending})
        if len(inodes) > 1:
            found += [f"{word}:{inode}" for word in ("only", "without") for inode in inodes]
            found += [f"cross:{sample}" for sample in range(effort.samples)]
        found += [f"random:{sample}" for sample in range(effort.samples)]
        found += [f"shred:{sample}" for sample in range(effort.samples)]
    if count:
        for at in {count - 1, rng.randrange(count)}:
            found += _torn_choices(disk, at, effort, rng)
    found = list(dict.fromkeys(found))
    return found if len(found) <= effort.per_op else [found[at] for at in _drawn(len(found), effort.per_op, rng)]


def _drawn(count: int, most: int, rng: random.Random) -> list[int]:
    return sorted(rng.sample(range(count), most))


def _torn_choices(disk: Disk, at: int, effort: Effort, rng: random.Random) -> list[str]:
    item = disk.pending[at]
    if not isinstance(item, Piece):
        return []
    cuts = range(SECTOR - item.offset % SECTOR, len(item.data), SECTOR)
    some = cuts if len(cuts) <= effort.cuts else [cuts[each] for each in _drawn(len(cuts), effort.cuts, rng)]
    found = [f"{word}:{at}+{cut}" for cut in some for word in ("head", "tail")]
    return [*found, f"size:{at}"]


class _Trunk:
    """Makes the files of a choice. States with the first 16, 32, … of what is pending are kept for the next one."""

    _STRIDE: Final = 16

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._states: list[State] = []
        self._of = -1

    def files(self, choice: str, seed: str) -> dict[str, Blocks]:
        """The files of a choice of what is pending now. Raises: NoSuchImage."""
        word, _, argument = choice.partition(":")
        pending = self._disk.pending
        try:
            if word in _CHOOSE:
                state = self._disk.safe.copy()
                items: list[Item] = _CHOOSE[word](pending, argument, seed)
            else:
                place, torn, cut = argument.partition("+")
                at = int(place)
                if bool(torn) != (word in ("head", "tail")):
                    raise ValueError("a torn write is named with the place of its cut, and nothing else is")
                if not 0 <= at <= len(pending) - (word != "keep"):
                    raise ValueError(f"{len(pending)} operations were pending")
                state = self._first(at)
                items = (
                    [] if word == "keep" else [*_left_of(word, pending[at], int(cut or 0), state), *pending[at + 1 :]]
                )
        except (ValueError, IndexError, KeyError) as error:
            raise NoSuchImage(f"{choice!r} is no choice here: {error}") from error
        for item in items:
            state.apply(item)
        return state.files()

    def _first(self, count: int) -> State:
        """A state with the first so many of what is pending."""
        if self._of != self._disk.syncs:
            self._of = self._disk.syncs
            self._states = [self._disk.safe.copy()]
        pending = self._disk.pending
        while len(self._states) <= count // self._STRIDE:
            state, done = self._states[-1].copy(), (len(self._states) - 1) * self._STRIDE
            for item in pending[done : done + self._STRIDE]:
                state.apply(item)
            self._states.append(state)
        state = self._states[count // self._STRIDE].copy()
        for item in pending[count - count % self._STRIDE : count]:
            state.apply(item)
        return state


def _left_of(word: str, item: Item, cut: int, state: State) -> list[Item]:
    """What is there of an item that was cut."""
    match word, item:
        case "drop", _:
            return []
        case "head", Piece(inode=inode, offset=offset, data=data):
            return [Piece(inode, offset, data[:cut])]
        case "tail", Piece(inode=inode, offset=offset, data=data):
            return [Piece(inode, offset + cut, data[cut:])]
        case "size", Piece(inode=inode, offset=offset, data=data):
            end = offset + len(data)
            return [Resize(inode, end)] if end > state.size(inode) else []
        case _:
            raise ValueError(f"{word} of {type(item).__name__}")


def _subset(pending: list[Item], argument: str, seed: str) -> list[Item]:
    mask = int(argument, 16)
    if mask >> len(pending):
        raise ValueError(f"{len(pending)} operations were pending")
    return [item for at, item in enumerate(pending) if mask >> at & 1]


def _from(pending: list[Item], argument: str, seed: str) -> list[Item]:
    """All but the first so many; names are kept, or nothing would be left to see."""
    at = int(argument)
    if not 0 <= at <= len(pending):
        raise ValueError(f"{len(pending)} operations were pending")
    return [*(item for item in pending[:at] if isinstance(item, Link | Unlink)), *pending[at:]]


def _only(pending: list[Item], argument: str, seed: str) -> list[Item]:
    return [item for item in pending if item.inode == int(argument)]


def _without(pending: list[Item], argument: str, seed: str) -> list[Item]:
    return [item for item in pending if item.inode != int(argument)]


def _cross(pending: list[Item], argument: str, seed: str) -> list[Item]:
    """Of each file another beginning."""
    rng = random.Random(seed)
    of: dict[int, list[int]] = {}
    for at, item in enumerate(pending):
        of.setdefault(item.inode, []).append(at)
    kept = {at for inode in sorted(of) for at in of[inode][: rng.randint(0, len(of[inode]))]}
    return [item for at, item in enumerate(pending) if at in kept]


def _random(pending: list[Item], argument: str, seed: str) -> list[Item]:
    rng = random.Random(seed)
    share = rng.choice((0.1, 0.5, 0.9))
    return [item for item in pending if rng.random() < share]


def _shred(pending: list[Item], argument: str, seed: str) -> list[Item]:
    """The newest eight in pieces of a sector, of which some are there."""
    rng = random.Random(seed)
    share = rng.choice((0.3, 0.7, 0.95))
    found: list[Item] = list(pending[:-8])
    for item in pending[-8:]:
        if isinstance(item, Piece):
            found += [piece for piece in _sectors(item) if rng.random() < share]
        elif rng.random() < share:
            found.append(item)
    return found


def _sectors(item: Piece) -> Iterator[Piece]:
    at = 0
    while at < len(item.data):
        end = at + SECTOR - (item.offset + at) % SECTOR
        yield Piece(item.inode, item.offset + at, item.data[at:end])
        at = end


_CHOOSE: Final[Mapping[str, Callable[[list[Item], str, str], list[Item]]]] = {
    "subset": _subset,
    "from": _from,
    "only": _only,
    "without": _without,
    "cross": _cross,
    "random": _random,
    "shred": _shred,
}


# One image.


def image(recording: Recording, name: str, *, seed: int = 1) -> Image:
    """The image of that name, as `kill_images` or `power_images` with this seed made it. Raises: NoSuchImage."""
    kind, _, rest = name.partition("@")
    at, _, choice = rest.partition("/")
    number, _, cut = at.partition("+")
    known = {op.n for op in recording.ops} | {0}
    if kind not in ("kill", "power") or not number.isdecimal() or int(number) not in known or (cut and choice):
        raise NoSuchImage(f"{name!r} is no image of this recording of {recording.last} operations")
    n = int(number)
    if kind == "kill":
        for each in _kills(recording, {n}):
            if each.name == name:
                return each
        raise NoSuchImage(f"{name!r}: operation {n} cannot be cut there")
    disk, moment = recording.disk(), 0
    for op, until in recording.moments():
        if op is not None and op.n <= n:
            disk.apply(op)
        if op is None or op.n <= n:
            moment = until
    files = _Trunk(disk).files(choice, f"{seed}/{n}/{choice}")
    return _Press().made(name, "power", n, recording.promises().power(moment), files)


class _Press:
    """Makes images, and their keys from the digests of their blocks, which it takes once of each."""

    def __init__(self) -> None:
        self._digests: dict[bytes, bytes] = {}

    def made(self, name: str, kind: ImageKind, n: int, promise: Promise, blocks: dict[str, Blocks]) -> Image:
        return Image(
            name=name,
            kind=kind,
            after_op=n,
            acknowledged=promise.least,
            told=promise.told,
            most=promise.most,
            blocks=blocks,
            key=self._key(blocks),
        )

    def _key(self, files: Mapping[str, Blocks]) -> bytes:
        known = self._digests
        found = hashlib.sha256()
        for name, blocks in files.items():
            for block in blocks:
                if block not in known:  # a block knows its hash: looking it up costs next to nothing
                    known[block] = hashlib.sha256(block).digest()
            found.update(f"{name} {len(blocks)} ".encode() + b"".join([known[block] for block in blocks]))
        return found.digest()
