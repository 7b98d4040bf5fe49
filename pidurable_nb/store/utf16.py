"""Owns text as JavaScript counts it, in UTF-16 units. Never holds anything but functions of strings.

A Python string may hold half a character (a lone surrogate), as a JavaScript string may. Two halves side by side are
one character to JavaScript and two to Python; the functions here put them together where they make them meet.
"""

from __future__ import annotations


def utf16_units(text: str) -> int:
    """The length that JavaScript would give `text`."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def drop_units(text: str, units: int) -> str:
    """`text` without its first `units` UTF-16 units. Of a character that is cut, the second half stays."""
    if text.isascii():
        return text[units:]
    # The units to drop lie in at most that many characters; only those are encoded, the rest is one C slice.
    head = text[:units].encode("utf-16-le", "surrogatepass")[2 * units :]
    return join(head.decode("utf-16-le", "surrogatepass"), text[units:])


def join(text: str, more: str) -> str:
    """The concatenation, in which the two halves of a character that meet at the joint are one character."""
    if text and more and "\ud800" <= text[-1] <= "\udbff" and "\udc00" <= more[0] <= "\udfff":
        whole = 0x10000 + ((ord(text[-1]) - 0xD800) << 10) + ord(more[0]) - 0xDC00
        return f"{text[:-1]}{chr(whole)}{more[1:]}"
    return text + more


def added(old: str, new: str) -> str | None:
    """What `join` must add to `old` to give `new`; None when `old` is not the start of `new`.

    An `old` that ends in the first half of a character is the start of a `new` that has the whole one there.
    """
    if new.startswith(old):
        return new[len(old) :]
    at = len(old) - 1
    if at < 0 or at >= len(new) or not "\ud800" <= old[at] <= "\udbff" or new[at] <= "\uffff":
        return None
    first, second = divmod(ord(new[at]) - 0x10000, 0x400)
    if chr(0xD800 + first) != old[at] or not new.startswith(old[:at]):
        return None
    return chr(0xDC00 + second) + new[at + 1 :]
