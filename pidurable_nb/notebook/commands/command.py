"""Owns what a subcommand of `%pi` is, and the parser that all of them share. Knows no subcommand.

Wrong use is one line, an IPython UsageError; asking for help prints it and runs nothing.
"""

from __future__ import annotations

import argparse
import re
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from IPython.core.error import UsageError

if TYPE_CHECKING:
    from pidurable_nb.notebook.kernel.desk import Desk

Run: TypeAlias = "Callable[[Desk, Namespace], object]"
Candidates: TypeAlias = "Callable[[Desk, str], Sequence[str]]"
"""Words that may stand where somebody has typed the beginning of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One subcommand: `configure` adds its arguments, `run` does it and returns what the cell shows.

    `completes` gives candidates for an argument by its name. With `tail`, which names it in the help, the rest of the
    line behind the options is not split into words: it is `options.tail`, and may be empty where the name is in
    brackets. A command with `body` is used as `%%pi`, and finds the cell in `options.body`.
    """

    name: str
    help: str
    run: Run
    configure: Callable[[ArgumentParser], None] = lambda parser: None
    completes: Mapping[str, Candidates] = field(default_factory=dict)
    tail: str = ""
    body: bool = False


class HelpShown(Exception):
    """The help was asked for and printed; there is nothing to run."""


class PiParser(ArgumentParser):
    """A parser that ends no kernel: wrong use is a UsageError of one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} ({self.prog} --help says more)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise HelpShown(message or "")


class Commands:
    """All subcommands, by name, and the parser that was built from them."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self.by_name = {command.name: command for command in commands}
        self.parsers: dict[str, PiParser] = {}
        self.parser = PiParser(
            prog="%pi",
            description="Durable agents in this kernel: run them, kill them, and watch them recover.",
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        choices = self.parser.add_subparsers(
            dest="command", metavar="COMMAND", title="commands", parser_class=PiParser, prog="%pi"
        )
        for command in commands:
            prog = f"%%pi {command.name}" if command.body else f"%pi {command.name}"
            parser = choices.add_parser(
                command.name, help=command.help, description=command.help, allow_abbrev=False, prog=prog
            )
            command.configure(parser)
            if command.tail:
                parser.usage = f"{' '.join(parser.format_usage().removeprefix('usage: ').split())} {command.tail}"
            self.parsers[command.name] = parser

    def parse(self, line: str, body: str | None) -> tuple[Command, Namespace]:
        """The subcommand and its options. Raises UsageError in one line, HelpShown after printing the help."""
        name, _, rest = line.strip().partition(" ")
        command = self.by_name.get(name)
        if command is None:
            self.parser.parse_args([name] if name else ["--help"])
            raise HelpShown
        if command.body and body is None:
            raise UsageError(f"%pi {name} takes a cell: write %%pi {line.strip()} in its first line")
        if not command.body and body is not None and body.strip():
            raise UsageError(f"%%pi {name}: this command takes no cell; write %pi {line.strip()} and the code below it")
        options = self._options(command, rest.strip())
        options.body = body
        return command, options

    def _options(self, command: Command, rest: str) -> Namespace:
        parser = self.parsers[command.name]
        if not command.tail:
            return parser.parse_args(_words(rest, command.name))
        before, tail = split_tail(rest, parser)
        options = parser.parse_args(_words(before, command.name))
        if not tail and not command.tail.startswith("["):
            parser.error(f"{command.tail} is missing")
        options.tail = tail
        return options

    def help(self) -> str:
        """The whole help, as `%pi?` shows it."""
        return self.parser.format_help()


def split_tail(rest: str, parser: ArgumentParser) -> tuple[str, str]:
    """The options at the beginning of a line, and what stands behind them, as it was typed."""
    takes = {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}
    at, value_next = 0, False
    for word in re.finditer(r"\S+", rest):
        if not value_next and not word.group().startswith("-"):
            break
        value_next = not value_next and takes.get(word.group(), False)
        at = word.end()
    return rest[:at], rest[at:].strip()


def _words(text: str, name: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"%pi {name}: {error}; close the quotation") from error
