"""Owns Python types <-> JSON: an annotation is compiled once into a `Shape`, two closures that encode and decode.

Never stores, and never knows what a phase or a document is. Legal is the list of DESIGN section 3 and nothing else:
`str`, `bool`, `int`, `float`, `Literal`, `Enum`, ids, `Json`, `TaskRef`, aware `datetime`, `timedelta`, tuples, frozen
dataclasses, unions of dataclasses with a `Literal` tag, and `X | None`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field
from enum import Enum, Flag
from types import EllipsisType, NoneType
from typing import Annotated, Literal, NewType, TypeVar, cast, get_args, get_origin

from pidurable_nb.errors import PhaseRefused
from pidurable_nb.ids import Json
from pidurable_nb.records import annotations as read
from pidurable_nb.records import containers, scalars
from pidurable_nb.records.annotations import NO_VARIABLES, Names, Namespace, Variables, is_json, spell
from pidurable_nb.records.coder import Coder, DoesNotFit, Shape, does_not_fit, not_json
from pidurable_nb.records.containers import Fields, FieldShape
from pidurable_nb.records.frozen import TaskRef
from pidurable_nb.records.strict import detach

__all__ = [
    "DoesNotFit", "FieldShape", "Fields", "Shape", "camel_case", "check_fields", "compile_fields", "compile_shape",
    "does_not_fit", "forget_shapes", "name_on_disk", "not_json", "shape_of", "stored", "to_json",
]  # fmt: skip

T = TypeVar("T")

_STORED_NAME = "pidurable_nb.stored"

_LEGAL = (
    "str, bool, int, float, Literal, an Enum, an id, Json, TaskRef, datetime, timedelta, tuple[X, ...], "
    "a frozen dataclass, a union of dataclasses with a Literal tag, or X | None"
)
_INSTEAD: Mapping[str, str] = {
    "list": "tuple[{0}, ...]", "List": "tuple[{0}, ...]", "Sequence": "tuple[{0}, ...]", "Iterable": "tuple[{0}, ...]",
    "set": "tuple[{0}, ...]", "frozenset": "tuple[{0}, ...]", "tuple": "tuple[{0}, ...]", "Tuple": "tuple[{0}, ...]",
    "dict": "a frozen dataclass, or Json", "Dict": "a frozen dataclass, or Json",
    "Mapping": "a frozen dataclass, or Json", "MutableMapping": "a frozen dataclass, or Json",
    "Any": "Json", "object": "Json", "None": "Json",
    "bytes": "str, for instance base64", "bytearray": "str, for instance base64",
    "Decimal": "str", "Path": "str", "UUID": "str", "complex": "tuple[float, float]",
    "date": "datetime, or str", "time": "timedelta, or str",
}  # fmt: skip


def stored(name: str, *, default: T | EllipsisType = ..., default_factory: Callable[[], T] | None = None) -> T:
    """A field that is called `name` on disk; its name in the constructor stays.

    (`alias=` would rename the constructor's parameter for type checkers.)
    """
    metadata = {_STORED_NAME: name}
    if default_factory is not None:
        return field(default_factory=default_factory, metadata=metadata)
    if not isinstance(default, EllipsisType):
        return field(default=default, metadata=metadata)
    made: T = field(metadata=metadata)
    return made


def compile_shape(
    annotation: object,
    *,
    where: str,
    names: Namespace = dict,
    mutable: bool = False,
    variables: Variables = NO_VARIABLES,
) -> Shape[object]:
    """The shape of an annotation. `where` is the class and field that errors name, `names` where its text is looked up.

    `mutable` allows `list[X]`, `dict[str, X]` and mutable dataclasses too, for documents. `variables` says what type
    variables stand for.

    Raises: PhaseRefused for what cannot be stored, naming what to write instead; NameError with the name that is not
    defined (yet).
    """
    return _Compiler(mutable).shape(annotation, where, names, variables)


def compile_fields(cls: type, *, names: Namespace = dict, mutable: bool = False) -> tuple[FieldShape, ...]:
    """The fields of a dataclass. `names` come after those of the module that declares the field. Raises: as above."""
    return _Compiler(mutable).fields(cls, names, NO_VARIABLES)


def check_fields(cls: type, *, names: Namespace = dict) -> None:
    """Refuse what is known to be illegal already; a name that is not defined yet says nothing. Raises: PhaseRefused."""
    assert dataclasses.is_dataclass(cls)
    for f in dataclasses.fields(cls):
        try:
            _Compiler(False).field(cls, f, names, read.variables_of(cls))
        except (NameError, _Unbound):
            continue


def name_on_disk(f: dataclasses.Field[object]) -> str:
    """What `stored(...)` says, else the name in camelCase."""
    name: object = f.metadata.get(_STORED_NAME)
    return name if isinstance(name, str) else camel_case(f.name)


def camel_case(name: str) -> str:
    """The name on disk of a snake_case field: `due_at` is `dueAt`."""
    bare = name.lstrip("_")
    first, *rest = bare.split("_")
    return name[: len(name) - len(bare)] + first + "".join(part[:1].upper() + part[1:] for part in rest)


def shape_of(of: type[T], *, mutable: bool = False) -> Shape[T]:
    """The shape of a type or class, compiled once. Raises: PhaseRefused, or NameError for a name not defined (yet)."""
    return cast("Shape[T]", _shape_of(of, mutable))


def to_json(value: object, *, at: str = "$") -> Json:
    """A JSON value or a frozen dataclass, as plain JSON. Raises: NotJson, PhaseRefused (C7)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _shape_of(type(value), False).encode(value, at=at)
    return detach(value, at=at)


def forget_shapes() -> None:
    """Classes may have been defined anew: compile their shapes again when they are asked for."""
    _shapes.clear()


_shapes: dict[tuple[type, bool], Shape[object]] = {}


def _shape_of(of: type, mutable: bool) -> Shape[object]:
    shape = _shapes.get((of, mutable))
    if shape is None:
        shape = compile_shape(of, where=spell(of), names=lambda: read.module_names(of.__module__), mutable=mutable)
        _shapes[of, mutable] = shape
    return shape


class _Unbound(PhaseRefused):
    """A type variable that stands for nothing: the class is generic, and its subclasses say what it is."""


class _Compiler:
    """One compilation. It knows the dataclasses that it is inside of, so that a class may contain itself."""

    def __init__(self, mutable: bool) -> None:
        self._mutable = mutable
        self._open: dict[tuple[type, str], list[Coder]] = {}

    def shape(self, annotation: object, where: str, names: Namespace, variables: Variables) -> Shape[object]:
        annotation = _settled(annotation, where, names, variables)
        members = read.union_members(annotation)
        if is_json(annotation):
            return _made("Json", scalars.JSON)
        if members is not None:
            return self._union(members, where, names, variables)
        if isinstance(annotation, NewType):
            return dataclasses.replace(
                self.shape(annotation.__supertype__, where, names, variables), text=annotation.__name__
            )
        origin, arguments = get_origin(annotation), get_args(annotation)
        if isinstance(annotation, TypeVar):
            raise _Unbound(f"{where}: {annotation.__name__} stands for no type; subclass with [...], or name a type")
        if origin is Annotated:
            return self.shape(arguments[0], where, names, variables)
        if origin is Literal:
            return _made(spell(annotation), scalars.literal_coder(_literal_options(annotation, where)))
        if annotation is TaskRef or origin is TaskRef:
            return _made(spell(annotation), scalars.REFERENCE)
        if origin is tuple or (self._mutable and origin in (list, dict)):
            parts = [self.shape(a, where, names, variables) for a in arguments if a is not ...]
            return self._container(annotation, parts, where)
        return self._class(annotation, where, names, variables)

    def _container(self, annotation: object, parts: list[Shape[object]], where: str) -> Shape[object]:
        origin, arguments = get_origin(annotation), get_args(annotation)
        text = ", ".join(part.text for part in parts)
        if origin is dict:
            if parts[0].text != "str":
                raise PhaseRefused(f"{where}: {spell(annotation)} is no JSON object; write dict[str, {parts[1].text}]")
            return _made(f"dict[{text}]", containers.dict_coder(_coder(parts[1])), parts)
        if origin is list:
            return _made(f"list[{text}]", containers.array_coder(list, _coder(parts[0])), parts)
        if len(arguments) == 2 and arguments[1] is ...:
            return _made(f"tuple[{text}, ...]", containers.array_coder(tuple, _coder(parts[0])), parts)
        return _made(f"tuple[{text or '()'}]", containers.fixed_array_coder(tuple(map(_coder, parts))), parts)

    def _class(self, annotation: object, where: str, names: Namespace, variables: Variables) -> Shape[object]:
        origin, arguments = get_origin(annotation), get_args(annotation)
        cls = origin or annotation
        if not isinstance(cls, type):
            raise self._refused(annotation, where)
        if not arguments and cls in scalars.SCALARS:
            return _made(cls.__name__, scalars.SCALARS[cls])
        cls = read.newest_class(cls)
        if issubclass(cls, Enum):
            _check_enum(cls, where)
            return _made(cls.__name__, scalars.enum_coder(cls), uses={cls})
        if not dataclasses.is_dataclass(cls):
            raise self._refused(annotation, where)
        if getattr(cls, "never_a_value", False):
            raise PhaseRefused(f"{where}: {cls.__name__} is no value; keep what it is made of, or a TaskRef")
        if not self._mutable and not _is_frozen(cls):
            raise PhaseRefused(f"{where}: {cls.__name__} can be changed; make it a @dataclass(frozen=True)")
        text = spell(read.substitute(annotation, variables)) if arguments else cls.__name__
        return self._dataclass(cls, text, names, read.parameters_of(cls, arguments, variables))

    def _dataclass(self, cls: type, text: str, names: Namespace, given: Variables) -> Shape[object]:
        around = self._open.get((cls, text))
        if around is not None:
            return _made(text, containers.later_coder(around), uses={cls})
        pending: list[Coder] = []
        self._open[cls, text] = pending
        try:
            found = self.fields(cls, names, given)
        finally:
            del self._open[cls, text]
        pending.append(containers.dataclass_coder(cls, Fields.of(found)))
        return _made(text, pending[0], [f.shape for f in found], uses={cls})

    def _union(self, members: tuple[object, ...], where: str, names: Namespace, variables: Variables) -> Shape[object]:
        flat = _flattened(members, where, names, variables)
        rest = [member for member in flat if member is not None]
        shape = (
            self.shape(rest[0], where, names, variables)
            if len(rest) == 1
            else self._tagged(rest, where, names, variables)
        )
        if len(rest) == len(flat) or shape.text == "Json":  # None is a Json value of its own
            return shape
        return dataclasses.replace(
            _made(f"{shape.text} | None", containers.optional_coder(_coder(shape)), [shape]), optional=True
        )

    def _tagged(self, members: list[object], where: str, names: Namespace, variables: Variables) -> Shape[object]:
        shown = " | ".join(map(spell, members))
        if not all(dataclasses.is_dataclass(get_origin(member) or member) for member in members):
            raise PhaseRefused(
                f"{where}: {shown} cannot be told apart on disk; write one type, or a union of frozen dataclasses "
                "that each have a field like kind: Literal[...]"
            )
        shapes = [self.shape(member, where, names, variables) for member in members]
        classes = [read.newest_class(cls) for m in members if isinstance(cls := get_origin(m) or m, type)]
        tag, tags = _find_tag(classes, shown, where, names)
        coders = dict(zip(classes, map(_coder, shapes), strict=True))
        return _made(" | ".join(shape.text for shape in shapes), containers.tagged_coder(tag, coders, tags), shapes)

    def fields(self, cls: type, names: Namespace, given: Variables) -> tuple[FieldShape, ...]:
        assert dataclasses.is_dataclass(cls)
        variables = read.variables_of(cls, given)
        return tuple(self.field(cls, f, names, variables) for f in dataclasses.fields(cls))

    def field(
        self, cls: type, f: dataclasses.Field[object], names: Namespace, variables: Mapping[type, Variables]
    ) -> FieldShape:
        where = f"{cls.__name__}.{f.name}"
        annotation, scope, known = _read_field(cls, f, names, variables)
        shape = self.shape(annotation, where, scope, known)
        if not f.init:
            raise PhaseRefused(f"{where} is no parameter of the constructor, so it could not be read back")
        if shape.optional and f.default is not None:
            raise PhaseRefused(
                f"{where}: None is left out on disk, so it needs the default None; write {f.name}: {shape.text} = None"
            )
        return FieldShape(
            owner=cls.__name__,
            name=f.name,
            stored=name_on_disk(f),
            annotation=annotation,
            shape=shape,
            required=f.default is MISSING and f.default_factory is MISSING,
        )

    def _refused(self, annotation: object, where: str) -> PhaseRefused:
        name = spell(get_origin(annotation) or annotation)
        parts = [spell(argument) for argument in get_args(annotation) if argument is not ...] or ["X"]
        instead = _INSTEAD.get(name)
        if self._mutable and name in {"list", "dict"}:
            instead = "list[X]" if name == "list" else "dict[str, X]"
        hint = f"write {instead.format(*parts)}" if instead is not None else f"write {_LEGAL}"
        return PhaseRefused(f"{where}: {spell(annotation)} cannot be stored; {hint}")


def _made(text: str, coder: Coder, parts: Iterable[Shape[object]] = (), *, uses: Iterable[type] = ()) -> Shape[object]:
    used = frozenset(uses).union(*(part.uses for part in parts))
    return Shape(text=text, encoder=coder[0], decoder=coder[1], uses=used)


def _coder(shape: Shape[object]) -> Coder:
    return shape.encoder, shape.decoder


def _settled(annotation: object, where: str, names: Namespace, variables: Variables) -> object:
    """The annotation with text evaluated, aliases opened and type variables replaced, at its top."""
    while True:
        before = annotation
        annotation = read.unaliased(read.resolve(annotation, names, where=where))
        if isinstance(annotation, TypeVar):
            annotation = variables.get(annotation, annotation)
        if annotation is before:
            return annotation


def _flattened(members: tuple[object, ...], where: str, names: Namespace, variables: Variables) -> tuple[object, ...]:
    """The members of a union, those of unions in it included, each once; None for NoneType."""
    found: list[object] = []
    for member in members:
        settled = _settled(member, where, names, variables)
        inner = read.union_members(settled)
        parts = (settled,) if inner is None else _flattened(inner, where, names, variables)
        found += [None if part is NoneType else part for part in parts]
    return tuple(dict.fromkeys(found))


def _read_field(
    cls: type, f: dataclasses.Field[object], names: Namespace, variables: Mapping[type, Variables]
) -> tuple[object, Namespace, Variables]:
    """The annotation of a field, where names in it are looked up, and what type variables in it stand for."""
    owner = read.declaring_class(cls, f.name)
    around = read.module_names(owner.__module__)

    def scope() -> Mapping[str, object]:
        return Names({owner.__name__: owner}, around, names(), vars(owner))

    known = variables.get(owner, NO_VARIABLES)
    return _settled(f.type, f"{cls.__name__}.{f.name}", scope, known), scope, known


def _find_tag(classes: list[type], shown: str, where: str, names: Namespace) -> tuple[str, Mapping[object, type]]:
    """The first field on disk whose literals tell the classes apart."""
    literals = [_literals(cls, names) for cls in classes]
    for name in literals[0]:
        tags: dict[object, type] = {}
        for cls, known in zip(classes, literals, strict=True):
            tags |= {(type(option), option): cls for option in known.get(name, ())}
        if all(name in known for known in literals) and len(tags) == sum(len(known[name]) for known in literals):
            return name, tags
    raise PhaseRefused(
        f"{where}: {shown} have no tag; give each a field like kind: Literal[{classes[0].__name__.lower()!r}]"
    )


def _literals(cls: type, names: Namespace) -> dict[str, tuple[object, ...]]:
    """The fields of a dataclass that are literals, by their names on disk."""
    assert dataclasses.is_dataclass(cls)
    variables = read.variables_of(cls)
    read_fields = ((f, _read_field(cls, f, names, variables)[0]) for f in dataclasses.fields(cls))
    return {name_on_disk(f): get_args(found) for f, found in read_fields if get_origin(found) is Literal}


def _literal_options(annotation: object, where: str) -> tuple[str | int | bool, ...]:
    arguments = get_args(annotation)
    options = tuple(a for a in arguments if isinstance(a, (str, int)) and not isinstance(a, Enum))
    if len(options) != len(arguments):
        raise PhaseRefused(f"{where}: {spell(annotation)} may name str, int and bool only; write an Enum, or X | None")
    return options


def _check_enum(cls: type[Enum], where: str) -> None:
    if issubclass(cls, Flag):
        raise PhaseRefused(f"{where}: {cls.__name__} is a Flag; write int")
    for member in cls:
        if type(member.value) not in (str, int, float, bool):
            raise PhaseRefused(
                f"{where}: {cls.__name__}.{member.name} has the value {member.value!r}; "
                "give the members of a stored Enum str or int values"
            )


def _is_frozen(cls: type) -> bool:
    return bool(getattr(getattr(cls, "__dataclass_params__", None), "frozen", False))
