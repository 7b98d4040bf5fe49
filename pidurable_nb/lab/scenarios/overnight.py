"""A watch over three hosts that takes all night: many rounds of looking, and one act that must not happen twice.

Looking is declared safe, and half a night of it can be lost without harm: whatever a crash cut off is looked at again,
several hosts at once, or one log after the other (E2). Restarting a host is not declared safe. Cut off, it is not
repeated (E3): the model hears that nobody knows, looks whether the host is up, and only then decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

from pidurable_nb import Call, Harness, tool
from pidurable_nb.lab.outside.world import asked, current_ledger
from pidurable_nb.lab.scenario import Facts, Scenario, unanswered
from pidurable_nb.models import Answer, CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.records.message import role_of, text_of

HOSTS = ("web-1", "web-2", "db-1")
SICK = "db-1"
LOGS = {"web-2": "no answer from db-1", "db-1": "out of memory"}
SECOND = timedelta(seconds=1)


@tool(replay="safe")
async def status(host: str) -> str:
    """Look whether a host is up. Several can be looked at together."""
    await asyncio.sleep(20)
    well = host != SICK or f'restart(host="{SICK}")' in asked(current_ledger())  # the world is what was done to it
    return "up" if well else "down"


@tool(replay="safe", mode="sequential")
async def read_log(host: str, call: Call) -> None:
    """Read the log of a host, one after the other: they are large."""
    call.progress(f"03:12 {host} {LOGS[host]}\n")
    await asyncio.sleep(40)
    call.progress(f"03:14 {host} giving up\n")


@tool()  # unsafe: a host that is just coming up must not be restarted by a rerun
async def restart(host: str) -> str:
    """Restart a host."""
    print("restart", host)
    return "restarting"


def watch(request: ModelRequest) -> Answer:
    """Look at all hosts, read about the sick one, restart it, look again, and report."""
    last, seen = request.messages[-1], [text_of(each) for each in request.messages if role_of(each) == "toolResult"]
    if role_of(last) == "user":
        return CallTools(*(call("status", host=host) for host in HOSTS))
    match last["toolName"]:
        case "read_log":
            return CallTools(call("restart", host=SICK))
        case "restart":  # done, or cut off: both ways it is best to look
            return CallTools(call("status", host=SICK))
        case _ if seen[-1] == "up":
            return Say(f"{SICK} was out of memory; I restarted it, and it is up again.", chunks=2, delay=SECOND)
        case _ if any("out of memory" in text for text in seen):
            return CallTools(call("restart", host=SICK), text="It is still down, so it was not restarted.")
        case _:
            return CallTools(*(call("read_log", host=host) for host in LOGS))


async def begin(harness: Harness) -> None:
    await (await harness.root()).submit("Keep an eye on the hosts until the morning.", request_id="night-watch")


def invariants(facts: Facts) -> Iterator[str]:
    yield from unanswered(facts)
    restarts = facts.asked.get(f'restart(host="{SICK}")', 0)
    if restarts != 1:
        yield f"{SICK} was restarted {restarts} times"
    for host in HOSTS:
        if not facts.asked.get(f'status(host="{host}")'):
            yield f"nobody looked at {host}"


OVERNIGHT = Scenario(
    name="overnight",
    title="rounds of looking run again, a restart does not: killed anywhere, one restart",
    module=__name__,
    tools=lambda: [status, read_log, restart],
    models=lambda: [Scripted.by(watch, name="watch")],
    begin=begin,
    asks=True,
    invariants=invariants,
    kill_point="pi.tool#5/execute:effect.after",  # the second log was read, and what it said is not stored
    policy={"status(*": "at_least_once", "read_log(*": "at_least_once", "restart(*": "at_most_once"},
    virtual=True,
)
