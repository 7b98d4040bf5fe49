"""The full sweep, as `make sweeps` runs it: every claim of the README about crashes, counted anew, as a table.

Takes minutes. Exit status 1 when anything happened that is not allowed. It is no test: the tests sweep a part of this.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from typing import Final

from pidurable_nb.agent.opening import Durability
from pidurable_nb.lab.scenario import builtin
from pidurable_nb.lab.sweeping.points import SweepKind
from pidurable_nb.lab.sweeping.result import SweepResult
from pidurable_nb.lab.sweeping.sweep import sweep

SCENARIOS: Final = ("refund", "checkout", "ticker", "support-desk")
PROCESSES: Final = min(os.cpu_count() or 1, 8)


def rows() -> Iterator[SweepResult]:
    """Every sweep of the table, one after the other."""
    dying: tuple[SweepKind, ...] = ("freeze", "kill")
    durabilities: tuple[Durability, ...] = ("power", "barrier", "kill")
    for name in SCENARIOS:
        yield told(name, dying, second=True)
    for durability in durabilities:
        for name in SCENARIOS:
            yield told(name, ("power",), durability=durability, second=durability == "barrier")
    for name in SCENARIOS:
        yield told(name, ("fault",))


def told(
    name: str, kinds: tuple[SweepKind, ...], *, durability: Durability = "barrier", second: bool = False
) -> SweepResult:
    """One sweep; how far it has come goes to standard error."""
    return sweep(
        builtin(name), kinds=kinds, durability=durability, second=second, processes=PROCESSES,
        on_progress=lambda progress: print(f"\r{progress}\x1b[K", end="", file=sys.stderr, flush=True),
    )  # fmt: skip


def line(found: SweepResult) -> str:
    """A row of the table."""
    kinds = "+".join(found.kinds) + (", twice" if found.second else "")
    counts = ", ".join(f"{count:,} {kind}" for kind, count in found.counts.items() if count)
    rates = ", ".join(f"{took.rate:.0f} {what}/s" for what, took in found.rates.items())
    same = found.byte_identical or ""
    return (
        f"| {found.scenario} | {kinds} | {found.durability} | {found.images:,} | {counts} | {len(found.violations)} "
        f"| {same} | {rates} | {found.seconds:.0f} |"
    )


def main() -> int:
    """Print the table."""
    print(f"SQLite {sqlite3.sqlite_version}, seed 1, {PROCESSES} processes")
    print("| scenario | crashes | durability | images | what became of them | violations | same bytes | rates | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    images, bad = 0, 0
    for found in rows():
        print("\r\x1b[K", end="", file=sys.stderr)
        print(line(found), flush=True)
        images, bad = images + found.images, bad + (not found.ok)
    print(f"\n{images:,} images; {'nothing happened that is not allowed' if not bad else f'{bad} sweeps are not ok'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
