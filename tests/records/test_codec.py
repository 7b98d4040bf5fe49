"""The stored form: every record of the real stores comes back as it was; what strangers write is read strictly."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidurable_nb.errors import NotJson
from pidurable_nb.ids import ABSENT, ConversationId, DocumentId, EntryId, Json, Seq, SubmissionId, TaskId
from pidurable_nb.records import codec
from pidurable_nb.records import task as stored
from pidurable_nb.records.document import ConversationScope, DocumentRecord, SessionScope, TaskScope
from pidurable_nb.records.transcript import (
    Answered,
    ConversationRecord,
    Edit,
    EntryRecord,
    Owner,
    Parent,
    Placed,
    Queued,
    SubmissionRecord,
    SubmissionState,
    Unanswered,
    Written,
)

STORES = Path(__file__).resolve().parents[2] / "fixtures" / "stores"


def recode(table: str, text: str) -> str:
    match table:
        case "conversations":
            return codec.encode_conversation(codec.decode_conversation(text))
        case "entries":
            return codec.encode_entry(codec.decode_entry(text))
        case "tasks":
            return codec.encode_task(codec.decode_task(text))
        case "submissions":
            return codec.encode_submission(codec.decode_submission(text))
        case _:
            return codec.encode_document(codec.decode_document(text))


@pytest.mark.parametrize("path", sorted(STORES.glob("*.sqlite")), ids=lambda path: path.name)
def test_every_record_of_a_real_store_comes_back_as_it_was(path: Path) -> None:
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as db:
        rows = 0
        for table in ("conversations", "entries", "tasks", "submissions", "documents"):
            for (text,) in db.execute(f"SELECT record FROM {table}"):
                assert json.loads(recode(table, text)) == json.loads(text)
                rows += 1
        for table, column in (("tasks", "kind"), ("submissions", "request_id"), ("documents", "key_value")):
            for (quoted,) in db.execute(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL"):
                assert quoted in codec.both_spellings(json.loads(quoted))
    db.close()
    assert rows > 0


def a_task(state: stored.State) -> stored.TaskRecord:
    return stored.TaskRecord(
        id=TaskId(7), conversation=ConversationId(1), kind="app.kïnd", version=1, input=None, state=state
    )


ERROR = stored.TaskError(message="broke", detail={"reason": "x"})
STATES: list[stored.State] = [
    stored.Pending(checkpoint={"phase": "a"}),
    stored.Running(checkpoint={"phase": "a", "n": 0.0}),
    stored.Waiting(checkpoint={"phase": "a"}, on=(TaskId(8), TaskId(9)), fail_fast=True),
    stored.Waiting(checkpoint={"phase": "a"}, on=(), fail_fast=False),
    stored.Sleeping(checkpoint={"phase": "a"}, until_ms=1.5),
    stored.Completing(outcome=stored.Completed(result=None)),
    stored.Terminal(outcome=stored.Completed(result=[1, {"a": "\ud800"}])),
    stored.Terminal(outcome=stored.Failed(error=ERROR, result=1)),
    stored.Terminal(outcome=stored.Failed(error=stored.TaskError(message=""))),
    stored.Terminal(outcome=stored.Aborted()),
    stored.Terminal(outcome=stored.Aborted(reason="r", result=False)),
    stored.Terminal(outcome=stored.Orphaned(reason="missing_task")),
    stored.Terminal(outcome=stored.Faulted(error=ERROR)),
]


@pytest.mark.parametrize("state", STATES, ids=repr)
def test_t1_every_state_comes_back(state: stored.State) -> None:
    task = a_task(state)
    assert codec.decode_task(codec.encode_task(task)) == task
    assert "null" not in codec.encode_task(dataclasses.replace(task, input=0)).replace('"result":null', "")


def test_a_task_comes_back_with_everything_set() -> None:
    task = dataclasses.replace(
        a_task(stored.Pending(checkpoint={}, extra={"later": 1})),
        owner=TaskId(3),
        background=True,
        abort_requested=True,
        abort_reason="restart",
        abandon_on_restart=True,
        memos={"m": [None]},
        started_at_ms=0,
        ended_at_ms=1,
        restarts=2,
        extra={"new": {"field": True}},
    )
    assert codec.decode_task(codec.encode_task(task)) == task


def test_waiting_policy_has_its_stored_words() -> None:
    words = [codec.task_json(a_task(state))["state"] for state in STATES[2:4]]
    assert [word["policy"] for word in words if isinstance(word, dict)] == ["failFast", "allSettled"]


@pytest.mark.parametrize(
    "record",
    [
        ConversationRecord(id=ConversationId(1)),
        ConversationRecord(
            id=ConversationId(9),
            parent=Parent(conversation=ConversationId(1), at=EntryId(5)),
            owner=Owner(conversation=ConversationId(1), task=TaskId(4)),
            extra={"x": 1},
        ),
    ],
    ids=repr,
)
def test_conversations_come_back(record: ConversationRecord) -> None:
    assert codec.decode_conversation(codec.encode_conversation(record)) == record


@pytest.mark.parametrize(
    "record",
    [
        EntryRecord(id=EntryId(2), conversation=ConversationId(1), kind="note"),
        EntryRecord(id=EntryId(2), conversation=ConversationId(1), kind="note", data=None, model=()),
        EntryRecord(
            id=EntryId(2),
            conversation=ConversationId(1),
            kind="pi.reset",
            model=({"role": "user", "content": "hi"},),
            data={"a": []},
            head=EntryId(2),
            edits=(Edit(target=EntryId(1)), Edit(target=EntryId(1), messages=({"role": "user"},))),
            by_task=TaskId(3),
            extra={"later": None},
        ),
    ],
    ids=["bare", "null data", "full"],
)
def test_entries_come_back_and_null_data_is_not_absent_data(record: EntryRecord) -> None:
    back = codec.decode_entry(codec.encode_entry(record))
    assert back == record
    assert (back.data is ABSENT) == (record.data is ABSENT)


def test_s2_submissions_come_back_in_every_state() -> None:
    entry, answer = EntryId(5), EntryId(6)
    states: dict[Literal["input", "write"], list[SubmissionState]] = {
        "input": [
            Queued(),
            Placed(entry=entry),
            Answered(entry=entry, answer=answer),
            Unanswered(reason="aborted"),
            Unanswered(reason="model_error", detail="text", entry=entry),
        ],
        "write": [Queued(), Written(entry=entry), Unanswered(reason="stale", detail={"a": 1})],
    }
    for type_, of_type in states.items():
        for state in of_type:
            record = SubmissionRecord(
                id=SubmissionId(4),
                conversation=ConversationId(1),
                type=type_,
                state=state,
                request_id="r\ud800",
                extra={"k": 0},
            )
            assert codec.decode_submission(codec.encode_submission(record)) == record


@pytest.mark.parametrize(
    "record",
    [
        DocumentRecord(id=DocumentId(2), kind="a", scope=SessionScope(), created_at=Seq(1)),
        DocumentRecord(
            id=DocumentId(2),
            kind="a",
            scope=ConversationScope(ConversationId(1)),
            created_at=Seq(1),
            key="",
            history="rewindable",
            fork="as_of",
            retired_at=Seq(2),
            extra={"z": []},
        ),
        DocumentRecord(id=DocumentId(2), kind="a", scope=TaskScope(TaskId(3)), created_at=Seq(1), key="k"),
    ],
    ids=repr,
)
def test_document_records_come_back(record: DocumentRecord) -> None:
    assert codec.decode_document(codec.encode_document(record)) == record


def test_fork_policy_as_of_has_its_stored_name() -> None:
    record = DocumentRecord(
        id=DocumentId(2),
        kind="a",
        scope=ConversationScope(ConversationId(1)),
        created_at=Seq(1),
        history="rewindable",
        fork="as_of",
    )
    assert codec.document_json(record)["fork"] == "asOf"


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        (codec.decode_task, '{"status":"aborted","result":null}'),
        (codec.decode_task, '{"status":"failed","error":{"message":"m","detail":null},"result":null}'),
    ],
)
def test_an_explicit_null_comes_back(decode: Callable[[str], stored.TaskRecord], text: str) -> None:
    whole = (
        '{"id":7,"conversationId":1,"kind":"k","version":1,"input":null,"background":false,'
        '"abortRequested":false,"state":{"status":"terminal","outcome":' + text + "}}"
    )
    assert json.loads(codec.encode_task(decode(whole))) == json.loads(whole)


def test_a_known_field_wins_over_what_was_kept_of_a_stranger() -> None:
    text = '{"id":4,"conversationId":1,"type":"input","status":"queued","entry":"odd"}'
    queued = codec.decode_submission(text)
    assert json.loads(codec.encode_submission(queued)) == json.loads(text)
    placed = dataclasses.replace(queued, state=Placed(entry=EntryId(9)))
    assert codec.submission_json(placed)["entry"] == 9


# --- What strangers write ---------------------------------------------------------------------------------------

GOOD_TASK: dict[str, Json] = {
    "id": 7,
    "conversationId": 1,
    "kind": "k",
    "version": 1,
    "input": {},
    "background": False,
    "abortRequested": False,
    "state": {"status": "waiting", "checkpoint": {"phase": "p"}, "on": [8], "policy": "failFast"},
}


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("id", {"id": None}),
        ("id", {"id": 0}),
        ("id", {"id": 2**53}),
        ("id", {"id": True}),
        ("id", {"id": 7.0}),
        ("conversationId", {"conversationId": "1"}),
        ("kind", {"kind": ""}),
        ("version", {"version": 0}),
        ("background", {"background": 1}),
        ("owner", {"owner": None}),
        ("memos", {"memos": []}),
        ("startedAt", {"startedAt": -1}),
        ("abandonOnRestart", {"abandonOnRestart": "yes"}),
        ("state", {"state": []}),
        ("state.status", {"state": {"status": "sleepy"}}),
        ("state.status", {"state": {"status": ["waiting"]}}),
        ("state.checkpoint", {"state": {"status": "running"}}),
        ("state.on[1]", {"state": {"status": "waiting", "checkpoint": {}, "on": [8, "9"], "policy": "failFast"}}),
        ("state.policy", {"state": {"status": "waiting", "checkpoint": {}, "on": [], "policy": "any"}}),
        ("state.until", {"state": {"status": "sleeping", "checkpoint": {}, "until": -0.5}}),
        ("state.outcome", {"state": {"status": "terminal"}}),
        ("state.outcome.status", {"state": {"status": "terminal", "outcome": {}}}),
        ("state.outcome.result", {"state": {"status": "terminal", "outcome": {"status": "completed"}}}),
        (
            "state.outcome.error.message",
            {"state": {"status": "terminal", "outcome": {"status": "failed", "error": {}}}},
        ),
    ],
)
def test_a_task_of_another_shape_is_refused_naming_record_and_field(field: str, change: dict[str, Json]) -> None:
    assert codec.decode_task(codec.dumps(GOOD_TASK)).status == "waiting"
    with pytest.raises(codec.BadRecord) as caught:
        codec.decode_task(codec.dumps({**GOOD_TASK, **change}))
    assert caught.value.field == field
    assert caught.value.record.startswith("task")
    assert caught.value.record == "task 7" or field == "id"
    assert str(caught.value).startswith(f"{caught.value.record}: {field}: ")


@pytest.mark.parametrize("missing", ["id", "conversationId", "kind", "version", "input", "background", "state"])
def test_a_task_without_a_field_it_must_have_is_refused(missing: str) -> None:
    broken = {key: value for key, value in GOOD_TASK.items() if key != missing}
    with pytest.raises(codec.BadRecord, match=f"{missing}: missing"):
        codec.decode_task(codec.dumps(broken))


@pytest.mark.parametrize(
    ("decode", "text", "said"),
    [
        (codec.decode_conversation, '{"id":3,"parent":{"conversationId":1}}', "conversation 3: parent.at: missing"),
        (codec.decode_conversation, "[]", "conversation: an array where an object belongs"),
        (codec.decode_entry, '{"id":3,"conversationId":1,"kind":"k","model":[7]}', r"entry 3: model\[0\]: 7 where"),
        (
            codec.decode_entry,
            '{"id":3,"conversationId":1,"kind":"k","edits":[{"target":1,"action":"replace"}]}',
            r"entry 3: edits\[0\]\.messages: missing",
        ),
        (
            codec.decode_submission,
            '{"id":3,"conversationId":1,"type":"write","status":"placed","entry":1}',
            "submission 3: status: 'placed' where one of queued, done, unanswered belongs",
        ),
        (
            codec.decode_submission,
            '{"id":3,"conversationId":1,"type":"input","status":"done","entry":1}',
            "submission 3: answer: missing",
        ),
        (
            codec.decode_document,
            '{"id":3,"kind":"k","scope":{"kind":"session","taskId":1},"createdAt":1}',
            "document 3: scope.taskId: no member of a session scope",
        ),
        (
            codec.decode_document,
            '{"id":3,"kind":"k","scope":{"kind":"conversation","conversationId":1},"createdAt":1,"fork":"initial"}',
            "document 3: history: missing",
        ),
    ],
)
def test_a_record_of_another_shape_is_refused(decode: Callable[[str], object], text: str, said: str) -> None:
    with pytest.raises(codec.BadRecord, match=said):
        decode(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[Infinity]",
        "1e999",
        "-1e999",
        '{"a":1,"a":2}',
        '{"a":{"b":1,"\\u0062":1}}',
        "1" * 5000,
        "[" * 1000 + "]" * 1000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        "[" * 1_000_000,
        "'a'",
        "[1,]",
        "\ufeff{}",
    ],
    ids=lambda text: text[:20],
)
def test_text_that_is_no_strict_json_is_refused(text: str) -> None:
    with pytest.raises(codec.BadRecord):
        codec.loads(text)
    with pytest.raises(codec.BadRecord, match=r"^task: "):
        codec.decode_task(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("été", '"été"'),
        ("\ud800", '"\\ud800"'),
        ("a\udfffé\x00\u2028", '"a\\udfffé\\u0000\u2028"'),
        ("\ud83d\ude00", '"😀"'),
        ({"\udc00": ["😀"]}, '{"\\udc00":["😀"]}'),
        (2**64, "18446744073709551616"),
    ],
)
def test_b19_text_is_raw_but_for_lone_surrogates(value: Json, text: str) -> None:
    assert codec.dumps(value) == text
    assert json.dumps(codec.loads(text)) == json.dumps(json.loads(text))


def test_b19_both_spellings_of_an_indexed_text() -> None:
    assert codec.both_spellings("pi.tool") == ('"pi.tool"',)
    assert codec.both_spellings("été") == ('"été"', '"\\u00e9t\\u00e9"')
    assert codec.both_spellings("\ud800") == ('"\\ud800"',)
    assert codec.both_spellings("\ud800é") == ('"\\ud800é"', '"\\ud800\\u00e9"')
    assert codec.indexed("😀") == '"😀"'


@pytest.mark.parametrize("value", [object(), {1: 2}, {"a": b""}], ids=repr)
def test_c7_the_writer_never_invents_text_for_what_is_no_json(value: Json) -> None:
    with pytest.raises(NotJson):
        codec.dumps(value)


def test_deep_records_are_read_up_to_the_bound() -> None:
    for levels in (200, codec.STORED_DEPTH):
        deep = "[" * levels + "]" * levels
        assert codec.dumps(codec.loads(deep)) == deep
    over = codec.STORED_DEPTH + 1
    with pytest.raises(codec.BadRecord, match="nested deeper"):
        codec.loads("[" * over + "]" * over)


WHOLE: dict[str, Json] = {
    "task": GOOD_TASK,
    "terminal": {
        **GOOD_TASK,
        "state": {"status": "terminal", "outcome": {"status": "failed", "error": {"message": "m", "detail": 1}}},
    },
    "conversation": {"id": 3, "parent": {"conversationId": 1, "at": 2}, "owner": {"conversationId": 1, "taskId": 2}},
    "entry": {
        "id": 3,
        "conversationId": 1,
        "kind": "k",
        "model": [{"role": "user"}],
        "edits": [{"target": 1, "action": "replace", "messages": [{}]}],
    },
    "submission": {"id": 3, "conversationId": 1, "type": "input", "status": "done", "entry": 1, "answer": 2},
    "document": {"id": 3, "kind": "k", "scope": {"kind": "task", "taskId": 1}, "key": "", "createdAt": 1},
}
ANY_JSON: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def again(name: str, text: str) -> tuple[object, object]:
    """The record of a text, and the record of the text that it makes."""
    match name:
        case "task" | "terminal":
            task = codec.decode_task(text)
            return task, codec.decode_task(codec.encode_task(task))
        case "conversation":
            conversation = codec.decode_conversation(text)
            return conversation, codec.decode_conversation(codec.encode_conversation(conversation))
        case "entry":
            entry = codec.decode_entry(text)
            return entry, codec.decode_entry(codec.encode_entry(entry))
        case "submission":
            submission = codec.decode_submission(text)
            return submission, codec.decode_submission(codec.encode_submission(submission))
        case _:
            document = codec.decode_document(text)
            return document, codec.decode_document(codec.encode_document(document))


def damaged(value: Json, at: list[int], by: Json) -> Json:
    """`value` with one place, found by the choices in `at`, replaced."""
    if not at or not isinstance(value, (dict, list)) or not value:
        return by
    if isinstance(value, dict):
        key = sorted(value)[at[0] % len(value)]
        return {**value, key: damaged(value[key], at[1:], by)}
    place = at[0] % len(value)
    return [*value[:place], damaged(value[place], at[1:], by), *value[place + 1 :]]


@given(st.sampled_from(sorted(WHOLE)), st.lists(st.integers(0, 20), min_size=1, max_size=4), ANY_JSON)
def test_a_damaged_record_is_refused_or_read_but_never_anything_else(name: str, at: list[int], by: Json) -> None:
    assert len(set(map(repr, again(name, json.dumps(WHOLE[name]))))) == 1
    try:
        first, second = again(name, json.dumps(damaged(WHOLE[name], at, by)))
    except codec.BadRecord:
        return
    assert first == second


@given(st.text(max_size=40) | st.text(alphabet='{}[]":,0123456789eE+-.\\untrfals ', max_size=40))
def test_any_text_is_json_or_a_bad_record(text: str) -> None:
    try:
        value = codec.loads(text)
    except codec.BadRecord:
        return
    assert json.loads(text) == value
    assert codec.loads(codec.dumps(value)) == value
