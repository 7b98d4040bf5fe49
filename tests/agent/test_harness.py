"""The public face: opening, waiting, aborting, retrying, closing, and being used from another loop."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pidurable_nb import Aborted, Done, Failed, Faulted, Harness, Input, Json, Phase, Runtime, TaskRef
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.agent.opening import Durability, storage_of
from pidurable_nb.errors import (
    DuplicateTask,
    PhaseRefused,
    SessionClosed,
    StorageRequestError,
    StoreOwned,
    StoreRefused,
    TaskAborted,
    TaskFailed,
    TaskFaulted,
    WrongLoop,
)
from pidurable_nb.ids import TaskId
from pidurable_nb.store.jsonl import JsonlStorage
from pidurable_nb.store.memory import MemoryStorage

if TYPE_CHECKING:
    from tests.agent.conftest import Home

T = TypeVar("T")


class Job(Phase[Json], task="job"):
    """Ends as it is told."""

    how: Input[str]

    async def run(self, rt: Runtime) -> "Done[Json] | Failed":
        match self.how:
            case "fails":
                return Failed("no", {"n": 1})
            case "raises":
                raise ValueError("boom")
            case "waits":
                await asyncio.sleep(1000)
            case "reports":
                rt.report(ValueError("by the way"))
            case _:
                pass
        return Done(self.how)

    async def abort(self, rt: Runtime) -> "Aborted":
        return Aborted("asked to")


async def start(h: Harness, how: str) -> TaskRef[Json]:
    return await (await h.root()).start(Job(how))


# --- Opening ----------------------------------------------------------------------------------------------------------


def test_a_folder_is_a_jsonl_store_and_its_barriers_are_synced_where_they_are_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with Harness.open(f"{tmp_path}/lines/", tasks=[Job]) as h:
            ref = await start(h, "x")
            assert await h.wait(ref) == "x"
        async with Harness.open(tmp_path / "lines", tasks=[Job], durability="kill") as h:  # a folder by now
            assert await h.wait(ref) == "x"
        with pytest.raises(ValueError, match="choose barrier or kill"):
            await Harness.open(tmp_path / "lines", durability="power")

    asyncio.run(main())
    assert (tmp_path / "lines" / "main.jsonl").read_text().startswith("{")


def test_a_folder_opened_by_default_syncs_and_with_durability_kill_does_not(tmp_path: Path) -> None:
    durabilities: dict[Durability, bool] = {"barrier": True, "kill": False}
    for durability, synced in durabilities.items():
        storage = storage_of(f"{tmp_path}/", durability)
        assert isinstance(storage, JsonlStorage)
        assert storage.fsync is synced


def test_open_may_be_awaited_or_entered_and_the_store_can_be_opened_again(home: "Home") -> None:
    async def main() -> None:
        h = await home.open(Job)
        ref = await start(h, "x")
        assert await h.wait(ref) == "x"
        await h.aclose()
        await h.aclose()
        async with home.open() as again:
            assert (await again.task(ref)).status == "terminal"
            assert await again.wait(ref) == "x"
        assert (await again.closed).reason == "closed"

    home.run(main())


def test_open_closes_when_its_block_is_left_by_an_exception(home: "Home") -> None:
    async def main() -> None:
        kept: list[Harness] = []
        with pytest.raises(ZeroDivisionError):
            async with home.open() as h:
                kept.append(h)
                _ = 1 // 0
        assert kept[0].closed.done()

    home.run(main())


def test_t7_paused_nothing_starts_before_resume(home: "Home") -> None:
    async def main() -> None:
        async with home.open(Job, run=False) as h:
            ref = await start(h, "x")
            other = await start(h, "x")
            await h.abort(other)
            await asyncio.sleep(100)
            assert [record.status for record in await h.tasks()] == ["pending", "pending"]
            h.resume()
            h.resume()
            assert await h.wait(ref) == "x"
            assert await h.outcome(other) == Aborted("asked to")

    home.run(main())


def test_open_refuses_what_it_cannot_run_and_holds_no_store_then(home: "Home") -> None:
    class Job2(Phase[Json], task="job"):
        async def run(self, rt: Runtime) -> "Done[Json]":
            return Done(2)

    class Second(Phase[Json]):
        async def run(self, rt: Runtime) -> "Done[Json]":
            return Done(2)

    async def main() -> None:
        with pytest.raises(DuplicateTask):
            await home.open(Job, Job2)
        with pytest.raises(PhaseRefused):
            await home.open(Second)
        async with home.open(Job):
            pass

    home.run(main())


def test_f5_a_path_is_a_store_that_one_harness_owns(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "session.sqlite"
        async with Harness.open(path, tasks=[Job]) as h:
            assert await h.wait(await start(h, "x")) == "x"
            with pytest.raises(StoreOwned):
                await Harness.open(str(path))
        (tmp_path / "no store").write_text("plain text, and long enough for a header " * 100)
        with pytest.raises(StoreRefused):
            await Harness.open(tmp_path / "no store")
        async with Harness.open(path) as h:
            assert len(await h.tasks()) == 1

    asyncio.run(main())


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="restart_limit"):
        Settings(restart_limit=0)


def test_an_opening_that_is_cancelled_lets_go_of_the_store(home: "Home") -> None:
    async def main() -> None:
        for turns in range(12):
            opening = asyncio.ensure_future(_kept(home))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            try:
                h = await opening
            except asyncio.CancelledError:
                pass
            else:
                await h.aclose()
            async with home.open():
                pass

    home.run(main())


async def _kept(home: "Home") -> Harness:
    return await home.open(Job)


# --- Waiting ----------------------------------------------------------------------------------------------------------


def test_wait_gives_the_result_or_raises_how_it_ended_and_outcome_never_raises(home: "Home") -> None:
    async def main() -> None:
        async with home.open(Job) as h:
            done, failed, faulted, aborted = [await start(h, how) for how in ("x", "fails", "raises", "waits")]
            await h.abort(aborted)
            assert await h.outcome(done) == Done("x")
            assert await h.outcome(failed) == Failed("no", {"n": 1})
            assert await h.outcome(aborted) == Aborted("asked to")
            fault = await h.outcome(faulted)
            assert isinstance(fault, Faulted)
            assert fault.message == "ValueError: boom"
            for ref, error in ((failed, TaskFailed), (faulted, TaskFaulted), (aborted, TaskAborted)):
                with pytest.raises(error) as ended:
                    await h.wait(ref)
                assert ended.value.ref == ref.id
                assert ended.value.kept == (ref == faulted)

    home.run(main())


def test_c2_idle_means_that_the_last_end_is_stored(memory: "Home") -> None:
    for seed in range(20):

        async def main() -> None:
            async with memory.open(Job) as h:
                for n in range(3):
                    await start(h, str(n))
                await h.wait_idle()
                assert [record for record in await h.tasks() if record.live] == []
                await h.wait_idle()

        memory.run(main(), seed=seed)


def test_o3_idle_waits_for_what_rests_and_says_why(home: "Home") -> None:
    async def main() -> None:
        async with home.open(Job) as h:
            ref = await start(h, "raises")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(h.wait_idle(), 100)
            assert [(v.name, v.laws) for v in await h.verdicts()] == [("faulted", ("T11",))]
            h.uninstall("job")
            assert [v.name for v in await h.verdicts()] == ["blocked"]
            await h.abort(ref)
            await h.wait_idle()

    home.run(main())


def test_f2_what_does_not_exist_is_refused_for_that_call_alone(home: "Home") -> None:
    nothing = TaskRef[Json](TaskId(999))

    async def main() -> None:
        async with home.open(Job) as h:
            for call in (
                h.wait(nothing), h.outcome(nothing), h.task(nothing), h.task(999), h.abort(nothing), h.retry(nothing),
                h.conversation(999), h.submission(999), h.abort(999),
            ):  # fmt: skip
                with pytest.raises(StorageRequestError):
                    await call
            ref = await start(h, "x")
            await h.wait(ref)
            with pytest.raises(StorageRequestError, match="not live"):
                await h.retry(ref)
            assert await h.abort(ref) is False

    home.run(main())


def test_tasks_are_found_by_kind_status_and_life(home: "Home") -> None:
    async def main() -> None:
        async with home.open(Job) as h:
            refs = [await start(h, how) for how in ("x", "waits", "fails")]
            await h.wait(refs[0])
            await h.outcome(refs[2])
            assert [record.id for record in await h.tasks()] == [ref.id for ref in refs]
            assert [record.id for record in await h.tasks(live=True)] == [refs[1].id]
            assert [record.id for record in await h.tasks(status="running")] == [refs[1].id]
            assert [record.id for record in await h.tasks(kind="job", limit=2)] == [ref.id for ref in refs[:2]]
            assert await h.tasks(kind="other") == ()

    home.run(main())


# --- Closing ----------------------------------------------------------------------------------------------------------


def test_after_close_everything_says_so(home: "Home") -> None:
    async def main() -> None:
        h = await home.open(Job)
        root = await h.root()
        ref = await start(h, "waits")
        pending = [asyncio.ensure_future(call) for call in (h.wait(ref), h.outcome(ref), h.wait_idle())]
        await asyncio.sleep(1)
        await h.aclose()
        for wait in pending:
            with pytest.raises(SessionClosed):
                await wait
        for call in (h.root(), h.wait(ref), h.task(ref), h.abort(ref), root.start(Job("x")), root.entries(),
                     root.write("app.note"), h.wait_idle()):  # fmt: skip
            with pytest.raises(SessionClosed):
                await call
        with pytest.raises(SessionClosed):
            async with root.commit():
                pass
        h.install(Job)
        h.uninstall("job")
        h.resume()

    home.run(main())


def test_a_task_may_close_its_own_harness(home: "Home") -> None:
    harness: list[Harness] = []

    class Closes(Phase[Json], task="closes"):
        async def run(self, rt: Runtime) -> "Done[Json]":
            await harness[0].aclose()
            return Done("never")

    async def main() -> None:
        harness.append(await home.open(Closes))
        ref = await (await harness[0].root()).start(Closes())
        assert (await harness[0].closed).reason == "closed"
        async with home.open(run=False) as h:
            record = await h.task(ref)
            assert (record.status, record.restarts) == ("pending", 0)

    home.run(main())


def test_closes_at_once_are_one_close(memory: "Home") -> None:
    for seed in range(10):

        async def main() -> None:
            h = await memory.open(Job)
            await start(h, "waits")
            await asyncio.gather(*[h.aclose() for _ in range(5)])

        memory.run(main(), seed=seed)


# --- Reports ----------------------------------------------------------------------------------------------------------


def test_f3_reports_reach_the_host_and_one_that_raises_harms_nobody(home: "Home") -> None:
    heard: list[BaseException] = []

    def report(error: BaseException) -> None:
        heard.append(error)
        raise RuntimeError("the host is broken")

    async def main() -> None:
        settings = Settings(clock=home.clock)
        async with Harness.open(home.make(), tasks=[Job], settings=settings, on_report=report) as h:
            assert await h.wait(await start(h, "reports")) == "reports"
            fault = await h.outcome(await start(h, "raises"))
            assert isinstance(fault, Faulted)
            assert await h.wait(await start(h, "x")) == "x"

    home.run(main())
    assert [str(error) for error in heard] == ["by the way", "boom"]


# --- Another loop -----------------------------------------------------------------------------------------------------


class Elsewhere:
    """A loop in a thread of its own, as a notebook kernel runs the harness."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result(20)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(20)
        self.loop.close()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    made = Elsewhere()
    yield made
    if not made.loop.is_closed():
        made.stop()


def test_async_methods_may_be_awaited_from_another_loop(elsewhere: Elsewhere, tmp_path: Path) -> None:
    async def opened() -> Harness:
        return await Harness.open(tmp_path / "s.sqlite", tasks=[Job])

    h = elsewhere.call(opened())

    async def cell() -> None:
        root = await h.root()
        ref = await root.start(Job("x"))
        assert await h.wait(ref) == "x"
        assert await h.outcome(await root.start(Job("fails"))) == Failed("no", {"n": 1})
        with pytest.raises(TaskFailed):
            await h.wait(await root.start(Job("fails")))
        written = await root.write("app.note", text="from a cell", request_id="r-1")
        await written.wait()
        assert len((await root.entries()).items) == 1
        waiting = await root.start(Job("waits"))
        wait = asyncio.ensure_future(h.wait(waiting))
        await asyncio.sleep(0)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        assert await h.abort(waiting)
        await h.wait_idle()
        await h.aclose()

    asyncio.run(cell())


def test_commit_blocks_on_another_loop_raise_and_name_what_to_call(elsewhere: Elsewhere) -> None:
    async def opened() -> Harness:
        return await Harness.open(MemoryStorage(), tasks=[Job])

    h = elsewhere.call(opened())

    async def cell() -> None:
        root = await h.root()
        for block in (root.commit(), h.commit()):
            with pytest.raises(WrongLoop, match=r"pi\.call"):
                async with block:
                    pass
        assert (await root.entries()).items == ()

    asyncio.run(cell())
    elsewhere.call(h.aclose())


def test_t10_code_installed_from_another_thread_wakes_the_engine(elsewhere: Elsewhere) -> None:
    """A cell defines and installs; nothing else happens on the harness's own loop that would wake it."""
    ran = threading.Event()

    class Signals(Phase[Json], task="signals"):
        async def run(self, rt: Runtime) -> "Done[Json]":
            ran.set()
            return Done(None)

    async def opened() -> Harness:
        return await Harness.open(MemoryStorage(), tasks=[Signals], run=False)

    async def begin() -> list[str]:
        await (await h.root()).start(Signals())
        h.uninstall("signals")
        await asyncio.sleep(0)
        return [v.name for v in await h.verdicts()]

    h = elsewhere.call(opened())
    assert elsewhere.call(begin()) == ["blocked"]
    h.resume()
    assert not ran.wait(0.05)
    h.install(Signals)
    assert ran.wait(20)
    elsewhere.call(h.aclose())


def test_a_harness_whose_loop_is_gone_says_so(elsewhere: Elsewhere) -> None:
    async def opened() -> Harness:
        return await Harness.open(MemoryStorage(), tasks=[Job])

    h = elsewhere.call(opened())
    elsewhere.call(h.aclose())
    elsewhere.stop()

    async def cell() -> None:
        with pytest.raises(WrongLoop, match="does not run any more"):
            await h.root()

    asyncio.run(cell())
    h.install(Job)
