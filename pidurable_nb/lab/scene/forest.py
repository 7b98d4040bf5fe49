"""Owns where boxes stand in a drawn forest: who owns whom, laid out so that a thousand fit on a few screens.

Ownership is read from left to right and from above: an only child stands behind its owner, and a line of such wraps
like text; several children stand below their owner in shelves, each with what it owns around it. Lines run in the
gaps, so that none crosses a box. Knows no task and no text; the same forest always gives the same picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

WIDTH: Final = 124
HEIGHT: Final = 34
GAP_X: Final = 14
GAP_Y: Final = 16
INDENT: Final = 18
MARGIN: Final = 12
CELL_X: Final = WIDTH + GAP_X
CELL_Y: Final = HEIGHT + GAP_Y
_ASPECT: Final = 1.7
"""How much wider than high a part of the picture tends to be."""
_SHARES: Final = (0.7, 0.85, 1.0, 1.2, 1.45)
_LEFT: Final = 10
"""Where a line of ownership leaves or meets a box, from its left side."""
_BESIDE: Final = 8
"""How far from it a second line runs."""
_AWAITED: Final = WIDTH - 26
"""Where other lines do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """A picture in whole pixels: the upper left corner of each box, which is `WIDTH` by `HEIGHT`."""

    width: int
    height: int
    places: Mapping[int, tuple[int, int]]
    owners: Mapping[int, int]
    shelves: Mapping[int, tuple[int, int]]
    """Of a box that stands in a shelf of its owner: where the line down from the owner runs, and the one across."""

    def line(self, id: int) -> str:
        """The path from the owner of `id` to it."""
        return self._owned(id, 0)[0]

    def dashed(self, waiter: int, on: int) -> str:
        """The path from one box to another with a tip at its end, to be dashed.

        Beside the line of ownership where there is one, else a curve, which belongs behind the boxes.
        """
        if self.owners.get(on) == waiter:
            path, x, y, across = self._owned(on, _BESIDE)
            barbs = ("l-4 -3", "l-4 3") if across else ("l-3 -4", "l3 -4")  # each a dash at most, so that it is whole
        else:
            (begin, top), (x, y) = self.places[waiter], self.places[on]
            begin, x, up = begin + _AWAITED, x + _AWAITED, y < top
            bend, ahead = (40, -40) if y > top else (-40, 40 if up else -40)
            top, y = (top + HEIGHT if y > top else top), (y + HEIGHT if up else y)
            path = f"M{begin} {top}C{begin} {top + bend} {x} {y + ahead} {x} {y}"
            barbs = ("l-3 4", "l3 4") if up else ("l-3 -4", "l3 -4")
        return path + "".join(f"M{x} {y}{barb}" for barb in barbs)

    def _owned(self, id: int, aside: int) -> tuple[str, int, int, bool]:
        """The path from the owner of `id` to it, moved aside; where it ends, and whether it goes across there."""
        (x, y), (from_x, from_y) = self.places[id], self.places[self.owners[id]]
        if id not in self.shelves and y == from_y:
            middle = y + HEIGHT // 2 + aside
            return f"M{from_x + WIDTH} {middle}H{x}", x, middle, True
        down, end, half = from_x + _LEFT + aside, x + _LEFT + aside, aside // 2
        bend = f"M{down} {from_y + HEIGHT}V{from_y + HEIGHT + GAP_Y // 2 - 2 + half}"
        if id in self.shelves:
            trunk, across = self.shelves[id]
            bend += f"H{trunk + half}V{across + half}"
        return f"{bend}H{end}V{y}", end, y, False


@dataclass(slots=True)
class _Block:
    """A line of only children, and what the last of them owns in shelves below."""

    line: list[int]
    below: list[_Block] = field(default_factory=list)
    width: int = 0
    height: int = 0
    in_row: int = 1
    x: int = 0
    y: int = 0
    across: int = 0


def lay_out(owned: Iterable[tuple[int, int | None]], most: int | None = None) -> Forest:
    """Boxes with their owners, in the order in which they are to be read. An owner that is no box counts as none.

    `most` is how wide the picture may become, but for what has no other way.

    Where owners go round in a circle, which no valid store has, one of them counts as owned by nobody.
    """
    owners = dict(owned)
    kept = _without_circles(owners)
    children: dict[int, list[int]] = {}
    for id in owners:
        if id in kept:
            children.setdefault(kept[id], []).append(id)
    roots, blocks = _blocks([id for id in owners if id not in kept], children)
    whole = _Block([], roots)
    for block in (*reversed(blocks), whole):  # whoever owns comes before whom it owns
        _measure(block, most)
    places: dict[int, tuple[int, int]] = {}
    shelves: dict[int, tuple[int, int]] = {}
    whole.x = whole.y = MARGIN
    for block in (whole, *blocks):
        for n, id in enumerate(block.line):
            row, column = divmod(n, block.in_row)
            places[id] = (block.x + column * CELL_X, block.y + row * CELL_Y)
        for one in block.below:
            one.x, one.y, one.across = one.x + block.x, one.y + block.y, one.across + block.y
            if block.line:
                shelves[one.line[0]] = (block.x + INDENT // 3, one.across)
    width, height = whole.width + 2 * MARGIN, whole.height + 2 * MARGIN
    return Forest(width=width, height=height, places=places, owners=kept, shelves=shelves)


def _without_circles(owners: Mapping[int, int | None]) -> dict[int, int]:
    """The owner of each that has one here."""
    kept: dict[int, int] = {}
    safe: set[int] = set()
    for id in owners:
        way: list[int] = []
        here: int | None = id
        while here is not None and here in owners and here not in safe:
            safe.add(here)
            way.append(here)
            here = owners[here]
        on_way = set(way)
        for one in way:
            owner = owners[one]
            if owner is not None and owner in owners and not (one == way[-1] and owner in on_way):
                kept[one] = owner
    return kept


def _blocks(roots: Iterable[int], children: Mapping[int, list[int]]) -> tuple[list[_Block], list[_Block]]:
    """The blocks of the roots, and all blocks, each before those below it."""
    first = [_Block([root]) for root in roots]
    blocks = list(first)
    for block in blocks:  # it grows while it is walked
        below = children.get(block.line[-1], [])
        while len(below) == 1:
            block.line.append(below[0])
            below = children.get(below[0], [])
        block.below = [_Block([child]) for child in below]
        blocks += block.below
    return first, blocks


def _measure(block: _Block, most: int | None) -> None:
    """How large a block is, and where in it the blocks below stand: those of one box first, then the larger ones.

    Of a few widths it takes the one that wastes least.
    """
    indent = INDENT if block.line else 0
    block.below.sort(key=lambda one: len(one.line) > 1 or bool(one.below))
    area = len(block.line) * CELL_X * CELL_Y + sum((b.width + GAP_X) * (b.height + GAP_Y) for b in block.below)
    least = max(WIDTH, max((one.width for one in block.below), default=0) + indent)
    usual = sqrt(area * _ASPECT)
    room = most - 2 * MARGIN if most is not None else round(usual * _SHARES[-1])
    widths = {max(least, min(room, round(usual * share))) for share in (_SHARES if block.below else (1.0,))}
    tried = [(_cost(*_fill(block, indent, width)), width) for width in sorted(widths)]
    block.width, block.height = _fill(block, indent, min(tried)[1])


def _cost(width: int, height: int) -> float:
    """What a block wastes in the one around it: its area, and the more the further it is from the shape of a screen."""
    wide, high = max(width, 1), max(height, 1)
    return wide * high * (1 + 0.15 * abs(wide / high / _ASPECT - high * _ASPECT / wide))


def _fill(block: _Block, indent: int, most: int) -> tuple[int, int]:
    """Put everything of a block into that width; gives its width and height."""
    block.in_row = max(1, min(len(block.line), (most + GAP_X) // CELL_X))
    width = block.in_row * CELL_X - GAP_X if block.line else 0
    y = -(-len(block.line) // block.in_row) * CELL_Y
    if not block.below:
        return width, max(0, y - GAP_Y)
    x, high = indent, 0
    for one in block.below:
        if x > indent and x + one.width > most:
            x, y, high = indent, y + high + GAP_Y, 0
        one.x, one.y, one.across = x, y, y - GAP_Y // 2 - 2
        x += one.width + GAP_X
        high = max(high, one.height)
        width = max(width, x - GAP_X)
    return width, y + high
