"""Owns saying where everything that runs stands, as one text: the label of a state of a life. Never runs anything.

A label has every task of the loop with the places where its coroutines are suspended. It has the local variables of
code that tasks run, the user's and the built-in kinds', and those of the scheduler: what they read before they had to
wait is in no row. Of values that are no data a label has the type only.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from enum import Enum
from functools import cache
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Final

import pidurable_nb
from pidurable_nb.agent.extending.resolution import Agent
from pidurable_nb.agent.extending.workshop import Workshop
from pidurable_nb.clock import as_ms
from pidurable_nb.engine import scheduler
from pidurable_nb.engine.decide import Verdict
from pidurable_nb.lab.explore.states import task_text
from pidurable_nb.records.task import TaskRecord

__all__ = ["places", "said"]

_PACKAGE: Final = str(Path(pidurable_nb.__file__).parent)
_TELLING: Final = (
    *(str(Path(_PACKAGE, *room)) for room in (("lab", "scenarios"), ("agent",), ("models",), ("tools",))),
    scheduler.__file__,
)
_LIBRARY: Final = str(Path(asyncio.__file__).parent.parent)
_SITE: Final = "site-packages"
_COUNTED: Final = re.compile(r"Task-\d+")
_DEPTH: Final = 6


def places(tasks: Set[asyncio.Task[object]]) -> dict[asyncio.Task[object], str]:
    """Where each of these tasks stands."""
    return {task: f"{_COUNTED.sub('task', task.get_name())}: {' < '.join(_stands(task))}" for task in tasks}


def _stands(task: asyncio.Task[object]) -> Iterator[str]:
    for frame in _frames(task.get_coro()):
        yield _place(frame)


def _place(frame: FrameType, depth: int = _DEPTH) -> str:
    code = frame.f_code
    where = f"{code.co_qualname}+{frame.f_lasti}"
    return f"{where} {said(frame.f_locals, depth)}" if _tells(code.co_filename) else where


@cache
def _tells(filename: str) -> bool:
    """Whether the local variables of code are part of where it stands."""
    if filename.startswith(_PACKAGE):
        return filename.startswith(_TELLING)
    return _SITE in filename or not filename.startswith(_LIBRARY)


def _frames(code: object) -> Iterator[FrameType]:
    """From the outermost coroutine to the one that waits for something that is none."""
    while True:
        match code:
            case CoroutineType():
                frame, code = code.cr_frame, code.cr_await
            case GeneratorType():
                frame, code = code.gi_frame, code.gi_yieldfrom
            case _:
                return
        if frame is not None:
            yield frame


def said(value: object, depth: int = _DEPTH) -> str:
    """A value as text: the same for equal data. Of what is no data, the type."""
    match value:
        case Verdict():
            return f"{value.name} {value.id}"
        case TaskRecord():
            return task_text(value)
        case Agent() | Workshop():  # read from the rows and from what is installed
            return type(value).__qualname__
        case datetime() if value.tzinfo is not None:
            return str(as_ms(value))
        case None | bool() | int() | float() | str() | bytes() | Enum() | date():
            return repr(value)
        case _ if depth == 0:
            return "…"
        case AsyncGeneratorType():
            return _place(value.ag_frame, depth - 1) if value.ag_frame is not None else "at its end"
        case Mapping():
            return "{" + ", ".join(f"{said(k, depth - 1)}: {said(v, depth - 1)}" for k, v in value.items()) + "}"
        case tuple() | list():
            return "(" + ", ".join(said(each, depth - 1) for each in value) + ")"
        case set() | frozenset():
            return "{" + ", ".join(sorted(said(each, depth - 1) for each in value)) + "}"
        case _ if is_dataclass(value) and not isinstance(value, type):
            held = (f"{each.name}={said(getattr(value, each.name, None), depth - 1)}" for each in fields(value))
            return f"{type(value).__qualname__}({', '.join(held)})"
        case _:
            return type(value).__qualname__
