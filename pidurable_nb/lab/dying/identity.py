"""Owns the comparison of the three ways to die at a file operation: frozen, killed, and cut from the log of operations.

Never recovers anything. What is compared are database, `-wal` and journal, byte by byte; `-shm` is rebuilt from them.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import LEDGER, Plan, run_here
from pidurable_nb.lab.dying.vfs import replay
from pidurable_nb.lab.scenario import Scenario

__all__ = ["FILES", "STORE", "Compared", "digest_of", "file_points", "files_in", "freeze_at"]

STORE: Final = "store.sqlite"
FILES: Final = (STORE, f"{STORE}-wal", f"{STORE}-journal")
"""What a store consists of: a journal only while it is being made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One file operation: a digest of what a life left that was frozen before it, and one of all operations before."""

    point: Point
    frozen: str
    prefix: str


def digest_of(files: Mapping[str, bytes]) -> str:
    """A digest of database, log and journal. An empty file and none are the same to SQLite, and here."""
    found = hashlib.sha256()
    for name in FILES:
        content = files.get(name, b"")
        found.update(len(content).to_bytes(8, "big") + content)
    return found.hexdigest()


def files_in(folder: Path) -> dict[str, bytes]:
    """The store's files as they lie in a folder. Nobody may have them open: closing a descriptor would drop locks."""
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def file_points(scenario: Scenario, plan: Plan, folder: Path) -> tuple[Point, ...]:
    """The points before every file operation of a first life, in order."""
    whole = run_here(scenario, folder / STORE, folder / LEDGER, replace(plan, record_files=True, same_bytes=True))
    return tuple(passed.point for passed in whole.passed if passed.mark is None)


def freeze_at(scenario: Scenario, plan: Plan, points: Sequence[Point], folder: Path) -> Iterator[Compared]:
    """Freeze a first life before each of these operations, in `folder`, and look at the files afterwards.

    Afterwards: when the abandoned code has run all its `finally` blocks, and has tried to write, to roll back, to fold
    the log and to close.
    """
    plan = replace(plan, record_files=True, same_bytes=True)
    folder.mkdir(parents=True)
    whole = run_here(scenario, folder / STORE, folder / LEDGER, plan)
    numbers = {passed.point: n for n, passed in enumerate((p for p in whole.passed if p.mark is None), start=1)}
    for point in points:
        here = folder / str(numbers[point])
        here.mkdir()
        run_here(scenario, here / STORE, here / LEDGER, replace(plan, at=point, kind="freeze"))
        before = [op for op in whole.ops if op.n < numbers[point]]
        yield Compared(point=point, frozen=digest_of(files_in(here)), prefix=digest_of(replay(before)))
        shutil.rmtree(here)
