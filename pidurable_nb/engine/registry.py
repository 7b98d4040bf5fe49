"""Owns what code is installed, and whether a stored task fits it (T8). Never decides what then happens to the task.

User tasks are installed by their first phase and resolved again after every cell (T10); built-in kinds are registered
by the room that runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from pidurable_nb.engine.definition import TaskDefinition, decode_outcome, define
from pidurable_nb.engine.graph import NotReady, PhaseClass, place
from pidurable_nb.engine.phase import Outcome, Phase
from pidurable_nb.errors import DuplicateTask, IllegalTransition, PhaseRefused
from pidurable_nb.ids import Json, JsonObject, TaskId
from pidurable_nb.records.shapes import DoesNotFit, forget_shapes
from pidurable_nb.records.task import BlockedReason, TaskRecord

__all__ = [
    "Blocked", "BuiltIn", "BuiltInKind", "Code", "Fit", "Fits", "NotReady", "Refined", "Registry", "TaskDefinition",
    "Upgrade",
]  # fmt: skip

Refined = Literal["replay", "interrupt", "resend", "poll"]
"""What the kind of a task may make of a rerun."""
Upgrade: TypeAlias = Callable[[Json, JsonObject, int], tuple[Json, JsonObject]]
"""Input and checkpoint in today's shape, from those of an older version."""
Listener: TypeAlias = Callable[[frozenset[str]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """Installed code can take the task, which stands in `phase`.

    `migrated`: it was stored by an older version. Then `input` and the checkpoint of `phase` replace what is stored.
    """

    definition: TaskDefinition
    phase: Phase[object]
    input: Json
    migrated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """A kind of this package can take the task. `migrated`: `input` and `checkpoint` replace what is stored."""

    kind: str
    version: int
    input: Json
    checkpoint: JsonObject
    migrated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """No installed code can take the task (T8). `needs` is `kind version`, `detail` a sentence for its author."""

    reason: BlockedReason
    detail: str
    needs: str


Fit: TypeAlias = Fits | BuiltIn | Blocked


class Code(Protocol):
    """What a decision may ask about the code at hand. Pure: the same record and code give the same answer."""

    def fit(self, record: TaskRecord) -> Fit:
        """Whether the code can take a task that has no outcome yet (T8)."""
        ...

    def refine(self, record: TaskRecord) -> Refined | None:
        """What the task's kind makes of a rerun; None for a user's task."""
        ...

    def hooked(self, record: TaskRecord) -> bool:
        """Whether a hook of the user's runs in a built-in task."""
        ...

    def was_safe(self, record: TaskRecord) -> bool:
        """Whether a tool call was stored as safe."""
        ...


def _never(record: TaskRecord) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInKind:
    """What the engine has to know of a kind of this package: how it refines a rerun, and how it reads old versions."""

    kind: str
    version: int
    refine: Callable[[TaskRecord], Refined | None]
    upgrade: Upgrade | None = None
    hooked: Callable[[TaskRecord], bool] = _never
    was_safe: Callable[[TaskRecord], bool] = _never
    definition: TaskDefinition | None = None
    """Its code; None where only decisions are wanted, for a file."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """A fit that is not worth, or not right, to try again for the same rows and code."""

    input: Json
    checkpoint: JsonObject
    version: int
    code: object
    fit: Fit

    def holds(self, record: TaskRecord, checkpoint: JsonObject, code: object) -> bool:
        return (
            self.checkpoint is checkpoint
            and self.input is record.input
            and self.version == record.version
            and self.code is code
        )


class Registry:
    """The installed tasks by name. `generation` grows with every change."""

    MOST_TRIED = 10_000
    """How many fits are remembered."""

    def __init__(self) -> None:
        self.generation = 0
        self._tasks: dict[str, TaskDefinition | NotReady] = {}
        self._firsts: dict[str, PhaseClass] = {}
        self._built_in: dict[str, BuiltInKind] = {}
        self._listeners: list[Listener] = []
        self._tried: dict[TaskId, _Tried] = {}

    # -- what is installed ---------------------------------------------------------------------------------------------

    def install(self, first: PhaseClass) -> TaskDefinition | NotReady:
        """Install the task that begins at `first`, or install it again when its class was defined anew (T10).

        A name in it that is not defined yet leaves it `NotReady`, and `refresh` tries again.
        Raises: DuplicateTask when another class has that task name, PhaseRefused for what can never run.
        """
        forget_shapes()
        found = define(first)
        name = first._task
        assert name is not None
        known = self._firsts.get(name)
        if known is not None and place(known) != place(first):
            raise DuplicateTask(
                f"task {name!r} is {place(known)}, and {place(first)} has that name too; "
                f"rename one, or uninstall({name!r}) first"
            )
        self._firsts[name] = first
        if self._put(name, found):
            self._changed(frozenset({name}))
        return self._tasks[name]

    def uninstall(self, name: str) -> None:
        """Forget a task; what is stored of it is blocked (T8). Nothing happens when it is not installed."""
        self._firsts.pop(name, None)
        if self._tasks.pop(name, None) is not None:
            self._changed(frozenset({name}))

    def refresh(self) -> frozenset[str]:
        """Resolve every task again, after a cell or a reload, and say which changed (T10).

        A task that is refused now, where it was not before, becomes `NotReady` with the reason.
        """
        forget_shapes()
        changed = frozenset(name for name, first in self._firsts.items() if self._put(name, _defined(first)))
        if changed:
            self._changed(changed)
        return changed

    def definition(self, kind: str) -> TaskDefinition | NotReady | None:
        """What is installed under a name, as it was last resolved."""
        built_in = self._built_in.get(kind)
        return built_in.definition if built_in is not None else self._tasks.get(kind)

    def ready(self, kind: str) -> TaskDefinition | NotReady | None:
        """The same, resolved again first when it was not ready: the missing name may be defined by now."""
        if isinstance(self._tasks.get(kind), NotReady) and self._put(kind, _defined(self._firsts[kind])):
            self._changed(frozenset({kind}))
        return self._tasks.get(kind)

    @property
    def installed(self) -> Mapping[str, TaskDefinition | NotReady]:
        """Every installed task of the user's, by name."""
        return dict(self._tasks)

    def register_builtin(
        self,
        kind: str,
        version: int,
        refine: Callable[[TaskRecord], Refined | None],
        upgrade: Upgrade | None = None,
        *,
        hooked: Callable[[TaskRecord], bool] = _never,
        was_safe: Callable[[TaskRecord], bool] = _never,
        first: PhaseClass | None = None,
    ) -> None:
        """Make a kind of this package known, and `first` its code. Registering it again replaces it."""
        definition = _defined_once(first) if first is not None else None
        self._built_in[kind] = BuiltInKind(
            kind=kind, version=version, refine=refine, upgrade=upgrade, hooked=hooked, was_safe=was_safe,
            definition=definition,
        )  # fmt: skip
        self._changed(frozenset({kind}))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Hear the names of what changed, right after it did. Returns what ends that."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def _put(self, name: str, found: TaskDefinition | NotReady) -> bool:
        known = self._tasks.get(name)
        if isinstance(known, TaskDefinition) and isinstance(found, TaskDefinition):
            if known.fingerprint == found.fingerprint:
                return False
        elif known == found:
            return False
        self._tasks[name] = found
        return True

    def _changed(self, names: frozenset[str]) -> None:
        self.generation += 1
        self._tried.clear()
        for listener in tuple(self._listeners):
            listener(names)

    # -- what is stored ------------------------------------------------------------------------------------------------

    def fit(self, record: TaskRecord) -> Fit:
        """Whether the code can take a stored task (T8). User code runs only to upgrade, and once for the same rows.

        Raises: IllegalTransition for a task that has its outcome: no code takes it any more.
        """
        checkpoint = record.checkpoint
        if checkpoint is None:
            raise IllegalTransition(f"task {record.id} is {record.status}; no code takes it any more")
        built_in = self._built_in.get(record.kind)
        code = built_in or self._tasks.get(record.kind)
        needs = f"{record.kind} {record.version}"
        if code is None:
            return Blocked(reason="missing_task", detail=f"no task {record.kind!r} is installed", needs=needs)
        if isinstance(code, NotReady):
            return Blocked(reason="missing_task", detail=f"task {record.kind!r} is not ready: {code.why}", needs=needs)
        if record.version > code.version:
            detail = f"it was stored by version {record.version} of {record.kind!r}; installed is {code.version}"
            return Blocked(reason="task_too_old", detail=detail, needs=needs)
        tried = self._tried.get(record.id)
        if tried is not None and tried.holds(record, checkpoint, code):
            return tried.fit
        if isinstance(code, BuiltInKind):
            fit = _fit_built_in(code, record, checkpoint, needs)
        else:
            fit = _fit(code, record, checkpoint, needs)
        if isinstance(fit, Blocked) or fit.migrated:
            if len(self._tried) >= self.MOST_TRIED:
                self._tried.clear()
            self._tried[record.id] = _Tried(record.input, checkpoint, record.version, code, fit)
        return fit

    def refine(self, record: TaskRecord) -> Refined | None:
        """What a built-in kind makes of a rerun; None for a user's task."""
        built_in = self._built_in.get(record.kind)
        return built_in.refine(record) if built_in is not None else None

    def hooked(self, record: TaskRecord) -> bool:
        """Whether a hook of the user's runs in a built-in task."""
        built_in = self._built_in.get(record.kind)
        return built_in is not None and built_in.hooked(record)

    def was_safe(self, record: TaskRecord) -> bool:
        """Whether a tool call was stored as safe."""
        built_in = self._built_in.get(record.kind)
        return built_in is not None and built_in.was_safe(record)

    def decode_outcome(self, record: TaskRecord) -> Outcome[object]:
        """How a task ended, its result as an R where its code is installed, as frozen JSON otherwise.

        Raises: IllegalTransition for a task without outcome, DoesNotFit for a result of another type.
        """
        if record.outcome is None:
            raise IllegalTransition(f"task {record.id} is {record.status}; it has no outcome yet")
        definition = self.definition(record.kind)
        if isinstance(definition, TaskDefinition):
            return definition.decode_outcome(record.outcome)
        return decode_outcome(record.outcome)


_BUILT_IN: Final[dict[PhaseClass, TaskDefinition]] = {}


def _defined_once(first: PhaseClass) -> TaskDefinition:
    """The definition of a kind of this package: its classes never change, and every opening asks for it."""
    known = _BUILT_IN.get(first)
    if known is None:
        definition = define(first)
        assert isinstance(definition, TaskDefinition)
        known = _BUILT_IN[first] = definition
    return known


def _defined(first: PhaseClass) -> TaskDefinition | NotReady:
    try:
        return define(first)
    except (PhaseRefused, DuplicateTask) as error:
        return NotReady(missing=first.__name__, why=str(error))


def _fit(definition: TaskDefinition, record: TaskRecord, checkpoint: JsonObject, needs: str) -> Fit:
    first = definition.first.__name__
    if record.version == definition.version:
        try:
            return Fits(definition=definition, phase=definition.decode(record.input, checkpoint), input=record.input)
        except DoesNotFit as error:
            detail = f"{error}; give the field a default, or raise version= and write {first}.upgrade"
            return Blocked(reason="migration_failed", detail=detail, needs=needs)
    try:
        phase = definition.upgraded(record.input, checkpoint, record.version)
        input, checkpoint = definition.rewritten(record.input, phase)
        phase = definition.decode(input, checkpoint)
    except NotImplementedError as error:
        detail = f"{error}; write {first}.upgrade(cls, input, checkpoint, version)"
        return Blocked(reason="migration_failed", detail=detail, needs=needs)
    except Exception as error:
        detail = f"{first}.upgrade from version {record.version} raised {type(error).__name__}: {error}"
        return Blocked(reason="migration_failed", detail=detail, needs=needs)
    return Fits(definition=definition, phase=phase, input=input, migrated=True)


def _fit_built_in(kind: BuiltInKind, record: TaskRecord, checkpoint: JsonObject, needs: str) -> Fit:
    if record.version == kind.version:
        return _built_in(kind, record.input, checkpoint, needs, migrated=False)
    if kind.upgrade is None:
        detail = f"{kind.kind!r} does not know its version {record.version}"
        return Blocked(reason="migration_failed", detail=detail, needs=needs)
    try:
        input, upgraded = kind.upgrade(record.input, checkpoint, record.version)
    except Exception as error:
        detail = f"{kind.kind!r} cannot read its version {record.version}: {type(error).__name__}: {error}"
        return Blocked(reason="migration_failed", detail=detail, needs=needs)
    return _built_in(kind, input, upgraded, needs, migrated=True)


def _built_in(kind: BuiltInKind, input: Json, checkpoint: JsonObject, needs: str, *, migrated: bool) -> Fit:
    if kind.definition is None:
        return BuiltIn(kind=kind.kind, version=kind.version, input=input, checkpoint=checkpoint, migrated=migrated)
    try:
        phase = kind.definition.decode(input, checkpoint)
    except DoesNotFit as error:
        return Blocked(reason="migration_failed", detail=f"{kind.kind} cannot read it: {error}", needs=needs)
    return Fits(definition=kind.definition, phase=phase, input=input, migrated=migrated)
