"""Owns the checks of what comes back: records and values as they were written, also after opening again. Never refuses
anything.
"""

from __future__ import annotations

from dataclasses import replace

from pidurable_nb.errors import StorageError
from pidurable_nb.ids import ABSENT, MAX_INTEGER, ROOT, Absent, ConversationId, EntryId, Json, SubmissionId, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import SessionScope, TaskScope
from pidurable_nb.records.strict import same
from pidurable_nb.records.transcript import Answered, Edit, EntryRecord, Owner, Parent, Placed, Unanswered
from pidurable_nb.store.delta import Put
from pidurable_nb.store.storage import (
    Base,
    Commit,
    CreateDocument,
    PutConversation,
    PutEntry,
    PutSubmission,
    PutTask,
    Storage,
)
from pidurable_nb.testing.storage_checks import (
    Promises,
    change,
    commit,
    conversation,
    create,
    document,
    entry,
    expect,
    expect_that,
    reopen,
    start,
    submission,
    task,
    there,
    value_of,
)

promise = Promises()

ODD: dict[str, Json] = {
    "numbers": [0, -1, MAX_INTEGER, -MAX_INTEGER, 0.5, 1e-300, 1.7976931348623157e308, -0.25],
    "words": [None, True, False, "", [], {}],
    "text": ["été", "😀", "\ud800", "x\udc00\ud800y", "\x00", "\ufeffa\ufeff", "\u2028\u202e", "\x1b[31m", '"\\/'],
    "keys": {"__proto__": {"constructor": 1}, "": 2, "é": 3, "e\u0301": 4, "\udfff": 5, "a.b[0]": 6},
    "order": {"b": 1, "a": 2},
}


@promise("T3")
async def tasks_and_submissions_are_replaced_whole(storage: Storage) -> None:
    await start(storage)
    work, asked = TaskId(storage.mint()), SubmissionId(storage.mint())
    old = replace(task(work), memos={"m": 1}, started_at_ms=5, restarts=2, extra={"more": True})
    new = task(work, state=stored.Terminal(outcome=stored.Completed(result=None)))
    await commit(storage, PutTask(old), PutSubmission(submission(asked, request_id="r")))
    answered = submission(asked, request_id="r", state=Answered(entry=EntryId(70), answer=EntryId(71)))
    await commit(storage, PutTask(new), PutSubmission(answered))
    expect(await storage.task(work), new, "no field of the old task stays")
    expect(await storage.submission(asked), answered, "the submission is the new one")


@promise("C7")
async def odd_values_come_back_as_they_were(storage: Storage) -> None:
    await start(storage)
    work, line, doc = TaskId(storage.mint()), EntryId(storage.mint()), document(storage.mint())
    await commit(
        storage,
        PutTask(replace(task(work, input=ODD), memos=ODD)),
        PutEntry(replace(entry(line, data=ODD), model=(ODD,))),
        CreateDocument(doc, Base(1, {"at": ODD})),
    )
    await change(storage, doc.id, Put(("also",), ODD))
    found_task, found_entry = there(await storage.task(work), "the task"), await _entry(storage, line)
    found = there(await storage.document(doc.id), "the document")
    kept = [found_task.input, found_task.memos, *(found_entry.model or ())]
    kept += [None if isinstance(found_entry.data, Absent) else found_entry.data, found.value["at"], found.value["also"]]
    expect(len(kept), 6, "everything is there")
    for value in kept:
        expect_that(same(value, ODD), f"the same JSON comes back\n  expected: {ODD!r}\n  found:    {value!r}")
    expect(list(found.value), ["at", "also"], "keys keep their order")


@promise("C7")
async def deep_and_long_values_come_back(storage: Storage) -> None:
    await start(storage)
    deep: Json = "bottom"
    for level in range(198):
        deep = [deep] if level % 2 else {"k": deep}
    long = "é😀\n" * 100_000
    line, doc = EntryId(storage.mint()), document(storage.mint())
    await commit(
        storage, PutEntry(entry(line, data=[deep, long])), CreateDocument(doc, Base(1, {"d": deep, "l": long}))
    )
    found = await storage.entry(line)
    expect_that(found is not None and found.entry.data == [deep, long], "in an entry")
    expect_that(await value_of(storage, doc.id) == {"d": deep, "l": long}, "in a document")


@promise("V1")
async def explicit_null_data_is_not_absent_data(storage: Storage) -> None:
    await start(storage)
    null, absent = EntryId(storage.mint()), EntryId(storage.mint())
    await commit(storage, PutEntry(entry(null, data=None)), PutEntry(entry(absent)))
    found = [await storage.entry(null), await storage.entry(absent)]
    expect([each and each.entry.data for each in found], [None, ABSENT], "null, then nothing")


@promise()
async def fields_that_this_version_does_not_know_are_kept(storage: Storage) -> None:
    extra: dict[str, Json] = {"later": {"version": [1]}}
    ids = [storage.mint() for _ in range(5)]
    records = (
        replace(conversation(ids[0]), extra=extra),
        replace(entry(ids[1]), extra=extra),
        replace(task(ids[2], state=stored.Pending(checkpoint={}, extra=extra)), extra=extra),
        replace(submission(ids[3]), extra=extra),
    )
    told = replace(document(ids[4]), extra=extra)
    await commit(
        storage,
        PutConversation(records[0]),
        PutEntry(records[1]),
        PutTask(records[2]),
        PutSubmission(records[3]),
        CreateDocument(told, Base(1, {})),
    )
    line, doc = await storage.entry(records[1].id), await storage.document(told.id)
    found = (
        await storage.conversation(records[0].id),
        line and line.entry,
        await storage.task(records[2].id),
        await storage.submission(records[3].id),
    )
    expect(found, records, "records come back with them")
    expect(doc and doc.record.extra, extra, "and so does a document's record")


@promise("C1")
async def values_are_detached_from_their_writer_and_their_readers(storage: Storage) -> None:
    await start(storage)
    shared: dict[str, Json] = {"list": [1]}
    work, line, doc = TaskId(storage.mint()), EntryId(storage.mint()), document(storage.mint())
    await commit(
        storage,
        PutTask(replace(task(work, input=shared), memos={"m": shared})),
        PutEntry(entry(line, data=shared)),
        CreateDocument(doc, Base(1, {"at": shared})),
    )
    shared["list"] = "changed by its writer"
    for _ in range(2):  # what the first round does to its values must not show in the second
        found_task, found_entry = there(await storage.task(work), "the task"), await _entry(storage, line)
        found = there(await storage.document(doc.id), "the document")
        for value in (found_task.input, found_task.memos["m"], found_entry.data, found.value["at"]):
            expect(value, {"list": [1]}, "what was committed")
            if isinstance(value, dict):
                value["list"] = "changed by a reader"


async def _entry(storage: Storage, id: EntryId) -> EntryRecord:
    return there(await storage.entry(id), f"entry {id}").entry


# --- Opening and closing ----------------------------------------------------------------------------------------


async def _populate(storage: Storage) -> list[int]:
    """One of everything, and what reads it."""
    await start(storage)
    ids = [storage.mint() for _ in range(9)]
    child = ConversationId(ids[0])
    owned = conversation(
        child, parent=Parent(conversation=ROOT, at=EntryId(ids[1])), owner=Owner(conversation=ROOT, task=TaskId(ids[2]))
    )
    line = replace(entry(ids[1], head=EntryId(ids[1])), edits=(Edit(target=EntryId(ids[1]), messages=({"a": 1},)),))
    waiting = stored.Waiting(checkpoint={"phase": "w"}, on=(TaskId(ids[3]),), fail_fast=True)
    sleeping = stored.Sleeping(checkpoint={"phase": "s"}, until_ms=1.5)
    placed = submission(ids[4], state=Placed(entry=EntryId(ids[1])), request_id="é")
    failed = submission(ids[5], state=Unanswered(reason="aborted", detail=["d"]), conversation=child)
    await commit(storage, PutConversation(owned), PutEntry(line), PutSubmission(placed), PutSubmission(failed))
    await commit(storage, PutTask(task(ids[2], state=waiting)), PutTask(task(ids[3], state=sleeping, background=True)))
    docs = [
        document(ids[6], history="rewindable", key=""),
        document(ids[7], scope=TaskScope(TaskId(ids[2]))),
        document(ids[8], scope=SessionScope()),
    ]
    for doc in docs:
        await create(storage, doc, {"n": 0})
        await change(storage, doc.id, Put(("n",), 1))
    return ids


async def _everything(storage: Storage, ids: list[int]) -> list[object]:
    found: list[object] = []
    for id in ids:
        found += [
            await storage.conversation(ConversationId(id)),
            await storage.entry(EntryId(id)),
            await storage.task(TaskId(id)),
            await storage.submission(SubmissionId(id)),
        ]
    for scope in (SessionScope(), document(0).scope, TaskScope(TaskId(ids[2]))):
        for record in (await storage.scan_documents(scope, limit=9)).items:
            found.append(await storage.document(record.id))
            found.append(await storage.find_document(record.address))
    found.append(await storage.submission_by_request(ROOT, "é"))
    found.append((await storage.scan_entries(ConversationId(ids[0]), limit=9)).items)
    return found


@promise("C2", reopens=True)
async def an_opening_finds_everything_that_was_committed(storage: Storage) -> None:
    ids = await _populate(storage)
    before = await _everything(storage, ids)
    await reopen(storage)
    expect(await _everything(storage, ids), before, "the same records and values")


@promise()
async def housekeeping_changes_nothing(storage: Storage) -> None:
    ids = await _populate(storage)
    before = await _everything(storage, ids)
    await storage.maintain()
    await storage.maintain()
    expect(await _everything(storage, ids), before, "the same records and values")
    await commit(storage)


@promise("F5", reopens=True)
async def openings_are_counted_and_keep_their_identity(storage: Storage) -> None:
    first = await reopen(storage)
    second = await reopen(storage)
    expect((second.store_id, second.origin), (first.store_id, first.origin), "store and origin stay")
    expect_that(bool(first.store_id and first.origin), "and are named")
    expect_that(second.opening > first.opening >= 1, f"opening {second.opening} follows {first.opening}")
    expect(second.next_seq, first.next_seq, "an opening takes no number")


@promise()
async def closing_twice_is_as_good_as_once(storage: Storage) -> None:
    await start(storage)
    await storage.close()
    await storage.close()


@promise("F1")
async def a_closed_storage_says_so(storage: Storage) -> None:
    await storage.close()
    try:
        await storage.commit([Commit(())])
    except StorageError:
        return
    raise AssertionError("a commit after close raises StorageError")
