"""The live tasks in memory, against a model that looks at everything: who owns what, who waits, who is busy.

The model is the whole history in two dictionaries; every answer is computed from scratch after every commit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pidurable_nb.engine.decide import cancelled_above, is_cancelled
from pidurable_nb.engine.snapshot import Snapshot, ancestors, ordinary_ancestors
from pidurable_nb.engine.table import TaskTable, missing_from_waits
from pidurable_nb.ids import ROOT, ConversationId, TaskId
from pidurable_nb.records import task as stored
from pidurable_nb.records.task import TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, Owner

DONE: stored.Outcome = stored.Completed(result=None)
FAILED: stored.Outcome = stored.Failed(error=stored.TaskError(message="no"))
PENDING = stored.Pending(checkpoint={"phase": "work"})


class Model:
    """Everything that ever was, and the table that followed it."""

    def __init__(self) -> None:
        self.tasks: dict[TaskId, TaskRecord] = {}
        self.conversations: dict[ConversationId, ConversationRecord] = {ROOT: ConversationRecord(id=ROOT)}
        self.table = TaskTable(1)
        self.table.learn_conversation(self.conversations[ROOT])
        self._next = 10

    # -- what happens --------------------------------------------------------------------------------------------------

    def mint(self) -> int:
        self._next += 1
        return self._next

    def converse(self, owner: TaskId | None) -> ConversationId:
        id = ConversationId(self.mint())
        owned = Owner(conversation=self.tasks[owner].conversation, task=owner) if owner is not None else None
        self.conversations[id] = ConversationRecord(id=id, owner=owned)
        self.table.learn_conversation(self.conversations[id])
        return id

    def spawn(
        self, conversation: ConversationId = ROOT, *, owner: TaskId | None = None, background: bool = False
    ) -> TaskId:
        id = TaskId(self.mint())
        record = TaskRecord(
            id=id, conversation=conversation, kind="demo", version=1, input={}, state=PENDING, owner=owner,
            background=background,
        )  # fmt: skip
        self.know_owners(conversation)
        self.put(record)
        return id

    def know_owners(self, conversation: ConversationId) -> None:
        """What the engine reads from the store before it puts new work."""
        above = self.conversations[conversation].owner
        owner = above.task if above is not None else None
        while owner is not None:
            if not self.table.edge_known(owner):
                self.table.learn_edge(self.tasks[owner])
            owner = self.table.parent(owner)

    def put(self, record: TaskRecord) -> None:
        if isinstance(record.state, stored.Waiting):
            for id in record.state.on:
                if not self.tasks[id].live:
                    self.table.learn_ended(self.tasks[id])
        self.tasks[record.id] = record
        self.table.put(record)

    def become(self, id: TaskId, state: stored.State) -> None:
        self.put(replace(self.tasks[id], state=state))

    # -- what is so ----------------------------------------------------------------------------------------------------

    def parent(self, id: TaskId) -> TaskId | None:
        record = self.tasks[id]
        if record.owner is not None:
            return record.owner
        owner = self.conversations[record.conversation].owner
        return owner.task if owner is not None else None

    def chain(self, id: TaskId) -> Iterator[TaskId]:
        above = self.parent(id)
        while above is not None:
            yield above
            above = self.parent(above)

    def holders(self, id: TaskId) -> list[TaskId]:
        """The tasks that may not close while this one lives (O2), which a background task between them lets close."""
        if self.tasks[id].background:
            return []
        found = []
        for above in self.chain(id):
            found.append(above)
            if self.tasks[above].background:
                break
        return found

    def live(self) -> list[TaskId]:
        return [id for id, record in self.tasks.items() if record.live]

    def below(self, id: TaskId) -> tuple[TaskId, ...]:
        return tuple(sorted(work for work in self.live() if id in self.holders(work)))

    def busy(self) -> bool:
        return any(not any(self.tasks[a].background for a in (id, *self.chain(id))) for id in self.live())

    def check(self) -> None:
        table = self.table
        assert {record.id: record for record in table.live()} == {id: self.tasks[id] for id in self.live()}
        assert len(table) == len(self.live())
        assert table.idle == (not self.busy())
        for id, record in self.tasks.items():
            below = self.below(id)
            assert table.below(id) == below, id
            assert table.has_below(id) == bool(below)
            assert table.descendants(id) == {work for work in self.live() if id in self.chain(work)}
            waiting = [
                other
                for other in self.live()
                if isinstance(state := self.tasks[other].state, stored.Waiting) and id in state.on
            ]
            assert sorted(table.waiters(id)) == sorted(waiting)
            if record.live or waiting:
                assert table.task(id) == record
            if record.live:
                assert tuple(ancestors(table, id)) == tuple(self.chain(id))
                assert ordinary_ancestors(table, id) == tuple(self.holders(id))
                assert table.background(id) == record.background
        self.check_against_a_file()

    def check_against_a_file(self) -> None:
        """A running engine and `why` read the same answers from their two views."""
        owners = {id: c.owner.task if c.owner is not None else None for id, c in self.conversations.items()}
        file = Snapshot(tasks=self.tasks, owners=owners, opening=1)
        for id in self.live():
            assert file.below(id) == self.table.below(id)
            assert cancelled_above(file, id) == cancelled_above(self.table, id)
            assert is_cancelled(file, id) == is_cancelled(self.table, id)

    def check_nothing_is_left(self) -> None:
        for id in sorted(self.live(), reverse=True):
            self.become(id, stored.Terminal(outcome=DONE))
        self.check()
        for name in ("_tasks", "_ended", "_edges", "_children", "_waiters", "_below"):
            assert not getattr(self.table, name), name
        assert self.table.idle


def step(model: Model, dice: random.Random) -> None:
    """One commit that the engine could have made."""
    live = model.live()
    match dice.choice(["spawn", "spawn", "spawn", "converse", "wait", "end", "end", "hold", "mark", "own"]):
        case "spawn":
            model.spawn(dice.choice(list(model.conversations)), background=dice.random() < 0.25)
        case "own" if live:
            owner = dice.choice(live)
            if model.tasks[owner].outcome is None:
                model.spawn(model.tasks[owner].conversation, owner=owner)
        case "converse":
            owners = [id for id in live if model.tasks[id].outcome is None]
            model.converse(dice.choice([*owners, None]) if dice.random() < 0.8 else None)
        case "wait" if live:
            id = dice.choice(live)
            others = [other for other in model.tasks if other != id and other not in model.chain(id)]
            if isinstance(model.tasks[id].state, stored.Waiting):
                model.become(id, PENDING)  # it runs again, and may then wait for something else
            elif model.tasks[id].outcome is None:
                on = tuple(dice.sample(others, min(len(others), dice.randint(0, 3))))
                model.become(id, stored.Waiting(checkpoint={"phase": "x"}, on=on, fail_fast=dice.random() < 0.5))
        case "hold" if live:
            id = dice.choice(live)
            if model.below(id):
                model.become(id, stored.Completing(outcome=dice.choice([DONE, FAILED])))
        case "mark" if live:
            id = dice.choice(live)
            model.put(replace(model.tasks[id], abort_requested=True))
        case "end":
            ends = [id for id in live if not model.below(id)]
            if ends:
                model.become(dice.choice(ends), stored.Terminal(outcome=dice.choice([DONE, FAILED])))
        case _:
            pass


@given(seed=st.integers(0, 2**64), steps=st.integers(1, 60))
@settings(max_examples=150)
def test_o1_o2_o3_the_table_agrees_with_the_whole_history_after_every_commit(seed: int, steps: int) -> None:
    dice, model = random.Random(seed), Model()
    for _ in range(steps):
        step(model, dice)
        model.check()
    model.check_nothing_is_left()


@given(seed=st.integers(0, 2**64), steps=st.integers(1, 60))
@settings(max_examples=100)
def test_o1_a_table_that_is_loaded_agrees_with_one_that_followed(seed: int, steps: int) -> None:
    dice, model = random.Random(seed), Model()
    for _ in range(steps):
        step(model, dice)
    again = model.table = TaskTable(2)
    for conversation in model.conversations.values():
        again.learn_conversation(conversation)
    live = {id: model.tasks[id] for id in model.live()}
    for id in sorted({above for task in live for above in model.chain(task)} - set(live)):
        again.learn_edge(model.tasks[id])
    for id in sorted(live):
        again.put(live[id])
    for id in sorted(missing_from_waits(again, live)):
        again.learn_ended(model.tasks[id])
    model.check()
    model.check_nothing_is_left()


def test_o2_work_below_an_owner_that_ended_still_holds_the_one_above() -> None:
    model = Model()
    top = model.spawn()
    ended = model.spawn(owner=top)
    inner = model.converse(ended)
    model.become(ended, stored.Terminal(outcome=DONE))
    model.check()
    late = model.spawn(inner)
    model.check()
    assert model.table.below(top) == (late,)
    model.become(top, stored.Completing(outcome=FAILED))
    assert cancelled_above(model.table, late) == top
    model.become(late, stored.Terminal(outcome=DONE))
    assert not model.table.has_below(top)
    model.check_nothing_is_left()


def test_o3_what_a_background_task_owns_keeps_nobody_busy_and_holds_it() -> None:
    model = Model()
    parent = model.spawn()
    behind = model.spawn(model.converse(parent), background=True)
    work = model.spawn(model.tasks[behind].conversation, owner=behind)
    model.check()
    assert model.table.below(parent) == ()
    assert model.table.below(behind) == (work,)
    assert model.table.descendants(parent) == {behind, work}
    model.become(parent, stored.Terminal(outcome=DONE))
    assert model.table.idle
    model.check_nothing_is_left()


@pytest.mark.parametrize("on", [(), (0,), (0, 0), (0, 1)])
def test_t4_waits_are_forgotten_with_their_task_however_often_they_name_one(on: tuple[int, ...]) -> None:
    model = Model()
    named = [model.spawn(), model.spawn()]
    waiter = model.spawn()
    ids = tuple(named[n] for n in on)
    model.become(waiter, stored.Waiting(checkpoint={"phase": "x"}, on=ids, fail_fast=False))
    model.check()
    for id in named:
        model.become(id, stored.Terminal(outcome=DONE))
        model.check()
    model.check_nothing_is_left()


def test_memory_does_not_grow_with_what_has_ended() -> None:
    model = Model()
    for _ in range(200):
        parent = model.spawn()
        child = model.spawn(owner=parent)
        model.become(parent, stored.Waiting(checkpoint={"phase": "x"}, on=(child,), fail_fast=True))
        model.become(child, stored.Terminal(outcome=FAILED))
        model.become(parent, stored.Terminal(outcome=DONE))
    model.check_nothing_is_left()
