"""Owns what a tool is, and `@tool()`, which makes one of a function. Never runs one durably: the agent does.

    @tool(replay="safe")
    async def lookup(host: Annotated[str, "a name or an address"], call: Call, limit: int = 10) -> list[str]:
        '''Find what is known about a host.'''

Name, description and JSON schema come from the function; a parameter of a type derived from `Injected` is given by the
harness. pydantic reads the arguments as it reads JSON: `"5"` is a 5 where an int is wanted, and a name that is no
parameter is refused.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pidurable_nb.errors import InvalidArguments, NotJson, ToolRefused
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records.strict import detach
from pidurable_nb.tools.injected import Injected
from pidurable_nb.tools.output import Output, OutputLimits, output_of

if TYPE_CHECKING:
    from pidurable_nb.tools.signature import Signature

__all__ = ["Execute", "Injected", "Mode", "Output", "OutputLimits", "Prepare", "Replay", "Tool", "ToolFunction", "tool"]

Replay = Literal["safe", "unsafe"]
"""Whether a call that a crash cut off may run again (E2)."""
Mode = Literal["parallel", "sequential"]
Execute: TypeAlias = Callable[[JsonObject, Injected | None], Awaitable[Output]]
Prepare: TypeAlias = Callable[[Json], Json]
"""A pure repair of arguments as models commonly get them wrong; what it gives is still validated."""
ToolFunction: TypeAlias = Callable[..., Coroutine[object, object, object]]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool:
    """Something a model can call; made by `@tool()`.

    `mode` None follows the settings; one sequential call makes its whole round sequential. `limits` bound the text
    of an answer. `needs_call` says that the function takes the call. Two tools are equal only when they are one.
    """

    name: str
    description: str
    parameters: JsonObject
    replay: Replay = "unsafe"
    mode: Mode | None = None
    limits: OutputLimits = field(default_factory=OutputLimits)
    needs_call: bool = False
    signature: Signature = field(repr=False)
    run: Execute = field(repr=False)
    prepare: Prepare | None = field(default=None, repr=False)

    def declaration(self) -> JsonObject:
        """What a model is told: name, description and the JSON schema of the arguments."""
        return {"name": self.name, "description": self.description, "parameters": detach(self.parameters)}

    def validated(self, arguments: Json) -> JsonObject:
        """The arguments as they are stored: repaired, checked, otherwise as given.

        Raises: InvalidArguments, also when the repair fails.
        """
        try:
            repaired = detach(arguments, at="arguments", held=True)
            if self.prepare is not None:
                repaired = detach(self.prepare(repaired), at="arguments", held=True)
        except NotJson as error:
            raise InvalidArguments(f"the arguments do not fit {self.name}: {error}", tool=self.name) from error
        except Exception as error:  # the repair is anybody's code
            said = f"the arguments of {self.name} could not be repaired: {type(error).__name__}: {error}"
            raise InvalidArguments(said, tool=self.name) from error
        if not isinstance(repaired, Mapping):
            from pidurable_nb.tools.signature import shown

            said = f"the arguments of {self.name} are a JSON object; given: {shown(repaired)}"
            raise InvalidArguments(said, tool=self.name)
        self.signature.check(repaired)
        return repaired

    async def execute(self, arguments: JsonObject, call: Injected | None) -> Output:
        """Run the tool once with stored arguments. What it raises is the tool's own.

        Raises: InvalidArguments when the arguments do not fit; TypeError when it returned what cannot be stored.
        """
        return await self.run(arguments, call)

    def wrapped(self, execute: Execute) -> Tool:
        """The same tool with another way to execute, which may call `execute` of this one."""
        return dataclasses.replace(self, run=execute)


def tool(
    function: None = None,
    /,
    *,
    name: str | None = None,
    replay: Replay = "unsafe",
    mode: Mode | None = None,
    limits: OutputLimits = OutputLimits(),  # noqa: B008 - it is frozen
    prepare_arguments: Prepare | None = None,
) -> Callable[[ToolFunction], Tool]:
    """Make a tool of an async function: its name, docstring and annotated parameters are what the model sees.

    `replay="safe"` promises that running it again after a crash is as good as running it once (E2). `Annotated[str,
    "text"]` and pydantic's `Field(description=...)` describe a parameter.

    Raises: ToolRefused, where the tool is defined, for what cannot be one.
    """
    if function is not None:
        raise ToolRefused(f"@tool needs parentheses: write @tool() above {getattr(function, '__name__', function)}")
    if replay not in ("safe", "unsafe"):
        raise ToolRefused(f'@tool(replay={replay!r}): replay is "safe" to run again after a crash, else "unsafe"')
    if mode not in (None, "parallel", "sequential"):
        raise ToolRefused(f'@tool(mode={mode!r}): mode is "parallel", "sequential", or None for what the settings say')

    def decorate(decorated: ToolFunction) -> Tool:
        frame = sys._getframe(1)
        called = name if name is not None else getattr(decorated, "__name__", "")
        made = _tool(decorated, called, frame)
        return dataclasses.replace(made, replay=replay, mode=mode, limits=limits, prepare=prepare_arguments)

    return decorate


def _tool(function: ToolFunction, name: str, frame: FrameType) -> Tool:
    from pidurable_nb.tools.signature import place_of, signature_of

    if not callable(function):
        raise ToolRefused(f"@tool() stands above an async function, not above {function!r}")
    if not inspect.iscoroutinefunction(function):
        raise ToolRefused(f"the tool {name or repr(function)} is not async; write async def {name or 'name'}(...)")
    if _NAME.fullmatch(name) is None:
        raise ToolRefused(
            f"{place_of(function)}: {name!r} is no name that every provider takes; letters, digits, _ and -, at most "
            'sixty-four, no digit or - first. Give one with @tool(name="...")'
        )
    description = inspect.cleandoc(function.__doc__ or "")
    if not description:
        raise ToolRefused(f"the tool {name} ({place_of(function)}) has no docstring; it is what tells a model about it")
    signature = signature_of(function, tool=name, frame=frame)

    async def run(arguments: JsonObject, call: Injected | None) -> Output:
        if signature.injected is not None and call is None:
            raise TypeError(f"the tool {name} takes the call as {signature.injected}; execute it with one")
        positional, named = signature.bind(arguments, call)
        return output_of(await function(*positional, **named), tool=name)

    return Tool(
        name=name,
        description=description,
        parameters=signature.parameters,
        needs_call=signature.injected is not None,
        signature=signature,
        run=run,
    )
