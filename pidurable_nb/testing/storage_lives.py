"""Owns the checks of document lives: addresses, retirement, re-creation, what is alive when. Never looks at deltas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pidurable_nb.ids import ROOT, ConversationId, DocumentId, Seq, TaskId
from pidurable_nb.records.document import Address, ConversationScope, DocumentRecord, Scope, SessionScope, TaskScope
from pidurable_nb.store.delta import Put
from pidurable_nb.store.storage import (
    CURRENT,
    At,
    Base,
    ChangeDocument,
    CopyDocument,
    CreateDocument,
    Delta,
    Page,
    RetireDocument,
    Storage,
)
from pidurable_nb.testing.storage_checks import (
    Promises,
    all_pages,
    change,
    commit,
    create,
    document,
    expect,
    expect_that,
    reopen,
    start,
    there,
    value_of,
)
from pidurable_nb.testing.storage_scans import WORDS

promise = Promises()

SCOPES: tuple[Scope, ...] = (
    SessionScope(),
    ConversationScope(ROOT),
    ConversationScope(ConversationId(5)),
    TaskScope(TaskId(1)),
    TaskScope(TaskId(5)),
)


async def _found(storage: Storage, address: Address, at: At = CURRENT) -> int | None:
    found = await storage.find_document(address, at)
    return None if found is None else found.id


async def _in(storage: Storage, scope: Scope, *, at: At = CURRENT, kind: str | None = None) -> list[int]:
    page = await storage.scan_documents(scope, limit=100, kind=kind, at=at)
    return [record.id for record in page.items]


def _pages(storage: Storage, scope: Scope, limit: int) -> Callable[[int | None], Awaitable[Page[DocumentRecord]]]:
    return lambda after: storage.scan_documents(scope, limit=limit, after=after)


async def _retire(storage: Storage, id: DocumentId) -> Seq:
    return await commit(storage, RetireDocument(id))


# --- Addresses --------------------------------------------------------------------------------------------------


@promise()
async def one_kind_in_every_scope_is_as_many_documents(storage: Storage) -> None:
    records = [document(storage.mint(), scope=scope) for scope in SCOPES]
    for record in records:
        await create(storage, record, {"id": record.id})
    for record in records:
        expect(await _found(storage, record.address), record.id, f"in {record.scope}")
        expect(await _in(storage, record.scope), [record.id], f"alone in {record.scope}")
        expect(await value_of(storage, record.id), {"id": record.id}, f"its value in {record.scope}")
    expect(await _found(storage, Address("app.other", SessionScope())), None, "another kind")
    expect(await _found(storage, Address("app.document", ConversationScope(ConversationId(6)))), None, "elsewhere")


@promise("B19")
async def members_of_a_family_are_found_by_exactly_their_key(storage: Storage) -> None:
    for scope in (SessionScope(), ConversationScope(ROOT)):
        keys = (None, "", "null", '""', *WORDS)
        records = [document(storage.mint(), scope=scope, key=key) for key in keys]
        await commit(storage, *(CreateDocument(record, Base(1, {})) for record in records))
        for record in records:
            expect(await _found(storage, record.address), record.id, f"the key {record.key!r} in {scope}")
        found = there(await storage.find_document(records[0].address), "the singleton")
        expect(found.key, None, "a singleton has no key")
        found = there(await storage.find_document(records[1].address), "the member with the empty key")
        expect(found.key, "", "an empty key is a key")


@promise("B19")
async def documents_of_any_kind_are_found_by_exactly_that_kind(storage: Storage) -> None:
    records = [document(storage.mint(), kind=kind, scope=SessionScope()) for kind in WORDS]
    await commit(storage, *(CreateDocument(record, Base(1, {})) for record in records))
    for record in records:
        expect(await _found(storage, record.address), record.id, f"the kind {record.kind!r}")
        expect(await _in(storage, SessionScope(), kind=record.kind), [record.id], f"scanned for {record.kind!r}")


@promise()
async def documents_of_a_scope_come_in_pages(storage: Storage) -> None:
    await start(storage)
    scope = ConversationScope(ROOT)
    records = [document(storage.mint(), scope=scope, key=str(n), kind=f"app.{n % 2}") for n in range(6)]
    await commit(storage, *(CreateDocument(record, Base(1, {})) for record in records))
    gone = records.pop(2)
    await _retire(storage, gone.id)
    for limit in (1, 2, 4, 5, 6):
        found = await all_pages(_pages(storage, scope, limit), limit)
        expect([record.id for record in found], [record.id for record in records], f"{limit} at a time")
    odd = [record.id for record in records if record.kind == "app.1"]
    expect(await _in(storage, scope, kind="app.1"), odd, "of one kind")
    page = await storage.scan_documents(scope, limit=2, kind="app.1")
    rest = await storage.scan_documents(scope, limit=2, kind="app.1", after=page.next)
    expect([record.id for record in (*page.items, *rest.items)], odd, "of one kind, two at a time")


@promise()
async def tasks_with_a_document_are_told_from_those_without(storage: Storage) -> None:
    await start(storage)
    tasks = [TaskId(storage.mint()) for _ in range(600)]
    records = {task: document(storage.mint(), scope=TaskScope(task)) for task in tasks[::7]}
    await commit(storage, *(CreateDocument(record, Base(1, {})) for record in records.values()))
    gone = tasks[14]
    await _retire(storage, records[gone].id)
    expect(await storage.documented(tasks), frozenset(records) - {gone}, "those with one alive")
    expect(await storage.documented(tasks[1:7]), frozenset(), "none of these")
    expect(await storage.documented(()), frozenset(), "none of none")


# --- Lives ------------------------------------------------------------------------------------------------------


@promise()
async def a_retired_document_is_not_found_any_more(storage: Storage) -> None:
    for scope in SCOPES:
        record = document(storage.mint(), scope=scope)
        made = await create(storage, record, {"n": 0})
        await change(storage, record.id, Put(("n",), 1))
        ended = await _retire(storage, record.id)
        expect(await _found(storage, record.address), None, f"not at its address in {scope}")
        expect(await storage.document(record.id), None, f"nor by its id in {scope}")
        expect(await _in(storage, scope), [], f"nor in {scope}")
        then = there(await storage.find_document(record.address, made), "the record, as it was")
        expect((then.id, then.created_at, then.retired_at), (record.id, made, ended), "its record stays")


@promise("V3")
async def a_rewindable_document_keeps_its_history_when_retired(storage: Storage) -> None:
    record = document(storage.mint(), history="rewindable")
    made = await create(storage, record, {"n": 0})
    changed = await change(storage, record.id, Put(("n",), 1))
    ended = await _retire(storage, record.id)
    values = [await value_of(storage, record.id, seq) for seq in (made, changed, ended, Seq(ended + 1))]
    expect(values, [{"n": 0}, {"n": 1}, None, None], "alive until the commit that retired it, that one not included")
    copy = document(storage.mint(), key="copy")
    await commit(storage, CopyDocument(copy, record.id, changed))
    expect(await value_of(storage, copy.id), {"n": 1}, "and it can still be copied as it was")


@promise()
async def an_address_has_one_life_after_another(storage: Storage) -> None:
    await start(storage)
    lives: list[tuple[DocumentId, Seq, Seq]] = []
    for n in range(3):
        record = document(storage.mint(), history="rewindable")
        made = await create(storage, record, {"life": n})
        expect(await _found(storage, record.address), record.id, f"life {n} is the current one")
        await commit(storage)
        lives.append((record.id, made, await _retire(storage, record.id)))
        expect(await _found(storage, record.address), None, f"nothing behind life {n}")
    address = document(1).address
    for n, (id, made, ended) in enumerate(lives):
        for seq in range(made, ended):
            expect(await _found(storage, address, Seq(seq)), id, f"at commit {seq} it is life {n}")
            expect(await _in(storage, address.scope, at=Seq(seq)), [id], f"and in its scope at {seq}")
            expect(await value_of(storage, id, Seq(seq)), {"life": n}, "with its own value")
        expect(await _found(storage, address, ended), None, f"retired at {ended}")
        expect(await _found(storage, address, Seq(made - 1)), None, f"not made before {made}")


@promise()
async def one_commit_can_end_one_life_and_start_the_next(storage: Storage) -> None:
    for history_kept in (False, True):
        kept = "rewindable" if history_kept else "latest"
        old = document(storage.mint(), key=kept, history="rewindable" if history_kept else "latest")
        new = document(storage.mint(), key=kept, history=old.history or "latest")
        before = await create(storage, old, {"old": 1})
        seq = await commit(storage, RetireDocument(old.id), CreateDocument(new, Base(1, {"new": 1})))
        expect(await _found(storage, old.address), new.id, "the new one is current")
        expect(await _found(storage, old.address, seq), new.id, "since that commit")
        expect(await _found(storage, old.address, before), old.id, "and the old one before")
        expect(await value_of(storage, new.id), {"new": 1}, "with its own value")


@promise()
async def a_document_that_ends_where_it_began_was_never_alive(storage: Storage) -> None:
    await start(storage)
    record = document(storage.mint(), history="rewindable")
    seq = await commit(storage, CreateDocument(record, Base(1, {})), RetireDocument(record.id))
    for at in (CURRENT, seq, Seq(seq - 1), Seq(seq + 1)):
        expect(await _found(storage, record.address, at), None, f"not at its address at {at}")
        expect(await storage.document(record.id, at), None, f"nor by its id at {at}")
        expect(await _in(storage, record.scope, at=at), [], f"nor in its scope at {at}")


@promise("C1")
async def a_last_change_and_the_end_fit_in_one_commit(storage: Storage) -> None:
    for scope in (ConversationScope(ROOT), TaskScope(TaskId(1))):
        record = document(storage.mint(), scope=scope, history="rewindable")
        made = await create(storage, record, {"n": 0})
        await commit(storage, ChangeDocument(record.id, Delta(1, (Put(("n",), 1),))), RetireDocument(record.id))
        expect(await storage.document(record.id), None, f"ended in {scope}")
        if record.rewindable:
            expect(await value_of(storage, record.id, made), {"n": 0}, "its history stays")


@promise("V3")
async def a_document_retired_in_the_commit_that_copies_it_is_copied(storage: Storage) -> None:
    source, copy = document(storage.mint(), key="source"), document(storage.mint(), key="copy")
    await create(storage, source, {"n": 0})
    await commit(storage, RetireDocument(source.id), CopyDocument(copy, source.id, CURRENT))
    expect(await value_of(storage, copy.id), {"n": 0}, "as it was before the commit")


@promise("C2", reopens=True)
async def lives_and_history_outlast_an_opening(storage: Storage) -> None:
    await start(storage)
    old, new = document(storage.mint(), history="rewindable"), document(storage.mint(), history="rewindable")
    made = await create(storage, old, {"n": 0})
    changed = await change(storage, old.id, Put(("n",), 1))
    await commit(storage, RetireDocument(old.id), CreateDocument(new, Base(2, {"n": 2})))
    await reopen(storage)
    values = [await value_of(storage, old.id, seq) for seq in (made, changed)]
    expect(values, [{"n": 0}, {"n": 1}], "the history of the old life")
    found = there(await storage.document(new.id), "the new life")
    expect((found.version, found.value), (2, {"n": 2}), "the new life")
    expect(await _found(storage, old.address, made), old.id, "the old life at its address")
    await change(storage, new.id, Put(("n",), 3), version=2)
    expect(await value_of(storage, new.id), {"n": 3}, "and it goes on")
    expect_that(await _found(storage, new.address) == new.id, "at its address")
