"""A task whose code raises is kept, and goes on when its cell was mended and run again.

Nothing is lost by the error: checkpoint and memos stay, the task rests (T11). Running the cell again makes a new class
of the same name, which takes over where the old one stood (T10). Killed in between, the next opening frees the task,
meets the same bug and rests again.
"""

from collections.abc import Callable, Iterator

from pidurable_nb import Done, Harness, Phase, Runtime, TaskRef
from pidurable_nb.lab.scenario import Facts, Scenario, faulted, outcomes_are, until, until_still

LINES = ("10.00", "7.25", "12,50", "1.00")  # somebody typed a comma


def cell(cents: Callable[[str], int]) -> type[Phase[int]]:
    """The cell. Calling it again is running it again: a new class, of the same module and name."""

    class Book(Phase[int], task="invoice"):
        line: int = 0
        total: int = 0

        async def run(self, rt: Runtime) -> "Book | Done[int]":
            amount = cents(LINES[self.line])  # the third line raises here, before anything has happened outside
            await rt.effect(f"book line {self.line + 1}", lambda: print("book", amount))
            total = self.total + amount
            return Done(total) if self.line + 1 == len(LINES) else Book(self.line + 1, total)

    return Book


def typed(text: str) -> int:
    """As it was written first."""
    return round(float(text) * 100)


def mended(text: str) -> int:
    """As it is now."""
    return round(float(text.replace(",", ".")) * 100)


async def begin(harness: Harness) -> None:
    root = await harness.root()
    await root.start(cell(typed)())


async def attend(harness: Harness, roots: tuple[TaskRef[object], ...]) -> None:
    await until_still(harness, roots)
    if faulted(await harness.verdicts()):
        harness.install(cell(mended))
        await until(harness, lambda verdicts: not faulted(verdicts))  # the new code frees it
        await until_still(harness, roots)


def invariants(facts: Facts) -> Iterator[str]:
    yield from outcomes_are(facts, invoice="completed")
    for line in range(1, len(LINES) + 1):
        if facts.asked.get(f"book line {line}", 0) < 1:
            yield f"line {line} was never booked"


FIX_THE_CELL = Scenario(
    name="fix-the-cell",
    title="a bug in a phase: mend the cell, run it, and the task goes on",
    module=__name__,
    tasks=lambda: [cell(typed)],
    begin=begin,
    attend=attend,
    invariants=invariants,
    kill_point="invoice#1/book:commit.after@3",  # two lines are booked, and the fault of the third is stored
    policy={"book line *": "at_least_once"},
)
