"""Owns bounding text: which whole lines of a stream or of an answer are kept, and what is said about the rest.

What is kept is a slice of the text and nothing else: the first lines (`head`) or the last (`tail`) that fit the limits,
newline included. A single line that alone is too long is cut at the border of a character. Memory stays in proportion
to the limits, however much is added. Never stores, and never decides when anything is shown.

Bytes are those of the text as UTF-8, after bytes that are none were replaced by U+FFFD and before control characters
are left out. Left out of a stream's text are the control characters U+0000 to U+001F but tab and newline, U+007F, and
U+0080 to U+009F: of an ANSI sequence only the escape character goes, so that nothing acts and nothing is guessed.
Lone surrogates are kept, three bytes each.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from typing import Final

from pidurable_nb.ids import Json, JsonObject
from pidurable_nb.records.message import Diagnostic
from pidurable_nb.tools.output import OutputLimits

_WINDOW: Final = 65536
"""How much of a chunk is looked at in one go."""
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class RetainedOutput:
    """The part of a stream of text that is kept, at every moment: a function of what was added, not of the chunks.

    `end()` says that nothing follows: a character that never became whole is replaced. `changed` says whether there
    is news since `taken()`.
    """

    __slots__ = ("_bytes", "_decoder", "_final", "_kept", "_lines", "_open_line", "_shown", "changed", "limits")

    def __init__(self, limits: OutputLimits) -> None:
        self.limits = limits
        self.changed = False
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._kept = bytearray()  # head: the start of the stream until it is final; tail: more than can be kept
        self._final = False
        self._bytes = 0
        self._lines = 0  # newlines so far
        self._open_line = False
        self._shown: tuple[str, int, int] | None = ("", 0, 0)  # text, its bytes and lines; None: to be worked out

    def add(self, chunk: str | bytes) -> None:
        """Take more of the stream; bytes may end within a character."""
        for data in self._windows(chunk):
            self._add(data)

    def end(self) -> None:
        """Nothing follows; idempotent."""
        self._add(_encoded(self._decoder.decode(b"", final=True)))

    def taken(self) -> None:
        """What there is now has been seen."""
        self.changed = False

    @property
    def text(self) -> str:
        """What is kept, without control characters."""
        return self._now()[0]

    @property
    def exact(self) -> str:
        """What is kept, with its control characters: the slice itself."""
        start = _tail(self._kept, self.limits) if self.limits.retain == "tail" else 0
        return self._kept[start:].decode("utf-8", "surrogatepass")

    @property
    def dropped_bytes(self) -> int:
        """Bytes of the stream that are not kept."""
        return self._bytes - self._now()[1]

    @property
    def dropped_lines(self) -> int:
        """Lines of which nothing is kept; the last one counts without a newline too."""
        return self._lines + self._open_line - self._now()[2]

    @property
    def lines(self) -> int:
        """Lines of which something is kept."""
        return self._now()[2]

    @property
    def diagnostic(self) -> Diagnostic | None:
        """What is said about the rest; None when there is none."""
        return truncated(self.dropped_lines, self.dropped_bytes)

    def _windows(self, chunk: str | bytes) -> Iterator[bytes]:
        for start in range(0, len(chunk), _WINDOW):
            part = chunk[start : start + _WINDOW]
            if isinstance(part, str):  # after bytes that stopped within a character
                yield _encoded(self._decoder.decode(b"", final=True) + part)
            else:
                yield _encoded(self._decoder.decode(part))

    def _add(self, data: bytes) -> None:
        if not data:
            return
        self._bytes += len(data)
        self._lines += data.count(b"\n")
        self._open_line = not data.endswith(b"\n")
        self.changed = True
        if self._final:
            return
        self._shown = None
        self._kept += data
        if self.limits.retain == "tail":
            if len(self._kept) > 2 * self.limits.max_bytes + _WINDOW:
                # One byte more than can be kept tells whether the kept part begins a line.
                del self._kept[: len(self._kept) - self.limits.max_bytes - 1]
        else:
            end = _head(self._kept, self.limits)
            if end < len(self._kept):  # the line that did not fit never will
                del self._kept[end:]
                self._final = True

    def _now(self) -> tuple[str, int, int]:
        if self._shown is None:
            start = _tail(self._kept, self.limits) if self.limits.retain == "tail" else 0
            kept = self._kept[start:]
            text = _CONTROL.sub("", kept.decode("utf-8", "surrogatepass"))
            self._shown = (text, len(kept), _line_count(kept))
        return self._shown


def bounded(content: Sequence[JsonObject], limits: OutputLimits) -> tuple[tuple[JsonObject, ...], Diagnostic | None]:
    """Content blocks whose text, taken together, is within the limits, and what is said about the rest.

    Blocks that are no text stay; blocks of text of which nothing is left go.
    """
    texts = [_encoded(text) for block in content if (text := _text_of(block)) is not None]
    whole = b"".join(texts)
    if len(whole) <= limits.max_bytes and _line_count(whole) <= limits.max_lines:
        return tuple(content), None
    start, end = (_tail(whole, limits), len(whole)) if limits.retain == "tail" else (0, _head(whole, limits))
    blocks: list[JsonObject] = []
    at = 0
    for block in content:
        text = _text_of(block)
        if text is None:
            blocks.append(block)
            continue
        length = len(_encoded(text))
        kept = whole[max(at, start) : min(at + length, end)] if at < end and at + length > start else b""
        at += length
        if kept:
            cut: dict[str, Json] = {**block, "text": kept.decode("utf-8", "surrogatepass")}
            blocks.append(cut if len(kept) < length else block)
    lines = _line_count(whole) - _line_count(whole[start:end])
    return tuple(blocks), truncated(lines, len(whole) - (end - start))


def truncated(lines: int, bytes: int) -> Diagnostic | None:
    """The diagnostic of text that was dropped; None when nothing was."""
    if lines == 0 and bytes == 0:
        return None
    message = f"output truncated: {lines:,} lines, {bytes:,} bytes dropped"
    return Diagnostic(severity="warn", code="truncated", message=message)


def _head(data: bytes | bytearray, limits: OutputLimits) -> int:
    """Where the first lines that fit end."""
    end = len(data)
    if end > limits.max_bytes:
        end = data.rfind(b"\n", 0, limits.max_bytes) + 1 or _border(data, limits.max_bytes, -1)
    if data.count(b"\n", 0, end) >= limits.max_lines:
        found = -1
        for _ in range(limits.max_lines):
            found = data.find(b"\n", found + 1, end)
        end = found + 1
    return end


def _tail(data: bytes | bytearray, limits: OutputLimits) -> int:
    """Where the last lines that fit begin. `data` is all there was, or longer than the limit."""
    start = max(0, len(data) - limits.max_bytes)
    if start:
        found = data.find(b"\n", start - 1, len(data) - 1)
        start = found + 1 if found >= 0 else _border(data, start, 1)
    at = len(data) - data.endswith(b"\n")
    for _ in range(limits.max_lines):
        at = data.rfind(b"\n", start, at)
        if at < 0:
            return start
    return at + 1


def _border(data: bytes | bytearray, at: int, step: int) -> int:
    """The nearest border of a character from `at` on, forwards or backwards."""
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at += step
    return at


def _line_count(data: bytes | bytearray) -> int:
    return data.count(b"\n") + (len(data) > 0 and not data.endswith(b"\n"))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text_of(block: JsonObject) -> str | None:
    text = block.get("text")
    return text if block.get("type") == "text" and isinstance(text, str) else None
