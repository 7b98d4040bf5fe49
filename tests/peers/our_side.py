"""Our half of the travelling world: a script that a test runs in a child of its own, and that often kills itself.

`our_side.py COMMAND STORE LEDGER REPORT`; `conftest.py` holds the peer's half, with the same tasks and documents. Both
append what they do outside to the ledger and put what they know into the report. Never checks anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from pidurable_nb import (
    Aborted,
    Conversation,
    Document,
    Done,
    Failed,
    Harness,
    Input,
    Phase,
    Runtime,
    Settings,
    Sleeping,
    TaskRef,
    Waiting,
)
from pidurable_nb.clock import SystemClock, as_datetime
from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import EntryId, Json
from pidurable_nb.records.transcript import Written

STORE, LEDGER, REPORT = map(Path, sys.argv[2:5])
HELD: set[str] = set()
"""Effects after which the code stays where it is: until the kill, or until it is aborted."""
arrived: set[str] = set()
SEEDED_MS, AN_HOUR_MS, YEAR_2100_MS = 1_900_000_000_000, 3_600_000, 4_102_444_800_000


class ShiftedClock(SystemClock):
    """The wall clock, somewhere else: each life of the world begins at a known time."""

    def __init__(self, start_ms: int) -> None:
        self._shift_ms = start_ms - super().now_ms()

    def now_ms(self) -> int:
        return super().now_ms() + self._shift_ms


async def outside(name: str) -> bool:
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(name + "\n")
    arrived.add(name)
    if name in HELD:
        await asyncio.Event().wait()
    return True


# -- tasks: the classes are named so that kinds, phases and fields are the peer's -------------------------------------


class Progress(Document, kind="app.progress", scope="task"):
    ticks: list[int] = field(default_factory=list)


class Tick(Phase[str], task="ticker", phase="tick"):
    n: int
    to: Input[int]
    label: Input[str]

    async def run(self, rt: Runtime) -> Tick | Done[str]:
        name = f"printed-é-{self.n}"
        if await rt.recall(name, bool) is None:
            await rt.memo(name, True, barrier=True)
            effect = f"print {self.label} {self.n}"
            await rt.effect(effect, lambda: outside(effect))
        async with rt.commit() as tx:
            (await tx.edit(Progress)).ticks.append(self.n)
            if self.n == self.to:
                return tx.become(Done(f"counted to {self.to}"))
            return tx.become(Tick(self.n + 1, self.to, self.label))


class Authorize(Phase[str], task="café.paiement"):
    n: Input[int]

    async def run(self, rt: Runtime) -> Capture:
        await rt.effect(f"authorize {self.n}", lambda: outside(f"authorize {self.n}"))
        return Capture(self.n, f"auth-{self.n}")


class Capture(Phase[str]):
    n: Input[int]
    auth: str

    async def run(self, rt: Runtime) -> Done[str] | Failed:
        if self.n == 13:
            return Failed("declined", {"auth": self.auth})
        await rt.effect(f"capture {self.n}", lambda: outside(f"capture {self.n}"))
        return Done(f"r-{self.n}")

    async def abort(self, rt: Runtime) -> Aborted:
        await rt.effect(f"refund {self.n}", lambda: outside(f"refund {self.n}"))
        return Aborted("sibling declined")


class Start(Phase[Json], task="café.checkout"):
    first: Input[int]

    async def run(self, rt: Runtime) -> Waiting[Collect]:
        async with rt.commit() as tx:
            payments = tuple(tx.spawn(Authorize(n)) for n in range(self.first, self.first + 3))
            return tx.become(Waiting(on=payments, then=Collect(self.first, payments), fail_fast=True))


class Collect(Phase[Json]):
    first: Input[int]
    payments: tuple[TaskRef[str], ...]

    async def run(self, rt: Runtime) -> Done[Json]:
        found = await rt.outcomes(self.payments)
        return Done([[type(o).__name__, o.result if isinstance(o, Done) else None] for o in found])


class Nap(Phase[str], task="nap"):
    until_ms: Input[int]

    async def run(self, rt: Runtime) -> Sleeping[Wake]:
        return Sleeping(until=as_datetime(self.until_ms), then=Wake(self.until_ms))


class Wake(Phase[str]):
    until_ms: Input[int]

    async def run(self, rt: Runtime) -> Done[str]:
        return Done("awake")


class Shaky(Phase[str], task="shaky"):
    async def run(self, rt: Runtime) -> Steady:
        await rt.effect("shake", lambda: outside("shake"))
        if sys.argv[1] == "fault":
            raise RuntimeError("the bank is closed")
        return Steady()


class Steady(Phase[str]):
    async def run(self, rt: Runtime) -> Done[str]:
        await rt.effect("steady", lambda: outside("steady"))
        return Done("stood")


TASKS: list[type[Phase[object]]] = [Tick, Start, Authorize, Nap, Shaky]


# -- documents ---------------------------------------------------------------------------------------------------------


class Todo(Document, kind="app.todo", scope="conversation", history="rewindable", fork="as_of"):
    title: str = ""
    items: list[str] = field(default_factory=list)


class Mode(Document, kind="app.mode", scope="conversation", fork="current"):
    mode: str = ""


class Page(Document, kind="app.page", scope="conversation", family=True):
    text: str = ""


class Totals(Document, kind="app.totals", scope="session"):
    commits: int = 0


# -- commands ----------------------------------------------------------------------------------------------------------


@dataclass
class World:
    harness: Harness
    root: Conversation
    report: dict[str, Json]

    async def there(self, *tasks: TaskRef[object], status: str) -> None:
        for ref in tasks:
            while (await self.harness.task(ref)).status != status:  # noqa: ASYNC110  # as the other half has to
                await asyncio.sleep(0.01)

    async def die(self, *held: str) -> None:
        while not arrived.issuperset(held):  # noqa: ASYNC110  # likewise
            await asyncio.sleep(0.01)
        REPORT.write_text(json.dumps(self.report))
        os.kill(os.getpid(), signal.SIGKILL)


NOTE = "smile 😀 and fête"
LONE: Json = {"lone": "\ud800", "reversed": "\udc00\ud83d", "whole": "😀", "ключ": ["é", None]}


async def seed(w: World) -> None:
    """Everything that can travel, and a kill while five effects are between being done and being remembered."""
    h, root = w.harness, w.root
    async with root.commit() as tx:
        (await tx.edit(Todo)).title = "un 🎉"
        entry = tx.append("app.note.é", text=NOTE, data=LONE)
    async with root.commit() as tx:
        todo = await tx.edit(Todo)
        todo.title, todo.items = "deux 🎉🎉", ["a", "\udfff"]
        (await tx.edit(Mode)).mode = "α"
        (await tx.edit(Page, key="p1")).text = "page é"
        (await tx.edit(Totals)).commits = 2
    fork = await root.fork(at=entry)
    async with h.commit() as tx:
        (await tx.edit(Mode)).mode = "β"
        (await tx.edit(Todo)).items.append("c 😀")
        (await tx.edit(Page, key="p1")).text = "page é, plus"
        tx.append("app.branch", data={"n": 1}, conversation=fork.id)
    writes = {id: (await root.write("app.asked", data=id, request_id=id)).id for id in ("req-1", "prière-🎈")}
    ticker = await root.start(Tick(1, 3, "seed"))
    good, bad = await root.start(Start(1)), await root.start(Start(11))
    nap, long = await root.start(Nap(SEEDED_MS + 60_000)), await root.start(Nap(YEAR_2100_MS))
    w.report |= {
        "fork": fork.id, "entry": entry, "writes": dict(writes),
        "tasks": {"ticker": ticker.id, "good": good.id, "bad": bad.id, "nap": nap.id, "long": long.id},
    }  # fmt: skip
    await w.there(nap, long, status="sleeping")
    await w.there(good, bad, status="waiting")
    for checkout in (good, bad):
        state = (await h.task(checkout)).state
        first: TaskRef[object] = TaskRef(state.on[0])  # type: ignore[union-attr]  # it waits: see the line above
        await w.there(first, status="terminal")
    await w.die("print seed 2", "capture 2", "authorize 3", "capture 12", "authorize 13")


async def finish(w: World) -> None:
    """Ask for the same writes again, read everything, run everything to its end, close in order."""
    h, root, was = w.harness, w.root, json.loads(os.environ["WAS"])
    h.resume()
    fork = await h.conversation(was["fork"])
    w.report["writes"] = {
        id: (await root.write("app.asked", data=id, request_id=id)).id for id in ("req-1", "prière-🎈")
    }
    w.report["docs"] = {
        "todo": vars(await h.read(Todo)), "todo-then": vars(await h.read(Todo, at=EntryId(was["entry"]))),
        "todo-fork": vars(await h.read(Todo, of=fork)), "mode": vars(await h.read(Mode)),
        "mode-fork": vars(await h.read(Mode, of=fork)), "page": vars(await h.read(Page, key="p1")),
        "page-fork": vars(await h.read(Page, key="p1", of=fork)), "totals": vars(await h.read(Totals)),
    }  # fmt: skip
    for name, talk in (("root", root), ("fork", fork)):
        page = await talk.entries(order="ascending")
        w.report[name] = [
            [e.id, e.kind, e.model[0]["content"] if e.model else None, e.data if isinstance(e.data, dict) else None]
            for e in page.items
        ]
    for name in ("ticker", "good", "bad", "nap"):
        await h.outcome(TaskRef(was["tasks"][name]))
    w.report["long"] = (await h.task(was["tasks"]["long"])).status
    async with root.commit() as tx:
        (await tx.edit(Todo)).items.append("finished")


async def more(w: World) -> None:
    """Finish what was found; then leave an entry, a document, a fork, and a ticker that is killed after its effect."""
    h, root, label = w.harness, w.root, os.environ["WAS"]
    h.resume()
    await h.wait_idle()
    async with root.commit() as tx:
        (await tx.edit(Totals)).commits += 1
        (await tx.edit(Todo)).items.append(label)
        entry = tx.append("app.visit", text=label)
    fork = await root.fork(at=entry)
    ticker = await root.start(Tick(1, 2, label))
    w.report |= {"totals": (await h.read(Totals)).commits, "fork": fork.id, "ticker": ticker.id}
    await w.die(f"print {label} 1")


async def fault(w: World) -> None:
    """A task whose code raises, kept by its fault; then the kill."""
    h = w.harness
    shaky = await w.root.start(Shaky())
    h.resume()
    outcome = await h.outcome(shaky)
    w.report |= {"shaky": shaky.id, "outcome": type(outcome).__name__}
    await w.die("shake")


async def steady(w: World) -> None:
    """Run the task that shook to its end."""
    w.harness.resume()
    await w.harness.outcome(TaskRef(json.loads(os.environ["WAS"])["shaky"]))


async def again(w: World) -> None:
    """Only what S1 promises: a request id that was admitted elsewhere."""
    asked = await w.root.write("app.asked", data="prière-🎈", request_id="prière-🎈")
    settled = await asked.wait()
    assert isinstance(settled, Written)
    w.report |= {"write": asked.id, "match": asked.match, "entry": settled.entry}
    w.report["pages"] = [vars(await w.harness.read(Page, key=key)) for key in ("window", "ключ")]


async def window(w: World) -> None:
    """A document whose text loses astral characters at its front and wins some at its end."""
    stays = "abc " * 60
    for text in (f"😀😀😀 {stays}", f"😀 {stays}, qrst", f" {stays}, qrst 🎉"):
        async with w.root.commit() as tx:
            (await tx.edit(Page, key="window")).text = text
            (await tx.edit(Page, key="ключ")).text = text
    await w.root.write("app.asked", data="prière-🎈", request_id="prière-🎈")


COMMANDS: dict[str, Callable[[World], Awaitable[None]]] = {
    command.__name__: command for command in (seed, finish, more, fault, steady, again, window)
}


async def main() -> None:
    command = sys.argv[1]
    if command == "seed":
        HELD.update(("print seed 2", "capture 2", "authorize 3", "capture 12", "authorize 13"))
    elif command == "finish":
        HELD.add("capture 12")
    elif command == "more":
        HELD.add(f"print {os.environ['WAS']} 1")
    clock = ShiftedClock(SEEDED_MS if command in ("seed", "fault") else SEEDED_MS + AN_HOUR_MS)
    async with Harness.open(STORE, tasks=TASKS, settings=Settings(clock=clock), run=command == "seed") as harness:
        report: dict[str, Json] = {"live": sorted(r.id for r in await harness.tasks(live=True))}
        await COMMANDS[command](World(harness, await harness.root(), report))
    REPORT.write_text(json.dumps(report))


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except PidurableError as error:
        sys.exit(f"{type(error).__name__}: {error}")
