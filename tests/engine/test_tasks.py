"""What running code may do and what becomes of its task (T2 to T6, T9 to T13, M1 to M3), on virtual time."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from pidurable_nb import (
    Aborted,
    Done,
    Failed,
    Faulted,
    Harness,
    Input,
    Json,
    Phase,
    Runtime,
    Sleeping,
    TaskRef,
    Waiting,
)
from pidurable_nb.clock import LoopClock, as_datetime
from pidurable_nb.errors import (
    EffectInBlock,
    IllegalTransition,
    InvocationEnded,
    KeyShared,
    NotJson,
    OwnerGone,
    PidurableError,
    SessionClosed,
    StorageRequestError,
    TaskFailed,
    TaskFaulted,
    UnknownPhase,
)
from pidurable_nb.ids import EntryId, TaskId
from pidurable_nb.probe import Mark
from pidurable_nb.records import task as stored

if TYPE_CHECKING:
    from tests.engine.conftest import Bench

V = TypeVar("V")
Body = Callable[[Runtime], Awaitable[Any]]


class Script(Phase[Json], task="script"):
    """A task whose body the test gives, by name."""

    name: Input[str]
    at: str = ""

    async def run(
        self, rt: Runtime
    ) -> "Script | Other | Waiting[Other] | Waiting[Script] | Sleeping[Other] | Done[Json] | Failed":
        return await BODIES[self.at or self.name](rt)  # type: ignore[no-any-return]

    async def abort(self, rt: Runtime) -> "Aborted | Done[Json] | Failed":
        body = BODIES.get(f"abort {self.name}")
        return await body(rt) if body is not None else Aborted("stopped")


class Other(Phase[Json]):
    """Its second phase."""

    name: Input[str]
    more: Json = None

    async def run(self, rt: Runtime) -> "Done[Json] | Other | Script | Failed":
        body = BODIES.get(f"other {self.name}")
        return await body(rt) if body is not None else Done("other")

    async def abort(self, rt: Runtime) -> "Aborted | Done[Json] | Failed":
        body = BODIES.get(f"abort {self.name}")
        return await body(rt) if body is not None else Aborted("stopped in other")


class Stranger(Phase[Json], task="stranger"):
    """A phase of another task."""

    async def run(self, rt: Runtime) -> "Done[Json]":
        return Done("stranger")


class Strict(Phase[Json], task="strict", on_fault="terminal"):
    """A task that a fault ends."""

    async def run(self, rt: Runtime) -> "Done[Json]":
        raise ValueError("boom")


BODIES: dict[str, Body] = {}


@pytest.fixture(autouse=True)
def _no_bodies() -> None:
    BODIES.clear()


def body(name: str) -> Callable[[Body], Body]:
    def keep(given: Body) -> Body:
        BODIES[name] = given
        return given

    return keep


async def start(h: Harness, name: str) -> TaskRef[Json]:
    return await (await h.root()).start(Script(name))


async def naming(h: Harness) -> Mapping[int, str]:
    """The verdicts of live tasks by their id."""
    return {int(v.id): v.name for v in await h.verdicts()}


# --- T2: stored as running before its code runs -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_t2_code_runs_only_when_its_task_is_stored_as_running(bench: "Bench", seed: int) -> None:
    seen: list[str] = []

    async def main() -> None:
        async with bench.open(Script) as h:

            @body("a")
            async def a(rt: Runtime) -> Done[Json]:
                seen.append((await h.task(rt.id)).status)
                return Done(1)

            await asyncio.gather(*[h.wait(await start(h, "a")) for _ in range(5)])

    bench.run(main(), seed=seed)
    assert seen == ["running"] * 5


def test_t2_a_task_without_code_cannot_begin_and_nothing_is_stored(bench: "Bench") -> None:
    async def main() -> None:
        async with bench.open() as h:
            root = await h.root()
            with pytest.raises(UnknownPhase):
                await root.start(Script("a"))
            assert await h.tasks() == ()

    bench.run(main())


# --- T3: what a phase returns -----------------------------------------------------------------------------------------


def test_t3_every_phase_is_a_checkpoint_and_the_result_comes_back_typed(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Other:
        return Other("a", {"n": 1})

    @body("other a")
    async def other(rt: Runtime) -> Done[Json]:
        record = rt.engine.stored_task(rt.id)
        assert record is not None
        assert record.checkpoint == {"phase": "other", "more": {"n": 1}}
        return Done({"done": [1, None]})

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "a")) == {"done": (1, None)}

    bench.run(main())


def test_t3_a_phase_that_returns_something_else_than_it_committed_is_a_fault_that_names_both(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Other:
        async with rt.commit() as tx:
            tx.become(Other("a", 1))
        return Other("a", 2)

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "a")
            with pytest.raises(TaskFaulted, match=r"Other.*1.*Other.*2") as kept:
                await h.wait(ref)
            assert kept.value.kept
            record = await h.task(ref)
            assert record.status == "pending"
            assert record.checkpoint == {"phase": "other", "more": 1}

    bench.run(main())
    assert [type(error) for error in bench.reports] == [IllegalTransition]


def test_t3_an_equal_instance_may_be_returned(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Other:
        async with rt.commit() as tx:
            tx.become(Other("a", {"x": [1]}))
        return Other("a", {"x": [1]})

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "a")) == "other"

    bench.run(main())


def test_t6_an_outcome_that_was_committed_stands_whatever_is_returned_or_raised_then(bench: "Bench") -> None:
    @body("returns")
    async def returns(rt: Runtime) -> Done[Json]:
        async with rt.commit() as tx:
            tx.become(Done(1))
        return Done(2)

    @body("raises")
    async def raises(rt: Runtime) -> Done[Json]:
        async with rt.commit() as tx:
            tx.become(Done(3))
        raise ValueError("too late")

    @body("goes on")
    async def goes_on(rt: Runtime) -> Done[Json]:
        async with rt.commit() as tx:
            tx.become(Done(5))
        await rt.memo("late", 1)
        return Done(5)

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "returns")) == 1
            assert await h.wait(await start(h, "raises")) == 3
            assert await h.wait(await start(h, "goes on")) == 5

    bench.run(main())
    assert [type(error) for error in bench.reports] == [IllegalTransition, ValueError, InvocationEnded]


@pytest.mark.parametrize("commits", [False, True])
def test_t3_t9_a_phase_that_stands_still_is_a_fault_and_no_hot_loop(bench: "Bench", commits: bool) -> None:
    runs: list[int] = []

    @body("a")
    async def a(rt: Runtime) -> Script:
        runs.append(1)
        if commits:
            async with rt.commit() as tx:
                tx.append("app.note", text="no progress either")
                return tx.become(Script("a"))
        return Script("a")

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "a")
            with pytest.raises(TaskFaulted, match="progress"):
                await h.wait(ref)
            assert await naming(h) == {ref.id: "faulted"}

    bench.run(main(), limit=5000)
    assert len(runs) == 1


def test_t3_a_phase_that_went_away_and_came_back_has_progressed(bench: "Bench") -> None:
    turns: list[int] = []

    @body("a")
    async def a(rt: Runtime) -> Script | Done[Json]:
        turns.append(1)
        if len(turns) == 3:
            return Done("enough")
        async with rt.commit() as tx:
            tx.become(Other("a"))
        async with rt.commit() as tx:
            return tx.become(Script("a"))

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "a")) == "enough"

    bench.run(main(), limit=5000)


@pytest.mark.parametrize("case", ["undeclared", "none", "string", "not json", "input", "other task", "outcome text"])
def test_t3_c7_what_a_phase_may_not_become_is_a_fault_and_leaves_the_checkpoint(bench: "Bench", case: str) -> None:
    wrong: dict[str, object] = {
        "undeclared": Aborted("a run may not"),
        "none": None,
        "string": "done",
        "not json": Done(float("nan")),
        "input": Other("another input"),
        "other task": Stranger(),
        "outcome text": Failed(cast("str", 7)),
    }

    @body("a")
    async def a(rt: Runtime) -> object:
        return wrong[case]

    async def main() -> None:
        async with bench.open(Script, Stranger) as h:
            ref = await start(h, "a")
            assert isinstance(await h.outcome(ref), Faulted)
            assert (await h.task(ref)).checkpoint == {"phase": "script", "at": ""}

    bench.run(main(), limit=5000)
    assert len(bench.reports) == 1
    assert isinstance(bench.reports[0], IllegalTransition | NotJson)


def test_t3_a_second_become_is_refused_and_the_block_rolls_back(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        with pytest.raises(IllegalTransition, match="already becomes"):
            async with rt.commit() as tx:
                tx.append("app.note", text="rolled back")
                tx.become(Done(1))
                tx.become(Done(2))
        return Done("still here")

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "a")) == "still here"
            assert (await (await h.root()).entries()).items == ()

    bench.run(main())


def test_c4_a_become_in_a_block_that_is_left_by_an_exception_did_not_happen(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Other | Done[Json]:
        try:
            async with rt.commit() as tx:
                tx.spawn(Script("child"))
                tx.append("app.note", text="rolled back")
                tx.become(Other("a"))
                raise ValueError("no")
        except ValueError:
            pass
        return Done("as if nothing happened")

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "a")
            assert await h.wait(ref) == "as if nothing happened"
            assert len(await h.tasks()) == 1
            assert (await (await h.root()).entries()).items == ()

    bench.run(main())


# --- T4: waiting ------------------------------------------------------------------------------------------------------


async def _forever(rt: Runtime) -> Done[Json]:
    await asyncio.sleep(10_000)
    return Done("at last")


async def _one(rt: Runtime) -> Done[Json]:
    await asyncio.sleep(1)
    return Done(1)


async def _fails(rt: Runtime) -> Failed:
    await asyncio.sleep(1)
    return Failed("no")


def me(rt: Runtime) -> str:
    """The name of the body that this task runs."""
    record = rt.engine.stored_task(rt.id)
    assert record is not None
    return str(cast("Mapping[str, Json]", record.input)["name"])


def waits(*children: str, fail_fast: bool = False) -> Body:
    async def wait(rt: Runtime) -> Waiting[Other]:
        async with rt.commit() as tx:
            refs = tuple(tx.spawn(Script(child)) for child in children)
            return tx.become(Waiting(on=refs, then=Other(me(rt), [ref.id for ref in refs]), fail_fast=fail_fast))

    return wait


def collects() -> Body:
    async def collect(rt: Runtime) -> Done[Json]:
        found = await rt.outcomes(await rt.children())
        return Done([type(outcome).__name__ for outcome in found])

    return collect


def test_t4_an_empty_wait_goes_on_at_once(bench: "Bench") -> None:
    BODIES["parent"] = waits()

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "parent")) == "other"

    bench.run(main())


def test_t4_a_wait_for_itself_an_owner_or_nobody_is_refused(bench: "Bench") -> None:
    refused: list[str] = []

    async def refuse(rt: Runtime, what: str, on: TaskRef[Any], error: type[PidurableError]) -> None:
        with pytest.raises(error):
            async with rt.commit() as tx:
                tx.become(Waiting(on=(on,), then=Other("child")))
        refused.append(what)

    @body("child")
    async def child(rt: Runtime) -> Done[Json]:
        await refuse(rt, "itself", TaskRef(rt.id), IllegalTransition)
        owner = rt.engine.table.parent(rt.id)
        assert owner is not None
        await refuse(rt, "owner", TaskRef(owner), IllegalTransition)
        await refuse(rt, "nobody", TaskRef(TaskId(9999)), StorageRequestError)
        return Done(None)

    BODIES["parent"] = waits("child")

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "parent")) == "other"

    bench.run(main())
    assert refused == ["itself", "owner", "nobody"]


def test_t4_fail_fast_is_for_owned_tasks_and_an_ordinary_wait_for_any(bench: "Bench") -> None:
    async def main() -> None:
        async with bench.open(Script) as h:
            BODIES["one"] = _one
            foreign = await start(h, "one")

            @body("a")
            async def a(rt: Runtime) -> Waiting[Other]:
                with pytest.raises(IllegalTransition, match="own"):
                    async with rt.commit() as tx:
                        tx.become(Waiting(on=(foreign,), then=Other("a"), fail_fast=True))
                return Waiting(on=(foreign,), then=Other("a"))

            assert await h.wait(await start(h, "a")) == "other"

    bench.run(main())


def test_t4_a_wait_for_a_task_that_has_ended_goes_on_at_once(bench: "Bench") -> None:
    async def main() -> None:
        async with bench.open(Script) as h:
            BODIES["one"] = _one
            ended = await start(h, "one")
            await h.wait(ended)

            @body("a")
            async def a(rt: Runtime) -> Waiting[Other]:
                return Waiting(on=(ended, ended), then=Other("a"))

            assert await h.wait(await start(h, "a")) == "other"

    bench.run(main())


@pytest.mark.parametrize("seed", range(20))
def test_t4_fail_fast_sees_a_failure_that_is_not_stored_yet(memory: "Bench", seed: int) -> None:
    """The child's end and the parent's wait may stand in one group; whatever the order, the sibling is aborted."""

    @body("fails")
    async def fails(rt: Runtime) -> Failed:
        return Failed("at once")

    @body("parent")
    async def parent(rt: Runtime) -> Waiting[Other]:
        async with rt.commit() as tx:
            refs = tx.spawn(Script("fails")), tx.spawn(Script("forever"))
        for _ in range(seed):
            await asyncio.sleep(0)
        async with rt.commit() as tx:
            return tx.become(Waiting(on=refs, then=Other("parent"), fail_fast=True))

    BODIES["forever"] = _forever
    BODIES["other parent"] = collects()

    async def main() -> None:
        async with memory.open(Script) as h:
            ref = await start(h, "parent")
            assert await asyncio.wait_for(h.wait(ref), 100) == ("Failed", "Aborted")

    memory.run(main(), seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_t4_with_fail_fast_the_first_failure_aborts_the_others(memory: "Bench", seed: int) -> None:
    BODIES.update({"parent": waits("one", "fails", "forever", fail_fast=True), "other parent": collects()})
    BODIES.update({"one": _one, "fails": _fails, "forever": _forever})

    async def main() -> None:
        async with memory.open(Script) as h:
            result = cast("tuple[str, ...]", await asyncio.wait_for(h.wait(await start(h, "parent")), 100))
            assert result[1:] == ("Failed", "Aborted")
            assert result[0] in ("Done", "Aborted")

    memory.run(main(), seed=seed)


def test_t4_a_failure_that_is_held_completing_fails_fast_too(bench: "Bench") -> None:
    @body("holds")
    async def holds(rt: Runtime) -> Failed:
        async with rt.commit() as tx:
            tx.spawn(Script("slow"))
            return tx.become(Failed("decided"))

    @body("abort slow")
    async def abort_slow(rt: Runtime) -> Aborted:
        await asyncio.sleep(50)
        return Aborted("slowly")

    stopped: list[float] = []

    @body("abort forever")
    async def abort_forever(rt: Runtime) -> Aborted:
        stopped.append(asyncio.get_running_loop().time())
        return Aborted("sibling")

    BODIES.update({"parent": waits("holds", "forever", fail_fast=True), "other parent": collects()})
    BODIES.update({"slow": _forever, "forever": _forever})

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "parent")) == ("Failed", "Aborted")
            assert asyncio.get_running_loop().time() >= 50
            assert stopped[0] < 1

    bench.run(main())


def test_t4_without_fail_fast_everything_settles(bench: "Bench") -> None:
    BODIES.update({"parent": waits("one", "fails", "one"), "other parent": collects()})
    BODIES.update({"one": _one, "fails": _fails})

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "parent")) == ("Done", "Failed", "Done")

    bench.run(main())


# --- T5: completing ---------------------------------------------------------------------------------------------------


def test_t5_a_finish_is_held_while_owned_work_lives_and_the_wait_with_it(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        await rt.memo("m", 1)
        async with rt.commit() as tx:
            tx.spawn(Script("one"))
            return tx.become(Done("decided"))

    BODIES["one"] = _one

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "a")
            wait = asyncio.create_task(h.wait(ref))
            await asyncio.sleep(0.5)
            record = await h.task(ref)
            assert (record.status, record.memos, record.checkpoint) == ("completing", {}, None)
            assert not wait.done()
            assert await naming(h) == {ref.id: "finish", ref.id + 1: "rerun"}
            assert await wait == "decided"
            assert [r.status for r in await h.tasks()] == ["terminal", "terminal"]

    bench.run(main())


@pytest.mark.parametrize("through", ["owner", "conversation"])
def test_t5_a_finish_in_a_later_commit_is_held_for_work_that_was_spawned_before(bench: "Bench", through: str) -> None:
    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        async with rt.commit() as tx:
            where = await tx.create_conversation() if through == "conversation" else None
            tx.spawn(Script("one"), conversation=where)
        return Done("decided")

    BODIES["one"] = _one

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "a")
            await asyncio.sleep(0.5)
            assert [record.status for record in await h.tasks()] == ["completing", "running"]
            assert await h.wait(ref) == "decided"
            assert [record.status for record in await h.tasks()] == ["terminal", "terminal"]

    bench.run(main())


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("through", ["owner", "conversation"])
def test_t5_chains_of_completing_tasks_drain_from_below(bench: "Bench", depth: int, through: str) -> None:
    for n in range(depth):

        async def link(rt: Runtime, n: int = n) -> Done[Json]:
            async with rt.commit() as tx:
                where = await tx.create_conversation() if through == "conversation" else None
                tx.spawn(Script(f"link {n + 1}"), conversation=where)
                return tx.become(Done(n))

        BODIES[f"link {n}"] = link
    BODIES[f"link {depth}"] = _one

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "link 0")
            await asyncio.sleep(0.5)
            assert [r.status for r in await h.tasks()] == ["completing"] * depth + ["running"]
            assert await h.wait(ref) == 0
            await h.wait_idle()
            assert await h.tasks(live=True) == ()
            table = h.engine.table
            assert (len(table), table.idle) == (0, True)

    bench.run(main())


def test_t5_o3_background_work_does_not_hold_its_starter(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        async with rt.commit() as tx:
            tx.spawn(Script("forever"), background=True)
            return tx.become(Done("free"))

    BODIES["forever"] = _forever

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "a")) == "free"
            await h.wait_idle()
            assert asyncio.get_running_loop().time() < 1
            assert [r.status for r in await h.tasks()] == ["terminal", "running"]

    bench.run(main())


def test_t5_o2_work_in_the_conversation_of_an_ended_task_holds_the_owner_above(bench: "Bench") -> None:
    """The inner owner has ended, its edge was forgotten; new work in its conversation is still below the outer one."""
    conversations: list[int] = []

    @body("inner")
    async def inner(rt: Runtime) -> Done[Json]:
        async with rt.commit() as tx:
            conversations.append(await tx.create_conversation())
            return tx.become(Done("inner"))

    @body("outer")
    async def outer(rt: Runtime) -> Waiting[Other]:
        async with rt.commit() as tx:
            return tx.become(Waiting(on=(tx.spawn(Script("inner")),), then=Other("outer")))

    @body("other outer")
    async def other(rt: Runtime) -> Done[Json]:
        await asyncio.sleep(5)
        return Done("outer")

    BODIES["slow"] = _forever

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "outer")
            await asyncio.sleep(1)
            late = await (await h.conversation(conversations[0])).start(Script("slow"))
            await asyncio.sleep(10)
            assert (await h.task(ref)).status == "completing"
            assert await h.wait(late) == "at last"
            assert await h.wait(ref) == "outer"
            assert asyncio.get_running_loop().time() > 9999

    bench.run(main())


def test_t5_a_finish_that_starts_work_below_an_ended_owner_is_held_too(bench: "Bench") -> None:
    conversations: list[Any] = []

    @body("inner")
    async def inner(rt: Runtime) -> Done[Json]:
        async with rt.commit() as tx:
            conversations.append(await tx.create_conversation())
            return tx.become(Done("inner"))

    @body("outer")
    async def outer(rt: Runtime) -> Waiting[Other]:
        async with rt.commit() as tx:
            return tx.become(Waiting(on=(tx.spawn(Script("inner")),), then=Other("outer")))

    @body("other outer")
    async def other(rt: Runtime) -> Done[Json]:
        async with rt.commit() as tx:
            tx.spawn(Script("one"), conversation=conversations[0])
            return tx.become(Done("outer"))

    BODIES["one"] = _one

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "outer")
            await asyncio.sleep(0.5)
            assert (await h.task(ref)).status == "completing"
            assert await h.wait(ref) == "outer"

    bench.run(main())


def test_o2_nothing_new_is_owned_by_a_task_that_ends_or_is_to_be_aborted(bench: "Bench") -> None:
    refused: list[str] = []

    @body("ends")
    async def ends(rt: Runtime) -> Done[Json]:
        async with rt.commit() as tx:
            tx.spawn(Script("one"))
            tx.become(Done(None))
        return Done(None)

    @body("abort late")
    async def abort(rt: Runtime) -> Aborted:
        for make in ("task", "conversation"):
            with pytest.raises(OwnerGone, match="compensate inline"):
                async with rt.commit() as tx:
                    if make == "task":
                        tx.spawn(Script("one"))
                    else:
                        await tx.create_conversation()
            refused.append(make)
        async with rt.commit() as tx:
            tx.spawn(Script("one"), background=True)
            return tx.become(Aborted("inline"))

    BODIES.update({"late": _forever, "one": _one})

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "late")
            await asyncio.sleep(1)
            await h.abort(ref)
            assert await h.outcome(ref) == Aborted("inline")

    bench.run(main())
    assert refused == ["task", "conversation"]


# --- T12: sleeping ----------------------------------------------------------------------------------------------------


def naps(seconds: float) -> Body:
    async def nap(rt: Runtime) -> Sleeping[Other]:
        return Sleeping(until=rt.now() + timedelta(seconds=seconds), then=Other("nap"))

    return nap


def test_t12_a_sleep_ends_at_its_due_time_in_whatever_order_it_was_begun(bench: "Bench") -> None:
    woke: list[tuple[str, float]] = []

    @body("other nap")
    async def wake(rt: Runtime) -> Done[Json]:
        woke.append((str(rt.id), asyncio.get_running_loop().time()))
        return Done(None)

    async def main() -> None:
        async with bench.open(Script) as h:
            due = {}
            for seconds in (30.0, 10.0, 20.0, 10.0, -5.0, 0.0):
                BODIES["nap"] = naps(seconds)
                due[str((await start(h, "nap")).id)] = max(seconds, 0.0)
                await asyncio.sleep(0.001)
            await h.wait_idle()
            assert dict(woke).keys() == due.keys()
            for id, at in woke:
                assert due[id] <= at <= due[id] + 0.02
            assert [at for _, at in woke] == sorted(at for _, at in woke)
            assert not h.engine.scheduler._due

    bench.run(main())


class SetClock(LoopClock):
    """A wall clock that somebody sets."""

    def __init__(self) -> None:
        super().__init__()
        self.off_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.off_ms

    async def sleep_until(self, at_ms: float) -> None:
        await asyncio.sleep(min(max((at_ms - self.now_ms()) / 1000, 0.0), 5.0))


def test_t12_a_clock_that_is_set_back_delays_and_repeats_nothing(bench: "Bench") -> None:
    clock = SetClock()
    bench.clock = clock
    woke: list[float] = []
    BODIES["nap"] = naps(100)

    @body("other nap")
    async def wake(rt: Runtime) -> Done[Json]:
        woke.append(asyncio.get_running_loop().time())
        return Done(None)

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "nap")
            await asyncio.sleep(50)
            clock.off_ms = -60_000
            await asyncio.sleep(100)
            assert (await h.task(ref)).status == "sleeping"
            await h.wait(ref)
            clock.off_ms = -600_000
            await asyncio.sleep(50)

    bench.run(main())
    assert len(woke) == 1
    assert 160 <= woke[0] <= 166


def test_t12_a_clock_that_is_set_forward_is_noticed(bench: "Bench") -> None:
    clock = SetClock()
    bench.clock = clock
    BODIES["nap"] = naps(1000)

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "nap")
            await asyncio.sleep(10)
            clock.off_ms = 1_000_000
            await h.wait(ref)
            assert asyncio.get_running_loop().time() < 20

    bench.run(main())


def test_t12_a_sleep_is_stored_as_one_absolute_time_and_a_naive_one_is_refused(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Sleeping[Other]:
        with pytest.raises(ValueError, match="time zone"):
            Sleeping(until=rt.now().replace(tzinfo=None), then=Other("a"))
        return Sleeping(until=as_datetime(bench.clock.now_ms() + 60_000), then=Other("a"))

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "a")
            await asyncio.sleep(1)
            state = (await h.task(ref)).state
            assert isinstance(state, stored.Sleeping)
            assert state.until_ms == bench.clock.start_ms + 60_000
            assert await h.wait(ref) == "other"

    bench.run(main())


def test_t12_a_sleeping_task_that_is_aborted_does_not_sleep_on(bench: "Bench") -> None:
    BODIES["nap"] = naps(1000)

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "nap")
            await asyncio.sleep(1)
            assert await h.abort(ref)
            assert await h.outcome(ref) == Aborted("stopped in other")
            assert asyncio.get_running_loop().time() < 2

    bench.run(main())


# --- M1, M2, T13: the runtime -----------------------------------------------------------------------------------------


def test_m1_the_first_writer_wins_among_many_at_once(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        kept = await asyncio.gather(*[rt.memo("choice", n) for n in range(20)])
        return Done([*set(kept), await rt.recall("choice", int)])

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "a")) == (0, 0)

    bench.run(main())


@dataclass(frozen=True)
class Quote:
    amount: int
    currency: str = "EUR"


def test_m1_a_memo_is_never_none_never_of_another_type_and_never_the_engines(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        with pytest.raises(TypeError, match="None"):
            await rt.memo("m", cast("int", None))
        with pytest.raises(NotJson, match="memo 'm'"):
            await rt.memo("m", float("inf"))
        with pytest.raises(IllegalTransition, match="pidurable"):
            await rt.memo("pidurable.fault", 1)
        with pytest.raises(IllegalTransition, match="pidurable"):
            await rt.recall("pidurable.fault", int)
        assert await rt.recall("m", int) is None
        assert await rt.memo("m", 1) == 1
        with pytest.raises(TypeError):
            await rt.memo("m", "text")
        with pytest.raises(TypeError):
            await rt.recall("m", str)
        assert await rt.memo("q", Quote(3)) == Quote(3)
        assert await rt.recall("q", Quote) == Quote(3)
        return Done(None)

    async def main() -> None:
        async with bench.open(Script) as h:
            await h.wait(await start(h, "a"))

    bench.run(main())


def test_m2_memos_survive_checkpoints_and_are_no_progress(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Other:
        await rt.memo("m", {"kept": [1]})
        return Other("a")

    @body("other a")
    async def other(rt: Runtime) -> Done[Json]:
        kept = await rt.recall("m", dict[str, Json])
        assert kept is not None
        return Done(kept["kept"])

    @body("stands")
    async def stands(rt: Runtime) -> Script:
        await rt.memo("m", 1)
        return Script("stands")

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "a")) == (1,)
            with pytest.raises(TaskFaulted, match="progress"):
                await h.wait(await start(h, "stands"))

    bench.run(main())


@pytest.mark.parametrize("end", ["finish", "abort", "fault", "close", "wait"])
def test_t13_a_runtime_that_outlives_its_invocation_writes_nothing(bench: "Bench", end: str) -> None:
    leaked: list[Runtime] = []

    @body("a")
    async def a(rt: Runtime) -> object:
        leaked.append(rt)
        if end == "finish":
            return Done(None)
        if end == "wait":
            return Sleeping(until=rt.now() + timedelta(days=1), then=Other("a"))
        if end == "fault":
            raise ValueError("boom")
        return await _forever(rt)

    async def refused(rt: Runtime) -> None:
        operations: tuple[Awaitable[object], ...] = (
            rt.memo("late", 1),
            rt.recall("late", int),
            rt.effect("late", lambda: 1),
            rt.outcomes(()),
            rt.children(),
            rt.commit().__aenter__(),
        )
        for operation in operations:
            with pytest.raises(InvocationEnded):
                await operation

    async def main() -> None:
        h = await bench.open(Script)
        ref = await start(h, "a")
        await asyncio.sleep(1)
        if end == "abort":
            await h.abort(ref)
            await h.outcome(ref)
        if end == "close":
            await h.aclose()
        await refused(leaked[0])
        await h.aclose()

    bench.run(main())


def test_t13_code_that_hides_its_cancellation_still_writes_nothing_and_is_aborted(bench: "Bench") -> None:
    log: list[str] = []

    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            log.append("hidden")
        try:
            await rt.memo("m", 1)
        except InvocationEnded as error:
            log.append(type(error).__name__)
        return Done("as if nothing had been")

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "a")
            await asyncio.sleep(1)
            await h.abort(ref)
            assert await h.outcome(ref) == Aborted("stopped")

    bench.run(main())
    assert log == ["hidden", "InvocationEnded"]
    assert bench.reports == []


@pytest.mark.parametrize("raises", [ValueError, InvocationEnded, None])
@pytest.mark.parametrize("owned", [False, True])
def test_t11_t13_an_error_that_follows_from_an_abort_is_no_fault(
    memory: "Bench", raises: type[Exception] | None, owned: bool
) -> None:
    """A mark may land between two operations; what code makes of the refusal must not end the task faulted."""
    refused: list[int] = []

    async def main() -> None:
        async with memory.open(Script) as h:

            @body("child")
            async def child(rt: Runtime) -> Other:
                async with rt.commit() as tx:
                    tx.become(Other("child"))
                marking = asyncio.ensure_future(h.engine.abort(TaskRef(rt.id)))
                while not h.engine.table.live_task(rt.id).abort_requested:  # type: ignore[union-attr]  # noqa: ASYNC110
                    await asyncio.sleep(0)  # each turn of the loop is a place where the mark may land
                try:
                    if raises is not None:
                        await rt.memo("late", 1)
                except InvocationEnded:
                    refused.append(1)
                    assert raises is not None
                    raise raises("in consequence") from None
                finally:
                    marking.cancel()
                return Other("child", "which is not what it committed")

            BODIES["parent"] = waits("child")
            BODIES["other parent"] = collects()
            if owned:
                assert await h.wait(await start(h, "parent")) == ("Aborted",)
            else:
                assert await h.outcome(await start(h, "child")) == Aborted("stopped in other")

    for seed in range(20):
        memory.run(main(), seed=seed)
    if raises is not None:
        assert memory.reports == []
        assert refused, "in some order the code hears of it before the scheduler stops it"


@pytest.mark.parametrize("seed", range(30))
def test_t13_o2_a_mark_before_the_first_step_stops_every_phase(memory: "Bench", seed: int) -> None:
    """A mark can be staged while the reservation is on its way: none of its phases may run, and its handler must."""
    ran: list[str] = []

    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        ran.append("phase")
        return await _forever(rt)

    async def main() -> None:
        async with memory.open(Script) as h:
            root = await h.root()
            async with root.commit() as tx:
                refs = [tx.spawn(Script("a")) for _ in range(3)]
            await asyncio.gather(*[h.abort(ref) for ref in refs])
            assert (
                await asyncio.wait_for(asyncio.gather(*[h.outcome(ref) for ref in refs]), 100)
                == [Aborted("stopped")] * 3
            )
            await h.wait_idle()

    memory.run(main(), seed=seed)


def test_c3_an_effect_in_a_block_is_refused_and_beside_one_is_not(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        async def beside() -> int:
            await asyncio.sleep(0)
            return await rt.effect("beside", lambda: 1)

        async def writes() -> None:
            for _ in range(3):
                async with rt.commit() as tx:
                    await tx.task(TaskRef(rt.id))
                    tx.append("app.note", text="x")
                    with pytest.raises(EffectInBlock):
                        await rt.effect("inside", lambda: 1)

        return Done([n for n in await asyncio.gather(beside(), writes(), beside()) if n])

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "a")) == (1, 1)

    bench.run(main())


def test_c3_an_effect_beside_a_block_that_waits_for_its_storage_is_not_refused(tmp_path: Path) -> None:
    """The block of one coroutine suspends in a read; the effect of another is not inside of it."""

    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        reading = asyncio.Event()

        async def beside() -> int:
            await reading.wait()
            return await rt.effect("beside", lambda: 1)

        async def reads() -> int:
            async with rt.commit() as tx:
                asyncio.get_running_loop().call_soon(reading.set)
                for id in range(500, 600):
                    await tx.entry(EntryId(id))
                tx.append("app.note")
            return 0

        return Done(await asyncio.gather(beside(), reads()))

    async def main() -> None:
        async with Harness.open(tmp_path / "s.sqlite", tasks=[Script]) as h:
            assert await h.wait(await start(h, "a")) == (1, 0)

    asyncio.run(main())


def test_e6_keys_are_the_same_in_every_run_and_differ_by_task_and_purpose(bench: "Bench") -> None:
    keys: list[tuple[str, str, str]] = []

    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        keys.append((str(rt.id), rt.key("capture"), rt.key("refund")))
        await rt.effect("one", lambda: None, key=rt.key("capture"))
        await rt.effect("one", lambda: None, key=rt.key("capture"))
        with pytest.raises(KeyShared, match=r"two.*one"):
            await rt.effect("two", lambda: None, key=rt.key("capture"))
        raise ValueError("again, please")

    async def main() -> None:
        async with bench.open(Script) as h:
            for ref in (await start(h, "a"), await start(h, "a")):
                for _ in range(2):
                    await h.outcome(ref)
                    await h.retry(ref)
                await h.outcome(ref)

    bench.run(main())
    assert len(keys) == 6
    assert len(set(keys)) == 2
    assert len({key for _, *both in keys for key in both}) == 4


# --- T10, T11: faults and new code ------------------------------------------------------------------------------------


@pytest.mark.parametrize("raises", ["Exception", "BaseException", "CancelledError", "unprintable"])
def test_t11_f3_a_raising_phase_faults_its_task_alone(bench: "Bench", raises: str) -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    class Uncommon(BaseException):
        pass

    errors: dict[str, BaseException] = {
        "Exception": ValueError("boom"), "BaseException": Uncommon("boom"), "CancelledError": asyncio.CancelledError(),
        "unprintable": Hostile(),
    }  # fmt: skip

    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        raise errors[raises]

    BODIES["one"] = _one

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "a")
            other = await start(h, "one")
            with pytest.raises(TaskFaulted) as kept:
                await h.wait(ref)
            assert (kept.value.ref, kept.value.kept) == (ref.id, True)
            assert type(errors[raises]).__name__ in str(kept.value)
            assert await h.wait(other) == 1

    bench.run(main(), limit=5000)
    assert bench.reports == [errors[raises]]
    notes = "\n".join(errors[raises].__notes__)
    assert "script 1, phase script" in notes
    assert "kept" in notes


def test_t11_the_task_of_a_stale_cancellation_does_not_spin(bench: "Bench") -> None:
    """Code that cancels itself and returns: the cancellation arrives in the engine's own commit, which stands."""

    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        me = asyncio.current_task()
        assert me is not None
        me.cancel()
        return Done(None)

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "a")) is None

    bench.run(main(), limit=5000)
    assert [type(error) for error in bench.reports] == [asyncio.CancelledError]


def test_t11_a_state_that_cannot_be_read_back_is_a_fault_and_does_not_spin(bench: "Bench") -> None:
    allowed = [True]

    class Picky(Phase[Json], task="picky"):
        n: int = 0

        def __post_init__(self) -> None:
            if self.n and not allowed[0]:
                raise ValueError("not any more")

        async def run(self, rt: Runtime) -> "Picky | Done[Json]":
            if self.n:
                return Done(self.n)
            to = Picky(1)
            allowed[0] = False
            return to

    async def main() -> None:
        async with bench.open(Picky) as h:
            ref = await (await h.root()).start(Picky())
            assert isinstance(await h.outcome(ref), Faulted)
            assert (await h.task(ref)).checkpoint == {"phase": "picky", "n": 1}

    bench.run(main(), limit=5000)
    assert len(bench.reports) == 1


@pytest.mark.parametrize("why", ["owned", "waited for", "abort handler", "on_fault", "in an owned conversation"])
def test_t11_a_fault_that_others_depend_on_ends_the_task(bench: "Bench", why: str) -> None:
    @body("boom")
    async def boom(rt: Runtime) -> Done[Json]:
        await asyncio.sleep(1)
        raise ValueError("boom")

    @body("converses")
    async def converses(rt: Runtime) -> Waiting[Other]:
        async with rt.commit() as tx:
            where = await tx.create_conversation()
            return tx.become(Waiting(on=(tx.spawn(Script("boom"), conversation=where),), then=Other("converses")))

    @body("abort handler")
    async def handler(rt: Runtime) -> Done[Json]:
        return await _forever(rt)

    @body("abort abort handler")
    async def raising(rt: Runtime) -> Aborted:
        raise ValueError("boom")

    BODIES["parent"] = waits("boom")

    async def main() -> None:
        async with bench.open(Script, Strict) as h:
            root = await h.root()
            match why:
                case "on_fault":
                    ref: TaskRef[Json] = await root.start(Strict())
                case "owned" | "in an owned conversation":
                    parent = await start(h, "parent" if why == "owned" else "converses")
                    await asyncio.sleep(0.5)
                    ref = TaskRef(max(r.id for r in await h.tasks()))
                    assert ref != parent
                case "waited for":
                    ref = await start(h, "boom")

                    @body("waits")
                    async def waits_for(rt: Runtime) -> Waiting[Other]:
                        return Waiting(on=(ref,), then=Other("waits"))

                    await start(h, "waits")
                case _:
                    ref = await start(h, "abort handler")
                    await asyncio.sleep(1)
                    await h.abort(ref)
            with pytest.raises(TaskFaulted) as ended:
                await h.wait(ref)
            assert not ended.value.kept
            record = await h.task(ref)
            assert (record.status, record.memos) == ("terminal", {})
            await h.wait_idle()

    bench.run(main())


def test_t11_a_kept_task_is_live_refused_to_waits_and_freed_by_retry(bench: "Bench") -> None:
    tries: list[int] = []

    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        await rt.memo("before", len(tries))
        tries.append(1)
        if len(tries) < 3:
            raise ValueError(f"boom {len(tries)}")
        return Done(await rt.memo("before", 99))

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "a")
            with pytest.raises(TaskFaulted, match="boom 1"):
                await h.wait(ref)
            idle = asyncio.create_task(h.wait_idle())
            await asyncio.sleep(10)
            assert len(tries) == 1
            assert not idle.done()
            assert await naming(h) == {ref.id: "faulted"}

            @body("waits")
            async def waits_for(rt: Runtime) -> object:
                with pytest.raises(IllegalTransition, match="T11"):
                    async with rt.commit() as tx:
                        tx.become(Waiting(on=(ref,), then=Other("waits")))
                return Done("refused")

            assert await h.wait(await start(h, "waits")) == "refused"
            await h.retry(ref)
            with pytest.raises(TaskFaulted, match="boom 2"):
                await h.wait(ref)
            record = await h.task(ref)
            fault = cast("Mapping[str, Json]", record.memos["pidurable.fault"])
            assert fault["count"] == 1  # retry begins anew
            await h.retry(ref)
            assert await h.wait(ref) == 0
            await idle

    bench.run(main())


def test_t11_an_abort_of_a_kept_task_runs_its_handler(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        raise ValueError("boom")

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "a")
            await h.outcome(ref)
            assert await h.abort(ref)
            assert await h.outcome(ref) == Aborted("stopped")
            await h.wait_idle()

    bench.run(main())


def test_t11_the_next_progress_removes_the_memo(bench: "Bench") -> None:
    tries: list[int] = []

    @body("a")
    async def a(rt: Runtime) -> Other:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("boom")
        return Other("a")

    @body("other a")
    async def other(rt: Runtime) -> Done[Json]:
        record = rt.engine.stored_task(rt.id)
        assert record is not None
        return Done(list(record.memos))

    async def main() -> None:
        async with bench.open(Script) as h:
            ref = await start(h, "a")
            await h.outcome(ref)
            await h.retry(ref)
            assert await h.wait(ref) == ()

    bench.run(main())


def versions() -> tuple[Callable[[str], type[Phase[Json]]], dict[str, Any]]:
    """Makes classes of one module and qualified name, as a cell that runs twice does, and what they do."""
    control: dict[str, Any] = {"log": [], "gate": None, "old": "goes on"}

    def make(which: str) -> type[Phase[Json]]:
        class Cell(Phase[Json], task="cell"):
            n: int = 0

            async def run(self, rt: Runtime) -> "Cell | Done[Json]":
                control["log"].append(f"{which} {self.n}")
                if which == "old":
                    await control["gate"].wait()
                    if control["old"] == "raises":
                        raise ValueError("old code")
                if self.n == 2:
                    return Done(which)
                return Cell(self.n + 1)

        return Cell

    return make, control


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_t10_new_code_takes_a_running_task_at_its_next_phase_boundary(bench: "Bench", seed: int | None) -> None:
    make, control = versions()

    async def main() -> None:
        control["gate"] = asyncio.Event()
        async with bench.open(old := make("old")) as h:
            ref = await (await h.root()).start(old())
            await asyncio.sleep(1)
            h.install(make("new"))
            await asyncio.sleep(1)
            assert control["log"] == ["old 0"]
            control["gate"].set()
            assert await h.wait(ref) == "new"
            assert (await h.task(ref)).restarts == 0

    bench.run(main(), seed=seed)
    assert control["log"] == ["old 0", "new 1", "new 2"]


def test_t10_t11_a_fault_of_code_that_was_replaced_meanwhile_goes_on_with_the_new_one(bench: "Bench") -> None:
    make, control = versions()
    control["old"] = "raises"

    async def main() -> None:
        control["gate"] = asyncio.Event()
        async with bench.open(old := make("old")) as h:
            ref = await (await h.root()).start(old())
            await asyncio.sleep(1)
            h.install(make("new"))
            control["gate"].set()
            assert await h.wait(ref) == "new"

    bench.run(main())
    assert control["log"] == ["old 0", "new 0", "new 1", "new 2"]
    assert [type(error) for error in bench.reports] == [ValueError]


def test_t11_a_reinstall_frees_a_kept_task_and_only_of_that_code(bench: "Bench") -> None:
    make, control = versions()
    control["old"] = "raises"

    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        control["log"].append("a")
        raise ValueError("stays")

    async def main() -> None:
        control["gate"] = asyncio.Event()
        control["gate"].set()
        async with bench.open(old := make("old"), Script) as h:
            ref = await (await h.root()).start(old())
            stays = await start(h, "a")
            for each in (ref, stays):
                assert isinstance(await h.outcome(each), Faulted)
            h.install(make("new"))
            assert await h.wait(ref) == "new"
            assert isinstance(await h.outcome(stays), Faulted)

    bench.run(main())
    assert control["log"] == ["old 0", "a", "new 0", "new 1", "new 2"]


def test_t10_o2_an_abort_beside_a_reinstall_runs_the_handler_once(bench: "Bench") -> None:
    make, control = versions()

    async def main() -> None:
        control["gate"] = asyncio.Event()
        async with bench.open(old := make("old")) as h:
            ref = await (await h.root()).start(old())
            await asyncio.sleep(1)
            h.install(make("new"))
            control["gate"].set()
            await h.abort(ref)
            assert await h.outcome(ref) == Aborted()
            await h.wait_idle()

    for seed in range(10):
        bench.run(main(), seed=seed)


def test_t8_uninstalled_code_runs_on_and_blocks_the_next_start(bench: "Bench") -> None:
    BODIES["nap"] = naps(5)

    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        await asyncio.sleep(5)
        return Done("ran on")

    async def main() -> None:
        async with bench.open(Script) as h:
            ref, nap = await start(h, "a"), await start(h, "nap")
            await asyncio.sleep(1)
            h.uninstall("script")
            assert await h.wait(ref) == "ran on"
            await asyncio.sleep(10)
            assert await naming(h) == {nap.id: "blocked"}
            h.install(Script)
            assert await h.wait(nap) == "other"

    bench.run(main())


# --- O2, O3, O5: abort ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_o2_abort_runs_bottom_up_and_sees_what_became_of_the_work_below(memory: "Bench", seed: int) -> None:
    order: list[str] = []

    def aborts(name: str) -> Body:
        async def abort(rt: Runtime) -> Aborted:
            for outcome in await rt.outcomes(await rt.children()):
                assert outcome == Aborted("by order")
            order.append(name)
            await asyncio.sleep(1)
            return Aborted("by order")

        return abort

    BODIES.update({"top": waits("left", "right"), "left": waits("leaf"), "right": _forever, "leaf": _forever})
    BODIES.update({f"abort {name}": aborts(name) for name in ("top", "left", "right", "leaf", "parent")})

    async def main() -> None:
        async with memory.open(Script) as h:
            ref = await start(h, "top")
            await asyncio.sleep(1)
            assert await h.abort(ref)
            assert await h.outcome(ref) == Aborted("by order")
            assert await h.tasks(live=True) == ()
            assert not await h.abort(ref)

    memory.run(main(), seed=seed)
    assert order.index("leaf") < order.index("left") < order.index("top")
    assert order.index("right") < order.index("top")
    assert sorted(order) == ["leaf", "left", "right", "top"]


def test_o3_background_survives_an_abort_unless_that_crosses_it(bench: "Bench") -> None:
    behind: list[TaskRef[Json]] = []

    @body("top")
    async def top(rt: Runtime) -> Done[Json]:
        async with rt.commit() as tx:
            where = await tx.create_conversation()
            behind.append(tx.spawn(Script("forever"), background=True, conversation=where))
        return await _forever(rt)

    BODIES["forever"] = _forever

    async def main() -> None:
        async with bench.open(Script) as h:
            for crossing in (False, True):
                ref = await start(h, "top")
                await asyncio.sleep(1)
                await h.abort(ref, background=crossing)
                assert await h.outcome(ref) == Aborted("stopped")
                await asyncio.sleep(1)
                record = await h.task(behind[-1])
                assert record.status == ("terminal" if crossing else "running")
                assert record.abort_requested is crossing

    bench.run(main())


def test_o5_a_held_failure_cancels_the_work_below_and_a_held_success_does_not(bench: "Bench") -> None:
    for name, outcome in (("succeeds", Done("x")), ("fails", Failed("x"))):

        async def end(rt: Runtime, outcome: "Done[str] | Failed" = outcome) -> object:
            async with rt.commit() as tx:
                tx.spawn(Script("one"))
                return tx.become(outcome)

        BODIES[name] = end
    BODIES["one"] = _one

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "succeeds")) == "x"
            with pytest.raises(TaskFailed):
                await h.wait(await start(h, "fails"))
            outcomes = [type(r.outcome).__name__ for r in await h.tasks()]
            assert outcomes == ["Completed", "Completed", "Failed", "Aborted"]

    bench.run(main())


def test_o2_rt_results_raise_what_the_task_ended_with(bench: "Bench") -> None:
    @body("other parent")
    async def other(rt: Runtime) -> Done[Json]:
        with pytest.raises(TaskFailed, match="no"):
            await rt.results(await rt.children())
        return Done("seen")

    BODIES.update({"parent": waits("one", "fails"), "one": _one, "fails": _fails})

    async def main() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(await start(h, "parent")) == "seen"
            refs = [TaskRef[Json](r.id) for r in await h.tasks()]
            with pytest.raises(TaskFailed):
                await h.wait(refs[-1])

    bench.run(main())


def test_o2_an_abort_handler_may_decide_otherwise_but_not_go_on(bench: "Bench") -> None:
    @body("abort done")
    async def done(rt: Runtime) -> Done[Json]:
        return Done("finished after all")

    @body("abort on")
    async def on(rt: Runtime) -> object:
        return Other("on")

    BODIES.update({"done": _forever, "on": _forever})

    async def main() -> None:
        async with bench.open(Script) as h:
            ref, other = await start(h, "done"), await start(h, "on")
            await asyncio.sleep(1)
            await asyncio.gather(h.abort(ref), h.abort(other))
            assert await h.wait(ref) == "finished after all"
            assert isinstance(await h.outcome(other), Faulted)

    bench.run(main())


# --- Closing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, *range(10)])
def test_t7_a_clean_close_leaves_pending_uncounted_tasks_that_go_on(bench: "Bench", seed: int | None) -> None:
    runs: list[int] = []

    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        runs.append(1)
        await rt.memo("m", len(runs))
        if len(runs) < 3:
            await asyncio.sleep(10)
        return Done(await rt.recall("m", int))

    async def first() -> TaskRef[Json]:
        async with bench.open(Script) as h:
            ref = await start(h, "a")
            waiting = asyncio.create_task(h.wait(ref))
            await asyncio.sleep(1)
            await h.aclose()
            with pytest.raises(SessionClosed):
                await waiting
            return ref

    ref = bench.run(first(), seed=seed)

    async def second() -> None:
        async with bench.open(Script, run=False) as h:
            record = await h.task(ref)
            assert (record.status, record.restarts, record.memos) == ("pending", 0, {"m": 1})
            h.resume()
            await asyncio.sleep(1)

    bench.run(second(), seed=seed)

    async def third() -> None:
        async with bench.open(Script) as h:
            assert await h.wait(ref) == 1

    bench.run(third(), seed=seed)


def test_t7_a_close_ends_even_beside_code_that_swallows_every_cancellation(bench: "Bench") -> None:
    over = asyncio.Event()

    @body("stubborn")
    async def stubborn(rt: Runtime) -> Done[Json]:
        while not over.is_set():
            try:
                await asyncio.wait_for(over.wait(), 1000)
            except (asyncio.CancelledError, TimeoutError):
                continue
        await rt.memo("too late", 1)
        return Done(None)

    @body("slow to end")
    async def slow(rt: Runtime) -> Done[Json]:
        try:
            return await _forever(rt)
        finally:
            await asyncio.sleep(5)
            cleaned.append(1)

    cleaned: list[int] = []

    async def main() -> None:
        h = await bench.open(Script)
        ref = await start(h, "stubborn")
        await start(h, "slow to end")
        await asyncio.sleep(1)
        await h.aclose()
        assert cleaned == [1]
        assert asyncio.get_running_loop().time() < 60
        assert [type(error) for error in bench.reports] == [TimeoutError]
        over.set()
        await asyncio.sleep(1)
        async with bench.open(run=False) as again:
            record = await again.task(ref)
            assert (record.status, record.memos) == ("pending", {})

    bench.run(main())


@pytest.mark.parametrize("seed", range(10))
def test_t7_a_close_beside_blocks_that_wait_for_the_line_lets_them_land_or_refuses_them(
    memory: "Bench", seed: int
) -> None:
    async def main() -> None:
        h = await memory.open(Script)
        root = await h.root()
        landed: list[int] = []

        async def write(n: int) -> None:
            try:
                async with root.commit() as tx:
                    await tx.task(TaskRef(TaskId(3)))
                    tx.append("app.note", data=n)
                landed.append(n)
            except SessionClosed:
                pass

        writers = [asyncio.create_task(write(n)) for n in range(20)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(h.aclose())
        writers += [asyncio.create_task(write(n)) for n in range(20, 30)]
        await asyncio.wait_for(asyncio.gather(closing, *writers), 1000)
        async with memory.open(run=False) as again:
            page = await (await again.root()).entries(order="ascending")
            assert sorted(cast("int", entry.data) for entry in page.items) == sorted(landed)

    memory.run(main(), seed=seed)


def test_memory_of_the_engine_is_empty_when_everything_has_ended(bench: "Bench") -> None:
    BODIES.update({"parent": waits("one", "fails", "nap", fail_fast=True), "one": _one, "fails": _fails})
    BODIES.update({"nap": naps(1000), "other parent": collects()})

    async def main() -> None:
        async with bench.open(Script) as h:
            for _ in range(10):
                ref = await start(h, "parent")
                for _ in range(5):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(h.wait(ref), 0.1)
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(h.wait_idle(), 0.01)
                await h.wait(ref)
            await h.wait_idle()
            await asyncio.sleep(2000)
            engine = h.engine
            scheduler = engine.scheduler
            left = {
                "table": len(engine.table), "stored": engine._stored, "reserved": engine.runs._reserved,
                "invocations": engine.runs._invocations, "waits": engine.waits._tasks, "idlers": engine.waits._idlers,
                "touched": scheduler._touched, "due": scheduler._due, "wakings": scheduler._wakings,
                "withdrawn": scheduler._withdrawn, "ended": engine.table._ended, "edges": engine.table._edges,
                "children": engine.table._children, "below": engine.table._below,
            }  # fmt: skip
            assert not any(left.values()), left
            assert {task.get_name() for task in engine.runs._tasks} == {"scheduler"}

    bench.run(main())


class Watcher:
    """A probe that only listens."""

    one_by_one = True

    def __init__(self) -> None:
        self.marks: list[Mark] = []

    async def reach(self, mark: Mark) -> None:
        self.marks.append(mark)

    def note(self, mark: Mark) -> None:
        self.marks.append(mark)

    async def perform(self, mark: Mark, do: Callable[[], V | Awaitable[V]]) -> V:
        got = do()
        return await got if inspect.isawaitable(got) else got  # pyright: ignore[reportReturnType]


class Crash(BaseException):
    """A simulated crash."""


def test_f1_a_simulated_crash_in_a_phase_is_no_fault_and_ends_the_session(bench: "Bench") -> None:
    @body("a")
    async def a(rt: Runtime) -> Done[Json]:
        raise Crash("now")

    async def main() -> TaskRef[Json]:
        h = await bench.open(Script, probe=Watcher())
        ref = await start(h, "a")
        closed = await h.closed
        assert closed.reason == "failed"
        return ref

    ref = bench.run(main(), limit=5000)

    async def again() -> None:
        async with bench.open(run=False) as h:
            record = await h.task(ref)
            assert (record.status, record.restarts, record.memos) == ("pending", 1, {})

    bench.run(again())
