"""Owns what a subcommand is. Never knows which ones there are."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass

from pidurable_nb.ids import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a subcommand found: the object that `--json` prints, the text for people, and whether all is right.

    `text` is called only when it is printed. `ok` False is exit code 1: done, and something is wrong.
    """

    json: JsonObject
    text: Callable[[], str]
    ok: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand:
    """One subcommand: `configure` adds its arguments (`--json` is there already), `run` does it.

    `run` prints nothing on standard output; progress goes to standard error. Whatever of PidurableError it raises
    becomes one line, or the JSON error, and exit code 1.
    """

    configure: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A line of the table: `load` imports the subcommand's module, which the other subcommands do not pay for."""

    name: str
    help: str
    load: Callable[[], Subcommand]
