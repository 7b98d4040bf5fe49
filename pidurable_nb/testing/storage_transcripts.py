"""Owns the checks of what a conversation sees: its entries in pages, through its forks, and their heads. Never writes
anything but conversations and entries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pidurable_nb.ids import MAX_INTEGER, ROOT, ConversationId, EntryId
from pidurable_nb.records.transcript import EntryRecord
from pidurable_nb.store.storage import Order, Page, PutConversation, PutEntry, Storage
from pidurable_nb.testing.storage_checks import (
    Promises,
    all_pages,
    commit,
    conversation,
    entry,
    expect,
    fork,
    illegal,
    note,
    start,
    there,
)

promise = Promises()


async def _seen(storage: Storage, id: ConversationId) -> list[int]:
    page = await storage.scan_entries(id, limit=1000, order="ascending")
    expect(page.next, None, "a page that holds everything has no cursor")
    return [record.id for record in page.items]


def _pages(
    storage: Storage, id: ConversationId, limit: int, order: Order
) -> Callable[[int | None], Awaitable[Page[EntryRecord]]]:
    return lambda after: storage.scan_entries(id, limit=limit, after=after, order=order)


async def _heads(storage: Storage, id: ConversationId, until: EntryId | None = None) -> int | None:
    found = await storage.latest_head(id, until=until)
    return None if found is None else found.id


async def _head(storage: Storage, id: ConversationId = ROOT) -> EntryId:
    minted = EntryId(storage.mint())
    await commit(storage, PutEntry(entry(minted, id, head=minted)))
    return minted


# --- One conversation -------------------------------------------------------------------------------------------


@promise("V1")
async def entries_come_newest_first_unless_asked_otherwise(storage: Storage) -> None:
    await start(storage)
    ids = [await note(storage) for _ in range(3)]
    page = await storage.scan_entries(ROOT, limit=10)
    expect([record.id for record in page.items], ids[::-1], "newest first")
    expect(await _seen(storage, ROOT), ids, "oldest first when asked")
    expect((await storage.scan_entries(ROOT, limit=2)).items, (entry(ids[2]), entry(ids[1])), "whole records")


@promise("F2")
async def the_entries_of_an_unknown_conversation_are_no_question(storage: Storage) -> None:
    await start(storage)
    unknown, id = ConversationId(99), await note(storage)
    async with illegal("a scan of entries of an unknown conversation"):
        await storage.scan_entries(unknown, limit=1)
    expect(await storage.visible_entry(unknown, id), None, "nothing is visible from there")
    expect(await storage.latest_head(unknown), None, "and it has no head")
    expect(await _seen(storage, ROOT), [id], "nothing else is affected")


@promise("F2")
async def a_page_of_nothing_and_a_cursor_of_nowhere_are_illegal(storage: Storage) -> None:
    await start(storage)
    id = await note(storage)
    for limit in (0, -1):
        async with illegal(f"a page of {limit}"):
            await storage.scan_entries(ROOT, limit=limit)
    for after in (-1, MAX_INTEGER + 1):
        async with illegal(f"the cursor {after}"):
            await storage.scan_entries(ROOT, limit=1, after=after)
    expect(await _seen(storage, ROOT), [id], "and nothing else is affected")


@promise()
async def pages_of_entries_join_without_gap_or_repeat(storage: Storage) -> None:
    await start(storage)
    ids: list[int] = [await note(storage) for _ in range(7)]
    orders: tuple[Order, ...] = ("ascending", "descending")
    for order in orders:
        for limit in (1, 2, 3, 6, 7, 8):
            found = await all_pages(_pages(storage, ROOT, limit, order), limit)
            wanted = ids if order == "ascending" else ids[::-1]
            expect([record.id for record in found], wanted, f"{order}, {limit} at a time")


@promise()
async def bounds_are_included_and_a_cursor_stays_within_them(storage: Storage) -> None:
    await start(storage)
    ids = [await note(storage) for _ in range(6)]
    first, last = ids[1], ids[4]
    up = await storage.scan_entries(ROOT, limit=9, first=first, last=last, order="ascending")
    expect([record.id for record in up.items], ids[1:5], "both ends are there")
    down = await storage.scan_entries(ROOT, limit=2, first=first, last=last)
    expect([record.id for record in down.items], [ids[4], ids[3]], "downwards from the last")
    rest = await storage.scan_entries(ROOT, limit=9, first=first, last=last, after=down.next)
    expect([record.id for record in rest.items], [ids[2], ids[1]], "down to the first")
    below = await storage.scan_entries(ROOT, limit=9, first=first, after=ids[0], order="ascending")
    expect([record.id for record in below.items], ids[1:], "a cursor before the first changes nothing")
    empty = await storage.scan_entries(ROOT, limit=9, first=last, last=first)
    expect((empty.items, empty.next), ((), None), "bounds that cross hold nothing")


@promise()
async def a_cursor_stays_good_while_entries_are_added(storage: Storage) -> None:
    await start(storage)
    ids = [await note(storage) for _ in range(3)]
    up = await storage.scan_entries(ROOT, limit=2, order="ascending")
    down = await storage.scan_entries(ROOT, limit=2)
    later = await note(storage)
    upper = await storage.scan_entries(ROOT, limit=9, after=up.next, order="ascending")
    lower = await storage.scan_entries(ROOT, limit=9, after=down.next)
    expect([record.id for record in upper.items], [ids[2], later], "upwards, the new one is met")
    expect([record.id for record in lower.items], [ids[0]], "downwards, it is not")


# --- Forks ------------------------------------------------------------------------------------------------------


@promise("V3")
async def a_fork_sees_its_parent_up_to_the_fork_entry(storage: Storage) -> None:
    await start(storage)
    before = [await note(storage) for _ in range(3)]
    child = await fork(storage, ROOT, before[1])
    of_child = await note(storage, child)
    after = await note(storage)
    expect(await _seen(storage, child), [before[0], before[1], of_child], "what the child sees")
    expect(await _seen(storage, ROOT), [*before, after], "the parent sees nothing of its child")


@promise("V3")
async def a_fork_at_a_grandparents_entry_sees_nothing_of_what_lies_between(storage: Storage) -> None:
    await start(storage)
    roots = [await note(storage) for _ in range(4)]
    child = await fork(storage, ROOT, roots[2])
    of_child = [await note(storage, child) for _ in range(2)]
    shallow = await fork(storage, child, roots[0])
    of_shallow = await note(storage, shallow)
    deep = await fork(storage, child, of_child[0])
    of_deep = await note(storage, deep)
    deeper = await fork(storage, deep, of_deep)
    expect(await _seen(storage, shallow), [roots[0], of_shallow], "forked where only the root's entry was")
    expect(await _seen(storage, deep), [*roots[:3], of_child[0], of_deep], "three levels, each up to its fork")
    expect(await _seen(storage, deeper), [*roots[:3], of_child[0], of_deep], "four levels, nothing of its own")
    expect(await _seen(storage, child), [*roots[:3], *of_child], "the middle is unchanged")


@promise("V3")
async def branches_see_nothing_of_each_other(storage: Storage) -> None:
    await start(storage)
    shared = await note(storage)
    one, other = await fork(storage, ROOT, shared), await fork(storage, ROOT, shared)
    of_one, of_other = await note(storage, one), await note(storage, other)
    expect(await _seen(storage, one), [shared, of_one], "the one")
    expect(await _seen(storage, other), [shared, of_other], "the other")


@promise("V3")
async def an_entry_is_visible_exactly_where_a_scan_shows_it(storage: Storage) -> None:
    await start(storage)
    tree, lines = [ROOT], [await note(storage), await note(storage)]
    for step in range(12):  # a tree that branches at old and new entries of several levels
        parent = tree[(step * 5) % len(tree)]
        seen = await _seen(storage, parent)
        tree.append(await fork(storage, parent, EntryId(seen[(step * 3) % len(seen)])))
        lines.append(await note(storage, tree[-1]))
        lines.append(await note(storage, tree[step]))
    for id in tree:
        seen = await _seen(storage, id)
        for line in lines:
            found = await storage.visible_entry(id, line)
            expect(found is not None, line in seen, f"entry {line} from conversation {id}, which shows {seen}")
            if found is not None:
                expect(found, await storage.entry(line), "it is the same entry and commit number")
    expect(await storage.visible_entry(ROOT, EntryId(9999)), None, "an unknown entry is visible nowhere")


@promise("V3")
async def pages_join_across_forks(storage: Storage) -> None:
    await start(storage)
    roots: list[int] = [await note(storage) for _ in range(3)]
    child = await fork(storage, ROOT, EntryId(roots[1]))
    children: list[int] = [await note(storage, child) for _ in range(3)]
    leaf = await fork(storage, child, EntryId(children[1]))
    wanted = [*roots[:2], *children[:2], await note(storage, leaf), await note(storage, leaf)]
    await note(storage)
    for limit in (1, 2, 3, 5, 6):
        up = await all_pages(_pages(storage, leaf, limit, "ascending"), limit)
        down = await all_pages(_pages(storage, leaf, limit, "descending"), limit)
        expect([record.id for record in up], wanted, f"upwards, {limit} at a time")
        expect([record.id for record in down], wanted[::-1], f"downwards, {limit} at a time")
    middle = await storage.scan_entries(leaf, limit=9, first=EntryId(wanted[1]), last=EntryId(wanted[4]))
    expect([record.id for record in middle.items], wanted[4:0:-1], "bounds on two levels")


@promise("V3")
async def a_fork_of_an_entry_in_the_same_commit_sees_it(storage: Storage) -> None:
    await start(storage)
    line, child = EntryId(storage.mint()), ConversationId(storage.mint())
    forked = conversation(child)
    await commit(storage, PutEntry(entry(line, child)), PutConversation(forked))
    expect(await _seen(storage, child), [line], "a conversation and its first entry in one commit, in any order")


# --- Heads ------------------------------------------------------------------------------------------------------


@promise("V1")
async def the_latest_head_is_the_newest_up_to_a_bound(storage: Storage) -> None:
    await start(storage)
    expect(await _heads(storage, ROOT), None, "no entry, no head")
    plain = await note(storage)
    expect(await _heads(storage, ROOT), None, "an entry without a head is none")
    first = await _head(storage)
    between = await note(storage)
    second = await _head(storage)
    await note(storage)
    expect(await _heads(storage, ROOT), second, "the newest")
    expect(await _heads(storage, ROOT, second), second, "the bound is included")
    expect(await _heads(storage, ROOT, between), first, "the newest before the bound")
    expect(await _heads(storage, ROOT, plain), None, "none before the bound")
    found = there(await storage.latest_head(ROOT), "the head")
    expect(found, entry(second, head=second), "the whole entry")


@promise("V3")
async def a_fork_has_the_heads_that_it_sees(storage: Storage) -> None:
    await start(storage)
    old = await _head(storage)
    line = await note(storage)
    new = await _head(storage)
    early, late = await fork(storage, ROOT, line), await fork(storage, ROOT, new)
    expect((await _heads(storage, early), await _heads(storage, late)), (old, new), "those before the fork entry")
    own = await _head(storage, early)
    below = await fork(storage, early, line)
    expect(await _heads(storage, early), own, "its own is newer")
    expect(await _heads(storage, early, line), old, "up to a bound in the parent")
    expect(await _heads(storage, below), old, "a fork below the own head does not see it")
    expect(await _heads(storage, ROOT), new, "the parent has only its own")
