"""Owns the checks of document values: bases, deltas, history, copies. Never retires one (see `storage_lives`)."""

from __future__ import annotations

from pidurable_nb.ids import ROOT, JsonObject, Seq, TaskId
from pidurable_nb.records.document import ConversationScope, SessionScope, TaskScope
from pidurable_nb.store.delta import Append, Delete, Op, Put, Reorder, Replace, Splice, Trim
from pidurable_nb.store.storage import Base, ChangeDocument, Commit, CopyDocument, CreateDocument, Delta, Storage
from pidurable_nb.testing.storage_checks import (
    Promises,
    change,
    commit,
    create,
    document,
    expect,
    expect_that,
    illegal,
    rebase,
    start,
    there,
    value_of,
)

promise = Promises()


# --- Bases and deltas -------------------------------------------------------------------------------------------


@promise("C1")
async def a_new_document_has_its_value_and_the_number_of_its_commit(storage: Storage) -> None:
    record = document(storage.mint(), history="rewindable")
    await commit(storage)
    seq = await create(storage, record, {"n": 0}, version=3)
    found = there(await storage.document(record.id), "the document")
    expect((found.version, found.value, found.deltas_since_base), (3, {"n": 0}, 0), "version, value, deltas")
    expect(found.record.created_at, seq, "the storage stamps the record, whatever it said")
    expect(found.record.address, record.address, "the address is as given")
    expect((found.record.history, found.record.fork), (record.history, record.fork), "and so are the policies")


@promise()
async def deltas_apply_in_order_and_are_counted_from_the_newest_base(storage: Storage) -> None:
    for record in (document(storage.mint()), document(storage.mint(), key="r", history="rewindable")):
        await create(storage, record, {"list": [1]})
        await change(storage, record.id, Splice(("list",), 1, 0, [2, 3]))
        await change(storage, record.id, Put(("list", 0), 0), Delete(("list", 1)))
        found = there(await storage.document(record.id), "the document")
        expect((found.value, found.deltas_since_base), ({"list": [0, 3]}, 2), "two deltas on one base")
        await rebase(storage, record.id, {"new": True})
        await change(storage, record.id, Put(("more",), None))
        found = there(await storage.document(record.id), "the document")
        expect((found.value, found.deltas_since_base), ({"new": True, "more": None}, 1), "one delta on a new base")


@promise()
async def every_kind_of_change_comes_back(storage: Storage) -> None:
    record = document(storage.mint())
    await create(storage, record, {"gone": 1})
    batches: list[tuple[Op, ...]] = [
        (Replace({"text": "ab", "list": ["x", "y", "z"], "deep": {"er": {}}}),),
        (Append(("text",), "cd"), Trim(("text",), 1)),
        (Reorder(("list",), (2, 0, 1)), Splice(("list",), 1, 1, [{"n": None}])),
        (Put(("deep", "er", "é"), [1.5, False]), Put(("__",), ""), Delete(("absent",))),
        (Delete(("list", 0)), Append(("text",), "\ud83d"), Append(("text",), "\ude00")),
    ]
    for batch in batches:
        await change(storage, record.id, *batch)
    wanted = {"text": "bcd😀", "list": [{"n": None}, "y"], "deep": {"er": {"é": [1.5, False]}}, "__": ""}
    expect(await value_of(storage, record.id), wanted, "all of them, in order")


@promise("B19")
async def text_is_trimmed_in_utf_16_units(storage: Storage) -> None:
    record = document(storage.mint())
    await create(storage, record, {"tail": "😀é\ufeffab"})
    await change(storage, record.id, Trim(("tail",), 2), Append(("tail",), "😀"))
    expect(await value_of(storage, record.id), {"tail": "é\ufeffab😀"}, "an emoji is two units")
    await change(storage, record.id, Trim(("tail",), 5))
    expect(await value_of(storage, record.id), {"tail": "\ude00"}, "half of one stays as the half that it is")


@promise()
async def several_documents_change_in_one_commit(storage: Storage) -> None:
    records = [document(storage.mint(), key=str(n), history="rewindable") for n in range(3)]
    first = await commit(storage, *(CreateDocument(record, Base(1, {"n": 0})) for record in records))
    await commit(
        storage,
        ChangeDocument(records[0].id, Delta(1, (Put(("n",), 1),))),
        ChangeDocument(records[2].id, Base(2, {"n": 2})),
    )
    now = [await value_of(storage, record.id) for record in records]
    expect(now, [{"n": 1}, {"n": 0}, {"n": 2}], "each its own change")
    then = [await value_of(storage, record.id, first) for record in records]
    expect(then, [{"n": 0}] * 3, "and its own history")


@promise("C8")
async def a_document_changes_in_every_commit_of_a_group(storage: Storage) -> None:
    record = document(storage.mint(), history="rewindable")
    seqs = await storage.commit(
        [
            Commit((CreateDocument(record, Base(1, {"n": 0})),)),
            Commit((ChangeDocument(record.id, Delta(1, (Put(("n",), 1),))),)),
            Commit((ChangeDocument(record.id, Delta(1, (Put(("n",), 2),))),)),
        ]
    )
    values = [await value_of(storage, record.id, seq) for seq in seqs]
    expect(values, [{"n": 0}, {"n": 1}, {"n": 2}], "each commit has its value")


# --- History ----------------------------------------------------------------------------------------------------


@promise("V3")
async def a_rewindable_document_is_read_as_it_was_at_every_commit(storage: Storage) -> None:
    await start(storage)
    record = document(storage.mint(), history="rewindable")
    wanted: dict[Seq, tuple[int, JsonObject] | None] = {await commit(storage): None}
    wanted[await create(storage, record, {"n": 0})] = (1, {"n": 0})
    for n in range(1, 12):
        if n % 5 == 0:
            seq, version = await rebase(storage, record.id, {"n": n}, version=n), n
        elif n % 3 == 0:
            seq, version = await commit(storage), max(1, n - n % 5)
        else:
            version = max(1, n - n % 5)
            seq = await change(storage, record.id, Put(("n",), n), version=version)
        wanted[seq] = (version, {"n": n if n % 3 or n % 5 == 0 else n - 1})
    for seq, value in wanted.items():
        found = await storage.document(record.id, seq)
        expect(found and (found.version, found.value), value, f"as it was at commit {seq}")
    expect(await value_of(storage, record.id, Seq(0)), None, "nothing before the first commit")
    expect(await value_of(storage, record.id, Seq(max(wanted) + 5)), {"n": 11}, "the future is as now")


@promise("F2")
async def history_that_is_not_kept_is_refused_for_that_read_alone(storage: Storage) -> None:
    records = [
        document(storage.mint(), scope=SessionScope()),
        document(storage.mint(), scope=TaskScope(TaskId(5))),
        document(storage.mint(), scope=ConversationScope(ROOT), history="latest"),
    ]
    for record in records:
        seq = await create(storage, record, {"n": 0})
        await change(storage, record.id, Put(("n",), 1))
        for at in (seq, Seq(seq + 1)):
            async with illegal(f"document in {record.scope} at {at}"):
                await storage.document(record.id, at)
        expect(await value_of(storage, record.id), {"n": 1}, "its current value is known")


@promise()
async def a_new_version_comes_with_a_whole_value(storage: Storage) -> None:
    for record in (document(storage.mint()), document(storage.mint(), key="r", history="rewindable")):
        seq = await create(storage, record, {"old": 1}, version=1)
        await rebase(storage, record.id, {"new": 1}, version=2)
        await change(storage, record.id, Put(("more",), 2), version=2)
        found = there(await storage.document(record.id), "the document")
        expect((found.version, found.value), (2, {"new": 1, "more": 2}), "the new version")
        if record.rewindable:
            then = there(await storage.document(record.id, seq), "the document as it was")
            expect((then.version, then.value), (1, {"old": 1}), "the old version")


# --- Copies -----------------------------------------------------------------------------------------------------


@promise("V3")
async def a_copy_is_the_value_before_its_commit(storage: Storage) -> None:
    await start(storage)
    for history_of_source in ("latest", "rewindable"):
        rewindable = history_of_source == "rewindable"
        source = document(storage.mint(), key=history_of_source, history="rewindable" if rewindable else "latest")
        await create(storage, source, {"n": 0}, version=4)
        await change(storage, source.id, Put(("n",), 1), version=4)
        before, after = document(storage.mint(), key="before"), document(storage.mint(), key="after")
        await commit(
            storage,
            CopyDocument(before, source.id, "current"),
            ChangeDocument(source.id, Delta(4, (Put(("n",), 2),))),
            CopyDocument(after, source.id, "current"),
        )
        for copy in (before, after):
            found = there(await storage.document(copy.id), "the copy")
            expect((found.version, found.value, found.deltas_since_base), (4, {"n": 1}, 0), f"copied {copy.key}")
        expect(await value_of(storage, source.id), {"n": 2}, "the source goes on")


@promise("C8")
async def a_copy_sees_the_earlier_commits_of_its_group(storage: Storage) -> None:
    source = document(storage.mint(), key="source")
    copy = document(storage.mint(), key="copy")
    await storage.commit(
        [
            Commit((CreateDocument(source, Base(1, {"n": 0})),)),
            Commit((ChangeDocument(source.id, Delta(1, (Put(("n",), 1),))),)),
            Commit((CopyDocument(copy, source.id, "current"), ChangeDocument(source.id, Base(1, {"n": 2})))),
            Commit((ChangeDocument(copy.id, Delta(1, (Put(("own",), True),))),)),
        ]
    )
    expect(await value_of(storage, copy.id), {"n": 1, "own": True}, "the copy, changed by a later commit")
    expect(await value_of(storage, source.id), {"n": 2}, "the source")


@promise("V3")
async def a_copy_of_a_rewindable_document_takes_any_of_its_commits(storage: Storage) -> None:
    await start(storage)
    source = document(storage.mint(), history="rewindable")
    seqs = [await create(storage, source, {"n": 0}, version=1)]
    seqs.append(await change(storage, source.id, Put(("n",), 1), version=1))
    seqs.append(await rebase(storage, source.id, {"n": 2}, version=2))
    for n, seq in enumerate(seqs):
        copy = document(storage.mint(), key=str(n), history="rewindable")
        made = await commit(storage, CopyDocument(copy, source.id, seq))
        found = there(await storage.document(copy.id), "the copy")
        expect((found.version, found.value), (1 if n < 2 else 2, {"n": n}), f"as of commit {seq}")
        expect(found.record.created_at, made, "made by the commit that copied")
        expect(await value_of(storage, copy.id, seq), None, "without the source's history")


@promise("V3")
async def a_copy_and_its_source_go_on_by_themselves(storage: Storage) -> None:
    source, copy = document(storage.mint(), key="source"), document(storage.mint(), key="copy")
    await create(storage, source, {"list": [1]})
    await commit(storage, CopyDocument(copy, source.id, "current"))
    await change(storage, source.id, Splice(("list",), 1, 0, ["source"]))
    await change(storage, copy.id, Splice(("list",), 0, 1, ["copy"]))
    expect(await value_of(storage, source.id), {"list": [1, "source"]}, "the source")
    expect(await value_of(storage, copy.id), {"list": ["copy"]}, "the copy")
    expect_that(copy.address != source.address, "they answer to different addresses")
