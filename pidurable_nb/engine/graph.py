"""Owns the edges of a task: its phases, read from return annotations, and what each of them may become.

Never runs a phase. A name that is not defined yet is `NotReady`, not an error: a later cell may define it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, Self, TypeAlias, get_args, get_origin

from pidurable_nb.engine.phase import (
    Aborted,
    Done,
    Failed,
    Phase,
    Sleeping,
    Waiting,
    newest_phase,
    phase_name,
    scope_of,
)
from pidurable_nb.errors import DuplicateTask, PhaseRefused
from pidurable_nb.records.annotations import Namespace, resolve, spell, unaliased, union_members

PhaseClass: TypeAlias = type[Phase[object]]
To: TypeAlias = Literal["checkpoint", "wait", "sleep"]
End: TypeAlias = Literal["done", "failed", "aborted"]

_ENDS: dict[object, End] = {Done: "done", Failed: "failed", Aborted: "aborted"}
_STOPS: dict[object, To] = {Waiting: "wait", Sleeping: "sleep"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReady:
    """A task that cannot run yet: the name `missing` is not defined, or `why` it is refused as it stands."""

    missing: str
    why: str


@dataclass(frozen=True, slots=True)
class Edge:
    """One arrow of the state diagram. The target of an outcome is its word."""

    source: str
    target: str
    via: To | End


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What one method of a phase says it may become: (how, phase) pairs, and outcomes. `by` names the method."""

    by: str
    phases: frozenset[tuple[To, PhaseClass]]
    ends: frozenset[End]

    def names(self, via: To) -> frozenset[str]:
        """The names on disk of the phases that may follow in this way."""
        return frozenset(phase_name(cls) for how, cls in self.phases if how == via)


def graph(first: PhaseClass) -> dict[str, PhaseClass] | NotReady:
    """The phases reachable from `first` through return annotations, each the newest class of its name, by stored name.

    Raises: PhaseRefused for an annotation that names no successors, DuplicateTask for two phases of one stored name.
    """
    found: dict[str, PhaseClass] = {}
    waiting = [newest_phase(first)]
    while waiting:
        cls = waiting.pop()
        name = phase_name(cls)
        known = found.setdefault(name, cls)
        if known is not cls:
            raise DuplicateTask(
                f"task {first._task!r}: {place(known)} and {place(cls)} are both phase {name!r} on disk; "
                "give one of them phase="
            )
        try:
            declared = declared_by(cls)
            declared_by_abort(cls)
        except NameError as error:
            return not_ready(error, f"{cls.__name__} names it")
        new = {to for _, to in declared.phases if found.get(phase_name(to)) is not to}
        waiting += sorted(new, key=phase_name, reverse=True)
    return found


def edges(first: PhaseClass) -> tuple[Edge, ...] | NotReady:
    """The state diagram of a task, phase by phase. Raises: as `graph`."""
    phases = graph(first)
    if isinstance(phases, NotReady):
        return phases
    found: list[Edge] = []
    for source, cls in phases.items():
        methods = [declared_by(cls)] if cls.abort is Phase.abort else [declared_by(cls), declared_by_abort(cls)]
        for declared in methods:
            found += sorted(
                (Edge(source, phase_name(to), how) for how, to in declared.phases), key=lambda e: (e.target, e.via)
            )
            found += [Edge(source, end, end) for end in _ENDS.values() if end in declared.ends]
    return tuple(dict.fromkeys(found))


def declared_by(cls: PhaseClass) -> Declared:
    """What `run` may become. Raises: PhaseRefused, NameError."""
    annotation = _returned(cls.run)
    if cls.run is Phase.run or annotation is None:
        raise PhaseRefused(
            f'{cls.__name__}.run says nothing of what follows; write async def run(self, rt: Runtime) -> "Next | Done"'
        )
    return _Reader(cls, "run").read(annotation)


def declared_by_abort(cls: PhaseClass) -> Declared:
    """What `abort` may end with: any outcome, where it does not say. Raises: PhaseRefused, NameError."""
    annotation = _returned(cls.abort)
    if cls.abort is Phase.abort or annotation is None:
        return Declared(by=f"{cls.__name__}.abort", phases=frozenset(), ends=frozenset(_ENDS.values()))
    declared = _Reader(cls, "abort").read(annotation)
    if declared.phases:
        raise PhaseRefused(f"{cls.__name__}.abort may end the task only; return Aborted, Done or Failed")
    return declared


def place(cls: type) -> str:
    """Where a class stands, for messages."""
    return f"{cls.__module__}.{cls.__qualname__}"


def not_ready(error: NameError, where: str) -> NotReady:
    """The answer to a name that is not defined."""
    name = error.name or str(error)
    return NotReady(missing=name, why=f"{name} is not defined yet; {where}")


def _returned(method: Callable[..., object]) -> object:
    return inspect.get_annotations(inspect.unwrap(method)).get("return")


class _Reader:
    """Reads one return annotation."""

    def __init__(self, cls: PhaseClass, method: str) -> None:
        self._cls = cls
        self._where = f"{cls.__name__}.{method}"
        self._names: Namespace = scope_of(cls)
        self._phases: set[tuple[To, PhaseClass]] = set()
        self._ends: set[End] = set()

    def read(self, annotation: object) -> Declared:
        self._part(annotation, "checkpoint")
        return Declared(by=self._where, phases=frozenset(self._phases), ends=frozenset(self._ends))

    def _part(self, annotation: object, via: To) -> None:
        annotation = unaliased(resolve(annotation, self._names, where=self._where))
        members = union_members(annotation)
        origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
        if members is not None:
            for member in members:
                self._part(member, via)
        elif origin is Annotated:
            self._part(arguments[0], via)
        elif annotation is Self:
            self._phases.add((via, self._cls))
        elif isinstance(origin, type) and issubclass(origin, Phase) and origin is not Phase:
            self._phases.add((via, newest_phase(origin)))
        elif via == "checkpoint" and origin in _ENDS:
            self._ends.add(_ENDS[origin])
        elif via == "checkpoint" and origin in _STOPS and arguments:
            for argument in arguments:
                self._part(argument, _STOPS[origin])
        else:
            raise PhaseRefused(f"{self._where}: {spell(annotation)} names no state; {self._hint(origin, via)}")

    def _hint(self, origin: object, via: To) -> str:
        if origin is Phase:
            return "name the phases that may follow"
        if origin in _STOPS:
            return f"write {spell(origin)}[Next], with the phase that follows" if via == "checkpoint" else "a phase"
        return "write phases, Waiting[Next], Sleeping[Next], Done[...], Failed or Aborted"
