"""Asking hooks: how the answers of several extensions become one, and what an error of one of them does."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar, overload

import pytest

from pidurable_nb import Done, Phase, Runtime, TaskRef
from pidurable_nb.agent.extending.hooking import (
    Block,
    Compacting,
    D,
    Decline,
    F,
    HookApi,
    Hooks,
    NamedHooks,
    Replace,
    Report,
    Summary,
    V,
    run_after_response,
    run_after_tool,
    run_after_tools,
    run_before_compact,
    run_before_request,
    run_before_tool,
    run_on_abort,
    run_on_yield,
)
from pidurable_nb.errors import SessionClosed, SessionFailed, StorageError
from pidurable_nb.ids import ConversationId, EntryId, Json, TaskId
from pidurable_nb.records.message import Message, ToolCall, text_of
from pidurable_nb.records.transcript import EntryRecord
from pidurable_nb.session.documents import Document
from pidurable_nb.tools.output import Output

if TYPE_CHECKING:
    from tests.agent.conftest import Home

T = TypeVar("T")
Behaviour = Literal["absent", "silent", "answers", "raises", "cancelled"]
BEHAVIOURS: tuple[Behaviour, ...] = ("absent", "silent", "answers", "raises", "cancelled")
CALL = ToolCall(id="c1", name="write", arguments={"by": []})
COMPACTING = Compacting(
    reason="manual",
    entries=(EntryRecord(id=EntryId(2), conversation=ConversationId(1), kind="pi.user"),),
    messages=(),
    first_kept=EntryId(3),
)


def as_api(rt: Runtime) -> HookApi:
    """A type checker accepts this: what a task has at hand is what its hooks get."""
    return rt


class Api:
    """The part of a task that most of these hooks use: none but its name."""

    id = TaskId(12)
    conversation = ConversationId(1)

    async def memo(self, name: str, value: F, *, barrier: bool = False) -> F:
        raise NotImplementedError

    @overload
    async def recall(self, name: str, of: type[dict[str, Json]]) -> Mapping[str, Json] | None: ...
    @overload
    async def recall(self, name: str, of: type[F]) -> F | None: ...
    async def recall(self, name: str, of: type[object]) -> object:
        raise NotImplementedError

    async def read(
        self, doc: type[D], *, of: ConversationId | None = None, key: str | None = None, at: EntryId | None = None
    ) -> D:
        raise NotImplementedError

    @overload
    async def effect(self, name: str, do: Callable[[], Awaitable[V]], *, key: str | None = None) -> V: ...
    @overload
    async def effect(self, name: str, do: Callable[[], V], *, key: str | None = None) -> V: ...
    async def effect(self, name: str, do: Callable[[], V | Awaitable[V]], *, key: str | None = None) -> V:
        raise NotImplementedError

    def key(self, purpose: str) -> str:
        raise NotImplementedError


API = Api()


@dataclass
class Log:
    """What happened while hooks were asked."""

    asked: list[str] = field(default_factory=list)
    reports: list[BaseException] = field(default_factory=list)


async def behave(behaviour: Behaviour, label: str, log: Log, answer: T) -> T | None:
    await asyncio.sleep(0)
    log.asked.append(label)
    match behaviour:
        case "raises":
            raise ValueError(f"{label} broke")
        case "cancelled":
            raise asyncio.CancelledError
        case "answers":
            return answer
        case _:
            return None


# --- The table --------------------------------------------------------------------------------------------------------

Make = Callable[[Behaviour, str, Log], Hooks]
Run = Callable[[Sequence[NamedHooks], Report], Awaitable[object]]


def labels(value: Json) -> list[Json]:
    assert isinstance(value, Sequence)
    return list(value)


def before_request(behaviour: Behaviour, label: str, log: Log) -> Hooks:
    async def ask(messages: tuple[Message, ...], api: HookApi) -> Sequence[Message] | None:
        return await behave(behaviour, label, log, [*messages, {"role": "user", "content": label}])

    return Hooks(before_request=ask)


def after_response(behaviour: Behaviour, label: str, log: Log) -> Hooks:
    async def ask(message: Message, api: HookApi) -> None:
        await behave(behaviour, label, log, None)

    return Hooks(after_response=ask)


def on_yield(behaviour: Behaviour, label: str, log: Log) -> Hooks:
    async def ask(answer: Message, api: HookApi) -> str | None:
        return await behave(behaviour, label, log, label)

    return Hooks(on_yield=ask)


def after_tools(behaviour: Behaviour, label: str, log: Log) -> Hooks:
    async def ask(assistant: EntryId, results: tuple[EntryId, ...], api: HookApi) -> None:
        assert (assistant, results) == (7, (8, 9))
        await behave(behaviour, label, log, None)

    return Hooks(after_tools=ask)


def before_tool(behaviour: Behaviour, label: str, log: Log) -> Hooks:
    async def ask(call: ToolCall, api: HookApi) -> Replace | None:
        return await behave(behaviour, label, log, Replace({"by": [*labels(call.arguments["by"]), label]}))

    return Hooks(before_tool=ask)


def blocking(behaviour: Behaviour, label: str, log: Log) -> Hooks:
    async def ask(call: ToolCall, api: HookApi) -> Block | None:
        return await behave(behaviour, label, log, Block(f"{label} says no"))

    return Hooks(before_tool=ask)


def after_tool(behaviour: Behaviour, label: str, log: Log) -> Hooks:
    async def ask(call: ToolCall, result: Output, api: HookApi) -> Output | None:
        return await behave(behaviour, label, log, Output(content=f"{result.content}{label}"))

    return Hooks(after_tool=ask)


def on_abort(behaviour: Behaviour, label: str, log: Log) -> Hooks:
    async def ask(call: ToolCall, result: Output, api: HookApi) -> Output | None:
        return await behave(behaviour, label, log, Output(content=f"{result.content}{label}"))

    return Hooks(on_abort=ask)


def before_compact(behaviour: Behaviour, label: str, log: Log) -> Hooks:
    async def ask(compacting: Compacting, api: HookApi) -> Summary | None:
        return await behave(behaviour, label, log, Summary(label))

    return Hooks(before_compact=ask)


def declining(behaviour: Behaviour, label: str, log: Log) -> Hooks:
    async def ask(compacting: Compacting, api: HookApi) -> Decline | None:
        return await behave(behaviour, label, log, Decline())

    return Hooks(before_compact=ask)


async def ask_request(hooks: Sequence[NamedHooks], report: Report) -> object:
    messages = await run_before_request(hooks, ({"role": "user", "content": "-"},), api=API, report=report)
    return "".join(text_of(message) for message in messages)


async def ask_response(hooks: Sequence[NamedHooks], report: Report) -> object:
    await run_after_response(hooks, {"role": "assistant"}, api=API, report=report)
    return None


async def ask_yield(hooks: Sequence[NamedHooks], report: Report) -> object:
    return await run_on_yield(hooks, {"role": "assistant"}, api=API, report=report)


async def ask_tools(hooks: Sequence[NamedHooks], report: Report) -> object:
    await run_after_tools(hooks, EntryId(7), [EntryId(8), EntryId(9)], api=API, report=report)
    return None


async def ask_call(hooks: Sequence[NamedHooks], report: Report) -> object:
    decided = await run_before_tool(hooks, CALL, api=API, report=report)
    if isinstance(decided, Block):
        return decided
    assert (decided.id, decided.name) == (CALL.id, CALL.name)
    return "-" + "".join(str(label) for label in labels(decided.arguments["by"]))


async def ask_result(hooks: Sequence[NamedHooks], report: Report) -> object:
    return (await run_after_tool(hooks, CALL, Output(content="-"), api=API, report=report)).content


async def ask_abort(hooks: Sequence[NamedHooks], report: Report) -> object:
    return (await run_on_abort(hooks, CALL, Output(content="-"), api=API, report=report)).content


async def ask_compact(hooks: Sequence[NamedHooks], report: Report) -> object:
    return await run_before_compact(hooks, COMPACTING, api=API, report=report)


@dataclass(frozen=True)
class Row:
    """A hook, and what the table says of it."""

    make: Make
    run: Run
    composes: Literal["chain", "observers", "first"]
    nothing: object = None
    """What comes out when nobody answers."""
    says: Callable[[str], object] = str
    """What comes out of the first answer."""
    raise_blocks: bool = False


ROWS: Mapping[str, Row] = {
    "before_request": Row(before_request, ask_request, "chain", nothing="-"),
    "after_response": Row(after_response, ask_response, "observers"),
    "on_yield": Row(on_yield, ask_yield, "first"),
    "after_tools": Row(after_tools, ask_tools, "observers"),
    "before_tool": Row(before_tool, ask_call, "chain", nothing="-", raise_blocks=True),
    "before_tool, blocking": Row(
        blocking, ask_call, "first", nothing="-", says=lambda label: Block(f"{label} says no"), raise_blocks=True
    ),
    "after_tool": Row(after_tool, ask_result, "chain", nothing="-"),
    "on_abort": Row(on_abort, ask_abort, "chain", nothing="-"),
    "before_compact": Row(before_compact, ask_compact, "first", says=Summary),
    "before_compact, declining": Row(declining, ask_compact, "first", says=lambda label: Decline()),
}
CANCELLED = "cancelled"


@dataclass
class Expected:
    """The table, applied."""

    result: object
    asked: list[str] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)


def expected(row: Row, behaviours: Sequence[tuple[str, Behaviour]]) -> Expected:
    """An independent reading of the table: a loop over the behaviours, and no runner."""
    found = Expected(row.nothing)
    for label, behaviour in behaviours:
        if behaviour == "absent":
            continue
        found.asked.append(label)
        if behaviour == "cancelled":
            found.result = CANCELLED
            return found
        if behaviour == "raises":
            found.reported.append(f"{label} broke")
            if row.raise_blocks:
                found.result = Block(f"{label} broke")
                return found
        if behaviour == "answers" and row.composes == "chain":
            found.result = f"{found.result}{label}"
        if behaviour == "answers" and row.composes == "first":
            found.result = row.says(label)
            return found
    return found


@pytest.mark.parametrize("name", ROWS)
def test_e4_every_hook_composes_and_fails_as_the_table_says(name: str) -> None:
    row = ROWS[name]

    async def one(behaviours: Sequence[tuple[str, Behaviour]]) -> None:
        log = Log()
        hooks = [
            NamedHooks(label, Hooks() if behaviour == "absent" else row.make(behaviour, label, log))
            for label, behaviour in behaviours
        ]
        result: object
        try:
            result = await row.run(hooks, log.reports.append)
        except asyncio.CancelledError:
            result = CANCELLED
        wanted = expected(row, behaviours)
        assert result == wanted.result, behaviours
        assert log.asked == wanted.asked, behaviours
        assert [str(error) for error in log.reports] == wanted.reported, behaviours
        for error in log.reports:
            label = str(error)[0]
            hook = name.partition(",")[0]
            assert error.__notes__ == [f"in hook {hook} of extension {label!r}, task 12"]

    async def main() -> None:
        for count in range(4):
            for behaviours in itertools.product(BEHAVIOURS, repeat=count):
                await one(list(zip("abc", behaviours, strict=False)))
                await one(list(zip("cba", behaviours, strict=False)))

    asyncio.run(main())


def test_e4_a_block_ends_a_chain_of_replacements_and_nobody_else_is_asked() -> None:
    async def main() -> None:
        log = Log()
        hooks = [
            NamedHooks("a", before_tool("answers", "a", log)),
            NamedHooks("b", blocking("answers", "b", log)),
            NamedHooks("c", before_tool("answers", "c", log)),
        ]
        assert await run_before_tool(hooks, CALL, api=API, report=log.reports.append) == Block("b says no")
        assert log.asked == ["a", "b"]

    asyncio.run(main())


# --- Errors that are none of the hook's -------------------------------------------------------------------------------


def over() -> list[Exception]:
    failure = StorageError("the disk is gone", stored="unknown")
    return [SessionFailed("the harness ended", cause=failure), SessionClosed("closed"), failure]


@pytest.mark.parametrize("name", ROWS)
def test_f1_the_end_of_the_session_passes_through_every_hook_unreported(name: str) -> None:
    row = ROWS[name]

    async def main() -> None:
        for error in over():
            log = Log()

            async def fail(*args: object, error: Exception = error) -> None:
                raise error

            made = row.make("silent", "a", log)
            asked = {field: fail for field in made.__slots__ if getattr(made, field) is not None}
            with pytest.raises(type(error)) as raised:
                await row.run([NamedHooks("a", Hooks(**asked))], log.reports.append)
            assert raised.value is error
            assert log.reports == []

    asyncio.run(main())


@pytest.mark.parametrize("name", ROWS)
def test_e4_what_a_hook_raises_once_its_task_is_cancelled_is_the_end_and_no_report(name: str) -> None:
    row = ROWS[name]

    async def main() -> None:
        log = Log()

        async def stubborn(*args: object) -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                raise ValueError("I clean up badly") from None

        made = row.make("silent", "a", log)
        asked = {field: stubborn for field in made.__slots__ if getattr(made, field) is not None}
        hooks = [NamedHooks("a", Hooks(**asked)), NamedHooks("b", row.make("answers", "b", log))]
        task = asyncio.ensure_future(row.run(hooks, log.reports.append))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(ValueError, match="clean up badly"):
            await task
        assert log.asked == []
        assert log.reports == []

    asyncio.run(main())


# --- Answers that are none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("before_request", "text"),
        ("before_request", {"role": "user"}),
        ("before_request", ["text"]),
        ("before_request", [{"role": "user", "timestamp": float("nan")}]),
        ("on_yield", 5),
        ("on_yield", ""),
        ("before_tool", {"block": "no"}),
        ("before_tool", Block("")),
        ("before_tool", Replace([])),  # type: ignore[arg-type]
        ("before_tool", Replace({"at": object()})),  # type: ignore[dict-item]
        ("after_tool", "text"),
        ("after_tool", Output(content=5)),  # type: ignore[arg-type]
        ("on_abort", ToolCall(id="1", name="x", arguments={})),
        ("before_compact", "text"),
        ("before_compact", Summary("")),
    ],
)
def test_c7_an_answer_that_does_not_fit_is_an_error_of_its_hook(name: str, answer: object) -> None:
    row = ROWS[name]

    async def main() -> None:
        log = Log()

        async def wrong(*args: object) -> object:
            return answer

        hooks = [NamedHooks("a", Hooks(**{name: wrong})), NamedHooks("b", row.make("answers", "b", log))]  # type: ignore[arg-type]
        result = await row.run(hooks, log.reports.append)
        assert len(log.reports) == 1
        if row.raise_blocks:
            assert isinstance(result, Block)
            assert log.asked == []
        else:
            assert result == expected(row, [("b", "answers")]).result
            assert log.asked == ["b"]

    asyncio.run(main())


def test_a_hook_that_is_no_async_function_is_told_so_and_blocks() -> None:
    def plain(call: ToolCall, api: HookApi) -> Block:
        return Block("no")

    async def main() -> None:
        reports: list[BaseException] = []
        hooks = [NamedHooks("a", Hooks(before_tool=plain))]  # type: ignore[arg-type]
        blocked = await run_before_tool(hooks, CALL, api=API, report=reports.append)
        assert isinstance(blocked, Block)
        assert "a hook is an async function" in blocked.text
        assert len(reports) == 1

    asyncio.run(main())


def test_an_error_without_text_blocks_with_its_name() -> None:
    async def fail(call: ToolCall, api: HookApi) -> None:
        raise AssertionError

    async def main() -> None:
        hooks = [NamedHooks("a", Hooks(before_tool=fail))]
        assert await run_before_tool(hooks, CALL, api=API, report=lambda error: None) == Block("AssertionError")

    asyncio.run(main())


def test_a_hook_cannot_change_in_place_what_others_are_shown() -> None:
    message: dict[str, Json] = {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}
    arguments: dict[str, Json] = {"path": {"name": "x"}}

    async def in_request(messages: tuple[Message, ...], api: HookApi) -> None:
        messages[0]["content"][0]["text"] = "changed"  # type: ignore[index]

    async def in_message(answer: Message, api: HookApi) -> None:
        answer["more"] = 1  # type: ignore[index]

    async def in_call(call: ToolCall, api: HookApi) -> None:
        call.arguments["path"]["name"] = "y"  # type: ignore[index]

    async def main() -> None:
        reports: list[BaseException] = []
        say = reports.append
        hooks = [
            NamedHooks(
                "a",
                Hooks(before_request=in_request, after_response=in_message, on_yield=in_message, before_tool=in_call),
            )
        ]
        assert await run_before_request(hooks, [message], api=API, report=say) == (message,)
        await run_after_response(hooks, message, api=API, report=say)
        assert await run_on_yield(hooks, message, api=API, report=say) is None
        blocked = await run_before_tool(hooks, ToolCall(id="1", name="read", arguments=arguments), api=API, report=say)
        assert isinstance(blocked, Block)
        assert len(reports) == 4
        assert message == {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}
        assert arguments == {"path": {"name": "x"}}

    asyncio.run(main())


def test_what_a_hook_answered_cannot_be_changed_by_it_afterwards() -> None:
    kept: dict[str, Json] = {"n": 1}
    said: list[Message] = [kept]

    async def arguments(call: ToolCall, api: HookApi) -> Replace:
        return Replace(kept)

    async def messages(shown: tuple[Message, ...], api: HookApi) -> list[Message]:
        return said

    async def main() -> None:
        hooks = [NamedHooks("a", Hooks(before_tool=arguments, before_request=messages))]
        decided = await run_before_tool(hooks, CALL, api=API, report=lambda error: None)
        shown = await run_before_request(hooks, (), api=API, report=lambda error: None)
        kept["n"] = 2
        said.clear()
        assert isinstance(decided, ToolCall)
        assert decided.arguments == {"n": 1}
        assert shown == ({"n": 1},)

    asyncio.run(main())


# --- With a task ------------------------------------------------------------------------------------------------------


class PlanMode(Document, kind="app.plan-mode"):
    enabled: bool = False


FRESH = {"decision": "first"}


async def decide(call: ToolCall, api: HookApi) -> Replace | None:
    """Keeps its first decision, and reads what the conversation was told."""
    if (await api.read(PlanMode)).enabled:
        decision = await api.memo("decider.decision", FRESH["decision"])
        return Replace({"decision": decision, "key": api.key("decide")})
    return None


class Asks(Phase[str], task="asks"):
    async def run(self, rt: Runtime) -> "Then":
        return Then()


class Then(Phase[str]):
    """Asks its hooks, and ends in the second life only."""

    async def run(self, rt: Runtime) -> Done[str]:
        hooks = [NamedHooks("decider", Hooks(before_tool=decide))]
        decided = await run_before_tool(hooks, CALL, api=as_api(rt), report=rt.report)
        if FRESH["decision"] == "first":
            await asyncio.sleep(10_000)
        assert isinstance(decided, ToolCall)
        assert decided.arguments["key"] == rt.key("decide")
        return Done(str(decided.arguments["decision"]))


def test_m1_a_hooks_decision_survives_a_restart_in_its_tasks_memo(
    home: "Home", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FRESH, "decision", "first")

    async def first() -> TaskRef[str]:
        async with home.open(Asks) as h:
            root = await h.root()
            async with root.commit() as tx:
                (await tx.edit(PlanMode)).enabled = True
            ref = await root.start(Asks())
            await asyncio.sleep(100)
            return ref

    async def second(ref: TaskRef[str]) -> None:
        async with home.open(Asks) as h:
            assert await h.wait(ref) == "first"

    ref = home.run(first())
    FRESH["decision"] = "second"
    home.run(second(ref))
    assert home.reports == []
