"""The view of a conversation: stored state only, one view a commit, cheap to grow, convergent for who is slow."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pidurable_nb import Harness, Json
from pidurable_nb.agent.stored import live
from pidurable_nb.agent.watching.view import (
    DOCUMENTS,
    ActiveEntries,
    ConversationView,
    ViewWatch,
    read_view,
    view_after,
    watch_conversation,
)
from pidurable_nb.clock import SystemClock
from pidurable_nb.errors import SessionClosed, SessionFailed, StorageError, StorageRequestError
from pidurable_nb.ids import ABSENT, ROOT, ConversationId, EntryId, Seq, TaskId
from pidurable_nb.probe import ConversationSubject
from pidurable_nb.records.document import ConversationScope
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, EntryRecord
from pidurable_nb.session.block import Block
from pidurable_nb.session.changes import Changes
from pidurable_nb.session.definition import Definition
from pidurable_nb.session.session import Session
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.storage import Commit

if TYPE_CHECKING:
    from tests.agent.conftest import Home

EDITED = (live.LIVE, live.INBOX, live.USAGE, live.AGENT)


def block(session: Session, conversation: ConversationId = ROOT) -> Block:
    return session.block(ConversationSubject(conversation), conversation=conversation)


async def say(session: Session, *texts: str, conversation: ConversationId = ROOT) -> list[EntryId]:
    """One commit with these user messages."""
    async with block(session, conversation) as tx:
        return [tx.append("pi.user", text=text) for text in texts]


async def put(session: Session, definition: Definition, conversation: ConversationId = ROOT, **values: Json) -> None:
    """One commit that changes a document."""
    async with block(session, conversation) as tx:
        (await tx.edit(definition, live.at(definition, conversation))).update(values)


async def from_scratch(session: Session, conversation: ConversationId = ROOT) -> ConversationView:
    async with block(session, conversation) as tx:
        return await read_view(tx, conversation)


async def rest(watch: ViewWatch) -> list[ConversationView]:
    return [view async for view in watch]


def entry(id: int, *, head: int | None = None) -> EntryRecord:
    at = EntryId(head) if head is not None else None
    return EntryRecord(id=EntryId(id), conversation=ROOT, kind="app.note", head=at)


def commit(*entries: EntryRecord, seq: int = 1) -> Changes:
    return Changes(Seq(seq), False, {}, (), entries, {}, ())


def ids(entries: Sequence[EntryRecord]) -> list[int]:
    return [entry.id for entry in entries]


# --- What a watch shows -----------------------------------------------------------------------------------------------


def test_v4_a_late_observer_starts_from_the_current_view_and_gets_one_view_for_every_commit(home: Home) -> None:
    async def main() -> None:
        async with home.open() as h:
            await h.root()
            session = h.engine.session
            first = await say(session, "one", "two")
            watch = await watch_conversation(session, ROOT)
            assert ids(watch.value.entries) == first
            assert watch.value.conversation.id == ROOT
            assert set(watch.value.docs) == set(DOCUMENTS)
            async with block(session) as tx:
                (await tx.edit(live.LIVE, live.at(live.LIVE, ROOT)))["run"] = {"taskId": 99, "inputs": [98]}
                (await tx.edit(live.AGENT, live.at(live.AGENT, ROOT)))["cwd"] = "/srv"
                later = [tx.append("pi.user", text="three"), tx.append("app.note", data=4)]
            view = await anext(watch)
            assert view is watch.value
            assert ids(view.entries) == [*first, *later]
            assert view.docs["pi.live"] == {"run": {"taskId": 99, "inputs": [98]}}
            assert view.docs["pi.agent"] == {"cwd": "/srv"}
            await put(session, live.LIVE, compactions=[])
            again = await anext(watch)
            assert again.entries is view.entries
            assert again.docs["pi.agent"] is view.docs["pi.agent"]
            assert again.seq > view.seq
            late = await watch_conversation(session, ROOT)
            assert late.value == again
            watch.stop()
            assert await rest(watch) == []

    home.run(main())


def test_v4_what_does_not_touch_the_conversation_makes_no_view(home: Home) -> None:
    async def main() -> None:
        async with home.open() as h:
            await h.root()
            other = (await h.create()).id
            session = h.engine.session
            watch = await watch_conversation(session, ROOT)
            await say(session, "elsewhere", conversation=other)
            await put(session, live.AGENT, other, cwd="/")
            note = Definition(kind="app.note", scope="conversation")
            await put(session, note, text="not one of the five")
            assert len(watch._frames) == 0
            await put(session, live.USAGE, tools={})  # as it was: nothing is stored
            assert len(watch._frames) == 0
            watch.stop()

    home.run(main())


def test_c2_a_view_never_shows_what_is_only_staged_and_an_observer_that_came_meanwhile_misses_nothing() -> None:
    gate = asyncio.Event()

    class Gated(MemoryStorage):
        async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
            await gate.wait()
            return await super().commit(group)

    async def main() -> None:
        gate.set()
        session = await open_session(Gated())
        await say(session, "stored")
        watch = await watch_conversation(session, ROOT)
        gate.clear()
        writers = [asyncio.create_task(say(session, "staged")), asyncio.create_task(put(session, live.LIVE, tools=[]))]
        joining = asyncio.create_task(watch_conversation(session, ROOT))
        behind = [asyncio.create_task(say(session, "behind"))]
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(watch.value.entries) == 1
        assert "pi.live" not in watch.value.docs
        assert not joining.done()
        gate.set()
        joined = await joining
        for writer in (*writers, *behind):
            await writer
        await say(session, "after")
        watch.stop()
        joined.stop()
        assert [len(view.entries) for view in await rest(watch)] == [2, 2, 3, 4]
        assert [len(view.entries) for view in await rest(joined)] == [4]
        assert joined.value == watch.value == await from_scratch(session)
        await session.close()

    asyncio.run(main())


def test_c2_what_is_stored_while_an_observer_waits_for_its_turn_is_shown_once() -> None:
    gate, slow = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStorage):
        async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
            await gate.wait()
            return await super().commit(group)

        async def task(self, id: TaskId) -> TaskRecord | None:
            await slow.wait()
            return await super().task(id)

    async def main() -> None:
        gate.set()
        session = await open_session(Slow())
        gate.clear()

        async def hold() -> None:
            async with block(session) as tx:
                await tx.task(TaskId(5))

        writing = asyncio.create_task(say(session, "once"))
        holding = asyncio.create_task(hold())
        await asyncio.sleep(0)
        joining = asyncio.create_task(watch_conversation(session, ROOT))
        await asyncio.sleep(0)
        gate.set()
        await writing  # stored, and heard by who waits already
        slow.set()
        await holding
        watch = await joining
        assert len(watch.value.entries) == 1
        watch.stop()
        await session.close()

    asyncio.run(main())


def test_v4_the_documents_come_and_go_by_kind(memory: Home) -> None:
    async def main() -> None:
        async with memory.open() as h:
            await h.root()
            session = h.engine.session
            watch = await watch_conversation(session, ROOT)
            async with block(session) as tx:
                await tx.retire(live.AGENT, live.at(live.AGENT, ROOT))
            assert "pi.agent" not in (await anext(watch)).docs
            await put(session, live.AGENT, cwd="/new")
            assert (await anext(watch)).docs["pi.agent"] == {"cwd": "/new"}
            assert watch.value == await from_scratch(session)
            watch.stop()

    memory.run(main())


# --- Heads ------------------------------------------------------------------------------------------------------------


def test_v1_a_head_stands_first_and_keeps_the_entries_from_its_target_on(home: Home) -> None:
    async def main() -> None:
        async with home.open() as h:
            await h.root()
            session = h.engine.session
            one, two, three = await say(session, "one", "two", "three")
            watch = await watch_conversation(session, ROOT)
            async with block(session) as tx:
                compaction = tx.append("pi.compaction", text="one, in short", head=two)
            assert ids((await anext(watch)).entries) == [compaction, two, three]
            (four,) = await say(session, "four")
            assert ids((await anext(watch)).entries) == [compaction, two, three, four]
            async with block(session) as tx:  # over an older head, with an entry before it and one behind
                again = tx.append("pi.compaction", text="one and two, in short", head=three)
                five = tx.append("pi.user", text="five")
            assert ids((await anext(watch)).entries) == [again, three, four, five]
            assert watch.value == await from_scratch(session)
            async with block(session) as tx:
                reset = tx.append("pi.reset", head="self")
            assert ids((await anext(watch)).entries) == [reset]
            assert watch.value == await from_scratch(session)
            assert one < two
            watch.stop()
        async with home.open() as h:
            late = await watch_conversation(h.engine.session, ROOT)
            assert ids(late.value.entries) == [reset]
            late.stop()

    home.run(main())


def test_v3_the_view_of_a_fork_holds_its_past_and_follows_its_own_commits(home: Home) -> None:
    async def main() -> None:
        async with home.open() as h:
            root = await h.root()
            session = h.engine.session
            _, two, three = await say(session, "one", "two", "three")
            async with block(session) as tx:
                head = tx.append("pi.compaction", text="one, in short", head=two)
            (four,) = await say(session, "four")
            await put(session, live.AGENT, cwd="/parent")
            child = await root.fork(at=four)
            watch = await watch_conversation(session, child.id)
            assert ids(watch.value.entries) == [head, two, three, four]
            assert "cwd" not in watch.value.docs["pi.agent"]
            await say(session, "five of the parent")
            await put(session, live.AGENT, cwd="/elsewhere")
            assert len(watch._frames) == 0
            (mine,) = await say(session, "five of the child", conversation=child.id)
            async with block(session, child.id) as tx:
                cut = tx.append("pi.compaction", text="in short", head=three)
            assert [ids(view.entries) for view in [await anext(watch), await anext(watch)]] == [
                [head, two, three, four, mine],
                [cut, three, four, mine],
            ]
            assert watch.value == await from_scratch(session, child.id)
            watch.stop()

    home.run(main())


# --- Growing ----------------------------------------------------------------------------------------------------------


def test_an_append_to_a_long_transcript_copies_nothing_and_changes_no_earlier_view() -> None:
    view = ConversationView(
        conversation=ConversationRecord(id=ROOT), entries=ActiveEntries(None, map(entry, range(10, 10_010))), docs={}
    )
    shared = view.entries._shared
    views = [view]
    for id in range(20_000, 20_500):
        views.append(view_after(views[-1], commit(entry(id))))
    assert all(later.entries._shared is shared for later in views)
    assert [len(later.entries) for later in views] == list(range(10_000, 10_501))
    assert ids(views[3].entries[-4:]) == [10_009, 20_000, 20_001, 20_002]
    assert view.entries == ActiveEntries(None, map(entry, range(10, 10_010)))


def test_two_views_that_grow_from_the_same_one_do_not_show_each_other() -> None:
    base = ActiveEntries(entry(5), map(entry, (6, 7)))
    one, other = base.appended(entry(8)), base.appended(entry(9))
    further = one.appended(entry(10))
    assert [ids(each) for each in (base, one, other, further)] == [
        [5, 6, 7],
        [5, 6, 7, 8],
        [5, 6, 7, 9],
        [5, 6, 7, 8, 10],
    ]
    assert one != other
    assert hash(one) == hash(ActiveEntries(entry(5), map(entry, (6, 7, 8))))


@pytest.mark.parametrize("head", [None, 3])
def test_the_active_entries_are_a_sequence_like_the_tuple_of_them(head: int | None) -> None:
    marker = entry(20, head=head) if head is not None else None
    active = ActiveEntries(marker, map(entry, range(3, 9)))
    as_tuple = (*((marker,) if marker is not None else ()), *map(entry, range(3, 9)))
    assert tuple(active) == as_tuple
    assert len(active) == len(as_tuple)
    for i in range(-len(as_tuple), len(as_tuple)):
        assert active[i] == as_tuple[i]
    for cut in (slice(None), slice(1, -1), slice(-2, None), slice(None, None, -2), slice(40, 50)):
        assert active[cut] == as_tuple[cut]
    for outside in (len(as_tuple), -len(as_tuple) - 1):
        with pytest.raises(IndexError):
            active[outside]
    assert active.index(as_tuple[2]) == 2
    assert entry(99) not in active
    assert list(reversed(active)) == list(reversed(as_tuple))
    names = {"ABSENT": ABSENT, "ActiveEntries": ActiveEntries, "EntryRecord": EntryRecord}
    assert eval(repr(active), names) == active


# --- Slow observers and ends ------------------------------------------------------------------------------------------


def test_v4_a_slow_observer_gets_the_newest_view_in_place_of_more_than_a_hundred(memory: Home) -> None:
    async def main() -> None:
        async with memory.open() as h:
            await h.root()
            session = h.engine.session
            watch = await watch_conversation(session, ROOT)
            for n in range(100):
                await say(session, str(n))
            assert len(watch._frames) == 100
            for n in range(100, 103):
                await say(session, str(n))
            watch.stop()
            assert [len(view.entries) for view in await rest(watch)] == [101, 102, 103]
            assert watch.value == await from_scratch(session)

    memory.run(main())


def test_v4_a_watch_ends_when_it_is_stopped_and_what_is_queued_can_still_be_read(memory: Home) -> None:
    async def main() -> None:
        async with memory.open() as h:
            await h.root()
            session = h.engine.session
            watch = await watch_conversation(session, ROOT)
            waiting = asyncio.create_task(rest(watch))
            await asyncio.sleep(0)
            await say(session, "seen")
            watch.stop()
            watch.stop()
            await say(session, "not seen")
            assert [len(view.entries) for view in await waiting] == [1]
            assert (watch.ended, len(watch.value.entries)) == ("stopped", 1)
        assert watch.ended == "stopped"

    memory.run(main())


def test_v4_a_watch_ends_with_the_session(home: Home) -> None:
    async def main() -> None:
        h = await home.open()
        await h.root()
        session = h.engine.session
        watch = await watch_conversation(session, ROOT)
        waiting = asyncio.create_task(rest(watch))
        await say(session, "last")
        await h.aclose()
        assert [len(view.entries) for view in await waiting] == [1]
        assert watch.ended == "session_closed"
        with pytest.raises(SessionClosed):
            await watch_conversation(session, ROOT)

    home.run(main())


class Failing(MemoryStorage):
    broken = False

    async def commit(self, group: Sequence[Commit]) -> tuple[Seq, ...]:
        if self.broken:
            raise StorageError("the disk is gone", stored="unknown")
        return await super().commit(group)


def test_f1_a_watch_ends_when_the_session_fails(memory: Home) -> None:
    async def main() -> None:
        storage = Failing()
        async with memory.open(storage=storage) as h:
            await h.root()
            session = h.engine.session
            watch = await watch_conversation(session, ROOT)
            waiting = asyncio.create_task(rest(watch))
            await say(session, "stored")
            storage.broken = True
            with pytest.raises(StorageError):
                await say(session, "lost")
            assert watch.ended == "session_failed"
            assert [len(view.entries) for view in await waiting] == [1]
            with pytest.raises(SessionFailed):
                await watch_conversation(session, ROOT)

    memory.run(main())


def test_f1_an_observer_that_comes_while_the_storage_fails_is_told_so() -> None:
    async def main() -> None:
        storage = Failing()
        session = await open_session(storage)
        await say(session, "stored")
        storage.broken = True
        lost = asyncio.create_task(say(session, "lost"))
        joining = asyncio.create_task(watch_conversation(session, ROOT))
        with pytest.raises(StorageError):
            await lost
        with pytest.raises(SessionFailed):
            await joining
        assert session._listeners == []
        await session.close()

    asyncio.run(main())


def test_a_conversation_that_does_not_exist_cannot_be_watched_and_leaves_nothing_behind(memory: Home) -> None:
    async def main() -> None:
        async with memory.open() as h:
            await h.root()
            session = h.engine.session
            listeners = list(session._listeners)
            with pytest.raises(StorageRequestError, match="999"):
                await watch_conversation(session, ConversationId(999))
            assert session._listeners == listeners
            watch = await watch_conversation(session, ROOT)
            watch.stop()
            assert session._listeners == listeners

    memory.run(main())


def test_f3_a_document_of_newer_code_ends_the_watch_and_nothing_else(memory: Home) -> None:
    async def main() -> None:
        async with memory.open() as h:
            await h.root()
            session = h.engine.session
            watch = await watch_conversation(session, ROOT)
            newer = Definition(
                kind="pi.usage", version=2, scope="conversation", migrate=lambda value, version: {**value, "new": True}
            )
            await put(session, newer)
            assert watch.ended == "listener_error"
            assert len(memory.reports) == 1
            await say(session, "goes on")

    memory.run(main())


# --- Sweeps -----------------------------------------------------------------------------------------------------------


async def open_session(storage: MemoryStorage) -> Session:
    session = await Session.open(storage, clock=SystemClock(), report=lambda error: None)
    async with session.block(ConversationSubject(ROOT)) as tx:
        tx.put_conversation(ConversationRecord(id=ROOT))
    return session


class Oracle:
    """Every stored commit, and the view of a conversation after any of them, computed from all of its history."""

    def __init__(self, session: Session) -> None:
        self.commits: list[Changes] = []
        session.subscribe(self.commits.append)

    def view(self, record: ConversationRecord, past: Sequence[EntryRecord], seq: Seq) -> ConversationView:
        entries = list(past)
        docs: dict[str, dict[str, Json]] = {}
        for changes in self.commits:
            if changes.seq is None or changes.seq > seq:
                break
            entries += [each for each in changes.entries if each.conversation == record.id]
            for change in changes.documents:
                if change.record.scope == ConversationScope(record.id):
                    docs.pop(change.record.kind, None)
                    if change.value is not None:
                        docs[change.record.kind] = dict(change.value)
        head = max((each for each in entries if each.head is not None), key=lambda each: each.id, default=None)
        first = head.head if head is not None and head.head is not None else 0
        kept = [each for each in entries if each.head is None and each.id >= first]
        return ConversationView(conversation=record, entries=ActiveEntries(head, kept), docs=docs)


async def scribble(h: Harness, chance: random.Random, conversations: Sequence[ConversationId], commits: int) -> None:
    """Some commits of all kinds to some of the conversations."""
    for n in range(commits):
        where = chance.choice(conversations)
        async with block(h.engine.session, where) as tx:
            view = await read_view(tx, where)
            for definition in chance.sample(EDITED, chance.randint(0, 2)):
                if chance.random() < 0.1:
                    await tx.retire(definition, live.at(definition, where))
                else:
                    (await tx.edit(definition, live.at(definition, where)))[f"k{chance.randint(0, 3)}"] = n
            for _ in range(chance.randint(0, 3)):
                tx.append("pi.user", text=f"text {n}")
            kept = [each.id for each in view.entries if each.head is None]
            if kept and chance.random() < 0.15:
                tx.append("pi.compaction", text="in short", head=chance.choice(kept))
            elif chance.random() < 0.05:
                tx.append("pi.reset", head="self")
            if chance.random() < 0.5:
                tx.append("app.note", data=n)
        for _ in range(chance.randint(0, 4)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(40))
def test_v4_every_watched_view_is_the_one_that_the_whole_history_gives(memory: Home, seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        async with memory.open() as h:
            session = h.engine.session
            oracle = Oracle(session)
            root = await h.root()
            (early, fork_point, _) = await say(session, "early", "fork here", "late")
            assert early
            child = await root.fork(at=fork_point)
            past = {ROOT: [], child.id: (await root.entries(last=fork_point, order="ascending")).items}
            where = [ROOT, child.id, (await h.create()).id]
            past[where[2]] = []
            writers = [asyncio.create_task(scribble(h, chance, where, 25)) for _ in range(3)]
            watches: list[tuple[ViewWatch, ConversationView]] = []
            readers: list[asyncio.Task[list[ConversationView]]] = []
            for _ in range(6):
                for _ in range(chance.randint(0, 40)):
                    await asyncio.sleep(0)
                watch = await watch_conversation(session, chance.choice(where))
                watches.append((watch, watch.value))
                readers.append(asyncio.create_task(rest(watch)))
            await asyncio.gather(*writers)
            for (watch, first), reader in zip(watches, readers, strict=True):
                watch.stop()
                views = await reader
                record = first.conversation
                touching = [
                    c.seq
                    for c in oracle.commits
                    if any(e.conversation == record.id for e in c.entries)
                    or any(d.record.scope == ConversationScope(record.id) for d in c.documents)
                ]
                seqs = [view.seq for view in views]
                assert seqs == touching[len(touching) - len(seqs) :], "a commit was missed or shown twice"
                earlier = touching[: len(touching) - len(seqs)]
                assert first == oracle.view(record, past[record.id], earlier[-1] or Seq(0))
                for view in views:
                    assert view == oracle.view(record, past[record.id], view.seq)
                assert watch.value == await from_scratch(session, record.id)

    memory.run(main(), seed=seed)


@pytest.mark.parametrize("seed", range(6))
def test_v4_a_slow_watcher_converges(memory: Home, seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        async with memory.open() as h:
            session = h.engine.session
            await h.root()
            watch = await watch_conversation(session, ROOT)
            seen = [watch.value]
            writer = asyncio.create_task(scribble(h, chance, [ROOT], 260))
            while not writer.done():
                for _ in range(chance.randint(0, 3000)):
                    await asyncio.sleep(0)
                most = min(chance.randint(0, 20), len(watch._frames))
                seen += [await anext(watch) for _ in range(most)]
                assert len(watch._frames) <= 100
            await writer
            watch.stop()
            seen += await rest(watch)
            assert len(seen) < 260
            assert [view.seq for view in seen] == sorted({view.seq for view in seen})
            assert seen[-1] == watch.value == await from_scratch(session)

    memory.run(main(), seed=seed, limit=2_000_000)
