"""Conversations: the root, new ones, forks and their documents, pages of a transcript, and who owns what."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import pytest

from pidurable_nb import Document, Done, Harness, Json, Phase, Runtime, TaskRef
from pidurable_nb.agent.stored import live
from pidurable_nb.errors import (
    BlockEnded,
    DocumentRefused,
    NotJson,
    ReadAfterWrite,
    StorageRequestError,
    SuspendedBlock,
    UnknownPhase,
)
from pidurable_nb.ids import ROOT, ConversationId, EntryId
from pidurable_nb.records.document import ConversationScope
from pidurable_nb.records.transcript import Owner, Parent
from pidurable_nb.store.storage import Order

if TYPE_CHECKING:
    from tests.agent.conftest import Home

KINDS = ["pi.live", "pi.inbox", "pi.usage", "pi.provider", "pi.agent"]


class AsOf(Document, kind="app.as-of", scope="conversation", history="rewindable", fork="as_of"):
    text: str = ""


class Current(Document, kind="app.current", scope="conversation", fork="current"):
    text: str = ""


class Initial(Document, kind="app.initial", scope="conversation", fork="initial"):
    text: str = ""


class Shared(Document, kind="app.shared", scope="session"):
    text: str = ""


TEXTS: Sequence[type[AsOf]] = [
    AsOf,
    cast("type[AsOf]", Current),
    cast("type[AsOf]", Initial),
    cast("type[AsOf]", Shared),
]


async def documents_of(h: Harness, conversation: ConversationId) -> list[tuple[int, str]]:
    """Ids and kinds of a conversation's documents, in id order."""
    async with h.engine.session.block(h.engine._subject(0)) as tx:  # type: ignore[arg-type]
        found = await tx.documents(ConversationScope(conversation))
    return [(record.id, record.kind) for record in found]


async def texts(h: Harness, conversation: ConversationId) -> list[Json]:
    page = await (await h.conversation(conversation)).entries(order="ascending")
    return [entry.data for entry in page.items]  # type: ignore[misc]


async def note(h: Harness, conversation: ConversationId, data: Json) -> EntryId:
    async with (await h.conversation(conversation)).commit() as tx:
        return tx.append("app.note", data=data)


# --- The root ---------------------------------------------------------------------------------------------------------


def test_the_root_is_not_made_by_opening_and_once_by_asking(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            with pytest.raises(StorageRequestError):
                await h.conversation(1)
            roots = await asyncio.gather(*[h.root() for _ in range(10)])
            assert {root.id for root in roots} == {ROOT}
            assert await documents_of(h, ROOT) == list(zip(range(2, 7), KINDS, strict=True))
            record = await roots[0].record()
            assert (record.parent, record.owner) == (None, None)
        async with home.open() as h:
            assert (await h.root()).id == ROOT
            assert len(await documents_of(h, ROOT)) == 5

    home.run(main())


def test_the_documents_of_a_conversation_begin_as_the_format_says(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            await h.root()
            session = h.engine.session
            values = {d.kind: await session.snapshot(d, live.at(d, ROOT)) for d in
                      (live.LIVE, live.INBOX, live.USAGE, live.PROVIDER, live.AGENT)}  # fmt: skip
            provider = values.pop("pi.provider")
            assert values == {"pi.live": {}, "pi.inbox": {"items": []}, "pi.usage": {"models": {}, "tools": {}},
                              "pi.agent": {}}  # fmt: skip
            assert provider is not None
            id = str(provider["sessionId"])
            assert (len(id), id[14]) == (36, "7")

    home.run(main())


def test_a_commit_of_the_session_makes_the_root_when_it_is_needed(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            async with h.commit() as tx:
                tx.append("app.note", data="first")
            assert await texts(h, ROOT) == ["first"]
            assert [kind for _, kind in await documents_of(h, ROOT)] == KINDS

    home.run(main())


# --- Commits ----------------------------------------------------------------------------------------------------------


def test_c1_c2_a_block_lands_whole_and_is_seen_when_it_is_stored(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            with pytest.raises(ZeroDivisionError):
                async with root.commit() as tx:
                    tx.append("app.note", data="lost")
                    (await tx.edit(AsOf)).text = "lost"
                    _ = 1 // 0
            assert (await h.read(AsOf)).text == ""
            async with root.commit() as tx:
                tx.append("app.note", data="kept")
                (await tx.edit(AsOf)).text = "kept"
                assert (await h.read(AsOf)).text == ""
                assert await texts(h, ROOT) == []
            assert (await h.read(AsOf)).text == "kept"
            assert await texts(h, ROOT) == ["kept"]

    home.run(main())


def test_c3_c5_c7_what_a_block_refuses(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            with pytest.raises(ReadAfterWrite):
                async with root.commit() as tx:
                    tx.append("app.note")
                    await tx.entry(EntryId(3))
            with pytest.raises(NotJson):
                async with root.commit() as tx:
                    tx.append("app.note", data=float("nan"))
            with pytest.raises(StorageRequestError, match="pi"):
                async with root.commit() as tx:
                    tx.append("pi.user")
            with pytest.raises(SuspendedBlock):
                async with root.commit() as tx:
                    await h.root()
                    await asyncio.sleep(1)
            async with root.commit() as tx:
                pass
            with pytest.raises(BlockEnded):
                tx.append("app.note")
            with pytest.raises(StorageRequestError, match="task"):
                async with root.commit() as tx:

                    class OfTask(Document, kind="app.of-task", scope="task"):
                        text: str = ""

                    await tx.edit(OfTask)
            assert await texts(h, ROOT) == []

    home.run(main())


def test_c3_a_block_that_waits_for_its_own_harness_cannot_hang_it(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            for call in (h.wait_idle, lambda: root.write("app.note"), h.aclose, lambda: h.abort(3)):
                with pytest.raises(SuspendedBlock):
                    async with root.commit():
                        await call()
                        await asyncio.sleep(1)
                if call == h.aclose:
                    break

    home.run(main())


# --- New conversations and forks --------------------------------------------------------------------------------------


def test_o1_a_new_conversation_is_ownerless_and_has_its_documents(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            await h.root()
            made = await h.create()
            assert made.id != ROOT
            assert (await made.record()).owner is None
            assert [kind for _, kind in await documents_of(h, made.id)] == KINDS
            await note(h, made.id, "here")
            assert await texts(h, made.id) == ["here"]
            assert await texts(h, ROOT) == []
            assert made == await h.conversation(made.id)
            assert len({made, await h.conversation(made.id)}) == 1

    home.run(main())


def test_v3_a_fork_shares_the_transcript_through_its_entry_and_documents_by_policy(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()

            async def write(text: str) -> EntryId:
                async with root.commit() as tx:
                    for doc in TEXTS:
                        (await tx.edit(doc)).text = text
                    return tx.append("app.note", data=text)

            at = await write("one")
            await write("two")
            child = await root.fork(at=at)
            assert (await child.record()).parent == Parent(conversation=ROOT, at=at)
            assert await texts(h, child.id) == ["one"]
            assert (await h.read(AsOf, of=child)).text == "one"
            assert (await h.read(Current, of=child)).text == "two"
            assert (await h.read(Initial, of=child)).text == ""
            assert (await h.read(Shared)).text == "two"
            kinds = [kind for _, kind in await documents_of(h, child.id)]
            assert sorted(kinds) == sorted([*KINDS, "app.as-of", "app.current"])
            await note(h, child.id, "branch")
            async with child.commit() as tx:
                for doc in TEXTS[:2]:
                    (await tx.edit(doc)).text = "branch"
            assert await texts(h, child.id) == ["one", "branch"]
            assert await texts(h, ROOT) == ["one", "two"]
            assert (await h.read(AsOf)).text == (await h.read(Current)).text == "two"
            assert (await h.read(AsOf, at=at)).text == "one"
            grandchild = await child.fork(at=at)
            assert (await h.read(AsOf, of=grandchild)).text == "one"
            assert await texts(h, grandchild.id) == ["one"]
        async with home.open() as h:
            assert await texts(h, child.id) == ["one", "branch"]
            assert (await h.read(AsOf, of=await h.conversation(child.id))).text == "branch"

    home.run(main())


def test_v3_f2_what_a_fork_refuses(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            at = await note(h, ROOT, "one")
            later = await note(h, ROOT, "two")
            child = await root.fork(at=at)
            with pytest.raises(StorageRequestError):
                await child.fork(at=later)
            with pytest.raises(StorageRequestError):
                await root.fork(at=EntryId(999))
            with pytest.raises(DocumentRefused):
                async with root.commit() as tx:
                    (await tx.edit(Current)).text = "both"
                    await tx.fork(ROOT, at=at)
            assert (await h.read(Current)).text == ""

    home.run(main())


# --- Paging -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_v1_v3_pages_in_both_orders_cross_the_fork(home: "Home", order: Order, limit: int) -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            ids = [await note(h, ROOT, n) for n in range(5)]
            child = await root.fork(at=ids[2])
            await note(h, ROOT, "elsewhere")
            ids = [*ids[:3], *[await note(h, child.id, n) for n in range(3, 6)]]
            expected = [0, 1, 2, 3, 4, 5] if order == "ascending" else [5, 4, 3, 2, 1, 0]
            found: list[Json] = []
            after: int | None = None
            while True:
                page = await child.entries(limit=limit, after=after, order=order)
                assert len(page.items) <= limit
                found += [entry.data for entry in page.items]  # type: ignore[misc]
                if page.next is None:
                    break
                after = page.next
            assert found == expected
            middle = await child.entries(first=ids[1], last=ids[4], order=order)
            assert [entry.data for entry in middle.items] == expected[1:5]

    home.run(main())


# --- Ownership --------------------------------------------------------------------------------------------------------


class Leader(Phase[Json], task="leader"):
    async def run(self, rt: Runtime) -> "Done[Json]":
        async with rt.commit() as tx:
            mine = await tx.create_conversation()
            free = await tx.create_conversation(owned=False)
            work = tx.spawn(Worker(), conversation=mine)
            tx.append("app.note", data="in the leader's", conversation=mine)
            return tx.become(Done([mine, free, work.id]))


class Worker(Phase[Json], task="worker"):
    async def run(self, rt: Runtime) -> "Done[Json]":
        await asyncio.sleep(1)
        async with rt.commit() as tx:
            tx.append("app.note", data="from the worker")
            return tx.become(Done(None))


def test_o1_a_task_owns_conversations_and_they_inherit_the_agent_of_its_own(home: "Home") -> None:
    async def main() -> None:
        async with home.open(Leader, Worker) as h:
            root = await h.root()
            async with h.engine.session.block(h.engine._subject(0), conversation=ROOT) as tx:  # type: ignore[arg-type]
                (await tx.edit(live.AGENT, live.at(live.AGENT, ROOT)))["instructions"] = "be brief"
            ref = await root.start(Leader())
            result = await h.wait(ref)
            assert isinstance(result, tuple)
            mine, free, work = [int(str(id)) for id in result]
            record = await (await h.conversation(mine)).record()
            assert record.owner == Owner(conversation=ROOT, task=ref.id)
            assert (await (await h.conversation(free)).record()).owner is None
            assert (await h.task(work)).conversation == mine
            assert (await h.task(work)).ended_at_ms <= ((await h.task(ref)).ended_at_ms or 0)  # type: ignore[operator]
            assert await texts(h, ConversationId(mine)) == ["in the leader's", "from the worker"]
            [_, by_worker] = (await (await h.conversation(mine)).entries(order="ascending")).items
            assert by_worker.by_task == work
            agent = await h.engine.session.snapshot(live.AGENT, live.at(live.AGENT, ConversationId(mine)))
            assert agent == {"instructions": "be brief"}
            assert await h.engine.session.snapshot(live.AGENT, live.at(live.AGENT, ConversationId(free))) == {}

    home.run(main())


def test_what_is_not_installed_cannot_start_and_a_block_without_conversation_needs_one(home: "Home") -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            with pytest.raises(UnknownPhase, match="Worker"):
                await root.start(Worker())
            h.install(Worker)
            ref: TaskRef[Json] = await root.start(Worker(), barrier=True)
            assert await h.wait(ref) is None

    home.run(main())
