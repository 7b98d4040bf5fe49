"""Planted mistakes. `# want: both` has to be reported by both type checkers on that line.

`# want: none` no checker can see; it is refused when the class is made, when it is installed, or at run time.
"""

from datetime import datetime, timedelta

from pidurable_nb.engine.phase import (
    Aborted,
    Done,
    Failed,
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
from pidurable_nb.records.shapes import shape_of


class Last(Phase[int], phase="last"):
    pages: tuple[TaskRef[str], ...]
    limit: Input[int]
    note: str = stored("remark", default="")

    async def run(self, rt: Runtime) -> Done[int]:
        self.pages = ()  # want: both  a checkpoint is changed
        self.limit = 3  # want: both  an input is assigned
        self.pages[0].id = 4  # want: both  a reference is changed
        return Done("text")  # want: both  another result type


class First(Phase[int], task="t"):
    topic: str
    limit: Input[int]

    async def run(self, rt: Runtime) -> Waiting[Last]:
        async with rt.commit() as tx:
            return tx.become(Done(3))  # want: both  an undeclared successor


class Text(Phase[str]):
    async def run(self, rt: Runtime) -> Done[str]:
        return Done("x")


class Other(Phase[int]):
    async def run(self, rt: Runtime) -> Done[str]:  # want: both  a result of another type than the phase's
        return Done("x")

    async def abort(self, rt: Runtime) -> Waiting[Last]:  # want: both  abort may not wait
        return Waiting(on=(), then=Last((), 1))


class Stranger(Phase[int]):
    async def run(self, rt: Runtime) -> Text:  # want: both  a phase of a task with another result
        return Text()


class Ends(Phase[int]):
    async def run(self, rt: Runtime) -> Orphaned:  # want: both  a task never says that it is orphaned
        return Orphaned("missing_task")


class Bad(Phase[int]):
    async def run(self, rt: Runtime) -> "Sleeping[Last]":
        return Sleeping(until=5.0, then=Last((), 1))  # want: both  a time that is no datetime

    async def abort(self, rt: Runtime) -> Aborted:
        async with rt.commit() as tx:
            return tx.become(Failed("no"))  # want: both  another outcome than abort declares


class Falls(Phase[int]):
    async def run(self, rt: Runtime) -> Done[int]:  # want: both  a path without a successor
        async with rt.commit() as tx:
            tx.append("app.note", text="and then?")


class Forgot(Phase[int]):
    n: int

    def run(self, rt: Runtime) -> Done[int]:  # want: both  not async
        return Done(self.n)


class Loud(Phase[int], task="loud", on_fault="always"):  # want: both  a misspelt policy
    n: int = stored("m", default="x")  # want: both  a default of another type


class Numbered(Phase[int], phase=3):  # want: both  a name that is no text
    pass


async def go(rt: Runtime) -> None:
    First(topik="x", limit=1)  # want: both  a misspelt field
    First(3, 1)  # want: both  a field of another type
    First("x")  # want: both  an input left out
    Last((), 1, remark="x")  # want: both  the name on disk used as a field
    async with rt.commit() as tx:
        ref = tx.spawn(First("a", 1))
        tx.spawn(First)  # want: both  a class instead of a phase
        tx.become(3)  # want: both  no state
    texts: tuple[str, ...] = await rt.results([ref])  # want: both  another result than the child's
    size: int = await rt.effect("size", lambda: "big")  # want: both  an effect's result misused
    await rt.effect("open", object)  # want: both  an effect's result that cannot be recorded
    await rt.memo("none", None)  # want: both  None as a memo
    kept: str = await rt.memo("n", 3)  # want: both  a memo's value misused
    seen: int = await rt.recall("n", int)  # want: both  an absent memo forgotten
    print((await rt.outcomes([ref]))[0].result)  # want: both  an outcome that was not matched on
    Waiting(on=ref, then=Last((), 1))  # want: both  one reference instead of several
    Waiting(on=(ref,))  # want: both  no phase to go on at
    shape_of(int).encode("x")  # want: both  a value of another type than the shape's
    word: str = shape_of(int).decode(1)  # want: both  likewise on the way back
    print(texts, size, kept, seen, word)


async def answer(outcome: Outcome[int]) -> str:  # want: both  a case left out
    match outcome:  # want: any  the same, where pyright places it
        case Done():
            return "done"


class Quiet(Phase[int], task="quiet"):
    n: int
    to: Input[int]
    names: list[str]  # want: none  a mutable field: refused where the class is defined

    async def run(self, rt: Runtime) -> "Quiet | Done[int]":
        async with rt.commit() as tx:
            tx.become(Done(3))  # want: none  committed, then another state returned: a fault (T3)
        tx.append("app.note", text="")  # want: none  a transaction after its block
        rt.commit()  # want: none  a block that is never entered
        await rt.effect("key", lambda: 1, key=rt.key("other"))  # want: none  the key of another purpose
        return Quiet(self.n + 1, 9, self.names)  # want: none  an input changed on the way


class Same(Phase[int], phase="quiet"):  # want: none  two phases of one stored name: refused at install
    due: datetime

    async def run(self, rt: Runtime) -> "Done[int] | Sleeping[Same]":
        return Sleeping(
            until=self.due - timedelta(days=1), then=self
        )  # want: none  perhaps a naive time: refused at run time
