"""Owns `pidurable-nb demo`: the built-in scenarios, killed for real and recovered. Leaves nothing behind."""

from __future__ import annotations

import sys
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence

from pidurable_nb.cli.scenarios import named_scenario
from pidurable_nb.cli.subcommand import Result, Subcommand
from pidurable_nb.ids import JsonObject
from pidurable_nb.lab.demo import Shown, demonstrate
from pidurable_nb.lab.scenario import BUILT_IN, Scenario

WIDTH = 80


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "scenarios",
        metavar="SCENARIO",
        nargs="*",
        type=named_scenario,
        help=f"only these, built-in or module:name; all: {', '.join(BUILT_IN)}",
    )


def _run(options: Namespace) -> Result:
    chosen: list[Scenario] | None = options.scenarios or None
    shown = demonstrate(chosen, progress=lambda line: print(line, file=sys.stderr, flush=True))
    ok = all(each.ok for each in shown)
    json: JsonObject = {"ok": ok, "scenarios": [each.to_json() for each in shown]}
    return Result(json=json, text=lambda: text_of(shown), ok=ok)


def text_of(shown: Sequence[Shown]) -> str:
    """The page for people: what each scenario did to the world, and whether that was foretold."""
    lines = [line for each in shown for line in _lines(each)]
    wrong = [each.name for each in shown if not each.ok]
    lines.append(
        f"{len(shown) - len(wrong)} of {len(shown)} as promised" + (f"; not {', '.join(wrong)}" if wrong else "")
    )
    return "\n".join(lines)


def _lines(shown: Shown) -> Iterator[str]:
    times = f" in {len(shown.signals)} lives" if len(shown.signals) > 1 else ""
    yield f"{'ok   ' if shown.ok else 'WRONG'}  {shown.name}: {shown.title}"
    yield f"       killed{times} by signal {shown.signals[0] if shown.signals else 'none'} at {shown.point}"
    said = "and so it was" if shown.predicted_equals_done else "and something else happened"
    yield f"       foretold {', '.join(shown.verdicts) or 'nothing'}, {said}"
    yield f"       {shown.outcome or 'nothing'} after {shown.steps} steps of its last life"
    counts = []
    for effect, asked in shown.effects.items():
        applied = f", applied {shown.applied[effect]}" if effect in shown.applied else ""
        counts.append(f"{effect} {asked}{applied}")
    counts += [f"{line} {times} in the books" for line, times in shown.applied.items() if line not in shown.effects]
    yield from textwrap.wrap("; ".join(counts), WIDTH, initial_indent=" " * 7, subsequent_indent=" " * 7)
    yield from (f"       {sentence}" for sentence in shown.broken)
    yield ""


DEMO = Subcommand(configure=_configure, run=_run)
