"""Owns `pidurable-nb explore SCENARIO`: every order and any number of crashes, or orders by seeds. Leaves nothing."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from typing import Final

from pidurable_nb.cli.scenarios import named_scenario
from pidurable_nb.cli.subcommand import Result, Subcommand
from pidurable_nb.ids import JsonObject
from pidurable_nb.lab.explore import Explored, Found, Seeded, Told, closure, replay, seeds
from pidurable_nb.lab.scenario import BUILT_IN, Scenario
from pidurable_nb.lab.sweeping.result import name_of
from pidurable_nb.store.visible import visible

_SHOWN: Final = 5
"""Violations on a page; `--json` lists all."""


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "scenario", metavar="SCENARIO", type=named_scenario, help=f"module:name, or built in: {', '.join(BUILT_IN)}"
    )
    parser.add_argument(
        "--closure", action="store_true",
        help="every order of up to four tasks and any number of crashes, until no new state comes; "
        "the default where no seeds are asked for",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", metavar="N", type=_count, help="tell so many whole stories, each twice, by seeds from 0"
    )
    parser.add_argument("--seed", metavar="N", type=_seed, help="tell the story of one seed, and nothing else")
    parser.add_argument(
        "--crashes", metavar="N", type=_seed, default=1, help="crashes in the story of a seed at most; default: 1"
    )
    parser.add_argument(
        "--most",
        metavar="N",
        type=_count,
        default=100_000,
        help="give a closure up after so many lives; default: 100000",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no number; write 1, 2, …")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is no number; write 0, 1, 2, …")
    return int(text)


def _run(options: Namespace) -> Result:
    scenario: Scenario = options.scenario
    if options.seed is not None:
        told = replay(scenario, seed=options.seed, crashes=options.crashes)
        return Result(json=told.to_json(), text=lambda: visible_lines(told), ok=told.ok)
    closed: Explored | None = None
    drawn: Seeded | None = None
    if options.closure or options.seeds is None:
        closed = closure(scenario, most=options.most, on_progress=_progress)
    if options.seeds is not None:
        drawn = seeds(scenario, range(options.seeds), crashes=options.crashes, on_progress=_progress)
    ok = (closed is None or closed.ok) and (drawn is None or drawn.ok)
    found: JsonObject = {
        "scenario": name_of(scenario),
        "closure": closed.to_json() if closed is not None else None,
        "seeds": drawn.to_json() if drawn is not None else None,
        "ok": ok,
    }
    return Result(json=found, text=lambda: "\n".join(_page(name_of(scenario), closed, drawn, ok)), ok=ok)


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def visible_lines(told: Told) -> str:
    """One story for a terminal."""
    return "\n".join(visible(line) for line in str(told).split("\n"))


def _page(name: str, closed: Explored | None, drawn: Seeded | None, ok: bool) -> Iterator[str]:
    yield visible(name)
    if closed is not None:
        end = "closed: nothing new comes" if closed.closed else "given up: there is more (--most)"
        yield f"  closure   {closed.states} states, {closed.places} places, {closed.edges} steps; {end}"
        yield f"            {closed.runs} lives, {closed.again} steps taken again, {_rate(closed.runs, closed.seconds)}"
        yield from _violations(closed.violations)
    if drawn is not None:
        yield f"  seeds     {drawn.seeds} stories in {drawn.orders} orders, {drawn.crashes} crashes"
        again = f"{drawn.identical} of {drawn.seeds} the same when told again"
        yield f"            {again}, {_rate(drawn.runs, drawn.seconds)}"
        yield from _violations(drawn.violations)
    yield "nothing happened that is not allowed" if ok else "something is not as promised"


def _rate(runs: int, seconds: float) -> str:
    return f"{seconds:.1f} s, {runs / seconds if seconds else 0.0:.0f} lives a second"


def _violations(found: Sequence[Found]) -> Iterator[str]:
    for violation in found[:_SHOWN]:
        yield f"VIOLATION  {violation.kind}: {visible(violation.text)}"
        yield from (f"    {visible(line)}" for line in violation.program().strip().split("\n"))
    if len(found) > _SHOWN:
        yield f"and {len(found) - _SHOWN} more violations: --json lists all"


EXPLORE = Subcommand(configure=_configure, run=_run)
