"""No module but `decide` chooses by a status what happens to a task: swap it, and everything does what it says."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pidurable_nb import Done, Phase, Runtime, Sleeping
from pidurable_nb.engine import decide, rows
from pidurable_nb.engine.decide import Verdict

if TYPE_CHECKING:
    from tests.engine.conftest import Bench

RAN: list[str] = []


class Job(Phase[str], task="job"):
    n: int = 0

    async def run(self, rt: Runtime) -> "Sleeping[Job] | Done[str]":
        RAN.append(f"job {self.n}")
        if self.n:
            return Done("done")
        async with rt.commit() as tx:
            tx.spawn(Job(1))
            return tx.become(Sleeping(until=rt.now(), then=Job(1)))


def always(name: str) -> Callable[..., Verdict]:
    """A decision that knows one row."""
    row = next(row for row in rows.TASK_ROWS if row.name == name)
    real = decide.decide_task

    def decided(*args: object, **kwargs: object) -> Verdict:
        verdict = real(*args, **kwargs)  # type: ignore[arg-type]
        return Verdict(verdict.task, row.name, verdict.facts, row)

    return decided


@pytest.mark.parametrize("name", ["parked", "blocked", "sleep", "wait", "faulted"])
def test_a_decision_that_lets_nothing_run_lets_nothing_run(
    bench: "Bench", name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    RAN.clear()

    async def main() -> None:
        async with bench.open(Job) as h:
            root = await h.root()
            await root.start(Job())
            await asyncio.sleep(10)
            await h.wait_idle()
            assert RAN == ["job 0", "job 1", "job 1"]
            RAN.clear()
            with monkeypatch.context() as swapped:
                swapped.setattr(decide, "decide_task", always(name))
                refs = [await root.start(Job()) for _ in range(3)]
                h.install(Job)
                await h.abort(refs[0])
                await asyncio.sleep(1000)
                assert [verdict.name for verdict in await h.verdicts()] == [name] * 3
                assert RAN == []
                assert [record.status for record in await h.tasks(live=True)] == ["pending"] * 3
            await h.retry(refs[1])
            h.registry.uninstall("job")
            h.install(Job)
            await h.wait_idle()
            assert sorted(RAN) == sorted(["job 0", "job 1", "job 1"] * 2)

    bench.run(main())


def test_a_decision_of_an_opening_that_settles_nothing_settles_nothing(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    RAN.clear()

    async def first() -> None:
        async with bench.open(Job, run=False) as h:
            ref = await (await h.root()).start(Job())
            await h.abort(ref)

    async def second() -> None:
        with monkeypatch.context() as swapped:
            swapped.setattr(decide, "decide_task", always("parked"))
            async with bench.open() as h:
                await asyncio.sleep(1000)
                assert [record.status for record in await h.tasks()] == ["pending"]
        async with bench.open() as h:
            await h.wait_idle()
            assert [type(record.outcome).__name__ for record in await h.tasks()] == ["Orphaned"]

    bench.run(first())
    bench.run(second())
    assert RAN == []


def test_what_is_shown_and_what_is_done_come_from_one_row(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a row out of the table, and the scheduler acts on the next one that fits, as `verdicts` says."""
    RAN.clear()
    monkeypatch.setattr(rows, "TASK_ROWS", tuple(row for row in rows.TASK_ROWS if row.name != "parked"))

    async def main() -> None:
        async with bench.open(Job, run=False, restart_limit=1) as h:
            await (await h.root()).start(Job(1))
            record = next(iter(h.engine.table.live()))
            async with h.engine.session.block(h.engine._subject(record.id)) as tx:
                tx.put_task(replace(record, restarts=3, started_at_ms=1))
            assert [verdict.name for verdict in await h.verdicts()] == ["rerun"]
            h.resume()
            await h.wait_idle()
            assert RAN == ["job 1"]

    bench.run(main())
