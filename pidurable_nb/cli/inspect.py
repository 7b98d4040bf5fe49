"""Owns `pidurable-nb inspect STORE`: what is in it. Never changes a byte of it or beside it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pidurable_nb.cli.subcommand import Result, Subcommand
from pidurable_nb.lab.looking.inspect import inspect_open
from pidurable_nb.lab.looking.inspect_text import inspection_text
from pidurable_nb.store.stranger import StoreFile


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", type=Path, help="the database file; its -wal is read with it")


def _run(options: Namespace) -> Result:
    with StoreFile.open(options.store) as store:
        seen = inspect_open(store)
    return Result(json=seen.json(), text=lambda: inspection_text(seen), ok=seen.integrity == "ok")


INSPECT = Subcommand(configure=_configure, run=_run)
