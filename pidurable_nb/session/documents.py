"""Owns documents as their authors write them: a dataclass per kind, typed drafts, and their end. Never loads or writes.

What a session keeps is JSON under a `Definition`; a class here is the shape of that JSON.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field
from typing import ClassVar, Generic, NoReturn, TypeVar, dataclass_transform

from pidurable_nb.errors import BlockEnded, DocumentRefused, PhaseRefused
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records.annotations import module_names
from pidurable_nb.records.coder import Misfit
from pidurable_nb.records.document import ForkPolicy, History
from pidurable_nb.records.shapes import Fields, compile_fields, does_not_fit, not_json, stored
from pidurable_nb.session.definition import Definition, ScopeName, base_sometimes
from pidurable_nb.store.delta import Op

__all__ = ["D", "Definition", "Document", "TypedDraft", "decoded", "definition_of", "encoded"]


class _Kind:
    """What is known of one document class. Its codec is compiled when first used: a name may be defined later."""

    __slots__ = ("_fields", "cls", "definition", "gone")

    def __init__(self, cls: type[Document], definition: Definition) -> None:
        self.cls = cls
        self.definition = definition
        self._fields: Fields | None = None
        self.gone: type | None = None

    def fields(self) -> Fields:
        if self._fields is None:
            module = self.cls.__module__
            try:
                self._fields = Fields.of(compile_fields(self.cls, names=lambda: module_names(module), mutable=True))
            except PhaseRefused as error:
                raise DocumentRefused(f"{self.definition.kind}: {error}") from error
            except NameError as error:
                raise DocumentRefused(f"{self.definition.kind}: {error}; define it first") from error
        return self._fields


@dataclass_transform(field_specifiers=(field, stored))
@dataclass
class Document:
    """Named state beside the transcript; a subclass is a dataclass, and the shape of its value.

    Every field needs a default: a document exists as soon as somebody edits it. Fields may be mutable (`list[X]`,
    `dict[str, X]`, dataclasses). `migrate` brings the stored JSON of an older version to today's; `base_when` says
    that a change is written as the whole value, given the new value and how many deltas there are since the last.

    Durability: a draft is stored with its block, whole or as what changed.
    Raises: DocumentRefused where the class is defined, for a shape or a policy that cannot be kept. Laws: V3.

    >>> class Todo(Document, kind="app.todo", scope="conversation", history="rewindable", fork="as_of"):
    ...     title: str = ""
    >>> encoded(Todo("today"))
    {'title': 'today'}
    """

    never_a_value: ClassVar[bool] = True
    _kind: ClassVar[_Kind]

    def __init_subclass__(
        cls,
        *,
        kind: str = "",
        scope: ScopeName = "conversation",
        history: History = "latest",
        fork: ForkPolicy = "initial",
        version: int = 1,
        family: bool = False,
        revoked: bool = False,
    ) -> None:
        super().__init_subclass__()
        if revoked:
            return
        _as_dataclass(cls, kind)
        definition = Definition(
            kind=kind,
            version=version,
            scope=scope,
            history=history,
            fork=fork,
            family=family,
            initial=lambda seed: encoded(cls()),
            migrate=_migration(cls),
            base_when=_checkpoint(cls),
        )
        cls._kind = _Kind(cls, definition)
        _check_shape(cls._kind)

    @classmethod
    def migrate(cls, value: JsonObject, version: int) -> JsonObject:
        """A value stored by `version`, in today's shape. To be overridden with the first `version=2`."""
        raise NotImplementedError

    @classmethod
    def base_when(cls, value: Document, deltas: int) -> bool:
        """True: write the whole value. To be overridden where the default, `base_sometimes`, does not fit."""
        raise NotImplementedError


D = TypeVar("D", bound=Document)


def definition_of(document: type[Document]) -> Definition:
    """What a session has to know of a document class."""
    return document._kind.definition


def encoded(value: Document) -> dict[str, Json]:
    """The JSON of a document. Raises: NotJson naming the field (C7)."""
    kind = value._kind
    try:
        return kind.fields().encode(value)
    except (Misfit, RecursionError) as error:
        raise not_json(error, "$") from error.__cause__


def decoded(document: type[D], value: JsonObject) -> D:
    """A document of its own from stored JSON. Raises: DocumentRefused when it does not fit the class."""
    kind = document._kind
    try:
        return document(**kind.fields().decode(value))
    except (Misfit, RecursionError) as error:
        problem = does_not_fit(error, "$")
        raise DocumentRefused(
            f"{kind.definition.kind}: the stored value does not fit {document.__name__}: {problem}; "
            "raise the version and write a migrate"
        ) from problem


class TypedDraft(Generic[D]):
    """A draft as an instance of its class. At the block's end it is encoded and revoked."""

    __slots__ = ("instance",)

    def __init__(self, instance: D) -> None:
        self.instance = instance

    def take_off(self) -> object:
        """The value that the draft gets; the instance is revoked. Raises: NotJson."""
        try:
            return encoded(self.instance)
        finally:
            self.revoke()

    def revoke(self) -> None:
        """Every use of the instance's attributes raises BlockEnded from now on."""
        object.__setattr__(self.instance, "__class__", _revoked(type(self.instance)))


# -- revoked drafts ------------------------------------------------------------------------------------------------


def _revoked(cls: type[Document]) -> type:
    """The class of `cls`'s revoked drafts: the same layout, and nothing works."""
    kind = cls._kind
    if kind.gone is None:
        body: dict[str, object] = {
            "__slots__": (),
            "__getattribute__": _refuse_read,
            "__setattr__": _refuse_write,
            "__delattr__": _refuse_read,
            "__repr__": _shown,
            "__module__": cls.__module__,
        }
        kind.gone = types.new_class(cls.__name__, (cls,), {"revoked": True}, lambda names: names.update(body))
    return kind.gone


def _refuse_read(draft: Document, name: str) -> object:
    if name == "__class__":
        return type(draft)
    _refuse(draft, name)


def _refuse_write(draft: Document, name: str, value: object) -> None:
    _refuse(draft, name)


def _refuse(draft: Document, name: str) -> NoReturn:
    raise BlockEnded(f"{type(draft).__name__}.{name}: the block of this draft has ended; edit it in a new block")


def _shown(draft: Document) -> str:
    return f"<{type(draft).__name__} draft, revoked with its block>"


# -- defining one --------------------------------------------------------------------------------------------------


def _as_dataclass(cls: type[Document], kind: str) -> None:
    named = kind or cls.__name__
    try:
        dataclass(cls)
    except (TypeError, ValueError) as error:
        raise DocumentRefused(
            f"{named}: {error}; give every field a default, a list by field(default_factory=list)"
        ) from error
    bare = [f.name for f in dataclasses.fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    if bare:
        raise DocumentRefused(f"{named}: {', '.join(bare)} without a default; a document starts without being asked")


def _check_shape(kind: _Kind) -> None:
    """Refuse now what cannot be stored; leave a name that is not defined yet to the first use."""
    try:
        kind.fields()
    except DocumentRefused as error:
        if not isinstance(error.__cause__, NameError):
            raise


def _migration(cls: type[Document]) -> Callable[[JsonObject, int], JsonObject] | None:
    return cls.migrate if _overrides(cls, "migrate") else None


def _checkpoint(cls: type[D]) -> Callable[[JsonObject, Sequence[Op], int], bool]:
    if not _overrides(cls, "base_when"):
        return base_sometimes

    def base_when(value: JsonObject, ops: Sequence[Op], deltas: int) -> bool:
        return cls.base_when(decoded(cls, value), deltas)

    return base_when


def _overrides(cls: type[Document], name: str) -> bool:
    return any(name in vars(above) for above in cls.__mro__[: cls.__mro__.index(Document)])
