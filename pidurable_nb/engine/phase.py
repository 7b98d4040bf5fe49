"""Owns the words that a task is written with: `Phase`, what a phase may become, and how a task may have ended.

A phase is a frozen dataclass with `run`: its fields are the checkpoint, its return annotation names its successors.
Never runs one and never resolves a task; `graph` and `definition` read what is declared here.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, ClassVar, Generic, Literal, TypeAlias, TypeVar, dataclass_transform

from pidurable_nb.clock import as_ms
from pidurable_nb.errors import PhaseRefused
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records.annotations import Names, Namespace, module_names
from pidurable_nb.records.frozen import TaskRef, call_as_code
from pidurable_nb.records.shapes import check_fields, stored

if TYPE_CHECKING:
    from pidurable_nb.engine.runtime import Runtime

__all__ = [
    "Aborted", "Done", "Failed", "Faulted", "Input", "Orphaned", "Outcome", "Phase", "Sleeping", "State", "TaskRef",
    "Waiting", "newest_phase", "phase_name", "scope_of", "stored",
]  # fmt: skip

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
OnFault = Literal["keep", "terminal"]


class InputMark:
    """The mark of an `Input` field."""

    def __repr__(self) -> str:
        return "INPUT"


INPUT = InputMark()
Input: TypeAlias = Annotated[T, INPUT]
"""A field that comes from the task's immutable input and is not in the checkpoint."""


@dataclass_transform(frozen_default=True, field_specifiers=(field, stored))
class Phase(Generic[R_co]):
    """One durable state of a task whose result is an R: its fields are what is on disk, `run` is what happens there.

    A subclass becomes a frozen dataclass. `task=` makes it the first phase of the task of that name; `version=` is
    raised when stored tasks have to be upgraded; `phase=` is its name on disk, else the class name with a small first
    letter; `on_fault="terminal"` ends the task at its first fault (T11).

    Durability: none by itself; the state that a commit returns is stored whole (T3).
    Raises: PhaseRefused where the class is defined, naming the field that cannot be stored and what to write instead.
    Laws: T3, T8, T10.

    >>> class Count(Phase[int], task="count"):
    ...     n: int
    ...     async def run(self, rt: Runtime) -> "Count | Done[int]":
    ...         return Done(self.n) if self.n == 3 else Count(self.n + 1)
    >>> Count(1)
    Count(n=1)
    """

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]
    never_a_value: ClassVar[bool] = True
    _task: ClassVar[str | None] = None
    _phase: ClassVar[str] = "phase"
    _version: ClassVar[int] = 1
    _on_fault: ClassVar[OnFault] = "keep"

    def __init_subclass__(
        cls, *, task: str | None = None, phase: str | None = None, version: int = 1, on_fault: OnFault = "keep"
    ) -> None:
        super().__init_subclass__()
        _check_header(cls, task, phase, version, on_fault)
        cls._task, cls._version, cls._on_fault = task, version, on_fault
        cls._phase = phase if phase is not None else cls.__name__[:1].lower() + cls.__name__[1:]
        _check_methods(cls)
        try:
            dataclass(frozen=True, repr=False)(cls)
        except (TypeError, ValueError) as error:
            raise PhaseRefused(f"{cls.__name__} cannot be a frozen dataclass: {error}") from error
        check_fields(cls, names=scope_of(cls))
        _newest.setdefault(_scope_key(cls), {})[cls.__name__] = cls

    async def run(
        self, rt: Runtime
    ) -> Phase[R_co] | Waiting[Phase[R_co]] | Sleeping[Phase[R_co]] | Done[R_co] | Failed | Aborted:
        """What happens in this phase. Its return annotation names every state that it may become (T3)."""
        raise NotImplementedError(f"{type(self).__name__} has no run")

    async def abort(self, rt: Runtime) -> Done[R_co] | Failed | Aborted:
        """What happens when the task is aborted in this phase: bottom up, after its owned work ended (O2)."""
        return Aborted()

    @classmethod
    def upgrade(cls, input: JsonObject, checkpoint: JsonObject, version: int) -> Phase[R_co]:
        """The phase, in today's shape, that a task stored by the older `version` stands in; on the first phase (T8)."""
        raise NotImplementedError(f"{cls.__name__} has no upgrade from version {version}")

    def __repr__(self) -> str:
        return call_as_code(self)


Ph_co = TypeVar("Ph_co", bound=Phase[object], covariant=True)


@dataclass(frozen=True, kw_only=True)
class Waiting(Generic[Ph_co]):
    """The task goes on at `then` when every task in `on` has ended. No code is held meanwhile (T4).

    With `fail_fast`, the first of them that ends otherwise than completed gets the others aborted.
    """

    on: Sequence[TaskRef[object]]
    then: Ph_co
    fail_fast: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.on, TaskRef) or not all(type(ref) is TaskRef for ref in self.on):
            raise TypeError(f"Waiting(on=...) takes the references of tasks, (ref,) for one; got {self.on!r}")
        object.__setattr__(self, "on", tuple(self.on))


@dataclass(frozen=True, kw_only=True)
class Sleeping(Generic[Ph_co]):
    """The task goes on at `then` when the harness clock shows `until`, an aware datetime (T12)."""

    until: datetime
    then: Ph_co

    def __post_init__(self) -> None:
        if not isinstance(self.until, datetime):
            raise TypeError(f"Sleeping(until=...) takes an aware datetime, such as rt.now() + ...; got {self.until!r}")
        as_ms(self.until)


@dataclass(frozen=True)
class Done(Generic[R_co]):
    """The task did what it was for."""

    result: R_co


@dataclass(frozen=True)
class Failed:
    """The task's own code decided that it failed. `result` is what it leaves behind nevertheless."""

    message: str
    detail: Json = None
    result: Json = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Aborted:
    """The task's abort handler ended it. `result` is what it leaves behind nevertheless."""

    reason: str | None = None
    result: Json = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Orphaned:
    """The task was aborted while its code was missing, too old or unable to read it: none of it ran (O4)."""

    reason: str


@dataclass(frozen=True)
class Faulted:
    """The task's code raised, or ended without progress (T11)."""

    message: str
    detail: Json = None


Outcome: TypeAlias = Done[R_co] | Failed | Aborted | Orphaned | Faulted
"""How a task ended. A task never returns the last two."""
State: TypeAlias = Phase[object] | Waiting[Phase[object]] | Sleeping[Phase[object]] | Done[object] | Failed | Aborted
"""What a commit may return."""


def phase_name(cls: type[Phase[object]]) -> str:
    """The name on disk of a phase."""
    return cls._phase


def newest_phase(cls: type[Phase[object]]) -> type[Phase[object]]:
    """The class defined last under the module and qualified name of `cls`, if it begins the same task."""
    found = _newest.get(_scope_key(cls), {}).get(cls.__name__, cls)
    return found if found._task == cls._task else cls


def scope_of(cls: type[Phase[object]]) -> Namespace:
    """Where names in the annotations of a phase are looked up: the class, its `<locals>` neighbours, its module."""
    module, scope = _scope_key(cls)

    def names() -> Mapping[str, object]:
        near: Mapping[str, object] = _newest.get((module, scope), {}) if scope else {}
        around: Mapping[str, object] = getattr(inspect.unwrap(cls.run), "__globals__", {})
        return Names({cls.__name__: cls}, near, module_names(module), around)

    return names


_newest: dict[tuple[str, str], dict[str, type[Phase[object]]]] = {}
"""By (module, scope within it) and name: a cell that ran again, or a module that was loaded again, made a new class."""

_TAKEN = frozenset({"run", "abort", "upgrade", "never_a_value"})


def _scope_key(cls: type[Phase[object]]) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__.rpartition(".")[0]


def _check_header(cls: type, task: object, phase: object, version: object, on_fault: object) -> None:
    """What a type checker would have said, and what none can."""
    name = cls.__name__
    if not (task is None or (isinstance(task, str) and task)):
        raise PhaseRefused(f"{name}: task={task!r}; the name of a task is text")
    if isinstance(task, str) and task.startswith("pi.") and not cls.__module__.startswith("pidurable_nb.agent."):
        raise PhaseRefused(f"{name}: task={task!r}; names that start with 'pi.' are the harness's")
    if not (phase is None or (isinstance(phase, str) and phase)):
        raise PhaseRefused(f"{name}: phase={phase!r}; the name of a phase on disk is text")
    if type(version) is not int or version < 1:
        raise PhaseRefused(f"{name}: version={version!r}; versions count from 1")
    if on_fault not in ("keep", "terminal"):
        raise PhaseRefused(f"{name}: on_fault={on_fault!r}; write 'keep' or 'terminal'")
    if task is None and (version != 1 or on_fault != "keep"):
        raise PhaseRefused(f"{name}: version= and on_fault= belong to the task; write them on its first phase")


def _check_methods(cls: type) -> None:
    for name in ("run", "abort"):
        method = vars(cls).get(name)
        if inspect.isfunction(method) and not inspect.iscoroutinefunction(inspect.unwrap(method)):
            raise PhaseRefused(f"{cls.__name__}.{name} is not async; write async def {name}(self, rt: Runtime) -> ...")
    taken = _TAKEN & inspect.get_annotations(cls).keys()
    if taken:
        raise PhaseRefused(f"{cls.__name__}.{min(taken)} cannot be a field; the name is taken, give it another")
