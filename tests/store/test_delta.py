"""What document deltas promise: the stored form, what applying does, and that the writer's batches say what changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pidurable_nb.ids import Json
from pidurable_nb.store.delta import (
    Append,
    BadDelta,
    Delete,
    Op,
    Put,
    Reorder,
    Replace,
    Splice,
    Trim,
    apply,
    encode,
    parse,
)
from pidurable_nb.store.diff import MOST_OPS, WINDOW, diff, same
from pidurable_nb.store.utf16 import added, drop_units, join, utf16_units

HIGH, LOW, GRIN = "\ud83d", "\ude00", "\U0001f600"

relaxed = settings(deadline=None, max_examples=80)


def _at(value: Json, *path: str | int) -> Json:
    """The member of `value` at `path`, which is there."""
    for segment in path:
        if isinstance(segment, str):
            assert isinstance(value, Mapping)
            value = value[segment]
        else:
            assert isinstance(value, (list, tuple))
            value = value[segment]
    return value


def _in_javascript(text: str) -> str:
    """`text` as JSON gives it back: halves side by side are one character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


letters = st.sampled_from(["a", "b", "é", "\x00", "\ufeff", "\u202e", GRIN, HIGH, LOW, "\U0010ffff"])
short_texts = st.text(letters, max_size=6).map(_in_javascript)
long_texts = st.builds(lambda a, b, n: _in_javascript(a * n + b), short_texts, short_texts, st.integers(1, 60))
texts = st.one_of(short_texts, long_texts, st.text(max_size=5))
keys = st.one_of(st.sampled_from(["", "a", "b", "c", "__proto__", "constructor", "0"]), short_texts)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.sampled_from([0.0, -0.0, 1.0]),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)
values: st.SearchStrategy[Json] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=7), st.dictionaries(keys, inner, max_size=5)),
    max_leaves=25,
)
objects = st.dictionaries(keys, values, max_size=5)


@st.composite
def successors(draw: st.DrawFn, value: Json) -> Json:
    """A value that shares much with `value`, as the next state of a document does."""
    if draw(st.integers(0, 9)) == 0:
        return draw(values)
    if isinstance(value, str):
        cut = draw(st.integers(0, len(value)))
        return _in_javascript(value[cut:] + draw(texts))
    if isinstance(value, Mapping):
        kept: dict[str, Json] = {k: v for k, v in value.items() if draw(st.integers(0, 5))}
        for key in kept:
            if draw(st.booleans()):
                kept[key] = draw(successors(kept[key]))
        return kept | draw(st.dictionaries(keys, scalars, max_size=2))
    if isinstance(value, list):
        items: list[Json] = [item for item in value if draw(st.integers(0, 4))]
        items = [draw(successors(item)) if draw(st.integers(0, 3)) == 0 else item for item in items]
        items[draw(st.integers(0, len(items))) : 0] = draw(st.lists(scalars, max_size=2))
        return draw(st.permutations(items)) if draw(st.integers(0, 3)) == 0 else items
    return draw(st.one_of(st.just(value), scalars))


@st.composite
def steps(draw: st.DrawFn) -> tuple[Json, Json]:
    old = draw(objects)
    new = draw(successors(old))
    return old, copy.deepcopy(new) if draw(st.booleans()) else new


def _stored(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The batch after a round through JSON text."""
    return parse(json.loads(json.dumps(encode(ops))))


def _arrays(ops: tuple[Op, ...]) -> Json:
    batch: Json = json.loads(json.dumps(encode(ops)))
    return batch


def _characters(value: Json) -> int:
    """About the length of `value` as JSON text without escapes."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, Mapping):
        return 2 + sum(len(key) + 4 + _characters(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return 2 + sum(1 + _characters(item) for item in value)
    return len(json.dumps(value))


# --- The writer -------------------------------------------------------------------------------------------------


@relaxed
@given(steps())
def test_applying_a_difference_gives_the_new_value_and_mutates_neither(step: tuple[Json, Json]) -> None:
    old, new = step
    old_copy, new_copy = copy.deepcopy(old), copy.deepcopy(new)
    ops = diff(old, new)
    assert same(apply(old, ops), new)
    assert same(old, old_copy)
    assert same(new, new_copy)


@relaxed
@given(steps())
def test_a_difference_survives_its_stored_form(step: tuple[Json, Json]) -> None:
    old, new = step
    ops = diff(old, new)
    assert same(apply(old, _stored(ops)), new)
    assert _arrays(_stored(ops)) == _arrays(ops)


@relaxed
@given(values, values)
def test_any_value_becomes_any_other(old: Json, new: Json) -> None:
    ops = diff(old, new)
    assert same(apply(old, ops), new)
    if not isinstance(old, dict) or not isinstance(new, dict):
        assert ops == (() if same(old, new) else (Replace(new),))


@relaxed
@given(values)
def test_equal_values_give_an_empty_batch(value: Json) -> None:
    assert diff(value, value) == ()
    assert diff(value, copy.deepcopy(value)) == ()


@relaxed
@given(steps())
def test_a_batch_never_weighs_much_more_than_the_value_it_makes(step: tuple[Json, Json]) -> None:
    old, new = step
    assert _characters(encode(diff(old, new))) <= 3 * _characters(new) + 400


@relaxed
@given(steps())
def test_no_written_path_names_a_forbidden_key_or_the_place_behind_an_array(step: tuple[Json, Json]) -> None:
    old, new = step
    state = old
    for op in diff(old, new):
        if isinstance(op, Put) and isinstance(op.path[-1], int):
            parent = _at(state, *op.path[:-1])
            assert isinstance(parent, list)
            assert op.path[-1] < len(parent)
        state = apply(state, _stored((op,)))  # parse refuses forbidden segments


@pytest.mark.parametrize(
    ("old", "new"),
    [(True, 1), (1, True), (False, 0), (1, 1.0), (0.0, -0.0), (None, False), ("1", 1), ([], {}), ("", None), (0, 0.0)],
)
def test_what_json_text_tells_apart_is_a_change(old: Json, new: Json) -> None:
    assert not same(old, new)
    assert diff({"x": old}, {"x": new}) == (Put(("x",), new),)
    after = apply({"x": [7, old, 7]}, diff({"x": [7, old, 7]}, {"x": [7, new, 7]}))
    assert same(after, {"x": [7, new, 7]})


@pytest.mark.parametrize(
    ("old", "new", "batch"),
    [
        ({"n": 1}, {"n": 2}, [["s", ["n"], 2]]),
        ({"a": 1, "b": 2}, {"b": 2}, [["d", ["a"]]]),
        ({}, {"a": {"b": []}}, [["s", ["a"], {"b": []}]]),
        ({"a": {"b": {"c": 1, "d": "kept"}}}, {"a": {"b": {"c": 2, "d": "kept"}}}, [["s", ["a", "b", "c"], 2]]),
        ({"t": "one"}, {"t": "one two"}, [["a", ["t"], " two"]]),
        ({"t": ""}, {"t": "x"}, [["a", ["t"], "x"]]),
        ({"t": "one"}, {"t": "two"}, [["s", ["t"], "two"]]),
        ({"t": "ab" * 40}, {"t": "ab" * 30}, [["t", ["t"], 20]]),
        ({"t": "x" + "ab" * 40}, {"t": "ab" * 40 + "z"}, [["t", ["t"], 1], ["a", ["t"], "z"]]),
        ({"l": [1]}, {"l": [1, 2]}, [["p", ["l"], 1, 0, [2]]]),
        ({"l": [1, 2, 3]}, {"l": [1, 9, 3]}, [["s", ["l", 1], 9]]),
        ({"l": [1, 2, 3]}, {"l": []}, [["p", ["l"], 0, 3, []]]),
        ({"l": [1, 2, 3]}, {"l": [2, 3, 4]}, [["p", ["l"], 0, 1, []], ["p", ["l"], 2, 0, [4]]]),
        ({"l": [{"n": 1}, 5]}, {"l": [{"n": 2}, 6, 7]}, [["s", ["l", 0, "n"], 2], ["p", ["l"], 1, 1, [6, 7]]]),
    ],
)
def test_the_batch_says_what_changed(old: Json, new: Json, batch: Json) -> None:
    assert _arrays(diff(old, new)) == batch


def test_keys_that_no_path_may_name_are_written_inside_their_owner() -> None:
    old: Json = {"safe": {"__proto__": 1, "x": "y" * 90}, "other": [{"constructor": 1}]}
    new: Json = {"safe": {"__proto__": 2, "x": "y" * 90}, "other": [{"constructor": 1, "a": 1}]}
    ops = diff(old, new)
    assert _arrays(ops) == [["s", ["safe"], {"__proto__": 2, "x": "y" * 90}], ["s", ["other", 0, "a"], 1]]
    assert diff({"prototype": 1}, {"prototype": 2}) == (Replace({"prototype": 2}),)


def test_scattered_removals_do_not_carry_what_stays() -> None:
    items: list[Json] = [{"id": n, "content": f"message {n}" * 20} for n in range(6)]
    kept = [items[n] for n in (0, 2, 4, 5)]
    batch: Json = [["p", ["items"], 1, 1, []], ["p", ["items"], 2, 1, []]]
    assert _arrays(diff({"items": items}, {"items": kept})) == batch
    assert _arrays(diff({"items": items}, {"items": copy.deepcopy(kept)})) == batch


def test_an_element_that_changes_while_others_come_and_go_changes_in_place() -> None:
    old: Json = {"tools": [{"id": 1, "output": "x" * 500}, {"id": 2}]}
    new: Json = {"tools": [{"id": 1, "output": "x" * 501}, {"id": 2}, {"id": 3}]}
    assert _arrays(diff(old, new)) == [["a", ["tools", 0, "output"], "x"], ["p", ["tools"], 2, 0, [{"id": 3}]]]


def test_a_permutation_of_heavy_elements_is_a_reorder() -> None:
    items: list[Json] = [{"id": n, "content": "x" * 200} for n in range(6)]
    order = (0, 4, 2, 3, 1, 5)
    assert diff({"l": items}, {"l": [items[k] for k in order]}) == (Reorder(("l",), order),)


def test_a_permutation_of_equal_elements_is_a_bijection() -> None:
    old: Json = {"l": ["a" * 90, "b" * 90, "a" * 90, 1, True, 1.0]}
    new: Json = {"l": ["b" * 90, 1.0, "a" * 90, True, "a" * 90, 1]}
    (op,) = diff(old, new)
    assert isinstance(op, Reorder)
    assert same(apply(old, (op,)), new)


def test_many_changed_elements_are_written_as_their_container() -> None:
    old: Json = {"l": list(range(5000)), "kept": "x" * 100_000}
    numbers: Json = [n + 10_000 if n % 2 else n for n in range(5000)]
    assert diff(old, {"l": numbers, "kept": "x" * 100_000}) == (Put(("l",), numbers),)


def test_more_than_4096_operations_fold_into_one_replace() -> None:
    def state(changed: int) -> Json:
        return {"l": [{"kept": "x" * 200, "n": int(n < changed)} for n in range(5000)]}

    assert len(diff(state(0), state(MOST_OPS))) == MOST_OPS
    assert diff(state(0), state(MOST_OPS + 1)) == (Replace(state(MOST_OPS + 1)),)


def test_b21_a_thousand_appends_of_1_kb_store_1_kb_each() -> None:
    value: Json = {"tools": [{"output": ""}], "other": {"kept": "x" * 1000}}
    piece = "0123456789abcde " * 64
    stored = 0
    for n in range(1000):
        new: Json = {"tools": [{"output": piece * (n + 1)}], "other": {"kept": "x" * 1000}}
        ops = diff(value, new)
        stored += len(json.dumps(encode(ops)))
        value = apply(value, ops)
    assert same(value, {"tools": [{"output": piece * 1000}], "other": {"kept": "x" * 1000}})
    assert stored < 1_100_000


def test_b21_a_moving_tail_of_an_output_stores_only_what_is_new() -> None:
    line = "step {} of the build prints a line like this\n"
    old = "".join(line.format(n) for n in range(1000))
    new = "".join(line.format(n) for n in range(20, 1020))
    ops = diff({"o": old}, {"o": new})
    assert [type(op) for op in ops] == [Trim, Append]
    assert len(json.dumps(encode(ops))) < 1_200
    assert apply({"o": old}, ops) == {"o": new}


def test_an_overlap_is_found_in_text_that_repeats_itself() -> None:
    old, new = "ab" * 20_000 + "a" * 5_000, "a" * 5_000 + "c" * 40_000
    ops = diff({"o": old}, {"o": new})
    assert ops == (Trim(("o",), 40_000), Append(("o",), "c" * 40_000))
    assert apply({"o": old}, ops) == {"o": new}


def test_text_without_an_overlap_is_written_whole() -> None:
    old, new = "a" * (WINDOW - 1) + "b", "a" * (WINDOW - 1) + "c"
    assert diff({"o": old}, {"o": new}) == (Put(("o",), new),)


def test_a_new_state_is_reached_through_foreign_containers() -> None:
    old: Mapping[str, Json] = MappingProxyType({"l": (1, 2, 3), "m": MappingProxyType({"a": 1})})
    new: Json = {"l": [1, 3], "m": {"a": 1, "b": ("x",)}}
    assert diff(old, {"l": [1, 2, 3], "m": {"a": 1}}) == ()
    assert same(apply(old, diff(old, new)), new)
    assert dict(old) == {"l": (1, 2, 3), "m": {"a": 1}}


def test_a_value_nested_beyond_recursion_is_replaced() -> None:
    def nested(leaf: Json) -> Json:
        for _ in range(20_000):
            leaf = [leaf]
        return {"deep": leaf}

    (op,) = diff(nested(1), nested(2))
    assert isinstance(op, Replace)


# --- UTF-16 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "units", "rest"),
    [
        ("abc", 0, "abc"),
        ("abc", 2, "c"),
        ("abc", 9, ""),
        ("é→x", 2, "x"),
        (f"a{GRIN}b", 1, f"{GRIN}b"),
        (f"a{GRIN}b", 2, f"{LOW}b"),
        (f"a{GRIN}b", 3, "b"),
        (f"{GRIN}{GRIN}", 2, GRIN),
        (f"{GRIN}{GRIN}", 3, LOW),
        (HIGH, 1, ""),
        (f"{LOW}{HIGH}", 1, HIGH),
    ],
)
def test_trim_counts_utf16_units_and_leaves_the_half_it_cuts(text: str, units: int, rest: str) -> None:
    assert apply({"t": text}, parse([["t", ["t"], units]])) == {"t": rest}


@relaxed
@given(texts, st.integers(0, 12))
def test_trim_is_what_javascript_slices(text: str, units: int) -> None:
    raw = _in_javascript(text).encode("utf-16-le", "surrogatepass")[2 * units :]
    assert drop_units(text, units) == raw.decode("utf-16-le", "surrogatepass")


@relaxed
@given(texts, texts)
def test_joining_is_what_javascript_concatenates(text: str, more: str) -> None:
    text, more = _in_javascript(text), _in_javascript(more)
    whole = join(text, more)
    assert whole == _in_javascript(text + more)
    assert utf16_units(whole) == utf16_units(text) + utf16_units(more)
    text_added = added(text, whole)
    assert text_added is not None
    assert join(text, text_added) == whole


def test_b19_a_pair_split_over_two_appends_becomes_its_character() -> None:
    assert apply({"t": "x"}, parse([["a", ["t"], f"y{HIGH}"], ["a", ["t"], f"{LOW}z"]])) == {"t": f"xy{GRIN}z"}
    first = apply({"t": ""}, parse([["a", ["t"], HIGH]]))
    assert first == {"t": HIGH}
    assert apply(first, parse([["a", ["t"], LOW]])) == {"t": GRIN}
    assert apply({"t": LOW}, parse([["a", ["t"], HIGH]])) == {"t": LOW + HIGH}


def test_b19_an_emoji_cut_between_two_chunks_is_still_an_append() -> None:
    old: Json = {"t": "x" * 10_000 + HIGH}
    new: Json = {"t": "x" * 10_000 + GRIN + "!"}
    assert diff(old, new) == (Append(("t",), LOW + "!"),)
    assert apply(old, diff(old, new)) == new


def test_b19_a_tail_that_drops_emoji_is_counted_in_utf16() -> None:
    old, new = GRIN * 3 + "kept " * 40, "kept " * 40 + GRIN
    assert diff({"t": old}, {"t": new}) == (Trim(("t",), 6), Append(("t",), GRIN))


@pytest.mark.parametrize("text", ["\ud800", "\x00", "\ufeffa\ufeffb", "\u202eabc", "\x1b[31mred\x1b[0m", HIGH + "a"])
def test_c7_odd_text_passes_through_a_stored_delta_unchanged(text: str) -> None:
    for ops in (diff({}, {"t": text}), diff({"t": "x"}, {"t": f"x{text}"}), diff({}, {text: [text]})):
        assert _stored(ops) == ops
    assert apply({"t": "x"}, _stored((Append(("t",), text),))) == {"t": f"x{text}"}


# --- Applying the batches of another writer ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "batch", "result"),
    [
        ({"a": 1}, [], {"a": 1}),
        ({"a": 1}, [["r", {"b": 2}]], {"b": 2}),
        ({"a": 1}, [["r", {"b": 2}], ["s", ["c"], 3]], {"b": 2, "c": 3}),
        ({"l": [1, 2]}, [["s", ["l", 2], 3]], {"l": [1, 2, 3]}),
        ({"l": []}, [["s", ["l", 0], {"x": 1}], ["s", ["l", 0, "x"], 2]], {"l": [{"x": 2}]}),
        ({"l": [1, 2, 3]}, [["d", ["l", 1]]], {"l": [1, 3]}),
        ({"a": 1}, [["d", ["b"]]], {"a": 1}),
        ({"l": [1]}, [["p", ["l"], 9, 0, [2]]], {"l": [1, 2]}),
        ({"l": [1, 2, 3]}, [["p", ["l"], 1, 99, ["x", "y"]]], {"l": [1, "x", "y"]}),
        ([1, 2], [["p", [], 0, 1, []], ["m", [], [0]]], [2]),
        ({"l": ["a", "b", "c"]}, [["m", ["l"], [2, 0, 1]]], {"l": ["c", "a", "b"]}),
        ({"l": []}, [["m", ["l"], []]], {"l": []}),
        ({"": {"": "x"}}, [["a", ["", ""], "y"]], {"": {"": "xy"}}),
        ({}, [["s", ["x"], {"__proto__": {"constructor": 1}}]], {"x": {"__proto__": {"constructor": 1}}}),
        ({"0": "a"}, [["a", ["0"], "b"]], {"0": "ab"}),
    ],
)
def test_a_batch_applies_in_order(value: Json, batch: Json, result: Json) -> None:
    assert same(apply(value, parse(batch)), result)


def test_deleting_and_putting_a_key_again_moves_it_last() -> None:
    after = apply({"a": 1, "b": 2}, parse([["d", ["a"]], ["s", ["a"], 3]]))
    assert isinstance(after, dict)
    assert list(after.items()) == [("b", 2), ("a", 3)]
    again = apply({"a": 1, "b": 2}, parse([["s", ["a"], 3]]))
    assert isinstance(again, dict)
    assert list(again) == ["a", "b"]


@pytest.mark.parametrize(
    ("value", "batch", "index"),
    [
        ({"l": [1]}, [["s", ["l", "0"], 1]], 0),  # a key into an array
        ({"l": [1]}, [["s", ["l", 2], 1]], 0),  # beyond the length
        ({"l": [1]}, [["d", ["l", 1]]], 0),
        ({"l": [[1]]}, [["d", ["l", 1, 0]]], 0),
        ({"l": [1]}, [["d", ["l", "x"]]], 0),
        ({"o": {}}, [["s", ["o", 0], 1]], 0),  # an index into an object
        ({}, [["s", ["a", "b"], 1]], 0),  # a missing parent
        ({}, [["d", ["a", "b"]]], 0),
        ({"a": 1}, [["s", ["a", "b"], 1]], 0),  # a parent without members
        ({"a": "text"}, [["s", ["a", 0], "T"]], 0),
        ({"a": None}, [["d", ["a", "b"]]], 0),
        ({"a": 1}, [["a", ["a"], "x"]], 0),
        ({"a": ["x"]}, [["t", ["a"], 1]], 0),
        ({}, [["a", ["a"], "x"]], 0),
        ({"l": ["x"]}, [["a", ["l", 1], "x"]], 0),
        ({"a": {}}, [["p", ["a"], 0, 0, []]], 0),
        ({"a": "text"}, [["p", ["a"], 0, 0, []]], 0),
        ({}, [["p", [], 0, 0, []]], 0),
        ({}, [["m", [], []]], 0),
        ({"l": [1, 2]}, [["m", ["l"], [0]]], 0),
        ({"l": [1, 2]}, [["m", ["l"], [0, 0]]], 0),
        ({"l": [1, 2]}, [["m", ["l"], [1, 2]]], 0),
        ({"l": [1, 2]}, [["m", ["l"], [0, 1, 2]]], 0),
        ({"a": 1}, [["s", ["b"], 1], ["d", ["a"]], ["s", ["a", "x"], 1]], 2),  # seen after earlier effects
    ],
)
def test_an_operation_that_does_not_fit_is_named_and_changes_nothing(value: Json, batch: Json, index: int) -> None:
    before = copy.deepcopy(value)
    ops = parse(batch)
    with pytest.raises(BadDelta) as caught:
        apply(value, ops)
    assert caught.value.index == index
    assert caught.value.verb == encode(ops)[index][0]
    assert f"operation {index}" in str(caught.value)
    assert same(value, before)


@pytest.mark.parametrize(
    "ops",
    [
        (Put((), 1),),
        (Delete(()),),
        (Append((), "x"),),
        (Trim((), 1),),
        (Put(("__proto__",), 1),),
        (Delete(("constructor",)),),
        (Append(("a", "prototype"), "x"),),
        (Put(("l", -1), 1),),
        (Put(("b",), 1), Replace({})),
    ],
)
def test_operations_that_were_never_parsed_are_held_to_the_same_rules(ops: tuple[Op, ...]) -> None:
    value: Json = {"l": [1], "a": {"prototype": "x"}, "__proto__": 0, "constructor": 0}
    with pytest.raises(BadDelta):
        apply(value, ops)


def test_untouched_subtrees_are_shared_and_touched_ones_are_not() -> None:
    value: dict[str, Json] = {"left": {"deep": [1, {"x": 1}]}, "right": {"kept": [1]}, "l": [{"a": 1}, {"b": 1}]}
    after = apply(value, parse([["s", ["left", "deep", 0], 2], ["p", ["l"], 1, 0, [5]]]))
    assert _at(after, "right") is value["right"]
    assert _at(after, "left", "deep", 1) is _at(value, "left", "deep", 1)
    assert _at(after, "l", 0) is _at(value, "l", 0)
    assert _at(after, "l", 2) is _at(value, "l", 1)
    assert value["left"] == {"deep": [1, {"x": 1}]}
    assert value["l"] == [{"a": 1}, {"b": 1}]


def test_a_batch_without_effect_gives_the_value_itself() -> None:
    value: Json = {"a": {"b": 1}}
    assert apply(value, ()) is value
    assert apply(value, (Delete(("a", "absent")),)) is value


def test_a_payload_is_left_as_it_is_by_later_operations() -> None:
    payload: dict[str, Json] = {"n": 1, "l": [1]}
    batch = (Put(("x",), payload), Put(("y",), payload), Put(("x", "n"), 2), Splice(("y", "l"), 0, 1, ()))
    first = apply({}, batch)
    assert first == {"x": {"n": 2, "l": [1]}, "y": {"n": 1, "l": []}}
    assert payload == {"n": 1, "l": [1]}
    assert apply({}, batch) == first


@relaxed
@given(objects, st.data())
def test_a_value_of_the_past_never_changes(value: dict[str, Json], data: st.DataObject) -> None:
    history: list[tuple[Json, str]] = []
    state: Json = value
    for _ in range(4):
        history.append((state, json.dumps(state)))
        state = apply(state, diff(state, data.draw(successors(state))))
    assert [text for _, text in history] == [json.dumps(past) for past, _ in history]


# --- The stored form --------------------------------------------------------------------------------------------


def test_every_operation_has_its_plain_tuple() -> None:
    ops: tuple[Op, ...] = (
        Replace({"a": 1}),
        Put(("a", 0), None),
        Delete(("a",)),
        Append(("a",), "x"),
        Trim(("a",), 2),
        Splice((), 0, 1, [1, {}]),
        Reorder(("m",), (1, 0)),
    )
    batch: Json = [
        ["r", {"a": 1}],
        ["s", ["a", 0], None],
        ["d", ["a"]],
        ["a", ["a"], "x"],
        ["t", ["a"], 2],
        ["p", [], 0, 1, [1, {}]],
        ["m", ["m"], [1, 0]],
    ]
    assert encode(ops) == batch
    assert parse(batch) == ops
    assert _stored(ops) == ops


@pytest.mark.parametrize(
    ("row", "verb"),
    [
        (["x", ["a"], 1], "x"),
        (["S", ["a"], 1], "S"),
        (["#", 1], "#"),
        (["", ["a"]], ""),
        (["r"], "r"),
        (["r", 1, 2], "r"),
        (["s", ["a"]], "s"),
        (["s", ["a"], 1, 2], "s"),
        (["d", ["a"], 1], "d"),
        (["a", ["a"]], "a"),
        (["p", ["a"], 0, 0], "p"),
        (["m", ["a"]], "m"),
        (["s", "a", 1], "s"),  # a path that is no array
        (["s", 3, 1], "s"),
        (["s", None, 1], "s"),
        (["s", [], 1], "s"),
        (["d", []], "d"),
        (["a", [], "x"], "a"),
        (["t", [], 1], "t"),
        (["s", [-1], 1], "s"),
        (["s", [True], 1], "s"),
        (["s", [1.0], 1], "s"),
        (["s", [None], 1], "s"),
        (["s", [["a"]], 1], "s"),
        (["s", ["__proto__"], 1], "s"),
        (["d", ["a", "constructor"]], "d"),
        (["p", ["prototype", "a"], 0, 0, []], "p"),
        (["a", ["a"], 1], "a"),
        (["a", ["a"], None], "a"),
        (["t", ["a"], -1], "t"),
        (["t", ["a"], 1.0], "t"),
        (["t", ["a"], True], "t"),
        (["t", ["a"], "1"], "t"),
        (["p", ["a"], -1, 0, []], "p"),
        (["p", ["a"], 0, -1, []], "p"),
        (["p", ["a"], False, 0, []], "p"),
        (["p", ["a"], 0, 1.5, []], "p"),
        (["p", ["a"], 0, 0, "x"], "p"),
        (["p", ["a"], 0, 0, {}], "p"),
        (["m", ["a"], [True]], "m"),
        (["m", ["a"], [-1]], "m"),
        (["m", ["a"], "01"], "m"),
        (["r", {}], "r"),  # not the first
        (["r2", {}], "r2"),
        ([], None),
        ([1], None),
        ([["s"], ["a"], 1], None),
        ("s", None),
        ({"s": 1}, None),
        (None, None),
    ],
)
def test_a_malformed_operation_is_refused_with_its_place_and_verb(row: Json, verb: str | None) -> None:
    with pytest.raises(BadDelta) as caught:
        parse([["s", ["fine"], 1], row])
    assert (caught.value.index, caught.value.verb) == (1, verb)
    assert "operation 1" in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("batch", [None, True, 1, "s", {}, {"0": ["d", ["a"]]}])
def test_a_batch_that_is_no_array_is_refused(batch: Json) -> None:
    with pytest.raises(BadDelta) as caught:
        parse(batch)
    assert caught.value.index is None


@relaxed
@given(values)
def test_parsing_anything_gives_operations_or_a_refusal(batch: Json) -> None:
    _parses_or_refuses(batch)
    for verb in "rsdatpm":
        _parses_or_refuses([[verb, *(batch if isinstance(batch, list) else [batch])]])


def _parses_or_refuses(batch: Json) -> None:
    try:
        ops = parse(batch)
    except BadDelta:
        return
    assert same(encode(ops), batch)


@pytest.mark.parametrize("make", [list, tuple])
def test_arrays_may_be_lists_or_tuples(make: Callable[[list[Json]], Json]) -> None:
    batch = make([make(["p", make(["l"]), 1, 0, make([9])])])
    assert same(apply({"l": make([1, 2])}, parse(batch)), {"l": [1, 9, 2]})
