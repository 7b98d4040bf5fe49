"""C7: what is no JSON is refused where it enters, with its path; what passes is a copy that its writer cannot reach."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict
from types import MappingProxyType
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidurable_nb.errors import NotJson
from pidurable_nb.ids import MAX_INTEGER, Json
from pidurable_nb.records import codec
from pidurable_nb.records.strict import MAX_DEPTH, detach, same

TEXTS = st.text(st.characters(codec=None, categories=None), max_size=20)
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=20,
)


class Color(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int


class Text(str):
    __slots__ = ()


def nested(levels: int) -> Json:
    value: Json = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "at"),
    [
        (float("nan"), "$"),
        ({"rate": math.inf}, "$.rate"),
        ({"items": [0, 1, {"name": -math.inf}]}, "$.items[2].name"),
        ([2**53], "$[0]"),
        ({"n": -(2**53)}, "$.n"),
        ({"a": {1: "x"}}, "$.a[1]"),
        ({"a b": {"ü": b"x"}}, "$['a b'].ü"),
        ({"a": object()}, "$.a"),
        ({"a": {1, 2}}, "$.a"),
        ((1, Color.RED), "$[1]"),
        ([Level.LOW], "$[0]"),
        ([Text("x")], "$[0]"),
        ({Text("k"): 1}, "$.k"),
        ([Point(1)], "$[0]"),
        (1j, "$"),
    ],
)
def test_c7_what_is_no_json_is_refused_with_its_path(value: object, at: str) -> None:
    with pytest.raises(NotJson) as caught:
        detach(value)
    assert caught.value.at == at
    assert str(caught.value).startswith(at + ": ")


def test_c7_the_path_starts_where_the_caller_says() -> None:
    with pytest.raises(NotJson) as caught:
        detach([float("nan")], at="memo charge")
    assert caught.value.at == "memo charge[0]"


def test_c7_a_cycle_is_named_where_it_closes() -> None:
    loop: dict[str, object] = {"a": 1}
    loop["b"] = [loop]
    with pytest.raises(NotJson, match="contains itself") as caught:
        detach({"top": loop})
    assert caught.value.at == "$.top.b[0]"


def test_c7_nesting_is_bounded_and_never_a_recursion_error() -> None:
    assert detach(nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    for levels in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(NotJson, match="nested deeper"):
            detach(nested(levels))


def test_c7_what_repeats_without_a_cycle_is_copied_twice() -> None:
    shared = {"a": 1}
    copy = detach([shared, shared])
    assert isinstance(copy, list)
    assert copy == [shared, shared]
    assert copy[0] is not copy[1]


def test_c7_tuples_and_mappings_become_plain_and_detached() -> None:
    inner = [1]
    value = MappingProxyType({"a": (1, inner), "b": OrderedDict(c=True)})
    copy = detach(value)
    inner.append(2)
    assert copy == {"a": [1, [1]], "b": {"c": True}}
    assert isinstance(copy, dict)
    assert type(copy["b"]) is dict


def test_c7_bounds_and_odd_keys_pass() -> None:
    value = {"__proto__": MAX_INTEGER, "": -MAX_INTEGER, "\x00": "\x00", "f": 1.5, "t": True}
    assert detach(value) == value


def test_b19_lone_surrogates_are_kept_and_pairs_become_their_character() -> None:
    assert detach("a\ud800b") == "a\ud800b"
    assert detach(["\udc00\ud800", {"\ud83d\ude00": "\ufeff\ud83d\ude00\ud83d"}]) == [
        "\udc00\ud800",
        {"😀": "\ufeff😀\ud83d"},
    ]
    with pytest.raises(NotJson, match="two keys"):
        detach({"😀": 1, "\ud83d\ude00": 2})


@given(VALUES)
def test_c7_what_passed_is_the_same_before_and_after_storing(value: Json) -> None:
    try:
        kept = detach(value)
    except NotJson:
        assert "\ud83d" in json.dumps(value) or "\\ud" in json.dumps(value)  # two spellings of one key
        return
    text = codec.dumps(kept)
    text.encode()
    back = codec.loads(text)
    assert same(back, kept)
    assert same(json.loads(text), kept)
    assert same(detach(back), back)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (True, 1, False),
        (0, False, False),
        (1, 1.0, False),
        (None, False, False),
        ("a", "a", True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ({"a": None}, {"b": None}, False),
        ([1, [True]], (1, (True,)), True),
        ([1, 2], [2, 1], False),
        ([], {}, False),
        ({"a": [{"b": 1}]}, {"a": [{"b": True}]}, False),
    ],
)
def test_c7_sameness_is_that_of_json(a: Json, b: Json, equal: bool) -> None:
    assert same(a, b) is equal
    assert same(b, a) is equal
    assert same(a, a)
