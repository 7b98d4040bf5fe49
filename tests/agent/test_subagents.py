"""Subagents: in the foreground they end with who asked; in the background a message is asked once and answered once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from pidurable_nb import AgentChange, Answered, Harness, Json, Unanswered, tool
from pidurable_nb.agent.extension import Extension
from pidurable_nb.agent.subagents import ANSWER, Team, subagents
from pidurable_nb.ids import ROOT, ConversationId
from pidurable_nb.models import Answer, CallTools, ModelRequest, PlannedCall, Raise, Say, Scripted, call
from pidurable_nb.records.message import Message, calls_of, items, role_of, text_of
from pidurable_nb.records.task import Completed, TaskRecord
from pidurable_nb.records.transcript import ConversationRecord
from pidurable_nb.store.storage import ConversationQuery
from tests.agent.conftest import Lives

Steps = dict[str, Answer]


@tool(replay="safe")
async def dig(place: str) -> str:
    """Dig."""
    return f"a coin at {place}"


TOOLS = Extension("tools", tools=[dig])


def by(steps: Steps) -> Scripted:
    """A model that answers the last text of a request; a tool's result has the tool's name in front."""

    def answer(request: ModelRequest) -> Answer:
        last = request.messages[-1]
        said = text_of(last)
        if role_of(last) == "toolResult":
            said = f"{last['toolName']}: {said}"
        return steps[said] if said in steps else Raise(AssertionError(f"nothing to say to {said!r}"))

    return Scripted.by(answer)


def lives_of(steps: Steps, story: Callable[[Harness], Awaitable[None]]) -> Lives:
    lives = Lives(story)
    lives.extensions, lives.models = [TOOLS, subagents()], [by(steps)]
    return lives


async def children(h: Harness) -> list[ConversationRecord]:
    """The conversations that tasks of the root own."""
    page = await h.engine.session.scan_conversations(ConversationQuery(owner_conversation=ROOT), limit=100)
    return list(page.items)


async def said_in(h: Harness, id: ConversationId) -> list[tuple[str, str]]:
    """Who said what in a conversation, without answers that were cut off."""
    page = await (await h.conversation(id)).entries(order="ascending", limit=1000)
    messages = [message for entry in page.items for message in entry.model or ()]
    return [(role_of(m), text_of(m)) for m in messages if role_of(m) != "system" and m.get("stopReason") != "aborted"]


def offered(request: ModelRequest) -> list[str]:
    """The tools that a request offers."""
    names: list[str] = []
    for message in request.messages:
        names += [str(each["name"]) for each in items(message.get("toolsAdded")) if isinstance(each, dict)]
    return names


# -- in the foreground -------------------------------------------------------------------------------------------------

FOREGROUND: Steps = {
    "go": CallTools(call("delegate", task="find a coin")),
    "find a coin": CallTools(call("dig", place="the beach")),
    "dig: a coin at the beach": Say("It is at the beach."),
    "delegate: It is at the beach.": Say("Found."),
}


async def foreground(h: Harness) -> None:
    root = await h.root()
    answer = await (await root.submit("go", request_id="go")).wait()
    assert isinstance(answer, Answered)
    assert answer.text == "Found."
    await h.wait_idle()
    assert await h.tasks(live=True) == ()
    [child] = await children(h)
    assert child.owner is not None
    ended: TaskRecord = await h.task(child.owner.task)
    assert isinstance(ended.outcome, Completed)
    assert await said_in(h, child.id) == [
        ("user", "find a coin"), ("assistant", ""), ("toolResult", "a coin at the beach"),
        ("assistant", "It is at the beach."),
    ]  # fmt: skip
    assert await said_in(h, ROOT) == [
        ("user", "go"), ("assistant", ""), ("toolResult", "It is at the beach."), ("assistant", "Found."),
    ]  # fmt: skip
    page = await root.entries(order="ascending")
    results = [m for entry in page.items for m in entry.model or () if role_of(m) == "toolResult"]
    assert [result.get("details") for result in results] == [{"conversationId": child.id}]


def test_o1_s1_a_delegated_task_has_one_child_whichever_commit_the_process_dies_behind() -> None:
    assert len(list(lives_of(FOREGROUND, foreground).sweep(deaths=1))) > 10


@pytest.mark.slow
def test_o1_s1_a_delegated_task_has_one_child_whichever_two_commits_the_process_dies_behind() -> None:
    deaths = Counter(lives_of(FOREGROUND, foreground).sweep(deaths=2))
    assert deaths[2] > 100


def test_a_subagent_has_what_its_asker_has_but_starts_none_of_its_own() -> None:
    async def story(h: Harness) -> None:
        await (await (await h.root()).submit("go")).wait()

    lives = lives_of(FOREGROUND, story)
    model = by(FOREGROUND)
    lives.models = [model]
    lives.live()
    asked, found, *_ = model.requests
    assert offered(asked)[:2] == ["dig", "delegate"]
    assert offered(found) == ["dig"]


@pytest.mark.parametrize(("tools", "has"), [([], []), (["dig"], ["dig"])])
def test_a_subagent_has_only_the_tools_that_it_was_given(tools: list[Json], has: list[str]) -> None:
    steps: Steps = {
        "go": CallTools(call("delegate", task="say hello", tools=tools)),
        "say hello": Say("hello"),
        "delegate: hello": Say("done"),
    }
    model = by(steps)

    async def story(h: Harness) -> None:
        root = await h.root(agent=AgentChange(model_tools=["delegate"]))
        assert isinstance(await (await root.submit("go")).wait(), Answered)

    lives = lives_of(steps, story)
    lives.models = [model]
    lives.live()
    assert offered(model.requests[1]) == has


def test_a_tool_that_nobody_has_is_said_to_the_model() -> None:
    refused = "A subagent can have these tools: dig."
    steps: Steps = {
        "go": CallTools(call("delegate", task="t", tools=["fly"])),
        f"delegate: {with_error(refused)}": Say("ok"),
    }
    lives_of(steps, answered("ok")).live()


def test_f3_a_subagent_without_an_answer_is_an_error_for_who_asked() -> None:
    steps: Steps = {
        "go": CallTools(call("delegate", task="break")),
        "break": Raise(RuntimeError("broken")),
        f"delegate: {with_error('The subagent gave no answer: model_error.')}": Say("ok"),
    }
    lives_of(steps, answered("ok")).live()


def test_o2_the_abort_of_who_asked_ends_the_subagent_first() -> None:
    steps: Steps = {"go": CallTools(call("delegate", task="think")), "think": Say("…", delay=timedelta(hours=1))}

    async def story(h: Harness) -> None:
        root = await h.root()
        asked = await root.submit("go")
        await asyncio.sleep(60)
        [child] = await children(h)
        assert await (await h.conversation(child.id)).busy()
        await root.abort()
        assert await h.tasks(live=True) == ()
        settled = await asked.wait()
        assert isinstance(settled, Unanswered)
        assert settled.reason == "aborted"

    lives_of(steps, story).live()


# -- in the background -------------------------------------------------------------------------------------------------

ANSWERED = "Subagent scout answers: It is at the beach."
SPAWN = call("spawn_subagent", name="scout", instructions="You find things.")
MESSAGE = call("message_subagent", name="scout", text="find a coin")
BACKGROUND: Steps = {
    "go": CallTools(SPAWN),
    "spawn_subagent: Subagent scout is ready.": CallTools(MESSAGE),
    "message_subagent: Subagent scout was asked. Its answer will come as a message.": Say("Asked."),
    "find a coin": CallTools(call("dig", place="the beach")),
    "dig: a coin at the beach": Say("It is at the beach."),
    ANSWERED: Say("Found."),
}


async def background(h: Harness) -> None:
    root = await h.root()
    answer = await (await root.submit("go", request_id="go")).wait()
    assert isinstance(answer, Answered)
    assert answer.text == "Asked."
    await asyncio.sleep(600)
    assert await h.tasks(live=True) == ()
    [child] = await children(h)
    team = await h.read(Team)
    assert {name: member.conversation for name, member in team.members.items()} == {"scout": child.id}
    assert await said_in(h, child.id) == [
        ("user", "find a coin"), ("assistant", ""), ("toolResult", "a coin at the beach"),
        ("assistant", "It is at the beach."),
    ]  # fmt: skip
    here = Counter(await said_in(h, ROOT))
    assert [here["user", ANSWERED], here["assistant", "Found."], here["assistant", "Asked."]] == [1, 1, 1]
    page = await root.entries()
    assert [entry.data for entry in page.items if entry.kind == ANSWER] == [
        {"name": "scout", "conversationId": child.id}
    ]
    kinds = Counter(record.kind for record in await h.tasks() if record.kind.startswith("subagents."))
    assert kinds == {"subagents.anchor": 1, "subagents.report": 1}
    agent = await (await h.conversation(child.id)).agent()
    assert agent.instructions == "You find things."
    assert [tool.name for tool in agent.tools] == ["dig"]


def test_s1_a_message_is_asked_once_and_answered_once_whichever_commit_the_process_dies_behind() -> None:
    assert len(list(lives_of(BACKGROUND, background).sweep(deaths=1))) > 20


@pytest.mark.slow
def test_s1_a_message_is_asked_once_and_answered_once_whichever_two_commits_the_process_dies_behind() -> None:
    deaths = Counter(lives_of(BACKGROUND, background).sweep(deaths=2))
    assert deaths[2] > 400


def with_error(text: str) -> str:
    """A tool's error as the model reads it."""
    return f"<harness>\n[error] {text}\n</harness>"


def answered(text: str) -> Callable[[Harness], Awaitable[None]]:
    async def story(h: Harness) -> None:
        answer = await (await (await h.root()).submit("go")).wait()
        assert isinstance(answer, Answered), answer
        assert answer.text == text

    return story
