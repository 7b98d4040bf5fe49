"""Owns the checks of the other look-ups: conversations, tasks and submissions, one by one and in pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import product
from typing import Protocol, TypeVar

from pidurable_nb.ids import ROOT, ConversationId, DocumentId, EntryId, SubmissionId, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import ConversationScope
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import (
    Answered,
    ConversationRecord,
    Owner,
    Placed,
    Queued,
    SubmissionRecord,
    SubmissionState,
    Unanswered,
)
from pidurable_nb.store.storage import (
    ConversationQuery,
    Order,
    Page,
    PutConversation,
    PutSubmission,
    PutTask,
    Storage,
    SubmissionQuery,
    TaskQuery,
)
from pidurable_nb.testing.storage_checks import (
    Promises,
    all_pages,
    commit,
    conversation,
    expect,
    illegal,
    start,
    submission,
    task,
)

promise = Promises()

Q = TypeVar("Q", contravariant=True)
R = TypeVar("R")

OTHER = ConversationId(1000)
STATES: dict[str, stored.State] = {
    "pending": stored.Pending(checkpoint={"phase": "a"}),
    "running": stored.Running(checkpoint={"phase": "a"}),
    "waiting": stored.Waiting(checkpoint={"phase": "a"}, on=(TaskId(5),), fail_fast=False),
    "sleeping": stored.Sleeping(checkpoint={"phase": "a"}, until_ms=9),
    "completing": stored.Completing(outcome=stored.Completed(result=1)),
    "terminal": stored.Terminal(outcome=stored.Orphaned(reason="missing_task")),
}
SUBMITTED: dict[str, SubmissionState] = {
    "queued": Queued(),
    "placed": Placed(entry=EntryId(8)),
    "done": Answered(entry=EntryId(8), answer=EntryId(9)),
    "unanswered": Unanswered(reason="aborted"),
}
WORDS = ("app.kind", "été", "e\u0301te\u0301", "😀", "\ud800", 'a"b\\c', "a'b%_", "A", "a")
"""Texts for indexed columns: no two are the same, whatever a storage escapes, folds or normalises."""


class Scan(Protocol[Q, R]):
    """One of the scans."""

    def __call__(
        self, query: Q, /, *, limit: int, after: int | None = None, order: Order = "ascending"
    ) -> Awaitable[Page[R]]: ...


def _pages(scan: Scan[Q, R], query: Q, limit: int, order: Order) -> Callable[[int | None], Awaitable[Page[R]]]:
    return lambda after: scan(query, limit=limit, after=after, order=order)


async def _check_pages(scan: Scan[Q, R], query: Q, wanted: list[R], what: str) -> None:
    for limit in (1, 2, 3, len(wanted) or 1, 100):
        up = await all_pages(_pages(scan, query, limit, "ascending"), limit)
        expect(up, wanted, f"{what}, ascending, {limit} at a time")
        down = await all_pages(_pages(scan, query, limit, "descending"), limit)
        expect(down, wanted[::-1], f"{what}, descending, {limit} at a time")


@promise()
async def what_is_unknown_is_nothing(storage: Storage) -> None:
    await start(storage)
    await commit(storage, PutTask(task(50)), PutSubmission(submission(51)))
    found = [
        await storage.conversation(ConversationId(50)),
        await storage.entry(EntryId(50)),
        await storage.task(TaskId(51)),
        await storage.submission(SubmissionId(50)),
        await storage.document(DocumentId(50)),
        await storage.submission_by_request(ROOT, "never"),
    ]
    expect(found, [None] * 6, "an unknown id, or one of another type, is None")
    empty = await storage.scan_documents(ConversationScope(OTHER), limit=5)
    expect((empty.items, empty.next), ((), None), "an empty scan is an empty page")


@promise("F2")
async def illegal_pages_are_refused_by_every_scan(storage: Storage) -> None:
    await start(storage)
    for limit, after in ((0, None), (1, -1)):
        async with illegal(f"conversations: limit {limit}, after {after}"):
            await storage.scan_conversations(ConversationQuery(), limit=limit, after=after)
        async with illegal(f"tasks: limit {limit}, after {after}"):
            await storage.scan_tasks(TaskQuery(), limit=limit, after=after)
        async with illegal(f"submissions: limit {limit}, after {after}"):
            await storage.scan_submissions(SubmissionQuery(), limit=limit, after=after)
        async with illegal(f"documents: limit {limit}, after {after}"):
            await storage.scan_documents(ConversationScope(ROOT), limit=limit, after=after)


@promise("O1")
async def conversations_are_found_by_their_owner(storage: Storage) -> None:
    await start(storage)
    owners = [Owner(conversation=ConversationId(c), task=TaskId(t)) for c, t in ((1, 50), (1, 51), (2, 52), (1, 50))]
    made: list[ConversationRecord] = [conversation(ROOT)]
    for owner in owners:
        made.append(conversation(storage.mint(), owner=owner))
        await commit(storage, PutConversation(made[-1]))
    scan = storage.scan_conversations
    await _check_pages(scan, ConversationQuery(), made, "all")
    await _check_pages(scan, ConversationQuery(owner_conversation=ROOT), [made[1], made[2], made[4]], "of the root")
    await _check_pages(scan, ConversationQuery(owner_task=TaskId(50)), [made[1], made[4]], "of task 50")
    of_both = ConversationQuery(owner_conversation=ConversationId(2), owner_task=TaskId(50))
    await _check_pages(scan, of_both, [], "of an owner that fits only half")


# --- Tasks ------------------------------------------------------------------------------------------------------


async def _some_tasks(storage: Storage) -> list[TaskRecord]:
    made: list[TaskRecord] = []
    for status, marked, background in product(STATES, (False, True), (False, True)):
        made.append(
            task(
                storage.mint(),
                state=STATES[status],
                abort_requested=marked,
                background=background,
                conversation=OTHER if len(made) % 3 else ROOT,
                kind=WORDS[len(made) % 2],
            )
        )
    await commit(storage, *map(PutTask, made))
    return made


@promise("T1")
async def tasks_are_found_by_each_of_their_facts(storage: Storage) -> None:
    made = await _some_tasks(storage)
    scan = storage.scan_tasks
    await _check_pages(scan, TaskQuery(), made, "all")
    for state in STATES.values():
        status = task(1, state=state).status
        await _check_pages(scan, TaskQuery(status=status), [t for t in made if t.status == status], status)
    for live in (True, False):
        await _check_pages(scan, TaskQuery(live=live), [t for t in made if t.live == live], f"live {live}")
        marked = [t for t in made if t.abort_requested == live]
        await _check_pages(scan, TaskQuery(abort_requested=live), marked, f"marked {live}")
        beside = [t for t in made if t.background == live]
        await _check_pages(scan, TaskQuery(background=live), beside, f"background {live}")
    for kind in WORDS[:2]:
        await _check_pages(scan, TaskQuery(kind=kind), [t for t in made if t.kind == kind], kind)
    for where in (ROOT, OTHER):
        await _check_pages(
            scan, TaskQuery(conversation=where), [t for t in made if t.conversation == where], f"{where}"
        )


@promise("T1")
async def facts_of_a_task_query_narrow_together(storage: Storage) -> None:
    made = await _some_tasks(storage)
    for where, kind, live, marked in product((ROOT, None), (WORDS[1], None), (True, None), (True, False, None)):
        query = TaskQuery(conversation=where, kind=kind, live=live, abort_requested=marked, background=False)
        wanted = [
            t
            for t in made
            if where in (None, t.conversation)
            and kind in (None, t.kind)
            and (live is None or t.live)
            and marked in (None, t.abort_requested)
            and not t.background
        ]
        page = await storage.scan_tasks(query, limit=100)
        expect(list(page.items), wanted, f"{query}")
    never = await storage.scan_tasks(TaskQuery(status="terminal", live=True), limit=5)
    expect((never.items, never.next), ((), None), "terminal and live: nothing")


@promise("T3")
async def a_replaced_task_is_found_by_its_new_facts_only(storage: Storage) -> None:
    old = task(storage.mint(), state=STATES["running"], abort_requested=True, background=True)
    await commit(storage, PutTask(old))
    new = replace(old, state=STATES["terminal"], abort_requested=False, background=False)
    await commit(storage, PutTask(new))
    for query in (TaskQuery(live=True), TaskQuery(abort_requested=True), TaskQuery(background=True)):
        expect((await storage.scan_tasks(query, limit=5)).items, (), f"{query} finds it no more")
    for query in (TaskQuery(status="terminal"), TaskQuery(abort_requested=False), TaskQuery(kind=old.kind)):
        expect((await storage.scan_tasks(query, limit=5)).items, (new,), f"{query} finds it")


@promise("B19")
async def tasks_of_any_kind_are_found_by_exactly_that_kind(storage: Storage) -> None:
    made = [task(storage.mint(), kind=kind) for kind in WORDS]
    await commit(storage, *map(PutTask, made))
    for wanted in made:
        found = await storage.scan_tasks(TaskQuery(kind=wanted.kind), limit=5)
        expect(found.items, (wanted,), f"the kind {wanted.kind!r}")
    split = await storage.scan_tasks(TaskQuery(kind="\ud83d\ude00"), limit=5)
    expect([t.kind for t in split.items], ["😀"], "two halves of a character are that character")


# --- Submissions ------------------------------------------------------------------------------------------------


@promise("S1")
async def a_request_id_finds_its_submission_in_its_conversation(storage: Storage) -> None:
    await start(storage)
    made: list[SubmissionRecord] = []
    for where in (ROOT, OTHER):
        made += [submission(storage.mint(), conversation=where, request_id=word) for word in (*WORDS, "")]
    await commit(storage, PutSubmission(submission(storage.mint())), *map(PutSubmission, made))
    for wanted in made:
        found = await storage.submission_by_request(wanted.conversation, wanted.request_id or "")
        expect(found, wanted, f"request {wanted.request_id!r} in conversation {wanted.conversation}")
    expect(await storage.submission_by_request(ROOT, "other"), None, "an unknown request")
    expect(await storage.submission_by_request(ConversationId(5), "a"), None, "a request of another conversation")


@promise("S1", reopens=True)
async def a_request_id_outlives_replacement_and_reopening(storage: Storage) -> None:
    await start(storage)
    asked = submission(storage.mint(), request_id="été")
    await commit(storage, PutSubmission(asked))
    done = replace(asked, state=SUBMITTED["done"])
    await commit(storage, PutSubmission(done))
    expect(await storage.submission_by_request(ROOT, "été"), done, "the replaced one")
    await storage.close()
    await storage.open()
    expect(await storage.submission_by_request(ROOT, "été"), done, "also after reopening")


@promise("S2")
async def submissions_are_found_by_status_and_conversation(storage: Storage) -> None:
    made: list[SubmissionRecord] = []
    for state, where in product(SUBMITTED.values(), (ROOT, OTHER, OTHER)):
        made.append(submission(storage.mint(), state=state, conversation=where))
    await commit(storage, *map(PutSubmission, made))
    scan = storage.scan_submissions
    await _check_pages(scan, SubmissionQuery(), made, "all")
    for state in SUBMITTED.values():
        status = submission(1, state=state).status
        await _check_pages(scan, SubmissionQuery(status=status), [s for s in made if s.status == status], status)
    for is_open in (True, False):
        wanted = [s for s in made if (s.status in ("queued", "placed")) == is_open]
        await _check_pages(scan, SubmissionQuery(open=is_open), wanted, f"open {is_open}")
        here = [s for s in wanted if s.conversation == OTHER]
        await _check_pages(scan, SubmissionQuery(open=is_open, conversation=OTHER), here, f"open {is_open} in one")
    never = await storage.scan_submissions(SubmissionQuery(status="done", open=True), limit=5)
    expect((never.items, never.next), ((), None), "done and open: nothing")
