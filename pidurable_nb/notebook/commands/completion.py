"""Owns what may be typed next behind `%pi`: subcommands, options, and what each subcommand knows. Runs nothing."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)

if TYPE_CHECKING:
    from pidurable_nb.notebook.commands.command import Command, Commands
    from pidurable_nb.notebook.kernel.desk import Desk

Matcher = Callable[[CompletionContext], SimpleMatcherResult]
IDENTIFIER: Final = "pidurable_nb.pi"
_LINE: Final = re.compile(r"\s*(?:[\w.]+\s*=\s*)?%{1,2}pi\s+(?P<rest>.*)$")


def matcher_of(commands: Commands, desk: Desk) -> Matcher:
    """The matcher that IPython asks. It never raises: what cannot be completed has no completions."""

    def match(context: CompletionContext) -> SimpleMatcherResult:
        typed = _LINE.match(context.line_with_cursor[: context.cursor_position])
        if typed is None:
            return SimpleMatcherResult(completions=[])
        *words, fragment = typed["rest"].split(" ")
        words = [word for word in words if word]
        try:
            found = _candidates(commands, desk, words, fragment)
        except Exception:
            found = []  # a store that cannot be read now is no reason to disturb somebody's typing
        completions = [SimpleCompletion(word, type="magic") for word in dict.fromkeys(found)]
        return SimpleMatcherResult(completions=completions, suppress=bool(completions), matched_fragment=fragment)

    matcher: Matcher = context_matcher(identifier=IDENTIFIER)(match)
    return matcher


def _candidates(commands: Commands, desk: Desk, words: Sequence[str], fragment: str) -> list[str]:
    if not words:
        return [name for name in commands.by_name if name.startswith(fragment)]
    command = commands.by_name.get(words[0])
    if command is None:
        return []
    actions = commands.parsers[command.name]._actions
    if fragment.startswith("-"):
        return [option for action in actions for option in action.option_strings if option.startswith(fragment)]
    action = _action_at(actions, words[1:])
    if action is None:
        tail = command.completes.get("tail")
        return [word for word in tail(desk, fragment) if word.startswith(fragment)] if tail is not None else []
    if action.choices is not None:
        return [str(choice) for choice in action.choices if str(choice).startswith(fragment)]
    return [word for word in _known(command, action, desk, fragment) if word.startswith(fragment)]


def _action_at(actions: Sequence[argparse.Action], words: Sequence[str]) -> argparse.Action | None:
    """The argument that the next word belongs to."""
    by_option = {option: action for action in actions for option in action.option_strings}
    free = [action for action in actions if not action.option_strings]
    pending: argparse.Action | None = None
    for word in words:
        if pending is not None:
            pending = None
        elif word in by_option:
            pending = by_option[word] if by_option[word].nargs != 0 else None
        elif free and free[0].nargs not in ("*", "+"):
            free.pop(0)
    return pending if pending is not None else (free[0] if free else None)


def _known(command: Command, action: argparse.Action, desk: Desk, fragment: str) -> Sequence[str]:
    candidates = command.completes.get(action.dest)
    return candidates(desk, fragment) if candidates is not None else ()
