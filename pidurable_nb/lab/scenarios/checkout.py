"""Four payments of one order, one of them declined: the others are given back, each exactly as often as it was taken.

The checkout owns its payments and waits for all of them, failing fast. When the bank declines one, those still alive
are aborted: each refunds in its abort handler what it may have captured. Those that had completed are past aborting;
the checkout refunds them itself. Nobody can know after a crash whether the bank had heard the last request, so every
request carries a key, the same in every rerun, and the bank does once what it is asked twice (E6).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from pidurable_nb import Aborted, Done, Failed, Harness, Input, Phase, Runtime, Sleeping, TaskRef, Waiting
from pidurable_nb.lab.outside.bank import bank
from pidurable_nb.lab.scenario import Facts, Scenario, outcomes_are

ITEMS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Receipt:
    item: int
    charge: str
    key: str  # of the capture: a refund names what it undoes


class Authorize(Phase[Receipt], task="payment"):
    item: Input[int]

    async def run(self, rt: Runtime) -> "Capture":
        # It moves no money: asking again does no harm, and needs no key.
        auth = await rt.effect(f"authorize {self.item}", lambda: bank.authorize(self.item))
        return Capture(self.item, auth)

    # Aborted in this phase, there is nothing to undo: no capture was ever asked for.


class Capture(Phase[Receipt]):
    item: Input[int]
    auth: str

    async def run(self, rt: Runtime) -> "Sleeping[Clear] | Done[Receipt] | Failed":
        key = rt.key("capture")
        charge = await rt.effect(f"capture {self.item}", lambda: bank.capture(self.item, self.auth, key), key=key)
        if charge is None:
            return Failed("declined", {"item": self.item})
        if self.item == 1:
            return Done(Receipt(self.item, charge, key))
        # The others take a minute to clear. That minute is when they can still be called back.
        return Sleeping(until=rt.now() + timedelta(minutes=1), then=Clear(self.item, charge))

    async def abort(self, rt: Runtime) -> Aborted:
        return await give_back(rt, self.item)


class Clear(Phase[Receipt]):
    item: Input[int]
    charge: str

    async def run(self, rt: Runtime) -> Done[Receipt]:
        return Done(Receipt(self.item, self.charge, rt.key("capture")))

    async def abort(self, rt: Runtime) -> Aborted:
        return await give_back(rt, self.item)


async def give_back(rt: Runtime, item: int) -> Aborted:
    """Captured or not? This life cannot know; the bank can. It gives back what the key took, and bars it."""
    capture, key = rt.key("capture"), rt.key("refund")
    await rt.effect(f"refund {item}", lambda: bank.refund(capture, key), key=key)
    return Aborted("another payment was declined")


class Checkout(Phase[str], task="checkout"):
    async def run(self, rt: Runtime) -> "Waiting[Collect]":
        async with rt.commit() as tx:  # the payments and the wait for them are one fact
            payments = tuple(tx.spawn(Authorize(item)) for item in ITEMS)
            return tx.become(Waiting(on=payments, then=Collect(payments), fail_fast=True))


class Collect(Phase[str]):
    payments: tuple[TaskRef[Receipt], ...]

    async def run(self, rt: Runtime) -> Done[str] | Failed:
        outcomes = await rt.outcomes(self.payments)
        receipts = [outcome.result for outcome in outcomes if isinstance(outcome, Done)]
        if len(receipts) == len(self.payments):
            return Done("paid")
        for receipt in receipts:
            key = rt.key(f"refund {receipt.item}")  # one purpose, one key
            give = partial(bank.refund, receipt.key, key)
            await rt.effect(f"refund {receipt.item}", give, key=key)
        return Failed("a payment was declined; what was taken has been given back")


async def begin(harness: Harness) -> None:
    root = await harness.root()
    # A barrier: keys are made from the task's id, and a power cut must not give that id to another task.
    await root.start(Checkout(), barrier=True)


def invariants(facts: Facts) -> Iterator[str]:
    yield from outcomes_are(facts, checkout="failed")
    for record in facts.of_kind("payment"):
        if record.live:
            yield f"payment {record.id} is still {record.status}"
    books = facts.books
    if books.captured != books.refunded:
        yield f"the bank took {books.captured} cents and gave back {books.refunded}"
    for key, times in (books.captures | books.refunds).items():
        if times != 1:
            yield f"key {key[:8]} was applied {times} times"


CHECKOUT = Scenario(
    name="checkout",
    title="four payments, one declined: what was taken is given back once",
    module=__name__,
    tasks=lambda: [Checkout, Authorize],
    begin=begin,
    invariants=invariants,
    kill_point="payment#2/capture:effect.after",  # the bank has the money of item 2, and no row says so
    policy={"authorize *": "at_least_once", "capture *": "keyed", "refund *": "keyed"},
    needs_bank=True,
    virtual=True,
)
