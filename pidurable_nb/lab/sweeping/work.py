"""Owns doing a piece of a sweep: here, in a child, or far away. Never cuts a sweep into pieces, and never adds up."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.lab.dying.crash import CrashKind
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.scenario import find
from pidurable_nb.lab.sweeping.faults import count_faults
from pidurable_nb.lab.sweeping.hands import Hands, crew
from pidurable_nb.lab.sweeping.images import count_images
from pidurable_nb.lab.sweeping.lives import Death, Image
from pidurable_nb.lab.sweeping.pieces import Deaths, Faults, Identities, Images, Piece, Sweeping, piece_of
from pidurable_nb.lab.sweeping.points import Crashes
from pidurable_nb.lab.sweeping.tally import Tally, Witness
from pidurable_nb.lab.sweeping.units import Found

__all__ = ["far", "there", "work"]

_THERE: Final = "pidurable_nb.lab.sweeping.work:there"


def work(hands: Hands, sweeping: Sweeping, piece: Piece) -> Tally:
    """Do one piece. Raises: NotKilled, ForkServerError."""
    if hands.away and not _kills(piece):
        told: JsonObject = {"sweeping": sweeping.to_json(), "piece": piece.to_json()}
        return Tally.of_json(hands.ask(_THERE, told))
    match piece:
        case Deaths():
            return _deaths(hands, sweeping, piece)
        case Images():
            return count_images(hands.scenario, sweeping, piece, hands.new())
        case Faults():
            return count_faults(hands.scenario, sweeping, piece, hands.new())
        case Identities():
            return _identities(hands, sweeping, piece)


def there(argument: Json) -> None:
    """Do a piece in this process, a child, and write the tally to the file that the request names."""
    match argument:
        case {"scenario": str(name), "answer": str(answer), "folder": str(folder), "work": dict(told)}:
            hands = Hands(find(name), Path(folder))
            tally = work(hands, Sweeping.of_json(told.get("sweeping")), piece_of(told.get("piece")))
            Path(answer).write_text(json.dumps(tally.to_json()))
        case _:
            raise ValueError(f"{argument!r} is no piece of a sweep")


def far(scenario: str, sweeping: JsonObject, piece: JsonObject) -> JsonObject:
    """Do a piece on whatever machine this is, in a folder of its own; the tally as JSON.

    The scenario is named `module:name`, and this machine can import it. Raises: as `work`.
    """
    asked = piece_of(piece)
    with crew(find(scenario), processes=1, kill=_kills(asked)) as workers:
        return work(workers.first, Sweeping.of_json(sweeping), asked).to_json()


def _kills(piece: Piece) -> bool:
    """Whether it takes somebody with a fork server, who cannot be a child of one."""
    return isinstance(piece, Identities) or (isinstance(piece, Deaths) and "kill" in piece.kinds)


# Deaths at points.


@dataclass(frozen=True, slots=True)
class _Died:
    """A death, and how it was died."""

    death: Death
    how: CrashKind


@dataclass(frozen=True, slots=True)
class _Node:
    """Deaths that left the same image."""

    deaths: tuple[_Died, ...]

    @property
    def image(self) -> Image:
        return self.deaths[0].death.image


def _deaths(hands: Hands, sweeping: Sweeping, piece: Deaths) -> Tally:
    """Crash at each point and recover, from images that are the same to the byte once."""
    tally = Tally()
    for node in _nodes(_died(hands, tally, sweeping.nothing, piece.points, piece.kinds, ())):
        [found] = hands.recover([node.image], sweeping.which, sweeping.awaited)
        _count(tally, node, found, (), node.deaths[0].death.point)
        if sweeping.second:
            before = node.deaths[0].death.point
            for life in found.lives:
                again = _died(hands, tally, life.image, life.points, piece.kinds, (before,))
                _recovered(hands, sweeping, tally, _nodes(again), before)
        _forget(life.image for life in found.lives)
    return tally


def _recovered(hands: Hands, sweeping: Sweeping, tally: Tally, nodes: Sequence[_Node], before: Point) -> None:
    """What became of lives that had recovered from a crash at `before`, and crashed too."""
    founds = hands.recover([each.image for each in nodes], sweeping.which, sweeping.awaited)
    for node, found in zip(nodes, founds, strict=True):
        _count(tally, node, found, (before,), before)
    _forget(each.image for each in nodes)


def _count(tally: Tally, node: _Node, found: Found, before: Crashes, row: Point) -> None:
    tally.runs += len(found.lives)
    for died in node.deaths:
        point = died.death.point
        tally.count(
            [*died.death.problems, *found.problems],
            twice=found.twice,
            witness=Witness((*before, point), died.how),
            point=row if before else point,
        )


def _died(
    hands: Hands, tally: Tally, image: Image, points: Sequence[Point], kinds: Sequence[CrashKind], before: Crashes
) -> list[_Died]:
    """Deaths of the life that begins with `image`, at each point in each way; two ways are held against each other."""
    found: list[_Died] = []
    files: dict[Point, set[str]] = {point: set() for point in points}
    for kind in kinds:
        begun = time.monotonic()
        if kind == "freeze":
            deaths = hands.freeze(image, points)
            tally.timed("freeze", len(deaths), time.monotonic() - begun)
        else:
            killed = [hands.killed(image, point) for point in points]
            tally.timed("kill", len(killed), time.monotonic() - begun)
            deaths = hands.judge(image, points, killed)
        for death in deaths:
            found.append(_Died(death, kind))
            files[death.point].add(death.files)
    tally.runs += len(found)
    if len(kinds) > 1:
        for point, left in files.items():
            tally.compare(len(left) == 1, Witness((*before, point), "kill"))
    return found


def _nodes(deaths: Iterable[_Died]) -> list[_Node]:
    """Deaths by the image that they left."""
    same: dict[str, list[_Died]] = {}
    for died in deaths:
        same.setdefault(died.death.key, []).append(died)
    return [_Node(tuple(found)) for found in same.values()]


def _forget(images: Iterable[Image]) -> None:
    for image in images:
        if image.folder is not None:
            shutil.rmtree(image.folder, ignore_errors=True)


# Three ways to die.


def _identities(hands: Hands, sweeping: Sweeping, piece: Identities) -> Tally:
    """Freeze equals kill, before every file operation of a first life."""
    tally = Tally()
    for frozen in hands.compare(sweeping.nothing, piece.points):
        same = frozen.frozen == frozen.prefix == hands.killed_files(sweeping.nothing, frozen.point)
        tally.runs += 2
        tally.compare(same, Witness((frozen.point,), "kill"))
    return tally
