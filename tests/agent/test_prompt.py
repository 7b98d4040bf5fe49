"""The system messages of a transcript: what they add up to, and the smallest change that leads to what is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidurable_nb.agent.request.context import Context, derive
from pidurable_nb.agent.request.prompt import Shown, SystemEntry, plan, replay
from pidurable_nb.errors import NotJson
from pidurable_nb.ids import ROOT, EntryId, Json, JsonObject
from pidurable_nb.records.frozen import freeze
from pidurable_nb.records.transcript import Edit, EntryRecord

NOW = 1_750_000_000_000


def tool(name: str, description: str = "", **more: Json) -> JsonObject:
    return {"name": name, "description": description or f"Use {name}", "parameters": {"type": "object"}, **more}


def system(
    sections: Mapping[str, str | None] | None = None, removed: Sequence[str] = (), added: Sequence[JsonObject] = ()
) -> JsonObject:
    """A system message; what is empty is not there."""
    message: dict[str, Json] = {"role": "system", "content": ""}
    if sections is not None:
        message["sections"] = dict(sections)
    if removed:
        message["toolsRemoved"] = [{"name": name} for name in removed]
    if added:
        message["toolsAdded"] = list(added)
    return message | {"timestamp": NOW}


def entry(
    id: int, kind: str = "pi.user", *model: JsonObject, head: int | None = None, edits: Sequence[Edit] = ()
) -> EntryRecord:
    place = None if head is None else EntryId(head)
    return EntryRecord(
        id=EntryId(id), conversation=ROOT, kind=kind, model=model or None, head=place, edits=tuple(edits)
    )


def told(*messages: JsonObject) -> list[EntryRecord]:
    """A transcript of one user message and these system messages."""
    user = entry(1, "pi.user", {"role": "user", "content": "hi", "timestamp": NOW})
    return [user, *(entry(2 + at, "pi.system", message) for at, message in enumerate(messages))]


def context_of(entries: Sequence[EntryRecord]) -> Context:
    """The context through the last entry."""
    head = next((each for each in reversed(entries) if each.head is not None), None)
    return derive([each for each in entries if head is None or head.head is None or each.id >= head.head], head)


def after(entries: list[EntryRecord], planned: Sequence[SystemEntry]) -> list[EntryRecord]:
    """The transcript with what was planned."""
    first = entries[-1].id + 1
    return entries + [entry(first + at, "pi.system", each.message, edits=each.edits) for at, each in enumerate(planned)]


# -- replay ----------------------------------------------------------------------------------------------------------


def test_v2_replay_patches_sections_in_place_and_adds_at_the_end() -> None:
    shown = replay(
        [
            system({"a": "1", "b": "1"}),
            {"role": "user", "content": "between", "timestamp": NOW},
            system({"c": "1", "a": "2"}),
            system({"b": None, "lost": None}),
            system({"b": "3"}),
        ]
    )
    assert shown.sections == (("a", "2"), ("c", "1"), ("b", "3"))


def test_v2_replay_removes_tools_before_it_adds_them() -> None:
    newer = tool("read", "Read better")
    shown = replay([system(added=[tool("read"), tool("bash")]), system(removed=["read", "lost"], added=[newer])])
    assert shown.tools == (tool("bash"), newer)
    assert replay([system(added=[tool("read"), tool("bash")]), system(added=[newer])]).tools == (newer, tool("bash"))


def test_v2_replay_of_nothing_shows_nothing() -> None:
    assert replay([]) == Shown()
    assert replay([system()]) == Shown()


# -- plan ------------------------------------------------------------------------------------------------------------


def messages(planned: Sequence[SystemEntry]) -> list[JsonObject]:
    """The planned messages; none of them edits anything."""
    assert all(each.edits == () for each in planned)
    return [each.message for each in planned]


def test_v2_what_is_shown_already_is_not_said_again() -> None:
    entries = told(system({"a": "1"}, added=[tool("read")]))
    assert plan(context_of(entries), [("a", "1")], [tool("read")], NOW) == ()
    assert plan(context_of([]), [], [], NOW) == ()


def test_v2_the_first_plan_is_everything() -> None:
    planned = plan(context_of([]), [("a", "1"), ("b", "2")], [tool("read"), tool("bash")], NOW)
    (message,) = messages(planned)
    assert message == {
        "role": "system",
        "content": "",
        "sections": {"a": "1", "b": "2"},
        "toolsAdded": [tool("read"), tool("bash")],
        "timestamp": NOW,
    }
    assert list(message) == ["role", "content", "sections", "toolsAdded", "timestamp"]


def test_v2_only_what_changed_is_patched() -> None:
    entries = told(system({"a": "1", "b": "1", "c": "1"}, added=[tool("read"), tool("bash")]))
    planned = plan(context_of(entries), [("a", "1"), ("c", "2"), ("d", "1")], [tool("bash"), tool("new")], NOW)
    assert messages(planned) == [system({"c": "2", "d": "1", "b": None}, ["read"], [tool("new")])]
    assert messages(plan(context_of(entries), [], [tool("read"), tool("bash")], NOW)) == [
        system({"a": None, "b": None, "c": None})
    ]


def test_v2_another_order_of_sections_takes_two_entries_and_tools_ride_on_the_last() -> None:
    entries = told(system({"a": "1", "b": "1"}, added=[tool("read")]))
    planned = plan(context_of(entries), [("b", "1"), ("a", "1")], [], NOW)
    assert messages(planned) == [system({"a": None, "b": None}), system({"b": "1", "a": "1"}, ["read"])]
    inserted = plan(context_of(entries), [("new", "1"), ("a", "1"), ("b", "1")], [tool("read")], NOW)
    assert len(inserted) == 2  # in front of what stands there already


def test_v2_tools_alone_take_one_entry_without_sections() -> None:
    entries = told(system({"a": "1"}, added=[tool("read"), tool("bash")]))
    changed = tool("read", "Read better")
    planned = plan(context_of(entries), [("a", "1")], [tool("bash"), changed], NOW)
    assert messages(planned) == [system(None, ["read"], [changed])]


def test_v2_another_order_of_tools_removes_and_adds_all() -> None:
    entries = told(system({}, added=[tool("read"), tool("bash")]))
    planned = plan(context_of(entries), [], [tool("bash"), tool("read")], NOW)
    assert messages(planned) == [system(None, ["read", "bash"], [tool("bash"), tool("read")])]
    changed_in_front = plan(context_of(entries), [], [tool("read", "Read better"), tool("bash")], NOW)
    assert messages(changed_in_front)[0]["toolsRemoved"] == [{"name": "read"}, {"name": "bash"}]


def test_v2_only_declarations_are_compared_and_written() -> None:
    sampling: JsonObject = {"grammar": "lark"}
    desired = tool("read", constrainedSampling=sampling, mode="parallel", label="Read")
    (first,) = plan(context_of([]), [], [desired], NOW)
    assert first.message["toolsAdded"] == [tool("read", constrainedSampling=sampling)]
    entries = after(told(), [first])
    assert plan(context_of(entries), [], [tool("read", constrainedSampling=sampling, mode="sequential")], NOW) == ()
    assert len(plan(context_of(entries), [], [tool("read", constrainedSampling=None)], NOW)) == 1


def test_v2_a_declaration_is_compared_as_json_whatever_holds_it() -> None:
    stored = tool("read", parameters={"required": ["a"], "type": "object"})
    frozen = freeze(tool("read", parameters={"type": "object", "required": ["a"]}))
    assert isinstance(frozen, Mapping)
    entries = told(system(None, added=[stored]))
    assert plan(context_of(entries), [], [frozen], NOW) == ()
    (again,) = plan(context_of([]), [], [frozen], NOW)
    assert again.message["toolsAdded"] == [stored]  # plain lists and objects, as they are stored


def test_c7_a_declaration_that_is_no_json_names_its_tool() -> None:
    with pytest.raises(NotJson, match=r"tool 'read'.parameters.limit"):
        plan(context_of([]), [], [tool("read", parameters={"limit": float("nan")})], NOW)


# -- behind a head ---------------------------------------------------------------------------------------------------


def test_v1_behind_a_head_a_complete_baseline_omits_what_the_head_kept() -> None:
    entries = [
        *told(system({"a": "1"}, added=[tool("read")]), system({"b": "1"})),
        entry(10, "pi.system", system({"c": "1"})),
        entry(11, "pi.user", {"role": "user", "content": "go", "timestamp": NOW}),
        entry(12, "pi.compaction", {"role": "user", "content": "summary", "timestamp": NOW}, head=3),
    ]
    (planned,) = plan(context_of(entries), [("b", "1"), ("c", "1")], [tool("read")], NOW)
    assert planned.message == system({"b": "1", "c": "1"}, added=[tool("read")])  # equal sections are said again
    assert planned.edits == (Edit(target=EntryId(3)), Edit(target=EntryId(10)))  # entry 2 is not active any more
    behind = after(entries, [planned])
    assert plan(context_of(behind), [("b", "1"), ("c", "1")], [tool("read")], NOW) == ()
    assert context_of(behind).messages[0] == planned.message  # in front of the summary
    reordered = plan(context_of(behind), [("c", "1"), ("b", "1")], [tool("read")], NOW)
    assert [each.edits for each in reordered] == [(), ()]  # an ordinary change again


def test_v1_a_baseline_with_nothing_to_say_is_written_all_the_same() -> None:
    entries = [entry(5, "pi.reset", head=5)]
    (planned,) = plan(context_of(entries), [], [], NOW)
    assert planned == SystemEntry(message=system({}))
    assert plan(context_of(after(entries, [planned])), [], [], NOW) == ()


def test_v1_every_head_begins_the_prompt_anew() -> None:
    entries = after([entry(5, "pi.reset", head=5)], [SystemEntry(message=system({"a": "1"}))])
    entries.append(entry(9, "pi.compaction", head=6))
    (planned,) = plan(context_of(entries), [("a", "1")], [], NOW)
    assert planned.edits == (Edit(target=EntryId(6)),)


# -- any change ------------------------------------------------------------------------------------------------------

SECTIONS = st.lists(
    st.tuples(st.sampled_from("abcde"), st.sampled_from("12")), max_size=5, unique_by=lambda section: section[0]
)
TOOLS = st.lists(
    st.builds(tool, st.sampled_from(["read", "write", "edit", "bash"]), st.sampled_from(["one", "two"])),
    max_size=4,
    unique_by=lambda each: str(each["name"]),
)
HEADS = st.none() | st.integers(0, 20)
"""A head that is placed before the change, at which of the entries."""


@given(st.lists(st.tuples(SECTIONS, TOOLS, HEADS), max_size=6))
def test_v2_after_any_change_the_transcript_shows_exactly_what_was_wanted(
    changes: list[tuple[list[tuple[str, str]], list[JsonObject], int | None]],
) -> None:
    entries = told()
    for sections, tools, head in changes:
        if head is not None:
            next_id = entries[-1].id + 1
            place = ([*entries, None])[head % (len(entries) + 1)]
            entries.append(entry(next_id, "pi.compaction", head=place.id if place is not None else next_id))
        planned = plan(context_of(entries), sections, tools, NOW)
        entries = after(entries, planned)
        context = context_of(entries)
        assert replay(context.messages) == Shown(sections=tuple(sections), tools=tuple(tools))
        assert plan(context, sections, tools, NOW) == ()
