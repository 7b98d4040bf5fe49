"""Somebody has to agree before money is paid. The decision is asked for once, and kept.

A hook stands before every call of the tool. It asks a person, which no crash can take back, and remembers the answer
with a memo before it lets the call through (M1). Killed before the memo is stored, the hook asks again, and the person
may be annoyed. Killed afterwards it finds the decision, and nobody is asked a second time.
"""

from __future__ import annotations

from collections.abc import Iterator

from pidurable_nb import Extension, Harness, tool
from pidurable_nb.extensions import Block, HookApi, Hooks
from pidurable_nb.lab.scenario import Facts, Scenario, unanswered
from pidurable_nb.models import Answer, CallTools, ModelRequest, Say, Scripted, call
from pidurable_nb.records.message import ToolCall, role_of, text_of

SMALL, LARGE = "A-1017", "B-2044"
CENTS = {SMALL: 4_200, LARGE: 980_000}


@tool()
async def refund(order: str, cents: int) -> str:
    """Give a customer money back."""
    print("pay", cents, "for", order)
    return "paid"


def manager(order: str, cents: int) -> str:
    """The person who decides."""
    print(f"May I pay {cents / 100:.2f} for {order}?")
    return "yes" if cents <= 10_000 else "not without a photograph"


async def ask_first(asked: ToolCall, api: HookApi) -> Block | None:
    """Let the call through, or not, as the manager decided."""
    order, cents = str(asked.arguments["order"]), int(str(asked.arguments["cents"]))
    decision = await api.recall("approval.decision", str)
    if decision is None:
        said = await api.effect(f"decision on {order}", lambda: manager(order, cents))
        # Here the manager has decided, and would have to be asked again.
        decision = await api.memo("approval.decision", said, barrier=True)
    return None if decision == "yes" else Block(f"The manager says: {decision}.")


def clerk(request: ModelRequest) -> Answer:
    """Ask for both refunds at once, and tell the customers what came of it."""
    if role_of(request.messages[-1]) == "user":
        return CallTools(*(call("refund", order=order, cents=cents) for order, cents in CENTS.items()))
    first, second = (text_of(message) for message in request.messages if role_of(message) == "toolResult")
    went = "has been paid" if first == "paid" else "may have been paid; we are looking into it"
    needs = "we need a photograph first" if "photograph" in second else "it was not decided"
    return Say(f"{SMALL} {went}. For {LARGE}, {needs}.")


async def begin(harness: Harness) -> None:
    await (await harness.root()).submit("Please refund A-1017 and B-2044.", request_id="tickets")


def invariants(facts: Facts) -> Iterator[str]:
    yield from unanswered(facts)
    if facts.told("refund").count("blocked") != 1:
        yield f"one refund was to be blocked; the model was told: {', '.join(facts.told('refund'))}"
    if any(effect.startswith("refund(") and LARGE in effect for effect in facts.asked):
        yield f"{LARGE} was paid, and the manager had said no"


APPROVAL = Scenario(
    name="approval",
    title="a person decides before money is paid: what was decided is never asked again",
    module=__name__,
    extensions=lambda: [Extension("approval", tools=[refund], hooks=Hooks(before_tool=ask_first))],
    models=lambda: [Scripted.by(clerk, name="clerk")],
    begin=begin,
    asks=True,
    invariants=invariants,
    kill_point="pi.tool#1/call:memo.after",  # the decision is on disk, and nothing has been paid
    policy={"decision on *": "at_least_once", "refund(*": "at_most_once"},
)
