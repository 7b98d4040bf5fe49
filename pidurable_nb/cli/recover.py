"""Owns `pidurable-nb recover STORE`: a recovery of a copy, step by step. Changes no byte of the store."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from pathlib import Path

from pidurable_nb.cli.subcommand import Result, Subcommand
from pidurable_nb.cli.why import at_ms
from pidurable_nb.errors import StoreRefused
from pidurable_nb.lab.code import load_code
from pidurable_nb.lab.walking.recover import NO_CODE, Recovery, recover
from pidurable_nb.store.visible import visible


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", type=Path, help="the database file; its -wal is read with it")
    parser.add_argument("--code", metavar="MODULE", help="recover with this module's tasks; their effects are run")
    parser.add_argument("--until", metavar="STEP", type=_step, help="take so many steps only")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the recovered copy to this new file")
    parser.add_argument("--ledger", metavar="FILE", type=Path, help="count the effects of earlier lives from this file")
    parser.add_argument("--at", metavar="TIME", type=at_ms, help="begin at this time; default: now")


def _step(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is no number of steps; write 0, 1, 2, …")
    return int(text)


def _run(options: Namespace) -> Result:
    code = load_code(options.code) if options.code is not None else NO_CODE
    try:
        found = recover(
            options.store, code=code, until=options.until, ledger=options.ledger, out=options.out, now_ms=options.at
        )
    except FileExistsError as error:
        raise StoreRefused(str(error), path=options.out) from error
    return Result(json=found.to_json(), text=lambda: recovery_text(found), ok=found.predicted_equals_done)


def recovery_text(found: Recovery) -> str:
    """The recovery for a terminal of 80 columns; foreign text is inert."""
    lines = [f"{visible(found.source.name)}   recovered on a copy, {len(found.steps)} steps", ""]
    for step in found.steps:
        where = f"task {step.task}" if step.task is not None else ""
        head = f"{step.n:>4}  {(step.verdict or step.kind).upper():<10} {where:<10} {', '.join(step.laws)}"
        lines += [head.rstrip(), f"      {visible(step.text)}"]
        if step.changed:
            lines.append(f"      rows  {', '.join(step.changed)}")
    lines.append("")
    if found.effects:
        lines.append("outside, asked by this recovery")
        lines += _counts(found.effects)
    else:
        lines.append("outside: nothing was asked")
    if found.effects_before is not None:
        lines.append("outside, asked before")
        lines += _counts(found.effects_before)
    lines += [f"stopped  task {id} needs {visible(needs)}" for id, needs in found.stopped]
    for one in found.disagreements:
        lines.append(f"DIFFERS  task {one.task}: predicted {one.predicted}, done {one.done}; this is an error of ours")
    lines.append("predicted equals done" if found.predicted_equals_done else "predicted differs from done")
    return "\n".join(lines)


def _counts(effects: Mapping[str, int]) -> list[str]:
    return [f"  {visible(name):<50} {count:>4}" for name, count in sorted(effects.items())]


RECOVER = Subcommand(configure=_configure, run=_run)
