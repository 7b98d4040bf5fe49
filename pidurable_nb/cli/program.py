"""Owns `pidurable-nb`: arguments in, one JSON object or a page of text out, and the exit code. Knows no subcommand.

Exit codes: 0 done and all right, 1 done and something is wrong, 2 wrong usage. With `--json` there is exactly one
JSON object on standard output, whatever happens.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn

import pidurable_nb
from pidurable_nb.cli.subcommand import Listed, Result, Subcommand
from pidurable_nb.cli.table import TABLE
from pidurable_nb.errors import PidurableError, StoreRefused
from pidurable_nb.ids import JsonObject

NAME = "pidurable-nb"
DONE, WRONG, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, by default that of the process, and return its exit code.

    `argv` is without the program's name. Nothing is raised but what Python cannot go on with.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _answer(words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough; what is still buffered must not complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _answer(words: Sequence[str]) -> int:
    as_json = "--json" in words
    try:
        result = _run(words)
    except _Usage as usage:
        return _refuse(usage.line, "usage", USAGE, as_json)
    except _Printed as printed:
        return printed.code
    except PidurableError as error:
        return _refuse(str(error), kind_of(error), WRONG, as_json)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        return _refuse(str(error), "system", WRONG, as_json)
    except Exception as error:
        traceback.print_exc()
        return _refuse(f"a mistake of {NAME} itself: {error!r}", "internal", WRONG, as_json)
    if as_json:
        _print_json(result.json)
    else:
        _print_text(result.text())
    return DONE if result.ok else WRONG


def kind_of(error: PidurableError) -> str:
    """The `kind` of the JSON error: that of a refused store, else the class name in snake case."""
    if isinstance(error, StoreRefused):
        return error.kind
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


# --- Arguments --------------------------------------------------------------------------------------------------


class _Usage(Exception):
    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line


class _Printed(Exception):
    """`--help` or `--version` has answered."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Usage(f"{message} ({self.prog} --help says more)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Printed(status)


def _run(words: Sequence[str]) -> Result:
    parser = _Parser(prog=NAME, description=(pidurable_nb.__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{NAME} {pidurable_nb.__version__}")
    choices = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    chosen: dict[str, Subcommand] = {}
    for listed in TABLE:
        _add(choices, listed, chosen, words)
    options = parser.parse_args(words)
    if options.command is None:
        parser.error("name a command: " + ", ".join(listed.name for listed in TABLE))
    return chosen[options.command].run(options)


def _add(
    choices: argparse._SubParsersAction[_Parser], listed: Listed, chosen: dict[str, Subcommand], words: Sequence[str]
) -> None:
    parser = choices.add_parser(listed.name, help=listed.help, description=listed.help, allow_abbrev=False)
    if listed.name in words:  # no other one can be meant, and importing them all would be slow
        chosen[listed.name] = listed.load()
        parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
        chosen[listed.name].configure(parser)


# --- Output -----------------------------------------------------------------------------------------------------


def _refuse(message: str, kind: str, code: int, as_json: bool) -> int:
    line = " ".join(message.split())
    if as_json:
        _print_json({"error": {"kind": kind, "message": line}})
    else:
        _print_line(f"{NAME}: {line}")
    return code


def _print_json(value: JsonObject) -> None:
    """ASCII only: it survives every locale, lone surrogates included."""
    sys.stdout.write(json.dumps(value, allow_nan=False, default=_plain) + "\n")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__qualname__} is not JSON")


def _print_text(text: str) -> None:
    sys.stdout.write(_encodable(text, sys.stdout.encoding) + "\n")


def _print_line(text: str) -> None:
    sys.stderr.write(_encodable(text, sys.stderr.encoding) + "\n")


def _encodable(text: str, encoding: str | None) -> str:
    """`text` in what the stream can hold; the rest as escapes."""
    name = encoding or "ascii"
    return text.encode(name, "backslashreplace").decode(name)
