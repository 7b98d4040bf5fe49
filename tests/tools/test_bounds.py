"""What is kept of a stream: whole lines within the limits, whatever the chunks, in bounded memory."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidurable_nb.ids import JsonObject
from pidurable_nb.records.message import Diagnostic
from pidurable_nb.tools.bounds import RetainedOutput, bounded, truncated
from pidurable_nb.tools.output import OutputLimits

Retain = Literal["head", "tail"]


def kept_of(stream: bytes | str, limits: OutputLimits) -> RetainedOutput:
    kept = RetainedOutput(limits)
    kept.add(stream)
    kept.end()
    return kept


def by_the_book(text: str, limits: OutputLimits) -> str:
    """The rule, word by word and without a thought for cost: lines are taken while they fit."""
    lines = re.findall(rb"[^\n]*\n|[^\n]+", text.encode("utf-8", "surrogatepass"))
    if limits.retain == "tail":
        lines.reverse()
    taken: list[bytes] = []
    for line in lines[: limits.max_lines]:
        if sum(map(len, taken)) + len(line) > limits.max_bytes:
            break
        taken.append(line)
    if lines and not taken:
        return cut(lines[0], limits)
    if limits.retain == "tail":
        taken.reverse()
    return b"".join(taken).decode("utf-8", "surrogatepass")


def cut(line: bytes, limits: OutputLimits) -> str:
    text = line.decode("utf-8", "surrogatepass")
    while len(text.encode("utf-8", "surrogatepass")) > limits.max_bytes:
        text = text[1:] if limits.retain == "tail" else text[:-1]
    return text


def sanitized(text: str) -> str:
    return "".join(c for c in text if c in "\t\n" or not (ord(c) < 0x20 or 0x7F <= ord(c) <= 0x9F))


STREAMS = st.text(st.sampled_from("ab\n\n\n\t\r\x1b\x7f\x9bé€😀\ud800"), max_size=60)
LIMITS = st.builds(
    OutputLimits,
    max_bytes=st.integers(1, 40),
    max_lines=st.integers(1, 8),
    retain=st.sampled_from(["head", "tail"]),
)


def borders(length: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, length), max_size=12).map(sorted)


def pieces(stream: bytes, at: Sequence[int]) -> Iterator[bytes]:
    for start, end in zip((0, *at), (*at, len(stream)), strict=True):
        yield stream[start:end]


@given(STREAMS, LIMITS)
def test_whole_lines_are_kept_by_the_rule(text: str, limits: OutputLimits) -> None:
    kept = kept_of(text, limits)
    want = by_the_book(text, limits)
    assert kept.exact == want
    assert kept.text == sanitized(want)
    assert kept.dropped_bytes == len(text.encode("utf-8", "surrogatepass")) - len(want.encode("utf-8", "surrogatepass"))
    assert kept.lines + kept.dropped_lines == len(re.findall(r"[^\n]*\n|[^\n]+", text))
    assert kept.lines == len(re.findall(r"[^\n]*\n|[^\n]+", want))


@given(st.data(), st.binary(max_size=60) | STREAMS.map(lambda t: t.encode("utf-8", "surrogatepass")), LIMITS)
def test_chunk_borders_never_change_the_result(data: st.DataObject, stream: bytes, limits: OutputLimits) -> None:
    whole = kept_of(stream.decode("utf-8", "replace"), limits)
    kept = RetainedOutput(limits)
    for piece in pieces(stream, data.draw(borders(len(stream)))):
        kept.add(piece)
        if data.draw(st.booleans()):  # looking at it changes nothing either
            assert len(kept.exact.encode("utf-8", "surrogatepass")) <= limits.max_bytes
    kept.end()
    assert (kept.text, kept.exact) == (whole.text, whole.exact)
    assert (kept.dropped_bytes, kept.dropped_lines) == (whole.dropped_bytes, whole.dropped_lines)


@pytest.mark.parametrize("retain", ["head", "tail"])
def test_long_streams_give_what_short_memory_cannot_see(retain: Retain) -> None:
    """Longer than the window, so that what was trimmed on the way decides nothing."""
    limits = OutputLimits(max_bytes=1000, max_lines=50, retain=retain)
    text = "".join(f"{'é' * (n * 7 % 60)} line {n}\n" for n in range(20_000))
    for size in (7, 1000, 65536, 65537, 200_001):
        kept = RetainedOutput(limits)
        for at in range(0, len(text), size):
            kept.add(text[at : at + size])
        assert kept.exact == by_the_book(text, limits)
        assert kept.dropped_lines == 20_000 - kept.lines


@pytest.mark.parametrize("retain", ["head", "tail"])
def test_one_long_line_is_cut_at_a_character(retain: Retain) -> None:
    limits = OutputLimits(max_bytes=10, max_lines=5, retain=retain)
    assert kept_of("€" * 200_000, limits).text == "€€€"
    assert kept_of("€" * 200_000, limits).dropped_lines == 0
    mixed = kept_of("short\n" + "€" * 100 + "\nshort\n", limits)
    assert (mixed.text, mixed.lines, mixed.dropped_lines) == ("short\n", 1, 2)


def test_lines_end_with_their_newline() -> None:
    limits = OutputLimits(max_bytes=100, max_lines=2)
    assert kept_of("a\nb\nc", limits).text == "a\nb\n"
    assert kept_of("a\nb\n", limits).dropped_bytes == 0
    assert kept_of("a\nb\nc", OutputLimits(100, 2, "tail")).text == "b\nc"
    assert kept_of("a\nb\nc\n", OutputLimits(100, 2, "tail")).text == "b\nc\n"
    assert kept_of("\n\n\n", OutputLimits(100, 2, "tail")).text == "\n\n"


def test_a_prefix_is_judged_as_if_it_were_all() -> None:
    kept = RetainedOutput(OutputLimits(max_bytes=6, max_lines=9))
    kept.add("ab\ncd")
    assert (kept.text, kept.dropped_bytes) == ("ab\ncd", 0)
    kept.add("efgh")
    assert (kept.text, kept.dropped_bytes, kept.dropped_lines) == ("ab\n", 6, 1)
    kept.add("\nij")
    assert (kept.text, kept.dropped_bytes, kept.dropped_lines) == ("ab\n", 9, 2)


def test_control_characters_are_removed_from_what_is_shown_and_count_as_kept() -> None:
    kept = kept_of("a\x1b[31mred\x1b[0m\tb\r\nc\x00\x07\x7f\x85\u2028\n", OutputLimits())
    assert kept.text == "a[31mred[0m\tb\nc\u2028\n"
    assert kept.dropped_bytes == 0


def test_characters_that_never_become_whole_are_replaced_at_the_end_only() -> None:
    kept = RetainedOutput(OutputLimits())
    kept.add("€".encode()[:2])
    assert kept.text == ""
    kept.end()
    kept.end()
    assert kept.text == "\ufffd"
    mixed = RetainedOutput(OutputLimits())
    mixed.add("€".encode()[:2])
    mixed.add("x\ud800")
    assert mixed.text == "\ufffdx\ud800"


def test_changed_until_it_was_taken() -> None:
    kept = RetainedOutput(OutputLimits())
    seen = [kept.changed]
    for chunk in ("", "a"):
        kept.add(chunk)
        seen.append(kept.changed)
    kept.taken()
    assert [*seen, kept.changed] == [False, False, True, False]


@pytest.mark.parametrize("retain", ["head", "tail"])
def test_two_hundred_megabytes_stay_in_bounded_memory(retain: Retain) -> None:
    chunk = (b"x" * 99 + b"\n") * 10_486  # 1 MiB and a little
    kept = RetainedOutput(OutputLimits(retain=retain))
    tracemalloc.start()
    try:
        for _ in range(200):
            kept.add(chunk)
            if retain == "tail":
                kept.text  # noqa: B018 - a view looks at it now and then
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
    assert kept.text == ("x" * 99 + "\n") * 512
    assert kept.dropped_lines == 200 * 10_486 - 512
    assert kept.dropped_bytes == 200 * len(chunk) - 51_200


def test_what_was_dropped_is_said_in_thousands() -> None:
    assert truncated(51204, 2301112) == Diagnostic(
        severity="warn", code="truncated", message="output truncated: 51,204 lines, 2,301,112 bytes dropped"
    )
    assert truncated(0, 0) is None
    assert kept_of("a\n", OutputLimits()).diagnostic is None
    assert kept_of("a\nb\n", OutputLimits(max_lines=1)).diagnostic == truncated(1, 2)


def block(text: str) -> JsonObject:
    return {"type": "text", "text": text}


PICTURE: JsonObject = {"type": "image", "data": "…"}


def test_explicit_content_within_the_limits_is_left_alone() -> None:
    content = [block("a\r\n"), PICTURE, block(""), block("b")]
    assert bounded(content, OutputLimits()) == (tuple(content), None)


def test_explicit_content_is_bounded_over_all_its_text() -> None:
    content = [block("a\nb\n"), PICTURE, block("c\nd\n"), block("e\n")]
    head, said = bounded(content, OutputLimits(max_lines=3))
    assert head == (block("a\nb\n"), PICTURE, block("c\n"))
    assert said == truncated(2, 4)
    tail, said = bounded(content, OutputLimits(max_lines=3, retain="tail"))
    assert tail == (PICTURE, block("c\nd\n"), block("e\n"))
    assert said == truncated(2, 4)
    marked, _ = bounded([{**block("€" * 9), "mark": 1}], OutputLimits(max_bytes=10))
    assert marked == ({**block("€€€"), "mark": 1},)


@given(st.lists(STREAMS, max_size=5), LIMITS)
def test_the_text_of_bounded_blocks_is_that_of_the_whole(texts: list[str], limits: OutputLimits) -> None:
    blocks, said = bounded([block(text) for text in texts], limits)
    whole = kept_of("".join(texts), limits)
    assert "".join(str(item["text"]) for item in blocks) == whole.exact
    assert said == whole.diagnostic
