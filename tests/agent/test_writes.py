"""S1, S2, S4, S5 for writes: admitted once, placed at once or in order, withdrawn while queued, never changed then."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pidurable_nb import Done, Harness, Input, Json, Phase, Runtime, Sleeping
from pidurable_nb.agent.stored import live
from pidurable_nb.errors import NotJson, RequestConflict, SessionClosed, StorageRequestError
from pidurable_nb.ids import ROOT, ConversationId, JsonObject, SubmissionId
from pidurable_nb.records.transcript import Queued, SubmissionRecord, Unanswered, Written
from pidurable_nb.session.changes import Changes
from pidurable_nb.store.storage import SubmissionQuery

if TYPE_CHECKING:
    from tests.agent.conftest import Home


async def busy(h: Harness, *, run: bool) -> None:
    """Put a run into the conversation's live document, or take it away, as the room of runs does."""
    async with h.engine.session.block(h.engine._subject(0), conversation=ROOT) as tx:  # type: ignore[arg-type]
        draft = await tx.edit(live.LIVE, live.at(live.LIVE, ROOT))
        if run:
            draft["run"] = {"taskId": 999, "inputs": []}
        else:
            draft.pop("run", None)


async def queue_input(h: Harness, conversation: ConversationId = ROOT) -> SubmissionId:
    """An input that waits, as the format stores it."""
    async with h.engine.session.block(h.engine._subject(0), conversation=conversation) as tx:  # type: ignore[arg-type]
        box = await tx.edit(live.INBOX, live.at(live.INBOX, conversation))
        items = box["items"]
        assert isinstance(items, list)
        id = SubmissionId(tx.mint())
        items.append({"id": id, "mode": "followUp", "content": "hello"})
        tx.put_submission(SubmissionRecord(id=id, conversation=conversation, type="input", state=Queued()))
    return id


async def inbox(h: Harness, conversation: ConversationId = ROOT) -> Sequence[JsonObject]:
    value = await h.engine.session.snapshot(live.INBOX, live.at(live.INBOX, conversation))
    assert value is not None
    items = value["items"]
    assert isinstance(items, list | tuple)
    return [dict(item) for item in items if isinstance(item, dict)]


async def datas(h: Harness) -> list[Json]:
    page = await (await h.root()).entries(limit=1000, order="ascending")
    return [entry.data for entry in page.items]  # type: ignore[misc]


async def all_submissions(h: Harness) -> tuple[SubmissionRecord, ...]:
    return (await h.engine.session.scan_submissions(SubmissionQuery(), limit=1000)).items


# --- S1 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_s1_fifty_writes_at_once_with_one_request_id_are_one(home: "Home", seed: int | None) -> None:
    async def main() -> SubmissionId:
        async with home.open() as h:
            root = await h.root()
            writes = [root.write("app.note", data={"n": 1}, request_id="r-1") for _ in range(50)]
            found = await asyncio.gather(*writes)
            assert len({write.id for write in found}) == 1
            assert (
                sorted(write.match for write in found) == ["new"] + ["same"] * 49
                or [write.match for write in found].count("new") == 1
            )
            assert await datas(h) == [{"n": 1}]
            assert len(await all_submissions(h)) == 1
            return found[0].id

    id = home.run(main(), seed=seed)

    async def again() -> None:
        async with home.open() as h:
            root = await h.root()
            writes = await asyncio.gather(*[root.write("app.note", data={"n": 1}, request_id="r-1") for _ in range(5)])
            assert {(write.id, write.match) for write in writes} == {(id, "same")}
            assert await datas(h) == [{"n": 1}]

    home.run(again(), seed=seed)


def test_s1_the_answer_says_whether_the_content_is_the_same(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            first = await root.write("app.note", text="hello", data={"a": [1, None]}, request_id="r")
            await asyncio.sleep(5)
            cases: list[tuple[str, dict[str, Any]]] = [
                ("same", {"kind": "app.note", "text": "hello", "data": {"a": [1, None]}}),
                ("differs", {"kind": "app.other", "text": "hello", "data": {"a": [1, None]}}),
                ("differs", {"kind": "app.note", "text": "Hello", "data": {"a": [1, None]}}),
                ("differs", {"kind": "app.note", "text": "hello", "data": {"a": [True, None]}}),
                ("differs", {"kind": "app.note", "text": "hello"}),
                ("differs", {"kind": "app.note", "data": {"a": [1, None]}}),
            ]
            for match, asked in cases:
                again = await root.write(asked.pop("kind"), **asked, request_id="r")
                assert (again.id, again.match) == (first.id, match)
            other = await h.create()
            assert (await other.write("app.note", request_id="r")).match == "new"
            assert (await root.write("app.note", request_id="r ")).match == "new"
            assert (await root.write("app.note")).id != (await root.write("app.note")).id

    home.run(main())


def test_s1_what_is_queued_compares_and_what_is_no_longer_stored_is_unknown(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            await busy(h, run=True)
            first = await root.write("app.note", text="later", request_id="r")
            await asyncio.sleep(1)
            assert (await root.write("app.note", text="later", request_id="r")).match == "same"
            assert (await root.write("app.note", text="sooner", request_id="r")).match == "differs"
            assert await first.abort()
            again = await root.write("app.note", text="later", request_id="r")
            assert (again.id, again.match) == (first.id, "unknown")
            assert len(await all_submissions(h)) == 1

    home.run(main())


def test_s1_a_request_id_of_another_type_is_refused_and_nothing_is_stored(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            id = await queue_input(h)
            async with h.engine.session.block(h.engine._subject(0)) as tx:  # type: ignore[arg-type]
                found = await tx.submission(id)
                assert found is not None
                tx.put_submission(replace(found, request_id="r"))
            with pytest.raises(RequestConflict, match="input"):
                await root.write("app.note", request_id="r")
            assert len(await all_submissions(h)) == 1
            assert await datas(h) == []

    home.run(main())


def test_s1_a_write_that_is_refused_admits_nothing(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            for wrong in (float("nan"), cast("Json", {1: 2})):
                with pytest.raises(NotJson, match=r"\$"):
                    await root.write("app.note", request_id="r", data=wrong)
            with pytest.raises(StorageRequestError):
                await root.write("pi.user", request_id="r")
            assert await all_submissions(h) == ()
            assert (await root.write("app.note", data=1, request_id="r")).match == "new"

    home.run(main())


# --- S2, S4, S5 -------------------------------------------------------------------------------------------------------


def test_s2_s5_a_write_is_done_with_its_entry_and_found_by_id_after_a_restart(home: "Home") -> None:
    async def main() -> tuple[SubmissionId, object]:
        async with home.open() as h:
            written = await (await h.root()).write("app.note", data="x")
            assert await written.status() == "done"
            state = await written.wait()
            assert isinstance(state, Written)
            return written.id, state

    id, state = home.run(main())

    async def again() -> None:
        async with home.open() as h:
            found = await h.submission(id)
            assert (await found.wait(), await found.status()) == (state, "done")
            assert await found.abort() is False
            assert (await found.record()).state == state
            [entry] = (await (await h.root()).entries()).items
            assert isinstance(state, Written)
            assert (entry.id, entry.data) == (state.entry, "x")

    home.run(again())


def test_s4_writes_behind_a_run_are_queued_in_order_and_placed_before_the_next_one(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            await busy(h, run=True)
            queued = [await root.write("app.note", data=n) for n in range(3)]
            waits = [asyncio.ensure_future(write.wait()) for write in queued]
            assert [await write.status() for write in queued] == ["queued"] * 3
            assert [item["id"] for item in await inbox(h)] == [write.id for write in queued]
            assert await datas(h) == []
            await busy(h, run=False)
            assert not any(wait.done() for wait in waits)
            last = await root.write("app.note", data=3)
            assert [await write.status() for write in (*queued, last)] == ["done"] * 4
            assert await datas(h) == [0, 1, 2, 3]
            assert await inbox(h) == []
            for write, wait in zip(queued, waits, strict=True):
                settled = await wait
                assert settled == (await write.record()).state

    home.run(main())


def test_s3_s4_a_write_to_an_idle_conversation_queues_behind_what_waits_and_starts_the_run_of_an_input_only(
    home: "Home",
) -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            await busy(h, run=True)
            queued = await root.write("app.note", data="queued")
            await busy(h, run=False)
            first = await queue_input(h)
            seen: list[Changes] = []
            h.engine.session.subscribe(seen.append)
            written = await root.write("app.note", data="now")
            [entries] = [changes.entries for changes in seen if changes.entries]
            assert [entry.kind for entry in entries] == ["app.note", "app.note", "pi.user"]
            assert [change.after.kind for change in seen[0].tasks.values()] == ["pi.generation"]
            assert [await each.status() for each in (queued, written)] == ["done", "done"]
            assert await inbox(h) == []
            settled = await (await h.submission(first)).wait()
            assert isinstance(settled, Unanswered)
            assert settled.reason == "no_model"  # this host has none
            tasks = len(await h.tasks())
            await (await root.write("app.note", data="idle")).wait()
            assert len(await h.tasks()) == tasks

    home.run(main())


def test_s2_a_queued_write_may_be_withdrawn_once_and_then_never_changes(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            await busy(h, run=True)
            writes = [await root.write("app.note", data=n) for n in range(3)]
            wait = asyncio.ensure_future(writes[1].wait())
            await asyncio.sleep(1)
            assert await writes[1].abort() is True
            assert await writes[1].abort() is False
            assert await wait == Unanswered(reason="aborted")
            assert [item["id"] for item in await inbox(h)] == [writes[0].id, writes[2].id]
            await busy(h, run=False)
            await root.write("app.note", data=3)
            assert await datas(h) == [0, 2, 3]
            assert (await writes[1].record()).state == Unanswered(reason="aborted")
            with pytest.raises(StorageRequestError):
                await h.submission(999)

    home.run(main())


@pytest.mark.parametrize("seed", range(8))
def test_s5_a_wait_that_begins_while_its_write_is_settled_ends(memory: "Home", seed: int) -> None:
    async def main() -> None:
        async with memory.open() as h:
            root = await h.root()
            await busy(h, run=True)
            writes = [await root.write("app.note", data=n) for n in range(5)]
            await busy(h, run=False)
            waits = [asyncio.ensure_future(write.wait()) for write in writes for _ in range(2)]
            placing = asyncio.ensure_future(root.write("app.note", data="last"))
            waits += [asyncio.ensure_future(write.wait()) for write in writes]
            for wait in await asyncio.wait_for(asyncio.gather(*waits), 100):
                assert isinstance(wait, Written)
            await placing
            assert not h._settlers

    memory.run(main(), seed=seed)


def test_s5_a_wait_that_is_given_up_or_closed_leaves_nothing(home: "Home") -> None:
    async def main() -> None:
        h = await home.open()
        root = await h.root()
        await busy(h, run=True)
        write = await root.write("app.note")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(write.wait(), 1)
        assert not h._settlers
        assert await write.status() == "queued"
        wait = asyncio.ensure_future(write.wait())
        await asyncio.sleep(1)
        await h.aclose()
        with pytest.raises(SessionClosed):
            await wait

    home.run(main())


# --- S4, O5: what an abort does to a queue ----------------------------------------------------------------------------


class Leads(Phase[Json], task="leads"):
    deep: Input[bool]

    async def run(self, rt: Runtime) -> "Sleeping[Rests]":
        async with rt.commit() as tx:
            where = await tx.create_conversation()
            if self.deep:
                tx.spawn(Leads(False), conversation=where)
            return tx.become(Sleeping(until=rt.now().replace(year=2100), then=Rests(where)))


class Rests(Phase[Json]):
    where: int

    async def run(self, rt: Runtime) -> "Done[Json]":
        return Done(None)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("when", ["live", "at the opening"])
def test_s4_o5_a_cancelled_conversation_gives_up_its_inputs_and_keeps_its_writes(
    home: "Home", when: str, deep: bool
) -> None:
    async def main() -> tuple[SubmissionId, ConversationId]:
        async with home.open(Leads, run=True) as h:
            ref = await (await h.root()).start(Leads(deep))
            await asyncio.sleep(1)
            records = await h.tasks()
            checkpoint = records[-1].checkpoint
            assert checkpoint is not None
            where = ConversationId(int(str(checkpoint["where"])))
            async with h.engine.session.block(h.engine._subject(ref.id), conversation=where) as tx:
                (await tx.edit(live.LIVE, live.at(live.LIVE, where)))["run"] = {"taskId": 999, "inputs": []}
            asked = await queue_input(h, where)
            written = await (await h.conversation(where)).write("app.note", data="stays")
            if when == "live":
                await h.abort(ref)
                await h.outcome(ref)
            else:
                h.engine.scheduler.stop()  # nothing follows from the mark in this life
                await asyncio.sleep(1)
                await h.abort(ref)
            assert await written.status() == "queued"
            return asked, where

    asked, where = home.run(main())

    async def again() -> None:
        async with home.open(Leads, run=False) as h:
            record = await (await h.submission(asked)).record()
            assert record.state == Unanswered(reason="aborted")
            assert [item["mode"] for item in await inbox(h, where)] == ["write"]
            h.resume()
            await h.wait_idle()

    home.run(again())
