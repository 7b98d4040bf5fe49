"""A task that sleeps for two minutes, is killed in its sleep, and wakes when it was to wake.

What is stored is the time to wake at, not how long is left: dying does not prolong the sleep, and no process has to
live meanwhile (T12). Laboratories do not wait: here the clock is virtual.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from pidurable_nb import Done, Harness, Phase, Runtime, Sleeping
from pidurable_nb.lab.scenario import Facts, Scenario, outcomes_are

NAP = timedelta(minutes=2)


class Doze(Phase[str], task="sleeper"):
    async def run(self, rt: Runtime) -> "Sleeping[Wake]":
        async with rt.commit() as tx:
            until = rt.now() + NAP
            return tx.become(Sleeping(until=until, then=Wake(until)))


class Wake(Phase[str]):
    at: datetime

    async def run(self, rt: Runtime) -> Done[str]:
        late = rt.now() - self.at
        if late < timedelta(0):
            raise ValueError(f"woken {-late} too early")
        if await rt.recall("rung", bool) is None:
            await rt.memo("rung", True, barrier=True)
            await rt.effect("ring", lambda: print("good morning"))
        return Done("slept well")


async def begin(harness: Harness) -> None:
    root = await harness.root()
    await root.start(Doze())


def invariants(facts: Facts) -> Iterator[str]:
    yield from outcomes_are(facts, sleeper="completed")


SLEEPER = Scenario(
    name="sleeper",
    title="killed asleep, it wakes at the time that it stored",
    module=__name__,
    tasks=lambda: [Doze],
    begin=begin,
    invariants=invariants,
    kill_point="sleeper#1/doze:commit.after",  # it has just gone to sleep
    policy={"ring": "at_most_once"},
    virtual=True,
)
