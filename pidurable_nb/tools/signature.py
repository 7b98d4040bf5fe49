"""Owns reading a function's signature as the arguments of a tool: its JSON schema, and JSON arguments to Python ones.

The one module of this room that imports pydantic, and so imported with the first tool only. Never calls the function.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Final, get_args, get_origin

from pydantic import BaseModel, ConfigDict, JsonValue, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation
from pydantic.fields import Field, FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails, PydanticOmit, SchemaError

from pidurable_nb.errors import InvalidArguments, NotJson, ToolRefused
from pidurable_nb.ids import JsonObject
from pidurable_nb.records.annotations import Names, spell, union_members
from pidurable_nb.records.codec import dumps
from pidurable_nb.records.strict import detach
from pidurable_nb.tools.injected import Injected
from pidurable_nb.tools.naming import Unreadable, meaning, names_of
from pidurable_nb.tools.schema import plain_schema

_SHOWN: Final = 200
"""How many characters of a wrong value a message repeats."""
_MOST_ERRORS: Final = 20

_CONFIG: Final = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a function takes. `fields` gives for each of its own parameters the name in the model and in JSON."""

    tool: str
    parameters: JsonObject
    fields: Mapping[str, tuple[str, str]]
    positional: tuple[str, ...]
    injected: str | None
    model: type[BaseModel]

    def check(self, arguments: JsonObject) -> None:
        """Refuse arguments that do not fit. Raises: InvalidArguments."""
        self._parsed(arguments)

    def bind(self, arguments: JsonObject, call: Injected | None) -> tuple[list[object], dict[str, object]]:
        """The Python arguments, positional and by name; defaults are filled in. Raises: InvalidArguments."""
        parsed = self._parsed(arguments)
        given: dict[str, object] = {name: getattr(parsed, field) for name, (field, _) in self.fields.items()}
        if self.injected is not None:
            given[self.injected] = call
        return [given.pop(name) for name in self.positional], given

    def _parsed(self, arguments: JsonObject) -> BaseModel:
        try:
            return self.model.model_validate_json(dumps(arguments))
        except ValidationError as error:
            raise InvalidArguments(self._complaint(error), tool=self.tool) from error

    def _complaint(self, error: ValidationError) -> str:
        found = error.errors(include_url=False)
        lines = [f"  {self._line(one)}" for one in found[:_MOST_ERRORS]]
        if len(found) > _MOST_ERRORS:
            lines.append(f"  and {len(found) - _MOST_ERRORS} more")
        return "\n".join((f"the arguments do not fit {self.tool}:", *lines))

    def _line(self, error: ErrorDetails) -> str:
        path = _path(error["loc"]) or "the arguments"
        if error["type"] == "missing":
            return f"{path}: is required and was not given"
        if error["type"] == "extra_forbidden" and len(error["loc"]) == 1:
            known = ", ".join(name for _, name in self.fields.values()) or "none"
            return f"{path}: no such parameter; the parameters are: {known}"
        return f"{path}: {error['msg']}; given: {shown(error['input'])}"


class _Schema(GenerateJsonSchema):
    """pydantic's schema, the same in every process."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as in its base

    def encode_default(self, dft: object) -> object:
        """A set has another order in every process."""
        return super().encode_default(sorted(dft, key=repr) if isinstance(dft, (set, frozenset)) else dft)


def signature_of(function: Callable[..., object], *, tool: str, frame: FrameType | None) -> Signature:
    """Read the signature of `function`; `frame` is where it is decorated. Raises: ToolRefused."""
    where = f"the tool {tool} ({place_of(function)})"
    names = names_of(function, frame)
    try:
        parameters = inspect.signature(function).parameters
    except (NameError, ValueError) as error:  # from Python 3.14 on, annotations are evaluated when they are read
        raise ToolRefused(f"{where}: its signature cannot be read: {error}") from error
    fields: dict[str, tuple[str, str]] = {}
    definitions: dict[str, tuple[object, object]] = {}
    injected: str | None = None
    for n, parameter in enumerate(parameters.values()):
        annotation = _annotation(parameter, names, where)
        if _is_injected(annotation, parameter, where):
            if injected is not None:
                raise ToolRefused(f"{where}: {injected} and {parameter.name} are both injected; keep one of them")
            injected = parameter.name
            continue
        field, name = f"p{n}", _json_name(annotation, parameter)
        if name in (taken for _, taken in fields.values()):
            raise ToolRefused(f"{where}: two parameters are called {name!r} in JSON; give one another alias")
        fields[parameter.name] = (field, name)
        default: object = ... if parameter.default is parameter.empty else parameter.default
        definitions[field] = (_described(annotation, name), default)
    model = _model(definitions, names, where)
    return Signature(
        tool=tool,
        parameters=_json_schema(model, where),
        fields=fields,
        positional=tuple(p.name for p in parameters.values() if p.kind is p.POSITIONAL_ONLY),
        injected=injected,
        model=model,
    )


def place_of(function: Callable[..., object]) -> str:
    """Where a function comes from, as errors name it."""
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"


def shown(value: object) -> str:
    """A wrong value as JSON text, cut to what a message can bear."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _annotation(parameter: inspect.Parameter, names: Names, where: str) -> object:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        raise ToolRefused(f"{where}: {stars}{parameter.name} has no schema; name every parameter")
    annotation: object = parameter.annotation
    if annotation is parameter.empty:
        raise ToolRefused(f"{where}: {parameter.name} has no annotation; write {parameter.name}: str, or what it is")
    try:
        return meaning(annotation, names, JsonValue)
    except Unreadable as error:
        raise ToolRefused(f"{where}: {parameter.name}: {error}") from error


def _is_injected(annotation: object, parameter: inspect.Parameter, where: str) -> bool:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, Injected):
        return True
    for member in union_members(annotation) or ():
        if isinstance(member, type) and issubclass(member, Injected):
            raise ToolRefused(
                f"{where}: {parameter.name} is {spell(annotation)}; a call is always there, "
                f"write {parameter.name}: {member.__name__}"
            )
    return False


def _json_name(annotation: object, parameter: inspect.Parameter) -> str:
    """The parameter's name, unless a pydantic Field gives an alias: that is how an argument is called `from`."""
    metadata = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    for item in (parameter.default, *metadata):
        if isinstance(item, FieldInfo) and isinstance(item.validation_alias, str):
            return item.validation_alias
    return parameter.name


def _described(annotation: object, name: str) -> object:
    """The annotation with a bare text in `Annotated` as the description."""
    if get_origin(annotation) is not Annotated:
        return Annotated[annotation, Field(alias=name)]
    bare, *metadata = get_args(annotation)
    described = [Field(description=item) if isinstance(item, str) else item for item in metadata]
    return Annotated[(bare, *described, Field(alias=name))]


def _model(definitions: Mapping[str, tuple[object, object]], names: Names, where: str) -> type[BaseModel]:
    known: dict[str, object] = {**names, "Json": JsonValue}
    try:
        model: type[BaseModel] = create_model("arguments", __config__=_CONFIG, **definitions)  # type: ignore[call-overload]
        model.model_rebuild(_types_namespace=known)
    except PydanticUndefinedAnnotation as error:
        raise ToolRefused(f"{where}: {error.name!r} is not defined; define it above the tool") from error
    except (PydanticUserError, SchemaError, TypeError, NameError) as error:
        raise ToolRefused(f"{where}: a parameter's type cannot come from JSON: {_first_line(error)}") from error
    return model


def _json_schema(model: type[BaseModel], where: str) -> JsonObject:
    try:
        return plain_schema(detach(model.model_json_schema(by_alias=True, schema_generator=_Schema), at="parameters"))
    except (PydanticUserError, PydanticInvalidForJsonSchema, PydanticOmit, NotJson) as error:
        raise ToolRefused(f"{where}: a parameter's type has no JSON schema: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _path(loc: Sequence[int | str]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return "".join(parts).removeprefix(".")
