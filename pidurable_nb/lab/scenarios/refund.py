"""A refund is paid, and the process dies before anybody wrote that down. What does the customer get?

A tool is unsafe unless it says otherwise: a call of it that a crash cut off is never made again (E3). So the money
moved at most once. Did it move at all? Nobody here can know; the payment server can. Therefore the model is told
neither that the refund went well nor that it failed, but that it was interrupted. It looks up what was paid with a tool
that only reads, which may run as often as it likes (E2), and then it answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from pidurable_nb import Harness, tool
from pidurable_nb.lab.outside.bank import bank
from pidurable_nb.lab.scenario import Facts, Scenario, standing, unanswered
from pidurable_nb.models import Answer, CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.records.message import role_of, text_of

ORDER, CENTS = "A-1017", 4200


@tool()  # unsafe: before it runs it is on disk that it will, and after a crash nobody runs it again
async def refund(order: str, cents: int) -> str:
    """Give a customer money back."""
    receipt = bank.pay_back(order, cents)
    # Here the customer has the money, and no row says so.
    return f"paid, receipt {receipt}"


@tool(replay="safe")  # it only reads
async def paid_back(order: str) -> int:
    """Look up how many cents were paid back for an order."""
    return bank.paid_back(order)


def clerk(request: ModelRequest) -> Answer:
    """The model. A real one decides like this by itself; this one is written down, so that a run can be repeated."""
    last = request.messages[-1]
    if role_of(last) == "user":
        return CallTools(call("refund", order=ORDER, cents=CENTS))
    match last["toolName"], text_of(last):
        case "refund", told if "cut off" in told:
            return CallTools(call("paid_back", order=ORDER), text="I cannot tell whether that went through. I look.")
        case "paid_back", "0":
            return CallTools(call("refund", order=ORDER, cents=CENTS), text="Nothing was paid. I refund it now.")
        case _:
            return Say("Your 42.00 have been paid back.")


async def begin(harness: Harness) -> None:
    support = await harness.root()
    # The request id makes it one request, however often a browser sends it after a crash (S1).
    await support.submit("My order A-1017 arrived broken. I want my money back.", request_id="ticket-77")


def invariants(facts: Facts) -> Iterator[str]:
    yield from unanswered(facts)
    paid = facts.applied.get(f"pay back {ORDER}", 0)
    if paid != 1:
        yield f"the customer was paid {paid} times"
    cut_off = [record for record in facts.of_kind("pi.tool") if standing(record) == "failed"]
    if len(cut_off) != facts.told("refund").count("interrupted"):
        yield f"{len(cut_off)} refunds were cut off, and the model was told: {', '.join(facts.told('refund'))}"


REFUND = Scenario(
    name="refund",
    title="the money is gone and no row says so: it is not paid twice, and the customer is answered",
    module=__name__,
    tools=lambda: [refund, paid_back],
    models=lambda: [Scripted.by(clerk, name="clerk")],
    begin=begin,
    asks=True,
    invariants=invariants,
    kill_point="pi.tool#1/execute:effect.after",  # the server has paid, and the result is not stored
    policy={"refund(*": "at_most_once", "paid_back(*": "at_least_once"},
    needs_bank=True,
)
