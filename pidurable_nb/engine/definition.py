"""Owns a resolved task: its phases by stored name, and the way of its states to JSON and back. Never runs one.

Dispatch is by (task, phase name), never by class identity: a class of the same module and qualified name stands for
the one that was resolved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from types import NoneType
from typing import Annotated, TypeAlias, TypeVar, get_args, get_origin

from pidurable_nb.engine.graph import (
    End,
    NotReady,
    PhaseClass,
    To,
    declared_by,
    declared_by_abort,
    graph,
    not_ready,
    place,
)
from pidurable_nb.engine.phase import (
    INPUT,
    Aborted,
    Done,
    Failed,
    Faulted,
    OnFault,
    Orphaned,
    Outcome,
    Phase,
    R_co,
    Sleeping,
    State,
    Waiting,
    newest_phase,
    phase_name,
    scope_of,
)
from pidurable_nb.errors import IllegalTransition, NotJson, PhaseRefused
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records import task as stored
from pidurable_nb.records.annotations import variables_of
from pidurable_nb.records.coder import Misfit, does_not_fit, not_json
from pidurable_nb.records.containers import construct
from pidurable_nb.records.frozen import freeze
from pidurable_nb.records.shapes import DoesNotFit, Fields, FieldShape, Shape, compile_fields, compile_shape
from pidurable_nb.records.strict import detach, same

Fingerprint: TypeAlias = tuple[object, ...]

JSON_SHAPE = compile_shape(Json, where="Json")
"""The shape of a result whose type nobody named."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseCodec:
    """One phase as it is stored: which fields are the checkpoint, and which come from the task's input."""

    cls: PhaseClass
    name: str
    fields: tuple[FieldShape, ...]
    inputs: Fields
    checkpoint: Fields

    def encode(self, phase: Phase[object]) -> tuple[dict[str, Json], dict[str, Json]]:
        """The checkpoint and the input fields. Raises: NotJson naming class and field (C7)."""
        try:
            return {"phase": self.name, **self.checkpoint.encode(phase)}, self.inputs.encode(phase)
        except (Misfit, RecursionError) as error:
            raise not_json(error, self.cls.__name__) from error.__cause__

    def encode_inputs(self, phase: Phase[object]) -> dict[str, Json]:
        """The input fields alone. Raises: NotJson naming class and field (C7)."""
        try:
            return self.inputs.encode(phase)
        except (Misfit, RecursionError) as error:
            raise not_json(error, self.cls.__name__) from error.__cause__

    def decode(self, input: Json, checkpoint: JsonObject) -> Phase[object]:
        """The phase that is stored. Raises: DoesNotFit naming class and field."""
        make: Callable[..., Phase[object]] = self.cls
        try:
            arguments = self.checkpoint.decode(checkpoint)
            if self.inputs.plan:
                arguments |= self.inputs.decode(input)
            return construct(make, self.cls.__name__, arguments)
        except (Misfit, RecursionError) as error:
            raise does_not_fit(error, self.cls.__name__) from error.__cause__

    @property
    def input_fields(self) -> Mapping[str, FieldShape]:
        """The `Input` fields by their name on disk."""
        return {f.stored: f for f in self.fields if is_input(f)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Successors:
    """What one method of a phase declares: (how, stored phase name) pairs, and outcomes. `by` is its Python name."""

    by: str
    phases: frozenset[tuple[To, str]]
    ends: frozenset[End]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskDefinition:
    """A task as it is installed. `identity` is module and qualified name of its first phase.

    `aborts` are the phases with an abort handler of their own. `fingerprint` is equal for the same code.
    """

    name: str
    version: int
    first: PhaseClass
    identity: tuple[str, str]
    phases: Mapping[str, PhaseClass]
    result_shape: Shape[object]
    on_fault: OnFault
    aborts: frozenset[str]
    fingerprint: Fingerprint = field(repr=False)
    codecs: Mapping[str, PhaseCodec] = field(repr=False)
    runs: Mapping[str, Successors] = field(repr=False)
    ends: Mapping[str, Successors] = field(repr=False)

    def start(self, phase: Phase[object]) -> tuple[JsonObject, JsonObject]:
        """The input and the first checkpoint of a task that begins at `phase`.

        Raises: IllegalTransition when it is not the first phase, NotJson for what cannot be stored (C7).
        """
        codec = self._codec(phase)
        if codec.name != phase_name(self.first):
            raise IllegalTransition(
                f"task {self.name!r} begins at {self.first.__name__}, not at {type(phase).__name__}; start the first"
            )
        checkpoint, inputs = codec.encode(phase)
        return inputs, checkpoint

    def decode(self, input: Json, checkpoint: JsonObject) -> Phase[object]:
        """The phase that a task stands in, with the fields of input and checkpoint. Raises: DoesNotFit (T8)."""
        name = checkpoint.get("phase")
        codec = self.codecs.get(name) if isinstance(name, str) else None
        if codec is None:
            raise DoesNotFit(f"phase: {name!r} is no phase of task {self.name!r} any more", at="phase")
        return codec.decode(input, checkpoint)

    def encode(self, phase: Phase[object]) -> tuple[JsonObject, JsonObject]:
        """The checkpoint, and the input fields that the phase names. Raises: NotJson, IllegalTransition."""
        return self._codec(phase).encode(phase)

    def checkpoint(self, phase: Phase[object]) -> JsonObject:
        """The checkpoint of a phase. Raises: NotJson, IllegalTransition."""
        return self.encode(phase)[0]

    def check_input(self, phase: Phase[object], input: Json) -> None:
        """Refuse a phase whose `Input` fields differ from the task's input, which never changes.

        Raises: IllegalTransition naming the field and both values.
        """
        codec = self._codec(phase)
        if not codec.inputs.plan:
            return
        given = codec.encode_inputs(phase)
        known = input if isinstance(input, Mapping) else stored.NOTHING
        for _, key, *_ in codec.inputs.plan:
            if key in given and key in known and same(given[key], known[key]):
                continue
            if key in given or key in known:
                self._check_canonical(codec, codec.input_fields[key], given, known)

    def _check_canonical(self, codec: PhaseCodec, f: FieldShape, given: JsonObject, known: JsonObject) -> None:
        """Compare with the input as today's code reads it: with defaults, and without what it does not know."""
        first = self.codecs[phase_name(self.first)]
        try:
            read = first.inputs.decode(known)
        except Misfit as error:
            raise does_not_fit(error, self.first.__name__) from error.__cause__
        name = first.input_fields[f.stored].name
        value = f.shape.encode(read.get(name, _default(self.first, name)), at=f"{self.first.__name__}.{name}")
        if not same(given.get(f.stored), value):
            raise IllegalTransition(
                f"{codec.cls.__name__}.{f.name} is {given.get(f.stored)!r}, but the input of the task says {value!r}; "
                "an Input field never changes"
            )

    def upgraded(self, input: Json, checkpoint: JsonObject, version: int) -> Phase[object]:
        """What `upgrade` of the first phase makes of a task stored by the older `version` (T8).

        Raises: what it raises; TypeError when it gives no phase of this task.
        """
        known = freeze(input)
        frozen = freeze(checkpoint)
        assert isinstance(frozen, Mapping)
        made: object = self.first.upgrade(known if isinstance(known, Mapping) else stored.NOTHING, frozen, version)
        if not isinstance(made, Phase):
            raise TypeError(f"{self.first.__name__}.upgrade gave {made!r}; it has to give a phase")
        self._codec(made)
        return made

    def rewritten(self, input: Json, phase: Phase[object]) -> tuple[Json, JsonObject]:
        """Input and checkpoint of an upgraded task, as they are stored from now on. Raises: NotJson."""
        checkpoint, inputs = self.encode(phase)
        return {**(input if isinstance(input, Mapping) else {}), **inputs}, checkpoint

    def declared(self, phase: str, *, aborting: bool = False) -> Successors:
        """What a phase, or its abort handler, says it may become. Raises: IllegalTransition for another task's."""
        found = (self.ends if aborting else self.runs).get(phase)
        if found is None:
            raise IllegalTransition(f"task {self.name!r} has no phase {phase!r}; it has {', '.join(self.phases)}")
        return found

    def check_declared(self, phase: str, state: State, *, aborting: bool = False) -> None:
        """Refuse a state that the phase does not declare. Raises: IllegalTransition naming both (T3)."""
        declared = self.declared(phase, aborting=aborting)
        match state:
            case Done() | Failed() | Aborted():
                end: End = "done" if isinstance(state, Done) else "failed" if isinstance(state, Failed) else "aborted"
                allowed, shown = end in declared.ends, type(state).__name__
            case Waiting(then=then):
                allowed, shown = ("wait", phase_name(type(then))) in declared.phases, f"Waiting[{type(then).__name__}]"
            case Sleeping(then=then):
                allowed, shown = (
                    ("sleep", phase_name(type(then))) in declared.phases,
                    f"Sleeping[{type(then).__name__}]",
                )
            case Phase():
                allowed, shown = ("checkpoint", phase_name(type(state))) in declared.phases, type(state).__name__
            case _:
                raise IllegalTransition(
                    f"{declared.by} gave {state!r}, which is no state; return a phase, Waiting, Sleeping, Done, "
                    "Failed or Aborted"
                )
        if not allowed:
            raise IllegalTransition(
                f"{declared.by} does not declare {shown} among what may follow; add it to the return annotation"
            )

    def encode_outcome(self, outcome: Done[object] | Failed | Aborted) -> stored.Outcome:
        """The outcome as it is stored. Raises: NotJson naming the part (C7)."""
        match outcome:
            case Done(result=result):
                return stored.Completed(result=self.result_shape.encode(result, at=f"{self.name}: Done.result"))
            case Failed(message=message, detail=detail, result=left):
                error = stored.TaskError(
                    message=_text(message, "Failed.message"), detail=detach(detail, at="Failed.detail")
                )
                return stored.Failed(error=error, result=detach(left, at="Failed.result"))
            case Aborted(reason=reason, result=left):
                text = None if reason is None else _text(reason, "Aborted.reason")
                return stored.Aborted(reason=text, result=detach(left, at="Aborted.result"))

    def decode_outcome(self, outcome: stored.Outcome) -> Outcome[object]:
        """The outcome that was stored. Raises: DoesNotFit for a result of another type."""
        return decode_outcome(outcome, self.result_shape, at=f"{self.name}: Done.result")

    def _codec(self, phase: Phase[object]) -> PhaseCodec:
        cls = type(phase)
        codec = self.codecs.get(phase_name(cls))
        if codec is None:
            raise IllegalTransition(f"{place(cls)} is no phase of task {self.name!r}; it has {', '.join(self.phases)}")
        if codec.cls is cls:
            return codec
        if place(codec.cls) != place(cls):
            raise IllegalTransition(
                f"phase {codec.name!r} of task {self.name!r} is {place(codec.cls)}, not {place(cls)}"
            )
        return compile_phase(cls)


def decode_outcome(
    outcome: stored.Outcome, result: Shape[object] = JSON_SHAPE, *, at: str = "Done.result"
) -> Outcome[object]:
    """A stored outcome as it is matched on. Raises: DoesNotFit for a result of another type."""
    match outcome:
        case stored.Completed(result=value):
            return Done(result.decode(value, at=at))
        case stored.Failed(error=error, result=left):
            return Failed(error.message, freeze(error.detail), result=freeze(left))
        case stored.Aborted(reason=reason, result=left):
            return Aborted(reason, result=freeze(left))
        case stored.Orphaned(reason=reason):
            return Orphaned(reason)
        case stored.Faulted(error=error):
            return Faulted(error.message, freeze(error.detail))


def define(first: PhaseClass) -> TaskDefinition | NotReady:
    """Resolve the task that begins at `first`, with the newest class of every name (T8, T10).

    Raises: PhaseRefused for what can never be stored or followed, DuplicateTask for two phases of one stored name.
    """
    first = newest_phase(first)
    name = first._task
    if name is None:
        raise PhaseRefused(f"{place(first)} begins no task; write task=... on the first phase and install that one")
    phases = graph(first)
    if isinstance(phases, NotReady):
        return phases
    try:
        codecs = {key: compile_phase(cls) for key, cls in phases.items()}
        result = _result_shape(first)
        runs = {key: _successors(cls, aborting=False) for key, cls in phases.items()}
        ends = {key: _successors(cls, aborting=True) for key, cls in phases.items()}
    except NameError as error:
        return not_ready(error, f"a field of task {name!r} names it")
    _check_inputs(name, codecs[phase_name(first)], codecs)
    return TaskDefinition(
        name=name,
        version=first._version,
        first=first,
        identity=(first.__module__, first.__qualname__),
        phases=phases,
        result_shape=result,
        on_fault=first._on_fault,
        aborts=frozenset(key for key, cls in phases.items() if cls.abort is not Phase.abort),
        fingerprint=(result.text, result.uses, tuple(map(_fingerprint, codecs.values())), tuple(runs.items())),
        codecs=codecs,
        runs=runs,
        ends=ends,
    )


def compile_phase(cls: PhaseClass) -> PhaseCodec:
    """One phase. Raises: PhaseRefused, NameError."""
    found = compile_fields(cls, names=scope_of(cls))
    checkpoint = [f for f in found if not is_input(f)]
    for f in checkpoint:
        if f.stored == "phase":
            raise PhaseRefused(
                f"{cls.__name__}.{f.name}: 'phase' on disk is the name of the phase; write = stored(...) with another"
            )
    return PhaseCodec(
        cls=cls,
        name=phase_name(cls),
        fields=found,
        inputs=Fields.of(f for f in found if is_input(f)),
        checkpoint=Fields.of(checkpoint),
    )


def is_input(f: FieldShape) -> bool:
    """True for a field that comes from the task's input."""
    return get_origin(f.annotation) is Annotated and INPUT in get_args(f.annotation)[1:]


def _check_inputs(task: str, first: PhaseCodec, codecs: Mapping[str, PhaseCodec]) -> None:
    """A later phase names inputs of the first, with the same type."""
    for codec in codecs.values():
        for key, f in codec.input_fields.items():
            known = first.input_fields.get(key)
            if known is None:
                raise PhaseRefused(
                    f"{f.owner}.{f.name}: task {task!r} has no input {key!r}; "
                    f"make it an Input field of {first.cls.__name__}, or a field of the checkpoint"
                )
            if not f.shape.same_as(known.shape):
                raise PhaseRefused(
                    f"{f.owner}.{f.name} is {f.shape.text}, but the input of task {task!r} has "
                    f"{known.owner}.{known.name}: {known.shape.text}; write the same type"
                )


def _result_shape(first: PhaseClass) -> Shape[object]:
    named = variables_of(first).get(Phase, {}).get(R_co)
    if named is None or named is NoneType or isinstance(named, TypeVar):
        return JSON_SHAPE
    return compile_shape(named, where=f"the result of {first.__name__}", names=scope_of(first))


def _successors(cls: PhaseClass, *, aborting: bool) -> Successors:
    declared = declared_by_abort(cls) if aborting else declared_by(cls)
    phases: set[tuple[To, str]] = {(via, phase_name(to)) for via, to in declared.phases}
    return Successors(by=declared.by, phases=frozenset(phases), ends=declared.ends)


def _fingerprint(codec: PhaseCodec) -> Fingerprint:
    fields = tuple((f.name, f.stored, f.shape.text, f.shape.uses, is_input(f), f.required) for f in codec.fields)
    return codec.cls, codec.name, fields


def _default(cls: PhaseClass, name: str) -> object:
    """The default of a field, None where it has none."""
    f = next(f for f in dataclasses.fields(cls) if f.name == name)
    if f.default_factory is not MISSING:
        return f.default_factory()
    return None if f.default is MISSING else f.default


def _text(value: object, at: str) -> str:
    plain = detach(value, at=at)
    if isinstance(plain, str):
        return plain
    raise NotJson(f"{at}: expected str, got {value!r}", at=at)
