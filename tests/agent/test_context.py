"""What a model sees of a conversation: the ten rules one by one, forks, and that what is kept is what is derived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pidurable_nb.agent.request import context as module
from pidurable_nb.agent.request.context import Context, Contexts, derive
from pidurable_nb.agent.request.ordering import ordered
from pidurable_nb.clock import SystemClock
from pidurable_nb.errors import SessionClosed, StorageRequestError
from pidurable_nb.ids import ROOT, ConversationId, EntryId, Json, JsonObject
from pidurable_nb.probe import SessionSubject
from pidurable_nb.records.message import calls_of, role_of, text_of
from pidurable_nb.records.transcript import ConversationRecord, Edit, EntryRecord
from pidurable_nb.session.session import Session
from pidurable_nb.store.memory import MemoryStorage
from pidurable_nb.store.sqlite import SqliteStorage
from pidurable_nb.store.storage import Order, Page, Storage

SUBJECT = SessionSubject()


def user(text: str) -> JsonObject:
    return {"role": "user", "content": text, "timestamp": 1}


def system(**sections: str) -> JsonObject:
    return {"role": "system", "content": "", "sections": sections, "timestamp": 1}


def asks(*calls: str, stop: str = "toolUse") -> JsonObject:
    blocks: list[Json] = [{"type": "toolCall", "id": id, "name": "scan", "arguments": {}} for id in calls]
    return {"role": "assistant", "content": blocks, "stopReason": stop, "timestamp": 7}


def says(text: str, stop: str = "stop") -> JsonObject:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": stop, "timestamp": 7}


def result(call: str, text: str = "") -> JsonObject:
    content: list[Json] = [{"type": "text", "text": text or f"result of {call}"}]
    return {"role": "toolResult", "toolCallId": call, "toolName": "scan", "content": content, "isError": False}


def entry(
    id: int, *model: JsonObject, kind: str = "app.any", head: int | None = None, edits: Sequence[Edit] = ()
) -> EntryRecord:
    return EntryRecord(
        id=EntryId(id),
        conversation=ROOT,
        kind=kind,
        model=model or None,
        head=None if head is None else EntryId(head),
        edits=tuple(edits),
    )


def omit(target: int) -> Edit:
    return Edit(target=EntryId(target))


def replace(target: int, *messages: JsonObject) -> Edit:
    return Edit(target=EntryId(target), messages=messages)


def transcript(*messages: JsonObject) -> list[EntryRecord]:
    """One entry a message, from id 11 on."""
    return [entry(11 + index, message) for index, message in enumerate(messages)]


def shown(context: Context) -> list[str]:
    return list(map(brief, context.messages))


def brief(message: JsonObject) -> str:
    """A message in a word: its text, the calls it makes, or what it answers."""
    match role_of(message):
        case "toolResult":
            missing = message.get("isError") is True and "no result" in text_of(message)
            return f"{message['toolCallId']}:{'missing' if missing else text_of(message)}"
        case "system":
            sections = message["sections"]
            assert isinstance(sections, dict)
            return f"system {' '.join(sections)}"
        case _:
            return text_of(message) or f"asks {' '.join(call.id for call in calls_of(message))}"


# -- the rules, one by one -------------------------------------------------------------------------------------------


def test_v2_rule_4_the_newest_edit_of_an_entry_wins() -> None:
    entries = [
        entry(11, user("one")),
        entry(12, user("two")),
        entry(13, edits=[omit(11), replace(12, user("second"), user("again"))]),
        entry(14, edits=[replace(11, user("first")), omit(12), replace(12, user("last"))]),
    ]
    assert shown(derive(entries[:2], None)) == ["one", "two"]
    assert shown(derive(entries[:3], None)) == ["second", "again"]
    assert derive(entries[:3], None).contributions == ((), (user("second"), user("again")), ())
    assert shown(derive(entries, None)) == ["first", "last"]


def test_v2_rule_4_an_edit_counts_from_inside_the_range_only() -> None:
    head = entry(14, user("handoff"), head=12)
    entries = [entry(12, user("two")), entry(13, user("three"), edits=[omit(12)])]
    assert shown(derive([*entries, head], head)) == ["handoff", "three"]
    assert shown(derive([entry(12, user("two")), head], head)) == ["handoff", "two"]  # who omitted it is cut off


def test_v2_rule_4_an_older_marker_in_the_range_still_edits() -> None:
    older = entry(13, user("old summary"), head=12, edits=[omit(12)])
    head = entry(15, user("summary"), head=12)
    context = derive([entry(12, user("two")), older, entry(14, user("four")), head], head)
    assert shown(context) == ["summary", "four"]


def test_v2_rule_4_the_head_may_be_edited_like_any_other() -> None:
    head = entry(12, user("summary"), head=12)
    assert shown(derive([head, entry(13, edits=[replace(12, user("better"))])], head)) == ["better"]


def test_v2_rule_4_the_head_edits_too_wherever_it_is_given() -> None:
    entries = [entry(12, user("two")), entry(13, user("three"), edits=[replace(12, user("2"))])]
    head = entry(14, user("summary"), head=12, edits=[omit(12)])
    later = entry(15, edits=[replace(13, user("3"))])
    for given_entries in ([*entries, head, later], [*entries, later]):
        assert shown(derive(given_entries, head)) == ["summary", "3"]


def test_v2_rule_5_the_head_comes_first_and_other_heads_are_left_out() -> None:
    older = entry(12, user("old summary"), head=11)
    head = entry(14, user("summary"), head=11)
    entries = [entry(11, user("one")), older, entry(13, user("three")), head, entry(15, user("five"))]
    for given_entries in (entries, [e for e in entries if e is not head]):
        context = derive(given_entries, head)
        assert context.head is head
        assert [e.id for e in context.entries] == [14, 11, 13, 15]
        assert shown(context) == ["summary", "one", "three", "five"]


def test_v2_rule_6_every_system_message_stays_where_it_is() -> None:
    messages = (system(a="1"), user("one"), system(a="2"), says("yes"), system(a="2"))
    assert derive(transcript(*messages), None).messages == messages


def test_v2_rule_7_results_follow_their_call_in_call_order() -> None:
    entries = transcript(
        asks("x", "y", "z"), user("wait"), result("z"), system(a="1"), result("x"), user("so?"), result("y"), says("ok")
    )
    assert shown(derive(entries, None)) == [
        "asks x y z", "x:result of x", "y:result of y", "z:result of z", "wait", "system a", "so?", "ok",
    ]  # fmt: skip
    assert [e.id for e in derive(entries, None).entries] == list(range(11, 19))  # committed order stays


def test_v2_rule_7_a_result_behind_the_next_answer_is_not_looked_for() -> None:
    entries = transcript(asks("x"), says("never mind"), result("x"))
    assert shown(derive(entries, None)) == ["asks x", "x:missing", "never mind"]


def test_v2_rule_7_an_answer_that_is_never_sent_does_not_part_a_call_from_its_result() -> None:
    entries = transcript(asks("x"), says("half", "aborted"), result("x"), says("done"))
    assert shown(derive(entries, None)) == ["asks x", "x:result of x", "done"]


def test_v2_rule_7_one_call_id_twice_takes_two_results_in_their_order() -> None:
    entries = transcript(asks("x", "x"), result("x", "1"), result("x", "2"), result("x", "3"))
    assert shown(derive(entries, None)) == ["asks x x", "x:1", "x:2"]


def test_v2_rule_8_a_call_without_result_gets_an_error_that_says_so() -> None:
    entries = transcript(asks("x", "y"), result("y"), user("hello?"))
    context = derive(entries, None)
    assert shown(context) == ["asks x y", "x:missing", "y:result of y", "hello?"]
    missing = context.messages[1]
    assert missing["isError"] is True
    assert missing["toolName"] == "scan"
    assert missing["timestamp"] == 7  # nothing was written, so deriving twice gives the same
    assert derive(entries, None) == context


def test_v2_rule_8_a_result_without_a_call_is_dropped() -> None:
    entries = transcript(result("x"), user("one"), asks("y"), result("x"), result("y"), result("y", "again"))
    assert shown(derive(entries, None)) == ["one", "asks y", "y:result of y"]


@pytest.mark.parametrize("stop", ["aborted", "error", "deferred"])
def test_v2_rule_9_an_answer_that_failed_is_left_out_with_its_calls(stop: str) -> None:
    entries = [
        *transcript(user("one"), asks("x", stop=stop), result("x")),
        entry(20),
        entry(21, says("no", stop), user("two")),
    ]
    context = derive(entries, None)
    assert shown(context) == ["one", "two"]
    assert context.contributions == ((user("one"),), (), (result("x"),), (), (user("two"),))
    edited = derive([*entries, entry(22, edits=[replace(11, says("made up", stop))])], None)
    assert shown(edited) == ["two"]


def test_v2_rule_10_a_system_message_moves_before_users_only() -> None:
    entries = transcript(user("one"), result("lost"), user("two"), system(a="1"), system(b="1"), says("hi"))
    context = derive(entries, None)
    assert shown(context) == ["system a", "one", "two", "system b", "hi"]
    assert [m[0] for m in context.contributions] == [e.model[0] for e in entries if e.model]  # only `messages` moves
    assert shown(derive(transcript(user("one"), says("hi"), system(a="1")), None)) == ["one", "hi", "system a"]
    assert shown(derive(transcript(asks("x"), user("one"), system(a="1")), None))[-2:] == ["one", "system a"]


def test_v2_rule_10_holds_behind_a_head() -> None:
    head = entry(13, user("summary"), head=13)
    assert shown(derive([head, entry(14, user("go")), entry(15, system(a="1"))], head)) == ["system a", "summary", "go"]


def test_v2_nothing_is_an_empty_context() -> None:
    assert derive([], None) == Context(head=None, entries=(), contributions=(), messages=())


# -- on a session ----------------------------------------------------------------------------------------------------


class Counting(MemoryStorage):
    """A storage in memory that counts what transcripts cost, and whose scans can be held."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.held: asyncio.Event | None = None
        self.holds_at = 0
        """Which read waits until it may go on."""
        self.reached = asyncio.Event()

    async def _read(self) -> None:
        self.reads += 1
        if self.held is not None and self.reads >= self.holds_at:
            self.reached.set()
            await self.held.wait()

    async def latest_head(self, conversation: ConversationId, *, until: EntryId | None = None) -> EntryRecord | None:
        await self._read()
        return await super().latest_head(conversation, until=until)

    async def scan_entries(
        self,
        conversation: ConversationId,
        *,
        limit: int,
        first: EntryId | None = None,
        last: EntryId | None = None,
        after: int | None = None,
        order: Order = "descending",
    ) -> Page[EntryRecord]:
        await self._read()
        return await super().scan_entries(conversation, limit=limit, first=first, last=last, after=after, order=order)


async def opened(storage: Storage) -> Session:
    """A session with its root conversation."""
    session = await Session.open(storage, clock=SystemClock(), report=lambda error: None)
    async with session.block(SUBJECT) as tx:
        tx.put_conversation(ConversationRecord(id=ROOT))
    return session


async def say(
    session: Session,
    *messages: JsonObject,
    into: ConversationId = ROOT,
    head: EntryId | Literal["self"] | None = None,
    edits: Sequence[Edit] = (),
) -> EntryId:
    async with session.block(SUBJECT) as tx:
        return tx.append("app.any", model=messages or None, head=head, edits=edits, conversation=into)


async def fork(session: Session, at: EntryId, parent: ConversationId = ROOT) -> ConversationId:
    async with session.block(SUBJECT) as tx:
        return await tx.fork(parent, at)


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    """How a new store is made, of each kind."""
    if request.param == "memory":
        return MemoryStorage
    return lambda: SqliteStorage(tmp_path / "store.sqlite", durability="kill")


def test_v1_rule_1_the_newest_head_through_the_cutoff_counts(make: Callable[[], Storage]) -> None:
    async def main() -> None:
        session = await opened(make())
        one = await say(session, user("one"))
        reset = await say(session, user("start over"), head="self")
        three = await say(session, user("three"))
        summary = await say(session, user("summary"), head=three)
        four = await say(session, user("four"))
        for contexts in (Contexts(session), Contexts(session, most=0)):
            assert shown(await contexts.at(ROOT, one)) == ["one"]
            assert shown(await contexts.at(ROOT, reset)) == ["start over"]
            assert shown(await contexts.at(ROOT, three)) == ["start over", "three"]
            assert shown(await contexts.at(ROOT, summary)) == ["summary", "three"]
            assert shown(await contexts.at(ROOT, four)) == ["summary", "three", "four"]
            assert await contexts.at(ROOT) == await contexts.at(ROOT, four)
        await session.close()

    asyncio.run(main())


def test_v1_rules_2_and_3_the_range_begins_at_the_head_or_at_the_start(make: Callable[[], Storage]) -> None:
    async def main() -> None:
        session = await opened(make())
        contexts = Contexts(session)
        assert await contexts.at(ROOT) == Context(head=None, entries=(), contributions=(), messages=())
        ids = [await say(session, user(str(n))) for n in range(5)]
        assert [e.id for e in (await contexts.at(ROOT)).entries] == ids
        head = await say(session, head=ids[3])
        context = await contexts.at(ROOT)
        assert [e.id for e in context.entries] == [head, *ids[3:]]
        assert context.head == context.entries[0]
        further_back = await say(session, user("all of it"), head=ids[1])
        assert [e.id for e in (await contexts.at(ROOT)).entries] == [further_back, *ids[1:]]
        await session.close()

    asyncio.run(main())


def test_v1_a_long_range_is_read_in_pages(make: Callable[[], Storage], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 3)

    async def main() -> None:
        session = await opened(make())
        for n in range(10):
            await say(session, user(str(n)))
        assert shown(await Contexts(session).at(ROOT)) == [str(n) for n in range(10)]
        await session.close()

    asyncio.run(main())


def test_v3_a_fork_sees_its_parent_through_the_fork_and_no_more(make: Callable[[], Storage]) -> None:
    async def main() -> None:
        session = await opened(make())
        contexts = Contexts(session)
        await say(session, user("one"))
        call = await say(session, asks("x"))
        child = await fork(session, call)
        await say(session, result("x"))
        assert shown(await contexts.at(child)) == ["one", "asks x", "x:missing"]  # the cut took the result
        await say(session, user("ours"), into=child)
        grandchild = await fork(session, call, child)
        await say(session, user("theirs"), into=grandchild)
        assert shown(await contexts.at(ROOT)) == ["one", "asks x", "x:result of x"]
        assert shown(await contexts.at(child)) == ["one", "asks x", "x:missing", "ours"]
        assert shown(await contexts.at(grandchild)) == ["one", "asks x", "x:missing", "theirs"]
        assert shown(await contexts.at(child, call)) == ["one", "asks x", "x:missing"]
        await session.close()

    asyncio.run(main())


def test_v3_an_edit_or_a_head_in_a_branch_shows_in_no_other(make: Callable[[], Storage]) -> None:
    async def main() -> None:
        session = await opened(make())
        contexts = Contexts(session)
        one = await say(session, user("one"))
        two = await say(session, user("two"))
        left, right = await fork(session, two), await fork(session, two)
        await contexts.at(left)
        await contexts.at(right)
        await say(session, edits=[replace(one, user("first"))], into=left)
        await say(session, user("summary"), head=two, into=right)
        assert shown(await contexts.at(ROOT)) == ["one", "two"]
        assert shown(await contexts.at(left)) == ["first", "two"]
        assert shown(await contexts.at(right)) == ["summary", "two"]  # a head into what it inherits
        below = await fork(session, two, right)
        assert shown(await contexts.at(below)) == ["one", "two"]  # from before that head
        await session.close()

    asyncio.run(main())


def test_f2_a_cutoff_that_is_not_visible_is_an_illegal_read(make: Callable[[], Storage]) -> None:
    async def main() -> None:
        session = await opened(make())
        contexts = Contexts(session)
        one = await say(session, user("one"))
        child = await fork(session, one)
        hidden = await say(session, user("two"))
        for conversation, cutoff in ((child, hidden), (ROOT, EntryId(10**6)), (ROOT, EntryId(0))):
            with pytest.raises(StorageRequestError):
                await contexts.at(conversation, cutoff)
        with pytest.raises(StorageRequestError):
            await contexts.at(ConversationId(10**6))
        assert shown(await contexts.at(child)) == ["one"]
        await session.close()
        with pytest.raises(SessionClosed):
            await contexts.at(child)  # though it is still in memory

    asyncio.run(main())


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_v2_the_next_context_after_an_append_asks_the_storage_nothing() -> None:
    async def main() -> None:
        storage = Counting()
        session = await opened(storage)
        contexts = Contexts(session)
        first = await say(session, user("one"))
        context = await contexts.at(ROOT)
        reads = storage.reads
        assert await contexts.at(ROOT) is context
        await say(session, asks("x", "y"))
        await say(session, result("y"), edits=[replace(first, user("uno"))])
        assert shown(await contexts.at(ROOT)) == ["uno", "asks x y", "x:missing", "y:result of y"]
        assert shown(context) == ["one"]  # what was handed out does not change
        late = await say(session, result("x"))
        assert shown(await contexts.at(ROOT)) == ["uno", "asks x y", "x:result of x", "y:result of y"]
        await say(session, user("start over"), head="self")
        assert shown(await contexts.at(ROOT)) == ["start over"]
        assert storage.reads == reads
        assert len((await contexts.at(ROOT, late)).messages) == 4  # before the head: read again
        assert storage.reads > reads
        await session.close()

    asyncio.run(main())


def test_v2_a_cutoff_behind_the_head_is_answered_from_memory() -> None:
    async def main() -> None:
        storage = Counting()
        session = await opened(storage)
        contexts = Contexts(session)
        ids = [await say(session, user(str(n))) for n in range(4)]
        await contexts.at(ROOT)
        reads = storage.reads
        assert shown(await contexts.at(ROOT, ids[1])) == ["0", "1"]
        assert storage.reads == reads
        await session.close()

    asyncio.run(main())


def test_v2_what_is_read_longest_ago_is_dropped_first() -> None:
    async def main() -> None:
        storage = Counting()
        session = await opened(storage)
        contexts = Contexts(session, most=2)
        at = await say(session, user("one"))
        left, right = await fork(session, at), await fork(session, at)

        async def asked(conversation: ConversationId) -> bool:
            before = storage.reads
            assert shown(await contexts.at(conversation)) == ["one"]
            return storage.reads > before

        assert [await asked(c) for c in (ROOT, left, ROOT, right, ROOT, left)] == [True, True, False, True, False, True]
        contexts.forget(ROOT)
        contexts.forget(right)
        assert [await asked(c) for c in (left, ROOT)] == [False, True]
        await session.close()

    asyncio.run(main())


def test_v2_a_conversation_that_grows_unread_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNREAD", 3)

    async def main() -> None:
        storage = Counting()
        session = await opened(storage)
        contexts = Contexts(session)
        await contexts.at(ROOT)
        reads = storage.reads
        for n in range(3):
            await say(session, user(str(n)))
        await contexts.at(ROOT)
        assert storage.reads == reads
        for n in range(3, 7):
            await say(session, user(str(n)))
        assert shown(await contexts.at(ROOT)) == [str(n) for n in range(7)]
        assert storage.reads > reads
        await session.close()

    asyncio.run(main())


@pytest.mark.parametrize("read", range(1, 8))
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("readers", [1, 3])
def test_v4_what_is_committed_while_a_context_is_read_is_in_it_once(
    read: int, head: bool, readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each read that a context takes: its tail, its head, and its pages."""
    monkeypatch.setattr(module, "PAGE", 1)

    async def main() -> None:
        storage = Counting()
        session = await opened(storage)
        contexts = Contexts(session)
        one = await say(session, user("one"))
        for text in ("two", "three", "four"):
            await say(session, user(text))
        reset = await say(session, user("begin"), head=one)
        storage.held, storage.holds_at = asyncio.Event(), storage.reads + read
        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(contexts.at(ROOT)) for _ in range(readers)]
            await storage.reached.wait()
            await say(session, user("five"))
            await say(session, user("six"), head=one if head else None)
            storage.held.set()
        wanted = ["one", "two", "three", "four", "five"]
        wanted = ["six", *wanted] if head else ["begin", *wanted, "six"]
        assert [shown(each.result()) for each in reads] == [wanted] * readers
        assert storage.reads < 40
        await say(session, user("seven"))
        assert shown(await contexts.at(ROOT)) == [*wanted, "seven"]
        assert shown(await contexts.at(ROOT, reset)) == ["begin", "one", "two", "three", "four"]
        await session.close()

    asyncio.run(main())


def test_v4_a_read_that_is_cancelled_leaves_nothing_behind() -> None:
    async def main() -> None:
        storage = Counting()
        session = await opened(storage)
        contexts = Contexts(session)
        storage.held = asyncio.Event()
        reading = asyncio.create_task(contexts.at(ROOT))
        await storage.reached.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        storage.held.set()
        await say(session, user("one"))
        assert shown(await contexts.at(ROOT)) == ["one"]
        await session.close()

    asyncio.run(main())


# -- random transcripts ----------------------------------------------------------------------------------------------

IDS = st.sampled_from(["x", "y", "z"])
MESSAGES = st.one_of(
    st.builds(user, st.sampled_from(["u", "v"])),
    st.builds(says, st.just("answer"), st.sampled_from(["stop", "stop", "aborted", "error", "deferred", "length"])),
    st.lists(IDS, min_size=1, max_size=3).map(lambda ids: asks(*ids)),
    st.builds(result, IDS),
    st.builds(result, IDS),
    st.builds(system, a=st.sampled_from("12")),
)
MODELS = st.one_of(st.lists(MESSAGES, min_size=1, max_size=1), st.lists(MESSAGES, max_size=3))
PLACES = st.integers(0, 40)
"""Which of the entries that are visible; taken modulo how many there are."""


@dataclass(frozen=True)
class Say:
    messages: list[JsonObject]


@dataclass(frozen=True)
class Amend:
    """Edits of entries by their places; None omits."""

    edits: list[tuple[int, list[JsonObject] | None]]


@dataclass(frozen=True)
class Behead:
    """An entry with a head: itself for None."""

    place: int | None


@dataclass(frozen=True)
class Branch:
    place: int


Act = Say | Amend | Behead | Branch
SAYING = st.builds(Say, MODELS)
ACTS: st.SearchStrategy[Act] = st.one_of(
    SAYING,
    SAYING,
    SAYING,
    st.builds(Amend, st.lists(st.tuples(PLACES, st.none() | st.lists(MESSAGES, max_size=2)), min_size=1, max_size=3)),
    st.builds(Behead, st.none() | PLACES),
    st.builds(Branch, PLACES),
)


def naive(visible: Sequence[EntryRecord]) -> tuple[list[EntryRecord], list[tuple[JsonObject, ...]], list[str]]:
    """The ten rules written down once more, with no regard to cost: entries, contributions, messages in a word."""
    head = next((e for e in reversed(visible) if e.head is not None), None)
    scope = [e for e in visible if head is None or head.head is None or e.id >= head.head]
    active = scope if head is None else [head, *(e for e in scope if e.head is None)]
    contributions = list[tuple[JsonObject, ...]]()
    for each in active:
        edits = [edit for other in scope for edit in other.edits if edit.target == each.id]
        messages = (edits[-1].messages if edits else each.model) or ()
        contributions.append(tuple(m for m in messages if m.get("stopReason") not in ("aborted", "error", "deferred")))
    flat = [message for contribution in contributions for message in contribution]
    sent = list[tuple[str, str]]()
    for index, message in enumerate(flat):
        if role_of(message) == "toolResult":
            continue
        sent.append((role_of(message), brief(message)))
        behind = takewhile(lambda other: role_of(other) != "assistant", flat[index + 1 :])
        results = [other for other in behind if role_of(other) == "toolResult"]
        for call in calls_of(message):
            found = next((at for at, other in enumerate(results) if other["toolCallId"] == call.id), None)
            sent.append(("toolResult", f"{call.id}:missing" if found is None else brief(results.pop(found))))
    roles = [role for role, _ in sent]
    if "system" in roles and set(roles[: roles.index("system")]) <= {"user"}:
        sent.insert(0, sent.pop(roles.index("system")))
    return active, contributions, [word for _, word in sent]


def agrees(context: Context, visible: Sequence[EntryRecord]) -> None:
    active, contributions, words = naive(visible)
    assert list(context.entries) == active
    assert list(context.contributions) == contributions
    assert shown(context) == words


@given(st.lists(MESSAGES, max_size=14))
def test_v2_each_call_is_directly_followed_by_its_results_in_call_order(messages: list[JsonObject]) -> None:
    sent = list(ordered(messages, front=True))
    others = [message for message in messages if role_of(message) != "toolResult"]
    left = list[JsonObject]()
    while sent:
        message = sent.pop(0)
        assert role_of(message) != "toolResult"
        left.append(message)
        for call in calls_of(message):
            answer = sent.pop(0)
            assert answer["toolCallId"] == call.id
            assert answer in messages or answer["isError"] is True
    assert sorted(map(id, left)) == sorted(map(id, others))  # nothing else is lost, doubled, or made up


async def perform(session: Session, act: Say | Amend | Behead, mine: list[EntryRecord], into: ConversationId) -> None:
    """Write what `act` says behind the entries that are visible, and add it to them."""

    def at(place: int) -> EntryId:
        return mine[place % len(mine)].id

    match act:
        case Amend(edits) if mine:
            marks = [omit(at(n)) if new is None else replace(at(n), *new) for n, new in edits]
            id = await say(session, user("edits"), edits=marks, into=into)
        case Behead(int(place)) if mine:
            id = await say(session, user("summary"), head=at(place), into=into)
        case Say(messages):
            id = await say(session, *messages, into=into)
        case _:
            id = await say(session, head="self", into=into)
    stored = await session.entry(id)
    assert stored is not None
    mine.append(stored.entry)


@given(st.lists(st.tuples(ACTS, st.integers(0, 3), st.booleans()), max_size=25))
@settings(max_examples=150)
def test_v2_v3_what_is_kept_equals_what_is_derived_anew(steps: list[tuple[Act, int, bool]]) -> None:
    """Conversations that grow, fork, reset and edit; read at random moments, and in the end as of every entry."""

    async def main() -> None:
        session = await opened(MemoryStorage())
        contexts = Contexts(session, most=2)
        seen: dict[ConversationId, list[EntryRecord]] = {ROOT: []}
        for act, which, read in steps:
            where = list(seen)[which % len(seen)]
            mine = seen[where]
            match act:
                case Branch(place):
                    if mine:
                        at = place % len(mine)
                        seen[await fork(session, mine[at].id, where)] = mine[: at + 1]
                case _:
                    await perform(session, act, mine, where)
            if read:
                agrees(await contexts.at(where), mine)
        for where, mine in seen.items():
            agrees(await contexts.at(where), mine)
            for index, each in enumerate(mine):
                agrees(await contexts.at(where, each.id), mine[: index + 1])
        await session.close()

    asyncio.run(main())
