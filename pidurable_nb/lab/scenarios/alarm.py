"""A reminder in two minutes: it rings once, whether the process dies before it is due, after, or while it rings.

A reminder is a task that sleeps until a time that is stored (T12). It speaks up under a key of its own, so that an
alarm that is delivered twice asks once (S1).
"""

from __future__ import annotations

from collections.abc import Iterator

from pidurable_nb import Harness
from pidurable_nb.agent.ready.reminding import REMINDER, reminding
from pidurable_nb.lab.scenario import Facts, Roots, Scenario, until
from pidurable_nb.models import Answer, CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.records.message import role_of, text_of
from pidurable_nb.records.transcript import Answered


def answer(request: ModelRequest) -> Answer:
    """Set the reminder when asked to; take the eggs out when it rings."""
    last = request.messages[-1]
    if role_of(last) == "toolResult":
        return Say("I will tell you.")
    if text_of(last).startswith("Reminder:"):
        return Say("Take the eggs out now!")
    return CallTools(call("remind", text="eggs", in_minutes=2))


async def begin(harness: Harness) -> None:
    await (await harness.root()).submit("Remind me of the eggs in two minutes.", request_id="eggs")


async def attend(harness: Harness, roots: Roots) -> None:
    """Wait for the bell, which rings in the background, and for what follows from it."""
    await until(harness, lambda verdicts: not verdicts)


def invariants(facts: Facts) -> Iterator[str]:
    rung = [entry for entry in facts.entries if entry.kind == REMINDER]
    if len(rung) != 1:
        yield f"the reminder rang {len(rung)} times, not once"
    for record in facts.submissions:
        if not isinstance(record.state, Answered):
            yield f"submission {record.id} is {record.status}, not answered"


ALARM = Scenario(
    name="alarm",
    title="a reminder in two minutes: killed before it is due or after, it rings once",
    module=__name__,
    extensions=lambda: [reminding()],
    models=lambda: [Scripted.by(answer, name="cook")],
    begin=begin,
    asks=True,
    attend=attend,
    invariants=invariants,
    kill_point="reminding.alarm#1/ring:commit.before",  # two minutes later, and nobody has been told
    policy={"remind(*": "at_least_once"},
    virtual=True,
)
