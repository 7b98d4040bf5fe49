"""A question that needs a colleague: one call owns a conversation, asks it, waits for it, and both end together.

The call is declared safe, so a crash runs it again: it finds the conversation that it made, asks it under the same key,
and gets the answer that is there or still comes. Nothing is made or asked twice (O1, S1, E2).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pidurable_nb import Harness
from pidurable_nb.agent.ready.subagents import subagents
from pidurable_nb.lab.scenario import Facts, Scenario
from pidurable_nb.models import Answer, CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.records.message import role_of, text_of
from pidurable_nb.records.transcript import Answered

QUESTION = "How tall is the tower?"


def answer(request: ModelRequest) -> Answer:
    """Who is asked about the tower delegates; the colleague knows; and whoever has the result says it."""
    last = request.messages[-1]
    if role_of(last) == "toolResult":
        return Say(f"My colleague says: {text_of(last)}")
    if text_of(last) == QUESTION:
        return CallTools(call("delegate", task="Measure the tower."))
    return Say("It is 324 metres tall.", chunks=4, delay=timedelta(milliseconds=120))


async def begin(harness: Harness) -> None:
    await (await harness.root()).submit(QUESTION, request_id="tower")


def invariants(facts: Facts) -> Iterator[str]:
    if len(facts.submissions) != 2:
        yield f"{len(facts.submissions)} questions were admitted, not the tower's and the colleague's"
    for record in facts.submissions:
        if not isinstance(record.state, Answered):
            yield f"submission {record.id} of conversation {record.conversation} is {record.status}, not answered"
    if len({record.conversation for record in facts.submissions}) != 2:
        yield "the colleague was not asked in one conversation of its own"


SUBAGENT = Scenario(
    name="subagent",
    title="a call asks a conversation of its own: made once, asked once, and both end together",
    module=__name__,
    extensions=lambda: [subagents()],
    models=lambda: [Scripted.by(answer, name="boss")],
    begin=begin,
    asks=True,
    invariants=invariants,
    kill_point="pi.generation#2/request:chunk@3",  # the colleague is in the middle of its answer
    policy={"delegate(*": "at_least_once"},
    virtual=True,
)
