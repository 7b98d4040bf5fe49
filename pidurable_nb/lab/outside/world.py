"""Owns the outside world of a run: where effects go, the gate before it, and the ledger that counts them.

The ledger is a file outside the store. Whoever performs an effect appends a line before and a line after it, so that a
process that dies between them has still asked; an outside that honours keys appends what it applied. Never knows what
the store says about an effect, and never decides whether one is due.
"""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from pidurable_nb.engine.facts import fact_of
from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.probe import Mark
from pidurable_nb.records.codec import BadRecord, dumps, loads

__all__ = [
    "LedgerLine", "NoWorld", "SimulatedCrash", "World", "applied", "asked", "copy_ledger", "crash_this_process",
    "current_ledger", "read_ledger",
]  # fmt: skip

V = TypeVar("V")

LedgerEdge = Literal["before", "after", "asked", "applied", "refused"]
_EDGES: Final[dict[str, LedgerEdge]] = {
    "before": "before", "after": "after", "asked": "asked", "applied": "applied", "refused": "refused",
}  # fmt: skip


class SimulatedCrash(BaseException):
    """This life is over: nothing that its code still tries reaches anything. No Exception, so no handler heals it."""


class NoWorld(PidurableError):
    """The outside was asked for by code that the laboratory does not run, so there is no ledger to count it in."""


class World:
    """The outside of one life of a store. `life` counts from 1 and goes into every line of the ledger.

    Laws: an effect that was begun has its line before it is begun; after `shut()` nothing is begun and no line is
    written.
    """

    def __init__(self, ledger: Path, life: int = 1) -> None:
        self.ledger = ledger
        self.life = life
        self.crash: Callable[[], None] = self.shut
        """What it means, in this life, that code crashes its own process. It does not have to return."""
        self._shut = False

    @property
    def is_shut(self) -> bool:
        """Whether this life is over."""
        return self._shut

    def shut(self) -> None:
        """From now on nothing is performed: whoever tries gets SimulatedCrash."""
        self._shut = True

    async def perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        """What `do` gives, with a line before it and a line after it.

        Raises: SimulatedCrash when the gate is shut, or was while `do` ran; NotJson when `do` gives what no memo could
        keep.
        """
        self._pass_gate()
        name = mark.name or ""
        self._append(name, "before", mark.key)
        with self._current():
            try:
                value = await _got(do)
            except Exception as error:
                self._pass_gate()
                self._append(name, "after", mark.key, error=f"{type(error).__name__}: {error}")
                raise
        self._pass_gate()
        self._append(name, "after", mark.key, value=None if value is None else fact_of(value, at=f"effect {name!r}"))
        return value

    def _pass_gate(self) -> None:
        if self._shut:
            raise SimulatedCrash(f"life {self.life} is over")

    @contextmanager
    def _current(self) -> Generator[None]:
        token = _world.set(self)
        try:
            yield
        finally:
            _world.reset(token)

    def _append(
        self, effect: str, edge: LedgerEdge, key: str | None, *, value: Json = None, error: str | None = None
    ) -> None:
        line: dict[str, Json] = {"effect": effect, "edge": edge, "key": key, "life": self.life}
        if value is not None:
            line["value"] = value
        if error is not None:
            line["error"] = error
        append(self.ledger, line)


_world: ContextVar[World] = ContextVar("world")


def current_ledger() -> Path:
    """The ledger of the effect that is being performed. Raises: NoWorld outside of one, or after the gate was shut."""
    world = _world.get(None)
    if world is None or world.is_shut:
        raise NoWorld("this reaches the outside only within rt.effect(...) of a run in the laboratory's World")
    return world.ledger


def crash_this_process() -> None:
    """Die here, as code does that exhausts the memory or trips over a bug below Python.

    In a child of the fork server that is a real SIGKILL; elsewhere this life ends, and the kernel lives.
    """
    world = _world.get(None)
    if world is None:
        raise NoWorld("only an effect within the laboratory's World may crash its process")
    world.crash()
    raise SimulatedCrash(f"life {world.life} crashed its own process")


async def _got(do: Callable[[], V | Awaitable[V]]) -> V:
    got = do()
    # Pyright thinks of a V that is itself awaitable; no value is.
    return await got if inspect.isawaitable(got) else got  # pyright: ignore[reportReturnType]


# The ledger.


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """One line. `before` and `after` are written by who asks; `asked`, `applied` and `refused` by who is asked."""

    effect: str
    edge: LedgerEdge
    key: str | None = None
    life: int | None = None
    value: Json = None
    error: str | None = None


def append(ledger: Path, line: JsonObject) -> None:
    """Add one line, in one write, behind whatever other processes add. It is not synced: a kill does not take it."""
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, dumps(line).encode("utf-8", "surrogatepass") + b"\n")
    finally:
        os.close(descriptor)


def read_ledger(ledger: Path) -> tuple[LedgerLine, ...]:
    """All lines, oldest first; none when there is no file. A last line that a kill cut off does not count."""
    try:
        content = ledger.read_bytes()
    except FileNotFoundError:
        return ()
    return tuple(_line(text, ledger) for text in content.split(b"\n")[:-1])


def asked(ledger: Path) -> dict[str, int]:
    """How often each effect was begun, over all lives, in the order of the first time."""
    counts: dict[str, int] = {}
    for line in read_ledger(ledger):
        if line.edge == "before":
            counts[line.effect] = counts.get(line.effect, 0) + 1
    return counts


def applied(ledger: Path) -> dict[str, int]:
    """How often each effect was applied by an outside that honours keys; 0 for one that it only refused.

    Effects of an outside that knows no keys are not in it.
    """
    counts: dict[str, int] = {}
    names: dict[str, str] = {}
    for line in read_ledger(ledger):
        if line.key is None:
            continue
        if line.edge == "before":
            names[line.key] = line.effect
        elif line.edge != "after":
            name = names.get(line.key, line.effect)
            counts[name] = counts.get(name, 0) + (line.edge == "applied")
    return counts


def copy_ledger(ledger: Path, into: Path) -> Path:
    """The ledger for a copy of the store: what happened so far has happened for the copy too; an empty one if none."""
    if ledger.exists():
        shutil.copyfile(ledger, into)
    else:
        into.touch()
    return into


def _line(text: bytes, ledger: Path) -> LedgerLine:
    try:
        found = loads(text.decode("utf-8", "surrogatepass"))
    except (BadRecord, UnicodeDecodeError) as error:
        raise BadRecord(f"{ledger.name}: {text[:80]!r} is no JSON, so no line of a ledger") from error
    if isinstance(found, Mapping):
        effect, edge = found.get("effect"), found.get("edge")
        if isinstance(effect, str) and isinstance(edge, str) and edge in _EDGES:
            key, life, said = found.get("key"), found.get("life"), found.get("error")
            return LedgerLine(
                effect=effect,
                edge=_EDGES[edge],
                key=key if isinstance(key, str) else None,
                life=life if isinstance(life, int) else None,
                value=found.get("value"),
                error=said if isinstance(said, str) else None,
            )
    raise BadRecord(f"{ledger.name}: {text[:80]!r} is no line of a ledger")
