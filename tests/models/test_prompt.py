"""V2: the system messages of a request, replayed in order, are one prompt and one list of tools."""

from __future__ import annotations

from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.models.prompt import prompt_of

A: JsonObject = {"name": "a", "parameters": {}}
B: JsonObject = {"name": "b", "parameters": {}}
B_2: JsonObject = {"name": "b", "parameters": {"type": "object"}}


def system(**members: Json) -> JsonObject:
    return {"role": "system", "content": "", **members}


def test_sections_keep_their_place_until_they_are_removed() -> None:
    one = system(sections={"x": "1", "y": "2", "z": "3"})
    assert prompt_of([one]).text == "1\n\n2\n\n3"
    assert prompt_of([one, system(sections={"y": "two"})]).text == "1\n\ntwo\n\n3"
    assert prompt_of([one, system(sections={"x": None}), system(sections={"x": "again"})]).text == "2\n\n3\n\nagain"
    assert prompt_of([one, system(sections={})]).text == "1\n\n2\n\n3"
    assert prompt_of([]).text == ""


def test_tools_are_removed_before_others_are_added() -> None:
    changed = system(toolsRemoved=[{"name": "b"}, {"name": "none"}], toolsAdded=[B_2])
    assert prompt_of([system(toolsAdded=[B, A])]).tools == (B, A)
    assert prompt_of([system(toolsAdded=[B, A]), changed]).tools == (A, B_2)


def test_a_foreign_system_message_with_text_is_part_of_the_prompt() -> None:
    assert prompt_of([system(sections={"x": "1"}), {"role": "system", "content": "free"}]).text == "1\n\nfree"


def test_v2_answers_that_failed_are_left_out() -> None:
    user: JsonObject = {"role": "user", "content": "hi"}
    answers: list[JsonObject] = [
        {"role": "assistant", "content": [], "stopReason": reason}
        for reason in ("error", "aborted", "deferred", "stop", "toolUse", "length")
    ]
    assert prompt_of([user, *answers]).messages == (user, *answers[3:])
