"""Owns reading an annotation: text to the object it names, the newest class of a name, what a type variable stands for.

Never knows which annotations are legal. A name that is not defined (yet) is a NameError, for the caller to name.
"""

from __future__ import annotations

import builtins
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import (
    Annotated,
    ForwardRef,
    Generic,
    Literal,
    NewType,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    runtime_checkable,
)

from pidurable_nb.errors import PhaseRefused
from pidurable_nb.ids import Json

Namespace: TypeAlias = Callable[[], Mapping[str, object]]
"""Where names in annotations are looked up, asked anew every time."""
Variables: TypeAlias = Mapping[object, object]
"""What the type variables of a class stand for."""

NO_VARIABLES: Variables = {}


@runtime_checkable
class Subscriptable(Protocol):
    """A generic whose type variables can be replaced."""

    def __getitem__(self, arguments: object, /) -> object: ...


class JsonValue:
    """Stands for `Json`, which is text at run time and so can take no part in a union."""


class Names(Mapping[str, object]):
    """Several namespaces as one; the first that has a name gives it."""

    def __init__(self, *maps: Mapping[str, object]) -> None:
        self._maps = maps

    def __getitem__(self, name: str) -> object:
        for names in self._maps:
            if name in names:
                found = names[name]
                return JsonValue if is_json(found) else found
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for names in self._maps for name in names))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def is_json(annotation: object) -> bool:
    """True for `Json` itself."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    return annotation is JsonValue or (isinstance(annotation, str) and annotation == Json)


def resolve(annotation: object, names: Namespace, *, where: str) -> object:
    """The object that an annotation stands for; one that is no text stands for itself. Parts of it may still be text.

    Raises: NameError with the name that is not defined; PhaseRefused when the text cannot be evaluated at all.
    """
    while not is_json(annotation):
        if isinstance(annotation, ForwardRef):
            annotation = annotation.__forward_arg__
        if not isinstance(annotation, str):
            return annotation
        try:
            annotation = eval(annotation.strip(), {"__builtins__": builtins}, Names(names()))
        except NameError:
            raise
        except AttributeError as error:
            raise NameError(str(error), name=error.name) from error
        except Exception as error:
            raise PhaseRefused(f"{where}: the annotation {annotation!r} cannot be read: {error}") from error
    return JsonValue


def module_names(module: str) -> Mapping[str, object]:
    """The globals of a module; those of a notebook are `__main__`'s. Empty when it is not loaded."""
    found = sys.modules.get(module)
    return vars(found) if found is not None else {}


def newest_class(cls: type) -> type:
    """The class that now has the module and qualified name of `cls`: a cell that ran again made another one."""
    found: object = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and (found.__module__, found.__qualname__) == (cls.__module__, cls.__qualname__):
        return found
    return cls


def declaring_class(cls: type, field: str) -> type:
    """The class of the MRO whose annotation of `field` counts."""
    return next((base for base in cls.__mro__ if field in inspect.get_annotations(base)), cls)


def variables_of(cls: type, given: Variables = NO_VARIABLES) -> Mapping[type, Variables]:
    """For `cls` and each of its bases, what its type variables stand for, where that is known."""
    found: dict[type, Variables] = {}

    def walk(at: type, known: Variables) -> None:
        found.setdefault(at, known)
        bases: tuple[object, ...] = at.__dict__.get("__orig_bases__", at.__bases__)
        for base in bases:
            origin = get_origin(base) or base
            if isinstance(origin, type) and origin is not Generic:
                walk(origin, parameters_of(origin, get_args(base), known))

    walk(cls, given)
    return found


def parameters_of(origin: type, arguments: tuple[object, ...], known: Variables = NO_VARIABLES) -> Variables:
    """The type variables of `origin` with the arguments it was subscripted with."""
    parameters: tuple[object, ...] = getattr(origin, "__parameters__", ())
    return {p: substitute(a, known) for p, a in zip(parameters, arguments, strict=False)}


def substitute(annotation: object, known: Variables) -> object:
    """`annotation` with the type variables that are known replaced."""
    if isinstance(annotation, TypeVar):
        return known.get(annotation, annotation)
    parameters: tuple[object, ...] = () if isinstance(annotation, type) else getattr(annotation, "__parameters__", ())
    if parameters and isinstance(annotation, Subscriptable) and all(p in known for p in parameters):
        return annotation[tuple(known[p] for p in parameters)]
    return annotation


def unaliased(annotation: object) -> object:
    """What a `type X = ...` statement stands for."""
    alias = getattr(typing, "TypeAliasType", None)
    while alias is not None and isinstance(annotation, alias):
        annotation = getattr(annotation, "__value__")  # noqa: B009 - 3.11 does not know the class
    return annotation


def union_members(annotation: object) -> tuple[object, ...] | None:
    """The members of a union, None for anything else."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else None


def spell(annotation: object) -> str:
    """An annotation as its author wrote it, near enough to be recognised."""
    if is_json(annotation):
        return "Json"
    if annotation is None or annotation is types.NoneType:
        return "None"
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    members = union_members(annotation)
    if members is not None:
        return " | ".join(map(spell, members))
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is Annotated:
        return spell(arguments[0])
    if origin is not None:
        return f"{spell(origin)}[{', '.join('...' if a is ... else spell(a) for a in arguments) or '()'}]"
    if isinstance(annotation, (type, NewType, TypeVar)):
        return annotation.__name__
    return str(annotation).removeprefix("typing.")
