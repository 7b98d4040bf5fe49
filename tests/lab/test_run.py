"""Lives: a frozen one leaves what a killed one leaves, and a killed one has told where it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pidurable_nb.ids import JsonObject
from pidurable_nb.lab.dying.crash import read_journal
from pidurable_nb.lab.dying.forkserver import Ended, ForkServer
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import LEDGER, Plan, child, run_here
from pidurable_nb.lab.outside.bank import BankServer
from pidurable_nb.lab.outside.world import asked
from pidurable_nb.lab.scenario import builtin, facts_of, violations
from pidurable_nb.records.codec import BadRecord


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    modules = ["pidurable_nb.lab.dying.run", "pidurable_nb.store.sqlite", "pidurable_nb.lab.scenarios.checkout"]
    with BankServer(), ForkServer(modules) as running:
        yield running


def killed(server: ForkServer, name: str, folder: Path, plan: Plan) -> Ended:
    argument: JsonObject = {
        "scenario": name,
        "store": str(folder / "store.sqlite"),
        "ledger": str(folder / LEDGER),
        "plan": replace(plan, kind="kill").to_json(),
    }
    folder.mkdir()
    return server.run("pidurable_nb.lab.dying.run:child", argument, timeout_s=60)


def files(folder: Path) -> dict[str, bytes]:
    """Database and log; the `-shm` is nobody's evidence."""
    return {
        name: (folder / name).read_bytes() for name in ("store.sqlite", "store.sqlite-wal") if (folder / name).exists()
    }


@pytest.mark.parametrize(
    "at",
    [
        "session:vfs.write@3",
        "session:vfs.write@60",
        "session:vfs.sync@6",
        "payment#2/capture:effect.after",
        "payment#3/capture:commit.before",
        "checkout#1/checkout:publish.before",
        "payment#4/abort:effect.before",
    ],
)
def test_a_frozen_life_leaves_the_bytes_that_a_killed_one_leaves(server: ForkServer, tmp_path: Path, at: str) -> None:
    plan = Plan(at=Point.parse(at), same_bytes=True)
    ended = killed(server, "checkout", tmp_path / "killed", plan)
    assert (ended.signal, ended.timed_out) == (9, False)
    frozen = run_here(builtin("checkout"), tmp_path / "frozen" / "store.sqlite", tmp_path / "frozen.jsonl", plan)
    assert str(frozen.crashed) == at
    assert files(tmp_path / "frozen") == files(tmp_path / "killed")
    assert asked(tmp_path / "frozen.jsonl") == asked(tmp_path / "killed" / LEDGER)


@pytest.mark.parametrize("virtual", [True, False])
def test_a_killed_life_has_told_where_it_was(server: ForkServer, tmp_path: Path, virtual: bool) -> None:
    at = Point.parse("ticker#1/tick:effect.after@3")
    plan = Plan(at=at, virtual=virtual, journal=tmp_path / "journal.jsonl")
    assert killed(server, "ticker", tmp_path / "life", plan).signal == 9
    told = read_journal(tmp_path / "journal.jsonl")
    assert told.points[-1] == at
    assert [verdict for _, verdict in told.acts] == ["start"]
    assert asked(tmp_path / "life" / LEDGER) == {f"print tick {n}": 1 for n in (1, 2, 3)}


@pytest.mark.parametrize("virtual", [True, False])
def test_a_life_that_nobody_kills_ends_by_itself(server: ForkServer, tmp_path: Path, virtual: bool) -> None:
    ended = killed(server, "ticker", tmp_path / "life", Plan(virtual=virtual))
    assert (ended.signal, ended.exit_code, ended.error) == (None, 0, "")
    facts = facts_of(tmp_path / "life" / "store.sqlite", tmp_path / "life" / LEDGER)
    assert list(violations(builtin("ticker"), facts)) == []


def test_the_real_stack_and_the_virtual_one_pass_the_same_points(server: ForkServer, tmp_path: Path) -> None:
    told = []
    for virtual in (True, False):
        journal = tmp_path / f"{virtual}.jsonl"
        killed(server, "ticker", tmp_path / str(virtual), Plan(virtual=virtual, journal=journal))
        told.append(sorted(map(str, read_journal(journal).points)))
    assert told[0] == told[1]  # not in one order: what waits for a thread goes on later


def test_a_plan_travels_as_json() -> None:
    plan = Plan(
        number=3, start_ms=5, at=Point.parse("3!session:vfs.sync@2"), kind="kill", seed=1, durability="power",
        same_bytes=True, virtual=False, journal=Path("j"),
    )  # fmt: skip
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_json(Plan().to_json()) == Plan()
    for wrong in ({}, {**plan.to_json(), "kind": "maim"}, {**plan.to_json(), "durability": "none"}):
        with pytest.raises(ValueError, match="is no plan of a life"):
            Plan.from_json(wrong)
    with pytest.raises(ValueError, match="names no life"):
        child({"scenario": "ticker"})


def test_a_foreign_journal_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_text('{"lines": 1}\n')
    with pytest.raises(BadRecord, match=r"journal\.jsonl"):
        read_journal(journal)


def test_lives_run_beside_a_running_loop(tmp_path: Path) -> None:
    async def kernel() -> None:
        plan = Plan(at=Point.parse("ticker#1/tick:memo.after@2"))
        lived = await asyncio.to_thread(run_here, builtin("ticker"), tmp_path / "s", tmp_path / "l", plan)
        assert lived.crashed == plan.at

    asyncio.run(kernel())
