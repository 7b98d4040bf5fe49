"""Owns finding what the annotations of a function mean, where its author wrote them: in a module, a cell or a function.

Never knows which annotations a tool may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, UnionType
from typing import Annotated, ForwardRef, Literal, Union, get_args, get_origin

from pidurable_nb.errors import PhaseRefused
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records.annotations import JsonValue, Names, Subscriptable, is_json, resolve

_LAST: Mapping[str, object] = {"Json": Json, "Mapping": Mapping, "Sequence": Sequence}
"""What the text of `Json` and `JsonObject` itself is made of; the author's own names come first."""
_TEXT: object = JsonObject


class Unreadable(Exception):
    """An annotation that cannot be understood; the text says which name or why."""


class _Written(Names):
    """Names where `JsonObject`, which is text at run time, can take part in a union, as `Json` can."""

    def __getitem__(self, name: str) -> object:
        found = super().__getitem__(name)
        return Mapping[str, JsonValue] if isinstance(found, str) and found == _TEXT else found


def names_of(function: Callable[..., object], frame: FrameType | None) -> Names:
    """Every name that the author of `function` can use in an annotation, nearest first.

    `frame` is where the function was decorated: a name that only an annotation uses is in no closure, but it is among
    the locals of the functions and classes around, which are still running.
    """
    closed: dict[str, object] = {}
    code = getattr(function, "__code__", None)
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or (), strict=False):
        try:
            closed[name] = cell.cell_contents
        except ValueError:  # a name of the function around that has no value yet
            continue
    return _Written(closed, *_around(function, frame), getattr(function, "__globals__", {}), _LAST)


def _around(function: Callable[..., object], frame: FrameType | None) -> Iterator[Mapping[str, object]]:
    while frame is not None:
        inside = function.__qualname__.startswith(f"{frame.f_code.co_qualname}.")
        if inside and frame.f_globals is getattr(function, "__globals__", None):
            yield dict(frame.f_locals)
        frame = frame.f_back


def meaning(annotation: object, names: Names, json_type: object) -> object:
    """The type that an annotation stands for, with every text in it resolved and `Json` replaced by `json_type`.

    Raises: Unreadable.
    """
    try:
        found = resolve(annotation, lambda: names, where="annotation")
    except NameError as error:
        name = error.name or str(error)
        raise Unreadable(
            f"{name!r} is not defined; define it above the tool, and import it outside `if TYPE_CHECKING`"
        ) from error
    except PhaseRefused as error:
        raise Unreadable(str(error).removeprefix("annotation: ")) from error
    if is_json(found):
        return json_type
    arguments = get_args(found)
    if not arguments or get_origin(found) is Literal:
        return found
    if get_origin(found) is Annotated:
        return Annotated[(meaning(arguments[0], names, json_type), *arguments[1:])]
    settled = tuple(_part(argument, names, json_type) for argument in arguments)
    if all(new is old for new, old in zip(settled, arguments, strict=True)):
        return found
    return _rebuilt(found, settled)


def _part(argument: object, names: Names, json_type: object) -> object:
    """One argument of a generic; `...` and the parameter list of a Callable are none of ours."""
    if isinstance(argument, (str, ForwardRef)) or argument is JsonValue or get_args(argument):
        return meaning(argument, names, json_type)
    return argument


def _rebuilt(annotation: object, arguments: tuple[object, ...]) -> object:
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        union: object = Union
        assert isinstance(union, Subscriptable)
        return union[arguments]
    subscript: Callable[[tuple[object, ...]], object] | None = getattr(origin, "__class_getitem__", None)
    return subscript(arguments) if subscript is not None else annotation
