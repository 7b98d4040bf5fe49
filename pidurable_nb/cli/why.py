"""Owns `pidurable-nb why STORE`: the verdict for everything live, before anything is opened. Changes no byte of it."""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from datetime import datetime
from pathlib import Path

from pidurable_nb.cli.subcommand import Result, Subcommand
from pidurable_nb.clock import as_ms
from pidurable_nb.lab.code import load_code
from pidurable_nb.lab.looking.explain import explain
from pidurable_nb.lab.looking.explain_text import to_text
from pidurable_nb.store.stranger import StoreFile


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", type=Path, help="the database file; its -wal is read with it")
    parser.add_argument(
        "--code", metavar="MODULE", help="ask this module for tasks and tools; without it they count as installed"
    )
    parser.add_argument(
        "--at", metavar="TIME", type=at_ms, help="as of this time: milliseconds since 1970, or ISO 8601; default: now"
    )
    parser.add_argument("--all", action="store_true", help="settled submissions too")


def _run(options: Namespace) -> Result:
    loaded = load_code(options.code) if options.code is not None else None
    with StoreFile.open(options.store) as file:
        if loaded is None:
            found = explain(file, now_ms=options.at, all=options.all)
        else:
            code, assumed = loaded.code_for(file), f"module {loaded.name}"
            at, policy = options.at, loaded.policy
            found = explain(file, code=code, assumed=assumed, now_ms=at, policy=policy, all=options.all)
        json = found.to_json()
        text = to_text(found)
    return Result(json=json, text=lambda: text)


def at_ms(text: str) -> int:
    """The time that `--at` names. Raises ArgumentTypeError, which becomes wrong usage."""
    try:
        number = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text)
        except ValueError as error:
            raise ArgumentTypeError(
                f"{text!r} is no time; write milliseconds since 1970, or ISO 8601 such as 2026-11-30T14:05:00Z"
            ) from error
        if at.tzinfo is None:
            raise ArgumentTypeError(f"{text!r} has no time zone; write {at.isoformat()}Z or an offset") from None
        return as_ms(at)
    if not math.isfinite(number):
        raise ArgumentTypeError(f"{text!r} is no time; write milliseconds since 1970, or ISO 8601")
    return round(number)


WHY = Subcommand(configure=_configure, run=_run)
