"""A task that counts to five and prints each number once, wherever it is killed.

The memo is written before the effect. Killed between them, a number is lost; killed after the effect, the rerun finds
the memo and does not print again. So each number is printed at most once (M3).
"""

from collections.abc import Iterator

from pidurable_nb import Done, Harness, Input, Phase, Runtime
from pidurable_nb.lab.scenario import Facts, Scenario, outcomes_are


class Tick(Phase[str], task="ticker", version=1):
    n: int
    to: Input[int]  # from the task's immutable input, not in the checkpoint

    async def run(self, rt: Runtime) -> "Tick | Done[str]":
        if await rt.recall(f"printed-{self.n}", bool) is None:  # a committed fact of an earlier attempt?
            # A barrier: a power cut must not take back the memo and leave the print.
            await rt.memo(f"printed-{self.n}", True, barrier=True)
            await rt.effect(f"print tick {self.n}", lambda: print("tick", self.n))
        async with rt.commit() as tx:  # this block lands whole or not at all
            if self.n == self.to:
                return tx.become(Done(f"counted to {self.to}"))
            return tx.become(Tick(self.n + 1, self.to))


async def begin(harness: Harness) -> None:
    root = await harness.root()
    await root.start(Tick(1, 5))


def invariants(facts: Facts) -> Iterator[str]:
    yield from outcomes_are(facts, ticker="completed")


TICKER = Scenario(
    name="ticker",
    title="memo before effect: each number at most once",
    module=__name__,
    tasks=lambda: [Tick],
    begin=begin,
    invariants=invariants,
    kill_point="ticker#1/tick:effect.after@3",  # 3 is on the screen, and no checkpoint knows
    policy={"print tick *": "at_most_once"},
)
