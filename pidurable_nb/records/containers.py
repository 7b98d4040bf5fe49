"""Owns how values with parts are stored, given the coders of the parts: arrays, objects, options, tagged unions.

Never reads an annotation; `shapes` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pidurable_nb.errors import PhaseRefused
from pidurable_nb.ids import Json
from pidurable_nb.records.coder import Coder, Decode, Encode, Misfit, Shape, wrong
from pidurable_nb.records.strict import whole_characters

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldShape:
    """One field of the dataclass `owner`: its name here and on disk. `annotation` is resolved, with all it carries."""

    owner: str
    name: str
    stored: str
    annotation: object
    shape: Shape[object]
    required: bool


@dataclass(frozen=True, slots=True)
class Fields:
    """Some fields of a dataclass as one JSON object: (name, name on disk, encode, decode, omits None, required)."""

    plan: tuple[tuple[str, str, Encode, Decode, bool, bool], ...]

    @classmethod
    def of(cls, fields: Iterable[FieldShape]) -> Fields:
        """These fields. Raises: PhaseRefused when two have one name on disk."""
        fields = tuple(fields)
        taken: dict[str, str] = {}
        for f in fields:
            other = taken.setdefault(f.stored, f.name)
            if other != f.name:
                both = f"{f.owner}.{other} and {f.owner}.{f.name}"
                raise PhaseRefused(f"{both} are both {f.stored!r} on disk; name one of them: = stored(...)")
        return cls(
            tuple((f.name, f.stored, f.shape.encoder, f.shape.decoder, f.shape.optional, f.required) for f in fields)
        )

    def encode(self, instance: object) -> dict[str, Json]:
        """The object to store. Raises: Misfit."""
        made: dict[str, Json] = {}
        for name, key, encode, _, omits, _ in self.plan:
            value = getattr(instance, name)
            if omits and value is None:
                continue
            try:
                made[key] = encode(value)
            except Misfit as misfit:
                misfit.path.append(name)
                raise
        return made

    def decode(self, value: Json) -> dict[str, object]:
        """Constructor arguments; what is not stored is left to its default, what is not known is ignored.

        Raises: Misfit.
        """
        if not isinstance(value, Mapping):
            raise wrong("an object", value)
        made: dict[str, object] = {}
        for name, key, _, decode, omits, required in self.plan:
            if key in value:
                item = value[key]
                if item is None and omits:
                    continue
                try:
                    made[name] = decode(item)
                except Misfit as misfit:
                    misfit.path.append(name)
                    raise
            elif required:
                raise Misfit("is not stored, and the field has no default", tail=f".{name}")
        return made


def construct(make: Callable[..., A], name: str, arguments: Mapping[str, object]) -> A:
    """`make(**arguments)`; what its `__post_init__` raises is a misfit of the stored value."""
    try:
        return make(**arguments)
    except Exception as error:
        raise Misfit(f"{name} refused it: {type(error).__name__}: {error}") from error


def dataclass_coder(cls: type, fields: Fields) -> Coder:
    """A dataclass as an object. Subclasses are refused: they would come back as something else."""
    name = cls.__name__

    def encode(value: object) -> Json:
        if type(value) is not cls:
            raise wrong(name, value)
        return fields.encode(value)

    def decode(value: Json) -> object:
        return construct(cls, name, fields.decode(value))

    return encode, decode


def tagged_coder(tag: str, members: Mapping[type, Coder], tags: Mapping[object, type]) -> Coder:
    """A union of dataclasses; `tag` is the field on disk that tells them apart, `tags` its values by (type, value)."""
    expected = " or ".join(cls.__name__ for cls in members)
    options = ", ".join(repr(key[1]) for key in tags if isinstance(key, tuple))

    def encode(value: object) -> Json:
        coder = members.get(type(value))
        if coder is None:
            raise wrong(expected, value)
        return coder[0](value)

    def decode(value: Json) -> object:
        if not isinstance(value, Mapping):
            raise wrong("an object", value)
        found = value.get(tag)
        cls = tags.get((type(found), found)) if isinstance(found, (str, int)) else None
        if cls is None:
            raise Misfit(f"expected one of {options}, got {found!r}", tail=f".{tag}")
        return members[cls][1](value)

    return encode, decode


def later_coder(pending: Sequence[Coder]) -> Coder:
    """The coder that will stand in `pending` by the time it is used: a class that contains itself."""

    def encode(value: object) -> Json:
        return pending[0][0](value)

    def decode(value: Json) -> object:
        return pending[0][1](value)

    return encode, decode


def optional_coder(item: Coder) -> Coder:
    """An X or None. In an object, the fields leave None out."""
    encode_item, decode_item = item

    def encode(value: object) -> Json:
        return None if value is None else encode_item(value)

    def decode(value: Json) -> object:
        return None if value is None else decode_item(value)

    return encode, decode


def array_coder(kind: type[tuple[object, ...]] | type[list[object]], item: Coder) -> Coder:
    """A tuple or list of any length."""
    encode_item, decode_item = item
    name = kind.__name__

    def encode(value: object) -> Json:
        if type(value) is not kind:
            raise wrong(name, value)
        return _each(encode_item, value)

    def decode(value: Json) -> object:
        return kind(_each(decode_item, _items(value)))

    return encode, decode


def fixed_array_coder(items: tuple[Coder, ...]) -> Coder:
    """A tuple of a fixed length, each place with its own shape."""

    def encode(value: object) -> Json:
        if type(value) is not tuple or len(value) != len(items):
            raise wrong(f"a tuple of {len(items)}", value)
        return _pairwise((coder[0] for coder in items), value)

    def decode(value: Json) -> object:
        found = _items(value)
        if len(found) != len(items):
            raise wrong(f"an array of {len(items)}", value)
        return tuple(_pairwise((coder[1] for coder in items), found))

    return encode, decode


def dict_coder(item: Coder) -> Coder:
    """A dict with text for keys; for documents, whose drafts may be changed."""
    encode_item, decode_item = item

    def encode(value: object) -> Json:
        if type(value) is not dict:
            raise wrong("dict", value)
        made: dict[str, Json] = {}
        for key, part in value.items():
            if type(key) is not str:
                raise Misfit(f"the key {key!r} is {type(key).__qualname__}, not str")
            try:
                made[whole_characters(key)] = encode_item(part)
            except Misfit as misfit:
                misfit.path.append(key)
                raise
        return made

    def decode(value: Json) -> object:
        if not isinstance(value, Mapping):
            raise wrong("an object", value)
        made: dict[str, object] = {}
        for key, part in value.items():
            try:
                made[key] = decode_item(part)
            except Misfit as misfit:
                misfit.path.append(key)
                raise
        return made

    return encode, decode


def _items(value: Json) -> list[Json] | tuple[Json, ...]:
    if isinstance(value, (list, tuple)):
        return value
    raise wrong("an array", value)


def _each(do: Callable[[A], B], values: Iterable[A]) -> list[B]:
    """`do` of each; what it raises gets the place of the value."""
    made: list[B] = []
    try:
        for value in values:
            made.append(do(value))  # noqa: PERF401 - its length is the place where it stopped
    except Misfit as misfit:
        misfit.path.append(len(made))
        raise
    return made


def _pairwise(do: Iterable[Callable[[A], B]], values: Iterable[A]) -> list[B]:
    made: list[B] = []
    try:
        for one, value in zip(do, values, strict=True):
            made.append(one(value))
    except Misfit as misfit:
        misfit.path.append(len(made))
        raise
    return made
