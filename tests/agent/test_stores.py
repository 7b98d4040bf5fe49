"""Stores that another implementation left behind when it was killed, recovered with tools and a model (E, S, V, G).

What that implementation's own recovery did is in the manifest of each store; ours does the same, or the test says why
it is better.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from pidurable_nb import Answered, Harness, Settings, TaskRef
from pidurable_nb.agent.extending.settings import Compaction
from pidurable_nb.agent.request.context import Context
from pidurable_nb.ids import ConversationId, Json, TaskId
from pidurable_nb.lab.looking.inspect import inspect_store
from pidurable_nb.records.message import calls_of, role_of, stop_reason
from pidurable_nb.store.copying import copy_store
from pidurable_nb.tools.tool import Tool

FIXTURES = Path(__file__).parents[2] / "fixtures"
STORES = FIXTURES / "stores"


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """A store of theirs: its tools, and what happens in its recovery besides."""

    name: str
    tools: tuple[str, ...] = ()
    safe: bool = False
    then: str | None = None


FOREIGN = (
    Foreign(name="generation-partial"),
    Foreign(name="inbox"),
    Foreign(name="tool-unsafe", tools=("transfer",)),
    Foreign(name="tool-safe", tools=("transfer",), safe=True),
    Foreign(name="schema-v1", tools=("transfer",), safe=True),
    Foreign(name="subagent", tools=("delegate",)),
    Foreign(name="compaction-placed", then="question 5 after compaction"),
)


@pytest.fixture(params=FOREIGN, ids=lambda foreign: foreign.name)
def foreign(request: pytest.FixtureRequest) -> Foreign:
    chosen: Foreign = request.param
    return chosen


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FIXTURES / "code"))
    sys.modules.pop("agents", None)
    import agents  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

    module: ModuleType = agents
    yield module
    sys.modules.pop("agents", None)


def tools_of(foreign: Foreign, code: ModuleType) -> Sequence[Tool]:
    found = [getattr(code, name) for name in foreign.tools]
    return [replace(tool, replay="safe") if foreign.safe else tool for tool in found]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A store as `inspect` shows it."""

    integrity: str
    entries_by_kind: Mapping[str, int]
    task_outcomes: Mapping[str, int]
    submissions_by_status: Mapping[str, int]
    conversations: Mapping[int, Sequence[str]]
    whole: str

    @classmethod
    def of(cls, store: Path) -> Shown:
        text = json.dumps(inspect_store(store))
        said = json.loads(text)
        return cls(
            integrity=said["integrity"],
            entries_by_kind=said["entries_by_kind"],
            task_outcomes=said["task_outcomes"],
            submissions_by_status=said["submissions_by_status"],
            conversations={
                row["id"]: [line.partition(":")[2] for line in row["transcript"]] for row in said["conversations"]
            },
            whole=text,
        )


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """What is there afterwards, and what the outside was asked."""

    after: Shown
    effects: Counter[str]
    contexts: tuple[Context, ...]


def recover(foreign: Foreign, code: ModuleType, folder: Path) -> Recovered:
    copy = copy_store(STORES / f"{foreign.name}.sqlite", folder)
    settings = Settings(compaction=Compaction(keep_recent=60, reserve=1000))
    code.effects.clear()
    reports: list[BaseException] = []
    contexts: list[Context] = []

    async def main() -> None:
        opening = Harness.open(
            copy, tools=tools_of(foreign, code), models=[code.model], settings=settings, on_report=reports.append
        )
        async with opening as harness, asyncio.timeout(20):
            await harness.wait_idle()
            if foreign.then is not None:
                asked = await (await harness.root()).submit(foreign.then)
                assert isinstance(await asked.wait(), Answered)
            await harness.wait_idle()
            for id in Shown.of(copy).conversations:
                conversation = await harness.conversation(ConversationId(id))
                contexts.append(await conversation.context())

    asyncio.run(main())
    assert reports == []
    return Recovered(after=Shown.of(copy), effects=Counter(code.effects), contexts=tuple(contexts))


def manifest(foreign: Foreign) -> Mapping[str, Mapping[str, Mapping[str, Json]]]:
    found: Mapping[str, Mapping[str, Mapping[str, Json]]] = json.loads((STORES / f"{foreign.name}.json").read_text())
    return found


def test_a_foreign_store_recovers_to_the_same_kinds_outcomes_submissions_and_effects(
    foreign: Foreign, code: ModuleType, tmp_path: Path
) -> None:
    ours, theirs = recover(foreign, code, tmp_path), manifest(foreign)["recovered"]
    store = theirs["store"]
    assert ours.after.integrity == "ok"
    assert ours.after.entries_by_kind == store["entriesByKind"]
    assert ours.after.task_outcomes == store["taskOutcomes"]
    assert ours.after.submissions_by_status == store["submissionsByStatus"]
    assert dict(ours.effects) == theirs["effectsInRecovery"]


def test_v1_transcripts_have_the_same_kinds_in_the_same_order(
    foreign: Foreign, code: ModuleType, tmp_path: Path
) -> None:
    ours = recover(foreign, code, tmp_path).after
    assert ours.conversations == Shown.of(STORES / f"{foreign.name}.recovered.sqlite").conversations


def test_v2_every_call_is_followed_by_its_result(foreign: Foreign, code: ModuleType, tmp_path: Path) -> None:
    for context in recover(foreign, code, tmp_path).contexts:
        awaited: list[str] = []
        for message in context.messages:
            if role_of(message) == "toolResult":
                assert awaited
                assert message["toolCallId"] == awaited.pop(0)
                continue
            assert awaited == []
            assert stop_reason(message) not in {"aborted", "error", "deferred"}
            awaited = [call.id for call in calls_of(message)] if role_of(message) == "assistant" else []
        assert awaited == []


def test_t7_a_second_opening_of_a_recovered_store_changes_nothing(
    foreign: Foreign, code: ModuleType, tmp_path: Path
) -> None:
    once = recover(foreign, code, tmp_path)

    async def again() -> None:
        async with Harness.open(
            tmp_path / f"{foreign.name}.sqlite", tools=tools_of(foreign, code), models=[code.model]
        ) as harness:
            await harness.wait_idle()

    code.effects.clear()
    asyncio.run(again())
    assert code.effects == []
    assert Shown.of(tmp_path / f"{foreign.name}.sqlite") == once.after


def test_o1_the_subagent_of_a_foreign_store_is_found_not_made_again(code: ModuleType, tmp_path: Path) -> None:
    ours = recover(next(each for each in FOREIGN if each.name == "subagent"), code, tmp_path).after
    assert len(ours.conversations) == 2


def test_t6_the_outcome_of_a_foreign_run_is_asked_for_by_id(code: ModuleType, tmp_path: Path) -> None:
    foreign = FOREIGN[0]
    recover(foreign, code, tmp_path)

    async def main() -> Json:
        async with Harness.open(tmp_path / f"{foreign.name}.sqlite", models=[code.model]) as harness:
            return await harness.wait(TaskRef[Json](TaskId(9)))

    assert asyncio.run(main()) == {"entryId": 11}
