"""Owns the JSON schema of a tool's arguments as a model is sent it: no titles, and no reference that is not needed.

Never decides what is valid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from pidurable_nb.ids import Json, JsonObject

_REFERENCE: Final = "#/$defs/"
_NAMED: Final = ("properties", "$defs", "patternProperties", "dependentSchemas")
"""Members that hold schemas by name: a property may be called `title`."""
_VALUES: Final = ("default", "const", "enum", "examples", "required", "type", "mapping")
"""Members that hold values, not schemas."""
_FIRST: Final = ("type", "properties", "required", "additionalProperties")


def plain_schema(schema: Json) -> JsonObject:
    """The schema of an object without titles. A definition that one place refers to stands in that place."""
    assert isinstance(schema, Mapping)
    untitled = _untitled(schema)
    definitions = untitled.get("$defs")
    if isinstance(definitions, Mapping):
        untitled = _inlined(untitled, definitions)
    whole: JsonObject = {"type": "object", "properties": {}, **untitled}
    return {name: whole[name] for name in (*_FIRST, *(n for n in whole if n not in _FIRST)) if name in whole}


def _untitled(schema: JsonObject) -> JsonObject:
    found: dict[str, Json] = {}
    for name, value in schema.items():
        if name == "title":
            continue
        if name in _NAMED and isinstance(value, Mapping):
            found[name] = {key: _untitled(part) if isinstance(part, Mapping) else part for key, part in value.items()}
        elif name in _VALUES:
            found[name] = value
        elif isinstance(value, Mapping):
            found[name] = _untitled(value)
        elif isinstance(value, list):
            found[name] = [_untitled(part) if isinstance(part, Mapping) else part for part in value]
        else:
            found[name] = value
    return found


def _inlined(schema: JsonObject, definitions: JsonObject) -> JsonObject:
    """Put every definition in place that has no other reader: a recursive one always has, itself."""
    uses = Counter(text for text in _texts(schema) if text.startswith(_REFERENCE))
    single = {
        f"{_REFERENCE}{name}": definition
        for name, definition in definitions.items()
        if isinstance(definition, Mapping) and (uses[f"{_REFERENCE}{name}"] == 1 or not definition)
    }
    kept = {name: _put(part, single) for name, part in definitions.items() if f"{_REFERENCE}{name}" not in single}
    rest = {name: _put(part, single) for name, part in schema.items() if name != "$defs"}
    return {**rest, "$defs": kept} if kept else rest


def _put(part: Json, single: Mapping[str, JsonObject]) -> Json:
    if isinstance(part, list):
        return [_put(item, single) for item in part]
    if not isinstance(part, Mapping):
        return part
    reference = part.get("$ref")
    if isinstance(reference, str) and reference in single:
        beside = {name: item for name, item in part.items() if name != "$ref"}
        part = {**single[reference], **beside}
    return {name: _put(item, single) for name, item in part.items()}


def _texts(part: Json) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, Mapping):
        for item in part.values():
            yield from _texts(item)
    elif isinstance(part, list):
        for item in part:
            yield from _texts(item)
