"""Tasks as their authors write them. Both type checkers have to accept every line; nothing here is run."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Generic, Literal, TypeVar, assert_never, assert_type

from pidurable_nb.engine.phase import (
    Aborted,
    Done,
    Failed,
    Faulted,
    Input,
    Orphaned,
    Outcome,
    Phase,
    Sleeping,
    TaskRef,
    Waiting,
    stored,
)
from pidurable_nb.engine.runtime import Runtime
from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records.shapes import shape_of

T = TypeVar("T")


@dataclass(frozen=True)
class Receipt:
    payment: int
    charge: str


class Kind(Enum):
    CARD = "card"


class Tick(Phase[str], task="ticker", version=1):
    n: int
    to: Input[int]

    async def run(self, rt: Runtime) -> "Tick | Done[str]":
        if await rt.recall(f"printed-{self.n}", bool) is None:
            await rt.memo(f"printed-{self.n}", True, barrier=True)
            await rt.effect(f"print tick {self.n}", lambda: print("tick", self.n))
        async with rt.commit() as tx:
            if self.n == self.to:
                return tx.become(Done(f"counted to {self.to}"))
            return tx.become(Tick(self.n + 1, self.to))

    @classmethod
    def upgrade(cls, input: JsonObject, checkpoint: JsonObject, version: int) -> "Tick":
        return Tick(n=1, to=5)


class Authorize(Phase[Receipt], task="payment", version=2, on_fault="terminal"):
    n: Input[int]

    async def run(self, rt: Runtime) -> "Capture":
        return Capture(self.n, await rt.effect(f"authorize {self.n}", lambda: f"auth-{self.n}"))


class Capture(Phase[Receipt], phase="capture"):
    n: Input[int]
    auth: str
    kind: Kind = Kind.CARD
    mode: Literal["now", "later"] = "now"
    tags: tuple[str, ...] = field(default_factory=tuple)
    payload: Json = None
    due: datetime | None = None
    note: str | None = stored("remark", default=None)

    async def run(self, rt: Runtime) -> Done[Receipt] | Failed:
        key = rt.key("capture")
        charge = await rt.effect(f"capture {self.n}", lambda: self.auth, key=key)
        return Done(Receipt(self.n, charge)) if charge else Failed("declined", {"payment": self.n})

    async def abort(self, rt: Runtime) -> Aborted:
        await rt.effect(f"refund {self.n}", lambda: None, key=rt.key("refund"))
        return Aborted("sibling declined")


class Start(Phase[int], task="checkout"):
    order: Input[str]

    async def run(self, rt: Runtime) -> "Waiting[Collect]":
        async with rt.commit(barrier=True) as tx:
            tx.append("app.note", text=f"charging {self.order}")
            payments = tuple(tx.spawn(Authorize(n)) for n in (1, 2, 3, 4))
            return tx.become(Waiting(on=payments, then=Collect(self.order, payments), fail_fast=True))


class Collect(Phase[int]):
    order: Input[str]
    payments: tuple[TaskRef[Receipt], ...]

    async def run(self, rt: Runtime) -> Done[int] | Failed:
        kept = 0
        for outcome in await rt.outcomes(self.payments):
            assert_type(outcome, Outcome[Receipt])
            match outcome:
                case Done(result=receipt):
                    kept += receipt.payment
                case Failed(message=message) | Faulted(message=message):
                    return Failed(message)
                case Aborted(reason=reason) | Orphaned(reason=reason):
                    return Failed(reason or "aborted")
                case _:
                    assert_never(outcome)
        return Done(kept)


class Nap(Phase[str], task="sleeper"):
    async def run(self, rt: Runtime) -> "Sleeping[Wake]":
        due = rt.now() + timedelta(minutes=2)
        return Sleeping(until=due, then=Wake(due))


class Wake(Phase[str]):
    due: datetime

    async def run(self, rt: Runtime) -> Done[str]:
        return Done(f"slept until {self.due:%Y}")


class Page(Phase[tuple[T, ...]], Generic[T]):
    items: tuple[T, ...]

    async def run(self, rt: Runtime) -> Done[tuple[T, ...]]:
        return Done(self.items)


class Numbers(Page[int], task="numbers"):
    pass


async def uses(rt: Runtime, refs: tuple[TaskRef[str], ...]) -> None:
    assert_type(Tick(1, 5).n, int)
    assert_type(Tick(1, 5).to, int)
    assert_type(replace(Tick(1, 5), n=2), Tick)
    assert_type(Capture(1, "a").note, str | None)
    assert_type(await rt.results(refs), tuple[str, ...])
    assert_type(await rt.memo("n", 3), int)
    assert_type(await rt.recall("receipt", Receipt), Receipt | None)
    assert_type(shape_of(Receipt).decode({}), Receipt)
    as_base: Phase[object] = Numbers((1, 2))
    wide: TaskRef[object] = refs[0]
    first: type[Phase[object]] = Tick
    print(as_base, wide, first)
