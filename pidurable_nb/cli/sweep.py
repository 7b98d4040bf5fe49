"""Owns `pidurable-nb sweep SCENARIO`: a crash at every point, and what became of it.

An interrupt stops a sweep, and what was found so far is printed. Leaves nothing behind but what `--save` names.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pidurable_nb.cli.scenarios import named_scenario
from pidurable_nb.cli.subcommand import Result, Subcommand
from pidurable_nb.lab.dying.point import BadPoint
from pidurable_nb.lab.scenario import BUILT_IN, Scenario
from pidurable_nb.lab.sweeping.points import SweepKind, Where, kinds_of, named, where
from pidurable_nb.lab.sweeping.replay import LifeTold, Replayed, replay
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.stop import until_stopped
from pidurable_nb.lab.sweeping.sweep import sweep
from pidurable_nb.store.visible import visible

_MOST_PROCESSES: Final = 8
_SHOWN: Final = 20
"""Violations on a page; `--json` lists all."""


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "scenario", metavar="SCENARIO", type=named_scenario, help=f"module:name, or built in: {', '.join(BUILT_IN)}"
    )
    parser.add_argument(
        "--kind", metavar="KINDS", type=_kinds, default=("freeze",),
        help="one or more of these, by commas: freeze (in process, the default), kill (SIGKILL of a child at every "
        "point, and what one leaves behind every operation on the files), power (what a power cut may leave behind "
        "them), fault (every operation fails once)",
    )  # fmt: skip
    parser.add_argument(
        "--durability", choices=("kill", "barrier", "power"), default="barrier", help="of the stores; default: barrier"
    )
    parser.add_argument("--second", action="store_true", help="crash every recovery again, at every point of it")
    parser.add_argument(
        "--points", choices=("commits", "files"), default="commits",
        help="crash at every commit boundary (the default), or before every operation on the store's files",
    )  # fmt: skip
    parser.add_argument("--seed", metavar="N", type=_count, default=1, help="decides the order of what is ready")
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--point", metavar="POINT", type=_crash, action="append",
        help="tell one story: crash here, and nowhere else; may be given again for a later life",
    )  # fmt: skip
    either.add_argument(
        "--save", metavar="FILE", type=_new_file,
        help="write all that was found to this file, for SweepResult.load and for %%pi sweep --load",
    )  # fmt: skip
    parser.add_argument(
        "--processes", metavar="N", type=_count, default=min(os.cpu_count() or 1, _MOST_PROCESSES),
        help="work in so many child processes at once; 1 works in this one. Default: one a processor",
    )  # fmt: skip


def _kinds(text: str) -> tuple[SweepKind, ...]:
    try:
        return kinds_of(text)
    except BadPoint as error:
        raise ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no number; write 1, 2, …")
    return int(text)


def _new_file(text: str) -> Path:
    path = Path(text).expanduser()
    if path.is_dir() or not path.parent.is_dir():  # found out now, and not when all is done
        raise ArgumentTypeError(f"{text!r} cannot be written: name a file in a folder that is there")
    return path


def _crash(text: str) -> Where:
    try:
        return where(text)
    except BadPoint as error:
        raise ArgumentTypeError(str(error)) from error


def _run(options: Namespace) -> Result:
    scenario: Scenario = options.scenario
    kinds: tuple[SweepKind, ...] = options.kind
    if options.point is not None:
        told = replay(scenario, options.point, how=kinds[-1], durability=options.durability, seed=options.seed)
        return Result(json=told.to_json(), text=lambda: replay_text(told), ok=told.ok)
    found = until_stopped(
        lambda stop: sweep(
            scenario,
            kinds=kinds,
            durability=options.durability,
            second=options.second,
            points=options.points,
            seed=options.seed,
            processes=options.processes,
            stop=stop,
            on_progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
    )
    if options.save is not None:
        found.save(options.save)
    return Result(json=found.to_json(), text=lambda: sweep_text(found), ok=found.ok and found.complete)


def sweep_text(found: SweepResult) -> str:
    """The table of a sweep for a terminal: what became of the images, with a story for each that is not as promised."""
    return "\n".join(_table(found))


def _table(found: SweepResult) -> Iterator[str]:
    yield f"{visible(found.scenario)}   {' and '.join(found.kinds)}, durability {found.durability}, seed {found.seed}"
    yield f"SQLite {found.sqlite}; {found.points} points, {found.images} images, {found.runs} lives"
    yield ""
    for kind, count in found.counts.items():
        yield f"  {kind:<20}{count:>7}"
        witness = found.witnesses.get(kind)
        if witness is not None:
            yield f"      {visible(found.replay(witness))}"
    yield ""
    if found.byte_identical is not None:
        yield f"frozen, killed and replayed, byte by byte the same: {found.byte_identical}"
    for violation in found.violations[:_SHOWN]:
        yield f"VIOLATION  {violation.kind}: {visible(violation.text)}"
        yield f"           at {visible(named(violation.witness.crashes)) or 'no crash at all'}"
        yield f"           {visible(violation.replay)}"
    if len(found.violations) > _SHOWN:
        yield f"and {len(found.violations) - _SHOWN} more violations: --json lists all"
    if found.note is not None:
        yield found.note
    rate = found.images / found.seconds if found.seconds else 0.0
    verdict = "nothing happened that is not allowed" if found.ok else "something happened that is not allowed"
    yield f"{verdict}; {found.seconds:.1f} s, {rate:.0f} images a second"


def replay_text(told: Replayed) -> str:
    """One story for a terminal, life by life."""
    lines = [f"{visible(told.scenario)}   {told.how}, durability {told.durability}, seed {told.seed}", ""]
    for life in told.lives:
        lines += [*_life(life), ""]
    for effect, times in told.asked.items():
        applied = f", applied {told.applied[effect]}" if effect in told.applied else ""
        lines.append(f"asked {times}{applied}   {visible(effect)}")
    lines += [f"VIOLATION  {problem.kind}: {visible(problem.text)}" for problem in told.problems]
    lines.append("nothing happened that is not allowed" if told.ok else "something happened that is not allowed")
    return "\n".join(lines)


def _life(life: LifeTold) -> Iterator[str]:
    yield f"life {life.number}"
    if life.foretold:
        yield "  foretold  " + ", ".join(f"task {id} {verdict}" for id, verdict in life.foretold.items())
    for step in life.steps:
        said = " ".join(filter(None, [step.verdict and step.verdict.upper(), visible(step.text), *step.laws]))
        yield f"{step.n:>4}  {visible(str(step.point)):<48} {said}".rstrip()
    if life.said is not None:
        yield f"  {visible(life.said)}"
    yield f"  died at {visible(str(life.died))}" if life.died is not None else "  ended by itself"


SWEEP = Subcommand(configure=_configure, run=_run)
