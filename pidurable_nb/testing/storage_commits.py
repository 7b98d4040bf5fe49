"""Owns the checks of commits: groups, sequence numbers, ids, replacement, values, opening again. Never reads a scan."""

from __future__ import annotations

from pidurable_nb.ids import MAX_INTEGER, ROOT, EntryId, TaskId
from pidurable_nb.store.storage import (
    Base,
    Commit,
    CreateDocument,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    Storage,
    Write,
)
from pidurable_nb.testing.storage_checks import (
    Promises,
    commit,
    conversation,
    create,
    document,
    entry,
    expect,
    expect_that,
    refused,
    reopen,
    start,
    submission,
    task,
    value_of,
)

promise = Promises()

# --- Groups and sequence numbers --------------------------------------------------------------------------------


@promise("C8")
async def a_group_is_stored_in_order_each_commit_with_its_number(storage: Storage) -> None:
    await start(storage)
    first, second, work = EntryId(storage.mint()), EntryId(storage.mint()), TaskId(storage.mint())
    seqs = await storage.commit(
        [
            Commit((PutEntry(entry(first)), PutTask(task(work, input=1)))),
            Commit((PutTask(task(work, input=2)),)),
            Commit((PutEntry(entry(second)), PutTask(task(work, input=3)))),
        ]
    )
    expect(len(seqs), 3, "one number for each commit")
    expect(list(seqs), sorted(set(seqs)), "numbers grow")
    for id, seq in ((first, seqs[0]), (second, seqs[2])):
        found = await storage.entry(id)
        expect(found and found.commit_seq, seq, "an entry knows the number of its commit")
    expect(await storage.task(work), task(work, input=3), "the last commit of a group wins")


@promise("C1", reopens=True)
async def a_refused_commit_takes_its_whole_group_with_it(storage: Storage) -> None:
    await start(storage)
    used, work = EntryId(storage.mint()), TaskId(storage.mint())
    await commit(storage, PutEntry(entry(used, data="kept")), PutTask(task(work, input="kept")))
    doc = document(storage.mint())
    await create(storage, doc, {"n": 0})
    others = [EntryId(storage.mint()) for _ in range(3)]
    group = [
        Commit((PutEntry(entry(others[0])), PutTask(task(work, input="lost")))),
        Commit((PutEntry(entry(others[1])), PutEntry(entry(used, data="lost")))),
        Commit((PutEntry(entry(others[2])),)),
    ]
    async with refused("a group with a used id in its middle"):
        await storage.commit(group)
    await reopen(storage)
    expect([await storage.entry(id) for id in others], [None] * 3, "nothing of the group is stored")
    expect(await storage.task(work), task(work, input="kept"), "a replacement is taken back")
    found = await storage.entry(used)
    expect(found and found.entry, entry(used, data="kept"), "what was stored before stays")
    expect(await value_of(storage, doc.id), {"n": 0}, "documents stay")


@promise("C1", reopens=True)
async def a_storage_goes_on_after_a_refusal_that_stored_nothing(storage: Storage) -> None:
    await start(storage)
    before = await commit(storage)
    async with refused("a used id"):
        await commit(storage, PutConversation(conversation(ROOT)))
    await reopen(storage)
    id = EntryId(storage.mint())
    expect_that(await commit(storage, PutEntry(entry(id))) > before, "numbers go on growing")
    expect_that(await storage.entry(id) is not None, "what is committed then is stored")


@promise()
async def an_empty_commit_takes_a_number(storage: Storage) -> None:
    seqs = [await commit(storage) for _ in range(3)]
    expect(seqs, sorted(set(seqs)), "numbers grow")
    expect_that(seqs[0] >= 1, "the first number is at least 1; 0 means before the first")


@promise("C8", reopens=True)
async def sequence_numbers_grow_across_openings(storage: Storage) -> None:
    last = await commit(storage)
    opened = await reopen(storage)
    expect_that(opened.next_seq > last, f"the opening names a number behind {last}, not {opened.next_seq}")
    expect_that(await commit(storage) >= opened.next_seq, "the next commit takes it, or a later one")


@promise("E5")
async def a_barrier_commit_is_stored_as_any_other(storage: Storage) -> None:
    expect_that(storage.barrier in ("synced", "ordinary"), f"{storage.barrier!r} is no kind of barrier")
    await start(storage)
    id = EntryId(storage.mint())
    seq = await commit(storage, PutEntry(entry(id)), barrier=True)
    found = await storage.entry(id)
    expect(found and (found.entry, found.commit_seq), (entry(id), seq), "what it wrote is there")


# --- Ids --------------------------------------------------------------------------------------------------------


@promise("C6")
async def minting_starts_behind_the_root_and_never_repeats(storage: Storage) -> None:
    minted = [storage.mint() for _ in range(10)]
    expect_that(minted[0] > ROOT, "1 is the root conversation's")
    expect(minted, sorted(set(minted)), "each is higher than the one before")


@promise("C6", reopens=True)
async def committed_ids_are_never_minted_again(storage: Storage) -> None:
    await start(storage)
    ids = [storage.mint() for _ in range(3)]
    await commit(storage, *(PutEntry(entry(id)) for id in ids))
    await reopen(storage)
    expect_that(storage.mint() > max(ids), "minting goes on behind them")


@promise("C6", reopens=True)
async def a_commit_also_keeps_the_ids_that_were_minted_and_not_written(storage: Storage) -> None:
    await start(storage)
    used, *unused = (storage.mint() for _ in range(3))
    await commit(storage, PutEntry(entry(used)))
    await reopen(storage)
    minted = storage.mint()
    expect_that(minted > max(unused), f"{unused} were handed out before a commit, and {minted} is handed out now")


@promise("C6", reopens=True)
async def an_explicit_higher_id_moves_minting_behind_it(storage: Storage) -> None:
    await start(storage)
    await commit(storage, PutEntry(entry(100)))
    expect(storage.mint(), 101, "the next id")
    await reopen(storage)
    expect_that(storage.mint() >= 101, "also after reopening")


@promise("C6")
async def minting_fails_where_the_ids_end(storage: Storage) -> None:
    await start(storage)
    await commit(storage, PutEntry(entry(MAX_INTEGER - 1)))
    expect(storage.mint(), MAX_INTEGER, "the last id")
    async with refused("minting behind 2^53-1"):
        storage.mint()


def _puts(id: int) -> dict[str, Write]:
    return {
        "conversation": PutConversation(conversation(id)),
        "entry": PutEntry(entry(id)),
        "task": PutTask(task(id)),
        "submission": PutSubmission(submission(id)),
        "document": CreateDocument(document(id), Base(1, {})),
    }


@promise("C6", reopens=True)
async def an_id_belongs_to_one_record_for_ever(storage: Storage) -> None:
    await start(storage)
    for first in _puts(0):
        id = storage.mint()
        await commit(storage, _puts(id)[first])
        for second, write in _puts(id).items():
            if first == second and first in ("task", "submission"):
                await commit(storage, write)
                continue
            async with refused(f"a {second} under the id of a {first}"):
                await commit(storage, write)
            await reopen(storage)


@promise("C6", reopens=True)
async def an_id_belongs_to_one_record_within_a_commit_and_a_group(storage: Storage) -> None:
    await start(storage)
    for first in _puts(0):
        for second in _puts(0):
            id = storage.mint()
            writes = (_puts(id)[first], _puts(id)[second])
            if first == second and first in ("task", "submission"):
                await commit(storage, *writes)
                continue
            async with refused(f"a {first} and a {second} of one id in one commit"):
                await commit(storage, *writes)
            await reopen(storage)
            async with refused(f"a {first} and a {second} of one id in one group"):
                await storage.commit([Commit((write,)) for write in writes])
            await reopen(storage)
