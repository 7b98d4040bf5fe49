"""A task that kills its process each time it runs is left alone with its crash, and its neighbour finishes.

A crash counts against everything that was running, so the neighbour is suspected too. Suspects run one at a time, in
an order that turns with every opening: soon the neighbour runs alone, makes progress and is cleared. The task that
never gets anywhere is parked at the limit and rests until somebody looks at it (T9).
"""

from collections.abc import Iterator

from pidurable_nb import Done, Harness, Input, Phase, Runtime, Settings
from pidurable_nb.lab.outside.world import crash_this_process
from pidurable_nb.lab.scenario import Facts, Scenario, outcomes_are

LIMIT = 5


class Poison(Phase[str], task="poison"):
    async def run(self, rt: Runtime) -> Done[str]:
        await rt.effect("crash the process", crash_this_process)  # out of memory, a bug in C, `kill -9`
        return Done("never")


class Count(Phase[str], task="neighbour"):
    n: int
    to: Input[int]

    async def run(self, rt: Runtime) -> "Count | Done[str]":
        if await rt.recall(f"counted-{self.n}", bool) is None:
            await rt.memo(f"counted-{self.n}", True, barrier=True)
            await rt.effect(f"count {self.n}", lambda: print("count", self.n))
        return Done("done") if self.n == self.to else Count(self.n + 1, self.to)


async def begin(harness: Harness) -> None:
    root = await harness.root()
    async with root.commit() as tx:
        tx.spawn(Count(1, 3))
        tx.spawn(Poison())


def invariants(facts: Facts) -> Iterator[str]:
    yield from outcomes_are(facts, poison="pending", neighbour="completed")
    for record in facts.of_kind("poison"):
        if record.restarts < LIMIT:
            yield f"poison is not parked: {record.restarts} restarts of {LIMIT}"


RESTART_STORM = Scenario(
    name="restart-storm",
    title="a task that kills its process is parked; its neighbour finishes",
    module=__name__,
    tasks=lambda: [Poison, Count],
    begin=begin,
    invariants=invariants,
    kill_point=None,  # it kills itself
    policy={"crash the process": "at_least_once", "count *": "at_most_once"},
    settings=Settings(restart_limit=LIMIT),
    virtual=True,
    lives=2 * LIMIT,
)
