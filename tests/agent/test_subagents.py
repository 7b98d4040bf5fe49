"""Subagents: in the foreground they end with who asked; in the background a message is asked once and answered once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from pidurable_nb import (
    AgentChange,
    Answered,
    Call,
    Done,
    Harness,
    Input,
    Json,
    Phase,
    Runtime,
    Settings,
    Sleeping,
    TaskFaulted,
    TaskRef,
    Unanswered,
    tool,
)
from pidurable_nb.agent.extending.extension import Extension
from pidurable_nb.agent.ready.subagents import ANSWER, Team, subagents
from pidurable_nb.clock import LoopClock
from pidurable_nb.ids import ROOT, ConversationId
from pidurable_nb.lab.dying import loop
from pidurable_nb.models import Answer, CallTools, ModelRequest, PlannedCall, Raise, Say, Scripted, call
from pidurable_nb.records.message import calls_of, items, role_of, text_of
from pidurable_nb.records.task import Completed, TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, Owner
from pidurable_nb.store.memory import MemoryStorage
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


def with_error(text: str) -> str:
    """A tool's error as the model reads it."""
    return f"<harness>\n[error] {text}\n</harness>"


def answered(text: str) -> Callable[[Harness], Awaitable[None]]:
    async def story(h: Harness) -> None:
        answer = await (await (await h.root()).submit("go", request_id="go")).wait()
        assert isinstance(answer, Answered), answer
        assert answer.text == text

    return story


# -- in the foreground -------------------------------------------------------------------------------------------------

AT_ONCE: Steps = {"find a coin": Say("It is at the beach.")}
"""A subagent that digs nowhere, for sweeps of many lives."""


async def found_once(h: Harness, child: ConversationId) -> None:
    """A subagent was asked once and has answered once."""
    there = await said_in(h, child)
    assert there[0] == ("user", "find a coin")
    assert there[-1] == ("assistant", "It is at the beach.")
    assert len(there) == 2 or there[1:-1] == [("assistant", ""), ("toolResult", "a coin at the beach")]


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
    await found_once(h, child.id)
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
    deaths = Counter(lives_of(FOREGROUND | AT_ONCE, foreground).sweep(deaths=2))
    assert deaths[2] > 50


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
    await found_once(h, child.id)
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
    deaths = Counter(lives_of(BACKGROUND | AT_ONCE, background).sweep(deaths=2))
    assert deaths[2] > 100


def chain(*calls: PlannedCall, rest: Steps) -> Scripted:
    """A model that makes these calls one after the other when it is told to go; subagents do the rest."""

    def answer(request: ModelRequest) -> Answer:
        messages = [message for message in request.messages if role_of(message) != "system"]
        own = [message for message in messages if role_of(message) == "user"]
        if text_of(own[-1]) != "go":
            return rest[text_of(own[-1])]
        made = sum(len(calls_of(message)) for message in messages)
        return CallTools(calls[made]) if made < len(calls) else Say("Done.")

    return Scripted.by(answer)


async def results(h: Harness) -> list[str]:
    """What the tools of the root said."""
    return [text for role, text in await said_in(h, ROOT) if role == "toolResult"]


def play(model: Scripted, check: Callable[[Harness], Awaitable[None]]) -> None:
    """The root is told to go and stops; then what is to be checked."""

    async def story(h: Harness) -> None:
        await answered("Done.")(h)
        await check(h)

    lives = Lives(story)
    lives.extensions, lives.models = [TOOLS, subagents()], [model]
    lives.live()
    assert lives.reports == []


def test_o2_a_subagent_that_is_stopped_ends_its_work_without_a_word_and_frees_its_name() -> None:
    stop, listed = call("stop_subagent", name="scout"), call("list_subagents")
    model = chain(
        listed, SPAWN, listed, MESSAGE, call("dig", place="here"), listed, stop, listed, MESSAGE, stop, SPAWN, listed,
        rest={"find a coin": Say("…", delay=timedelta(hours=1))},
    )  # fmt: skip

    async def check(h: Harness) -> None:
        assert await results(h) == [
            "There are no subagents.",
            "Subagent scout is ready.",
            "scout: idle",
            "Subagent scout was asked. Its answer will come as a message.",
            "a coin at here",
            "scout: working",
            "Subagent scout was stopped.",
            "scout: stopped",
            with_error("Subagent scout was stopped. Start it again first."),
            "Subagent scout was stopped.",
            "Subagent scout is ready.",
            "scout: idle",
        ]
        await asyncio.sleep(7200)
        assert await h.tasks(live=True) == ()
        assert [text for role, text in await said_in(h, ROOT) if role == "user"] == ["go"]
        first, second = await children(h)
        assert (await h.read(Team)).members["scout"].conversation == second.id
        assert await said_in(h, first.id) == [("user", "find a coin")]

    play(model, check)


def test_a_name_is_given_once_and_names_that_nobody_has_are_said() -> None:
    empty = call("spawn_subagent", name=" ", instructions="You find things.")
    other = call("message_subagent", name="cook", text="eat")
    model = chain(other, SPAWN, SPAWN, other, call("stop_subagent", name="cook"), empty, rest={})

    async def check(h: Harness) -> None:
        assert await results(h) == [
            with_error("There is no subagent cook. There are: none."),
            "Subagent scout is ready.",
            with_error("There is a subagent scout already. Take another name, or stop it first."),
            with_error("There is no subagent cook. There are: scout."),
            with_error("There is no subagent cook. There are: scout."),
            with_error("A subagent needs a name."),
        ]
        assert len(await children(h)) == 1

    play(model, check)


def test_s3_several_messages_are_answered_in_order_by_one_subagent_that_remembers() -> None:
    second = call("message_subagent", name="scout", text="and another")
    steps = BACKGROUND | {
        "go": CallTools(SPAWN, MESSAGE, second),  # one round: it starts before it is asked
        "message_subagent: Subagent scout was asked. Its answer will come as a message.": Say("Asked."),
        "and another": Say("No."),
        "Subagent scout answers: No.": Say("Pity."),
    }

    async def story(h: Harness) -> None:
        await answered("Asked.")(h)
        await asyncio.sleep(60)
        [child] = await children(h)
        assert [text for role, text in await said_in(h, child.id) if role == "user"] == ["find a coin", "and another"]
        assert [text for _, text in await said_in(h, ROOT)][-4:] == [
            ANSWERED, "Found.", "Subagent scout answers: No.", "Pity.",
        ]  # fmt: skip

    lives_of(steps, story).live()


def test_s2_a_subagent_that_fails_says_so_once_whichever_commit_the_process_dies_behind() -> None:
    failed = "Subagent scout gave no answer: model_error."
    steps = BACKGROUND | {"find a coin": Raise(RuntimeError("broken")), failed: Say("Pity.")}

    async def story(h: Harness) -> None:
        await (await (await h.root()).submit("go", request_id="go")).wait()
        await asyncio.sleep(600)
        assert Counter(await said_in(h, ROOT))["user", failed] == 1
        assert Counter(await said_in(h, ROOT))["assistant", "Pity."] == 1

    assert len(list(lives_of(steps, story).sweep(deaths=1))) > 20


def test_o3_a_subagent_works_on_when_its_asker_is_aborted_and_ends_with_the_background() -> None:
    model = chain(SPAWN, MESSAGE, rest={"find a coin": Say("…", delay=timedelta(hours=1))})

    async def check(h: Harness) -> None:
        root = await h.root()
        [child] = await children(h)
        there = await h.conversation(child.id)
        await asyncio.sleep(1)
        await root.abort()
        assert await there.busy()
        await h.wait_idle()  # nobody waits for what runs in the background
        assert await there.busy()
        await root.abort(background=True)
        assert not await there.busy()
        assert await h.tasks(live=True) == ()

    play(model, check)


def test_o5_a_subagent_can_be_asked_long_after_its_anchor_has_ended() -> None:
    model = chain(SPAWN, rest={"hello": Say("hi"), "again": Say("hi again")})

    async def check(h: Harness) -> None:
        [child] = await children(h)
        [anchor] = await h.tasks(kind="subagents.anchor")
        assert anchor.outcome == Completed(result=None)
        there = await h.conversation(child.id)
        for text in ("hello", "again"):
            answer = await (await there.submit(text)).wait()
            assert isinstance(answer, Answered)

    play(model, check)


def test_v3_a_fork_has_no_subagents_of_its_parent() -> None:
    async def check(h: Harness) -> None:
        root = await h.root()
        last = (await root.entries(limit=1)).items[0]
        fork = await root.fork(at=last.id)
        assert (await h.read(Team, of=root)).members.keys() == {"scout"}
        assert (await h.read(Team, of=fork)).members == {}

    play(chain(SPAWN, rest={}), check)


def test_t8_an_answer_comes_when_the_extension_is_installed_again() -> None:
    steps = BACKGROUND | {"dig: a coin at the beach": Say("It is at the beach.", delay=timedelta(hours=1))}
    lives = lives_of(steps, answered("Asked."))
    *_, last = lives.live()

    async def story(h: Harness) -> None:
        await asyncio.sleep(7200)
        [report] = await h.tasks(live=True)
        assert report.kind == "subagents.report"
        h.install(subagents())
        await background(h)

    lives.story, lives.extensions = story, [TOOLS]
    lives.live(last)


# -- what they are made with -------------------------------------------------------------------------------------------


class Sit(Phase[str], task="sit"):
    name: Input[str]

    async def run(self, rt: Runtime) -> Sleeping[Rise]:
        return Sleeping(until=rt.now() + timedelta(hours=1), then=Rise(self.name))


class Rise(Phase[str]):
    name: Input[str]

    async def run(self, rt: Runtime) -> Done[str]:
        return Done(self.name)


@tool(replay="safe")
async def seat(call: Call) -> str:
    """Start three tasks."""
    refs = [
        await call.spawn(Sit(call.key("never used twice")), background=True),
        await call.spawn(Sit("named"), name="named", background=True),
        await call.spawn(Sit("again"), name="named", background=True),
        await call.spawn(Sit("owned"), name="owned"),
    ]
    return " ".join(str(ref.id) for ref in refs)


def test_o1_a_call_starts_a_task_of_one_name_once_whichever_commit_the_process_dies_behind() -> None:
    async def story(h: Harness) -> None:
        answer = await (await (await h.root()).submit("go", request_id="go")).wait()
        assert isinstance(answer, Answered)
        sits = await h.tasks(kind="sit")
        assert answer.text == " ".join(str(sits[n].id) for n in (0, 1, 1, 2))
        assert [(record.background, record.owner is None) for record in sits] == [
            (True, True), (True, True), (False, False),
        ]  # fmt: skip
        await asyncio.sleep(7200)
        assert await h.wait(TaskRef[str](sits[1].id)) == "named"
        assert await h.tasks(live=True) == ()

    lives = Lives(story)
    lives.extensions = [Extension("sitting", tools=[seat], tasks=[Sit])]
    lives.models = [Scripted.by(lambda request: told(request) or CallTools(call("seat")))]
    assert len(list(lives.sweep(deaths=1))) > 10


def told(request: ModelRequest) -> str:
    last = request.messages[-1]
    return text_of(last) if role_of(last) == "toolResult" else ""


class Parent(Phase[int], task="parent"):
    of: Input[TaskRef[str]]

    async def run(self, rt: Runtime) -> Done[int]:
        async with rt.commit() as tx:
            return tx.become(Done(await tx.create_conversation(owner=self.of)))


def test_o1_o2_a_task_gives_a_conversation_to_another_one_while_that_lives() -> None:
    async def story(h: Harness) -> None:
        root = await h.root()
        sits = await root.start(Sit("down"))
        made = ConversationId(await h.wait(await root.start(Parent(sits))))
        assert (await (await h.conversation(made)).record()).owner == Owner(conversation=ROOT, task=sits.id)
        await h.wait(sits)
        with pytest.raises(TaskFaulted, match="has ended or never was"):
            await h.wait(await root.start(Parent(sits)))

    async def main() -> None:
        async with Harness.open(MemoryStorage(), tasks=[Sit, Parent], settings=Settings(clock=LoopClock())) as h:
            await story(h)

    loop.run(main())
