"""Owns a sweep's pieces of work as something that another process can do: a request as JSON in, an answer as JSON out.

Each piece is a batch of deaths, of recoveries or of comparisons in one folder. Never chooses a point, never counts.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.lab.dying.identity import Compared, freeze_at
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import LEDGER, Plan, run_here
from pidurable_nb.lab.judging.invariants import Expected, Problem, expected
from pidurable_nb.lab.scenario import Scenario, builtin, find
from pidurable_nb.lab.sweeping.lives import Death, Image, die, judge, recover
from pidurable_nb.lab.sweeping.points import Which, chosen
from pidurable_nb.lab.sweeping.tally import problem_of

__all__ = ["Found", "Stage", "deaths", "expected_json", "expected_of", "recoveries", "there", "warm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One life of a recovery: the image that it begins with, and the points where it can be crashed."""

    image: Image
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of one image. `effects` are those of the first of its lives; one that kills itself is not the last."""

    problems: tuple[Problem, ...]
    twice: bool
    lives: tuple[Stage, ...]
    effects: tuple[Expected, ...]


def deaths(
    scenario: Scenario, image: Image, points: Sequence[Point], killed: Sequence[Path], folder: Path
) -> list[Death]:
    """Freeze at each of the points; or, where lives were killed at them, judge what these left, in their folders."""
    found: list[Death] = []
    kept: dict[str, Image] = {}
    pairs = list(zip(points, killed, strict=True)) if killed else []
    for death in judge(scenario, image, pairs, folder) if pairs else die(scenario, image, points, folder):
        same = kept.setdefault(death.key, death.image)
        if same is not death.image and death.image.folder is not None:
            shutil.rmtree(death.image.folder)  # of images that are the same, one is kept
        found.append(replace(death, image=same))
    return found


def recoveries(
    scenario: Scenario, images: Sequence[Image], which: Which, awaited: Sequence[Expected], folder: Path
) -> list[Found]:
    """Recover from each of the images, until a life ends by itself."""
    found: list[Found] = []
    for number, image in enumerate(images):
        here = folder / str(number)
        came = recover(scenario, image, here, awaited=awaited)
        if len(came.lives) == 1:
            shutil.rmtree(here)
        found.append(
            Found(
                problems=came.problems,
                twice=came.twice,
                lives=tuple(Stage(image=begun, points=chosen(passed, which)) for begun, passed in came.lives),
                effects=expected(came.lives[0][1]),
            )
        )
    return found


# In a fork server, and in its children.


def warm(_: Json) -> None:
    """Live one life, so that every child begins with an interpreter that has done so."""
    with tempfile.TemporaryDirectory(prefix="pidurable-warm-") as folder:
        run_here(builtin("ticker"), Path(folder) / "store.sqlite", Path(folder) / LEDGER, Plan(same_bytes=True))


def there(argument: Json) -> None:
    """Do one piece of work in this process and write the answer to the file that the request names."""
    match argument:
        case {"scenario": str(name), "answer": str(answer), "folder": str(folder), "work": dict(work)}:
            Path(answer).write_text(json.dumps(_answer(find(name), Path(folder), work)))
        case _:
            raise ValueError(f"{argument!r} is no piece of a sweep")


def _answer(scenario: Scenario, folder: Path, request: Mapping[str, Json]) -> Json:
    match request:
        case {"image": dict(image), "points": list(points), "killed": list(killed)}:
            at, left = [Point.parse(str(point)) for point in points], [Path(str(path)) for path in killed]
            return [death_json(each) for each in deaths(scenario, image_of(image), at, left, folder)]
        case {"images": list(images), "which": str(word), "awaited": list(awaited)}:
            which: Which = "files" if word == "files" else "commits"
            begun = [image_of(image) for image in images if isinstance(image, dict)]
            effects = [expected_of(each) for each in awaited]
            return [found_json(each) for each in recoveries(scenario, begun, which, effects, folder)]
        case {"image": dict(image), "frozen": list(points)}:
            at = [Point.parse(str(point)) for point in points]
            return [compared_json(each) for each in freeze_at(scenario, image_of(image).plan, at, folder)]
        case _:
            raise ValueError(f"{request!r} is no piece of a sweep")


# As JSON, both ways.


def image_json(image: Image) -> JsonObject:
    """What `image_of` makes an image of."""
    folder = None if image.folder is None else str(image.folder)
    return {"folder": folder, "plan": image.plan.to_json(), "files": image.plan.record_files}


def image_of(value: Json) -> Image:
    """The image that another process wrote. Raises: ValueError for anything else."""
    match value:
        case {"folder": str() | None as folder, "plan": dict(plan), "files": bool(files)}:
            read = replace(Plan.from_json(plan), record_files=files)
            return Image(folder=None if folder is None else Path(folder), plan=read)
        case _:
            raise ValueError(f"{value!r} is no image")


def death_json(death: Death) -> JsonObject:
    """What `death_of` makes a death of."""
    return {
        "point": str(death.point),
        "image": image_json(death.image),
        "key": death.key,
        "files": death.files,
        "problems": _problems_json(death.problems),
    }


def death_of(value: Json) -> Death:
    """The death that another process wrote. Raises: ValueError for anything else."""
    match value:
        case {"point": str(at), "image": dict(image), "key": str(key), "files": str(files), "problems": list(problems)}:
            return Death(
                point=Point.parse(at), image=image_of(image), key=key, files=files, problems=_problems_of(problems)
            )
        case _:
            raise ValueError(f"{value!r} is no death")


def found_json(found: Found) -> JsonObject:
    """What `found_of` makes of it again."""
    return {
        "problems": _problems_json(found.problems),
        "twice": found.twice,
        "lives": [{"image": image_json(life.image), "points": list(map(str, life.points))} for life in found.lives],
        "effects": [expected_json(each) for each in found.effects],
    }


def found_of(value: Json) -> Found:
    """What another process found. Raises: ValueError for anything else."""
    match value:
        case {
            "problems": list(problems),
            "twice": bool(twice),
            "lives": list(lives),
            "effects": list(effects),
        }:
            return Found(
                problems=_problems_of(problems),
                twice=twice,
                lives=tuple(_stage_of(life) for life in lives),
                effects=tuple(expected_of(each) for each in effects),
            )
        case _:
            raise ValueError(f"{value!r} is nothing that was found")


def _stage_of(value: Json) -> Stage:
    match value:
        case {"image": dict(image), "points": list(points)}:
            return Stage(image=image_of(image), points=tuple(Point.parse(str(point)) for point in points))
        case _:
            raise ValueError(f"{value!r} is no life")


def expected_json(each: Expected) -> Json:
    """What `expected_of` makes of it again."""
    return [each.kind, each.ordinal, each.effect]


def expected_of(value: Json) -> Expected:
    """The effect that another process wrote. Raises: ValueError for anything else."""
    match value:
        case [str(kind), int(ordinal), str(effect)]:
            return Expected(kind, ordinal, effect)
        case _:
            raise ValueError(f"{value!r} is no effect")


def compared_json(each: Compared) -> JsonObject:
    """What `compared_of` makes of it again."""
    return {"point": str(each.point), "frozen": each.frozen, "prefix": each.prefix}


def compared_of(value: Json) -> Compared:
    """The comparison that another process wrote. Raises: ValueError for anything else."""
    match value:
        case {"point": str(point), "frozen": str(frozen), "prefix": str(prefix)}:
            return Compared(point=Point.parse(point), frozen=frozen, prefix=prefix)
        case _:
            raise ValueError(f"{value!r} is no comparison")


def _problems_json(problems: Sequence[Problem]) -> list[Json]:
    return [[problem.kind, problem.text] for problem in problems]


def _problems_of(value: Sequence[Json]) -> tuple[Problem, ...]:
    found: list[Problem] = []
    for each in value:
        match each:
            case [str(kind), str(text)]:
                found.append(problem_of(kind, text))
            case _:
                raise ValueError(f"{each!r} is no problem")
    return tuple(found)
