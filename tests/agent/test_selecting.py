"""What a compaction summarizes: where the cut stands, and what the summarizer reads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pidurable_nb.agent.request.context import Context, derive
from pidurable_nb.agent.request.estimate import estimate_tokens
from pidurable_nb.agent.request.selecting import MOST_OF_A_RESULT, Cut, cut_at, select_range, serialize
from pidurable_nb.ids import ROOT, EntryId, Json, JsonObject
from pidurable_nb.records.message import calls_of, role_of
from pidurable_nb.records.transcript import Edit, EntryRecord


def filled(tokens: int) -> str:
    return "x" * (4 * tokens)


def user(tokens: int = 1) -> JsonObject:
    return {"role": "user", "content": filled(tokens), "timestamp": 1}


def system(tokens: int = 1) -> JsonObject:
    return {"role": "system", "content": "", "sections": {"a": filled(tokens)}, "timestamp": 1}


def answer(*calls: str, tokens: int = 1) -> JsonObject:
    content: list[Json] = [{"type": "text", "text": filled(tokens)}]
    content += [{"type": "toolCall", "id": id, "name": "read", "arguments": {}} for id in calls]
    return {"role": "assistant", "content": content, "stopReason": "toolUse" if calls else "stop", "timestamp": 1}


def result(call: str, tokens: int = 1) -> JsonObject:
    content: list[Json] = [{"type": "text", "text": filled(tokens)}]
    return {"role": "toolResult", "toolCallId": call, "toolName": "read", "content": content, "isError": False}


def context_of(*models: Sequence[JsonObject] | JsonObject, head: bool = False, edits: Sequence[Edit] = ()) -> Context:
    """Entries of these messages with ids from 1; with `head` the last one is the marker, of a range from 1 on."""
    entries = list[EntryRecord]()
    for at, model in enumerate(models, 1):
        messages = tuple(model) if isinstance(model, Sequence) else (model,)
        last = at == len(models)
        entries.append(
            EntryRecord(
                id=EntryId(at),
                conversation=ROOT,
                kind="app.any",
                model=messages or None,
                head=EntryId(1) if head and last else None,
                edits=tuple(edits) if last else (),
            )
        )
    return derive(entries, entries[-1] if head else None)


def chosen(cut: Cut | None) -> int | None:
    return None if cut is None else cut.first_kept


# -- the cut ---------------------------------------------------------------------------------------------------------


def test_k1_a_result_too_long_to_keep_is_summarized_with_its_call() -> None:
    context = context_of(user(), answer("r"), result("r", 30_000), answer(), user(), answer())
    cut = select_range(context, 20_000)
    assert cut is not None
    assert cut.first_kept == 4
    assert [entry.id for entry in cut.summarized] == [1, 2, 3]
    assert list(cut.messages) == [user(), answer("r"), result("r", 30_000)]


def test_k1_there_is_nothing_to_compact_while_less_than_that_is_there() -> None:
    context = context_of(user(4), answer(tokens=4), user(1))
    assert chosen(select_range(context, 10)) is None
    assert chosen(select_range(context, 9)) is None  # it all stays, and nothing is before the cut
    assert chosen(select_range(context, 5)) == 2
    assert chosen(select_range(context, 1)) == 3
    assert select_range(context_of(), 0) is None


def test_k1_entries_that_say_nothing_are_nothing_to_compact() -> None:
    assert select_range(context_of([], [], user(5), user(5)), 10) is None
    assert chosen(select_range(context_of([], [], user(5), user(5)), 5)) == 4
    omitted = [Edit(target=EntryId(1))]
    assert select_range(context_of(user(5), user(5), user(5), edits=omitted), 10) is None


def test_k1_the_newest_candidate_is_taken_when_none_follows() -> None:
    context = context_of(user(), answer("r"), result("r", 5), system(5), [])
    assert chosen(select_range(context, 5)) == 2
    assert chosen(select_range(context, 8)) == 2
    assert select_range(context_of(result("r", 9), system(9)), 5) is None  # there is no candidate at all


def test_k1_results_and_system_messages_are_never_the_first_that_is_kept() -> None:
    context = context_of(user(), answer("r", "s"), result("r"), result("s"), system(), answer(), user())
    cuts = [chosen(select_range(context, tokens)) for tokens in range(1, 11)]  # the first answer has 4 tokens
    assert cuts == [7, 6, 6, 6, 6, 2, 2, 2, 2, None]


def test_k1_a_user_is_no_candidate_while_a_result_of_the_answer_before_follows() -> None:
    early = (user(), answer("r", "s"), result("r"), user(), result("s"), user(), answer())
    assert chosen(select_range(context_of(*early), 3)) == 6
    assert chosen(select_range(context_of(*early), 4)) == 6  # not 4: the result of s belongs before it
    foreign = (user(), answer("r"), result("r"), user(), result("other"), user(), answer())
    assert chosen(select_range(context_of(*foreign), 4)) == 4
    within_one_entry = (user(), answer("r"), [user(), result("r")], answer(), user())
    assert chosen(select_range(context_of(*within_one_entry), 3)) == 4
    never = (user(), answer("r"), user(), user())
    assert chosen(select_range(context_of(*never), 2)) == 3  # it has none: the call is summarized without


def test_k1_the_head_marker_is_summarized_again_and_never_counted() -> None:
    context = context_of(user(2), answer(tokens=2), user(2), user(100), head=True)
    assert context.entries[0].id == 4
    cut = select_range(context, 3)
    assert cut is not None
    assert cut.first_kept == 2
    assert [entry.id for entry in cut.summarized] == [4, 1]
    assert list(cut.messages) == [user(100), user(2)]
    assert select_range(context, 6) is None  # only the marker would be before the cut
    assert select_range(context, 7) is None


def test_k1_edits_count_before_the_cut_is_looked_for() -> None:
    messages = (user(), user(50), user(2), user(2))
    shorter = [Edit(target=EntryId(2), messages=(user(1),))]
    assert chosen(select_range(context_of(*messages), 20)) == 2
    assert chosen(select_range(context_of(*messages, edits=shorter), 5)) == 2
    assert chosen(select_range(context_of(*messages, edits=shorter), 4)) == 3
    assert select_range(context_of(*messages, edits=shorter), 20) is None


def test_k1_the_summarized_messages_stand_as_they_would_be_sent() -> None:
    context = context_of(user(), system(), answer("r", "s"), system(), result("s"), answer(), user(), user())
    cut = select_range(context, 2)
    assert cut is not None
    roles = [role_of(message) for message in cut.messages]
    assert roles == ["user", "system", "assistant", "toolResult", "toolResult", "system", "assistant"]
    assert [message.get("isError") for message in cut.messages[3:5]] == [True, False]


def test_k1_a_cut_is_found_again_by_the_first_that_is_kept() -> None:
    context = context_of(user(2), answer(tokens=2), user(2), user(100), head=True)
    cut = select_range(context, 3)
    assert cut is not None
    assert cut_at(context, cut.first_kept) == cut
    for missing in (4, 9):  # the marker is not kept
        with pytest.raises(ValueError, match="not active"):
            cut_at(context, EntryId(missing))


IDS = st.sampled_from(["r", "s"])
SIZES = st.integers(1, 6)
MESSAGES = st.one_of(
    st.builds(user, SIZES),
    st.builds(system, SIZES),
    st.builds(lambda ids, tokens: answer(*ids, tokens=tokens), st.lists(IDS, max_size=2, unique=True), SIZES),
    st.builds(result, IDS, SIZES),
    st.builds(result, IDS, SIZES),
)


@given(st.lists(st.lists(MESSAGES, min_size=1, max_size=2), max_size=12), st.booleans(), st.integers(1, 30))
@settings(max_examples=400)
def test_k1_a_cut_never_parts_a_call_from_its_result(
    models: list[list[JsonObject]], head: bool, keep_recent: int
) -> None:
    context = context_of(*models, head=head and bool(models))
    kept_from = 0 if context.head is None else 1
    sizes = [sum(map(estimate_tokens, contribution)) for contribution in context.contributions]
    cut = select_range(context, keep_recent)
    if sum(sizes[kept_from:]) < keep_recent:
        assert cut is None
    if cut is None:
        return
    at = len(cut.summarized)
    assert context.entries[at].id == cut.first_kept
    assert cut.summarized == context.entries[:at]
    assert any(context.contributions[kept_from:at])
    first = context.contributions[at][0]
    assert role_of(first) in ("user", "assistant")

    # Whole rounds on either side: nothing that was answered in the whole is unanswered in a part.
    kept = derive(context.entries[at:], None)
    assert answered(cut.messages) + answered(kept.messages) == answered(context.messages)

    # Enough is kept, unless what would make it enough cannot be the first: then no candidate stands between.
    reached = max(n for n in range(kept_from, len(sizes)) if sum(sizes[n:]) >= keep_recent)
    assert sum(sizes[at:]) >= keep_recent or not any(
        role_of(context.contributions[n][0]) == "assistant" for n in range(reached, at)
    )


def answered(messages: Sequence[JsonObject]) -> list[str]:
    """The calls that have a result of their own, in order, by call and size."""
    found = list[str]()
    for at, message in enumerate(messages):
        for offset, call in enumerate(calls_of(message), 1):
            reply = messages[at + offset]
            if reply["isError"] is False:
                found.append(f"{call.id} {estimate_tokens(reply)}")
    return found


# -- the text --------------------------------------------------------------------------------------------------------


def test_k1_messages_are_serialized_as_labelled_paragraphs() -> None:
    call: JsonObject = {"type": "toolCall", "id": "1", "name": "read", "arguments": {"path": "é.txt", "lines": [1, 2]}}
    other: JsonObject = {"type": "toolCall", "id": "2", "name": "now", "arguments": {}}
    text = serialize(
        [
            system(),
            {"role": "user", "content": "look", "timestamp": 1},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "image", "data": "A"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "text", "text": "Reading"},
                    call,
                    {"type": "text", "text": "both"},
                    other,
                ],
            },
            {"role": "toolResult", "toolCallId": "1", "content": [{"type": "text", "text": "y" * 5000}]},
            {"role": "toolResult", "toolCallId": "2", "content": []},
            {"role": "assistant", "content": []},
            {"role": "assistant", "content": [{"type": "text", "text": "Done"}]},
        ]
    )
    assert text.split("\n\n") == [
        "[User]: look",
        "[User]: one",
        "[Assistant thinking]: hm",
        "[Assistant]: Reading\nboth",
        '[Assistant tool calls]: read(path="é.txt", lines=[1,2]); now()',
        f"[Tool result]: {'y' * MOST_OF_A_RESULT}",
        "[Assistant]: Done",
    ]
    assert serialize([]) == ""
