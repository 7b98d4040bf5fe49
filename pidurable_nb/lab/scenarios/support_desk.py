"""Three people at one desk at once: one asks, one adds to what is being done, one would rather not wait.

Whatever is asked while the desk is busy has its place: a follow-up is answered next, a steer joins after the current
tools, a rejection stores nothing (S3). When Ada has her answer, she goes on in a thread of her own, forked off it.
Every question carries a request id: whoever asks again after a crash, because no answer came, asks nothing new (S1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import field

from pidurable_nb import Answered, Conversation, Document, Harness, tool
from pidurable_nb.errors import ConversationBusy
from pidurable_nb.ids import ROOT, EntryId
from pidurable_nb.lab.scenario import Facts, Roots, Scenario
from pidurable_nb.models import Answer, CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.records.message import role_of, text_of
from pidurable_nb.records.transcript import Answered as Done

ADA, BOB, CLEO, THREAD = "ada-1", "bob-1", "cleo-1", "ada-thread"
"""The request ids: who asks, and which of her questions it is."""


@tool(replay="safe")
async def look_up(order: str) -> str:
    """Find out where an order is."""
    await asyncio.sleep(0.5)
    return f"{order} is on its way"


def answer(request: ModelRequest) -> Answer:
    """Look the first order up; everything else is answered at once, by what was asked last."""
    last = request.messages[-1]
    said = [text_of(message) for message in request.messages if role_of(message) == "user"]
    if role_of(last) == "user" and said == ["Where is A-17?"]:
        return CallTools(call("look_up", order="A-17"))
    return Say(f"To '{said[-1]}': on its way.")


class Threads(Document, kind="desk.threads", scope="session"):
    """The conversation that was forked off each reply. Forking has no request id: the fork is written down with it."""

    off: dict[str, int] = field(default_factory=dict)


async def begin(harness: Harness) -> None:
    """All three at once; Bob and Cleo come while Ada's order is being looked up, or after a crash."""
    desk = await harness.root()
    await desk.submit("Where is A-17?", request_id=ADA)
    await desk.submit("and B-4 as well?", request_id=BOB, when_busy="steer")
    try:
        await desk.submit("Just a quick one?", request_id=CLEO, when_busy="reject")
    except ConversationBusy:
        await desk.submit("Just a quick one, when you are done?", request_id=CLEO)


async def attend(harness: Harness, roots: Roots) -> None:
    """Ada reads her answer and goes on in a thread; the others read theirs."""
    desk = await harness.root()
    replied = await (await desk.submit("Where is A-17?", request_id=ADA)).wait()
    if isinstance(replied, Answered):
        thread = await thread_off(harness, replied.answer)
        await (await thread.submit("Will it be here by noon?", request_id=THREAD)).wait()
    await harness.wait_idle()


async def thread_off(harness: Harness, reply: EntryId) -> Conversation:
    """The thread off this reply: made once, found afterwards."""
    async with harness.commit() as tx:
        threads = await tx.edit(Threads)
        known = threads.off.get(str(reply))
        if known is None:
            known = threads.off[str(reply)] = await tx.fork(ROOT, at=reply)
    return await harness.conversation(known)


def invariants(facts: Facts) -> Iterator[str]:
    asked = {record.request_id: record for record in facts.submissions}
    for who in (ADA, BOB, CLEO, THREAD):
        if who not in asked:
            yield f"{who} was never admitted"
        elif not isinstance(asked[who].state, Done):
            yield f"{who} is {asked[who].status}, not answered"
    if len(facts.submissions) != len(asked):
        yield "a request was admitted twice"
    if len({record.conversation for record in facts.submissions}) != 2:
        yield "the thread is not one conversation of its own"


SUPPORT_DESK = Scenario(
    name="support-desk",
    title="three people ask at once, and one goes on in a thread: each is answered once",
    module=__name__,
    tools=lambda: [look_up],
    models=lambda: [Scripted.by(answer, name="desk")],
    begin=begin,
    asks=True,
    attend=attend,
    invariants=invariants,
    kill_point="pi.tool#1/execute:effect.after",  # the order was looked up, and two people wait behind it
    policy={"look_up(*": "at_least_once"},
    virtual=True,
)
