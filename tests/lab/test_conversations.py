"""What must hold of conversations: it does in stores that agents left, and each thing that cannot be is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pidurable_nb.ids import ConversationId, EntryId, Json, SubmissionId, TaskId
from pidurable_nb.lab.dying.point import Point
from pidurable_nb.lab.dying.run import LEDGER, Plan, run_here
from pidurable_nb.lab.judging.conversations import Stored, unfinished, unsound
from pidurable_nb.lab.outside.bank import BankServer
from pidurable_nb.lab.scenario import builtin
from pidurable_nb.records.task import Pending, Running, TaskRecord
from pidurable_nb.records.transcript import ConversationRecord, Owner, Placed, Queued, SubmissionRecord
from pidurable_nb.store.stranger import StoreFile


def stored(store: Path) -> Stored:
    with StoreFile.of_copy(store) as file:
        documents = tuple(file.documents())
        values: dict[int, Json] = {}
        for record in documents:
            found = file.document_value(record.id)
            values[record.id] = found[1] if found is not None else None
        return Stored(
            conversations=tuple(file.conversations()),
            entries=tuple(file.entries()),
            tasks=tuple(file.tasks()),
            submissions=tuple(file.submissions()),
            documents=documents,
            values=values,
        )


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """What `refund` left that nobody killed."""
    folder = tmp_path_factory.mktemp("ended")
    with BankServer():
        run_here(builtin("refund"), folder / "store.sqlite", folder / LEDGER, Plan())
    return stored(folder / "store.sqlite")


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """What `refund` left where it was killed."""
    folder = tmp_path_factory.mktemp("cut")
    plan = Plan(at=Point.parse("pi.tool#1/execute:effect.after"))
    with BankServer():
        lived = run_here(builtin("refund"), folder / "s" / "store.sqlite", folder / LEDGER, plan, image=folder / "dead")
    assert lived.image is not None
    return stored(lived.image)


def test_v2_s2_nothing_is_wrong_with_what_a_run_left(ended: Stored, cut: Stored) -> None:
    assert list(unsound(ended)) == list(unfinished(ended)) == list(unsound(cut)) == list(unfinished(cut)) == []


def without_result(there: Stored) -> Stored:
    return replace(there, entries=tuple(entry for entry in there.entries if entry.kind != "pi.tool-result"))


def result_twice(there: Stored) -> Stored:
    [result] = [entry for entry in there.entries if entry.kind == "pi.tool-result"]
    return replace(there, entries=(*there.entries, replace(result, id=EntryId(99))))


def placed_and_idle(there: Stored) -> Stored:
    [record] = there.submissions
    return replace(there, submissions=(replace(record, state=Placed(entry=EntryId(7))),))


def queued_and_not_in_the_inbox(there: Stored) -> Stored:
    queued = SubmissionRecord(id=SubmissionId(98), conversation=ConversationId(1), type="input", state=Queued())
    return replace(there, submissions=(*there.submissions, queued))


def in_the_inbox_and_not_queued(there: Stored) -> Stored:
    [inbox] = [record for record in there.documents if record.kind == "pi.inbox"]
    return replace(there, values={**there.values, inbox.id: {"items": [{"id": 97, "mode": "followUp"}]}})


def idle_and_a_generation_lives(there: Stored) -> Stored:
    generation = next(task for task in there.tasks if task.kind == "pi.generation")
    lives = replace(generation, id=TaskId(96), state=Pending(checkpoint={"phase": "prepare"}))
    return replace(there, tasks=(*there.tasks, lives))


def owner_ended_first(there: Stored) -> Stored:
    owner = next(task for task in there.tasks if task.kind == "pi.tool")
    inside = ConversationRecord(id=ConversationId(95), owner=Owner(conversation=ConversationId(1), task=owner.id))
    lives = TaskRecord(
        id=TaskId(94), conversation=ConversationId(95), kind="job", version=1, input={},
        state=Running(checkpoint={"phase": "run"}),
    )  # fmt: skip
    return replace(there, conversations=(*there.conversations, inside), tasks=(*there.tasks, lives))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (result_twice, "entries/99 is a result of 'call_1', which has one"),
        (placed_and_idle, "are placed, and its run owes"),
        (queued_and_not_in_the_inbox, "queued [98], and its inbox holds []"),
        (in_the_inbox_and_not_queued, "queued [], and its inbox holds [97]"),
        (idle_and_a_generation_lives, "pi.live.run names [], and the generations [96] live"),
        (owner_ended_first, "task 94 lives in conversation 95, whose owner"),
    ],
)
def test_s2_o2_v2_each_thing_that_no_commit_may_leave_is_said(
    ended: Stored, change: Callable[[Stored], Stored], says: str
) -> None:
    [sentence] = unsound(change(ended))
    assert says in sentence


def test_v2_a_call_without_a_result_is_owed_one_once_nothing_runs(ended: Stored, cut: Stored) -> None:
    [sentence] = unfinished(without_result(ended))
    assert "the call 'call_1' has no result, and nothing runs" in sentence
    assert list(unfinished(cut)) == []  # something lives, which may still bring it
