"""Owns values that cannot change: JSON kept deeply frozen, and references to tasks. Never checks what a value may be.

What a phase holds is what is on disk, so nothing that a phase holds may be changed under it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NoReturn, Self, TypeVar

from pidurable_nb.ids import Json, TaskId

R_co = TypeVar("R_co", covariant=True)


class FrozenObject(dict[str, Json]):
    """A JSON object that cannot be changed; equal to the `dict` of the same content. `dict(it)` is a copy to change."""

    __slots__ = ()

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("stored JSON is frozen; change a copy, dict(it), and commit that")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = _refuse
    setdefault = update = _refuse  # pyright: ignore[reportAssignmentType]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[FrozenObject], tuple[dict[str, Json]]]:
        return type(self), (dict(self),)


def freeze(value: Json) -> Json:
    """The same JSON value in a form that cannot be changed: objects are `FrozenObject`, arrays are tuples."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return FrozenObject({key: freeze(item) for key, item in value.items()})
    return tuple([freeze(item) for item in value])


@dataclass(frozen=True)  # no slots: `TaskRef[str](id)` cannot be made with them before Python 3.12
class TaskRef(Generic[R_co]):
    """Names a task whose result is an R. Stored as its id; equal to every reference to the same task."""

    id: TaskId

    def __repr__(self) -> str:
        return f"TaskRef({self.id})"


def as_code(value: object) -> str:
    """The expression that makes `value`, for what may be stored."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if type(value) is tuple:
        items = [as_code(item) for item in value]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if type(value) is list:
        return f"[{', '.join(as_code(item) for item in value)}]"
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, TaskRef)):
        return call_as_code(value)
    return repr(value)


def call_as_code(value: object) -> str:
    """The call that makes a dataclass instance, with every field named."""
    assert dataclasses.is_dataclass(value)
    shown = (f"{f.name}={as_code(getattr(value, f.name))}" for f in dataclasses.fields(value) if f.repr and f.init)
    return f"{type(value).__name__}({', '.join(shown)})"
