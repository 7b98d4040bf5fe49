"""Two tasks with the same two lines in two orders: which one may send its mail twice?

Whoever acts first and remembers afterwards can die in between, and then nobody knows. The rerun acts again: at least
once. Whoever remembers first dies in between too, and the rerun does not act: at most once. No order gives exactly
once; choose the mistake that you can live with, or use a key (see `checkout`).
"""

from collections.abc import Iterator

from pidurable_nb import Done, Harness, Input, Phase, Runtime
from pidurable_nb.lab.scenario import Facts, Scenario, outcomes_are


class ActFirst(Phase[str], task="act-first"):
    to: Input[str]

    async def run(self, rt: Runtime) -> Done[str]:
        if await rt.recall("sent", bool) is None:
            await rt.effect(f"mail {self.to}", lambda: print("mail to", self.to))
            # Here the mail is out and no row says so.
            await rt.memo("sent", True)
        return Done(f"{self.to} has it, perhaps twice")


class RememberFirst(Phase[str], task="remember-first"):
    to: Input[str]

    async def run(self, rt: Runtime) -> Done[str]:
        if await rt.recall("sent", bool) is None:
            await rt.memo("sent", True, barrier=True)
            # Here the row says that the mail is out, and it is not.
            await rt.effect(f"mail {self.to}", lambda: print("mail to", self.to))
        return Done(f"{self.to} has it, or not")


async def begin(harness: Harness) -> None:
    root = await harness.root()
    async with root.commit() as tx:
        tx.spawn(ActFirst("Ada"))
        tx.spawn(RememberFirst("Grace"))


def invariants(facts: Facts) -> Iterator[str]:
    yield from outcomes_are(facts, **{"act-first": "completed", "remember-first": "completed"})
    if facts.asked.get("mail Ada", 0) < 1:
        yield "Ada got no mail, though acting first means at least once (M3)"


TWO_ORDERS = Scenario(
    name="two-orders",
    title="effect before memo: the mail goes out twice",
    module=__name__,
    tasks=lambda: [ActFirst, RememberFirst],
    begin=begin,
    invariants=invariants,
    kill_point="act-first#1/actFirst:effect.after",  # Ada's mail is out, and no row says so
    policy={"mail Ada": "at_least_once", "mail Grace": "at_most_once"},
)
