"""F1 to F4: any storage call fails, for every one from open to idle; the harness ends loudly, and a clean opening
finishes everything.

The storage is a real one; what is put over it counts the calls and lets one of them fail, before or after it was done.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, cast

import pytest

from pidurable_nb import Aborted, Document, Done, Failed, Harness, Input, Json, Phase, Runtime, Sleeping, Waiting
from pidurable_nb.agent.extending.settings import Settings
from pidurable_nb.agent.stored import live
from pidurable_nb.errors import NotJson, PidurableError, SessionFailed, StorageError, StorageRequestError
from pidurable_nb.ids import EntryId
from pidurable_nb.records import task as stored
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.storage import Storage

if TYPE_CHECKING:
    from tests.agent.conftest import Home

Mode = Literal["not done", "done and not said", "foreign"]
ERRORS: dict[Mode, Callable[[], Exception]] = {
    "not done": lambda: StorageError("the disk is full", stored="no"),
    "done and not said": lambda: StorageError("the disk is gone", stored="unknown"),
    "foreign": lambda: OSError(5, "Input/output error"),
}


class Hiccup:
    """A storage whose `fail_at`-th call fails."""

    def __init__(self, inner: Storage, fail_at: int | None, mode: Mode = "not done") -> None:
        self._inner = inner
        self._fail_at = fail_at
        self._mode: Mode = mode
        self.calls: list[str] = []
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        if name == "mint":
            return lambda: self._sync(name, found)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: object, **kwargs: object) -> object:
            hit = self._hit(name)
            if hit and name != "close" and (name == "open" or self._mode != "done and not said"):
                raise self._raised()
            answer = await found(*args, **kwargs)
            if hit:
                raise self._raised()
            return answer

        return call

    def _sync(self, name: str, do: Callable[[], int]) -> int:
        if self._hit(name):
            raise self._raised()
        return do()

    def _hit(self, name: str) -> bool:
        self.calls.append(name)
        return len(self.calls) == self._fail_at

    def _raised(self) -> Exception:
        self.error = ERRORS[self._mode]()
        return self.error


class Notes(Document, kind="app.notes", scope="conversation", history="rewindable", fork="as_of"):
    text: str = ""


class Order(Phase[Json], task="order"):
    async def run(self, rt: Runtime) -> "Waiting[Placed]":
        async with rt.commit() as tx:
            refs = tuple(tx.spawn(Part(n)) for n in range(3))
            (await tx.edit(Notes)).text = "ordered"
            return tx.become(Waiting(on=refs, then=Placed(), fail_fast=True))


class Placed(Phase[Json]):
    async def run(self, rt: Runtime) -> "Done[Json]":
        found = await rt.outcomes(await rt.children())
        await rt.read(Notes)
        return Done(sorted(type(outcome).__name__ for outcome in found))


class Part(Phase[Json], task="part"):
    n: Input[int]

    async def run(self, rt: Runtime) -> "Sleeping[Part2]":
        await rt.memo("begun", self.n)
        return Sleeping(until=rt.now() + timedelta(seconds=self.n), then=Part2(self.n))

    async def abort(self, rt: Runtime) -> "Aborted":
        await rt.memo("undone", self.n)
        return Aborted()


class Part2(Phase[Json]):
    n: Input[int]

    async def run(self, rt: Runtime) -> "Done[Json] | Failed":
        return Failed("no") if self.n == 1 else Done(self.n)

    async def abort(self, rt: Runtime) -> "Aborted":
        return Aborted()


RESULT = ("Aborted", "Done", "Failed")


class Life:
    """What a caller does, and what it was told."""

    def __init__(self) -> None:
        self.told: dict[str, object] = {}
        self.raised: list[Exception] = []

    async def caller(self, name: str, call: Callable[[], Awaitable[object]]) -> None:
        try:
            self.told[name] = await call()
        except (SessionFailed, StorageError, OSError) as error:
            self.raised.append(error)
            raise

    async def live(self, h: Harness) -> None:
        async def order() -> object:
            root = await h.root()
            ref = await root.start(Order())
            self.told["ref"] = ref
            return await h.wait(ref)

        async def write() -> object:
            root = await h.root()
            for n in range(3):
                written = await root.write("app.note", data=n, request_id=f"write-{n}")
                await written.wait()
                self.told[f"write-{n}"] = written.id
            return None

        async def fork() -> object:
            root = await h.root()
            async with root.commit(barrier=True) as tx:
                (await tx.edit(Notes)).text = "before the fork"
                at = tx.append("app.note", data="fork here")
            child = await root.fork(at=at)
            async with child.commit() as tx:
                tx.append("app.note", data="child")
            page = await child.entries()
            assert [entry.data for entry in page.items][:2] == ["child", "fork here"]
            return (await h.read(Notes, of=child)).text

        calls = {"order": order, "write": write, "fork": fork, "idle": h.wait_idle}
        await asyncio.gather(*[self.caller(name, call) for name, call in calls.items()], return_exceptions=True)
        await asyncio.sleep(10)
        await self.caller("last", h.wait_idle)


async def is_over(h: Harness, hiccup: Hiccup) -> None:
    """F1: the harness has closed itself, and everything says why."""
    closed = await h.closed
    assert closed.reason == "failed"
    assert closed.error is not None
    cause = closed.error.cause
    assert hiccup.error in (cause, cause.__cause__)
    assert cause.stored == (
        "no" if isinstance(hiccup.error, StorageError) and hiccup.error.stored == "no" else "unknown"
    )
    for call in (h.root, h.wait_idle, lambda: h.task(7), lambda: h.abort(7), lambda: h.submission(7), h.tasks):
        with pytest.raises(SessionFailed) as again:
            await cast("Callable[[], Awaitable[object]]", call)()
        assert again.value.cause is cause
    await h.aclose()
    with pytest.raises(SessionFailed):
        async with h.commit():
            pass


def finished(order: stored.TaskRecord) -> bool:
    """Done with what its parts came to: one failed; whether the others had woken by then is left to the restart."""
    assert isinstance(order.outcome, stored.Completed)
    result = cast("list[str]", order.outcome.result)
    return len(result) == 3 and result.count("Failed") == 1 and {"Failed", "Done", "Aborted"}.issuperset(result)


async def all_is_done(h: Harness, told: dict[str, object]) -> None:
    """What a clean opening comes to, with what the caller does again."""
    root = await h.root()
    await h.wait_idle()
    if "ref" not in told and not await h.tasks(kind="order"):
        await root.start(Order())
        await h.wait_idle()
    orders = await h.tasks(kind="order")
    assert 1 <= len(orders) <= 2
    for order in orders:
        assert finished(order)
    if "order" in told:
        assert told["order"] == RESULT
    for n in range(3):
        again = await root.write("app.note", data=n, request_id=f"write-{n}")
        assert again.match in ("new", "same")
        if f"write-{n}" in told:
            assert (again.id, again.match) == (told[f"write-{n}"], "same")
    page = await root.entries(limit=1000)
    assert {data: n for data, n in Counter(str(entry.data) for entry in page.items).items() if data in "012"} == {
        "0": 1, "1": 1, "2": 1,
    }  # fmt: skip
    assert await h.tasks(live=True) == ()
    assert told.get("fork", "before the fork") in ("before the fork", "ordered")


@pytest.mark.parametrize("mode", ERRORS)
@pytest.mark.parametrize("seed", [None, 1])
def test_f1_f4_b12_no_failing_call_from_open_to_idle_strands_a_task(
    memory: "Home", mode: Mode, seed: int | None
) -> None:
    """B12. Every call fails once, in lives of their own; each store is then opened again without faults."""
    failed_in: Counter[str] = Counter()
    fail_at = 0
    while True:
        fail_at += 1
        inner = MemoryStorage()
        hiccup = Hiccup(inner, fail_at, mode)
        life = Life()
        memory.reports.clear()

        async def first(hiccup: Hiccup = hiccup, life: Life = life) -> bool:
            storage = cast("Storage", hiccup)
            try:
                h = await memory.open(Order, Part, storage=storage)
            except (StorageError, SessionFailed, OSError) as refused:
                return hiccup.error in (refused, refused.__cause__)
            try:
                await life.live(h)
            except (StorageError, SessionFailed):
                await is_over(h, hiccup)
                return True
            try:
                await h.aclose()
            except (StorageError, OSError) as refused:
                return refused is hiccup.error
            return False

        failed = memory.run(first(), seed=seed)
        if not failed:
            assert hiccup.error is None
            break
        failed_in[hiccup.calls[fail_at - 1]] += 1
        heard = [error for error in memory.reports if isinstance(error, SessionFailed)]
        assert len(heard) <= 1
        assert memory.reports == heard, "only the failure is reported"
        assert all(isinstance(error, StorageError | SessionFailed) for error in life.raised)

        async def second(inner: MemoryStorage = inner, life: Life = life) -> None:
            async with memory.open(Order, Part, storage=inner) as h:
                await all_is_done(h, life.told)

        memory.run(second(), seed=seed)
    assert {"open", "commit", "mint", "task", "scan_tasks", "conversation", "close"} <= set(failed_in)
    assert failed_in["commit"] >= 10


@pytest.mark.slow
@pytest.mark.parametrize("mode", ERRORS)
@pytest.mark.parametrize("seed", range(2, 6))
def test_f1_f4_b12_no_failing_call_strands_a_task_in_any_order(memory: "Home", mode: Mode, seed: int) -> None:
    test_f1_f4_b12_no_failing_call_from_open_to_idle_strands_a_task(memory, mode, seed)


def test_f1_f4_b12_on_files_a_failing_commit_strands_no_task(home: "Home") -> None:
    """The same for every fourth call, on each kind of storage."""
    for fail_at in range(3, 80, 4):
        hiccup = Hiccup(home.make(), fail_at, "done and not said")
        life = Life()

        async def first(hiccup: Hiccup = hiccup, life: Life = life) -> None:
            h = await home.open(Order, Part, storage=cast("Storage", hiccup))
            try:
                await life.live(h)
            except (StorageError, SessionFailed):
                await is_over(h, hiccup)
            else:
                await h.aclose()

        async def second() -> None:
            async with home.open(Order, Part) as h:
                await h.wait_idle()
                assert await h.tasks(live=True) == ()
                assert all(finished(order) for order in await h.tasks(kind="order"))

        try:
            home.run(first())
        except (StorageError, SessionFailed):
            assert hiccup.error is not None
        home.run(second())


def test_f1_running_code_is_cancelled_and_pending_waits_hear_the_cause(memory: "Home") -> None:
    heard: list[BaseException] = []

    class Long(Phase[Json], task="long"):
        async def run(self, rt: Runtime) -> "Done[Json]":
            try:
                await asyncio.sleep(10_000)
            except asyncio.CancelledError as error:
                heard.append(error)
                raise
            return Done(None)

    async def main() -> None:
        hiccup = Hiccup(memory.make(), None)
        h = await memory.open(Long, storage=cast("Storage", hiccup))
        root = await h.root()
        ref = await root.start(Long())
        async with h.engine.session.block(h.engine._subject(ref.id), conversation=root.id) as tx:
            (await tx.edit(live.LIVE, live.at(live.LIVE, root.id)))["run"] = {"taskId": ref.id, "inputs": []}
        queued = await root.write("app.note")
        waits = [asyncio.ensure_future(call) for call in (h.wait(ref), h.outcome(ref), h.wait_idle(), queued.wait())]
        await asyncio.sleep(1)
        hiccup._fail_at = len(hiccup.calls) + 1
        with pytest.raises(StorageError) as met:
            await h.task(ref)
        assert met.value is hiccup.error
        for wait in waits:
            with pytest.raises(SessionFailed) as failed:
                await wait
            assert failed.value.cause is hiccup.error
        await is_over(h, hiccup)
        assert asyncio.get_running_loop().time() < 10
        assert len(heard) == 1

    memory.run(main())
    assert [type(error) for error in memory.reports] == [SessionFailed]


def test_f1_a_host_whose_report_raises_is_closed_all_the_same(memory: "Home") -> None:
    def report(error: BaseException) -> None:
        raise RuntimeError("broken host")

    async def main() -> None:
        hiccup = Hiccup(memory.make(), None)
        settings = Settings(clock=memory.clock)
        h = await Harness.open(cast("Storage", hiccup), settings=settings, on_report=report)
        hiccup._fail_at = len(hiccup.calls) + 1
        with pytest.raises(StorageError):
            await h.root()
        await is_over(h, hiccup)

    memory.run(main())


def test_f2_c4_c7_what_fails_before_the_storage_is_asked_ends_nothing(home: "Home") -> None:
    async def main() -> None:
        async with home.open(Order, Part) as h:
            root = await h.root()
            for error, call in (
                (StorageRequestError, lambda: h.task(999)),
                (StorageRequestError, lambda: root.fork(at=EntryId(999))),
                (StorageRequestError, lambda: root.entries(after=-1, limit=0)),
                (NotJson, lambda: root.write("app.note", data=float("inf"))),
            ):
                with pytest.raises((error, ValueError)):
                    await cast("Callable[[], Awaitable[object]]", call)()
            with pytest.raises(PidurableError):
                async with root.commit() as tx:
                    tx.append("app.note", data={"n": 2**60})
            with pytest.raises(ZeroDivisionError):
                async with root.commit() as tx:
                    tx.append("app.note")
                    _ = 1 // 0
            assert await h.wait(await root.start(Order())) == RESULT
            assert not h.closed.done()

    home.run(main())
    assert home.reports == []


def test_f4_a_cancelled_caller_is_no_failure(home: "Home") -> None:
    async def main() -> None:
        async with home.open(Order, Part) as h:
            root = await h.root()
            for turns in range(15):

                async def write(turns: int = turns) -> None:
                    async with root.commit() as tx:
                        tx.append("app.note", data=turns)

                writing = asyncio.ensure_future(write())
                for _ in range(turns):
                    await asyncio.sleep(0)
                cancelled = writing.cancel()
                try:
                    await writing
                except asyncio.CancelledError:
                    assert cancelled
            assert await h.wait(await root.start(Order())) == RESULT
            page = await root.entries(limit=100)
            datas = [cast("int", entry.data) for entry in page.items]
            assert len(set(datas)) == len(datas)

    home.run(main())
    assert home.reports == []


def test_a_storage_that_cannot_be_closed_says_so_and_the_harness_is_closed(memory: "Home") -> None:
    async def main() -> None:
        hiccup = Hiccup(memory.make(), None)
        h = await memory.open(Order, Part, storage=cast("Storage", hiccup))
        await h.wait(await (await h.root()).start(Order()))
        hiccup._fail_at = len(hiccup.calls) + 1
        with pytest.raises(StorageError):
            await h.aclose()
        assert (await h.closed).reason == "closed"

    memory.run(main())
