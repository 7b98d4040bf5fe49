"""Owns a sweep as one file: everything that it found, as JSON that another person can load and look at.

Whoever wrote a file that is loaded is a stranger: it is read with a limit, checked to the last field, and refused with
a sentence. Never runs what is in one, and never imports what it names; the source text in it is for reading.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from pidurable_nb.agent.opening import DURABILITIES, Durability
from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import MAX_INTEGER, Json, JsonObject
from pidurable_nb.lab.dying.point import BadPoint, Point
from pidurable_nb.lab.scenario import BUILT_IN
from pidurable_nb.lab.sweeping.points import SWEEP_KINDS, SweepKind
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.tally import Tally, Witness
from pidurable_nb.records.codec import BadRecord, loads
from pidurable_nb.store.visible import visible

__all__ = ["FORMAT", "MOST_BYTES", "SavedSweepRefused", "load", "read", "save", "source_of", "written"]

FORMAT: Final = "pidurable_nb.sweep/1"
"""The first field of every such file."""
MOST_BYTES: Final = 64 << 20
"""A file that is larger than this is not read."""
_MOST_SOURCE: Final = 1 << 20
_SHOWN: Final = 160

_FIELDS: Final = frozenset(
    ["format", "scenario", "kinds", "durability", "seed", "second", "points", "done", "pieces", "seconds", "sqlite",
     "source", "tally"]
)  # fmt: skip


class SavedSweepRefused(PidurableError):
    """The file is no saved sweep, or not one that this version understands; the message says what in it, and which."""


def save(found: SweepResult, path: Path) -> None:
    """Write everything that a sweep found to one file, which is whole or not there at all.

    With it goes the source text of the scenario's module, where it is not a built-in one. Raises: OSError.
    """
    kept = found if found.source is not None else replace(found, source=source_of(found.scenario))
    text = json.dumps(written(kept), allow_nan=False, default=_plain)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text + "\n", encoding="ascii")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def load(path: Path) -> SweepResult:
    """What somebody saved. Nothing of it is run or imported. Raises: SavedSweepRefused, OSError."""
    try:
        return read(loads(_text(path), "saved sweep"))
    except (BadRecord, BadPoint, ValueError, OverflowError) as error:
        raise SavedSweepRefused(f"{path} is no sweep that was saved: {_cut(str(error))}") from error


def source_of(scenario: str) -> str | None:
    """The text of the module of the scenario of that name, as its file is now; None for a built-in one."""
    module, colon, _ = scenario.partition(":")
    if not colon or scenario in BUILT_IN:
        return None
    file = getattr(sys.modules.get(module), "__file__", None)
    with suppress(OSError, UnicodeDecodeError):
        if file is not None:
            text = Path(file).read_text(encoding="utf-8")
            return text if len(text) <= _MOST_SOURCE else text[:_MOST_SOURCE]
    return None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__qualname__} is not JSON")


def _text(path: Path) -> str:
    """The text of a regular file that is not too large: a pipe would never end, and a device would not either."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise SavedSweepRefused(f"{path} is no regular file; name a file that SweepResult.save wrote")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise SavedSweepRefused(f"{path} is larger than {MOST_BYTES >> 20} MiB; no sweep is that large")
    return content.decode("utf-8").strip()


def _cut(text: str) -> str:
    """The beginning and the end of a sentence that may quote a whole file."""
    shown = visible(text)
    return shown if len(shown) <= 2 * _SHOWN else f"{shown[:_SHOWN]} … {shown[-_SHOWN:]}"


# As JSON, both ways.


def written(found: SweepResult) -> JsonObject:
    """What `read` makes a result of."""
    return {
        "format": FORMAT,
        "scenario": found.scenario,
        "kinds": list(found.kinds),
        "durability": found.durability,
        "seed": found.seed,
        "second": found.second,
        "points": found.points,
        "done": found.done,
        "pieces": found.pieces,
        "seconds": found.seconds,
        "sqlite": found.sqlite,
        "source": found.source,
        "tally": found.tally.to_json(),
    }


def read(value: Json) -> SweepResult:
    """The result that was written so. Raises: ValueError, naming the field and what is wrong with it."""
    if not isinstance(value, Mapping) or value.get("format") != FORMAT:
        said = value.get("format") if isinstance(value, Mapping) else type(value).__name__
        raise ValueError(f"its format is {said!r}, and {FORMAT!r} is what this version reads")
    for name in sorted(_FIELDS ^ value.keys()):
        raise ValueError(f"the field {name!r} is {'missing' if name in _FIELDS else 'none of a saved sweep'}")
    source = value["source"]
    if source is not None and (not isinstance(source, str) or len(source) > _MOST_SOURCE):
        raise ValueError("source is no text, or too much of it")
    second = value["second"]
    if not isinstance(second, bool):
        raise ValueError(f"second is {second!r}, not true or false")
    done, pieces = _count(value, "done"), _count(value, "pieces")
    if done > pieces:
        raise ValueError(f"{done} of {pieces} pieces cannot be done")
    return SweepResult(
        scenario=_words(value, "scenario"),
        kinds=_kinds(value["kinds"]),
        durability=_durability(value["durability"]),
        seed=_count(value, "seed"),
        second=second,
        points=_count(value, "points"),
        tally=_tally(value["tally"]),
        done=done,
        pieces=pieces,
        seconds=_seconds(value["seconds"]),
        sqlite=_words(value, "sqlite"),
        source=source,
    )


def _tally(value: Json) -> Tally:
    tally = Tally.of_json(value)
    numbers = {"images": tally.images, "runs": tally.runs, "same": tally.same, "compared": tally.compared}
    numbers |= {f"classes of {kind}": count for kind, count in tally.classes.items()}
    for (point, kind), counts in tally.cells.items():
        if point:
            Point.parse(point)
        numbers |= {f"cell {point} {kind} {each}": count for each, count in counts.items()}
    for what, took in tally.took.items():
        numbers[f"took {what}"] = took.count
        _seconds(took.seconds)
    for name, number in numbers.items():
        _checked(number, name)
    if tally.same > tally.compared:
        raise ValueError(f"{tally.same} of {tally.compared} cannot be the same")
    for witness in [*tally.witnesses.values(), *tally.problems.values(), *tally.different]:
        _story(witness)
    return tally


def _story(witness: Witness) -> None:
    lives = [str(crash) for crash in witness.crashes]
    if len(lives) > _MOST_CRASHES:
        raise ValueError(f"a story of {len(lives)} crashes is none of a sweep's")


_MOST_CRASHES: Final = 8


def _count(value: JsonObject, name: str) -> int:
    return _checked(value[name], name)


def _checked(number: Json, name: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_INTEGER:
        raise ValueError(f"{name} is {number!r}, not a count")
    return number


def _seconds(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_INTEGER:
        raise ValueError(f"{value!r} is no number of seconds")
    return float(value)


def _words(value: JsonObject, name: str) -> str:
    words = value[name]
    if not isinstance(words, str) or not words or len(words) > 300:
        raise ValueError(f"{name} is no name")
    return words


def _kinds(value: Json) -> tuple[SweepKind, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"kinds is {value!r}, not a list of {', '.join(SWEEP_KINDS)}")
    for each in value:
        if not isinstance(each, str) or each not in SWEEP_KINDS:
            raise ValueError(f"{each!r} is no kind of crash; there are {', '.join(SWEEP_KINDS)}")
    return tuple(SWEEP_KINDS[each] for each in dict.fromkeys(map(str, value)))


def _durability(value: Json) -> Durability:
    if not isinstance(value, str) or value not in DURABILITIES:
        raise ValueError(f"{value!r} is no durability; there are {', '.join(DURABILITIES)}")
    return DURABILITIES[value]
