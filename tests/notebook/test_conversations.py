"""What a transcript, an inbox and a run say to a reader, from records alone."""

from __future__ import annotations

from typing import Literal

import pytest

from pidurable_nb.agent.inbox.admission import Match
from pidurable_nb.agent.watching.agent_event import GenerationInFlight
from pidurable_nb.agent.watching.live_state import LiveState
from pidurable_nb.ids import ABSENT, ROOT, Absent, EntryId, Json, JsonObject, SubmissionId
from pidurable_nb.notebook.views.answers import MOST, AnswerView, Asked, Called, Said, parts_of
from pidurable_nb.notebook.views.conversations import inbox_of, inbox_table, transcript_table
from pidurable_nb.notebook.views.markup import lines_of
from pidurable_nb.records.message import harness_block
from pidurable_nb.records.transcript import (
    Answered,
    Edit,
    EntryRecord,
    Placed,
    SubmissionRecord,
    SubmissionState,
    Unanswered,
)

DIAGNOSTIC: JsonObject = {"severity": "error", "code": "interrupted", "message": "search was cut off by a crash"}


def entry(
    id: int, kind: str, *messages: JsonObject, data: Json | Absent = ABSENT, head: int | None = None,
    edits: tuple[Edit, ...] = (),
) -> EntryRecord:  # fmt: skip
    return EntryRecord(
        id=EntryId(id), conversation=ROOT, kind=kind, model=messages, data=data,
        head=EntryId(head) if head is not None else None, edits=edits,
    )  # fmt: skip


def answer(id: int, *blocks: JsonObject, stop: str = "stop", **more: Json) -> EntryRecord:
    message: JsonObject = {"role": "assistant", "content": list(blocks), "stopReason": stop, **more}
    return entry(id, "pi.assistant", message)


def text(said: str) -> JsonObject:
    return {"type": "text", "text": said}


def calls(id: str, name: str = "search", **arguments: Json) -> JsonObject:
    return {"type": "toolCall", "id": id, "name": name, "arguments": arguments}


def result(id: int, call: str, said: str, *diagnostics: JsonObject, error: bool = False) -> EntryRecord:
    content: list[Json] = [text(said)] if said else []
    if diagnostics:
        content.append(harness_block(diagnostics))
    message: JsonObject = {
        "role": "toolResult", "toolCallId": call, "toolName": "search", "content": content, "isError": error,
        "durationMs": 1500,
    }  # fmt: skip
    return entry(id, "pi.tool-result", message, data={"diagnostics": list(diagnostics)})


def submission(state: SubmissionState, request_id: str | None = None) -> SubmissionRecord:
    return SubmissionRecord(
        id=SubmissionId(8), conversation=ROOT, type="input", state=state, request_id=request_id
    )  # fmt: skip


def asked(state: SubmissionState, *entries: EntryRecord, match: Match = "new", live: LiveState | None = None) -> Asked:
    return Asked(record=submission(state, "r1"), match=match, entries=entries, live=live)


# --- a transcript -----------------------------------------------------------------------------------------------------


def test_v1_calls_results_heads_edits_and_what_failed_are_readable() -> None:
    tool: JsonObject = {"name": "search", "description": "d", "parameters": {}}
    system: JsonObject = {
        "role": "system",
        "content": "",
        "sections": {"a": "be kind", "b": None},
        "toolsAdded": [tool],
    }
    entries = [
        entry(1, "pi.system", system),
        entry(2, "pi.system", {"role": "system", "content": "", "sections": {}}),
        answer(3, {"type": "thinking", "thinking": "hm"}, text("Let me look."), calls("c", query="tides")),
        result(4, "c", "half of", DIAGNOSTIC, error=True),
        answer(5, text("Hal"), stop="aborted"),
        answer(6, stop="error", errorMessage="503 overloaded"),
        answer(7, text("so much"), stop="length"),
        entry(8, "pi.reset", {"role": "user", "content": "from here"}, head=8),
        entry(9, "pi.compaction", {"role": "user", "content": "in short"}, head=7),
        entry(10, "app.edit", edits=(Edit(target=EntryId(3)),)),
    ]
    lines = [line.split(maxsplit=2)[-1] for line in str(transcript_table(ROOT, entries)).splitlines()[1:]]
    assert [line.rsplit("  ", 1)[0].rstrip() for line in lines] == [
        r"offers search\na: be kind\nb: no more",
        "the prompt is empty",
        r'[thinking, 2 characters]\nLet me look.\ncalls search({"query":"tides"})',
        r"[error] search: half of\nsearch was cut off by a crash",
        "[cut off] Hal",
        "[failed] 503 overloaded",
        "[ended at the limit of its length] so much",
        "[the model begins here] from here",
        "[the model begins at 7] in short",
        "[changes what the model sees of 3]",
    ]


def test_an_inbox_of_a_strangers_store_shows_what_is_legible() -> None:
    write: JsonObject = {"kind": "app.note", "model": [{"role": "user", "content": "note"}]}
    document: JsonObject = {
        "items": [
            {"id": 9, "mode": "steer", "content": [text("left"), {"type": "image"}]},
            {"id": 10, "mode": "write", "entry": write},
            {"id": 11, "mode": "write", "entry": {"kind": "app.data", "data": {"n": 1}}},
            {"id": "x"}, 7, {"id": 12},
        ]
    }  # fmt: skip
    waiting = inbox_of(ROOT, document)
    assert [(item.id, item.mode, item.text) for item in waiting] == [
        (9, "steer", "left\n[image]"), (10, "write", "note"), (11, "write", '{"n":1}'), (12, "?", ""),
    ]  # fmt: skip
    assert "joins behind the current tool round" in str(inbox_table(waiting))
    assert inbox_of(ROOT, None) == inbox_of(ROOT, {"items": "x"}) == []


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_result_belongs_to_the_newest_call_of_its_id() -> None:
    run = asked(
        Answered(entry=EntryId(7), answer=EntryId(20)),
        answer(11, calls("c", query="a")), result(12, "c", "one"),
        answer(13, calls("c", query="b")), result(14, "c", "two", DIAGNOSTIC, error=True),
        entry(15, "pi.user", {"role": "user", "content": "and quickly"}),
        answer(20, text("done")),
    )  # fmt: skip
    assert parts_of(run) == [
        Called(id="c", name='search(query="a")', state="done", output="one", duration_ms=1500),
        Called(
            id="c", name='search(query="b")', state="interrupted", output="two\nsearch was cut off by a crash",
            duration_ms=1500,
        ),
        Said(text="and quickly", how="heard"),
        Said(text="done"),
    ]  # fmt: skip
    plain = AnswerView(run).plain()
    assert '  search(query="b")  interrupted, 1.5 s: two\njoined the run:\nand quickly\ndone' in plain


@pytest.mark.parametrize(("run", "shown"), [((8,), True), ((5, 8), True), ((5,), False), (None, False)])
def test_only_the_run_of_this_submission_is_shown_as_it_streams(run: tuple[int, ...] | None, shown: bool) -> None:
    partial: JsonObject = {"role": "assistant", "content": [text("so f")], "stopReason": "pending"}
    live = LiveState(
        run=tuple(map(SubmissionId, run)) if run is not None else None,
        generation=GenerationInFlight(attempt=1, message=partial), tools={}, compactions={},
    )  # fmt: skip
    parts = parts_of(asked(Placed(entry=EntryId(7)), live=live))
    assert (parts == [Said(text="so f", how="arriving")]) == shown == bool(parts)


def test_a_long_run_shows_its_newest_parts_and_says_how_many_came_before() -> None:
    entries = [answer(n, text(f"part {n}.")) for n in range(100, 100 + MOST + 7)]
    view = AnswerView(asked(Answered(entry=EntryId(7), answer=EntryId(300)), *entries))
    for form in view._repr_mimebundle_().values():
        assert "7 earlier parts are left out" in form
        assert "part 106." not in form
        assert "part 107." in form


@pytest.mark.parametrize(("match", "word"), [("same", "same: "), ("differs", "differs: "), ("unknown", "unknown: ")])
def test_s1_asking_again_says_how_it_compares(match: Literal["same", "differs", "unknown"], word: str) -> None:
    view = AnswerView(asked(Unanswered(reason="odd", detail={"code": 7}), match=match))
    lines = view.plain().splitlines()
    assert lines[0] == "submission 8 in conversation 1   unanswered: odd"
    assert lines[1].startswith(f"{word}asked before under r1")
    assert lines[-1] == '{"code":7}'


# --- texts ------------------------------------------------------------------------------------------------------------


def test_lines_keep_their_space_and_a_cut_says_the_size() -> None:
    assert lines_of("a\r\n\tb\n\nc", 100) == ["a", "    b", "", "c"]
    assert lines_of("x" * 100, 100) == ["x" * 100]
    assert lines_of("x" * 101, 100) == ["x" * 100, "… (101 characters in all)"]
    assert lines_of("a\nb\nc", 100, most=2) == ["a", "b", "… (5 characters in all)"]
    assert lines_of("\u202e" * 100, 100) == [("\\u202e" * 17)[:100], "… (100 characters in all)"]
    assert lines_of("\u202e" * 5 + "\n" + "y" * 90, 100) == ["\\u202e" * 5, "y" * 70, "… (96 characters in all)"]
