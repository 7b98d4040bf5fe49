"""Owns the questions that a task asks its conversation's extensions, and how several answers become one (E4).

Hooks run in extension order, off the mutation line, before the commit that uses what they say; a crash before that
commit may ask them again. Never decides what an answer leads to: the asking task does.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, NoReturn, Protocol, TypeAlias, TypeVar, overload

from pidurable_nb.engine.facts import Fact, Frozen
from pidurable_nb.errors import SessionClosed, SessionFailed, StorageError
from pidurable_nb.ids import ConversationId, EntryId, Json, JsonObject, TaskId
from pidurable_nb.records.frozen import freeze
from pidurable_nb.records.message import Message, ToolCall
from pidurable_nb.records.strict import detach
from pidurable_nb.records.transcript import EntryRecord
from pidurable_nb.session.documents import Document
from pidurable_nb.tools.output import Output, output_of

F = TypeVar("F", bound="Fact | Frozen")
V = TypeVar("V", bound="Json | Frozen")
D = TypeVar("D", bound=Document)
T = TypeVar("T")
Report: TypeAlias = Callable[[BaseException], None]
CompactionReason = Literal["manual", "threshold", "overflow"]

_SESSION_OVER: Final = (SessionFailed, SessionClosed, StorageError)


class HookApi(Protocol):
    """What a hook may use of the task that asks it; a `Runtime` is one.

    Memos are the task's own, so a hook begins their names with its extension's. `id` is the task.
    """

    @property
    def id(self) -> TaskId: ...
    @property
    def conversation(self) -> ConversationId: ...
    async def memo(self, name: str, value: F, *, barrier: bool = False) -> F:
        """The kept value: this one, or that of whoever was first (M1)."""
        ...

    @overload
    async def recall(self, name: str, of: type[dict[str, Json]]) -> Mapping[str, Json] | None: ...
    @overload
    async def recall(self, name: str, of: type[F]) -> F | None: ...
    async def read(
        self, doc: type[D], *, of: ConversationId | None = None, key: str | None = None, at: EntryId | None = None
    ) -> D:
        """The stored value of a document, its defaults where it was never written."""
        ...

    @overload
    async def effect(self, name: str, do: Callable[[], Awaitable[V]], *, key: str | None = None) -> V: ...
    @overload
    async def effect(self, name: str, do: Callable[[], V], *, key: str | None = None) -> V: ...
    def key(self, purpose: str) -> str:
        """The idempotency key of this purpose (E6)."""
        ...


# -- what hooks answer -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replace:
    """The call goes on with these arguments."""

    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class Block:
    """The call does not happen; the model gets this text as an error result."""

    text: str


@dataclass(frozen=True, slots=True)
class Decline:
    """Nothing is compacted now."""


@dataclass(frozen=True, slots=True)
class Summary:
    """This text stands for what is compacted; no model is asked for one."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacting:
    """What a compaction is about to replace.

    `entries` are those that the summary stands for, the head marker first; `messages` what the model saw of them;
    `first_kept` the oldest entry that stays as it is.
    """

    reason: CompactionReason
    entries: tuple[EntryRecord, ...]
    messages: tuple[Message, ...]
    first_kept: EntryId
    instructions: str | None = None


BeforeRequest: TypeAlias = Callable[[tuple[Message, ...], HookApi], Awaitable[Sequence[Message] | None]]
AfterResponse: TypeAlias = Callable[[Message, HookApi], Awaitable[None]]
OnYield: TypeAlias = Callable[[Message, HookApi], Awaitable[str | None]]
AfterTools: TypeAlias = Callable[[EntryId, tuple[EntryId, ...], HookApi], Awaitable[None]]
BeforeTool: TypeAlias = Callable[[ToolCall, HookApi], Awaitable[Replace | Block | None]]
AfterTool: TypeAlias = Callable[[ToolCall, Output, HookApi], Awaitable[Output | None]]
BeforeCompact: TypeAlias = Callable[[Compacting, HookApi], Awaitable[Decline | Summary | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What an extension wants to be asked; None is not asked. Every hook is an async function.

    Asked by the generation: `before_request(messages, api)` may replace what this one request shows the model;
    `after_response(message, api)` sees every answer, failed ones too; `on_yield(answer, api)` may answer a final answer
    with a user's text, and the run goes on; `after_tools(assistant, results, api)` sees a whole tool round.

    Asked by a tool call: `before_tool(call, api)` may replace the arguments or block the call, and a raise blocks it;
    `after_tool(call, result, api)` may replace the result; `on_abort(call, result, api)` that of an aborted call.

    Asked by a compaction: `before_compact(compacting, api)` may decline, or bring the summary.
    """

    before_request: BeforeRequest | None = None
    after_response: AfterResponse | None = None
    on_yield: OnYield | None = None
    after_tools: AfterTools | None = None
    before_tool: BeforeTool | None = None
    after_tool: AfterTool | None = None
    on_abort: AfterTool | None = None
    before_compact: BeforeCompact | None = None


@dataclass(frozen=True, slots=True)
class NamedHooks:
    """The hooks of one extension, with its name for reports."""

    extension: str
    hooks: Hooks


# -- asking: the generation --------------------------------------------------------------------------------------------


async def run_before_request(
    hooks: Sequence[NamedHooks], messages: Sequence[Message], *, api: HookApi, report: Report
) -> tuple[Message, ...]:
    """What the request shows the model: each hook sees what the one before left. What it raises is skipped (E4)."""
    current = tuple(messages)
    for named in hooks:
        ask = named.hooks.before_request
        if ask is not None:
            with _skipped("before_request", named, api, report):
                answer = await _awaited(ask(tuple([_frozen(message) for message in current]), api))
                current = current if answer is None else _replaced_messages(answer)
    return current


async def run_after_response(hooks: Sequence[NamedHooks], message: Message, *, api: HookApi, report: Report) -> None:
    """Every hook sees the answer, whatever another one raises (E4)."""
    for named in hooks:
        ask = named.hooks.after_response
        if ask is not None:
            with _skipped("after_response", named, api, report):
                await _awaited(ask(_frozen(message), api))


async def run_on_yield(hooks: Sequence[NamedHooks], answer: Message, *, api: HookApi, report: Report) -> str | None:
    """The user's text that the run goes on with, from the first hook that has one; None ends the run (E4)."""
    for named in hooks:
        ask = named.hooks.on_yield
        if ask is not None:
            with _skipped("on_yield", named, api, report):
                text = await _awaited(ask(_frozen(answer), api))
                if text is not None:
                    return _said(text)
    return None


async def run_after_tools(
    hooks: Sequence[NamedHooks], assistant: EntryId, results: Sequence[EntryId], *, api: HookApi, report: Report
) -> None:
    """Every hook sees the round: the entry that called, and the results in call order (E4)."""
    for named in hooks:
        ask = named.hooks.after_tools
        if ask is not None:
            with _skipped("after_tools", named, api, report):
                await _awaited(ask(assistant, tuple(results), api))


# -- asking: a tool call -----------------------------------------------------------------------------------------------


async def run_before_tool(
    hooks: Sequence[NamedHooks], call: ToolCall, *, api: HookApi, report: Report
) -> ToolCall | Block:
    """The call with the arguments that every hook in turn left it, or the first block.

    A hook that raises, or answers with something else, blocks the call with that error's text and is reported: what
    was to guard the call did not (E4).
    """
    for named in hooks:
        ask = named.hooks.before_tool
        if ask is None:
            continue
        try:
            shown = replace(call, arguments=_frozen(call.arguments))
            decided = _decided(await _awaited(ask(shown, api)), call)
        except Exception as error:
            _tell(error, "before_tool", named, api, report)
            return Block(str(error) or type(error).__name__)
        if isinstance(decided, Block):
            return decided
        call = decided
    return call


async def run_after_tool(
    hooks: Sequence[NamedHooks], call: ToolCall, result: Output, *, api: HookApi, report: Report
) -> Output:
    """The result of an executed call, as every hook in turn left it. What a hook raises is skipped (E4)."""
    asked = [(named, named.hooks.after_tool) for named in hooks]
    return await _left("after_tool", asked, call, result, api, report)


async def run_on_abort(
    hooks: Sequence[NamedHooks], call: ToolCall, result: Output, *, api: HookApi, report: Report
) -> Output:
    """The result of an aborted call, as every hook in turn left it. What a hook raises is skipped (E4)."""
    asked = [(named, named.hooks.on_abort) for named in hooks]
    return await _left("on_abort", asked, call, result, api, report)


async def _left(
    hook: str,
    asked: Sequence[tuple[NamedHooks, AfterTool | None]],
    call: ToolCall,
    result: Output,
    api: HookApi,
    report: Report,
) -> Output:
    """The result, as those who have such a hook left it in turn."""
    for named, ask in asked:
        if ask is not None:
            with _skipped(hook, named, api, report):
                answer = await _awaited(ask(call, result, api))
                result = result if answer is None else _result(answer, call)
    return result


# -- asking: a compaction ----------------------------------------------------------------------------------------------


async def run_before_compact(
    hooks: Sequence[NamedHooks], compacting: Compacting, *, api: HookApi, report: Report
) -> Decline | Summary | None:
    """The decision of the first hook that makes one; None leaves it to the compaction (E4)."""
    for named in hooks:
        ask = named.hooks.before_compact
        if ask is not None:
            with _skipped("before_compact", named, api, report):
                answer = await _awaited(ask(compacting, api))
                if answer is not None:
                    return _decision(answer)
    return None


# -- errors ------------------------------------------------------------------------------------------------------------


def stops_the_asker(error: BaseException) -> bool:
    """Whether an error is no failure of the code that was asked: its asker is being cancelled, or the session ended.

    A task group whose member failed cancels whoever waits for it, and may never take that back: its error is its own.
    """
    task = asyncio.current_task()
    cancelled = task is not None and task.cancelling() > 0 and not isinstance(error, BaseExceptionGroup)
    return cancelled or isinstance(error, _SESSION_OVER)


def _tell(error: Exception, hook: str, named: NamedHooks, api: HookApi, report: Report) -> None:
    """Report the error of a hook; raise it again when it is none of the hook's."""
    if stops_the_asker(error):
        raise error
    error.add_note(f"in hook {hook} of extension {named.extension!r}, task {api.id}")
    report(error)


@contextmanager
def _skipped(hook: str, named: NamedHooks, api: HookApi, report: Report) -> Generator[None, None, None]:
    """What the hook raises is reported, and the next one is asked. A cancellation always passes."""
    try:
        yield
    except Exception as error:
        _tell(error, hook, named, api, report)


# -- what came back ----------------------------------------------------------------------------------------------------


async def _awaited(answer: Awaitable[T]) -> T:
    if not inspect.isawaitable(answer):
        raise TypeError(f"a hook is an async function; this one returned {answer!r} without being awaited")
    return await answer


def _frozen(value: JsonObject) -> JsonObject:
    """What a hook is shown: changing it in place would change what others were given, so it raises there."""
    frozen = freeze(value)
    assert isinstance(frozen, Mapping)
    return frozen


def _replaced_messages(answer: object) -> tuple[Message, ...]:
    if not isinstance(answer, Sequence) or isinstance(answer, str):
        _refuse(answer, "the messages of the request, or None")
    return tuple([_object(message, f"messages[{index}]") for index, message in enumerate(answer)])


def _object(value: object, at: str) -> JsonObject:
    """A copy of its own, checked where it enters (C7)."""
    if not isinstance(value, Mapping):
        raise TypeError(f"a hook answered with {value!r} as {at}; that is a JSON object")
    detached = detach(value, at=at)
    assert isinstance(detached, Mapping)
    return detached


def _decided(answer: object, call: ToolCall) -> ToolCall | Block:
    if answer is None:
        return call
    if isinstance(answer, Replace):
        return replace(call, arguments=_object(answer.arguments, "arguments"))
    if isinstance(answer, Block):
        return Block(_said(answer.text))
    _refuse(answer, "Replace(arguments), Block(text) or None")


def _decision(answer: object) -> Decline | Summary:
    if isinstance(answer, Decline):
        return answer
    if isinstance(answer, Summary):
        return Summary(_said(answer.text))
    _refuse(answer, "Decline(), Summary(text) or None")


def _said(text: object) -> str:
    if not isinstance(text, str):
        _refuse(text, "text, or None")
    if not text:
        raise ValueError("a hook answered with empty text; answer None to say nothing")
    return text


def _result(answer: object, call: ToolCall) -> Output:
    if not isinstance(answer, Output):
        _refuse(answer, "an Output, or None")
    return output_of(answer, tool=call.name)


def _refuse(answer: object, wanted: str) -> NoReturn:
    raise TypeError(f"a hook answered with {answer!r}; it answers with {wanted}")
